//! Two reactors on loopback, polled in turn on one thread.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockstep_net::{Address, Bytes, Config, ConnId, DialError, DownReason, Event, PeerHello, Reactor};

/// Nothing that the tests wait for takes this long unless it is broken.
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub struct Node {
    pub reactor: Reactor,
    pub events: Vec<Event>,
}

impl Node {
    pub fn new(cluster: &str, hello: &'static str) -> Node {
        Node::with(Config::new(cluster, Bytes::from_static(hello.as_bytes()), hello.len() as u64))
    }

    pub fn with(cfg: Config) -> Node {
        Node { reactor: Reactor::new(cfg).unwrap(), events: Vec::new() }
    }

    pub fn listen(&mut self) -> SocketAddr {
        self.reactor.listen(&[Address::parse("127.0.0.1:0", 0).unwrap()]).unwrap()[0]
    }

    pub fn poll(&mut self) {
        self.reactor.poll(Some(Duration::from_millis(2)), &mut self.events).unwrap();
    }

    /// Takes out the first event that `want` maps to something.
    pub fn take<T>(&mut self, want: impl Fn(&Event) -> Option<T>) -> Option<T> {
        let at = self.events.iter().position(|e| want(e).is_some())?;
        want(&self.events.remove(at))
    }
}

/// Polls all nodes until `done` gives something.
pub fn until<T>(
    nodes: &mut [&mut Node],
    what: &str,
    mut done: impl FnMut(&mut [&mut Node]) -> Option<T>,
) -> T {
    let end = Instant::now() + TIMEOUT;
    loop {
        for node in nodes.iter_mut() {
            node.poll();
        }
        if let Some(found) = done(nodes) {
            return found;
        }
        if Instant::now() > end {
            for (i, node) in nodes.iter().enumerate() {
                eprintln!("node {i}: {:?}", node.events);
            }
            panic!("waited in vain for: {what}");
        }
    }
}

pub fn numeric(addr: SocketAddr) -> Address {
    Address::numeric(addr)
}

pub fn up(e: &Event) -> Option<(ConnId, PeerHello)> {
    match e {
        Event::PeerUp { conn, hello } => Some((*conn, hello.clone())),
        _ => None,
    }
}

pub fn ready(e: &Event) -> Option<ConnId> {
    match e {
        Event::Ready { conn } => Some(*conn),
        _ => None,
    }
}

pub fn down(e: &Event) -> Option<(ConnId, DownReason)> {
    match e {
        Event::PeerDown { conn, reason } => Some((*conn, reason.clone())),
        _ => None,
    }
}

pub fn frame(e: &Event) -> Option<(u8, Bytes)> {
    match e {
        Event::Frame { kind, payload, .. } => Some((*kind, payload.clone())),
        _ => None,
    }
}

pub fn dial_failed(e: &Event) -> Option<(String, DialError)> {
    match e {
        Event::DialFailed { addr, error } => Some((addr.clone(), error.clone())),
        _ => None,
    }
}

pub fn noise(e: &Event) -> Option<String> {
    match e {
        Event::Noise { what, .. } => Some(what.clone()),
        _ => None,
    }
}

/// Accepts every peer until both sides are ready; returns each side's id of the connection.
pub fn make_ready(a: &mut Node, b: &mut Node) -> (ConnId, ConnId) {
    let (mut at_a, mut at_b) = (None, None);
    until(&mut [a, b], "both ready", |n| {
        for (node, at) in n.iter_mut().zip([&mut at_a, &mut at_b]) {
            if let Some((conn, _)) = node.take(up) {
                node.reactor.accept(conn);
            }
            *at = at.or(node.take(ready));
        }
        at_a.zip(at_b)
    })
}

/// Connects `a` to `b`, for good.
pub fn connect(a: &mut Node, b: &mut Node) -> (ConnId, ConnId) {
    let addr = b.listen();
    a.reactor.keep(&numeric(addr));
    make_ready(a, b)
}

/// One frame each way: the two still talk, on these connections.
pub fn still_talk(a: &mut Node, ca: ConnId, b: &mut Node, cb: ConnId) {
    say(a, ca, b);
    say(b, cb, a);
}

fn say(from: &mut Node, conn: ConnId, to: &mut Node) {
    from.reactor.send(conn, 99, &[Bytes::from_static(b"still there?")]).unwrap();
    from.reactor.flush();
    until(&mut [from, to], "a frame on the old connection", |n| n[1].take(frame).filter(|f| f.0 == 99));
}
