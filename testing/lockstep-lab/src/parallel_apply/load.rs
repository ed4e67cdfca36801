//! Many connections, each updating rows of its schema, one statement a transaction.

use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Server};

/// The schema of this number, from 0.
pub(super) fn schema(number: u32) -> String {
    format!("sb{}", number + 1)
}

/// Makes that many updates of random rows, evenly in the first `schemas`. How long it took.
pub(super) fn update(
    writer: &Server,
    schemas: u32,
    rows: u32,
    updates: u32,
    connections: u32,
    seed: u64,
) -> Result<Duration> {
    let connections = connections.clamp(schemas, updates.max(schemas));
    let clients: Result<Vec<_>> = (0..connections).map(|_| writer.client()).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients?
            .into_iter()
            .zip(0u32..)
            .map(|(mut client, number)| {
                let count = updates / connections + u32::from(number < updates % connections);
                let mut random = Random(seed << 32 | u64::from(number));
                scope.spawn(move || -> Result<()> {
                    client.query(&format!("USE {}", schema(number % schemas)))?;
                    for _ in 0..count {
                        let row = random.below(rows) + 1;
                        let statement = format!("UPDATE sbtest SET k=k+1 WHERE id={row}");
                        // Two of one row at a time: the second is refused, and made again, as any application does.
                        while let Err(error) = client.query(&statement) {
                            if error.sql_code() != Some(1213) {
                                return Err(error);
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| LocalError::Value("a thread of the load panicked".into()))?
        })
    })?;
    Ok(began.elapsed())
}

/// Numbers that look random, and are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u64::from((z ^ (z >> 31)) as u32) * u64::from(end)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_spread_over_the_whole_table() {
        let mut random = Random(1 << 32);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
