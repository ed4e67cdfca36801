//! Services of newer servers beside the function table.

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

/// The present members. Galera's library of Debian 12 does not export this service.
fn membership_can_be_queried(cluster: &mut Cluster) {
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
    // Other members' knowledge of a member is a fraction of a second old.
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

const NOT_ISOLATED: u32 = 0;
const ISOLATED: u32 = 1;
const FORCE_DISCONNECT: u32 = 2;

fn isolation(member: &Member, mode: u32) -> Value {
    member.ask("isolation", json!({ "mode": mode })).unwrap()
}

fn is_in(member: &Member, status: &str, members: usize) {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let view = member.call("view", json!({})).unwrap();
        if view["status"] == status && view["members"].as_array().unwrap().len() == members {
            return;
        }
        assert!(Instant::now() < end, "{}: {view}, but {status} with {members} was due", member.name);
        std::thread::sleep(Duration::from_millis(30));
    }
}

/// What a server calls in its handler of fatal signals: nothing of it reaches the others any more. They go on; were it to
/// live on, it could come back.
fn a_crashing_server_cuts_itself_off(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, c) = (cluster.member(0), cluster.member(2));
    a.put("s", "t/1", "before").unwrap();
    assert_eq!(isolation(c, 77), 1, "no such mode");
    a.put("s", "t/2", "still together").unwrap();
    c.call("get", json!({ "row": "t/2", "causal": true })).unwrap();
    assert_eq!(isolation(c, ISOLATED), 0);
    is_in(c, "NON_PRIMARY", 1);
    is_in(a, "PRIMARY", 2);
    a.put("s", "t/3", "without it").unwrap();
    let alone = code(c.put("s", "t/4", "by nobody"));
    assert!(!alone.starts_with("ok"), "{alone}");
    assert_eq!(isolation(c, NOT_ISOLATED), 0);
    c.call("wait_state", json!({ "state": "synced" })).unwrap();
    is_in(a, "PRIMARY", 3);
    let row = c.call("get", json!({ "row": "t/3", "causal": true })).unwrap();
    assert_eq!(row, "without it");
}

/// No server asks for this one: it is taken as the other is.
fn forced_disconnect_cuts_member_off(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    let (a, c) = (cluster.member(0), cluster.member(2));
    assert_eq!(isolation(c, FORCE_DISCONNECT), 0);
    is_in(c, "NON_PRIMARY", 1);
    is_in(a, "PRIMARY", 2);
    a.put("s", "t/1", "without it").unwrap();
    assert_eq!(isolation(c, NOT_ISOLATED), 0);
    c.call("wait_state", json!({ "state": "synced" })).unwrap();
    is_in(a, "PRIMARY", 3);
}

/// The server writes a file for each event, and its disk hangs.
fn server_hanging_in_event_callback_blocks_nothing(cluster: &mut Cluster) {
    cluster.start_all().unwrap();
    cluster.stop(1).unwrap();
    for n in 0..2500 {
        cluster.member(0).put("s", "t/1", &format!("{n}")).unwrap();
    }
    let library = cluster.library.clone();
    let b = cluster.configure(1, false).unwrap();
    b.call("slow_events", json!({ "ms": 60_000 })).unwrap();
    let began = Instant::now();
    b.call("start", json!({ "library": library })).unwrap();
    b.call("wait_state", json!({ "state": "synced", "limit_ms": 30_000 })).unwrap();
    cluster.member(0).put("s", "t/1", "last").unwrap();
    let b = cluster.member(1);
    assert_eq!(b.call("get", json!({ "row": "t/1", "causal": true })).unwrap(), "last");
    assert_eq!(b.call("events", json!({})).unwrap(), json!([]), "it hangs in the first one");
    cluster.stop(1).unwrap();
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
}

scenarios! {
    progress_is_told_while_a_member_catches_up: 2,
    a_crashing_server_cuts_itself_off: 3,
}

mod lockstep_only {
    #[test]
    fn forced_disconnect_cuts_member_off() {
        let name = "forced_disconnect_cuts_member_off";
        super::run(super::Kind::Lockstep, name, 3, super::forced_disconnect_cuts_member_off);
    }

    #[test]
    fn server_hanging_in_event_callback_blocks_nothing() {
        let name = "a_server_that_hangs_in_an_event";
        super::run(super::Kind::Lockstep, name, 2, super::server_hanging_in_event_callback_blocks_nothing);
    }

    #[test]
    fn membership_can_be_queried() {
        let name = "membership_can_be_queried";
        super::run(super::Kind::Lockstep, name, 3, super::membership_can_be_queried);
    }
}
