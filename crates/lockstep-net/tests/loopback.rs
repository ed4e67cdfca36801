//! Reactors talking over real sockets on ephemeral ports.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Node, connect, dial_failed, down, frame, make_ready, numeric, ready, still_talk, until, up};
use lockstep_net::proto::{ConnEvent, Connection, ProtoConfig, Role, VERSIONS};
use lockstep_net::{Address, Bytes, Config, DialError, DownReason, ListenError, Reason, SendError};

#[test]
fn frames_of_all_sizes_arrive_in_order() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let (ca, _) = connect(&mut a, &mut b);
    let big = Bytes::from((0..20_000_000u32).map(|i| (i * 7) as u8).collect::<Vec<u8>>());
    let sizes = [0usize, 1, 11, 12, 13, 4096, 70_000, 1, 20_000_000, 5, 262_144, 3];
    for (i, &size) in sizes.iter().enumerate() {
        let half = size / 2;
        a.reactor.send(ca, i as u8, &[big.slice(..half), big.slice(half..size)]).unwrap();
    }
    a.reactor.flush();
    let mut got = 0;
    until(&mut [&mut a, &mut b], "all frames", |n| {
        while let Some((kind, payload)) = n[1].take(frame) {
            assert_eq!(usize::from(kind), got);
            assert!(payload == big.slice(..sizes[got]), "frame {got}");
            got += 1;
        }
        (got == sizes.len()).then_some(())
    });
    until(&mut [&mut a, &mut b], "the way is measured", |n| n[0].reactor.stats(ca)?.rtt);
    let stats = a.reactor.stats(ca).unwrap();
    assert_eq!((stats.frames_out, stats.queued), (sizes.len() as u64, 0));
}

#[test]
fn hello_names_the_dialing_side() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let at = b.listen();
    a.reactor.dial(&numeric(at));
    let (at_a, at_b) = until(&mut [&mut a, &mut b], "both up", {
        let (mut x, mut y) = (None, None);
        move |n| {
            x = x.take().or_else(|| n[0].take(up));
            y = y.take().or_else(|| n[1].take(up));
            x.clone().zip(y.clone())
        }
    });
    assert_eq!(
        (&at_a.1.blob[..], at_a.1.outgoing, at_a.1.dialed),
        (&b"beta"[..], true, Some(at.to_string()))
    );
    assert_eq!(at_a.1.remote_addr, at);
    assert_eq!((&at_b.1.blob[..], at_b.1.outgoing, at_b.1.dialed), (&b"alpha"[..], false, None));
    assert_eq!((at_a.1.version, at_a.1.cluster.as_str()), (VERSIONS.1, "c"));
}

#[test]
fn kept_address_is_dialed_again_after_peer_restart() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let (ca, _) = connect(&mut a, &mut b);
    let port = a.reactor.dialing()[0].clone();
    b.reactor.shutdown("bye", Duration::from_secs(1));
    drop(b);
    let (conn, reason) = until(&mut [&mut a], "b is gone", |n| n[0].take(down));
    assert_eq!((conn, reason), (ca, DownReason::Goodbye(Reason::Shutdown, "bye".into())));
    // Nobody there: said once, not at each attempt.
    let (addr, error) = until(&mut [&mut a], "refused", |n| n[0].take(dial_failed));
    assert_eq!(addr, port);
    assert!(matches!(error, DialError::Connect(_)), "{error}");
    let end = Instant::now() + Duration::from_millis(700);
    while Instant::now() < end {
        a.poll();
    }
    assert!(a.events.is_empty(), "{:?}", a.events);
    let mut b = Node::new("c", "beta");
    b.reactor.listen(&[Address::parse(&port, 0).unwrap()]).unwrap();
    let (ca, cb) = make_ready(&mut a, &mut b);
    still_talk(&mut a, ca, &mut b, cb);
    // Forgotten, it stays up, and is not dialed again once it is down.
    a.reactor.forget(&Address::parse(&port, 0).unwrap());
    still_talk(&mut a, ca, &mut b, cb);
    b.reactor.close(cb, Reason::Failure, "");
    until(&mut [&mut a, &mut b], "down", |n| n[0].take(down));
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        a.poll();
        b.poll();
    }
    assert!(a.events.is_empty() && b.events.is_empty(), "{:?} {:?}", a.events, b.events);
}

