//! How long an applier's thread works on a write-set, and how long it waits meanwhile: for a lock, a page, a flush of the
//! disk. By that is judged how many of them are of use at once (`lockstep-node`'s `crew.rs`).
//!
//! A thread that was only kept from the processor by others has not waited. So what counts as such is the time of each
//! stretch in which it gave up the processor by itself; the kernel knows how often it has.

use crate::sync::lock;
use lockstep_node::Spent;
use std::sync::Mutex;
use std::time::Instant;

#[derive(Debug, Default)]
struct Stretches {
    spent: Spent,
    /// Of the one under way: when it began, and how often the thread had given up the processor by then.
    since: Option<(Instant, i64)>,
}

/// Of one write-set. All calls come from the thread that has it.
#[derive(Debug, Default)]
pub(crate) struct BlockedTime {
    /// `None`: not measured, for asking the kernel takes time, too.
    stretches: Option<Mutex<Stretches>>,
}

impl BlockedTime {
    /// Measured or not; nothing is under way yet.
    pub(crate) fn new(measured: bool) -> BlockedTime {
        BlockedTime { stretches: measured.then(Mutex::default) }
    }

    /// Starts measuring the thread's waits.
    pub(crate) fn begin(&self) {
        if let Some(stretches) = &self.stretches {
            lock(stretches).since = given_up().map(|times| (Instant::now(), times));
        }
    }

    /// From here on it does not.
    pub(crate) fn end(&self) {
        if let Some(stretches) = &self.stretches {
            let mut stretches = lock(stretches);
            if let Some((began, before)) = stretches.since.take() {
                let waited = given_up().is_some_and(|times| times != before);
                let Spent { worked, waited: all } = &mut stretches.spent;
                *if waited { all } else { worked } += began.elapsed();
            }
        }
    }

    /// All of it.
    pub(crate) fn total(&self) -> Option<Spent> {
        self.stretches.as_ref().map(|stretches| lock(stretches).spent)
    }
}

/// How often this thread has given up the processor by itself.
fn given_up() -> Option<i64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call fills the whole struct, and any bytes are valid for it.
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
    fn only_sleep_between_begin_and_end_is_counted() {
        const NAP: Duration = Duration::from_millis(20);
        let waited = BlockedTime::new(true);
        waited.begin();
        std::thread::sleep(NAP);
        waited.end();
        let Spent { worked, waited: slept } = waited.total().unwrap();
        assert!(worked.is_zero() && slept >= NAP);
        std::thread::sleep(NAP);
        waited.end();
        waited.begin();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        waited.end();
        let spent = waited.total().unwrap();
        assert!(spent.worked >= Duration::from_millis(1) && spent.waited == slept);
    }

    #[test]
    fn unmeasured_time_is_none() {
        let waited = BlockedTime::new(false);
        waited.begin();
        waited.end();
        assert_eq!(waited.total(), None);
    }
}
