//! A member's disk goes back in time.

use crate::api::{ConnectArgs, FollowedLog, ServerEnd, Tuning};
use crate::member::disks::Disk;
use crate::member::harness::{Lab, args_at};
use crate::member::membership::peers::EVIDENCE_SINCE;
use crate::member::membership::reverted_log::Consequence;
use crate::operator::Command;
use crate::wire::Evidence;
use lockstep_core::policy::PolicyKind;
use lockstep_core::raft::Durable;
use lockstep_core::{Gtid, Uuid};

const VOTER: usize = 2;

/// A cluster, and the disk of its third member before some writes. All members have their writes.
fn cluster(members: usize) -> (Lab, Disk) {
    let mut lab = Lab::new(members, &Tuning::default());
    lab.run(1_000_000);
    let at = members - 1;
    let old = lab.nodes[at].disk.clone();
    for _ in 0..5 {
        let write = lab.write(0);
        lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    }
    lab.run(1_000_000);
    (lab, old)
}

fn gives_up(lab: &Lab, at: usize) -> bool {
    lab.quarantined.contains(&at) && lab.nodes[at].member.failure().is_some()
}

#[test]
fn voter_with_reverted_log_gives_it_up() {
    let (mut lab, old) = cluster(3);
    lab.boot(VOTER, old, 2);
    lab.until("it gives up its log", 1_000_000, |lab| gives_up(lab, VOTER));
    assert!(lab.logged("this member's log went back in time, as n1 knows"), "{:#?}", lab.lines);
    let end = lab.nodes[VOTER].member.server_must_end();
    assert!(matches!(end, Some((ServerEnd::LogReverted { needs_state: false }, _))), "{end:?}");
    let write = lab.write(0);
    lab.until("the others go on", 5_000_000, |_| write.try_take().is_some());
}

#[test]
fn voter_with_whole_log_keeps_it() {
    let (mut lab, _) = cluster(3);
    let disk = lab.nodes[VOTER].disk.clone();
    lab.boot(VOTER, disk, 2);
    lab.until("it is in the view", 10_000_000, |lab| lab.nodes[VOTER].member.ctx.connection().is_primary());
    lab.cut(VOTER, true);
    lab.run(100_000);
    lab.cut(VOTER, false);
    lab.run(3_000_000);
    assert!(lab.quarantined.is_empty() && !lab.logged("went back in time"), "{:#?}", lab.lines);
}

fn waits(lab: &Lab, at: usize) -> bool {
    lab.nodes[at].member.waits_for().is_some_and(|text| text.contains("went back in time"))
}

/// The leader has the committed entries, and is lost. A voter that missed them and one that forgot them would be a majority.
/// The others do not go on without the second one, so it keeps its log.
#[test]
fn forgotten_entries_are_not_lost_with_leader() {
    let (mut lab, old) = cluster(3);
    lab.cut(1, true);
    let write = lab.write(0);
    lab.until("it is committed without n2", 5_000_000, |_| write.try_take().is_some());
    let last = lab.nodes[0].member.ctx.raft.commit();
    lab.run(1_000_000);
    lab.severed.insert((1, 2));
    lab.boot(VOTER, old, 2);
    lab.until("n1 tells it", 1_000_000, |lab| waits(lab, VOTER));
    lab.stop(0);
    lab.severed.clear();
    lab.cut(1, false);
    lab.run(10_000_000);
    assert!(lab.nodes[1].member.ctx.raft.commit() < last && !lab.nodes[1].member.ctx.raft.is_leader());
    assert!(waits(&lab, VOTER) && lab.logged("This member keeps its log"), "{:#?}", lab.lines);
    assert!(lab.quarantined.is_empty(), "nobody goes on without it");
    let disk = lab.nodes[0].disk.clone();
    lab.boot(0, disk, 2);
    lab.until("n1 and n2 go on without it", 10_000_000, |lab| gives_up(lab, VOTER));
    assert!(lab.nodes[0].member.ctx.raft.commit() > last);
}

