//! Rollback fragments that are on their way. Nobody waits for them, so that nobody notices when one is given up because
//! the majority is lost: they are sent again when it is back, until they come back in their place.

use crate::apply::monitor::lock;
use lockstep_abi::TrxId;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a rollback fragment may take before it is sent again even though the majority was never lost. Each is a
/// barrier for every member, so that one that merely lags must not send many.
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

    /// That of this transaction has been sent.
    pub(crate) fn remember(&self, id: TrxId, data: &[u8]) {
        self.change(|open| open.insert(id, Open { data: data.to_vec(), sent: Instant::now() }));
    }

    /// That of this transaction has its place.
    pub(crate) fn ordered(&self, id: TrxId) {
        if self.are_open() {
            self.change(|open| open.remove(&id));
        }
    }

    /// None of them matters any more.
    pub(crate) fn clear(&self) {
        self.change(BTreeMap::clear);
    }

    /// Whether there are any.
    pub(crate) fn are_open(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Those that are to be sent again.
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
    fn missing_rollback_is_sent_repeatedly() {
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
