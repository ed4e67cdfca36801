//! The leader: appends proposals, replicates to peers, checks its quorum and steps down.

use super::failpoints::Failpoint;
use super::relay::Rider;
use super::streams::Ends;
use super::*;
use crate::message::Carried;

/// What only a leader needs.
#[derive(Debug, Default)]
pub(super) struct Lead {
    /// When to speak next.
    next_heartbeat: Micros,
    /// Everybody gets a message at the end of this round.
    pub(super) speak: bool,
    /// The context of the last message to everybody: grows. Answers to it, or later ones, came after it was sent.
    pub(super) context: u64,
    /// A handing over, in progress.
    pub(super) transfer: Option<Transfer>,
    /// Peers that wait for nothing of their own are told of commits by then, if not with something else before.
    commit_due: Option<Micros>,
    /// The campaign was asked for by the leader of before.
    pub(super) campaign_is_transfer: bool,
    /// Streaming transactions ended by views.
    pub(super) ends: Ends,
}

/// Nothing is appended while it lasts, so that the heir can catch up.
#[derive(Debug)]
pub(super) struct Transfer {
    to: MemberId,
    /// After that we go on ourselves.
    deadline: Micros,
    told: bool,
}

/// How long a new commit index may wait for the next append. Under load this saves one message in three. Members that need
/// it at once (an origin, a causal read) get it at once.
const COMMIT_NEWS_WAIT: Micros = 1_000;

/// A leader's patience doubles so often at most.
const MOST_IN_VAIN: u32 = 4;

/// Bytes of entries that a probe may carry: most often it is right.
const PROBE_BYTES: usize = 64 << 10;

impl Lead {
    pub(super) fn deadline(&self) -> Micros {
        let own = self.transfer.as_ref().map_or(self.next_heartbeat, |t| t.deadline.min(self.next_heartbeat));
        self.commit_due.map_or(own, |due| due.min(own))
    }
}

impl Raft {
    pub(super) fn become_leader(&mut self) {
        self.role = Role::Leader;
        self.leader = Some(self.config.id);
        self.last_leader_contact = None;
        self.votes.clear();
        self.log.agree_up_to(self.log.last());
        let ends = Ends::new(&self.log.tail().view, self.log.tail().view_seqno);
        self.lead = Lead { next_heartbeat: self.now, context: 0, ends, ..Lead::default() };
        self.peers.clear();
        self.sync_peers();
        // It commits what our predecessors left.
        let first = match self.first_view() {
            Some((view, seqno)) => self.append_at(EntryKind::View, ProposalId::default(), view, seqno),
            None => {
                let id = bytes::Bytes::copy_from_slice(&self.config.id.0);
                self.append(EntryKind::Noop, ProposalId::default(), id)
            }
        };
        debug_assert!(first.is_ok());
        self.invite_proposals();
        self.broadcast_heartbeat();
    }

    /// Steps down.
    pub(super) fn step_down(&mut self) {
        debug_assert!(self.role == Role::Leader);
        self.peers.clear();
        self.lead.transfer = None;
        self.leader = None;
        self.last_leader_contact = None;
        self.role = Role::Follower;
        self.commit_policy.forget();
        self.reset_election_timer();
        self.fail_reads();
    }

    /// A member is in a newer term: we do not lead any more.
    pub(super) fn give_way(&mut self, from: MemberId, term: Term) {
        if self.log.tail().membership.get(&from).is_some() {
            self.become_follower(term, None);
        }
    }

    /// Everybody gets a message, with a new context, at the end of this round.
    pub(super) fn broadcast_heartbeat(&mut self) {
        self.lead.speak = true;
        self.lead.next_heartbeat = self.now + self.config.heartbeat;
    }

    pub(super) fn tick_leader(&mut self) {
        let alone = !self.quorum_active(self.now);
        if alone && !self.config.failpoints.is_active(Failpoint::NoCheckQuorum) {
            self.fruitless_terms = (self.fruitless_terms + 1).min(MOST_IN_VAIN);
            self.step_down();
            return;
        }
        if self.lead.transfer.as_ref().is_some_and(|t| t.deadline <= self.now) {
            self.lead.transfer = None;
            self.invite_proposals();
        }
        if self.lead.next_heartbeat <= self.now {
            self.broadcast_heartbeat();
        }
    }

    /// How long this member, when it leads, believes so without a majority's answers; bounded.
    pub fn quorum_timeout(&self) -> Micros {
        (self.config.election_timeout << self.fruitless_terms).max(self.leader_timeout)
    }

