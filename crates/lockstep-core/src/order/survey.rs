//! The heir takes the most up-to-date tail.
//!
//! Under a weak policy the client may have heard "ok" for what only some members have, and not a majority: a learner
//! perhaps, or voters whose votes a candidate does not need. So whoever wants to lead asks everybody first, once its
//! pre-vote says that it may be elected: who is asked enters the candidate's term, on its disk, so that it takes (and
//! acknowledges) nothing more from the old leader, and then says how its log ends. The candidate takes over the most
//! up-to-date tail that it hears of, and only then asks for votes.
//!
//! What is taken over is not acknowledged: it is as if the old leader had sent it and the answer had been lost, so all
//! that the paper says of logs and elections holds as before. Nothing is taken from a membership on that no voter who
//! answered holds: what stands behind it was acknowledged to nobody, and it might lay down who may vote at all.

use super::config::Mutation;
use super::disk::Held;
use super::*;
use crate::codec::{Reader, Writer};
use crate::members::View;

/// See the module.
#[derive(Debug)]
pub(super) struct Survey {
    /// How the logs end of those who have answered, and whose tails are not taken yet: term and index.
    tails: BTreeMap<MemberId, (Term, Index)>,
    /// All who have answered.
    answers: BTreeMap<MemberId, (Term, Index)>,
    /// After that nobody is waited for who is not needed; [`Micros::MAX`] when it has passed.
    deadline: Micros,
    late: bool,
    /// All were asked before: this is about one who answered late.
    again: bool,
    /// Whose tail is being fetched, and what has come of it.
    source: Option<MemberId>,
    taken: Vec<Entry>,
}

impl Survey {
    fn new(deadline: Micros) -> Survey {
        Survey {
            tails: BTreeMap::new(),
            answers: BTreeMap::new(),
            deadline,
            late: false,
            again: false,
            source: None,
            taken: Vec::new(),
        }
    }
}

impl Order {
    /// Whether others may hold what was acknowledged and a majority does not hold. A voter that is alone holds all
    /// that it ever acknowledged itself.
    pub(super) fn needs_survey(&self) -> bool {
        self.log.at_risk().is_some() && !self.other_voters().is_empty()
    }

    /// Everybody is asked as soon as our own term, and our vote in it, is on the disk.
    pub(super) fn begin_survey(&mut self) {
        let half = self.config.election_timeout / 2;
        self.survey = Some(Survey::new(self.now + half));
        let message = self.survey_message();
        for id in self.others() {
            self.disk.after_vote(Held::Send(id, message.clone()));
        }
    }

    pub(super) fn survey_message(&self) -> Message {
        Message::Survey { term: self.term }
    }

    fn others(&self) -> Vec<MemberId> {
        let members = self.log.tail.membership.members.iter().map(|m| m.id);
        members.filter(|id| *id != self.config.id).collect()
    }

    pub(super) fn survey_deadline(&self) -> Micros {
        self.survey.as_ref().map_or(Micros::MAX, |s| s.deadline)
    }

    pub(super) fn tick_survey(&mut self) {
        if let Some(survey) = &mut self.survey
            && survey.deadline <= self.now
        {
            survey.deadline = Micros::MAX;
            survey.late = true;
            self.go_on_with_survey();
        }
    }

    /// Somebody wants to know how our log ends. A majority has told it that it may be elected, or its leader hands over:
    /// so we answer even where we hear the old leader, for what we would go on to acknowledge might be lost.
    pub(super) fn on_survey(&mut self, from: MemberId, term: Term) {
        let (last_index, last_term) = (self.log.last(), self.log.tail.term);
        if self.config.mutation == Some(Mutation::TailWithoutPromise) && term > self.term {
            self.send(from, Message::Tail { term, last_index, last_term });
            return;
        }
        if term > self.term {
            self.become_follower(term, None);
        }
        if term < self.term {
            self.send(from, Message::Tail { term: self.term, last_index, last_term });
        } else if self.leader.is_none() {
            self.reset_election_timer();
            self.disk.after_vote(Held::Send(from, Message::Tail { term, last_index, last_term }));
        }
    }

