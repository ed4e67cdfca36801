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
    /// Acks name what is in memory.
    AckBeforeFsync,
    /// A leader counts acks for entries of its predecessors too.
    CommitAcrossTerms,
    /// Membership changes while the previous one, or all of the own term, is not committed.
    MembershipTooEarly,
    /// Acks count whatever term they were given in.
    AckOfAnotherTerm,
    /// Acks name all that is on the disk, also what is not known to be the leader's.
    AckOfUnmatched,
    /// A write's arrival speaks for the entries that have since replaced those it carried.
    ReplacedWritesCount,
    /// A log that is behind is good enough for a vote.
    VoteForAnyLog,
    /// Every candidate gets the vote, also the second one of a term.
    TwoVotes,
    /// Elections begin without asking whether they would succeed.
    NoPreVote,
    /// A leader that hears no majority goes on.
    NoCheckQuorum,
    /// A base replaces a log that holds more.
    BaseOverLongerLog,
    /// A leader takes a proposal that its log has already, or that comes after a gap.
    DuplicateProposals,
    /// A leader answers reads without asking whether it still leads.
    ReadWithoutMajority,
    /// Committed entries are delivered before they are on the own disk.
    DeliverBeforeDisk,
    /// Certification forgets more than the trim mark says.
    UnevenTrim,
    /// Certification does not learn what the marks tell of entries that it cannot judge.
    MarksNotLearned,
    /// Write-sets that have not seen the trim mark are judged like others.
    TrimMarkIgnored,
    /// Keys do not make parents.
    NoParents,
    /// A candidate under a weak policy skips log recovery.
    NoSurvey,
    /// A member reports its log tail before it has persisted the new term.
    TailWithoutPromise,
    /// Entries that may have been acknowledged are overwritten and kept nowhere.
    OverwriteWithoutRescue,
    /// A leader delivers what is not committed before an entry of its own term is, and whoever's it is.
    EarlyBeforeOwnTerm,
    /// A new leader goes on with the seqnos that its predecessor may have given out.
    SeqnosGivenTwice,
    /// A fragment of a streaming transaction that a view has overtaken is placed as it is.
    OvertakenFragmentsPass,
    /// A commit under `all` waits for a majority only.
    AllIsMajority,
    /// A commit under `semisync` waits for nobody.
    NoAcksAwaited,
    /// `commit.zone_acks` is for nothing.
    NoZonesAwaited,
    /// Received entries count as persisted.
    ReceivedIsPersisted,
    /// Semisync falls back as soon as something waits.
    FallsBackAtOnce,
    /// Semisync that has fallen back stays so.
    StaysFallenBack,
    /// A timeout of semisync's counts from when it is in the log on, agreed on or not.
    TimeoutNotAgreedOn,
    /// Acks of a member count although the next leader may not know that member.
    AnyMembersAcksCount,
    /// A relayed append of any term is accepted.
    RelayedOfAnyTerm,
    /// A member certifies from its database's position on, without the keys of earlier entries.
    CertifyFromPosition,
    /// A new leader does not wait before it lets the main writer lead.
    FollowsAtOnce,
}
