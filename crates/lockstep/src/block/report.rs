//! The status of a device on one member.

use super::node_log::NodeLog;
use super::options::Protocol;
use super::resync::ResyncStatus;
use crate::verify::NOT_ALL;
use lockstep_block::device::attachments::Holder;
use lockstep_block::device::entry::{Compared, Difference};
use lockstep_block::device::{Log, Replica};
use lockstep_block::nbd::Connections;
use lockstep_node::core::MemberId;
use lockstep_node::{Metric, MetricKind};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// The kind of front end in its status.
const KIND: &str = "block";

/// The object `front_end` of the status of `lockstep block serve`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BlockStatus {
    /// [`KIND`].
    pub(crate) kind: String,
    /// The export's name.
    pub(crate) name: String,
    /// This member's name.
    pub(crate) member: String,
    /// The device's size in bytes; 0: none yet.
    pub(crate) size_bytes: u64,
    /// The present epoch.
    pub(crate) epoch: u64,
    /// `detached`, `promoted` or `attached`.
    pub(crate) state: String,
    /// The member that owns the epoch.
    pub(crate) primary: Option<String>,
    /// Whether that member is connected to this one. `None`: nobody owns the epoch.
    pub(crate) primary_connected: Option<bool>,
    /// The client that is attached.
    pub(crate) client: Option<String>,
    /// Whether this member knows the attachment: `false` if it ended without a detach, so that only a promotion helps. `None`:
    /// another member has it, or nobody.
    pub(crate) alive: Option<bool>,
    /// Why this member's attachment has ended.
    pub(crate) failure: Option<String>,
    /// Connections of clients.
    pub(crate) connections: usize,
    /// A, B or C; `None`: another commit policy.
    pub(crate) protocol: Option<String>,
    /// Whether a majority answers. If not, replies to clients are held.
    pub(crate) live: bool,
    /// The last seqno that the device has.
    pub(crate) seqno: i64,
    /// The last seqno that the device file has, durably.
    pub(crate) written_seqno: i64,
    /// Bytes that no log entry has.
    pub(crate) dirty_bytes: u64,
    /// Bytes that are not on the device file.
    pub(crate) cached_bytes: u64,
    /// The most of them.
    pub(crate) cache_bytes: u64,
    /// Entries of writes that are not committed.
    pub(crate) uncommitted: usize,
    /// Why this member has not joined its group since its process began. Until then it refuses clients.
    pub(crate) waits_for: Option<String>,
    /// Why the device file cannot be written now.
    pub(crate) trouble: Option<String>,
    /// The copy from or to another member, if there is one. Without it this member's copy is whole.
    pub(crate) resync: Option<ResyncStatus>,
    /// The last comparison of all copies since this member's process began.
    pub(crate) compared: Option<ComparedStatus>,
}

/// The result of a comparison of all copies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ComparedStatus {
    /// When it ended, in seconds since 1970.
    pub(crate) time: f64,
    /// The bytes of the device that were compared.
    pub(crate) bytes: u64,
    /// The number of the copies.
    pub(crate) copies: u32,
    /// The bytes of the blocks in which copies differ.
    pub(crate) differing_bytes: u64,
    /// The first differences.
    pub(crate) differences: Vec<DifferenceStatus>,
    /// Members whose copies were left out; in the answer to `lockstep block verify` only.
    pub(crate) not_compared: Vec<String>,
}

/// A range in which copies differ.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct DifferenceStatus {
    /// Where it begins.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) length: u64,
    /// The members that differ from a majority of the copies; empty: no majority is alike.
    pub(crate) members: Vec<String>,
}

impl ComparedStatus {
    /// The exit code of `lockstep block verify`, as of `lockstep verify`.
    pub(super) fn exit_code(&self) -> u8 {
        match (self.differing_bytes, self.not_compared.is_empty()) {
            (0, true) => 0,
            (0, false) => NOT_ALL,
            _ => 1,
        }
    }

    pub(super) fn of(replica: &Replica<NodeLog>, found: &Compared) -> ComparedStatus {
        let names =
            |members: &[MemberId]| members.iter().map(|member| replica.log().name_of(member)).collect();
        ComparedStatus {
            time: found.clock as f64 / 1e6,
            bytes: found.bytes,
            copies: found.copies,
            differing_bytes: found.differing,
            not_compared: Vec::new(),
            differences: found
                .differences
                .iter()
                .map(|Difference { offset, length, members }| DifferenceStatus {
                    offset: *offset,
                    length: *length,
                    members: names(members),
                })
                .collect(),
        }
    }
}

