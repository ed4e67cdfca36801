//! Votes on verdicts, before a trim mark tells them.
//!
//! A trim mark in the log binds all members: one whose own verdicts differ stops. So a leader with a wrong verdict would
//! make every other member stop. Before it appends a mark, the leader asks the other members for a hash of their verdicts
//! on the mark's seqnos, and counts them as results are counted ([`winner`]). If most members agree with the leader, it
//! appends the mark, and a member with other verdicts finds them there. If most members agree on other verdicts, the
//! leader stops, and its successor makes the mark.
//!
//! A member that learned a verdict from marks has no opinion of its own. Members of earlier versions are not asked.

use crate::member::context::Context;
use crate::member::delivery::deliverer::Deliverer;
use crate::member::membership::peers::VERDICTS_SINCE;
use crate::wire::NodeMessage;
use lockstep_core::certify::Verdicts;
use lockstep_core::snapshot::TrimMark;
use lockstep_core::vote::{Opinion, SUCCESS, winner};
use lockstep_core::{EntryKind, MemberId, Micros, Seqno};
use std::collections::BTreeMap;

/// How often a member is asked again, until there is an outcome.
const REPEAT_INTERVAL: Micros = 200_000;
/// After this long, the leader decides without the members that lag: it cannot forget keys before.
const TIMEOUT: Micros = 2_000_000;
/// The same, if a member is known to have other verdicts, or if no member has answered: then the leader may be the odd one.
const TIMEOUT_IN_DISPUTE: Micros = 10_000_000;

/// A vote under way on the leader.
#[derive(Debug)]
struct Poll {
    /// The mark to append. Its verdicts are the leader's.
    mark: TrimMark,
    /// The `verdicts_to` of the mark before.
    after: Seqno,
    /// The hashes received; `None`: no opinion.
    hashes: BTreeMap<MemberId, Option<u64>>,
    /// A hash has arrived since the last count.
    changed: bool,
    began: Micros,
    asked_at: Option<Micros>,
}

/// The leader's request that this member has not answered yet.
#[derive(Clone, Copy, Debug)]
struct Request {
    leader: MemberId,
    after: Seqno,
    to: Seqno,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct VerdictVotes {
    poll: Option<Poll>,
    request: Option<Request>,
}

impl VerdictVotes {
    /// This leader is about to append `mark`. Without effect while a vote is under way.
    pub(in crate::member) fn begin(&mut self, ctx: &Context, mark: TrimMark) {
        let after = ctx.raft.tail_state().verdicts_to;
        self.poll.get_or_insert(Poll {
            mark,
            after,
            hashes: BTreeMap::new(),
            changed: false,
            began: ctx.now(),
            asked_at: None,
        });
    }

    /// The leader requests this member's verdicts. A later request replaces an earlier one.
    pub(in crate::member) fn on_request(&mut self, ctx: &Context, from: MemberId, after: Seqno, to: Seqno) {
        if ctx.raft.leader() == Some(from) {
            self.request = Some(Request { leader: from, after, to });
        }
    }

    /// A member reports its verdicts.
    pub(in crate::member) fn on_verdicts(
        &mut self,
        from: MemberId,
        after: Seqno,
        to: Seqno,
        hash: Option<u64>,
    ) {
        if let Some(poll) = &mut self.poll
            && (poll.after, poll.mark.verdicts_to) == (after, to)
        {
            poll.hashes.insert(from, hash);
            poll.changed = true;
        }
    }

    /// At the end of a round: answers the leader; the leader asks and decides.
    ///
    /// # Errors
    /// Most members have other verdicts than this leader. Then its database is wrong.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context, deliverer: &Deliverer) -> Result<(), String> {
        self.answer(ctx, deliverer);
        let stale = |poll: &Poll| !ctx.raft.is_leader() || ctx.raft.tail_state().verdicts_to != poll.after;
        if self.poll.as_ref().is_some_and(stale) {
            self.poll = None;
        }
        let Some(poll) = &mut self.poll else { return Ok(()) };
        let waits = poll.asked_at.is_some_and(|at| ctx.now() < at + REPEAT_INTERVAL);
        if !std::mem::take(&mut poll.changed) && waits {
            return Ok(());
        }
        let to = poll.mark.verdicts_to;
        let Verdicts::Known(own) = deliverer.verdicts(poll.after, to) else {
            self.poll = None;
            return Ok(());
        };
        let hashes = || poll.hashes.iter().filter_map(|(id, hash)| Some((id, (*hash)?)));
        let silent: Vec<MemberId> = electorate(ctx).filter(|id| !poll.hashes.contains_key(id)).collect();
        let known: Vec<u64> = hashes().map(|(_, hash)| hash).collect();
        match outcome(own, &known, silent.len(), ctx.now().saturating_sub(poll.began)) {
            None => {
                if !waits {
                    poll.asked_at = Some(ctx.now());
                    for id in silent {
                        ctx.send(id, &NodeMessage::AskVerdicts { after: poll.after, to });
                    }
                }
                Ok(())
            }
            Some(SUCCESS) => {
                let payload = poll.mark.to_payload();
                self.poll = None;
                // Refused while leadership moves: the next leader makes the mark.
                let _ = ctx.raft.append_control(ctx.now(), EntryKind::Trim, payload);
                Ok(())
            }
            Some(other) => {
                let others = hashes().filter(|(_, hash)| *hash == other);
                let names: Vec<String> = others.map(|(id, _)| ctx.name_of(id)).collect();
                let text = format!(
                    "certification of the seqnos {} to {to} came out otherwise here than on most members ({})",
                    poll.after + 1,
                    names.join(", ")
                );
                self.poll = None;
                Err(text)
            }
        }
    }

    /// Answers the leader's request as soon as this member has certified its seqnos.
    fn answer(&mut self, ctx: &mut Context, deliverer: &Deliverer) {
        let Some(Request { leader, after, to }) = self.request else { return };
        let hash = match deliverer.verdicts(after, to) {
            Verdicts::NotYet => return,
            Verdicts::Unknown => None,
            Verdicts::Known(hash) => Some(hash),
        };
        self.request = None;
        ctx.send(leader, &NodeMessage::Verdicts { after, to, hash });
    }
}

/// The winning verdicts, with success for the leader's own; `None` while the silent members may change the result.
fn outcome(own: u64, others: &[u64], silent: usize, waited: Micros) -> Option<Opinion> {
    let disputed = others.iter().any(|hash| *hash != own);
    let nobody_answered = others.is_empty() && silent >= 2;
    let timeout = if disputed || nobody_answered { TIMEOUT_IN_DISPUTE } else { TIMEOUT };
    let missing = if waited >= timeout { 0 } else { silent };
    let opinion = |hash: &u64| if *hash == own { SUCCESS } else { *hash };
    winner(others.iter().map(opinion).chain([SUCCESS]), missing, 0)
}

/// The other members whose verdicts count: connected, with the state, and not kept from certifying for hours.
fn electorate(ctx: &Context) -> impl Iterator<Item = MemberId> + '_ {
    let counts = move |id: &MemberId| {
        ctx.raft.membership().get(id).is_some()
            && ctx
                .peers
                .get(id)
                .is_some_and(|peer| peer.supports(VERDICTS_SINCE) && peer.is_ready() && !peer.is_held_back())
    };
    ctx.peers.keys().copied().filter(counts)
}

#[cfg(test)]
#[path = "verdict_votes_tests.rs"]
mod tests;
