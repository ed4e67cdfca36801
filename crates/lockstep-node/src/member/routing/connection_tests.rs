//! How long a start waits for others.

use crate::api::{ApplyHold, ConnectArgs, LocalState, SubmitOutcome, Tuning};
use crate::member::context::ConnectionState;
use crate::member::harness::Lab;
use lockstep_core::certify::reaches;
use lockstep_core::{Gtid, Uuid};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.ctx.connection().is_primary()
}

#[test]
fn member_after_full_outage_waits_for_others() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.write(0);
    lab.run(1_000_000);
    for at in 1..3 {
        lab.cut(at, true);
    }
    let state = lab.nodes[0].member.ctx.raft.committed_state();
    let position = Gtid { uuid: state.history, seqno: state.seqno };
    let patiently = |waits: bool| {
        move |args: &mut ConnectArgs| {
            args.position = position;
            args.timeout = Duration::from_secs(30);
            args.waits_for_others = waits;
        }
    };
    lab.restart(0, patiently(false));
    lab.run(40_000_000);
    assert_eq!(*lab.nodes[0].member.ctx.connection(), ConnectionState::Idle, "as long as was said");
    lab.restart(0, patiently(true));
    lab.run(600_000_000);
    assert!(matches!(lab.nodes[0].member.ctx.connection(), ConnectionState::Connecting { .. }));
    lab.cut(1, false);
    lab.cut(2, true);
    lab.restart(1, patiently(true));
    lab.until("two of three go on", 20_000_000, |lab| primary(lab, 0) && primary(lab, 1));
}

#[test]
fn held_server_is_told_synced_when_quorum_is_back() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.write(0);
    let synced = |lab: &Lab| {
        *lab.nodes[2].member.ctx.connection() == ConnectionState::Running { primary: true, synced: true }
    };
    lab.until("it is synced", 5_000_000, synced);
    lab.nodes[2].member.desync();
    assert_eq!(lab.nodes[2].member.local_state(), LocalState::Donor);
    lab.cut(2, true);
    lab.until("it knows", 20_000_000, |lab| !primary(lab, 2));
    lab.cut(2, false);
    // Until it is told that it is synced, the server refuses all queries.
    lab.until("it is synced again", 20_000_000, synced);
    assert_eq!(lab.nodes[2].member.local_state(), LocalState::Donor, "to all who look");
    lab.nodes[2].member.resync();
    lab.until("it lags no more", 5_000_000, |lab| lab.nodes[2].member.local_state() == LocalState::Synced);
}

#[test]
fn steady_lag_desyncs_once_and_small_lag_resyncs() {
    for (lag_limit, back) in [(10, 5), (3000, 1024)] {
        let mut lab = Lab::new(2, &Tuning { lag_limit, ..Tuning::default() });
        lab.run(1_000_000);
        lab.nodes[1].database_hangs = true;
        let behind = |lab: &mut Lab, lag: i64| {
            let agreed = lab.nodes[0].member.ctx.raft.committed_state().seqno;
            lab.nodes[1].finished.store(agreed - lag, Ordering::Release);
            lab.run(2_000_000);
            lab.nodes[1].member.local_state()
        };
        let logged = |lab: &Lab| {
            lab.lines.iter().filter(|(at, line)| *at == 1 && line.contains("Desynced until")).count()
        };
        for _ in 0..lag_limit + 1 {
            lab.write(0);
        }
        lab.run(1_000_000);
        let limit = lag_limit as i64;
        assert_eq!((behind(&mut lab, limit), logged(&lab)), (LocalState::Donor, 1), "{limit}");
        assert_eq!(behind(&mut lab, back + 1), LocalState::Donor, "{limit}");
        assert_eq!(behind(&mut lab, back), LocalState::Synced, "{limit}");
        assert_eq!(behind(&mut lab, limit), LocalState::Synced, "{limit}");
        assert_eq!(logged(&lab), 1, "{:#?}", lab.lines);
        assert_eq!((behind(&mut lab, limit + 1), logged(&lab)), (LocalState::Donor, 2), "{limit}");
    }
}

