//! The snapshot as Prometheus text (version 0.0.4): one uninterrupted group for each metric, base units (seconds,
//! bytes), `_total` for counters. An unknown value has no sample.

use crate::metric::{Metric, MetricKind};
use crate::status::{MemberStatus, Status};
use std::fmt::Write;

type Own = fn(&Status) -> Option<f64>;
type OfMember = fn(&MemberStatus) -> Option<f64>;

fn flag(on: bool) -> Option<f64> {
    Some(f64::from(u8::from(on)))
}

/// Metrics of the own member.
const OWN: &[(&str, &str, Own)] = &[
    ("primary", "1 while this member is in a primary component, so that it serves reads and writes.", |s| {
        flag(s.cluster.primary)
    }),
    (
        "state",
        "The member's state, as wsrep_local_state: 0 Initialized, 1 Joining, 2 Donor/Desynced, 3 Joined, 4 Synced, 5 Inconsistent.",
        |s| Some(f64::from(s.own.state_number)),
    ),
    ("state_age_seconds", "How long the member has been in this state.", |s| Some(s.own.state_seconds)),
    ("uptime_seconds", "How long the provider has been running.", |s| Some(s.own.uptime_seconds)),
    ("failed", "1 if this member cannot go on: its log says why, and it must be started again.", |s| {
        flag(s.own.failure.is_some())
    }),
    ("leads", "1 while this member leads.", |s| flag(leads(s))),
    ("has_leader", "1 while this member knows a leader.", |s| flag(!s.cluster.leader.is_empty())),
    ("term", "The term of the order: it grows at each election.", |s| Some(s.cluster.term as f64)),
    ("view", "The number of the view, wsrep_cluster_conf_id.", |s| Some(s.cluster.view as f64)),
    ("cluster_voters", "Members whose logs count for majorities.", |s| Some(s.cluster.voters as f64)),
    ("cluster_voters_connected", "Voters that this member is connected with, itself included.", |s| {
        Some(s.cluster.voters_connected as f64)
    }),
    ("lag_transactions", "Transactions agreed on that this member's server has not finished.", |s| {
        own_row(s)?.lag_trx.map(|n| n as f64)
    }),
    ("lag_seconds", "Age of the oldest transaction that this member's server has not finished.", |s| {
        own_row(s)?.lag_seconds
    }),
    (
        "apply_held",
        "1 while apply.paused or apply.until keeps this member's server where it is, as somebody wants.",
        |s| flag(s.own.apply_held),
    ),
    (
        "apply_delay_seconds",
        "apply.delay: how old transactions are when this member's server gets them, at the least.",
        |s| Some(s.own.apply_delay_seconds),
    ),
    (
        "pace_limit",
        "apply.pace: transactions of this member's clients that it submits in a second at most, while a server is behind.",
        |s| s.own.pace_limit,
    ),
    ("paced_seconds_total", "How long this member has limited its clients' writes (apply.pace).", |s| {
        Some(s.own.paced_seconds)
    }),
    ("lag_bytes", "About how many bytes of this member's log its server has not finished.", |s| {
        own_row(s)?.lag_bytes.map(|n| n as f64)
    }),
    ("apply_queue_length", "Transactions handed out that wait for an applier thread.", |s| {
        Some(s.own.queued as f64)
    }),
    ("apply_queue_bytes", "Bytes of the transactions that wait for an applier thread.", |s| {
        Some(s.own.queued_bytes as f64)
    }),
    ("submissions_waiting", "Own transactions that wait for their place in the log.", |s| {
        Some(s.own.waiting as f64)
    }),
    ("sent_plain_bytes_total", "Bytes that were sent compressed (net.compress), before that.", |s| {
        Some(s.own.sent_plain_bytes as f64)
    }),
    ("sent_compressed_bytes_total", "Bytes that went over the wire for them.", |s| {
        Some(s.own.sent_compressed_bytes as f64)
    }),
    ("received_plain_bytes_total", "Bytes that came compressed, after unpacking.", |s| {
        Some(s.own.received_plain_bytes as f64)
    }),
    ("received_compressed_bytes_total", "Bytes that came over the wire for them.", |s| {
        Some(s.own.received_compressed_bytes as f64)
    }),
    ("relayed_bytes_total", "Bytes of entries that this member passed on in its zone (net.relay).", |s| {
        Some(s.own.relayed_bytes as f64)
    }),
    ("certification_window", "Transactions that certification keeps to compare with.", |s| {
        Some(s.log.certification_window as f64)
    }),
    ("at_risk", "Transactions acknowledged to clients that the cluster has not agreed on yet.", |s| {
        Some(s.own.at_risk as f64)
    }),
    (
        "at_risk_max",
        "async.max_at_risk, under async and semisync: where the leader is not a majority by itself, commits wait beyond it.",
        |s| s.cluster.max_at_risk.map(|n| n as f64),
    ),
    ("fallen_back", "1 while semisync has fallen back to async.", |s| flag(s.cluster.fallen_back)),
    ("semi_sync_on", "1 while commits wait for acknowledgements of semisync: it has not fallen back.", |s| {
        flag(s.semi_sync_is_on())
    }),
    (
        "semi_sync_clients",
        "Members, without the leader, that this one is connected with under semisync; take it from the leader.",
        |s| Some(s.semi_sync_clients() as f64),
    ),
    (
        "semi_sync_missing",
        "Members that have not acknowledged what semisync fell back for, or what commits have waited for for 2 s; the leader knows it.",
        |s| leads(s).then_some(s.cluster.not_acknowledged_by.len() as f64),
    ),
    ("semi_sync_acknowledged_total", "Own transactions that committed with their acknowledgements.", |s| {
        Some(s.own.acknowledged as f64)
    }),
    (
        "semi_sync_not_acknowledged_total",
        "Own transactions that returned without acknowledgements, after commit.timeout.",
        |s| Some(s.own.not_acknowledged as f64),
    ),
    ("semi_sync_fallbacks_total", "How often this member has seen semisync fall back to async.", |s| {
        Some(s.own.fallbacks as f64)
    }),
    ("rescue_files", "Rescue files that wait for somebody to look at them.", |s| Some(s.own.rescued as f64)),
    (
        "rescued_transactions",
        "Transactions, or a device's entries, in rescue files: this member had them, the cluster has not.",
        |s| Some(s.own.rescued_transactions as f64),
    ),
    ("log_seqno", "The last seqno agreed on, as far as this member knows.", |s| Some(s.log.seqno as f64)),
    ("log_first_index", "The first index in this member's log.", |s| Some(s.log.first as f64)),
    ("log_last_index", "The last index in this member's log.", |s| Some(s.log.last as f64)),
    ("log_committed_index", "The last index agreed on.", |s| Some(s.log.committed as f64)),
    ("log_persisted_index", "The last index on this member's disk.", |s| Some(s.log.persisted as f64)),
    ("log_bytes", "Size of this member's log on disk.", |s| Some(s.log.bytes as f64)),
    ("log_keep_bytes", "Above this size the log is trimmed where nobody needs it (log.size).", |s| {
        Some(s.log.keep_bytes as f64)
    }),
    ("log_max_bytes", "What the log may grow to (log.max_size).", |s| Some(s.log.max_bytes as f64)),
    ("log_segments", "Files of this member's log.", |s| Some(s.log.segments as f64)),
];

