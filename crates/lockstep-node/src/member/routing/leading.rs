//! Leadership: the tasks of a leader, its replacement, and the reactions to a new leader.

use crate::api::{Level, LocalState};
use crate::member::Member;
use crate::member::context::ConnectionState;
use crate::member::leadership::failure_detector::Hang;
use crate::member::leadership::{Action, Facts, Reason};
use crate::member::membership::peers::REJECTED_WRITES_SINCE;
use crate::wire::NodeMessage;
use lockstep_core::{Entry, Index, MemberId};

impl Member {
    /// Runs the leader's tasks in this round: something has changed.
    pub(in crate::member) fn schedule_leader_tasks(&mut self) {
        self.roster.leader_tasks.schedule(self.ctx.now());
    }

    /// Runs all tasks of a leader, most urgent first.
    pub(in crate::member) fn lead(&mut self) {
        if !self.ctx.raft.has_committed_in_term() {
            return;
        }
        self.roster.leader_tasks.change_membership(&mut self.ctx);
        if self.move_leadership() {
            return;
        }
        self.delivery.apply_holds.check_for_writer(&mut self.ctx);
        if let Some(mark) = self.roster.leader_tasks.append_view(&mut self.ctx, &self.delivery) {
            self.recovery.verdict_votes.begin(&self.ctx, mark);
        }
        self.roster.disk_notes.append(&mut self.ctx);
    }

    /// Whether commands are under way; rounds are more frequent then.
    pub(in crate::member) fn is_commanded(&self) -> bool {
        self.admin.operator.is_active() || self.roster.branches.is_bootstrapping()
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
            || self.admin.barrier.is_active()
            || self.recovery.transfers.is_donating()
            || self.ctx.peers.iter().any(|(id, peer)| peer.leaving() || comes(id, peer.state()))
    }

