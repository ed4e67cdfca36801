//! Two reactors on loopback, polled in turn on one thread.

#![allow(dead_code, unreachable_pub)] // each test binary uses its own part

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockstep_net::{Address, Bytes, Config, Event, Reactor};

/// Nothing that the tests wait for takes this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

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
    let end = Instant::now() + PATIENCE;
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
