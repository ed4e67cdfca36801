//! Which fragments of streaming transactions views have overtaken, or whose the last view has not got, worked out from the
//! committed log alone: a leader places these as ones that fail, and no others.

use bytes::Bytes;
use lockstep_core::codec::Reader;
use lockstep_core::members::View;
use lockstep_core::writeset::{self, WriteSet, flags};
use lockstep_core::{Entry, EntryKind, Seqno, ViewUuid};
use std::collections::BTreeSet;

/// The views of the committed log.
#[derive(Debug, Default)]
pub(crate) struct Views {
    /// Views by seqno: members, and whether the previous view had the same members.
    all: Vec<(Seqno, BTreeSet<ViewUuid>, bool)>,
}

/// The origin of a fragment, and the last view that its server had handled when it was proposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fragment {
    source: ViewUuid,
    last_seen: Seqno,
}

impl Fragment {
    /// `None` for a complete write-set. An unreadable payload may look like a fragment.
    pub(crate) fn of(kind: EntryKind, payload: &Bytes) -> Option<Fragment> {
        let Ok(WriteSet { meta, .. }) = WriteSet::parse(payload) else {
            let looks_like_one = kind == EntryKind::WriteSet && writeset::is_fragment(payload);
            let (source, last_seen) = writeset::origin(payload).filter(|_| looks_like_one)?;
            return Some(Fragment { source, last_seen });
        };
        let whole = meta.has(flags::TRX_START) && meta.has(flags::TRX_END);
        (kind == EntryKind::WriteSet && !whole && !meta.has(flags::ROLLBACK))
            .then_some(Fragment { source: meta.source, last_seen: meta.last_seen })
    }
}

/// Whether a fragment is marked as one that fails.
pub(crate) fn is_marked(payload: &Bytes) -> bool {
    writeset::origin(payload).is_some_and(|(_, last_seen)| last_seen == writeset::OVERTAKEN)
}

impl Views {
    /// The next committed entry.
    pub(crate) fn follow(&mut self, entry: &Entry) {
        if entry.kind != EntryKind::View {
            return;
        }
        let Ok(view) = View::decode(&mut Reader::new(entry.payload())) else { return };
        let members: BTreeSet<ViewUuid> = view.members.iter().map(|m| m.view_uuid).collect();
        let same = self.all.last().is_some_and(|(_, before, _)| *before == members);
        self.all.push((entry.seqno, members, same));
    }

    fn since(&self, fragment: Fragment) -> impl Iterator<Item = &(Seqno, BTreeSet<ViewUuid>, bool)> {
        self.all.iter().rev().take_while(move |(seqno, ..)| *seqno > fragment.last_seen)
    }

    /// Whether the last one has got who made it.
    fn list(&self, fragment: Fragment) -> bool {
        self.all.last().is_some_and(|(_, members, _)| members.contains(&fragment.source))
    }

    /// Whether it must fail: one has made the servers roll its transaction back, or the last one has not got who made it.
    pub(crate) fn have_ended(&self, fragment: Fragment) -> bool {
        !self.list(fragment)
            || self.since(fragment).any(|(_, members, same)| *same || !members.contains(&fragment.source))
    }
}
