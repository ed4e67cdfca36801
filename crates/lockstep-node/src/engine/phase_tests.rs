//! How long a start waits.

use super::super::Phase;
use super::super::harness::Lab;
use crate::api::{ConnectArgs, Tuning};
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
