//! What keeps a Rust panic from crossing into the server.
//!
//! A panic of ours is caught at the border and fails the node. A C++ exception of the server's is not ours to catch:
//! it comes up through a callback (`wsrep::fatal_error`), and Rust's `catch_unwind` would abort the process at it with
//! a message about the wrong thing. So **no callback that may throw is ever called inside [`guarded`]**: the threads
//! that call back (`recv`, `replay_trx`) alternate between guarded steps and bare calls of the server, and a foreign
//! exception finds only destructors on its way out. The one callback inside is the logger, which does not throw.

use crate::apply::monitor::lock;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The message of a caught panic.
#[derive(Debug)]
pub(crate) struct Panicked(pub(crate) String);

/// Runs `step`; a panic in it becomes an error.
///
/// The state it may leave behind is not trusted any more: the caller fails the node.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|payload| Panicked(text_of(&*payload)))
}

/// An error in the program that a test has asked for (`debug.panic`): where it is to be, once.
#[derive(Default)]
pub(crate) struct Planted {
    is: AtomicBool,
    place: Mutex<String>,
}

impl Planted {
    pub(crate) fn plant(&self, place: &str) {
        place.clone_into(&mut lock(&self.place));
        self.is.store(true, Ordering::Release);
    }

    /// Panics, if this is the place.
    pub(crate) fn here(&self, place: &str) {
        if self.is.load(Ordering::Relaxed)
            && *lock(&self.place) == place
            && self.is.swap(false, Ordering::AcqRel)
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
