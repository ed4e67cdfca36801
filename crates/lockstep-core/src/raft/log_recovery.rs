//! Log recovery: under a weak policy a candidate takes over the most up-to-date log tail.
//!
//! Under a weak policy a client may have received "ok" for an entry that fewer than a majority have: a learner, or voters
//! whose votes a candidate does not need. So after a successful pre-vote the candidate first asks all members for their log
//! tails ([`Message::TailQuery`]). A member persists the candidate's term, so that it accepts (and acknowledges) nothing
//! more from the old leader, and then replies with the end of its log. The candidate fetches the most up-to-date tail, and
//! only then asks for votes.
//!
//! Fetched entries are not acknowledged, as if the old leader had sent them and the reply had been lost. So the paper's
//! arguments about logs and elections still hold. The candidate stops before a membership entry that no replying voter
//! holds: later entries were acknowledged to no client, and the membership might change who may vote.
//!
//! Once a majority has replied, the candidate waits for the others for half an election timeout, or two of the longest round
//! trips if that is more. A member with a slow disk answers each repeated query that it is still busy. It may hold
//! acknowledged entries, so the candidate waits for it for up to five election timeouts.
//!
//! Unanswered queries are repeated, because messages may be lost. Fetched entries stay in the log, so that a later campaign
//! continues where this one failed.

use super::failpoints::Failpoint;
use super::local::{Local, Role};
use super::output::Outputs;
use super::tail_fetch::TAIL_AHEAD;
use crate::codec::{Reader, Writer};
use crate::members::{Membership, View, ViewMember};
use crate::message::Message;
use crate::types::*;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The longest wait for a responsive member without a reply, in election timeouts.
const MOST: Micros = 5;

/// The router's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Wait: replies or a tail are missing.
    Wait,
    /// Ask for votes: the log is as up to date as it gets.
    AskForVotes,
}

/// The result of a received part of a tail.
#[derive(PartialEq, Debug)]
pub(super) enum Part {
    /// The part is late, early, or not the requested one.
    Ignored,
    /// The source has no usable entries.
    Unusable,
    /// These entries go into the log: they continue it, or replace its entries above the commit index.
    Taken(Vec<Entry>),
}

/// The results of a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tick {
    /// The candidate waits for a slow member: the campaign must not end meanwhile.
    pub(super) is_waiting: bool,
    /// The wait for members beyond a majority is over.
    pub(super) wait_is_over: bool,
}

/// The log recovery of one campaign.
#[derive(Debug)]
struct Campaign {
    /// Log ends (term, index) of members whose tails are not taken yet.
    tails: BTreeMap<MemberId, (Term, Index)>,
    /// All replies.
    answers: BTreeMap<MemberId, (Term, Index)>,
    /// Members lost while their tail was being fetched; on return they are queried again.
    lost: BTreeSet<MemberId>,
    /// The time of its beginning.
    began: Micros,
    /// Members that are responsive without a reply, because their disks are slow, and when they were last heard.
    slow: BTreeMap<MemberId, Micros>,
    /// The end of the wait for members beyond a majority; [`Micros::MAX`] once it has passed.
    deadline: Micros,
    late: bool,
    /// All members were queried before. This campaign concerns one member that answered late.
    again: bool,
    /// When to repeat unanswered queries, because messages may be lost.
    repeat_at: Micros,
    /// The member whose tail is being fetched.
    source: Option<Source>,
    /// Fetched entries not in the log yet. They continue the log, or replace its entries above the commit index.
    taken: Vec<Entry>,
}

/// The tail being fetched.
#[derive(Debug)]
struct Source {
    id: MemberId,
    /// Index and term of the last entry that we have or have fetched.
    at: (Index, Term),
    /// It is unknown yet whether the source's log contains our last entry.
    probing: bool,
    /// When the request is repeated, and the timeout of the next one.
    repeat_at: Micros,
    timeout: Micros,
    /// Parts that have overtaken others, by index and term of their predecessor. Bounded by the bytes in flight.
    early: BTreeMap<(Index, Term), Vec<Entry>>,
}

