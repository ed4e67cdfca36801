//! Wrong input or files end in one clear error line, and other members are not affected.

mod common;

use common::*;
use lockstep_node::core::{Gtid, Uuid};
use lockstep_node::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn args(cluster: &str, peers: &[u16], timeout: Duration) -> ConnectArgs {
    ConnectArgs {
        in_doubt: None,
        cluster: cluster.into(),
        peers: peers.iter().map(|p| format!("127.0.0.1:{p}")).collect(),
        bootstrap: peers.is_empty(),
        position: Gtid::UNDEFINED,
        log: Uuid::NIL,
        by_donor: false,
        waits_for_others: false,
        needs_state: false,
        followed: None,
        timeout,
    }
}

fn cluster_of_one(folder: &Folder, port: u16) -> Server {
    let server = Server::start(folder, "n1", port, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || server.synced.load(Ordering::SeqCst));
    server
}

/// Connects and is refused; gives the line, and how long it took.
fn refused(config: NodeConfig, args: ConnectArgs) -> (String, Duration) {
    let node = Node::start(config).unwrap();
    let began = Instant::now();
    let error = node.connect(args).unwrap_err();
    node.stop();
    (error.to_string(), began.elapsed())
}

#[test]
fn wrong_cluster_name_or_history_is_refused() {
    let [p1, p2] = free_ports();
    let folder = Folder::new("names-1");
    let one = cluster_of_one(&folder, p1);
    let timeout = Duration::from_secs(8);

    let other = Folder::new("names-2");
    let (text, took) = refused(config(&other, "n2", p2), args("prod", &[p1], timeout));
    assert!(text.contains("belongs to cluster 'test', this one to 'prod'"), "{text}");
    assert!(took < timeout, "{took:?}");

    // A member that founded a cluster of its own is not merged silently.
    let other = Folder::new("names-4");
    let mut founder = Server::start(&other, "n2", p2, &[], Gtid::UNDEFINED, None);
    until("it is synced", || founder.synced.load(Ordering::SeqCst));
    founder.stop();
    drop(founder);
    let (text, _) = refused(config(&other, "n2", p2), args("test", &[p1], timeout));
    assert!(text.contains("the logs cannot be joined"), "{text}");

    assert_eq!(one.write(b"k", b"the others did not notice"), Some(true));
}

#[test]
fn nobody_there_ends_in_time_and_says_what_to_do() {
    let [p1, p2] = free_ports();
    let folder = Folder::new("nobody");
    let (text, took) = refused(config(&folder, "n1", p1), args("test", &[p2], Duration::from_secs(1)));
    assert!(text.contains("nobody answers") && text.contains("--wsrep-new-cluster"), "{text}");
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[test]
fn foreign_service_at_address_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        listener.set_nonblocking(false).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 100]);
    });
    let [own] = free_ports();
    let folder = Folder::new("http");
    let (text, _) = refused(config(&folder, "n1", own), args("test", &[port], Duration::from_secs(1)));
    assert!(text.contains("no primary component"), "{text}");
    thread.join().unwrap();
}

/// What a member with `socket.ssl` says to one without.
const ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];

#[test]
fn status_shows_peer_that_requires_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 100];
        let _ = stream.read(&mut hello);
        let _ = stream.write_all(&ALERT);
        let _ = stream.read(&mut hello);
        listener
    });
    let [own] = free_ports();
    let folder = Folder::new("encrypts");
    let warned = Arc::new(Mutex::new(Vec::new()));
    let lines = warned.clone();
    let mut config = config(&folder, "n1", own);
    config.logger = Arc::new(move |level, text| {
        if level == Level::Warn {
            lines.lock().unwrap().push(text.to_owned());
        }
    });
    let node = Node::start(config).unwrap();
    let waiting = node.clone();
    let connecting = std::thread::spawn(move || {
        waiting.connect(args("test", &[port], Duration::from_secs(30))).unwrap_err().to_string()
    });
    until("status says it", || {
        let waits = node.status().own.waits_for.clone().unwrap_or_default();
        waits.contains("can be talked to") && waits.contains("set socket.ssl_key")
    });
    assert!(warned.lock().unwrap().iter().any(|line| line.contains("has no socket.ssl")), "{warned:?}");
    // It is gone: nobody is there any more.
    drop(thread.join().unwrap());
    until("status says that", || {
        node.status().own.waits_for.clone().is_some_and(|waits| waits.contains("nobody answers"))
    });
    node.stop();
    drop(connecting);
}

#[test]
fn port_in_use_and_unwritable_folder_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = Folder::new("port");
    let (text, _) = refused(config(&folder, "n1", port), args("test", &[], Duration::from_secs(1)));
    assert!(text.contains(&port.to_string()), "{text}");

    let mut nowhere = config(&folder, "n1", 0);
    nowhere.log_dir = Some("/proc/no-such-folder".into());
    let error = Node::start(nowhere).unwrap_err().to_string();
    assert!(error.contains("/proc/no-such-folder"), "{error}");
}

