//! Connected peers.

use crate::api::LocalState;
use crate::member::membership::admission::Admission;
use crate::member::membership::join_target::JoinTarget;
use crate::wire::{Health, Hello, Sighting};
use lockstep_core::raft::Raft;
use lockstep_core::{MemberId, Micros, Term, Uuid, ViewUuid};
use std::collections::{BTreeMap, btree_map};

/// The first protocol version in which members relay entries, and take relayed ones.
pub(crate) const RELAYED_SINCE: u16 = 4;
/// The first version with policy requests that name single settings.
pub(crate) const POLICY_REQUESTS_SINCE: u16 = 5;
/// The first version with `held_back` in the health message.
pub(crate) const HELD_BACK_SINCE: u16 = 5;
/// The first version with the message that a member rejects writes.
pub(crate) const REJECTED_WRITES_SINCE: u16 = 6;
/// The first version with votes on verdicts.
pub(crate) const VERDICTS_SINCE: u16 = 7;
/// The first version with evidence of the recipient's durable state.
pub(crate) const EVIDENCE_SINCE: u16 = 7;
/// An incarnation's bits above these count the member's processes.
const PROCESS_SHIFT: u32 = 20;
/// A peer from which something arrived within this time is alive.
const ALIVE: Micros = 1_500_000;
/// How long peers may refuse this member for its identity.
const IDENTITY_TIMEOUT: Micros = 4_000_000;
/// After this long, a disconnected peer that is no member is forgotten.
const GONE_RETENTION: Micros = 60_000_000;

/// How many removed members are remembered.
const REMOVED_MAX: usize = 256;

/// How often evidence of a peer's disk is reported again.
const EVIDENCE_PERIOD: Micros = 1_000_000;

/// How often a member logs that it is not let in.
const NOT_LISTED_LOG_INTERVAL: Micros = 60_000_000;

/// A connected peer.
#[derive(Debug)]
pub(crate) struct Peer {
    hello: Hello,
    health: Option<Health>,
    /// When anything last arrived from it.
    last_received: Micros,
    /// The protocol version of the connection; 0 until known.
    version: u16,
    /// The shortest of the latest round trips, once measured.
    rtt: Option<Micros>,
    /// If its process is new: view UUID and incarnation of the process before it.
    earlier: Option<(ViewUuid, u64)>,
    /// The evidence of its disk that it gets in this connection.
    reports: Reports,
}

impl Peer {
    /// The introduction with which it connected.
    pub(in crate::member) fn hello(&self) -> &Hello {
        &self.hello
    }

    pub(in crate::member) fn id(&self) -> MemberId {
        self.hello.id
    }

    /// Its health, once reported.
    pub(in crate::member) fn health(&self) -> Option<Health> {
        self.health
    }

    /// `wsrep_local_state`, once reported.
    pub(in crate::member) fn state(&self) -> Option<LocalState> {
        self.health.map(|health| health.state)
    }

    /// Whether its database is complete.
    pub(in crate::member) fn has_state(&self) -> bool {
        self.health.is_some_and(|health| health.has_state)
    }

    /// Whether its database is complete, and the peer stays.
    pub(in crate::member) fn is_ready(&self) -> bool {
        self.has_state() && !self.leaving()
    }

    /// Whether an apply hold keeps entries from its server.
    pub(in crate::member) fn is_held_back(&self) -> bool {
        self.health.is_some_and(|health| health.held_back)
    }

    /// When anything last arrived from it.
    pub(crate) fn last_received(&self) -> Micros {
        self.last_received
    }

    /// Whether the connection has this protocol version or a later one. `false` until the version is known.
    pub(in crate::member) fn supports(&self, version: u16) -> bool {
        self.version >= version
    }

    /// The shortest of the latest round trips, once measured.
    pub(in crate::member) fn rtt(&self) -> Option<Micros> {
        self.rtt
    }

