//! One machine, its server, and the process of its member.

use super::log_copy::{LogBook, LogCopy};
use super::office::Office;
use super::server::Server;
use crate::clock::Clock;
use crate::profile::DiskSpeed;
use bytes::Bytes;
use lockstep_core::{Index, MemberId, Micros, Term};
use lockstep_log::MemDisk;
use lockstep_node::simulation::{Answered, SimulatedNode};
use lockstep_node::{Hello, Submission, Tuning};
use std::collections::VecDeque;

/// An input of a process's next round.
pub(super) enum Input {
    Frame { from: MemberId, kind: u8, payload: Bytes },
    Log(Answered),
}

/// A client's write that is not answered.
pub(super) struct Write {
    pub(super) mark: u64,
    pub(super) submission: Submission,
}

/// A causal read that is not answered.
pub(super) struct Read {
    pub(super) id: u64,
    /// It must see everything up to this seqno.
    pub(super) floor: i64,
    /// When it was asked, by the process's clock.
    pub(super) asked: Micros,
}

/// A running process.
pub(super) struct Process {
    /// Counts the processes of a machine.
    pub(super) life: u64,
    pub(super) node: SimulatedNode<MemDisk>,
    pub(super) inbox: VecDeque<Input>,
    /// A round is due.
    pub(super) woken: bool,
    /// When the timer that counts rings.
    pub(super) timer_at: Micros,
    /// The log's thread is busy.
    pub(super) busy: bool,
    /// The commit index that the checkers have seen.
    pub(super) commit: Index,
    /// Its term, and whether it led, after the last round.
    pub(super) term: Term,
    pub(super) leads: bool,
    pub(super) writes: Vec<Write>,
    pub(super) reads: Vec<Read>,
    /// How many writes were refused for the policy.
    pub(super) refused: u64,
    /// When the log was last told the commit index.
    pub(super) hinted_at: Micros,
    /// Its elections, and its time as a leader.
    pub(super) office: Office,
    /// Where the log's last segment ended (number, bytes) at the last sync but one, and at the last one: damage before
    /// the former can always be told.
    pub(super) synced_to: [Option<(u64, u64)>; 2],
}

/// Whether a machine takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Not yet, or no more until the operator wants it.
    Out,
    /// Running, or down for a while.
    In,
    /// Lost for good, with its disk.
    Lost,
}

/// A machine.
pub(super) struct Node {
    pub(super) id: MemberId,
    /// Earlier identities, and the contents of their disks when they ended.
    pub(super) former: Vec<(MemberId, LogCopy)>,
    pub(super) fate: Fate,
    pub(super) hello: Hello,
    pub(super) tuning: Tuning,
    pub(super) disk: MemDisk,
    pub(super) speed: DiskSpeed,
    /// An operation of the disk may fail: an error of the log is then no surprise.
    pub(super) disk_fails: bool,
    /// The medium is damaged: a log that cannot be opened is then no surprise.
    pub(super) damaged: bool,
    /// The disk has no room for more.
    pub(super) disk_full: bool,
    pub(super) clock: Clock,
    pub(super) book: LogBook,
    pub(super) server: Server,
    /// The server's database finishes nothing.
    pub(super) database_hangs: bool,
    /// The server has work, and an event for it is on its way.
    pub(super) serving: bool,
    pub(super) lives: u64,
    /// A start is on its way.
    pub(super) starting: bool,
    /// An operator had it removed while it ran: its node fails then.
    pub(super) told_to_leave: bool,
    pub(super) paused_until: Micros,
    pub(super) process: Option<Process>,
}

impl Node {
    /// Whether this machine's member has or had this id.
    pub(super) fn has_been(&self, id: &MemberId) -> bool {
        self.id == *id || self.former.iter().any(|(former, _)| former == id)
    }

    /// What the member of this id certainly has on its disk, or had when it ended.
    pub(super) fn durable_of(&self, id: &MemberId) -> Option<&LogCopy> {
        if self.id == *id {
            return Some(&self.book.durable);
        }
        self.former.iter().find(|(former, _)| former == id).map(|(_, log)| log)
    }

    /// Whether it runs and is not stopped.
    pub(super) fn awake(&self, now: Micros) -> bool {
        self.process.is_some() && self.paused_until <= now
    }

    /// Whether it leads, as far as it knows.
    pub(super) fn leads(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.leads)
    }

    /// Its process, if it runs.
    pub(super) fn living(&mut self, life: u64) -> Option<&mut Process> {
        self.process.as_mut().filter(|process| process.life == life)
    }

    /// The present process; 0 if there is none.
    pub(super) fn life(&self) -> u64 {
        self.process.as_ref().map_or(0, |process| process.life)
    }
}
