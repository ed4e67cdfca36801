//! The connections, and each consumer's progress. For status only: no decision depends on an acknowledgement.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::command::{Ack, Register};
use crate::gtid::ReplicaState;
use crate::library::{Library, Position};

/// A connection, as status shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct Consumer {
    /// The connection's number.
    pub id: u64,
    /// Its account.
    pub user: String,
    /// Its address.
    pub address: SocketAddr,
    /// When it connected.
    pub since: SystemTime,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
    /// Its introduction, if it is a replica.
    pub register: Option<Register>,
    /// Its stream, if it has requested one.
    pub stream: Option<StreamProgress>,
}

/// How far a consumer is.
#[derive(Clone, PartialEq, Debug)]
pub struct StreamProgress {
    /// The server id in its request; 0 for a tool.
    pub server_id: u32,
    /// The file that it reads.
    pub file: String,
    /// The end of the last event sent.
    pub sent: Position,
    /// The last GTID sent in each domain.
    pub gtids: ReplicaState,
    /// Bytes that are not sent yet.
    pub behind: u64,
    /// How long the first of them has been there, at most; `None` if that is not known.
    pub behind_seconds: Option<f64>,
    /// The time in the last event sent, in seconds since 1970; 0: none was sent.
    pub sent_time: u32,
    /// When all was sent the last time, if ever.
    pub caught_up: Option<Instant>,
    /// Whether it acknowledges event groups.
    pub semi_sync: bool,
    /// Its last acknowledgement.
    pub acked: Option<Ack>,
}

impl Consumer {
    /// A name for messages: account, address, server id.
    pub fn label(&self) -> String {
        let server_id =
            self.stream.as_ref().map(|s| s.server_id).or(self.register.as_ref().map(|r| r.server_id));
        match server_id.filter(|id| *id != 0) {
            Some(id) => format!("{} at {} (server id {id})", self.user, self.address),
            None => format!("{} at {}", self.user, self.address),
        }
    }
}

impl StreamProgress {
    /// A bound of the age of the oldest event that was not sent. That event is younger than the last event sent, and than
    /// the last moment at which nothing was left to send.
    fn age_of_unsent(&self) -> Option<f64> {
        if self.behind == 0 {
            return Some(0.0);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let by_event = (self.sent_time != 0).then(|| (now - f64::from(self.sent_time)).max(0.0));
        let by_clock = self.caught_up.map(|at| at.elapsed().as_secs_f64());
        match (by_event, by_clock) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }
}

#[derive(Debug)]
struct Entry {
    consumer: Consumer,
    socket: TcpStream,
    /// Set when the socket is closed from outside, for a thread that waits elsewhere.
    closed: Arc<AtomicBool>,
}

impl Entry {
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // A connection that is closed already needs nothing.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

#[derive(Default, Debug)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

/// All connections. Clones refer to the same ones.
#[derive(Clone, Default, Debug)]
pub struct Consumers(Arc<Mutex<Table>>);

impl Consumers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All connections, by number. `library` tells how far they are behind.
    pub fn list(&self, library: &Library) -> Vec<Consumer> {
        let mut list: Vec<Consumer> =
            self.lock().entries.values().map(|entry| entry.consumer.clone()).collect();
        for stream in list.iter_mut().filter_map(|consumer| consumer.stream.as_mut()) {
            stream.behind = library.bytes_behind(stream.sent);
            stream.behind_seconds = stream.age_of_unsent();
        }
        list
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a connection, unless there are `limit` already.
    pub(super) fn add(
        &self,
        socket: &TcpStream,
        address: SocketAddr,
        limit: usize,
    ) -> std::io::Result<Option<Registered>> {
        let socket = socket.try_clone()?;
        let mut table = self.lock();
        if table.entries.len() >= limit {
            return Ok(None);
        }
        table.next += 1;
        let id = table.next;
        let (user, since) = (String::new(), SystemTime::now());
        let consumer = Consumer { id, user, address, since, encrypted: false, register: None, stream: None };
        let closed = Arc::new(AtomicBool::new(false));
        table.entries.insert(id, Entry { consumer, socket, closed: closed.clone() });
        drop(table);
        Ok(Some(Registered { consumers: self.clone(), id, address, closed }))
    }

    /// Closes all connections.
    pub(super) fn close_all(&self) {
        self.lock().entries.values().for_each(Entry::close);
    }
}

/// One connection's place in the table; it is removed with this value.
#[derive(Debug)]
pub(super) struct Registered {
    consumers: Consumers,
    id: u64,
    address: SocketAddr,
    closed: Arc<AtomicBool>,
}

impl Registered {
    /// The client's address.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether the connection was closed by another thread of this server.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Changes what status shows.
    pub(super) fn update(&self, change: impl FnOnce(&mut Consumer)) {
        if let Some(entry) = self.consumers.lock().entries.get_mut(&self.id) {
            change(&mut entry.consumer);
        }
    }

    pub(super) fn label(&self) -> String {
        self.consumers.lock().entries.get(&self.id).map_or_else(String::new, |entry| entry.consumer.label())
    }

    /// Closes the other streams of this server id: the replica has connected again, and the old connection may not have
    /// noticed that it is dead.
    pub(super) fn replace_others(&self, server_id: u32) {
        for (id, entry) in &self.consumers.lock().entries {
            if *id != self.id && entry.consumer.stream.as_ref().is_some_and(|s| s.server_id == server_id) {
                entry.close();
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.consumers.lock().entries.remove(&self.id);
    }
}
