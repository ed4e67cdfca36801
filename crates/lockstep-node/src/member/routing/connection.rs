//! The states of a member from "not connected" to "Synced", and the views and notices that its server gets on the way.

use crate::api::{
    Beginning, ConnectArgs, Delivery, FollowedLog, FrontEnd, Level, NodeError, ViewInfo, ViewStatus,
};
use crate::effect::Effect;
use crate::member::Member;
use crate::member::admin::wait_report::disk_wait_report;
use crate::member::context::ConnectionState;
use crate::member::delivery::deliverer::StartError;
use crate::member::membership::branch::in_present_history;
use crate::member::membership::own_disk::Change;
use crate::member::membership::wait_text::{hung_disks_text, lost_end_text, missing};
use crate::member::recovery::in_doubt::{InDoubtDecision, absent_text};
use crate::member::recovery::start_position::LogFacts;
use crate::member::recovery::transfer::Received;
use lockstep_core::members::{MemberInfo, Membership, Role};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Gtid, MemberId, Micros, Seqno, Uuid};

/// After this many election timeouts without a leader, the server gets a non-Primary view.
const LEADERLESS_TIMEOUTS: Micros = 4;
/// After this long without connections to a majority, the server gets a non-Primary view.
const CUT_OFF_TIMEOUT: Micros = 300_000;

impl Member {
    /// Begins to connect. `view_uuid` identifies this connection. `fresh` names the log of a new cluster, and its
    /// history unless the database has one.
    ///
    /// # Errors
    /// [`NodeError`] if the connect is refused at once.
    pub(crate) fn connect(
        &mut self,
        mut args: ConnectArgs,
        view_uuid: Uuid,
        fresh: Uuid,
    ) -> Result<(), NodeError> {
        if let ConnectionState::Failed(text) = self.ctx.connection() {
            return Err(NodeError::Setup(text.clone()));
        }
        if *self.ctx.connection() != ConnectionState::Idle {
            return Err(NodeError::State("connect: this node is connected already"));
        }
        let empty = self.ctx.raft.last_index() == 0 && self.ctx.raft.membership().members.is_empty();
        // `compare_with_log` may take a position away. A device that had one is not empty.
        let had_position = args.position.is_defined();
        if empty && args.bootstrap && self.ctx.front_end() == FrontEnd::Device && args.position.is_defined() {
            return Err(NodeError::Refused(format!(
                "this member has a copy of a device at {}, but no log (lockstep.* files): it cannot found a group with it (--new). \
                 To go on in its group, start it without --new. To use its data in a new group, found that with a new directory, \
                 and copy this device.img to it through NBD",
                args.position
            )));
        }
        if empty && args.bootstrap && args.needs_state {
            return Err(NodeError::Refused(
                "this member's device file is no whole copy, and it has no log: it cannot found a group (--new). Start it without \
                 --new, and name a member that has the device in --address"
                    .into(),
            ));
        }
        if !empty {
            self.compare_with_log(&mut args)?;
        }
        if args.bootstrap
            && !empty
            && let Some(why) = self.joins_instead()
        {
            self.ctx.log(
                Level::Warn,
                format!("this start should found a new cluster ({}), but {why}", self.ctx.terms().new),
            );
            args.bootstrap = false;
        }
        self.ctx.begin_incarnation(&args.cluster, view_uuid);
        self.roster.reverted_log.connect(view_uuid);
        self.delivery.renew();
        self.roster.leave.reset();
        self.roster.health_reports.reset();
        self.roster.views_shown.connect(view_uuid);
        self.ctx.raft.set_position(Some(args.position.seqno).filter(|_| args.position.is_defined()));
        if args.bootstrap && empty {
            let (history, base) = match args.position {
                position if position.is_defined() => (position.uuid, position.seqno),
                _ => (fresh, 0),
            };
            let me: MemberInfo = self.ctx.me().as_member(Role::Voter);
            let membership = Membership { members: vec![me] };
            let policy = self.ctx.tuning().policy;
            let genesis =
                StateSnapshot { log_id: fresh, policy, ..StateSnapshot::genesis(history, base, membership) };
            self.ctx.raft.bootstrap(self.ctx.now(), genesis);
            self.ctx.log(Level::Info, format!("a new cluster begins: history {history}, seqno {base}"));
            if self.ctx.front_end() == FrontEnd::Device {
                let text = format!(
                    "--new has founded the group {} with an empty device. If the group has other members already, this is a \
                     second group: stop this member, remove the files in its directory, and start it without --new, with those \
                     members in --address. Otherwise remove --new from its arguments now",
                    self.ctx.cluster()
                );
                self.ctx.log(Level::Warn, text);
            }
        }
        let mut addresses = args.peers.clone();
        addresses.extend(self.ctx.raft.membership().members.iter().map(|m| m.address.clone()));
        self.ctx.begin_connecting(args, had_position);
        for address in addresses {
            self.ctx.dial(address);
        }
        Ok(())
    }

