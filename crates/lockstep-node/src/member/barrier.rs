//! All members stand at one seqno for a moment, so that somebody can take equal snapshots of their databases:
//! `lockstep verify`.
//!
//! The member that is asked lets all others, and itself, begin no further commit. Each says what has begun; the highest of
//! these is the seqno, for somebody is there already, so that the log has it and all get there. Each is let on up to
//! it, says when its server has finished it, and stands until it is released, or until its patience is over: then it
//! goes on by itself, and says so when it is released, so that nobody takes the snapshots for equal.
//!
//! Nothing but the beginning of commits waits, for some milliseconds: what is executed, ordered and applied goes on.
//!
//! A member that lacks something because it is held back on purpose (`apply.delay` and the like) is left out: it would not
//! get there in time, and that it differs is what it is for.

use super::{Level, Member, Micros};
use crate::operator::{Answer, Held as HeldAnswer, HeldMember};
use crate::wire::OperatorMessage;
use lockstep_core::{MemberId, SEQNO_UNDEFINED, Seqno};
use std::collections::BTreeMap;

/// A member stands for no longer than this.
const STAND: Micros = 2_500_000;
/// All stand within this, or the attempt is given up.
const GATHER: Micros = 1_500_000;
/// A member that is behind by more is not waited for.
const BEHIND: i64 = 1000;

/// Why a member is behind that does not apply all because somebody wants it so.
const KEPT: &str = "held back by apply.paused, apply.delay or apply.until";

/// This member stands.
#[derive(Debug)]
struct Stand {
    by: MemberId,
    id: u64,
    until: Option<Seqno>,
    deadline: Micros,
    told: bool,
}

/// This member makes all stand.
#[derive(Debug)]
struct Gathering {
    token: u64,
    id: u64,
    began: Micros,
    /// What each has begun to commit, once it has said so, and whether it stands at `seqno`.
    members: BTreeMap<MemberId, (Option<Seqno>, bool)>,
    seqno: Option<Seqno>,
    /// Who has asked for the end, and which of the members have answered: still held?
    release: Option<u64>,
    released: BTreeMap<MemberId, bool>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    stand: Option<Stand>,
    gathering: Option<Gathering>,
    ids: u64,
}

impl Member {
    pub(super) fn is_at_barrier(&self) -> bool {
        self.barrier.stand.is_some() || self.barrier.gathering.is_some()
    }

    fn answer_hold(&mut self, token: u64, ok: bool, text: &str, began: Micros, held: Option<HeldAnswer>) {
        let seconds = self.now.saturating_sub(began) as f64 / 1e6;
        let answer = Answer { ok, text: text.into(), seconds, held };
        self.effects.push(super::Effect::Answer { token, answer });
    }

    /// The command `hold`.
    pub(super) fn gather(&mut self, token: u64) {
        if self.barrier.gathering.is_some() || self.barrier.stand.is_some() {
            return self.answer_hold(
                token,
                false,
                "another `lockstep verify` is at work: try again soon",
                self.now,
                None,
            );
        }
        if !self.connection.is_primary() {
            return self.answer_hold(
                token,
                false,
                "this member is not in a primary component",
                self.now,
                None,
            );
        }
        let view = self.raft.tail_state().view.clone();
        let membership = self.raft.membership();
        let mut members = BTreeMap::new();
        for member in &view.members {
            if membership.get(&member.id).is_some_and(|m| m.arbitrator) {
                continue;
            }
            let finished = match member.id == self.me.id {
                true => Some(self.finished()),
                false => self
                    .peers
                    .get(&member.id)
                    .and_then(|p| p.health)
                    .filter(|h| h.has_state)
                    .map(|h| h.finished),
            };
            match finished.map(|finished| self.lag_of(finished)) {
                Some(lag) if lag > 0 && self.is_kept(&member.id) => {}
                Some(lag) if lag <= BEHIND => {
                    members.insert(member.id, (None, false));
                }
                Some(lag) => {
                    let text = format!(
                        "{} is behind by {lag} transactions: verify when it has caught up",
                        member.name
                    );
                    return self.answer_hold(token, false, &text, self.now, None);
                }
                None => {
                    let text = format!("{} has not got the state yet: verify when it is Synced", member.name);
                    return self.answer_hold(token, false, &text, self.now, None);
                }
            }
        }
        if members.is_empty() {
            return self.answer_hold(token, false, &format!("all members are {KEPT}"), self.now, None);
        }
        self.barrier.ids += 1;
        let id = self.me.incarnation ^ self.barrier.ids;
        let ids: Vec<MemberId> = members.keys().copied().collect();
        self.barrier.gathering = Some(Gathering {
            token,
            id,
            began: self.now,
            members,
            seqno: None,
            release: None,
            released: BTreeMap::new(),
        });
        for to in ids {
            self.tell_operator(to, OperatorMessage::Hold { id });
        }
    }