    /// How somebody's log ends. It will take nothing more from the old leader.
    pub(super) fn on_tail(&mut self, from: MemberId, term: Term, last_index: Index, last_term: Term) {
        if self.log.tail.membership.get(&from).is_none() {
            return;
        }
        if term > self.term {
            return self.become_follower(term, None);
        }
        // Who says that it has entries of this term has not promised anything.
        if term < self.term || last_term >= term {
            return;
        }
        if self.role == Role::Candidate
            && self.survey.is_none()
            && self.needs_survey()
            && (last_term, last_index) > (self.log.tail.term, self.log.last())
        {
            // Late, but not too late: no vote counts until we have that.
            self.survey = Some(Survey { again: true, ..Survey::new(Micros::MAX) });
        }
        if let Some(survey) = self.survey.as_mut().filter(|s| !s.answers.contains_key(&from)) {
            survey.answers.insert(from, (last_term, last_index));
            survey.tails.insert(from, (last_term, last_index));
            self.go_on_with_survey();
        }
    }

    /// Takes the next tail, or asks for votes, once all have answered who can.
    pub(super) fn go_on_with_survey(&mut self) {
        let Some(survey) = &self.survey else { return };
        if survey.source.is_some() || !self.votes.contains_key(&self.config.id) {
            return;
        }
        let answered = |id: &MemberId| survey.answers.contains_key(id);
        let others = self.others();
        let membership = &self.log.tail.membership;
        let voters = membership.voters().filter(|id| *id == self.config.id || answered(id)).count();
        let reachable = others.iter().filter(|id| self.up.contains(id)).all(answered);
        let enough = survey.again || voters >= membership.majority() && (survey.late || reachable);
        if !enough && !others.iter().all(answered) {
            return;
        }
        let own = (self.log.tail.term, self.log.last());
        let best = survey.tails.iter().max_by_key(|(_, tail)| **tail).filter(|(_, tail)| **tail > own);
        if let Some(source) = best.map(|(id, _)| *id) {
            self.ask_for_tail(source);
            return;
        }
        self.survey = None;
        for to in self.other_voters() {
            self.send(to, self.vote());
        }
        self.count_votes();
    }

    fn ask_for_tail(&mut self, source: MemberId) {
        let commit = self.commit();
        let Some(survey) = &mut self.survey else { return };
        survey.source = Some(source);
        let next = survey.taken.last().map_or(commit, |e| e.index) + 1;
        self.send(source, Message::TailAsk { term: self.term, from: next });
    }

    /// It has gone, or has nothing that we could use: we do without.
    fn give_up_source(&mut self, id: MemberId) {
        let Some(survey) = &mut self.survey else { return };
        survey.tails.remove(&id);
        survey.taken.clear();
        survey.source = None;
        self.go_on_with_survey();
    }

    pub(super) fn survey_peer_down(&mut self, id: MemberId) {
        let Some(survey) = &self.survey else { return };
        if survey.source == Some(id) {
            self.give_up_source(id);
        } else {
            self.go_on_with_survey();
        }
    }

    /// A candidate that we have told how our log ends wants to have it.
    pub(super) fn on_tail_ask(&mut self, from: MemberId, term: Term, first: Index) {
        if term != self.term || self.role == Role::Leader || !self.log.exists() || first == 0 {
            return;
        }
        let known = self.log.term_at(first - 1).is_some();
        if known && first < self.log.cached_from() && first <= self.log.last() {
            self.tail_asked = Some((from, first));
            let max_bytes = self.config.max_append_bytes;
            self.outputs.push(Output::Fetch { to: from, from: first, max_bytes });
            return;
        }
        let (entries, _) = self.log.slice(first, Index::MAX, self.config.max_append_bytes);
        self.give_tail(from, first, entries);
    }