impl Campaign {
    fn new(began: Micros, deadline: Micros, repeat_at: Micros) -> Campaign {
        Campaign {
            began,
            slow: BTreeMap::new(),
            tails: BTreeMap::new(),
            answers: BTreeMap::new(),
            lost: BTreeSet::new(),
            deadline,
            late: false,
            again: false,
            repeat_at,
            source: None,
            taken: Vec::new(),
        }
    }
}

/// The log recovery of a candidate, if one is in progress.
#[derive(Debug, Default)]
pub(super) struct LogRecovery {
    campaign: Option<Campaign>,
    /// The longest round trip to any connected member.
    longest_rtt: Micros,
    /// The entry of this member in views: the first entry of a leader after a log recovery is a view.
    own_view_member: Option<ViewMember>,
}

impl LogRecovery {
    pub(super) fn set_longest_rtt(&mut self, rtt: Micros) {
        self.longest_rtt = rtt;
    }

    pub(super) fn set_view_member(&mut self, member: ViewMember) {
        self.own_view_member = Some(member);
    }

    /// Whether a recovery is under way: no vote counts meanwhile.
    pub(super) fn is_active(&self) -> bool {
        self.campaign.is_some()
    }

    /// The campaign is over.
    pub(super) fn end(&mut self) {
        self.campaign = None;
    }

    /// When [`LogRecovery::tick`] has something to do.
    pub(super) fn deadline(&self) -> Micros {
        self.campaign.as_ref().map_or(Micros::MAX, |c| c.deadline.min(c.repeat_at))
    }

    /// How long a reply may take: longer than the longest round trip.
    pub(super) fn timeout(&self, local: &Local) -> Micros {
        (2 * period(local)).max(2 * self.longest_rtt).min(MOST * local.config().election_timeout)
    }

    /// Begins a recovery. All other members are queried as soon as our own term, and our vote in it, is durable.
    pub(super) fn begin(&mut self, local: &Local) {
        debug_assert!(local.role() == Role::Candidate, "only a candidate recovers the log");
        let (now, timeout) = (local.now(), local.config().election_timeout);
        let wait = (timeout / 2).max(2 * self.longest_rtt).min(MOST * timeout);
        self.campaign = Some(Campaign::new(now, now + wait, now + period(local)));
    }

    /// Time has passed. `own_vote`: our own vote is durable. `up`: the connected members.
    pub(super) fn tick(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        own_vote: bool,
        up: &BTreeSet<MemberId>,
    ) -> Tick {
        let (now, period) = (local.now(), period(local));
        let mut tick = Tick::default();
        let Some(campaign) = &mut self.campaign else { return tick };
        if campaign.repeat_at <= now {
            campaign.repeat_at = now + period;
            // Our own vote tells that the term is durable.
            if own_vote {
                tick.is_waiting = campaign.repeat_query(local, out, up);
            }
        }
        if campaign.deadline > now {
            return tick;
        }
        let is_there = |(id, at): (&MemberId, &Micros)| {
            up.contains(id) && !campaign.answers.contains_key(id) && now.saturating_sub(*at) < 3 * period
        };
        let most = MOST * local.config().election_timeout;
        if now < campaign.began + most && campaign.slow.iter().any(is_there) {
            campaign.deadline = now + period;
            return tick;
        }
        campaign.deadline = Micros::MAX;
        campaign.late = true;
        tick.wait_is_over = true;
        tick
    }

