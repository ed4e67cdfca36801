//! Strangers at the port: one line each, closed, and the members do not notice.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Node, connect, make_ready, noise, numeric, still_talk, until};
use lockstep_net::proto::ProtoConfig;
use lockstep_net::{Bytes, Config, Event};

fn node(hello: &'static str) -> Node {
    Node::with(Config {
        proto: ProtoConfig { handshake_timeout: Duration::from_millis(500), ..ProtoConfig::new("c") },
        ..Config::new("c", Bytes::from_static(hello.as_bytes()), 3)
    })
}

fn closed(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    !matches!(stream.read(&mut [0; 100]), Ok(n) if n > 0)
}

#[test]
fn each_kind_is_named_and_dropped() {
    let (mut a, mut b) = (node("alpha"), node("beta"));
    let (ca, cb) = connect(&mut a, &mut b);
    let at = a.listen();
    let hello_of_nobody = {
        let mut hello = b"LOCKSTEP\r\n\r\n\x01\x00\x01\x00".to_vec();
        hello.extend(u32::MAX.to_le_bytes());
        hello.extend([0; 4]);
        hello
    };
    for (bytes, expected) in [
        (&b"\x9c\x00\x1f\xff random \x80\x81\x82 bytes"[..], "first bytes are"),
        (b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP client"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS client"),
        (&hello_of_nobody, "at most"),
        (b"", "sent nothing in time"),
        (b"LOCKST", "first bytes are 'LOCKST'"),
    ] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(bytes).unwrap();
        let what = until(&mut [&mut a, &mut b], expected, |n| n[0].take(noise));
        assert!(what.contains(expected), "{what}");
        assert!(!what.contains(['\n', '\x1b']));
        assert!(closed(&mut stream), "{expected}");
        still_talk(&mut a, ca, &mut b, cb);
        // The limit on reports is another test's.
        std::thread::sleep(Duration::from_millis(300));
    }
    drop(TcpStream::connect(at).unwrap());
    let what = until(&mut [&mut a, &mut b], "left", |n| n[0].take(noise));
    assert!(what.contains("disconnected without sending anything"), "{what}");
    assert!(a.events.is_empty() && b.events.is_empty(), "{:?} {:?}", a.events, b.events);
}

#[test]
fn slow_drip_of_bytes_ends_at_the_timeout() {
    let (mut a, mut b) = (node("alpha"), node("beta"));
    let at = a.listen();
    let mut stream = TcpStream::connect(at).unwrap();
    let begun = Instant::now();
    let mut bytes =
        b"LOCKSTEP\r\n\r\n\x01\x00\x01\x00\x00\x80\x00\x00xxxx".iter().copied().chain(std::iter::repeat(7));
    until(&mut [&mut a, &mut b], "noise", |n| {
        let _ = stream.write_all(&[bytes.next().unwrap()]);
        std::thread::sleep(Duration::from_millis(5));
        n[0].take(noise)
    });
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(450) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn flood_of_silent_connections_does_not_block_members() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let at = a.listen();
    // Three seconds each may stay: only the limit on their number makes room.
    let mut flood: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
    for _ in 0..20 {
        a.poll();
    }
    b.reactor.keep(&numeric(at));
    flood.extend((0..50).map(|_| TcpStream::connect(at).unwrap()));
    let begun = Instant::now();
    let (ca, cb) = make_ready(&mut a, &mut b);
    assert!(begun.elapsed() < Duration::from_secs(2));
    still_talk(&mut a, ca, &mut b, cb);
    let lines = a.events.iter().filter(|e| matches!(e, Event::Noise { .. })).count();
    assert!((1..=8).contains(&lines), "{lines} lines about one flood");
}

#[test]
fn repeated_sender_is_logged_once() {
    let mut a = node("alpha");
    let at = a.listen();
    for _ in 0..40 {
        TcpStream::connect(at).unwrap().write_all(b"junk junk junk junk").unwrap();
        a.poll();
    }
    let end = Instant::now() + Duration::from_millis(2300);
    while Instant::now() < end {
        a.poll();
    }
    TcpStream::connect(at).unwrap().write_all(b"junk junk junk junk").unwrap();
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        a.poll();
    }
    let reports = a.events.iter().filter(|e| matches!(e, Event::Noise { .. })).count();
    assert_eq!(reports, 1);
}
