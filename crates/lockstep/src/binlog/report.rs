//! The instance's part of its member's status page and metrics.

use super::disk_space::DiskSpace;
use super::member_feed::Wait;
use super::retention::Retention;
use lockstep_binlog::Library;
use lockstep_binlog::wire::{Consumer, Consumers};
use lockstep_node::core::Seqno;
use lockstep_node::{Metric, MetricKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The kind of front end in its status.
pub(crate) const KIND: &str = "binlog";

/// The object `front_end` of a binlog server's status.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BinlogStatus {
    /// [`KIND`].
    pub(crate) kind: String,
    /// Where replicas connect; `None`: not yet.
    pub(crate) listen: Option<String>,
    /// The stream's end.
    pub(crate) gtid: String,
    /// The GTID before the oldest file.
    pub(crate) begins_after: String,
    pub(crate) oldest_file: Option<String>,
    pub(crate) newest_file: Option<String>,
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    pub(crate) keep_bytes: u64,
    pub(crate) keep_connected_bytes: u64,
    /// The statement whose result the stream waits for.
    pub(crate) waits_for_seqno: Option<Seqno>,
    pub(crate) waits_seconds: Option<f64>,
    /// How long the disk of the files has been full.
    pub(crate) disk_full_seconds: Option<f64>,
    /// Consumers dropped because they were too far behind, since the start.
    pub(crate) dropped: u64,
    pub(crate) consumers: Vec<ConsumerStatus>,
}

/// A connection.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ConsumerStatus {
    pub(crate) id: u64,
    pub(crate) user: String,
    pub(crate) address: String,
    /// `report_host` of a replica.
    pub(crate) host: Option<String>,
    pub(crate) server_id: Option<u32>,
    pub(crate) encrypted: bool,
    pub(crate) connected_seconds: f64,
    /// `signing in`, `connected` (without a stream), `has all`, `reading`.
    pub(crate) state: String,
    pub(crate) file: Option<String>,
    pub(crate) position: Option<u64>,
    /// The last GTIDs sent.
    pub(crate) gtid: Option<String>,
    pub(crate) behind_bytes: Option<u64>,
    pub(crate) behind_seconds: Option<f64>,
    pub(crate) semi_sync: bool,
    /// The last acknowledgement: file and position.
    pub(crate) acked: Option<String>,
}

impl ConsumerStatus {
    pub(super) fn of(consumer: Consumer) -> ConsumerStatus {
        let Consumer { id, user, address, since, encrypted, register, stream } = consumer;
        let state = match &stream {
            None if user.is_empty() => "signing in",
            None => "connected",
            Some(stream) if stream.behind == 0 => "has all",
            Some(_) => "reading",
        };
        let mut status = ConsumerStatus {
            id,
            user,
            address: address.to_string(),
            encrypted,
            connected_seconds: SystemTime::now().duration_since(since).map_or(0.0, |time| time.as_secs_f64()),
            state: state.into(),
            ..ConsumerStatus::default()
        };
        if let Some(register) = register {
            status.server_id = Some(register.server_id);
            status.host = Some(register.host).filter(|host| !host.is_empty());
        }
        if let Some(stream) = stream {
            status.server_id = status.server_id.or(Some(stream.server_id).filter(|id| *id != 0));
            status.file = Some(stream.file);
            status.position = Some(stream.sent.offset);
            status.gtid = Some(stream.gtids.to_string());
            status.behind_bytes = Some(stream.behind);
            status.behind_seconds = stream.behind_seconds;
            status.semi_sync = stream.semi_sync;
            status.acked = stream.acked.map(|ack| format!("{}:{}", ack.file, ack.offset));
        }
        status
    }
}

/// Collects the status from the instance's parts. `ls-node` calls it, so no lock in it is held for long.
#[derive(Debug)]
pub(super) struct Report {
    library: Library,
    retention: Retention,
    space: Arc<DiskSpace>,
    dropped: Arc<AtomicU64>,
    stream: Mutex<StreamNow>,
}

#[derive(Default, Debug)]
struct StreamNow {
    wait: Option<Wait>,
    server: Option<(SocketAddr, Consumers)>,
}

