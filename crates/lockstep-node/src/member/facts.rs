//! Facts that components need of one another, gathered from several of them.

use crate::api::LocalState;
use crate::member::leadership::failure_detector::{Hang, Network};
use crate::member::leadership::{Action, Candidate, Facts, Reason};
use crate::member::membership::connection_state::ConnectionState;
use crate::member::membership::peers::REJECTED_WRITES_SINCE;
use crate::member::{Level, Member, Micros};
use lockstep_core::{Entry, MemberId};

impl Member {
    /// The other voters, as possible leaders.
    pub(in crate::member) fn candidates(&self) -> Vec<Candidate> {
        let membership = self.ctx.raft.membership();
        let others = membership.members.iter().filter(|m| m.role.votes() && m.id != self.ctx.me.id);
        others
            .map(|member| {
                let peer = self.ctx.peers.get(&member.id);
                let health = peer.and_then(|peer| peer.health);
                Candidate {
                    id: member.id,
                    view_uuid: peer.map(|peer| peer.hello.view_uuid),
                    leaving: peer.is_some_and(|peer| peer.leaving()),
                    fit: self.unfit_to_lead(&member.id).is_none(),
                    database: !member.arbitrator,
                    synced: self.is_synced(&member.id),
                    held_back: self.peer_is_held_back(&member.id),
                    matched: self.ctx.raft.matched(&member.id),
                    finished: health.map(|health| health.finished),
                }
            })
            .collect()
    }

    /// Why a member should not become the leader, if so.
    pub(in crate::member) fn unfit_to_lead(&self, id: &MemberId) -> Option<String> {
        let membership = self.ctx.raft.membership();
        let member = membership.get(id)?;
        if member.arbitrator {
            return Some("is an arbitrator: it leads only briefly, and never by command".into());
        }
        let Some(peer) = self.ctx.peers.get(id) else {
            return Some("is not connected".into());
        };
        if !member.role.votes() {
            return Some(match member.wants_vote {
                true => "does not vote yet: wait until `lockstep status` shows it as a voter".into(),
                false => "does not vote (member.vote=no, pc.weight=0), so it cannot lead".into(),
            });
        }
        if peer.leaving() {
            return Some("is about to leave".into());
        }
        (!self.ctx.responds(id)).then(|| "has not responded for some time".into())
    }

    pub(in crate::member) fn is_synced(&self, id: &MemberId) -> bool {
        self.ctx.peers.get(id).and_then(|peer| peer.health).is_some_and(|h| h.state == LocalState::Synced)
    }

    /// Whether a member's last health message says that an apply hold keeps entries from its server. Any other fit
    /// member should lead instead.
    pub(in crate::member) fn peer_is_held_back(&self, id: &MemberId) -> bool {
        self.ctx.peers.get(id).and_then(|peer| peer.health).is_some_and(|health| health.held_back)
    }

    /// Whether leadership should not move now: a command is under way, or a member joins, leaves or takes its state.
    fn is_busy(&self) -> bool {
        let membership = self.ctx.raft.membership();
        let comes = |id: &MemberId, state: Option<LocalState>| {
            membership.get(id).is_none()
                || !matches!(state, Some(LocalState::Synced | LocalState::Donor | LocalState::Error))
        };
        self.roster.leave.has_begun()
            || self.is_commanded()
            || self.is_at_barrier()
            || self.recovery.transfers.is_donating()
            || self
                .ctx
                .peers
                .iter()
                .any(|(id, peer)| peer.leaving() || comes(id, peer.health.map(|health| health.state)))
    }

    /// A leader's task: decides whether leadership moves, and carries that out. Returns whether this member hands over
    /// because it cannot lead well; its other tasks are its successor's then.
    pub(in crate::member) fn move_leadership(&mut self) -> bool {
        let needs_state = matches!(self.ctx.connection, ConnectionState::NeedState { .. });
        let facts = Facts {
            now: self.ctx.now,
            raft: &self.ctx.raft,
            tuning: &self.ctx.tuning,
            candidates: self.candidates(),
            arbitrator: self.ctx.me.arbitrator,
            held: self.ctx.has_held_server() || needs_state,
            finished: self.ctx.finished(),
            busy: self.is_busy(),
            all_report_rejections: self
                .ctx
                .peers
                .values()
                .all(|peer| peer.version >= REJECTED_WRITES_SINCE || peer.hello.arbitrator),
        };
        match self.leadership.decide(&facts) {
            None => false,
            Some(Action::StepDown { to, hang }) => {
                let why = match hang {
                    Hang::Disk(time) => {
                        format!("disk has not finished a write of the log for {} s", time / 1_000_000)
                    }
                    Hang::Database(time) => {
                        format!("database has finished nothing for {} s", time / 1_000_000)
                    }
                };
                let text =
                    format!("this member's {why}: handing over leadership to {}", self.ctx.name_of(&to));
                self.ctx.log(Level::Warn, text);
                self.step_down(to);
                false
            }
            Some(Action::TransferTo { to, reason }) => {
                if self.ctx.raft.transfer_leadership(self.ctx.now, to).is_err() {
                    return false;
                }
                self.leadership.transfer_begun(self.ctx.now, &reason);
                let name = self.ctx.name_of(&to);
                let text = match reason {
                    Reason::Unfit => return true,
                    Reason::Writes { share } => {
                        format!(
                            "{name} proposes {share} % of all transactions: it is to lead (leader.follow_writer)"
                        )
                    }
                    Reason::RejectsWrites { .. } => format!(
                        "Returning leadership to {name}: it is rejecting writes and none arrive here (leader.follow_writer)"
                    ),
                };
                self.ctx.log(Level::Info, text);
                false
            }
        }
    }

