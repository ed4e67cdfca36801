//! Proposals: from the origin's outbox to the leader's log, each exactly once and in the origin's order.
//!
//! An origin numbers its proposals densely. The log itself holds the last number of each origin (its session), so a
//! leader accepts exactly the next number, and drops duplicates and numbers after a gap. When proposals may be lost, the
//! origin sends again from the last number that its own log or the leader reports. A proposal leaves the outbox when the
//! committed session has reached it.
//!
//! **Lost proposals.** With a new connection, messages on the old one may be lost. On a connection that stays up, the
//! origin sees only silence. Either the proposals are lost, or a slow line still carries them; then another copy would
//! only add to the load. So after an election timeout of silence the origin queries the leader, in a small message that
//! follows the proposals on the same connection. The reply comes after the proposals have arrived, or says which were
//! lost. Until then the origin sends nothing new, and repeats the query after each election timeout. The query is a
//! proposal with the number 0, which is never the next one of a session: every version refuses it with
//! [`Message::ProposeReply`].

use super::local::Local;
use super::output::Outputs;
use crate::message::{Message, Proposal};
use crate::snapshot::StateSnapshot;
use crate::types::*;
use bytes::Bytes;
use std::collections::VecDeque;

/// Bytes of proposals in flight to a new leader before the first confirmation.
const FIRST_WINDOW: u64 = 8 << 10;

#[derive(Debug)]
struct Item {
    proposal: Proposal,
    /// The sum of the sizes of all items up to this one, ever. So differences are distances in bytes.
    ends_at: u64,
}

/// **Invariants:** the items' numbers are dense, from `first`; `committed < first`; `sent <= ever_sent < first +
/// items.len()`.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    items: VecDeque<Item>,
    /// The number before the first item: all proposals up to here are committed.
    committed: u64,
    /// The last number that was sent to the leader of `term_of_leader`, or is in our own log.
    sent: u64,
    /// The leader, and its term, to which `sent` refers.
    term_of_leader: (Term, MemberId),
    /// The last number that was ever sent or appended. Up to here proposals cannot be withdrawn.
    ever_sent: u64,
    /// The last number in our own log, and since when it has not changed.
    logged: u64,
    logged_at: Micros,
    /// The last number that the leader of `term_of_leader` has reported. It holds these as long as it leads.
    held: u64,
    /// A query to the leader is unanswered, so nothing new is sent.
    asking: bool,
    /// The value of `sent` at the last query, or before proposals were last repeated. A reply with exactly this number does
    /// not mean a loss: later proposals may still be in flight.
    sent_before: Option<u64>,
    /// The last number from which a leader made us repeat, and when. It sends the same answer for each proposal after a gap.
    went_back: (u64, Micros),
    /// Nothing more is sent or appended in this incarnation.
    halted: bool,
    /// The last number that was delivered to our server before it was committed. If a leader lacks these proposals, they are
    /// lost. They are not sent again as new ones.
    given: u64,
    /// The bytes that may be in flight to this leader, and the number up to which it held our proposals when this window
    /// was last widened.
    window: (u64, u64),
    /// `ends_at` of the item before the first.
    begins_at: u64,
}

impl Outbox {
    /// Asserts the invariants of [`Outbox`].
    pub(super) fn assert_invariants(&self) {
        assert!(self.sent <= self.ever_sent, "sent {} <= ever sent {}", self.sent, self.ever_sent);
        assert!(self.ever_sent <= self.last(), "ever sent {} <= last {}", self.ever_sent, self.last());
        assert!(self.committed <= self.last(), "committed {} <= last {}", self.committed, self.last());
    }

    fn last(&self) -> u64 {
        self.committed + self.items.len() as u64
    }

    fn item(&self, number: u64) -> Option<&Item> {
        self.items.get(usize::try_from(number.checked_sub(self.committed + 1)?).ok()?)
    }

    fn ends_at(&self, number: u64) -> u64 {
        self.item(number).map_or(self.begins_at, |item| item.ends_at)
    }

