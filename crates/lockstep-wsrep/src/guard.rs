//! The guard that keeps Rust panics from crossing into the server.
//!
//! Entry points catch a Rust panic and fail the node. A C++ exception of the server (`wsrep::fatal_error`, thrown in a
//! callback) must pass: Rust's `catch_unwind` would abort the process at it, with a misleading message. So **no callback
//! that may throw is called inside [`guarded`]**. The threads that call back (`recv`, `replay_trx`) alternate between
//! guarded steps and unguarded calls of the server, and an exception meets only destructors on its way out. The only
//! callback inside is the logger, which does not throw.

use crate::sync::lock;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The message of a caught panic.
#[derive(Debug)]
pub(crate) struct Panicked(pub(crate) String);

/// Runs `step`; a panic in it becomes an error.
///
/// The panic may leave inconsistent state behind, so that the caller must fail the node.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|payload| Panicked(text_of(&*payload)))
}

/// A panic that a test requests (`debug.panic`): once, in the given place.
#[derive(Default)]
pub(crate) struct InjectedPanic {
    is_set: AtomicBool,
    place: Mutex<String>,
}

impl InjectedPanic {
    pub(crate) fn inject(&self, place: &str) {
        place.clone_into(&mut lock(&self.place));
        self.is_set.store(true, Ordering::Release);
    }

    /// Panics if this is the requested place.
    pub(crate) fn here(&self, place: &str) {
        if self.is_set.load(Ordering::Relaxed)
            && *lock(&self.place) == place
            && self.is_set.swap(false, Ordering::AcqRel)
        {
            panic!("debug.panic was set");
        }
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_error_with_its_text() {
        assert_eq!(guarded(|| 7).unwrap(), 7);
        let caught = guarded(|| -> () { panic!("no {}", "way") }).unwrap_err();
        assert_eq!(caught.0, "no way");
    }
}