#[test]
fn rejection_reaches_the_dialer() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let at = b.listen();
    a.reactor.keep(&numeric(at));
    let (_, reason) = until(&mut [&mut a, &mut b], "rejected", |n| {
        if let Some((conn, _)) = n[0].take(up) {
            n[0].reactor.accept(conn);
        }
        if let Some((conn, _)) = n[1].take(up) {
            n[1].reactor.reject(conn, Reason::Duplicate, "have one");
        }
        n[0].take(down)
    });
    assert_eq!(reason, DownReason::Rejected(Reason::Duplicate, "have one".into()));
    // As a duplicate it is not dialed again soon.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        a.poll();
        b.poll();
    }
    assert!(b.events.is_empty() && a.events.is_empty());
}

#[test]
fn both_dial_and_the_rule_keeps_one() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let (at_a, at_b) = (a.listen(), b.listen());
    a.reactor.keep(&numeric(at_b));
    b.reactor.keep(&numeric(at_a));
    // "alpha" has the smaller id: the connection that it dialed stays.
    let (mut ca, mut cb) = (None, None);
    until(&mut [&mut a, &mut b], "one connection", |n| {
        while let Some((conn, hello)) = n[0].take(up) {
            if hello.outgoing {
                n[0].reactor.accept(conn)
            } else {
                n[0].reactor.reject(conn, Reason::Duplicate, "")
            }
        }
        while let Some((conn, hello)) = n[1].take(up) {
            if hello.outgoing {
                n[1].reactor.reject(conn, Reason::Duplicate, "")
            } else {
                n[1].reactor.accept(conn)
            }
        }
        ca = ca.or_else(|| n[0].take(ready));
        cb = cb.or_else(|| n[1].take(ready));
        ca.zip(cb)
    });
    b.reactor.keep_via(&numeric(at_a), cb.unwrap());
    still_talk(&mut a, ca.unwrap(), &mut b, cb.unwrap());
    // When it goes, b's own address is dialed at once.
    a.reactor.forget(&numeric(at_b));
    a.reactor.close(ca.unwrap(), Reason::Failure, "");
    let again = until(&mut [&mut a, &mut b], "b dials", |n| n[1].take(|e| up(e).filter(|(_, h)| h.outgoing)));
    assert_eq!(again.1.dialed, Some(at_a.to_string()));
}

#[test]
fn another_cluster_is_named_on_both_sides() {
    let (mut a, mut b) = (Node::new("bank", "alpha"), Node::new("shop", "beta"));
    let at = b.listen();
    a.reactor.dial(&numeric(at));
    let (addr, error) = until(&mut [&mut a, &mut b], "failed", |n| n[0].take(dial_failed));
    assert_eq!(addr, at.to_string());
    let text = error.to_string();
    assert!(
        text.contains("'shop'") && text.contains("'bank'") && text.contains("wsrep_cluster_name"),
        "{text}"
    );
    let what = until(&mut [&mut a, &mut b], "noise", |n| n[1].take(common::noise));
    assert!(what.contains("'bank'") && what.contains("'shop'"), "{what}");
}

/// A program at a dialed address that writes `greeting`, then waits for the other side to close.
fn server_that_says(greeting: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buf = [0; 1000];
        if greeting.starts_with(b"HTTP") {
            let n = stream.read(&mut buf).unwrap();
            assert!(buf[..n].windows(4).any(|w| w == b"\r\n\r\n"), "what an HTTP server waits for");
        }
        stream.write_all(greeting).unwrap();
        while stream.read(&mut buf).is_ok_and(|n| n > 0) {}
    });
    addr
}

#[test]
fn something_else_answers_at_a_dialed_address() {
    let cfg = Config {
        proto: ProtoConfig { handshake_timeout: Duration::from_millis(300), ..ProtoConfig::new("c") },
        ..Config::new("c", Bytes::new(), 1)
    };
    for (greeting, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "HTTP server"),
        (b"\x3a\x00\x00\x00\x0a5.5.5-10.11.18-MariaDB\0abc", "10.11.18-MariaDB"),
        (b"\x24\x00\x00\x02abcd\x00\x01\x04\x000123456789abcdef0123456789abcdef", "Galera"),
        (b"\x00\xff\x00\xff", r"\x00\xff\x00\xff"),
        (b"", "received nothing"),
        (b"LOCK", "LOCK"),
    ] {
        let mut a = Node::with(cfg.clone());
        let at = server_that_says(greeting);
        a.reactor.dial(&numeric(at));
        let (addr, error) = until(&mut [&mut a], "failed", |n| n[0].take(dial_failed));
        assert_eq!(addr, at.to_string());
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("check"), "{text}");
        assert!(!text.contains('\n'));
    }
}

