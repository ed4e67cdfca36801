//! Connected peers.

use crate::api::Compress;
use crate::effect::Effect;
use crate::member::membership::admission::Admission;
use crate::member::membership::connection_state::ConnectionState;
use crate::member::membership::join_target::JoinTarget;
use crate::member::{Level, Member, Micros, NodeMessage};
use crate::wire::{Health, Hello};
use lockstep_core::raft::Raft;
use lockstep_core::{MemberId, Uuid};
use std::collections::{BTreeMap, btree_map};

/// The first protocol version in which members relay entries, and take relayed ones.
pub(crate) const RELAYED_SINCE: u16 = 4;
/// The first version with policy requests that name single settings.
pub(crate) const POLICY_REQUESTS_SINCE: u16 = 5;
/// The first version with `held_back` in the health message.
pub(crate) const HELD_BACK_SINCE: u16 = 5;
/// The first version with the message that a member rejects writes.
pub(crate) const REJECTED_WRITES_SINCE: u16 = 6;
/// A peer from which something arrived within this time is alive.
const ALIVE: Micros = 1_500_000;
/// How long peers may refuse this member for its identity.
const IDENTITY_TIMEOUT: Micros = 4_000_000;
/// After this long, a disconnected peer that is no member is forgotten.
const GONE_RETENTION: Micros = 60_000_000;

/// How often a member logs that it is not let in.
const NOT_LISTED_LOG_INTERVAL: Micros = 60_000_000;

/// A connected peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) hello: Hello,
    pub(crate) health: Option<Health>,
    /// When anything last arrived from it.
    pub(crate) last_received: Micros,
    /// The protocol version of the connection, once known.
    pub(in crate::member) version: u16,
    /// The shortest of the latest round trips, once measured.
    pub(in crate::member) rtt: Option<Micros>,
}

impl Peer {
    /// Whether the peer wants to leave.
    pub(in crate::member) fn leaving(&self) -> bool {
        self.health.is_some_and(|h| h.leaving)
    }

    /// Whether anything arrived from the peer within [`ALIVE`].
    fn is_alive(&self, now: Micros) -> bool {
        now.saturating_sub(self.last_received) < ALIVE
    }

    /// Members that leave are in no new view.
    pub(in crate::member) fn left(&self) -> bool {
        self.leaving()
    }
}

/// A peer that was connected and is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(in crate::member) since: Micros,
    /// When anything last arrived from it.
    pub(in crate::member) last_received: Micros,
}

/// The other members: those connected, and facts about those that are not.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    connected: BTreeMap<MemberId, Peer>,
    /// Members that were connected and are not.
    gone: BTreeMap<MemberId, Gone>,
    /// Addresses of members that cannot be talked to until an administrator acts: the member's name, and the reason.
    unlike: BTreeMap<String, (String, String)>,
    /// Since when peers refuse this member for its identity and none accepts it.
    refused_since: Option<Micros>,
    /// Earliest time to log again that peers do not let this member in.
    refusal_log_at: Micros,
    /// The log that this member adopts; it came without one.
    join_target: JoinTarget,
}

impl Peers {
    pub(crate) fn get(&self, id: &MemberId) -> Option<&Peer> {
        self.connected.get(id)
    }

    pub(crate) fn contains_key(&self, id: &MemberId) -> bool {
        self.connected.contains_key(id)
    }

