use super::state::*;
use super::table::*;
use bytes::Bytes;
use lockstep_abi::*;
use lockstep_node::Ordered;
use lockstep_node::core::writeset::{Meta, WriteSet, WriteSetBuilder};
use lockstep_node::core::{EntryKind, MemberId};
use std::sync::Arc;

fn slot(seqno: Seqno, flags: u32, pass: bool) -> Slot {
    let payload: Bytes = WriteSetBuilder::new().finish(&Meta { flags, ..Meta::default() });
    let ordered = Ordered {
        seqno,
        kind: EntryKind::WriteSet,
        pass,
        depends_on: seqno - 1,
        serial: false,
        origin: MemberId::default(),
        time: 0,
        writeset: WriteSet::parse(&payload).unwrap(),
    };
    Slot::of_transaction(ordered, false)
}

const WHOLE: u32 = FLAG_TRX_START | FLAG_TRX_END;

fn in_certify() -> Inner {
    let mut trx = Inner::new();
    assert_eq!(trx.begin_certify(FLAG_TRX_END, false), Ok(WHOLE));
    trx
}

fn certified(flags: u32) -> Inner {
    let mut trx = in_certify();
    assert_eq!(trx.ordered(slot(5, flags, true)), Status::OK);
    assert_eq!(trx.start(), Status::OK);
    trx
}

#[test]
fn committed_transaction_passes_all_states() {
    let mut trx = certified(WHOLE);
    assert_eq!(trx.want_turn(), Turn::Wait { seqno: 5, interruptible: true });
    assert_eq!(trx.got_turn(), Status::OK);
    assert_eq!(trx.abort(4), (Status::NOT_ALLOWED, 5, false), "too late");
    assert_eq!(trx.leave().map(|left| left.0), Some(5));
    assert_eq!(trx.leave(), None, "once only");
    assert_eq!(
        trx.release(),
        Release { pass_order: None, finish: Some(5), keep: false, committed: true, status: Status::OK }
    );
}

#[test]
fn failed_certification_still_takes_turn() {
    let mut trx = in_certify();
    assert_eq!(trx.ordered(slot(5, WHOLE, false)), Status::TRX_FAIL);
    assert_eq!(trx.want_turn(), Turn::Wait { seqno: 5, interruptible: false });
    assert_eq!(trx.got_turn(), Status::OK);
    assert_eq!(trx.leave().map(|left| left.0), Some(5));
    assert_eq!(
        trx.release(),
        Release { pass_order: None, finish: Some(5), keep: false, committed: false, status: Status::OK }
    );
}

#[test]
fn release_takes_the_turn_of_a_failed_fragment() {
    let mut trx = Inner::new();
    trx.begin_certify(0, false).unwrap();
    assert_eq!(trx.ordered(slot(5, FLAG_TRX_START, false)), Status::TRX_FAIL);
    trx.roll_back();
    let release = trx.release();
    assert_eq!((release.pass_order, release.finish, release.keep), (Some(5), Some(5), false));
}

#[test]
fn streaming_transaction_starts_once_and_keeps_handle() {
    let mut trx = Inner::new();
    assert_eq!(trx.begin_certify(FLAG_TRX_START, false), Ok(FLAG_TRX_START));
    assert_eq!(trx.ordered(slot(5, FLAG_TRX_START, true)), Status::OK);
    assert_eq!(trx.want_turn(), Turn::Wait { seqno: 5, interruptible: true });
    assert_eq!(trx.got_turn(), Status::OK);
    assert_eq!(trx.leave().map(|left| left.0), Some(5));
    let release = trx.release();
    assert!(release.keep && release.committed && release.finish == Some(5));
    assert_eq!(
        trx.begin_certify(FLAG_TRX_START | FLAG_TRX_END, false),
        Ok(FLAG_TRX_END),
        "not started twice"
    );
}

#[test]
fn abort_before_certify_sends_nothing() {
    let mut trx = Inner::new();
    assert_eq!(trx.abort(9), (Status::OK, SEQNO_UNDEFINED, true));
    assert_eq!(trx.abort(9), (Status::OK, SEQNO_UNDEFINED, false), "aborted already");
    assert_eq!(trx.begin_certify(FLAG_TRX_END, false), Err(Status::CONN_FAIL));
    let release = trx.release();
    assert_eq!((release.pass_order, release.finish), (None, None));
}

#[test]
fn abort_while_replicating_replays_if_certified() {
    let mut trx = in_certify();
    assert_eq!(trx.abort(4), (Status::OK, SEQNO_UNDEFINED, true));
    assert_eq!(trx.ordered(slot(5, WHOLE, true)), Status::BF_ABORT);
    assert_eq!(trx.begin_replay().unwrap().seqno(), 5);
    assert_eq!(trx.abort(4), (Status::OK, 5, false), "a replay is not aborted again");
    assert_eq!(trx.want_turn(), Turn::Wait { seqno: 5, interruptible: false });
    assert_eq!(trx.got_turn(), Status::OK);
    assert_eq!(trx.leave().map(|left| left.0), Some(5));
    assert!(trx.release().committed);
}

