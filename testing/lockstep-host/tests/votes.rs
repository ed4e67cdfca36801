//! Members whose servers come to different results.

mod common;

use common::*;

/// A write-set of member 1 that these cannot apply.
fn write_failing(cluster: &Cluster, failing: &[&str]) {
    let a = cluster.member(0);
    a.on("s", "begin", json!({})).unwrap();
    a.on("s", "put", json!({ "row": "t/1", "value": "x" })).unwrap();
    for member in failing {
        a.on("s", "fail_on", json!({ "member": member })).unwrap();
    }
    a.on("s", "commit", json!({})).unwrap();
}

fn is_out(member: &Member) -> bool {
    match member.ask("stats", json!({})) {
        Ok(stats) => stats["local_state"] != 4,
        Err(_) => true,
    }
}

fn wait_out(member: &Member) {
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !is_out(member) {
        assert!(std::time::Instant::now() < end, "{} does not leave", member.name);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn one_of_three_fails_and_leaves(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    write_failing(cluster, &["n3"]);
    for n in [0, 1] {
        cluster.member(n).call("wait_members", json!({ "count": 2 })).unwrap();
    }
    wait_out(cluster.member(2));
    cluster.member(1).put("s", "t/2", "y").unwrap();
    let log = cluster.member(2).log_tail(1000);
    assert!(log.contains("Inconsistent by consensus on"), "{log}");
    cluster.kill(2);
}

fn two_of_three_fail_alike_and_the_third_leaves(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    write_failing(cluster, &["n2", "n3"]);
    for n in [1, 2] {
        cluster.member(n).call("wait_members", json!({ "count": 2 })).unwrap();
    }
    wait_out(cluster.member(0));
    let log = cluster.member(0).log_tail(1000);
    assert!(log.contains("is inconsistent with group"), "{log}");
    cluster.kill(0);
    cluster.member(1).put("s", "t/2", "y").unwrap();
    let seen = cluster.member(2).call("get", json!({ "row": "t/2", "causal": true })).unwrap();
    assert_eq!(seen, "y");
    // Neither of them has the failed change.
    for n in [1, 2] {
        assert_eq!(cluster.member(n).call("get", json!({ "row": "t/1" })).unwrap(), Value::Null);
    }
}

fn one_of_two_fails_and_leaves(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    write_failing(cluster, &["n2"]);
    cluster.member(0).call("wait_members", json!({ "count": 1 })).unwrap();
    wait_out(cluster.member(1));
    cluster.member(0).put("s", "t/2", "y").unwrap();
    cluster.kill(1);
}

/// With `gcs.vote_policy = 1` one success outvotes any number of failures.
fn one_success_is_enough_where_it_is_told_to_be(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        node.options = "gcs.vote_policy=1".into();
    }
    cluster.start_all().unwrap();
    write_failing(cluster, &["n2", "n3"]);
    wait_out(cluster.member(1));
    wait_out(cluster.member(2));
    cluster.member(0).call("wait_members", json!({ "count": 1 })).unwrap();
    cluster.member(0).put("s", "t/2", "y").unwrap();
    cluster.kill(1);
    cluster.kill(2);
}

scenarios! {
    one_of_three_fails_and_leaves: 3,
    two_of_three_fail_alike_and_the_third_leaves: 3,
    one_of_two_fails_and_leaves: 2,
    one_success_is_enough_where_it_is_told_to_be: 3,
}