    /// Takes a proposal. Returns its number.
    pub(super) fn push(&mut self, kind: EntryKind, payload: Bytes) -> u64 {
        debug_assert!(kind.may_be_proposed(), "a leader's own entries are not proposed");
        let size = (64 + payload.len()) as u64;
        let ends_at = self.items.back().map_or(self.begins_at, |item| item.ends_at) + size;
        self.items.push_back(Item { proposal: Proposal { kind, payload }, ends_at });
        self.last()
    }

    /// Nothing more of this incarnation gets into the log, as far as it depends on us.
    pub(super) fn halt(&mut self) {
        self.halted = true;
    }

    /// Our server has delivered this one before it was committed.
    pub(super) fn given(&mut self, number: u64) {
        self.given = self.given.max(number);
    }

    /// The log has grown, shrunk, or is committed further.
    pub(super) fn log_changed(&mut self, local: &Local) {
        let logged = logged(local);
        let committed = committed(local);
        while self.committed < committed
            && let Some(item) = self.items.pop_front()
        {
            self.committed += 1;
            self.begins_at = item.ends_at;
        }
        if logged != self.logged {
            // Where it has shrunk, the rest is to be sent again.
            if logged < self.logged {
                self.sent = self.sent.min(logged.max(self.held));
            }
            self.logged = logged;
            self.logged_at = local.now();
        }
        self.sent = self.sent.max(logged);
        self.ever_sent = self.ever_sent.max(self.sent);
    }

    /// A new connection to the leader: messages in flight are lost. Sends again every proposal that neither our own log nor
    /// the leader has reported.
    pub(super) fn connected(&mut self, local: &Local) {
        self.go_back(logged(local).max(self.held), local.now());
    }

    /// Sends again what comes after `number`.
    fn go_back(&mut self, number: u64, now: Micros) {
        self.sent_before = Some(self.sent);
        self.sent = number;
        self.asking = false;
        self.logged_at = now;
    }

    /// There is another leader, which has our proposals up to `number`, as far as we know, and to which little is sent at
    /// first. `held`: up to where it has said so itself.
    fn begin_term(&mut self, term_of_leader: (Term, MemberId), number: u64, held: u64, now: Micros) {
        self.term_of_leader = term_of_leader;
        self.sent = number;
        self.held = held;
        self.logged_at = now;
        self.window = (FIRST_WINDOW, self.ends_at(number));
        self.asking = false;
        self.sent_before = None;
    }

    /// Handles the reply of a leader whose log holds our proposals up to `number`.
    pub(super) fn on_reply(&mut self, local: &Local, leader: MemberId, number: u64) {
        let (term, now) = (local.term(), local.now());
        if number > self.last() {
            return;
        }
        if self.term_of_leader != (term, leader) {
            self.begin_term((term, leader), number, number, now);
            self.ever_sent = self.ever_sent.max(self.sent);
            return;
        }
        self.asking = false;
        // Answers may overtake each other.
        self.held = self.held.max(number);
        let number = self.held;
        if number < self.sent {
            let again = self.went_back.0 == number && now < self.went_back.1 + local.config().heartbeat;
            if !again && self.sent_before != Some(number) {
                self.went_back = (number, now);
                self.go_back(number.max(committed(local)), now);
            }
        } else {
            self.sent = number;
        }
        self.ever_sent = self.ever_sent.max(self.sent);
    }

    fn waits(&self, local: &Local) -> bool {
        self.sent > logged(local).max(self.held)
    }

    /// When the leader is to be asked which proposals have arrived.
    pub(super) fn deadline(&self, local: &Local) -> Micros {
        if self.waits(local) { self.logged_at + local.config().election_timeout } else { Micros::MAX }
    }

    /// Proposals that are not committed yet: how many, and their bytes.
    pub(super) fn outstanding(&self) -> (usize, usize) {
        let bytes = self.ends_at(self.last()) - self.begins_at;
        (self.items.len(), bytes as usize)
    }

    /// All proposals of this incarnation up to this number are committed.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// Drops the proposals that were never sent nor appended. Returns the first number dropped.
    pub(super) fn withdraw_unsent(&mut self) -> Option<u64> {
        let keep = self.ever_sent.max(self.committed);
        if keep >= self.last() {
            return None;
        }
        self.items.truncate((keep - self.committed) as usize);
        Some(keep + 1)
    }

