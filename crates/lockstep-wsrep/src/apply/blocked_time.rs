//! Blocked time: how long an applier works on a write-set, and how long it waits meanwhile for a lock, a page or a flush.
//! `lockstep-node`'s `applier_pool.rs` sets the number of concurrent appliers by it.
//!
//! A thread that was only kept from the processor has not waited. A measured span therefore counts as waiting if the thread
//! gave up the processor voluntarily during it; the kernel counts these context switches.

use crate::sync::lock;
use lockstep_node::Spent;
use std::sync::Mutex;
use std::time::Instant;

#[derive(Debug, Default)]
struct Spans {
    spent: Spent,
    /// The current span: its beginning, and the number of voluntary context switches by then.
    current: Option<(Instant, i64)>,
}

/// The measurement for one write-set. Only the thread that applies it calls.
#[derive(Debug, Default)]
pub(crate) struct BlockedTime {
    /// `None`: not measured, because asking the kernel takes time, too.
    spans: Option<Mutex<Spans>>,
}

impl BlockedTime {
    pub(crate) fn new(measured: bool) -> BlockedTime {
        BlockedTime { spans: measured.then(Mutex::default) }
    }

    /// Begins a span.
    pub(crate) fn begin(&self) {
        if let Some(spans) = &self.spans {
            lock(spans).current = voluntary_switches().map(|times| (Instant::now(), times));
        }
    }

    /// Ends the span.
    pub(crate) fn end(&self) {
        if let Some(spans) = &self.spans {
            let mut spans = lock(spans);
            if let Some((began, before)) = spans.current.take() {
                let waited = voluntary_switches().is_some_and(|times| times != before);
                let Spent { worked, waited: all } = &mut spans.spent;
                *if waited { all } else { worked } += began.elapsed();
            }
        }
    }

    /// The sum of all spans.
    pub(crate) fn total(&self) -> Option<Spent> {
        self.spans.as_ref().map(|spans| lock(spans).spent)
    }
}

/// The number of this thread's voluntary context switches.
fn voluntary_switches() -> Option<i64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the whole structure, whose zeroed bytes are valid already.
    let usage = unsafe {
        match libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) {
            0 => usage.assume_init(),
            _ => return None,
        }
    };
    Some(usage.ru_nvcsw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_sleep_within_span_counts_as_waiting() {
        const NAP: Duration = Duration::from_millis(20);
        let blocked = BlockedTime::new(true);
        blocked.begin();
        std::thread::sleep(NAP);
        blocked.end();
        let Spent { worked, waited: slept } = blocked.total().unwrap();
        assert!(worked.is_zero() && slept >= NAP);
        std::thread::sleep(NAP);
        blocked.end();
        blocked.begin();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        blocked.end();
        let spent = blocked.total().unwrap();
        assert!(spent.worked >= Duration::from_millis(1) && spent.waited == slept);
    }

    #[test]
    fn unmeasured_write_set_has_no_total() {
        let blocked = BlockedTime::new(false);
        blocked.begin();
        blocked.end();
        assert_eq!(blocked.total(), None);
    }
}