#[test]
fn member_reports_bytes_behind() {
    let mut lab = Lab::new(2, &Tuning::default());
    lab.run(1_000_000);
    let bytes = |lab: &Lab| lab.members(1).into_iter().find(|m| m.name == "n2").unwrap().lag_bytes;
    assert_eq!(bytes(&lab), Some(0));
    let write = |lab: &mut Lab| {
        for _ in 0..20 {
            lab.write_bytes(0, &[7; 1000]);
        }
        lab.run(1_000_000);
    };
    // Delivered to its server, which applies nothing.
    lab.nodes[1].database_hangs = true;
    write(&mut lab);
    let one = bytes(&lab).unwrap();
    assert!((20_000..30_000).contains(&one), "{one}");
    // Held back from the server.
    let apply_hold = ApplyHold { paused: true, ..ApplyHold::default() };
    lab.nodes[1].member.set_tuning(Tuning { apply_hold, ..Tuning::default() });
    write(&mut lab);
    let both = bytes(&lab).unwrap();
    assert!((40_000..60_000).contains(&both), "{both}");
    let of_the_first = lab.members(0).into_iter().find(|m| m.name == "n2").unwrap();
    assert_eq!((of_the_first.lag_trx, of_the_first.lag_bytes), (Some(40), None), "it knows of itself only");
    lab.nodes[1].member.set_tuning(Tuning::default());
    lab.nodes[1].database_hangs = false;
    lab.run(1_000_000);
    assert_eq!(bytes(&lab), Some(0));
}

/// Galera's members stop one after the other, and one that stopped early founds the cluster. The seqnos from there on
/// are assigned again, while the others have them for other transactions.
#[test]
fn data_beyond_log_beginning_need_state_transfer() {
    let history = Uuid([0x99; 16]);
    let at = |seqno| Gtid { uuid: history, seqno };
    let mut lab = Lab::new(0, &Tuning::default());
    lab.data = (at(407), Uuid::NIL);
    lab.add(&Tuning::default(), |_| {});
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 0));
    for _ in 0..30 {
        lab.write(0);
        lab.run(10_000);
    }
    let log = lab.nodes[0].member.ctx.raft.committed_state().log_id;
    let came =
        |lab: &Lab, n: usize, text: &str| lab.lines.iter().any(|(m, line)| *m == n && line.contains(text));
    // Without a log of its own; the same data are accepted if they came with this log.
    for (n, (data, by_log)) in [
        ((at(419), Uuid::NIL), false),
        ((at(419), Uuid([1; 16])), false),
        ((at(419), log), true),
        ((at(407), Uuid::NIL), true),
    ]
    .into_iter()
    .enumerate()
    {
        lab.data = data;
        lab.add(&Tuning::default(), |_| {});
        lab.until("it is Primary", 20_000_000, |lab| primary(lab, n + 1));
        let line = match by_log {
            true => format!("goes on from seqno {} by the log", data.0.seqno),
            false => "the state must be transferred: the database is at seqno 419, but this cluster was founded on data at seqno \
                      407"
                .into(),
        };
        assert!(came(&lab, n + 1, &line), "{:#?}", lab.lines);
    }
}

/// A member with data beyond the founding gets the new log first, and is killed before it asks for a state. Its own log
/// then is the cluster's, and its data are not.
#[test]
fn member_killed_between_new_log_and_state_needs_transfer() {
    let history = Uuid([0x99; 16]);
    let mut lab = Lab::new(0, &Tuning::default());
    lab.data = (Gtid { uuid: history, seqno: 407 }, Uuid::NIL);
    lab.add(&Tuning::default(), |_| {});
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 0));
    lab.data = (Gtid { uuid: history, seqno: 419 }, Uuid::NIL);
    lab.add(&Tuning::default(), |_| {});
    lab.nodes[1].copy_takes_long = true;
    for _ in 0..30 {
        lab.write(0);
        lab.run(10_000);
    }
    let log = lab.nodes[0].member.ctx.raft.committed_state().log_id;
    lab.until("n2 has the log", 20_000_000, |lab| lab.nodes[1].member.ctx.raft.committed_state().seqno > 425);
    assert_eq!(lab.nodes[1].member.ctx.raft.tail_state().log_id, log);
    for (names, line) in [
        (
            Uuid::NIL,
            "the state must be transferred: the database is at seqno 419, but this cluster was founded",
        ),
        (
            Uuid([1; 16]),
            "the state must be transferred: the database is at seqno 419, but this cluster was founded",
        ),
        (log, "goes on from seqno 419 by the log"),
    ] {
        lab.lines.clear();
        lab.restart(1, |args| {
            (args.position, args.log) = (Gtid { uuid: history, seqno: 419 }, names);
        });
        lab.until(line, 20_000_000, |lab| lab.lines.iter().any(|(n, text)| *n == 1 && text.contains(line)));
    }
}

