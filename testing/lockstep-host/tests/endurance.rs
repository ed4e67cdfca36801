//! Members that are killed, stopped and started under load; a few rounds of it, or as many seconds as
//! `LOCKSTEP_HOST_SECONDS` says.

mod common;

use common::*;
use lockstep_host::harness::Pending;
use std::time::Instant;

/// The loads came to something, and the members are whole and agree.
fn end_round(cluster: &mut Cluster, load: Vec<Pending>, round: usize) {
    for reply in load {
        let outcome = reply.wait().unwrap();
        assert!(outcome["committed"].as_i64() > Some(0), "round {round}: {outcome}");
    }
    for member in cluster.running() {
        member.call("wait_members", json!({ "count": 3 })).unwrap();
        member.call("wait_state", json!({ "state": "synced" })).unwrap();
    }
    if let Err(why) = cluster.agree() {
        panic!("round {round}: {why}");
    }
}

fn members_come_and_go_under_load(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let seconds = std::env::var("LOCKSTEP_HOST_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(6));
    let mut round = 0;
    while round < 2 || Instant::now() < end {
        let victim = 1 + round % 2;
        let load: Vec<_> = [0, 3 - victim]
            .into_iter()
            .map(|n| {
                let args = json!({ "threads": 3, "millis": 2500, "rows": 60, "writes": 2, "streams": 10,
                                   "gaps": 15, "statements": 2, "rollbacks": 5, "seed": round * 10 + n + 1 });
                cluster.member(n).send("load", "load_test", args)
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        if round % 4 < 2 {
            cluster.kill(victim);
        } else {
            cluster.stop(victim).unwrap();
        }
        cluster.start(victim, false).unwrap();
        end_round(cluster, load, round);
        round += 1;
    }
}

fn members_are_cut_off_under_load(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let seconds = std::env::var("LOCKSTEP_HOST_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(6));
    let mut round: usize = 0;
    while round < 2 || Instant::now() < end {
        let load: Vec<_> = (0..3)
            .map(|n| {
                let args = json!({ "threads": 3, "millis": 2500, "rows": 60, "writes": 2, "streams": 0,
                                   "gaps": 15, "statements": 2, "rollbacks": 5, "seed": round * 10 + n + 1 });
                cluster.member(n).send("load", "load_test", args)
            })
            .collect();
        let isolate = |n: usize, on: u8| {
            let options = json!({ "options": format!("gmcast.isolate={on}") });
            cluster.member(n).ask("set_options", options).unwrap();
        };
        // One member, which loses the majority alone, or two, so that nobody has it.
        let cut: Vec<usize> =
            if round.is_multiple_of(2) { vec![round / 2 % 3] } else { vec![round % 3, (round + 1) % 3] };
        std::thread::sleep(Duration::from_millis(300));
        cut.iter().for_each(|n| isolate(*n, 1));
        std::thread::sleep(Duration::from_millis(900));
        cut.iter().for_each(|n| isolate(*n, 0));
        end_round(cluster, load, round);
        round += 1;
    }
}

/// Half a minute of waiting is worth a line that says for whom.
fn a_long_wait_explains_itself(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    let first = a.put("s", "t/1", "x").unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/2", "value": "y" })).unwrap();
    let mut waits = b.send("s", "commit", json!({}));
    assert!(waits.is_pending_after(Duration::from_secs(33)));
    let line = format!("Next is {}: an applier of this server is processing it", first["seqno"]);
    let said = b.log_tail(40);
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    waits.wait().unwrap();
    if cluster.kind == Kind::Lockstep {
        assert!(said.contains("waits for its turn in commit order") && said.contains(&line), "{said}");
    }
}

scenarios! {
    a_long_wait_explains_itself: 2,
    members_are_cut_off_under_load: 3,
    members_come_and_go_under_load: 3,
}