    pub(crate) fn keys(&self) -> btree_map::Keys<'_, MemberId, Peer> {
        self.connected.keys()
    }

    pub(crate) fn values(&self) -> btree_map::Values<'_, MemberId, Peer> {
        self.connected.values()
    }

    pub(crate) fn iter(&self) -> btree_map::Iter<'_, MemberId, Peer> {
        self.connected.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.connected.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.connected.is_empty()
    }

    /// A peer that was connected and is not.
    pub(in crate::member) fn gone(&self, id: &MemberId) -> Option<Gone> {
        self.gone.get(id).copied()
    }

    /// A connection to this peer was accepted. Without a log of its own, this member adopts the peer's.
    pub(in crate::member) fn connect(&mut self, raft: &Raft, now: Micros, hello: Hello) {
        self.join_target.follow(raft, &hello);
        self.gone.remove(&hello.id);
        let peer = Peer { hello, health: None, last_received: now, version: 0, rtt: None };
        self.connected.insert(peer.hello.id, peer);
    }

    /// A connection ended. Members for which `keep` holds are remembered for as long as the process runs.
    pub(in crate::member) fn disconnect(
        &mut self,
        now: Micros,
        id: &MemberId,
        keep: impl Fn(&MemberId) -> bool,
    ) -> Option<Peer> {
        let peer = self.connected.remove(id)?;
        self.gone.retain(|id, gone| keep(id) || now < gone.since + GONE_RETENTION);
        self.gone.insert(*id, Gone { since: now, last_received: peer.last_received });
        Some(peer)
    }

    /// All connections end. Returns the peers' ids.
    pub(in crate::member) fn disconnect_all(&mut self, now: Micros) -> Vec<MemberId> {
        let connected = std::mem::take(&mut self.connected);
        self.unlike.clear();
        self.join_target = JoinTarget::default();
        for (id, peer) in &connected {
            // For the status; a leader in a later connection starts afresh.
            self.gone.insert(*id, Gone { since: now, last_received: peer.last_received });
        }
        connected.into_keys().collect()
    }

    /// A new connect begins: earlier absences do not count.
    pub(in crate::member) fn forget_gone(&mut self) {
        self.gone.clear();
    }

    /// Something has arrived from this peer.
    pub(in crate::member) fn received(&mut self, now: Micros, id: &MemberId) {
        if let Some(peer) = self.connected.get_mut(id) {
            peer.last_received = now;
        }
    }

    /// The peer's health. Returns whether the peer is connected. It accepts this member: a member that refuses one sends
    /// no health.
    pub(in crate::member) fn set_health(&mut self, id: &MemberId, health: Health) -> bool {
        let Some(peer) = self.connected.get_mut(id) else { return false };
        peer.health = Some(health);
        self.refused_since = None;
        true
    }

    pub(in crate::member) fn set_rtt(&mut self, id: &MemberId, rtt: Micros) {
        if let Some(peer) = self.connected.get_mut(id) {
            peer.rtt = Some(rtt);
        }
    }

    pub(in crate::member) fn set_version(&mut self, id: &MemberId, version: u16) {
        if let Some(peer) = self.connected.get_mut(id) {
            peer.version = version;
        }
    }

    /// Peers refuse this member for its identity. Returns whether they have for longer than an earlier incarnation of it
    /// may take to be known as dead.
    fn refused_for_long(&mut self, now: Micros) -> bool {
        let since = *self.refused_since.get_or_insert(now);
        now.saturating_sub(since) >= IDENTITY_TIMEOUT
    }

    /// Whether to log now that peers do not let this member in.
    fn may_log_refusal(&mut self, now: Micros) -> bool {
        let may = now >= self.refusal_log_at;
        if may {
            self.refusal_log_at = now + NOT_LISTED_LOG_INTERVAL;
        }
        may
    }

    /// The log that this member names in its introduction: history and log id.
    pub(in crate::member) fn announced_log(&self, raft: &Raft) -> Option<(Uuid, Uuid)> {
        self.join_target.announced_log(raft)
    }

    /// The members with which this one cannot talk, and why.
    pub(in crate::member) fn unlike(&self) -> Option<String> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (who, why) in self.unlike.values() {
            reasons.entry(why).or_default().push(who);
        }
        let texts: Vec<String> =
            reasons.iter().map(|(why, whose)| format!("{}: {why}", whose.join(", "))).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Whether to accept a connection to this peer.
    pub(in crate::member) fn admit(&self, raft: &Raft, me: &Hello, now: Micros, hello: &Hello) -> Admission {
        if hello.id == me.id && hello.view_uuid == me.view_uuid {
            return Admission::Ourselves;
        }
        if hello.id == me.id {
            return Admission::SameIdentity(format!(
                "{} has this member's identity: a log folder was copied; remove lockstep.* from the copy",
                hello.address
            ));
        }
        let reads = match self.join_target.admit(raft, hello) {
            Some(Err(refused)) => return refused,
            Some(Ok(())) => true,
            None => false,
        };
        if !reads && let Some(refused) = self.compare_logs(raft, me, hello) {
            return refused;
        }
        // Otherwise two leaders would make this member their learner and send it entries.
        if (reads || raft.tail_state().log_id.is_nil())
            && let Some(peer) =
                self.connected.values().find(|p| p.hello.id != hello.id && p.hello.is_of_another_log(hello))
        {
            return Admission::Beside(format!(
                "{} and {} have different logs (histories {} and {}), and this member, which has none, joins that of \
                 {}: two clusters have one name. Decide which is right, and stop the servers of the other",
                peer.hello.name, hello.name, peer.hello.history, hello.history, peer.hello.name
            ));
        }
        match self.connected.get(&hello.id) {
            Some(peer) if peer.hello.view_uuid == hello.view_uuid => Admission::Welcome,
            // The earlier incarnation has ended, or is silent. If it is alive, there are two processes: a copied log
            // was opened after the original, and must not take over its connection and vote.
            Some(peer) if peer.hello.incarnation < hello.incarnation && !peer.is_alive(now) => {
                Admission::Replaces
            }
            Some(peer) => Admission::SameIdentity(format!(
                "{} and {} have one identity: a log folder was copied; remove lockstep.* from the copy",
                peer.hello.address, hello.address
            )),
            None => Admission::Welcome,
        }
    }

    /// Why the peer's log does not fit this member's, if so.
    fn compare_logs(&self, raft: &Raft, me: &Hello, hello: &Hello) -> Option<Admission> {
        // A connected peer's log has been compared: a joiner's log may begin before a branch about which it has yet to
        // read.
        let compared = self.connected.values().any(|p| {
            p.hello.id != hello.id
                && !hello.log_id.is_nil()
                && (p.hello.history, p.hello.log_id) == (hello.history, hello.log_id)
        });
        if !compared && is_ahead_by_branch(raft, hello) {
            return Some(Admission::Superseded(format!(
                "{} goes on with a branch that left this member's at an operator's order (pc.bootstrap): the two cannot be \
                 joined. Where this member is Primary, decide which of them is right, and stop the servers of the other; \
                 started again they take the state of those that run",
                hello.name
            )));
        }
        let own = raft.tail_state().history;
        if raft.tail_state().parents.iter().any(|p| (p.history, p.log_id) == (hello.history, hello.log_id)) {
            return Some(Admission::Outdated(format!(
                "the log of {} is of the branch before this one's: it is not admitted with it. If it is not Primary \
                 it sets its log aside at its next start, and takes this one's state",
                hello.name
            )));
        }
        if !compared && !own.is_nil() && !hello.history.is_nil() && own != hello.history {
            return Some(Admission::OtherLog(format!(
                "the log of {} is of history {}, this one's of {own}: the logs cannot be joined. Decide which data is \
                 right; on the other member move its lockstep.* files away, so that it joins by state transfer",
                hello.name, hello.history
            )));
        }
        let log = raft.tail_state().log_id;
        if !compared && !log.is_nil() && !hello.log_id.is_nil() && log != hello.log_id {
            return Some(Admission::OtherLog(format!(
                "the logs of {} and {} were founded apart on data of one history, {own} (taken over from Galera \
                 again, or restored): they cannot be joined. Decide which member's data are right; on the other one \
                 move the lockstep.* files away, so that it joins by state transfer",
                me.name, hello.name
            )));
        }
        None
    }
}

