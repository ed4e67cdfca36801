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
    last: Mutex<Option<Confirmation>>,
}

impl Liveness {
    /// The last confirmation; `None`: there is no majority.
    pub(crate) fn note(&self, last: Option<Confirmation>) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
    }

    /// A copy with everything up to this seqno has the present state.
    pub(crate) fn confirmed(&self) -> Option<Seqno> {
        // The clock comes after the confirmation: this thread may be stopped between the two.
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.and_then(|last| confirmed_at(last, since_boot()))
    }
}

fn confirmed_at(last: Confirmation, now: Duration) -> Option<Seqno> {
    (now.saturating_sub(last.asked) <= LIVE_FOR).then_some(last.seqno)
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
        let last = Confirmation { asked, seqno };
        assert_eq!(confirmed_at(last, asked + LIVE_FOR), Some(7));
        assert_eq!(
            confirmed_at(last, asked + LIVE_FOR + Duration::from_millis(1)),
            None,
            "stopped, or cut off"
        );
        let liveness = Liveness::default();
        assert_eq!(liveness.confirmed(), None, "no confirmation yet");
        liveness.note(Some(Confirmation { asked: since_boot(), seqno }));
        assert_eq!(liveness.confirmed(), Some(7));
        liveness.note(None);
        assert_eq!(liveness.confirmed(), None);
    }
}
