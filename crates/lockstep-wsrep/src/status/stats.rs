//! `SHOW STATUS LIKE 'wsrep_%'`, the provider's part: Galera's names, our numbers.
//!
//! Everything comes from atomics and from the node's last published snapshot: no lock that a commit holds, so that it
//! is answered whatever is stuck.

use crate::context::Context;
use crate::provider::Provider;
use crate::status::counters::ratio;
use lockstep_abi::{StatsValue, StatsVar, VarType};
use lockstep_node::{Metric, MetricKind, Node, Status};
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A value of a status variable.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Int(i64),
    Double(f64),
    Text(String),
}

fn yes(on: bool) -> Value {
    Value::Text(if on { "true" } else { "false" }.into())
}

/// All status variables, in Galera's order.
pub(crate) fn stats(provider: &Provider) -> Vec<(&'static str, Value)> {
    let cx = provider.cx();
    let (finished_count, out_of_order) = cx.sequence.finished_counts();
    use Value::{Double, Int, Text};
    let status: Arc<Status> = cx.node().map(|node| node.status()).unwrap_or_default();
    let queued = cx.node().map_or(0, |node| node.queued()) as i64;
    let (cert_keys, _) = cx.node().map_or((0, 0), |node| node.certification());
    let c = &cx.counters;
    let finished = cx.sequence.finished();
    let votes = status.members.iter().filter(|m| m.role != "learner").count();
    let connected = cx.node().is_some_and(Node::is_primary);
    // Before there is a node to ask: what this build speaks.
    let protocol = match status.cluster.protocol {
        0 => lockstep_node::net::proto::VERSIONS.1,
        agreed => agreed,
    };
    vec![
        ("local_state_uuid", Text(cx.identity.history().to_string())),
        ("protocol_version", Int(i64::from(protocol))),
        ("last_committed", Int(finished)),
        ("replicated", Int(c.replicated.get())),
        ("replicated_bytes", Int(c.replicated_bytes.get())),
        ("repl_keys", Int(c.keys.get())),
        ("repl_keys_bytes", Int(c.keys_bytes.get())),
        ("repl_data_bytes", Int(c.data_bytes.get())),
        ("repl_other_bytes", Int(c.other_bytes.get())),
        ("received", Int(c.received.get())),
        ("received_bytes", Int(c.received_bytes.get())),
        ("local_commits", Int(c.local_commits.get())),
        ("local_cert_failures", Int(c.local_cert_failures.get())),
        ("local_replays", Int(c.local_replays.get())),
        ("local_send_queue", Int(c.send_queue.now())),
        ("local_send_queue_max", Int(c.send_queue.max())),
        ("local_send_queue_min", Int(c.send_queue.min())),
        ("local_send_queue_avg", Double(c.send_queue.mean())),
        ("local_recv_queue", Int(queued)),
        ("local_recv_queue_max", Int(c.recv_queue.max())),
        ("local_recv_queue_min", Int(c.recv_queue.min())),
        ("local_recv_queue_avg", Double(c.recv_queue.mean())),
        ("local_cached_downto", Int(status.log.first_seqno)),
        // A slow member pauses nobody, but with apply.pace writers are slowed down.
        ("flow_control_paused_ns", Int((status.own.paced_seconds * 1e9) as i64)),
        ("flow_control_paused", Double(c.paced.share(&status.own))),
        ("flow_control_sent", Int(status.own.paced_own_times as i64)),
        ("flow_control_recv", Int(status.own.paced_times as i64)),
        ("flow_control_active", yes(status.own.pace_limit.is_some())),
        ("flow_control_requested", yes(status.own.pace_for.contains(&status.own.name))),
        ("cert_deps_distance", Double(ratio(c.deps_distance.get(), c.certified.get()))),
        ("apply_oooe", Double(ratio(c.applied_early.get(), c.applied.get()))),
        ("apply_oool", Double(ratio(out_of_order, finished_count))),
        ("apply_window", Double(ratio(c.apply_window.get(), c.applied.get()))),
        ("apply_waits", Int(c.apply_waits.get())),
        // Commits are in order, always.
        ("commit_oooe", Double(0.0)),
        ("commit_oool", Double(0.0)),
        ("commit_window", Double(cx.sequence.mean_window())),
        ("local_state", Int(provider.reported_state() as i64)),
        ("local_state_comment", Text(provider.state_comment().into())),
        ("cert_index_size", Int(cert_keys as i64)),
        ("causal_reads", Int(c.causal_reads.get())),
        ("cert_interval", Double(ratio(c.interval.get(), c.certified.get()))),
        ("open_transactions", Int(cx.trxs.len() as i64)),
        ("open_connections", Int(cx.trxs.statements() as i64)),
        ("incoming_addresses", Text(cx.incoming_addresses())),
        ("cluster_weight", Text(votes.to_string())),
        ("desync_count", Text(c.desyncs.load(Relaxed).to_string())),
        ("semi_sync_status", Text(if status.semi_sync_is_on() { "ON" } else { "OFF" }.into())),
        ("semi_sync_clients", Int(status.semi_sync_clients() as i64)),
        ("semi_sync_missing", Text(status.cluster.not_acknowledged_by.join(","))),
        ("semi_sync_yes_tx", Int(status.own.acknowledged as i64)),
        ("semi_sync_no_tx", Int(status.own.not_acknowledged as i64)),
        ("semi_sync_no_times", Int(status.own.fallbacks as i64)),
        ("semi_sync_avg_wait_us", Int(status.own.ack_wait_us as i64)),
        ("semi_sync_at_risk", Int(status.own.at_risk as i64)),
        ("rescued_files", Int(status.own.rescued as i64)),
        ("rescued_transactions", Int(status.own.rescued_transactions as i64)),
        ("evs_delayed", Text(String::new())),
        ("evs_evict_list", Text(String::new())),
        ("evs_repl_latency", Text(c.latency.text())),
        ("evs_state", Text(if connected { "OPERATIONAL" } else { "CLOSED" }.into())),
        ("gcomm_uuid", Text(cx.identity.own().to_string())),
        ("gmcast_segment", Text(cx.host.settings.zone().to_string())),
    ]
}

