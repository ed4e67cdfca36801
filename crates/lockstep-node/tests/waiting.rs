//! The status of a member that waits for a majority.

mod common;

use common::*;
use lockstep_node::core::policy::PolicyKind;
use lockstep_node::core::{Gtid, Uuid};
use lockstep_node::*;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[test]
fn waiting_member_names_missing_voters_and_its_log() {
    let [p1, p2] = free_ports();
    let folders = [Folder::new("waits-1"), Folder::new("waits-2")];
    let one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    until("n2 is synced", || two.synced.load(Ordering::SeqCst));
    until("n2 votes", || two.node.status().cluster.voters == 2);
    for n in 0..5u8 {
        assert_eq!(two.write(&[n], b"x"), Some(true));
    }
    let position = Gtid { uuid: two.node.history(), seqno: two.node.last_committed() };
    // Killed, both, and only one comes back.
    drop(two);
    drop(one);
    let node = Node::start(config(&folders[1], "n2", p2)).unwrap();
    let waiting = node.clone();
    let args = ConnectArgs {
        cluster: "test".into(),
        peers: vec![format!("127.0.0.1:{p1}")],
        bootstrap: false,
        position,
        in_doubt: None,
        log: Uuid::NIL,
        by_donor: false,
        timeout: Duration::from_secs(10),
        waits_for_others: false,
        needs_state: false,
        followed: None,
    };
    let connecting = std::thread::spawn(move || waiting.connect(args));
    until("n2 says for whom it waits", || {
        let waits = node.status().own.waits_for.clone().unwrap_or_default();
        waits.starts_with("not connected: n1;")
    });
    let status = node.status();
    let member = |name: &str| status.members.iter().find(|m| m.name == name).cloned().unwrap();
    assert_eq!(member("n2").seqno, None, "nothing has been handed to its server");
    assert_eq!(member("n2").applied, Some(position.seqno));
    assert!(status.log.last_seqno >= position.seqno, "{} of {}", status.log.last_seqno, position.seqno);
    assert_eq!(member("n1").state, DISCONNECTED);
    std::thread::sleep(Duration::from_millis(300));
    let status = node.status();
    let gone = status.members.iter().find(|m| m.name == "n1").and_then(|m| m.gone_seconds).unwrap();
    assert!(gone >= 0.3 && gone <= status.own.uptime_seconds, "gone for {gone} s");
    node.stop();
    drop(connecting);
}

/// A client that sets a server variable holds a lock that all need.
#[test]
fn nobody_waits_long_for_a_policy_that_is_not_agreed_on() {
    let [p1, p2] = free_ports();
    let folders = [Folder::new("policy-1"), Folder::new("policy-2")];
    let one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    until("n2 votes", || two.node.status().cluster.voters == 2);
    assert_eq!(one.node.change_policy(Box::new(|policy| policy.acks = 2)), Ok(true));
    two.node.isolate(true);
    let began = Instant::now();
    let answer = one.node.change_policy(Box::new(|policy| policy.kind = PolicyKind::All));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(answer, Ok(false), "it is asked for");
    two.node.isolate(false);
    until("it is in force", || one.node.policy().kind == PolicyKind::All);
}