#[test]
fn abort_while_replicating_fails_if_not_certified() {
    let mut trx = in_certify();
    trx.abort(4);
    assert_eq!(trx.ordered(slot(5, WHOLE, false)), Status::TRX_FAIL);
    assert_eq!(trx.begin_replay().unwrap_err(), Status::TRX_FAIL);
}

#[test]
fn replay_on_leaving_member_reports_committed() {
    // Aborted, and to be replayed.
    let mut trx = certified(WHOLE);
    trx.abort(4);
    assert!(trx.begin_replay().is_ok());
    trx.not_here();
    assert_eq!(trx.begin_replay().unwrap_err(), Status::OK);
    assert!(trx.release().finish.is_none(), "it is not done here");
    // It had failed certification.
    let mut trx = in_certify();
    trx.abort(4);
    assert_eq!(trx.ordered(slot(5, WHOLE, false)), Status::TRX_FAIL);
    trx.not_here();
    assert_eq!(trx.begin_replay().unwrap_err(), Status::TRX_FAIL);
}

#[test]
fn committed_transaction_without_turn_goes_to_replay() {
    for aborted in [false, true] {
        let mut trx = certified(WHOLE);
        assert!(matches!(trx.want_turn(), Turn::Wait { interruptible: true, .. }));
        if aborted {
            trx.abort(4);
        }
        assert_eq!(trx.no_turn(false), Status::BF_ABORT);
        // The replay's turn does not come either.
        assert!(trx.begin_replay().is_ok());
        trx.not_here();
        assert_eq!(trx.begin_replay().unwrap_err(), Status::OK);
        assert!(trx.release().finish.is_none(), "it is not done here");
    }
    // Rolling back: it had failed certification.
    let mut trx = in_certify();
    assert_eq!(trx.ordered(slot(5, WHOLE, false)), Status::TRX_FAIL);
    assert!(matches!(trx.want_turn(), Turn::Wait { interruptible: false, .. }));
    assert_eq!(trx.no_turn(false), Status::NODE_FAIL);
}

#[test]
fn lost_transaction_without_turn_fails() {
    for aborted in [false, true] {
        let mut trx = certified(WHOLE);
        assert!(matches!(trx.want_turn(), Turn::Wait { .. }));
        if aborted {
            trx.abort(4);
        }
        assert_eq!(trx.no_turn(true), Status::NODE_FAIL, "an error for the client");
        let release = trx.release();
        assert_eq!((release.pass_order, release.finish, release.committed), (None, None, false));
    }
}

#[test]
fn enter_after_giving_slot_up_fails_without_warning() {
    // Waiting to start, waiting for its turn, and rolling back.
    let mut waiting_to_start = certified(WHOLE);
    waiting_to_start.not_here();
    let mut fragment = certified(FLAG_TRX_START);
    fragment.want_turn();
    assert_eq!(fragment.no_turn(false), Status::NODE_FAIL);
    let mut failed = in_certify();
    assert_eq!(failed.ordered(slot(5, WHOLE, false)), Status::TRX_FAIL);
    failed.want_turn();
    assert_eq!(failed.no_turn(false), Status::NODE_FAIL);
    for mut trx in [waiting_to_start, fragment, failed] {
        assert_eq!(trx.want_turn(), Turn::Refuse(Status::NODE_FAIL));
        let release = trx.release();
        assert_eq!((release.pass_order, release.finish, release.keep), (None, None, false));
    }
}

#[test]
fn aborted_fragment_is_not_replayed() {
    let mut trx = Inner::new();
    trx.begin_certify(0, false).unwrap();
    trx.abort(4);
    assert_eq!(trx.ordered(slot(5, FLAG_TRX_START, true)), Status::TRX_FAIL);
    assert_eq!(trx.begin_replay().unwrap_err(), Status::TRX_FAIL);
    assert_eq!(trx.release().pass_order, Some(5));
}

/// The write-set may be ordered after all. Then the aborter is its own write-set, applied by an applier.
#[test]
fn given_up_transaction_refuses_abort() {
    let mut trx = in_certify();
    assert_eq!(trx.unknown(), Status::NODE_FAIL);
    assert_eq!(trx.abort(4), (Status::NOT_ALLOWED, SEQNO_UNDEFINED, false));
    let mut trx = certified(WHOLE);
    trx.not_here();
    assert_eq!(trx.abort(4), (Status::NOT_ALLOWED, SEQNO_UNDEFINED, false));
}

