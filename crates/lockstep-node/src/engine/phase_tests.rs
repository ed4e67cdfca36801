//! How long a start waits.

use super::super::Phase;
use super::super::harness::Lab;
use crate::api::{ConnectArgs, LocalState, Tuning};
use lockstep_core::Gtid;
use std::time::Duration;

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].engine.phase.is_primary()
}

#[test]
fn after_a_full_outage_a_member_waits_for_the_others_however_long_their_machines_take() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.write(0);
    lab.run(1_000_000);
    for at in 1..3 {
        lab.cut(at, true);
    }
    let state = lab.nodes[0].engine.order.committed_state();
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
    assert_eq!(lab.nodes[0].engine.phase, Phase::Idle, "as long as was said");
    lab.restart(0, patiently(true));
    lab.run(600_000_000);
    assert!(matches!(lab.nodes[0].engine.phase, Phase::Connecting { .. }));
    lab.cut(1, false);
    lab.cut(2, true);
    lab.restart(1, patiently(true));
    lab.until("two of three go on", 20_000_000, |lab| primary(lab, 0) && primary(lab, 1));
}

#[test]
fn a_server_that_wants_to_lag_is_told_that_it_is_synced_when_the_majority_is_back() {
    let mut lab = Lab::new(3, &Tuning::default());
    lab.write(0);
    let synced = |lab: &Lab| lab.nodes[2].engine.phase == Phase::Running { primary: true, synced: true };
    lab.until("it is synced", 5_000_000, synced);
    lab.nodes[2].engine.desync();
    assert_eq!(lab.nodes[2].engine.local_state(), LocalState::Donor);
    lab.cut(2, true);
    lab.until("it knows", 20_000_000, |lab| !primary(lab, 2));
    lab.cut(2, false);
    // Until then it refuses all queries.
    lab.until("it is synced again", 20_000_000, synced);
    assert_eq!(lab.nodes[2].engine.local_state(), LocalState::Donor, "to all who look");
    lab.nodes[2].engine.resync();
    lab.until("it lags no more", 5_000_000, |lab| lab.nodes[2].engine.local_state() == LocalState::Synced);
}
