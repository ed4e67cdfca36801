//! What a node says of itself and of the cluster: one snapshot, as JSON for people's tools and as Prometheus text.

use crate::api::LocalState;
use crate::engine::Engine;
use lockstep_core::members::Role;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The whole snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The cluster, as this member sees it.
    pub cluster: ClusterStatus,
    /// Who answers.
    #[serde(rename = "self")]
    pub own: OwnStatus,
    /// All members of the log's group, by name.
    pub members: Vec<MemberStatus>,
    /// The own log.
    pub log: LogStatus,
}

/// The cluster.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `wsrep_cluster_name`.
    pub name: String,
    /// The history.
    pub uuid: String,
    /// `commit.policy`.
    pub policy: String,
    /// The term.
    pub term: u64,
    /// The leader's name; empty where there is none.
    pub leader: String,
    /// Whether this member has a primary component.
    pub primary: bool,
    /// The view's number (`wsrep_cluster_conf_id`).
    pub view: u64,
}

/// Who answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OwnStatus {
    /// `wsrep_node_name`.
    pub name: String,
    /// Its id in the log.
    pub id: String,
    /// As `wsrep_local_state_comment`.
    pub state: String,
    /// Submissions that wait for their place.
    pub waiting: usize,
    /// Deliveries that wait for an applier.
    pub queued: usize,
    /// Why it cannot go on, if it cannot.
    pub failure: Option<String>,
    /// This library's version.
    pub version: String,
}

/// One member.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemberStatus {
    /// `wsrep_node_name`.
    pub name: String,
    /// Its id in the log.
    pub id: String,
    /// leader, voter, learner or arbitrator.
    pub role: String,
    /// As `wsrep_local_state_comment`, or "Disconnected".
    pub state: String,
    /// Its zone.
    pub zone: u8,
    /// Where peers reach it.
    pub address: String,
    /// The last seqno handed to its server.
    pub seqno: i64,
    /// The last log index that it has on disk, as far as is known here.
    pub persisted: u64,
    /// The last seqno that its server has finished.
    pub applied: i64,
    /// Seqnos between the end of the log and what it has finished.
    pub lag_trx: i64,
    /// How long ago what it finishes now was placed in the log, in seconds; 0 where it has caught up.
    pub lag_seconds: f64,
    /// Round-trip time in µs, where it has been measured.
    pub rtt_us: Option<u64>,
}

/// The own log.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogStatus {
    /// The first index in it.
    pub first: u64,
    /// The first seqno in it, −1 where it has none (`wsrep_local_cached_downto`).
    pub first_seqno: i64,
    /// The last one.
    pub last: u64,
    /// What has been agreed on.
    pub committed: u64,
    /// What is on this member's disk.
    pub persisted: u64,
    /// The last agreed seqno.
    pub seqno: i64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Files.
    pub segments: usize,
    /// Write-sets in the certification index.
    pub certification_window: u64,
}

/// The text of `wsrep_local_state_comment`.
pub fn state_comment(state: LocalState) -> &'static str {
    match state {
        LocalState::Initialized => "Initialized",
        LocalState::Joining => "Joining: receiving State Transfer",
        LocalState::Donor => "Donor/Desynced",
        LocalState::Joined => "Joined",
        LocalState::Synced => "Synced",
        LocalState::Error => "Inconsistent",
    }
}

