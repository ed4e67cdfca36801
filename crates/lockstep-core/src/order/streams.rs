//! Fragments of streaming transactions that a view has overtaken.
//!
//! At a view every server rolls back the streaming transactions of those who are not in it, and all of them where it has
//! the members of the one before (`close_orphaned_sr_transactions` in wsrep-lib). A fragment that was under way meanwhile
//! would find nothing to go on from, and its origin, which rolls the transaction back at the view and has it played again
//! behind it, would wait for ever: the view for that client, the client for the view. Virtual synchrony, on which Galera's
//! library rests, knows no such fragment: what is sent in a view is delivered in it or not at all. Here the leader sees to
//! it: it places such a fragment as one that fails ([`writeset::overtaken`]), on all members, whatever their version.

use crate::codec::Reader;
use crate::members::View;
use crate::types::{Entry, EntryKind, Seqno, ViewUuid};
use crate::writeset;
use bytes::Bytes;
use std::collections::VecDeque;

/// Views further back than so many count as ends of all streaming transactions.
const VIEWS_KEPT: usize = 64;

/// What the views of a leader's log have ended.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Up to here it is not known any more: everything may have been ended.
    unknown_to: Seqno,
    /// The views above that, ascending.
    views: VecDeque<Ended>,
    /// Who is in the last one, ascending.
    members: Vec<ViewUuid>,
}

#[derive(Debug)]
struct Ended {
    seqno: Seqno,
    /// Whose streaming transactions go on; `None`: nobody's.
    goes_on: Option<Vec<ViewUuid>>,
}

impl Ends {
    /// A leader begins, with this view the last one in its log.
    pub(super) fn new(view: &View, seqno: Seqno) -> Ends {
        Ends { unknown_to: seqno, views: VecDeque::new(), members: uuids(view) }
    }

    /// The leader has placed a view.
    pub(super) fn viewed(&mut self, entry: &Entry) {
        let Ok(view) = View::decode(&mut Reader::new(entry.payload.clone())) else { return };
        let members = uuids(&view);
        let goes_on = (members != self.members).then(|| members.clone());
        self.members = members;
        self.views.push_back(Ended { seqno: entry.seqno, goes_on });
        if self.views.len() > VIEWS_KEPT
            && let Some(oldest) = self.views.pop_front()
        {
            self.unknown_to = oldest.seqno;
        }
    }

    /// What is to be placed for this payload of a write-set.
    pub(super) fn pass(&self, kind: EntryKind, payload: Bytes) -> Bytes {
        if kind == EntryKind::WriteSet
            && writeset::is_fragment(&payload)
            && let Some((source, last_seen)) = writeset::origin(&payload)
            && self.have_ended(&source, last_seen)
        {
            return writeset::overtaken(&payload);
        }
        payload
    }

    /// Whether a view above `last_seen` has ended what this one streams.
    fn have_ended(&self, source: &ViewUuid, last_seen: Seqno) -> bool {
        let ends = |view: &Ended| view.goes_on.as_ref().is_none_or(|who| who.binary_search(source).is_err());
        last_seen < self.unknown_to
            || self.views.iter().rev().take_while(|view| view.seqno > last_seen).any(ends)
    }
}

fn uuids(view: &View) -> Vec<ViewUuid> {
    let mut uuids: Vec<ViewUuid> = view.members.iter().map(|m| m.view_uuid).collect();
    uuids.sort_unstable();
    uuids
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
