//! Members with differing results vote, and the losing side leaves.

mod common;

use common::*;
use lockstep_node::core::Gtid;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn three(name: &str) -> ([Folder; 3], [u16; 3], Vec<Server>) {
    let ports = free_ports::<3>();
    let folders = [1, 2, 3].map(|n| Folder::new(&format!("{name}-{n}")));
    let mut servers = Vec::new();
    for (at, folder) in folders.iter().enumerate() {
        let peers: &[u16] = if at == 0 { &[] } else { &ports };
        let server = Server::start(
            folder,
            &format!("n{}", at + 1),
            ports[at],
            peers,
            Gtid::UNDEFINED,
            servers.first(),
        );
        until("it is synced", || server.synced.load(Ordering::SeqCst));
        servers.push(server);
    }
    (folders, ports, servers)
}

fn fails(server: &Server, data: &[u8], error: &'static str) {
    server.fails.lock().unwrap().push((data.to_vec(), error));
}

fn has_left(server: &Server) -> bool {
    server.unlike.lock().unwrap().is_some()
}

fn goes_on(server: &Server, others: &[&Server], data: &[u8]) {
    until("a write goes through", || server.write(data, data) == Some(true));
    for other in others {
        until("it arrives", || other.rows().iter().any(|(_, row)| row == data));
    }
}

#[test]
fn member_failing_alone_leaves() {
    let (_folders, _ports, servers) = three("vote-alone");
    fails(&servers[2], b"bad", "no such table");
    assert_eq!(servers[0].write(b"k", b"bad"), Some(true));
    until("n3 leaves", || has_left(&servers[2]));
    goes_on(&servers[0], &[&servers[1]], b"more");
    assert!(!has_left(&servers[0]) && !has_left(&servers[1]));
    assert!(servers[2].rows().iter().all(|(_, row)| row != b"more"));
}

#[test]
fn member_succeeding_alone_leaves_even_as_leader() {
    let (_folders, _ports, servers) = three("vote-odd");
    fails(&servers[1], b"bad", "no such table");
    fails(&servers[2], b"bad", "no such table");
    // The origin, and the leader.
    assert_eq!(servers[0].write(b"k", b"bad"), Some(true));
    until("n1 leaves", || has_left(&servers[0]));
    goes_on(&servers[1], &[&servers[2]], b"more");
    assert!(!has_left(&servers[1]) && !has_left(&servers[2]));
}

#[test]
fn of_three_opinions_success_counts() {
    let (_folders, _ports, servers) = three("vote-three");
    fails(&servers[1], b"bad", "no such table");
    fails(&servers[2], b"bad", "no such schema");
    assert_eq!(servers[0].write(b"k", b"bad"), Some(true));
    until("both leave", || has_left(&servers[1]) && has_left(&servers[2]));
    assert!(!has_left(&servers[0]));
    goes_on(&servers[0], &[], b"more");
}

#[test]
fn vote_does_not_block_others_or_leader_change() {
    let (_folders, _ports, mut servers) = three("vote-slow");
    let held = servers[1].applied.clone();
    let hold = held.lock().unwrap();
    fails(&servers[2], b"bad", "no such table");
    let writer = &servers[0];
    assert_eq!(writer.write(b"k", b"bad"), Some(true));
    // n2 has not applied it and says nothing: n3's failure alone decides nothing, and holds up nobody.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        let began = Instant::now();
        assert_eq!(writer.write(b"l", b"meanwhile"), Some(true));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!has_left(&servers[2]));
    // The leader leaves, in good order, and takes what it knows of the vote with it.
    servers[0].stop();
    drop(hold);
    // Of the two that are left one could and one could not.
    until("n3 leaves", || has_left(&servers[2]));
    assert!(!has_left(&servers[1]));
    goes_on(&servers[1], &[], b"more");
}

#[test]
fn returning_member_reads_vote_outcome_from_log() {
    let (folders, ports, mut servers) = three("vote-again");
    let history = servers[0].node.history();
    let before = servers[2].node.last_committed();
    fails(&servers[1], b"bad", "no such table");
    fails(&servers[2], b"bad", "no such table");
    assert_eq!(servers[0].write(b"k", b"bad"), Some(true));
    until("n1 leaves", || has_left(&servers[0]));
    goes_on(&servers[1], &[&servers[2]], b"more");
    let rows = servers[2].rows();
    let failing = servers[2].fails.clone();
    // Its database was not flushed: it begins again from before the vote.
    servers[2].stop();
    servers.truncate(2);
    let at = Gtid { uuid: history, seqno: before };
    let again = Server::start_failing(config(&folders[2], "n3", ports[2]), &ports, at, None, failing);
    until("n3 is synced", || again.synced.load(Ordering::SeqCst));
    until("it has everything", || again.rows() == rows);
    assert!(!has_left(&again));
    drop(again);
    // And one that could do it now is unlike the others.
    let third = Server::start(&folders[2], "n3", ports[2], &ports, at, None);
    until("n3 leaves", || has_left(&third));
    assert!(!has_left(&servers[1]));
}
