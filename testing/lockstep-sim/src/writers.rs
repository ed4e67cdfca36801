//! Worlds in which nearly all clients are at one member, which is now this one, now that one, and leadership follows them.

use crate::profile::SECOND;
use crate::rng::Rng;
use lockstep_core::Micros;

/// Where the clients are. Has chance of its own: other worlds are as they are without it.
#[derive(Debug)]
pub(crate) struct Writers {
    rng: Rng,
    at: Option<usize>,
    until: Micros,
}

impl Writers {
    pub(crate) fn new(seed: u64) -> Writers {
        Writers { rng: Rng::new(!seed), at: None, until: 0 }
    }

    /// Where a client writes, of these members; `None`: anywhere.
    pub(crate) fn place(&mut self, now: Micros, members: &[usize]) -> Option<usize> {
        if members.is_empty() || self.rng.one_in(30) {
            return None;
        }
        let here = self.at.filter(|at| now < self.until && members.contains(at));
        if here.is_none() {
            self.at = Some(*self.rng.pick(members));
            self.until = now + self.rng.between(10, 60) * SECOND;
        }
        self.at
    }
}
