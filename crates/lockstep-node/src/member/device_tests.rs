//! Members that keep a copy of a device.

use super::Admission;
use super::Member;
use super::harness::{Lab, args_at, leaderless};
use crate::api::{ConnectArgs, FrontEnd, NodeError, Tuning};
use crate::operator::Command;
use crate::submit::{Notice, Submission};
use crate::wire::Hello;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::writeset::{DataKind, Meta, WriteSetBuilder, flags};
use lockstep_core::{EntryKind, Gtid, Seqno, Uuid};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::mpsc::{Receiver, channel};

fn lab(members: usize) -> Lab {
    let mut lab = Lab::empty();
    for at in 0..members {
        lab.add(&Tuning::default(), |hello| hello.device = true);
        lab.nodes[at].member.set_front_end(FrontEnd::Device);
        lab.until("it votes", 20_000_000, |lab| {
            lab.nodes[0].member.ctx.raft.membership().voters().count() == at + 1
        });
    }
    lab.until("all are connected", 20_000_000, |lab| {
        lab.nodes.iter().all(|node| node.member.delivery.deliverer.is_running())
    });
    lab
}

/// Submits an entry. Returns what there is to say of it.
fn submit(lab: &mut Lab, at: usize) -> Receiver<Notice> {
    let last_seen = lab.nodes[at].member.delivery.deliverer.delivered();
    submit_after(lab, at, last_seen)
}

/// The same, with the last seqno that the member has seen.
fn submit_after(lab: &mut Lab, at: usize, last_seen: Seqno) -> Receiver<Notice> {
    let (sender, notices) = channel();
    let mut builder = WriteSetBuilder::new();
    builder.append_data(DataKind::Ordered, b"blocks").unwrap();
    let member = &mut lab.nodes[at].member;
    let payload = builder.finish(&Meta {
        flags: flags::TRX_START | flags::TRX_END | flags::PA_UNSAFE,
        last_seen,
        source: member.ctx.me().view_uuid,
        epoch: 0,
        conn: 1,
        trx: 1,
    });
    let submission = Submission::notifying(Box::new(move |notice| sender.send(notice).unwrap()));
    member.submit(EntryKind::WriteSet, payload, submission.filler());
    notices
}

fn taken(lab: &Lab, at: usize) -> Vec<Seqno> {
    lab.nodes[at].applied.iter().map(|(seqno, _)| *seqno).collect()
}

#[test]
fn own_entry_is_delivered_as_on_every_copy() {
    let mut lab = lab(3);
    let notices = submit(&mut lab, 1);
    lab.run(1_000_000);
    assert_eq!(taken(&lab, 1).len(), 1, "the origin takes it, too");
    assert!((0..3).all(|at| taken(&lab, at) == taken(&lab, 1)));
    assert_eq!(notices.try_iter().count(), 0, "the delivery says it");
    assert!(lab.members(0).iter().all(|member| member.keeps_data()));
}

