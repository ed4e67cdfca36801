//! Members that are killed, stopped and started under load; a few rounds of it, or as many seconds as
//! `LOCKSTEP_HOST_SECONDS` says.

mod common;

use common::*;
use std::time::Instant;

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
        round += 1;
    }
}

scenarios! {
    members_come_and_go_under_load: 3,
}
