//! What all components share: Raft, the peers, this member's identity, its options, the time, and the outputs.
//!
//! The router passes it to the components by reference. A component keeps its own state to itself.

mod connection;

pub(crate) use connection::ConnectionState;

use crate::api::{Delivery, FrontEnd, Level, Tuning};
use crate::effect::Effect;
use crate::member::delivery::finished::Finished;
use crate::member::membership::peers::Peers;
use crate::member::membership::quorum::Quorum;
use crate::member::outbox::{Outbox, OwnMessage};
use crate::terms::Terms;
use crate::wire::{Hello, NodeMessage, OperatorMessage};
use lockstep_core::members::{Membership, ViewMember};
use lockstep_core::message::Message;
use lockstep_core::raft::Raft;
use lockstep_core::{MemberId, Micros, Seqno, ViewUuid};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::thread::Thread;
use std::time::Duration;

/// See the module's documentation.
///
/// `raft` and `peers` are open: components with private fields, of which one is changed while the other is read, as in
/// `peers.connect(&raft, ..)`. Accessors would borrow the whole context each.
pub(crate) struct Context {
    pub(crate) raft: Raft,
    pub(crate) peers: Peers,
    connection: ConnectionState,
    /// The monotonic clock at the beginning of the round.
    now: Micros,
    /// This member's introduction.
    me: Hello,
    front_end: FrontEnd,
    tuning: Tuning,
    /// The cluster's name.
    cluster: String,
    /// The names of the members that this one has left behind in a forced bootstrap.
    left_behind: BTreeMap<MemberId, String>,
    /// When the majority was seen.
    quorum: Quorum,
    /// When this process ran again after its last stall of an election timeout or longer; at first, when it began.
    resumed_at: Micros,
    /// In the simulator: the time since boot, with suspensions.
    simulated_boot: Option<Duration>,
    /// The wall clock at the beginning of the round.
    wall: Micros,
    /// The seqno that the front end's server has finished.
    finished: Finished,
    out: Outbox,
}

impl Context {
    /// The context of a process that begins at `now`, with a database or as an arbitrator.
    pub(in crate::member) fn new(
        raft: Raft,
        me: Hello,
        tuning: Tuning,
        finished: Arc<AtomicI64>,
        now: Micros,
    ) -> Context {
        let mut quorum = Quorum::default();
        quorum.note_seen(now);
        Context {
            raft,
            peers: Peers::default(),
            connection: ConnectionState::Idle,
            now,
            front_end: if me.arbitrator { FrontEnd::Nothing } else { FrontEnd::Database },
            me,
            tuning,
            cluster: String::new(),
            left_behind: BTreeMap::new(),
            quorum,
            resumed_at: now,
            simulated_boot: None,
            wall: 0,
            finished: Finished::new(finished),
            out: Outbox::default(),
        }
    }

    /// A round begins: sets the clocks, of which the monotonic one never goes back. Returns the time since the last
    /// round.
    pub(in crate::member) fn begin_round(&mut self, now: Micros, wall: Micros) -> Micros {
        let stall = now.saturating_sub(self.now);
        self.now = now.max(self.now);
        if stall >= self.raft.election_timeout() {
            self.resumed_at = self.now;
        }
        self.wall = wall;
        self.finished.begin_round();
        self.raft.set_wall_clock(wall);
        stall
    }

    #[cfg(test)]
    pub(in crate::member) fn advance(&mut self, time: Micros) {
        self.now += time;
    }

    /// The monotonic clock at the beginning of the round.
    #[inline]
    pub(crate) fn now(&self) -> Micros {
        self.now
    }

    /// The state of this member's connection.
    #[inline]
    pub(crate) fn connection(&self) -> &ConnectionState {
        &self.connection
    }

    /// The wall clock at the beginning of the round.
    pub(in crate::member) fn wall(&self) -> Micros {
        self.wall
    }

    /// Sets the time since boot, with suspensions.
    #[cfg(feature = "simulation")]
    pub(crate) fn simulate_boot(&mut self, boot: Duration) {
        self.simulated_boot = Some(boot);
    }

    /// In the simulator: the time since boot, with suspensions.
    pub(in crate::member) fn simulated_boot(&self) -> Option<Duration> {
        self.simulated_boot
    }

    /// A connect begins: this member gets the incarnation after its last one, and a new identity in views.
    pub(in crate::member) fn begin_incarnation(&mut self, cluster: &str, view_uuid: ViewUuid) {
        cluster.clone_into(&mut self.cluster);
        self.me.view_uuid = view_uuid;
        self.raft.set_view_member(self.me.as_view_member());
        self.me.incarnation += 1;
        self.raft.renew(self.me.incarnation);
    }

    /// This member's introduction.
    #[inline]
    pub(crate) fn me(&self) -> &Hello {
        &self.me
    }

