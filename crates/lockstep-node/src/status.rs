//! Status: one snapshot of the node and the cluster, as JSON for tools (docs/status.md lists its fields) and, in
//! `metrics`, as Prometheus text.

use crate::api::{LocalState, MemberNow, MembershipNow, ViewStatus, state_comment};
use crate::member::{Member, SHOW_DISK_AFTER};
use crate::pack::Packed;
use lockstep_core::members::{Role, ViewMember};
use lockstep_core::policy::Policy;
use lockstep_core::{Gtid, MemberId, Micros, SEQNO_UNDEFINED};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of a member that is not connected with the answering one.
pub const DISCONNECTED: &str = "Disconnected";

/// The state of a member that is connected with the leader and does not answer it: its process is stopped, or its machine or
/// network hangs.
pub const SILENT: &str = "Silent";

/// The whole snapshot. Fields that an older version did not write are read as empty or unknown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// When it was made, in seconds since 1970.
    pub time: f64,
    /// The cluster, as this member sees it.
    pub cluster: ClusterStatus,
    /// The answering member.
    #[serde(rename = "self")]
    pub own: OwnStatus,
    /// All members of the membership, by name.
    pub members: Vec<MemberStatus>,
    /// The own log.
    pub log: LogStatus,
    /// The front end's own part, if it has one: only on the status page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub front_end: Option<serde_json::Value>,
}

/// The cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// `wsrep_cluster_name`.
    pub name: String,
    /// The history.
    pub uuid: String,
    /// `commit.policy`.
    pub policy: String,
    /// `commit.acks`: other members that must have a transaction, under semisync.
    pub acks: u8,
    /// `commit.zone_acks`: other zones that must have a transaction, in addition.
    pub zone_acks: u8,
    /// `commit.ack_on`, persist or receive: the meaning of an acknowledgement under semisync.
    pub ack_on: Option<String>,
    /// `commit.timeout` in seconds: how long a commit waits under semisync before it falls back to async; 0: for ever.
    pub timeout_seconds: Option<f64>,
    /// `async.max_at_risk`, under async and semisync.
    pub max_at_risk: Option<u64>,
    /// Whether semisync has fallen back to async.
    pub fallen_back: bool,
    /// Other members whose missing acknowledgement caused a fallback of semisync, or has delayed commits for a while. Only the
    /// leader knows them.
    pub not_acknowledged_by: Vec<String>,
    /// A demand of the policy that the existing members can never meet.
    pub asks_too_much: Option<String>,
    /// The term.
    pub term: u64,
    /// The leader's name; empty if unknown.
    pub leader: String,
    /// Whether this member has a primary component.
    pub primary: bool,
    /// The view's number (`wsrep_cluster_conf_id`).
    pub view: u64,
    /// The number of voters.
    pub voters: usize,
    /// The number of voters that this member is connected with, itself included.
    pub voters_connected: usize,
    /// The highest protocol version that this member and all connected members support. 0 in a snapshot of an older version.
    pub protocol: u16,
}

impl ClusterStatus {
    /// Whether commits wait for acknowledgements of semisync, or would if it had not fallen back.
    pub fn awaits_acks(&self) -> bool {
        self.primary && self.policy == "semisync" && (self.acks > 0 || self.zone_acks > 0)
    }
}

impl Status {
    /// Whether the answering member leads, by its own knowledge.
    pub fn leads(&self) -> bool {
        !self.cluster.leader.is_empty() && self.cluster.leader == self.own.name
    }

    /// Whether commits wait for acknowledgements of semisync, as in MariaDB's `Rpl_semi_sync_master_status`.
    pub fn semi_sync_is_on(&self) -> bool {
        self.cluster.awaits_acks() && !self.cluster.fallen_back
    }

    /// The number of connected members except the leader: semisync may wait for their acknowledgements.
    pub fn semi_sync_clients(&self) -> usize {
        let others = self.members.iter().filter(|m| m.is_connected() && m.role != "leader");
        if self.cluster.awaits_acks() { others.count() } else { 0 }
    }
}