/// The status now.
pub(super) fn status(replica: &Replica<NodeLog>, connections: Option<&Connections>) -> BlockStatus {
    let found = replica.status();
    let log = replica.log();
    let (state, primary, client) = match found.attachments.holder() {
        Holder::Nobody => ("detached", None, None),
        Holder::Promoted(member) => ("promoted", Some(*member), None),
        Holder::Attached { member, peer, .. } => ("attached", Some(*member), Some(peer.clone())),
    };
    let session = found.session.as_ref().filter(|session| session.epoch == found.attachments.epoch());
    let here = client.is_some() && primary == Some(log.member());
    BlockStatus {
        kind: KIND.into(),
        name: replica.config().name.clone(),
        member: log.node().status().own.name.clone(),
        size_bytes: found.attachments.size(),
        epoch: found.attachments.epoch(),
        state: state.into(),
        primary: primary.map(|member| log.name_of(&member)),
        primary_connected: primary.map(|member| member == log.member() || log.is_connected(&member)),
        client,
        alive: here.then(|| session.is_some_and(|session| session.failure.is_none())),
        failure: session.and_then(|session| session.failure.clone()),
        connections: connections.map_or(0, |connections| connections.list().len()),
        protocol: Protocol::of(&log.node().policy()).map(|protocol| protocol.to_string()),
        live: log.is_live(),
        seqno: found.delivered,
        written_seqno: found.written,
        dirty_bytes: found.dirty,
        cached_bytes: found.cached,
        cache_bytes: replica.config().cache,
        uncommitted: session.map_or(0, |session| session.uncommitted),
        waits_for: replica.waits_for(),
        resync: ResyncStatus::of(&found),
        trouble: found.trouble,
        compared: found.compared.as_ref().map(|compared| ComparedStatus::of(replica, compared)),
    }
}

impl BlockStatus {
    /// The status in a member's status page.
    pub(crate) fn in_page(front_end: &serde_json::Value) -> Option<BlockStatus> {
        let status: BlockStatus = serde_json::from_value(front_end.clone()).ok()?;
        (status.kind == KIND).then_some(status)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{}: ", self.name);
        let _ = match self.size_bytes {
            0 => write!(out, "no size yet"),
            size => write!(out, "{size} bytes"),
        };
        let primary = self.primary.as_deref().unwrap_or("nobody");
        let client = self.client.as_deref().unwrap_or("nobody");
        let _ = match self.state.as_str() {
            "promoted" => write!(
                out,
                ", {primary} promoted in epoch {0}: attach there by {1}@{0}",
                self.epoch, self.name
            ),
            "attached" => write!(out, ", {client} attached to {primary} in epoch {}", self.epoch),
            _ => write!(out, ", nobody attached (last epoch {})", self.epoch),
        };
        if self.alive == Some(false) {
            let _ = write!(
                out,
                "; that attachment did not end in order: `lockstep block promote` begins a new epoch"
            );
        }
        if self.primary_connected == Some(false) {
            let _ = write!(
                out,
                "; {primary} is not connected: `lockstep block promote` lets another member take over"
            );
        }
        if let Some(failure) = &self.failure {
            let _ = write!(out, "\nattachment ended: {failure}");
        }
        let _ = write!(
            out,
            "\n{}: protocol {}, {}, {} connections, seqno {}, on the device file {}; {} of {} MiB cached, {} not in the log, {} \
             entries not committed",
            self.member,
            self.protocol.as_deref().unwrap_or("of another commit policy"),
            match (self.live, &self.waits_for) {
                (true, _) => "a majority answers",
                (false, Some(_)) => "not joined yet",
                (false, None) => "no majority: replies are held",
            },
            self.connections,
            self.seqno,
            self.written_seqno,
            self.cached_bytes >> 20,
            self.cache_bytes >> 20,
            self.dirty_bytes,
            self.uncommitted,
        );
        if let Some(why) = &self.waits_for {
            let _ = write!(out, "\nclients are refused until this member has joined: {why}");
        }
        if let Some(trouble) = &self.trouble {
            let _ = write!(out, "\n{trouble}");
        }
        if let Some(resync) = &self.resync {
            let _ = write!(out, "\n{}", resync.text());
        }
        if let Some(compared) = self.compared.as_ref().filter(|compared| compared.differing_bytes > 0) {
            let _ = write!(
                out,
                "\nthe copies differed, in {} bytes of whole MiB blocks: `lockstep block verify` shows whether they still do",
                compared.differing_bytes
            );
        }
        out
    }

