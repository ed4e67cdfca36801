//! The archiver's part of its member's status page and metrics.

use lockstep_binlog::archive::{Head, Mark, clock_text};
use lockstep_node::{Metric, MetricKind};
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The kind of front end in its status.
const KIND: &str = "archive";

/// The object `front_end` of the status of `lockstep binlog archive`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ArchiveStatus {
    /// [`KIND`].
    pub(crate) kind: String,
    /// The archive: a directory or a URL.
    pub(crate) target: String,
    /// The archive is complete up to this GTID; `None`: not known yet.
    pub(crate) gtid: Option<String>,
    /// The leader's clock at its commit, for people.
    pub(crate) time: Option<String>,
    /// The same in seconds since 1970.
    pub(crate) time_s: Option<f64>,
    /// For how long the target has refused writes.
    pub(crate) failing_seconds: Option<f64>,
    /// Why.
    pub(crate) error: Option<String>,
    /// Whether the archive is ahead of this instance, which first catches up.
    pub(crate) catches_up: bool,
}

impl ArchiveStatus {
    /// As metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let one =
            |name, help, value| Metric { name, kind: MetricKind::Gauge, help, labels: Vec::new(), value };
        vec![
            one(
                "archive_complete_time_seconds",
                "The leader's clock at the commit of the archive's last transaction, in seconds since 1970; 0 if unknown.",
                self.time_s.unwrap_or(0.0),
            ),
            one(
                "archive_failing_seconds",
                "For how long the archive's target has refused writes; 0 if it accepts them.",
                self.failing_seconds.unwrap_or(0.0),
            ),
        ]
    }

    /// The status in a member's status page.
    pub(crate) fn in_page(front_end: &serde_json::Value) -> Option<ArchiveStatus> {
        let status: ArchiveStatus = serde_json::from_value(front_end.clone()).ok()?;
        (status.kind == KIND).then_some(status)
    }
}

/// Collects the status while the archiver works.
#[derive(Debug, Default)]
pub(super) struct ArchiveReport(Mutex<Now>);

#[derive(Debug, Default)]
struct Now {
    status: ArchiveStatus,
    failing: Option<Instant>,
}

impl ArchiveReport {
    pub(super) fn new(target: String) -> ArchiveReport {
        let status = ArchiveStatus { kind: KIND.into(), target, ..ArchiveStatus::default() };
        ArchiveReport(Mutex::new(Now { status, failing: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The archive is written, and complete up to this transaction.
    pub(super) fn on_done(&self, head: &Head, complete: Option<Mark>) {
        let mut now = self.lock();
        (now.failing, now.status.error, now.status.catches_up) = (None, None, false);
        if let Some(Mark { seqno, clock }) = complete {
            now.status.gtid = Some(head.gtid(seqno).to_string());
            now.status.time = Some(clock_text(clock));
            now.status.time_s = Some(clock as f64 / 1e6);
        }
    }

    /// The archive is ahead.
    pub(super) fn on_behind(&self) {
        self.lock().status.catches_up = true;
    }

    /// The target has refused a write.
    pub(super) fn on_failure(&self, why: &str) {
        let mut now = self.lock();
        now.failing.get_or_insert_with(Instant::now);
        now.status.error = Some(why.to_owned());
    }

    pub(super) fn status(&self) -> ArchiveStatus {
        let now = self.lock();
        let failing_seconds = now.failing.map(|since| since.elapsed().as_secs_f64());
        ArchiveStatus { failing_seconds, ..now.status.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::Uuid;

    #[test]
    fn status_tells_how_far_the_archive_is_and_why_it_fails() {
        let head = Head { files: "bin".into(), history: Uuid([7; 16]), domain: 1, server: 5 };
        let report = ArchiveReport::new("/backup".into());
        let page = || ArchiveStatus::in_page(&serde_json::to_value(report.status()).unwrap()).unwrap();
        assert_eq!((page().target.as_str(), page().gtid), ("/backup", None));
        report.on_behind();
        assert!(page().catches_up);
        report.on_failure("no space");
        report.on_failure("still no space");
        let failing = page();
        assert!(failing.failing_seconds.is_some_and(|seconds| seconds >= 0.0), "{failing:?}");
        assert_eq!(failing.error.as_deref(), Some("still no space"));
        report.on_done(&head, Some(Mark { seqno: 9, clock: 1_900_000_000_500_000 }));
        let done = page();
        assert_eq!((done.gtid.as_deref(), done.time_s), (Some("1-5-9"), Some(1_900_000_000.5)));
        assert_eq!((done.failing_seconds, done.error.clone(), done.catches_up), (None, None, false));
        let values: Vec<f64> = done.metrics().iter().map(|metric| metric.value).collect();
        assert_eq!(values, [1_900_000_000.5, 0.0]);
        assert!(ArchiveStatus::in_page(&serde_json::json!({ "kind": "binlog" })).is_none());
    }

    #[test]
    fn alerts_use_metrics_that_there_are() {
        let used = crate::alerts::assert_there_are("archive_", &ArchiveStatus::default().metrics());
        assert!(used >= 1, "docs/alerts.yml uses none of them");
    }
}