/// The answering member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnStatus {
    /// `wsrep_node_name`.
    pub name: String,
    /// Its id in the log.
    pub id: String,
    /// As `wsrep_local_state_comment`.
    pub state: String,
    /// The same as a number, `wsrep_local_state`.
    pub state_number: u8,
    /// For how long it has been in this state, in seconds.
    pub state_seconds: f64,
    /// For how long the provider has been running, in seconds.
    pub uptime_seconds: f64,
    /// Transactions that were acknowledged to their clients and are not committed yet. The leader's number, also if another
    /// member answers (at most 0.2 s old).
    pub at_risk: u64,
    /// Under semisync: own transactions that returned with their acknowledgements.
    pub acknowledged: u64,
    /// Own transactions that returned without acknowledgements, after commit.timeout.
    pub not_acknowledged: u64,
    /// How often semisync fell back to async.
    pub fallbacks: u64,
    /// Mean time from a transaction's append to its acknowledgements, in µs.
    pub ack_wait_us: u64,
    /// The sum of these times, in µs.
    pub ack_wait_total_us: u64,
    /// The number of rescue files: tails of the log that this member may have acknowledged, and the cluster lacks.
    pub rescued: u64,
    /// The transactions in them.
    pub rescued_transactions: u64,
    /// Submissions that wait to be ordered.
    pub waiting: usize,
    /// Deliveries that wait for an applier.
    pub queued: usize,
    /// Their bytes.
    pub queued_bytes: usize,
    /// The uncompressed size of the bytes that this member has sent compressed (`net.compress`).
    pub sent_plain_bytes: u64,
    /// Their size on the wire.
    pub sent_compressed_bytes: u64,
    /// The uncompressed size of the bytes received compressed.
    pub received_plain_bytes: u64,
    /// Their size on the wire.
    pub received_compressed_bytes: u64,
    /// Bytes of entries that this member has forwarded in its zone (`net.relay`).
    pub relayed_bytes: u64,
    /// Whether `apply.paused` is set, or `apply.until` has been reached.
    pub apply_held: bool,
    /// Those of `apply.paused`, `apply.delay` and `apply.until` that were set while the server ran and override its
    /// configuration; each as `name=value`.
    pub apply_kept: Vec<String>,
    /// `apply.delay`: the least age of an entry when the server gets it.
    pub apply_delay_seconds: f64,
    /// `apply.pace`: how many transactions of this member's clients it submits in a second at most, now.
    pub pace_limit: Option<f64>,
    /// The members whose lag is the reason.
    pub pace_for: Vec<String>,
    /// For how long there has been a limit, in seconds, since the provider started.
    pub paced_seconds: f64,
    /// How often a limit began.
    pub paced_times: u64,
    /// How often this member's own lag began to be a reason.
    pub paced_own_times: u64,
    /// The reason if the member has failed.
    pub failure: Option<String>,
    /// Without a primary component: the members or event that it waits for.
    pub waits_for: Option<String>,
    /// This library's version.
    pub version: String,
}

/// A member. Unknown values are `None`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    /// `wsrep_node_name`.
    pub name: String,
    /// Its id in the log.
    pub id: String,
    /// leader, voter, learner or arbitrator.
    pub role: String,
    /// Whether it is an arbitrator, without a database. Its `role` may be another: leader, or learner after it has left.
    pub arbitrator: bool,
    /// As `wsrep_local_state_comment`, or [`DISCONNECTED`], or [`SILENT`].
    pub state: String,
    /// Its zone.
    pub zone: u8,
    /// Its address for peers.
    pub address: String,
    /// Whether an apply hold is in force: `apply.paused`, `apply.delay`, `apply.until`.
    pub held_back: bool,
    /// For how long it has been disconnected or silent, in seconds.
    pub gone_seconds: Option<f64>,
    /// The last seqno handed to its server.
    pub seqno: Option<i64>,
    /// The last log index on its disk. A member knows its own, the leader all.
    pub persisted: Option<u64>,
    /// For how long its disk has finished no write of the log although it has some to do, in seconds; 0 if it works. A member
    /// knows its own, the leader all.
    pub disk_stalled_seconds: Option<f64>,
    /// The last seqno that its server has finished.
    pub applied: Option<i64>,
    /// Committed seqnos that it has not finished, without left-out ones.
    pub lag_trx: Option<i64>,
    /// The age of the oldest entry that its server has not finished, in seconds. Known for the answering member; 0 for members
    /// that have caught up.
    pub lag_seconds: Option<f64>,
    /// The approximate bytes of its log that its server has not finished, committed or not. Known for the answering member; 0
    /// for members that have caught up.
    pub lag_bytes: Option<u64>,
    /// Round-trip time in µs, as the leader measures it while connected.
    pub rtt_us: Option<u64>,
    /// The name of its relay (`net.relay`), which only the leader knows; `None`: entries come from the leader.
    pub relay: Option<String>,
}

