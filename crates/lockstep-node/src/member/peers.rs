//! Who is connected.

use super::connection_state::ConnectionState;
use super::{Effect, Level, Member, Micros, NodeMessage};
use crate::api::Compress;
use crate::wire::{Health, Hello};
use lockstep_core::MemberId;
use std::collections::BTreeMap;

/// The first protocol version whose speakers pass entries on, and take what was passed on.
pub(crate) const RELAYED_SINCE: u16 = 4;
/// The first one whose speakers know what is to be changed of a policy from what it is to be in all.
pub(crate) const WISHES_SINCE: u16 = 5;
/// The first one whose speakers understand that entries are kept from a member's server.
pub(crate) const HELD_BACK_SINCE: u16 = 5;
/// The first one whose speakers understand that clients are turned away.
pub(crate) const TURNED_AWAY_SINCE: u16 = 6;
/// A member that has been heard of within this is there.
const ALIVE: Micros = 1_500_000;
/// How long others may refuse this member for its identity.
const IDENTITY_PATIENCE: Micros = 4_000_000;
/// Who was connected and is no member is forgotten after so long.
const GONE_KEPT: Micros = 60_000_000;

/// How often a member says that it is not let in.
const SAY_NOT_LISTED: Micros = 60_000_000;

/// A connected peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) hello: Hello,
    pub(crate) health: Option<Health>,
    /// When anything came from it.
    pub(crate) heard: Micros,
    /// The protocol version that both speak, once it is known.
    pub(super) version: u16,
    /// The shortest of its latest round trips, once one is known.
    pub(super) rtt: Option<Micros>,
}

impl Peer {
    /// It wants to leave.
    pub(super) fn leaving(&self) -> bool {
        self.health.is_some_and(|h| h.leaving)
    }

    /// Members that leave are in no new view.
    pub(super) fn left(&self) -> bool {
        self.leaving()
    }
}

/// A peer that was connected and is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(super) since: Micros,
    /// When it was heard of last.
    pub(super) heard: Micros,
}

/// Whether a connection is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Taken.
    Welcome,
    /// Taken in the place of the connection to the same member, which is from an earlier life of its process.
    Replaces,
    /// This is ourselves: our own address is in the list.
    Ourselves,
    /// Its log is of a branch that left this member's.
    Superseded(String),
    /// Its log is of a branch that this member's has left.
    Outdated(String),
    /// Its log is of another history, or another log of this one.
    OtherLog(String),
    /// This member has no log yet, and is connected to one with another log than that.
    Beside(String),
    /// The same identity is connected from elsewhere.
    SameIdentity(String),
}

impl Member {
    /// Whether to take a connection to this member.
    pub(crate) fn admit(&self, hello: &Hello) -> Admission {
        if hello.id == self.me.id && hello.view_uuid == self.me.view_uuid {
            return Admission::Ourselves;
        }
        if hello.id == self.me.id {
            return Admission::SameIdentity(format!(
                "{} has this member's identity: a log folder was copied; remove lockstep.* from the copy",
                hello.address
            ));
        }
        let reads = match self.admit_while_reading(hello) {
            Some(Err(refused)) => return refused,
            Some(Ok(())) => true,
            None => false,
        };
        if !reads && let Some(refused) = self.compare_logs(hello) {
            return refused;
        }
        // Two leaders at once would make it a learner, and feed it.
        if (reads || self.raft.tail_state().log_id.is_nil())
            && let Some(peer) =
                self.peers.values().find(|p| p.hello.id != hello.id && p.hello.is_of_another_log(hello))
        {
            return Admission::Beside(format!(
                "{} and {} have different logs (histories {} and {}), and this member, which has none, joins that of \
                 {}: two clusters answer to one name. Decide which is right, and stop the servers of the other",
                peer.hello.name, hello.name, peer.hello.history, hello.history, peer.hello.name
            ));
        }
        match self.peers.get(&hello.id) {
            Some(peer) if peer.hello.view_uuid == hello.view_uuid => Admission::Welcome,
            // An earlier life of its process has ended, or is silent. If it is not, there are two of it: a copy has been
            // opened later than what it is a copy of, and must not take its place and its vote.
            Some(peer) if peer.hello.incarnation < hello.incarnation && !self.is_alive(peer) => {
                Admission::Replaces
            }
            Some(peer) => Admission::SameIdentity(format!(
                "{} and {} have one identity: a log folder was copied; remove lockstep.* from the copy",
                peer.hello.address, hello.address
            )),
            None => Admission::Welcome,
        }
    }

