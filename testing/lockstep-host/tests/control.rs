//! Options, statistics, threads, disagreement, and calls out of turn.

mod common;

use common::*;

/// What every provider's status has: names without the server's `wsrep_` prefix, by type.
const INTEGERS: &[&str] = &[
    "protocol_version",
    "last_committed",
    "replicated",
    "replicated_bytes",
    "repl_keys",
    "repl_keys_bytes",
    "repl_data_bytes",
    "repl_other_bytes",
    "received",
    "received_bytes",
    "local_commits",
    "local_cert_failures",
    "local_replays",
    "local_send_queue",
    "local_send_queue_max",
    "local_send_queue_min",
    "local_recv_queue",
    "local_recv_queue_max",
    "local_recv_queue_min",
    "local_cached_downto",
    "flow_control_paused_ns",
    "flow_control_sent",
    "flow_control_recv",
    "apply_waits",
    "local_state",
    "cert_index_size",
    "causal_reads",
    "open_transactions",
    "open_connections",
];

const DOUBLES: &[&str] = &[
    "local_send_queue_avg",
    "local_recv_queue_avg",
    "flow_control_paused",
    "cert_deps_distance",
    "apply_oooe",
    "apply_oool",
    "apply_window",
    "commit_oooe",
    "commit_oool",
    "commit_window",
    "cert_interval",
];

const TEXTS: &[&str] = &[
    "local_state_uuid",
    "flow_control_active",
    "flow_control_requested",
    "local_state_comment",
    "incoming_addresses",
    "evs_state",
    "evs_repl_latency",
    "evs_delayed",
    "evs_evict_list",
    "gcomm_uuid",
    "cluster_weight",
    "gmcast_segment",
    "desync_count",
];