#[test]
fn names_are_resolved_without_waiting_for_them() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let at = b.listen();
    // localhost may be ::1 first, where nobody listens.
    let name = Address::parse("localhost", at.port()).unwrap();
    a.reactor.keep(&name);
    let begun = Instant::now();
    a.reactor.dial(&Address::parse("no-such-host.invalid", 1).unwrap());
    a.poll();
    assert!(begun.elapsed() < Duration::from_millis(500), "the reactor waited for the resolver");
    let (ca, cb) = make_ready(&mut a, &mut b);
    still_talk(&mut a, ca, &mut b, cb);
    let (addr, error) = until(&mut [&mut a, &mut b], "unresolved", |n| n[0].take(dial_failed));
    assert_eq!(addr, "no-such-host.invalid:1");
    assert!(matches!(error, DialError::Resolve(_)), "{error}");
}

#[test]
fn ipv6_and_several_listeners() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let any = |text: &str| Address::parse(text, 0).unwrap();
    let bound = match b.reactor.listen(&[any("tcp://[::1]:0"), any("127.0.0.1:0")]) {
        Ok(bound) => bound,
        // A machine without IPv6 has nothing to show here.
        Err(ListenError::NotLocal(_)) => return,
        Err(e) => panic!("{e}"),
    };
    assert_eq!(bound.len(), 2);
    for at in bound {
        a.reactor.keep(&numeric(at));
        let (ca, cb) = make_ready(&mut a, &mut b);
        still_talk(&mut a, ca, &mut b, cb);
    }
    // [::] takes both kinds; beside 0.0.0.0 on the same port it does not claim what is the other's.
    let port = bound_port(&mut b, "[::]:0");
    let mut c = Node::new("c", "gamma");
    c.reactor.dial(&any(&format!("127.0.0.1:{port}")));
    make_ready(&mut c, &mut b);
    let port = bound_port(&mut a, "0.0.0.0:0");
    a.reactor.listen(&[any(&format!("[::]:{port}"))]).unwrap_err();
    drop(a);
    let mut a = Node::new("c", "alpha");
    a.reactor.listen(&[any(&format!("0.0.0.0:{port}")), any(&format!("[::]:{port}"))]).unwrap();
}

fn bound_port(node: &mut Node, text: &str) -> u16 {
    node.reactor.listen(&[Address::parse(text, 0).unwrap()]).unwrap()[0].port()
}

#[test]
fn listening_fails_with_a_text_that_helps() {
    let mut a = Node::new("c", "alpha");
    let at = a.listen();
    let mut b = Node::new("c", "beta");
    let say = |b: &mut Node, text: &str| {
        b.reactor.listen(&[Address::parse(text, 0).unwrap()]).map(|_| ()).unwrap_err().to_string()
    };
    let text = say(&mut b, &at.to_string());
    assert!(text.contains(&format!("tcp://{at}")) && text.contains("another process"), "{text}");
    let text = say(&mut b, "192.0.2.1:0");
    assert!(text.contains("192.0.2.1") && text.contains("not an address of this machine"), "{text}");
    let text = say(&mut b, "no-such-host.invalid:0");
    assert!(text.contains("no-such-host.invalid") && text.contains("resolve"), "{text}");
    let text = say(&mut b, "ssl://127.0.0.1:0");
    assert!(text.contains("ssl://"), "{text}");
    a.reactor.dial(&Address::parse("ssl://127.0.0.1:1", 0).unwrap());
    assert_eq!(until(&mut [&mut a], "no TLS", |n| n[0].take(dial_failed)).1, DialError::NoTls);
    // The port is free again as soon as its owner is gone, connections in TIME_WAIT or not.
    let (ca, cb) = {
        a.reactor.keep(&numeric(b.listen()));
        make_ready(&mut a, &mut b)
    };
    still_talk(&mut a, ca, &mut b, cb);
    drop(a);
    b.reactor.listen(&[numeric(at)]).unwrap();
}