/// Metrics of each member.
const MEMBERS: &[(&str, &str, OfMember)] = &[
    ("member_up", "1 while this member is connected with that one, and hears of it.", |m| {
        flag(m.is_connected())
    }),
    ("member_votes", "1 if that member's log counts for majorities.", |m| flag(m.role != "learner")),
    ("member_leads", "1 for the leader.", |m| flag(m.role == "leader")),
    ("member_gone_seconds", "How long this member has not heard of that one.", |m| m.gone_seconds),
    ("member_applied_seqno", "The last seqno that that member's server has finished.", |m| {
        m.applied.map(|n| n as f64)
    }),
    ("member_lag_transactions", "Transactions agreed on that that member's server has not finished.", |m| {
        m.lag_trx.map(|n| n as f64)
    }),
    ("member_persisted_index", "The last index on that member's disk; the leader knows it.", |m| {
        m.persisted.map(|n| n as f64)
    }),
    (
        "member_disk_stalled_seconds",
        "How long that member's disk has finished no write of the log although it has some to do; a member knows its own, the leader all.",
        |m| m.disk_stalled_seconds,
    ),
    ("member_rtt_seconds", "Round-trip time to that member, as the leader measures it.", |m| {
        m.rtt_us.map(|us| us as f64 / 1e6)
    }),
];

fn own_row(status: &Status) -> Option<&MemberStatus> {
    status.members.iter().find(|m| m.id == status.own.id)
}

fn leads(status: &Status) -> bool {
    own_row(status).is_some_and(|m| m.role == "leader")
}

fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP lockstep_{name} {help}\n# TYPE lockstep_{name} {kind}");
}

impl Status {
    /// The label of this member's samples: its name, and its address if the name is not unique.
    fn label(&self, member: &MemberStatus) -> String {
        match self.members.iter().filter(|m| m.name == member.name).count() {
            1 => member.name.clone(),
            _ => format!("{} ({})", member.name, member.address),
        }
    }