    /// Why a member with a log joins its cluster although it was told to found one. A second history beside the one that
    /// it knows would lose the transactions of one of them. `None` if it is the only voter: then it goes on alone.
    fn joins_instead(&self) -> Option<String> {
        let membership = self.ctx.raft.membership();
        let others: Vec<String> = membership
            .voters()
            .filter(|id| *id != self.ctx.me().id)
            .map(|id| self.ctx.name_of(&id))
            .collect();
        if !membership.is_voter(&self.ctx.me().id) {
            return Some(
                "this member left a cluster that went on without it: it joins that cluster. To found a new cluster from \
                 its data instead, stop it, move its lockstep.* files away, and start it again"
                    .into(),
            );
        }
        (!others.is_empty()).then(|| {
            format!(
                "this member's log knows of the voters {}: it joins them, and goes on as soon as a majority of the voters \
                 runs. Start the others. If they are gone for good, run {} while this one waits",
                others.join(", "),
                match self.ctx.front_end() {
                    FrontEnd::Device => "lockstep bootstrap --socket DIR/lockstep.sock",
                    _ => "lockstep bootstrap on this server",
                }
            )
        })
    }

    /// Checks the database's position against the own log.
    ///
    /// Only entries in the own log are delivered. A database that is ahead of the log, or of another history, went on
    /// without it: under Galera's library, or it was restored from a backup. Its position stays meaningless, even once
    /// the log has reached it. If no other member has a log, no member has the state either.
    fn compare_with_log(&mut self, args: &mut ConnectArgs) -> Result<(), NodeError> {
        args.position = in_present_history(&self.ctx, args.position);
        let alone = self.ctx.raft.membership().voters().all(|id| id == self.ctx.me().id);
        let (position, tail) = (args.position, self.ctx.raft.tail_state());
        let is_ahead = position.uuid == tail.history && position.seqno > tail.seqno;
        if is_ahead && self.ctx.raft.former_end().is_none() {
            self.roster.reverted_log.database_is_ahead(position.seqno);
        }
        // A member that is the only voter abstains for nobody.
        if !alone && let Some(followed) = &args.followed {
            self.compare_with_followed_log(followed, args.position);
        }
        let (position, tail) = (args.position, self.ctx.raft.tail_state());
        if !position.is_defined() || (position.uuid == tail.history && position.seqno <= tail.seqno) {
            return Ok(());
        }
        if self.ctx.raft.former_end().is_some() && position.uuid == tail.history {
            // The entries up to there are among those that damage has taken. A leader sends them again. As for a member that
            // has lost its whole log: if the cluster goes on without them, a view leaves their seqnos out.
            return Ok(());
        }
        let what = format!(
            "this member's data are at {position}, but its log ends at {}:{}: they went on without it, or came from \
             elsewhere",
            tail.history, tail.seqno
        );
        if (args.bootstrap || alone) && self.ctx.front_end() == FrontEnd::Device {
            return Err(NodeError::Refused(format!(
                "{what}. Keep a copy of this directory. Start this member with the device.img and device.state that belong to \
                 its log, or bring back the log that belongs to them"
            )));
        }
        if args.bootstrap || alone {
            return Err(NodeError::Refused(format!(
                "{what}. To found a cluster from these data, move the lockstep.* files of all members away and start \
                 this one with --wsrep-new-cluster. To go on with the log, start a member whose data belong to it. If the \
                 log is an older copy, and other members run, move this member's lockstep.* files away, and start it without \
                 --wsrep-new-cluster: it joins as a new member"
            )));
        }
        if self.roster.reverted_log.waits(&self.ctx.raft).is_none() {
            let text = format!(
                "{what}, or the log is an older copy: the data do not count, and the state will be transferred"
            );
            self.ctx.log(Level::Warn, text);
        }
        args.position = Gtid::UNDEFINED;
        Ok(())
    }

