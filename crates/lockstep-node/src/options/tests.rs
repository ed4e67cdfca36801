//! The table is consistent; options are read, checked, shown and changed as they should be.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn table_is_consistent() {
    assert!(rows().is_sorted_by(|a, b| a.name < b.name), "sorted by name, no name twice");
    for row in rows() {
        let Row { name, kind, default, class, refused, help, .. } = *row;
        assert!(!help.is_empty() && !help.ends_with('.'), "{name}");
        if let Some(text) = default
            && !(text.is_empty() && kind == Kind::Text)
        {
            assert!(kind.parse(text).is_ok(), "default of {name}");
        }
        if let Class::Sets(own) = class {
            let own = rows().iter().find(|r| r.name == own).unwrap();
            assert_eq!(own.class, Class::Own, "{name}");
        }
        if let Some(Refusal { when, reason }) = refused {
            assert!(!reason.is_empty());
            match (when, kind) {
                (When::On, Kind::Bool) | (When::Above(_), Kind::Int(..)) => {}
                (When::Not(word), Kind::Enum(words)) => assert!(words.contains(&word)),
                (When::Not(""), Kind::Text) => {}
                other => panic!("{name}: {other:?}"),
            }
        }
    }
    // A default is never refused.
    let options = Options::default();
    let text = options.get_all();
    let again = Options::parse(&text).unwrap();
    assert_eq!(again.get_all(), text);
}

/// What the installed Galera 26.4 shows and takes by strings in its library: no name may be missing.
#[test]
fn every_name_of_galera() {
    let names = "base_dir base_host base_port cert.log_conflicts cert.optimistic_pa debug evs.auto_evict \
        evs.causal_keepalive_period evs.debug_log_mask evs.delay_margin evs.delayed_keep_period evs.evict \
        evs.inactive_check_period evs.inactive_timeout evs.info_log_mask evs.install_timeout evs.join_retrans_period \
        evs.keepalive_period evs.max_install_timeouts evs.send_window evs.stats_report_period evs.suspect_timeout \
        evs.use_aggregate evs.user_send_window evs.version evs.view_forget_timeout gcache.dir gcache.keep_pages_size \
        gcache.mem_size gcache.name gcache.page_size gcache.recover gcache.size gcomm.thread_prio gcs.fc_debug \
        gcs.fc_factor gcs.fc_limit gcs.fc_master_slave gcs.fc_single_primary gcs.max_packet_size gcs.max_throttle \
        gcs.recv_q_hard_limit gcs.recv_q_soft_limit gcs.stateless gcs.sync_donor gcs.vote_policy gmcast.group \
        gmcast.isolate gmcast.listen_addr gmcast.mcast_addr gmcast.mcast_ttl gmcast.peer_addr gmcast.peer_timeout \
        gmcast.segment gmcast.time_wait gmcast.version ist.keep_keys ist.recv_addr ist.recv_bind pc.announce_timeout \
        pc.bootstrap pc.checksum pc.ignore_quorum pc.ignore_sb pc.linger pc.npvo pc.recovery pc.version pc.wait_prim \
        pc.wait_prim_timeout pc.weight protonet.backend protonet.version repl.causal_read_timeout repl.commit_order \
        repl.key_format repl.max_ws_size repl.proto_max socket.checksum socket.dynamic socket.recv_buf_size \
        socket.send_buf_size socket.ssl socket.ssl_ca socket.ssl_cert socket.ssl_cipher socket.ssl_compression \
        socket.ssl_key socket.ssl_password_file socket.ssl_reload";
    for name in names.split_whitespace() {
        assert!(rows().iter().any(|row| row.name == name), "{name}");
    }
}

