//! Streaming transactions, and the view that the server is in.
//!
//! In a view the server rolls such transactions back one after the other: it aborts each, and waits until that has ended
//! (`close_orphaned_sr_transactions` in wsrep-lib). Only one that it has aborted tells it so. One that ends by itself
//! meanwhile, for its fragment has failed, or nobody knows what became of it, does not
//! (`convert_streaming_client_to_applier`), and the view, and all that comes after it, would wait for ever. So whoever fails
//! while the server is in a view is held until that has aborted it, or is over; and a view is not begun before those that
//! have failed just before have ended.

use crate::apply::monitor::lock;
use crate::provider::Provider;
use crate::trx::Trx;
use lockstep_abi::TrxId;
use lockstep_node::core::Seqno;
use std::collections::HashSet;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A view begins after this time even if some transactions have not ended: their client threads got no processor.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    /// The seqno of the log's view that the server is in.
    view: Option<Seqno>,
    /// Transactions with failed fragments that the server has not rolled back yet.
    ending: HashSet<TrxId>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ViewAborts {
    state: Mutex<State>,
    ended: Condvar,
}

impl ViewAborts {
    /// The server is about to be shown this view of the log. Whether all that had failed have ended.
    pub(crate) fn begin(&self, view: Seqno) -> bool {
        let mut state = lock(&self.state);
        state.view = Some(view);
        let waited = self.ended.wait_timeout_while(state, PATIENCE, |state| !state.ending.is_empty());
        let (mut state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        // Transactions that have not ended by now are not waited for again.
        let all = state.ending.is_empty();
        state.ending.clear();
        all
    }

    /// It is through.
    pub(crate) fn end(&self) {
        lock(&self.state).view = None;
    }

    /// Whether it is in one.
    pub(crate) fn is_in(&self) -> bool {
        lock(&self.state).view.is_some()
    }

    /// A fragment of this transaction has failed: it ends now, or this view is to be waited for.
    fn fails(&self, id: TrxId) -> Option<Seqno> {
        let mut state = lock(&self.state);
        if state.view.is_none() {
            state.ending.insert(id);
        }
        state.view
    }

    /// The server has begun to roll it back, or is done with it.
    pub(crate) fn ends(&self, id: TrxId) {
        let mut state = lock(&self.state);
        if state.ending.remove(&id) {
            self.ended.notify_all();
        }
    }
}

impl Provider {
    /// A view has ended the streaming transaction whose fragment has this seqno: returns when that view's handler, which may
    /// be still to come, has aborted it, or is through.
    pub(crate) fn wait_for_its_end(&self, trx: &Trx, seqno: Seqno) {
        let what = || format!("the fragment at seqno {seqno}, which a view has overtaken");
        let _ = self.wait_finished(seqno - 1, Some(&trx.interrupt), what);
    }

    /// A fragment of a streaming transaction has failed, for whatever reason: returns when its transaction may end.
    pub(crate) fn let_view_abort(&self, trx: &Trx) {
        if let Some(view) = self.in_view.fails(trx.id) {
            let what = || format!("transaction {}, whose fragment has failed during a view", trx.id);
            let _ = self.wait_finished(view, Some(&trx.interrupt), what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn view_begins_after_failed_trxs_have_ended() {
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
        // From now on they wait for it, and it does not wait for them.
        assert_eq!(views.fails(3), Some(7));
        views.ends(3);
        views.end();
        assert!(!views.is_in());
        assert!(views.begin(8), "nobody is left");
    }

    #[test]
    fn view_begins_after_timeout_in_any_case() {
        let (views, since) = (ViewAborts::default(), Instant::now());
        views.fails(1);
        assert!(!views.begin(7));
        assert!(since.elapsed() >= PATIENCE);
        views.end();
        assert!(views.begin(8));
    }
}
