//! Streaming transactions: fragments that replicate before the transaction commits.

mod common;

use common::*;
use std::time::{Duration, Instant};

fn streams(member: &Member) -> Value {
    member.ask("state", json!({})).unwrap()["streams"].clone()
}

/// Begins a transaction on member 1 whose first write has been replicated as a fragment.
fn begin_stream(cluster: &Cluster, row: &str, locks: Value) -> Value {
    let a = cluster.member(0);
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": row, "value": "streamed", "locks": locks })).unwrap();
    a.on("s", "fragment", json!({})).unwrap()["seqno"].clone()
}

/// Begins one on `origin`, and waits until `other` has its first fragment.
fn stream_to(origin: &Member, other: &Member) {
    origin.on("s", "begin", json!({})).unwrap();
    origin.on("s", "put", json!({ "row": "t/1", "value": "streamed" })).unwrap();
    let fragment = origin.on("s", "fragment", json!({})).unwrap();
    other.ask("wait_seqno", json!({ "seqno": fragment["seqno"] })).unwrap();
    assert_eq!(streams(other), 1);
}

/// Cuts a member off, or lets it come back.
fn isolate(member: &Member, on: u8) {
    member.ask("set_options", json!({ "options": format!("gmcast.isolate={on}") })).unwrap();
}

/// A fragment's `certify` does not return within this time, while the server is inside a view, and returns when the view
/// ends. Gives the result. (`after_certify` is held, too.)
fn fragment_held_by_the_view(origin: &Member, time: Duration) -> String {
    let fragment = origin.send("s", "fragment", json!({}));
    let mut certified = origin.send("s3", "wait_held", json!({ "point": "after_certify" }));
    assert!(certified.is_pending_after(time), "{:?}", certified.wait());
    origin.ask("let_go", json!({ "point": "view" })).unwrap();
    certified.wait().unwrap();
    origin.ask("let_go", json!({ "point": "after_certify" })).unwrap();
    code(fragment.wait())
}

fn fragments_commit_together(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    let seqno = begin_stream(cluster, "t/1", json!([]));
    b.ask("wait_seqno", json!({ "seqno": seqno })).unwrap();
    assert_eq!(streams(b), 1);
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), Value::Null);
    a.on("s", "put", json!({ "row": "t/2", "value": "streamed" })).unwrap();
    a.on("s", "fragment", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/3", "value": "last" })).unwrap();
    a.on("s", "commit", json!({})).unwrap();
    let rows = json!({ "t/1": "streamed", "t/2": "streamed", "t/3": "last" });
    for member in [a, b] {
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), rows);
        assert_eq!(streams(member), 0);
        assert_eq!(member.ask("digest", json!({})).unwrap()["streams"], 0);
    }
}

fn a_rollback_ends_the_stream_everywhere(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    begin_stream(cluster, "t/1", json!([]));
    a.on("s", "put", json!({ "row": "t/2", "value": "streamed" })).unwrap();
    a.on("s", "fragment", json!({})).unwrap();
    a.on("s", "rollback", json!({})).unwrap();
    a.put("s", "t/9", "after").unwrap();
    for member in [a, b] {
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), json!({ "t/9": "after" }));
        assert_eq!(streams(member), 0);
        assert_eq!(member.ask("digest", json!({})).unwrap()["streams"], 0);
    }
    // The rows are free again everywhere.
    b.put("s", "t/1", "free").unwrap();
}

fn others_wait_for_a_stream(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    let seqno = begin_stream(cluster, "t/1", json!([]));
    b.ask("wait_seqno", json!({ "seqno": seqno })).unwrap();
    b.on("s", "begin", json!({})).unwrap();
    let mut put = b.send("s", "put", json!({ "row": "t/1", "value": "other" }));
    assert!(put.is_pending_after(Duration::from_millis(200)));
    a.on("s", "commit", json!({})).unwrap();
    put.wait().unwrap();
    b.on("s", "commit", json!({})).unwrap();
    assert_eq!(a.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "other");
}

fn a_stream_wins_over_a_later_committer(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.on("s", "begin", json!({})).unwrap();
    b.on("s", "put", json!({ "row": "t/1", "value": "other" })).unwrap();
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    begin_stream(cluster, "t/1", json!([]));
    b.ask("wait_held", json!({ "point": "apply" })).unwrap();
    let lost = b.send("s", "commit", json!({}));
    std::thread::sleep(Duration::from_millis(100));
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
    assert_eq!(code(lost.wait()), "status:TRX_FAIL:ordered");
    a.on("s", "commit", json!({})).unwrap();
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "streamed");
}

