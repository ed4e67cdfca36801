//! The simulator itself: it repeats itself exactly, finds planted faults, and finds none where there is none.

use lockstep_sim::profile::FAULTS;
use lockstep_sim::{Counters, Mutation, Outcome, Settings, World, simulate};
use std::ops::RangeInclusive;

fn clean(seed: u64) -> Outcome {
    let outcome = simulate(Settings::seed(seed));
    assert_eq!(outcome.violation, None, "replay: lockstep-sim --seed {seed} --trace");
    outcome
}

/// One of these seeds finds this fault.
fn found(mutation: Mutation, world: World, promises: bool, seeds: RangeInclusive<u64>) {
    for seed in seeds.clone() {
        let settings = Settings { mutation: Some(mutation), world, promises, ..Settings::seed(seed) };
        if let Some(violation) = simulate(settings).violation {
            println!("{mutation:?}, seed {seed}: {violation}");
            return;
        }
    }
    panic!("{mutation:?} is not found by seeds {seeds:?}");
}

#[test]
fn a_seed_repeats_itself_exactly() {
    for seed in [7, 11] {
        let (first, second) = (clean(seed), clean(seed));
        assert_eq!(first, second, "everything that was counted, and the hash of the trace");
    }
    assert_ne!(clean(7).hash, clean(11).hash);
}

#[test]
fn a_seed_is_a_load_worth_the_name() {
    let mut seen = [0; 5];
    for seed in 12..=14 {
        let outcome = clean(seed);
        let (seconds, counters) = (outcome.simulated / 1_000_000, outcome.counters);
        assert!(counters.proposals >= 10 * seconds, "{outcome:?}");
        assert!(counters.faults >= seconds / 10, "{outcome:?}");
        let more = [outcome.acknowledged, counters.heals, outcome.elections, counters.reads, counters.starts];
        seen.iter_mut().zip(more).for_each(|(sum, n)| *sum += n);
    }
    assert!(seen.iter().all(|sum| *sum > 10), "{seen:?}");
}

/// Nothing of what the simulator says it does is left out, and none of it breaks anything.
#[test]
fn every_fault_happens() {
    let mut sum = Counters::default();
    for seed in 31..=50 {
        sum.add(&clean(seed).counters);
    }
    for (fault, n) in FAULTS.iter().zip(sum.by_kind) {
        assert!(n > 0, "{fault:?} never happened: {sum:?}");
    }
    assert!(sum.damaged_logs > 0 && sum.identities > 0 && sum.failed_starts > 0, "{sum:?}");
}

/// Worlds in which something was once wrong, or in which much that is rare happens together. A change of the
/// simulator's own use of chance makes them other worlds: replace them then by what is found next.
#[test]
fn seeds_worth_repeating() {
    for seed in [3, 20] {
        clean(seed);
    }
}

#[test]
fn finds_votes_that_are_not_on_disk() {
    found(Mutation::VoteNotPersisted, World::Any, true, 1..=10);
}

#[test]
fn finds_acks_that_are_not_on_disk() {
    found(Mutation::AckBeforeFsync, World::Any, true, 1..=10);
}

#[test]
fn finds_commits_across_terms() {
    found(Mutation::CommitAcrossTerms, World::Any, true, 1..=10);
}

#[test]
fn finds_memberships_that_come_too_early() {
    found(Mutation::MembershipTooEarly, World::Any, true, 1..=10);
}

/// The same by what users would see, the inner rules switched off: the histories are hard enough.
#[test]
fn finds_the_damage_of_votes_that_are_not_on_disk() {
    found(Mutation::VoteNotPersisted, World::Any, false, 1..=60);
}

#[test]
fn finds_the_damage_of_acks_that_are_not_on_disk() {
    found(Mutation::AckBeforeFsync, World::Any, false, 1..=60);
}

#[test]
fn finds_the_damage_of_memberships_that_come_too_early() {
    found(Mutation::MembershipTooEarly, World::Any, false, 1..=60);
}

/// The rarest of the four takes an old entry on a majority, a leader that dies before its own reaches one, and a
/// rival with a newer term: the figure 8 of the Raft paper.
#[test]
fn finds_the_damage_of_commits_across_terms() {
    found(Mutation::CommitAcrossTerms, World::ShortReigns, false, 1..=60);
}
