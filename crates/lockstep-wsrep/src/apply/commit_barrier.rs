//! Commits that stand still for a moment, so that equal snapshots can be taken on all members (`lockstep verify`): whose
//! turn it is waits, and so does everybody behind it in commit order. Executing, ordering and applying go on.

use crate::apply::monitor::{Gate, Interrupt, Stop};
use crate::provider::Provider;
use lockstep_node::CommitBarrier;
use lockstep_node::core::{SEQNO_UNDEFINED, Seqno};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Nobody stands for longer, though the node should have gone meanwhile, which lets all go on after 2.5 s.
const LONGEST: Duration = Duration::from_secs(4);

/// The gate behind the turn to commit.
pub(crate) struct CommitGate {
    pub(crate) gate: Gate,
    /// Somebody has gone on by itself since it was closed.
    broken: AtomicBool,
}

impl Default for CommitGate {
    fn default() -> CommitGate {
        CommitGate { gate: Gate::new(SEQNO_UNDEFINED), broken: AtomicBool::new(false) }
    }
}

impl CommitGate {
    /// Lets the seqno in turn pass, or makes it wait.
    pub(crate) fn pass(&self, seqno: Seqno, interrupt: Option<&Interrupt>) -> Result<(), Stop> {
        match self.gate.pass(seqno, interrupt, Some(LONGEST)) {
            Err(Stop::TimedOut) => {
                self.broken.store(true, Ordering::SeqCst);
                self.gate.open();
                Ok(())
            }
            other => other,
        }
    }
}

/// The node's end of it.
pub(crate) struct ProviderBarrier(Weak<Provider>);

impl ProviderBarrier {
    pub(crate) fn of(provider: &Arc<Provider>) -> ProviderBarrier {
        ProviderBarrier(Arc::downgrade(provider))
    }
}

impl CommitBarrier for ProviderBarrier {
    fn close(&self) -> Seqno {
        let Some(provider) = self.0.upgrade() else { return SEQNO_UNDEFINED };
        provider.hold.broken.store(false, Ordering::SeqCst);
        provider.hold.gate.close()
    }

    fn until(&self, seqno: Seqno) {
        if let Some(provider) = self.0.upgrade() {
            provider.hold.gate.until(seqno);
        }
    }

    fn open(&self) -> bool {
        let Some(provider) = self.0.upgrade() else { return false };
        let held = provider.hold.gate.is_closed() && !provider.hold.broken.load(Ordering::SeqCst);
        provider.hold.gate.open();
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_waits_at_barrier_with_bound() {
        let holding = Arc::new(CommitGate::default());
        holding.pass(1, None).unwrap();
        assert_eq!(holding.gate.close(), 1, "what has begun may end");
        let go = |seqno| {
            let holding = holding.clone();
            std::thread::spawn(move || holding.pass(seqno, None))
        };
        let (two, three) = (go(2), go(3));
        std::thread::sleep(Duration::from_millis(30));
        assert!(!two.is_finished() && !three.is_finished());
        holding.gate.until(2);
        two.join().unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert!(!three.is_finished());
        // Nobody comes to let it on.
        three.join().unwrap().unwrap();
        assert!(holding.broken.load(Ordering::SeqCst) && !holding.gate.is_closed());
    }
}