    /// Records how a member's log ends. It accepts nothing more from the old leader. Returns whether to continue with
    /// [`LogRecovery::next`].
    pub(super) fn on_reply(
        &mut self,
        local: &Local,
        from: MemberId,
        term: Term,
        last: (Term, Index),
    ) -> bool {
        debug_assert!(term <= local.term(), "the router enters newer terms");
        if term < local.term()
            && let Some(campaign) = &mut self.campaign
        {
            campaign.slow.insert(from, local.now());
        }
        // An ack for entries of this term is no promise.
        if term < local.term() || last.0 >= term {
            return false;
        }
        let is_late = local.role() == Role::Candidate && self.campaign.is_none() && is_needed(local);
        if is_late && last > own_end(local) {
            // No vote counts until we have that tail.
            let now = local.now();
            let campaign = Campaign::new(now, Micros::MAX, now + period(local));
            self.campaign = Some(Campaign { again: true, ..campaign });
        }
        let Some(campaign) = &mut self.campaign else { return false };
        let is_new = campaign.lost.remove(&from) || !campaign.answers.contains_key(&from);
        if is_new {
            campaign.answers.insert(from, last);
            campaign.tails.insert(from, last);
        }
        is_new
    }

    /// Fetches the next tail, or ends the recovery, once all members have replied that can.
    pub(super) fn next(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        own_vote: bool,
        up: &BTreeSet<MemberId>,
    ) -> Next {
        let timeout = self.timeout(local);
        let Some(campaign) = &mut self.campaign else { return Next::Wait };
        if campaign.source.is_some() || !own_vote {
            return Next::Wait;
        }
        let answered = |id: &MemberId| campaign.answers.contains_key(id);
        let membership = local.membership();
        let voters = membership.voters().filter(|id| *id == local.id() || answered(id)).count();
        let reachable = local.other_members().filter(|id| up.contains(id)).all(|id| answered(&id));
        let enough = campaign.again || voters >= membership.majority() && (campaign.late || reachable);
        if !enough && !local.other_members().all(|id| answered(&id)) {
            return Next::Wait;
        }
        let best = campaign.tails.iter().max_by_key(|(_, tail)| **tail);
        match best.filter(|(_, tail)| **tail > own_end(local)).map(|(id, _)| *id) {
            Some(source) => {
                campaign.fetch_from(local, out, source, timeout);
                Next::Wait
            }
            None => {
                self.campaign = None;
                Next::AskForVotes
            }
        }
    }

    /// A connection has broken. Returns whether to continue with [`LogRecovery::next`].
    pub(super) fn peer_down(&mut self, id: MemberId) -> bool {
        let Some(campaign) = &mut self.campaign else { return false };
        if campaign.source.as_ref().is_some_and(|source| source.id == id) {
            campaign.lost.insert(id);
            campaign.drop_source(id);
        }
        true
    }

    /// Handles a part of the tail that was requested, and requests the next one.
    pub(super) fn on_part(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        (from, term): (MemberId, Term),
        (prev, last): ((Index, Term), Index),
        entries: Vec<Entry>,
    ) -> Part {
        let timeout = self.timeout(local);
        let Some(campaign) = &mut self.campaign else { return Part::Ignored };
        let Some(source) = &mut campaign.source else { return Part::Ignored };
        if source.id != from || term != local.term() {
            return Part::Ignored;
        }
        if prev != source.at {
            if prev.0 > source.at.0 && !source.probing {
                source.keep(prev, entries);
                return Part::Ignored;
            }
            if prev.0 != source.at.0 && prev.0 != 0 {
                // It came twice, or late.
                return Part::Ignored;
            }
            if !source.probing || prev.0 == 0 {
                campaign.drop_source(from);
                return Part::Unusable;
            }
            // That log has another entry where ours ends.
            (source.at, source.probing) = (commit_end(local), false);
            source.request(local, out, timeout);
            return Part::Ignored;
        }
        source.probing = false;
        let is_last = entries.is_empty();
        if source.take(entries, term, &mut campaign.taken).is_err() {
            campaign.drop_source(from);
            return Part::Unusable;
        }
        let is_last = is_last || source.at.0 >= last;
        if !is_last {
            source.request(local, out, timeout);
        }
        let usable = campaign.usable(local);
        if is_last {
            campaign.drop_source(from);
        }
        Part::Taken(usable)
    }

