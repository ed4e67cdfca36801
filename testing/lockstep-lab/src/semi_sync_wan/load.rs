//! Connections that insert one row after the other.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError, Result, Server};

/// A connection's thread needs little.
const STACK: usize = 256 << 10;

/// What connections that inserted at the same time saw.
#[derive(Debug, Clone, Default)]
pub struct Load {
    /// Each of them.
    pub connections: Vec<Connection>,
    /// Rows inserted before anything was measured.
    warm_up: u64,
}

/// What one connection saw.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// How long each insert took, in nanoseconds, in their order.
    pub inserts: Vec<u64>,
    /// From before the first to after the last.
    pub elapsed: Duration,
}

impl Load {
    /// Of these connections.
    pub fn of(connections: Vec<Connection>) -> Load {
        Load { connections, warm_up: 0 }
    }

    /// Inserts per second: the sum of the connections' rates, each up to its own last insert, so that nothing is counted
    /// but whole round trips.
    pub fn rate(&self) -> f64 {
        let rate = |of: &Connection| of.inserts.len() as f64 / of.elapsed.as_secs_f64();
        self.connections.iter().filter(|of| !of.inserts.is_empty()).map(rate).sum()
    }

    /// Measured inserts.
    pub fn inserts(&self) -> u64 {
        self.connections.iter().map(|of| of.inserts.len() as u64).sum()
    }

    /// Rows that it has left.
    pub(super) fn rows(&self) -> u64 {
        self.warm_up + self.inserts()
    }

    /// How long the inserts took, sorted, in milliseconds.
    pub fn milliseconds(&self) -> Vec<f64> {
        let all = self.connections.iter().flat_map(|of| &of.inserts);
        let mut all: Vec<f64> = all.map(|nanos| *nanos as f64 / 1e6).collect();
        all.sort_by(f64::total_cmp);
        all
    }
}

/// A single connection inserts so many rows, after some that are not measured.
pub(super) fn of_one(server: &Server, warm_up: u32, count: u32) -> Result<Load> {
    let mut client = server.client()?;
    let mut words = Words::new(1);
    let mut insert = |rows: u32| insert(&mut client, &mut words, |inserted, _| inserted < rows as usize);
    insert(warm_up)?;
    Ok(Load { connections: vec![insert(count)?], warm_up: warm_up.into() })
}

/// Inserts by this number of connections at the same time, for about this time. The first row of each is not measured.
pub(super) fn of_many(server: &Server, count: usize, window: Duration) -> Result<Load> {
    let clients: Vec<Client> = (0..count).map(|_| server.client()).collect::<Result<_>>()?;
    // One more: this thread, which knows whether all of them could be started.
    let all_there = Barrier::new(count + 1);
    let connections = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(at, mut client)| {
                let all_there = &all_there;
                let connection = move || {
                    let mut words = Words::new(at as u64 + 2);
                    let first = client.query(&words.statement());
                    all_there.wait();
                    first?;
                    insert(&mut client, &mut words, |_, elapsed| elapsed < window)
                };
                let thread = std::thread::Builder::new().stack_size(STACK);
                // A connection that has no thread cannot come to the barrier: nothing to do but to give up.
                thread.spawn_scoped(scope, connection).unwrap_or_else(|e| {
                    eprintln!("lockstep: cannot start a thread for a connection: {e}");
                    std::process::exit(1)
                })
            })
            .collect();
        all_there.wait();
        let gone = |_| LocalError::Value("a connection's thread panicked".into());
        threads.into_iter().map(|thread| thread.join().map_err(gone)?).collect::<Result<Vec<_>>>()
    })?;
    Ok(Load { connections, warm_up: count as u64 })
}

/// Inserts as long as `more` says, which is told how many there are and for how long.
fn insert(
    client: &mut Client,
    words: &mut Words,
    more: impl Fn(usize, Duration) -> bool,
) -> Result<Connection> {
    let mut inserts = Vec::new();
    let began = Instant::now();
    let mut now = began;
    while more(inserts.len(), now - began) {
        let statement = words.statement();
        let sent = Instant::now();
        client.query(&statement)?;
        now = Instant::now();
        inserts.push(u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(Connection { inserts, elapsed: now - began })
}

/// Eight letters, other ones each time and the same in each run.
struct Words(u64);

impl Words {
    fn new(seed: u64) -> Words {
        Words(seed)
    }

    fn statement(&mut self) -> String {
        format!("INSERT INTO inserttest.foo (text) VALUES ('{}')", self.next())
    }

    fn next(&mut self) -> String {
        let mut letters = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'A' + ((self.0 >> 33) % 26) as u8)
        };
        (0..8).map(|_| letters()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_eight_letters_and_differ() {
        let some = |seed| {
            let mut words = Words::new(seed);
            (0..100).map(|_| words.next()).collect::<std::collections::BTreeSet<String>>()
        };
        assert!(some(1).len() == 100 && some(1).iter().all(|word| word.len() == 8));
        assert_eq!(some(1), some(1));
        assert!(some(1).is_disjoint(&some(2)));
    }

    #[test]
    fn rate_counts_complete_inserts_per_connection() {
        let connection =
            |count, ms| Connection { inserts: vec![1_000_000; count], elapsed: Duration::from_millis(ms) };
        let connections = vec![connection(10, 1000), connection(10, 2000), connection(0, 0)];
        let load = Load { connections, warm_up: 3 };
        assert_eq!((load.rate(), load.inserts(), load.rows()), (15.0, 20, 23));
        assert_eq!(load.milliseconds(), vec![1.0; 20]);
    }
}