    /// Why the log of this peer does not go with this member's own, if it does not.
    fn compare_logs(&self, hello: &Hello) -> Option<Admission> {
        // What is connected has been compared: a joiner's log may begin before a branch that it is about to read of.
        let compared = self.peers.values().any(|p| {
            p.hello.id != hello.id
                && !hello.log_id.is_nil()
                && (p.hello.history, p.hello.log_id) == (hello.history, hello.log_id)
        });
        if !compared && self.is_ahead_by_branch(hello) {
            return Some(Admission::Superseded(format!(
                "{} goes on with a branch that left this member's at an operator's order (pc.bootstrap): the two cannot be \
                 joined. Where this member is Primary, decide which of them is right, and stop the servers of the other; \
                 started again they take the state of those that run",
                hello.name
            )));
        }
        let own = self.raft.tail_state().history;
        if self
            .raft
            .tail_state()
            .parents
            .iter()
            .any(|p| (p.history, p.log_id) == (hello.history, hello.log_id))
        {
            return Some(Admission::Outdated(format!(
                "the log of {} is of the branch before this one's: it is not let in with it. If it is not Primary it sets \
                 its log aside at its next start, and takes this one's state",
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
        let log = self.raft.tail_state().log_id;
        if !compared && !log.is_nil() && !hello.log_id.is_nil() && log != hello.log_id {
            return Some(Admission::OtherLog(format!(
                "the logs of {} and {} were founded apart on data of one history, {own} (taken over from Galera \
                 again, or restored): they cannot be joined. Decide which member's data are right; on the other one \
                 move the lockstep.* files away, so that it joins by state transfer",
                self.me.name, hello.name
            )));
        }
        None
    }

    /// Whether it has said something within what it says five times.
    fn is_alive(&self, peer: &Peer) -> bool {
        self.now.saturating_sub(peer.heard) < ALIVE
    }

    /// Others refuse this member for its identity. Where its former self was only not known to be dead yet, that is over
    /// in a moment; else it must not run beside the one that has its place.
    pub(crate) fn not_allowed(&mut self, text: &str) {
        if !self.peers.is_empty() {
            return;
        }
        let since = *self.not_allowed_since.get_or_insert(self.now);
        if self.now.saturating_sub(since) < IDENTITY_PATIENCE {
            return;
        }
        match self.connection {
            ConnectionState::Connecting { .. } => self.refused(text),
            ConnectionState::Running { .. } | ConnectionState::NeedState { .. } => {
                self.fail(&format!("the others do not take this member: {text}"));
            }
            _ => {}
        }
    }

    /// Others do not find this member in their allow-list. It cannot join then; a member that was one waits until it is
    /// let in again.
    pub(crate) fn not_listed(&mut self, text: &str) {
        if !self.peers.is_empty() {
            return;
        }
        let since = *self.not_allowed_since.get_or_insert(self.now);
        let patient = self.now.saturating_sub(since) < IDENTITY_PATIENCE;
        match self.connection {
            ConnectionState::Connecting { .. } if !patient => self.refused(text),
            ConnectionState::Running { .. } | ConnectionState::NeedState { .. }
                if self.now >= self.told_not_listed =>
            {
                self.told_not_listed = self.now + SAY_NOT_LISTED;
                self.log(
                    Level::Warn,
                    format!("the others do not take this member, and are asked again: {text}"),
                );
            }
            _ => {}
        }
    }

    /// An address was dialed in vain. `why`: somebody is there with whom this member cannot talk.
    pub(crate) fn not_reached(&mut self, addr: String, who: String, why: Option<String>) {
        match why {
            Some(why) => _ = self.unlike.insert(addr, (who, why)),
            None => _ = self.unlike.remove(&addr),
        }
    }

    pub(crate) fn reached(&mut self, addr: &str) {
        self.unlike.remove(addr);
    }

    /// With whom this member cannot talk, and why.
    pub(super) fn unlike(&self) -> Option<String> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (who, why) in self.unlike.values() {
            reasons.entry(why).or_default().push(who);
        }
        let texts: Vec<String> =
            reasons.iter().map(|(why, whose)| format!("{}: {why}", whose.join(", "))).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// A connection has been taken.
    pub(crate) fn peer_up(&mut self, hello: Hello) {
        let id = hello.id;
        let fresh = !self.peers.contains_key(&id);
        if fresh {
            self.log(Level::Info, format!("connected to {} ({})", hello.name, hello.address));
            // The default is the name of the host, and servers of one host may be in one group: names are for people,
            // the group knows its members by their ids.
            let name = &hello.name;
            if self.me.name == *name || self.peers.values().any(|p| p.hello.name == *name) {
                let text = format!(
                    "another member is named {name}, too: set wsrep_node_name, or lines and wsrep_sst_donor that \
                     name it are ambiguous"
                );
                self.log(Level::Info, text);
            }
        }
        self.note_whose_log(&hello);
        self.gone.remove(&id);
        self.dial(hello.address.clone());
        self.peers.insert(id, Peer { hello, health: None, heard: self.now, version: 0, rtt: None });
        self.raft.peer_up(self.now, id);
        self.schedule_leader_tasks();
        self.donor_is_back(id);
        let addresses: Vec<String> = self
            .raft
            .membership()
            .members
            .iter()
            .map(|m| m.address.clone())
            .chain(self.peers.values().map(|p| p.hello.address.clone()))
            .chain([self.me.address.clone()])
            .collect();
        self.tell(id, &NodeMessage::Peers(addresses));
        // What older members do not know of follows once it is known which version this one speaks.
        let health = Health { held_back: false, ..self.health() };
        self.tell(id, &NodeMessage::Health(health));
    }

    /// The own log has begun, or has another name now: connections that were made before have not been compared with it.
    /// Those whose log is not known to be this one introduce themselves again.
    pub(super) fn compare_peers(&mut self) {
        let tail = self.raft.tail_state();
        let own = (tail.history, tail.log_id);
        let others = self.peers.values().filter(|peer| {
            let log = (peer.hello.history, peer.hello.log_id);
            // It may lead this member on to a branch of what it has now.
            log != own && !peer.hello.parents.contains(&own)
        });
        let ids: Vec<MemberId> = others.map(|peer| peer.hello.id).collect();
        self.effects.extend(ids.into_iter().map(Effect::Drop));
    }

    /// The protocol version that both speak on the connection which this member has just got.
    pub(crate) fn peer_speaks(&mut self, id: MemberId, version: u16) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.version = version;
        }
        if version >= RELAYED_SINCE {
            self.raft.peer_relays(id);
        }
    }

    /// Whether what goes to this member is compressed, where it can unpack that.
    pub(crate) fn compresses_to(&self, id: &MemberId) -> bool {
        match self.tuning.compress {
            Compress::Off => false,
            Compress::Zone => self.peers.get(id).is_some_and(|peer| peer.hello.zone != self.me.zone),
            Compress::All => true,
        }
    }

    /// No connection is left: this member has left, or does not join.
    pub(super) fn forget_peers(&mut self) {
        for (id, peer) in std::mem::take(&mut self.peers) {
            self.raft.peer_down(self.now, id);
            // For people who look; a leader of a later connection begins anew.
            self.gone.insert(id, Gone { since: self.now, heard: peer.heard });
        }
        self.unlike.clear();
        self.join_target = None;
    }

    /// Another connection begins: since when others were missed in the one before means nothing to it.
    pub(super) fn forget_the_gone(&mut self) {
        self.gone.clear();
    }

    /// A connection has ended.
    pub(crate) fn peer_down(&mut self, id: MemberId, why: &str) {
        if let Some(peer) = self.peers.remove(&id) {
            self.log(Level::Info, format!("connection to {} lost: {why}", peer.hello.name));
            let membership = self.raft.membership();
            let (now, view) = (self.now, self.raft.tail_state().view.clone());
            self.gone.retain(|id, gone| {
                membership.get(id).is_some() || view.position(id).is_some() || now < gone.since + GONE_KEPT
            });
            self.gone.insert(id, Gone { since: self.now, heard: peer.heard });
            self.raft.peer_down(self.now, id);
            self.donor_may_be_gone(id);
            self.schedule_leader_tasks();
        }
    }

    /// Since when this member is not connected; from the start of this process for one that never was.
    pub(crate) fn gone_since(&self, id: &MemberId) -> Option<Micros> {
        if *id == self.me.id || self.peers.contains_key(id) {
            return None;
        }
        Some(self.gone.get(id).map_or(self.primary_since.unwrap_or(self.now), |g| g.since))
    }

    /// The same for people, from when it was heard of last: one whose process was stopped was silent before its connection
    /// ended. One that never was connected has been gone for at least as long as this process runs.
    pub(crate) fn unseen_since(&self, id: &MemberId) -> Option<Micros> {
        if *id == self.me.id || self.peers.contains_key(id) {
            return None;
        }
        Some(self.gone.get(id).map_or(0, |gone| gone.heard))
    }

    /// A peer that answers nothing for so long is out of the next view, connected or not.
    pub(crate) fn silent(&self, id: &MemberId) -> bool {
        self.raft.last_heard(id).is_some_and(|at| self.too_long_ago(at))
    }

    /// Whether anything has come from this member of late. Its process may be stopped, and its connections open.
    pub(crate) fn responds(&self, id: &MemberId) -> bool {
        self.peers.get(id).is_some_and(|peer| !self.too_long_ago(peer.heard))
    }

    fn too_long_ago(&self, at: Micros) -> bool {
        self.now.saturating_sub(at) > 5 * self.raft.election_timeout()
    }

    /// Whether it is where this member is, or where it was, as the log says until a leader has put that right, and nobody
    /// else is known to be.
    fn is_own(&self, address: &str) -> bool {
        let membership = self.raft.membership();
        let mut theirs = membership.members.iter().filter(|m| m.address == address).peekable();
        address == self.me.address || theirs.peek().is_some() && theirs.all(|m| m.id == self.me.id)
    }

    /// Before it connects a member knows others by its log, but has not been told of which cluster it is to be one.
    pub(super) fn dial(&mut self, address: String) {
        if self.connection.is_connected() && !address.is_empty() && !self.is_own(&address) {
            self.effects.push(Effect::Dial(address));
        }
    }
}