    /// Abstains if the database proves that the log was reverted: see [`crate::member::membership::reverted_log`].
    fn compare_with_followed_log(&mut self, followed: &FollowedLog, position: Gtid) {
        let raft = &self.ctx.raft;
        let Some(why) = self.roster.reverted_log.on_database(raft, followed, position) else { return };
        let remedy = format!(
            "run lockstep bootstrap on a member {}. If there is none, found the cluster anew on the newest data",
            self.roster.reverted_log.wanted_log()
        );
        self.abstain(&why, &remedy);
    }

    /// Advances the connection state.
    pub(in crate::member) fn connection_step(&mut self) {
        match self.ctx.connection().clone() {
            ConnectionState::Idle | ConnectionState::Failed(_) => {}
            ConnectionState::Connecting { args, had_position, until, log_at } => {
                self.connecting(args, had_position, until, log_at)
            }
            ConnectionState::NeedState { primary } => {
                self.quorum_step(primary);
                self.begin_from_state();
            }
            ConnectionState::Running { primary, .. } => {
                self.quorum_step(primary);
                let donating = self.recovery.transfers.is_donating();
                self.roster.sync.step(&mut self.ctx, &mut self.delivery, donating);
            }
        }
    }

    fn connecting(&mut self, mut args: ConnectArgs, had_position: bool, until: Micros, log_at: Micros) {
        // The member may have begun a branch since the connect began.
        args.position = in_present_history(&self.ctx, args.position);
        let state = self.ctx.raft.committed_state();
        let me = state
            .view
            .members
            .iter()
            .position(|m| m.id == self.ctx.me().id && m.view_uuid == self.ctx.me().view_uuid);
        let is_trusted = !self.ctx.raft.distrusts_own_log();
        let my_index = me.filter(|_| is_trusted && self.ctx.raft.deliverable() >= state.index);
        let Some(my_index) = my_index else {
            let missing = self.missing();
            return self.still_connecting(args, until, log_at, &missing);
        };
        let doubt = args.in_doubt.filter(|_| args.position.uuid == state.history);
        let doubt = doubt.map(|seqno| {
            (seqno, self.recovery.in_doubt.decide(self.ctx.now(), &self.ctx.raft, &self.ctx.peers))
        });
        if let Some((seqno, InDoubtDecision::Wait)) = doubt {
            let missing = format!(
                "this member was killed in the statement at seqno {seqno}, and whether it was done cannot be told: \
                 waits for a member that knows, or for all{}",
                absent_text(&self.ctx.raft, &self.ctx.peers)
            );
            return self.still_connecting(args, until, log_at, &missing);
        }
        if let Some((seqno, InDoubtDecision::Execute)) = doubt {
            self.ctx.log(
                Level::Warn,
                format!(
                    "no present member knows whether the statement at seqno {seqno} was executed: all were killed in it, \
                     and no client of theirs received OK; this member executes it, and the others take its state"
                ),
            );
        }
        if let FrontEnd::Reader { begins, .. } = self.ctx.front_end()
            && !args.position.is_defined()
        {
            let history = self.ctx.raft.committed_state().history;
            match self.readers_beginning(begins) {
                Ok(seqno) => args.position = Gtid { uuid: history, seqno },
                Err(seqno) => {
                    let missing = format!(
                        "the members' logs do not reach back to where this reader may begin: it begins at seqno {seqno}"
                    );
                    return self.still_connecting(args, until, log_at, &missing);
                }
            }
        }
        let begins = self.ctx.raft.segment_bases().next().filter(|base| base.index == 0);
        if self.ctx.front_end() == FrontEnd::Device
            && !had_position
            && !args.needs_state
            && begins.is_some_and(|base| base.seqno == 0)
        {
            // Before the first entry of a log that was not founded on data, a device is empty, like this one. The present history
            // has the beginnings of the branches before it.
            args.position = Gtid { uuid: self.ctx.raft.committed_state().history, seqno: 0 };
            self.ctx.raise_finished(0);
        }
        let state = self.ctx.raft.committed_state();
        let history = state.history;
        let committed = state.seqno;
        let view = ViewInfo {
            gtid: Gtid { uuid: history, seqno: state.view_seqno },
            before: state.view_seqno,
            number: state.view.number as i64,
            status: ViewStatus::Primary,
            members: state.view.members.clone(),
            my_index: Some(my_index),
            time: None,
        };
        let founded = args.bootstrap
            && self
                .ctx
                .raft
                .segment_bases()
                .next()
                .is_some_and(|b| b.index == 0 && b.seqno + 1 == view.gtid.seqno);
        self.ctx.became_primary();
        self.ctx.majority_present();
        self.roster.reverted_log.became_primary();
        self.roster.sync.connected(view.gtid.seqno);
        self.ctx.emit(Effect::Connected(Ok(())));
        self.ctx.deliver(Delivery::Connected(view.clone()));
        let position = if founded {
            Gtid { uuid: history, seqno: view.gtid.seqno - 1 }
        } else {
            match self.ctx.front_end() {
                FrontEnd::Database | FrontEnd::Reader { .. } | FrontEnd::Device => args.position,
                FrontEnd::Nothing => {
                    self.ctx.raise_finished(committed);
                    Gtid { uuid: history, seqno: committed }
                }
            }
        };
        let bases: Vec<StateSnapshot> = self.ctx.raft.segment_bases().cloned().collect();
        let database_log = if founded { args.log } else { self.log_of_database(args.log) };
        let facts = LogFacts {
            committed: self.ctx.raft.committed_state(),
            first: bases.first(),
            gap: self.ctx.raft.gap_around(position.seqno),
            database_log,
        };
        let in_doubt = match doubt {
            Some((seqno, InDoubtDecision::TakeState)) => Some(seqno),
            _ => None,
        };
        let why = match facts.transfer_reason(position, in_doubt, !self.ctx.me().arbitrator) {
            Some(reason) => Some(reason.text(self.ctx.terms().data)),
            None => self
                .delivery
                .deliverer
                .start(&bases, facts.committed, position.seqno)
                .err()
                .map(|error| error.text(self.ctx.terms().data)),
        };
        self.recovery.transfers.set_bypass(None);
        match why {
            None if args.by_donor && !founded && self.ctx.somebody_may_confirm() => {
                // The run only checked that the log reaches back far enough.
                self.delivery.deliverer.stop();
                self.recovery.transfers.set_bypass(Some(position.seqno));
                self.ctx.log(
                    Level::Info,
                    format!("goes on from seqno {} by the log, once a donor confirms it", position.seqno),
                );
                self.ctx.need_state();
                self.ctx.deliver(Delivery::StateNeeded { bypass: true });
            }
            None => {
                self.ctx.log(Level::Info, format!("goes on from seqno {} by the log", position.seqno));
                self.ctx.begin_running();
                self.recovery.votes.begin(position.seqno, self.ctx.raft.last_index(), false);
                if !founded {
                    self.delivery.deliverer.announce_at_start();
                }
            }
            Some(why) => {
                self.ctx.log(Level::Info, format!("the state must be transferred: {why}"));
                self.ctx.need_state();
                self.ctx.deliver(Delivery::StateNeeded { bypass: false });
            }
        }
    }