#[test]
fn log_in_use_or_of_other_member_is_refused() {
    let [p1, p2] = free_ports();
    let (first, second) = (Folder::new("log-1"), Folder::new("log-2"));
    for (folder, port) in [(&first, p1), (&second, p2)] {
        let mut server = cluster_of_one(folder, port);
        let error = Node::start(config(folder, "twin", 0)).unwrap_err().to_string();
        assert!(error.contains("in use") || error.contains("lock"), "{error}");
        server.stop();
    }
    let log_of = |folder: &Folder| {
        let mut files: Vec<_> = std::fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().path()).collect();
        files.retain(|p| p.extension().is_some_and(|e| e == "log"));
        files.sort();
        files.pop().unwrap()
    };
    let (mine, theirs) = (log_of(&first), log_of(&second));
    let original = std::fs::read(&mine).unwrap();
    std::fs::copy(&theirs, &mine).unwrap();
    let error = Node::start(config(&first, "n1", p1)).unwrap_err().to_string();
    assert!(
        error.contains("belongs to member") && error.contains("move all lockstep.* files away"),
        "{error}"
    );
    // Nothing was harmed by the attempt.
    std::fs::write(&mine, &original).unwrap();
    assert!(Node::start(config(&first, "n1", p1)).is_ok());
}

#[test]
fn member_told_to_found_a_cluster_joins_the_voters_of_its_log() {
    let [p1, p2] = free_ports();
    let (first, second) = (Folder::new("split-1"), Folder::new("split-2"));
    let one = cluster_of_one(&first, p1);
    let history = one.node.status().cluster.uuid.clone();
    let two = Server::start(&second, "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    until("both vote", || one.node.status().members.iter().filter(|m| m.role == "voter").count() == 1);
    // Both die at once: no good-bye.
    one.node.stop();
    two.node.stop();
    drop((one, two));
    let node = Node::start(config(&first, "n1", p1)).unwrap();
    let error = node.connect(args("test", &[], Duration::from_secs(2))).unwrap_err().to_string();
    assert!(error.contains("no primary component") && error.contains("n2"), "{error}");
    // With the other voter it goes on in the old history.
    let other = Node::start(config(&second, "n2", p2)).unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| other.connect(args("test", &[p1], Duration::from_secs(20))));
        node.connect(args("test", &[], Duration::from_secs(20))).unwrap();
        other.join().unwrap().unwrap();
    });
    assert_eq!(node.status().cluster.uuid, history);
    node.stop();
    other.stop();
}

#[test]
fn random_bytes_and_half_open_connections_are_dropped() {
    let [p1] = free_ports();
    let folder = Folder::new("noise");
    let server = cluster_of_one(&folder, p1);
    let mut open = Vec::new();
    for n in 0..100u32 {
        let mut stream = TcpStream::connect(("127.0.0.1", p1)).unwrap();
        if n % 2 == 0 {
            let bytes: Vec<u8> = (0..200u32).map(|i| (n * 31 + i * 17) as u8).collect();
            let _ = stream.write_all(&bytes);
        }
        open.push(stream);
        if n % 10 == 0 {
            assert_eq!(server.write(&n.to_le_bytes(), b"undisturbed"), Some(true));
        }
    }
    assert_eq!(server.rows().len(), 10);
}

#[test]
fn calls_in_the_wrong_order_are_answered_with_errors() {
    let [p1] = free_ports();
    let folder = Folder::new("order");
    let node = Node::start(config(&folder, "n1", p1)).unwrap();
    assert!(matches!(node.submit(core::EntryKind::WriteSet, "x".into()), Err(SubmitError::NotPrimary)));
    assert_eq!(node.causal(Duration::from_secs(1)), Err(CausalError::NotPrimary));
    node.state_received(Ok(Gtid { uuid: Uuid([1; 16]), seqno: 5 }));
    node.donation_done(7, Err(1));
    node.resync();
    node.disconnect();
    node.connect(args("test", &[], Duration::from_secs(5))).unwrap();
    let again = node.connect(args("test", &[], Duration::from_secs(5))).unwrap_err();
    assert!(again.to_string().contains("connected already"), "{again}");
    node.disconnect();
    node.stop();
    assert!(matches!(node.submit(core::EntryKind::WriteSet, "x".into()), Err(SubmitError::Closed)));
    assert!(node.next(None, None).is_some());
}

/// Two members found clusters of their own from copies of one database. That happens when a cluster moves from Galera to
/// Lockstep twice. Both clusters have the same history, and different logs.
#[test]
fn two_logs_of_one_history_are_not_joined() {
    let [p1, p2] = free_ports();
    let (first, second) = (Folder::new("twice-1"), Folder::new("twice-2"));
    let at = Gtid { uuid: Uuid([0x6a; 16]), seqno: 40 };
    let one = Server::start(&first, "n1", p1, &[], at, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));
    assert_eq!(one.write(b"k", b"v"), Some(true));
    until("its row is counted", || one.node.last_committed() == 42);
    assert_eq!(one.node.history(), at.uuid);

    let mut two = Server::start(&second, "n2", p2, &[], at, None);
    until("n2 is synced", || two.synced.load(Ordering::SeqCst));
    two.stop();
    drop(two);
    let args =
        ConnectArgs { position: Gtid { seqno: 41, ..at }, ..args("test", &[p1], Duration::from_secs(8)) };
    let (text, _) = refused(config(&second, "n2", p2), args);
    assert!(text.contains("n1") && text.contains("n2") && text.contains("cannot be joined"), "{text}");
    assert!(text.contains("move the lockstep.* files away"), "{text}");
}

