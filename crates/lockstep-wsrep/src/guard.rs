//! What keeps a Rust panic from crossing into the server.
//!
//! A panic of ours is caught at the border and fails the node. A C++ exception of the server's is not ours to catch:
//! it comes up through a callback (`wsrep::fatal_error`), and Rust's `catch_unwind` would abort the process at it with
//! a message about the wrong thing. So **no callback that may throw is ever called inside [`guarded`]**: the threads
//! that call back (`recv`, `replay_trx`) alternate between guarded steps and bare calls of the server, and a foreign
//! exception finds only destructors on its way out. The one callback inside is the logger, which does not throw.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic was caught: what it said.
#[derive(Debug)]
pub(crate) struct Panicked(pub(crate) String);

/// Runs `step`; a panic in it becomes an error.
///
/// The state it may leave behind is not trusted any more: the caller fails the node.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(step)).map_err(|payload| Panicked(text_of(&*payload)))
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
    fn a_panic_becomes_an_error_with_its_text() {
        assert_eq!(guarded(|| 7).unwrap(), 7);
        let caught = guarded(|| -> () { panic!("no {}", "way") }).unwrap_err();
        assert_eq!(caught.0, "no way");
    }
}