    /// The position of a reader of the log that has none yet: see [`FrontEnd::Reader`].
    ///
    /// # Errors
    /// The seqno for which it waits.
    fn readers_beginning(&mut self, beginning: Beginning) -> Result<Seqno, Seqno> {
        let committed = self.ctx.raft.committed_state();
        let bases: Vec<StateSnapshot> = self.ctx.raft.segment_bases().cloned().collect();
        let (candidates, next) = match beginning {
            Beginning::MultipleOf(multiple) => {
                let multiple = multiple.max(1);
                let whole =
                    bases.first().filter(|base| base.index == 0).map_or(Seqno::MIN, |base| base.seqno);
                let last = committed.seqno - committed.seqno.rem_euclid(multiple);
                (vec![whole.max(last)], last + multiple)
            }
            Beginning::Earliest => {
                let begins = bases.iter().map(|base| base.seqno).chain([committed.seqno]);
                (begins.collect(), committed.seqno + 1)
            }
        };
        for begins in candidates {
            let is_left_out = self.ctx.raft.gap_around(begins).is_some();
            let started = self.delivery.deliverer.start(&bases, committed, begins);
            self.delivery.deliverer.stop();
            if !is_left_out && started.is_ok() {
                self.ctx.raise_finished(begins);
                return Ok(begins);
            }
        }
        Err(next)
    }