    /// The policy in force as labels, for panels and for joins; none where an older version made the snapshot.
    fn policy_info(&self, out: &mut String) {
        let cluster = &self.cluster;
        let (Some(ack_on), Some(timeout)) = (&cluster.ack_on, cluster.timeout_seconds) else { return };
        head(out, "policy_info", "gauge", "1, with the commit.* that are in force; the timeout in seconds.");
        let _ = writeln!(
            out,
            "lockstep_policy_info{{policy={},acks=\"{}\",ack_on={},zone_acks=\"{}\",timeout=\"{timeout}\"}} 1",
            quote(&cluster.policy),
            cluster.acks,
            quote(ack_on),
            cluster.zone_acks,
        );
    }

    /// A sum and a count, so that the mean over any period can be computed.
    fn ack_wait(&self, out: &mut String) {
        let name = "semi_sync_ack_wait_seconds";
        let help =
            "Time from an own transaction's place in the log to its acknowledgements, of those that came.";
        head(out, name, "summary", help);
        let _ = writeln!(out, "lockstep_{name}_sum {}", self.own.ack_wait_total_us as f64 / 1e6);
        let _ = writeln!(out, "lockstep_{name}_count {}", self.own.acknowledged);
    }

    /// As Prometheus text, with the numbers of the front end.
    pub fn prometheus(&self, front_end: &[Metric]) -> String {
        let mut out = String::with_capacity(8192);
        head(&mut out, "build_info", "gauge", "1, with this member's version and names.");
        let _ = writeln!(
            out,
            "lockstep_build_info{{version={},member={},cluster={}}} 1",
            quote(&self.own.version),
            quote(&self.own.name),
            quote(&self.cluster.name)
        );
        self.policy_info(&mut out);
        self.ack_wait(&mut out);
        for (name, help, sample) in OWN {
            if let Some(value) = sample(self) {
                let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
                head(&mut out, name, kind, help);
                let _ = writeln!(out, "lockstep_{name} {value}");
            }
        }
        for (name, help, sample) in MEMBERS {
            let samples: Vec<(String, f64)> =
                self.members.iter().filter_map(|m| Some((self.label(m), sample(m)?))).collect();
            if samples.is_empty() {
                continue;
            }
            head(&mut out, name, "gauge", help);
            for (member, value) in samples {
                let _ = writeln!(out, "lockstep_{name}{{member={}}} {value}", quote(&member));
            }
        }
        let mut last = "";
        for metric in front_end {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            if std::mem::replace(&mut last, metric.name) != metric.name {
                head(&mut out, metric.name, kind, metric.help);
            }
            let labels: Vec<String> =
                metric.labels.iter().map(|(name, value)| format!("{name}={}", quote(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(out, "lockstep_{}{labels} {}", metric.name, metric.value);
        }
        out
    }

    /// A snapshot with all values known, for tests.
    #[doc(hidden)]
    pub fn example() -> Status {
        let member = |name: &str, role: &str| MemberStatus {
            name: name.into(),
            id: name.into(),
            role: role.into(),
            state: "Synced".into(),
            address: format!("{name}:4567"),
            seqno: Some(7),
            persisted: Some(9),
            disk_stalled_seconds: Some(0.0),
            applied: Some(7),
            lag_trx: Some(0),
            lag_seconds: Some(0.0),
            lag_bytes: Some(0),
            rtt_us: (role != "leader").then_some(150),
            ..MemberStatus::default()
        };
        let mut status =
            Status { members: vec![member("n1", "leader"), member("n2", "voter")], ..Status::default() };
        status.members.push(MemberStatus {
            name: "n3".into(),
            id: "n3".into(),
            role: "voter".into(),
            state: crate::status::DISCONNECTED.into(),
            gone_seconds: Some(75.0),
            ..MemberStatus::default()
        });
        status.cluster.name = "demo".into();
        status.cluster.uuid = "h".into();
        status.cluster.policy = "quorum".into();
        status.cluster.ack_on = Some("persist".into());
        status.cluster.timeout_seconds = Some(0.0);
        // Of semisync: for the names of all metrics.
        status.cluster.max_at_risk = Some(10_000);
        status.cluster.leader = "n1".into();
        status.cluster.term = 2;
        status.cluster.primary = true;
        status.cluster.voters = 3;
        status.cluster.voters_connected = 2;
        status.own.name = "n1".into();
        status.own.id = "n1".into();
        status.own.state = "Synced".into();
        status.own.state_number = 4;
        status.log.bytes = 3 << 20;
        status.log.segments = 1;
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_name_have_samples_of_their_own() {
        let mut status = Status::example();
        status.members[1].name = status.members[0].name.clone();
        let text = status.prometheus(&[]);
        let up: Vec<&str> = text.lines().filter(|l| l.starts_with("lockstep_member_up{")).collect();
        assert_eq!(up.len(), status.members.len(), "{text}");
        for (at, line) in up.iter().enumerate() {
            let labels = |l: &str| l.split('}').next().map(str::to_owned);
            assert!(!up[..at].iter().any(|l| labels(l) == labels(line) || l == line), "{text}");
        }
    }

    fn text() -> String {
        let mut status = Status::example();
        status.members[1].name = "a\"b\n".into();
        let number = |name, kind| Metric { name, kind, help: "Something.", labels: Vec::new(), value: 1.0 };
        status.prometheus(&[
            number("things_total", MetricKind::Counter),
            number("width_bytes", MetricKind::Gauge),
            Metric {
                labels: vec![("of", "a\"b".into()), ("at", "1".into())],
                ..number("depth", MetricKind::Gauge)
            },
            Metric { labels: vec![("of", "c".into())], ..number("depth", MetricKind::Gauge) },
        ])
    }

    #[test]
    fn all_samples_of_a_metric_stand_together_behind_its_head() {
        let text = text();
        let mut seen: Vec<&str> = Vec::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let name = line.strip_prefix("# HELP ").and_then(|rest| rest.split(' ').next()).expect(line);
            assert!(!seen.contains(&name), "{name} comes twice");
            seen.push(name);
            let kind = lines.next().unwrap();
            assert!(kind.starts_with(&format!("# TYPE {name} ")), "{kind}");
            assert_eq!(kind.ends_with(" counter"), name.ends_with("_total"), "{kind}");
            let mut samples = 0;
            while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
                let (of, value) = sample.rsplit_once(' ').unwrap();
                let of = of.split('{').next().unwrap();
                let parts: &[&str] = if kind.ends_with(" summary") { &["_sum", "_count"] } else { &[""] };
                assert!(parts.iter().any(|part| format!("{name}{part}") == of), "{sample}");
                value.parse::<f64>().unwrap();
                samples += 1;
            }
            assert!(samples > 0, "{name} has no sample");
        }
        assert!(text.contains(r#"lockstep_member_up{member="a\"b\n"} 1"#), "{text}");
        assert!(text.contains("lockstep_state 4\n"), "{text}");
    }

    /// The values of `SHOW STATUS LIKE 'wsrep_semi_sync%'` are metrics, too, and counters show a fallback shorter than the
    /// scrape interval.
    #[test]
    fn all_of_semisync_is_here() {
        let mut status = Status::example();
        status.cluster.policy = "semisync".into();
        (status.cluster.acks, status.cluster.zone_acks) = (2, 1);
        status.cluster.timeout_seconds = Some(2.5);
        status.cluster.not_acknowledged_by = vec!["n3".into()];
        status.own.acknowledged = 8;
        status.own.not_acknowledged = 3;
        status.own.fallbacks = 2;
        status.own.ack_wait_total_us = 12_500;
        let expected = |on: u8| {
            format!(
                "lockstep_semi_sync_on {on}
lockstep_semi_sync_clients 1
lockstep_semi_sync_missing 1
lockstep_semi_sync_acknowledged_total 8
lockstep_semi_sync_not_acknowledged_total 3
lockstep_semi_sync_fallbacks_total 2
lockstep_semi_sync_ack_wait_seconds_sum 0.0125
lockstep_semi_sync_ack_wait_seconds_count 8
lockstep_policy_info{{policy=\"semisync\",acks=\"2\",ack_on=\"persist\",zone_acks=\"1\",timeout=\"2.5\"}} 1"
            )
        };
        for fallen in [false, true] {
            status.cluster.fallen_back = fallen;
            let text = status.prometheus(&[]);
            for line in expected(u8::from(!fallen)).lines() {
                assert!(text.lines().any(|l| l == line), "no {line} in {text}");
            }
        }
        // Only the leader knows the missing members.
        status.own.id = "n2".into();
        assert!(!status.prometheus(&[]).contains("lockstep_semi_sync_missing"));
    }

    #[test]
    fn unknown_value_has_no_sample() {
        let text = text();
        assert!(!text.contains(r#"lockstep_member_rtt_seconds{member="n3"}"#), "{text}");
        assert!(text.contains(r#"lockstep_member_gone_seconds{member="n3"} 75"#), "{text}");
        let empty = Status::default().prometheus(&[]);
        assert!(!empty.contains("lag") && empty.contains("lockstep_primary 0\n"), "{empty}");
    }
}
