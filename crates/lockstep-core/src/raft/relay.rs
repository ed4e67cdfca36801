//! Zone relays: entries for several members of another zone go to one of them, the relay, which forwards them.
//!
//! A line between zones is long and often narrow, so the same bytes should cross it once. All other messages go directly
//! between each member and the leader: acks, rejections, heartbeats, commit indices, snapshots, and entries that the
//! leader has to read from its disk.
//!
//! **Why it is safe.** A relayed message is an unchanged append of the term's leader. Within a term the leader's log,
//! commit index and persisted index only grow. So an append stays true for the whole term, however late or often it
//! arrives, and from any sender. A follower accepts it only in that term and with a known leader, and keeps it until
//! then; the usual checks of index and term follow. A late or former relay can only repeat true or obsolete appends. A
//! relayed append does not count as a heartbeat of the leader.
//!
//! **Order.** Entries now arrive on two paths and may overtake each other. So a follower does not reject a relayed append
//! without its predecessor, but keeps it (`early`). The leader detects a loss by comparison: the recipient makes no
//! progress while its relay does.
//!
//! **Failures.** The leader sends to a member directly, from its received index on, if its relay is disconnected, is still
//! catching up, or does not answer in time. It does the same if the member stays behind its relay for too long. Then the
//! leader excludes the relay from relaying if it reaches no recipient, otherwise the member. Each exclusion is longer. A
//! slow relay is replaced by a member with a shorter or faster path.
//!
//! **Invariants** of the leader's side (`replication/zones.rs`): a peer with `via` is in the state
//! `Replicate`; its relay is of its zone, and has no `via`.

use super::failpoints::Failpoint;
use super::local::{Local, Role};
use super::output::Outputs;
use crate::message::{Carried, Message};
use crate::types::*;
use std::collections::{BTreeMap, BTreeSet};

/// The follower's side of relaying: it forwards the leader's entries in its zone, and keeps relayed ones that arrive early.
///
/// **Invariant:** `early_bytes` is the sum over `early`.
#[derive(Debug, Default)]
pub(super) struct Relay {
    /// Connected members that understand relaying.
    able: BTreeSet<MemberId>,
    /// Bytes that wait in the transport for each recipient.
    queued: BTreeMap<MemberId, usize>,
    /// Appends whose predecessor is missing, by `prev_index`. All of our term.
    early: BTreeMap<Index, Carried>,
    early_bytes: usize,
    /// The highest commit index received from the leader of our term.
    commit: Index,
    /// Bytes of entries that this member has forwarded, summed over recipients.
    passed_on: u64,
}

impl Relay {
    /// A new term begins, without any append.
    pub(super) fn enter_term(&mut self, local: &Local) {
        self.commit = 0;
        if !local.is_active(Failpoint::RelayedOfAnyTerm) {
            self.early.clear();
            self.early_bytes = 0;
        }
    }

    /// A connected member understands relaying.
    pub(super) fn set_able(&mut self, id: MemberId) {
        self.able.insert(id);
    }

    pub(super) fn is_able(&self, id: &MemberId) -> bool {
        self.able.contains(id)
    }

    /// Sets the bytes that wait in the transport for this member.
    pub(super) fn set_queued(&mut self, id: MemberId, bytes: usize) {
        self.queued.insert(id, bytes);
    }

    /// The connection to this member is gone.
    pub(super) fn peer_down(&mut self, id: &MemberId) {
        self.able.remove(id);
        self.queued.remove(id);
    }

    /// Bytes of entries that this member has forwarded.
    pub(super) fn passed_on(&self) -> u64 {
        self.passed_on
    }

    /// Records the leader's commit index. Returns the highest one of its term.
    pub(super) fn receive_commit(&mut self, commit: Index) -> Index {
        self.commit = self.commit.max(commit);
        self.commit
    }

    /// Forwards the leader's entries to others of our zone: they need not be on our disk, nor fit our log.
    pub(super) fn pass_on(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        leader: MemberId,
        to: &[MemberId],
        carried: &Carried,
    ) {
        for (at, id) in to.iter().enumerate() {
            let most = local.config().max_inflight_bytes / 2;
            // If there is no connection, the leader finds out.
            if *id != leader
                && *id != local.id()
                && self.able.contains(id)
                && is_of_our_zone(local, id)
                && !to[..at].contains(id)
                && self.queued.get(id).is_none_or(|bytes| *bytes < most)
            {
                self.passed_on += bytes_of(&carried.entries) as u64;
                out.send(*id, Message::Relayed { term: local.term(), carried: carried.clone() });
            }
        }
    }

