//! The age of the oldest entry that the server has not finished, and the size of all such entries.

use lockstep_core::{Micros, Seqno};
use std::collections::VecDeque;

/// Entries appended within this time count as one span.
const GRAIN: Micros = 100_000;

/// Append times of the delivered entries.
#[derive(Debug, Default)]
pub(in crate::member) struct LagMeter {
    /// Ascending by seqno and time; no span begins later than its delivery, by the own clock.
    spans: VecDeque<LagSpan>,
}

/// Entries appended within [`GRAIN`].
#[derive(Debug)]
struct LagSpan {
    first: Seqno,
    last: Seqno,
    /// When its first entry was appended.
    began: Micros,
    bytes: u64,
}

impl LagMeter {
    /// Records the delivery of an entry; `wall` is the own clock. `finished` is called only when a span begins.
    ///
    /// A leader's clock may be ahead of this one: an append time in the future counts as now. Otherwise, under the next
    /// leader, all entries would join a span in the future and have no age.
    pub(in crate::member) fn delivered(
        &mut self,
        seqno: Seqno,
        appended: Micros,
        wall: Micros,
        bytes: u64,
        finished: impl FnOnce() -> Seqno,
    ) {
        let appended = appended.min(wall);
        match self.spans.back_mut() {
            // Leaders' clocks differ and get corrected: a time that goes back counts as unchanged. Seqnos skipped by a
            // view have no bytes.
            Some(span) if appended < span.began + GRAIN && seqno == span.last + 1 => {
                span.last = seqno;
                span.bytes += bytes;
            }
            _ => {
                let finished = finished();
                while self.spans.front().is_some_and(|span| span.last <= finished) {
                    self.spans.pop_front();
                }
                self.spans.push_back(LagSpan { first: seqno, last: seqno, began: appended, bytes });
            }
        }
    }

    /// How many seconds ago the oldest delivered entry above `finished` was appended, up to [`GRAIN`] too much; `None`
    /// if there is none.
    pub(in crate::member) fn age(&self, finished: Seqno, wall: Micros) -> Option<f64> {
        let span = self.spans.iter().find(|span| span.last > finished)?;
        Some(wall.saturating_sub(span.began) as f64 / 1e6)
    }

    /// Approximate size of the delivered entries above `finished`; within a span, entries count by their mean size.
    pub(in crate::member) fn bytes(&self, finished: Seqno) -> u64 {
        let open = self.spans.iter().filter(|span| span.last > finished);
        open.map(|LagSpan { first, last, bytes, .. }| {
            let above = (last - finished.max(first - 1)) as u64;
            (u128::from(*bytes) * u128::from(above) / u128::from((last + 1 - first) as u64)) as u64
        })
        .sum()
    }
}

/// How often a member's progress towards Synced is reported.
const REPORT_INTERVAL: Micros = 1_000_000;

/// The progress of a member towards Synced.
#[derive(Debug, Default)]
pub(in crate::member) struct CatchUp {
    /// The finished seqno at the beginning, and when the progress was last reported; `None` if nothing is under way.
    under_way: Option<(Seqno, Micros)>,
}

impl CatchUp {
    /// The finished seqno from which to report the progress now: at the beginning and periodically; if `synced`, for the
    /// last time.
    pub(in crate::member) fn report(&mut self, now: Micros, finished: Seqno, synced: bool) -> Option<Seqno> {
        // The database's position is unknown before the first view.
        if finished < 0 {
            return None;
        }
        let first = self.under_way.is_none();
        let (from, reported_at) = self.under_way.get_or_insert((finished, now));
        if !first && !synced && now < *reported_at + REPORT_INTERVAL {
            return None;
        }
        *reported_at = now;
        let from = *from;
        if synced {
            self.under_way = None;
        }
        Some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reported_at_beginning_end_and_periodically() {
        let mut progress = CatchUp::default();
        assert_eq!(progress.report(0, -1, false), None);
        assert_eq!(progress.report(0, 5, false), Some(5));
        assert_eq!(progress.report(REPORT_INTERVAL - 1, 6, false), None);
        assert_eq!(progress.report(REPORT_INTERVAL, 7, false), Some(5));
        assert_eq!(progress.report(REPORT_INTERVAL + 1, 8, true), Some(5));
        assert_eq!(progress.report(REPORT_INTERVAL + 2, 9, false), Some(9));
    }

    #[test]
    fn lag_age_is_that_of_oldest_unfinished_entry() {
        let mut meter = LagMeter::default();
        assert_eq!(meter.age(0, 9_000_000), None);
        for (seqno, appended) in [(1, 1_000_000), (2, 1_050_000), (3, 2_000_000), (4, 5_000_000)] {
            meter.delivered(seqno, appended, 9_000_000, 100 * seqno as u64, || 0);
        }
        assert_eq!(meter.age(0, 9_000_000), Some(8.0));
        assert_eq!(meter.age(1, 9_000_000), Some(8.0), "2 was placed in the stretch that 1 began");
        assert_eq!(meter.age(2, 9_000_000), Some(7.0));
        assert_eq!(meter.age(4, 9_000_000), None);
        assert_eq!([0, 1, 2, 3, 4].map(|at| meter.bytes(at)), [1000, 850, 700, 400, 0]);
        meter.delivered(5, 6_000_000, 9_000_000, 10, || 4);
        assert_eq!(meter.spans.len(), 1, "what has finished is forgotten");
        meter.delivered(6, 3_000_000, 9_000_000, 10, || 4);
        assert_eq!(meter.age(5, 9_000_000), Some(3.0));
    }

    #[test]
    fn lag_age_after_leader_clock_ahead_follows_own_clock() {
        let mut meter = LagMeter::default();
        let second = 1_000_000;
        for at in 1..=3 {
            meter.delivered(at, (60 + at as Micros) * second, at as Micros * second, 10, || 0);
        }
        assert_eq!(meter.spans.len(), 3);
        // Another member leads, with a correct clock, and the server finishes nothing.
        for at in 4..=6 {
            meter.delivered(at, at as Micros * second, at as Micros * second, 10, || 0);
        }
        assert_eq!(
            [0, 1, 3, 5].map(|finished| meter.age(finished, 10 * second)),
            [9.0, 8.0, 6.0, 4.0].map(Some)
        );
    }
}