    #[cfg(test)]
    pub(in crate::member) fn me_mut(&mut self) -> &mut Hello {
        &mut self.me
    }

    /// The cluster's name; empty before the first connect.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Sets the front end. The introduction tells peers whether it is a device.
    pub(in crate::member) fn set_front_end(&mut self, front_end: FrontEnd) {
        self.front_end = front_end;
        self.me.device = front_end == FrontEnd::Device;
    }

    #[inline]
    pub(in crate::member) fn front_end(&self) -> FrontEnd {
        self.front_end
    }

    /// Sets the options that may change while the member runs, and those of Raft with them.
    pub(in crate::member) fn set_tuning(&mut self, tuning: Tuning) {
        self.raft.set_relaying(tuning.relay);
        self.raft.set_disk_timeout(tuning.disk_timeout.as_micros() as Micros);
        self.tuning = tuning;
    }

    /// The options that may change while the member runs.
    #[inline]
    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// This member has become Primary.
    pub(in crate::member) fn became_primary(&mut self) {
        self.quorum.became_primary(self.now);
    }

    /// There is a majority.
    pub(in crate::member) fn majority_present(&mut self) {
        self.quorum.present();
    }

    /// There is no majority. Returns since when.
    pub(in crate::member) fn majority_missing(&mut self) -> Micros {
        self.quorum.missing(self.now)
    }

    /// Since when there is no majority, if there is none.
    pub(in crate::member) fn majority_lost_since(&self) -> Option<Micros> {
        self.quorum.lost_since()
    }

    /// A leader of the own log is known, or a majority of its voters is connected; or a connect begins.
    pub(in crate::member) fn note_majority_seen(&mut self) {
        self.quorum.note_seen(self.now);
    }

    /// How long ago the own log's members were last seen to be alive.
    pub(in crate::member) fn majority_unseen_for(&self) -> Micros {
        self.quorum.unseen_for(self.now)
    }

    /// This member has stopped leading because these disks hang, for so long.
    pub(in crate::member) fn stepped_down_for(&mut self, disks: Vec<(MemberId, Micros)>) {
        self.quorum.disks_hang(disks);
    }

    /// The disks for which this member stopped leading, and how long they had completed no write.
    pub(in crate::member) fn hung_disks(&self) -> &[(MemberId, Micros)] {
        self.quorum.hung_disks()
    }

    /// The seqno that the front end's server has finished.
    pub(crate) fn finished(&self) -> Seqno {
        self.finished.get()
    }

    /// The same when the round began: results up to it had been reported before this round's inputs.
    pub(in crate::member) fn finished_at_round(&self) -> Seqno {
        self.finished.at_round()
    }

    /// Everything up to `seqno` counts as finished: there is no server, or its data include it.
    pub(in crate::member) fn raise_finished(&self, seqno: Seqno) {
        self.finished.raise(seqno);
    }

