//! Streaming transactions, as seen by servers and as made by clients.

use super::World;
use super::server::Mark;
use crate::api::{Ordered, ViewInfo};
use lockstep_core::writeset::flags;
use lockstep_core::{Seqno, ViewUuid};
use std::collections::BTreeSet;

/// The view UUID of its origin, and its number.
pub(super) type Stream = (ViewUuid, u64);

/// The effect of a finished entry on streaming transactions.
#[derive(Clone, Debug)]
pub(super) enum StreamEffect {
    /// The members of a view, and whether this member is one.
    View(BTreeSet<ViewUuid>, bool),
    None,
    /// A fragment; whether it is the first.
    Fragment(Stream, bool),
    /// The last fragment; whether it commits or rolls back.
    Ends(Stream, bool),
}

impl StreamEffect {
    pub(super) fn of(ordered: &Ordered) -> StreamEffect {
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

    pub(super) fn of_view(info: &ViewInfo) -> StreamEffect {
        StreamEffect::View(info.members.iter().map(|m| m.view_uuid).collect(), info.my_index.is_some())
    }
}

/// A server's streaming transactions.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    pub(super) open: BTreeSet<Stream>,
    /// The members of the last Primary view in this process.
    seen: Option<BTreeSet<ViewUuid>>,
}

impl Streams {
    /// Starts a process with the database's streaming transactions.
    pub(super) fn begin(&mut self) {
        self.seen = None;
    }

    /// `own`: this member's view UUID.
    pub(super) fn finish(&mut self, effect: &StreamEffect, own: ViewUuid) -> Result<(), String> {
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

/// A client's streaming transaction.
pub(super) struct Client {
    at: usize,
    starts: u64,
    stream: Stream,
    /// The fragment under way.
    waits: Option<Mark>,
    /// The last fragment was not ordered: roll back.
    failed: bool,
    /// The seqno of the last fragment ordered.
    last: Seqno,
}

impl World {
    /// The flags and number of this member's next write: a further fragment of its streaming transaction or the first
    /// of a new one. It is a whole transaction while the fragment has to wait.
    pub(super) fn part(&mut self, at: usize, mark: Mark) -> (u32, u64) {
        let whole = (flags::TRX_START | flags::TRX_END, mark);
        let (starts, source) = (self.lab.nodes[at].setup.starts, self.lab.nodes[at].member.ctx.me.view_uuid);
        self.streaming.retain(|client| client.at != at || client.starts == starts);
        let Some(place) = self.streaming.iter().position(|client| client.at == at) else {
            let stream = (source, mark);
            let client = Client { at, starts, stream, waits: Some(mark), failed: false, last: 0 };
            self.streaming.push(client);
            return (flags::TRX_START, mark);
        };
        let Client { stream, waits, failed, last, .. } = self.streaming[place];
        let server = self.server(at);
        if waits.is_some() || server.finished < last {
            return whole;
        }
        if !server.streams.open.contains(&stream) {
            self.streaming.swap_remove(place);
            return whole;
        }
        self.streaming[place].waits = Some(mark);
        let flags = match self.rng.below(5) {
            _ if failed => flags::ROLLBACK | flags::PA_UNSAFE,
            0 => flags::ROLLBACK | flags::PA_UNSAFE,
            1 | 2 => flags::TRX_END,
            _ => 0,
        };
        (flags, stream.1)
    }

    /// A write was answered; `seqno` if it passed.
    pub(super) fn part_done(&mut self, mark: Mark, seqno: Option<Seqno>) {
        if let Some(client) = self.streaming.iter_mut().find(|client| client.waits == Some(mark)) {
            (client.waits, client.failed) = (None, seqno.is_none());
            client.last = seqno.unwrap_or(client.last);
            self.parts += 1;
        }
    }
}