impl Engine {
    /// The snapshot of now.
    pub(crate) fn status(&self, queued: usize, log_bytes: u64) -> Status {
        let membership = self.order.membership();
        let leader = self.order.leader();
        let committed = self.order.committed_state();
        let name_of = |id| membership.get(&id).map_or_else(String::new, |m| m.name.clone());
        let mut members = Vec::with_capacity(membership.members.len());
        for member in &membership.members {
            let me = member.id == self.me.id;
            let health = match me {
                true => Some(self.own_health()),
                false => self.peers.get(&member.id).and_then(|p| p.health),
            };
            let role = match member.role {
                _ if leader == Some(member.id) => "leader",
                Role::Learner => "learner",
                Role::Voter => "voter",
                Role::Arbitrator => "arbitrator",
            };
            let applied = health.map_or(-1, |h| h.finished);
            let lag_trx = if applied >= 0 { (committed.seqno - applied).max(0) } else { -1 };
            let lag_seconds = if me && lag_trx > 0 { self.feed.age_of_delivered(self.wall()) } else { 0.0 };
            members.push(MemberStatus {
                name: member.name.clone(),
                id: member.id.to_string(),
                role: role.into(),
                state: health.map_or("Disconnected", |h| state_comment(h.state)).into(),
                zone: member.zone,
                address: member.address.clone(),
                seqno: health.map_or(-1, |h| h.delivered),
                persisted: if me { self.order.persisted() } else { self.order.matched(&member.id) },
                applied,
                lag_trx,
                lag_seconds,
                rtt_us: self.order.rtt(&member.id).filter(|_| !me),
            });
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        Status {
            cluster: ClusterStatus {
                name: self.cluster.clone(),
                uuid: committed.history.to_string(),
                policy: committed.policy.name().into(),
                term: self.order.term(),
                leader: leader.map(name_of).unwrap_or_default(),
                primary: self.phase.is_primary(),
                view: self.feed.view().number,
            },
            own: OwnStatus {
                name: self.me.name.clone(),
                id: self.me.id.to_string(),
                state: state_comment(self.local_state()).into(),
                waiting: self.waiting(),
                queued,
                failure: self.failure(),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            members,
            log: LogStatus {
                first: self.order.first_index(),
                first_seqno: self.order.segment_bases().next().map_or(-1, |base| base.seqno + 1),
                last: self.order.last_index(),
                committed: self.order.commit(),
                persisted: self.order.persisted(),
                seqno: committed.seqno,
                bytes: log_bytes,
                segments: self.order.segment_bases().count(),
                certification_window: self.feed.window(),
            },
        }
    }
}

impl Status {
    /// As Prometheus text.
    pub fn prometheus(&self, more: &[(&'static str, f64)]) -> String {
        let mut out = String::new();
        let mut gauge = |name: &str, labels: &str, value: f64, help: &str| {
            if !out.contains(&format!("# TYPE lockstep_{name} ")) {
                let _ = writeln!(out, "# HELP lockstep_{name} {help}\n# TYPE lockstep_{name} gauge");
            }
            let _ = writeln!(out, "lockstep_{name}{labels} {value}");
        };
        gauge(
            "primary",
            "",
            self.cluster.primary as u8 as f64,
            "Whether this member has a primary component.",
        );
        gauge("term", "", self.cluster.term as f64, "The term of the order.");
        gauge("view", "", self.cluster.view as f64, "The view's number.");
        gauge("log_seqno", "", self.log.seqno as f64, "The last agreed seqno.");
        gauge("log_committed_index", "", self.log.committed as f64, "The last agreed index.");
        gauge("log_persisted_index", "", self.log.persisted as f64, "The last index on this member's disk.");
        gauge("log_bytes", "", self.log.bytes as f64, "Bytes of the log on disk.");
        gauge("submissions_waiting", "", self.own.waiting as f64, "Submissions that wait for their place.");
        gauge("deliveries_queued", "", self.own.queued as f64, "Deliveries that wait for an applier.");
        // The text format wants all samples of one metric together.
        type Sample = fn(&MemberStatus) -> Option<f64>;
        let of_members: [(&str, &str, Sample); 5] = [
            ("member_applied", "The last seqno that the member's server finished.", |m| {
                Some(m.applied as f64)
            }),
            ("member_lag_trx", "Seqnos that the member is behind; -1 unknown.", |m| Some(m.lag_trx as f64)),
            ("member_up", "Whether it is connected.", |m| Some((m.state != "Disconnected") as u8 as f64)),
            ("member_leads", "Whether it leads.", |m| Some((m.role == "leader") as u8 as f64)),
            ("member_rtt_seconds", "Round-trip time to the member.", |m| {
                m.rtt_us.map(|rtt| rtt as f64 / 1e6)
            }),
        ];
        for (name, help, sample) in of_members {
            for member in &self.members {
                let Some(value) = sample(member) else { continue };
                let labels =
                    format!("{{name=\"{}\"}}", member.name.replace('\\', "\\\\").replace('"', "\\\""));
                gauge(name, &labels, value, help);
            }
        }
        for (name, value) in more {
            gauge(name, "", *value, "A number of the front end.");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_samples_of_a_metric_stand_together() {
        let member =
            |name: &str| MemberStatus { name: name.into(), rtt_us: Some(7), ..MemberStatus::default() };
        let status = Status { members: vec![member("a\"b"), member("n2")], ..Status::default() };
        let text = status.prometheus(&[("x", 1.0)]);
        let mut seen: Vec<&str> = Vec::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            if seen.last() != Some(&name) {
                assert!(!seen.contains(&name), "{name} comes twice");
                seen.push(name);
            }
        }
        assert!(text.contains(r#"lockstep_member_up{name="a\"b"} 1"#), "{text}");
    }
}
