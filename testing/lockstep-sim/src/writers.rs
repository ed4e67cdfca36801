//! Worlds in which nearly all clients are at one member, which is now this one, now that one, and leadership follows them.

use crate::cluster::Cluster;
use crate::history::{Check, hold};
use crate::machine::{Name, slot_of};
use crate::profile::{MS, SECOND};
use crate::rng::Rng;
use lockstep_core::Micros;
use lockstep_core::placement::REST;

/// Where the clients are. Has chance of its own: other worlds are as they are without it.
#[derive(Debug)]
pub(crate) struct Writers {
    rng: Rng,
    /// The windows of [`lockstep_core::placement::WriterShare`], µs.
    window: Micros,
    at: Option<usize>,
    until: Micros,
}

impl Writers {
    pub(crate) fn new(seed: u64) -> Writers {
        let mut rng = Rng::new(!seed);
        let window = rng.between(250, 700) * MS;
        Writers { rng, window, at: None, until: 0 }
    }

    /// Where a client writes, of these members; `None`: anywhere.
    pub(crate) fn place(&mut self, now: Micros, members: &[usize]) -> Option<usize> {
        if members.is_empty() || self.rng.one_in(30) {
            return None;
        }
        let here = self.at.filter(|at| now < self.until && members.contains(at));
        if here.is_none() {
            self.at = Some(*self.rng.pick(members));
            self.until = now + self.rng.between(5, 30) * SECOND;
        }
        self.at
    }

    /// The windows of a member.
    pub(crate) fn window(&self) -> Micros {
        self.window
    }
}

impl Cluster {
    /// Where a client of this world writes, of these members; `None`: anywhere.
    pub(crate) fn writer(&mut self, members: &[usize]) -> Option<usize> {
        self.writers.as_mut()?.place(self.now, members)
    }

    /// The leader checks the write shares.
    pub(crate) fn follow_writer(&mut self, slot: usize, local: Micros) -> Check {
        let Some(writers) = &self.writers else { return Ok(()) };
        let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
        let Some((to, share)) = process.follow.look(&process.order, local) else { return Ok(()) };
        if process.order.transfer_leadership(local, to).is_err() {
            return Ok(());
        }
        process.follow.moved(local);
        let led_for = local.saturating_sub(process.leads_since.min(local));
        hold!(
            led_for >= REST * writers.window,
            "a leader rests before it moves leadership",
            "{} has led for {led_for} µs",
            Name(slot)
        );
        self.counters.follows += 1;
        self.say(slot, format_args!("lets n{} lead, which proposes {share} %", slot_of(&to)));
        Ok(())
    }
}
