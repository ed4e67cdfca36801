//! The status service over real sockets.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Node, connect, still_talk, until};
use lockstep_net::{Address, Bytes, Config, Event, ListenError, Method, StatusRequest};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("ls-net-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("lockstep.sock")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn request(e: &Event) -> Option<StatusRequest> {
    match e {
        Event::Request(r) => Some(r.clone()),
        _ => None,
    }
}

/// Sends `text` from a thread, as a client would, and returns the answer.
fn ask(mut stream: impl Read + Write + Send + 'static, text: &str) -> std::thread::JoinHandle<String> {
    let text = text.to_owned();
    std::thread::spawn(move || {
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
}

fn unix(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn tcp(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn finish(node: &mut Node, thread: std::thread::JoinHandle<String>) -> String {
    until(&mut [node], "the answer", |_| thread.is_finished().then_some(()));
    thread.join().unwrap()
}

#[test]
fn read_on_both_and_command_on_the_socket_only() {
    let dir = Dir::new("both");
    let mut a = Node::new("c", "alpha");
    a.reactor.serve_unix(&dir.socket()).unwrap();
    let at = a.reactor.serve_tcp(&Address::parse("127.0.0.1:0", 0).unwrap()).unwrap()[0];
    let mode = std::fs::symlink_metadata(dir.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    for local in [true, false] {
        let text = "GET /status?full=1 HTTP/1.1\r\nHost: x\r\n\r\n";
        let client = if local { ask(unix(&dir.socket()), text) } else { ask(tcp(at), text) };
        let r = until(&mut [&mut a], "request", |n| n[0].take(request));
        let seen = (r.method, r.path.as_str(), r.query.as_str(), r.local);
        assert_eq!(seen, (Method::Get, "/status", "full=1", local));
        // Larger than any socket buffer.
        let body = "x".repeat(8_000_000);
        a.reactor.respond(r.conn, 200, "application/json", body.clone());
        let answer = finish(&mut a, client);
        let (head, got) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8000000")
        );
        assert!(got == body);
    }

    let command = "POST /command HTTP/1.0\r\nContent-Length: 13\r\n\r\n{\"do\":\"sing\"}";
    let client = ask(unix(&dir.socket()), command);
    let r = until(&mut [&mut a], "command", |n| n[0].take(request));
    assert_eq!((r.method, &r.body[..], r.local), (Method::Post, &b"{\"do\":\"sing\"}"[..], true));
    a.reactor.respond(r.conn, 409, "application/json", Bytes::from_static(b"{}"));
    // A second answer has nobody to go to.
    a.reactor.respond(r.conn, 200, "application/json", Bytes::from_static(b"no"));
    assert!(finish(&mut a, client).ends_with("\r\n\r\n{}"));

    let client = ask(tcp(at), command);
    let answer = finish(&mut a, client);
    assert!(answer.starts_with("HTTP/1.0 403 ") && answer.contains("Unix socket"), "{answer}");
    assert!(a.events.is_empty(), "{:?}", a.events);

    // HEAD is a GET whose answer has no body; a client may close its sending side before it gets it.
    let stream = tcp(at);
    (&stream).write_all(b"HEAD /metrics HTTP/1.0\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let r = until(&mut [&mut a], "head", |n| n[0].take(request));
    a.reactor.respond(r.conn, 200, "text/plain", Bytes::from_static(b"metrics"));
    let client = ask(stream, "");
    let answer = finish(&mut a, client);
    assert!(answer.contains("Content-Length: 7") && answer.ends_with("\r\n\r\n"), "{answer}");
}

/// As where a process that stood still wakes up after the one that gave it a command has given up.
#[test]
fn command_is_dropped_when_its_client_hangs_up() {
    let dir = Dir::new("gone");
    let mut a = Node::new("c", "alpha");
    a.reactor.serve_unix(&dir.socket()).unwrap();
    let give = |stream: &UnixStream, body: &str| {
        let (mut stream, len) = (stream, body.len());
        stream
            .write_all(format!("POST /command HTTP/1.0\r\nContent-Length: {len}\r\n\r\n{body}").as_bytes())
            .unwrap();
    };
    let gone = unix(&dir.socket());
    give(&gone, "late");
    drop(gone);
    // One that has said all that it has to say listens still.
    let there = unix(&dir.socket());
    give(&there, "now");
    there.shutdown(Shutdown::Write).unwrap();
    let r = until(&mut [&mut a], "command", |n| n[0].take(request));
    assert_eq!(&r.body[..], b"now");
    a.reactor.respond(r.conn, 200, "text/plain", Bytes::from_static(b"done"));
    let client = ask(there, "");
    assert!(finish(&mut a, client).ends_with("done"));
    assert!(!a.events.iter().any(|e| request(e).is_some()), "{:?}", a.events);
}

#[test]
fn nonsense_and_excess_get_an_answer() {
    let dir = Dir::new("nonsense");
    let mut a = Node::new("c", "alpha");
    a.reactor.serve_unix(&dir.socket()).unwrap();
    for (text, status) in [
        ("hello\n\n".to_owned(), "400"),
        ("POST /command HTTP/1.0\r\nContent-Length: 9999999\r\n\r\n".to_owned(), "413"),
        (format!("GET /{} HTTP/1.0\r\n\r\n", "x".repeat(20_000)), "431"),
        ("BREW /coffee HTTP/1.0\r\n\r\n".to_owned(), "405"),
    ] {
        let client = ask(unix(&dir.socket()), &text);
        let answer = finish(&mut a, client);
        assert!(answer.starts_with(&format!("HTTP/1.0 {status} ")), "{answer}");
    }
    assert!(a.events.is_empty());
}

#[test]
fn slow_clients_are_dropped_and_disturb_nobody() {
    let dir = Dir::new("slow");
    let cfg = Config {
        status_timeout: Duration::from_millis(300),
        status_max: 8,
        ..Config::new("c", Bytes::from_static(b"alpha"), 1)
    };
    let (mut a, mut b) = (Node::with(cfg), Node::new("c", "beta"));
    let (ca, cb) = connect(&mut a, &mut b);
    a.reactor.serve_unix(&dir.socket()).unwrap();
    // One that never asks, one that asks half, one that does not read, and more of them than there is room for.
    let silent = unix(&dir.socket());
    let half = unix(&dir.socket());
    (&half).write_all(b"GET /status HT").unwrap();
    let mut deaf = unix(&dir.socket());
    deaf.write_all(b"GET /status HTTP/1.0\r\n\r\n").unwrap();
    let r = until(&mut [&mut a, &mut b], "request", |n| n[0].take(request));
    a.reactor.respond(r.conn, 200, "text/plain", vec![b'x'; 4 << 20]);
    let more: Vec<UnixStream> = (0..20).map(|_| unix(&dir.socket())).collect();
    let client = ask(unix(&dir.socket()), "GET /status HTTP/1.0\r\n\r\n");
    let r = until(&mut [&mut a, &mut b], "request of one that behaves", |n| n[0].take(request));
    a.reactor.respond(r.conn, 200, "text/plain", "fine");
    assert!(finish(&mut a, client).ends_with("fine"));
    let end = Instant::now() + Duration::from_millis(900);
    while Instant::now() < end {
        a.poll();
        b.poll();
    }
    let rest = |mut s: UnixStream| {
        let mut out = Vec::new();
        let _ = s.read_to_end(&mut out);
        out
    };
    let got = rest(deaf);
    assert!(!got.is_empty() && got.len() < 4 << 20, "{} bytes for one that did not read", got.len());
    assert!(rest(silent).is_empty());
    let answer = rest(half);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.0 408"), "evicted, or told that it is late");
    drop(more);
    still_talk(&mut a, ca, &mut b, cb);
}

#[test]
fn unix_socket_is_recreated_when_it_vanishes() {
    let dir = Dir::new("vanish");
    let mut a = Node::new("c", "alpha");
    a.reactor.serve_unix(&dir.socket()).unwrap();
    assert!(!a.reactor.ensure_socket().unwrap());
    for _ in 0..3 {
        std::fs::remove_file(dir.socket()).unwrap();
        assert!(a.reactor.ensure_socket().unwrap());
        assert!(!a.reactor.ensure_socket().unwrap());
        let client = ask(unix(&dir.socket()), "GET /status HTTP/1.0\r\n\r\n");
        let r = until(&mut [&mut a], "request", |n| n[0].take(request));
        a.reactor.respond(r.conn, 200, "text/plain", "here");
        assert!(finish(&mut a, client).ends_with("here"));
    }
    // Its directory is gone for a while.
    std::fs::remove_dir_all(&dir.0).unwrap();
    assert!(matches!(a.reactor.ensure_socket(), Err(ListenError::Io(..))));
    std::fs::create_dir_all(&dir.0).unwrap();
    assert!(a.reactor.ensure_socket().unwrap());
    // With the reactor it goes.
    drop(a);
    assert!(!dir.socket().exists());
}

#[test]
fn file_in_the_way_of_the_socket_is_recognised() {
    let dir = Dir::new("way");
    let mut a = Node::new("c", "alpha");
    // A file that is not ours to delete.
    std::fs::write(dir.socket(), "precious").unwrap();
    let e = a.reactor.serve_unix(&dir.socket()).unwrap_err();
    assert!(matches!(e, ListenError::NotASocket(_)), "{e}");
    assert_eq!(std::fs::read_to_string(dir.socket()).unwrap(), "precious");
    std::fs::remove_file(dir.socket()).unwrap();
    // A socket that somebody serves.
    let other = UnixListener::bind(dir.socket()).unwrap();
    let e = a.reactor.serve_unix(&dir.socket()).unwrap_err();
    assert!(matches!(e, ListenError::InUse(_)), "{e}");
    // One that was left behind by a process that was killed.
    drop(other);
    assert!(dir.socket().exists());
    a.reactor.serve_unix(&dir.socket()).unwrap();
    // A path that no socket can have.
    let long = dir.0.join("d".repeat(120));
    let e = a.reactor.serve_unix(&long).unwrap_err();
    assert!(e.to_string().contains("107") && e.to_string().contains("shorter"), "{e}");
    // The longest that one can.
    let fits = dir.0.join("s".repeat(107 - dir.0.as_os_str().len() - 1));
    a.reactor.serve_unix(&fits).unwrap();
    assert!(fits.exists() && !dir.socket().exists(), "the old one is gone");
}