/// n2 and n3 are put back, and do not know it. The one that knows returns once they are Primary.
#[test]
fn primary_member_with_reverted_log_keeps_it_and_says_so() {
    let (mut lab, _) = cluster(3);
    let old: Vec<_> = lab.nodes.iter().map(|node| node.disk.clone()).collect();
    for _ in 0..5 {
        let write = lab.write(0);
        lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    }
    lab.run(2_000_000);
    (0..3).for_each(|at| lab.stop(at));
    (1..3).for_each(|at| lab.boot(at, old[at].clone(), 2));
    let primary = |lab: &Lab, at: usize| lab.nodes[at].member.ctx.connection().is_primary();
    lab.until("n2 and n3 are Primary", 10_000_000, |lab| primary(lab, 1) && primary(lab, 2));
    let disk = lab.nodes[0].disk.clone();
    lab.boot(0, disk, 2);
    lab.run(5_000_000);
    assert!(lab.quarantined.is_empty(), "{:#?}", lab.lines);
    let said = lab.lines.iter().filter(|(_, line)| line.contains("so it goes on with this log")).count();
    assert_eq!(said, 2, "{:#?}", lab.lines);
    for at in 1..3 {
        assert!(primary(&lab, at));
        assert!(lab.nodes[at].member.waits_for().is_some_and(|text| text.contains("as n1 knows")));
    }
    let write = lab.write(1);
    lab.until("they go on", 5_000_000, |_| write.try_take().is_some());
}

/// A learner knows, too, and cannot say that the others go on. It reports before the other voter, or after it.
#[test]
fn learner_beside_two_voters_does_not_end_reverted_one() {
    for learner_first in [true, false] {
        let mut lab = Lab::new(2, &Tuning::default());
        lab.add(&Tuning::default(), |hello| hello.wants_vote = false);
        lab.until("it learns", 10_000_000, |lab| lab.nodes[2].member.ctx.connection().is_primary());
        lab.run(1_000_000);
        let old = lab.nodes[1].disk.clone();
        for _ in 0..5 {
            let write = lab.write(0);
            lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
        }
        lab.run(2_000_000);
        lab.stop(1);
        lab.until("n1 is alone", 10_000_000, |lab| !lab.nodes[0].member.ctx.connection().is_primary());
        let late = if learner_first { (0, 1) } else { (1, 2) };
        lab.severed.insert(late);
        lab.boot(1, old, 2);
        lab.until("the first one tells it", 1_000_000, |lab| waits(lab, 1));
        assert!(lab.quarantined.is_empty());
        lab.severed.clear();
        lab.link(late.0, late.1);
        lab.until("it gives up its log", 10_000_000, |lab| gives_up(lab, 1));
        assert_eq!(lab.voters(0), ["n1"], "it is demoted first");
        let write = lab.write(0);
        lab.until("n1 goes on", 5_000_000, |_| write.try_take().is_some());
    }
}

/// A consistent snapshot of the storage: no copy knows more than another one.
#[test]
fn cluster_restored_to_one_moment_comes_up_by_itself() {
    for members in [2, 3] {
        let (mut lab, _) = cluster(members);
        let copies: Vec<_> = lab.nodes.iter().map(|node| node.disk.clone()).collect();
        for _ in 0..5 {
            let write = lab.write(0);
            lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
        }
        lab.run(2_000_000);
        (0..members).for_each(|at| lab.stop(at));
        for (at, disk) in copies.into_iter().enumerate() {
            lab.boot(at, disk, 2);
        }
        lab.until("all are Primary", 10_000_000, |lab| {
            (0..members).all(|at| lab.nodes[at].member.ctx.connection().is_primary())
        });
        assert!(lab.quarantined.is_empty() && !lab.logged("went back in time"), "{:#?}", lab.lines);
    }
}

#[test]
fn note_with_last_index_of_all_numbers_is_harmless() {
    let (mut lab, _) = cluster(3);
    let id = lab.id(1);
    lab.nodes[0].member.roster.disk_notes.set_for_test(id, u64::MAX);
    let write = lab.write(0);
    lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    lab.run(3_000_000);
    assert!(lab.quarantined.is_empty());
}

#[test]
fn reverted_voter_of_two_helps_before_it_gives_up_log() {
    let (mut lab, old) = cluster(2);
    lab.stop(1);
    lab.until("n1 is alone", 10_000_000, |lab| !lab.nodes[0].member.ctx.connection().is_primary());
    lab.boot(1, old, 2);
    lab.until("it gives up its log", 10_000_000, |lab| gives_up(lab, 1));
    assert_first_goes_on_alone(&mut lab);
}

/// Checks that n1 took the vote of n2, and that it commits alone.
fn assert_first_goes_on_alone(lab: &mut Lab) {
    assert_eq!(lab.voters(0), ["n1"], "it is demoted first");
    assert!(lab.logged("serves no clients until n1 has taken its vote"), "{:#?}", lab.lines);
    let write = lab.write(0);
    lab.until("n1 goes on", 5_000_000, |_| write.try_take().is_some());
}