fn statistics_are_complete_and_true(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    for n in 0..5 {
        a.put("s", &format!("t/{n}"), "x").unwrap();
    }
    let last = a.put("s", "t/0", "y").unwrap();
    b.ask("get", json!({ "row": "t/0", "causal": true })).unwrap();
    for member in [a, b] {
        let stats = member.ask("stats", json!({})).unwrap();
        let lacking = |names: &[&str], fits: fn(&Value) -> bool| -> Vec<String> {
            let bad = names.iter().filter(|name| !stats.get(**name).is_some_and(fits));
            bad.map(|name| format!("{name}={}", stats[*name])).collect()
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(lacking(INTEGERS, Value::is_i64), none, "integers of {}", member.name);
        assert_eq!(lacking(DOUBLES, Value::is_f64), none, "doubles of {}", member.name);
        assert_eq!(lacking(TEXTS, Value::is_string), none, "texts of {}", member.name);

        assert_eq!(stats["local_state"], 4);
        assert_eq!(stats["local_state_comment"], "Synced");
        assert_eq!(stats["last_committed"], last["seqno"]);
        assert_eq!(stats["local_state_uuid"], last["gtid"].as_str().unwrap()[..36]);
        let addresses = stats["incoming_addresses"].as_str().unwrap();
        for name in ["n1.example:3306", "n2.example:3306"] {
            assert!(addresses.contains(name), "{addresses}");
        }
        assert_eq!(stats["evs_repl_latency"].as_str().unwrap().split('/').count(), 5);
    }
    let (at_a, at_b) = (a.ask("stats", json!({})).unwrap(), b.ask("stats", json!({})).unwrap());
    assert_eq!((&at_a["local_commits"], &at_b["local_commits"]), (&json!(6), &json!(0)));
    assert_eq!((&at_a["replicated"], &at_b["replicated"]), (&json!(6), &json!(0)));
    assert!(at_a["replicated_bytes"].as_i64() > Some(6 * 10));
    assert!(at_b["received"].as_i64() >= Some(6));
    assert!(at_b["causal_reads"].as_i64() >= Some(1));
    a.call("stats_reset", json!({})).unwrap();
}

/// The options as a list of names and values.
fn options(member: &Member) -> Vec<(String, String)> {
    let text = member.ask("options", json!({})).unwrap();
    let text = text.as_str().unwrap();
    let parts = text.split(';').filter_map(|part| part.split_once('='));
    parts.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

fn options_are_read_and_changed(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let a = cluster.member(0);
    let set = |text: &str| a.ask("set_options", json!({ "options": text })).unwrap()["status"].clone();
    let get = |name: &str| {
        let all = options(a);
        all.into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
    };
    assert_eq!(get("base_port"), Some(cluster.nodes[0].port.to_string()));
    for name in ["gcache.size", "gcs.fc_limit", "pc.weight", "repl.causal_read_timeout", "gmcast.segment"] {
        assert!(get(name).is_some(), "{name} is missing in {:?}", options(a));
    }
    assert_eq!(set("gcs.fc_limit=77"), "OK");
    assert_eq!(get("gcs.fc_limit"), Some("77".into()));
    assert_eq!(set("repl.causal_read_timeout=PT7S"), "OK");
    assert_eq!(get("repl.causal_read_timeout"), Some("PT7S".into()));

    for bad in [
        "no.such_option=1",
        "gcs.fc_limit=many",
        "gcs.fc_limit=-5",
        "repl.causal_read_timeout=soon",
        "pc.weight=1000",
        "gcs.fc_limit",
        "=5",
    ] {
        assert_ne!(set(bad), "OK", "{bad}");
    }
    assert_eq!(get("gcs.fc_limit"), Some("77".into()));
    assert_eq!(get("repl.causal_read_timeout"), Some("PT7S".into()));
    // Nothing of that has disturbed the cluster.
    a.put("s", "t/1", "x").unwrap();
    // Of a member in a primary component nothing is left to be done.
    assert_eq!(set("pc.bootstrap=1"), "OK");
    a.put("s", "t/2", "y").unwrap();
    if cluster.kind == Kind::Lockstep {
        let log = a.log_tail(20);
        assert!(log.contains("pc.bootstrap: this member is in the primary component already"), "{log}");
    }
}

/// The configuration service, without which MariaDB 11.8 does not start.
fn options_are_listed_with_their_types(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let a = cluster.member(0);
    let all = a.ask("parameters", json!({})).unwrap();
    let all = all.as_array().unwrap_or_else(|| panic!("no configuration service: {all}"));
    let find = |name: &str| {
        let found =
            all.iter().find(|p| p[0] == name).unwrap_or_else(|| panic!("{name} is missing in {all:?}"));
        (found[1].as_i64().unwrap(), found[2].as_str().unwrap().to_owned())
    };
    const READONLY: i64 = 2;
    const BOOL: i64 = 4;
    const INTEGER: i64 = 8;
    const DOUBLE: i64 = 16;
    assert_eq!(find("cert.log_conflicts"), (BOOL, "false".into()));
    assert_eq!(find("gcs.fc_limit").0, INTEGER);
    assert_eq!(find("gcs.fc_factor").0, DOUBLE);
    assert_eq!(find("base_port"), (INTEGER | READONLY, cluster.nodes[0].port.to_string()));
    assert_eq!(find("gmcast.segment"), (INTEGER | READONLY, "0".into()));
    // Durations are seconds, and may be set so.
    assert_eq!(find("repl.causal_read_timeout"), (DOUBLE, "30".into()));
    let set = a.ask("set_options", json!({ "options": "repl.causal_read_timeout=7.500000;" })).unwrap();
    assert_eq!(set["status"], "OK");
    let again = a.ask("parameters", json!({})).unwrap();
    assert!(
        again.as_array().unwrap().contains(&json!(["repl.causal_read_timeout", DOUBLE, "7.5"])),
        "{again}"
    );
    // Each option accepts its shown value, as the server writes it when its variable is set. (Galera's library refuses its
    // own evs.inactive_check_period.)
    let live = |p: &&Value| p[1].as_i64().unwrap() & READONLY == 0 && cluster.kind == Kind::Lockstep;
    for parameter in again.as_array().unwrap().iter().filter(live) {
        let (name, value) = (parameter[0].as_str().unwrap(), parameter[2].as_str().unwrap());
        let text = match parameter[1].as_i64().unwrap() {
            BOOL => if value == "true" { "yes" } else { "no" }.to_owned(),
            DOUBLE => format!("{:.6}", value.parse::<f64>().unwrap()),
            _ => value.to_owned(),
        };
        let set = a.ask("set_options", json!({ "options": format!("{name}={text};") })).unwrap();
        assert_eq!(set["status"], "OK", "{name}={text}");
    }
    assert_eq!(a.ask("parameters", json!({})).unwrap(), again);
    // The server makes a variable of each: no name twice.
    let mut names: Vec<&str> = all.iter().filter_map(|p| p[0].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
    assert!(names.len() > 50, "{names:?}");
}

fn bad_options_stop_the_start(cluster: &mut Cluster) {
    for bad in ["no.such_option=1", "gcs.fc_limit=many", "repl.causal_read_timeout=soon"] {
        cluster.nodes[0].options = bad.into();
        cluster.nodes[0].extra.insert("url".into(), json!("gcomm://"));
        let library = cluster.library.clone();
        cluster.configure(0, true).unwrap();
        let member = cluster.member(0);
        member.call("load", json!({ "library": library })).unwrap();
        let result = member.call("init", json!({})).and_then(|_| member.call("connect", json!({})));
        assert_eq!(code(result), "status:NODE_FAIL", "{bad}");
        cluster.kill(0);
    }
}

fn the_provider_says_who_it_is(cluster: &mut Cluster) {
    if cluster.kind == Kind::Lockstep {
        cluster.nodes[1].options = "trx.streaming=yes".into();
    }
    cluster.start_all().unwrap();
    let identity = cluster.member(0).call("identity", json!({})).unwrap();
    assert_eq!(identity["name"], "Galera", "{identity}");
    let version = identity["version"].as_str().unwrap();
    // MariaDB's tests look for the number; Galera's own has it or a shorter form of it, by how it was built.
    assert!(
        version.starts_with("26.4.") || (cluster.kind == Kind::Galera && version.starts_with("4.")),
        "{identity}"
    );
    assert_eq!(identity["isolation"], true);
    let capabilities = identity["capabilities"].as_u64().unwrap();
    // Multi-master, certification, parallel applying, replay, isolation, pause, causal reads.
    for bit in [0, 1, 2, 3, 4, 5, 6] {
        assert_ne!(capabilities & 1 << bit, 0, "capability {bit} of {capabilities:#x}");
    }
    let streams = |capabilities: &Value| capabilities.as_u64().unwrap() & 1 << 15 != 0;
    let by_default = cluster.kind == Kind::Galera;
    assert_eq!(streams(&identity["capabilities"]), by_default);
    let asked = cluster.member(1).call("identity", json!({})).unwrap();
    assert!(streams(&asked["capabilities"]), "trx.streaming=yes");
    let view = cluster.member(0).call("view", json!({})).unwrap();
    assert_eq!(streams(&view["capabilities"]), by_default, "{view}");
    let view = cluster.member(1).call("view", json!({})).unwrap();
    assert_eq!(view["members"].as_array().unwrap().len(), 2);
    assert!(view["my_idx"].as_i64() >= Some(0));
}

fn appliers_come_and_go(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    b.ask("appliers", json!({ "fewer": 2 })).unwrap();
    for n in 0..12 {
        a.put("s", &format!("t/{n}"), "x").unwrap();
    }
    b.ask("get", json!({ "row": "t/0", "causal": true })).unwrap();
    let mut left = Value::Null;
    for _ in 0..100 {
        left = b.ask("state", json!({})).unwrap()["recv"].clone();
        if left == json!(["OK", "OK"]) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        a.put("s", "t/more", "x").unwrap();
    }
    assert_eq!(left, json!(["OK", "OK"]));
    b.ask("appliers", json!({ "more": 2 })).unwrap();
    b.ask("hold", json!({ "point": "apply" })).unwrap();
    for n in 0..4 {
        a.put("s", &format!("u/{n}"), "x").unwrap();
    }
    b.ask("wait_held", json!({ "point": "apply", "count": 4 })).unwrap();
    b.ask("let_go", json!({ "point": "apply" })).unwrap();
}

fn a_member_that_fails_to_apply_leaves(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let a = cluster.member(0);
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "x" })).unwrap();
    a.on("s", "fail_on", json!({ "member": "n3" })).unwrap();
    a.on("s", "commit", json!({})).unwrap();
    for n in [0, 1] {
        cluster.member(n).call("wait_members", json!({ "count": 2 })).unwrap();
    }
    cluster.member(1).put("s", "t/2", "y").unwrap();
    let third = cluster.member(2).ask("stats", json!({}));
    if let Ok(stats) = third {
        assert_ne!(stats["local_state"], 4, "{stats}");
    }
    cluster.kill(2);
}