/// `FLUSH STATUS`.
pub(crate) fn reset(cx: &Context) {
    let queued = cx.node().map_or(0, |node| node.queued()) as i64;
    cx.counters.reset(queued);
    if let Some(node) = cx.node() {
        cx.counters.paced.reset(&node.status().own);
    }
    cx.sequence.reset_counts();
}

/// What the node serves beside its own numbers. Called on `ls-node`.
pub(crate) fn metrics(cx: &Context) -> Vec<Metric> {
    METRICS
        .iter()
        .map(|&(name, kind, help, number)| Metric { name, kind, help, labels: Vec::new(), value: number(cx) })
        .collect()
}

type Number = fn(&Context) -> f64;

/// The provider's numbers for Prometheus.
const METRICS: &[(&str, MetricKind, &str, Number)] = {
    use MetricKind::{Counter, Gauge};
    &[
        ("wsrep_replicated_total", Counter, "Write-sets that this member sent, wsrep_replicated.", |p| {
            p.counters.replicated.get() as f64
        }),
        ("wsrep_replicated_bytes_total", Counter, "Their bytes, wsrep_replicated_bytes.", |p| {
            p.counters.replicated_bytes.get() as f64
        }),
        ("wsrep_received_total", Counter, "Write-sets that others sent, wsrep_received.", |p| {
            p.counters.received.get() as f64
        }),
        ("wsrep_received_bytes_total", Counter, "Their bytes, wsrep_received_bytes.", |p| {
            p.counters.received_bytes.get() as f64
        }),
        ("wsrep_local_commits_total", Counter, "Own transactions committed, wsrep_local_commits.", |p| {
            p.counters.local_commits.get() as f64
        }),
        (
            "wsrep_local_cert_failures_total",
            Counter,
            "Own transactions that lost against an earlier one of another member, wsrep_local_cert_failures.",
            |p| p.counters.local_cert_failures.get() as f64,
        ),
        ("wsrep_local_replays_total", Counter, "Own transactions applied again, wsrep_local_replays.", |p| {
            p.counters.local_replays.get() as f64
        }),
        ("wsrep_causal_reads_total", Counter, "Reads that waited for the cluster (wsrep_sync_wait).", |p| {
            p.counters.causal_reads.get() as f64
        }),
        (
            "wsrep_ordered_total",
            Counter,
            "Own write-sets whose way to their place in the order was timed.",
            |p| p.counters.latency.samples() as f64,
        ),
        (
            "wsrep_order_seconds_total",
            Counter,
            "The time that these took together: divided by lockstep_wsrep_ordered_total, the mean latency.",
            |p| p.counters.latency.seconds(),
        ),
        ("wsrep_desyncs", Gauge, "Reasons of the server's to be desynced, wsrep_desync_count.", |p| {
            f64::from(p.counters.desyncs.load(Relaxed))
        }),
        ("wsrep_open_transactions", Gauge, "Transactions under way, wsrep_open_transactions.", |p| {
            p.trxs.len() as f64
        }),
        (
            "wsrep_last_committed",
            Gauge,
            "The last seqno that the server finished, wsrep_last_committed.",
            |p| p.sequence.finished() as f64,
        ),
    ]
};