/// The reverted log lists a third voter, which has left since.
#[test]
fn old_membership_in_reverted_log_is_no_obstacle() {
    let (mut lab, old) = cluster(3);
    lab.nodes[1].member.disconnect();
    lab.until("n2 has left", 10_000_000, |lab| lab.voters(0) == ["n1", "n3"]);
    lab.stop(1);
    let write = lab.write(0);
    lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    lab.stop(VOTER);
    lab.until("n1 is alone", 10_000_000, |lab| !lab.nodes[0].member.ctx.connection().is_primary());
    lab.boot(VOTER, old, 2);
    lab.until("it gives up its log", 10_000_000, |lab| gives_up(lab, VOTER));
    assert_eq!(lab.voters(0), ["n1"]);
}

/// All members restart, so that only their logs know.
#[test]
fn notes_in_logs_reveal_reverted_log_after_full_restart() {
    let (mut lab, old) = cluster(3);
    lab.run(2_000_000);
    let disks: Vec<_> = lab.nodes.iter().map(|node| node.disk.clone()).collect();
    (0..3).for_each(|at| lab.stop(at));
    lab.boot(1, disks[1].clone(), 2);
    lab.boot(VOTER, old, 2);
    lab.until("n2 tells it", 1_000_000, |lab| waits(lab, VOTER));
    assert!(lab.quarantined.is_empty(), "n2 has no majority without it");
    assert!(lab.logged("this member's log went back in time, as n2 knows"), "{:#?}", lab.lines);
    lab.boot(0, disks[0].clone(), 2);
    lab.until("the others go on", 10_000_000, |lab| lab.nodes[0].member.ctx.connection().is_primary());
    lab.until("n3 gives up its log", 5_000_000, |lab| gives_up(lab, VOTER));
    assert_eq!(lab.quarantined, [VOTER], "{:#?}", lab.lines);
}

/// All volumes are restored, from copies of different times. The member with the newest copy cannot know that its log went
/// back, too. The others keep their logs until an operator lets it go on alone.
#[test]
fn newest_of_three_restored_volumes_goes_on_by_order() {
    let mut lab = Lab::new(3, &Tuning::default());
    let mut copies = Vec::new();
    for at in 0..3 {
        for _ in 0..5 {
            let write = lab.write(0);
            lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
        }
        lab.run(2_000_000);
        copies.push(lab.nodes[at].disk.clone());
    }
    let last = lab.nodes[2].member.ctx.raft.last_index();
    (0..3).for_each(|at| lab.stop(at));
    for (at, disk) in copies.into_iter().enumerate() {
        lab.boot(at, disk, 2);
    }
    lab.run(10_000_000);
    assert!(lab.quarantined.is_empty() && waits(&lab, 0) && waits(&lab, 1), "{:#?}", lab.lines);
    assert_eq!(lab.nodes[2].member.ctx.raft.last_index(), last);
    let disks: Vec<_> = lab.nodes.iter().map(|node| node.disk.clone()).collect();
    (0..2).for_each(|at| lab.stop(at));
    let tail = lab.nodes[2].member.ctx.raft.tail_state();
    let position = Gtid { uuid: tail.history, seqno: tail.seqno };
    lab.restart(2, |args| args.position = position);
    lab.run(2_000_000);
    let token = lab.command(2, Command::Bootstrap);
    let answer = lab.answer(token);
    assert!(answer.ok, "{answer:?}");
    lab.until("n3 is Primary", 10_000_000, |lab| lab.nodes[2].member.ctx.connection().is_primary());
    (0..2).for_each(|at| lab.boot(at, disks[at].clone(), 3));
    lab.run(5_000_000);
    assert_eq!(lab.quarantined, [0, 1], "they give up their logs for its branch: {:#?}", lab.lines);
}

#[test]
fn idle_cluster_writes_no_notes() {
    let (mut lab, _) = cluster(3);
    lab.run(10_000_000);
    let last = lab.nodes[0].member.ctx.raft.last_index();
    lab.run(10_000_000);
    assert_eq!(lab.nodes[0].member.ctx.raft.last_index(), last);
}

#[test]
fn reused_incarnation_is_found_without_lost_entries() {
    let (mut lab, _) = cluster(3);
    let disk = lab.nodes[VOTER].disk.clone();
    lab.boot(VOTER, disk, 1);
    lab.until("it gives up its log", 1_000_000, |lab| gives_up(lab, VOTER));
    assert!(lab.logged("has used the incarnation"), "{:#?}", lab.lines);
}

