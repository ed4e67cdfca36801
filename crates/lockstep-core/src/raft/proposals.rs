//! Proposals: from the origin's outbox to the leader's log, each exactly once and in the origin's order.
//!
//! An origin numbers its proposals densely. The log itself holds the last number of each origin (its session), so a
//! leader accepts exactly the next number, and drops duplicates and numbers after a gap. When proposals may be lost, the
//! origin sends again from the last number that its own log or the leader reports. A proposal leaves the outbox when the
//! committed session has reached it.
//!
//! **When something may have been lost.** With a new connection, messages on the old one may be lost. On a connection that
//! stays up, the origin sees only silence: the proposals are lost, or the line needs long for a large one, and each
//! further copy would make it need longer. So after an election timeout of silence the origin asks the leader, in a
//! small message that follows the proposals on the same connection. The reply comes after the proposals have arrived,
//! or says which were lost. Until then the origin sends nothing new, and asks again after each election timeout. The
//! question is a proposal with the number 0, which is never the next one of a session: every version refuses it with
//! [`Message::ProposeReply`].

use super::failpoints::Failpoint;
use super::*;
use crate::message::Proposal;
use bytes::Bytes;
use std::collections::VecDeque;

/// Bytes of proposals that go to a new leader before it is known that any have arrived.
const FIRST_WINDOW: u64 = 8 << 10;

#[derive(Debug)]
struct Item {
    kind: EntryKind,
    payload: Bytes,
    /// Sum of the sizes of all items ever up to this one: distances in bytes are differences.
    ends_at: u64,
}

/// **Invariants:** the items' numbers are dense, from `first`; `committed < first`; `sent <= ever_sent < first +
/// items.len()`.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    items: VecDeque<Item>,
    /// The number of the first item, less one: all up to here are committed.
    committed: u64,
    /// Up to here they were sent to the leader of `term_of_leader` (or lie in our own log).
    sent: u64,
    /// Whom `sent` is about.
    term_of_leader: (Term, MemberId),
    /// Up to here they were ever sent or appended: cannot be taken back.
    ever_sent: u64,
    /// Up to here our own log holds them, and since when that has not moved.
    logged: u64,
    logged_at: Micros,
    /// Up to here the leader of `term_of_leader` has said that it holds them: as long as it leads, it does.
    held: u64,
    /// A question to the leader is unanswered: nothing new is sent.
    asking: bool,
    /// The value of `sent` when the leader was last asked, or before proposals were last sent again. A reply with exactly
    /// this number is no sign of a loss: proposals after it were sent later, and may be on their way.
    sent_before: Option<u64>,
    /// The last number that a leader sent us back to, and when: its answers to all that followed a gap say the same.
    went_back: (u64, Micros),
    /// Nothing is sent or appended any more in this life.
    halted: bool,
    /// Up to here our server has taken them for committed. A leader that does not have them has lost them: they are not
    /// sent again, as if they were new.
    given: u64,
    /// Bytes that may be on their way to this leader, and up to where its log was known to hold our proposals when that
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

    fn push(&mut self, kind: EntryKind, payload: Bytes) -> u64 {
        let size = (64 + payload.len()) as u64;
        let ends_at = self.items.back().map_or(self.begins_at, |item| item.ends_at) + size;
        self.items.push_back(Item { kind, payload, ends_at });
        self.last()
    }

    /// Nothing more of this life gets into the log, as far as it depends on us.
    pub(super) fn halt(&mut self) {
        self.halted = true;
    }

    /// Our server has delivered this one before it was committed.
    pub(super) fn given(&mut self, number: u64) {
        self.given = self.given.max(number);
    }

    /// The log has grown, shrunk, or is committed further.
    pub(super) fn log_changed(&mut self, log: &Log, config: &Config, now: Micros) {
        let logged = session_number(log.tail(), config);
        let committed = session_number(log.committed(), config);
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
            self.logged_at = now;
        }
        self.sent = self.sent.max(logged);
        self.ever_sent = self.ever_sent.max(self.sent);
    }

    /// A new connection to the leader: messages in flight are lost. Sends again every proposal that neither our own log nor
    /// the leader has reported.
    pub(super) fn connected(&mut self, log: &Log, config: &Config, now: Micros) {
        self.go_back(session_number(log.tail(), config).max(self.held), now);
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

    /// The leader's log holds our proposals up to `number`.
    pub(super) fn told(
        &mut self,
        number: u64,
        log: &Log,
        config: &Config,
        term: Term,
        leader: MemberId,
        now: Micros,
    ) {
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
            let again = self.went_back.0 == number && now < self.went_back.1 + config.heartbeat;
            if !again && self.sent_before != Some(number) {
                self.went_back = (number, now);
                self.go_back(number.max(session_number(log.committed(), config)), now);
            }
        } else {
            self.sent = number;
        }
        self.ever_sent = self.ever_sent.max(self.sent);
    }

    fn waits(&self, log: &Log, config: &Config) -> bool {
        self.sent > session_number(log.tail(), config).max(self.held)
    }

    pub(super) fn deadline(&self, log: &Log, config: &Config) -> Micros {
        if self.waits(log, config) { self.logged_at + config.election_timeout } else { Micros::MAX }
    }
}

