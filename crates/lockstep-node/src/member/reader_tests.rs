//! Two members with a database, and a reader of the log.

use super::harness::Lab;
use crate::api::{Beginning, FrontEnd, StatementResult, Tuning};
use lockstep_core::{Gtid, Seqno};

/// A lab whose n3 reads the log, for consumers that wait.
fn lab(multiple: Seqno, before: usize) -> Lab {
    lab_of(multiple, before, true)
}

fn lab_of(multiple: Seqno, before: usize, prompt: bool) -> Lab {
    let tuning = Tuning { segment_bytes: 2 << 10, ..Tuning::default() };
    let mut lab = Lab::new(2, &tuning);
    lab.run(1_000_000);
    for _ in 0..before {
        write(&mut lab, 0);
    }
    lab.add(&tuning, |hello| {
        hello.arbitrator = true;
        hello.wants_vote = false;
    });
    let begins = Beginning::MultipleOf(multiple);
    lab.nodes[2].member.set_front_end(FrontEnd::Reader { begins, prompt });
    lab.until("the reader is connected", 5_000_000, |lab| {
        lab.nodes[2].member.delivery.deliverer.is_running()
    });
    lab.run(1_000_000);
    lab
}

fn write(lab: &mut Lab, at: usize) {
    lab.write(at);
    lab.run(50_000);
}

fn seqnos(lab: &Lab) -> Vec<Seqno> {
    lab.nodes[2].applied.iter().map(|(seqno, _)| *seqno).collect()
}

fn committed(lab: &Lab) -> Seqno {
    lab.nodes[0].member.ctx.raft.committed_state().seqno
}

#[test]
fn reader_of_whole_log_begins_at_its_beginning() {
    let mut lab = lab(1 << 16, 5);
    write(&mut lab, 1);
    assert_eq!(seqnos(&lab).len(), 6, "views are delivered as views: {:?}", seqnos(&lab));
    assert_eq!(seqnos(&lab).last(), Some(&committed(&lab)));
    assert!(lab.voters(0).len() == 2, "it has no vote");
}

#[test]
fn reader_begins_after_last_multiple() {
    let lab = lab(10, 25);
    let begins = lab.nodes[2].finished.load(std::sync::atomic::Ordering::Acquire);
    assert!(begins >= 20, "what it has finished counts: {begins}");
    let first = *seqnos(&lab).first().unwrap();
    assert!((21..=30).contains(&first), "the first one: {first}");
}

#[test]
fn reader_goes_on_from_its_position() {
    let mut lab = lab(1 << 16, 5);
    let history = lab.nodes[0].member.ctx.raft.committed_state().history;
    let position = committed(&lab);
    lab.nodes[2].applied.clear();
    lab.restart(2, |args| args.position = Gtid { uuid: history, seqno: position - 1 });
    lab.until("it is back", 5_000_000, |lab| lab.nodes[2].member.delivery.deliverer.is_running());
    write(&mut lab, 1);
    lab.run(500_000);
    assert!(seqnos(&lab).iter().all(|seqno| *seqno >= position), "{:?}", seqnos(&lab));
    assert_eq!(seqnos(&lab).last(), Some(&committed(&lab)));
}

fn executed(lab: &mut Lab, at: usize, seqno: Seqno, error: Option<&str>, own: bool) {
    let result = StatementResult { seqno, error: error.map(str::to_owned) };
    lab.nodes[at].member.statement_executed(result, own);
}

#[test]
fn reader_learns_result_from_origin_once() {
    let mut lab = lab(1 << 16, 5);
    let seqno = committed(&lab);
    executed(&mut lab, 0, seqno, Some("no table, Error_code: 1146;"), true);
    executed(&mut lab, 1, seqno, Some("no table, Error_code: 1146;"), false);
    lab.run(5_000_000);
    let result = StatementResult { seqno, error: Some("no table, Error_code: 1146;".into()) };
    assert_eq!(lab.nodes[2].results, [result]);
    assert!(lab.nodes[0].results.is_empty(), "a database takes none");
}

#[test]
fn other_member_reports_result_if_origin_is_lost() {
    let mut lab = lab(1 << 16, 5);
    let seqno = committed(&lab);
    executed(&mut lab, 1, seqno, None, false);
    lab.run(2_000_000);
    assert!(lab.nodes[2].results.is_empty(), "the origin has time");
    lab.run(2_000_000);
    assert_eq!(lab.nodes[2].results, [StatementResult { seqno, error: None }]);
}

/// A reader delivers only entries on its own disk, so its consumers would wait for the deferred sync.
#[test]
fn prompt_reader_defers_no_sync() {
    for prompt in [true, false] {
        let mut lab = lab_of(1 << 16, 5, prompt);
        lab.nodes[2].disk.deferrable = 0;
        (0..5).for_each(|_| write(&mut lab, 0));
        assert_eq!(seqnos(&lab).last(), Some(&committed(&lab)));
        assert_eq!(lab.nodes[2].disk.deferrable == 0, prompt, "{} writes", lab.nodes[2].disk.deferrable);
    }
}