    /// Handles a relayed append. Returns the leader and the append if it can be processed now.
    pub(super) fn on_relayed(
        &mut self,
        local: &Local,
        from: MemberId,
        term: Term,
        carried: Carried,
    ) -> Option<(MemberId, Carried)> {
        let any_term = local.is_active(Failpoint::RelayedOfAnyTerm);
        let term = if any_term { local.term() } else { term };
        if !takes_relayed(local, from, term) || !local.log().exists() {
            return None;
        }
        // A follower that has lost its leader keeps relayed entries until it hears from the leader again.
        if let Some(leader) = local.leader().filter(|_| local.role() == Role::Follower)
            && follows_ours(local, &carried)
        {
            return Some((leader, carried));
        }
        self.keep(local, carried);
        None
    }

    /// Keeps an append whose predecessor is missing. Of duplicates it keeps the longer one; appends without new entries are
    /// dropped.
    fn keep(&mut self, local: &Local, carried: Carried) {
        let bytes = kept_bytes(&carried);
        let known = self.early.get(&carried.prev_index).map_or(0, kept_bytes);
        // A large one is kept if it is the only one.
        let most = local.config().max_inflight_bytes + known;
        let fits = self.early.is_empty() || self.early_bytes + bytes <= most;
        if fits && bytes > known && !carried.entries.is_empty() {
            self.early_bytes = self.early_bytes - known + bytes;
            self.early.insert(carried.prev_index, carried);
        }
        debug_assert!(
            self.early_bytes == self.early.values().map(kept_bytes).sum::<usize>(),
            "the sum covers each append"
        );
    }

    /// Takes a kept append that follows our log now.
    pub(super) fn next_early(&mut self, local: &Local) -> Option<Carried> {
        let end = local.log().last().max(local.commit());
        let mut at_our_end = self.early.range(..=end);
        let prev = at_our_end.find(|(_, carried)| follows_ours(local, carried)).map(|(prev, _)| *prev)?;
        let carried = self.early.remove(&prev)?;
        self.early_bytes -= kept_bytes(&carried);
        Some(carried)
    }
}

/// Whether a [`Message::Relayed`] of this member and term counts: the leader's own, or of a member of our zone, in our term.
pub(super) fn takes_relayed(local: &Local, from: MemberId, term: Term) -> bool {
    matches!(local.role(), Role::Follower | Role::PreCandidate)
        && term == local.term()
        && (local.leader() == Some(from) || is_of_our_zone(local, &from))
}

fn is_of_our_zone(local: &Local, id: &MemberId) -> bool {
    let zone_of = |id: &MemberId| local.membership().get(id).map(|m| m.zone);
    zone_of(id).is_some() && zone_of(id) == zone_of(&local.id())
}

fn follows_ours(local: &Local, carried: &Carried) -> bool {
    let log = local.log();
    carried.prev_index <= local.commit()
        || (carried.prev_index <= log.last() && log.term_at(carried.prev_index) == Some(carried.prev_term))
}

fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().map(Entry::size).sum()
}

/// The size of a kept append, in bytes.
fn kept_bytes(carried: &Carried) -> usize {
    64 + bytes_of(&carried.entries)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{follower, leader, member, with_entries};
    use super::*;

    fn carried(prev_index: Index, prev_term: Term) -> Carried {
        let longer = with_entries(leader(3), prev_index + 1);
        let (entries, _) = longer.log().slice(prev_index + 1, Index::MAX, usize::MAX);
        Carried { prev_index, prev_term, commit: 0, persisted: 0, entries }
    }

    #[test]
    fn relayed_append_without_predecessor_is_kept() {
        let (local, mut relay) = (follower(3, Some(member(2))), Relay::default());
        assert_eq!(relay.on_relayed(&local, member(3), local.term(), carried(2, 1)), None);
        assert_eq!(relay.next_early(&local), None);
        let local = with_entries(local, 2);
        assert_eq!(relay.next_early(&local), Some(carried(2, 1)));
        assert_eq!(relay.next_early(&local), None);
    }

    #[test]
    fn relayed_append_of_other_term_is_ignored() {
        let (local, mut relay) = (follower(3, Some(member(2))), Relay::default());
        assert_eq!(relay.on_relayed(&local, member(3), local.term() + 1, carried(0, 0)), None);
        assert_eq!(relay.next_early(&local), None);
    }

    #[test]
    fn entries_are_passed_on_to_able_members_only() {
        let (local, mut relay, mut out) = (follower(4, Some(member(2))), Relay::default(), Outputs::new());
        relay.set_able(member(3));
        relay.pass_on(
            &local,
            &mut out,
            member(2),
            &[member(2), member(3), member(3), member(4)],
            &carried(0, 0),
        );
        assert_eq!(out.take().len(), 1);
        relay.set_queued(member(3), local.config().max_inflight_bytes);
        relay.pass_on(&local, &mut out, member(2), &[member(3)], &carried(0, 0));
        assert!(out.take().is_empty(), "its line is full");
        assert!(relay.passed_on() > 0);
    }
}