    pub(super) fn metrics(&self) -> Vec<Metric> {
        let one =
            |name, help, value| Metric { name, help, kind: MetricKind::Gauge, labels: Vec::new(), value };
        vec![
            one("block_size_bytes", "The device's size.", self.size_bytes as f64),
            one("block_epoch", "The present epoch of the device.", self.epoch as f64),
            one("block_connections", "Connections of clients.", self.connections as f64),
            one("block_dirty_bytes", "Bytes that no log entry has.", self.dirty_bytes as f64),
            one("block_cached_bytes", "Bytes that are not on the device file.", self.cached_bytes as f64),
            one(
                "block_differing_bytes",
                "Bytes of blocks in which copies differed at the last comparison.",
                self.compared.as_ref().map_or(0.0, |compared| compared.differing_bytes as f64),
            ),
            one("block_written_seqno", "The last seqno that the device file has.", self.written_seqno as f64),
            one(
                "block_whole",
                "1 if this member's copy of the device is whole; 0 while it must take the device from another member.",
                f64::from(u8::from(!self.resync.as_ref().is_some_and(ResyncStatus::is_to_this_member))),
            ),
            one(
                "block_resync_done_bytes",
                "Bytes of the device that the present copy to or from another member has compared.",
                self.resync.as_ref().map_or(0.0, |resync| resync.done_bytes as f64),
            ),
            one(
                "block_resync_left_bytes",
                "Bytes of the device that the present copy to or from another member has not compared yet.",
                self.resync.as_ref().map_or(0.0, |resync| resync.left_bytes() as f64),
            ),
            one(
                "block_resync_sent_bytes",
                "Bytes of the device that the present copy to or from another member has sent, because they differed.",
                self.resync.as_ref().map_or(0.0, |resync| resync.sent_bytes as f64),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_says_who_may_attach() {
        let mut status = BlockStatus { name: "disk".into(), member: "n1".into(), ..BlockStatus::default() };
        assert!(status.text().contains("no size yet, nobody attached"));
        status.size_bytes = 4096;
        status.epoch = 3;
        status.state = "promoted".into();
        status.primary = Some("n2".into());
        assert!(status.text().contains("n2 promoted in epoch 3: attach there by disk@3"));
        status.state = "attached".into();
        status.client = Some("uid 0".into());
        status.alive = Some(false);
        let text = status.text();
        assert!(text.contains("uid 0 attached to n2 in epoch 3") && text.contains("block promote"), "{text}");
        (status.alive, status.primary_connected) = (None, Some(true));
        assert!(!status.text().contains("block promote"), "{}", status.text());
        status.primary_connected = Some(false);
        assert!(status.text().contains("n2 is not connected: `lockstep block promote`"), "{}", status.text());
    }

    #[test]
    fn exit_code_tells_differences_and_copies_left_out() {
        let code = |differing_bytes, absent: &[&str]| {
            let not_compared = absent.iter().map(|name| (*name).to_owned()).collect();
            ComparedStatus { differing_bytes, not_compared, ..ComparedStatus::default() }.exit_code()
        };
        assert_eq!((code(0, &[]), code(0, &["n3"])), (0, 4));
        assert_eq!((code(4096, &[]), code(4096, &["n3"])), (1, 1));
    }

    #[test]
    fn metrics_tell_how_far_a_resync_is() {
        let mut status = BlockStatus::default();
        let value = |status: &BlockStatus, name: &str| {
            status.metrics().iter().find(|metric| metric.name == name).expect(name).value
        };
        assert_eq!(value(&status, "block_whole"), 1.0);
        assert_eq!(value(&status, "block_resync_left_bytes"), 0.0);
        let (done_bytes, total_bytes, sent_bytes) = (3000, 10_000, 1000);
        let resync = ResyncStatus { done_bytes, total_bytes, sent_bytes, ..ResyncStatus::default() };
        for (state, whole) in [("copying", 0.0), ("sending", 1.0), ("needed", 0.0), ("until", 0.0)] {
            status.resync = Some(ResyncStatus { state: state.into(), ..resync.clone() });
            assert_eq!(value(&status, "block_whole"), whole, "{state}");
            assert_eq!(value(&status, "block_resync_done_bytes"), 3000.0);
            assert_eq!(value(&status, "block_resync_left_bytes"), 7000.0);
            assert_eq!(value(&status, "block_resync_sent_bytes"), 1000.0);
        }
    }

    #[test]
    fn alerts_use_metrics_that_there_are() {
        let used = crate::alerts::assert_there_are("block_", &BlockStatus::default().metrics());
        assert!(used >= 2, "docs/alerts.yml uses only {used} of them");
    }

    #[test]
    fn status_of_another_front_end_is_ignored() {
        assert_eq!(BlockStatus::in_page(&serde_json::json!({ "kind": "binlog" })), None);
        let own = BlockStatus { kind: KIND.into(), ..BlockStatus::default() };
        assert_eq!(BlockStatus::in_page(&serde_json::to_value(&own).unwrap()), Some(own));
    }
}