#[test]
fn older_version_gets_no_evidence() {
    let (mut lab, old) = cluster(3);
    lab.nodes[VOTER].version = EVIDENCE_SINCE - 1;
    lab.boot(VOTER, old, 2);
    lab.run(3_000_000);
    assert!(lab.quarantined.is_empty(), "{:#?}", lab.lines);
}

/// The log alone is reverted. The database of member `at` was at the end of its log.
fn boot_with_database(lab: &mut Lab, at: usize, old: Disk, database: (Gtid, FollowedLog)) {
    let args = ConnectArgs { followed: Some(database.1), ..args_at(database.0) };
    lab.boot_with(at, old, 2, args);
}

/// The position of a member's database that has all of its log, and the log that it has followed.
fn database(lab: &Lab, at: usize) -> (Gtid, FollowedLog) {
    let state = lab.nodes[at].member.ctx.raft.committed_state();
    let followed = FollowedLog { member: lab.id(at), incarnation: 1 << 20 };
    (Gtid { uuid: state.history, seqno: state.seqno }, followed)
}

/// n1 has the committed entries, and is lost. n2, which missed them, and n3, whose log forgot them, would be a majority.
/// Only the database of n3 knows of them.
#[test]
fn database_proves_what_no_reached_member_knows() {
    let (mut lab, old) = cluster(3);
    lab.cut(1, true);
    let write = lab.write(0);
    lab.until("it is committed without n2", 5_000_000, |_| write.try_take().is_some());
    lab.run(1_000_000);
    let last = lab.nodes[0].member.ctx.raft.commit();
    let database = database(&lab, VOTER);
    lab.stop(0);
    // n2 has forgotten the acks of n3 as well.
    let disk = lab.nodes[1].disk.clone();
    lab.boot(1, disk, 2);
    lab.nodes[1].member.roster.disk_notes = Default::default();
    boot_with_database(&mut lab, VOTER, old, database);
    lab.run(10_000_000);
    assert!(waits(&lab, VOTER), "{:#?}", lab.lines);
    assert!(lab.logged("this member's log went back in time, as its database knows"), "{:#?}", lab.lines);
    assert!(!lab.nodes[1].member.ctx.raft.is_leader(), "it lacks committed entries");
    assert!(lab.quarantined.is_empty(), "nobody goes on without it");
    let disk = lab.nodes[0].disk.clone();
    lab.boot(0, disk, 2);
    lab.until("n1 and n2 go on without it", 10_000_000, |lab| gives_up(lab, VOTER));
    // Here they have all that its database has. But its transactions could be ones that both of them have lost.
    let end = lab.nodes[VOTER].member.server_must_end();
    assert!(matches!(end, Some((ServerEnd::LogReverted { needs_state: true }, _))), "{end:?}");
    assert!(lab.nodes[0].member.ctx.raft.commit() > last);
    let write = lab.write(0);
    lab.until("the others go on", 5_000_000, |_| write.try_take().is_some());
}

/// As after a killed state transfer: the database is a donor's.
#[test]
fn database_of_another_log_is_no_proof() {
    let (mut lab, old) = cluster(3);
    let (position, followed) = database(&lab, VOTER);
    lab.run(2_000_000);
    (0..3).for_each(|at| lab.stop(at));
    let other = FollowedLog { member: lab.id(0), ..followed };
    boot_with_database(&mut lab, VOTER, old, (position, other));
    lab.run(3_000_000);
    assert!(!waits(&lab, VOTER) && !lab.logged("went back in time"), "{:#?}", lab.lines);
    assert!(lab.logged("or the log is an older copy: the data do not count"), "{:#?}", lab.lines);
}

#[test]
fn database_at_end_of_its_log_is_no_proof() {
    let (mut lab, _) = cluster(3);
    let (database, disk) = (database(&lab, VOTER), lab.nodes[VOTER].disk.clone());
    boot_with_database(&mut lab, VOTER, disk, database);
    let primary = |lab: &Lab| lab.nodes[VOTER].member.ctx.connection().is_primary();
    lab.until("it is Primary", 10_000_000, primary);
    lab.run(3_000_000);
    assert!(lab.quarantined.is_empty() && !lab.logged("went back in time"), "{:#?}", lab.lines);
}