/// Whether the log of this peer is of a branch that left this member's.
fn is_ahead_by_branch(raft: &Raft, hello: &Hello) -> bool {
    let own = raft.tail_state();
    raft.has_log() && hello.parents.contains(&(own.history, own.log_id))
}

impl Member {
    /// Whether to accept a connection to this peer.
    pub(crate) fn admit(&self, hello: &Hello) -> Admission {
        self.ctx.peers.admit(&self.ctx.raft, &self.ctx.me, self.ctx.now, hello)
    }

    /// Peers refuse this member for its identity. If its earlier incarnation only was not known to be dead yet, this
    /// passes in a moment. Otherwise it must not run beside the member with its identity.
    pub(crate) fn not_allowed(&mut self, text: &str) {
        if !self.ctx.peers.is_empty() || !self.ctx.peers.refused_for_long(self.ctx.now) {
            return;
        }
        match self.ctx.connection {
            ConnectionState::Connecting { .. } => self.refused(text),
            ConnectionState::Running { .. } | ConnectionState::NeedState { .. } => {
                self.fail(&format!("the other members refuse this one: {text}"));
            }
            _ => {}
        }
    }

    /// Peers do not find this member in their allow-list. A new member cannot join then; an earlier member waits until
    /// it is let in again.
    pub(crate) fn not_listed(&mut self, text: &str) {
        if !self.ctx.peers.is_empty() {
            return;
        }
        let for_long = self.ctx.peers.refused_for_long(self.ctx.now);
        match self.ctx.connection {
            ConnectionState::Connecting { .. } if for_long => self.refused(text),
            ConnectionState::Running { .. } | ConnectionState::NeedState { .. }
                if self.ctx.peers.may_log_refusal(self.ctx.now) =>
            {
                self.ctx.log(
                    Level::Warn,
                    format!("the other members refuse this one, and are asked again: {text}"),
                );
            }
            _ => {}
        }
    }