    /// The first entry of a leader under a weak policy, and its seqno: a view that leaves out the seqnos that its
    /// predecessor may have given out. Not if the term before was our own: our log has the seqnos that we gave out then.
    /// With a term between, another leader may have cut our log.
    pub(super) fn first_view(&self, local: &Local) -> Option<(Bytes, Seqno)> {
        let tail = local.log().tail();
        let at_risk = i64::try_from(local.log().at_risk()?).unwrap_or(i64::MAX);
        let mine = tail.leader == local.id() && tail.term + 1 == local.term()
            || local.is_active(Failpoint::SeqnosGivenTwice);
        if mine || tail.index == 0 {
            return None;
        }
        let id = local.id();
        let own = self.own_view_member.clone().or_else(|| {
            let nameless = ViewMember { id, view_uuid: id, name: String::new(), incoming: String::new() };
            Some(tail.view.members.iter().find(|m| m.id == id).cloned().unwrap_or(nameless))
        });
        let arbitrator = tail.membership.get(&id).is_some_and(|m| m.arbitrator);
        let own = own.filter(|_| !arbitrator);
        let others = tail.view.members.iter().filter(|m| m.id != id).cloned();
        let view = View { number: tail.view.number + 1, members: own.into_iter().chain(others).collect() };
        let mut w = Writer::new();
        view.encode(&mut w);
        Some((w.into_bytes(), tail.seqno.saturating_add(at_risk).saturating_add(1)))
    }
}

impl Campaign {
    /// Repeats unanswered queries. While a tail is fetched or a member is waited for, all members get a query: it may take
    /// long, and a member that hears nothing campaigns. Returns whether a member is waited for.
    fn repeat_query(&mut self, local: &Local, out: &mut Outputs, up: &BTreeSet<MemberId>) -> bool {
        let now = local.now();
        let waiting = !self.late && !self.again && now >= self.began + 2 * period(local);
        let all = waiting || self.source.is_some();
        let silent = |id: &MemberId| !self.answers.contains_key(id);
        for id in local.other_members().filter(|id| up.contains(id) && (all || silent(id))) {
            out.send(id, query(local));
        }
        if let Some(source) = self.source.as_mut().filter(|source| source.repeat_at <= now) {
            source.request(local, out, 2 * source.timeout);
        }
        waiting
    }

    /// A log that reaches as far as ours mostly begins with ours. So the first request is from our own end on, and from
    /// the commit index on if the logs differ there.
    fn fetch_from(&mut self, local: &Local, out: &mut Outputs, id: MemberId, timeout: Micros) {
        let commit = commit_end(local);
        let (own_term, own_last) = own_end(local);
        let probing = own_last > commit.0 && self.tails.get(&id).is_some_and(|(_, last)| *last >= own_last);
        let at = if probing { (own_last, own_term) } else { commit };
        self.taken.clear();
        let source = Source { id, at, probing, repeat_at: 0, timeout, early: BTreeMap::new() };
        self.source.insert(source).request(local, out, timeout);
    }

    /// The source has disconnected, or has nothing that could be used: the recovery does without.
    fn drop_source(&mut self, id: MemberId) {
        self.tails.remove(&id);
        self.taken.clear();
        self.source = None;
    }

    /// The fetched entries that may go into the log: up to the first membership that no replying voter holds, and only if
    /// they make our log more up to date. Each first part of a log is one that its leader might have sent us. The rest stays
    /// in `taken`.
    fn usable(&mut self, local: &Local) -> Vec<Entry> {
        let held = |e: &Entry| e.kind != EntryKind::Membership || self.is_held(local, e);
        let end = self.taken.iter().position(|e| !held(e)).unwrap_or(self.taken.len());
        let last = self.taken[..end].last().map(|e| (e.term, e.index));
        // A tail that would shorten our log is not taken.
        if last.is_none_or(|last| last <= own_end(local)) {
            return Vec::new();
        }
        let rest = self.taken.split_off(end);
        std::mem::replace(&mut self.taken, rest)
    }

