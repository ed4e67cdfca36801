//! Conflicts between transactions: certification, brute-force abort, replay, order and parallelism of appliers.

mod common;

use common::*;
use std::time::Instant;

/// Member 1 commits a change of `row` that member 2 has received and not yet applied.
fn commit_unseen(cluster: &Cluster, row: &str, value: &str) {
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    a.put("s", row, value).unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
}

fn first_committer_wins(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/1", "value": "second" })).unwrap();
    commit_unseen(cluster, "t/1", "first");
    let lost = b.send("s", "commit", json!({}));
    // The failed one has a place in the order, behind the one that is still to be applied.
    std::thread::sleep(Duration::from_millis(100));
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    assert_eq!(code(lost.wait()), "status:TRX_FAIL:ordered");
    for member in [a, b] {
        assert_eq!(member.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "first");
    }
    assert_eq!(b.ask("stats", json!({})).unwrap()["local_cert_failures"], 1);
    // The loser may try again at once.
    b.put("s", "t/1", "second").unwrap();
    assert_eq!(a.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "second");
}

fn an_idle_transaction_gives_way(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/1", "value": "idle" })).unwrap();
    a.put("s", "t/1", "quick").unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "quick");
    assert_eq!(code(b.on("s", "commit", json!({}))), "deadlock");
    assert_eq!(b.ask("state", json!({})).unwrap()["locks"], 0);
}

fn a_certified_transaction_is_replayed(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    // Both want the same lock between rows, for which there is no key.
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "earlier", "locks": ["between"] })).unwrap();
    let earlier = a.on("s", "commit", json!({})).unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();

    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/2", "value": "later", "locks": ["between"] })).unwrap();
    b.ask("hold", json!({ "point": "before_commit_order" })).unwrap();
    let commit = b.send("s", "commit", json!({}));
    b.ask("wait_held", json!({ "point": "before_commit_order" })).unwrap();
    b.ask("let_go", json!({ "point": "before_commit_order" })).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    let later = commit.wait().unwrap();
    assert_eq!(later["replays"], 1);
    assert!(later["seqno"].as_i64() > earlier["seqno"].as_i64());
    assert_eq!(b.ask("stats", json!({})).unwrap()["local_replays"], 1);
    for member in [a, b] {
        let rows = member.call("rows", json!({ "causal": true })).unwrap();
        assert_eq!(rows, json!({ "t/1": "earlier", "t/2": "later" }));
    }
}

fn an_abort_between_certify_and_order_is_replayed(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "earlier", "locks": ["between"] })).unwrap();
    a.on("s", "commit", json!({})).unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();

    // This time the abort finds the victim outside the provider, certified and on its way to commit order.
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/2", "value": "later", "locks": ["between"] })).unwrap();
    b.ask("hold", json!({ "point": "before_commit_order" })).unwrap();
    let commit = b.send("s", "commit", json!({}));
    b.ask("wait_held", json!({ "point": "before_commit_order" })).unwrap();
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    b.ask("let_go", json!({ "point": "before_commit_order" })).unwrap();
    assert_eq!(commit.wait().unwrap()["replays"], 1);
    cluster.agree().unwrap();
    assert_eq!(b.call("rows", json!({})).unwrap(), json!({ "t/1": "earlier", "t/2": "later" }));
}