impl MemberStatus {
    /// Whether the answering member is connected with it and receives answers, or is this member.
    pub fn is_connected(&self) -> bool {
        self.state != DISCONNECTED && self.state != SILENT
    }

    /// Whether it has the cluster's data. Older versions report only the role.
    pub fn keeps_data(&self) -> bool {
        !self.arbitrator && self.role != "arbitrator"
    }
}

/// The own log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogStatus {
    /// The first index in it.
    pub first: u64,
    /// The first seqno in it; −1 if there is none (`wsrep_local_cached_downto`).
    pub first_seqno: i64,
    /// The last index.
    pub last: u64,
    /// The last seqno in it, committed or not; −1 if there is none.
    pub last_seqno: i64,
    /// Where the log ended before damage took its end, while it has not reached that again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub former_end: Option<u64>,
    /// The commit index.
    pub committed: u64,
    /// The last index on this member's disk.
    pub persisted: u64,
    /// The last committed seqno.
    pub seqno: i64,
    /// Ranges (first, last) of seqnos that a new leader has left out under a weak policy, from `first_seqno` on. No member will
    /// ever have them.
    pub left_out: Vec<(i64, i64)>,
    /// Bytes on disk.
    pub bytes: u64,
    /// Above this size, segments that no member needs are removed (`log.size`).
    pub keep_bytes: u64,
    /// Its maximum size (`log.max_size`).
    pub max_bytes: u64,
    /// The number of segments.
    pub segments: usize,
    /// Write-sets in the certification index.
    pub certification_window: u64,
}

impl LogStatus {
    /// The left-out range that contains this seqno.
    pub fn left_out_around(&self, seqno: i64) -> Option<(i64, i64)> {
        self.left_out.iter().copied().find(|(first, last)| (*first..=*last).contains(&seqno))
    }
}

/// Facts that the member does not know itself.
pub(crate) struct StatusContext {
    /// Deliveries that wait to be taken.
    pub(crate) queued: usize,
    /// Their bytes.
    pub(crate) queued_bytes: usize,
    /// The log's, on disk.
    pub(crate) log_bytes: u64,
    /// Since when the member is in its state.
    pub(crate) state_since: Micros,
    /// The protocol version that all connected members speak.
    pub(crate) protocol: u16,
    /// Statistics of compressed frames sent.
    pub(crate) packed: Packed,
}

fn seconds(time: Micros) -> f64 {
    time as f64 / 1e6
}

