//! One machine: a disk that outlives its processes, a clock of its own, a server's position, and a process.
//!
//! The process runs the real [`Raft`] and the real [`Log`]. Between them it makes the decisions of a node: the inputs of a
//! round, the batching of writes, the report of completed writes, and delivery. All input is an [`Input`], and all output
//! is an effect of one round.

use crate::cluster::MACHINES;
use crate::fallback::Fallback;
use crate::mirror::{Change, Mark, Mirror};
use crate::policy::Controls;
use crate::profile::DiskSpeed;
use crate::server::{Run, Server};
use lockstep_core::members::Membership;
use lockstep_core::message::Message;
use lockstep_core::placement::WriterShare;
use lockstep_core::raft::{Raft, WriteOp};
use lockstep_core::snapshot::TrimMark;
use lockstep_core::{Entry, Index, MemberId, Micros, Seqno, Term, Uuid, ViewUuid};
use lockstep_log::{Log, MemDisk};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// How a member is called in traces: by its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name(pub(crate) usize);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("n{}", self.0))
    }
}

/// The place of a member, read from its id.
pub(crate) fn slot_of(id: &MemberId) -> usize {
    usize::from(id.0[15])
}

/// The id of the member at this place: sorted by no rule that could matter.
pub(crate) fn id_of(slot: usize, salt: u64, arbitrator: bool) -> MemberId {
    let mut id = [0; 16];
    let mixed = (slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    id[..8].copy_from_slice(&mixed.to_be_bytes());
    id[14] = u8::from(arbitrator);
    id[15] = slot as u8;
    Uuid(id)
}

/// Whether this member is an arbitrator: no client is there, and it leads no longer than it must.
pub(crate) fn is_arbitrator(id: &MemberId) -> bool {
    id.0[14] == 1
}

/// A monotonic clock that began somewhere and runs a little fast or slow; it may jump ahead, as those of virtual
/// machines do. Its wall clock may be set to anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What it showed when it was last set, and when that was.
    pub(crate) shown: Micros,
    pub(crate) since: Micros,
    /// How many ppm it runs fast, plus a million.
    pub(crate) rate: u64,
    /// How far its wall clock is ahead of the true time.
    pub(crate) wall: i64,
}

impl Clock {
    /// Its time.
    pub(crate) fn local(&self, now: Micros) -> Micros {
        self.shown + now.saturating_sub(self.since) * self.rate / 1_000_000
    }

    /// When it will show this; never before.
    pub(crate) fn global(&self, local: Micros) -> Micros {
        self.since + (local.saturating_sub(self.shown)).saturating_mul(1_000_000).div_ceil(self.rate)
    }

    /// From now on it runs like this, having jumped ahead.
    pub(crate) fn set(&mut self, now: Micros, ahead: Micros, rate: u64) {
        (self.shown, self.since, self.rate) = (self.local(now) + ahead, now, rate);
    }

    /// Microseconds since 1970, as far as this machine knows.
    pub(crate) fn wall(&self, now: Micros) -> Micros {
        (1_700_000_000_000_000 + now).saturating_add_signed(self.wall)
    }
}

/// An input of a process.
#[derive(Debug)]
pub(crate) enum Input {
    /// From a member.
    Message { from: MemberId, message: Message },
    /// The transport reports a connection.
    PeerUp(MemberId),
    /// The transport reports a connection lost.
    PeerDown(MemberId),
    /// The log has everything up to this ticket on disk.
    Written(u64),
    /// Old entries were read from the log.
    Fetched { to: MemberId, from: Index, entries: Vec<Entry> },
    /// Only time has passed, or proposals were made.
    Nothing,
}

/// Something that was handed to the log and is not known to be on disk.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) ticket: u64,
    pub(crate) change: Change,
    pub(crate) vote: Option<(Term, Option<MemberId>)>,
}

