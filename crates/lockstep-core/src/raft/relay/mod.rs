//! One copy for each zone: entries for several members of another zone go to one of them, the relay, who passes them on.
//!
//! A line between zones is long and often narrow, so the same bytes should cross it once. Everything else stays between
//! each member and the leader: acks, rejections, heartbeats, commit indices, snapshots, and entries that the leader has to
//! read from its disk.
//!
//! **Why it is safe.** A relayed message is an unchanged append of the term's leader. Within a term the leader's log, commit
//! index and persisted index only grow: so an append stays true for the whole term, however late or often it arrives, and
//! from any sender. A follower accepts it only in that term and with a known leader, and keeps it until then; the usual
//! checks of index and term follow. A late or former relay can only repeat true or obsolete appends. A relayed append does
//! not count as a heartbeat of the leader.
//!
//! **Order.** Entries now arrive on two paths and may overtake each other. So a follower does not reject a relayed append
//! without its predecessor, but keeps it (`early`). The leader detects a loss by comparison: the recipient makes no
//! progress while its relay does.
//!
//! **Failures.** The leader feeds a member itself, from its received index on, as soon as its relay is disconnected, is
//! still catching up, or does not answer in time; or as the member stays behind its relay for too long. The cause is
//! excluded from relaying for a while, longer each time: the relay, if it reaches no recipient. A slow relay is replaced by
//! a member with a shorter or faster path.
//!
//! **Invariants:** a peer with `via` is fed like one that replicates; its relay is of its zone, and has no `via`.

mod choose;
mod feed;
mod follow;
mod path;

pub(in crate::raft) use feed::Rider;
pub(in crate::raft) use path::{Path, Sent};

use super::failpoints::{Failpoint, Failpoints};
use super::*;
use crate::message::Carried;

/// The relaying of a member, whether it leads or follows.
#[derive(Debug, Default)]
pub(super) struct Relays {
    /// A leader relays.
    on: bool,
    /// Connected members that understand it.
    able: BTreeSet<MemberId>,
    /// Bytes that the transport has not got rid of, to whom we pass on.
    queued: BTreeMap<MemberId, usize>,
    /// What a leader remembers of the zones.
    zones: BTreeMap<u8, choose::Zone>,
    /// Appends whose predecessor is missing, by `prev_index`. All of our term.
    early: BTreeMap<Index, Carried>,
    early_bytes: usize,
    /// The highest commit index that the leader of our term has told of.
    commit: Index,
    /// Bytes of entries that we have passed on, to however many.
    passed_on: u64,
}

impl Relays {
    /// Another term: nothing has been said in it.
    pub(super) fn forget(&mut self, failpoints: Failpoints) {
        self.commit = 0;
        self.zones.clear();
        if !failpoints.is_active(Failpoint::RelayedOfAnyTerm) {
            self.early.clear();
            self.early_bytes = 0;
        }
    }

    /// The connection with it is gone.
    pub(super) fn lost(&mut self, id: &MemberId) {
        self.able.remove(id);
        self.queued.remove(id);
    }

    /// The highest commit index that the leader has told of.
    pub(super) fn hear_commit(&mut self, commit: Index) -> Index {
        self.commit = self.commit.max(commit);
        self.commit
    }
}

impl Raft {
    /// Whether this member, when it leads, sends one copy to each zone.
    pub fn set_relaying(&mut self, on: bool) {
        self.relays.on = on;
    }

    /// This member, which is connected, understands [`Message::Relay`] and [`Message::Relayed`]. Holds until it is lost.
    pub fn peer_relays(&mut self, id: MemberId) {
        self.relays.able.insert(id);
    }

    /// So many bytes wait in the transport for this member to take them. Where they are many, nothing more is passed on to it:
    /// the leader sees that it does not get on, and feeds it at the pace of its answers.
    pub fn set_queued(&mut self, id: MemberId, bytes: usize) {
        self.relays.queued.insert(id, bytes);
    }

    /// Bytes of entries that this member has passed on to others of its zone.
    pub fn relayed_bytes(&self) -> u64 {
        self.relays.passed_on
    }
}
