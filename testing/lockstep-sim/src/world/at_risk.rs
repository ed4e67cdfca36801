//! Entries that a leader acknowledged under a weak policy before they were committed: what a new leader owes to them.

use super::World;
use crate::clock::Name;
use crate::history::{Check, hold};
use crate::mirror::{Mark, Mirror};
use crate::network::Quality;
use lockstep_core::{Index, Term};
use std::collections::{BTreeMap, VecDeque};

/// Up to this loss rate, in ppm, a query repeated four times is answered.
const LOST_AT_MOST: u32 = 5_000;
/// From this rate on, in bytes per millisecond, a query does not queue for long.
const WIDE_ENOUGH: u64 = 50_000;
/// So many elections are remembered.
const ELECTIONS: usize = 8;

/// An election: its term, the members that the winner had heard of, and the winner's log.
#[derive(Debug)]
struct Election {
    term: Term,
    reached: u32,
    log: Mirror,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct AtRisk {
    /// By index and hash: the entry, and the machine that acknowledged it.
    entries: BTreeMap<(Index, u64), (Mark, usize)>,
    leaders: Vec<Term>,
    elections: VecDeque<Election>,
}

impl AtRisk {
    /// A leader acknowledges an entry that is on these machines' disks and not committed. A member that has replied to
    /// a later leader's query takes no more from an older one.
    pub(crate) fn acknowledged(&mut self, at: usize, index: Index, mark: Mark, disks: u32) -> Check {
        self.entries.insert((index, mark.hash), (mark, at));
        let disks = disks & !(1 << at);
        for Election { term, reached, log } in &self.elections {
            if *term <= mark.term || index <= log.base || log.get(index) == Some(mark) {
                continue;
            }
            hold!(
                disks & reached == 0,
                "who has said how its log ends takes no more",
                "n{} answers for index {index} of term {}, which is on disk of {disks:b}; of these {:b} had promised \
                 themselves to term {term}",
                at + 1,
                mark.term,
                disks & reached
            );
        }
        Ok(())
    }

    /// All databases are equal: committed entries are not at risk, and the others are lost.
    pub(crate) fn settle(&mut self) {
        self.entries.clear();
    }

    /// The entries that this log lacks, and that only its leader can have lost.
    fn lacking<'a>(&'a self, term: Term, log: &'a Mirror) -> impl Iterator<Item = (Index, Mark, usize)> + 'a {
        self.entries.iter().filter_map(move |((index, _), (mark, at))| {
            let between = self.leaders.iter().any(|other| *other > mark.term && *other < term);
            let older = between || mark.term >= term || *index <= log.base;
            (!older && log.get(*index) != Some(*mark)).then_some((*index, *mark, *at))
        })
    }

    fn elected(&mut self, election: Election) {
        if self.leaders.last().is_none_or(|last| *last < election.term) {
            self.leaders.push(election.term);
        }
        self.elections.push_back(election);
        if self.elections.len() > ELECTIONS {
            self.elections.pop_front();
        }
    }
}

impl World {
    /// A member leads: it lacks no acknowledged entry of a member that it heard of, or could have heard of.
    pub(crate) fn new_leader(&mut self, at: usize, term: Term) -> Check {
        let node = &self.nodes[at];
        let Some(process) = &node.process else { return Ok(()) };
        let log = &node.book.memory.mirror;
        let calm = self.settings.promises && process.leadership.is_undisturbed(term, self.weather);
        let mut reached = 0;
        for (other, holder) in self.nodes.iter().enumerate().filter(|(other, _)| *other != at) {
            let answered = process.leadership.reached(term, &holder.id);
            reached |= u32::from(answered.is_some()) << other;
            for (index, mark, whose) in self.at_risk.lacking(term, log) {
                // A candidate of the same term may have fetched entries after its reply.
                let came_later = answered.is_some_and(|last| index > last);
                if came_later || holder.book.durable.mirror.get(index) != Some(mark) {
                    continue;
                }
                hold!(
                    !self.settings.promises || answered.is_none(),
                    "the heir takes what it can reach",
                    "{} leads term {term} without index {index} of term {}, which {} acknowledged and {} has",
                    Name(at + 1),
                    mark.term,
                    Name(whose + 1),
                    Name(other + 1)
                );
                hold!(
                    !(calm && self.could_hear(at, other)),
                    "the heir asks whom it can reach",
                    "{} leads term {term} without index {index} of term {}, which {} acknowledged; {} has it, and \
                     nothing kept it from saying so",
                    Name(at + 1),
                    mark.term,
                    Name(whose + 1),
                    Name(other + 1)
                );
            }
        }
        let log = log.clone();
        self.at_risk.elected(Election { term, reached, log });
        Ok(())
    }

    /// Whether two members of one membership are connected, and nothing delays a query and its answer.
    fn could_hear(&self, at: usize, other: usize) -> bool {
        let (node, holder) = (&self.nodes[at], &self.nodes[other]);
        let Some(process) = &node.process else { return false };
        let raft = process.node.raft();
        let clean = |from, to| {
            let Quality { loss, bytes_per_ms, .. } = self.quality_of(from, to);
            // Messages of a slow time have arrived before the campaign.
            loss <= LOST_AT_MOST
                && bytes_per_ms >= WIDE_ENOUGH
                && self.net.passes(from, to)
                && self.net.quality(from, to) == self.quality_of(from, to)
                && self.net.last_arrival(from, to) + 2 * self.profile.election_timeout < self.now
        };
        raft.tail_state().membership.get(&holder.id).is_some()
            && raft.is_up(&holder.id)
            && self.links.is_alive(at, other)
            && holder.awake(self.now)
            && clean(at, other)
            && clean(other, at)
            && node.speed == self.profile.disk
            && holder.speed == self.profile.disk
    }
}
