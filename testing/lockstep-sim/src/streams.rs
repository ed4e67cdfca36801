//! Streaming transactions, as a server sees them.

use lockstep_core::ViewUuid;
use lockstep_core::writeset::flags;
use lockstep_node::{Ordered, ViewInfo};
use std::collections::BTreeSet;

/// The view UUID of its origin, and its number.
pub(crate) type Stream = (ViewUuid, u64);

/// The effect of a finished entry on streaming transactions.
#[derive(Clone, Debug)]
pub(crate) enum StreamEffect {
    /// The members of a view, and whether this member is one.
    View(BTreeSet<ViewUuid>, bool),
    None,
    /// A fragment; whether it is the first.
    Fragment(Stream, bool),
    /// The last fragment; whether it commits or rolls back.
    Ends(Stream, bool),
}

impl StreamEffect {
    pub(crate) fn of(ordered: &Ordered) -> StreamEffect {
        let (meta, stream) =
            (&ordered.writeset.meta, (ordered.writeset.meta.source, ordered.writeset.meta.trx));
        match (meta.has(flags::TRX_START), meta.has(flags::TRX_END)) {
            _ if meta.has(flags::ROLLBACK) => StreamEffect::Ends(stream, false),
            _ if !ordered.pass => StreamEffect::None,
            (true, true) => StreamEffect::None,
            (false, true) => StreamEffect::Ends(stream, true),
            (first, false) => StreamEffect::Fragment(stream, first),
        }
    }

    pub(crate) fn of_view(info: &ViewInfo) -> StreamEffect {
        StreamEffect::View(info.members.iter().map(|m| m.view_uuid).collect(), info.my_index.is_some())
    }
}

/// A server's streaming transactions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams {
    pub(crate) open: BTreeSet<Stream>,
    /// The members of the last Primary view in this process.
    seen: Option<BTreeSet<ViewUuid>>,
}

impl Streams {
    /// Starts a process with the database's streaming transactions.
    pub(crate) fn begin(&mut self) {
        self.seen = None;
    }

    /// `own`: this member's view UUID.
    pub(crate) fn finish(&mut self, effect: &StreamEffect, own: ViewUuid) -> Result<(), String> {
        match effect {
            StreamEffect::None => {}
            StreamEffect::Fragment(stream, first) => {
                if self.open.insert(*stream) != *first {
                    let is =
                        if *first { "begins, and is open here" } else { "goes on, and is not open here" };
                    return Err(format!("{stream:?} {is}"));
                }
            }
            StreamEffect::Ends(stream, commits) => {
                if !self.open.remove(stream) && *commits {
                    return Err(format!("{stream:?} is committed, and has been rolled back here"));
                }
            }
            // As servers do (`close_orphaned_sr_transactions`): roll back streams whose origin is gone, and all of them
            // after two successive views with the same members.
            StreamEffect::View(members, with_me) => {
                let same = self.seen.replace(members.clone()).as_ref() == Some(members);
                self.open.retain(|(source, _)| {
                    !same && if *source == own { *with_me } else { members.contains(source) }
                });
            }
        }
        Ok(())
    }
}
