//! The program's part of its member's status page and metrics.

use super::super::report::ConsumerStatus;
use super::primary::PrimaryStatus;
use super::progress::Progress;
use lockstep_binlog::Library;
use lockstep_binlog::ingest::Place;
use lockstep_binlog::wire::Consumers;
use lockstep_node::{Metric, MetricKind};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// The kind of front end in its status.
const KIND: &str = "ingest";

/// The object `front_end` of the status of `lockstep binlog ingest`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IngestStatus {
    /// [`KIND`].
    pub(crate) kind: String,
    /// The primary's address.
    pub(crate) primary: String,
    /// Whether this member reads the primary's binlog now. Only the leader does.
    pub(crate) reads: bool,
    /// Whether the primary waits for a majority at each commit; known to the member that reads.
    pub(crate) durable: bool,
    /// Why this member, which leads, cannot read the primary; `None`: it reads, or another one leads.
    pub(crate) trouble: Option<String>,
    /// The end of the bytes that have arrived from the primary; known to the member that reads.
    pub(crate) received: Option<String>,
    /// The end of this member's copy: `FILE:POSITION`.
    pub(crate) copied: Option<String>,
    /// Bytes that were received and are not copied yet.
    pub(crate) behind_bytes: Option<u64>,
    /// The last acknowledgement to the primary.
    pub(crate) acknowledged: Option<String>,
    /// The last GTIDs of the copy.
    pub(crate) gtid: String,
    /// Where replicas connect; `None`: not yet.
    pub(crate) listen: Option<String>,
    pub(crate) consumers: Vec<ConsumerStatus>,
}

/// Collects the status from the program's parts.
pub(super) struct Report {
    primary: String,
    progress: Arc<Progress>,
    status: Arc<PrimaryStatus>,
    copy: Mutex<CopyNow>,
}

#[derive(Default)]
struct CopyNow {
    library: Option<Library>,
    server: Option<(SocketAddr, Consumers)>,
}

impl Report {
    pub(super) fn new(primary: String, progress: Arc<Progress>, status: Arc<PrimaryStatus>) -> Report {
        Report { primary, progress, status, copy: Mutex::default() }
    }

    /// Notes the copied files, in place of those of the primary before.
    pub(super) fn on_library(&self, library: &Library) {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner).library = Some(library.clone());
    }

    /// Notes the server for replicas.
    pub(super) fn on_server(&self, address: SocketAddr, consumers: Consumers) {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner).server = Some((address, consumers));
    }

    pub(super) fn status(&self) -> IngestStatus {
        let (library, server) = {
            let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
            (copy.library.clone(), copy.server.clone())
        };
        let reads = self.status.connected.load(Ordering::Relaxed);
        let places = self.progress.places();
        let (listen, consumers) = match (&library, server) {
            (Some(library), Some((address, consumers))) => {
                (Some(address.to_string()), consumers.list(library))
            }
            _ => (None, Vec::new()),
        };
        let text = |place: &Option<Place>| place.as_ref().map(Place::to_string);
        let received = places.received.filter(|_| reads);
        IngestStatus {
            kind: KIND.into(),
            primary: self.primary.clone(),
            reads,
            trouble: self.status.trouble(),
            durable: reads && self.status.durable.load(Ordering::Relaxed),
            behind_bytes: received.as_ref().zip(places.copied.as_ref()).map(|(received, copied)| {
                // Of a later file nobody knows how long the one before is. At least its own bytes are missing.
                match received.file == copied.file {
                    true => received.offset.saturating_sub(copied.offset),
                    false => received.offset,
                }
            }),
            received: text(&received),
            copied: text(&places.copied),
            acknowledged: text(&places.acknowledged),
            gtid: library.map(|library| library.state_at_end().to_replica().to_string()).unwrap_or_default(),
            listen,
            consumers: consumers.into_iter().map(ConsumerStatus::of).collect(),
        }
    }
}

impl IngestStatus {
    /// As metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let one =
            |name, help, value| Metric { name, kind: MetricKind::Gauge, help, labels: Vec::new(), value };
        let flag = |on: bool| f64::from(u8::from(on));
        vec![
            one(
                "ingest_reads",
                "1 while this member reads the primary's binlog. Only the leader does.",
                flag(self.reads),
            ),
            one(
                "ingest_durable",
                "1 while this member reads, and the primary waits for a majority at each commit.",
                flag(self.durable),
            ),
            one(
                "ingest_behind_bytes",
                "Bytes that this member has received from the primary, and that are not copied yet.",
                self.behind_bytes.unwrap_or(0) as f64,
            ),
            one("ingest_connections", "Connections of replicas.", self.consumers.len() as f64),
        ]
    }

    /// The status in a member's status page.
    pub(crate) fn in_page(front_end: &serde_json::Value) -> Option<IngestStatus> {
        let status: IngestStatus = serde_json::from_value(front_end.clone()).ok()?;
        (status.kind == KIND).then_some(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_use_metrics_that_there_are() {
        let used = crate::alerts::assert_there_are("ingest_", &IngestStatus::default().metrics());
        assert!(used >= 2, "docs/alerts.yml uses only {used} of them");
    }
}