    /// Whether a majority of the voters has answered within the election timeout before `now`; within more, where our
    /// last terms of office ended in silence before they committed anything.
    ///
    /// A large proposal may take a line for longer than that time, and the answers behind it wait. Its origin sends it
    /// again to each new leader: with the same patience each time, there would be elections for ever.
    pub(super) fn quorum_active(&self, now: Micros) -> bool {
        let membership = &self.log.tail().membership;
        let patience = self.quorum_timeout();
        let heard = membership.voters().filter(|id| {
            *id == self.config.id
                || self.peers.get(id).is_some_and(|peer| now.saturating_sub(peer.last_heard) < patience)
        });
        heard.count() >= membership.majority()
    }

    /// How much of `bytes` a leader sends at once: a quarter for each own term of office that ended in silence before it
    /// committed anything. Perhaps a voter that it needs lacks more than the line carries in that time. Of a large message
    /// that comes after the term nothing is kept; small parts are, and their acks keep the leader in office.
    pub(super) fn after_vain_terms(&self, bytes: usize) -> usize {
        (bytes >> (2 * self.fruitless_terms)).max(bytes.min(PROBE_BYTES))
    }

    /// How many bytes may be in flight to a peer. After fruitless terms it begins with [`Raft::after_vain_terms`] and widens by
    /// twice the bytes that the peer has confirmed in this term. So on a long line a voter that lags far behind catches up at
    /// the line's speed, and on a narrow one at most that much is in flight in vain when the term ends.
    pub(super) fn window(&self, peer: &Progress) -> usize {
        let most = self.config.max_inflight_bytes;
        let widened = usize::try_from(peer.way.bytes_confirmed().saturating_mul(2)).unwrap_or(usize::MAX);
        self.after_vain_terms(most).saturating_add(widened).min(most)
    }

    /// Appends a proposal.
    ///
    /// # Errors
    /// As for [`Raft::append`].
    pub(super) fn append_proposal(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: bytes::Bytes,
    ) -> Result<Index, crate::codec::DecodeError> {
        let payload = match self.config.failpoints.is_active(Failpoint::OvertakenFragmentsPass) {
            true => payload,
            false => self.lead.ends.pass(kind, payload),
        };
        self.append(kind, proposal, payload)
    }

    /// Appends an entry of our own making or a proposal.
    ///
    /// # Errors
    /// Where the payload of a control entry cannot be read; nothing has changed then.
    pub(super) fn append(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: bytes::Bytes,
    ) -> Result<Index, crate::codec::DecodeError> {
        let seqno = self.log.tail().seqno.saturating_add(kind.takes_seqno() as i64);
        self.append_at(kind, proposal, payload, seqno)
    }

    fn append_at(
        &mut self,
        kind: EntryKind,
        proposal: ProposalId,
        payload: bytes::Bytes,
        seqno: Seqno,
    ) -> Result<Index, crate::codec::DecodeError> {
        let entry = Entry {
            index: self.log.tail().index + 1,
            term: self.term,
            kind,
            seqno,
            proposal,
            time: self.wall,
            payload,
        };
        let view = (kind == EntryKind::View).then(|| entry.clone());
        self.log.append(entry)?;
        if let Some(view) = view {
            self.lead.ends.viewed(&view);
        }
        self.log.agree_up_to(self.log.last());
        Ok(self.log.last())
    }

    /// The end of a leader's round.
    pub(super) fn lead_round(&mut self) {
        self.start_reads();
        let speak = std::mem::take(&mut self.lead.speak);
        if speak {
            self.lead.context += 1;
            self.stamp_reads();
        }
        if self.lead.commit_due.is_some_and(|due| due <= self.now) {
            self.lead.commit_due = Some(0);
        }
        let mut peers = std::mem::take(&mut self.peers);
        self.choose_relays(&mut peers);
        if peers.values().all(|peer| peer.via.is_none()) {
            peers.iter_mut().for_each(|(id, peer)| self.feed(*id, peer, speak, &mut []));
        } else {
            self.feed_zones(&mut peers, speak);
        }
        let untold = peers.values().any(|peer| self.has_news(peer));
        self.lead.commit_due = match self.lead.commit_due {
            Some(due) if untold && due > 0 => Some(due),
            _ => untold.then_some(self.now + COMMIT_NEWS_WAIT),
        };
        peers.retain(|_, peer| !self.has_left(peer));
        self.peers = peers;
        self.send_policy_met(speak);
        self.confirm_reads();
        self.hand_over();
        self.leave_if_removed();
    }

