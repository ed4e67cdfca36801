//! A member that is far behind, or stands still: it hears of what concerns it at once, and leaves in time.

mod common;

use common::*;
use std::time::Instant;

fn view_status(member: &Member, status: &str, limit: Duration) {
    let end = Instant::now() + limit;
    loop {
        let view = member.ask("view", json!({})).unwrap();
        if view["status"] == status {
            return;
        }
        assert!(Instant::now() < end, "{}: {view}", member.name);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn queued(member: &Member, least: i64) {
    for _ in 0..200 {
        if member.ask("stats", json!({})).unwrap()["local_recv_queue"].as_i64() >= Some(least) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{} has no backlog of {least}", member.name);
}

fn write(member: &Member, from: i64, count: i64) {
    for n in from..from + count {
        member.put("s", &format!("t/{n}"), "x").unwrap();
    }
}

/// The last member is paused and behind when it loses its majority. Its server is notified at once, earlier commits are
/// applied, and with a majority it is Synced again.
fn loss_of_the_majority_overtakes_a_backlog(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let c = cluster.member(2);
    c.call("pause", json!({})).unwrap();
    write(cluster.member(0), 0, 40);
    queued(c, 20);
    // That the last ones are committed comes with a heartbeat.
    std::thread::sleep(Duration::from_secs(1));
    cluster.kill(0);
    cluster.kill(1);
    let c = cluster.member(2);
    view_status(c, "NON_PRIMARY", Duration::from_secs(10));
    let state = c.ask("state", json!({})).unwrap();
    assert_eq!(state["state"], "connected");
    assert_eq!(c.ask("digest", json!({})).unwrap()["rows"], 0, "nothing may be applied during a pause");
    // Writes, and reads that must be of the present, are refused at once.
    let began = Instant::now();
    c.on("s", "begin", json!({})).unwrap();
    c.on("s", "put", json!({ "row": "own/1", "value": "lost" })).unwrap();
    let refused = code(c.on("s", "commit", json!({})));
    assert!(refused == "status:CONN_FAIL" || refused == "status:NODE_FAIL", "{refused}");
    assert_ne!(c.call("sync_wait", json!({ "seconds": 30 })).unwrap()["status"], "OK");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_ne!(c.ask("stats", json!({})).unwrap()["local_state"], 4);
    c.call("resume", json!({})).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while c.ask("digest", json!({})).unwrap()["rows"] != 40 {
        assert!(
            Instant::now() < end,
            "what is committed is not applied: {}",
            c.ask("digest", json!({})).unwrap()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(c.ask("view", json!({})).unwrap()["status"], "NON_PRIMARY");
    cluster.start(0, false).unwrap();
    let c = cluster.member(2);
    c.call("wait_state", json!({ "state": "synced" })).unwrap();
    c.put("s", "own/2", "y").unwrap();
    assert_eq!(cluster.member(0).call("get", json!({ "row": "own/2", "causal": true })).unwrap(), "y");
    cluster.agree().unwrap();
}

/// The majority comes back before the backlog has been looked at: the server hears of it before, too.
fn majority_returns_during_pause(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let c = cluster.member(2);
    c.call("pause", json!({})).unwrap();
    write(cluster.member(0), 0, 30);
    queued(c, 20);
    cluster.kill(0);
    cluster.kill(1);
    view_status(cluster.member(2), "NON_PRIMARY", Duration::from_secs(10));
    cluster.start(1, false).unwrap();
    write(cluster.member(1), 100, 10);
    let c = cluster.member(2);
    c.call("resume", json!({})).unwrap();
    c.call("wait_state", json!({ "state": "synced" })).unwrap();
    view_status(c, "PRIMARY", Duration::from_secs(5));
    cluster.agree().unwrap();
    cluster.start(0, false).unwrap();
    cluster.agree().unwrap();
}

/// A paused member (a backup holds the global lock) is stopped: it does not wait for the lock. After its return it applies
/// the rest.
fn paused_member_stops_in_time(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let c = cluster.member(2);
    c.call("pause", json!({})).unwrap();
    write(cluster.member(0), 0, 40);
    queued(c, 20);
    let mut own = {
        c.on("s", "begin", json!({})).unwrap();
        c.on("s", "put", json!({ "row": "own/1", "value": "mine" })).unwrap();
        c.send("s", "commit", json!({}))
    };
    assert!(own.is_pending_after(Duration::from_millis(300)));
    let began = Instant::now();
    c.call("disconnect", json!({})).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // It was committed by the others; here it could not be shown any more.
    assert!(own.wait().is_err());
    c.on("x", "resume", json!({})).unwrap();
    assert_eq!(c.ask("digest", json!({})).unwrap()["rows"], 0);
    cluster.stop(2).unwrap();
    let state = std::fs::read_to_string(cluster.dir.join("n3/grastate.dat")).unwrap();
    assert!(!state.contains("seqno:   -1"), "{state}");
    cluster.start(2, false).unwrap();
    let rows = cluster.member(2).call("rows", json!({ "causal": true })).unwrap();
    assert_eq!(rows.as_object().map(|rows| rows.len()), Some(41), "{rows}");
    cluster.agree().unwrap();
}

/// A backup that holds the global lock asks where the database stands, and so does the file of a member that is stopped
/// meanwhile. A new leader leaves out what the one before may have given away, of which the database has nothing.
fn pause_stops_before_left_out_seqnos(cluster: &mut Cluster) {
    cluster.tuning.push_str("; commit.policy=async; async.max_at_risk=1000");
    cluster.start_all().unwrap();
    write(cluster.member(0), 0, 10);
    let last = cluster.member(0).put("s", "t/last", "x").unwrap()["seqno"].as_i64().unwrap();
    let c = cluster.member(2);
    c.call("wait_seqno", json!({ "seqno": last })).unwrap();
    let paused = c.call("pause", json!({})).unwrap();
    assert_eq!(paused["seqno"], last);
    // Those seqnos are left out: a wait for one of them returns an error, not success.
    let stats = cluster.member(1).ask("stats", json!({})).unwrap();
    let upto = |seqno: i64| {
        let gtid = format!("{}:{seqno}", stats["local_state_uuid"].as_str().unwrap());
        json!({ "gtid": gtid, "seconds": 30 })
    };
    let mut waits = cluster.member(1).send("w", "sync_wait", upto(last + 5));
    assert!(waits.is_pending_after(Duration::from_millis(300)));
    cluster.kill(0);
    let b = cluster.member(1);
    b.call("wait_members", json!({ "count": 2 })).unwrap();
    assert_eq!(waits.wait().unwrap()["status"], "TRX_MISSING");
    for (seqno, is) in
        [(last, "OK"), (last + 1, "TRX_MISSING"), (last + 1000, "TRX_MISSING"), (last + 1001, "OK")]
    {
        assert_eq!(b.call("sync_wait", upto(seqno)).unwrap()["status"], is, "{seqno}, {last}");
    }
    b.call("wait_seqno", json!({ "seqno": last + 1000 })).unwrap();
    // Long enough for the view to be in the hands of a thread of C's, too.
    std::thread::sleep(Duration::from_secs(1));
    let c = cluster.member(2);
    assert_eq!(
        c.ask("stats", json!({})).unwrap()["last_committed"],
        last,
        "nothing is applied during a pause"
    );
    c.call("disconnect", json!({})).unwrap();
    c.on("x", "resume", json!({})).unwrap();
    cluster.stop(2).unwrap();
    let state = std::fs::read_to_string(cluster.dir.join("n3/grastate.dat")).unwrap();
    assert!(state.contains(&format!("seqno:   {last}\n")), "{state}");
    // Its data are complete up to a position: the log continues from there.
    let c = cluster.start(2, false).unwrap();
    let log = c.log_tail(500);
    assert_eq!(log.matches("requesting a state transfer").count(), 1, "only when it was new: {log}");
    c.call("wait_seqno", json!({ "seqno": last + 1000 })).unwrap();
    assert_eq!(c.call("sync_wait", upto(last + 5)).unwrap()["status"], "TRX_MISSING", "by its log");
    cluster.agree().unwrap();
}

/// Whether it left in good order, was killed or cut off: no view has a member twice.
fn returning_member_is_counted_once(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let count_once = |cluster: &Cluster| {
        for member in cluster.running() {
            for (kind, text) in member.events() {
                if kind == "view" {
                    let (_, members) = text.split_once("members=").unwrap();
                    let mut names: Vec<&str> = members.split(',').collect();
                    let all = names.len();
                    names.sort_unstable();
                    names.dedup();
                    assert_eq!(names.len(), all, "{}: {text}", member.name);
                }
            }
        }
    };
    write(cluster.member(0), 0, 5);
    cluster.stop(2).unwrap();
    write(cluster.member(0), 10, 5);
    cluster.start(2, false).unwrap();
    count_once(cluster);
    cluster.kill(2);
    write(cluster.member(0), 20, 5);
    cluster.start(2, false).unwrap();
    count_once(cluster);
    let c = cluster.member(2);
    c.ask("set_options", json!({ "options": "gmcast.isolate=1" })).unwrap();
    view_status(c, "NON_PRIMARY", Duration::from_secs(10));
    write(cluster.member(0), 30, 5);
    let c = cluster.member(2);
    c.ask("set_options", json!({ "options": "gmcast.isolate=0" })).unwrap();
    c.call("wait_state", json!({ "state": "synced" })).unwrap();
    count_once(cluster);
    // In the same process.
    c.call("disconnect", json!({})).unwrap();
    write(cluster.member(0), 40, 5);
    let c = cluster.member(2);
    c.call("connect", json!({})).unwrap();
    c.call("appliers", json!({ "more": 4 })).unwrap();
    c.call("wait_state", json!({ "state": "synced" })).unwrap();
    cluster.agree().unwrap();
    count_once(cluster);
}

/// `apply.pace`: while a server lags, writes on all members take longer, and none fails. A desynced server slows none
/// down.
fn writers_wait_briefly_while_a_server_lags(cluster: &mut Cluster) {
    // A server that applies nothing counts for twice this time.
    cluster.tuning = "apply.pace=10s".into();
    cluster.start_all().unwrap();
    let c = cluster.member(2);
    let paced =
        |at: usize| cluster.member(at).ask("stats", json!({})).unwrap()["flow_control_active"] == "true";
    let write = |n: i64| {
        let began = Instant::now();
        cluster.member(0).put("s", &format!("t/{n}"), "x").unwrap();
        began.elapsed()
    };
    assert!((0..100).map(write).min() < Some(Duration::from_millis(30)));
    assert!(!paced(0));
    c.call("pause", json!({})).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let mut n = 100;
    while !(paced(0) && paced(1) && paced(2)) {
        assert!(Instant::now() < end, "there is no limit");
        write(n);
        n += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    // The server is seen to apply nothing. The first transaction after a while does not wait, each later one does for as
    // long as one may.
    std::thread::sleep(Duration::from_secs(2));
    let took: Vec<Duration> = (n..n + 5).map(write).collect();
    assert!(took[1..].iter().all(|t| *t >= Duration::from_millis(50)), "{took:?}");
    let stats = c.ask("stats", json!({})).unwrap();
    assert_eq!(stats["flow_control_requested"], "true");
    assert!(stats["flow_control_sent"].as_i64() >= Some(1), "{stats}");
    let stats = cluster.member(0).ask("stats", json!({})).unwrap();
    assert_eq!(stats["flow_control_requested"], "false");
    assert!(stats["flow_control_recv"].as_i64() >= Some(1), "{stats}");
    assert!(stats["flow_control_paused_ns"].as_i64() > Some(300_000_000), "{stats}");
    c.call("desync", json!({})).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while paced(0) {
        assert!(Instant::now() < end, "a desynced server slows writes down");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!((n + 5..n + 105).map(write).min() < Some(Duration::from_millis(30)));
    c.call("resume", json!({})).unwrap();
    c.call("resync", json!({})).unwrap();
}

/// Behaviour of Lockstep only: Galera's library delivers a view in queue order.
mod lockstep {
    use crate::common::{Kind, run};

    #[test]
    fn loss_of_the_majority_overtakes_a_backlog() {
        run(
            Kind::Lockstep,
            "loss_of_the_majority_overtakes_a_backlog",
            3,
            super::loss_of_the_majority_overtakes_a_backlog,
        );
    }

    #[test]
    fn majority_returns_during_pause() {
        run(Kind::Lockstep, "majority_returns_during_pause", 3, super::majority_returns_during_pause);
    }

    #[test]
    fn paused_member_stops_in_time() {
        run(Kind::Lockstep, "paused_member_stops_in_time", 3, super::paused_member_stops_in_time);
    }

    #[test]
    fn pause_stops_before_left_out_seqnos() {
        let scenario = super::pause_stops_before_left_out_seqnos;
        run(Kind::Lockstep, "pause_stops_before_left_out_seqnos", 3, scenario);
    }

    #[test]
    fn writers_wait_briefly_while_a_server_lags() {
        let scenario = super::writers_wait_briefly_while_a_server_lags;
        run(Kind::Lockstep, "writers_wait_briefly_while_a_server_lags", 3, scenario);
    }

    #[test]
    fn returning_member_is_counted_once() {
        run(Kind::Lockstep, "returning_member_is_counted_once", 3, super::returning_member_is_counted_once);
    }
}
