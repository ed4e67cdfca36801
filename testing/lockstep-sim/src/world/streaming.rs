//! Streaming transactions of clients.

use super::World;
use crate::server::Mark;
use crate::streams::Stream;
use lockstep_core::Seqno;
use lockstep_core::writeset::flags;

/// A client's streaming transaction.
pub(crate) struct Client {
    at: usize,
    life: u64,
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
    pub(crate) fn part(&mut self, at: usize, mark: Mark) -> (u32, u64) {
        let whole = (flags::TRX_START | flags::TRX_END, mark);
        let Some(process) = &self.nodes[at].process else { return whole };
        let (life, source) = (process.life, process.node.view_uuid());
        self.streaming.retain(|client| client.at != at || client.life == life);
        let Some(place) = self.streaming.iter().position(|client| client.at == at) else {
            let stream = (source, mark);
            let client = Client { at, life, stream, waits: Some(mark), failed: false, last: 0 };
            self.streaming.push(client);
            return (flags::TRX_START, mark);
        };
        let Client { stream, waits, failed, last, .. } = self.streaming[place];
        let server = &self.nodes[at].server;
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
    pub(crate) fn part_done(&mut self, mark: Mark, seqno: Option<Seqno>) {
        if let Some(client) = self.streaming.iter_mut().find(|client| client.waits == Some(mark)) {
            (client.waits, client.failed) = (None, seqno.is_none());
            client.last = seqno.unwrap_or(client.last);
        }
    }
}