/// A running process.
pub(crate) struct Process {
    /// Counts the processes of a machine.
    pub(crate) life: u64,
    pub(crate) incarnation: u64,
    pub(crate) order: Raft,
    pub(crate) log: Log<MemDisk>,
    /// The log that it was told to write: its own view.
    pub(crate) memory: Mirror,
    /// Not yet handed to the log.
    pub(crate) to_write: VecDeque<WriteOp>,
    /// The last ticket of the sync in progress.
    pub(crate) syncing: Option<u64>,
    /// Inputs since the last round.
    pub(crate) inbox: Vec<Input>,
    /// A round is due.
    pub(crate) woken: bool,
    /// When the timer that counts rings.
    pub(crate) timer_at: Micros,
    /// Where the log's last segment ended (number, bytes) at the last sync but one, and at the last one: damage before
    /// the former can always be told.
    pub(crate) synced_to: [Option<(u64, u64)>; 2],
    /// Stopped until then.
    pub(crate) paused_until: Micros,
    /// The commit index that the checkers have seen.
    pub(crate) commit: Index,
    /// Reads that wait: the index that was committed when they began, and the own clock then.
    pub(crate) reads: BTreeMap<u64, (Index, Micros)>,
    /// The number of the last proposal.
    pub(crate) proposed: u64,
    /// The last vote and term written, for the commit hint.
    pub(crate) vote: (Term, Option<MemberId>),
    /// Whether it has ever been a member.
    pub(crate) was_member: bool,
    /// Its core said that its database has what the log has lost.
    pub(crate) diverged: bool,
    /// Where its log ended when semisync was last fallen back.
    pub(crate) fell_back_to: Index,
    /// Since when it might have.
    pub(crate) fallback: Fallback,
    /// The policies of its log.
    pub(crate) controls: Controls,
    /// The membership in force at the end of the last round.
    pub(crate) membership: Arc<Membership>,
    /// Where its entry is.
    pub(crate) membership_index: Index,
    /// The trim marks of its log.
    pub(crate) marks: VecDeque<(Index, TrimMark)>,
    /// What certifies and applies.
    pub(crate) run: Option<Run>,
    /// When, by its own clock, anything was last heard from the member at each place.
    pub(crate) heard: [Micros; MACHINES],
    /// Its last campaign.
    pub(crate) campaign: Campaign,
    /// Granted pre-votes by term, a bit for each machine. Grants to an earlier incarnation may arrive late, and for a later
    /// term.
    pub(crate) pre_votes: BTreeMap<Term, u32>,
    /// The fsync that was under way when everything healed.
    pub(crate) slow_sync: Option<u64>,
    /// When, by its own clock, it became a leader.
    pub(crate) leads_since: Micros,
    /// Its quorum timeout as a leader, and since when it shows a shorter one: see `may_lead`.
    pub(crate) quorum_timeout: (Micros, Micros),
    /// Write shares, if it leads.
    pub(crate) follow: WriterShare,
    /// A transaction of a client here that goes in fragments.
    pub(crate) stream: Option<u64>,
    /// A Base was taken and the database is older: a state transfer is under way.
    pub(crate) transfer_asked: bool,
}

/// A campaign, as it was when others first heard of it.
#[derive(Default)]
pub(crate) struct Campaign {
    pub(crate) term: Term,
    /// See [`crate::cluster::Cluster::weather`].
    pub(crate) weather: u64,
    /// The membership at its begin: a fetched tail, or messages after giving up, may change it.
    pub(crate) membership: Arc<Membership>,
}

/// Whether a machine can come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Not used yet.
    Spare,
    /// In use: running, or down for a while.
    Used,
    /// Lost for good, with its disk.
    Lost,
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) id: MemberId,
    pub(crate) clock: Clock,
    pub(crate) disk: MemDisk,
    pub(crate) speed: DiskSpeed,
    /// An operation of the disk will fail: an error of the log is then no surprise.
    pub(crate) disk_fails: bool,
    /// The disk has no room for more.
    pub(crate) disk_full: bool,
    /// The medium is damaged: a log that cannot be opened is then no surprise.
    pub(crate) damaged: bool,
    /// Earlier identities of this machine, and its disk's contents then.
    pub(crate) former: Vec<(MemberId, Mirror)>,
    /// The first life under the present id.
    pub(crate) known_from: u64,
    /// A trim was tried up to here: whether it came about or not, the log may begin with this index.
    pub(crate) trimming: Index,
    /// The certainly durable log.
    pub(crate) durable: Mirror,
    pub(crate) durable_vote: (Term, Option<MemberId>),
    pub(crate) in_flight: VecDeque<Flight>,
    pub(crate) server: Server,
    /// Entries that its database received before they were known to be committed: index, contents, and seqno of own
    /// transactions.
    pub(crate) early: VecDeque<(Index, Mark, Option<Seqno>)>,
    /// The life in which that was.
    pub(crate) early_life: u64,
    pub(crate) fate: Fate,
    pub(crate) lives: u64,
    /// A start is under way.
    pub(crate) starting: bool,
    pub(crate) process: Option<Process>,
}

impl Machine {
    /// What the member of this id has, or had when it was lost, certainly on its disk.
    pub(crate) fn durable_of(&self, id: &MemberId) -> Option<&Mirror> {
        if self.id == *id {
            return Some(&self.durable);
        }
        self.former.iter().find(|(former, _)| former == id).map(|(_, log)| log)
    }

    /// Its identity towards servers: fresh in each incarnation.
    pub(crate) fn view_uuid(&self) -> ViewUuid {
        let mut uuid = self.id;
        let life = self.process.as_ref().map_or(0, |p| p.incarnation);
        if life > 1 {
            uuid.0[8..12].copy_from_slice(&(life as u32).to_le_bytes());
        }
        uuid
    }

    /// Whether it runs and is not stopped.
    pub(crate) fn awake(&self, now: Micros) -> bool {
        self.process.as_ref().is_some_and(|p| p.paused_until <= now)
    }
}