impl Report {
    pub(super) fn new(
        library: Library,
        retention: Retention,
        space: Arc<DiskSpace>,
        dropped: Arc<AtomicU64>,
    ) -> Report {
        Report { library, retention, space, dropped, stream: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, StreamNow> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the server for replicas.
    pub(super) fn on_server(&self, address: SocketAddr, consumers: Consumers) {
        self.lock().server = Some((address, consumers));
    }

    /// Notes the statement that the stream waits for.
    pub(super) fn on_wait(&self, wait: Option<Wait>) {
        self.lock().wait = wait;
    }

    pub(super) fn status(&self) -> BinlogStatus {
        let (wait, server) = {
            let now = self.lock();
            (now.wait, now.server.clone())
        };
        let files = self.library.files();
        let (listen, consumers) = match server {
            Some((address, consumers)) => (Some(address.to_string()), consumers.list(&self.library)),
            None => (None, Vec::new()),
        };
        BinlogStatus {
            kind: KIND.into(),
            listen,
            gtid: self.library.state_at_end().to_replica().to_string(),
            begins_after: self.library.state_at_begin().unwrap_or_default().to_replica().to_string(),
            oldest_file: files.first().map(|(name, _)| name.clone()),
            newest_file: files.last().map(|(name, _)| name.clone()),
            files: files.len(),
            bytes: files.iter().map(|(_, size)| size).sum(),
            keep_bytes: self.retention.keep,
            keep_connected_bytes: self.retention.keep_connected,
            waits_for_seqno: wait.map(|wait| wait.seqno),
            waits_seconds: wait.map(|wait| wait.since.elapsed().as_secs_f64()),
            disk_full_seconds: self.space.full_since().map(|since| since.elapsed().as_secs_f64()),
            dropped: self.dropped.load(Ordering::Relaxed),
            consumers: consumers.into_iter().map(ConsumerStatus::of).collect(),
        }
    }
}

impl BinlogStatus {
    /// As metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        use MetricKind::{Counter, Gauge};
        let one = |name, kind, help, value| Metric { name, kind, help, labels: Vec::new(), value };
        let streams = || self.consumers.iter().filter(|consumer| consumer.file.is_some());
        let mut all = vec![
            one("binlog_files", Gauge, "Binlog files of this instance.", self.files as f64),
            one("binlog_bytes", Gauge, "Their size.", self.bytes as f64),
            one("binlog_keep_bytes", Gauge, "--keep: older files are removed.", self.keep_bytes as f64),
            one(
                "binlog_keep_connected_bytes",
                Gauge,
                "--keep-connected: a consumer that is further behind is dropped.",
                self.keep_connected_bytes as f64,
            ),
            one("binlog_connections", Gauge, "Connections of consumers.", self.consumers.len() as f64),
            one("binlog_streams", Gauge, "Consumers that read the stream.", streams().count() as f64),
            one(
                "binlog_dropped_consumers_total",
                Counter,
                "Consumers dropped because they were too far behind.",
                self.dropped as f64,
            ),
            one(
                "binlog_wait_seconds",
                Gauge,
                "How long the stream has waited for the result of a statement; 0: it does not wait.",
                self.waits_seconds.unwrap_or(0.0),
            ),
            one(
                "binlog_disk_full_seconds",
                Gauge,
                "How long the disk of the binlog files has been full; 0: it is not.",
                self.disk_full_seconds.unwrap_or(0.0),
            ),
        ];
        // Ports are no labels, or each new connection would begin a series. The worst one of a host counts.
        let mut bytes = BTreeMap::<_, f64>::new();
        let mut seconds = BTreeMap::<_, f64>::new();
        for consumer in streams() {
            let host = consumer.address.rsplit_once(':').map_or(&*consumer.address, |(host, _)| host);
            let server_id = consumer.server_id.map_or_else(String::new, |id| id.to_string());
            let key = (consumer.user.clone(), host.to_owned(), server_id);
            let worst = |of: &mut BTreeMap<_, f64>, value: Option<f64>| {
                if let Some(value) = value {
                    let known = of.entry(key.clone()).or_default();
                    *known = known.max(value);
                }
            };
            worst(&mut bytes, consumer.behind_bytes.map(|bytes| bytes as f64));
            worst(&mut seconds, consumer.behind_seconds);
        }
        let of = |name, help, values: BTreeMap<(String, String, String), f64>| {
            values.into_iter().map(move |((user, host, server_id), value)| Metric {
                name,
                kind: Gauge,
                help,
                labels: vec![("user", user), ("host", host), ("server_id", server_id)],
                value,
            })
        };
        let help = "Bytes of the stream that this consumer has not been sent.";
        all.extend(of("binlog_consumer_behind_bytes", help, bytes));
        let help = "For how long they have been there, at most.";
        all.extend(of("binlog_consumer_behind_seconds", help, seconds));
        all
    }

    /// The status of a binlog server in a member's status page.
    pub(crate) fn in_page(front_end: &serde_json::Value) -> Option<BinlogStatus> {
        let status: BinlogStatus = serde_json::from_value(front_end.clone()).ok()?;
        (status.kind == KIND).then_some(status)
    }

    /// A status with all values known, for tests.
    #[cfg(test)]
    pub(crate) fn example() -> BinlogStatus {
        let consumer = |id: u64, behind: u64, seconds: f64| ConsumerStatus {
            id,
            user: "copy".into(),
            address: format!("10.0.0.{id}:5000{id}"),
            host: Some(format!("db{id}")),
            server_id: Some(70 + id as u32),
            encrypted: true,
            connected_seconds: 60.0,
            state: if behind == 0 { "has all" } else { "reading" }.into(),
            file: Some("lockstep-bin.000001".into()),
            position: Some(4000),
            gtid: Some("1-10-7".into()),
            behind_bytes: Some(behind),
            behind_seconds: Some(seconds),
            semi_sync: id == 1,
            acked: (id == 1).then(|| "lockstep-bin.000001:4000".into()),
        };
        BinlogStatus {
            kind: KIND.into(),
            listen: Some("0.0.0.0:3307".into()),
            gtid: "1-10-9".into(),
            begins_after: String::new(),
            oldest_file: Some("lockstep-bin.000001".into()),
            newest_file: Some("lockstep-bin.010001".into()),
            files: 2,
            bytes: 3 << 20,
            keep_bytes: 20 << 30,
            keep_connected_bytes: 40 << 30,
            waits_for_seqno: Some(10),
            waits_seconds: Some(75.0),
            disk_full_seconds: None,
            dropped: 1,
            consumers: vec![
                consumer(1, 0, 0.0),
                consumer(2, 5 << 20, 12.0),
                ConsumerStatus {
                    id: 3,
                    address: "10.0.0.9:1".into(),
                    state: "signing in".into(),
                    ..Default::default()
                },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_name_each_consumer_once() {
        let mut status = BinlogStatus::example();
        let mut again = status.consumers[1].clone();
        (again.address, again.behind_bytes) = ("10.0.0.2:9".into(), Some(9 << 20));
        status.consumers.push(again);
        let metrics = status.metrics();
        let find = |name: &'static str| metrics.iter().filter(move |metric| metric.name == name);
        let bytes: Vec<f64> = find("binlog_consumer_behind_bytes").map(|metric| metric.value).collect();
        assert_eq!(bytes, [0.0, f64::from(9 << 20)]);
        assert_eq!(find("binlog_streams").next().unwrap().value, 3.0);
        assert_eq!(find("binlog_wait_seconds").next().unwrap().value, 75.0);
        let labels = &find("binlog_consumer_behind_seconds").next_back().unwrap().labels;
        assert_eq!(labels[1..], [("host", "10.0.0.2".to_owned()), ("server_id", "72".to_owned())]);
    }

    #[test]
    fn alerts_use_metrics_that_there_are() {
        let used = crate::alerts::assert_there_are("binlog_", &BinlogStatus::example().metrics());
        assert!(used >= 4, "docs/alerts.yml uses only {used} of them");
    }

    #[test]
    fn fields_and_metrics_are_documented() {
        let page = include_str!("../../../../docs/status.md");
        let (_, page) = page.split_once("\n## Binlog servers\n").unwrap();
        let (page, _) = page.split_once("\n## ").unwrap();
        let status = BinlogStatus::example();
        let fields = serde_json::to_value(&status).unwrap();
        for name in fields.as_object().unwrap().keys().filter(|name| *name != "consumers") {
            assert!(page.contains(&format!("`{name}`")), "docs/status.md lacks front_end.{name}");
        }
        for name in fields["consumers"][0].as_object().unwrap().keys() {
            assert!(page.contains(&format!(".{name}`")), "docs/status.md lacks consumers[].{name}");
        }
        let metrics = status.metrics();
        for metric in &metrics {
            assert!(
                page.contains(&format!("`lockstep_{}`", metric.name)),
                "docs/status.md lacks {}",
                metric.name
            );
        }
        for name in page.split('`').filter_map(|name| name.strip_prefix("lockstep_")) {
            assert!(metrics.iter().any(|metric| metric.name == name), "no metric is named {name}");
        }
    }

    #[test]
    fn status_of_another_front_end_is_ignored() {
        let status = BinlogStatus::example();
        let page = serde_json::to_value(&status).unwrap();
        assert_eq!(BinlogStatus::in_page(&page), Some(status));
        assert_eq!(BinlogStatus::in_page(&serde_json::json!({ "kind": "block" })), None);
    }
}