#[test]
fn weak_policy_acknowledges_before_commit_and_delivers_after() {
    let mut lab = lab(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(500_000);
    let leader = lab.leader(0).unwrap();
    let committed = lab.nodes[leader].member.ctx.raft.committed_state().seqno;
    lab.cut(leader, true);
    let notices = submit(&mut lab, leader);
    lab.run(100_000);
    assert_eq!(notices.try_iter().collect::<Vec<_>>(), [Notice::Acknowledged { after: committed }]);
    assert!(taken(&lab, leader).is_empty(), "only committed entries are delivered");
    lab.cut(leader, false);
    lab.until("a majority has it", 5_000_000, |lab| taken(lab, leader).len() == 1);
    assert!(notices.try_recv().is_err(), "once");
}

#[test]
fn entry_below_trim_mark_is_refused_and_not_acknowledged_early() {
    let mut lab = lab(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(500_000);
    let leader = lab.leader(0).unwrap();
    let seen = lab.nodes[leader].member.delivery.deliverer.delivered();
    // The mark follows what all members have finished.
    let trim_mark = |lab: &Lab| {
        let deliverer = &lab.nodes[leader].member.delivery.deliverer;
        deliverer.delivered() - deliverer.window() as Seqno
    };
    while trim_mark(&lab) <= seen {
        assert!(lab.now < 120_000_000, "the mark moves");
        let _acknowledged = submit(&mut lab, leader);
        lab.run(1_000_000);
    }
    assert_eq!(lab.nodes[leader].refused, [0; 0]);
    lab.cut(leader, true);
    let notices = submit_after(&mut lab, leader, seen);
    lab.run(100_000);
    assert_eq!(notices.try_iter().count(), 0, "it is not safe");
    lab.cut(leader, false);
    lab.until("it is refused", 5_000_000, |lab| lab.nodes[leader].refused.len() == 1);
    assert_eq!(notices.try_iter().count(), 0);
}

#[test]
fn copy_whose_tail_is_cut_ends_and_needs_no_state() {
    let mut lab = lab(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(500_000);
    let leader = lab.leader(0).unwrap();
    lab.cut(leader, true);
    let notices = submit(&mut lab, leader);
    lab.run(100_000);
    assert_eq!(notices.try_iter().count(), 1, "it is acknowledged");
    lab.run(10_000_000);
    lab.cut(leader, false);
    lab.until("its tail is cut", 20_000_000, |lab| lab.logged("is kept in lockstep.rescue"));
    assert!(lab.logged("the next one goes on by the log"));
    assert!(!lab.logged("state transfer"), "the copy took committed entries only");
}

#[test]
fn copy_without_position_begins_with_the_first_entry() {
    let mut lab = lab(2);
    let _notices = submit(&mut lab, 0);
    lab.run(1_000_000);
    lab.add(&Tuning::default(), |hello| hello.device = true);
    lab.nodes[2].member.set_front_end(FrontEnd::Device);
    lab.until("it is connected", 20_000_000, |lab| lab.nodes[2].member.delivery.deliverer.is_running());
    lab.run(1_000_000);
    assert_eq!(taken(&lab, 2), taken(&lab, 0));
}

#[test]
fn entry_that_was_not_sent_is_reported() {
    let mut lab = lab(3);
    lab.cut(2, true);
    lab.run(10_000_000);
    assert!(!lab.nodes[2].member.ctx.connection().is_primary());
    let notices = submit(&mut lab, 2);
    assert_eq!(notices.try_iter().collect::<Vec<_>>(), [Notice::Lost]);
}

#[test]
fn copy_ahead_of_its_log_is_not_taken_for_an_empty_one() {
    let mut lab = lab(2);
    let _notices = submit(&mut lab, 0);
    lab.run(1_000_000);
    let history = lab.nodes[1].member.ctx.raft.tail_state().history;
    let before = taken(&lab, 1).len();
    lab.restart(1, |args| args.position = Gtid { uuid: history, seqno: 1000 });
    lab.until("it asks for a state", 20_000_000, |lab| lab.logged("the state must be transferred"));
    assert_eq!(taken(&lab, 1).len(), before, "nothing is written over the copy");
}

#[test]
fn given_up_copy_is_not_taken_for_an_empty_one() {
    let mut lab = lab(2);
    let _notices = submit(&mut lab, 0);
    lab.run(1_000_000);
    lab.restart(1, |args| {
        args.position = Gtid::UNDEFINED;
        args.needs_state = true;
    });
    lab.until("it asks for a state", 20_000_000, |lab| lab.logged("the state must be transferred"));
}

#[test]
fn given_up_copy_founds_no_group() {
    let mut lab = Lab::empty();
    lab.add(&Tuning::default(), |hello| hello.device = true);
    let me = lab.nodes[0].member.ctx.me().clone();
    let mut member = Member::new(leaderless(), me, Tuning::default(), Arc::new(AtomicI64::new(100)), 0);
    member.set_front_end(FrontEnd::Device);
    let args = ConnectArgs { bootstrap: true, needs_state: true, ..args_at(Gtid::UNDEFINED) };
    let refused = member.connect(args, Uuid([0x41; 16]), Uuid([0x77; 16]));
    assert!(
        matches!(&refused, Err(NodeError::Refused(text)) if text.contains("no whole copy")),
        "{refused:?}"
    );
}

#[test]
fn empty_copy_does_not_begin_in_a_log_founded_on_data() {
    let mut lab = Lab::empty();
    lab.data = (Gtid { uuid: Uuid([5; 16]), seqno: 100 }, Uuid::NIL);
    lab.add(&Tuning::default(), |hello| hello.device = true);
    lab.nodes[0].member.set_front_end(FrontEnd::Device);
    lab.until("it runs", 20_000_000, |lab| lab.nodes[0].member.delivery.deliverer.is_running());
    lab.data = (Gtid::UNDEFINED, Uuid::NIL);
    lab.add(&Tuning::default(), |hello| hello.device = true);
    lab.nodes[1].member.set_front_end(FrontEnd::Device);
    lab.until("it asks for a state", 20_000_000, |lab| lab.logged("the state must be transferred"));
}

#[test]
fn copy_with_a_position_founds_no_new_group() {
    let mut lab = Lab::empty();
    lab.add(&Tuning::default(), |hello| hello.device = true);
    let me = lab.nodes[0].member.ctx.me().clone();
    let mut member = Member::new(leaderless(), me, Tuning::default(), Arc::new(AtomicI64::new(100)), 0);
    member.set_front_end(FrontEnd::Device);
    let position = Gtid { uuid: Uuid([5; 16]), seqno: 100 };
    let args = ConnectArgs { bootstrap: true, ..args_at(position) };
    let refused = member.connect(args, Uuid([0x41; 16]), Uuid([0x77; 16]));
    assert!(
        matches!(&refused, Err(NodeError::Refused(text)) if text.contains("without --new")),
        "{refused:?}"
    );
}

#[test]
fn member_with_a_database_is_refused_and_an_arbitrator_is_not() {
    let lab = lab(1);
    let member = &lab.nodes[0].member;
    let other =
        Hello { id: Uuid([9; 16]), view_uuid: Uuid([8; 16]), name: "db1".into(), ..member.ctx.me().clone() };
    assert_eq!(member.admit(&other), Admission::Welcome);
    let database = Hello { device: false, ..other.clone() };
    let refused = member.admit(&database);
    assert!(matches!(&refused, Admission::OtherKind(text) if text.contains("db1")), "{refused:?}");
    assert_eq!(member.admit(&Hello { device: false, arbitrator: true, ..other }), Admission::Welcome);
}

#[test]
fn deliveries_reach_what_is_confirmed() {
    let mut lab = lab(3);
    for at in [0, 1, 2] {
        let _notices = submit(&mut lab, at);
        lab.run(1_000_000);
        for (at, node) in lab.nodes.iter().enumerate() {
            let confirmed = node.member.delivery.confirmations.recent().last().map(|last| last.seqno);
            let taken = node.applied.last().map(|(seqno, _)| *seqno);
            assert!(confirmed.is_some() && confirmed <= taken, "n{}: {confirmed:?}, {taken:?}", at + 1);
        }
    }
}

#[test]
fn messages_of_a_device_group_name_no_database() {
    let mut lab = lab(3);
    assert!(lab.logged("--new has founded the group"), "{:#?}", lab.lines);
    assert_eq!(lab.lines.iter().filter(|(_, line)| line.contains("--new")).count(), 1, "{:#?}", lab.lines);
    lab.set_policy(|policy| *policy = Policy::of(PolicyKind::Async));
    let mut answers = Vec::new();
    for command in [
        Command::Remove { name: "n3".into(), force: false },
        Command::Promote { name: "n9".into() },
        Command::Switchover { to: "n2".into() },
        Command::Bootstrap,
    ] {
        let token = lab.command(0, command);
        answers.push(lab.answer(token).text);
    }
    assert!(answers[0].contains("n3 is connected: stop its process"), "{answers:#?}");
    assert!(answers[2].contains("n2 leads") && answers[2].contains("block promote"), "{answers:#?}");
    let _notices = submit(&mut lab, 1);
    lab.run(1_000_000);
    lab.restart(2, |args| args.needs_state = true);
    lab.until("it asks for a state", 20_000_000, |lab| lab.logged("the state must be transferred"));
    lab.cut(1, true);
    lab.run(20_000_000);
    let lines = lab.lines.iter().map(|(_, line)| line).chain(&answers);
    for line in lines {
        for word in ["database", "server", "transaction", "wsrep", "1180", "SET GLOBAL", "SQL"] {
            assert!(!line.contains(word), "{word}: {line}");
        }
    }
}