/// The cluster commits the transaction, and this member does not before it is back. Another client must not read here after
/// the OK.
fn replay_on_a_failed_member_returns_after_its_final_view(cluster: &mut Cluster) {
    if cluster.kind == Kind::Galera {
        // The replay fails there.
        return;
    }
    cluster.start_all().unwrap();
    let (a, c) = (cluster.member(0), cluster.member(2));
    c.ask("hold", json!({ "point": "apply" })).unwrap();
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "x" })).unwrap();
    a.on("s", "fail_on", json!({ "member": "n3" })).unwrap();
    a.on("s", "commit", json!({})).unwrap();
    c.ask("wait_held", json!({ "point": "apply" })).unwrap();

    c.on("s", "begin", json!({})).unwrap();
    c.on("s", "put", json!({ "row": "t/2", "value": "late" })).unwrap();
    let mut commit = c.send("s", "commit", json!({}));
    let arrives = Instant::now() + Duration::from_secs(20);
    while a.call("get", json!({ "row": "t/2", "causal": true })).unwrap() != "late" {
        assert!(Instant::now() < arrives, "it does not reach the other members");
        std::thread::sleep(Duration::from_millis(20));
    }
    let abort = json!({ "call": "abort_certification", "trx": 1, "bf_seqno": 1 });
    assert_eq!(c.on("x", "raw", abort).unwrap()["status"], "OK");
    // Its replay waits for the earlier write-set, which fails here.
    std::thread::sleep(Duration::from_millis(200));
    c.ask("hold", json!({ "point": "view" })).unwrap();
    c.ask("let_go", json!({ "point": "apply" })).unwrap();
    c.ask("wait_held", json!({ "point": "view" })).unwrap();
    assert!(
        commit.is_pending_after(Duration::from_millis(300)),
        "the server has not processed its final view"
    );
    c.ask("let_go", json!({ "point": "view" })).unwrap();
    assert_eq!(commit.wait().unwrap()["replays"], 0, "it is not committed here");
    assert_eq!(c.call("get", json!({ "row": "t/2" })).unwrap(), Value::Null);
    cluster.kill(2);
}

fn an_abort_before_certify_is_a_deadlock(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/1", "value": "slow" })).unwrap();
    b.ask("hold", json!({ "point": "before_certify" })).unwrap();
    let commit = b.send("s", "commit", json!({}));
    b.ask("wait_held", json!({ "point": "before_certify" })).unwrap();
    let won = a.put("s", "t/1", "quick").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    b.ask("let_go", json!({ "point": "before_certify" })).unwrap();
    assert_eq!(code(commit.wait()), "deadlock");
    b.ask("wait_seqno", json!({ "seqno": won["seqno"] })).unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1" })).unwrap(), "quick");
}

fn appliers_work_side_by_side(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    for n in 0..4 {
        a.put("s", &format!("t/{n}"), "x").unwrap();
    }
    b.ask("wait_held", json!({ "point": "apply", "count": 4 })).unwrap();
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    cluster.agree().unwrap();
    assert!(b.ask("most_in_flight", json!({})).unwrap().as_i64() >= Some(4));
}

fn appliers_wait_for_what_they_depend_on(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    a.put("s", "t/1", "one").unwrap();
    a.put("s", "t/1", "two").unwrap();
    a.put("s", "t/1", "three").unwrap();
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
    let second = b.ask("wait_held", json!({ "point": "apply", "count": 2, "limit_ms": 300 }));
    assert_eq!(code(second), "timeout");
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "three");
}

/// Whether a transaction with a key of the second type fails against an unseen one with a key of the first.
fn keys_conflict_as_they_should(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    let types = ["shared", "reference", "update", "exclusive"];
    let mut table = Vec::new();
    for (n, first) in types.iter().enumerate() {
        for (m, second) in types.iter().enumerate() {
            let key = format!("keys/{n}-{m}");
            b.ask("hold", json!({ "point": "apply" })).unwrap();
            a.on("s", "begin", json!({})).unwrap();
            a.on("s", "put", json!({ "row": format!("a/{n}-{m}"), "value": "x" })).unwrap();
            a.on("s", "refer", json!({ "row": key, "key": first })).unwrap();
            a.on("s", "commit", json!({})).unwrap();
            b.ask("wait_held", json!({ "point": "apply" })).unwrap();
            b.on("s", "begin", json!({})).unwrap();
            b.on("s", "put", json!({ "row": format!("b/{n}-{m}"), "value": "x" })).unwrap();
            b.on("s", "refer", json!({ "row": key, "key": second })).unwrap();
            let commit = b.send("s", "commit", json!({}));
            std::thread::sleep(Duration::from_millis(30));
            b.ask("let_go", json!({ "point": "apply" })).unwrap();
            match code(commit.wait()).as_str() {
                "status:TRX_FAIL:ordered" => table.push((*first, *second)),
                other => assert!(other.starts_with("ok"), "{first} then {second}: {other}"),
            }
            b.call("get", json!({ "row": "none", "causal": true })).unwrap();
        }
    }
    let conflicts = [
        ("reference", "exclusive"),
        ("update", "update"),
        ("update", "exclusive"),
        ("exclusive", "shared"),
        ("exclusive", "reference"),
        ("exclusive", "update"),
        ("exclusive", "exclusive"),
    ];
    assert_eq!(table, conflicts);
}

