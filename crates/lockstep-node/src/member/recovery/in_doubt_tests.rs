use crate::api::Tuning;
use crate::member::context::ConnectionState;
use crate::member::harness::Lab;
use crate::operator::Command;
use lockstep_core::Gtid;

/// The position of all databases.
fn position(lab: &mut Lab) -> Gtid {
    lab.write(0);
    lab.run(1_000_000);
    let state = lab.nodes[0].member.ctx.raft.committed_state();
    Gtid { uuid: state.history, seqno: state.seqno }
}

fn primary(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.ctx.connection().is_primary()
}

#[test]
fn in_doubt_members_wait_until_absent_one_is_removed() {
    let mut lab = Lab::new(3, &Tuning::default());
    let at = position(&mut lab);
    lab.cut(2, true);
    for n in [0, 1] {
        lab.restart(n, |args| {
            args.position = Gtid { seqno: at.seqno - 1, ..at };
            args.in_doubt = Some(at.seqno);
        });
    }
    lab.run(25_000_000);
    assert!(!primary(&lab, 0) && !primary(&lab, 1), "the third may know");
    assert!(lab.logged("if it is gone for good: lockstep remove --name n3"), "{:#?}", lab.lines);
    let token = lab.command(1, Command::Remove { name: "n3".into(), force: false });
    let answer = lab.answer(token);
    assert!(answer.ok, "{answer:?}");
    lab.until("they go on", 20_000_000, |lab| primary(lab, 0) && primary(lab, 1));
    assert!(lab.logged("this member executes it, and the others take its state"));
}

#[test]
fn wait_for_donor_confirmation_is_bounded() {
    let mut lab = Lab::new(3, &Tuning::default());
    let at = position(&mut lab);
    lab.restart(2, |args| {
        args.position = at;
        args.by_donor = true;
    });
    lab.until("it waits for a word", 5_000_000, |lab| {
        *lab.nodes[2].member.ctx.connection() == ConnectionState::NeedState { primary: true }
    });
    // Both others are busy before they are asked.
    for n in [0, 1] {
        lab.nodes[n].member.desync();
    }
    lab.run(55_000_000);
    assert!(lab.logged("no donor yet"), "{:#?}", lab.lines);
    assert!(lab.failed.is_empty());
    lab.run(10_000_000);
    let [(2, text)] = &lab.failed[..] else { panic!("{:?}", lab.failed) };
    assert!(text.contains("After a restart it goes on by its log"), "{text}");
    lab.restart(2, |args| {
        args.position = at;
        args.by_donor = true;
    });
    lab.until("it goes on by its log", 5_000_000, |lab| primary(lab, 2));
}
