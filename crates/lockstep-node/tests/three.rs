//! Three nodes in one process, real sockets and disks.

mod common;

use common::*;
use lockstep_node::core::Gtid;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn three_members_write_leave_and_come_back_by_the_log() {
    let [p1, p2, p3] = free_ports();
    let folders = [Folder::new("a"), Folder::new("b"), Folder::new("c")];
    let mut one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    assert_eq!(one.write(b"0", b"alone"), Some(true));
    let mut two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    let mut three = Server::start(&folders[2], "n3", p3, &[p2], Gtid::UNDEFINED, Some(&one));
    for server in [&two, &three] {
        until("all are synced", || server.synced.load(Ordering::SeqCst));
    }
    until("all vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 2);

    for (at, server) in [&one, &two, &three].into_iter().enumerate() {
        for n in 0..50u8 {
            assert_eq!(server.write(&[at as u8, n], &[at as u8, n]), Some(true));
        }
    }
    // A large one goes in pieces.
    let large = vec![7u8; 5 << 20];
    assert_eq!(two.write(b"large", &large), Some(true));
    until("all have all", || [&one, &two, &three].iter().all(|s| s.rows().len() == 152));
    assert_eq!(one.rows(), two.rows());
    assert_eq!(one.rows(), three.rows());
    let last = one.views.lock().unwrap().last().cloned().unwrap();
    assert_eq!(last.members.len(), 3);

    // What cannot go in pieces has a limit, and hears of it for good.
    let mut builder = lockstep_node::core::writeset::WriteSetBuilder::new();
    builder.append_data(lockstep_node::core::writeset::DataKind::Annotation, &vec![7u8; 130 << 20]).unwrap();
    let payload = builder.finish(&lockstep_node::core::writeset::Meta::default());
    let refused = two.node.submit(lockstep_node::core::EntryKind::WriteSet, payload).unwrap().wait();
    assert!(matches!(refused, lockstep_node::Outcome::TooLarge), "{refused:?}");

    // A causal read on any member knows of all that was acknowledged anywhere.
    assert_eq!(one.write(b"x", b"x"), Some(true));
    let seen = three.node.causal(Duration::from_secs(5)).unwrap();
    assert!(seen >= one.rows().last().unwrap().0);

    // The leader leaves; the others go on; it comes back by the log.
    let position = Gtid { uuid: one.node.history(), seqno: one.node.last_committed() };
    one.stop();
    until("n2 writes without n1", || two.write(b"y", b"y") == Some(true));
    for n in 0..20u8 {
        assert_eq!(three.write(&[9, n], b"z"), Some(true));
    }
    let rows = one.rows();
    drop(one);
    let again = Server::start(&folders[0], "n1", p1, &[p2, p3], position, None);
    again.applied.lock().unwrap().extend(rows);
    until("n1 has caught up", || {
        again.synced.load(Ordering::SeqCst) && again.rows().len() == two.rows().len()
    });
    until("n3 too", || three.rows().len() == two.rows().len());
    assert_eq!(again.rows(), two.rows());
    assert_eq!(again.rows(), three.rows());

    // Two leave: the last one still writes.
    let mut again = again;
    again.stop();
    two.stop();
    until("the last one writes", || three.write(b"last", b"last") == Some(true));
    three.stop();
}