fn calls_without_a_connection_are_refused(cluster: &mut Cluster) {
    let library = cluster.library.clone();
    cluster.configure(0, true).unwrap();
    let member = cluster.member(0);
    member.call("load", json!({ "library": library })).unwrap();
    member.call("init", json!({})).unwrap();
    let raw = |call: &str| {
        let limit = Duration::from_secs(15);
        let reply = member.send(call, "raw", json!({ "call": call })).wait_for(limit);
        let reply = reply.unwrap_or_else(|error| panic!("{call}: {error}"));
        reply["status"].as_str().unwrap().to_owned()
    };
    // Unknown to the provider: nothing to abort.
    assert_eq!(raw("abort_certification"), "OK");
    assert_eq!(raw("release"), "OK");
    assert_eq!(raw("free_connection"), "OK");
    if cluster.kind == Kind::Lockstep {
        // Galera's library ends the process, or never returns, in these.
        for call in [
            "certify",
            "to_execute_start",
            "sync_wait",
            "commit_order_enter",
            "commit_order_leave",
            "replay_trx",
            "rollback",
            "to_execute_end",
            "sst_sent",
            "sst_received",
            "recv",
            "desync",
        ] {
            let status = raw(call);
            assert!(!matches!(status.as_str(), "OK" | "unknown"), "{call}: {status}");
        }
        // The server takes a failure of these two for fatal: OK, with a warning in the log.
        for call in ["resync", "resume", "append_key"] {
            assert_eq!(raw(call), "OK", "{call}");
        }
        let paused = member.on("pause", "raw", json!({ "call": "pause" })).unwrap();
        assert!(paused["seqno"].as_i64() < Some(0), "{paused}");
    }
    // After all that it still starts.
    cluster.kill(0);
    cluster.start(0, true).unwrap();
    cluster.member(0).put("s", "t/1", "x").unwrap();
}