    /// Whether a member, or this one, is behind because somebody wants it to be.
    fn is_kept(&self, id: &MemberId) -> bool {
        if *id == self.me.id { self.is_held_back() } else { self.is_kept_from(id) }
    }

    /// The command `release`.
    pub(super) fn release(&mut self, token: u64, id: u64) {
        match &mut self.barrier.gathering {
            Some(gathering) if gathering.id == id && gathering.release.is_none() => {
                gathering.release = Some(token);
                let members = gathering.members.keys().copied().collect();
                self.let_go(id, members);
            }
            _ => self.answer_hold(
                token,
                false,
                "the members stood for too long and have gone on",
                self.now,
                None,
            ),
        }
    }

    fn let_go(&mut self, id: u64, members: Vec<MemberId>) {
        for to in members {
            self.tell_operator(to, OperatorMessage::Release { id });
        }
    }

    /// What members say to each other about it.
    pub(super) fn on_barrier_message(&mut self, from: MemberId, message: OperatorMessage) {
        match message {
            OperatorMessage::Hold { id } => {
                let seqno = match (&self.hold, &self.barrier.stand) {
                    // A connection alone makes no member, and so makes nobody stand.
                    (Some(hold), None)
                        if self.connection.is_primary() && self.raft.membership().get(&from).is_some() =>
                    {
                        let deadline = self.now + STAND;
                        self.barrier.stand = Some(Stand { by: from, id, until: None, deadline, told: false });
                        hold.close()
                    }
                    _ => SEQNO_UNDEFINED,
                };
                self.tell_operator(from, OperatorMessage::Held { id, seqno });
            }
            OperatorMessage::Held { id, seqno } => {
                if let Some(gathering) = self.barrier.gathering.as_mut().filter(|g| g.id == id)
                    && let Some(member) = gathering.members.get_mut(&from)
                {
                    member.0 = Some(seqno);
                }
                self.gathering_step();
            }
            OperatorMessage::HoldAt { id, seqno } => {
                if let (Some(hold), Some(stand)) = (&self.hold, self.barrier.stand.as_mut())
                    && (stand.by, stand.id) == (from, id)
                {
                    stand.until = Some(seqno);
                    hold.until(seqno);
                }
            }
            OperatorMessage::Standing { id } => {
                if let Some(gathering) = self.barrier.gathering.as_mut().filter(|g| g.id == id)
                    && let Some(member) = gathering.members.get_mut(&from)
                {
                    member.1 = true;
                }
                self.gathering_step();
            }
            OperatorMessage::Release { id } => {
                let mine = self.barrier.stand.take_if(|stand| (stand.by, stand.id) == (from, id));
                let held = match (&self.hold, mine) {
                    (Some(hold), Some(_)) => hold.open(),
                    _ => false,
                };
                self.tell_operator(from, OperatorMessage::Released { id, held });
            }
            OperatorMessage::Released { id, held } => {
                if let Some(gathering) = self.barrier.gathering.as_mut().filter(|g| g.id == id) {
                    gathering.released.insert(from, held);
                }
                self.gathering_step();
            }
            _ => {}
        }
    }

    /// All that can happen by itself.
    pub(super) fn barrier_step(&mut self) {
        if let Some(stand) = &self.barrier.stand {
            let (by, id) = (stand.by, stand.id);
            let here = by == self.me.id || self.peers.contains_key(&by);
            if self.now >= stand.deadline || !here || !self.connection.is_primary() {
                self.barrier.stand = None;
                if let Some(hold) = &self.hold {
                    hold.open();
                }
                self.log(Level::Warn, "stood still for `lockstep verify` for too long: goes on".to_string());
            } else if !stand.told && stand.until.is_some_and(|seqno| self.finished() >= seqno) {
                if let Some(stand) = &mut self.barrier.stand {
                    stand.told = true;
                }
                self.tell_operator(by, OperatorMessage::Standing { id });
            }
        }
        self.gathering_step();
    }

