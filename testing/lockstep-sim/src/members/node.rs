//! One machine, its server, and the process of its member.

use super::log_copy::LogBook;
use super::server::Server;
use crate::machine::Clock;
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
    /// Causal reads: number, and the seqno that they must see.
    pub(super) reads: Vec<(u64, i64)>,
    /// How many writes were refused for the policy.
    pub(super) refused: u64,
    /// When the log was last told the commit index.
    pub(super) hinted_at: Micros,
}

/// A machine.
pub(super) struct Node {
    pub(super) id: MemberId,
    /// Earlier identities.
    pub(super) former: Vec<MemberId>,
    pub(super) hello: Hello,
    pub(super) tuning: Tuning,
    pub(super) disk: MemDisk,
    pub(super) speed: DiskSpeed,
    /// An operation of the disk may fail: an error of the log is then no surprise.
    pub(super) disk_fails: bool,
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
    pub(super) paused_until: Micros,
    pub(super) process: Option<Process>,
}

impl Node {
    /// Whether this machine's member has or had this id.
    pub(super) fn has_been(&self, id: &MemberId) -> bool {
        self.id == *id || self.former.contains(id)
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
