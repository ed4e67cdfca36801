//! The clocks of a machine, and its name in traces.

use lockstep_core::Micros;
use std::fmt;

/// How a member is called in traces: by its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name(pub(crate) usize);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("n{}", self.0))
    }
}

/// A monotonic clock that began somewhere and runs a little fast or slow; it may jump ahead, as those of virtual
/// machines do. Its wall clock may be set to anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What it showed when it was last set, and when that was.
    pub(crate) shown: Micros,
    pub(crate) since: Micros,
    /// How many ppm it runs fast, plus a million.
    pub(crate) rate: u64,
    /// How far its wall clock is ahead of the true time.
    pub(crate) wall: i64,
}

impl Clock {
    /// Its time.
    pub(crate) fn local(&self, now: Micros) -> Micros {
        self.shown + now.saturating_sub(self.since) * self.rate / 1_000_000
    }

    /// When it will show this; never before.
    pub(crate) fn global(&self, local: Micros) -> Micros {
        self.since + (local.saturating_sub(self.shown)).saturating_mul(1_000_000).div_ceil(self.rate)
    }

    /// From now on it runs like this, having jumped ahead.
    pub(crate) fn set(&mut self, now: Micros, ahead: Micros, rate: u64) {
        (self.shown, self.since, self.rate) = (self.local(now) + ahead, now, rate);
    }

    /// Microseconds since 1970, as far as this machine knows.
    pub(crate) fn wall(&self, now: Micros) -> Micros {
        (1_700_000_000_000_000 + now).saturating_add_signed(self.wall)
    }
}
