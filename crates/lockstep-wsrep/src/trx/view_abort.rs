//! Keeps streaming transactions from ending by themselves while the server is in a view.
//!
//! In a view the server aborts its streaming transactions one after the other, and waits until each has ended
//! (`close_orphaned_sr_transactions` in wsrep-lib). Only a transaction that it has aborted reports its end. One that ends
//! by itself meanwhile, because its fragment failed or was given up, does not (`convert_streaming_client_to_applier`): the
//! view would never end. Therefore a transaction that fails during a view waits until the server has aborted it or the
//! view has ended. A view begins only after transactions that failed before it have ended.

use crate::sync::lock;
use lockstep_abi::TrxId;
use lockstep_node::core::Seqno;
use std::collections::HashSet;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long a view waits for transactions that have failed. After that it begins regardless: the client threads have been
/// without the processor for that long.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    /// The seqno of the view that the server is in. Only views in the log count.
    view: Option<Seqno>,
    /// The transactions with a failed fragment that the server has not rolled back yet.
    ending: HashSet<TrxId>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ViewAborts {
    state: Mutex<State>,
    ended: Condvar,
}

impl ViewAborts {
    /// The server is about to get this view of the log. Returns whether all failed transactions have ended.
    pub(crate) fn begin(&self, view: Seqno) -> bool {
        let mut state = lock(&self.state);
        state.view = Some(view);
        let waited = self.ended.wait_timeout_while(state, TIMEOUT, |state| !state.ending.is_empty());
        let (mut state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        // A transaction that has not ended by now is not waited for again.
        let all = state.ending.is_empty();
        state.ending.clear();
        all
    }

    /// The server has processed the view.
    pub(crate) fn end(&self) {
        lock(&self.state).view = None;
    }

    /// Whether the server is in a view.
    pub(crate) fn is_in(&self) -> bool {
        lock(&self.state).view.is_some()
    }

    /// A fragment of this transaction has failed. Returns the view to wait for, if the server is in one.
    pub(crate) fn fails(&self, id: TrxId) -> Option<Seqno> {
        let mut state = lock(&self.state);
        if state.view.is_none() {
            state.ending.insert(id);
        }
        state.view
    }

    /// The server rolls the transaction back, or has released it.
    pub(crate) fn ends(&self, id: TrxId) {
        let mut state = lock(&self.state);
        if state.ending.remove(&id) {
            self.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn view_begins_after_failed_transactions_have_ended() {
        let views = Arc::new(ViewAborts::default());
        assert_eq!((views.fails(1), views.fails(2)), (None, None));
        views.ends(1);
        let began = {
            let views = views.clone();
            std::thread::spawn(move || views.begin(7))
        };
        while !views.is_in() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(!began.is_finished());
        views.ends(2);
        assert!(began.join().unwrap());
        // A transaction that fails during the view waits for it.
        assert_eq!(views.fails(3), Some(7));
        views.ends(3);
        views.end();
        assert!(!views.is_in());
        assert!(views.begin(8), "nobody is left");
    }

    #[test]
    fn view_begins_after_timeout_if_transaction_does_not_end() {
        let (views, since) = (ViewAborts::default(), Instant::now());
        views.fails(1);
        assert!(!views.begin(7));
        assert!(since.elapsed() >= TIMEOUT);
        views.end();
        assert!(views.begin(8));
    }
}