    /// `riders`: the relay recipients behind this peer.
    pub(super) fn feed(&mut self, id: MemberId, peer: &mut Progress, speak: bool, riders: &mut [Rider<'_>]) {
        let context = if speak { self.lead.context } else { 0 };
        let told = match peer.state {
            ProgressState::Probe => {
                if peer.probing && !speak {
                    return;
                }
                // A second probe, after silence, is a small one.
                let bytes = if peer.probing { 0 } else { PROBE_BYTES.min(self.config.max_append_bytes) };
                peer.probing = true;
                // Independent of heartbeats: a probe needs its own reply.
                let context = self.lead.context.max(1);
                self.send_entries(id, peer, bytes, context, &mut []).is_some()
            }
            ProgressState::Replicate => self.feed_ahead(id, peer, context, riders),
            ProgressState::Fetching(_) | ProgressState::Base(_) => false,
        };
        if !told {
            self.send_news(id, peer, speak);
        }
    }

    /// Tells a peer that gets no entries in this round what else it should know.
    pub(super) fn send_news(&mut self, id: MemberId, peer: &mut Progress, speak: bool) {
        let context = if speak { self.lead.context } else { 0 };
        self.note_known(&id, peer);
        let urgent = peer.proposed > peer.commit_told || self.lead.commit_due == Some(0);
        if speak || (urgent && self.has_news(peer)) {
            self.send_entries(id, peer, 0, context, &mut []);
        } else if self.disk.persisted() > peer.persisted_told
            && self.log.origins().get(&id).is_some_and(|last| *last > peer.persisted_told)
        {
            // It waits for acks, and ours is one.
            peer.persisted_told = self.disk.persisted();
            let message = self.ack(0);
            self.send(id, message);
        }
    }

    fn has_news(&self, peer: &Progress) -> bool {
        self.commit() > peer.commit_told && peer.state == ProgressState::Replicate
    }

    /// Where two make a majority, a voter that has persisted what it was told that we have, knows it to be committed.
    fn note_known(&self, id: &MemberId, peer: &mut Progress) {
        let tail = &self.log.tail();
        let both = tail.membership.is_voter(id) && tail.membership.is_voter(&self.config.id);
        if both && tail.membership.majority() == 2 && peer.matched >= tail.membership_index {
            peer.commit_told = peer.commit_told.max(peer.persisted_told.min(peer.matched).min(self.commit()));
        }
    }

    /// Sends all that the window allows. Whether anything was sent.
    fn feed_ahead(
        &mut self,
        id: MemberId,
        peer: &mut Progress,
        context: u64,
        riders: &mut [Rider<'_>],
    ) -> bool {
        let mut told = false;
        let (window, most) = self.limits(peer, !riders.is_empty());
        while peer.next <= self.log.last() && peer.window_open(window) {
            if peer.next < self.log.cached_from() && peer.next > self.log.base_index() {
                peer.state = ProgressState::Fetching(peer.next);
                self.outputs.push(Output::Fetch { to: id, from: peer.next, max_bytes: most });
                break;
            }
            let context = if told { 0 } else { context };
            match self.send_entries(id, peer, most, context, riders) {
                Some(n) if n > 0 => told = true,
                _ => break,
            }
        }
        peer.limited = !riders.is_empty() && peer.next <= self.log.last();
        told
    }

    /// Sends one append with the entries from `peer.next` on, as many as `max_bytes` and the memory give (none: a
    /// heartbeat); or the base, where the log does not reach back far enough. How many entries went; `None`: the base.
    fn send_entries(
        &mut self,
        id: MemberId,
        peer: &mut Progress,
        max_bytes: usize,
        context: u64,
        riders: &mut [Rider<'_>],
    ) -> Option<usize> {
        let prev_index = match peer.state {
            // Until it answers to the base, say only that we are there.
            ProgressState::Base(index) => index,
            // This may overtake entries sent through a relay, so start after those it has confirmed.
            _ if peer.via.is_some() && self.log.term_at(peer.received).is_some() => peer.received,
            _ => peer.next - 1,
        };
        let Some(prev_term) = self.log.term_at(prev_index) else {
            self.send_base(id, peer);
            return None;
        };
        let (entries, bytes) =
            if max_bytes == 0 { (Vec::new(), 0) } else { self.log.slice(peer.next, Index::MAX, max_bytes) };
        self.send_append(id, peer, prev_index, prev_term, entries, bytes, context, riders)
    }

    #[allow(clippy::too_many_arguments, reason = "a message's fields")]
    fn send_append(
        &mut self,
        id: MemberId,
        peer: &mut Progress,
        prev_index: Index,
        prev_term: Term,
        entries: Vec<Entry>,
        bytes: usize,
        context: u64,
        riders: &mut [Rider<'_>],
    ) -> Option<usize> {
        let n = entries.len();
        let mut to = Vec::new();
        if let Some(last) = entries.last() {
            let last = last.index;
            to = self.board(peer, riders, prev_index, last, bytes);
            // While probing, `next` stays: the answer moves it.
            if peer.state != ProgressState::Probe {
                peer.sent(last, bytes, self.now);
            }
        }
        if context != 0 {
            peer.context_leaves(context, self.now);
        }
        peer.commit_told = self.commit();
        let persisted = self.acknowledged();
        peer.persisted_told = persisted;
        let (term, commit) = (self.term, self.commit());
        let message = if to.is_empty() {
            Message::Append { term, prev_index, prev_term, commit, persisted, context, entries }
        } else {
            let carried = Carried { prev_index, prev_term, commit, persisted, entries };
            Message::Relay { term, to, context, carried }
        };
        self.send(id, message);
        Some(n)
    }

    fn send_base(&mut self, id: MemberId, peer: &mut Progress) {
        let Some(state) = self.log.base_for(peer.position) else { return };
        peer.probe(state.index + 1);
        peer.state = ProgressState::Base(state.index);
        peer.base_sent = self.now;
        let state = Box::new(state.clone());
        let message = Message::Snapshot { term: self.term, state, context: self.lead.context.max(1) };
        self.send(id, message);
    }

    /// The answer to [`Output::Fetch`]: the entries from `from` on, dense; none where they are gone.
    pub fn fetched(&mut self, now: Micros, to: MemberId, from: Index, entries: Vec<Entry>) {
        self.advance(now);
        if self.fetched_tail(to, from, &entries) {
            return;
        }
        let mut peers = std::mem::take(&mut self.peers);
        if let Some(peer) = peers.get_mut(&to)
            && peer.state == ProgressState::Fetching(from)
        {
            peer.state = ProgressState::Replicate;
            self.pass_on(to, peer, from, entries);
        }
        self.peers = peers;
    }

    fn pass_on(&mut self, to: MemberId, peer: &mut Progress, from: Index, mut entries: Vec<Entry>) {
        // Only what is ours: the node may have read before a truncation.
        let ours = |(n, e): (usize, &Entry)| {
            e.index == from.saturating_add(n as u64) && self.log.term_at(e.index) == Some(e.term)
        };
        let good = entries.iter().enumerate().take_while(|at| ours(*at)).count();
        entries.truncate(good);
        if entries.is_empty() {
            self.send_base(to, peer);
            return;
        }
        // An answer may have overtaken us.
        let known = usize::try_from(peer.next.saturating_sub(from)).unwrap_or(usize::MAX).min(entries.len());
        entries.drain(..known);
        let Some(first) = entries.first() else { return };
        if first.index != peer.next {
            return;
        }
        let prev_index = first.index - 1;
        let bytes = entries.iter().map(Entry::size).sum();
        match self.log.term_at(prev_index) {
            Some(prev_term) => {
                self.send_append(to, peer, prev_index, prev_term, entries, bytes, 0, &mut []);
            }
            None => self.send_base(to, peer),
        }
    }

    pub(super) fn on_peer_ack(
        &mut self,
        from: MemberId,
        persisted: Index,
        received: Index,
        finished: Seqno,
        context: u64,
    ) {
        let moment = self.moment();
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if context > self.lead.context.max(1) {
            return;
        }
        peer.heard(context, self.now);
        peer.matched = peer.matched.max(persisted);
        if received > peer.received {
            peer.received = received;
            peer.stuck_since = None;
        }
        peer.finished = peer.finished.max(finished);
        peer.answered(received, self.now, moment);
        match peer.state {
            ProgressState::Probe if received + 1 >= peer.next => {
                peer.resend(received + 1, self.lead.context + 1);
            }
            ProgressState::Base(index) if received >= index => peer.replicate(received + 1),
            ProgressState::Replicate | ProgressState::Fetching(_) => peer.next = peer.next.max(received + 1),
            _ => {}
        }
    }

    pub(super) fn on_reject(
        &mut self,
        from: MemberId,
        term: Term,
        prev_index: Index,
        hint: (Index, Term),
        position: Option<Seqno>,
        context: u64,
    ) {
        if self.role != Role::Leader || term < self.term {
            return;
        }
        if term > self.term {
            self.give_way(from, term);
            return;
        }
        if context > self.lead.context.max(1) {
            return;
        }
        let base_after = self.config.election_timeout;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.heard(context, self.now);
        peer.position = position;
        let stale = match peer.state {
            ProgressState::Probe => prev_index != peer.next - 1,
            ProgressState::Replicate | ProgressState::Fetching(_) => {
                // It has persisted these entries, so nothing before them is missing.
                prev_index >= peer.next
                    || (prev_index <= peer.matched && prev_index != 0)
                    || !peer.believes_rejections()
            }
            // The base may have been lost.
            ProgressState::Base(_) => self.now < peer.base_sent + base_after,
        };
        if stale {
            return;
        }
        peer.received = peer.matched;
        let try_at = match prev_index.checked_sub(1) {
            Some(before) if !matches!(peer.state, ProgressState::Base(_)) => {
                self.log.last_not_above(hint.0.min(before), hint.1).filter(|at| *at >= self.log.base_index())
            }
            _ => None,
        };
        let Some(try_at) = try_at else {
            let mut peers = std::mem::take(&mut self.peers);
            if let Some(peer) = peers.get_mut(&from) {
                self.send_base(from, peer);
            }
            self.peers = peers;
            return;
        };
        let next = try_at.max(peer.matched) + 1;
        let again = peer.state == ProgressState::Probe && next >= peer.next;
        peer.probe(next);
        // It contradicts itself; no hurry then.
        peer.probing = again;
    }

    pub(super) fn leader_peer_up(&mut self, id: MemberId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        // Messages in flight may be lost.
        let next = peer.next;
        peer.probe(next);
        // A reply to a message sent while it was disconnected is no measure of the round trip.
        peer.context_sent = (0, 0);
        if let Some(number) = self.session_of(&id) {
            self.send(id, number);
        }
    }

    pub(super) fn leader_peer_down(&mut self, id: MemberId) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let next = peer.received.max(peer.matched) + 1;
        peer.probe(next.min(peer.next));
        // Not before it is back, or at the next heartbeat.
        peer.probing = true;
    }

    /// Hands leadership to another voter, as soon as it holds all of our log; nothing is appended until then, or
    /// until an election timeout has passed.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn transfer_leadership(&mut self, now: Micros, to: MemberId) -> Result<(), TransferError> {
        self.advance(now);
        if self.role != Role::Leader {
            return Err(TransferError::NotLeader(NotLeader { leader: self.leader }));
        }
        if to == self.config.id {
            return Err(TransferError::Ourselves);
        }
        if !self.log.tail().membership.is_voter(&to) {
            return Err(TransferError::NotVoter);
        }
        if self.lead.transfer.as_ref().is_some_and(|t| t.to != to) {
            return Err(TransferError::Busy);
        }
        if self.lead.transfer.is_none() {
            let deadline = self.now + self.config.election_timeout;
            self.lead.transfer = Some(Transfer { to, deadline, told: false });
        }
        Ok(())
    }

    /// Tells the heir to campaign, once it can win.
    fn hand_over(&mut self) {
        let Some(transfer) = &mut self.lead.transfer else { return };
        let last = self.log.last();
        let ready = self.peers.get(&transfer.to).is_some_and(|peer| peer.received == last);
        if ready && !transfer.told {
            transfer.told = true;
            let to = transfer.to;
            self.send(to, Message::TimeoutNow { term: self.term });
        }
    }

    /// A leader that a committed entry has taken out of the voters has led up to here.
    fn leave_if_removed(&mut self) {
        let membership = &self.log.tail().membership;
        if membership.is_voter(&self.config.id) || self.log.tail().membership_index > self.commit() {
            return;
        }
        // Somebody who holds everything need not wait for an election timeout.
        let last = self.log.last();
        let heir =
            membership.voters().find(|id| self.peers.get(id).is_some_and(|peer| peer.received == last));
        if let Some(to) = heir {
            self.send(to, Message::TimeoutNow { term: self.term });
        }
        self.step_down();
    }

    /// Per-peer state; empty where we do not lead.
    pub fn progress(&self) -> Vec<PeerProgress> {
        let members = self.peers.iter().filter(|(_, peer)| peer.leaving.is_none());
        members
            .map(|(id, peer)| PeerProgress {
                id: *id,
                matched: peer.matched,
                received: peer.received,
                next: peer.next,
                finished: peer.finished,
                rtt: peer.rtt,
                last_heard: peer.last_heard,
                state: peer.state,
                via: peer.via,
            })
            .collect()
    }
}
