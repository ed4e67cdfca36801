//! Many consumers, slow consumers, and consumers with TLS, by a small client of the protocol.

mod client;
mod tls;
mod upstream;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockstep_binlog::event::{Checksum, EventWriter, FormatDescription, GtidEvent, Stamp, gtid_flag, kind};
use lockstep_binlog::library::Visibility;
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig};
use lockstep_binlog::{Gtid, Library, StreamState, Writer};

use client::{Client, PASSWORD, USER};

const TIMEOUT: Duration = Duration::from_secs(120);
const STAMP: Stamp = Stamp { timestamp: 1_800_000_000, server_id: 10 };
const MAGIC: u64 = 4;

/// Binlog files in a folder, and a server for them; both go away with the test.
pub(crate) struct Lab {
    pub(crate) server: Server,
    writer: Writer,
    folder: PathBuf,
}

impl Lab {
    /// Files with so many event groups each, of some `bytes` bytes.
    pub(crate) fn new(files: u64, groups: u64, bytes: usize, change: impl FnOnce(&mut ServerConfig)) -> Lab {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("lockstep-consumers-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let mut writer = Writer::open(&folder, "bin", Visibility::Appended).unwrap();
        writer.begin(1, &format(), &StreamState::default()).unwrap();
        let settings = Settings { server_id: 10, domain: 1, ..Settings::default() };
        let accounts = Accounts::parse(&format!("{USER} {PASSWORD}")).unwrap();
        let mut config = ServerConfig::new((Ipv4Addr::LOCALHOST, 0).into(), settings, accounts);
        change(&mut config);
        let server = Server::start(config, writer.library().clone()).unwrap();
        let mut lab = Lab { server, writer, folder };
        for file in 1..=files {
            for group in 1..=groups {
                lab.append((file - 1) * groups + group, bytes);
            }
            if file < files {
                let before = lab.writer.state_at_end().clone();
                lab.writer.cut(file + 1, STAMP, &format(), &before).unwrap();
            }
        }
        lab
    }

    fn append(&mut self, seqno: u64, bytes: usize) {
        let mut events = EventWriter::at(self.writer.end().unwrap().offset);
        let gtid = Gtid { domain: 1, server: 10, seqno };
        let flags = gtid_flag::TRANSACTIONAL;
        events.gtid(STAMP.timestamp, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
        events.event(STAMP, kind::ANNOTATE_ROWS, 0, &[&vec![b'x'; bytes]]);
        events.xid(STAMP, seqno);
        self.writer.append(&events.finish().unwrap()).unwrap();
    }

    fn library(&self) -> &Library {
        self.writer.library()
    }

    /// All events of the files.
    fn events(&self) -> Vec<u8> {
        let files = self.library().files().into_iter();
        files
            .flat_map(|(name, _)| std::fs::read(self.folder.join(name)).unwrap().split_off(MAGIC as usize))
            .collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.server.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn format() -> FormatDescription {
    FormatDescription {
        timestamp: STAMP.timestamp,
        server_id: STAMP.server_id,
        version: "10.11.0-MariaDB-lockstep".into(),
        created: 0,
        checksum: Checksum::Crc32,
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Threads of this process that serve a consumer.
fn serving_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "ls-consumer").count()
}

/// Memory of this process in MiB.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

#[test]
fn two_hundred_consumers_read_the_same_stream_at_once() {
    const CONSUMERS: usize = 200;
    // 6 MiB: more than what sockets buffer, so all of the server's threads are busy at the same time.
    let lab = Lab::new(3, 2000, 1000, |config| config.max_connections = CONSUMERS);
    let address = lab.server.address();
    let before = memory();
    let mut clients: Vec<Client> = (0..CONSUMERS).map(|_| Client::connect(address).unwrap()).collect();
    for (id, client) in clients.iter_mut().enumerate() {
        client.dump("", 100 + id as u32, false).unwrap();
    }
    until("all streams have begun", || {
        lab.server.consumers().iter().filter(|consumer| consumer.stream.is_some()).count() == CONSUMERS
    });
    let (code, text) = Client::connect(address).err().expect("one connection too many");
    assert_eq!((code, text.as_str()), (1040, "Too many connections"));
    // Other tests of this process may have threads of their own.
    assert!(serving_threads() <= CONSUMERS + 10, "{}", serving_threads());
    let used = memory().saturating_sub(before);
    assert!(used < CONSUMERS as u64, "{CONSUMERS} consumers take {used} MiB");
    let expected = lab.events();
    let part = CONSUMERS / 4;
    std::thread::scope(|scope| {
        for clients in clients.chunks_mut(part) {
            let expected = &expected;
            scope.spawn(move || {
                for client in clients {
                    assert!(client.read_to_end().unwrap() == *expected, "the stream has other events");
                }
            });
        }
    });
    drop(clients);
    until("all connections are gone", || lab.server.consumers().is_empty());
    Client::connect(address).map(drop).expect("there is room again");
}

#[test]
fn slow_consumer_is_dropped_by_name_and_stops_nobody() {
    // 40 MiB: sockets buffer less.
    let mut lab = Lab::new(10, 1000, 4000, |_| {});
    let (mut slow, mut fast) =
        (Client::connect(lab.server.address()).unwrap(), Client::connect(lab.server.address()).unwrap());
    slow.dump("", 7, true).unwrap();
    slow.event().unwrap();
    fast.dump("", 8, true).unwrap();
    let read_all = |fast: &mut Client, up_to: &[u8]| {
        while fast.event().unwrap().expect("a stream without an end") != up_to {}
    };
    let last_event = |lab: &Lab| {
        let events = lab.events();
        // An Xid event with its checksum.
        events[events.len() - 31..].to_vec()
    };
    read_all(&mut fast, &last_event(&lab));
    // A cap that the slow one is below.
    let kept = lab.library().purge_to(10, 1 << 30).unwrap();
    let name = format!("{USER} at {} (server id 7)", slow.local);
    assert!(kept.dropped.is_empty() && kept.kept_for.is_some_and(|(_, kept_for)| kept_for == name));
    let lag = |lab: &Lab, id: u32| {
        let consumers = lab.server.consumers();
        let stream = consumers.iter().filter_map(|c| c.stream.clone()).find(|s| s.server_id == id).unwrap();
        (stream.behind, stream.behind_seconds)
    };
    until("the fast one has everything", || lag(&lab, 8) == (0, Some(0.0)));
    assert!(lag(&lab, 7).0 > 1 << 20, "{:?}", lag(&lab, 7));
    let purged = lab.library().purge_to(10, 1 << 20).unwrap();
    assert_eq!(purged.dropped, [name]);
    // The slow one may have begun the second file already.
    assert_eq!(kept.removed.len() + purged.removed.len(), 9);
    // The stream goes on for the other one.
    lab.append(10_001, 10);
    let last = last_event(&lab);
    read_all(&mut fast, &last);
    let (code, text) = loop {
        match slow.event() {
            Ok(event) => assert!(event.is_some()),
            Err(refused) => break refused,
        }
    };
    assert!(
        code == 1236 && text.contains("was removed") && text.contains("new copy of the data"),
        "{code} {text}"
    );
    // The consumer connects again, from its first transaction on.
    let mut again = Client::connect(lab.server.address()).unwrap();
    again.dump("1-10-1", 7, true).unwrap();
    let (code, text) = again.event().unwrap_err();
    assert!(
        code == 1236 && text.contains("were purged") && text.contains("new copy of the data"),
        "{code} {text}"
    );
}

#[test]
fn registered_replicas_are_listed() {
    let lab = Lab::new(1, 1, 10, |_| {});
    let mut replica = Client::connect(lab.server.address()).unwrap();
    replica.register(9, "db9").unwrap();
    let mut tool = Client::connect(lab.server.address()).unwrap();
    for sql in ["SHOW SLAVE HOSTS", "SHOW REPLICA HOSTS", "SHOW REPLICAS"] {
        assert_eq!(tool.rows(sql).unwrap(), [["9", "db9", "3306", "10"]], "{sql}");
    }
    let (code, text) = replica.register(10, "db10").unwrap_err();
    assert!(code == 1236 && text.contains("server id 10"), "{code} {text}");
}