fn a_fragment_that_fails_certification_ends_the_stream(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    begin_stream(cluster, "t/1", json!([]));
    a.on("s", "put", json!({ "row": "t/2", "value": "streamed" })).unwrap();
    a.ask("hold", json!({ "point": "apply" })).unwrap();
    b.put("s", "t/2", "first").unwrap();
    a.ask("wait_held", json!({ "point": "apply" })).unwrap();
    let fragment = a.send("s", "fragment", json!({}));
    std::thread::sleep(Duration::from_millis(100));
    a.ask("let_go", json!({ "point": "apply" })).unwrap();
    assert_eq!(code(fragment.wait()), "status:TRX_FAIL");
    a.put("s2", "t/3", "after").unwrap();
    for member in [a, b] {
        let rows = json!({ "t/2": "first", "t/3": "after" });
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), rows);
        assert_eq!(streams(member), 0, "{}", member.name);
    }
}

fn a_stream_gives_way_to_an_applier(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    begin_stream(cluster, "t/1", json!([]));
    a.on("s", "put", json!({ "row": "t/2", "value": "not yet replicated" })).unwrap();
    b.put("s", "t/2", "quick").unwrap();
    assert_eq!(a.call("get", json!({ "row": "t/2", "causal": true })).unwrap(), "quick");
    assert_eq!(code(a.on("s", "commit", json!({}))), "deadlock");
    a.put("s", "t/9", "after").unwrap();
    for member in [a, b] {
        let rows = json!({ "t/2": "quick", "t/9": "after" });
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), rows);
        assert_eq!(streams(member), 0, "{}", member.name);
    }
}

fn a_stream_dies_with_its_origin(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let seqno = begin_stream(cluster, "t/1", json!([]));
    for member in cluster.running() {
        member.ask("wait_seqno", json!({ "seqno": seqno })).unwrap();
    }
    cluster.kill(0);
    for member in cluster.running() {
        member.call("wait_members", json!({ "count": 2 })).unwrap();
        assert_eq!(streams(member), 0, "{}", member.name);
    }
    cluster.member(1).put("s", "t/1", "free").unwrap();
    let row = cluster.member(2).call("get", json!({ "row": "t/1", "causal": true })).unwrap();
    assert_eq!(row, "free");
}

fn a_joiner_takes_up_open_streams(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.start(1, false).unwrap();
    begin_stream(cluster, "t/1", json!([]));
    cluster.start(2, false).unwrap();
    assert_eq!(streams(cluster.member(2)), 1);
    let a = cluster.member(0);
    a.on("s", "put", json!({ "row": "t/2", "value": "last" })).unwrap();
    a.on("s", "commit", json!({})).unwrap();
    let rows = cluster.member(2).call("rows", json!({ "causal": true })).unwrap();
    assert_eq!(rows, json!({ "t/1": "streamed", "t/2": "last" }));
}

/// The majority is lost at the moment of a rollback: the stream must not stay open on the others for ever.
fn a_rollback_survives_the_loss_of_the_majority(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    // Not the leader: what that one proposes is in its log at once.
    let (origin, other) = (cluster.member(1), cluster.member(0));
    stream_to(origin, other);
    isolate(origin, 1);
    // It has lost its leader, and has not told its server yet.
    std::thread::sleep(Duration::from_millis(80));
    origin.on("s", "rollback", json!({})).unwrap();
    std::thread::sleep(Duration::from_millis(800));
    isolate(origin, 0);
    for member in [origin, other] {
        member.call("wait_members", json!({ "count": 2 })).unwrap();
        member.call("wait_state", json!({ "state": "synced" })).unwrap();
    }
    for _ in 0..100 {
        if streams(other) == 0 && other.ask("state", json!({})).unwrap()["locks"] == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the stream is still open: {}", other.ask("state", json!({})).unwrap());
}

/// A view ends a stream whose next fragment is under way, and comes behind it. The fragment fails, but its transaction
/// must not end by itself while the server is in that view. MariaDB would wait for ever for a transaction that it did not
/// abort.
fn a_fragment_that_a_view_has_overtaken_waits_for_its_abort(cluster: &mut Cluster) {
    if cluster.kind != Kind::Lockstep {
        return;
    }
    cluster.start_all().unwrap();
    // Not the leader: what that one proposes is in its log at once.
    let (origin, other) = (cluster.member(1), cluster.member(0));
    stream_to(origin, other);
    origin.on("s", "put", json!({ "row": "t/2", "value": "streamed" })).unwrap();
    isolate(origin, 1);
    other.call("wait_members", json!({ "count": 2 })).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while origin.ask("view", json!({})).unwrap()["status"] != "NON_PRIMARY" {
        assert!(Instant::now() < end, "it has not heard that it is cut off");
        std::thread::sleep(Duration::from_millis(30));
    }
    origin.ask("hold", json!({ "point": "view" })).unwrap();
    isolate(origin, 0);
    other.call("wait_members", json!({ "count": 3 })).unwrap();
    origin.ask("wait_held", json!({ "point": "view" })).unwrap();
    // Placed behind a view that the server of its origin has not been through.
    origin.ask("hold", json!({ "point": "after_certify" })).unwrap();
    let failed = fragment_held_by_the_view(origin, Duration::from_secs(1));
    assert_eq!(failed, "status:TRX_FAIL");
    origin.put("s2", "t/1", "free").unwrap();
    for member in [origin, other] {
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), json!({ "t/1": "free" }));
        assert_eq!(streams(member), 0, "{}", member.name);
    }
}

