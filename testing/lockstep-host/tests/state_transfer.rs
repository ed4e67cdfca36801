//! Joining by state transfer, rejoining by the log, failures of both, and leaving.

mod common;

use common::*;

fn sst_events(member: &Member) -> Vec<String> {
    member.events().into_iter().filter(|(kind, _)| kind == "sst").map(|(_, text)| text).collect()
}

fn got_a_copy(member: &Member) -> bool {
    sst_events(member).iter().any(|text| text.starts_with("received") && text.ends_with("bypass=false"))
}

fn a_joiner_gets_a_copy(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    for n in 0..10 {
        cluster.member(0).put("s", &format!("t/{n}"), "x").unwrap();
    }
    cluster.start(1, false).unwrap();
    assert!(got_a_copy(cluster.member(1)), "{:?}", sst_events(cluster.member(1)));
    let rows = cluster.member(1).call("digest", json!({})).unwrap();
    assert_eq!(rows["rows"], 10);
    cluster.member(1).put("s", "t/0", "from the joiner").unwrap();
    let row = cluster.member(0).call("get", json!({ "row": "t/0", "causal": true })).unwrap();
    assert_eq!(row, "from the joiner");
}

fn a_stopped_member_rejoins_by_the_log(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.stop(1).unwrap();
    cluster.member(0).call("wait_members", json!({ "count": 1 })).unwrap();
    for n in 0..10 {
        cluster.member(0).put("s", &format!("t/{n}"), "x").unwrap();
    }
    cluster.start(1, false).unwrap();
    assert!(!got_a_copy(cluster.member(1)), "{:?}", sst_events(cluster.member(1)));
    assert_eq!(cluster.member(1).call("digest", json!({})).unwrap()["rows"], 10);
    cluster.member(1).put("s", "t/0", "again").unwrap();
}

fn a_member_without_data_gets_a_copy_again(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.member(1).put("s", "t/1", "x").unwrap();
    cluster.stop(1).unwrap();
    std::fs::remove_dir_all(cluster.dir.join("n2")).unwrap();
    cluster.member(0).put("s", "t/2", "y").unwrap();
    cluster.start(1, false).unwrap();
    assert!(got_a_copy(cluster.member(1)), "{:?}", sst_events(cluster.member(1)));
    assert_eq!(cluster.member(1).call("rows", json!({})).unwrap(), json!({ "t/1": "x", "t/2": "y" }));
}

fn the_named_donor_donates(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.start(1, false).unwrap();
    cluster.nodes[2].extra.insert("donor".into(), json!("n2"));
    cluster.start(2, false).unwrap();
    let donated =
        |member: &Member| sst_events(member).iter().filter(|text| text.starts_with("donate")).count();
    assert_eq!(donated(cluster.member(0)), 1, "only to n2");
    assert_eq!(donated(cluster.member(1)), 1);
}

fn a_missing_donor_is_refused_or_replaced(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    // The trailing comma allows any other.
    cluster.nodes[1].extra.insert("donor".into(), json!("nobody,"));
    cluster.start(1, false).unwrap();
    assert!(got_a_copy(cluster.member(1)));
}

fn a_donor_goes_on_committing(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.member(0).put("s", "t/1", "before").unwrap();
    cluster.member(0).ask("hold", json!({ "point": "donate" })).unwrap();
    let library = cluster.library.clone();
    cluster.configure(1, false).unwrap();
    let start = cluster.member(1).send("main", "start", json!({ "library": library }));
    let donor = cluster.member(0);
    donor.ask("wait_held", json!({ "point": "donate" })).unwrap();
    assert_eq!(donor.ask("state", json!({})).unwrap()["state"], "donor");
    assert_eq!(donor.ask("stats", json!({})).unwrap()["local_state"], 2);
    donor.put("s", "t/2", "during").unwrap();
    donor.ask("let_go", json!({ "point": "donate" })).unwrap();
    start.wait().unwrap();
    for member in cluster.running() {
        member.call("wait_state", json!({ "state": "synced" })).unwrap();
        assert_eq!(member.ask("stats", json!({})).unwrap()["local_state"], 4, "{}", member.name);
        let rows = member.call("rows", json!({ "causal": true })).unwrap();
        assert_eq!(rows, json!({ "t/1": "before", "t/2": "during" }));
    }
}