/// A line as operators and MariaDB's own tests write it.
#[test]
fn galera_event_line_is_parsed() {
    let o = Options::parse(
        "repl.causal_read_timeout=PT90S;base_port=16001;evs.suspect_timeout=PT10S;evs.inactive_timeout=PT30S;\
         evs.install_timeout=PT15S;pc.wait_prim_timeout=PT60S;gcache.size=10M;pc.ignore_sb=true;\
         gmcast.segment = 3; gcs.fc_limit=1K",
    )
    .unwrap();
    assert_eq!(o.time("repl.causal_read_timeout"), Duration::from_secs(90));
    assert_eq!(o.port(), 16001);
    assert_eq!(o.listen(), "tcp://0.0.0.0:16001");
    assert_eq!(o.tuning().log_bytes, 10 << 20);
    assert_eq!((o.zone(), o.int("gcs.fc_limit")), (3, 1024));
    let shown = o.get_all();
    for part in
        ["; log.size = 10M; ", "; gcache.size = 10M; ", "; gmcast.listen_addr = tcp://0.0.0.0:16001; "]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(shown.starts_with(
        "apply.delay = 0s; apply.lag_limit = 10000; apply.order = writeset; apply.pace = 0s; apply.paused = no; apply.until = none; \
         async.max_at_risk = 10000; base_dir = .; base_port = 16001; "
    ));
    assert!(shown.ends_with("; status.address = ; trx.streaming = no; "));
    let notes = o.notes();
    let has = |warn, text: &str| notes.contains(&Note { warn, text: text.to_owned() });
    assert!(has(false, "provider option gcache.size = 10M sets log.size = 10M"), "{notes:?}");
    assert!(has(
        true,
        "provider option pc.ignore_sb has no effect: only a majority writes, so one of two members stays non-Primary \
         alone; for two servers run `lockstep arbitrator` on a third machine; without a majority, `lockstep bootstrap` makes one member go on alone"
    ));
    assert_eq!(notes.len(), 7);
    assert_eq!(Options::default().notes(), []);
}

#[test]
fn ours_overrule_galeras() {
    let o = Options::parse("log.size=2G; gcache.size=1G; pc.weight=0").unwrap();
    assert_eq!(o.size("log.size"), 2 << 30);
    assert_eq!(o.text("gcache.size"), "2G");
    assert!(!o.bool("member.vote"));
    assert_eq!(
        o.notes()[0],
        Note {
            warn: true,
            text: "provider option gcache.size = 1G is overruled by log.size = 2G".to_owned()
        }
    );
    let o = Options::parse("member.vote=off").unwrap();
    assert_eq!(o.int("pc.weight"), 0);
    // Galera's own default for its cache is none for our log.
    assert_eq!(Options::default().text("gcache.size"), "1G");
    // A large cache in an old configuration does not trip over a default of ours.
    let o = Options::parse("gcache.size=20G").unwrap();
    assert_eq!(o.tuning().log_max_bytes, 20 << 30);
}

#[test]
fn promoted_member_keeps_its_vote_setting() {
    let replica = Options::parse("member.vote=no").unwrap();
    for text in
        ["member.vote=no", "member.vote=yes", "debug=no; member.vote=on", "pc.weight=0", "pc.weight=1"]
    {
        let said = replica.check_promoted(text, true).unwrap_err().to_string();
        assert!(said.contains("was promoted, or has") && said.contains("stopped in order"), "{said}");
        replica.check_promoted(text, false).unwrap();
        // One that is configured to vote, and does, or does not yet.
        Options::default().check_promoted(text, true).unwrap();
    }
    // As tools do that save all options and set them again.
    for text in ["debug=no", "debug=no; member.vote=off", &replica.get_all()] {
        replica.check_promoted(text, true).unwrap();
    }
    let said = replica.clone().set("member.vote=yes", true).unwrap_err().to_string();
    assert!(said.contains("cannot change while running") && said.contains("lockstep promote"), "{said}");
}

#[test]
fn tuning_defaults_are_the_nodes() {
    let (from_table, own) = (Options::default().tuning(), crate::api::Tuning::default());
    assert_eq!(format!("{from_table:?}"), format!("{own:?}"));
}

#[test]
fn filled_in_is_not_given() {
    let mut o = Options::default();
    o.fill("base_host", "10.0.0.1").unwrap();
    o.fill("gcache.dir", "/data").unwrap();
    assert!(o.get_all().contains("base_host = 10.0.0.1; "));
    assert!(o.get_all().contains("gcache.dir = /data; "));
    assert_eq!(o.log_dir(), None);
    assert!(!o.is_given("base_host"));
    assert_eq!(o.notes(), []);
    assert_eq!(Options::parse("gcache.dir=/fast").unwrap().log_dir(), Some("/fast".into()));
    assert!(o.fill("base_port", "x").is_err());
}

