//! Host names into socket addresses, off the reactor's thread.
//!
//! The C library's resolver blocks, for up to minutes when a DNS server is dead, and cannot be interrupted. So a
//! short-lived thread asks it, and the reactor waits only as long as it wants to. Threads that hang are bounded in
//! number: one for each name, a few in all.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::waker::Waker;
use crate::addr::{Address, Host};

/// Most resolver threads at a time.
const THREADS_MAX: usize = 8;

pub(crate) type Answer = Result<Vec<SocketAddr>, String>;

#[derive(Debug)]
pub(crate) struct Resolver {
    sender: Sender<(String, Answer)>,
    receiver: Receiver<(String, Answer)>,
    /// Addresses a thread is busy with.
    busy: BTreeSet<String>,
}

impl Resolver {
    pub(crate) fn new() -> Resolver {
        let (sender, receiver) = channel();
        Resolver { sender, receiver, busy: BTreeSet::new() }
    }

    /// Starts resolving, unless a thread is busy with this address already. The answer comes with [`Resolver::poll`].
    pub(crate) fn start(&mut self, key: &str, addr: &Address, waker: &Waker) -> Result<(), String> {
        if self.busy.contains(key) {
            return Ok(());
        }
        if self.busy.len() >= THREADS_MAX {
            return Err("the resolver is busy with other names".into());
        }
        let (sender, waker, addr, name) = (self.sender.clone(), waker.clone(), addr.clone(), key.to_owned());
        std::thread::Builder::new()
            .name("ls-dns".into())
            .stack_size(256 * 1024)
            .spawn(move || {
                // Without the reactor there is no receiver, and the result is not needed.
                let _ = sender.send((name, blocking(&addr)));
                waker.wake();
            })
            .map_err(|e| format!("cannot start a thread: {e}"))?;
        self.busy.insert(key.to_owned());
        Ok(())
    }

    /// The next answer that has arrived.
    pub(crate) fn poll(&mut self) -> Option<(String, Answer)> {
        if self.busy.is_empty() {
            return None;
        }
        let (key, answer) = self.receiver.try_recv().ok()?;
        self.busy.remove(&key);
        Some((key, answer))
    }
}

/// Resolves within `limit`, for the start-up of listeners.
pub(crate) fn within(addr: &Address, limit: Duration) -> Answer {
    if let Some(numeric) = addr.socket_addr() {
        return Ok(vec![numeric]);
    }
    let (sender, receiver) = channel();
    let addr = addr.clone();
    std::thread::Builder::new()
        .name("ls-dns".into())
        .stack_size(256 * 1024)
        .spawn(move || {
            let _ = sender.send(blocking(&addr));
        })
        .map_err(|e| format!("cannot start a thread: {e}"))?;
    receiver.recv_timeout(limit).unwrap_or_else(|_| Err("no answer in time".into()))
}

fn blocking(addr: &Address) -> Answer {
    let name = match &addr.host {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, addr.port)]),
        Host::Name(name) => name.as_str(),
    };
    let found = (name, addr.port).to_socket_addrs().map_err(|e| {
        // Rust prefixes the C library's text; keep only the part after the colon.
        let text = e.to_string();
        text.rsplit_once(": ").map_or(text.clone(), |(_, rest)| rest.to_owned())
    })?;
    let mut out: Vec<SocketAddr> = Vec::new();
    for addr in found {
        if !out.contains(&addr) {
            out.push(addr);
        }
    }
    if out.is_empty() { Err("the name has no address".into()) } else { Ok(out) }
}