/// Our last number in this state.
fn session_number(state: &StateSnapshot, config: &Config) -> u64 {
    state.sessions.get(&config.id).filter(|s| s.incarnation == config.incarnation).map_or(0, |s| s.number)
}

impl Raft {
    /// Takes a proposal; it is sent, or appended, at the end of the round, and again after a change of leader, until
    /// it is committed. Returns its number.
    pub fn propose(&mut self, now: Micros, kind: EntryKind, payload: Bytes) -> u64 {
        self.advance(now);
        debug_assert!(kind.may_be_proposed(), "a leader's own entries are not proposed");
        self.outbox.push(kind, payload)
    }

    /// Begins a new incarnation: earlier proposals are no longer sent (the log may have them all the same), and numbers
    /// restart. No effect unless `incarnation` exceeds the previous one.
    pub fn renew(&mut self, incarnation: u64) {
        if incarnation > self.config.incarnation {
            self.config.incarnation = incarnation;
            self.outbox = Outbox::default();
        }
    }

    /// Proposals that are not committed yet: how many, and their bytes.
    pub fn outstanding(&self) -> (usize, usize) {
        let bytes = self.outbox.ends_at(self.outbox.last()) - self.outbox.begins_at;
        (self.outbox.items.len(), bytes as usize)
    }

    /// All proposals of this life up to this number are committed.
    pub fn committed_proposal(&self) -> u64 {
        self.outbox.committed
    }

    /// Drops the proposals that were never sent nor appended: they can never be committed. Returns the first number
    /// dropped; that number and those after it will be given again.
    pub fn withdraw_unsent(&mut self) -> Option<u64> {
        let keep = self.outbox.ever_sent.max(self.outbox.committed);
        if keep >= self.outbox.last() {
            return None;
        }
        self.outbox.items.truncate((keep - self.outbox.committed) as usize);
        Some(keep + 1)
    }

    /// A leader appends its own.
    pub(super) fn append_own_proposals(&mut self) {
        if self.lead.transfer.is_some() || self.outbox.halted {
            return;
        }
        let mut number = session_number(self.log.tail(), &self.config) + 1;
        while let Some(item) = self.outbox.item(number) {
            let (kind, payload) = (item.kind, item.payload.clone());
            let id = ProposalId { member: self.config.id, incarnation: self.config.incarnation, number };
            if !self.log.tail().is_next(&id) || self.append_proposal(kind, id, payload).is_err() {
                break;
            }
            number += 1;
        }
        self.outbox.term_of_leader = (self.term, self.config.id);
        self.outbox.held = 0;
        self.outbox.log_changed(&self.log, &self.config, self.now);
    }