#[test]
fn wake_ends_poll() {
    let mut a = Node::new("c", "alpha");
    let waker = a.reactor.waker();
    let begun = Instant::now();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        waker.wake();
    });
    a.reactor.poll(Some(Duration::from_secs(30)), &mut a.events).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    thread.join().unwrap();
    // One that came while nobody slept counts for the next wait.
    a.reactor.waker().wake();
    a.reactor.poll(Some(Duration::from_secs(30)), &mut a.events).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // And only for that one.
    let begun = Instant::now();
    a.reactor.poll(Some(Duration::from_millis(30)), &mut a.events).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(30));
}

#[test]
fn no_wake_is_lost_between_threads() {
    let mut a = Node::new("c", "alpha");
    let (sender, receiver) = std::sync::mpsc::channel();
    const EACH: usize = 20_000;
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (sender, waker) = (sender.clone(), a.reactor.waker());
            std::thread::spawn(move || {
                for i in 0..EACH {
                    sender.send(i).unwrap();
                    waker.wake();
                }
            })
        })
        .collect();
    let (mut got, begun) = (0, Instant::now());
    while got < 2 * EACH {
        a.reactor.poll(Some(Duration::from_secs(10)), &mut a.events).unwrap();
        got += receiver.try_iter().count();
        assert!(begun.elapsed() < Duration::from_secs(9), "a wake was lost: {got} of {}", 2 * EACH);
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// A peer by hand, on a blocking socket: does the handshake, then whatever the test wants.
fn peer_by_hand(at: SocketAddr) -> (TcpStream, Connection) {
    let mut stream = TcpStream::connect(at).unwrap();
    let now = Instant::now();
    let cfg = Arc::new(ProtoConfig::new("c"));
    let mut conn = Connection::new(cfg, Role::Dialer, Bytes::from_static(b"by hand"), now).unwrap();
    pump(&mut stream, &mut conn);
    (stream, conn)
}

fn pump(stream: &mut TcpStream, conn: &mut Connection) {
    while conn.wants_write() {
        let mut slices = [std::io::IoSlice::new(&[]); 1];
        let n = conn.slices(&mut slices);
        let bytes: Vec<u8> = slices[..n].iter().flat_map(|s| s.iter().copied()).collect();
        stream.write_all(&bytes).unwrap();
        conn.written(bytes.len());
    }
}

#[test]
fn peer_that_does_not_read_is_dropped_and_others_stay() {
    let cfg = Config {
        proto: ProtoConfig { send_queue_max: 8 << 20, ..ProtoConfig::new("c") },
        ..Config::new("c", Bytes::from_static(b"alpha"), 1)
    };
    let (mut a, mut b) = (Node::with(cfg), Node::new("c", "beta"));
    let (ca, cb) = connect(&mut a, &mut b);
    let at = a.listen();
    let (mut stream, mut hand) = peer_by_hand(at);
    let (slow, _) = until(&mut [&mut a, &mut b], "the slow one", |n| n[0].take(up));
    a.reactor.accept(slow);
    let mut accepted = false;
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    until(&mut [&mut a, &mut b], "the slow one is ready", |n| {
        if let Ok(k) = stream.read(hand.room()) {
            hand.arrived(k, Instant::now());
        }
        if !accepted && matches!(hand.poll_event(), Some(ConnEvent::Hello { .. })) {
            hand.accept(Instant::now());
            accepted = true;
        }
        pump(&mut stream, &mut hand);
        n[0].take(ready).filter(|c| *c == slow)
    });
    let chunk = Bytes::from(vec![1; 1 << 20]);
    let mut sent = 0;
    let error = loop {
        if let Err(e) = a.reactor.send(slow, 1, std::slice::from_ref(&chunk)) {
            break e;
        }
        sent += 1;
        assert!(sent < 200, "queued without end");
        a.poll();
        b.poll();
    };
    assert_eq!(error, SendError::Overflow);
    assert_eq!(a.reactor.send(slow, 1, &[]), Err(SendError::NotConnected));
    let (conn, reason) = until(&mut [&mut a, &mut b], "cut off", |n| n[0].take(down));
    assert_eq!((conn, reason), (slow, DownReason::Overflow));
    still_talk(&mut a, ca, &mut b, cb);
}

#[test]
fn silent_peer_is_dropped_after_timeout() {
    let quick = || Config {
        proto: ProtoConfig {
            idle_timeout: Duration::from_millis(400),
            ping_interval: Duration::from_millis(100),
            ..ProtoConfig::new("c")
        },
        ..Config::new("c", Bytes::from_static(b"x"), 1)
    };
    let (mut a, mut b) = (Node::with(quick()), Node::with(quick()));
    let (ca, cb) = connect(&mut a, &mut b);
    // Pings keep it up for longer than the timeout.
    let end = Instant::now() + Duration::from_millis(1200);
    while Instant::now() < end {
        a.poll();
        b.poll();
    }
    still_talk(&mut a, ca, &mut b, cb);
    // Now b stops, as a stopped process does: its kernel still acknowledges.
    let (conn, reason) = until(&mut [&mut a], "silent", |n| n[0].take(down));
    assert_eq!((conn, reason), (ca, DownReason::Silent));
}

#[test]
fn isolated_and_back() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let (ca, _) = connect(&mut a, &mut b);
    a.reactor.set_isolated(true);
    let (conn, reason) = until(&mut [&mut a, &mut b], "a is cut off", |n| n[0].take(down));
    assert!(conn == ca && matches!(reason, DownReason::Io(_)), "{reason}");
    until(&mut [&mut a, &mut b], "b notices", |n| n[1].take(down));
    let at = a.listen();
    b.reactor.keep(&numeric(at));
    let end = Instant::now() + Duration::from_millis(400);
    while Instant::now() < end {
        a.poll();
        b.poll();
        assert!(a.take(up).is_none() && b.take(up).is_none());
    }
    a.reactor.set_isolated(false);
    let (ca, cb) = make_ready(&mut a, &mut b);
    still_talk(&mut a, ca, &mut b, cb);
}

