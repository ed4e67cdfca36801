//! Streaming transactions, as servers keep them and as clients make them.

use super::World;
use super::server::Mark;
use crate::api::{Ordered, ViewInfo};
use lockstep_core::writeset::flags;
use lockstep_core::{Seqno, ViewUuid};
use std::collections::BTreeSet;

/// Who its member was to the servers, and its number.
pub(super) type Stream = (ViewUuid, u64);

/// What a place does to them when it is finished.
#[derive(Clone, Debug)]
pub(super) enum Deed {
    /// Who is there, and whether this member is.
    View(BTreeSet<ViewUuid>, bool),
    /// Nothing.
    None,
    /// A part that commits nothing; whether it is the first.
    Fragment(Stream, bool),
    /// The last part commits all of it, or rolls it back.
    Ends(Stream, bool),
}

impl Deed {
    pub(super) fn of(ordered: &Ordered) -> Deed {
        let (meta, stream) =
            (&ordered.writeset.meta, (ordered.writeset.meta.source, ordered.writeset.meta.trx));
        match (meta.has(flags::TRX_START), meta.has(flags::TRX_END)) {
            _ if meta.has(flags::ROLLBACK) => Deed::Ends(stream, false),
            _ if !ordered.pass => Deed::None,
            (true, true) => Deed::None,
            (false, true) => Deed::Ends(stream, true),
            (first, false) => Deed::Fragment(stream, first),
        }
    }

    pub(super) fn of_view(info: &ViewInfo) -> Deed {
        Deed::View(info.members.iter().map(|m| m.view_uuid).collect(), info.my_index.is_some())
    }
}

/// What a server has of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    pub(super) open: BTreeSet<Stream>,
    /// Who was in the last Primary view that this process has been through.
    seen: Option<BTreeSet<ViewUuid>>,
}

impl Streams {
    /// A process begins with what its database has of them.
    pub(super) fn begin(&mut self) {
        self.seen = None;
    }

    /// `own`: who this member is to its server.
    pub(super) fn finish(&mut self, deed: &Deed, own: ViewUuid) -> Result<(), String> {
        match deed {
            Deed::None => {}
            Deed::Fragment(stream, first) => {
                if self.open.insert(*stream) != *first {
                    let is =
                        if *first { "begins, and is open here" } else { "goes on, and is not open here" };
                    return Err(format!("{stream:?} {is}"));
                }
            }
            Deed::Ends(stream, commits) => {
                if !self.open.remove(stream) && *commits {
                    return Err(format!("{stream:?} is committed, and has been rolled back here"));
                }
            }
            // As servers do (`close_orphaned_sr_transactions`): whose member has gone, and all where two views in a row have
            // the same members.
            Deed::View(members, with_me) => {
                let same = self.seen.replace(members.clone()).as_ref() == Some(members);
                self.open.retain(|(source, _)| {
                    !same && if *source == own { *with_me } else { members.contains(source) }
                });
            }
        }
        Ok(())
    }
}

/// One that a client makes.
pub(super) struct Client {
    at: usize,
    life: u64,
    stream: Stream,
    /// The part that is under way.
    waits: Option<Mark>,
    /// Its last part was not taken: it is to be rolled back.
    failed: bool,
    /// Where the last one is that was taken.
    last: Seqno,
}

impl World {
    /// The next part of a streaming transaction of this member's, the first of a new one, or a whole transaction where that
    /// has to wait: its flags and its number.
    pub(super) fn part(&mut self, at: usize, mark: Mark) -> (u32, u64) {
        let whole = (flags::TRX_START | flags::TRX_END, mark);
        let (life, source) = (self.lab.nodes[at].member.life, self.lab.nodes[at].engine.me.view_uuid);
        self.streaming.retain(|client| client.at != at || client.life == life);
        let Some(place) = self.streaming.iter().position(|client| client.at == at) else {
            let stream = (source, mark);
            let client = Client { at, life, stream, waits: Some(mark), failed: false, last: 0 };
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

    /// A write has been answered: where it is, if it passed.
    pub(super) fn part_done(&mut self, mark: Mark, seqno: Option<Seqno>) {
        if let Some(client) = self.streaming.iter_mut().find(|client| client.waits == Some(mark)) {
            (client.waits, client.failed) = (None, seqno.is_none());
            client.last = seqno.unwrap_or(client.last);
            self.parts += 1;
        }
    }
}