/// A leader under a weak policy delivers its own write-sets early, and a later leader may have removed them from its log.
#[test]
fn database_ahead_of_log_is_no_proof_under_weak_policy() {
    let (mut lab, _) = cluster(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    let old = lab.nodes[VOTER].disk.clone();
    let write = lab.write(0);
    lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    lab.run(1_000_000);
    let database = database(&lab, VOTER);
    (0..3).for_each(|at| lab.stop(at));
    boot_with_database(&mut lab, VOTER, old, database);
    lab.run(1_000_000);
    assert!(!waits(&lab, VOTER), "{:#?}", lab.lines);
}

#[test]
fn database_knows_of_reused_incarnation_under_each_policy() {
    let (mut lab, _) = cluster(3);
    lab.set_policy(|policy| policy.kind = PolicyKind::Async);
    lab.run(1_000_000);
    let (disk, database) = (lab.nodes[VOTER].disk.clone(), database(&lab, VOTER));
    (0..3).for_each(|at| lab.stop(at));
    lab.boot_with(VOTER, disk, 1, ConnectArgs { followed: Some(database.1), ..args_at(database.0) });
    lab.run(1_000_000);
    assert!(waits(&lab, VOTER) && lab.logged("has used the incarnation"), "{:#?}", lab.lines);
}

#[test]
fn voter_of_two_helps_after_proof_by_its_database() {
    let (mut lab, old) = cluster(2);
    let database = database(&lab, 1);
    lab.stop(1);
    lab.until("n1 is alone", 10_000_000, |lab| !lab.nodes[0].member.ctx.connection().is_primary());
    boot_with_database(&mut lab, 1, old, database);
    lab.until("it gives up its log", 10_000_000, |lab| gives_up(lab, 1));
    assert!(lab.logged("as its database knows"), "{:#?}", lab.lines);
    assert_first_goes_on_alone(&mut lab);
}

/// Both logs are reverted. n1 could lead with n2's vote, without the entries that n2's database has.
#[test]
fn voter_of_two_waits_if_other_log_ends_below_own_database() {
    let (mut lab, old) = cluster(2);
    let other = lab.nodes[0].disk.clone();
    for _ in 0..5 {
        let write = lab.write(0);
        lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    }
    lab.run(2_000_000);
    let database = database(&lab, 1);
    (0..2).for_each(|at| lab.stop(at));
    lab.boot(0, other, 2);
    boot_with_database(&mut lab, 1, old, database);
    lab.run(10_000_000);
    assert!(!lab.nodes[0].member.ctx.raft.is_leader() && waits(&lab, 1), "{:#?}", lab.lines);
    assert!(lab.quarantined.is_empty());
    // The entries that the database has end here or later.
    let member = &mut lab.nodes[1].member;
    let tail = member.ctx.raft.tail_state();
    let reaches = tail.index + database.0.seqno.abs_diff(tail.seqno);
    for (last_index, supports) in [(reaches - 1, false), (reaches, true)] {
        let reporter = Durable { last_index, ..Durable::default() };
        let evidence = Evidence { reporter, only_two_vote: true, ..Evidence::default() };
        let consequence = member.roster.reverted_log.on_report(&member.ctx.raft, "n1", &evidence);
        let is_support = matches!(consequence, Some(Consequence::SupportReporter(_)));
        assert_eq!(is_support, supports, "{consequence:?}");
    }
    let token = lab.command(1, Command::Bootstrap);
    let answer = lab.answer(token);
    let seqno = database.0.seqno;
    let wanted =
        format!("its data are ahead of it: give this command to a member whose log reaches seqno {seqno} ");
    assert!(!answer.ok && answer.text.contains(&wanted), "{answer:?}");
    let remedy = format!("run lockstep bootstrap on a member whose log reaches seqno {seqno} ");
    assert!(lab.logged(&remedy), "{:#?}", lab.lines);
}

#[test]
fn only_voter_with_reverted_log_refuses_newer_data() {
    let mut lab = Lab::new(1, &Tuning::default());
    lab.run(1_000_000);
    let old = lab.nodes[0].disk.clone();
    let write = lab.write(0);
    lab.until("it is committed", 5_000_000, |_| write.try_take().is_some());
    let (position, followed) = database(&lab, 0);
    lab.stop(0);
    lab.boot(0, old, 2);
    let member = &mut lab.nodes[0].member;
    member.ctx.disconnected();
    let args = ConnectArgs { followed: Some(followed), ..args_at(position) };
    let error = member.connect(args, Uuid([0x99; 16]), Uuid([0x78; 16])).unwrap_err().to_string();
    assert!(error.contains("move the lockstep.* files of all members away"), "{error}");
    assert!(!member.ctx.raft.distrusts_own_log());
}