#[test]
fn only_server_whose_state_file_names_no_log_trusts_its_own() {
    let history = Uuid([0x99; 16]);
    let mut lab = Lab::new(0, &Tuning::default());
    lab.data = (Gtid { uuid: history, seqno: 407 }, Uuid::NIL);
    lab.add(&Tuning::default(), |_| {});
    lab.until("it is Primary", 1_000_000, |lab| primary(lab, 0));
    for _ in 0..5 {
        lab.write(0);
        lab.run(10_000);
    }
    lab.restart(0, |args| (args.position, args.log) = (Gtid { uuid: history, seqno: 410 }, Uuid::NIL));
    lab.until("it goes on", 5_000_000, |lab| lab.logged("goes on from seqno 410 by the log"));
    assert!(lab.logged("grastate.dat does not say to which log the data belong"));
}

#[test]
fn status_after_leave_shows_when_others_disconnected() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(300_000_000);
    lab.nodes[2].member.disconnect();
    lab.run(3_000_000);
    assert_eq!(*lab.nodes[2].member.ctx.connection(), ConnectionState::Idle);
    for member in lab.members(2).iter().filter(|m| m.name != "n3") {
        assert!(member.gone_seconds.is_some_and(|gone| gone < 4.0), "{member:?}");
    }
}

#[test]
fn silent_member_is_shown_without_leader_and_after_loss() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(2_000_000);
    (lab.nodes[0].frozen, lab.nodes[1].frozen) = (true, true);
    lab.run(5_000_000);
    let others = |lab: &Lab| -> Vec<(String, f64)> {
        let members = lab.members(2).into_iter().filter(|m| m.name != "n3");
        members.map(|m| (m.state, m.gone_seconds.unwrap_or(-1.0))).collect()
    };
    let is_gone = |lab: &Lab, wanted: &str| {
        others(lab).iter().all(|(state, gone)| state == wanted && (4.5..6.5).contains(gone))
    };
    assert!(lab.nodes[2].member.ctx.raft.leader().is_none());
    assert!(is_gone(&lab, "Silent"), "{:?}", others(&lab));
    let waits_for = lab.nodes[2].member.waits_for().unwrap_or_default();
    assert!(waits_for.contains("nothing has come for a while from n1, n2;"), "{waits_for}");
    let ids = [lab.id(0), lab.id(1)];
    ids.into_iter().for_each(|id| lab.nodes[2].member.peer_down(id, "it is dead"));
    lab.run(1_000_000);
    assert!(is_gone(&lab, "Disconnected"), "{:?}", others(&lab));
}

#[test]
fn member_with_new_address_does_not_dial_old_one() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.cut(0, true);
    lab.cut(2, true);
    let old = lab.nodes[0].member.ctx.me().address.clone();
    lab.nodes[0].member.ctx.me_mut().address = "10.0.0.1:4999".into();
    lab.dials.clear();
    lab.restart(0, |_| {});
    lab.run(1_000_000);
    let dialed: Vec<&str> = lab.dials.iter().filter(|(n, _)| *n == 0).map(|(_, to)| to.as_str()).collect();
    assert!(dialed.contains(&"10.0.0.2:4567") && !dialed.contains(&old.as_str()), "{dialed:?}");
    let own = |lab: &Lab| lab.members(0).into_iter().find(|m| m.name == "n1").map(|m| m.address);
    assert_eq!(own(&lab).as_deref(), Some("10.0.0.1:4999"));
    // Another member is at that address now.
    lab.nodes[0].member.ctx.dial("10.0.0.3:4567".into());
    lab.run(1_000);
    assert!(lab.dials.contains(&(0, "10.0.0.3:4567".into())));
}

#[test]
fn wait_report_without_cluster_says_what_to_do() {
    let mut lab = Lab::new(1, &Tuning::default());
    lab.cut(0, true);
    lab.data = (Gtid { uuid: Uuid([0x99; 16]), seqno: 419 }, Uuid::NIL);
    for n in 1..3 {
        lab.add(&Tuning::default(), |_| {});
        lab.cut(0, true);
        assert!(lab.nodes[n].member.waits_for().is_some());
    }
    lab.run(11_000_000);
    assert!(
        lab.logged("connected to n3, but nobody has a log")
            && lab.logged(":419). Stop that one, set safe_to_bootstrap")
    );
    // A read replica has the log; the only voter has lost its own.
    let mut lab = Lab::new(1, &Tuning::default());
    lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
    lab.run(1_000_000);
    lab.add(&Tuning::default(), |_| {});
    lab.cut(0, true);
    lab.relink(1, 2);
    lab.run(12_000_000);
    let text = lab.nodes[2].member.waits_for().unwrap_or_default();
    assert!(
        text.contains("this member has no log, and n2, whose logs it could get, has no leader"),
        "{text}"
    );
}