impl Member {
    /// The snapshot of now.
    pub(crate) fn status(&self, around: &StatusContext) -> Status {
        let membership = self.ctx.raft.membership();
        let leader = self.ctx.raft.leader();
        let committed = self.ctx.raft.committed_state();
        // Named one by one, so that the compiler reports a new setting.
        let Policy { kind, acks, zone_acks, on_receive: _, timeout, max_at_risk } = committed.policy;
        let name_of = |id| membership.get(&id).map_or_else(String::new, |m| m.name.clone());
        let members = self.members_status();
        let paced = self.delivery.pace.paced();
        let votes = |m: &&MemberStatus| m.role != "learner";
        let mut status = Status {
            time: seconds(self.wall()),
            cluster: ClusterStatus {
                name: self.ctx.cluster().to_owned(),
                uuid: committed.history.to_string(),
                policy: kind.name().into(),
                acks,
                zone_acks,
                ack_on: Some(committed.policy.ack_on().into()),
                timeout_seconds: Some(seconds(timeout)),
                max_at_risk: committed.policy.is_weak().then_some(max_at_risk),
                fallen_back: self.ctx.raft.has_fallen_back(),
                not_acknowledged_by: self.not_acknowledged_by(),
                asks_too_much: self.unsatisfiable_policy(),
                term: self.ctx.raft.term(),
                leader: leader.map(name_of).unwrap_or_default(),
                primary: self.ctx.connection().is_primary(),
                view: self.delivery.deliverer.view().number,
                voters: membership.voters().count(),
                voters_connected: 0,
                protocol: around.protocol,
            },
            own: OwnStatus {
                name: self.ctx.me().name.clone(),
                id: self.ctx.me().id.to_string(),
                state: state_comment(self.local_state()).into(),
                state_number: self.local_state() as u8,
                state_seconds: seconds(self.ctx.now().saturating_sub(around.state_since)),
                uptime_seconds: seconds(self.ctx.now()),
                at_risk: self.at_risk(),
                acknowledged: self.commits().yes,
                not_acknowledged: self.commits().no,
                fallbacks: self.commits().fallbacks,
                ack_wait_us: self.commits().waited / self.commits().yes.max(1),
                ack_wait_total_us: self.commits().waited,
                rescued: self.commits().rescued,
                rescued_transactions: self.commits().rescued_transactions,
                waiting: self.waiting(),
                queued: around.queued,
                queued_bytes: around.queued_bytes,
                sent_plain_bytes: around.packed.plain,
                sent_compressed_bytes: around.packed.packed,
                received_plain_bytes: self.unpacked.plain,
                received_compressed_bytes: self.unpacked.packed,
                relayed_bytes: self.ctx.raft.relayed_bytes(),
                apply_held: self.is_held_indefinitely(),
                apply_kept: self.ctx.tuning().apply_kept.clone(),
                apply_delay_seconds: self.ctx.tuning().apply_hold.delay.as_secs_f64(),
                pace_limit: paced.is_limited().then_some(paced.limit),
                pace_for: paced.because_of.iter().map(|id| self.ctx.name_of(id)).collect(),
                paced_seconds: seconds(paced.total),
                paced_times: paced.times,
                paced_own_times: paced.own_times,
                failure: self.failure(),
                waits_for: self.waits_for(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            members,
            log: LogStatus {
                first: self.ctx.raft.first_index(),
                first_seqno: self.ctx.raft.segment_bases().next().map_or(-1, |base| base.seqno + 1),
                last: self.ctx.raft.last_index(),
                last_seqno: match self.ctx.raft.last_index() {
                    0 => -1,
                    _ => self.ctx.raft.tail_state().seqno,
                },
                former_end: self.ctx.raft.former_end().map(|end| end.index),
                committed: self.ctx.raft.commit(),
                persisted: self.ctx.raft.persisted(),
                seqno: committed.seqno,
                left_out: self.ctx.raft.left_out().collect(),
                bytes: around.log_bytes,
                keep_bytes: self.ctx.tuning().log_bytes,
                max_bytes: self.ctx.tuning().log_max_bytes,
                segments: self.ctx.raft.segment_bases().count(),
                certification_window: self.delivery.deliverer.window(),
            },
            front_end: None,
        };
        status.cluster.voters_connected =
            status.members.iter().filter(votes).filter(|m| m.is_connected()).count();
        status
    }

    /// The members of the present view and their states.
    pub(crate) fn membership_now(&self) -> MembershipNow {
        let committed = self.ctx.raft.committed_state();
        let status = match self.ctx.connection().is_primary() {
            true => ViewStatus::Primary,
            false if self.ctx.connection().is_connected() => ViewStatus::NonPrimary,
            false => ViewStatus::Disconnected,
        };
        let members = match status {
            ViewStatus::Primary => committed.view.members.clone(),
            ViewStatus::NonPrimary => self.delivery.deliverer.view_without_quorum(&self.ctx).members,
            ViewStatus::Disconnected => Vec::new(),
        };
        let now = |member: &ViewMember| {
            let health = self.health_of(&member.id);
            MemberNow {
                view_uuid: member.view_uuid,
                name: member.name.clone(),
                incoming: member.incoming.clone(),
                state: health.map(|h| h.state),
                finished: health.map_or(SEQNO_UNDEFINED, |h| h.finished),
                leader: self.ctx.raft.leader() == Some(member.id),
                arbitrator: self.ctx.raft.membership().get(&member.id).is_some_and(|m| m.arbitrator),
            }
        };
        MembershipNow {
            gtid: Gtid { uuid: committed.history, seqno: committed.seqno },
            status,
            members: members.iter().map(now).collect(),
        }
    }

    pub(crate) fn members_status(&self) -> Vec<MemberStatus> {
        let membership = self.ctx.raft.membership();
        let leader = self.ctx.raft.leader();
        let leads = leader == Some(self.ctx.me().id);
        let relays: BTreeMap<MemberId, MemberId> =
            self.ctx.raft.progress().into_iter().filter_map(|peer| Some((peer.id, peer.via?))).collect();
        let mut members = Vec::with_capacity(membership.members.len());
        for member in &membership.members {
            let me = member.id == self.ctx.me().id;
            // The leader uses replies to its messages; all members also exchange their health.
            let heard = match leads {
                true => self.ctx.raft.last_answer(&member.id).filter(|_| self.ctx.silent(&member.id)),
                false => self
                    .ctx
                    .peers
                    .get(&member.id)
                    .map(|peer| peer.last_received())
                    .filter(|_| !self.ctx.responds(&member.id)),
            };
            let silent_since = heard.filter(|_| !me && self.ctx.peers.contains_key(&member.id));
            let peer = self.ctx.peers.get(&member.id).filter(|_| silent_since.is_none());
            let health = self.health_of(&member.id).filter(|_| me || peer.is_some());
            let role = match member.role {
                _ if leader == Some(member.id) => "leader",
                Role::Learner => "learner",
                Role::Voter => "voter",
                Role::Arbitrator => "arbitrator",
            };
            let state = match health {
                Some(health) => state_comment(health.state),
                None if silent_since.is_some() => SILENT,
                // Connected a moment ago: it has not said yet how it is.
                None if peer.is_some() => state_comment(LocalState::Initialized),
                None => DISCONNECTED,
            };
            let known = |seqno: i64| (seqno >= 0).then_some(seqno);
            let applied = health.and_then(|h| known(h.finished));
            let lag_trx = applied.map(|applied| self.ctx.lag_of(applied));
            let lag_seconds = match lag_trx {
                Some(0) => Some(0.0),
                Some(_) if me => self
                    .delivery
                    .deliverer
                    .age_above(self.ctx.finished(), self.wall())
                    .or_else(|| self.delivery.apply_holds.age_of_held_entry(&self.ctx)),
                _ => None,
            };
            let lag_bytes = match lag_trx {
                Some(0) => Some(0),
                Some(_) if me => self.delivery.bytes_behind(&self.ctx),
                _ => None,
            };
            // Match index and round trip are known only while this member leads.
            let persisted = match me {
                true => Some(self.ctx.raft.persisted()),
                false => Some(self.ctx.raft.matched(&member.id)).filter(|index| leads && *index > 0),
            };
            // A short wait is a disk at work.
            let stalled = self.ctx.raft.disk_of_stands_still_for(&member.id);
            let stalled = if stalled < SHOW_DISK_AFTER { 0 } else { stalled };
            members.push(MemberStatus {
                name: member.name.clone(),
                id: member.id.to_string(),
                role: role.into(),
                arbitrator: member.arbitrator,
                state: state.into(),
                held_back: health.is_some_and(|h| h.held_back),
                zone: member.zone,
                // The log says where it was, until a leader has put that right.
                address: if me { self.ctx.me().address.clone() } else { member.address.clone() },
                gone_seconds: silent_since
                    .or_else(|| self.ctx.unseen_since(&member.id))
                    .map(|since| seconds(self.ctx.now().saturating_sub(since))),
                // Nothing is handed out before the database's place in the log is known.
                seqno: health.filter(|h| h.has_state).and_then(|h| known(h.delivered)),
                persisted,
                disk_stalled_seconds: (me || leads && peer.is_some()).then_some(seconds(stalled)),
                applied,
                lag_trx,
                lag_seconds,
                lag_bytes,
                relay: relays.get(&member.id).map(|relay| self.ctx.name_of(relay)),
                rtt_us: self.ctx.peers.rtt_to(&member.id).filter(|_| leads && peer.is_some()),
            });
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        members
    }
}
