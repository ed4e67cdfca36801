//! Members with a log in memory, clients that write, and processes that are killed.

use super::attachments::Holder;
use super::entry::{Compared, Difference, Entry};
use super::extent_map::{Content, Run};
use super::file::{DeviceFile, Position};
use super::replica::{Config, CopyMember, Log, NotSent, Notice, NoticeCall, Replica, ReplicaAttachment};
use super::storage::tests::TestStorage;
use crate::export::{Attachment, Export, Extent, Peer, RefusalKind};
use bytes::Bytes;
use lockstep_core::{MemberId, Seqno, Uuid};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SIZE: u64 = 1 << 20;
const CLIENT: Peer = Peer::Uid(7);

/// The log of all members: sent and committed entries.
#[derive(Default)]
struct Wire {
    sent: Mutex<VecDeque<(MemberId, Bytes)>>,
    committed: Mutex<Vec<(MemberId, Bytes)>>,
    /// Nothing is committed, and nobody has a majority.
    cut: AtomicBool,
    /// A member that belongs to no majority knows a leader.
    led: AtomicBool,
    /// Leadership is elsewhere, and only the leader writes.
    moved: AtomicBool,
    /// How long a confirmation counts, ms.
    confirmed_for: AtomicI64,
    /// Entries are acknowledged when they are sent.
    acknowledges: AtomicBool,
    /// Every so many entries one is lost; 0: none.
    loses: AtomicI64,
    /// Those, until their origins are told.
    lost: Mutex<Vec<NoticeCall>>,
    /// The members of the group.
    members: AtomicI64,
    /// Those of them that lag.
    lagging: Mutex<Vec<u8>>,
    /// Those that the others are connected with, for promotions.
    connected: Mutex<Vec<MemberId>>,
    /// Asked for its status with each note.
    asks: Mutex<Option<Replica<MemoryLog>>>,
    notes: AtomicI64,
}

struct MemoryLog {
    wire: Arc<Wire>,
    member: MemberId,
    count: AtomicI64,
    finished: AtomicI64,
}

impl MemoryLog {
    fn new(wire: &Arc<Wire>, at: usize) -> MemoryLog {
        MemoryLog {
            wire: wire.clone(),
            member: Uuid([at as u8 + 1; 16]),
            count: AtomicI64::new(0),
            finished: AtomicI64::new(-1),
        }
    }
}

impl Log for MemoryLog {
    fn submit(&self, payload: Bytes, notice: NoticeCall) -> Result<(), NotSent> {
        let every = self.wire.loses.load(Ordering::SeqCst);
        let count = self.count.fetch_add(1, Ordering::SeqCst);
        if every == 0 || count % every != every - 1 {
            self.wire.sent.lock().unwrap().push_back((self.member, payload));
            if self.wire.acknowledges.load(Ordering::SeqCst) {
                let committed = self.wire.committed.lock().unwrap().len() as Seqno;
                notice(Notice::Acknowledged { after: committed - 1 });
            }
        } else {
            self.wire.lost.lock().unwrap().push(notice);
        }
        Ok(())
    }

    fn finished(&self, seqno: Seqno) {
        self.finished.store(seqno, Ordering::SeqCst);
    }

    fn confirmed(&self) -> Option<Seqno> {
        let committed = self.wire.committed.lock().unwrap().len() as Seqno;
        (!self.wire.cut.load(Ordering::SeqCst)).then_some(committed - 1)
    }

    fn knows_leader(&self) -> bool {
        self.wire.led.load(Ordering::SeqCst)
    }

    fn confirmed_for(&self) -> Duration {
        Duration::from_millis(self.wire.confirmed_for.load(Ordering::SeqCst) as u64)
    }

    fn refusal(&self) -> Option<String> {
        self.wire.moved.load(Ordering::SeqCst).then(|| "n2 leads".to_owned())
    }