    /// The next proposal that a leader appends to its own log, if there is one.
    pub(super) fn next_own(&self, local: &Local) -> Option<(EntryKind, ProposalId, Bytes)> {
        debug_assert!(local.is_leader(), "only a leader appends its own proposals");
        let number = logged(local) + 1;
        let item = self.item(number).filter(|_| !self.halted)?;
        let id = ProposalId { member: local.id(), incarnation: local.config().incarnation, number };
        let Proposal { kind, payload } = item.proposal.clone();
        local.log().tail().is_next(&id).then_some((kind, id, payload))
    }

    /// The own log has this proposal: its payload from now on shares the entry's memory, unless the leader changed it.
    pub(super) fn share(&mut self, number: u64, payload: Bytes) {
        let at = number.checked_sub(self.committed + 1).and_then(|at| usize::try_from(at).ok());
        if let Some(item) = at.and_then(|at| self.items.get_mut(at))
            && item.proposal.payload == payload
        {
            item.proposal.payload = payload;
        }
    }

    /// A leader has appended its own proposals.
    pub(super) fn own_appended(&mut self, local: &Local) {
        if !self.halted {
            self.term_of_leader = (local.term(), local.id());
            self.held = 0;
            self.log_changed(local);
        }
    }

    /// A follower sends what its leader has not received.
    pub(super) fn send(&mut self, local: &Local, out: &mut Outputs) {
        let Some(leader) = local.leader().filter(|_| !self.halted) else { return };
        debug_assert!(leader != local.id(), "a leader appends its proposals itself");
        if self.term_of_leader != (local.term(), leader) {
            self.begin_term((local.term(), leader), logged(local), 0, local.now());
        }
        self.sent = self.sent.max(self.committed);
        if self.sent >= self.last() || self.sent < self.given {
            return;
        }
        if !self.waits(local) {
            self.asking = false;
            self.logged_at = local.now();
        }
        if self.asking {
            return;
        }
        let logged = self.ends_at(logged(local));
        // A backlog that is sent to a new leader at once keeps our acks and answers behind it on a slow link, until this
        // leader, too, is given up. So little is sent at first, and as much more as has arrived.
        let (window, widened_at) = &mut self.window;
        *window = window.saturating_add(2 * logged.saturating_sub(*widened_at));
        *widened_at = logged.max(*widened_at);
        let window = (*window).min(local.config().max_inflight_bytes as u64);
        let most = local.config().max_append_bytes.min(usize::try_from(window).unwrap_or(usize::MAX));
        while self.sent < self.last() && self.ends_at(self.sent).saturating_sub(logged) < window {
            let first = self.sent + 1;
            let proposals = self.message_from(first, most);
            self.sent += proposals.len() as u64;
            self.ever_sent = self.ever_sent.max(self.sent);
            let (term, incarnation) = (local.term(), local.config().incarnation);
            out.send(leader, Message::Propose { term, incarnation, first, proposals });
        }
    }

    /// The proposals from `first` on that go in one message of at most `most` bytes: at least one.
    fn message_from(&self, first: u64, most: usize) -> Vec<Proposal> {
        let mut proposals = Vec::new();
        let mut bytes = 0;
        while let Some(item) = self.item(first + proposals.len() as u64) {
            let size = 64 + item.proposal.payload.len();
            // Proposals sent again end a message, so that the reply to duplicates has just the number `sent_before`.
            let sent_before = Some(first - 1 + proposals.len() as u64) == self.sent_before;
            if !proposals.is_empty() && (bytes + size > most || sent_before) {
                break;
            }
            bytes += size;
            proposals.push(item.proposal.clone());
        }
        proposals
    }

    /// After an election timeout without progress, asks the leader which proposals arrived.
    pub(super) fn tick(&mut self, local: &Local, out: &mut Outputs) {
        if local.now() < self.deadline(local) {
            return;
        }
        self.logged_at = local.now();
        let Some(leader) = local.leader().filter(|id| *id != local.id() && !self.halted) else { return };
        self.asking = true;
        self.sent_before = Some(self.sent);
        let question = Proposal { kind: EntryKind::Note, payload: Bytes::new() };
        let (term, incarnation) = (local.term(), local.config().incarnation);
        out.send(leader, Message::Propose { term, incarnation, first: 0, proposals: vec![question] });
    }
}

