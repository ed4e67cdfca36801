//! Statements in total order, causal reads, pause.

mod common;

use common::*;

fn put(row: &str, value: &str) -> Value {
    json!({ "ops": [{ "Put": [row, value] }] })
}

fn statements_have_one_order(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let pending: Vec<_> = (0..10)
        .flat_map(|n| {
            let text = n.to_string();
            let toi: Vec<_> = cluster
                .running()
                .map(|member| {
                    member.send("ddl", "total_order", put("schema/1", &format!("{}-{text}", member.name)))
                })
                .collect();
            toi
        })
        .collect();
    for member in cluster.running() {
        member.put("s", &format!("t/{}", member.name), "x").unwrap();
    }
    let mut last = 0;
    for reply in pending {
        last = last.max(reply.wait().unwrap()["seqno"].as_i64().unwrap());
    }
    let mut orders = Vec::new();
    for member in cluster.running() {
        member.ask("wait_seqno", json!({ "seqno": last })).unwrap();
        let history = member.call("history", json!({ "from": last - 15 })).unwrap();
        let statements: Vec<Value> =
            history.as_array().unwrap().iter().filter(|entry| entry[1] == "toi").cloned().collect();
        orders.push(statements.iter().map(|entry| json!([entry[0], entry[2]])).collect::<Vec<_>>());
    }
    assert!(orders[0].len() > 5);
    assert_eq!(orders[0], orders[1]);
}

fn a_statement_ends_transactions_in_its_way(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    for member in [a, b] {
        member.on("s", "begin", json!({})).unwrap();
        let row = format!("t/{}", member.name);
        member.on("s", "put", json!({ "row": row, "value": "open" })).unwrap();
    }
    let both = json!({ "ops": [{ "Put": ["t/n1", "ddl"] }, { "Put": ["t/n2", "ddl"] }] });
    a.on("ddl", "total_order", both).unwrap();
    let rows = json!({ "t/n1": "ddl", "t/n2": "ddl" });
    for member in [a, b] {
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), rows);
        assert_eq!(code(member.on("s", "commit", json!({}))), "deadlock", "{}", member.name);
    }
}

fn a_statement_ends_streams_in_its_way(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "open" })).unwrap();
    let fragment = a.on("s", "fragment", json!({})).unwrap();
    b.ask("wait_seqno", json!({ "seqno": fragment["seqno"] })).unwrap();
    b.on("ddl", "total_order", put("t/1", "ddl")).unwrap();
    for member in [a, b] {
        assert_eq!(member.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "ddl");
    }
    assert_eq!(code(a.on("s", "commit", json!({}))), "deadlock");
    a.put("s2", "t/1", "free").unwrap();
    for member in [a, b] {
        assert_eq!(member.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "free");
        assert_eq!(member.ask("digest", json!({})).unwrap()["streams"], 0, "{}", member.name);
    }
}

fn a_statement_is_alone(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    // At its origin it waits for committing transactions, and later commits wait for it.
    a.ask("hold", json!({ "point": "in_commit_order" })).unwrap();
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "x" })).unwrap();
    let commit = a.send("s", "commit", json!({}));
    a.ask("wait_held", json!({ "point": "in_commit_order" })).unwrap();
    a.ask("hold", json!({ "point": "in_total_order" })).unwrap();
    let mut statement = a.send("ddl", "total_order", put("schema/1", "y"));
    assert_eq!(code(a.ask("wait_held", json!({ "point": "in_total_order", "limit_ms": 200 }))), "timeout");
    a.ask("let_go", json!({ "point": "in_commit_order" })).unwrap();
    commit.wait().unwrap();
    a.ask("wait_held", json!({ "point": "in_total_order" })).unwrap();
    assert!(statement.is_pending_after(Duration::from_millis(10)));

    // On other members later entries wait, too.
    b.ask("hold", json!({ "point": "apply_in_commit_order" })).unwrap();
    let mut later = a.send("s2", "begin", json!({}));
    assert!(!later.is_pending_after(Duration::from_millis(500)));
    a.on("s2", "put", json!({ "row": "t/2", "value": "z" })).unwrap();
    let mut later = a.send("s2", "commit", json!({}));
    assert!(later.is_pending_after(Duration::from_millis(200)));
    a.ask("let_go", json!({ "point": "in_total_order" })).unwrap();
    statement.wait().unwrap();
    later.wait().unwrap();
    b.ask("wait_held", json!({ "point": "apply_in_commit_order" })).unwrap();
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/3", "value": "z" })).unwrap();
    let mut behind = b.send("s", "commit", json!({}));
    assert!(behind.is_pending_after(Duration::from_millis(200)));
    b.ask("let_go", json!({ "point": "apply_in_commit_order" })).unwrap();
    behind.wait().unwrap();
}