#[test]
fn voter_with_vote_option_off_logs_warning() {
    let mut lab = Lab::new(3, &Tuning::default());
    // Another process, with other options.
    lab.nodes[2].member.roster.sync.majority_lost();
    lab.nodes[2].member.ctx.me_mut().wants_vote = false;
    lab.restart(2, |_| {});
    lab.until("it is Synced again", 20_000_000, |lab| {
        *lab.nodes[2].member.ctx.connection() == ConnectionState::Running { primary: true, synced: true }
    });
    assert!(lab.logged("this member votes, and may lead, though its options say member.vote=no"));
}

/// All servers have rolled the transaction back at that view. If the fragment passed, its origin would wait for the
/// view and the view for the origin.
#[test]
fn fragment_after_view_that_ended_its_stream_fails() {
    use lockstep_core::writeset::flags;
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(500_000);
    let first = lab.write_flagged(1, b"row", flags::TRX_START);
    lab.run(100_000);
    assert!(matches!(first.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(o)) if o.pass));
    lab.unlink(0, 1);
    lab.severed.insert((0, 1));
    lab.run(2_000);
    let last = lab.write_flagged(1, b"row", flags::TRX_END);
    lab.run(450_000);
    assert!(last.wait_for(Duration::ZERO).is_none(), "it has no place yet");
    lab.severed.clear();
    lab.link(0, 1);
    lab.run(1_000_000);
    let Some(SubmitOutcome::Ordered(last)) = last.wait_for(Duration::ZERO) else { panic!("no answer") };
    assert!(!last.pass, "seqno {} passes, behind the view", last.seqno);
    // A new transaction is not affected.
    let first = lab.write_flagged(1, b"row", flags::TRX_START);
    lab.run(100_000);
    assert!(matches!(first.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(o)) if o.pass));
}

/// Entries delivered early are read again after the log was truncated below them, including old views.
#[test]
fn replayed_view_ends_no_streaming_transaction() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.run(1_000_000);
    lab.write_fragment(2).abandon();
    lab.run(500_000);
    let own = lab.nodes[2].member.ctx.me().view_uuid;
    assert!(lab.nodes[2].member.delivery.deliverer.has_streams_of(&own));
    let member = &mut lab.nodes[2].member;
    assert_eq!(member.delivery.deliverer.was_cut(&member.ctx), Ok(()));
    lab.run(500_000);
    assert!(lab.nodes[2].member.delivery.deliverer.has_streams_of(&own));
}

/// A snapshot replaces the joiner's log while its server receives a state. The state is here before the trim marks that
/// follow the snapshot.
#[test]
fn state_received_before_trim_marks_waits_for_them() {
    let tuning = Tuning { segment_bytes: 2 << 10, ..Tuning::default() };
    let mut lab = Lab::new(3, &tuning);
    lab.write(0);
    lab.run(1_000_000);
    lab.nodes[2].copy_takes_long = true;
    lab.restart(2, |_| {});
    let needs_state =
        |lab: &Lab| matches!(lab.nodes[2].member.ctx.connection(), ConnectionState::NeedState { .. });
    lab.until("n3 needs a state", 20_000_000, needs_state);
    let last = lab.nodes[2].member.ctx.raft.last_index();
    lab.cut(2, true);
    lab.outlive_log_of_third(last);
    lab.cut(2, false);
    lab.until("a snapshot replaces its log", 20_000_000, |lab| {
        let raft = &lab.nodes[2].member.ctx.raft;
        raft.segment_bases()
            .next()
            .is_some_and(|base| base.index > last && !reaches(base, raft.committed_state()))
    });
    assert!(needs_state(&lab));
    let state = lab.nodes[0].member.ctx.raft.committed_state();
    let position = Gtid { uuid: state.history, seqno: state.seqno };
    lab.nodes[2].finished.store(position.seqno, Ordering::Release);
    lab.nodes[2].member.state_received(Ok(position));
    assert!(needs_state(&lab), "it waits: {:?}", lab.nodes[2].member.failure());
    lab.until("it delivers", 10_000_000, |lab| {
        matches!(lab.nodes[2].member.ctx.connection(), ConnectionState::Running { .. })
    });
}
