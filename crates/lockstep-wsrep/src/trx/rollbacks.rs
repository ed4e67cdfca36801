//! Rollback fragments that have been sent and not been delivered yet. The thread that sends one does not wait for it, so
//! that a loss of the majority may drop one unnoticed. They are sent again when the majority is back, until they are
//! delivered. A causal read waits for those sent before it.

use crate::sync::lock;
use lockstep_abi::TrxId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a rollback fragment may take before it is sent again even though the majority was never lost. Each fragment is
/// a barrier on every member: a member that merely lags must not send many.
const REPEAT_ROLLBACKS: Duration = Duration::from_secs(60);

/// After how long a rollback fragment is sent again whose sending failed.
const REPEAT_UNSENT: Duration = Duration::from_secs(1);

/// A causal read waits no longer than this for rollbacks: they do not change what it promises about other transactions.
pub(crate) const LONGEST_READ: Duration = Duration::from_secs(2);

/// How often a waiting read looks whether it is to go on without the rollbacks.
const CHECK_READ: Duration = Duration::from_millis(50);

struct Open {
    data: Vec<u8>,
    /// When it was sent the first time.
    began: Instant,
    /// When it was sent the last time; `None` if that failed.
    sent: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Rollbacks {
    open: Mutex<BTreeMap<TrxId, Open>>,
    count: AtomicUsize,
    /// Fragments have been delivered or forgotten.
    closed: Condvar,
}

impl Rollbacks {
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<TrxId, Open>) -> T) -> T {
        let mut open = lock(&self.open);
        let result = change(&mut open);
        let before = self.count.swap(open.len(), Ordering::Relaxed);
        if open.len() < before {
            self.closed.notify_all();
        }
        result
    }

    /// The transaction's rollback fragment has been sent.
    pub(crate) fn remember(&self, id: TrxId, data: &[u8]) {
        let now = Instant::now();
        self.change(|open| {
            let began = open.get(&id).map_or(now, |before| before.began);
            open.insert(id, Open { data: data.to_vec(), began, sent: Some(now) });
        });
    }

    /// The transaction's rollback fragment could not be sent: it is due at once.
    pub(crate) fn sending_failed(&self, id: TrxId) {
        if let Some(open) = lock(&self.open).get_mut(&id) {
            open.sent = None;
        }
    }

    /// The transaction's rollback fragment has been ordered.
    pub(crate) fn ordered(&self, id: TrxId) {
        if self.are_open() {
            self.change(|open| open.remove(&id));
        }
    }

    /// Forgets all fragments.
    pub(crate) fn clear(&self) {
        self.change(BTreeMap::clear);
    }

    /// Whether a fragment has not been delivered yet.
    pub(crate) fn are_open(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Waits until all fragments that were sent before this call have been delivered: until `until`, for 2 s at most, and
    /// only while `may_wait`. Returns whether there were any, and all have been delivered.
    pub(crate) fn wait_delivered(&self, until: Instant, may_wait: impl Fn() -> bool) -> bool {
        if !self.are_open() {
            return false;
        }
        let begin = Instant::now();
        let until = until.min(begin + LONGEST_READ);
        let mut waited = false;
        let mut open = lock(&self.open);
        while open.values().any(|rollback| rollback.began <= begin) {
            waited = true;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !may_wait() {
                return false;
            }
            let woken = self.closed.wait_timeout(open, left.min(CHECK_READ));
            open = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        waited
    }

    /// After which time without a delivery to look for fragments to send again, if any are open.
    pub(crate) fn repeat_after(&self) -> Option<Duration> {
        if !self.are_open() {
            return None;
        }
        let unsent = lock(&self.open).values().any(|rollback| rollback.sent.is_none());
        Some(if unsent { REPEAT_UNSENT } else { REPEAT_ROLLBACKS })
    }

    /// The fragments to send again: those sent long ago or not at all, or `all`.
    pub(crate) fn due(&self, now: Instant, all: bool) -> Vec<(TrxId, Vec<u8>)> {
        let late = |open: &&mut Open| {
            all || open.sent.is_none_or(|sent| now.saturating_duration_since(sent) >= REPEAT_ROLLBACKS)
        };
        let mut open = lock(&self.open);
        let due = open.iter_mut().map(|(id, open)| (*id, open)).filter(|(_, open)| late(open));
        due.map(|(id, open)| {
            open.sent = Some(now);
            (id, open.data.clone())
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_is_repeated_until_delivered() {
        let rollbacks = Rollbacks::default();
        rollbacks.remember(7, b"why");
        rollbacks.remember(8, b"");
        let now = Instant::now();
        assert!(rollbacks.due(now, false).is_empty(), "they have just been sent");
        rollbacks.ordered(8);
        assert_eq!(rollbacks.due(now, true), [(7, b"why".to_vec())], "the majority is back");
        for round in 1..4 {
            let at = now + round * REPEAT_ROLLBACKS;
            assert_eq!(rollbacks.due(at, false), [(7, b"why".to_vec())]);
            assert!(rollbacks.due(at, false).is_empty(), "once is enough for now");
        }
        rollbacks.ordered(7);
        assert!(!rollbacks.are_open() && rollbacks.due(now + 9 * REPEAT_ROLLBACKS, false).is_empty());
    }

    #[test]
    fn rollback_whose_sending_failed_is_due_at_once() {
        let rollbacks = Rollbacks::default();
        assert_eq!(rollbacks.repeat_after(), None);
        rollbacks.remember(7, b"why");
        assert_eq!(rollbacks.repeat_after(), Some(REPEAT_ROLLBACKS));
        rollbacks.sending_failed(7);
        assert_eq!(rollbacks.repeat_after(), Some(REPEAT_UNSENT));
        let now = Instant::now();
        assert_eq!(rollbacks.due(now, false), [(7, b"why".to_vec())]);
        assert!(rollbacks.due(now, false).is_empty(), "it is being sent");
        rollbacks.sending_failed(7);
        assert_eq!(rollbacks.due(now, false), [(7, b"why".to_vec())]);
    }

    #[test]
    fn read_waits_for_earlier_rollbacks_only() {
        let rollbacks = Rollbacks::default();
        let late = || Instant::now() + Duration::from_secs(60);
        assert!(!rollbacks.wait_delivered(late(), || true), "there are none");
        rollbacks.remember(7, b"");
        std::thread::scope(|scope| {
            let read = scope.spawn(|| rollbacks.wait_delivered(late(), || true));
            std::thread::sleep(Duration::from_millis(50));
            rollbacks.remember(8, b"");
            rollbacks.ordered(7);
            assert!(read.join().unwrap(), "8 was sent later");
        });
        rollbacks.clear();
        assert!(!rollbacks.wait_delivered(late(), || true));
    }

    #[test]
    fn read_stops_waiting_for_rollbacks_that_do_not_arrive() {
        let rollbacks = Rollbacks::default();
        rollbacks.remember(7, b"");
        let waited = |until: Duration, may_wait: bool| {
            let begin = Instant::now();
            assert!(!rollbacks.wait_delivered(begin + until, || may_wait));
            begin.elapsed()
        };
        assert!(waited(Duration::from_secs(60), false) < Duration::from_secs(1), "not Primary");
        assert!(waited(Duration::from_millis(50), true) < Duration::from_secs(1), "its own timeout");
        let longest = waited(Duration::from_secs(60), true);
        assert!(longest >= LONGEST_READ && longest < 5 * LONGEST_READ, "{longest:?}");
    }

    #[test]
    fn rollback_sent_again_counts_as_sent_first() {
        let rollbacks = Rollbacks::default();
        rollbacks.remember(7, b"");
        std::thread::scope(|scope| {
            let read = scope
                .spawn(|| rollbacks.wait_delivered(Instant::now() + Duration::from_millis(500), || true));
            std::thread::sleep(Duration::from_millis(50));
            rollbacks.remember(7, b"again");
            assert!(!read.join().unwrap(), "it has not been delivered");
        });
    }
}