fn a_causal_read_waits_for_what_was_before(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    let committed = a.put("s", "t/1", "x").unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1" })).unwrap(), Value::Null);
    let waited = b.call("sync_wait", json!({ "seconds": 1 })).unwrap();
    assert_ne!(waited["status"], "OK", "{waited}");
    let read = b.send("r", "get", json!({ "row": "t/1", "causal": true }));
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    assert_eq!(read.wait().unwrap(), "x");

    // For a position: one that is reached, and one that is not.
    let reached = b.call("sync_wait", json!({ "gtid": committed["gtid"], "seconds": 5 })).unwrap();
    assert_eq!(reached["status"], "OK");
    let gtid = committed["gtid"].as_str().unwrap();
    let ahead = format!("{}:{}", &gtid[..36], committed["seqno"].as_i64().unwrap() + 1);
    let waited = b.call("sync_wait", json!({ "gtid": ahead, "seconds": 1 })).unwrap();
    assert_ne!(waited["status"], "OK", "{waited}");
    let ahead = b.send("r", "sync_wait", json!({ "gtid": ahead, "seconds": 10 }));
    a.put("s", "t/2", "y").unwrap();
    assert_eq!(ahead.wait().unwrap()["status"], "OK");
    let foreign = "00000000-0000-0000-0000-000000000001:1";
    let waited = b.call("sync_wait", json!({ "gtid": foreign, "seconds": 1 })).unwrap();
    assert_ne!(waited["status"], "OK", "{waited}");
}

fn last_committed_follows_what_is_finished(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    let first = a.put("s", "t/1", "x").unwrap();
    b.ask("wait_seqno", json!({ "seqno": first["seqno"] })).unwrap();
    b.ask("sync_wait", json!({})).unwrap();
    assert_eq!(b.ask("last_committed", json!({})).unwrap()["gtid"], first["gtid"]);
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    a.put("s", "t/2", "y").unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
    assert_eq!(b.ask("last_committed", json!({})).unwrap()["gtid"], first["gtid"]);
    assert_eq!(b.ask("stats", json!({})).unwrap()["last_committed"], first["seqno"]);
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
}

fn a_pause_stops_commits_and_appliers(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    let before = a.put("s", "t/1", "x").unwrap();
    b.ask("wait_seqno", json!({ "seqno": before["seqno"] })).unwrap();
    let paused = b.call("pause", json!({})).unwrap();
    assert_eq!(paused["seqno"], before["seqno"]);
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/2", "value": "own" })).unwrap();
    let mut own = b.send("s", "commit", json!({}));
    let other = a.put("s", "t/3", "other").unwrap();
    assert!(own.is_pending_after(Duration::from_millis(300)));
    let at = b.ask("digest", json!({})).unwrap();
    assert_eq!(at["seqno"], before["seqno"]);
    assert_eq!(b.call("resume", json!({})).unwrap()["status"], "OK");
    own.wait().unwrap();
    b.ask("wait_seqno", json!({ "seqno": other["seqno"] })).unwrap();
    assert_eq!(a.call("get", json!({ "row": "t/2", "causal": true })).unwrap(), "own");
}

fn a_pause_waits_for_what_runs(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    let running = a.put("s", "t/1", "x").unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
    let mut pause = b.send("p", "pause", json!({}));
    assert!(pause.is_pending_after(Duration::from_millis(200)));
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    assert_eq!(pause.wait().unwrap()["seqno"], running["seqno"]);
    assert_eq!(b.on("p", "resume", json!({})).unwrap()["status"], "OK");
}