#[test]
fn errors_are_one_line_each() {
    for (text, expected) in [
        ("gcache.sise=1G", "Unknown parameter 'gcache.sise': did you mean 'gcache.size'?"),
        ("frobnicate=1", "Unknown parameter 'frobnicate': docs/options.md lists them all"),
        ("pc.weight=x", "provider option pc.weight = 'x': must be a number, 0 to 255"),
        (
            "pc.weight=2",
            "provider option pc.weight = '2' is refused: a member has one vote or none; for two servers run `lockstep arbitrator` on a third \
             machine; without a majority, `lockstep bootstrap` makes one member go on alone",
        ),
        (
            "commit.policy=some",
            "provider option commit.policy = 'some': must be one of quorum, async, semisync, all",
        ),
        ("net.compress=yes", "provider option net.compress = 'yes': must be one of off, zone, all"),
        (
            "apply.until=yesterday",
            "provider option apply.until = 'yesterday': must be none, a seqno, a GTID (UUID:seqno), or a time in UTC such \
             as 2030-01-31 23:59:59",
        ),
        (
            "log.keep_min=1h",
            "provider option log.keep_min = '1h': must be a duration such as 500ms, 10s, 2min, 1h, 1d or PT10S, 0s to 45min",
        ),
        (
            "log.size=1G; log.max_size=1M",
            "provider options: log.size = 1G is more than log.max_size = 1M: raise log.max_size",
        ),
        (
            "net.heartbeat=1s",
            "provider options: cluster.election_timeout = 600ms is less than three times net.heartbeat = 1s: members would stand for election without need",
        ),
    ] {
        assert_eq!(Options::parse(text).unwrap_err().to_string(), expected);
    }
    for (text, refused) in [("apply.pace=0", false), ("apply.pace=499ms", true), ("apply.pace=PT0.5S", false)]
    {
        assert_eq!(Options::parse(text).is_err(), refused, "{text}");
    }
    for text in ["pc.ignore_quorum=yes", "socket.ssl_password_file=/p", "gmcast.isolate=2"] {
        assert!(matches!(Options::parse(text), Err(OptionError::Refused { .. })), "{text}");
    }
    for text in ["commit.policy=quorum", "commit.policy=all", "commit.policy=Async", "commit.policy=semisync"]
    {
        assert!(Options::parse(text).is_ok(), "{text}");
        assert!(Options::default().set(text, true).is_ok(), "{text}");
    }
    assert!(Options::parse("net.heartbeat=1s; cluster.election_timeout=5s").is_ok());
}

#[test]
fn while_running() {
    let mut o = Options::parse("gcs.fc_limit=20").unwrap();
    let before = o.get_all();
    assert_eq!(o.set("base_port=4568", true), Err(OptionError::Fixed { name: "base_port" }));
    assert!(matches!(o.set("debug=on; nonsense=1", true), Err(OptionError::Unknown { .. })));
    assert!(o.set("debug=on; log.size=x", true).is_err());
    assert!(o.set("debug=on; log.max_size=1", true).is_err());
    assert_eq!(o.get_all(), before);

    // The same value again is no change, even of what cannot change.
    assert_eq!(o.set("base_port=4567; gcs.fc_limit=20", true), Ok(vec![]));
    let change = |name, value: &str| Change { name, value: value.to_owned() };
    assert_eq!(
        o.set("debug=on; log.size=2G;", true),
        Ok(vec![change("debug", "on"), change("log.size", "2G")])
    );
    assert_eq!(o.set("debug=1", true), Ok(vec![]));
    assert!(o.bool("debug"));
    assert_eq!(o.set("debug=0; debug=1; debug=0", true), Ok(vec![change("debug", "0")]));
    // Commands act each time.
    for _ in 0..2 {
        assert_eq!(o.set("pc.bootstrap=1", true), Ok(vec![change("pc.bootstrap", "1")]));
    }
    assert_eq!(o.set("gmcast.isolate=1", true), Ok(vec![change("gmcast.isolate", "1")]));
    assert!(!o.get_all().contains("isolate"));
    let changes = o.set("gcs.fc_limit=30", true).unwrap();
    assert_eq!(o.notes_on(&changes).len(), 1);
}