fn an_oversized_write_set_is_refused(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        node.options = "repl.max_ws_size=1048576".into();
    }
    cluster.start_all().unwrap();
    let a = cluster.member(0);
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put_big", json!({ "row": "t/1", "bytes": 2_000_000 })).unwrap();
    assert_eq!(code(a.on("s", "commit", json!({}))), "status:SIZE_EXCEEDED");
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put_big", json!({ "row": "t/2", "bytes": 800_000 })).unwrap();
    a.on("s", "commit", json!({})).unwrap();
    let row = cluster.member(1).call("get", json!({ "row": "t/2", "causal": true })).unwrap();
    assert_eq!(row.as_str().map(str::len), Some(800_000));
    assert_eq!(cluster.member(1).call("get", json!({ "row": "t/1" })).unwrap(), Value::Null);
}

fn a_rolled_back_transaction_leaves_nothing(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "x" })).unwrap();
    a.on("s", "rollback", json!({})).unwrap();
    assert_eq!(a.ask("state", json!({})).unwrap()["locks"], 0);
    a.put("s", "t/2", "y").unwrap();
    assert_eq!(b.call("rows", json!({ "causal": true })).unwrap(), json!({ "t/2": "y" }));
    assert_eq!(a.on("s", "close", json!({})).unwrap()["status"], "OK");
    let stats = a.ask("stats", json!({})).unwrap();
    assert_eq!(stats["open_transactions"], 0, "{stats}");
}

/// A server with an order of its own (a binlog's) lets its next thread go when `certify` calls back. That is once its
/// place among this member's transactions is settled, long before it has one among all.
fn certify_calls_back_before_the_order_is_known(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let c = cluster.member(2);
    c.put("s", "t/1", "x").unwrap();
    c.on("s", "begin", json!({})).unwrap();
    c.on("s", "put", json!({ "row": "t/1", "value": "y" })).unwrap();
    c.ask("hold", json!({ "point": "certify_tells" })).unwrap();
    // Nobody else orders or acknowledges anything.
    let others: Vec<String> = [0, 1].map(|n| cluster.member(n).pid().to_string()).into();
    let signal = |name: &str| std::process::Command::new("kill").arg(name).args(&others).status().unwrap();
    signal("-STOP");
    let commit = c.send("s", "commit", json!({}));
    let told = c.ask("wait_held", json!({ "point": "certify_tells", "count": 1 }));
    c.ask("let_go", json!({ "point": "certify_tells" })).unwrap();
    signal("-CONT");
    told.unwrap();
    commit.wait().unwrap();
    for member in cluster.running() {
        assert_eq!(member.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "y");
    }
}

scenarios! {
    first_committer_wins: 2,
    an_idle_transaction_gives_way: 2,
    a_certified_transaction_is_replayed: 2,
    an_abort_between_certify_and_order_is_replayed: 2,
    replay_on_a_failed_member_returns_after_its_final_view: 3,
    an_abort_before_certify_is_a_deadlock: 2,
    appliers_work_side_by_side: 2,
    appliers_wait_for_what_they_depend_on: 2,
    keys_conflict_as_they_should: 2,
    an_oversized_write_set_is_refused: 2,
    certify_calls_back_before_the_order_is_known: 3,
    a_rolled_back_transaction_leaves_nothing: 2,
}