fn desync_and_resync(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    assert_eq!(b.call("desync", json!({})).unwrap()["status"], "OK");
    let mut stats = b.ask("stats", json!({})).unwrap();
    for _ in 0..50 {
        if stats["local_state"] == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        stats = b.ask("stats", json!({})).unwrap();
    }
    assert_eq!((&stats["local_state"], &stats["desync_count"]), (&json!(2), &json!("1")), "{stats}");
    assert_eq!(stats["local_state_comment"], "Donor/Desynced");
    assert_eq!(b.call("desync", json!({})).unwrap()["status"], "OK");
    assert_eq!(b.call("resync", json!({})).unwrap()["status"], "OK");
    assert_eq!(b.ask("stats", json!({})).unwrap()["local_state"], 2);
    a.put("s", "t/1", "x").unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "x");
    assert_eq!(b.call("resync", json!({})).unwrap()["status"], "OK");
    let mut state = Value::Null;
    for _ in 0..100 {
        state = b.ask("stats", json!({})).unwrap()["local_state"].clone();
        if state == 4 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(state, 4);
}

/// A transaction that fails certification takes its place in the order all the same, which moves the database's position.
fn a_pause_stops_what_has_failed(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/2", "value": "second" })).unwrap();
    b.on("s", "refer", json!({ "row": "t/1", "key": "exclusive" })).unwrap();
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    b.ask("hold", json!({ "point": "after_certify" })).unwrap();
    let first = a.put("s", "t/1", "first").unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
    let lost = b.send("s", "commit", json!({}));
    std::thread::sleep(Duration::from_millis(100));
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    b.ask("wait_held", json!({ "point": "after_certify" })).unwrap();
    b.ask("wait_seqno", json!({ "seqno": first["seqno"] })).unwrap();

    // Whether the pause waits for the loser or stops it is the provider's choice.
    let pause = b.send("p", "pause", json!({}));
    std::thread::sleep(Duration::from_millis(200));
    b.ask("let_go", json!({ "point": "after_certify" })).unwrap();
    let paused = pause.wait().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(b.ask("digest", json!({})).unwrap()["seqno"], paused["seqno"]);
    b.call("resume", json!({})).unwrap();
    assert_eq!(code(lost.wait()), "status:TRX_FAIL:ordered");
}

/// The server has not forgotten that it wants to lag, and says so by its variables, when it connects again.
fn who_is_desynced_is_so_after_connecting_again(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let b = cluster.member(1);
    assert_eq!(b.call("desync", json!({})).unwrap()["status"], "OK");
    b.call("disconnect", json!({})).unwrap();
    b.call("connect", json!({})).unwrap();
    b.call("appliers", json!({ "more": 4 })).unwrap();
    // Its clients are let in,
    b.call("wait_state", json!({ "state": "synced" })).unwrap();
    cluster.member(0).put("s", "t/1", "x").unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "x");
    // and those who look at its state send none.
    let stats = b.ask("stats", json!({})).unwrap();
    let galera = cluster.kind == Kind::Galera;
    let (state, count) = if galera { (4, "0") } else { (2, "1") };
    assert_eq!((&stats["local_state"], &stats["desync_count"]), (&json!(state), &json!(count)), "{stats}");
    if galera {
        return;
    }
    assert_eq!(b.call("resync", json!({})).unwrap()["status"], "OK");
    let until = Instant::now() + Duration::from_secs(10);
    while b.ask("stats", json!({})).unwrap()["local_state"] != 4 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
}

scenarios! {
    statements_have_one_order: 2,
    a_statement_ends_transactions_in_its_way: 2,
    a_statement_ends_streams_in_its_way: 2,
    a_statement_is_alone: 2,
    a_causal_read_waits_for_what_was_before: 2,
    last_committed_follows_what_is_finished: 2,
    a_pause_stops_commits_and_appliers: 2,
    a_pause_waits_for_what_runs: 2,
    a_pause_stops_what_has_failed: 2,
    desync_and_resync: 2,
    who_is_desynced_is_so_after_connecting_again: 2,
}