    fn refused_for(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn member(&self) -> MemberId {
        self.member
    }

    fn name_of(&self, member: &MemberId) -> String {
        format!("n{}", member.0[0])
    }

    fn is_connected(&self, member: &MemberId) -> bool {
        self.wire.connected.lock().unwrap().contains(member)
    }

    fn copies(&self) -> Vec<CopyMember> {
        let copies = 1..=self.wire.members.load(Ordering::SeqCst) as u8;
        let lagging = self.wire.lagging.lock().unwrap();
        let copy = |at: u8| CopyMember {
            member: Uuid([at; 16]),
            name: format!("n{at}"),
            ready: !lagging.contains(&at),
        };
        copies.map(copy).collect()
    }

    fn compared_within(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn note(&self, _: bool, _: &str) {
        let asks = self.wire.asks.lock().unwrap().clone();
        if let Some(replica) = asks {
            let _ = replica.status();
            self.wire.notes.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A member's process.
struct Process {
    replica: Replica<MemoryLog>,
    /// The next entry to take.
    next: usize,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Group {
    wire: Arc<Wire>,
    dir: PathBuf,
    members: Vec<Option<Process>>,
    runtime: tokio::runtime::Runtime,
    cache: u64,
    timeout: Duration,
    /// The largest file of the members' file systems.
    largest: u64,
}

impl Group {
    fn new(name: &str, members: usize) -> Group {
        let dir = std::env::temp_dir().join(format!("lockstep-replica-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build();
        let mut group = Group {
            wire: Arc::default(),
            dir,
            members: (0..members).map(|_| None).collect(),
            runtime: runtime.unwrap(),
            cache: 1 << 20,
            timeout: Duration::ZERO,
            largest: u64::MAX,
        };
        group.wire.members.store(members as i64, Ordering::SeqCst);
        (0..members).for_each(|at| group.start(at));
        let replica = group.replica(0);
        let resized = group.run(async move { replica.resize(SIZE).await });
        assert_eq!(resized, Ok(()));
        group
    }

    fn member_dir(&self, at: usize) -> PathBuf {
        self.dir.join(format!("n{}", at + 1))
    }

    fn start(&mut self, at: usize) {
        self.start_at(at, |position| position);
    }

    fn start_at(&mut self, at: usize, from: impl FnOnce(Position) -> Position) {
        let dir = self.member_dir(at);
        std::fs::create_dir_all(&dir).unwrap();
        let storage = TestStorage::open(&dir, self.largest);
        let (file, position) = DeviceFile::over(Box::new(storage)).unwrap();
        let log = MemoryLog::new(&self.wire, at);
        let config = Config { name: "disk".into(), cache: self.cache, timeout: self.timeout };
        let position = from(position);
        let next = (position.gtid.seqno + 1).max(0) as usize;
        let seed = u64::from(std::process::id()) << 32 | next as u64;
        let replica = Replica::new(log, file, position, config, seed);
        replica.connected(Uuid([9; 16]), Uuid([9; 16]), |position| position).unwrap();
        let (first, second) = (replica.clone(), replica.clone());
        let threads = vec![
            std::thread::spawn(move || first.submit_in_background()),
            std::thread::spawn(move || second.write_back().unwrap()),
        ];
        self.members[at] = Some(Process { replica, next, threads });
    }

    fn replica(&self, at: usize) -> Replica<MemoryLog> {
        self.members[at].as_ref().unwrap().replica.clone()
    }

    /// Kills a process. Its device file may have more than its position says.
    fn kill(&mut self, at: usize) {
        let path = self.member_dir(at).join("device.state");
        let position = std::fs::read(&path).unwrap();
        self.stop(at);
        std::fs::write(path, position).unwrap();
    }

    fn stop(&mut self, at: usize) {
        let process = self.members[at].take().unwrap();
        process.replica.close();
        for thread in process.threads {
            thread.join().unwrap();
        }
    }

    /// Commits one more of the sent entries, and delivers what the members lack.
    fn step(&mut self) -> bool {
        let mut moved = false;
        if !self.wire.cut.load(Ordering::SeqCst)
            && let Some((origin, payload)) = self.wire.sent.lock().unwrap().pop_front()
        {
            self.wire.committed.lock().unwrap().push((origin, payload));
            moved = true;
        }
        let lost = std::mem::take(&mut *self.wire.lost.lock().unwrap());
        lost.into_iter().for_each(|notice| notice(Notice::Lost));
        for process in self.members.iter_mut().flatten() {
            loop {
                let entry = self.wire.committed.lock().unwrap().get(process.next).cloned();
                let Some((origin, payload)) = entry else { break };
                process.replica.deliver(process.next as Seqno, &origin, &payload).unwrap();
                process.next += 1;
                moved = true;
            }
            if !self.wire.cut.load(Ordering::SeqCst) {
                process.replica.caught_up();
            }
        }
        moved
    }

    /// Runs a task to its end while the log goes on.
    fn run<T: Send + 'static>(&mut self, task: impl Future<Output = T> + Send + 'static) -> T {
        let task = self.runtime.spawn(task);
        for _ in 0..60_000 {
            if task.is_finished() {
                return self.runtime.block_on(task).unwrap();
            }
            if !self.step() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        panic!("the task does not end")
    }

    fn attach(&mut self, at: usize, name: &str) -> Result<Client, String> {
        let (replica, name) = (self.replica(at), name.to_owned());
        let attached = self.run(async move { replica.attach(&name, &CLIENT).await });
        attached.map(|attachment| Client(Arc::new(attachment))).map_err(|refusal| refusal.text)
    }

    fn promote(&mut self, at: usize, force: bool) -> Result<u64, String> {
        let replica = self.replica(at);
        self.run(async move { replica.promote(force).await })
    }

    fn write(&mut self, client: &Client, offset: u64, byte: u8, length: usize) {
        let client = client.0.clone();
        let data = Bytes::from(vec![byte; length]);
        self.run(async move { client.write(offset, data, false).await }).unwrap();
    }

    fn flush(&mut self, client: &Client) {
        let client = client.0.clone();
        self.run(async move { client.flush().await }).unwrap();
    }

    fn read(&mut self, client: &Client, offset: u64, length: u32) -> Bytes {
        let client = client.0.clone();
        self.run(async move { client.read(offset, length).await }).unwrap()
    }

    fn detach(&mut self, client: Client) {
        let attachment = Arc::try_unwrap(client.0).unwrap();
        self.run(async move { attachment.detach().await });
    }

    /// Every running member's device file, with everything that is committed.
    fn images(&mut self) -> Vec<Vec<u8>> {
        while self.step() {}
        let last = self.wire.committed.lock().unwrap().len() as Seqno - 1;
        let mut images = Vec::new();
        for at in 0..self.members.len() {
            let Some(process) = &self.members[at] else { continue };
            for _ in 0..10_000 {
                // The log is told after the status has it.
                if process.replica.log().finished.load(Ordering::SeqCst) == last {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(process.replica.status().written, last);
            assert_eq!(process.replica.log().finished.load(Ordering::SeqCst), last);
            images.push(std::fs::read(self.member_dir(at).join("device.img")).unwrap());
        }
        images
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for at in 0..self.members.len() {
            if self.members[at].is_some() && !std::thread::panicking() {
                self.stop(at);
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Client(Arc<ReplicaAttachment<MemoryLog>>);

/// Waits for something that background threads do.
fn wait(what: &str, done: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("in vain: {what}");
}

#[test]
fn flushed_writes_are_on_every_copy() {
    let mut group = Group::new("copies", 3);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 4096, 1, 8192);
    group.write(&client, 6000, 2, 100);
    assert!(group.wire.sent.lock().unwrap().is_empty(), "no flush, no entry");
    group.flush(&client);
    let images = group.images();
    assert_eq!(images.len(), 3);
    let mut expected = vec![0; SIZE as usize];
    expected[4096..4096 + 8192].fill(1);
    expected[6000..6100].fill(2);
    assert!(images.iter().all(|image| *image == expected));
    assert_eq!(group.read(&client, 5999, 102)[..], expected[5999..6101]);
}

#[test]
fn unflushed_writes_go_to_the_log_after_a_while() {
    let mut group = Group::new("background", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 5, 4096);
    for _ in 0..1000 {
        group.step();
        if group.replica(1).status().delivered >= 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(group.images()[1][..4096], [5; 4096]);
}

#[test]
fn full_cache_makes_writes_wait_and_not_fail() {
    let mut group = Group::new("full", 2);
    let client = group.attach(0, "disk").unwrap();
    // Each member's cache has 1 MiB: four times as much is written.
    for at in 0..64 {
        group.write(&client, (at % 8) * 65536, at as u8, 65536);
        assert!(group.replica(0).status().cached <= (1 << 20) + 70_000);
    }
    group.flush(&client);
    let images = group.images();
    assert_eq!(images[0], images[1]);
    assert_eq!(images[0][7 * 65536], 63);
}

#[test]
fn fua_takes_only_its_own_range() {
    let mut group = Group::new("fua", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    let attachment = client.0.clone();
    let data = Bytes::from(vec![2; 4096]);
    group.run(async move { attachment.write(8192, data, true).await }).unwrap();
    let status = group.replica(0).status();
    assert!(status.dirty >= 4096, "the other write is not in the log: {status:?}");
    assert_eq!(status.session.unwrap().uncommitted, 0);
    assert_eq!(group.images()[1][8192..12288], [2; 4096]);
}

#[test]
fn lost_entries_are_sent_again_in_order() {
    let mut group = Group::new("lossy", 2);
    let client = group.attach(0, "disk").unwrap();
    group.wire.loses.store(3, Ordering::SeqCst);
    for at in 0..12 {
        group.write(&client, at * 4096, at as u8 + 1, 4096);
        group.flush(&client);
    }
    let images = group.images();
    assert_eq!(images[0], images[1]);
    assert!((0..12).all(|at| images[0][at * 4096] == at as u8 + 1));
}

#[test]
fn plain_name_is_refused_after_crash_until_promotion() {
    let mut group = Group::new("crash", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    group.flush(&client);
    group.write(&client, 0, 2, 4096);
    drop(client);
    group.kill(0);
    group.start(0);
    while group.step() {}
    let text = group.attach(0, "disk").map(|_| ()).unwrap_err();
    assert!(text.contains("did not end in order") && text.contains("block promote"), "{text}");
    assert!(group.attach(1, "disk").map(|_| ()).unwrap_err().contains("attached to n1"));
    assert_eq!(group.promote(1, false), Ok(2));
    assert!(group.attach(1, "disk").map(|_| ()).unwrap_err().contains("disk@2"));
    assert!(group.attach(0, "disk@2").map(|_| ()).unwrap_err().contains("n2 was promoted"));
    let client = group.attach(1, "disk@2").unwrap();
    let found = group.read(&client, 0, 1)[0];
    assert_eq!(found, 1, "the last flushed value: the other was never in the log");
    group.detach(client);
    assert_eq!(*group.replica(0).status().attachments.holder(), Holder::Nobody);
    let client = group.attach(0, "disk").expect("it ended in order");
    assert_eq!(group.read(&client, 0, 1)[0], 1);
}

#[test]
fn lost_connection_joins_again_while_the_server_lives() {
    let mut group = Group::new("reconnect", 1);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 3, 512);
    drop(client);
    let client = group.attach(0, "disk").unwrap();
    assert_eq!(group.read(&client, 0, 1)[0], 3, "nothing was lost");
    let replica = group.replica(0);
    let other = group.run(async move { replica.attach("disk", &Peer::Uid(8)).await });
    assert!(other.unwrap_err().text.contains("uid 7 is attached"));
    let replica = group.replica(0);
    let unknown = group.run(async move { replica.attach("disk2", &CLIENT).await });
    assert_eq!(unknown.unwrap_err().kind, RefusalKind::Unknown);
}

#[test]
fn second_connection_sees_writes_of_the_first() {
    let mut group = Group::new("multi", 1);
    let (first, second) = (group.attach(0, "disk").unwrap(), group.attach(0, "disk").unwrap());
    group.write(&first, 100, 9, 10);
    assert_eq!(group.read(&second, 100, 10)[..], [9; 10]);
    group.flush(&second);
    assert_eq!(group.images()[0][100..110], [9; 10], "a flush covers all connections");
    group.detach(first);
    group.write(&second, 0, 1, 1);
    group.detach(second);
    assert_eq!(*group.replica(0).status().attachments.holder(), Holder::Nobody);
}

#[test]
fn deposed_primary_gets_errors_and_changes_nothing() {
    let mut group = Group::new("deposed", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    group.flush(&client);
    group.write(&client, 0, 2, 4096);
    assert_eq!(group.promote(1, true), Ok(2));
    let attachment = client.0.clone();
    let error = group.run(async move { attachment.flush().await }).unwrap_err();
    assert!(error.text().contains("n2 was promoted"), "{error}");
    let attachment = client.0.clone();
    assert!(group.run(async move { attachment.read(0, 1).await }).is_err());
    let images = group.images();
    assert!(images.iter().all(|image| image[0] == 1));
}

#[test]
fn replies_are_held_without_a_majority() {
    let mut group = Group::new("held", 1);
    let client = group.attach(0, "disk").unwrap();
    group.wire.cut.store(true, Ordering::SeqCst);
    let attachment = client.0.clone();
    let read = group.runtime.spawn(async move { attachment.read(0, 1).await });
    let attachment = client.0.clone();
    let extents = group.runtime.spawn(async move { attachment.block_status(0, 4096).await });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!read.is_finished() && !extents.is_finished());
    group.wire.cut.store(false, Ordering::SeqCst);
    assert!(group.run(read).unwrap().is_ok());
    assert_eq!(group.run(extents).unwrap(), Ok(vec![Extent { length: 4096, hole: true, zero: true }]));
}

#[test]
fn flush_after_the_timeout_ends_the_attachment() {
    let mut group = Group::new("timeout", 1);
    group.stop(0);
    group.timeout = Duration::from_millis(300);
    group.start(0);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    group.wire.cut.store(true, Ordering::SeqCst);
    let attachment = client.0.clone();
    assert!(group.run(async move { attachment.flush().await }).unwrap_err().text().contains("block.timeout"));
    group.wire.cut.store(false, Ordering::SeqCst);
    let attachment = client.0.clone();
    assert!(group.run(async move { attachment.flush().await }).is_err(), "a later flush must not succeed");
    assert!(group.attach(0, "disk").is_err());
}

#[test]
fn requests_without_majority_fail_after_the_timeout() {
    for (name, is_read) in [("held-read", true), ("held-write", false)] {
        let mut group = Group::new(name, 1);
        group.stop(0);
        group.timeout = Duration::from_millis(300);
        group.start(0);
        let client = group.attach(0, "disk").unwrap();
        group.wire.cut.store(true, Ordering::SeqCst);
        let (attachment, began) = (client.0.clone(), Instant::now());
        let failed = group.run(async move {
            match is_read {
                true => attachment.read(0, 1).await.map(drop),
                false => attachment.write(0, Bytes::from_static(&[1; 512]), false).await,
            }
        });
        assert!(failed.unwrap_err().text().contains("block.timeout"));
        assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
        group.wire.cut.store(false, Ordering::SeqCst);
        let attachment = client.0.clone();
        assert!(group.run(async move { attachment.read(0, 1).await }).is_err(), "the attachment has ended");
    }
}

#[test]
fn write_into_full_cache_without_majority_times_out() {
    let mut group = Group::new("full-cut", 1);
    group.stop(0);
    (group.cache, group.timeout) = (8192, Duration::from_millis(300));
    group.start(0);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 8192);
    group.wire.cut.store(true, Ordering::SeqCst);
    let attachment = client.0.clone();
    let write = async move { attachment.write(0, Bytes::from_static(&[2; 512]), false).await };
    assert!(group.run(write).unwrap_err().text().contains("block.timeout"));
}

#[test]
fn block_status_of_many_writes_is_shorter_than_asked() {
    let mut group = Group::new("many-writes", 1);
    group.stop(0);
    group.cache = 64 << 20;
    group.start(0);
    let client = group.attach(0, "disk").unwrap();
    // The log stands still meanwhile, so that all writes stay in memory.
    let extents = group.runtime.block_on(async {
        for at in 0..3000 {
            client.0.write(at * 256, Bytes::from_static(&[1; 256]), false).await.unwrap();
        }
        client.0.block_status(0, SIZE as u32).await.unwrap()
    });
    assert_eq!(extents, [Extent { length: 2048 * 256, hole: false, zero: false }]);
}

#[test]
fn resize_beyond_the_file_system_is_refused_and_not_logged() {
    let mut group = Group::new("resize-limit", 2);
    group.stop(0);
    group.largest = 2 * SIZE;
    group.start(0);
    let entries = group.wire.committed.lock().unwrap().len();
    let replica = group.replica(0);
    let text = group.run(async move { replica.resize(2 * SIZE + 4096).await }).unwrap_err();
    assert!(text.contains("n1/device.img") && text.contains("Nothing was changed"), "{text}");
    assert_eq!(group.wire.committed.lock().unwrap().len(), entries);
    let replica = group.replica(0);
    assert_eq!(group.run(async move { replica.resize(2 * SIZE).await }), Ok(()));
    assert!(group.images().iter().all(|image| image.len() as u64 == 2 * SIZE));
}

#[test]
fn delivered_resize_beyond_the_file_system_needs_an_operator() {
    let mut group = Group::new("resize-taken", 1);
    group.stop(0);
    group.largest = SIZE;
    group.start(0);
    while group.step() {}
    let resize = Entry::Resize { before: SIZE, size: 2 * SIZE, token: 1 }.encode();
    let seqno = group.wire.committed.lock().unwrap().len() as Seqno;
    let error = group.replica(0).deliver(seqno, &Uuid([2; 16]), &resize).unwrap_err();
    assert!(error.needs_operator());
    let text = error.to_string();
    assert!(
        text.contains("holds no file of 2097152 bytes") && text.contains("Move the member's directory"),
        "{text}"
    );
}

#[test]
fn resize_that_was_never_committed_does_no_harm() {
    let mut group = Group::new("resize-lost", 1);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, SIZE - 512, 1, 512);
    group.flush(&client);
    group.detach(client);
    let replica = group.replica(0);
    let resize = group.runtime.spawn(async move { replica.resize(4 * SIZE).await });
    wait("the entry is sent", || !group.wire.sent.lock().unwrap().is_empty());
    resize.abort();
    group.wire.sent.lock().unwrap().clear();
    group.kill(0);
    assert_eq!(std::fs::metadata(group.member_dir(0).join("device.img")).unwrap().len(), 4 * SIZE);
    group.start(0);
    let replica = group.replica(0);
    assert_eq!(group.run(async move { replica.resize(2 * SIZE).await }), Ok(()));
    let client = group.attach(0, "disk").unwrap();
    assert_eq!(group.replica(0).status().attachments.size(), 2 * SIZE);
    assert_eq!(group.read(&client, SIZE - 512, 1024)[..], [[1; 512], [0; 512]].concat());
}

/// A Detach that the server no longer waits for may be accepted much later.
#[test]
fn client_waits_until_the_earlier_detach_is_decided() {
    let mut group = Group::new("late-detach", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    group.flush(&client);
    let attachment = Arc::try_unwrap(client.0).unwrap();
    let detach = group.runtime.spawn(async move { attachment.detach().await });
    // Nothing is committed meanwhile.
    wait("the entry is sent", || !group.wire.sent.lock().unwrap().is_empty());
    detach.abort();
    let replica = group.replica(0);
    let attach = group.runtime.spawn(async move { replica.attach("disk", &CLIENT).await.map(Arc::new) });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!attach.is_finished(), "the client must not join an attachment that may end at any time");
    let client = Client(group.run(attach).unwrap().unwrap());
    assert_eq!(group.replica(0).status().session.unwrap().epoch, 2);
    group.write(&client, 0, 2, 512);
    group.flush(&client);
    assert!(group.images().iter().all(|image| image[0] == 2));
}

#[test]
fn lost_detach_is_sent_again() {
    let mut group = Group::new("lost-detach", 1);
    let client = group.attach(0, "disk").unwrap();
    let attachment = Arc::try_unwrap(client.0).unwrap();
    let detach = group.runtime.spawn(async move { attachment.detach().await });
    wait("the entry is sent", || !group.wire.sent.lock().unwrap().is_empty());
    detach.abort();
    group.wire.sent.lock().unwrap().clear();
    for _ in 0..1000 {
        group.step();
        std::thread::sleep(Duration::from_millis(10));
        if *group.replica(0).status().attachments.holder() == Holder::Nobody {
            return;
        }
    }
    panic!("the attachment does not end");
}

#[test]
fn writes_of_an_ended_attachment_are_gone() {
    let mut group = Group::new("ended", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    // An entry of this member ends the attachment although there is an unflushed write.
    let detach = Entry::Detach { epoch: 1, number: 1, token: 0 }.encode();
    group.wire.sent.lock().unwrap().push_back((Uuid([1; 16]), detach));
    while group.step() {}
    drop(client);
    let client = group.attach(1, "disk").unwrap();
    group.write(&client, 0, 2, 512);
    group.flush(&client);
    group.detach(client);
    let client = group.attach(0, "disk").unwrap();
    assert_eq!(group.read(&client, 0, 1)[0], 2);
    group.flush(&client);
    assert!(group.images().iter().all(|image| image[0] == 2));
}

#[test]
fn range_written_again_and_again_does_not_exceed_the_cache() {
    let mut group = Group::new("rewrite", 1);
    let client = group.attach(0, "disk").unwrap();
    // The log takes nothing meanwhile. Overlapping writes alone take a fourth of the cache of 1 MiB.
    let mut waiting = None;
    for at in 0..100_u8 {
        let attachment = client.0.clone();
        let data = Bytes::from(vec![at; 65536]);
        let offset = u64::from(at % 4) * 65536;
        let write = group.runtime.spawn(async move { attachment.write(offset, data, false).await });
        for _ in 0..1000 {
            if write.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if !write.is_finished() {
            waiting = Some((write, at));
            break;
        }
        // The thread that submits makes entries of them.
        std::thread::sleep(Duration::from_millis(5));
    }
    let (write, last) = waiting.expect("writes wait once the cache is full");
    assert!(group.replica(0).status().cached <= (1 << 20) + 70_000);
    group.run(write).unwrap().unwrap();
    group.flush(&client);
    assert_eq!(group.images()[0][usize::from(last % 4) * 65536], last);
}

#[test]
fn failed_device_file_ends_the_member() {
    let mut group = Group::new("failed-file", 1);
    group.stop(0);
    let dir = group.member_dir(0);
    let (file, position) = DeviceFile::open(&dir).unwrap();
    let log = MemoryLog::new(&group.wire, 0);
    let config = Config { name: "disk".into(), cache: 8192, timeout: Duration::ZERO };
    let seqno = position.gtid.seqno;
    let replica = Replica::new(log, file, position, config, 1);
    // No position can be saved any more.
    std::fs::create_dir(dir.join("device.state.new")).unwrap();
    let other = Uuid([2; 16]);
    let attach = Entry::Attach { before: 0, peer: "uid 0".into(), promoted: false, token: 1 };
    replica.deliver(seqno + 1, &other, &attach.encode()).unwrap();
    let writes = |number| {
        let runs = vec![Run::data(0, Bytes::from(vec![1; 8192]))];
        Entry::Writes { epoch: 1, number, clock: 0, runs }.encode()
    };
    replica.deliver(seqno + 2, &other, &writes(1)).unwrap();
    let waits = replica.clone();
    let waits = std::thread::spawn(move || waits.deliver(seqno + 3, &other, &writes(2)));
    let fails = replica.clone();
    let fails = std::thread::spawn(move || fails.write_back());
    wait("the thread of the device file ends", || fails.is_finished());
    assert!(fails.join().unwrap().unwrap_err().contains("cannot write the device file"));
    wait("a delivery does not wait for it", || waits.is_finished());
    replica.caught_up();
    let attach = group.runtime.block_on(replica.attach("disk", &CLIENT));
    assert_eq!(attach.unwrap_err().kind, RefusalKind::Shutdown);
}

#[test]
fn primary_goes_on_while_the_device_file_is_full() {
    let mut group = Group::new("full-file", 1);
    group.stop(0);
    let dir = group.member_dir(0);
    let (file, position) = DeviceFile::open(&dir).unwrap();
    let config = Config { name: "disk".into(), cache: 16384, timeout: Duration::ZERO };
    let next = position.gtid.seqno as usize + 1;
    // No thread writes to the device file.
    let replica = Replica::new(MemoryLog::new(&group.wire, 0), file, position, config, 1);
    group.members[0] = Some(Process { replica: replica.clone(), next, threads: Vec::new() });
    let client = group.attach(0, "disk").unwrap();
    // Room for one request is left, which exceeds the cache then.
    group.write(&client, 0, 1, 12288);
    group.flush(&client);
    group.write(&client, 12288, 2, 12288);
    group.flush(&client);
    assert!(replica.status().cached > 16384);
    let seqno = group.wire.committed.lock().unwrap().len() as Seqno;
    let promote = Entry::Promote { before: 1, token: 5 }.encode();
    let deliver = replica.clone();
    let deliver = std::thread::spawn(move || deliver.deliver(seqno, &Uuid([2; 16]), &promote));
    wait("the primary hears of the promotion", || deliver.is_finished());
    assert!(replica.status().session.unwrap().failure.unwrap().contains("n2 was promoted"));
}

#[test]
fn promotion_without_an_answer_ends_nothing() {
    let mut group = Group::new("unanswered", 1);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    let replica = group.replica(0);
    let promote = group.runtime.spawn(async move { replica.promote(true).await });
    wait("the entry is sent", || !group.wire.sent.lock().unwrap().is_empty());
    promote.abort();
    group.wire.sent.lock().unwrap().clear();
    group.flush(&client);
    assert_eq!(group.images()[0][0], 1);
    assert_eq!(group.promote(0, true), Ok(2));
    let attachment = client.0.clone();
    let error = group.run(async move { attachment.flush().await }).unwrap_err();
    assert!(error.text().contains("n1 was promoted in epoch 2"), "{error}");
}

/// A log may take locks of its own for a note, which the thread that reports entries holds, too.
/// Such a flush was once answered, and its writes were void when the promotion came out.
#[test]
fn flush_behind_an_own_promotion_waits_for_it() {
    let mut group = Group::new("behind", 2);
    let client = group.attach(0, "disk").unwrap();
    group.wire.acknowledges.store(true, Ordering::SeqCst);
    let replica = group.replica(0);
    let promoted = group.runtime.spawn(async move { replica.promote(true).await });
    wait("the promotion is sent", || !group.wire.sent.lock().unwrap().is_empty());
    let writer = client.0.clone();
    let flushed = group.runtime.spawn(async move {
        writer.write(0, Bytes::from(vec![2; 4096]), false).await?;
        writer.flush().await
    });
    wait("the entry is sent", || group.wire.sent.lock().unwrap().len() > 1);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!flushed.is_finished());
    for _ in 0..30_000 {
        if promoted.is_finished() && flushed.is_finished() {
            break;
        }
        group.step();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(group.runtime.block_on(promoted).unwrap(), Ok(2));
    assert!(group.runtime.block_on(flushed).unwrap().is_err());
}

#[test]
fn log_is_told_of_a_full_disk_without_the_lock() {
    let mut group = Group::new("full-disk", 1);
    let replica = group.replica(0);
    *group.wire.asks.lock().unwrap() = Some(replica.clone());
    let tries = AtomicI64::new(0);
    let writes = std::thread::spawn(move || {
        replica.until_it_fits(|_| match tries.fetch_add(1, Ordering::SeqCst) {
            0 => Err(std::io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        })
    });
    wait("the write succeeds", || writes.is_finished());
    assert_eq!(writes.join().unwrap(), Ok(()));
    assert_eq!(group.wire.notes.load(Ordering::SeqCst), 2);
    *group.wire.asks.lock().unwrap() = None;
    group.stop(0);
}

/// Random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// After any crash each sector holds its last flushed value or a later one, and all copies are equal.
#[test]
fn random_crashes_lose_no_flushed_write() {
    for seed in 1..=9 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ seed);
        let mut group = Group::new(&format!("random{seed}"), 3);
        group.wire.loses.store([0, 0, 5][seed as usize % 3], Ordering::SeqCst);
        const SECTORS: u64 = 64;
        // Per sector: the last flushed value, and the last written.
        let mut flushed = [0_u32; SECTORS as usize];
        let mut written = [0_u32; SECTORS as usize];
        let mut value = 0;
        let mut name = "disk".to_owned();
        let mut primary = 0;
        for round in 0..6 {
            let client = group.attach(primary, &name).unwrap();
            // Sectors as of the crash before.
            for sector in 0..SECTORS {
                let found = group.read(&client, sector * 512, 512);
                let found = u32::from_le_bytes(found[..4].try_into().unwrap());
                let (low, high) = (flushed[sector as usize], written[sector as usize]);
                assert!(
                    low <= found && found <= high,
                    "seed {seed} round {round}: {low} <= {found} <= {high}"
                );
                (flushed[sector as usize], written[sector as usize]) = (found, found);
            }
            // Values that were read must not go back at the next crash.
            group.flush(&client);
            for _ in 0..40 {
                match random.below(8) {
                    0 => {
                        group.flush(&client);
                        flushed = written;
                    }
                    _ => {
                        let sector = random.below(SECTORS - 4);
                        let count = 1 + random.below(4);
                        value += 1;
                        let mut data = Vec::new();
                        for at in sector..sector + count {
                            let mut bytes = [0; 512];
                            bytes[..4].copy_from_slice(&u32::to_le_bytes(value));
                            data.extend(bytes);
                            written[at as usize] = value;
                        }
                        let fua = random.below(6) == 0;
                        let attachment = client.0.clone();
                        let write = async move { attachment.write(sector * 512, data.into(), fua).await };
                        group.run(write).unwrap();
                        if fua {
                            (sector..sector + count).for_each(|at| flushed[at as usize] = value);
                        }
                    }
                }
            }
            drop(client);
            group.kill(primary);
            // The entries that it had sent may be committed or lost.
            if random.below(2) == 0 {
                group.wire.sent.lock().unwrap().clear();
            }
            group.start(primary);
            if random.below(4) == 0 {
                (0..3).for_each(|at| group.kill(at));
                (0..3).for_each(|at| group.start(at));
            }
            primary = random.below(3) as usize;
            let epoch = group.promote(primary, false).unwrap();
            name = format!("disk@{epoch}");
        }
        let images = group.images();
        assert!(images.iter().all(|image| *image == images[0]), "seed {seed}: copies differ");
    }
}

#[test]
fn founder_of_a_branch_goes_on_and_others_keep_their_copy() {
    let mut group = Group::new("branch", 2);
    let (old, new) = (Uuid([9; 16]), Uuid([10; 16]));
    let replica = group.replica(0);
    let moved = |position: lockstep_core::Gtid| lockstep_core::Gtid { uuid: new, ..position };
    let text = group.replica(1).connected(new, new, |position| position).unwrap_err();
    assert!(text.contains("a branch was founded"), "{text}");
    replica.connected(new, new, moved).unwrap();
    assert!(replica.connected(old, old, |position| position).is_err());
    assert!(replica.connected(new, old, |position| position).unwrap_err().contains("log's id"));
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    group.flush(&client);
    drop(client);
    drop(replica);
    group.stop(0);
    let (_, position) = DeviceFile::open(&group.member_dir(0)).unwrap();
    assert_eq!((position.gtid.uuid, position.log), (new, new));
}

#[test]
fn reply_waits_until_the_copy_has_what_was_committed() {
    let mut group = Group::new("behind", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    group.flush(&client);
    let replica = group.replica(1);
    // The first member's deliveries stand still meanwhile.
    let first = group.members[0].take().unwrap();
    let epoch = group.run(async move { replica.promote(true).await }).unwrap();
    let reader = client.0.clone();
    let mut read = group.runtime.spawn(async move { reader.read(0, 512).await });
    let waited =
        group.runtime.block_on(async { tokio::time::timeout(Duration::from_millis(300), &mut read).await });
    assert!(waited.is_err(), "an answer of a primary that does not know of the promotion");
    group.members[0] = Some(first);
    assert!(group.run(async move { read.await.unwrap() }).is_err(), "epoch {epoch} has begun");
}

#[test]
fn promoted_member_takes_no_client_while_the_one_before_may_answer() {
    let mut group = Group::new("grace", 2);
    group.wire.confirmed_for.store(700, Ordering::SeqCst);
    let began = std::time::Instant::now();
    let epoch = group.promote(1, false).unwrap();
    group.attach(1, &format!("disk@{epoch}")).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
}

#[test]
fn flush_fails_when_leadership_stays_elsewhere() {
    let mut group = Group::new("moved", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    group.flush(&client);
    group.wire.moved.store(true, Ordering::SeqCst);
    // Nothing is refused while nothing waits.
    std::thread::sleep(Duration::from_millis(600));
    group.wire.moved.store(false, Ordering::SeqCst);
    group.write(&client, 0, 2, 512);
    group.flush(&client);
    group.wire.moved.store(true, Ordering::SeqCst);
    group.write(&client, 0, 3, 512);
    // The log takes nothing of this member.
    let flushing = client.0.clone();
    let flush = group.runtime.spawn(async move { flushing.flush().await });
    let failed = group.runtime.block_on(flush).unwrap().unwrap_err();
    assert!(failed.to_string().contains("leadership has moved"), "{failed}");
}

#[test]
fn promotion_is_checked_before_leadership_moves() {
    let mut group = Group::new("dry", 2);
    let client = group.attach(0, "disk").unwrap();
    let replica = group.replica(0);
    let (asked, forced) = (replica.clone(), replica);
    let refused = group.run(async move { asked.may_promote(false).await }).unwrap_err();
    assert!(refused.contains("--force"), "{refused}");
    assert_eq!(group.run(async move { forced.may_promote(true).await }), Ok(()));
    group.write(&client, 0, 1, 512);
    group.flush(&client);
}

/// Compares all copies.
fn verify(group: &mut Group, at: usize) -> Result<Compared, String> {
    let replica = group.replica(at);
    group.run(async move { replica.verify(None, |_| true).await }).map(|(result, _)| result)
}

/// Writes and flushes until it is told to end.
fn keep_writing(group: &Group, client: &Client) -> (Arc<AtomicBool>, tokio::task::JoinHandle<()>) {
    let (client, ends) = (client.0.clone(), Arc::new(AtomicBool::new(false)));
    let until = ends.clone();
    let task = group.runtime.spawn(async move {
        let mut at = 0_u64;
        while !until.load(Ordering::SeqCst) {
            at += 1;
            let data = Bytes::from(at.to_le_bytes().repeat(64 + at as usize % 512));
            client.write(at % 200 * 4096 + at % 7 * 8, data, false).await.unwrap();
            if at.is_multiple_of(3) {
                client.flush().await.unwrap();
            }
        }
    });
    (ends, task)
}

#[test]
fn copies_are_alike_while_a_client_writes() {
    let mut group = Group::new("alike", 3);
    let client = group.attach(0, "disk").unwrap();
    let (ends, task) = keep_writing(&group, &client);
    let end = Instant::now() + Duration::from_secs(30);
    let mut round = 0;
    // Before the first write-back, and after some.
    while round < 12 || (group.replica(0).status().written < 100 && Instant::now() < end) {
        let result = verify(&mut group, round % 3).unwrap();
        assert_eq!((result.bytes, result.copies, result.differences), (SIZE, 3, Vec::new()));
        round += 1;
    }
    ends.store(true, Ordering::SeqCst);
    group.run(async move { task.await.unwrap() });
    assert!(group.replica(0).status().written > 0);
    assert_eq!(group.replica(2).status().compared.unwrap().copies, 3, "every member knows the result");
}

#[test]
fn changed_byte_of_one_copy_is_found_and_its_member_named() {
    let mut group = Group::new("flipped", 3);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 8192);
    group.flush(&client);
    group.images();
    let image = group.member_dir(1).join("device.img");
    let image = std::fs::OpenOptions::new().write(true).open(image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[9], 700_000).unwrap();
    let result = verify(&mut group, 0).unwrap();
    let expected = Difference { offset: 0, length: SIZE, members: vec![Uuid([2; 16])] };
    assert_eq!((result.differing, result.differences.clone()), (SIZE, vec![expected]));
    let text = group.replica(0).result_text(&result).1;
    assert!(text.contains("n2 differs from the others"), "{text}");
    while group.step() {}
    assert_eq!(group.replica(1).status().compared, Some(result));
}

#[test]
fn copy_that_does_not_answer_is_named() {
    let mut group = Group::new("silent", 3);
    group.stop(2);
    let text = verify(&mut group, 0).unwrap_err();
    assert!(text.contains("n3 did not answer"), "{text}");
    group.wire.members.store(1, Ordering::SeqCst);
    assert!(verify(&mut group, 0).unwrap_err().contains("nothing to compare"));
}

#[test]
fn verify_names_the_copies_that_it_left_out() {
    let mut group = Group::new("left-out", 3);
    group.wire.lagging.lock().unwrap().push(3);
    let replica = group.replica(0);
    let (result, left_out) = group.run(async move { replica.verify(None, |_| true).await }).unwrap();
    assert_eq!((result.copies, left_out), (2, vec!["n3".to_owned()]));
}

#[test]
fn lost_steps_and_answers_are_repeated() {
    let mut group = Group::new("repeat", 2);
    group.wire.loses.store(3, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(verify(&mut group, 0).unwrap().differences, []);
    }
}

#[test]
fn two_comparisons_at_once_are_refused() {
    let mut group = Group::new("twice", 2);
    let (first, second) = (group.replica(0), group.replica(0));
    let both = async move {
        let mut first = Box::pin(first.verify(None, |_| true));
        tokio::select! {
            biased;
            _ = &mut first => panic!("the log has not moved"),
            refused = second.verify(None, |_| true) => assert!(refused.unwrap_err().contains("one comparison at a time")),
        }
        first.await
    };
    assert!(group.run(both).is_ok());
}

#[test]
fn snapshot_is_the_state_at_its_position() {
    let mut group = Group::new("image", 2);
    let client = group.attach(0, "disk").unwrap();
    // Of the log alone: the state after each entry.
    let mut states = vec![vec![0; SIZE as usize]];
    let (ends, task) = keep_writing(&group, &client);
    let mut images = Vec::new();
    for round in 0..6 {
        let (replica, to) = (group.replica(round % 2), group.dir.join(format!("image{round}")));
        let snapshot = move || replica.snapshot(&to, |_| true).unwrap();
        let done = group.run(async move { tokio::task::spawn_blocking(snapshot).await.unwrap() });
        images.push((done.position.seqno, std::fs::read(done.path).unwrap()));
    }
    ends.store(true, Ordering::SeqCst);
    group.run(async move { task.await.unwrap() });
    for (origin, payload) in group.wire.committed.lock().unwrap().iter() {
        let mut state = states.last().unwrap().clone();
        if let Entry::Writes { runs, .. } = Entry::decode(payload).unwrap() {
            assert_eq!(origin.0[0], 1);
            for run in runs {
                let Content::Data(bytes) = run.content else { panic!("only data") };
                state[run.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        states.push(state);
        if states.len() > 3000 {
            break;
        }
    }
    for (seqno, image) in images {
        if let Some(state) = states.get(seqno as usize + 1) {
            assert!(*state == image, "the image of {seqno}");
        }
    }
}

#[test]
fn lost_owner_is_replaced_by_one_of_two_members() {
    let mut group = Group::new("takeover", 3);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 512);
    group.flush(&client);
    drop(client);
    group.kill(0);
    group.wire.connected.lock().unwrap().extend([Uuid([2; 16]), Uuid([3; 16])]);
    let after = Duration::from_millis(300);
    let (first, second) = (group.replica(1), group.replica(2));
    let watch = move |replica: Replica<MemoryLog>| async move {
        tokio::time::timeout(Duration::from_secs(2), replica.promote_when_owner_is_gone(after)).await
    };
    let both = async move { tokio::join!(watch(first), watch(second)) };
    let (first, second) = group.run(both);
    let outcomes = [first, second];
    assert_eq!(outcomes.iter().filter(|epoch| **epoch == Ok(Some(2))).count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().any(Result::is_err), "{outcomes:?}");
    assert_eq!(group.replica(1).status().attachments.epoch(), 2);
}

/// The epoch of a promotion by this member itself, once the owner has been gone for a tenth of a second; an error: there is none
/// within a second.
async fn taken_over(replica: Replica<MemoryLog>) -> Result<Option<u64>, tokio::time::error::Elapsed> {
    let after = Duration::from_millis(100);
    tokio::time::timeout(Duration::from_secs(1), replica.promote_when_owner_is_gone(after)).await
}

#[test]
fn nobody_takes_over_without_a_majority_or_leadership() {
    let mut group = Group::new("no-takeover", 2);
    let client = group.attach(0, "disk").unwrap();
    drop(client);
    group.kill(0);
    group.wire.cut.store(true, Ordering::SeqCst);
    let watch = |group: &mut Group| {
        let replica = group.replica(1);
        group.run(taken_over(replica))
    };
    assert!(watch(&mut group).is_err(), "no majority");
    group.wire.cut.store(false, Ordering::SeqCst);
    group.wire.moved.store(true, Ordering::SeqCst);
    assert!(watch(&mut group).is_err(), "only the leader writes");
    group.wire.moved.store(false, Ordering::SeqCst);
    assert_eq!(watch(&mut group), Ok(Some(2)));
}

#[test]
fn promotion_and_attach_without_majority_send_nothing() {
    let mut group = Group::new("no-majority", 2);
    group.wire.cut.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let text = group.promote(1, false).unwrap_err();
    assert!(text.contains("no majority") && text.contains("Nothing was changed"), "{text}");
    let text = group.attach(0, "disk").err().expect("no majority");
    assert!(text.contains("no majority") && text.contains("Nothing was changed"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    group.wire.cut.store(false, Ordering::SeqCst);
    while group.step() {}
    assert_eq!(group.replica(1).status().attachments.epoch(), 0);
    // An acknowledgement does not wait for a promotion that was never sent.
    group.wire.acknowledges.store(true, Ordering::SeqCst);
    let client = group.attach(1, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    group.flush(&client);
}

#[test]
fn restart_without_majority_refuses_clients_with_the_reason() {
    let mut group = Group::new("restart-cut-off", 2);
    group.wire.cut.store(true, Ordering::SeqCst);
    group.kill(0);
    group.start(0);
    let replica = group.replica(0);
    let waits = replica.waits_for().expect("it has not caught up");
    assert!(waits.contains("no majority"), "{waits}");
    let began = Instant::now();
    let text = group.attach(0, "disk").err().expect("no majority");
    assert!(text.contains("no majority"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    // The others work again.
    group.wire.led.store(true, Ordering::SeqCst);
    let waits = replica.waits_for().expect("it has not caught up");
    assert!(waits.contains("has not joined the others yet") && !waits.contains("majority"), "{waits}");
    group.wire.cut.store(false, Ordering::SeqCst);
    group.attach(0, "disk").unwrap();
    assert_eq!(replica.waits_for(), None);
}

#[test]
fn attach_behind_a_leaving_client_without_majority_says_why() {
    let mut group = Group::new("leaving-cut-off", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    group.wire.cut.store(true, Ordering::SeqCst);
    let attachment = Arc::try_unwrap(client.0).unwrap();
    let detach = group.runtime.spawn(async move { attachment.detach().await });
    let replica = group.replica(0);
    wait("the client is leaving", || {
        replica.status().session.is_some_and(|session| session.connections == 0)
    });
    let began = Instant::now();
    let text = group.attach(0, "disk").err().expect("the client before has not left");
    assert!(text.contains("is leaving") && text.contains("no majority"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    group.wire.cut.store(false, Ordering::SeqCst);
    let client = group.attach(0, "disk").unwrap();
    assert_eq!(group.replica(0).status().attachments.epoch(), 2, "the first attachment has ended in order");
    group.detach(client);
    assert!(detach.is_finished());
}

#[test]
fn late_attachment_without_client_ends_in_order() {
    let mut group = Group::new("late-attach", 2);
    let replica = group.replica(0);
    let attach = group
        .runtime
        .spawn(async move { replica.attach("disk", &CLIENT).await.map_err(|refusal| refusal.text) });
    while group.wire.sent.lock().unwrap().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    group.wire.cut.store(true, Ordering::SeqCst);
    let refused = group.run(async move { attach.await.unwrap().err() });
    assert!(refused.is_some_and(|text| text.contains("may still take effect")));
    group.wire.cut.store(false, Ordering::SeqCst);
    // The attach was accepted as epoch 1, and ended.
    let until = Instant::now() + Duration::from_secs(10);
    let ended = |status: &super::replica::ReplicaStatus| {
        status.attachments.epoch() == 1 && *status.attachments.holder() == Holder::Nobody
    };
    while !ended(&group.replica(1).status()) {
        assert!(Instant::now() < until, "{:?}", group.replica(1).status());
        if !group.step() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let client = group.attach(1, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    group.flush(&client);
}

#[test]
fn promotion_fails_soon_once_leadership_has_moved() {
    let mut group = Group::new("moved-meanwhile", 2);
    // The first entry is lost.
    group.wire.loses.store(1, Ordering::SeqCst);
    let replica = group.replica(1);
    let wire = group.wire.clone();
    let promoted = group.run(async move {
        let moves = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            wire.moved.store(true, Ordering::SeqCst);
        };
        tokio::join!(tokio::time::timeout(Duration::from_secs(20), replica.promote(false)), moves).0
    });
    let text = promoted.expect("it ends soon").unwrap_err();
    assert!(text.contains("n2 leads") && text.contains("may still take effect"), "{text}");
}

#[test]
fn restarted_owner_takes_over_from_itself() {
    let mut group = Group::new("itself", 2);
    let client = group.attach(0, "disk").unwrap();
    let replica = group.replica(0);
    assert!(group.run(taken_over(replica)).is_err(), "it knows the attachment");
    drop(client);
    group.kill(0);
    group.start(0);
    while group.step() {}
    let replica = group.replica(0);
    assert_eq!(group.run(taken_over(replica)), Ok(Some(2)));
}

#[test]
fn copy_that_is_not_whole_does_not_take_over() {
    let mut group = Group::new("not-whole", 2);
    let client = group.attach(0, "disk").unwrap();
    drop(client);
    group.kill(0);
    group.replica(1).needs_state();
    let replica = group.replica(1);
    let watched = group.run(taken_over(replica));
    assert!(watched.is_err(), "{watched:?}");
}

#[test]
fn promotion_that_a_restart_forgot_is_repeated() {
    let mut group = Group::new("forgotten", 2);
    assert_eq!(group.promote(0, false), Ok(1));
    let replica = group.replica(0);
    assert!(group.run(taken_over(replica)).is_err(), "this process was asked for it");
    group.kill(0);
    group.start(0);
    while group.step() {}
    let replica = group.replica(0);
    assert_eq!(group.run(taken_over(replica)), Ok(Some(2)));
}

#[test]
fn copy_given_up_without_donor_is_used_after_restart() {
    let mut group = Group::new("given-up", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 4096);
    group.flush(&client);
    group.images();
    group.stop(1);
    let path = group.member_dir(1).join("device.state");
    let before = std::fs::read(&path).unwrap();
    // As the program starts with --resync.
    group.start_at(1, |_| Position::given_up());
    group.replica(1).needs_state();
    // A view of the log. The process ends after a write-back would be due.
    group.replica(1).pass(9);
    std::thread::sleep(Duration::from_millis(1200));
    group.stop(1);
    assert_eq!(std::fs::read(&path).unwrap(), before);
    group.start(1);
    assert!(group.replica(1).is_whole());
    group.write(&client, 4096, 2, 4096);
    group.flush(&client);
    assert_eq!(group.images()[1][..8192], [[1; 4096], [2; 4096]].concat());
}

#[test]
fn step_of_a_comparison_is_answered_before_a_write_back_is_due() {
    let mut group = Group::new("at-once", 2);
    let began = Instant::now();
    for _ in 0..10 {
        assert_eq!(verify(&mut group, 0).unwrap().differences, []);
    }
    // Ten waits for a write-back would take five seconds.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[path = "resync_tests.rs"]
mod resync;