    fn still_connecting(&mut self, args: ConnectArgs, until: Micros, log_at: Micros, missing: &str) {
        let knows_others = || self.ctx.raft.membership().voters().any(|id| id != self.ctx.me().id);
        if self.ctx.now() >= until && !(args.waits_for_others && knows_others()) {
            let text = format!("no primary component within {} s: {missing}", args.timeout.as_secs());
            self.ctx.disconnected();
            self.forget_peers();
            self.ctx.emit(Effect::Connected(Err(NodeError::Timeout(text))));
        } else if self.ctx.now() >= log_at {
            self.ctx.log(Level::Info, format!("waiting for a primary component: {missing}"));
            self.ctx.connect_wait_logged(args.position);
        }
    }

    fn missing(&self) -> String {
        let missing = match lost_end_text(&self.ctx) {
            Some(text) => format!("{text} {}", missing(&self.ctx)),
            None => missing(&self.ctx),
        };
        match self.roster.reverted_log.waits(&self.ctx.raft) {
            Some(why) => format!("{why}. {missing}"),
            None => missing,
        }
    }

    /// What a member without a primary component waits for; or what the commits of one in a primary component wait for.
    pub(crate) fn waits_for(&self) -> Option<String> {
        let waits = match *self.ctx.connection() {
            ConnectionState::Connecting { .. } => true,
            ConnectionState::NeedState { primary } | ConnectionState::Running { primary, .. } => !primary,
            _ => false,
        };
        if waits {
            Some(self.missing())
        } else {
            let acks = self.admin.reports.ack_wait_report(&self.ctx, &self.delivery.submissions);
            let notice = || self.roster.reverted_log.notice().map(str::to_owned);
            acks.or_else(|| disk_wait_report(&self.ctx)).or_else(notice)
        }
    }