fn calls_out_of_turn_are_refused(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let a = cluster.member(0);
    let raw = |call: &str, args: Value| {
        let mut args = args;
        args["call"] = json!(call);
        let reply = a.send(call, "raw", args).wait_for(Duration::from_secs(15));
        let reply = reply.unwrap_or_else(|error| panic!("{call}: {error}"));
        reply["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(raw("abort_certification", json!({})), "OK");
    assert_eq!(raw("release", json!({})), "OK");
    assert_eq!(raw("certify_nothing", json!({})), "OK");
    assert_eq!(raw("resume", json!({})), "OK");
    if cluster.kind == Kind::Lockstep {
        for call in ["commit_order_enter", "commit_order_leave", "replay_trx", "to_execute_end"] {
            let status = raw(call, json!({}));
            assert!(!matches!(status.as_str(), "OK" | "unknown"), "{call}: {status}");
        }
        let gtid = "00000000-0000-0000-0000-000000000001:1";
        for call in ["sst_sent", "sst_received"] {
            let status = raw(call, json!({ "gtid": gtid }));
            assert!(!matches!(status.as_str(), "OK" | "unknown"), "{call}: {status}");
        }
    }
    a.put("s", "t/1", "x").unwrap();
    let row = cluster.member(1).call("get", json!({ "row": "t/1", "causal": true })).unwrap();
    assert_eq!(row, "x");
}

fn without_a_majority_nothing_commits(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.member(0).put("s", "t/1", "x").unwrap();
    cluster.kill(1);
    cluster.kill(2);
    let a = cluster.member(0);
    let mut view = Value::Null;
    for _ in 0..150 {
        view = a.ask("view", json!({})).unwrap();
        if view["status"] == "NON_PRIMARY" {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(view["status"], "NON_PRIMARY", "{view}");
    assert_eq!(a.ask("state", json!({})).unwrap()["state"], "connected");
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/2", "value": "lost" })).unwrap();
    let refused = code(a.on("s", "commit", json!({})));
    assert!(refused == "status:CONN_FAIL" || refused == "status:NODE_FAIL", "{refused}");
    let waited = a.call("sync_wait", json!({ "seconds": 1 })).unwrap();
    assert_ne!(waited["status"], "OK");
    if cluster.kind == Kind::Lockstep {
        // A set of options is applied completely, or not at all.
        let both = json!({ "options": "repl.causal_read_timeout=PT7S; commit.policy=all" });
        assert_eq!(a.ask("set_options", both).unwrap()["status"], "NODE_FAIL");
        let each = json!({ "options": "socket.ssl_reload=1; pc.bootstrap=1" });
        assert_eq!(a.ask("set_options", each).unwrap()["status"], "NODE_FAIL");
        let is = |name: &str| options(a).into_iter().find(|(known, _)| known == name).map(|(_, value)| value);
        assert_eq!(is("repl.causal_read_timeout"), Some("PT30S".into()));
        assert_eq!(is("commit.policy"), Some("quorum".into()));
    }
    // The statistics answer nevertheless.
    assert_ne!(a.ask("stats", json!({})).unwrap()["local_state"], 4);
    // Another one comes back: a majority again. Galera does not count the absent, and wants to be told.
    if cluster.kind == Kind::Galera {
        a.ask("set_options", json!({ "options": "pc.bootstrap=true" })).unwrap();
    }
    cluster.start(1, false).unwrap();
    cluster.member(0).call("wait_state", json!({ "state": "synced" })).unwrap();
    cluster.member(1).put("s", "t/3", "y").unwrap();
    let rows = cluster.member(0).call("rows", json!({ "causal": true })).unwrap();
    assert_eq!(rows, json!({ "t/1": "x", "t/3": "y" }));
}

scenarios! {
    statistics_are_complete_and_true: 2,
    options_are_listed_with_their_types: 1,
    options_are_read_and_changed: 2,
    bad_options_stop_the_start: 1,
    the_provider_says_who_it_is: 2,
    appliers_come_and_go: 2,
    a_member_that_fails_to_apply_leaves: 3,
    calls_without_a_connection_are_refused: 1,
    calls_out_of_turn_are_refused: 2,
    without_a_majority_nothing_commits: 3,
}
