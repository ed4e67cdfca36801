//! A front end that is a few lines: the order of calls that a server's provider makes.
#![allow(
    dead_code,
    clippy::type_complexity,
    unreachable_pub,
    missing_docs,
    reason = "shared by several test programs"
)]

use lockstep_node::core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder, flags};
use lockstep_node::core::{EntryKind, Gtid, Seqno, Uuid};
use lockstep_node::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lockstep-node-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub type Fails = Arc<Mutex<Vec<(Vec<u8>, &'static str)>>>;

/// A server that applies by appending to a list.
pub struct Server {
    pub node: Node,
    pub applied: Arc<Mutex<Vec<(Seqno, Vec<u8>)>>>,
    pub synced: Arc<AtomicBool>,
    pub views: Arc<Mutex<Vec<ViewInfo>>>,
    /// Data that this server cannot apply, with the errors.
    pub fails: Fails,
    /// Why it has left, being unlike the others.
    pub unlike: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
}

pub fn config(folder: &Folder, name: &str, port: u16) -> NodeConfig {
    let own = name.to_string();
    NodeConfig {
        name: name.into(),
        data_dir: folder.0.clone(),
        log_dir: None,
        listen: format!("127.0.0.1:{port}"),
        address: format!("127.0.0.1:{port}"),
        incoming: format!("127.0.0.1:{}", port + 1),
        zone: 0,
        wants_vote: true,
        may_begin_anew: true,
        front_end: FrontEnd::Database,
        donates: true,
        hold: None,
        tuning: Tuning {
            heartbeat: Duration::from_millis(40),
            election_timeout: Duration::from_millis(300),
            ..Tuning::default()
        },
        tls: None,
        status_address: None,
        logger: Arc::new(move |level, text| eprintln!("{own} {level:?}: {text}")),
        front_end_stats: None,
        front_end_status: None,
        allowed: None,
        progress: None,
        event: None,
        policy_changed: None,
        end_server: None,
    }
}

pub fn connect_args(peers: &[u16], position: Gtid) -> ConnectArgs {
    ConnectArgs {
        in_doubt: None,
        cluster: "test".into(),
        peers: peers.iter().map(|p| format!("127.0.0.1:{p}")).collect(),
        bootstrap: peers.is_empty(),
        position,
        log: Uuid::NIL,
        by_donor: false,
        timeout: Duration::from_secs(60),
        waits_for_others: false,
        needs_state: false,
        followed: None,
    }
}

impl Server {
    /// `state`: where the copied state would stand if the node asks for one.
    pub fn start(
        folder: &Folder,
        name: &str,
        port: u16,
        peers: &[u16],
        position: Gtid,
        donor: Option<&Server>,
    ) -> Server {
        Server::start_with(config(folder, name, port), peers, position, donor)
    }

    pub fn start_with(config: NodeConfig, peers: &[u16], position: Gtid, donor: Option<&Server>) -> Server {
        Server::start_failing(config, peers, position, donor, Fails::default())
    }

    pub fn start_failing(
        config: NodeConfig,
        peers: &[u16],
        position: Gtid,
        donor: Option<&Server>,
        fails: Fails,
    ) -> Server {
        let node = Node::start(config).unwrap();
        node.connect(connect_args(peers, position)).unwrap();
        let applied = Arc::new(Mutex::new(Vec::new()));
        let synced = Arc::new(AtomicBool::new(false));
        let views = Arc::new(Mutex::new(Vec::new()));
        let copy = donor.map(|d| (d.applied.clone(), d.node.clone()));
        let (n, a, s, v) = (node.clone(), applied.clone(), synced.clone(), views.clone());
        let unlike = Arc::new(Mutex::new(None));
        let (f, u) = (fails.clone(), unlike.clone());
        let u_failed = unlike.clone();
        let leave = move |node: &Node, text: String| {
            *u.lock().unwrap() = Some(text.clone());
            node.fail(&text);
        };
        let thread = std::thread::spawn(move || {
            loop {
                match n.next(None, None).unwrap() {
                    Delivery::Connected(info) => {
                        // A front end decides by the status of that moment.
                        let (status, own) = (n.status(), n.identity().member.to_string());
                        assert_eq!(status.cluster.uuid, info.gtid.uuid.to_string());
                        assert!(status.members.iter().any(|member| member.id == own), "{status:?}");
                    }
                    Delivery::StateNeeded { .. } => {
                        let (status, own) = (n.status(), n.identity().member.to_string());
                        assert!(status.members.iter().any(|member| member.id != own), "{status:?}");
                        n.request_state("copy".into(), "");
                    }
                    Delivery::View { info, in_log } => {
                        if in_log {
                            n.finished(info.gtid.seqno);
                        }
                        v.lock().unwrap().push(info);
                    }
                    Delivery::Ordered(ordered) => {
                        let data = ordered.writeset.data.to_vec();
                        let error = f.lock().unwrap().iter().find(|(d, _)| *d == data).map(|(_, e)| *e);
                        if let Some(error) = error {
                            match n.vote(ordered.seqno, error.as_bytes(), None) {
                                Vote::Agreed => {}
                                other => {
                                    leave(&n, format!("{other:?}"));
                                    continue;
                                }
                            }
                        } else if ordered.pass && u_failed.lock().unwrap().is_none() {
                            // A server that differs from the others uses its data no more.
                            a.lock().unwrap().push((ordered.seqno, ordered.writeset.data.to_vec()));
                        }
                        n.finished(ordered.seqno);
                    }
                    Delivery::Donate { id, .. } => {
                        let gtid = Gtid { uuid: n.history(), seqno: n.last_committed() };
                        n.donation_done(id, Ok(gtid));
                    }
                    Delivery::StateFailed(text) => panic!("{text}"),
                    Delivery::Failed(text) => assert!(u_failed.lock().unwrap().is_some(), "{text}"),
                    Delivery::Inconsistent(text) => leave(&n, text),
                    Delivery::Synced => s.store(true, Ordering::SeqCst),
                    Delivery::Result(result) => panic!("a database was told {result:?}"),
                    Delivery::Closed => return,
                }
                n.handled();
            }
        });
        let server = Server { node, applied, synced, views, fails, unlike, thread: Some(thread) };
        if let Some((rows, donor)) = copy {
            until("the node asks for state", || server.node.state() == LocalState::Joining);
            std::thread::sleep(Duration::from_millis(300));
            let gtid = Gtid { uuid: donor.history(), seqno: donor.last_committed() };
            *server.applied.lock().unwrap() =
                rows.lock().unwrap().iter().filter(|(seqno, _)| *seqno <= gtid.seqno).cloned().collect();
            server.node.state_received(Ok(gtid));
        }
        server
    }

    pub fn write(&self, key: &[u8], data: &[u8]) -> Option<bool> {
        let mut builder = WriteSetBuilder::new();
        builder.append_key(&[b"t", key], KeyType::Exclusive).unwrap();
        builder.append_data(DataKind::Ordered, data).unwrap();
        let payload = builder.finish(&Meta {
            flags: flags::TRX_START | flags::TRX_END,
            last_seen: self.node.last_committed(),
            source: self.node.identity().view_uuid,
            epoch: 0,
            conn: 1,
            trx: 1,
        });
        match self.node.submit(EntryKind::WriteSet, payload).ok()?.wait() {
            SubmitOutcome::Ordered(ordered) => {
                if ordered.pass {
                    self.applied.lock().unwrap().push((ordered.seqno, data.to_vec()));
                }
                self.node.finished(ordered.seqno);
                Some(ordered.pass)
            }
            SubmitOutcome::NotSent | SubmitOutcome::TooLarge | SubmitOutcome::Unknown => None,
        }
    }

    pub fn rows(&self) -> Vec<(Seqno, Vec<u8>)> {
        let mut rows = self.applied.lock().unwrap().clone();
        rows.sort();
        rows
    }

    pub fn stop(&mut self) {
        self.node.disconnect();
        self.node.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.node.stop();
    }
}

pub fn until(what: &str, mut true_yet: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !true_yet() {
        assert!(Instant::now() < end, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Below those that the system gives to outgoing connections, one of which might take it before the test does.
pub fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    std::array::from_fn(|_| {
        (0..4000)
            .map(|_| 8_000 + (start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 4_000) as u16)
            .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
            .expect("a free port")
    })
}