    /// At the end of a round: reports rejected writes to the leader, if due.
    pub(in crate::member) fn follow_leader(&mut self) {
        let leader = self.ctx.raft.leader();
        let peer = leader.and_then(|id| self.ctx.peers.get(&id));
        let peer = peer.map(|peer| (peer.hello.view_uuid, peer.version >= REJECTED_WRITES_SINCE));
        if self.leadership.follow(self.ctx.now, &self.ctx.raft, peer)
            && let Some(leader) = leader
        {
            self.tell(leader, &crate::wire::NodeMessage::TurnedAway);
        }
    }

    /// Sets Raft's timeouts to what the network calls for.
    pub(in crate::member) fn adapt_timing(&mut self) {
        let membership = self.ctx.raft.membership();
        let rtt = |id: MemberId| self.ctx.peers.get(&id)?.rtt;
        let own_vote = usize::from(membership.is_voter(&self.ctx.me.id));
        let network = Network {
            voters: membership.voters().filter(|id| *id != self.ctx.me.id).filter_map(rtt).collect(),
            others_needed: membership.majority().saturating_sub(own_vote),
            leader: self.ctx.raft.leader().and_then(rtt),
            farthest: self.ctx.peers.values().filter_map(|peer| peer.rtt).max(),
        };
        let timing = self.leadership.timing(self.ctx.now, &self.ctx.tuning, &network);
        self.ctx.raft.set_timing(timing.heartbeat, timing.election_timeout);
        self.ctx.raft.set_leader_timeout(timing.leader_timeout);
        self.ctx.raft.set_longest_rtt(timing.longest_rtt);
    }

    /// Compares the append times of entries from the leader with the own clock, under `apply.delay`.
    pub(in crate::member) fn compare_clocks(&mut self, entries: &[Entry]) {
        let leader = self.ctx.raft.leader().filter(|id| *id != self.ctx.me.id);
        let Some(leader) = leader.filter(|_| !self.ctx.tuning.apply_hold.delay.is_zero()) else { return };
        let Some(behind) = self.delivery.clocks.compare(self.ctx.now, self.ctx.wall, leader, entries) else {
            return;
        };
        let (side, effect) = if behind > 0 { ("behind", "sooner") } else { ("ahead of", "later") };
        let text = format!(
            "the clock of the leader {} is about {:.1} s {side} this member's: apply.delay ends that much {effect}; \
             synchronize the clocks",
            self.ctx.name_of(&leader),
            behind.unsigned_abs() as f64 / 1e6,
        );
        self.ctx.log(Level::Warn, text);
    }

    /// Notes whether this member's database makes progress.
    pub(in crate::member) fn check_database(&mut self) {
        let finished = self.ctx.finished();
        // Desynced by the user, for example for a backup, or donating: the database may stand still.
        let may_stand = finished >= self.deliverer.delivered()
            || self.roster.sync.is_desynced_by_server()
            || self.recovery.transfers.is_donating()
            || !self.deliverer.is_running()
            || self.delivery.apply_holds.is_holding();
        self.leadership.note_database(self.ctx.now, finished, may_stand);
    }

    /// The front end has rejected this many writes for the policy, in all.
    pub(crate) fn note_refused(&mut self, refused: u64) {
        self.leadership.note_refused(refused);
    }

    /// The shortest of the latest round trips to a peer.
    pub(crate) fn on_rtt(&mut self, id: MemberId, rtt: Micros) {
        self.ctx.peers.set_rtt(&id, rtt);
    }

    /// The round trip to a peer, once measured. Raft's own measure is the time to an answer, which includes the time in
    /// which a member was away or starting.
    pub(crate) fn rtt_to(&self, id: &MemberId) -> Option<Micros> {
        self.ctx.peers.get(id)?.rtt
    }

    #[cfg(test)]
    pub(in crate::member) fn refused_writes(&self) -> u64 {
        self.leadership.refused()
    }
}