    /// Shows the server a non-Primary view after a time without quorum, and a Primary view when the quorum is back.
    fn quorum_step(&mut self, primary: bool) {
        let cut_off = self.ctx.cut_off();
        let quorum = self.ctx.raft.has_quorum(self.ctx.now()) && !cut_off;
        if quorum {
            self.ctx.majority_present();
            if !primary {
                self.back_to_primary();
            }
            return;
        }
        let since = self.ctx.majority_missing();
        let timeout =
            if cut_off { CUT_OFF_TIMEOUT } else { LEADERLESS_TIMEOUTS * self.ctx.raft.election_timeout() };
        if primary && self.ctx.now().saturating_sub(since) >= timeout {
            self.ctx.log(Level::Warn, format!("the majority is lost: non-Primary ({})", missing(&self.ctx)));
            self.delivery.wake_all(&mut self.ctx, false);
            // A server in a state transfer, or before its first view, must not get this view.
            self.roster.views_shown.forget_minority();
            self.roster.sync.majority_lost();
            self.show_minority();
            self.ctx.lost_primary();
        } else if !primary {
            self.show_minority();
        }
    }

    /// Desyncs this member while its disk hangs, and leaves if that lasts and the others go on.
    pub(in crate::member) fn own_disk_step(&mut self) {
        let stands_still_for = self.ctx.raft.disk_stands_still_for();
        let timeout = self.ctx.tuning().disk_timeout.as_micros() as Micros;
        // Only commits without this disk show that the others go on without it, under each policy.
        let goes_on =
            self.ctx.connection().is_primary() && self.ctx.raft.commit() > self.ctx.raft.persisted();
        let change = self.roster.own_disk.step(self.ctx.now(), stands_still_for, timeout, goes_on);
        let seconds = stands_still_for / 1_000_000;
        match change {
            None => {}
            Some(Change::Hangs { leaves_in }) if self.ctx.connection().is_connected() => {
                let text = format!(
                    "this member's disk has finished no write of the log for {seconds} s: Desynced. If it finishes none \
                     for {} s more and the others go on, this member leaves and its process ends",
                    leaves_in / 1_000_000
                );
                self.ctx.log(Level::Warn, text);
            }
            Some(Change::Hangs { .. }) => {}
            Some(Change::Works) => {
                self.ctx.log(Level::Info, "this member's disk works again");
                self.ctx.not_synced();
            }
            Some(Change::Leaves) => {
                let text = format!(
                    "this member's disk has finished no write of the log for {seconds} s, and the others go on without it: \
                     this member leaves"
                );
                self.fail(&text);
                self.recovery.ending.disk_hangs(self.ctx.now(), &text);
            }
        }
    }

    /// This leader has stepped down because of these disks.
    pub(in crate::member) fn majority_of_disks_hangs(&mut self, disks: Vec<(MemberId, Micros)>) {
        let text = format!(
            "no majority of the voters' disks works, so nothing can be committed: this member stops leading ({})",
            hung_disks_text(&self.ctx, &disks)
        );
        self.ctx.log(Level::Warn, text);
        self.ctx.stepped_down_for(disks);
    }

    /// When this member leaves because its disk hangs, if nothing changes.
    pub(crate) fn hung_disk_ends_by(&self) -> Option<Micros> {
        self.recovery.ending.hung_disk_ends_by().or(self.roster.own_disk.ends_by())
    }

    /// Shows the members that are present without a majority, whenever they change.
    fn show_minority(&mut self) {
        if !self.delivery.deliverer.is_shown() {
            return;
        }
        let info = self.delivery.deliverer.view_without_quorum(&self.ctx);
        if self.roster.views_shown.minority_changes(&info.members) {
            self.ctx.deliver(Delivery::View { info, in_log: false });
        }
    }