    /// Another member sends what its leader has not seen.
    pub(super) fn send_proposals(&mut self) {
        let Some(leader) = self.leader.filter(|_| !self.outbox.halted) else { return };
        let outbox = &mut self.outbox;
        if outbox.term_of_leader != (self.term, leader) {
            let logged = session_number(self.log.tail(), &self.config);
            outbox.begin_term((self.term, leader), logged, 0, self.now);
        }
        outbox.sent = outbox.sent.max(outbox.committed);
        if outbox.sent >= outbox.last() || outbox.sent < outbox.given {
            return;
        }
        if !outbox.waits(&self.log, &self.config) {
            outbox.asking = false;
            outbox.logged_at = self.now;
        }
        if outbox.asking {
            return;
        }
        let logged = outbox.ends_at(session_number(self.log.tail(), &self.config));
        // A backlog that is sent to a new leader at once keeps our acks and answers behind it on a slow link, until this
        // leader, too, is given up. So little is sent at first, and as much more as has arrived.
        let (window, widened_at) = &mut self.outbox.window;
        *window = window.saturating_add(2 * logged.saturating_sub(*widened_at));
        *widened_at = logged.max(*widened_at);
        let window = (*window).min(self.config.max_inflight_bytes as u64);
        while self.outbox.sent < self.outbox.last()
            && self.outbox.ends_at(self.outbox.sent).saturating_sub(logged) < window
        {
            let first = self.outbox.sent + 1;
            let mut proposals = Vec::new();
            let mut bytes = 0;
            while let Some(item) = self.outbox.item(first + proposals.len() as u64) {
                let size = 64 + item.payload.len();
                let most = self.config.max_append_bytes.min(usize::try_from(window).unwrap_or(usize::MAX));
                // Proposals sent again end a message, so that the reply to duplicates has just the number `sent_before`.
                let sent_before = Some(self.outbox.sent + proposals.len() as u64) == self.outbox.sent_before;
                if !proposals.is_empty() && (bytes + size > most || sent_before) {
                    break;
                }
                bytes += size;
                proposals.push(Proposal { kind: item.kind, payload: item.payload.clone() });
            }
            self.outbox.sent += proposals.len() as u64;
            self.outbox.ever_sent = self.outbox.ever_sent.max(self.outbox.sent);
            let message =
                Message::Propose { term: self.term, incarnation: self.config.incarnation, first, proposals };
            self.send(leader, message);
        }
    }

    /// After an election timeout without progress, asks the leader which proposals arrived.
    pub(super) fn tick_proposals(&mut self) {
        if self.now < self.outbox.deadline(&self.log, &self.config) {
            return;
        }
        self.outbox.logged_at = self.now;
        let Some(leader) = self.leader.filter(|id| *id != self.config.id && !self.outbox.halted) else {
            return;
        };
        self.outbox.asking = true;
        self.outbox.sent_before = Some(self.outbox.sent);
        let question = Proposal { kind: EntryKind::Note, payload: Bytes::new() };
        let (term, incarnation) = (self.term, self.config.incarnation);
        self.send(leader, Message::Propose { term, incarnation, first: 0, proposals: vec![question] });
    }

    pub(super) fn on_propose(
        &mut self,
        from: MemberId,
        incarnation: u64,
        first: u64,
        proposals: Vec<Proposal>,
    ) {
        let member = self.log.tail().membership.get(&from).is_some();
        if self.role != Role::Leader || !member || self.lead.transfer.is_some() {
            return;
        }
        let mut refused = false;
        for (at, Proposal { kind, payload }) in proposals.into_iter().enumerate() {
            let Some(number) = first.checked_add(at as u64) else { break };
            let id = ProposalId { member: from, incarnation, number };
            let next = self.log.tail().is_next(&id)
                || self.config.failpoints.is_active(Failpoint::DuplicateProposals);
            if !kind.may_be_proposed() || !next {
                refused = true;
                continue;
            }
            match self.append_proposal(kind, id, payload) {
                Ok(index) => {
                    if let Some(peer) = self.peers.get_mut(&from) {
                        peer.proposed = index;
                    }
                }
                Err(_) => break,
            }
        }
        if refused {
            let number = match self.log.tail().sessions.get(&from) {
                Some(session) if session.incarnation == incarnation => session.number,
                _ => 0,
            };
            self.send(from, Message::ProposeReply { term: self.term, incarnation, number });
        }
    }

    /// The last number of a member's session in our log, from which it continues.
    pub(super) fn session_of(&self, id: &MemberId) -> Option<Message> {
        let session = self.log.tail().sessions.get(id)?;
        Some(Message::ProposeReply {
            term: self.term,
            incarnation: session.incarnation,
            number: session.number,
        })
    }

    /// A new leader tells everybody where to go on.
    pub(super) fn invite_proposals(&mut self) {
        let ids: Vec<MemberId> = self.peers.keys().copied().collect();
        for id in ids {
            if let Some(message) = self.session_of(&id) {
                self.send(id, message);
            }
        }
    }
}