    /// Whether a voter that has replied, or this member itself, holds this membership of the tail that is being taken.
    fn is_held(&self, local: &Local, entry: &Entry) -> bool {
        let next = Membership::decode(&mut Reader::new(entry.payload())).unwrap_or_default();
        let votes = |id: &MemberId| local.membership().is_voter(id) || next.is_voter(id);
        if votes(&local.id()) && local.log().term_at(entry.index) == Some(entry.term) {
            return true;
        }
        // The source holds these entries; a member whose log ends among them holds them up to there.
        self.source.as_ref().is_some_and(|source| votes(&source.id))
            || self.answers.iter().any(|(id, (term, index))| {
                votes(id)
                    && *index >= entry.index
                    && self.taken.iter().any(|other| other.index == *index && other.term == *term)
            })
    }
}

impl Source {
    /// Requests the entries after `at`. The request is repeated after `timeout`.
    fn request(&mut self, local: &Local, out: &mut Outputs, timeout: Micros) {
        (self.repeat_at, self.timeout) = (local.now() + timeout, timeout);
        out.send(self.id, Message::FetchTail { term: local.term(), from: self.at.0 + 1 });
    }

    /// Keeps a part that arrived before its predecessor.
    fn keep(&mut self, prev: (Index, Term), entries: Vec<Entry>) {
        let bytes: usize = self.early.values().flatten().chain(&entries).map(Entry::size).sum();
        if !entries.is_empty() && bytes <= TAIL_AHEAD {
            self.early.insert(prev, entries);
        }
    }

    /// Moves a part, and kept ones that follow it, to `taken`.
    ///
    /// # Errors
    /// If the entries do not follow each other, or are not older than our term.
    fn take(&mut self, entries: Vec<Entry>, own_term: Term, taken: &mut Vec<Entry>) -> Result<(), ()> {
        let mut part = Some(entries);
        while let Some(entries) = part {
            for entry in entries {
                if entry.index != self.at.0 + 1 || entry.term < self.at.1 || entry.term >= own_term {
                    return Err(());
                }
                self.at = (entry.index, entry.term);
                taken.push(entry);
            }
            part = self.early.remove(&self.at);
        }
        let at = self.at.0;
        self.early.retain(|prev, _| prev.0 > at);
        Ok(())
    }
}

/// Whether other members may hold entries that were acknowledged, but not by a majority. A voter that is alone holds all that
/// it ever acknowledged itself.
pub(super) fn is_needed(local: &Local) -> bool {
    local.log().at_risk().is_some()
        && local.other_voters().next().is_some()
        && !local.is_active(Failpoint::NoSurvey)
}

/// Asks a member how its log ends.
pub(super) fn query(local: &Local) -> Message {
    Message::TailQuery { term: local.term() }
}

/// After this time unanswered queries are repeated.
fn period(local: &Local) -> Micros {
    local.config().election_timeout / 8
}

/// The term and index of our last entry.
fn own_end(local: &Local) -> (Term, Index) {
    (local.log().tail().term, local.log().last())
}

/// The index and term of our last committed entry.
fn commit_end(local: &Local) -> (Index, Term) {
    (local.commit(), local.log().committed().term)
}

#[cfg(test)]
mod tests {
    use super::super::output::Output;
    use super::super::testing::{follower, leader, member, with_entries, with_policy};
    use super::*;
    use crate::policy::{Policy, PolicyKind};

    /// A candidate in term 2 of three voters whose log has two entries of term 1 under a weak policy.
    fn candidate() -> (Local, LogRecovery, BTreeSet<MemberId>) {
        let mut local = with_policy(follower(3, None), Policy::of(PolicyKind::Async));
        local.enter_term(2);
        local.set_role(Role::Candidate);
        let mut recovery = LogRecovery::default();
        assert!(is_needed(&local));
        recovery.begin(&local);
        (local, recovery, BTreeSet::from([member(2), member(3)]))
    }