    /// If its process is new: view UUID and incarnation of the process before it.
    pub(in crate::member) fn earlier(&self) -> Option<(ViewUuid, u64)> {
        self.earlier
    }

    /// Whether the peer may wait for a flag of the evidence that it did not get before. `flags`: as they are now.
    pub(in crate::member) fn awaits_evidence(&self, flags: impl FnOnce() -> (bool, bool)) -> bool {
        let Reports { sightings, flags: sent } = &self.reports;
        // A member whose own database has told it about its log waits for the flags alone.
        let may_wait = !sightings.is_empty() || self.leaving() && self.supports(EVIDENCE_SINCE);
        may_wait
            && match flags() {
                // A member that waits says that it is leaving; another one may have told it about its log.
                (_, true) if !sent.1 || self.leaving() => true,
                (only_two_vote, _) => only_two_vote && !sent.0,
            }
    }

    /// Whether the peer wants to leave.
    pub(in crate::member) fn leaving(&self) -> bool {
        self.health.is_some_and(|h| h.leaving)
    }

    /// Whether anything arrived from the peer within [`ALIVE`].
    pub(in crate::member) fn is_alive(&self, now: Micros) -> bool {
        now.saturating_sub(self.last_received) < ALIVE
    }

    /// Members that leave are in no new view.
    pub(in crate::member) fn left(&self) -> bool {
        self.leaving()
    }
}

/// The evidence of a peer's disk: facts from before its connection.
#[derive(Debug, Default)]
struct Reports {
    sightings: Vec<Sighting>,
    /// The flags of the last report: only two vote; the others go on without it.
    flags: (bool, bool),
}

/// The last connection of a member.
#[derive(Clone, Copy, Debug)]
struct Introduced {
    view_uuid: ViewUuid,
    incarnation: u64,
    /// The durable state that the process before that of this connection had shown.
    earlier: Option<Sighting>,
}

impl Introduced {
    /// Whether this connection was of the same process. A log that went back in time may give an incarnation again.
    fn is_of_process_of(&self, hello: &Hello) -> bool {
        let same = self.incarnation >> PROCESS_SHIFT == hello.incarnation >> PROCESS_SHIFT;
        same && (self.view_uuid == hello.view_uuid || hello.incarnation > self.incarnation)
    }
}

/// A peer that was connected and is not.
#[derive(Clone, Copy, Debug)]
struct Gone {
    since: Micros,
    /// When anything last arrived from it.
    last_received: Micros,
}

/// An incarnation that an operator removed while it was connected.
#[derive(Debug)]
struct Removal {
    id: MemberId,
    view_uuid: ViewUuid,
    /// The leader's term in which the removal was appended, until this leader has seen it committed.
    pending_in: Option<Term>,
}

impl Removal {
    fn concerns(&self, id: &MemberId, view_uuid: &ViewUuid) -> bool {
        (&self.id, &self.view_uuid) == (id, view_uuid)
    }
}

/// The other members: those connected, and facts about those that are not.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    connected: BTreeMap<MemberId, Peer>,
    /// Members that were connected and are not.
    gone: BTreeMap<MemberId, Gone>,
    /// Each member's last connection.
    introduced: BTreeMap<MemberId, Introduced>,
    /// Addresses of members that cannot be talked to until an administrator acts: the member's name, and the reason.
    unlike: BTreeMap<String, (String, String)>,
    /// Since when peers refuse this member for its identity and none accepts it.
    refused_since: Option<Micros>,
    /// Earliest time to log again that peers do not let this member in.
    refusal_log_at: Micros,
    /// When evidence of the peers' disks may be reported again.
    evidence_due: Micros,
    /// The log that this member adopts; it came without one.
    join_target: JoinTarget,
    /// Incarnations that were removed while connected: this leader does not let them back.
    removed: Vec<Removal>,
}

impl Peers {
    /// Makes a connected peer one that never copies its state.
    #[cfg(test)]
    pub(in crate::member) fn make_stateless(&mut self, id: &MemberId) {
        self.connected.get_mut(id).expect("connected").hello.donates = false;
    }

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