    /// The words of messages for this member's operator.
    pub(in crate::member) fn terms(&self) -> &'static Terms {
        Terms::of(self.front_end)
    }

    /// Writes a line to the error log.
    pub(in crate::member) fn log(&mut self, level: Level, text: impl Into<String>) {
        self.out.log(level, text);
    }

    /// Adds an effect. Effects are carried out in the order of their addition.
    #[inline]
    pub(in crate::member) fn emit(&mut self, effect: Effect) {
        self.out.push(effect);
    }

    /// Adds effects, as [`Context::emit`].
    #[inline]
    pub(in crate::member) fn emit_all(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.out.extend(effects);
    }

    /// The thread is woken at the end of the round: see [`Context::wake`].
    #[inline]
    pub(in crate::member) fn wake_later(&mut self, thread: Option<Thread>) {
        self.out.wake_later(thread);
    }

    /// Wakes the threads whose submissions have been ordered, in commit order.
    pub(in crate::member) fn wake(&mut self) {
        self.out.wake();
    }

    /// Moves the effects and deliveries since the last call to the caller's lists.
    pub(in crate::member) fn take_outputs(
        &mut self,
        effects: &mut Vec<Effect>,
        deliveries: &mut Vec<Delivery>,
    ) {
        self.out.take(effects, deliveries);
    }

    /// The next message of this member to itself.
    pub(in crate::member) fn take_own(&mut self) -> Option<OwnMessage> {
        self.out.take_own()
    }

    /// Sends a message of Raft to a peer.
    #[inline]
    pub(in crate::member) fn send_raft(&mut self, to: MemberId, message: &Message) {
        self.out.send_raft(to, message);
    }

    /// Hands a delivery to the front end.
    pub(in crate::member) fn deliver(&mut self, delivery: Delivery) {
        self.out.deliver(delivery);
    }

    /// Sends a message to a member, perhaps this one.
    pub(in crate::member) fn send(&mut self, to: MemberId, message: &NodeMessage) {
        if to == self.me.id {
            self.out.send_own(OwnMessage::Node(message.clone()));
        } else {
            self.out.send(to, message);
        }
    }

    /// Sends a message about an operator's command to a member, perhaps this one.
    pub(in crate::member) fn send_operator(&mut self, to: MemberId, message: OperatorMessage) {
        if to == self.me.id {
            self.out.send_own(OwnMessage::Operator(message));
        } else {
            self.out.send_operator(to, &message);
        }
    }

    /// This member, as a view lists it.
    pub(in crate::member) fn own_view_member(&self) -> ViewMember {
        self.me.as_view_member()
    }

    pub(crate) fn name_of(&self, id: &MemberId) -> String {
        if *id == self.me.id {
            return self.me.name.clone();
        }
        match self.raft.membership().get(id) {
            Some(member) => member.name.clone(),
            None => match self.peers.get(id) {
                Some(peer) => peer.hello().name.clone(),
                None => self.left_behind.get(id).cloned().unwrap_or_else(|| id.to_string()),
            },
        }
    }

    /// A forced bootstrap goes on without the others of this membership. Lines about the leader before still name them.
    pub(in crate::member) fn leaves_behind(&mut self, membership: &Membership) {
        self.left_behind.extend(membership.members.iter().map(|member| (member.id, member.name.clone())));
    }

    /// Since when this member is not connected; for one never connected, since this member became Primary.
    pub(crate) fn gone_since(&self, id: &MemberId) -> Option<Micros> {
        if *id == self.me.id || self.peers.contains_key(id) {
            return None;
        }
        Some(self.peers.gone_since(id).unwrap_or(self.quorum.primary_since().unwrap_or(self.now)))
    }

    /// The same for the status, counted from the last message: a stopped process is silent before its connection ends.
    /// A member never connected counts as unseen since this process began.
    pub(crate) fn unseen_since(&self, id: &MemberId) -> Option<Micros> {
        if *id == self.me.id || self.peers.contains_key(id) {
            return None;
        }
        Some(self.peers.last_received_from_gone(id).unwrap_or(0))
    }

    /// Whether a peer has not answered for so long that the next view leaves it out, connected or not. While this process
    /// did not run, no answer could arrive.
    pub(crate) fn silent(&self, id: &MemberId) -> bool {
        self.raft.last_answer(id).is_some_and(|at| self.too_long_ago(at.max(self.resumed_at)))
    }

    /// Whether anything arrived from this member of late. Its process may be stopped although its connections are open.
    pub(crate) fn responds(&self, id: &MemberId) -> bool {
        self.peers.get(id).is_some_and(|peer| !self.too_long_ago(peer.last_received()))
    }

    fn too_long_ago(&self, at: Micros) -> bool {
        self.now.saturating_sub(at) > 5 * self.raft.election_timeout()
    }

    /// Whether too few voters are connected to elect a leader.
    pub(in crate::member) fn cut_off(&self) -> bool {
        let membership = self.raft.membership();
        let connected =
            membership.voters().filter(|id| *id == self.me.id || self.peers.contains_key(id)).count();
        connected < membership.majority()
    }

    /// The names of the voters that are not connected, separated by commas.
    pub(in crate::member) fn absent_voters(&self) -> String {
        let membership = self.raft.membership();
        let absent = membership.voters().filter(|id| *id != self.me.id && !self.peers.contains_key(id));
        absent.map(|id| self.name_of(&id)).collect::<Vec<_>>().join(", ")
    }

    /// How many committed transactions a server that has finished `finished` still has to finish.
    pub(crate) fn lag_of(&self, finished: Seqno) -> i64 {
        self.raft.seqnos_between(finished, self.raft.committed_state().seqno)
    }

    /// Whether an apply hold is set, whether or not it holds an entry now.
    pub(crate) fn is_held_back(&self) -> bool {
        self.tuning.apply_hold.is_set()
    }

    /// Whether an apply hold is set and the member has a server.
    pub(in crate::member) fn has_held_server(&self) -> bool {
        self.is_held_back() && !self.me.arbitrator
    }

    /// Whether the address is this member's: its present one, or one listed in the log for it and for no other member.
    /// The log may still list an old address until a leader has updated it.
    fn is_own(&self, address: &str) -> bool {
        let membership = self.raft.membership();
        let mut theirs = membership.members.iter().filter(|m| m.address == address).peekable();
        address == self.me.address || theirs.peek().is_some() && theirs.all(|m| m.id == self.me.id)
    }

    /// Dials an address while connected. Before the connect, the log may name members, but the cluster is not known
    /// yet.
    pub(in crate::member) fn dial(&mut self, address: String) {
        if self.connection.is_connected() && !address.is_empty() && !self.is_own(&address) {
            self.out.push(Effect::Dial(address));
        }
    }
}
