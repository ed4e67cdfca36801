//! Whom the server lets in, as it is asked through the allow-list service.

mod common;

use common::*;
use std::time::Instant;

const BOUNDED: &str = "pc.wait_prim_timeout=PT8S; pc.announce_timeout=PT1S";

/// A founder that knows no other member: it does not dial members outside of the allow-list.
fn found(cluster: &mut Cluster) {
    cluster.nodes[0].extra.insert("url".into(), json!("gcomm://"));
    cluster.start(0, true).unwrap();
}

fn asked(member: &Member) -> Vec<Value> {
    let rules = member.ask("allow", json!({ "ips": ["127.0.0.1"] })).unwrap();
    rules["asked"].as_array().unwrap().clone()
}

fn who_is_not_in_the_list_stays_out(cluster: &mut Cluster) {
    found(cluster);
    cluster.member(0).call("allow", json!({ "ips": ["127.0.0.9", "10.0.0.1"] })).unwrap();
    cluster.nodes[1].options = BOUNDED.into();
    let library = cluster.library.clone();
    let began = Instant::now();
    let member = cluster.configure(1, false).unwrap();
    assert_eq!(code(member.call("start", json!({ "library": library }))), "status:NODE_FAIL");
    assert!(began.elapsed() < Duration::from_secs(45), "after {:?}", began.elapsed());
    if cluster.kind == Kind::Lockstep {
        let log = cluster.members[1].as_ref().unwrap().log_tail(20);
        assert!(log.contains("INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('127.0.0.1')"), "{log}");
    }
    cluster.kill(1);
    let log = cluster.member(0).log_tail(1000);
    assert!(log.contains("Connection not allowed"), "{log}");
    cluster.member(0).put("s", "t/1", "undisturbed").unwrap();

    // Nothing but the address, and it is asked anew.
    assert!(asked(cluster.member(0)).iter().all(|ip| ip == "127.0.0.1"));
    cluster.start(1, false).unwrap();
    let seen = cluster.member(1).call("get", json!({ "row": "t/1", "causal": true })).unwrap();
    assert_eq!(seen, "undisturbed");
}

/// Somebody holds a lock on the table. Galera's library asks on its only network thread.
fn slow_allow_list_answer_delays_joiner_only(cluster: &mut Cluster) {
    found(cluster);
    cluster.start(1, false).unwrap();
    let hanging = json!({ "ips": ["127.0.0.1"], "delay_ms": 12_000 });
    for n in [0, 1] {
        cluster.member(n).call("allow", hanging.clone()).unwrap();
    }
    // The remembered answer has expired by then.
    std::thread::sleep(Duration::from_millis(10_200));
    let library = cluster.library.clone();
    let joiner = cluster.configure(2, false).unwrap().send("main", "start", json!({ "library": library }));
    let end = Instant::now() + Duration::from_secs(6);
    let mut longest = Duration::ZERO;
    while Instant::now() < end {
        let began = Instant::now();
        cluster.member(0).put("s", "t/1", "a").unwrap();
        cluster.member(1).put("s", "t/2", "b").unwrap();
        longest = longest.max(began.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    if cluster.kind == Kind::Lockstep {
        assert!(longest < Duration::from_secs(2), "two commits took {longest:?}");
    }
    // It was let in before, from this address.
    joiner.wait().unwrap();
    cluster.member(2).put("s", "t/3", "c").unwrap();
}

scenarios! {
    who_is_not_in_the_list_stays_out: 2,
}

mod lockstep_only {
    #[test]
    fn slow_allow_list_answer_delays_joiner_only() {
        let name = "a_server_that_takes_its_time";
        super::run(super::Kind::Lockstep, name, 3, super::slow_allow_list_answer_delays_joiner_only);
    }
}