    fn gathering_step(&mut self) {
        let Some(gathering) = &mut self.barrier.gathering else { return };
        let (token, id, began) = (gathering.token, gathering.id, gathering.began);
        let late = self.now.saturating_sub(began) > GATHER;
        if let Some(release) = gathering.release {
            let all = gathering.released.len() == gathering.members.len();
            if all || self.now.saturating_sub(began) > STAND + GATHER {
                let held = all && gathering.released.values().all(|held| *held);
                self.barrier.gathering = None;
                let text = match held {
                    true => "all members stood until now",
                    false => "not all members stood until now: what was read is not of one seqno; try again",
                };
                self.answer_hold(release, held, text, began, None);
            }
            return;
        }
        // Answered already: the members' own patience ends it.
        if token == 0 {
            if self.now.saturating_sub(began) > STAND + GATHER {
                self.barrier.gathering = None;
            }
            return;
        }
        if let Some((who, _)) = gathering.members.iter().find(|(_, m)| m.0.is_some_and(|seqno| seqno < 0)) {
            let who = *who;
            return self
                .gathering_failed(format!("{} cannot stand still now: try again soon", self.name_of(&who)));
        }
        let begun: Option<Vec<Seqno>> = gathering.members.values().map(|m| m.0).collect();
        if let (Some(begun), None) = (begun, gathering.seqno) {
            let seqno = begun.into_iter().max().unwrap_or(SEQNO_UNDEFINED);
            gathering.seqno = Some(seqno);
            let members: Vec<MemberId> = gathering.members.keys().copied().collect();
            for to in members {
                self.tell_operator(to, OperatorMessage::HoldAt { id, seqno });
            }
            return;
        }
        if let Some(seqno) = gathering.seqno.filter(|_| gathering.members.values().all(|m| m.1)) {
            gathering.token = 0;
            let state = self.raft.tail_state();
            let view = state.view.clone();
            let here =
                |id: &MemberId| self.barrier.gathering.as_ref().is_some_and(|g| g.members.contains_key(id));
            let members = view
                .members
                .iter()
                .filter(|m| here(&m.id))
                .map(|m| HeldMember {
                    name: m.name.clone(),
                    id: m.id.to_string(),
                    incoming: m.incoming.clone(),
                })
                .collect();
            let held = HeldAnswer { id, history: state.history.to_string(), seqno, members };
            return self.answer_hold(
                token,
                true,
                &format!("all members stand at seqno {seqno}"),
                began,
                Some(held),
            );
        }
        if late {
            let waiting = |m: &(Option<Seqno>, bool)| m.0.is_none() || !m.1;
            let who: Vec<MemberId> =
                gathering.members.iter().filter(|(_, m)| waiting(m)).map(|(id, _)| *id).collect();
            // They lacked nothing when it began, and do now.
            let (kept, slow): (Vec<_>, Vec<_>) = who.iter().partition(|id| self.is_kept(id));
            let names =
                |of: &[&MemberId]| of.iter().map(|id| self.name_of(id)).collect::<Vec<_>>().join(", ");
            let mut why = Vec::new();
            if !slow.is_empty() {
                let who = names(&slow);
                why.push(format!(
                    "{who} did not come to a stand in time (a long statement, a lock, a slow member?): try again"
                ));
            }
            if !kept.is_empty() {
                let who = names(&kept);
                why.push(format!("{who} did not come to a stand in time, {KEPT}: again, and it is left out"));
            }
            self.gathering_failed(why.join("; "));
        }
    }

    fn gathering_failed(&mut self, text: String) {
        // Taken first: this member's own answer comes back at once.
        if let Some(Gathering { id, token, began, members, .. }) = self.barrier.gathering.take() {
            self.let_go(id, members.into_keys().collect());
            self.answer_hold(token, false, &text, began, None);
        }
    }
}

#[cfg(test)]
#[path = "barrier_tests.rs"]
mod tests;
