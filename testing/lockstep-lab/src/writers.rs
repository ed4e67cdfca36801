//! Clients that write all the time while something is done to a cluster, and what they saw of it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError, Result};

/// Clients of one server, each of which inserts rows `(id)`, one after the other, each in a transaction of its own. One
/// that fails is counted, and its client goes on.
#[derive(Debug)]
pub struct Writers {
    began: Instant,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<One>>,
}

/// What one client saw, at which times since the beginning.
#[derive(Debug, Default)]
struct One {
    /// When it had signed in, and each answer of a commit.
    answers: Vec<Duration>,
    failures: Vec<(Duration, String)>,
}

/// The results of all writers.
#[derive(Debug)]
pub struct Written {
    clients: Vec<One>,
}

/// The longest times in which nothing was committed that touch a window of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gaps {
    /// In which no client had an answer.
    pub all: Duration,
    /// In which one client had none.
    pub one: Duration,
}

impl Writers {
    /// Starts them; `table` is `(id BIGINT PRIMARY KEY)`, and no two rows of this process have the same.
    pub fn start(socket: &Path, table: &str, clients: usize) -> Writers {
        let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let threads = (0..clients).map(|_| {
            let (socket, table, stop) = (socket.to_owned(), table.to_owned(), stop.clone());
            std::thread::spawn(move || One::write(&socket, &table, began, &stop))
        });
        Writers { began, threads: threads.collect(), stop }
    }

    /// The time since the beginning.
    pub fn time(&self) -> Duration {
        self.began.elapsed()
    }

    /// Each finishes what it has begun.
    pub fn stop(mut self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.threads);
        let joined = threads.into_iter().map(JoinHandle::join).collect::<std::result::Result<_, _>>();
        Ok(Written { clients: joined.map_err(|_| LocalError::Value("a client panicked".into()))? })
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl One {
    fn write(socket: &Path, table: &str, began: Instant, stop: &AtomicBool) -> One {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let mut seen = One::default();
        let mut client = None;
        while !stop.load(Ordering::Relaxed) {
            let outcome = match &mut client {
                None => Client::connect(socket, "root", Duration::from_secs(30)).map(|new| {
                    client = Some(new);
                    if seen.answers.is_empty() {
                        seen.answers.push(began.elapsed());
                    }
                }),
                Some(client) => {
                    let id = IDS.fetch_add(1, Ordering::Relaxed);
                    let done = client.query(&format!("INSERT INTO {table} VALUES ({id})"));
                    done.map(|_| seen.answers.push(began.elapsed()))
                }
            };
            if let Err(error) = outcome {
                seen.failures.push((began.elapsed(), error.to_string()));
                client = None;
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        seen
    }
}

impl Written {
    /// How many rows were acknowledged.
    pub fn rows(&self) -> u64 {
        self.clients.iter().map(|one| one.answers.len().saturating_sub(1) as u64).sum()
    }

    /// Commits acknowledged in this window.
    pub fn rows_between(&self, from: Duration, to: Duration) -> usize {
        let of = |one: &One| one.answers.iter().skip(1).filter(|at| (from..to).contains(*at)).count();
        self.clients.iter().map(of).sum()
    }

    /// Each transaction, or attempt to sign in, that failed: when, and why.
    pub fn failures(&self) -> Vec<(Duration, String)> {
        self.clients.iter().flat_map(|one| one.failures.iter().cloned()).collect()
    }

    /// The longest times without a commit that lie in this window, or reach into it.
    pub fn gaps(&self, from: Duration, to: Duration) -> Gaps {
        let mut together: Vec<Duration> =
            self.clients.iter().flat_map(|one| one.answers.iter().copied()).collect();
        together.sort_unstable();
        let one = self.clients.iter().map(|one| longest(&one.answers, from, to)).max();
        Gaps { all: longest(&together, from, to), one: one.unwrap_or_default() }
    }
}

/// The longest time between two of these, which are in order, that touches the window; if there is none, all of the window.
fn longest(answers: &[Duration], from: Duration, to: Duration) -> Duration {
    let first = answers.partition_point(|at| *at <= from).saturating_sub(1);
    let pairs = answers[first..].windows(2).take_while(|pair| pair[0] < to).filter(|pair| pair[1] > from);
    pairs.map(|pair| pair[1] - pair[0]).max().unwrap_or(to - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_wait_counts_transactions_in_window() {
        let ms = |all: &[u64]| all.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>();
        let one = |answers: &[u64]| One { answers: ms(answers), failures: Vec::new() };
        let written = Written { clients: vec![one(&[0, 10, 50, 60, 200]), one(&[5, 20, 25, 90, 120])] };
        let gaps = |from, to| {
            let gaps = written.gaps(Duration::from_millis(from), Duration::from_millis(to));
            (gaps.all.as_millis(), gaps.one.as_millis())
        };
        assert_eq!(written.rows(), 8);
        assert_eq!(written.rows_between(Duration::from_millis(20), Duration::from_millis(60)), 3);
        assert_eq!(gaps(0, 20), (10, 40), "what one waits for goes on beyond the window");
        assert_eq!(gaps(21, 60), (25, 65));
        assert_eq!(gaps(60, 90), (30, 140));
        assert_eq!(gaps(0, 1000), (80, 140));
        assert_eq!(gaps(300, 400), (100, 100), "nobody has had an answer since");
        assert_eq!(
            Written { clients: Vec::new() }.gaps(Duration::ZERO, Duration::from_millis(7)).all.as_millis(),
            7
        );
    }
}