    /// Since when a peer that was connected is not.
    pub(in crate::member) fn gone_since(&self, id: &MemberId) -> Option<Micros> {
        self.gone.get(id).map(|gone| gone.since)
    }

    /// When anything last arrived from a peer that was connected and is not.
    pub(in crate::member) fn last_received_from_gone(&self, id: &MemberId) -> Option<Micros> {
        self.gone.get(id).map(|gone| gone.last_received)
    }

    /// View UUID and incarnation of a member's last connection.
    pub(in crate::member) fn introduced(&self, id: &MemberId) -> Option<(ViewUuid, u64)> {
        self.introduced.get(id).map(|last| (last.view_uuid, last.incarnation))
    }

    /// The durable state that the process before a member's present one had shown.
    pub(in crate::member) fn earlier_sighting(&self, id: &MemberId) -> Option<Sighting> {
        self.introduced.get(id)?.earlier
    }

    /// Keeps that state, so that later facts are not ascribed to that process.
    pub(in crate::member) fn set_earlier_sighting(&mut self, id: &MemberId, sighting: Sighting) {
        if let Some(last) = self.introduced.get_mut(id) {
            last.earlier = Some(sighting);
        }
    }

    /// Sets the facts of which a peer's connection brings it evidence.
    pub(in crate::member) fn set_sightings(&mut self, id: &MemberId, sightings: Vec<Sighting>) {
        if let Some(peer) = self.connected.get_mut(id) {
            peer.reports.sightings = sightings;
        }
    }

    /// The facts to report to a peer now. Keeps the flags of the report: see [`Peer::awaits_evidence`].
    pub(in crate::member) fn report_sightings(
        &mut self,
        id: &MemberId,
        flags: (bool, bool),
    ) -> Vec<Sighting> {
        let Some(peer) = self.connected.get_mut(id) else { return Vec::new() };
        peer.reports.flags = flags;
        match peer.reports.sightings.as_slice() {
            [] if peer.leaving() => vec![Sighting::default()],
            sightings => sightings.to_vec(),
        }
    }

    /// A peer's health, once reported.
    pub(in crate::member) fn health_of(&self, id: &MemberId) -> Option<Health> {
        self.connected.get(id)?.health
    }

    /// The round trip to a peer, once measured. Raft's own measure is the time to an answer, which includes the time in
    /// which a member was away or starting.
    pub(crate) fn rtt_to(&self, id: &MemberId) -> Option<Micros> {
        self.connected.get(id)?.rtt
    }

    /// The view UUID of a peer's connection.
    pub(in crate::member) fn view_uuid_of(&self, id: &MemberId) -> Option<ViewUuid> {
        Some(self.connected.get(id)?.hello.view_uuid)
    }

    /// The leader of this term has appended the removal of this incarnation, which was connected.
    pub(in crate::member) fn set_removed(&mut self, id: MemberId, view_uuid: ViewUuid, term: Term) {
        // A repeated command renews the entry: a second one would repeat the order, and push out another member's.
        self.removed.retain(|removal| !removal.concerns(&id, &view_uuid));
        self.removed.truncate(REMOVED_MAX - 1);
        self.removed.insert(0, Removal { id, view_uuid, pending_in: Some(term) });
    }

    /// Forgets removals without effect; called each round.
    ///
    /// A leader that is deposed before it has seen a removal committed forgets it: the next leader may undo it. A
    /// committed one is forgotten once a committed membership lists the member again. Otherwise, if the member were
    /// away for long and demoted, it would be ordered to leave at its return.
    pub(in crate::member) fn review_removals(&mut self, raft: &Raft) {
        let leads_in = raft.is_leader().then(|| raft.term());
        let committed = &raft.committed_state().membership;
        self.removed.retain_mut(|removal| {
            let is_listed = committed.get(&removal.id).is_some();
            match removal.pending_in {
                Some(term) if leads_in != Some(term) => false,
                Some(_) if is_listed => true,
                _ => {
                    removal.pending_in = None;
                    !is_listed
                }
            }
        });
    }

