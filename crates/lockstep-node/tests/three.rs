//! Three nodes in one process, real sockets and disks.

mod common;

use common::*;
use lockstep_node::ViewStatus;
use lockstep_node::core::Gtid;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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
    assert!(matches!(refused, lockstep_node::SubmitOutcome::TooLarge), "{refused:?}");

    // A causal read on any member knows of all that was acknowledged anywhere.
    assert_eq!(one.write(b"x", b"x"), Some(true));
    let seen = three.node.causal(Duration::from_secs(5)).unwrap();
    assert!(seen >= one.rows().last().unwrap().0);

    // The leader leaves; the others go on; it comes back by the log.
    let position = Gtid { uuid: one.node.history(), seqno: one.node.last_committed() };
    one.stop();
    let views = one.views.lock().unwrap().clone();
    assert!(
        views.iter().all(|v| v.status != ViewStatus::Primary || v.my_index.is_some()),
        "the one that leaves is not shown how the others go on: {views:?}"
    );
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

#[test]
fn frozen_member_is_shown_as_silent() {
    let [p1, p2, p3] = free_ports();
    let folders = [Folder::new("s1"), Folder::new("s2"), Folder::new("s3")];
    let one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    let _two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    // Reading n3's metrics blocks its thread until the test continues.
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let mut third = config(&folders[2], "n3", p3);
    third.front_end_stats = Some(std::sync::Arc::new(move || {
        let _ = gate.lock().unwrap().recv();
        Vec::new()
    }));
    let _three = Server::start_with(third, &[p1], Gtid::UNDEFINED, Some(&one));
    let of_third = || one.node.status().members.iter().find(|m| m.name == "n3").cloned().unwrap_or_default();
    until("all vote", || one.node.status().cluster.voters == 3);
    until("the way to n3 is measured", || of_third().state == "Synced" && of_third().rtt_us.is_some());
    assert_eq!(one.node.status().cluster.voters_connected, 3);

    let mut reader = std::os::unix::net::UnixStream::connect(folders[2].0.join("lockstep.sock")).unwrap();
    std::io::Write::write_all(&mut reader, b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    until("n3 is silent", || of_third().state == lockstep_node::SILENT);
    let silent = of_third();
    assert_eq!((silent.rtt_us, silent.lag_trx, silent.role.as_str()), (None, None, "voter"));
    assert!(silent.gone_seconds.is_some_and(|gone| gone > 1.0), "{silent:?}");
    assert_eq!(one.node.status().cluster.voters_connected, 2);
    go_on.send(()).unwrap();
    until("n3 is back", || of_third().state == "Synced");
}

#[test]
fn after_an_outage_all_may_have_new_addresses() {
    let ports: [u16; 6] = free_ports();
    let folders = [Folder::new("old-1"), Folder::new("old-2")];
    let one = Server::start(&folders[0], "n1", ports[0], &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "n2", ports[1], &[ports[0]], Gtid::UNDEFINED, Some(&one));
    until("both are synced", || two.synced.load(Ordering::SeqCst));
    until("both vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 1);
    assert_eq!(one.write(b"k", b"v"), Some(true));
    until("both have it", || two.rows().len() == 1);
    let position = Gtid { uuid: one.node.history(), seqno: one.node.last_committed() };
    one.node.stop();
    two.node.stop();
    drop((one, two));

    // Each is told of itself and of one other.
    let folder = &folders[1];
    let (p3, p4) = (ports[2], ports[3]);
    let second = std::thread::scope(|scope| {
        let other = scope.spawn(|| Server::start(folder, "n2", p4, &[p3, p4], position, None));
        let first = Server::start(&folders[0], "n1", p3, &[p3, p4], position, None);
        (first, other.join().unwrap())
    });
    for server in [&second.0, &second.1] {
        until("all know the new addresses, the leader's, too", || {
            let status = server.node.status();
            let members = &status.members;
            members.len() == 2
                && members.iter().zip([p3, p4]).all(|(m, port)| m.address.ends_with(&port.to_string()))
        });
    }
    until("it writes", || second.0.write(b"l", b"w") == Some(true));
}

/// The name's default is the host's, and servers of one host may be in one group.
#[test]
fn members_sharing_a_name_keep_their_places() {
    let [p1, p2, p3] = free_ports();
    let folders = [Folder::new("same-a"), Folder::new("same-b"), Folder::new("same-c")];
    let one = Server::start(&folders[0], "host", p1, &[], Gtid::UNDEFINED, None);
    until("the first is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "host", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    let three = Server::start(&folders[2], "host", p3, &[p1], Gtid::UNDEFINED, Some(&one));
    until("all vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 2);
    assert_eq!(three.write(b"k", b"by the third"), Some(true));
    until("the second has it", || two.rows().len() == 1);

    let ids = |server: &Server| -> Vec<String> {
        let mut ids: Vec<String> = server.node.status().members.iter().map(|m| m.id.clone()).collect();
        ids.sort();
        ids
    };
    let (before, second) = (ids(&one), two.node.status().own.id.clone());
    two.node.stop();
    drop(two);
    let emptied = Folder::new("same-b");
    let again = Server::start(&emptied, "host", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    until("it votes again", || {
        let members = one.node.status().members.clone();
        members.len() == 3 && members.iter().filter(|m| m.role == "voter").count() == 2
    });
    let after = ids(&one);
    assert!(before.contains(&second) && !after.contains(&second), "{before:?} {after:?}");
    assert!(after.contains(&again.node.status().own.id), "{after:?}");
    assert!(after.contains(&three.node.status().own.id), "{after:?}");
}

#[test]
fn member_with_failed_server_leaves() {
    let [p1, p2] = free_ports();
    let folders = [Folder::new("gives-a"), Folder::new("gives-b")];
    let one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    until("both vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 1);
    two.node.fail("the write-set at seqno 7 cannot be applied");
    until("it has left", || {
        two.views.lock().unwrap().last().is_some_and(|v| v.status == ViewStatus::Disconnected)
    });
    until("the other one writes", || one.write(b"k", b"alone") == Some(true));
    assert_eq!(two.write(b"k", b"no more"), None);
    let lost = one.views.lock().unwrap().iter().any(|v| v.status == ViewStatus::NonPrimary);
    assert!(!lost, "the other one had its majority all the time");
    // Stopping it does not block, because it has left.
    let began = Instant::now();
    two.node.disconnect();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn member_without_identity_rejoins_without_transfer() {
    let [p1, p2, p3] = free_ports();
    let folders = [Folder::new("harm-a"), Folder::new("harm-b"), Folder::new("harm-c")];
    let one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("the first is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    let three = Server::start(&folders[2], "n3", p3, &[p1], Gtid::UNDEFINED, Some(&one));
    until("all vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 2);
    for n in 0..50u32 {
        assert_eq!(three.write(&n.to_be_bytes(), &[7; 500]), Some(true));
    }
    until("the second has it", || two.rows().len() == 50);
    let (former, rows) = (two.node.status().own.id.clone(), two.rows());
    let position = Gtid { uuid: two.node.history(), seqno: two.node.last_committed() };
    two.node.stop();
    drop(two);
    let segment = folders[1].0.join("lockstep.0000000000000001.log");
    let bytes = std::fs::read(&segment).unwrap();
    std::fs::write(folders[1].0.join("lockstep.id.log"), [0; 8192]).unwrap();
    assert_eq!(three.write(b"meanwhile", b"x"), Some(true));

    // Not where it would found a cluster of its own.
    let mut founds = config(&folders[1], "n2", p2);
    founds.may_begin_anew = false;
    let error = lockstep_node::Node::start(founds).unwrap_err().to_string();
    assert!(error.contains("lockstep.id.log"), "{error}");

    let again = Server::start(&folders[1], "n2", p2, &[p1], position, None);
    until("it has what it missed", || again.rows().len() == 1);
    assert_ne!(again.node.status().own.id, former);
    until("it votes again, and its former self does not", || {
        let members = one.node.status().members.clone();
        members.len() == 3
            && members.iter().filter(|m| m.role == "voter").count() == 2
            && members.iter().all(|m| m.id != former)
    });
    assert_eq!(rows.len(), 50);
    assert_eq!(std::fs::read(folders[1].0.join("lockstep.damaged.1.0000000000000001.log")).unwrap(), bytes);
}

/// The log's files of a member that does not run.
fn log_files(folder: &Folder) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "log");
    entries.filter(is_log).map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

/// A server that is refused exits with an error, and the unit would not start it again.
#[test]
fn server_with_reverted_log_ends_before_its_connect_fails() {
    let [p1, p2, p3] = free_ports();
    let folders = [Folder::new("back-a"), Folder::new("back-b"), Folder::new("back-c")];
    let one = Server::start(&folders[0], "n1", p1, &[], Gtid::UNDEFINED, None);
    until("the first is synced", || one.synced.load(Ordering::SeqCst));
    let two = Server::start(&folders[1], "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    let _three = Server::start(&folders[2], "n3", p3, &[p1], Gtid::UNDEFINED, Some(&one));
    until("all vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 2);
    let (former, history) = (two.node.status().own.id.clone(), two.node.history());
    let position = |server: &Server| Gtid { uuid: history, seqno: server.node.last_committed() };
    let at = position(&two);
    two.node.stop();
    drop(two);
    let old = log_files(&folders[1]);
    let two = Server::start(&folders[1], "n2", p2, &[p1], at, None);
    until("the second is synced", || two.synced.load(Ordering::SeqCst));
    assert_eq!(one.write(b"meanwhile", b"x"), Some(true));
    until("the second has it", || two.rows().len() == 1);
    two.node.stop();
    drop(two);
    log_files(&folders[1]).iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    old.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());

    let (happened, happens) = std::sync::mpsc::channel();
    let ends = happened.clone();
    let mut reverted = config(&folders[1], "n2", p2);
    reverted.end_server = Some(Arc::new(move |why, _| ends.send(format!("{why:?}")).unwrap()));
    let node = lockstep_node::Node::start(reverted).unwrap();
    let error = node.connect(connect_args(&[p1], at)).unwrap_err().to_string();
    happened.send(error).unwrap();
    node.stop();
    drop(node);
    let happened: Vec<String> = happens.try_iter().collect();
    assert_eq!(happened[0], "LogReverted { needs_state: false }", "{happened:?}");
    assert!(happened[1].contains("went back in time, as n"), "{happened:?}");

    let again = Server::start(&folders[1], "n2", p2, &[p1], at, None);
    until("it has what it lacked", || again.rows().len() == 1);
    assert_ne!(again.node.status().own.id, former);
}
