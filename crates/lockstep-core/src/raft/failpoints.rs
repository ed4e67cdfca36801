//! Failpoints: faults that tests inject, to show that the checks would find them.
//!
//! They exist only with the feature `failpoints`. Without it [`Failpoints::is_active`] is always false, and the compiler
//! removes what depends on it.

/// Whether this build has failpoints.
pub const FAILPOINTS: bool = cfg!(feature = "failpoints");

/// The failpoint that is active, if there is one.
#[derive(Clone, Copy, Default, Debug)]
pub struct Failpoints {
    #[cfg(feature = "failpoints")]
    active: Option<Failpoint>,
}

#[cfg(feature = "failpoints")]
impl From<Option<Failpoint>> for Failpoints {
    fn from(active: Option<Failpoint>) -> Failpoints {
        Failpoints { active }
    }
}

impl Failpoints {
    /// Whether no failpoint is active.
    #[inline(always)]
    pub fn none_active(self) -> bool {
        #[cfg(feature = "failpoints")]
        let none = self.active.is_none();
        #[cfg(not(feature = "failpoints"))]
        let none = true;
        none
    }

    /// Whether `failpoint` is active. False without the feature.
    #[inline(always)]
    pub fn is_active(self, failpoint: Failpoint) -> bool {
        #[cfg(feature = "failpoints")]
        let active = self.active == Some(failpoint);
        #[cfg(not(feature = "failpoints"))]
        let active = {
            let _ = failpoint;
            false
        };
        active
    }
}

/// A fault that a test can inject. Each variant says which rule is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failpoint {
    /// Votes are neither written nor waited for.
    VoteNotPersisted,
    /// Acks report entries in memory.
    AckBeforeFsync,
    /// A leader counts acks for entries of its predecessors too.
    CommitAcrossTerms,
    /// The membership changes before the previous change, and an entry of the own term, are committed.
    MembershipTooEarly,
    /// Acks of any term count.
    AckOfAnotherTerm,
    /// Acks report entries on the disk that may differ from the leader's.
    AckOfUnmatched,
    /// A completed write counts also for entries that have replaced its own since.
    ReplacedWritesCount,
    /// A candidate gets the vote also if its log is behind.
    VoteForAnyLog,
    /// A member with a damaged log compares candidates with its shortened log.
    VoteBelowFormerEnd,
    /// A member with a damaged log campaigns with its shortened log.
    CampaignBelowFormerEnd,
    /// Every candidate gets the vote, also a second one of the same term.
    TwoVotes,
    /// Elections begin without a pre-vote.
    NoPreVote,
    /// A leader without answers of a majority does not step down.
    NoCheckQuorum,
    /// A snapshot replaces a log that has more.
    BaseOverLongerLog,
    /// A leader accepts a proposal that its log has already, or that comes after a gap.
    DuplicateProposals,
    /// A leader answers reads without a check that it still leads.
    ReadWithoutMajority,
    /// Committed entries are delivered before they are on the own disk.
    DeliverBeforeDisk,
    /// Certification forgets keys above the trim mark.
    UnevenTrim,
    /// Certification does not learn the verdicts in trim marks.
    MarksNotLearned,
    /// Write-sets whose origin had not seen the trim mark do not fail for that.
    TrimMarkIgnored,
    /// Keys do not make parents.
    NoParents,
    /// A candidate under a weak policy skips log recovery.
    NoSurvey,
    /// A member reports its log tail before it has persisted the new term.
    TailWithoutPromise,
    /// Entries that may have been acknowledged are overwritten without a rescue file.
    OverwriteWithoutRescue,
    /// A leader delivers uncommitted entries of any member, also before an entry of its own term is committed.
    EarlyBeforeOwnTerm,
    /// A leader delivers early after its own stall although no majority has answered since.
    EarlyAfterStall,
    /// A new leader does not leave out the seqnos that its predecessor may have given out.
    SeqnosGivenTwice,
    /// A fragment of a streaming transaction that a view has overtaken is appended unchanged.
    OvertakenFragmentsPass,
    /// A commit under `all` waits for a majority only.
    AllIsMajority,
    /// A commit under `semisync` waits for no acks.
    NoAcksAwaited,
    /// `commit.zone_acks` has no effect.
    NoZonesAwaited,
    /// Received entries count as persisted.
    ReceivedIsPersisted,
    /// Semisync falls back as soon as a commit waits.
    FallsBackAtOnce,
    /// Semisync never returns from a fallback.
    StaysFallenBack,
    /// A new timeout of semisync applies before its entry is committed.
    TimeoutNotAgreedOn,
    /// Acks of a member count although the next leader may not know that member.
    AnyMembersAcksCount,
    /// A relayed append of any term is accepted.
    RelayedOfAnyTerm,
    /// A member certifies from its database's position on, without the keys of earlier entries.
    CertifyFromPosition,
    /// Delivery passes a member's own entries without an answer to the threads that wait for them.
    SubmissionOverlooked,
    /// A new leader transfers leadership to the main writer at once.
    FollowsAtOnce,
}