#[test]
fn database_ahead_of_all_logs_is_refused() {
    let [port] = free_ports();
    let folder = Folder::new("ahead");
    let mut server = Server::start(&folder, "n1", port, &[], Gtid::UNDEFINED, None);
    until("it is synced", || server.synced.load(Ordering::SeqCst));
    let at = Gtid { uuid: server.node.history(), seqno: server.node.last_committed() };
    server.stop();
    drop(server);
    let timeout = Duration::from_secs(2);
    for (bootstrap, position) in [
        (true, Gtid { seqno: at.seqno + 5, ..at }),
        (false, Gtid { seqno: at.seqno + 5, ..at }),
        (true, Gtid { uuid: Uuid([3; 16]), ..at }),
    ] {
        let args = ConnectArgs { bootstrap, position, ..args("test", &[port], timeout) };
        let (text, took) = refused(config(&folder, "n1", port), args);
        assert!(text.contains("went on without it") && text.contains("lockstep.* files"), "{text}");
        assert!(took < timeout, "{took:?}");
    }
    // With the data that belong to the log it starts, with the flag or without.
    for peers in [vec![], vec![port]] {
        let mut server = Server::start(&folder, "n1", port, &peers, at, None);
        until("it is synced", || server.synced.load(Ordering::SeqCst));
        server.stop();
    }
}

/// A copy of a running member's folder has its identity, and was opened later. It must not take its place.
#[test]
fn copy_of_running_member_is_refused() {
    let [p1, p2, p3] = free_ports();
    let (first, second, copy) = (Folder::new("copy-1"), Folder::new("copy-2"), Folder::new("copy-3"));
    let one = cluster_of_one(&first, p1);
    // Its address leads nowhere, so that the copy does not find out by itself.
    let hidden = NodeConfig { address: "127.0.0.1:1".into(), ..config(&second, "n2", p2) };
    let two = Server::start_with(hidden, &[p1], Gtid::UNDEFINED, Some(&one));
    until("n2 is synced", || two.synced.load(Ordering::SeqCst));
    for file in std::fs::read_dir(&second.0).unwrap().flatten() {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), copy.0.join(file.file_name())).unwrap();
        }
    }
    let position = Gtid { uuid: one.node.history(), seqno: two.node.last_committed() };
    let args = ConnectArgs { position, ..args("test", &[p1], Duration::from_secs(12)) };
    let (text, took) = refused(config(&copy, "n3", p3), args);
    assert!(text.contains("identity") && text.contains("remove lockstep.*"), "{text}");
    assert!(took < Duration::from_secs(11), "{took:?}");
    // Of a cluster of two: the write needs n2 itself, and reaches its database.
    assert_eq!(one.write(b"k", b"still n2"), Some(true));
    until("n2 has it", || two.rows().iter().any(|(_, data)| data == b"still n2"));
    assert_eq!(two.write(b"l", b"from n2"), Some(true));
}

/// The server's word on an address may take as long as somebody locks its table.
#[test]
fn unlisted_address_is_refused_without_delay() {
    let [p1, p2] = free_ports();
    let (first, second) = (Folder::new("allow-1"), Folder::new("allow-2"));
    let table: Arc<Mutex<bool>> = Arc::default();
    let known = table.clone();
    let strict = NodeConfig {
        allowed: Some(Arc::new(move |ip| {
            assert_eq!(ip.to_string(), "127.0.0.1");
            *known.lock().unwrap()
        })),
        ..config(&first, "n1", p1)
    };
    let one = Server::start_with(strict, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || one.synced.load(Ordering::SeqCst));

    let (text, took) = refused(config(&second, "n2", p2), args("test", &[p1], Duration::from_secs(12)));
    assert!(text.contains("INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('127.0.0.1')"), "{text}");
    assert!(text.contains("n1"), "{text}");
    assert!(took < Duration::from_secs(11), "{took:?}");

    // While nobody says whether it may, it is told to come again.
    let lock = table.lock().unwrap();
    let waits = std::thread::spawn(move || {
        refused(config(&second, "n2", p2), args("test", &[p1], Duration::from_secs(4)))
    });
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        let began = Instant::now();
        assert_eq!(one.write(b"k", b"not held up"), Some(true));
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    let (text, _) = waits.join().unwrap();
    assert!(text.contains("no primary component"), "{text}");
    drop(lock);
    *table.lock().unwrap() = true;
    let second = Folder::new("allow-2");
    let two = Server::start(&second, "n2", p2, &[p1], Gtid::UNDEFINED, Some(&one));
    until("n2 is synced", || two.synced.load(Ordering::SeqCst));
    assert_eq!(two.write(b"k", b"let in"), Some(true));
}