#[test]
fn cluster_name_and_port_can_change_between_connects() {
    let (mut a, mut b) = (Node::new("", "alpha"), Node::new("c", "beta"));
    a.reactor.set_cluster("c").unwrap();
    assert!(a.reactor.set_cluster(&"x".repeat(70_000)).is_err());
    assert!(a.reactor.set_hello(Bytes::from(vec![0; 70_000])).is_err());
    let at = a.listen();
    b.reactor.keep(&numeric(at));
    let (ca, cb) = make_ready(&mut a, &mut b);
    a.reactor.unlisten();
    assert!(TcpStream::connect(at).is_err());
    still_talk(&mut a, ca, &mut b, cb);
    // The port is free for the next time.
    a.reactor.listen(&[numeric(at)]).unwrap();
    a.reactor.set_hello(Bytes::from_static(b"changed")).unwrap();
    a.reactor.close(ca, Reason::Failure, "");
    until(&mut [&mut a, &mut b], "down", |n| n[1].take(down));
    let (_, hello) = until(&mut [&mut a, &mut b], "up again", |n| n[1].take(up));
    assert_eq!(&hello.blob[..], b"changed");
}

/// A machine may have several addresses; allow-lists name the one by which a member is known.
#[test]
fn outgoing_connection_uses_the_listen_address() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let at = b.listen();
    a.reactor.listen(&[Address::parse("127.0.0.7:0", 0).unwrap()]).unwrap();
    a.reactor.dial(&numeric(at));
    let (_, hello) = until(&mut [&mut a, &mut b], "b hears of a", |n| n[1].take(up));
    assert_eq!(hello.remote_addr.ip().to_string(), "127.0.0.7");
    // From all addresses: the kernel chooses.
    let mut all = Node::new("c", "gamma");
    all.reactor.listen(&[Address::parse("0.0.0.0:0", 0).unwrap()]).unwrap();
    all.reactor.dial(&numeric(at));
    let (_, hello) = until(&mut [&mut all, &mut b], "b hears of the other", |n| n[1].take(up));
    assert_eq!(hello.remote_addr.ip().to_string(), "127.0.0.1");
}

#[test]
fn flood_of_refused_connections_does_not_block_members() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let at = a.listen();
    let mut flood = Vec::new();
    // Each lingers for a second, so that it reads why it was refused.
    while flood.len() < 100 {
        let (mut stream, mut conn) = peer_by_hand(at);
        pump(&mut stream, &mut conn);
        flood.push((stream, conn));
        for _ in 0..4 {
            a.poll();
        }
        while let Some((conn, _)) = a.take(up) {
            a.reactor.reject(conn, Reason::NotAllowed, "not in the list");
        }
    }
    b.reactor.keep(&numeric(at));
    let (ca, cb) = make_ready(&mut a, &mut b);
    assert_eq!(b.take(dial_failed).map(|(_, why)| why.to_string()), None, "it is let in at once");
    still_talk(&mut a, ca, &mut b, cb);
}