/// The majority is lost while the server is in a view, and nobody knows what became of a fragment: its transaction must not
/// end by itself then, either.
fn a_fragment_of_which_nobody_knows_waits_for_the_view(cluster: &mut Cluster) {
    if cluster.kind != Kind::Lockstep {
        return;
    }
    cluster.start_all().unwrap();
    let (origin, other) = (cluster.member(1), cluster.member(0));
    stream_to(origin, other);
    origin.on("s", "put", json!({ "row": "t/2", "value": "streamed" })).unwrap();
    origin.ask("hold", json!({ "point": "view" })).unwrap();
    cluster.kill(2);
    let (origin, other) = (cluster.member(1), cluster.member(0));
    origin.ask("wait_held", json!({ "point": "view" })).unwrap();
    origin.ask("hold", json!({ "point": "after_certify" })).unwrap();
    isolate(origin, 1);
    // It has lost its leader, and has not told its server yet.
    std::thread::sleep(Duration::from_millis(80));
    let failed = fragment_held_by_the_view(origin, Duration::from_secs(5));
    assert!(failed.starts_with("status:") || failed == "deadlock", "{failed}");
    isolate(origin, 0);
    for member in [origin, other] {
        member.call("wait_members", json!({ "count": 2 })).unwrap();
        member.call("wait_state", json!({ "state": "synced" })).unwrap();
    }
    other.put("s", "t/1", "free").unwrap();
    assert_eq!(origin.call("rows", json!({ "causal": true })).unwrap(), json!({ "t/1": "free" }));
}

/// The majority is lost while the last fragment is under way, and the other members commit it. Only a new process can
/// commit it here, too: the server has rolled the earlier fragments back. It once stayed up, and rejected everything.
fn lost_commit_of_stream_ends_process_and_restart_commits_it(cluster: &mut Cluster) {
    if cluster.kind != Kind::Lockstep {
        return;
    }
    // Leadership stays with the origin: what a leader proposes is in its log at once.
    cluster.tuning.push_str("; leader.follow_writer=no");
    cluster.start_all().unwrap();
    let (origin, other) = (cluster.member(0), cluster.member(1));
    stream_to(origin, other);
    origin.on("s", "put", json!({ "row": "t/2", "value": "last" })).unwrap();
    isolate(origin, 1);
    let lost = origin.on("s", "commit", json!({}));
    assert!(code(lost).starts_with("status:NODE_FAIL"));
    // Sent once: the process may end before it answers.
    let _ = origin.send("ask", "set_options", json!({ "options": "gmcast.isolate=0" }));
    let ends_by = Instant::now() + Duration::from_secs(30);
    while code(origin.call("rows", json!({ "causal": false }))) != "gone" {
        assert!(Instant::now() < ends_by, "the process ends");
        std::thread::sleep(Duration::from_millis(100));
    }
    let log = origin.log_tail(200);
    assert!(
        log.contains("rolled back the streaming transaction") && log.contains("process ends now"),
        "{log}"
    );
    cluster.kill(0);
    cluster.start(0, false).unwrap();
    let rows = json!({ "t/1": "streamed", "t/2": "last" });
    for member in cluster.running() {
        assert_eq!(member.call("rows", json!({ "causal": true })).unwrap(), rows, "{}", member.name);
        assert_eq!(streams(member), 0, "{}", member.name);
    }
}

scenarios! {
    lost_commit_of_stream_ends_process_and_restart_commits_it: 2,
    a_fragment_of_which_nobody_knows_waits_for_the_view: 3,
    a_fragment_that_a_view_has_overtaken_waits_for_its_abort: 3,
    a_rollback_survives_the_loss_of_the_majority: 2,
    fragments_commit_together: 2,
    a_rollback_ends_the_stream_everywhere: 2,
    others_wait_for_a_stream: 2,
    a_stream_wins_over_a_later_committer: 2,
    a_fragment_that_fails_certification_ends_the_stream: 2,
    a_stream_gives_way_to_an_applier: 2,
    a_stream_dies_with_its_origin: 3,
    a_joiner_takes_up_open_streams: 3,
}
