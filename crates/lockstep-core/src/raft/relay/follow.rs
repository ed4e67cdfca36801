//! The follower's side of relaying: it forwards the leader's entries in its zone, and accepts relayed ones.

use super::*;

fn bytes_of(entries: &[Entry]) -> usize {
    entries.iter().map(Entry::size).sum()
}

/// The size of a kept append, in bytes.
fn kept_bytes(carried: &Carried) -> usize {
    64 + bytes_of(&carried.entries)
}

impl Raft {
    /// To the others of our zone: it need not be on our disk, nor fit our log.
    pub(in crate::raft) fn pass_to_zone(&mut self, leader: MemberId, to: &[MemberId], carried: &Carried) {
        for (at, id) in to.iter().enumerate() {
            // Where there is no connection, the leader finds out.
            if *id != leader
                && *id != self.config.id
                && self.relays.able.contains(id)
                && self.is_of_our_zone(*id)
                && !to[..at].contains(id)
                && self.relays.queued.get(id).is_none_or(|bytes| *bytes < self.config.max_inflight_bytes / 2)
            {
                self.relays.passed_on += bytes_of(&carried.entries) as u64;
                let message = Message::Relayed { term: self.term, carried: carried.clone() };
                self.send(*id, message);
            }
        }
    }

    /// Whether a [`Message::Relayed`] of this member and term is one to look at: the leader's own, or of a member of our
    /// zone, in our term.
    pub fn takes_relayed(&self, from: MemberId, term: Term) -> bool {
        matches!(self.role, Role::Follower | Role::PreCandidate)
            && term == self.term
            && (self.leader == Some(from) || self.is_of_our_zone(from))
    }

    fn is_of_our_zone(&self, id: MemberId) -> bool {
        let membership = self.membership();
        let zone_of = |id: &MemberId| membership.get(id).map(|m| m.zone);
        zone_of(&id).is_some() && zone_of(&id) == zone_of(&self.config.id)
    }

    pub(in crate::raft) fn on_relayed(&mut self, from: MemberId, term: Term, carried: Carried) {
        let any_term = self.config.failpoints.is_active(Failpoint::RelayedOfAnyTerm);
        let term = if any_term { self.term } else { term };
        if !self.takes_relayed(from, term) || !self.log.exists() {
            return;
        }
        // A follower that has lost its leader keeps relayed entries until it hears from the leader again.
        if let Some(leader) = self.leader.filter(|_| self.role == Role::Follower)
            && self.follows_ours(&carried)
        {
            self.on_append(leader, 0, carried);
            self.take_early(leader);
            return;
        }
        self.keep(carried);
    }

    /// Keeps an append whose predecessor is missing. Of duplicates it keeps the longer one; appends without new entries are
    /// dropped.
    fn keep(&mut self, carried: Carried) {
        let bytes = kept_bytes(&carried);
        let known = self.relays.early.get(&carried.prev_index).map_or(0, kept_bytes);
        // A large one is kept where it is the only one.
        let fits = self.relays.early.is_empty()
            || self.relays.early_bytes + bytes <= self.config.max_inflight_bytes + known;
        if fits && bytes > known && !carried.entries.is_empty() {
            self.relays.early_bytes = self.relays.early_bytes - known + bytes;
            self.relays.early.insert(carried.prev_index, carried);
        }
    }

    fn follows_ours(&self, carried: &Carried) -> bool {
        carried.prev_index <= self.commit()
            || (carried.prev_index <= self.log.last()
                && self.log.term_at(carried.prev_index) == Some(carried.prev_term))
    }

    /// Takes what was kept and now follows our log.
    pub(in crate::raft) fn take_early(&mut self, leader: MemberId) {
        let next = |order: &Raft| {
            let mut at_our_end = order.relays.early.range(..=order.log.last().max(order.commit()));
            at_our_end.find(|(_, carried)| order.follows_ours(carried)).map(|(prev, _)| *prev)
        };
        while let Some(prev) = next(self)
            && let Some(carried) = self.relays.early.remove(&prev)
        {
            self.relays.early_bytes -= kept_bytes(&carried);
            self.on_append(leader, 0, carried);
        }
    }
}
