//! Whether a copy may answer for the whole group, by a clock that counts a suspended machine's time.
//!
//! Another member may become the primary at any time. So a [`Confirmation`] counts for [`LIVE_FOR`] after the question that it
//! rests on was asked, and the next primary takes no client for longer than that.

use crate::member::Confirmation;
use lockstep_core::Seqno;
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a confirmation counts, on every member: no option changes it. A primary whose copy was confirmed at `t` answers until
/// `t + LIVE_FOR`. A member that is promoted after `t` must take no client before then.
pub const LIVE_FOR: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    recent: Mutex<Vec<Confirmation>>,
}

impl Liveness {
    /// The last confirmations, the oldest first; none: there is no majority.
    pub(crate) fn note(&self, recent: &[Confirmation]) {
        let mut kept = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clear();
        kept.extend_from_slice(recent);
    }

    /// A copy with everything up to this seqno has the present state. It is the oldest confirmation that counts: a copy takes
    /// some time to get to the newest.
    pub(crate) fn confirmed(&self) -> Option<Seqno> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        // The clock comes after the confirmations: this thread may be stopped between the two.
        confirmed_at(&recent, since_boot())
    }
}

pub(crate) fn confirmed_at(recent: &[Confirmation], now: Duration) -> Option<Seqno> {
    recent.iter().find(|one| now.saturating_sub(one.asked) <= LIVE_FOR).map(|one| one.seqno)
}

/// The time since boot, with suspensions.
pub(crate) fn since_boot() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmation_counts_for_a_while_only() {
        let (asked, seqno) = (Duration::from_secs(10), 7);
        let later = Duration::from_millis(100);
        let recent = [Confirmation { asked, seqno }, Confirmation { asked: asked + later, seqno: 9 }];
        assert_eq!(confirmed_at(&recent, asked + LIVE_FOR), Some(7), "the oldest that counts");
        assert_eq!(confirmed_at(&recent, asked + LIVE_FOR + later), Some(9));
        let past = asked + LIVE_FOR + later + Duration::from_millis(1);
        assert_eq!(confirmed_at(&recent, past), None, "stopped, or cut off");
        let liveness = Liveness::default();
        assert_eq!(liveness.confirmed(), None, "no confirmation yet");
        liveness.note(&[Confirmation { asked: since_boot(), seqno }]);
        assert_eq!(liveness.confirmed(), Some(7));
        liveness.note(&[]);
        assert_eq!(liveness.confirmed(), None);
    }
}
