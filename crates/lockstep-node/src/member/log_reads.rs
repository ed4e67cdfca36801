//! Reads from the own log that failed: repeated for some seconds, then given up.
//!
//! A disk may fail to answer for a moment. Damaged bytes stay as they are, so such a read is not repeated.

use crate::effect::{ReadFailure, ReadRequest};
use lockstep_core::Micros;

/// The pause before the first repetition. Each further one is twice as long.
const FIRST_PAUSE: Micros = 100_000;
/// A read is given up after this many repetitions: 6.3 s of pauses.
const REPETITIONS: u32 = 6;
/// The pause before the repetition that may follow: leadership can move meanwhile.
const LAST_PAUSE: Micros = 5_000_000;

/// The decision after a failed read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) enum AfterFailure {
    /// The read is repeated after a pause. `first`: it had not failed before.
    Repeat { first: bool },
    /// The log cannot be read.
    GiveUp,
}

#[derive(Debug)]
struct Failed {
    request: ReadRequest,
    /// How often it has failed.
    times: u32,
    /// When to repeat it; `None` while it is being read.
    again_at: Option<Micros>,
    /// It was to be given up once, and is tried for the last time.
    is_last: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct LogReads {
    /// One for each receiver at most.
    failed: Vec<Failed>,
}

impl LogReads {
    /// A read succeeded.
    pub(in crate::member) fn succeeded(&mut self, request: &ReadRequest) {
        self.failed.retain(|failed| failed.request.whom != request.whom);
    }

    /// A read failed.
    pub(in crate::member) fn failed(
        &mut self,
        now: Micros,
        request: ReadRequest,
        failure: &ReadFailure,
    ) -> AfterFailure {
        let before = self.failed.iter().find(|failed| failed.request.whom == request.whom);
        let times = before.map_or(0, |failed| failed.times) + 1;
        if failure.damaged || times > REPETITIONS {
            return AfterFailure::GiveUp;
        }
        self.succeeded(&request);
        let again_at = Some(now + (FIRST_PAUSE << (times - 1)));
        self.failed.push(Failed { request, times, again_at, is_last: false });
        AfterFailure::Repeat { first: times == 1 }
    }

    /// Repeats a read that would be given up, once. Returns whether it was not repeated like this before.
    pub(in crate::member) fn try_once_more(&mut self, now: Micros, request: ReadRequest) -> bool {
        let was_last = self.failed.iter().any(|failed| failed.request.whom == request.whom && failed.is_last);
        self.succeeded(&request);
        if !was_last {
            let again_at = Some(now + LAST_PAUSE);
            self.failed.push(Failed { request, times: REPETITIONS, again_at, is_last: true });
        }
        !was_last
    }

    /// The reads to repeat now.
    pub(in crate::member) fn take_due(&mut self, now: Micros) -> impl Iterator<Item = ReadRequest> + '_ {
        let due = self.failed.iter_mut().filter(move |failed| failed.again_at.is_some_and(|at| at <= now));
        due.map(|failed| {
            failed.again_at = None;
            failed.request
        })
    }

    /// When the next repetition is due.
    pub(in crate::member) fn deadline(&self) -> Micros {
        self.failed.iter().filter_map(|failed| failed.again_at).min().unwrap_or(Micros::MAX)
    }
}

#[cfg(test)]
#[path = "log_reads_tests.rs"]
mod tests;
