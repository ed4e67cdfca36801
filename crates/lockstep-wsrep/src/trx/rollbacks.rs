//! Rollback fragments that have been sent and not been delivered yet. The thread that sends one does not wait for it, so
//! that a loss of the majority may drop one unnoticed. They are sent again when the majority is back, until they are
//! delivered. A causal read waits for those sent before it.

use crate::sync::{Stop, lock};
use lockstep_abi::TrxId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a rollback fragment may take before it is sent again even though the majority was never lost. Each fragment is
/// a barrier on every member: a member that merely lags must not send many.
pub(crate) const REPEAT_ROLLBACKS: Duration = Duration::from_secs(60);

/// How often a waiting read looks whether the node has failed.
const CHECK_FAILED: Duration = Duration::from_millis(200);

struct Open {
    data: Vec<u8>,
    /// When it was sent the first time.
    began: Instant,
    sent: Instant,
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
        self.change(|open| open.insert(id, Open { data: data.to_vec(), began: now, sent: now }));
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

    /// Waits until all fragments that were sent before this call have been delivered. Returns whether there were any.
    pub(crate) fn wait_delivered(&self, until: Instant, failed: impl Fn() -> bool) -> Result<bool, Stop> {
        if !self.are_open() {
            return Ok(false);
        }
        let begin = Instant::now();
        let mut waited = false;
        let mut open = lock(&self.open);
        while open.values().any(|open| open.began <= begin) {
            waited = true;
            let left = until.saturating_duration_since(Instant::now());
            match () {
                () if failed() => return Err(Stop::Failed),
                () if left.is_zero() => return Err(Stop::TimedOut),
                () => {}
            }
            let woken = self.closed.wait_timeout(open, left.min(CHECK_FAILED));
            open = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(waited)
    }

    /// The fragments to send again: those sent long ago, or `all`.
    pub(crate) fn due(&self, now: Instant, all: bool) -> Vec<(TrxId, Vec<u8>)> {
        let late = |open: &&mut Open| all || now.saturating_duration_since(open.sent) >= REPEAT_ROLLBACKS;
        let mut open = lock(&self.open);
        let due = open.iter_mut().map(|(id, open)| (*id, open)).filter(|(_, open)| late(open));
        due.map(|(id, open)| {
            open.sent = now;
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
    fn read_waits_for_earlier_rollbacks_only() {
        let rollbacks = Rollbacks::default();
        let soon = || Instant::now() + Duration::from_millis(50);
        assert_eq!(rollbacks.wait_delivered(soon(), || false), Ok(false), "there are none");
        rollbacks.remember(7, b"");
        assert_eq!(rollbacks.wait_delivered(soon(), || false), Err(Stop::TimedOut));
        assert_eq!(rollbacks.wait_delivered(soon(), || true), Err(Stop::Failed));
        let late = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let read = scope.spawn(|| rollbacks.wait_delivered(late, || false));
            std::thread::sleep(Duration::from_millis(50));
            rollbacks.remember(8, b"");
            rollbacks.ordered(7);
            assert_eq!(read.join().unwrap(), Ok(true), "8 was sent later");
        });
        rollbacks.clear();
        assert_eq!(rollbacks.wait_delivered(soon(), || false), Ok(false));
    }
}
