//! Members form clusters, replicate, and agree.

mod common;

use common::*;

fn two_members_replicate(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    let first = a.put("s", "t/1", "from a").unwrap();
    let second = b.put("s", "t/2", "from b").unwrap();
    assert!(second["seqno"].as_i64() > first["seqno"].as_i64(), "{first} {second}");
    for member in [a, b] {
        assert_eq!(member.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "from a");
        assert_eq!(member.call("get", json!({ "row": "t/2", "causal": true })).unwrap(), "from b");
    }
}

fn three_members_agree_on_one_order(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let pending: Vec<_> = cluster
        .running()
        .enumerate()
        .map(|(n, member)| {
            member.send(
                "load",
                "load_test",
                json!({ "threads": 3, "millis": 700, "rows": 50, "seed": n + 1 }),
            )
        })
        .collect();
    let mut committed = 0;
    for reply in pending {
        let outcome = reply.wait().unwrap();
        assert_eq!(outcome["failed"], 0, "{outcome}");
        committed += outcome["committed"].as_i64().unwrap();
    }
    assert!(committed > 30, "only {committed} transactions got through");
    cluster.agree().unwrap();

    let histories: Vec<Vec<Value>> = cluster
        .running()
        .map(|member| {
            let view = member.call("view", json!({})).unwrap();
            let from = view["state_id"].as_str().unwrap().rsplit(':').next().unwrap().parse::<i64>().unwrap();
            let history = member.call("history", json!({ "from": from + 1 })).unwrap();
            // A place may be a dummy on one member and a failed transaction on its origin; what changes rows
            // must be the same everywhere.
            let changes = history
                .as_array()
                .unwrap()
                .iter()
                .filter(|entry| matches!(entry[1].as_str(), Some("commit" | "replay")));
            changes.map(|entry| json!([entry[0], entry[2], entry[3]])).collect()
        })
        .collect();
    assert!(histories[0].len() as i64 >= committed, "{} places, {committed} commits", histories[0].len());
    assert_eq!(histories[0], histories[1]);
    assert_eq!(histories[0], histories[2]);
}

/// Everything at once, on few rows: conflicts, replays, streams, statements.
fn a_mixed_load_agrees(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let mixed = json!({ "threads": 4, "millis": 2500, "rows": 40, "writes": 3, "streams": 15, "gaps": 25,
                        "statements": 3, "rollbacks": 10 });
    let pending: Vec<_> = cluster
        .running()
        .enumerate()
        .map(|(n, member)| {
            let mut args = mixed.clone();
            args["seed"] = json!(n + 1);
            member.send("load", "load_test", args)
        })
        .collect();
    for reply in pending {
        let outcome = reply.wait().unwrap();
        assert_eq!(outcome["failed"], 0, "{outcome}");
        assert!(outcome["committed"].as_i64() > Some(10), "{outcome}");
    }
    cluster.agree().unwrap();
    for member in cluster.running() {
        let state = member.ask("state", json!({})).unwrap();
        assert_eq!((&state["streams"], &state["locks"]), (&json!(0), &json!(0)), "{}: {state}", member.name);
    }
}

scenarios! {
    a_mixed_load_agrees: 3,
    two_members_replicate: 2,
    three_members_agree_on_one_order: 3,
}