proptest! {
    /// Any text is either refused without a change, or accepted and then shown with the same meaning.
    #[test]
    fn shown_is_read(
        parts in prop::collection::vec((any::<prop::sample::Index>(), "[ -~]{0,6}|[0-9]{1,4}[KMG]?|yes|no|PT[0-9]S"), 0..6),
        running in any::<bool>(),
    ) {
        let text: String =
            parts.iter().map(|(at, value)| format!("{} = {value}; ", rows()[at.index(rows().len())].name)).collect();
        let mut options = Options::default();
        let before = options.get_all();
        match options.set(&text, running) {
            Err(error) => {
                prop_assert!(!error.to_string().contains('\n'));
                prop_assert_eq!(options.get_all(), before);
            }
            Ok(_) => {
                let shown = options.get_all();
                prop_assert_eq!(Options::parse(&shown).unwrap().get_all(), shown);
                let _ = (options.tuning(), options.notes());
            }
        }
    }
}

#[test]
fn encryption_is_asked_for_as_in_galera() {
    let tls = |text: &str| Options::parse(text).unwrap().tls();
    let files = |ca: Option<&str>| lockstep_net::TlsFiles {
        cert: "/c".into(),
        key: "/k".into(),
        ca: ca.map(Into::into),
    };
    assert_eq!(tls(""), None);
    assert_eq!(tls("socket.ssl=no; socket.ssl_key=/k"), None);
    let both = "socket.ssl_key=/k; socket.ssl_cert=/c";
    assert_eq!(tls(both), Some(crate::TlsOptions { files: files(None), dynamic: false }));
    assert_eq!(tls(&format!("socket.ssl=yes; {both}")), tls(both));
    let all = format!("socket.dynamic=true; {both}; socket.ssl_ca=/ca");
    assert_eq!(tls(&all), Some(crate::TlsOptions { files: files(Some("/ca")), dynamic: true }));
    for half in ["socket.ssl=yes", "socket.ssl_key=/k", "socket.ssl_cert=/c"] {
        let error = Options::parse(half).unwrap_err();
        assert!(matches!(error, OptionError::Combination { .. }), "{half}: {error}");
        assert!(error.to_string().contains("socket.ssl needs socket.ssl_"), "{error}");
    }
    let mut options = Options::parse(both).unwrap();
    assert!(options.text("gmcast.listen_addr").starts_with("ssl://"));
    // A command: each time anew. The server's FLUSH SSL looks for its name among all, and for nothing else.
    assert!(!Options::default().get_all().contains("socket.ssl_reload"));
    for _ in 0..2 {
        assert!(options.get_all().contains("; socket.ssl_reload = 0; "), "{}", options.get_all());
        assert_eq!(options.set("socket.ssl_reload=1", true).unwrap().len(), 1);
    }
    // Among other options, as when all shown values are set again, it does nothing.
    let all = options.get_all();
    let changes = options.set(&all, true).unwrap();
    assert!(!options.bool("socket.ssl_reload"), "{changes:?}");
    assert!(options.values().iter().all(|(row, _)| !row.command));
    assert_eq!(
        options.set("socket.ssl_key=/other", true),
        Err(OptionError::Fixed { name: "socket.ssl_key" })
    );
    let dynamic = Options::parse("socket.dynamic=yes").unwrap();
    assert!(dynamic.notes()[0].text.contains("not encrypted"));
}

#[test]
fn until_is_a_place_or_a_time() {
    use crate::api::Until;
    use lockstep_core::Gtid;
    let of = |text: &str| Options::parse(&format!("apply.until = {text}")).unwrap().tuning().apply_hold.until;
    assert_eq!(of("none"), None);
    assert_eq!(of("1234"), Some(Until::Seqno(1234)));
    let uuid = "6e6f7420-6120-7265-616c-207575696421";
    let gtid = Gtid { uuid: lockstep_core::Uuid::parse(uuid).unwrap(), seqno: 77 };
    assert_eq!(of(&format!("{uuid}:77")), Some(Until::Gtid(gtid)));
    let time = Some(Until::Time(1_900_000_000_000_000));
    for text in ["2030-03-17 17:46:40", "2030-03-17T17:46:40Z", "2030-03-17 18:46:40+01:00"] {
        assert_eq!(of(text), time, "{text}");
    }
    assert_eq!(of("2030-03-17 17:46:40.5"), Some(Until::Time(1_900_000_000_500_000)));
    for text in ["-1", "2030-03-17", "2030-13-17 00:00:00", "1:2:3", "x:5"] {
        assert!(Options::parse(&format!("apply.until = {text}")).is_err(), "{text}");
    }
}