fn a_join_under_load_agrees(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.start(1, false).unwrap();
    let load: Vec<_> = cluster
        .running()
        .enumerate()
        .map(|(n, member)| {
            let args = json!({ "threads": 2, "millis": 4000, "rows": 500, "seed": n + 7 });
            member.send("load", "load_test", args)
        })
        .collect();
    cluster.start(2, false).unwrap();
    for reply in load {
        let outcome = reply.wait().unwrap();
        assert_eq!(outcome["failed"], 0, "{outcome}");
    }
}

fn a_failed_transfer_leaves_the_others_alone(cluster: &mut Cluster) {
    cluster.start(0, true).unwrap();
    cluster.nodes[1].extra.insert("sst".into(), json!("fail"));
    let library = cluster.library.clone();
    let joiner = cluster.configure(1, false).unwrap();
    let start = joiner.send("main", "start", json!({ "library": library }));
    for _ in 0..200 {
        if sst_events(cluster.member(1)).iter().any(|text| text.starts_with("failed")) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.member(0).call("wait_state", json!({ "state": "synced" })).unwrap();
    cluster.member(0).put("s", "t/1", "x").unwrap();
    // It has no data and nothing to go on with: its process ends, and nobody waits for it.
    let joiner = cluster.members[1].as_mut().unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    while joiner.is_alive() {
        assert!(Instant::now() < until, "the joiner still runs: {:?}", joiner.events());
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.kill(1);
    drop(start);
    cluster.member(0).put("s", "t/2", "y").unwrap();
    // The next attempt works.
    cluster.nodes[1].extra.remove("sst");
    std::fs::remove_dir_all(cluster.dir.join("n2")).unwrap();
    cluster.member(0).call("wait_members", json!({ "count": 1 })).unwrap();
    cluster.start(1, false).unwrap();
}

fn killed_member_rejoins(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.member(2).put("s", "t/1", "before").unwrap();
    cluster.kill(2);
    cluster.member(0).call("wait_members", json!({ "count": 2 })).unwrap();
    cluster.member(0).put("s", "t/2", "meanwhile").unwrap();
    cluster.start(2, false).unwrap();
    let rows = cluster.member(2).call("rows", json!({ "causal": true })).unwrap();
    assert_eq!(rows, json!({ "t/1": "before", "t/2": "meanwhile" }));
    cluster.member(2).put("s", "t/3", "after").unwrap();
}

fn a_leaving_member_tells_the_others(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let leaver = cluster.members[1].as_mut().unwrap();
    leaver.call("disconnect", json!({})).unwrap();
    let state = leaver.call("state", json!({})).unwrap();
    assert_eq!(state["state"], "disconnected");
    // One thread got the final view; the others may be told that there is no connection any more.
    let recv: Vec<&str> = state["recv"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(recv.len(), 4);
    assert!(recv.contains(&"OK"), "{recv:?}");
    assert!(recv.iter().all(|status| matches!(*status, "OK" | "CONN_FAIL")), "{recv:?}");
    cluster.member(0).call("wait_members", json!({ "count": 1, "limit_ms": 3000 })).unwrap();
    cluster.member(0).put("s", "t/1", "alone").unwrap();
    let refused = cluster.member(1).put("s", "t/2", "gone");
    assert!(refused.is_err(), "{refused:?}");
    cluster.kill(1);
}

fn a_cluster_that_was_stopped_starts_again(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.member(0).put("s", "t/1", "x").unwrap();
    cluster.stop(1).unwrap();
    cluster.member(0).put("s", "t/2", "y").unwrap();
    let before = cluster.member(0).call("digest", json!({})).unwrap();
    cluster.stop(0).unwrap();
    // The last to stop begins.
    cluster.start(0, true).unwrap();
    let after = cluster.member(0).call("digest", json!({})).unwrap();
    assert_eq!(after["hash"], before["hash"]);
    assert!(after["seqno"].as_i64() > before["seqno"].as_i64());
    let history = |digest: &Value| digest["position"].as_str().unwrap()[..36].to_owned();
    assert_eq!(history(&after), history(&before));
    cluster.start(1, false).unwrap();
    assert!(!got_a_copy(cluster.member(1)), "{:?}", sst_events(cluster.member(1)));
}

scenarios! {
    a_joiner_gets_a_copy: 2,
    a_stopped_member_rejoins_by_the_log: 2,
    a_member_without_data_gets_a_copy_again: 2,
    the_named_donor_donates: 3,
    a_missing_donor_is_refused_or_replaced: 2,
    a_donor_goes_on_committing: 2,
    a_join_under_load_agrees: 3,
    a_failed_transfer_leaves_the_others_alone: 2,
    killed_member_rejoins: 3,
    a_leaving_member_tells_the_others: 2,
    a_cluster_that_was_stopped_starts_again: 2,
}
