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

    /// The windows of a member.
    pub(crate) fn window(&self) -> Micros {
        self.window
    }
}

impl Cluster {
    /// Where a client of this world writes, of these members; `None`: anywhere.
    pub(crate) fn writer(&mut self, members: &[usize]) -> Option<usize> {
        let now = self.now;
        let writers = self.writers.as_mut()?;
        if members.is_empty() || writers.rng.one_in(30) {
            return None;
        }
        let here = writers.at.filter(|at| now < writers.until && members.contains(at));
        if here.is_none() {
            writers.at = Some(*writers.rng.pick(members));
            writers.until = now + writers.rng.between(5, 30) * SECOND;
        }
        writers.at
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