/// The variables as the server takes them: one block from `malloc`, the list first, ended by a null name, then all
/// texts. Null where there is no memory.
pub(crate) fn lay_out(stats: &[(&'static str, Value)]) -> *mut StatsVar {
    let text = |value: &str| CString::new(value.replace('\0', "")).unwrap_or_default();
    let rows: Vec<(CString, Option<CString>)> = stats
        .iter()
        .map(|(name, value)| match value {
            Value::Text(value) => (text(name), Some(text(value))),
            _ => (text(name), None),
        })
        .collect();
    let len = |text: &CString| text.as_bytes_with_nul().len();
    let texts: usize = rows.iter().map(|(name, value)| len(name) + value.as_ref().map_or(0, len)).sum();
    let list = (stats.len() + 1) * size_of::<StatsVar>();
    // SAFETY: any size may be asked for; malloc aligns for every type.
    let block: *mut u8 = unsafe { libc::malloc(list + texts) }.cast();
    if block.is_null() {
        return ptr::null_mut();
    }
    let vars: *mut StatsVar = block.cast();
    let mut tail = list;
    let mut put = |text: &CString| -> *const c_char {
        let bytes = text.as_bytes_with_nul();
        // SAFETY: the lengths of all texts were added up above, and the block has room for them after the list.
        unsafe {
            let to = block.add(tail);
            tail += bytes.len();
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            to.cast_const().cast()
        }
    };
    for (at, ((name, string), (_, value))) in rows.iter().zip(stats).enumerate() {
        let name = put(name);
        let (var_type, value) = match (value, string) {
            (_, Some(string)) => (VarType::STRING, StatsValue { string: put(string) }),
            (Value::Double(double), _) => (VarType::DOUBLE, StatsValue { double: *double }),
            (Value::Int(int64), _) => (VarType::INT64, StatsValue { int64: *int64 }),
            (Value::Text(_), None) => continue,
        };
        // SAFETY: the list has room for all of them and one more.
        unsafe { vars.add(at).write(StatsVar { name, var_type, value }) };
    }
    let end =
        StatsVar { name: ptr::null(), var_type: VarType::STRING, value: StatsValue { string: ptr::null() } };
    // SAFETY: as above.
    unsafe { vars.add(stats.len()).write(end) };
    vars
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn rollback_list_holds_inserted_entries() {
        let stats = [
            ("number", Value::Int(-7)),
            ("text", Value::Text("a,b".into())),
            ("ratio", Value::Double(0.5)),
            ("empty", Value::Text(String::new())),
        ];
        let vars = lay_out(&stats);
        // SAFETY: a list of five, the last with a null name; texts are NUL-terminated.
        unsafe {
            let name = |at: usize| CStr::from_ptr((*vars.add(at)).name).to_str().unwrap();
            assert_eq!([name(0), name(1), name(2), name(3)], ["number", "text", "ratio", "empty"]);
            assert_eq!((*vars).value.int64, -7);
            assert_eq!(CStr::from_ptr((*vars.add(1)).value.string).to_str().unwrap(), "a,b");
            assert_eq!((*vars.add(2)).value.double, 0.5);
            assert_eq!(CStr::from_ptr((*vars.add(3)).value.string).to_bytes(), b"");
            assert!((*vars.add(4)).name.is_null());
            libc::free(vars.cast());
        }
    }

    fn words<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(move |word| word.starts_with(prefix))
    }

    #[test]
    fn alerts_use_metrics_that_there_are() {
        let front_end: Vec<Metric> = METRICS
            .iter()
            .map(|&(name, kind, help, _)| Metric { name, kind, help, labels: Vec::new(), value: 0.0 })
            .collect();
        let page = Status::example().prometheus(&front_end);
        let served: Vec<&str> =
            page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/alerts.yml");
        let alerts = std::fs::read_to_string(path).unwrap();
        let mut used = 0;
        for expr in alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")) {
            // The other front ends have metrics of their own, which their own tests compare.
            let is_other = |name: &&str| {
                ["archive_", "binlog_", "block_", "ingest_"]
                    .iter()
                    .any(|prefix| name["lockstep_".len()..].starts_with(prefix))
            };
            for name in words(expr, "lockstep_").filter(|name| !is_other(name)) {
                assert!(served.contains(&name), "docs/alerts.yml uses {name}, which no member serves");
                used += 1;
            }
        }
        assert!(used > 10, "only {used} metrics found in docs/alerts.yml");
        let count = |key: &str| alerts.lines().filter(|line| line.trim_start().starts_with(key)).count();
        for key in ["expr: ", "labels: ", "summary: ", "description: "] {
            assert_eq!(count(key), count("- alert: "), "each alert has one `{key}`");
        }
    }
}