/// Transactions of two members may have the same id: the abort of one's applier names the other.
#[test]
fn rolling_back_transaction_permits_abort_of_same_id() {
    let mut trx = Inner::new();
    trx.begin_certify(0, false).unwrap();
    assert_eq!(trx.ordered(slot(5, FLAG_TRX_START, false)), Status::TRX_FAIL);
    assert_eq!(trx.abort(SEQNO_UNDEFINED), (Status::OK, 5, false));
    trx.roll_back();
    assert_eq!(trx.abort(SEQNO_UNDEFINED), (Status::OK, 5, false));
    assert_eq!(trx.release().pass_order, Some(5), "the slot is unchanged");
    let mut trx = in_certify();
    assert_eq!(trx.ordered(slot(5, WHOLE, false)), Status::TRX_FAIL);
    assert_eq!(trx.abort(SEQNO_UNDEFINED), (Status::OK, 5, false));
    assert_eq!(trx.want_turn(), Turn::Wait { seqno: 5, interruptible: false });
}

#[test]
fn aborts_between_and_inside_the_calls() {
    // Certified, and not in commit order yet.
    let mut trx = certified(WHOLE);
    assert_eq!(trx.abort(6), (Status::NOT_ALLOWED, 5, false), "the transaction is ordered first");
    assert_eq!(trx.abort(4), (Status::OK, 5, true));
    assert_eq!(trx.want_turn(), Turn::Refuse(Status::BF_ABORT));
    assert!(trx.begin_replay().is_ok());
    // The server may notice the abort itself, without a call in between.
    let mut trx = certified(WHOLE);
    trx.abort(4);
    assert!(trx.begin_replay().is_ok());
    // Waiting to start.
    let mut trx = in_certify();
    assert_eq!(trx.ordered(slot(5, WHOLE, true)), Status::OK);
    trx.abort(4);
    assert_eq!(trx.start(), Status::BF_ABORT);
    // Waiting for its turn, which comes at the same moment.
    let mut trx = certified(WHOLE);
    trx.want_turn();
    assert_eq!(trx.abort(4), (Status::OK, 5, true));
    assert_eq!(trx.got_turn(), Status::BF_ABORT);
    // Waiting for its turn, which does not come.
    let mut trx = certified(WHOLE);
    trx.want_turn();
    trx.abort(4);
    assert_eq!(trx.lost_turn(), Status::BF_ABORT);
}

#[test]
fn fragment_aborted_inside_order_learns_at_release() {
    let mut trx = certified(FLAG_TRX_START);
    trx.want_turn();
    trx.got_turn();
    assert_eq!(trx.abort(6), (Status::OK, 5, false), "a fragment yields to a later one too");
    assert_eq!(trx.leave().map(|left| left.0), Some(5));
    let release = trx.release();
    assert_eq!((release.status, release.keep, release.finish), (Status::BF_ABORT, true, Some(5)));
    trx.roll_back();
    let release = trx.release();
    assert_eq!((release.status, release.keep, release.finish), (Status::OK, false, None));
}

#[test]
fn incomplete_transaction_is_not_certified() {
    let mut trx = Inner::new();
    assert_eq!(trx.begin_certify(FLAG_TRX_END, true), Err(Status::SIZE_EXCEEDED));
    let release = trx.release();
    assert_eq!((release.pass_order, release.finish, release.keep), (None, None, false));
}

#[test]
fn calls_in_the_wrong_order_are_refused() {
    let mut trx = Inner::new();
    assert_eq!(trx.want_turn(), Turn::Wrong);
    assert_eq!(trx.leave(), None);
    let mut trx = certified(WHOLE);
    assert_eq!(trx.begin_certify(FLAG_TRX_END, false), Err(Status::NOT_ALLOWED));
    assert_eq!(trx.leave(), None);
}

#[test]
fn abort_does_not_wait_for_append() {
    let trx = Trx::new(7);
    let content = trx.content();
    // Its own thread is in `append_data`.
    assert_eq!(trx.lock().abort(9), (Status::OK, SEQNO_UNDEFINED, true));
    drop(content);
    assert_eq!(trx.lock().begin_certify(FLAG_TRX_END, false), Err(Status::CONN_FAIL));
}

#[test]
fn handles_are_found_by_id_and_by_pointer() {
    let all = Transactions::new();
    let mut handle = WsHandle { trx_id: 77, opaque: std::ptr::null_mut() };
    assert!(all.get(77).is_none());
    assert_eq!(all.of_handle(&mut handle).as_local().unwrap().id(), 77);
    let again = all.get(77).unwrap();
    assert_eq!(Arc::as_ptr(&again).cast_mut().cast(), handle.opaque);
    // SAFETY: just set, and in the table.
    assert_eq!(unsafe { all.find(&handle) }.unwrap().as_local().unwrap().id(), 77);
    assert_eq!(all.len(), 1);
    all.remove(77);
    all.remove(77);
    assert_eq!(all.len(), 0);
    assert_eq!(again.as_local().unwrap().id(), 77, "a thread that still uses it may continue");
}

#[test]
fn failed_statement_loses_total_order_flag() {
    use lockstep_abi::FLAG_ISOLATION;
    assert_eq!(dummy_flags(WHOLE | FLAG_ISOLATION), WHOLE | FLAG_ROLLBACK);
    assert_eq!(dummy_flags(0), FLAG_ROLLBACK);
}
