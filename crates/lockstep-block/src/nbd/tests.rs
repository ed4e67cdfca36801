//! Tests of whole connections, by a small client.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Buf;
use proptest::prelude::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::{End, Limits, Transmission};
use super::handshake::tests::{flags, info_data, modern, option};
use super::memory::Memory;
use super::reply::Output;
use super::request::tests::request;
use super::request::{Decoder, Rules};
use super::status::Counters;
use super::wire::{CHUNK, SIMPLE_REPLY, command, option as number};
use super::{Listen, Places, Server, ServerConfig};
use crate::{Description, Export, Peer};

const SIZE: u64 = 1 << 20;
/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

struct Client<S> {
    stream: S,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn read(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        timeout(LONG, self.stream.read_exact(&mut bytes)).await.expect("a reply in time")?;
        Ok(bytes)
    }

    /// The error number and cookie of a simple reply without data.
    async fn simple(&mut self) -> (u32, u64) {
        let bytes = self.read(16).await.unwrap();
        let mut reply = &bytes[..];
        assert_eq!(reply.get_u32(), SIMPLE_REPLY);
        (reply.get_u32(), reply.get_u64())
    }

    /// Simple replies to these requests, in any order.
    async fn expect_successes(&mut self, cookies: std::ops::Range<u64>) {
        let mut answered = Vec::new();
        for _ in cookies.clone() {
            let (errno, cookie) = self.simple().await;
            assert_eq!(errno, 0);
            answered.push(cookie);
        }
        answered.sort_unstable();
        assert_eq!(answered, cookies.collect::<Vec<_>>());
    }

    /// Type, cookie and payload of a reply in one chunk.
    async fn chunk(&mut self) -> (u16, u64, Vec<u8>) {
        let bytes = self.read(20).await.unwrap();
        let mut header = &bytes[..];
        assert_eq!(header.get_u32(), CHUNK);
        assert_eq!(header.get_u16(), 1, "the only chunk");
        let (kind, cookie, length) = (header.get_u16(), header.get_u64(), header.get_u32());
        (kind, cookie, self.read(length as usize).await.unwrap())
    }

    /// Whether the server has closed the connection, and sends nothing more.
    async fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match timeout(LONG, self.stream.read_to_end(&mut rest)).await.expect("the end in time") {
            Ok(_) => rest.is_empty(),
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    async fn write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        self.send(&request(0, command::WRITE, cookie, offset, data.len() as u32)).await;
        self.send(data).await;
    }

    /// Makes a handshake for the default export by `NBD_OPT_EXPORT_NAME`: replies are simple.
    async fn attach(&mut self) {
        self.send(&[flags(3), option(number::EXPORT_NAME, b"")].concat()).await;
        assert_eq!(self.read(18 + 10).await.unwrap()[18..26], SIZE.to_be_bytes());
    }
}

/// A connection in its transmission phase without a server.
struct Bench {
    device: Memory,
    client: Client<DuplexStream>,
    stop: CancellationToken,
    total: Arc<Semaphore>,
    end: JoinHandle<End>,
}

impl Bench {
    async fn new(structured: bool, limits: Limits, total: usize) -> Bench {
        let device = Memory::new("disk", Description::new(SIZE));
        let (near, far) = duplex(64 << 10);
        let attachment = device.attach("disk", &Peer::Uid(0)).await.unwrap();
        let rules = Rules::new(&device.description, structured, structured);
        let state =
            (Decoder::new(rules, bytes::BytesMut::new()), Output::new(structured, bytes::BytesMut::new()));
        let counters = Arc::new(Counters::new("test".into(), Arc::new(|_| {})));
        let (total, stop) = (Arc::new(Semaphore::new(total)), CancellationToken::new());
        let connection = Transmission::new(far, attachment, state, limits, total.clone(), counters);
        let end = tokio::spawn(connection.run(stop.clone()));
        Bench { device, client: Client { stream: near }, stop, total, end }
    }

    async fn end(self) -> End {
        drop(self.client);
        timeout(LONG, self.end).await.expect("an end in time").unwrap()
    }
}

