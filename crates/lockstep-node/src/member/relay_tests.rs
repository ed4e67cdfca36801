//! Zone relays among nodes: n1 and n2 are in one zone, n3 to n5 in another, and n1 leads.

use super::harness::Lab;
use crate::api::Tuning;
use crate::submit::Submission;

const DATA: usize = 20_000;

fn two_zones(versions: [u16; 5]) -> Lab {
    let tuning = Tuning { relay: true, follow_writer: false, ..Tuning::default() };
    let mut lab = Lab::new(0, &tuning);
    for (at, version) in versions.into_iter().enumerate() {
        lab.add(&tuning, |hello| hello.zone = (at > 1) as u8);
        lab.nodes[at].version = version;
        for other in 0..at {
            // It was connected before its version was set.
            lab.relink(at, other);
        }
        lab.until("it votes", 20_000_000, |lab| {
            lab.nodes[0].member.ctx.raft.membership().voters().count() == at + 1
        });
    }
    lab.run(1_000_000);
    assert_eq!(lab.leader(0), Some(0));
    lab
}

/// This many write-sets of n1 in succession; returns the bytes that n1 sent to n3, n4 and n5, in copies.
fn copies(lab: &mut Lab, writes: usize) -> [f64; 3] {
    lab.nodes[0].sent.clear();
    let submissions: Vec<Submission> = (0..writes)
        .map(|_| {
            let submission = lab.write_bytes(0, &[7; DATA]);
            lab.run(5_000);
            submission
        })
        .collect();
    lab.run(50_000);
    drop(submissions);
    let last = lab.nodes[0].member.ctx.raft.last_index();
    assert_eq!(lab.nodes[0].member.ctx.raft.commit(), last);
    [2, 3, 4].map(|at| lab.nodes[0].sent.get(&at).copied().unwrap_or(0) as f64 / (writes * DATA) as f64)
}

fn relays(lab: &Lab) -> Vec<Option<String>> {
    lab.members(0).into_iter().map(|member| member.relay).collect()
}

fn all_have_all(lab: &mut Lab) {
    let last = lab.nodes[0].member.ctx.raft.last_index();
    for node in &lab.nodes {
        assert_eq!(node.member.ctx.raft.persisted(), last, "{}", node.member.ctx.me().name);
        assert_eq!(node.member.ctx.raft.commit(), last, "{}", node.member.ctx.me().name);
    }
}

#[test]
fn zone_gets_one_copy_and_status_names_relay() {
    let mut lab = two_zones([4; 5]);
    let [n3, n4, n5] = copies(&mut lab, 20);
    assert!((1.0..1.1).contains(&n3) && n4 < 0.1 && n5 < 0.1, "{n3} {n4} {n5}");
    let by_n3 = Some("n3".to_string());
    assert_eq!(relays(&lab), [None, None, None, by_n3.clone(), by_n3]);
    let passed_on = lab.nodes[2].member.ctx.raft.relayed_bytes() as usize;
    assert!((40 * DATA..42 * DATA).contains(&passed_on), "{passed_on}");
    all_have_all(&mut lab);
    // Switched off at run time.
    let off = Tuning { relay: false, follow_writer: false, ..Tuning::default() };
    lab.nodes[0].member.set_tuning(off);
    let [n3, n4, n5] = copies(&mut lab, 20);
    assert!([n3, n4, n5].iter().all(|copies| (1.0..1.1).contains(copies)), "{n3} {n4} {n5}");
    assert_eq!(relays(&lab), [None, None, None, None, None]);
    all_have_all(&mut lab);
}

/// During an upgrade: n5's version does not know relays.
#[test]
fn older_member_gets_entries_from_leader() {
    let mut lab = two_zones([4, 4, 4, 4, 3]);
    let [n3, n4, n5] = copies(&mut lab, 20);
    assert!((1.0..1.1).contains(&n3) && n4 < 0.1 && (1.0..1.1).contains(&n5), "{n3} {n4} {n5}");
    assert_eq!(relays(&lab)[3..], [Some("n3".into()), None]);
    all_have_all(&mut lab);
    let mut lab = two_zones([3, 4, 4, 4, 4]);
    let [n3, n4, n5] = copies(&mut lab, 20);
    assert!([n3, n4, n5].iter().all(|copies| (1.0..1.1).contains(copies)), "an older leader: {n3} {n4} {n5}");
    all_have_all(&mut lab);
}

/// Commits need the far zone: two members of the near zone and one of it. They go on at once if the relay's connections
/// break, and after a moment if it hangs.
#[test]
fn relay_loss_delays_commits_briefly() {
    let mut lab = two_zones([4; 5]);
    copies(&mut lab, 5);
    lab.nodes[2].frozen = true;
    let submission = lab.write(0);
    let written = lab.now;
    let index = lab.nodes[0].member.ctx.raft.last_index() + 1;
    let has = move |lab: &Lab, at: usize| lab.nodes[at].member.ctx.raft.persisted() >= index;
    lab.until("n4 and n5 have it", 1_000_000, |lab| has(lab, 3) && has(lab, 4));
    assert!(lab.now - written < 500_000, "{} µs", lab.now - written);
    assert_eq!(relays(&lab), [None, None, None, None, Some("n4".to_string())]);
    lab.nodes[2].frozen = false;
    lab.run(2_000_000);
    all_have_all(&mut lab);
    drop(submission);

    let [n3, n4, n5] = copies(&mut lab, 20);
    assert!((1.0..1.1).contains(&n3) && (1.0..1.1).contains(&n4) && n5 < 0.1, "kept out: {n3} {n4} {n5}");
    lab.run(10_000_000);
    let [n3, n4, n5] = copies(&mut lab, 20);
    assert!(n3 < 0.1 && (1.0..1.1).contains(&n4) && n5 < 0.1, "in again: {n3} {n4} {n5}");

    let index = lab.nodes[0].member.ctx.raft.last_index() + 1;
    let submission = lab.write(0);
    lab.run(500);
    lab.cut(3, true);
    let written = lab.now;
    let has = move |lab: &Lab, at: usize| lab.nodes[at].member.ctx.raft.persisted() >= index;
    lab.until("n3 and n5 have it", 1_000_000, |lab| has(lab, 2) && has(lab, 4));
    assert!(lab.now - written < 20_000, "{} µs", lab.now - written);
    drop(submission);
    lab.cut(3, false);
    lab.run(3_000_000);
    all_have_all(&mut lab);
}
