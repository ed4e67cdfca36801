//! Injected faults: each breaks one rule, and must be found within a number of seeds.
//!
//! They show which errors the simulator would find.

use crate::profile::World;
use lockstep_core::raft::Failpoint;

/// Where a planted fault sits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// In the order core or in certification.
    Core(Failpoint),
    /// In the log's recovery.
    Log(lockstep_log::Planted),
    /// In the node's decisions around them.
    Node(NodeFault),
}

/// A rule of the node that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeFault {
    /// An fsync that failed counts as one that did not.
    FailedSyncIgnored,
    /// A member without its log returns under its old id.
    IdKept,
    /// Members do not report evidence of each other's disks.
    LogGoesBackUnnoticed,
}

/// An injected fault: its name on the command line, and the seeds that must find it.
#[derive(Clone, Copy, Debug)]
pub struct Plant {
    /// `--mutate`.
    pub name: &'static str,
    /// The fault.
    pub fault: Planted,
    /// With all checks one of the seeds 1 to this finds it.
    pub seeds: u64,
    /// With checks of user-visible outcomes only, one of the seeds 1 to this finds it; 0: it affects only liveness, or too
    /// rarely.
    pub by_outcomes: u64,
    /// Where it can show: see [`Plant::world`].
    pub world: World,
}

impl Plant {
    /// The worlds in which it is looked for.
    pub fn world(&self, promises: bool) -> World {
        if promises && self.world == World::ShortTerms { World::Any } else { self.world }
    }
}

const fn plant(name: &'static str, fault: Planted, seeds: u64, by_outcomes: u64) -> Plant {
    Plant { name, fault, seeds, by_outcomes, world: World::Any }
}

const fn in_policies(plant: Plant) -> Plant {
    Plant { world: World::Policies, ..plant }
}

const fn in_short_terms(plant: Plant) -> Plant {
    Plant { world: World::ShortTerms, ..plant }
}

const fn in_late_relays(plant: Plant) -> Plant {
    Plant { world: World::LateRelays, ..plant }
}

const fn in_newcomers(plant: Plant) -> Plant {
    Plant { world: World::Newcomers, ..plant }
}

const fn in_writers(plant: Plant) -> Plant {
    Plant { world: World::Writers, ..plant }
}

use Failpoint::*;
use NodeFault::*;
use Planted::*;
use lockstep_log::Planted::{AnyEndIsTorn, NoChecksums, YoungDamageProves};

/// All of them.
pub const PLANTS: &[Plant] = &[
    plant("vote-not-persisted", Core(VoteNotPersisted), 10, 60),
    plant("ack-before-fsync", Core(AckBeforeFsync), 10, 60),
    in_short_terms(plant("commit-across-terms", Core(CommitAcrossTerms), 10, 60)),
    plant("membership-too-early", Core(MembershipTooEarly), 10, 0),
    plant("ack-of-another-term", Core(AckOfAnotherTerm), 20, 100),
    plant("ack-of-unmatched", Core(AckOfUnmatched), 10, 60),
    plant("replaced-writes-count", Core(ReplacedWritesCount), 10, 60),
    plant("vote-for-any-log", Core(VoteForAnyLog), 10, 60),
    plant("vote-below-former-end", Core(VoteBelowFormerEnd), 120, 0),
    plant("campaign-below-former-end", Core(CampaignBelowFormerEnd), 60, 0),
    plant("two-votes", Core(TwoVotes), 10, 60),
    plant("no-pre-vote", Core(NoPreVote), 10, 0),
    plant("no-check-quorum", Core(NoCheckQuorum), 10, 0),
    plant("base-over-longer-log", Core(BaseOverLongerLog), 100, 100),
    plant("duplicate-proposals", Core(DuplicateProposals), 10, 60),
    plant("read-without-majority", Core(ReadWithoutMajority), 10, 0),
    plant("deliver-before-disk", Core(DeliverBeforeDisk), 10, 60),
    plant("uneven-trim", Core(UnevenTrim), 20, 60),
    plant("marks-not-learned", Core(MarksNotLearned), 10, 60),
    plant("trim-mark-ignored", Core(TrimMarkIgnored), 20, 60),
    plant("no-parents", Core(NoParents), 10, 60),
    in_policies(plant("tail-without-promise", Core(TailWithoutPromise), 90, 0)),
    in_policies(plant("heir-asks-nobody", Core(NoSurvey), 90, 0)),
    in_policies(plant("overwrite-without-rescue", Core(OverwriteWithoutRescue), 20, 0)),
    in_policies(plant("early-before-own-term", Core(EarlyBeforeOwnTerm), 20, 0)),
    in_policies(plant("early-after-stall", Core(EarlyAfterStall), 90, 0)),
    in_policies(plant("seqnos-given-twice", Core(SeqnosGivenTwice), 20, 0)),
    plant("overtaken-fragments-pass", Core(OvertakenFragmentsPass), 20, 0),
    in_policies(plant("all-is-majority", Core(AllIsMajority), 20, 0)),
    in_policies(plant("no-acks-awaited", Core(NoAcksAwaited), 20, 0)),
    in_policies(plant("no-zones-awaited", Core(NoZonesAwaited), 20, 0)),
    in_policies(plant("received-is-persisted", Core(ReceivedIsPersisted), 20, 0)),
    in_policies(plant("falls-back-at-once", Core(FallsBackAtOnce), 20, 0)),
    in_policies(plant("stays-fallen-back", Core(StaysFallenBack), 90, 0)),
    in_policies(plant("timeout-not-agreed-on", Core(TimeoutNotAgreedOn), 25, 0)),
    in_newcomers(plant("any-members-acks-count", Core(AnyMembersAcksCount), 25, 0)),
    in_late_relays(plant("relayed-of-any-term", Core(RelayedOfAnyTerm), 25, 0)),
    plant("log-without-checksums", Log(NoChecksums), 20, 60),
    plant("any-end-is-torn", Log(AnyEndIsTorn), 150, 150),
    plant("young-damage-proves", Log(YoungDamageProves), 20, 0),
    plant("failed-sync-ignored", Node(FailedSyncIgnored), 10, 60),
    plant("id-kept", Node(IdKept), 20, 60),
    plant("log-goes-back-unnoticed", Node(LogGoesBackUnnoticed), 25, 0),
    plant("certify-from-position", Core(CertifyFromPosition), 10, 60),
    plant("submission-overlooked", Core(SubmissionOverlooked), 10, 0),
    in_writers(plant("follows-at-once", Core(FollowsAtOnce), 20, 0)),
];

/// The plant of this name.
pub fn by_name(name: &str) -> Option<&'static Plant> {
    PLANTS.iter().find(|plant| plant.name == name)
}
