//! The states of a member from "not connected" to "Synced", and the views and notices that its server gets on the way.

use crate::api::{ConnectArgs, Delivery, LocalState, NodeError, ViewInfo, ViewStatus};
use crate::effect::Effect;
use crate::member::membership::connection_state::ConnectionState;
use crate::member::membership::views_shown::PositionView;
use crate::member::recovery::in_doubt::{Doubt, absent_text};
use crate::member::{Level, Member, Micros};
use crate::wire::Hello;
use lockstep_core::members::{MemberInfo, Membership, Role};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Gtid, Uuid};

/// After this many election timeouts without a leader, the server gets a non-Primary view.
const LEADERLESS_TIMEOUTS: Micros = 4;
/// After this long without connections to a majority, the server gets a non-Primary view.
const CUT_OFF_TIMEOUT: Micros = 300_000;
/// A member is Synced if its server is at most this many seqnos behind.
const SYNCED_WITHIN: i64 = 1024;
/// How often a member logs that it waits for a primary component.
const LOG_INTERVAL: Micros = 10_000_000;

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
        if let ConnectionState::Failed(text) = &self.ctx.connection {
            return Err(NodeError::Setup(text.clone()));
        }
        if self.ctx.connection != ConnectionState::Idle {
            return Err(NodeError::State("connect: this node is connected already"));
        }
        let empty = self.ctx.raft.last_index() == 0 && self.ctx.raft.membership().members.is_empty();
        if !empty {
            self.compare_with_log(&mut args)?;
            args.log = self.ctx.raft.tail_state().log_id;
        }
        if args.bootstrap && !empty {
            let membership = self.ctx.raft.membership();
            let others: Vec<String> = membership
                .voters()
                .filter(|id| *id != self.ctx.me.id)
                .map(|id| self.ctx.name_of(&id))
                .collect();
            if !others.is_empty() {
                return Err(NodeError::Refused(format!(
                    "this member's log knows of the voters {}: a new cluster would split from them. Start this \
                     member without --wsrep-new-cluster and start the others; a majority of them goes on by itself. If \
                     they are gone for good, run lockstep bootstrap on this server while it waits for them",
                    others.join(", ")
                )));
            }
            if !membership.is_voter(&self.ctx.me.id) {
                return Err(NodeError::Refused(
                    "this member left a cluster that went on without it: start it without --wsrep-new-cluster, or \
                     move its lockstep.* files away to found a new cluster from its data"
                        .into(),
                ));
            }
        }
        self.ctx.cluster = args.cluster.clone();
        self.ctx.me.view_uuid = view_uuid;
        let own = self.ctx.own_view_member();
        self.ctx.raft.set_view_member(own);
        self.ctx.me.incarnation += 1;
        self.ctx.raft.renew(self.ctx.me.incarnation);
        self.delivery.submissions.renew();
        self.delivery.low_water_mark.reset();
        self.roster.leave.reset();
        self.roster.health_reports.reset();
        self.roster.views_shown.connect(view_uuid);
        self.ctx.raft.set_position(Some(args.position.seqno).filter(|_| args.position.is_defined()));
        if args.bootstrap && empty {
            let (history, base) = match args.position {
                position if position.is_defined() => (position.uuid, position.seqno),
                _ => (fresh, 0),
            };
            let me: MemberInfo = self.ctx.me.as_member(Role::Voter);
            let membership = Membership { members: vec![me] };
            let policy = self.ctx.tuning.policy;
            let genesis =
                StateSnapshot { log_id: fresh, policy, ..StateSnapshot::genesis(history, base, membership) };
            self.ctx.raft.bootstrap(self.ctx.now, genesis);
            self.ctx.log(Level::Info, format!("a new cluster begins: history {history}, seqno {base}"));
        }
        let mut addresses = args.peers.clone();
        addresses.extend(self.ctx.raft.membership().members.iter().map(|m| m.address.clone()));
        let until = self.ctx.now + args.timeout.as_micros() as Micros;
        self.ctx.quorum.note_seen(self.ctx.now);
        self.ctx.peers.forget_gone();
        self.ctx.connection =
            ConnectionState::Connecting { args, until, log_at: self.ctx.now + LOG_INTERVAL };
        for address in addresses {
            self.ctx.dial(address);
        }
        Ok(())
    }

    /// Checks the database's position against the own log.
    ///
    /// Only entries in the own log are delivered. A database that is ahead of the log, or of another history, went on
    /// without it: under Galera's library, or it was restored from a backup. Its position stays meaningless, even once
    /// the log has reached it. If no other member has a log, no member has the state either.
    fn compare_with_log(&mut self, args: &mut ConnectArgs) -> Result<(), NodeError> {
        args.position = self.in_present_history(args.position);
        let (position, tail) = (args.position, self.ctx.raft.tail_state());
        if !position.is_defined() || (position.uuid == tail.history && position.seqno <= tail.seqno) {
            return Ok(());
        }
        let what = format!(
            "this member's data are at {position}, but its log ends at {}:{}: they went on without it, or came from \
             elsewhere",
            tail.history, tail.seqno
        );
        let alone = self.ctx.raft.membership().voters().all(|id| id == self.ctx.me.id);
        if args.bootstrap || alone {
            return Err(NodeError::Refused(format!(
                "{what}. To found a cluster from these data, move the lockstep.* files of all members away and start \
                 this one with --wsrep-new-cluster. To go on with the log, start a member whose data belong to it"
            )));
        }
        self.ctx.log(Level::Warn, format!("{what}: they do not count, the state will be transferred"));
        args.position = Gtid::UNDEFINED;
        Ok(())
    }

    /// Advances the connection state.
    pub(in crate::member) fn connection_step(&mut self) {
        match self.ctx.connection.clone() {
            ConnectionState::Idle | ConnectionState::Failed(_) => {}
            ConnectionState::Connecting { args, until, log_at } => self.connecting(args, until, log_at),
            ConnectionState::NeedState { primary } => self.quorum_step(primary),
            ConnectionState::Running { primary, .. } => {
                self.quorum_step(primary);
                self.sync_step();
            }
        }
    }

    fn connecting(&mut self, mut args: ConnectArgs, until: Micros, log_at: Micros) {
        // The member may have begun a branch since the connect began.
        args.position = self.in_present_history(args.position);
        let state = self.ctx.raft.committed_state();
        let me = state
            .view
            .members
            .iter()
            .position(|m| m.id == self.ctx.me.id && m.view_uuid == self.ctx.me.view_uuid);
        let Some(my_index) = me.filter(|_| self.ctx.raft.deliverable() >= state.index) else {
            let missing = self.missing();
            return self.still_connecting(args, until, log_at, &missing);
        };
        let doubt = args.in_doubt.filter(|_| args.position.uuid == state.history);
        let doubt = doubt.map(|seqno| {
            (seqno, self.recovery.in_doubt.decide(self.ctx.now, &self.ctx.raft, &self.ctx.peers))
        });
        if let Some((seqno, Doubt::Wait)) = doubt {
            let missing = format!(
                "this member was killed in the statement at seqno {seqno}, and whether it was done cannot be told: \
                 waits for a member that knows, or for all{}",
                absent_text(&self.ctx.raft, &self.ctx.peers)
            );
            return self.still_connecting(args, until, log_at, &missing);
        }
        if let Some((seqno, Doubt::GoOn)) = doubt {
            self.ctx.log(
                Level::Warn,
                format!(
                    "all members were killed in the statement at seqno {seqno}, and whether it was done cannot be told: \
                     nobody was told that it was; this member executes it, and the others take its state"
                ),
            );
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
        };
        let founded = args.bootstrap
            && self
                .ctx
                .raft
                .segment_bases()
                .next()
                .is_some_and(|b| b.index == 0 && b.seqno + 1 == view.gtid.seqno);
        self.ctx.quorum.became_primary(self.ctx.now);
        self.ctx.quorum.present();
        self.roster.sync.connected(view.gtid.seqno);
        self.ctx.out.push(Effect::Connected(Ok(())));
        self.ctx.deliver(Delivery::Connected(view.clone()));
        let position = if founded {
            Gtid { uuid: history, seqno: view.gtid.seqno - 1 }
        } else if self.ctx.me.arbitrator {
            // An arbitrator has no database.
            self.ctx.finished.raise(committed);
            Gtid { uuid: history, seqno: committed }
        } else {
            args.position
        };
        let bases: Vec<StateSnapshot> = self.ctx.raft.segment_bases().cloned().collect();
        let why = if let Some((seqno, Doubt::Take)) = doubt {
            Some(format!("whether the statement at seqno {seqno} was done before the crash cannot be told"))
        } else if !position.is_defined() {
            Some("the database's position is not known".to_string())
        } else if position.uuid != history {
            Some(format!("the database is of history {}, the cluster of {history}", position.uuid))
        } else if position.seqno > committed {
            Some(format!("the database is at {}, ahead of the log ({committed})", position.seqno))
        } else if let Some(gap) = self.ctx.raft.gap_around(position.seqno) {
            Some(format!(
                "the database is at seqno {}, which this cluster does not have: it went on from {} to {} when another \
                 member took over, and what this member had committed ahead of it is kept in lockstep.rescue.*.log",
                position.seqno, gap.before, gap.after
            ))
        } else if let Some(why) = self.is_of_another_log(position, args.log, &bases) {
            Some(why)
        } else {
            self.deliverer.start(&bases, self.ctx.raft.committed_state(), position.seqno).err()
        };
        self.recovery.transfers.set_bypass(None);
        match why {
            None if args.by_donor && !founded && self.somebody_may_donate() => {
                // The run only checked that the log reaches back far enough.
                self.deliverer.stop();
                self.recovery.transfers.set_bypass(Some(position.seqno));
                self.ctx.log(
                    Level::Info,
                    format!("goes on from seqno {} by the log, once a donor confirms it", position.seqno),
                );
                self.ctx.connection = ConnectionState::NeedState { primary: true };
                self.ctx.deliver(Delivery::StateNeeded { bypass: true });
            }
            None => {
                self.ctx.log(Level::Info, format!("goes on from seqno {} by the log", position.seqno));
                self.ctx.connection = ConnectionState::Running { primary: true, synced: false };
                self.recovery.votes.begin(position.seqno, self.ctx.raft.last_index(), false);
                if !founded {
                    self.deliverer.announce_at_start();
                }
            }
            Some(why) => {
                self.ctx.log(Level::Info, format!("the state must be transferred: {why}"));
                self.ctx.connection = ConnectionState::NeedState { primary: true };
                self.ctx.deliver(Delivery::StateNeeded { bypass: false });
            }
        }
    }

    /// Why the database's transactions up to this position may differ from this log's, if they may.
    ///
    /// A log founded on data with a history reassigns the seqnos after its beginning. A member that arrives without a
    /// log, at a position of that history beyond the beginning, may have the first owner's transactions there. An
    /// example is a member of Galera's cluster that had more than the founder of this one. A log with a history of its
    /// own has no such predecessor.
    fn is_of_another_log(
        &self,
        position: Gtid,
        opened_with: Uuid,
        bases: &[StateSnapshot],
    ) -> Option<String> {
        let state = self.ctx.raft.committed_state();
        let has_own_history = state.log_id.is_nil() || state.log_id == state.history;
        if has_own_history || opened_with == state.log_id || self.ctx.me.arbitrator {
            return None;
        }
        let beginning = bases.first().filter(|base| base.index == 0).map(|base| base.seqno);
        match beginning {
            Some(seqno) if position.seqno <= seqno => None,
            Some(seqno) => Some(format!(
                "the database is at seqno {}, but this cluster was founded on data at seqno {seqno} and has assigned \
                 the later seqnos itself: this database may have them from the cluster before it (for a restored \
                 backup of this cluster, see docs/restore.md)",
                position.seqno
            )),
            None => Some(format!(
                "the database is at seqno {}, which it may have reached in the cluster on whose data this one was \
                 founded, not with this cluster's log (for a restored backup of this cluster, see docs/restore.md)",
                position.seqno
            )),
        }
    }

    fn still_connecting(&mut self, args: ConnectArgs, until: Micros, log_at: Micros, missing: &str) {
        let knows_others = || self.ctx.raft.membership().voters().any(|id| id != self.ctx.me.id);
        if self.ctx.now >= until && !(args.waits_for_others && knows_others()) {
            let text = format!("no primary component within {} s: {missing}", args.timeout.as_secs());
            self.ctx.connection = ConnectionState::Idle;
            self.forget_peers();
            self.ctx.out.push(Effect::Connected(Err(NodeError::Timeout(text))));
        } else if self.ctx.now >= log_at {
            self.ctx.log(Level::Info, format!("waiting for a primary component: {missing}"));
            self.ctx.connection =
                ConnectionState::Connecting { args, until, log_at: self.ctx.now + LOG_INTERVAL };
        }
    }

    pub(in crate::member) fn somebody_may_donate(&self) -> bool {
        self.ctx
            .peers
            .values()
            .any(|p| !p.hello.arbitrator && p.health.is_some_and(|h| h.state == LocalState::Synced))
    }

    /// The members for which a connecting member waits, and those with which it cannot talk.
    fn missing(&self) -> String {
        match self.ctx.peers.unlike() {
            Some(why) => format!("{}. {why}", self.wait_text()),
            None => self.wait_text(),
        }
    }

    fn wait_text(&self) -> String {
        let membership = self.ctx.raft.membership();
        if membership.members.is_empty() {
            return match self.ctx.peers.len() {
                0 if self.ctx.peers.unlike().is_some() => {
                    "nobody at the addresses of wsrep_cluster_address can be talked to".into()
                }
                0 => "nobody answers at the addresses of wsrep_cluster_address; start the first member with \
                      --wsrep-new-cluster"
                    .into(),
                _ => self.nobody_founded(),
            };
        }
        let missing: Vec<String> = membership
            .voters()
            .filter(|id| *id != self.ctx.me.id && !self.ctx.peers.contains_key(id))
            .map(|id| self.ctx.name_of(&id))
            .collect();
        if !missing.is_empty() {
            let text = format!("not connected: {}; a majority of the voters is needed", missing.join(", "));
            return match self.back_without_their_logs() {
                Some(names) => format!(
                    "{text}. Connected, but back without the logs that they had: {names}. They cannot vote on what they \
                     have lost; where no more of the voters can be started, docs/operating.md, No majority, says how this \
                     member goes on"
                ),
                None => text,
            };
        }
        // The other logs may list voters added after this log's end.
        let others: Vec<String> =
            membership.voters().filter(|id| *id != self.ctx.me.id).map(|id| self.ctx.name_of(&id)).collect();
        // Connected but silent: the process may be stopped, or the machine gone.
        let silent = membership.voters().filter(|id| *id != self.ctx.me.id && !self.ctx.responds(id));
        let silent: Vec<String> = silent.map(|id| self.ctx.name_of(&id)).collect();
        let voters = others.len() + usize::from(membership.is_voter(&self.ctx.me.id));
        if voters - silent.len() < membership.majority() {
            return format!(
                "connected, but nothing has come for a while from {}; a majority of the voters is needed",
                silent.join(", ")
            );
        }
        match others.is_empty() {
            true => "an election is under way".into(),
            false => format!(
                "connected to {}, none leads yet: an election is under way, or they wait for other members (see their \
                 error logs and status)",
                others.join(", ")
            ),
        }
    }

    /// The wait report of a member without a log, connected only to members that do not let it in.
    fn nobody_founded(&self) -> String {
        let names = |of: &[&crate::member::membership::peers::Peer]| {
            of.iter().map(|p| p.hello.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.ctx.peers.values().partition(|p| p.hello.last_index > 0);
        if known.is_empty() {
            let at = match &self.ctx.connection {
                ConnectionState::Connecting { args, .. } if args.position.is_defined() => {
                    format!(" (this one's data are at {})", args.position)
                }
                _ => String::new(),
            };
            return format!(
                "connected to {}, but nobody has a log, and so there is no cluster yet: found it on the member with the \
                 highest position{at}. Stop that one, set safe_to_bootstrap to 1 in its grastate.dat, and start it with \
                 --wsrep-new-cluster; the others join it",
                names(&unknown)
            );
        }
        format!(
            "this member has no log, and {}, whose logs it could get, {} no leader: their error logs and `lockstep \
             status` say for which members they wait. Start those; where they are gone for good, docs/operating.md, \
             No majority",
            names(&known),
            if known.len() == 1 { "has" } else { "have" }
        )
    }

    /// The names of voters that are back under another identity, because their logs are damaged or lost.
    fn back_without_their_logs(&self) -> Option<String> {
        let membership = self.ctx.raft.membership();
        let is_back = |m: &&MemberInfo| {
            let same = |hello: &Hello| hello.name == m.name && hello.address == m.address;
            m.role.votes()
                && m.id != self.ctx.me.id
                && !self.ctx.peers.contains_key(&m.id)
                && self.ctx.peers.values().any(|p| same(&p.hello) && membership.get(&p.hello.id).is_none())
        };
        let names: Vec<&str> = membership.members.iter().filter(is_back).map(|m| m.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// What a member without a primary component waits for; or what the commits of one in a primary component wait for.
    pub(crate) fn waits_for(&self) -> Option<String> {
        let waits = match self.ctx.connection {
            ConnectionState::Connecting { .. } => true,
            ConnectionState::NeedState { primary } | ConnectionState::Running { primary, .. } => !primary,
            _ => false,
        };
        if waits { Some(self.missing()) } else { self.ack_wait_report() }
    }

    /// Shows the server a non-Primary view after a time without quorum, and a Primary view when the quorum is back.
    fn quorum_step(&mut self, primary: bool) {
        let cut_off = self.ctx.cut_off();
        let quorum = self.ctx.raft.has_quorum(self.ctx.now) && !cut_off;
        if quorum {
            self.ctx.quorum.present();
            if !primary {
                self.back_to_primary();
            }
            return;
        }
        let since = self.ctx.quorum.missing(self.ctx.now);
        let timeout =
            if cut_off { CUT_OFF_TIMEOUT } else { LEADERLESS_TIMEOUTS * self.ctx.raft.election_timeout() };
        if primary && self.ctx.now.saturating_sub(since) >= timeout {
            self.ctx.log(Level::Warn, format!("the majority is lost: non-Primary ({})", self.missing()));
            self.wake_all(false);
            // A server in a state transfer, or before its first view, must not get this view.
            self.roster.views_shown.forget_minority();
            self.roster.sync.majority_lost();
            self.show_minority();
            self.ctx.connection = match self.ctx.connection {
                ConnectionState::NeedState { .. } => ConnectionState::NeedState { primary: false },
                _ => ConnectionState::Running { primary: false, synced: false },
            };
        } else if !primary {
            self.show_minority();
        }
    }

    /// Shows the members that are present without a majority, whenever they change.
    fn show_minority(&mut self) {
        if !self.deliverer.is_shown() {
            return;
        }
        let info = self.view_without_quorum();
        if self.roster.views_shown.minority_changes(&info.members) {
            self.ctx.deliver(Delivery::View { info, in_log: false });
        }
    }

    pub(crate) fn view_without_quorum(&self) -> ViewInfo {
        let mut members = vec![self.ctx.own_view_member()];
        let last = self.deliverer.view();
        members.extend(last.members.iter().filter(|m| self.ctx.responds(&m.id)).cloned());
        ViewInfo {
            gtid: Gtid { uuid: self.ctx.raft.tail_state().history, seqno: self.deliverer.delivered() },
            before: self.deliverer.delivered(),
            number: -1,
            status: ViewStatus::NonPrimary,
            members,
            my_index: Some(0),
        }
    }

    fn back_to_primary(&mut self) {
        self.ctx.log(Level::Info, "the majority is back");
        self.ctx.quorum.became_primary(self.ctx.now);
        match self.ctx.connection {
            ConnectionState::NeedState { .. } => {
                self.ctx.connection = ConnectionState::NeedState { primary: true }
            }
            _ => {
                self.ctx.connection = ConnectionState::Running { primary: true, synced: false };
                match self.deliverer.is_running() {
                    true => self.show_position(),
                    // The run is repeating from further back: show the view at its end.
                    false => self.deliverer.announce_at_start(),
                }
            }
        }
    }

    /// Shows a Primary view at exactly the delivered position: see `ViewsShown::position`.
    pub(in crate::member) fn show_position(&mut self) {
        let view = self.deliverer.view().clone();
        let own = self.ctx.own_view_member();
        let deliverer = &self.deliverer;
        let PositionView { members, my_index, settle } =
            self.roster.views_shown.position(&view, own, |uuid| deliverer.has_streams_of(uuid));
        let info = ViewInfo {
            gtid: Gtid { uuid: self.ctx.raft.tail_state().history, seqno: self.deliverer.delivered() },
            before: self.deliverer.delivered(),
            number: view.number as i64,
            status: ViewStatus::Primary,
            members,
            my_index: Some(my_index),
        };
        let settled = settle.then(|| ViewInfo { members: view.members.clone(), ..info.clone() });
        self.ctx.deliver(Delivery::View { info, in_log: false });
        if let Some(info) = settled {
            self.ctx.deliver(Delivery::View { info, in_log: false });
        }
    }

    /// The lag at which a Desynced member is Synced again: well within `apply.lag_limit`, however low, so that a steady
    /// lag does not make the member alternate.
    fn near_enough(&self) -> i64 {
        SYNCED_WITHIN.min((self.ctx.tuning.lag_limit / 2) as i64)
    }

    /// Marks the member Synced once caught up. Beyond the lag limit it is Desynced, so that proxies avoid it, until it
    /// has caught up again.
    fn sync_step(&mut self) {
        let ConnectionState::Running { primary: true, synced } = self.ctx.connection else { return };
        let lag = self.ctx.lag_of(self.ctx.finished());
        if synced && self.delivery.apply_holds.is_holding() {
            // The server has all that its apply hold permits; `lagging` shows the rest to others.
            self.roster.sync.set_lagging(self.roster.sync.is_lagging() || lag > 0);
            return;
        }
        if synced {
            // The apply hold is open again: the member catches up normally.
            let was_lagging = self.roster.sync.is_lagging();
            if was_lagging && self.ctx.is_held_back() && lag <= SYNCED_WITHIN {
                // Only the entries that became old enough were missing: no change of state for the server.
                self.roster.sync.set_lagging(lag > 0);
            } else if was_lagging {
                self.ctx.connection = ConnectionState::Running { primary: true, synced: false };
            } else if lag > self.ctx.tuning.lag_limit as i64 {
                self.roster.sync.set_lagging(true);
                self.ctx.connection = ConnectionState::Running { primary: true, synced: false };
                self.ctx.log(
                    Level::Warn,
                    format!("behind by {lag} transactions: Desynced until it has caught up"),
                );
            }
            return;
        }
        let has_its_part = self.delivery.apply_holds.is_holding()
            && self.deliverer.is_running()
            && self.ctx.finished() >= self.deliverer.delivered();
        let caught_up = has_its_part
            || self.deliverer.is_running()
                && self.deliverer.next_index() + SYNCED_WITHIN as u64 > self.ctx.raft.commit()
                && self.roster.sync.reaches_connect(self.deliverer.delivered())
                && self.deliverer.view().position(&self.ctx.me.id).is_some()
                && self.ctx.raft.seqnos_between(self.ctx.finished(), self.deliverer.delivered())
                    <= SYNCED_WITHIN
                && (!self.roster.sync.is_lagging() || self.ctx.is_held_back() || lag <= self.near_enough());
        // Other members see a server that is held back by choice as Desynced.
        if caught_up && self.roster.sync.may_notify() && !self.recovery.transfers.is_donating() {
            if self.roster.sync.notify() {
                self.warn_if_still_voter();
            }
            // Caught up for its server, but still Desynced for other members.
            self.roster.sync.set_lagging(self.delivery.apply_holds.is_holding() && lag > 0);
            self.report_progress(true);
            self.ctx.connection = ConnectionState::Running { primary: true, synced: true };
            self.ctx.deliver(Delivery::Synced);
        } else {
            self.report_progress(false);
        }
    }

    /// Reports the progress towards Synced, if due; `synced`: for the last time.
    fn report_progress(&mut self, synced: bool) {
        let finished = self.ctx.finished();
        let Some(from) = self.delivery.catching_up.report(self.ctx.now, finished, synced) else { return };
        let (total, done) = (self.ctx.lag_of(from), self.ctx.raft.seqnos_between(from, finished));
        if total > 0 {
            self.ctx.out.push(Effect::Progress { total, done: done.min(total) });
        }
    }

    /// Logs if a member that is configured as a replica is still a voter, because its server was not shut down cleanly.
    fn warn_if_still_voter(&mut self) {
        if self.ctx.raft.membership().is_voter(&self.ctx.me.id) && !self.ctx.me.wants_vote {
            self.ctx.log(
                Level::Warn,
                "this member votes, and may lead, though its options say member.vote=no (or pc.weight=0): it voted when its server \
                 was lost, was promoted, or has founded the cluster. It votes no more once its server has been stopped in order \
                 and started again",
            );
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