fn limits() -> Limits {
    Limits { requests: 16, bytes: 1 << 20, stall: Duration::from_secs(20) }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn written_bytes_are_read_and_disconnect_detaches() {
    let mut bench = Bench::new(true, limits(), 1 << 20).await;
    let client = &mut bench.client;
    client.write(1, 1000, b"hello").await;
    assert_eq!(client.simple().await, (0, 1));
    client.send(&request(0, command::READ, 2, 998, 8)).await;
    let data = [&998u64.to_be_bytes()[..], b"\0\0hello\0"].concat();
    assert_eq!(client.chunk().await, (1, 2, data));
    client.send(&request(0, command::BLOCK_STATUS, 3, 0, 8192)).await;
    let status = [0u32, 1, 4096, 0, 4096, 3].map(u32::to_be_bytes).concat();
    assert_eq!(client.chunk().await, (5, 3, status[4..].to_vec()));
    client.send(&request(0, command::FLUSH, 4, 0, 0)).await;
    assert_eq!(client.simple().await, (0, 4));
    client.send(&request(0, command::DISCONNECT, 5, 0, 0)).await;
    assert!(client.is_closed().await);
    let device = bench.device.clone();
    assert!(matches!(bench.end().await, End::Left));
    assert_eq!(device.detached.load(Relaxed), 1);
    assert_eq!((device.lost.load(Relaxed), device.flushes.load(Relaxed)), (0, 1));
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn refused_and_failed_requests_leave_the_connection_usable() {
    let mut bench = Bench::new(false, limits(), 1 << 20).await;
    let client = &mut bench.client;
    client.send(&request(0, command::READ, 1, SIZE, 1)).await;
    assert_eq!(client.simple().await, (22, 1));
    client.write(2, SIZE - 1, b"xy").await;
    assert_eq!(client.simple().await, (28, 2));
    bench.device.fails.store(true, Relaxed);
    client.write(3, 0, b"xy").await;
    assert_eq!(client.simple().await, (5, 3));
    bench.device.fails.store(false, Relaxed);
    client.send(&request(0, command::CACHE, 4, 0, 512)).await;
    assert_eq!(client.simple().await, (0, 4));
    client.send(&request(0, command::READ, 5, 0, 2)).await;
    assert_eq!(client.simple().await, (0, 5));
    assert_eq!(client.read(2).await.unwrap(), [0, 0], "no refused or failed write");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn disconnect_waits_for_requests_in_flight() {
    let mut bench = Bench::new(false, limits(), 1 << 20).await;
    bench.device.hold(true);
    bench.client.write(1, 0, b"x").await;
    bench.client.send(&request(0, command::DISCONNECT, 2, 0, 0)).await;
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert_eq!(bench.device.detached.load(Relaxed), 0);
    bench.device.hold(false);
    assert_eq!(bench.client.simple().await, (0, 1));
    assert!(bench.client.is_closed().await);
    let device = bench.device.clone();
    assert!(matches!(bench.end().await, End::Left));
    assert_eq!(device.detached.load(Relaxed), 1);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn stop_answers_requests_in_flight_and_does_not_detach() {
    let mut bench = Bench::new(false, limits(), 1 << 20).await;
    bench.device.hold(true);
    for cookie in 0..3 {
        bench.client.write(cookie, 0, b"x").await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.stop.cancel();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // This request comes too late.
    bench.client.write(9, 100, b"x").await;
    bench.device.hold(false);
    bench.client.expect_successes(0..3).await;
    assert!(bench.client.is_closed().await);
    let device = bench.device.clone();
    assert!(matches!(bench.end().await, End::Stopped));
    assert_eq!((device.detached.load(Relaxed), device.lost.load(Relaxed)), (0, 1));
    assert_eq!(device.content()[100], 0);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn lost_connection_drops_its_requests_and_memory() {
    let mut bench = Bench::new(false, limits(), 1 << 20).await;
    bench.device.hold(true);
    bench.client.write(1, 0, &[1; 1000]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.total.available_permits(), (1 << 20) - 1000);
    let (device, total) = (bench.device.clone(), bench.total.clone());
    assert!(matches!(bench.end().await, End::Lost(_)));
    assert_eq!((device.detached.load(Relaxed), device.lost.load(Relaxed)), (0, 1));
    assert_eq!(total.available_permits(), 1 << 20);
    assert_eq!(device.content()[0], 0, "the write did not take effect later");
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn requests_in_flight_are_bounded() {
    let mut bench = Bench::new(false, Limits { requests: 3, ..limits() }, 1 << 20).await;
    bench.device.hold(true);
    for cookie in 0..5 {
        bench.client.write(cookie, 0, &[1; 100]).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bench.total.available_permits(), (1 << 20) - 300);
    bench.device.hold(false);
    bench.client.expect_successes(0..5).await;
    bench.client.send(&request(0, command::FLUSH, 9, 0, 0)).await;
    assert_eq!(bench.client.simple().await, (0, 9));
    assert_eq!(bench.total.available_permits(), 1 << 20);
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn bytes_in_flight_are_bounded_for_one_connection_and_for_all() {
    for (own, total) in [(2500, 1 << 20), (1 << 20, 2500)] {
        let mut bench = Bench::new(false, Limits { bytes: own, ..limits() }, total).await;
        bench.device.hold(true);
        for cookie in 0..5 {
            bench.client.write(cookie, 0, &[1; 1000]).await;
        }
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert_eq!(total - bench.total.available_permits().min(total), if own == 2500 { 2000 } else { 2500 });
        bench.device.hold(false);
        bench.client.expect_successes(0..5).await;
    }
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn single_request_may_exceed_the_bytes_of_its_connection() {
    let mut bench = Bench::new(false, Limits { bytes: 10, ..limits() }, 1 << 20).await;
    bench.client.write(1, 0, &[1; 1000]).await;
    assert_eq!(bench.client.simple().await, (0, 1));
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn client_that_stops_inside_a_request_is_dropped() {
    let mut bench = Bench::new(false, limits(), 1 << 20).await;
    bench.client.send(&request(0, command::FLUSH, 1, 0, 0)).await;
    assert_eq!(bench.client.simple().await, (0, 1));
    tokio::time::sleep(Duration::from_secs(10_000)).await;
    assert!(!bench.end.is_finished(), "a client without requests may be idle");
    bench.client.send(&request(0, command::WRITE, 2, 0, 100)).await;
    let before = Instant::now();
    assert!(bench.client.is_closed().await);
    assert!((20..=30).contains(&before.elapsed().as_secs()), "{:?}", before.elapsed());
    assert!(matches!(bench.end().await, End::Lost(why) if why.contains("no more of its request")));
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn client_that_takes_no_replies_is_dropped() {
    let bench = Bench::new(false, limits(), 1 << 20).await;
    let Bench { mut client, end, .. } = bench;
    client.send(&request(0, command::READ, 2, 0, 500_000)).await;
    let end = timeout(Duration::from_secs(60), end).await.expect("an end in time").unwrap();
    assert!(matches!(end, End::Lost(why) if why.contains("takes no replies")));
}

#[tokio::test(flavor = "current_thread", start_paused = true)]
async fn slow_device_does_not_drop_its_client() {
    let mut bench = Bench::new(false, Limits { requests: 1, ..limits() }, 1 << 20).await;
    bench.device.hold(true);
    bench.client.write(1, 0, &[1; 1000]).await;
    bench.client.write(2, 0, &[1; 1000]).await;
    tokio::time::sleep(Duration::from_secs(10_000)).await;
    bench.device.hold(false);
    bench.client.expect_successes(1..3).await;
}

/// A server at a Unix socket; its folder goes away with the test.
struct Lab {
    folder: std::path::PathBuf,
    device: Memory,
    server: Option<Server>,
}

impl Lab {
    async fn new(name: &str, change: impl FnOnce(&mut ServerConfig)) -> Lab {
        let folder = std::env::temp_dir().join(format!("lockstep-nbd-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let device = Memory::new("disk", Description::new(SIZE));
        let mut config = ServerConfig::default();
        change(&mut config);
        let places = Places::take(&[Listen::Unix { path: folder.join("socket"), mode: 0o600 }]).unwrap();
        let server = Server::start(config, places, device.clone()).unwrap();
        Lab { folder, device, server: Some(server) }
    }

    async fn connect(&self) -> Client<UnixStream> {
        Client { stream: UnixStream::connect(self.folder.join("socket")).await.unwrap() }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[tokio::test]
async fn server_lists_its_connections_and_stops() {
    let mut lab = Lab::new("stop", |_| {}).await;
    let mut client = lab.connect().await;
    client.attach().await;
    client.write(1, 0, b"hello").await;
    assert_eq!(client.simple().await, (0, 1));
    let server = lab.server.take().unwrap();
    let connections = server.connections().clone();
    let [one] = &connections.list()[..] else { panic!("{:?}", connections.list()) };
    assert!(matches!(one.peer, Peer::Uid(_)));
    assert_eq!(one.export.as_deref(), Some(""));
    assert_eq!((one.requests, one.written_bytes, one.errors, one.encrypted), (1, 5, 0, false));
    timeout(LONG, server.stop()).await.expect("a stop in time");
    assert!(client.is_closed().await);
    assert_eq!(connections.list(), []);
    assert!(!lab.folder.join("socket").exists());
}

#[tokio::test]
async fn stop_does_not_wait_for_a_device_for_ever() {
    let mut lab = Lab::new("hang", |config| config.stop_timeout = Duration::from_millis(200)).await;
    let mut client = lab.connect().await;
    client.attach().await;
    lab.device.hold(true);
    client.write(1, 0, b"hello").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    timeout(LONG, lab.server.take().unwrap().stop()).await.expect("a stop in time");
    assert!(client.is_closed().await);
    assert_eq!(lab.device.lost.load(Relaxed), 1);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed() {
    let lab = Lab::new("many", |config| config.max_connections = 2).await;
    let (mut one, mut two) = (lab.connect().await, lab.connect().await);
    one.attach().await;
    two.attach().await;
    assert!(lab.connect().await.is_closed().await);
    drop(one);
    // The server notices the lost connection soon, not at once.
    let mut tries = 0..600;
    while tries.next().is_some() {
        let mut three = lab.connect().await;
        if three.read(18).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!tries.is_empty(), "a place is free again");
}

#[tokio::test]
async fn handshake_that_takes_too_long_is_ended() {
    let lab = Lab::new("slow", |config| config.handshake_timeout = Duration::from_millis(200)).await;
    let mut client = lab.connect().await;
    client.send(&[flags(3), option(number::LIST, b"")].concat()).await;
    client.read(18 + 20).await.unwrap();
    let mut rest = Vec::new();
    timeout(LONG, client.stream.read_to_end(&mut rest)).await.expect("an end in time").unwrap();
    assert!(rest.len() < 100);
}

#[tokio::test]
async fn requests_may_follow_the_handshake_at_once() {
    let lab = Lab::new("eager", |_| {}).await;
    let mut client = lab.connect().await;
    let mut bytes = modern();
    bytes.extend(request(0, command::READ, 7, 0, 16));
    client.send(&bytes).await;
    // The greeting; three replies of SET_META_CONTEXT and STRUCTURED_REPLY; five of GO.
    let replies = 18 + 20 + (20 + 19) + 20 + (20 + 12) + (20 + 6) + (20 + 14) + 20;
    client.read(replies).await.unwrap();
    assert_eq!(client.chunk().await, (1, 7, vec![0; 24]));
}

#[tokio::test]
async fn refused_export_is_logged_and_go_may_be_repeated() {
    let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = lines.clone();
    let lab = Lab::new("refuse", |config| {
        config.log = Arc::new(move |line| log.lock().unwrap().push(line.to_owned()));
    })
    .await;
    let mut client = lab.connect().await;
    let go = |name| option(number::GO, &info_data(name, &[]));
    client.send(&[flags(3), go("other")].concat()).await;
    client.read(18 + 20).await.unwrap();
    client.read("no export is named \"other\"".len()).await.unwrap();
    client.send(&go("disk")).await;
    client.read(20 + 12 + 20 + 14 + 20).await.unwrap();
    client.send(&request(0, command::FLUSH, 1, 0, 0)).await;
    assert_eq!(client.simple().await, (0, 1));
}

/// A request of the model below: its command, its range, and the byte that a write fills it with.
#[derive(Clone, Copy, Debug)]
struct Step {
    command: u16,
    offset: u64,
    length: u32,
    fill: u8,
}

fn any_step() -> impl Strategy<Value = Step> {
    let command = prop_oneof![
        Just(command::READ),
        Just(command::WRITE),
        Just(command::WRITE_ZEROES),
        Just(command::TRIM),
        Just(command::FLUSH)
    ];
    let length = prop_oneof![1u32..5000, 1u32..200_000];
    // Some ranges end beyond the device.
    (command, 0..SIZE, length, any::<u8>()).prop_map(|(command, offset, length, fill)| {
        let flush = command == command::FLUSH;
        let (offset, length) = if flush { (0, 0) } else { (offset, length) };
        Step { command, offset, length, fill }
    })
}

/// The model of a disk: applies a request, and returns the expected reply.
fn expected(disk: &mut [u8], step: Step) -> Result<Vec<u8>, ()> {
    let (start, end) = (step.offset as usize, step.offset as usize + step.length as usize);
    let Some(range) = disk.get_mut(start..end) else { return Err(()) };
    match step.command {
        command::READ => return Ok(range.to_vec()),
        command::WRITE => range.fill(step.fill),
        command::WRITE_ZEROES | command::TRIM => range.fill(0),
        _ => {}
    }
    Ok(Vec::new())
}

/// Sends all requests at once, in parts of this size, and compares replies and content with the model.
async fn run_against_model(steps: &[Step], structured: bool, part: usize, limits: Limits) {
    let bench = Bench::new(structured, limits, 1 << 20).await;
    let mut bytes = Vec::new();
    for (cookie, step) in steps.iter().enumerate() {
        bytes.extend(request(0, step.command, cookie as u64, step.offset, step.length));
        if step.command == command::WRITE {
            bytes.resize(bytes.len() + step.length as usize, step.fill);
        }
    }
    let Bench { device, client, end, .. } = bench;
    let (read, mut write) = tokio::io::split(client.stream);
    let mut client = Client { stream: tokio::io::join(read, tokio::io::sink()) };
    let sender = async {
        for part in bytes.chunks(part) {
            write.write_all(part).await.unwrap();
        }
    };
    let mut disk = vec![0; SIZE as usize];
    let receiver = async {
        // This device answers at once, so that replies have the order of the requests.
        for (cookie, step) in steps.iter().enumerate() {
            let cookie = cookie as u64;
            let reply = expected(&mut disk, *step);
            match reply {
                Ok(data) if structured && step.command == command::READ => {
                    let (kind, from, payload) = client.chunk().await;
                    assert_eq!((kind, from), (1, cookie));
                    assert_eq!(payload[..8], step.offset.to_be_bytes());
                    assert!(payload[8..] == data);
                }
                Ok(data) => {
                    assert_eq!(client.simple().await, (0, cookie));
                    assert!(client.read(data.len()).await.unwrap() == data);
                }
                Err(()) if structured => {
                    let (kind, from, _) = client.chunk().await;
                    assert_eq!((kind, from), ((1 << 15) | 1, cookie));
                }
                Err(()) => {
                    let (errno, from) = client.simple().await;
                    assert!(errno != 0 && from == cookie);
                }
            }
        }
    };
    tokio::join!(sender, receiver);
    assert!(device.content() == disk);
    drop((client, write));
    timeout(LONG, end).await.expect("an end in time").unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn replies_and_content_agree_with_a_model(
        steps in proptest::collection::vec(any_step(), 1..40),
        structured in any::<bool>(),
        part in prop_oneof![1usize..100, 1000usize..100_000],
        requests in 1usize..10,
        bytes in 1u64..1_000_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let limits = Limits { requests, bytes, ..limits() };
        runtime.block_on(run_against_model(&steps, structured, part, limits));
    }

    #[test]
    fn random_bytes_end_a_connection_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..5000),
        structured in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new(structured, limits(), 1 << 20).await;
            // The server may have closed the connection.
            let _ = bench.client.stream.write_all(&bytes).await;
            let (device, total) = (bench.device.clone(), bench.total.clone());
            bench.end().await;
            assert_eq!(total.available_permits(), 1 << 20);
            assert_eq!(device.lost.load(Relaxed), 1);
        });
    }
}
