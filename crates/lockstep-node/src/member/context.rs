//! What all components share: Raft, the peers, this member's identity, its options, the time, and the outputs.
//!
//! The router passes it to the components by reference. A component keeps its own state to itself.

use crate::api::{Delivery, FrontEnd, Level, Tuning};
use crate::effect::Effect;
use crate::member::delivery::finished::Finished;
use crate::member::membership::connection_state::ConnectionState;
use crate::member::membership::peers::Peers;
use crate::member::membership::quorum::Quorum;
use crate::member::outbox::{Outbox, OwnMessage};
use crate::terms::Terms;
use crate::wire::{Hello, NodeMessage, OperatorMessage};
use lockstep_core::members::ViewMember;
use lockstep_core::raft::Raft;
use lockstep_core::{MemberId, Micros, Seqno};
use std::time::Duration;

/// See the module's documentation.
pub(crate) struct Context {
    pub(crate) raft: Raft,
    /// This member's introduction.
    pub(crate) me: Hello,
    pub(crate) front_end: FrontEnd,
    pub(crate) tuning: Tuning,
    /// The cluster's name.
    pub(crate) cluster: String,
    pub(crate) peers: Peers,
    pub(crate) connection: ConnectionState,
    /// When the majority was seen.
    pub(in crate::member) quorum: Quorum,
    /// The monotonic clock at the beginning of the round.
    pub(crate) now: Micros,
    /// When this process ran again after its last stall of an election timeout or longer; at first, when it began.
    pub(crate) resumed_at: Micros,
    /// In the simulator: the time since boot, with suspensions.
    pub(crate) simulated_boot: Option<Duration>,
    /// The wall clock at the beginning of the round.
    pub(in crate::member) wall: Micros,
    /// The seqno that the front end's server has finished.
    pub(in crate::member) finished: Finished,
    pub(in crate::member) out: Outbox,
}

impl Context {
    /// The seqno that the front end's server has finished.
    pub(crate) fn finished(&self) -> Seqno {
        self.finished.get()
    }

    /// The words of messages for this member's operator.
    pub(in crate::member) fn terms(&self) -> &'static Terms {
        Terms::of(self.front_end)
    }

    /// Writes a line to the error log.
    pub(in crate::member) fn log(&mut self, level: Level, text: impl Into<String>) {
        self.out.log(level, text);
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
            None => self.peers.get(id).map_or_else(|| id.to_string(), |p| p.hello().name.clone()),
        }
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
