//! Clients that insert rows, and when they did.

use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Server};

/// How the clients write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// So many transactions per second, all clients together.
    Fixed(u32),
    /// Each one after the other, as fast as the server answers.
    Full,
}

impl Pace {
    /// A short name, as in results.
    pub const fn name(self) -> &'static str {
        match self {
            Pace::Fixed(_) => "fixed",
            Pace::Full => "full",
        }
    }
}

/// The ids of rows, each used once.
#[derive(Debug, Default)]
pub(super) struct Ids(u64);

impl Ids {
    /// How many rows there are.
    pub(super) fn used(&self) -> u64 {
        self.0
    }
}

/// When a row was sent, and when its client had the answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) sent: Instant,
    pub(super) answered: Instant,
}

/// The rows of one load.
#[derive(Debug)]
pub(super) struct Written {
    /// Ids are consecutive in all clients together: client n of m has n, n + m, ...
    first: u64,
    clients: Vec<Vec<Row>>,
    pub(super) elapsed: Duration,
}

impl Written {
    pub(super) fn transactions(&self) -> u64 {
        self.clients.iter().map(|rows| rows.len() as u64).sum()
    }

    pub(super) fn row(&self, id: u64) -> Option<Row> {
        let at = id.checked_sub(self.first)?;
        let clients = self.clients.len() as u64;
        self.clients.get((at % clients) as usize)?.get((at / clients) as usize).copied()
    }

    /// How long each transaction took its client.
    pub(super) fn milliseconds(&self) -> Vec<f64> {
        let all = self.clients.iter().flatten();
        all.map(|row| (row.answered - row.sent).as_secs_f64() * 1e3).collect()
    }
}

/// Inserts rows by so many clients for about this time.
pub(super) fn write(
    server: &Server,
    clients: usize,
    pace: Pace,
    window: Duration,
    ids: &mut Ids,
) -> Result<Written> {
    let connections = (0..clients).map(|_| server.client()).collect::<Result<Vec<_>>>()?;
    let first = ids.0 + 1;
    let began = Instant::now();
    let write = |(at, mut client): (usize, lockstep_local::Client)| -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        loop {
            let due = match pace {
                Pace::Full => began.elapsed(),
                // Clients take turns. One that is late does not wait.
                Pace::Fixed(rate) => {
                    Duration::from_secs_f64((rows.len() * clients + at) as f64 / f64::from(rate.max(1)))
                }
            };
            if due >= window || began.elapsed() >= window {
                return Ok(rows);
            }
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            let id = first + (rows.len() * clients + at) as u64;
            let sql = format!("INSERT INTO cdc.rows VALUES ({id}, 'abcdefgh')");
            let sent = Instant::now();
            client.query(&sql)?;
            rows.push(Row { sent, answered: Instant::now() });
        }
    };
    let rows = std::thread::scope(|scope| {
        let threads: Vec<_> =
            connections.into_iter().enumerate().map(|client| scope.spawn(move || write(client))).collect();
        let panicked = |_| LocalError::Value("a client panicked".into());
        threads.into_iter().map(|thread| thread.join().map_err(panicked)?).collect::<Result<Vec<_>>>()
    })?;
    let elapsed = began.elapsed();
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    ids.0 += (longest * clients) as u64;
    Ok(Written { first, clients: rows, elapsed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_ids() {
        let at = Instant::now();
        let row = |ms| Row { sent: at, answered: at + Duration::from_millis(ms) };
        let written = Written {
            first: 11,
            clients: vec![vec![row(1), row(3)], vec![row(2)]],
            elapsed: Duration::from_secs(1),
        };
        let ms = |id| written.row(id).map(|row| (row.answered - row.sent).as_millis());
        assert_eq!([10, 11, 12, 13, 14, 15].map(ms), [None, Some(1), Some(2), Some(3), None, None]);
        assert_eq!(written.transactions(), 3);
        assert_eq!(written.milliseconds(), [1.0, 3.0, 2.0]);
    }
}