    /// A leader's task: decides whether leadership moves, and carries that out. Returns whether this member hands over
    /// because it cannot lead well; its other tasks are its successor's then.
    fn move_leadership(&mut self) -> bool {
        let needs_state = matches!(self.ctx.connection(), ConnectionState::NeedState { .. });
        let facts = Facts {
            now: self.ctx.now(),
            raft: &self.ctx.raft,
            tuning: self.ctx.tuning(),
            candidates: self.ctx.candidates(),
            arbitrator: self.ctx.me().arbitrator,
            held: self.ctx.has_held_server() || needs_state,
            finished: self.ctx.finished(),
            busy: self.is_busy(),
            all_report_rejections: self
                .ctx
                .peers
                .values()
                .all(|peer| peer.supports(REJECTED_WRITES_SINCE) || peer.hello().arbitrator),
        };
        match self.leadership.decide(&facts) {
            None => false,
            Some(Action::StepDown { to, hang }) => {
                let why = match hang {
                    Hang::Disk(time) => {
                        format!("disk has not finished a write of the log for {} s", time / 1_000_000)
                    }
                    Hang::Database(time) => {
                        format!("{} has finished nothing for {} s", self.ctx.terms().data, time / 1_000_000)
                    }
                };
                let text =
                    format!("this member's {why}: handing over leadership to {}", self.ctx.name_of(&to));
                self.ctx.log(Level::Warn, text);
                self.admin.operator.step_down(self.ctx.now(), to);
                false
            }
            Some(Action::TransferTo { to, reason }) => {
                if self.ctx.raft.transfer_leadership(self.ctx.now(), to).is_err() {
                    return false;
                }
                self.leadership.transfer_begun(self.ctx.now(), &reason);
                let name = self.ctx.name_of(&to);
                let text = match reason {
                    Reason::Unfit => return true,
                    Reason::Writes { share } => {
                        format!(
                            "{name} proposes {share} % of all {}: it is to lead (leader.follow_writer)",
                            self.ctx.terms().entries
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

    pub(in crate::member) fn leader_changed(&mut self, leader: Option<MemberId>, term: u64) {
        let text = match leader {
            Some(id) if id == self.ctx.me().id => format!("this member leads in term {term}"),
            Some(id) => format!("{} leads in term {term}", self.ctx.name_of(&id)),
            None => format!("no leader in term {term}"),
        };
        self.schedule_leader_tasks();
        self.ctx.log(Level::Info, text);
        self.ask_again();
        let before = self.leadership.leader_changed(leader);
        if leader == Some(self.ctx.me().id) {
            self.warn_of_loss(term, before);
        }
    }

    /// Asks the leader about the reads whose question failed, as soon as there is one.
    fn ask_again(&mut self) {
        let now = self.ctx.now();
        self.admin.position_queries.ask_again(&mut self.ctx.raft, now);
        self.delivery.causal_reads.ask_again(&mut self.ctx.raft, now);
    }

    /// The leader's answer to a read-index question; `None` if there was no leader to answer.
    pub(in crate::member) fn read_ready(&mut self, context: u64, index: Option<Index>) {
        let now = self.ctx.now();
        self.admin.position_queries.answered(&mut self.ctx.raft, now, context, index);
        self.delivery.confirmations.answered(context, index);
        self.delivery.causal_reads.answered(&mut self.ctx.raft, now, context, index);
    }

    /// Under a weak policy the previous leader may have acknowledged transactions that no present member has. If the
    /// previous leader is present itself, log recovery has asked it for its log tail.
    fn warn_of_loss(&mut self, term: u64, before: Option<MemberId>) {
        let Some(gap) = self.ctx.raft.left_out_by_own_term() else { return };
        let before = before.filter(|id| *id != self.ctx.me().id);
        if before.is_some_and(|id| self.ctx.responds(&id)) {
            return;
        }
        let before = before.map_or_else(|| "the previous leader".to_owned(), |id| self.ctx.name_of(&id));
        let text = format!(
            "this member leads in term {term}, without {before}: {} that {before} acknowledged beyond seqno {} and no \
             member here has are skipped (the next seqno is {}). They are lost unless that member comes \
             back with its log and writes them to lockstep.rescue.*.log",
            self.ctx.terms().entries,
            gap.before,
            gap.after
        );
        self.ctx.log(Level::Warn, text);
    }

    /// At the end of a round: reports rejected writes to the leader, if due.
    pub(in crate::member) fn follow_leader(&mut self) {
        let leader = self.ctx.raft.leader();
        let peer = leader.and_then(|id| self.ctx.peers.get(&id));
        let peer = peer.map(|peer| (peer.hello().view_uuid, peer.supports(REJECTED_WRITES_SINCE)));
        if self.leadership.follow(self.ctx.now(), &self.ctx.raft, peer)
            && let Some(leader) = leader
        {
            self.ctx.send(leader, &NodeMessage::WritesRejected);
        }
    }

    /// Sets Raft's timeouts to what the network calls for.
    pub(in crate::member) fn adapt_timing(&mut self) {
        let network = self.ctx.network();
        let timing = self.leadership.timing(self.ctx.now(), self.ctx.tuning(), &network);
        self.ctx.raft.set_timing(timing.heartbeat, timing.election_timeout);
        self.ctx.raft.set_leader_timeout(timing.leader_timeout);
        self.ctx.raft.set_longest_rtt(timing.longest_rtt);
    }

    /// Compares the append times of entries from the leader with the own clock, under `apply.delay`.
    pub(in crate::member) fn compare_clocks(&mut self, entries: &[Entry]) {
        let leader = self.ctx.raft.leader().filter(|id| *id != self.ctx.me().id);
        let Some(leader) = leader.filter(|_| !self.ctx.tuning().apply_hold.delay.is_zero()) else { return };
        let Some(behind) = self.delivery.clocks.compare(self.ctx.now(), self.ctx.wall(), leader, entries)
        else {
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
        let may_stand = finished >= self.delivery.deliverer.delivered()
            || self.roster.sync.is_desynced_by_server()
            || self.recovery.transfers.is_donating()
            || !self.delivery.deliverer.is_running()
            || self.delivery.apply_holds.is_holding();
        self.leadership.note_database(self.ctx.now(), finished, may_stand);
    }

    #[cfg(test)]
    pub(in crate::member) fn refused_writes(&self) -> u64 {
        self.leadership.refused()
    }
}
