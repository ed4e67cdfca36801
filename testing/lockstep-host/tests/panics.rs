//! A member that panics leaves like any failed member. Its server gets a final view, without which it would neither reject
//! reads nor end.

mod common;

use common::*;

/// An error in the program where `place` says, in a member with so many appliers.
fn panic(cluster: &mut Cluster, place: &str, appliers: u64) {
    cluster.nodes[1].extra.insert("appliers".into(), json!(appliers));
    cluster.start_all().unwrap();
    let (a, b) = (cluster.member(0), cluster.member(1));
    a.put("s", "t/1", "x").unwrap();
    b.call("get", json!({ "row": "t/1", "causal": true })).unwrap();
    b.ask("set_options", json!({ "options": format!("debug.panic={place}") })).unwrap();
    match place {
        // Somebody leaves and comes back: views, and something to take.
        "view" | "synced" => cluster.stop(2).unwrap(),
        _ => {}
    }
    let a = cluster.member(0);
    a.put("s", "t/2", "y").unwrap();
    if place == "synced" {
        // It is told that it is Synced when it has caught up again.
        let b = cluster.member(1);
        b.ask("set_options", json!({ "options": "gmcast.isolate=1" })).unwrap();
        b.call("wait_state", json!({ "state": "connected", "limit_ms": 20_000 })).unwrap();
        b.ask("set_options", json!({ "options": "gmcast.isolate=0" })).unwrap();
    }
    let b = cluster.member(1);
    // By itself: nobody has asked it to leave.
    b.call("wait_state", json!({ "state": "disconnected", "limit_ms": 20_000 })).unwrap();
    let view = b.ask("view", json!({})).unwrap();
    assert_eq!((&view["status"], &view["members"]), (&json!("DISCONNECTED"), &json!([])), "{view}");
    let stats = b.ask("stats", json!({})).unwrap();
    assert_eq!(stats["evs_state"], "CLOSED", "{stats}");
    b.on("w", "begin", json!({})).unwrap();
    b.on("w", "put", json!({ "row": "t/3", "value": "z" })).unwrap();
    assert_eq!(code(b.on("w", "commit", json!({}))), "status:NODE_FAIL");
    let log = b.log_tail(200);
    assert!(log.contains("an error in the program") && log.contains("start"), "{log}");
    // Its server ends in no time.
    let began = Instant::now();
    b.call("disconnect", json!({})).unwrap();
    b.call("unload", json!({})).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    cluster.kill(1);
    // The others go on, and take it back.
    if place == "view" || place == "synced" {
        cluster.start(2, false).unwrap();
    }
    cluster.member(0).put("s", "t/4", "y").unwrap();
    cluster.start(1, false).unwrap();
    let rows = cluster.member(1).call("rows", json!({ "causal": true })).unwrap();
    assert_eq!(rows, json!({ "t/1": "x", "t/2": "y", "t/4": "y" }));
}

macro_rules! places {
    ($($name:ident: $place:literal $appliers:literal,)+) => { $(
        #[test]
        fn $name() {
            run(Kind::Lockstep, stringify!($name), 3, |cluster| panic(cluster, $place, $appliers));
        }
    )+ };
}

places! {
    in_ls_node_with_one_applier: "node" 1,
    in_ls_node_with_four_appliers: "node" 4,
    in_taking_with_one_applier: "take" 1,
    in_taking_with_four_appliers: "take" 4,
    after_applying_with_one_applier: "applied" 1,
    in_a_view_with_one_applier: "view" 1,
    in_a_view_with_four_appliers: "view" 4,
    when_it_is_synced_with_one_applier: "synced" 1,
}