    fn back_to_primary(&mut self) {
        self.ctx.log(Level::Info, "the majority is back");
        self.ctx.back_to_primary();
        if let ConnectionState::Running { .. } = self.ctx.connection() {
            match self.delivery.deliverer.is_running() {
                true => self.delivery.deliverer.show_position(&mut self.ctx, &mut self.roster.views_shown),
                // The run is repeating from further back: show the view at its end.
                false => self.delivery.deliverer.announce_at_start(),
            }
        }
    }

    /// Begins an orderly leave.
    pub(crate) fn disconnect(&mut self) {
        if *self.ctx.connection() != ConnectionState::Idle && self.roster.leave.begin(self.ctx.now()) {
            self.delivery.wake_all(&mut self.ctx, false);
            self.recovery.votes.end();
        }
    }

    /// Whether a leave is under way: `Effect::Left` is still to come.
    pub(crate) fn is_leaving(&self) -> bool {
        self.roster.leave.is_under_way()
    }

    /// Leaves for good because the server cannot go on, for example because its data differ. The leave is orderly, so
    /// that the others do not miss its vote.
    pub(crate) fn give_up(&mut self, text: &str) {
        if !matches!(self.ctx.connection(), ConnectionState::Running { .. }) {
            return self.fail(text);
        }
        self.roster.leave.give_up(text);
        self.disconnect();
    }

    /// The log that the database belongs to. A state file without one, which another program may have written, is no reason
    /// for a state transfer if no other member has a database to copy.
    fn log_of_database(&mut self, named: Uuid) -> Uuid {
        let others =
            self.ctx.raft.membership().members.iter().any(|m| m.id != self.ctx.me().id && !m.arbitrator);
        let own = self.ctx.raft.committed_state();
        if !named.is_nil() || others || self.ctx.me().arbitrator || own.log_id == own.history {
            return named;
        }
        let log_id = own.log_id;
        self.ctx.log(
            Level::Warn,
            "grastate.dat does not say to which log the data belong: this log's are taken for it, because no other member \
             has data",
        );
        log_id
    }

    /// Leaves as in [`Self::give_up`], and then ends the process: a new one applies from the log what this one cannot. A
    /// server that leaves already ends by itself.
    pub(crate) fn repeat_from_log(&mut self, text: &str) {
        let leaves = self.roster.leave.has_begun();
        self.give_up(text);
        if !leaves {
            self.recovery.ending.ends_after_leave(text);
        }
        if !self.roster.leave.is_under_way() {
            self.recovery.ending.left(self.ctx.now());
        }
    }

    /// Advances an orderly leave, and ends the connections when its steps are done.
    pub(in crate::member) fn leave_step(&mut self) {
        if !self.roster.leave.is_under_way() {
            return;
        }
        let own = self.standing();
        if !self.roster.leave.step(&mut self.ctx, own) {
            return;
        }
        let info = ViewInfo::disconnected(self.delivery.deliverer.view_without_quorum(&self.ctx).gtid);
        self.delivery.wake_all(&mut self.ctx, true);
        self.ctx.deliver(Delivery::View { info, in_log: false });
        if !self.ctx.connection().is_failed() {
            match self.roster.leave.take_given_up() {
                Some(text) => self.ctx.failed(text),
                None => self.ctx.disconnected(),
            }
        }
        self.delivery.deliverer.stop();
        self.roster.sync.left();
        self.recovery.transfers.end();
        self.forget_peers();
        self.recovery.ending.left(self.ctx.now());
        self.ctx.emit(Effect::Left);
    }

    /// The server has received its state, or failed to.
    pub(crate) fn state_received(&mut self, result: Result<Gtid, i32>) {
        let confirmed = self.recovery.transfers.end_request();
        let ConnectionState::NeedState { .. } = self.ctx.connection() else { return };
        let gtid = match result {
            Ok(gtid) if gtid.is_defined() => gtid,
            Ok(_) => {
                let process = self.ctx.terms().process;
                return self.fail(&format!(
                    "the state transfer ended without a position: start this {process} again"
                ));
            }
            Err(code) => {
                return self.fail(&format!("the state transfer failed ({code}): see the SST script's lines"));
            }
        };
        let history = self.ctx.raft.tail_state().history;
        if gtid.uuid != history {
            return self
                .fail(&format!("the state that was received is of history {}, not {history}", gtid.uuid));
        }
        self.recovery.transfers.set_received(gtid.seqno, confirmed != Some(gtid.seqno));
        self.begin_from_state();
    }

