//! A disk goes back in time: a volume is restored, or a cache loses synced writes.
//!
//! The member can find out only from members that know its acks. So this strikes only a follower, while all others run and
//! are connected, and no other fault happens until it has met them. Its old log has other voters.

use super::faults::End;
use super::{Event, World};
use crate::clock::Name;
use crate::history::{Check, hold};
use crate::node::{Fate, OldDisk};
use crate::profile::{MS, SECOND};
use lockstep_core::MemberId;

/// How long the member has to find out.
const FINDS_OUT: u64 = 5 * SECOND;

impl World {
    /// Whether no fault may happen now.
    pub(crate) fn is_quiet(&self) -> bool {
        self.now < self.quiet_until
    }

    /// The first time, a member's disk is copied; the next time it is put back.
    pub(crate) fn rewind(&mut self) -> Check {
        let Some(at) = self.any_running() else { return Ok(()) };
        let node = &self.nodes[at];
        if node.disk_fails || node.damaged {
            return Ok(());
        }
        // An only voter goes on at once, before any member could tell it.
        let is_usable = |old: &OldDisk| old.id == self.nodes[at].id && old.book.has_several_voters();
        let is_usable = self.nodes[at].old_disk.as_ref().is_some_and(is_usable);
        let Some(old) = self.nodes[at].old_disk.take().filter(|_| is_usable) else {
            self.copy_disk(at);
            return Ok(());
        };
        let hangs = self.nodes.iter().any(|node| node.disk_hangs);
        let calm = self.all_connected() && !hangs && !self.nodes[at].leads() && self.short_terms == 0;
        if !calm || !self.bearable(at) || !self.has_better(at) {
            self.nodes[at].old_disk = Some(old);
            return Ok(());
        }
        self.put_back(at, old)
    }

    fn copy_disk(&mut self, at: usize) {
        let seed = self.rng.bits();
        let node = &mut self.nodes[at];
        let disk = node.disk.fork();
        disk.crash(seed);
        let database = (node.server.finished, node.server.streams.clone(), node.server.followed);
        let (id, book) = (node.id, node.book.clone());
        node.old_disk = Some(OldDisk { id, disk, book, database });
        self.say(at, format_args!("has its disk copied"));
    }

    /// Whether each member that takes part runs and reaches all others.
    fn all_connected(&self) -> bool {
        let used = self.used();
        let runs = |at: &usize| self.nodes[*at].awake(self.now) && self.nodes[*at].fate == Fate::In;
        let reaches = |a: usize, b: usize| a == b || self.net.passes(a, b) && self.links.is_alive(a, b);
        // Reports need the newest version.
        let is_new = |at: &usize| self.settings.knows_relays(*at);
        used.iter().all(runs)
            && used.iter().all(is_new)
            && used.iter().all(|a| used.iter().all(|b| reaches(*a, *b)))
    }

    fn put_back(&mut self, at: usize, old: OldDisk) -> Check {
        let id = self.nodes[at].id;
        // The leader counts these acks, so it knows them.
        let known =
            self.leader().and_then(|leader| self.nodes[leader].process.as_ref()).map_or(0, |leader| {
                let raft = leader.node.raft();
                raft.matched(&id).min(raft.commit())
            });
        self.stop(at, true);
        self.keep_rescued(at)?;
        let with_database = self.rng.one_in(2);
        let lost = known > old.book.durable_last();
        let node = &mut self.nodes[at];
        (node.disk, node.book) = (old.disk, old.book);
        node.rewound = true;
        let (position, streams, followed) = old.database;
        if with_database && (0..node.server.finished).contains(&position) {
            (node.server.streams, node.server.followed) = (streams, followed);
            node.server.roll_back(position);
        }
        self.say(at, format_args!("has its disk put back; acknowledged entries are lost: {lost}"));
        self.quiet_until = self.now + FINDS_OUT;
        if lost {
            self.queue.push(self.quiet_until, Event::End { round: self.round, end: End::Rewound(at, id) });
        }
        self.start_later(at, MS, 100 * MS);
        Ok(())
    }

    /// The time to find out is over. The member has a new id, or takes no part while there is no leader for long enough.
    pub(crate) fn has_found_out(&mut self, at: usize, id: MemberId) -> Check {
        let node = &self.nodes[at];
        let abstains = node.process.as_ref().is_some_and(|process| process.node.raft().distrusts_own_log());
        hold!(
            node.id != id || abstains,
            "a member finds out that its disk went back in time",
            "{} goes on under the id that it had",
            Name(at + 1)
        );
        Ok(())
    }

    /// A member gives up its log, which went back in time, and returns as a new one.
    pub(crate) fn gives_up_log(&mut self, at: usize) {
        self.stop(at, false);
        self.new_identity(at, true);
        (self.nodes[at].rewound, self.nodes[at].old_disk) = (false, None);
        self.counters.rewound += 1;
        self.start_later(at, 10 * MS, SECOND);
    }
}