/// The last number of our session in this state.
fn session_number(state: &StateSnapshot, local: &Local) -> u64 {
    let session = state.sessions.get(&local.id());
    session.filter(|s| s.incarnation == local.config().incarnation).map_or(0, |s| s.number)
}

/// Up to here the own log holds our proposals.
fn logged(local: &Local) -> u64 {
    session_number(local.log().tail(), local)
}

/// Up to here our proposals are committed.
fn committed(local: &Local) -> u64 {
    session_number(local.log().committed(), local)
}

/// Tells a member the last number of its session in the log, from which it continues. `None`: it has no session.
pub(super) fn session_reply(local: &Local, id: &MemberId) -> Option<Message> {
    let session = local.log().tail().sessions.get(id)?;
    Some(Message::ProposeReply {
        term: local.term(),
        incarnation: session.incarnation,
        number: session.number,
    })
}

/// Refuses proposals of this incarnation: the log holds those up to the number replied.
pub(super) fn refusal(local: &Local, to: &MemberId, incarnation: u64) -> Message {
    let session = local.log().tail().sessions.get(to).filter(|session| session.incarnation == incarnation);
    let number = session.map_or(0, |session| session.number);
    Message::ProposeReply { term: local.term(), incarnation, number }
}

#[cfg(test)]
mod tests {
    use super::super::output::Output;
    use super::super::testing::{follower, leader, member};
    use super::*;

    fn push(outbox: &mut Outbox, n: usize) {
        for _ in 0..n {
            outbox.push(EntryKind::WriteSet, Bytes::from_static(b"w"));
        }
    }

    /// The messages sent: the first number and how many proposals.
    fn sent(out: &mut Outputs) -> Vec<(u64, usize)> {
        let message = |output| match output {
            Output::Send { message: Message::Propose { first, proposals, .. }, .. } => {
                (first, proposals.len())
            }
            other => panic!("no proposals: {other:?}"),
        };
        out.take().into_iter().map(message).collect()
    }

    #[test]
    fn proposals_go_to_leader_once() {
        let (local, mut out, mut outbox) = (follower(3, Some(member(2))), Outputs::new(), Outbox::default());
        push(&mut outbox, 3);
        outbox.send(&local, &mut out);
        assert_eq!(sent(&mut out), [(1, 3)]);
        outbox.send(&local, &mut out);
        assert_eq!(sent(&mut out), []);
        outbox.assert_invariants();
    }

    #[test]
    fn reply_with_lower_number_sends_rest_again() {
        let (local, mut out, mut outbox) = (follower(3, Some(member(2))), Outputs::new(), Outbox::default());
        push(&mut outbox, 3);
        outbox.send(&local, &mut out);
        out.take();
        outbox.on_reply(&local, member(2), 1);
        outbox.send(&local, &mut out);
        assert_eq!(sent(&mut out), [(2, 2)]);
    }

    #[test]
    fn silent_leader_is_asked_and_gets_nothing_new() {
        let (mut local, mut out) = (follower(3, Some(member(2))), Outputs::new());
        let mut outbox = Outbox::default();
        push(&mut outbox, 1);
        outbox.send(&local, &mut out);
        out.take();
        local.advance(local.config().election_timeout);
        outbox.tick(&local, &mut out);
        assert_eq!(sent(&mut out), [(0, 1)], "number 0 asks");
        push(&mut outbox, 1);
        outbox.send(&local, &mut out);
        assert_eq!(sent(&mut out), []);
    }

    #[test]
    fn only_unsent_proposals_can_be_withdrawn() {
        let (local, mut out, mut outbox) = (follower(3, Some(member(2))), Outputs::new(), Outbox::default());
        push(&mut outbox, 2);
        outbox.send(&local, &mut out);
        assert_eq!(outbox.withdraw_unsent(), None);
        push(&mut outbox, 1);
        assert_eq!((outbox.withdraw_unsent(), outbox.outstanding().0), (Some(3), 2));
    }

    #[test]
    fn halted_outbox_appends_nothing() {
        let (local, mut outbox) = (leader(1), Outbox::default());
        push(&mut outbox, 1);
        assert!(outbox.next_own(&local).is_some());
        outbox.halt();
        assert!(outbox.next_own(&local).is_none());
    }
}
