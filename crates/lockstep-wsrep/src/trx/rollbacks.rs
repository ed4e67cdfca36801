//! Rollback fragments that have been sent and not been delivered yet. No thread waits for them, so that a loss of the
//! majority may drop one unnoticed. They are sent again when the majority is back, until they are delivered.

use crate::sync::lock;
use lockstep_abi::TrxId;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a rollback fragment may take before it is sent again even though the majority was never lost. Each fragment is
/// a barrier on every member: a member that merely lags must not send many.
pub(crate) const REPEAT_ROLLBACKS: Duration = Duration::from_secs(60);

struct Open {
    data: Vec<u8>,
    sent: Instant,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Rollbacks {
    open: Mutex<BTreeMap<TrxId, Open>>,
    count: AtomicUsize,
}

impl Rollbacks {
    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<TrxId, Open>) -> T) -> T {
        let mut open = lock(&self.open);
        let result = change(&mut open);
        self.count.store(open.len(), Ordering::Relaxed);
        result
    }

    /// The transaction's rollback fragment has been sent.
    pub(crate) fn remember(&self, id: TrxId, data: &[u8]) {
        self.change(|open| open.insert(id, Open { data: data.to_vec(), sent: Instant::now() }));
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
}
