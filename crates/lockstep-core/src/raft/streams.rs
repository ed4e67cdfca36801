//! Fragments of streaming transactions that a view has overtaken.
//!
//! At a view every server rolls streaming transactions back ([`View::whose_streams_go_on`]). A fragment that was in flight
//! then would lack its predecessors. Its origin, which replays the transaction after the view, would deadlock: the view
//! waits for the client, the client for the view. Under virtual synchrony, as in Galera's library, there are no such
//! fragments: a message is delivered in the view in which it was sent, or not at all. Here the leader appends such a
//! fragment in a form that fails ([`writeset::overtaken`]) on members of every version.
//!
//! The leader does the same with fragments of a returned member that the last view does not list yet. If that member were
//! killed before a view lists it, its first view after the restart would lack its former identity and precede its
//! fragments. So it alone would roll them back.

use crate::codec::Reader;
use crate::members::View;
use crate::types::{Entry, EntryKind, Seqno, ViewUuid};
use crate::writeset;
use bytes::Bytes;
use std::collections::VecDeque;

/// Older views than this many count as the end of all streaming transactions.
const VIEWS_KEPT: usize = 64;

/// What the views of a leader's log have ended.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Up to here it is not known any more: everything may have been ended.
    unknown_to: Seqno,
    /// The views above that, ascending: where each is, and whose streaming transactions go on behind it.
    views: VecDeque<(Seqno, Vec<ViewUuid>)>,
    /// The last one.
    last: View,
}

impl Ends {
    /// A leader begins, with this view the last one in its log.
    pub(super) fn new(view: &View, seqno: Seqno) -> Ends {
        Ends { unknown_to: seqno, views: VecDeque::new(), last: view.clone() }
    }

    /// The leader has placed a view.
    pub(super) fn viewed(&mut self, entry: &Entry) {
        let Ok(view) = View::decode(&mut Reader::new(entry.payload())) else { return };
        self.views.push_back((entry.seqno, view.whose_streams_go_on(&self.last)));
        self.last = view;
        if self.views.len() > VIEWS_KEPT
            && let Some((oldest, _)) = self.views.pop_front()
        {
            self.unknown_to = oldest;
        }
    }

    /// The payload to append for this payload of a write-set.
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

    /// Whether a view above `last_seen` has ended what this one streams, or the last one has not got it.
    fn have_ended(&self, source: &ViewUuid, last_seen: Seqno) -> bool {
        let ends = |on: &Vec<ViewUuid>| on.binary_search(source).is_err();
        last_seen < self.unknown_to
            || self.last.members.iter().all(|m| m.view_uuid != *source)
            || self.views.iter().rev().take_while(|(seqno, _)| *seqno > last_seen).any(|(_, on)| ends(on))
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
mod tests;
