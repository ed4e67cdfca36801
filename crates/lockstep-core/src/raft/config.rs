//! What an order core is told at its start.

use crate::types::{MemberId, Micros};

/// Sizes and times. All times in µs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who we are in the log.
    pub id: MemberId,
    /// Which life of our process this is: larger than in any life before.
    pub incarnation: u64,
    /// How often a leader speaks when it has nothing to say.
    pub heartbeat: Micros,
    /// Silence of a leader after which others campaign; randomised to up to twice this.
    pub election_timeout: Micros,
    /// A segment of the log that has reached this many bytes is followed by a new one.
    pub segment_bytes: u64,
    /// The most bytes of entries in one message (one entry may be larger).
    pub max_append_bytes: usize,
    /// The most bytes on the way to one peer and not yet answered (one message may be larger).
    pub max_inflight_bytes: usize,
    /// Entries kept in memory beyond those that must be.
    pub cache_bytes: usize,
    /// A follower takes no more entries while so many bytes of them are on their way to its disk, and then until it is half
    /// as much. There may be `max_inflight_bytes` more.
    pub max_unwritten_bytes: usize,
    /// A leader under a weak policy goes ahead of what is committed by this many bytes of entries, or one entry more: they
    /// are all kept in memory, and what has not left it is lost with it.
    pub max_at_risk_bytes: usize,
    /// Where the random numbers begin.
    pub seed: u64,
    /// A planted fault; `None` but in the simulator.
    pub mutation: Option<Mutation>,
}

/// A planted fault: the simulator shows that it would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// Votes are neither written nor waited for.
    VoteNotPersisted,
    /// Acks name what is in memory.
    AckBeforeFsync,
    /// A leader counts acks for entries of its predecessors too.
    CommitAcrossTerms,
    /// Membership changes while the previous one, or all of the own term, is not committed.
    MembershipTooEarly,
    /// A membership may replace one voter by another in one entry, or change more of them.
    SeveralVotersAtOnce,
    /// Acks count whatever term they were given in.
    AckOfAnotherTerm,
    /// Acks name all that is on the disk, also what is not known to be the leader's.
    AckOfUnmatched,
    /// A write's arrival speaks for the entries that have since replaced those it carried.
    ReplacedWritesCount,
    /// A log that is behind is good enough for a vote.
    VoteForAnyLog,
    /// Whoever asks gets the vote, also the second one of a term.
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
    /// What is committed is handed out before it is on the own disk.
    DeliverBeforeDisk,
    /// Certification forgets more than the trim mark says.
    UnevenTrim,
    /// Certification does not learn what the marks tell of entries that it cannot judge.
    MarksNotLearned,
    /// Write-sets that have not seen the trim mark are judged like others.
    TrimMarkIgnored,
    /// Keys do not make parents.
    NoParents,
    /// An heir under a weak policy asks nobody how the others' logs end.
    NoSurvey,
    /// Who is asked how its log ends says so without having promised to take no more from the old leader.
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
    /// What a member has in memory counts, though its disk was asked for.
    ReceivedIsPersisted,
    /// Semisync falls back as soon as something waits.
    FallsBackAtOnce,
    /// Semisync that has fallen back stays so.
    StaysFallenBack,
    /// A timeout of semisync's counts from when it is in the log on, agreed on or not.
    TimeoutNotAgreedOn,
    /// Acks of a member count that whoever leads next may never have heard of.
    AnyMembersAcksCount,
    /// What a relay brings is taken for the leader's, whatever the term in which it was said.
    RelayedOfAnyTerm,
}

/// Random numbers for election timeouts (SplitMix64): seeded, so that a run can be repeated.
#[derive(Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(config: &Config) -> Rng {
        let (high, low) = config.id.0.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0u64, |acc, b| acc << 8 | u64::from(*b));
        Rng(config.seed ^ word(high) ^ word(low).rotate_left(17) ^ config.incarnation.rotate_left(40))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of 0..n; 0 where n is 0.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.next() % n }
    }
}
