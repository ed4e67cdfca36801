//! One machine, its server, and the process of its member.

use crate::clock::Clock;
use crate::leadership_checks::LeadershipChecks;
use crate::log_copy::{LogBook, LogCopy};
use crate::profile::DiskSpeed;
use crate::server::Server;
use crate::streams::Streams;
use bytes::Bytes;
use lockstep_core::{Index, MemberId, Micros, Term};
use lockstep_log::MemDisk;
use lockstep_node::simulation::{Answered, SimulatedNode};
use lockstep_node::{FollowedLog, Hello, Submission, Tuning};
use std::collections::VecDeque;
use std::sync::Arc;

/// An input of a process's next round.
pub(crate) enum Input {
    Frame { from: MemberId, kind: u8, payload: Bytes },
    Log(Answered),
}

/// A client's write that is not answered.
pub(crate) struct Write {
    pub(crate) mark: u64,
    pub(crate) submission: Submission,
}

/// A causal read that is not answered.
pub(crate) struct Read {
    pub(crate) id: u64,
    /// It must see everything up to this seqno.
    pub(crate) floor: i64,
    /// When it was asked, by the process's clock.
    pub(crate) asked: Micros,
}

/// A running process.
pub(crate) struct Process {
    /// Counts the processes of a machine.
    pub(crate) life: u64,
    pub(crate) node: SimulatedNode<MemDisk>,
    pub(crate) inbox: VecDeque<Input>,
    /// A round is due.
    pub(crate) woken: bool,
    /// When the timer that counts rings.
    pub(crate) timer_at: Micros,
    /// The log's thread is busy.
    pub(crate) busy: bool,
    /// It is in a batch that it syncs.
    pub(crate) syncs: bool,
    /// For how long the disk has hung in a sync while the process ran, and when that was last counted.
    pub(crate) hung: (Micros, Micros),
    /// The commit index that the checkers have seen.
    pub(crate) commit: Index,
    /// Its term, and whether it led, after the last round.
    pub(crate) term: Term,
    pub(crate) leads: bool,
    pub(crate) writes: Vec<Write>,
    pub(crate) reads: Vec<Read>,
    /// How many writes were refused for the policy.
    pub(crate) refused: u64,
    /// When the log was last told the commit index.
    pub(crate) hinted_at: Micros,
    /// Its elections, and its time as a leader.
    pub(crate) leadership: LeadershipChecks,
    /// Where the log's last segment ended (number, bytes) at the last sync but one, and at the last one: damage before
    /// the former can always be told.
    pub(crate) synced_to: [Option<(u64, u64)>; 2],
}

/// Whether a machine takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// Not yet, or no more until the operator wants it.
    Out,
    /// Running, or down for a while.
    In,
    /// Lost for good, with its disk.
    Lost,
}

/// A copy of a disk, with the checkers' book of it.
pub(crate) struct OldDisk {
    pub(crate) id: MemberId,
    pub(crate) disk: MemDisk,
    pub(crate) book: LogBook,
    /// The database's position, its streaming transactions, and the log that it has followed.
    pub(crate) database: (i64, Arc<Streams>, Option<FollowedLog>),
}

/// A machine.
pub(crate) struct Node {
    pub(crate) id: MemberId,
    /// Earlier identities, and the contents of their disks when they ended.
    pub(crate) former: Vec<(MemberId, LogCopy)>,
    pub(crate) fate: Fate,
    pub(crate) hello: Hello,
    pub(crate) tuning: Tuning,
    pub(crate) disk: MemDisk,
    pub(crate) speed: DiskSpeed,
    /// An operation of the disk may fail: an error of the log is then no surprise.
    pub(crate) disk_fails: bool,
    /// An operation may have failed before everything healed: the log may be closed since then.
    pub(crate) disk_failed: bool,
    /// The medium is damaged: a log that cannot be opened is then no surprise.
    pub(crate) damaged: bool,
    /// Damage has once taken the end of its log: it could not write that into a rescue file.
    pub(crate) lost_end: bool,
    /// The disk has no room for more.
    pub(crate) disk_full: bool,
    pub(crate) clock: Clock,
    pub(crate) book: LogBook,
    pub(crate) server: Server,
    /// The server's database finishes nothing.
    pub(crate) database_hangs: bool,
    /// No sync of the disk ends.
    pub(crate) disk_hangs: bool,
    /// The server has work, and an event for it is on its way.
    pub(crate) serving: bool,
    pub(crate) lives: u64,
    /// A start is on its way.
    pub(crate) starting: bool,
    /// An operator had it removed while it ran: its node fails then.
    pub(crate) told_to_leave: bool,
    /// An operator has asked for its removal by force, at any time: the command may wait for a leader, and carry it out after
    /// a restart.
    pub(crate) removal_asked: bool,
    /// An earlier copy of its disk.
    pub(crate) old_disk: Option<OldDisk>,
    /// Its disk was put back to that copy, under its present id.
    pub(crate) rewound: bool,
    pub(crate) paused_until: Micros,
    pub(crate) process: Option<Process>,
}

impl Node {
    /// Whether this machine's member has or had this id.
    pub(crate) fn has_been(&self, id: &MemberId) -> bool {
        self.id == *id || self.former.iter().any(|(former, _)| former == id)
    }

    /// What the member of this id certainly has on its disk, or had when it ended.
    pub(crate) fn durable_of(&self, id: &MemberId) -> Option<&LogCopy> {
        if self.id == *id {
            return Some(&self.book.durable);
        }
        self.former.iter().find(|(former, _)| former == id).map(|(_, log)| log)
    }

    /// Whether the member of this id has this entry on its disk, or answers for it in elections.
    pub(crate) fn counts(&self, id: &MemberId, index: Index, term: Term) -> bool {
        match self.id == *id {
            true => self.book.counts(index, term),
            false => self.durable_of(id).is_some_and(|log| log.mirror.term_at(index) == Some(term)),
        }
    }

    /// Whether it runs and is not stopped.
    pub(crate) fn awake(&self, now: Micros) -> bool {
        self.process.is_some() && self.paused_until <= now
    }

    /// Whether it leads, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.leads)
    }

    /// Its process, if it runs.
    pub(crate) fn living(&mut self, life: u64) -> Option<&mut Process> {
        self.process.as_mut().filter(|process| process.life == life)
    }

    /// The present process; 0 if there is none.
    pub(crate) fn life(&self) -> u64 {
        self.process.as_ref().map_or(0, |process| process.life)
    }
}
