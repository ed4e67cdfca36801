//! One copy for each zone: entries for several members of another zone go to one of them, the relay, who passes them on.
//!
//! A line between zones is long and often narrow, so the same bytes should cross it once. Everything else stays between
//! each member and the leader: acks, refusals, heartbeats, the news of a commit, bases, and what a member lacks that the
//! leader has to read from its disk.
//!
//! **Why it is safe.** What is passed on is an append of the leader of its term, word for word. Within a term a leader's
//! log only grows, and so do its commit index and what its disk holds: what it said once stays true for the term,
//! however late it comes, how often, and by whom. So a follower takes it exactly while it is in that term and knows the
//! term's leader, and keeps it until it does; the same checks of index and term follow as for any append. A relay that is
//! late, or does not know that it is one no longer, can only repeat what is true or what nobody takes any more. It is no
//! sign of life of the leader's.
//!
//! **Order.** Entries may now come on two ways, and overtake each other. So those by relay are not refused when what they
//! follow is not there yet: the follower keeps them (`early`) until it is. Whether something was lost the leader sees by
//! comparing with the relay: it is the relay's neighbour who does not get on while the relay does.
//!
//! **When it does not work.** The leader feeds a member itself, beginning after what that has said it received, as soon
//! as its relay is not connected, is being brought to the end of the log, or has not answered for a moment; or as that member
//! has not got for a moment what its relay has. Who was the cause is left out for a while, longer each time: the relay, if it
//! reaches nobody. A relay that is merely slow is relieved by one to whom the way is shorter, or who may get more through.
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
    /// What came before what it follows, by that. All of our term.
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
