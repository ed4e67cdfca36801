//! Log recovery: under a weak policy a candidate takes over the most up-to-date log tail.
//!
//! Under a weak policy a client may have received "ok" for an entry that fewer than a majority have: a learner, or voters
//! whose votes a candidate does not need. So after a successful pre-vote the candidate first asks all members for their log
//! tails ([`Message::TailQuery`]). A member persists the candidate's term, so that it accepts (and acknowledges) nothing
//! more from the old leader, and then replies with the end of its log. The candidate fetches the most up-to-date tail, and
//! only then asks for votes.
//!
//! Fetched entries are not acknowledged: it is as if the old leader had sent them and the reply had been lost, so the
//! paper's arguments about logs and elections still hold. The candidate stops before a membership entry that no replying
//! voter holds: later entries were acknowledged to no client, and the membership might change who may vote.
//!
//! Once a majority has replied, the candidate waits for the others for half an election timeout, or two of the longest round
//! trips if that is more. A member with a slow disk answers each repeated query that it is still busy. It may hold
//! acknowledged entries, so the candidate waits for it for up to five election timeouts.
//!
//! Unanswered queries are repeated, because messages may be lost. Fetched entries stay in the log, so that a later campaign
//! continues where this one failed.

use super::disk::Held;
use super::failpoints::Failpoint;
use super::tail_fetch::TAIL_AHEAD;
use super::*;
use crate::codec::{Reader, Writer};
use crate::members::View;

/// The longest wait for a responsive member without a reply, in election timeouts.
const MOST: Micros = 5;

/// See the module.
#[derive(Debug)]
pub(super) struct LogRecovery {
    /// Log ends (term, index) of members whose tails are not taken yet.
    tails: BTreeMap<MemberId, (Term, Index)>,
    /// All replies.
    answers: BTreeMap<MemberId, (Term, Index)>,
    /// Members lost while their tail was being fetched; on return they are queried again.
    lost: BTreeSet<MemberId>,
    /// When it began.
    began: Micros,
    /// Members that are responsive without a reply, because their disks are slow, and when they were last heard.
    slow: BTreeMap<MemberId, Micros>,
    /// The end of the wait for members beyond a majority; [`Micros::MAX`] once it has passed.
    deadline: Micros,
    late: bool,
    /// All were asked before: this is about one who answered late.
    again: bool,
    /// When to repeat what has not been answered: messages are lost.
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
    /// Up to here, the index and its term, there is nothing to be fetched: we have it, or have taken it.
    at: (Index, Term),
    /// It is not known yet whether that log has what ours ends with.
    probing: bool,
    /// The question is asked again at this time, and the next time after so long.
    repeat_at: Micros,
    patience: Micros,
    /// Parts that have overtaken others, by the index and term that they go on from; no more bytes than may be on their way.
    early: BTreeMap<(Index, Term), Vec<Entry>>,
}