    /// Entries for a candidate have come from the disk. Whether they were for one.
    pub(super) fn fetched_tail(&mut self, to: MemberId, from: Index, entries: &[Entry]) -> bool {
        if self.role == Role::Leader || self.tail_asked.take_if(|asked| *asked == (to, from)).is_none() {
            return false;
        }
        let ours = entries.iter().enumerate().take_while(|(n, e)| {
            e.index == from.saturating_add(*n as u64) && self.log.term_at(e.index) == Some(e.term)
        });
        let entries: Vec<Entry> = ours.map(|(_, e)| e.clone()).collect();
        self.give_tail(to, from, entries);
        true
    }

    fn give_tail(&mut self, to: MemberId, first: Index, entries: Vec<Entry>) {
        // Where our log begins later, index 0 says that we cannot.
        let (prev_index, prev_term) = match self.log.term_at(first - 1) {
            Some(term) => (first - 1, term),
            None => (0, 0),
        };
        let last = self.log.last();
        self.send(to, Message::TailGive { term: self.term, prev_index, prev_term, last, entries });
    }

    /// A part of the tail that we have asked for.
    pub(super) fn on_tail_give(
        &mut self,
        from: MemberId,
        term: Term,
        prev: (Index, Term),
        last: Index,
        entries: Vec<Entry>,
    ) {
        let (commit, commit_term) = (self.commit(), self.log.committed.term);
        let own_term = self.term;
        let Some(survey) = self.survey.as_mut().filter(|s| s.source == Some(from) && term == own_term) else {
            return;
        };
        let mut at = survey.taken.last().map_or((commit, commit_term), |e| (e.index, e.term));
        if prev.0 < at.0 && prev.0 != 0 {
            // It came twice.
            return;
        }
        let mut fits = prev == at;
        let more = !entries.is_empty();
        for entry in entries {
            fits &= entry.index == at.0 + 1 && entry.term >= at.1 && entry.term < term;
            if !fits {
                break;
            }
            at = (entry.index, entry.term);
            survey.taken.push(entry);
        }
        if !fits {
            return self.give_up_source(from);
        }
        self.reset_election_timer();
        if more && at.0 < last {
            return self.ask_for_tail(from);
        }
        self.take_over();
        self.give_up_source(from);
    }

    /// The tail has come, as far as it goes.
    fn take_over(&mut self) {
        let Some(survey) = &mut self.survey else { return };
        let mut taken = std::mem::take(&mut survey.taken);
        let keep = taken.iter().position(|e| e.kind == EntryKind::Membership && !self.is_held(e, &taken));
        taken.truncate(keep.unwrap_or(taken.len()));
        // What would leave us with less than we have is no gain.
        let end = taken.last().map(|e| (e.term, e.index));
        if end.is_none_or(|end| end <= (self.log.tail.term, self.log.last())) {
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
        self.outbox.log_changed(&self.log, &self.config, self.now);
    }

    /// Whether a voter that has answered, or we ourselves, holds this membership of the tail that was taken.
    fn is_held(&self, entry: &Entry, taken: &[Entry]) -> bool {
        let Some(survey) = &self.survey else { return false };
        let next = Membership::decode(&mut Reader::new(entry.payload.clone())).unwrap_or_default();
        let votes = |id: &MemberId| self.log.tail.membership.is_voter(id) || next.is_voter(id);
        if votes(&self.config.id) && self.log.term_at(entry.index) == Some(entry.term) {
            return true;
        }
        // Whose log ends in this one, holds it up to there.
        survey.answers.iter().any(|(id, (term, index))| {
            votes(id)
                && *index >= entry.index
                && taken.iter().any(|other| other.index == *index && other.term == *term)
        })
    }

    /// What a leader begins with under a weak policy, and the seqno: a view that leaves out what its predecessor may
    /// have given out. Not after a term of our own: what we gave out then is in our log.
    pub(super) fn first_view(&self) -> Option<(bytes::Bytes, Seqno)> {
        let tail = &self.log.tail;
        let at_risk = i64::try_from(self.log.at_risk()?).unwrap_or(i64::MAX);
        let mine = tail.leader == self.config.id || self.config.mutation == Some(Mutation::SeqnosGivenTwice);
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