    /// Whether a removal ended this connection of the member.
    pub(in crate::member) fn was_removed(&self, hello: &Hello) -> bool {
        self.removed.iter().any(|removal| removal.concerns(&hello.id, &hello.view_uuid))
    }

    /// The connected peers that a removal concerns.
    pub(in crate::member) fn removed(&self) -> impl Iterator<Item = MemberId> + '_ {
        let connected = |removal: &&Removal| self.view_uuid_of(&removal.id) == Some(removal.view_uuid);
        self.removed.iter().filter(connected).map(|removal| removal.id)
    }

    /// A connection to this peer was accepted. Without a log of its own, this member adopts the peer's.
    pub(in crate::member) fn connect(&mut self, raft: &Raft, now: Micros, hello: Hello) {
        self.join_target.follow(raft, &hello);
        self.gone.remove(&hello.id);
        let last = self.introduced.get(&hello.id).copied();
        let same = last.filter(|last| last.is_of_process_of(&hello));
        let earlier = match same {
            Some(_) => None,
            None => last.map(|last| (last.view_uuid, last.incarnation)),
        };
        let introduced = Introduced {
            view_uuid: hello.view_uuid,
            incarnation: hello.incarnation,
            earlier: same.and_then(|last| last.earlier),
        };
        self.introduced.insert(hello.id, introduced);
        let (health, version, rtt, reports) = (None, 0, None, Reports::default());
        let peer = Peer { hello, health, last_received: now, version, rtt, earlier, reports };
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
        let (gone, connected) = (&self.gone, &self.connected);
        self.introduced.retain(|id, _| gone.contains_key(id) || connected.contains_key(id));
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
    pub(in crate::member) fn refused_for_long(&mut self, now: Micros) -> bool {
        let since = *self.refused_since.get_or_insert(now);
        now.saturating_sub(since) >= IDENTITY_TIMEOUT
    }

    /// Whether to log now that peers do not let this member in.
    pub(in crate::member) fn may_log_refusal(&mut self, now: Micros) -> bool {
        let may = now >= self.refusal_log_at;
        if may {
            self.refusal_log_at = now + NOT_LISTED_LOG_INTERVAL;
        }
        may
    }

    /// Whether evidence of the peers' disks may be reported again now.
    pub(in crate::member) fn may_repeat_evidence(&mut self, now: Micros) -> bool {
        let may = now >= self.evidence_due;
        if may {
            self.evidence_due = now + EVIDENCE_PERIOD;
        }
        may
    }

    /// The log that this member names in its introduction: history and log id.
    pub(in crate::member) fn announced_log(&self, raft: &Raft) -> Option<(Uuid, Uuid)> {
        self.join_target.announced_log(raft)
    }

    /// A connection attempt failed. `why`: a member is there, but this one cannot talk with it.
    pub(in crate::member) fn not_reached(&mut self, addr: String, who: String, why: Option<String>) {
        match why {
            Some(why) => _ = self.unlike.insert(addr, (who, why)),
            None => _ = self.unlike.remove(&addr),
        }
    }

    /// A connection attempt to this address has succeeded.
    pub(in crate::member) fn reached(&mut self, addr: &str) {
        self.unlike.remove(addr);
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
        if me.device && !hello.device && !hello.arbitrator {
            return Admission::OtherKind(format!(
                "{} ({}) is a member with a database, and this group keeps a block device: its transactions would be nothing to \
                 the device. Give that member's group another name, or correct its list of addresses",
                hello.name, hello.address
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
                 {}: two clusters have one name. Decide which is right, and stop the members of the other",
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
                 joined. Where this member is Primary, decide which of them is right, and stop the members of the other; \
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::harness::context;

    #[test]
    fn removed_incarnation_stays_out_until_it_restarts() {
        let (ctx, mut peers) = (context(), Peers::default());
        let hello = Hello { id: Uuid([9; 16]), view_uuid: Uuid([8; 16]), ..ctx.me().clone() };
        peers.set_removed(hello.id, hello.view_uuid, 1);
        assert!(peers.was_removed(&hello));
        assert!(!peers.was_removed(&Hello { view_uuid: Uuid([7; 16]), ..hello }));
    }

    #[test]
    fn repeated_removal_of_member_is_stored_once() {
        let (ctx, mut peers) = (context(), Peers::default());
        let hello =
            |byte| Hello { id: Uuid([byte; 16]), view_uuid: Uuid([byte | 0x40; 16]), ..ctx.me().clone() };
        let (first, repeated) = (hello(8), hello(9));
        peers.set_removed(first.id, first.view_uuid, 1);
        for _ in 0..REMOVED_MAX {
            peers.set_removed(repeated.id, repeated.view_uuid, 1);
        }
        assert!(peers.was_removed(&first), "repeats do not push it out");
        peers.connect(&ctx.raft, 5, repeated.clone());
        assert_eq!(peers.removed().collect::<Vec<_>>(), [repeated.id]);
    }

    #[test]
    fn disconnected_peer_is_remembered_until_connected_again() {
        let (ctx, mut peers) = (context(), Peers::default());
        let hello = Hello { id: Uuid([9; 16]), ..ctx.me().clone() };
        peers.connect(&ctx.raft, 5, hello.clone());
        peers.received(7, &hello.id);
        assert!(peers.disconnect(10, &hello.id, |_| false).is_some());
        let gone = (peers.gone_since(&hello.id), peers.last_received_from_gone(&hello.id));
        assert_eq!(gone, (Some(10), Some(7)));
        peers.connect(&ctx.raft, 20, hello.clone());
        assert!(peers.gone_since(&hello.id).is_none() && peers.contains_key(&hello.id));
    }

    #[test]
    fn facts_of_earlier_process_are_kept_until_next_process() {
        let (ctx, mut peers) = (context(), Peers::default());
        let hello = |process: u64, connect: u64, uuid| Hello {
            id: Uuid([9; 16]),
            incarnation: (process << 20) + connect,
            view_uuid: Uuid([uuid; 16]),
            ..ctx.me().clone()
        };
        let mut earlier = |hello: Hello, sighting: u64| {
            peers.connect(&ctx.raft, 5, hello.clone());
            let earlier = peers.get(&hello.id).and_then(|peer| peer.earlier);
            if earlier.is_some() {
                peers.set_earlier_sighting(
                    &hello.id,
                    Sighting { incarnation: sighting, ..Sighting::default() },
                );
            }
            (earlier.map(|(_, at)| at), peers.earlier_sighting(&hello.id).map(|seen| seen.incarnation))
        };
        assert_eq!(earlier(hello(1, 1, 1), 1), (None, None), "no process is known before the first");
        assert_eq!(earlier(hello(2, 1, 2), 2), (Some((1 << 20) + 1), Some(2)));
        assert_eq!(earlier(hello(2, 1, 2), 3), (None, Some(2)), "the connection is renewed");
        assert_eq!(earlier(hello(2, 2, 3), 4), (None, Some(2)), "the process connects again");
        assert_eq!(earlier(hello(2, 1, 4), 5), (Some((2 << 20) + 2), Some(5)), "the incarnation is reused");
    }

    #[test]
    fn address_that_cannot_be_talked_to_is_reported_until_reached() {
        let mut peers = Peers::default();
        let why = || Some("TLS is required".to_owned());
        peers.not_reached("a:1".into(), "n2".into(), why());
        peers.not_reached("b:1".into(), "n3".into(), why());
        assert_eq!(peers.unlike().as_deref(), Some("n2, n3: TLS is required"));
        peers.reached("a:1");
        assert_eq!(peers.unlike().as_deref(), Some("n3: TLS is required"));
    }
}