    fn fetches(out: &mut Outputs) -> Vec<(MemberId, Index)> {
        let fetch = |output| match output {
            Output::Send { to, message: Message::FetchTail { from, .. } } => Some((to, from)),
            _ => None,
        };
        out.take().into_iter().filter_map(fetch).collect()
    }

    #[test]
    fn votes_are_asked_for_when_own_log_is_best() {
        let (local, mut recovery, up) = candidate();
        let mut out = Outputs::new();
        assert!(recovery.on_reply(&local, member(2), 2, (1, 1)));
        assert_eq!(recovery.next(&local, &mut out, true, &up), Next::Wait, "a connected member is missing");
        assert!(recovery.on_reply(&local, member(3), 2, (1, 2)));
        assert_eq!(recovery.next(&local, &mut out, false, &up), Next::Wait, "our own vote is not durable");
        assert_eq!(recovery.next(&local, &mut out, true, &up), Next::AskForVotes);
        assert!(!recovery.is_active() && fetches(&mut out).is_empty());
    }

    /// Member 1 has led term 2 under async, and leads again.
    fn leads_again_in(term: Term) -> Option<Seqno> {
        let mut local = with_policy(leader(3), Policy::of(PolicyKind::Async));
        local.enter_term(2);
        let id = Bytes::copy_from_slice(&local.id().0);
        let noop = local.next_entry(2, EntryKind::Noop, ProposalId::default(), &id, 0);
        assert!(local.append(noop).is_ok() && local.log().tail().leader == local.id());
        local.enter_term(term);
        local.set_role(Role::Candidate);
        local.vote_for(local.id());
        local.lead();
        LogRecovery::default().first_view(&local).map(|(_, seqno)| seqno)
    }

    /// A leader of term 3 may have cut member 1's log, and a crash of member 1 may have come before the new entries.
    #[test]
    fn leader_after_another_term_leaves_seqnos_out() {
        assert_eq!(leads_again_in(3), None, "no other member can have led");
        let at_risk = Policy::of(PolicyKind::Async).max_at_risk as Seqno;
        assert_eq!(leads_again_in(4), Some(at_risk + 1));
    }

    #[test]
    fn longest_tail_is_fetched_and_taken() {
        let (local, mut recovery, up) = candidate();
        let mut out = Outputs::new();
        recovery.on_reply(&local, member(2), 2, (1, 3));
        recovery.on_reply(&local, member(3), 2, (1, 4));
        assert_eq!(recovery.next(&local, &mut out, true, &up), Next::Wait);
        assert_eq!(fetches(&mut out), [(member(3), 3)], "from our own end on");
        let longer = with_entries(with_policy(follower(3, None), Policy::of(PolicyKind::Async)), 2);
        let (entries, _) = longer.log().slice(3, 4, usize::MAX);
        let part = recovery.on_part(&local, &mut out, (member(3), 2), ((2, 1), 4), entries.clone());
        assert_eq!(part, Part::Taken(entries));
    }

    #[test]
    fn lost_source_is_replaced_by_next_best() {
        let (local, mut recovery, up) = candidate();
        let mut out = Outputs::new();
        recovery.on_reply(&local, member(2), 2, (1, 3));
        recovery.on_reply(&local, member(3), 2, (1, 4));
        recovery.next(&local, &mut out, true, &up);
        out.take();
        assert!(recovery.peer_down(member(3)));
        recovery.next(&local, &mut out, true, &up);
        assert_eq!(fetches(&mut out), [(member(2), 3)]);
    }

    #[test]
    fn reply_of_busy_disk_extends_wait() {
        let (mut local, mut recovery, up) = candidate();
        let mut out = Outputs::new();
        recovery.on_reply(&local, member(2), 2, (1, 1));
        local.advance(local.config().election_timeout / 2);
        assert!(!recovery.on_reply(&local, member(3), 1, (1, 1)), "it promises nothing yet");
        assert!(!recovery.tick(&local, &mut out, true, &up).wait_is_over);
        local.advance(MOST * local.config().election_timeout);
        assert!(recovery.tick(&local, &mut out, true, &up).wait_is_over);
    }
}
