//! What newer servers ask of a provider, and are told by it, beside the function table.

mod common;

use common::*;

/// A member that comes back tells how far it is from being Synced.
fn progress_is_told_while_a_member_catches_up(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.stop(1).unwrap();
    for n in 0..2500 {
        cluster.member(0).put("s", "t/1", &format!("{n}")).unwrap();
    }
    cluster.start(1, false).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let events = cluster.member(1).call("events", json!({})).unwrap();
    let told: Vec<&Value> =
        events.as_array().unwrap().iter().filter(|e| e[0] == "progress").map(|e| &e[1]).collect();
    for event in &told {
        for field in ["from", "to", "total", "done", "undefined"] {
            assert!(event[field].is_i64(), "{field} in {event}");
        }
        assert!(event["done"].as_i64() <= event["total"].as_i64(), "{event}");
    }
    let last = told.last().unwrap();
    assert_eq!(last["to"], 4, "on its way to Synced: {events}");
    if cluster.kind == Kind::Lockstep {
        assert_eq!((last["from"].as_i64(), told[0]["done"].as_i64()), (Some(3), Some(0)), "{events}");
        // It is Synced when a few are left.
        assert!(last["total"].as_i64() >= Some(2500) && last["done"].as_i64() >= Some(1400), "{events}");
    }
}

/// As member 3 sees it. It is asked by both versions of the service; between them the view may change.
fn ask(cluster: &Cluster) -> Value {
    let mut answers = (0..5).map(|_| cluster.member(2).call("membership", json!({})));
    answers.find_map(Result::ok).unwrap()
}

/// Who is there now. Galera's library of Debian 12 does not export this service.
fn the_membership_can_be_asked_for(cluster: &mut Cluster) {
    assert_eq!(cluster.kind, Kind::Lockstep);
    cluster.start_all().unwrap();
    cluster.member(0).put("s", "t/1", "a").unwrap();
    let view = cluster.member(2).call("view", json!({})).unwrap();
    let known = |all: &Value| {
        let mut ids: Vec<String> =
            all.as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    // What others know of a member is a fraction of a second old.
    std::thread::sleep(Duration::from_millis(600));
    let seen = ask(cluster);
    assert_eq!(seen["status"], "PRIMARY");
    let members = seen["members"].as_array().unwrap();
    let ids: Value = members.iter().map(|m| m["id"].clone()).collect();
    assert_eq!(known(&ids), known(&view["ids"]));
    let mut names: Vec<&str> = members.iter().map(|m| m["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["n1", "n2", "n3"]);
    for member in members {
        assert_eq!(member["status"], "SYNCED", "{member}");
        assert_eq!(member["last_committed"], seen["seqno"], "{member}");
    }
    let leaders = members.iter().filter(|m| m["flags"].as_u64().unwrap() & 1 != 0).count();
    assert_eq!(leaders, 1, "{seen}");

    cluster.kill(0);
    cluster.kill(1);
    let end = std::time::Instant::now() + Duration::from_secs(20);
    let mut alone = ask(cluster);
    while alone["status"] != "NON_PRIMARY" || alone["members"].as_array().unwrap().len() != 1 {
        assert!(std::time::Instant::now() < end, "{alone}");
        std::thread::sleep(Duration::from_millis(50));
        alone = ask(cluster);
    }
    assert_eq!(alone["members"][0]["name"], "n3", "{alone}");
}

scenarios! {
    progress_is_told_while_a_member_catches_up: 2,
}

mod lockstep_only {
    #[test]
    fn the_membership_can_be_asked_for() {
        let name = "the_membership_can_be_asked_for";
        super::run(super::Kind::Lockstep, name, 3, super::the_membership_can_be_asked_for);
    }
}