impl LogRecovery {
    fn new(began: Micros, deadline: Micros, repeat_at: Micros) -> LogRecovery {
        LogRecovery {
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

impl Source {
    /// Keeps a part that arrived before its predecessor.
    fn keep(&mut self, prev: (Index, Term), entries: Vec<Entry>) {
        let bytes: usize = self.early.values().flatten().chain(&entries).map(Entry::size).sum();
        if !entries.is_empty() && bytes <= TAIL_AHEAD {
            self.early.insert(prev, entries);
        }
    }
}

impl Raft {
    /// Whether others may hold what was acknowledged and a majority does not hold. A voter that is alone holds all
    /// that it ever acknowledged itself.
    pub(super) fn needs_log_recovery(&self) -> bool {
        self.log.at_risk().is_some()
            && !self.other_voters().is_empty()
            && !self.config.failpoints.is_active(Failpoint::NoSurvey)
    }

    /// How soon what was not answered is asked again.
    fn recovery_period(&self) -> Micros {
        self.config.election_timeout / 8
    }

    /// How long an answer may take: longer than a round trip to the one farthest away.
    pub(super) fn recovery_timeout(&self) -> Micros {
        let timeout = self.config.election_timeout;
        (2 * self.recovery_period()).max(2 * self.longest_rtt).min(MOST * timeout)
    }

    /// Everybody is asked as soon as our own term, and our vote in it, is on the disk.
    pub(super) fn begin_log_recovery(&mut self) {
        let timeout = self.config.election_timeout;
        let patience = (timeout / 2).max(2 * self.longest_rtt).min(MOST * timeout);
        self.log_recovery =
            Some(LogRecovery::new(self.now, self.now + patience, self.now + self.recovery_period()));
        let message = self.tail_query();
        for id in self.others() {
            self.disk.after_vote(Held::Send(id, message.clone()));
        }
    }

    pub(super) fn tail_query(&self) -> Message {
        Message::TailQuery { term: self.term }
    }

    fn others(&self) -> Vec<MemberId> {
        let members = self.log.tail().membership.members.iter().map(|m| m.id);
        members.filter(|id| *id != self.config.id).collect()
    }

    pub(super) fn recovery_deadline(&self) -> Micros {
        self.log_recovery.as_ref().map_or(Micros::MAX, |s| s.deadline.min(s.repeat_at))
    }

    pub(super) fn tick_log_recovery(&mut self) {
        let now = self.now;
        if self.log_recovery.as_ref().is_some_and(|survey| survey.repeat_at <= now) {
            self.repeat_tail_query();
        }
        let (period, most) = (self.recovery_period(), MOST * self.config.election_timeout);
        let Some(survey) = self.log_recovery.as_mut().filter(|survey| survey.deadline <= now) else { return };
        let is_there = |(id, at): (&MemberId, &Micros)| {
            self.up.contains(id) && !survey.answers.contains_key(id) && now.saturating_sub(*at) < 3 * period
        };
        if now < survey.began + most && survey.slow.iter().any(is_there) {
            survey.deadline = now + period;
            return;
        }
        survey.deadline = Micros::MAX;
        survey.late = true;
        self.continue_log_recovery();
    }

    /// Repeats unanswered queries. While a tail is fetched or a member is waited for, all members get a query: it may take
    /// long, and a member that hears nothing campaigns.
    fn repeat_tail_query(&mut self) {
        let (now, period) = (self.now, self.recovery_period());
        let others = self.others();
        let message = self.tail_query();
        let (id, term) = (self.config.id, self.term);
        let Some(survey) = &mut self.log_recovery else { return };
        survey.repeat_at = now + period;
        // Our own vote tells that the term is on the disk.
        if !self.votes.contains_key(&id) {
            return;
        }
        let waiting = !survey.late && !survey.again && now >= survey.began + 2 * period;
        let long = waiting || survey.source.is_some();
        let mut ask = None;
        if let Some(source) = survey.source.as_mut().filter(|source| source.repeat_at <= now) {
            source.patience *= 2;
            source.repeat_at = now + source.patience;
            ask = Some((source.id, source.at.0 + 1));
        }
        let silent = |id: &MemberId| !survey.answers.contains_key(id);
        let to: Vec<_> =
            others.into_iter().filter(|id| self.up.contains(id) && (long || silent(id))).collect();
        for id in to {
            self.send(id, message.clone());
        }
        if let Some((id, from)) = ask {
            self.send(id, Message::FetchTail { term, from });
        }
        if waiting {
            self.reset_election_timer();
        }
    }

    /// Handles a tail query. The candidate has won a pre-vote, or its leader hands over. So we answer even if we still hear
    /// the old leader: entries that we went on acknowledging might be lost.
    pub(super) fn on_tail_query(&mut self, from: MemberId, term: Term) {
        let (last_index, last_term) = (self.log.last(), self.log.tail().term);
        if self.config.failpoints.is_active(Failpoint::TailWithoutPromise) && term > self.term {
            self.send(from, Message::TailReply { term, last_index, last_term });
            return;
        }
        let asked_before = term == self.term;
        if term > self.term {
            self.become_follower(term, None);
        }
        if term < self.term {
            self.send(from, Message::TailReply { term: self.term, last_index, last_term });
        } else if self.leader.is_none() {
            self.reset_election_timer();
            if asked_before && self.disk.vote_waits() {
                // We are there, and do not promise anything yet: of an older term it is no answer.
                self.send(from, Message::TailReply { term: term - 1, last_index, last_term });
            }
            self.disk.after_vote(Held::Send(from, Message::TailReply { term, last_index, last_term }));
        }
    }

    /// How somebody's log ends. It will take nothing more from the old leader.
    pub(super) fn on_tail_reply(&mut self, from: MemberId, term: Term, last_index: Index, last_term: Term) {
        if self.log.tail().membership.get(&from).is_none() {
            return;
        }
        if term > self.term {
            return self.become_follower(term, None);
        }
        if term < self.term
            && let Some(survey) = &mut self.log_recovery
        {
            survey.slow.insert(from, self.now);
        }
        // An ack for entries of this term is no promise.
        if term < self.term || last_term >= term {
            return;
        }
        if self.role == Role::Candidate
            && self.log_recovery.is_none()
            && self.needs_log_recovery()
            && (last_term, last_index) > (self.log.tail().term, self.log.last())
        {
            // Late, but not too late: no vote counts until we have that.
            let repeat_at = self.now + self.recovery_period();
            self.log_recovery =
                Some(LogRecovery { again: true, ..LogRecovery::new(self.now, Micros::MAX, repeat_at) });
        }
        if let Some(survey) = &mut self.log_recovery
            && (survey.lost.remove(&from) || !survey.answers.contains_key(&from))
        {
            survey.answers.insert(from, (last_term, last_index));
            survey.tails.insert(from, (last_term, last_index));
            self.continue_log_recovery();
        }
    }

    /// Takes the next tail, or asks for votes, once all have answered who can.
    pub(super) fn continue_log_recovery(&mut self) {
        let Some(survey) = &self.log_recovery else { return };
        if survey.source.is_some() || !self.votes.contains_key(&self.config.id) {
            return;
        }
        let answered = |id: &MemberId| survey.answers.contains_key(id);
        let others = self.others();
        let membership = &self.log.tail().membership;
        let voters = membership.voters().filter(|id| *id == self.config.id || answered(id)).count();
        let reachable = others.iter().filter(|id| self.up.contains(id)).all(answered);
        let enough = survey.again || voters >= membership.majority() && (survey.late || reachable);
        if !enough && !others.iter().all(answered) {
            return;
        }
        let own = (self.log.tail().term, self.log.last());
        let best = survey.tails.iter().max_by_key(|(_, tail)| **tail).filter(|(_, tail)| **tail > own);
        if let Some(source) = best.map(|(id, _)| *id) {
            self.ask_for_tail(source);
            return;
        }
        self.log_recovery = None;
        for to in self.other_voters() {
            self.send(to, self.vote());
        }
        self.count_votes();
    }

    /// Where a log goes on that reaches as far as ours it mostly begins with ours: so we ask from our own end on first,
    /// and from the commit index on where it does not.
    fn ask_for_tail(&mut self, id: MemberId) {
        let commit = (self.commit(), self.log.committed().term);
        let own = (self.log.last(), self.log.tail().term);
        let (now, patience) = (self.now, self.recovery_timeout());
        let Some(survey) = &mut self.log_recovery else { return };
        let probing = own.0 > commit.0 && survey.tails.get(&id).is_some_and(|(_, last)| *last >= own.0);
        let at = if probing { own } else { commit };
        survey.taken.clear();
        survey.source =
            Some(Source { id, at, probing, repeat_at: now + patience, patience, early: BTreeMap::new() });
        self.send(id, Message::FetchTail { term: self.term, from: at.0 + 1 });
    }

    /// It has gone, or has nothing that we could use: we do without.
    fn drop_tail_source(&mut self, id: MemberId) {
        let Some(survey) = &mut self.log_recovery else { return };
        survey.tails.remove(&id);
        survey.taken.clear();
        survey.source = None;
        self.continue_log_recovery();
    }

    pub(super) fn recovery_peer_down(&mut self, id: MemberId) {
        let Some(survey) = &mut self.log_recovery else { return };
        if survey.source.as_ref().is_some_and(|source| source.id == id) {
            survey.lost.insert(id);
            self.drop_tail_source(id);
        } else {
            self.continue_log_recovery();
        }
    }

    /// A part of the tail that we have asked for.
    pub(super) fn on_tail_entries(
        &mut self,
        from: MemberId,
        term: Term,
        prev: (Index, Term),
        last: Index,
        entries: Vec<Entry>,
    ) {
        let commit = (self.commit(), self.log.committed().term);
        let own_term = self.term;
        let (now, patience) = (self.now, self.recovery_timeout());
        let Some(LogRecovery { source: Some(source), taken, .. }) = &mut self.log_recovery else { return };
        if source.id != from || term != own_term {
            return;
        }
        if prev != source.at {
            if prev.0 > source.at.0 && !source.probing {
                return source.keep(prev, entries);
            }
            if prev.0 != source.at.0 && prev.0 != 0 {
                // It came twice, or late.
                return;
            }
            if !source.probing || prev.0 == 0 {
                return self.drop_tail_source(from);
            }
            // That log has something else where ours ends.
            (source.at, source.probing) = (commit, false);
            (source.repeat_at, source.patience) = (now + patience, patience);
            return self.send(from, Message::FetchTail { term: own_term, from: commit.0 + 1 });
        }
        source.probing = false;
        let mut at = source.at;
        let more = !entries.is_empty();
        let mut part = Some(entries);
        while let Some(entries) = part {
            for entry in entries {
                if entry.index != at.0 + 1 || entry.term < at.1 || entry.term >= term {
                    return self.drop_tail_source(from);
                }
                at = (entry.index, entry.term);
                taken.push(entry);
            }
            part = source.early.remove(&at);
        }
        source.early.retain(|prev, _| prev.0 > at.0);
        source.at = at;
        (source.repeat_at, source.patience) = (now + patience, patience);
        self.reset_election_timer();
        // Fetched entries stay for another campaign.
        self.take_over();
        if more && at.0 < last {
            return self.send(from, Message::FetchTail { term: own_term, from: at.0 + 1 });
        }
        self.drop_tail_source(from);
    }

    /// A part of the tail has come. It goes into the log as far as it is known that we may have it, and if that makes our
    /// log a more up-to-date one: each first part of a log is one that its leader might have sent us. The rest stays in
    /// `taken`.
    fn take_over(&mut self) {
        let Some(survey) = &mut self.log_recovery else { return };
        let taken = std::mem::take(&mut survey.taken);
        let held = taken.iter().position(|e| e.kind == EntryKind::Membership && !self.is_held(e, &taken));
        let mut taken = taken;
        let rest = taken.split_off(held.unwrap_or(taken.len()));
        let end = taken.last().map(|e| (e.term, e.index));
        if end.is_none_or(|end| end <= (self.log.tail().term, self.log.last())) {
            // Skip a tail that would shorten our log.
            taken.extend(rest);
            if let Some(survey) = &mut self.log_recovery {
                survey.taken = taken;
            }
            return;
        }
        for entry in taken {
            match self.log.term_at(entry.index) {
                Some(term) if term == entry.term => continue,
                Some(_) => self.truncate(entry.index),
                None => {}
            }
            if self.log.append(entry).is_err() {
                break;
            }
        }
        if let Some(survey) = &mut self.log_recovery {
            survey.taken = rest;
        }
        self.outbox.log_changed(&self.log, &self.config, self.now);
    }

    /// Whether a voter that has answered, or we ourselves, holds this membership of the tail that is being taken.
    fn is_held(&self, entry: &Entry, taken: &[Entry]) -> bool {
        let Some(survey) = &self.log_recovery else { return false };
        let next = Membership::decode(&mut Reader::new(entry.payload.clone())).unwrap_or_default();
        let votes = |id: &MemberId| self.log.tail().membership.is_voter(id) || next.is_voter(id);
        if votes(&self.config.id) && self.log.term_at(entry.index) == Some(entry.term) {
            return true;
        }
        // The source holds these entries; a member whose log ends among them holds them up to there.
        survey.source.as_ref().is_some_and(|source| votes(&source.id))
            || survey.answers.iter().any(|(id, (term, index))| {
                votes(id)
                    && *index >= entry.index
                    && taken.iter().any(|other| other.index == *index && other.term == *term)
            })
    }

    /// The first entry of a leader under a weak policy, and its seqno: a view that leaves out the seqnos that its predecessor
    /// may have given out. Not after a term of our own: our log has the seqnos that we gave out then.
    pub(super) fn first_view(&self) -> Option<(bytes::Bytes, Seqno)> {
        let tail = &self.log.tail();
        let at_risk = i64::try_from(self.log.at_risk()?).unwrap_or(i64::MAX);
        let mine =
            tail.leader == self.config.id || self.config.failpoints.is_active(Failpoint::SeqnosGivenTwice);
        if mine || tail.index == 0 {
            return None;
        }
        let id = self.config.id;
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
