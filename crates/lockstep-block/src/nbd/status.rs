//! Connections and their counters, for status and log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::reply::Reply;
use super::request::Command;
use crate::export::{IoError, Peer};

/// Receives lines for the log. Must not block for long.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// One connection, as it was when it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectionStatus {
    /// Its number, since the server's start.
    pub id: u64,
    /// The identity of the client.
    pub peer: Peer,
    /// The client's address and port, or the user and process at a Unix socket.
    pub client: String,
    /// The attached export; `None` during the handshake.
    pub export: Option<String>,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// Requests received.
    pub requests: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Bytes received by writes.
    pub written_bytes: u64,
    /// Requests that the export failed.
    pub errors: u64,
}

/// The counters of one connection.
pub(crate) struct Counters {
    client: String,
    log: Log,
    requests: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counters({})", self.client)
    }
}

impl Counters {
    pub(crate) fn new(client: String, log: Log) -> Counters {
        let zero = AtomicU64::default;
        Counters { client, log, requests: zero(), read_bytes: zero(), written_bytes: zero(), errors: zero() }
    }

    /// Writes a line about this client to the log.
    pub(crate) fn log(&self, text: &str) {
        (self.log)(&format!("NBD client {}: {text}", self.client));
    }

    pub(crate) fn count(&self, command: &Command) {
        self.requests.fetch_add(1, Relaxed);
        match command {
            Command::Read { length, .. } => self.read_bytes.fetch_add(u64::from(*length), Relaxed),
            Command::Write { data, .. } => self.written_bytes.fetch_add(data.len() as u64, Relaxed),
            _ => 0,
        };
    }

    /// The reply to a request that failed. The log gets the first failure of each connection: a failed device would flood it.
    pub(crate) fn failed(&self, error: &IoError) -> Reply {
        if self.errors.fetch_add(1, Relaxed) == 0 {
            self.log(&format!("a request failed: {error}"));
        }
        Reply::failed(error)
    }
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    counters: Arc<Counters>,
    export: Option<String>,
    encrypted: bool,
}

/// The connections of a server.
#[derive(Clone, Default, Debug)]
pub struct Connections {
    entries: Arc<Mutex<Table>>,
}

#[derive(Default, Debug)]
struct Table {
    next: u64,
    entries: BTreeMap<u64, Entry>,
}

impl Connections {
    /// All connections.
    pub fn list(&self) -> Vec<ConnectionStatus> {
        let table = self.table();
        let entries = table.entries.iter().map(|(id, entry)| ConnectionStatus {
            id: *id,
            peer: entry.peer,
            client: entry.counters.client.clone(),
            export: entry.export.clone(),
            encrypted: entry.encrypted,
            requests: entry.counters.requests.load(Relaxed),
            read_bytes: entry.counters.read_bytes.load(Relaxed),
            written_bytes: entry.counters.written_bytes.load(Relaxed),
            errors: entry.counters.errors.load(Relaxed),
        });
        entries.collect()
    }

    /// Adds a connection, until the result is dropped.
    pub(crate) fn add(&self, peer: Peer, counters: Arc<Counters>) -> Registered {
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        table.entries.insert(id, Entry { peer, counters: counters.clone(), export: None, encrypted: false });
        Registered { connections: self.clone(), id, peer, counters }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in the list.
#[derive(Debug)]
pub(crate) struct Registered {
    connections: Connections,
    id: u64,
    peer: Peer,
    counters: Arc<Counters>,
}

impl Registered {
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    pub(crate) fn set_encrypted(&self) {
        self.update(|entry| entry.encrypted = true);
    }

    pub(crate) fn set_export(&self, name: &str) {
        self.update(|entry| entry.export = Some(name.to_owned()));
    }

    fn update(&self, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.connections.table().entries.get_mut(&self.id) {
            change(entry);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.connections.table().entries.remove(&self.id);
    }
}
