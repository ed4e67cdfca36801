//! Under `async` and `semisync` the lead goes back to where the clients are.
//!
//! There the leader's server alone takes writes. One that loses the lead to an election, because its processor was busy or
//! its line broke for a moment, refuses them from then on, and where nobody has moved its clients they stay, and hear so: no
//! count of who writes ([`lockstep_core::follow`]) shows where they would. So a member tells the leader that it turns clients
//! away, and a leader that was elected, and whose own server has taken no write since, hands the lead back to the one before
//! it, if that one, and nobody else, does so for some seconds.
//!
//! A leader that an operator has put there keeps the lead: a view listed it first before it led. So it does where the one
//! before it has left, or was started again: that one's clients have heard of it.

use super::leader_tasks::NEAR_ENOUGH;
use super::peers::TURNED_AWAY_SINCE;
use super::{Level, Member, Micros, NodeMessage};
use lockstep_core::{MemberId, Term, ViewUuid};

/// A member says no more often that it turns clients away.
const PERIOD: Micros = 1_000_000;
/// So many times in a row it says so,
const TIMES: u32 = 3;
/// each within so long of the one before.
const IN_A_ROW: Micros = 2_500_000;
/// Whoever gives the lead back twice within this waits twice as long for the next time,
const SOON: Micros = 60_000_000;
/// but not until it is said more often than so many times.
const TIMES_MOST: u32 = 60;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Failback {
    /// How many writes of its clients this member has refused for the policy: counted by the front end.
    pub(super) refused: u64,
    /// Of these the leader knows, since then.
    told: u64,
    told_at: Option<Micros>,
    /// While another one leads: who, in which connection of its own, and whether a view lists this member first.
    leader: Option<(MemberId, ViewUuid)>,
    listed_first: bool,
    /// While this member leads.
    reign: Option<LostTerm>,
    /// How often it was to be said the last time, and when that was.
    given_back: Option<(Micros, u32)>,
}

#[derive(Debug)]
struct LostTerm {
    term: Term,
    /// Who led before, if not by a command this member came to lead instead.
    before: Option<(MemberId, ViewUuid)>,
    /// What this member had written when it began.
    written: u64,
    /// How often in a row it was said that clients are turned away there, and when last.
    turns_away: Option<(u32, Micros)>,
    /// When another one said so.
    others_at: Option<Micros>,
}

impl Member {
    /// The front end has refused so many writes for the policy, in all.
    pub(crate) fn note_refused(&mut self, refused: u64) {
        self.failback.refused = refused;
    }

    /// In each round: what a member has to remember of who leads, and to tell it.
    pub(super) fn failback_step(&mut self) {
        if self.raft.is_leader() {
            let term = self.raft.term();
            if self.failback.reign.as_ref().is_none_or(|reign| reign.term != term) {
                let before = self.failback.leader.filter(|_| !self.failback.listed_first);
                let written = self.own_writes();
                self.failback.reign =
                    Some(LostTerm { term, before, written, turns_away: None, others_at: None });
            }
            return;
        }
        self.failback.reign = None;
        self.failback.listed_first =
            self.raft.tail_state().view.members.first().is_some_and(|first| first.id == self.me.id);
        let Some(leader) = self.raft.leader() else { return };
        if let Some(peer) = self.peers.get(&leader) {
            self.failback.leader = Some((leader, peer.hello.view_uuid));
        }
        let due = self.failback.told_at.is_none_or(|at| self.now >= at + PERIOD);
        let knows = self.peers.get(&leader).is_some_and(|peer| peer.version >= TURNED_AWAY_SINCE);
        if self.failback.refused != self.failback.told && due && knows && self.raft.policy().is_weak() {
            self.failback.told = self.failback.refused;
            self.failback.told_at = Some(self.now);
            self.tell(leader, &NodeMessage::TurnedAway);
        }
    }

    /// An operator wants the lead where it is.
    pub(super) fn keep_leadership(&mut self) {
        if let Some(reign) = &mut self.failback.reign {
            reign.before = None;
        }
    }

    fn own_writes(&self) -> u64 {
        self.raft.written_by().get(&self.me.id).copied().unwrap_or(0)
    }

    /// A member turns clients away.
    pub(super) fn on_writes_rejected(&mut self, from: MemberId) {
        let now = self.now;
        let Some(reign) = &mut self.failback.reign else { return };
        if reign.before.is_none_or(|(id, _)| id != from) {
            reign.others_at = Some(now);
            return;
        }
        let before = reign.turns_away.filter(|(_, at)| now < at + IN_A_ROW).map_or(0, |(times, _)| times);
        reign.turns_away = Some((before + 1, now));
    }

    /// A leader's look at whether the lead is to go back.
    pub(super) fn return_leadership(&mut self) {
        let Some(reign) = &self.failback.reign else { return };
        let (Some((home, life)), Some((times, at))) = (reign.before, reign.turns_away) else { return };
        let wanted = match self.failback.given_back {
            // Not counting what was waited this time.
            Some((given, before)) if self.now < given + SOON + Micros::from(times) * PERIOD => {
                (2 * before).min(TIMES_MOST)
            }
            _ => TIMES,
        };
        let fresh = |at: Micros| self.now < at + IN_A_ROW;
        // Of one that does not say so it is not known.
        let all_say_so =
            self.peers.values().all(|peer| peer.version >= TURNED_AWAY_SINCE || peer.hello.arbitrator);
        let fits = self.tuning.follow_writer
            && self.raft.policy().is_weak()
            && times >= wanted
            && fresh(at)
            && !reign.others_at.is_some_and(fresh)
            && all_say_so
            && self.own_writes() == reign.written
            && self.peers.get(&home).is_some_and(|peer| peer.hello.view_uuid == life)
            && self.raft.matched(&home) + NEAR_ENOUGH >= self.raft.last_index()
            && !self.is_busy()
            && self.unfit_to_lead(&home).is_none()
            && self.is_synced(&home);
        if fits && self.raft.transfer_leadership(self.now, home).is_ok() {
            self.failback.given_back = Some((self.now, wanted));
            if let Some(reign) = &mut self.failback.reign {
                reign.turns_away = None;
            }
            let name = self.name_of(&home);
            let text = format!(
                "{name}, which led before, turns clients away that write, and nobody writes here: it is to lead again \
                 (leader.follow_writer)"
            );
            self.log(Level::Info, text);
        }
    }
}

#[cfg(test)]
#[path = "failback_tests.rs"]
mod tests;