    /// Begins delivery from the state that the server has received, once the own log can certify from there.
    ///
    /// A snapshot that replaced the own log comes before the trim marks that certification needs. They are on their way:
    /// the leader chose the snapshot so that its own log has them. A state can be here sooner.
    fn begin_from_state(&mut self) {
        let ConnectionState::NeedState { .. } = self.ctx.connection() else { return };
        let Some(Received { seqno, copied }) = self.recovery.transfers.received() else { return };
        let bases: Vec<StateSnapshot> = self.ctx.raft.segment_bases().cloned().collect();
        let committed = self.ctx.raft.committed_state();
        match self.delivery.deliverer.start(&bases, committed, seqno) {
            Ok(()) => {}
            Err(StartError::MarksMissing { .. }) => return,
            Err(error @ StartError::BeginsTooLate { .. }) => {
                return self.fail(&error.text(self.ctx.terms().data));
            }
        }
        self.recovery.transfers.end_received();
        self.ctx.log(Level::Info, format!("state received up to seqno {seqno}"));
        self.ctx.begin_running();
        self.recovery.votes.begin(seqno, self.ctx.raft.last_index(), copied);
        // The server finds the donor's last view in the transferred state.
        self.roster.views_shown.primary_seen();
    }

    /// The log cannot supply what the database lacks, and a running server cannot take a state transfer. The front end
    /// gives up its position and ends the process, so that the next start takes a state transfer.
    pub(in crate::member) fn needs_state(&mut self, text: &str) {
        let process = self.ctx.terms().process;
        let text = format!("{text}: a state transfer is needed; start this {process} again");
        self.ctx.deliver(Delivery::StateFailed(text.clone()));
        if !self.ctx.connection().is_failed() {
            self.fail(&text);
            self.recovery.ending.needs_state(self.ctx.now(), &text);
        }
    }

    /// The log cannot be written or read, and no free space would help: this member fails, and its process ends. While it
    /// connects, its server refuses to start, and a server that leaves ends by itself. A member that failed before for
    /// another reason keeps its process, which an operator is to examine.
    pub(crate) fn log_failed(&mut self, text: &str) {
        let is_started = matches!(
            self.ctx.connection(),
            ConnectionState::Running { .. } | ConnectionState::NeedState { .. }
        );
        let ends_by_itself = self.roster.leave.has_begun();
        self.fail(text);
        if is_started && !ends_by_itself {
            self.recovery.ending.log_failed(self.ctx.now(), text);
        }
    }

    /// Fails for good: logs the reason, refuses everything and leaves.
    pub(crate) fn fail(&mut self, text: &str) {
        if self.ctx.connection().is_failed() {
            return;
        }
        self.ctx.log(Level::Error, text.to_string());
        self.delivery.wake_all(&mut self.ctx, true);
        self.recovery.votes.end();
        if let ConnectionState::Connecting { .. } = self.ctx.connection() {
            self.ctx.emit(Effect::Connected(Err(NodeError::Log(text.to_string()))));
        }
        if self.delivery.deliverer.is_shown() {
            let info = self.delivery.deliverer.view_without_quorum(&self.ctx);
            self.ctx.deliver(Delivery::View { info, in_log: false });
        }
        self.ctx.deliver(Delivery::Failed(text.to_string()));
        self.ctx.failed(text.to_string());
        let ids: Vec<MemberId> = self.ctx.peers.keys().copied().collect();
        for id in ids {
            self.ctx.emit(Effect::Drop(id));
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