    /// A connection attempt failed. `why`: a member is there, but this one cannot talk with it.
    pub(crate) fn not_reached(&mut self, addr: String, who: String, why: Option<String>) {
        match why {
            Some(why) => _ = self.ctx.peers.unlike.insert(addr, (who, why)),
            None => _ = self.ctx.peers.unlike.remove(&addr),
        }
    }

    pub(crate) fn reached(&mut self, addr: &str) {
        self.ctx.peers.unlike.remove(addr);
    }

    /// A connection was accepted.
    pub(crate) fn peer_up(&mut self, hello: Hello) {
        let id = hello.id;
        let fresh = !self.ctx.peers.contains_key(&id);
        if fresh {
            self.ctx.log(Level::Info, format!("connected to {} ({})", hello.name, hello.address));
            // Only a hint: the default name is the host's, and several servers of a host may be in one group. Members
            // are identified by their ids.
            let name = &hello.name;
            if self.ctx.me.name == *name || self.ctx.peers.values().any(|p| p.hello.name == *name) {
                let text = format!(
                    "another member is named {name}, too: set wsrep_node_name, or lines and wsrep_sst_donor that \
                     name it are ambiguous"
                );
                self.ctx.log(Level::Info, text);
            }
        }
        self.ctx.dial(hello.address.clone());
        self.ctx.peers.connect(&self.ctx.raft, self.ctx.now, hello);
        self.ctx.raft.peer_up(self.ctx.now, id);
        self.schedule_leader_tasks();
        self.donor_is_back(id);
        let addresses: Vec<String> = self
            .ctx
            .raft
            .membership()
            .members
            .iter()
            .map(|m| m.address.clone())
            .chain(self.ctx.peers.values().map(|p| p.hello.address.clone()))
            .chain([self.ctx.me.address.clone()])
            .collect();
        self.tell(id, &NodeMessage::Peers(addresses));
        // Fields unknown to older versions follow once the peer's version is known.
        let health = Health { held_back: false, ..self.health() };
        self.tell(id, &NodeMessage::Health(health));
    }

    /// The own log has begun or been renamed: earlier connections were not compared with it. Peers whose log is not
    /// known to be this one must reconnect and introduce themselves again.
    pub(in crate::member) fn compare_peers(&mut self) {
        let tail = self.ctx.raft.tail_state();
        let own = (tail.history, tail.log_id);
        let others = self.ctx.peers.values().filter(|peer| {
            let log = (peer.hello.history, peer.hello.log_id);
            // The peer may lead this member to a branch of its present log.
            log != own && !peer.hello.parents.contains(&own)
        });
        let ids: Vec<MemberId> = others.map(|peer| peer.hello.id).collect();
        self.ctx.out.extend(ids.into_iter().map(Effect::Drop));
    }

    /// The protocol version of the connection just made.
    pub(crate) fn on_peer_version(&mut self, id: MemberId, version: u16) {
        self.ctx.peers.set_version(&id, version);
        if version >= RELAYED_SINCE {
            self.ctx.raft.peer_relays(id);
        }
    }

    /// Whether payloads to this member are compressed, if it can unpack them.
    pub(crate) fn compresses_to(&self, id: &MemberId) -> bool {
        match self.ctx.tuning.compress {
            Compress::Off => false,
            Compress::Zone => self.ctx.peers.get(id).is_some_and(|peer| peer.hello.zone != self.ctx.me.zone),
            Compress::All => true,
        }
    }

    /// All connections end: this member has left, or does not join.
    pub(in crate::member) fn forget_peers(&mut self) {
        for id in self.ctx.peers.disconnect_all(self.ctx.now) {
            self.ctx.raft.peer_down(self.ctx.now, id);
        }
    }

    /// A connection ended.
    pub(crate) fn peer_down(&mut self, id: MemberId, why: &str) {
        let (membership, view) = (self.ctx.raft.membership(), self.ctx.raft.tail_state().view.clone());
        let keep = |id: &MemberId| membership.get(id).is_some() || view.position(id).is_some();
        if let Some(peer) = self.ctx.peers.disconnect(self.ctx.now, &id, keep) {
            self.ctx.log(Level::Info, format!("connection to {} lost: {why}", peer.hello.name));
            self.ctx.raft.peer_down(self.ctx.now, id);
            self.donor_may_be_gone(id);
            self.schedule_leader_tasks();
        }
    }
}
