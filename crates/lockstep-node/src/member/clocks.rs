//! Whether the leader's clock is far from this member's: `apply.delay` goes by both, for the leader says when an entry was
//! placed in the log. It is said, and not corrected: how late a message was cannot be told from how wrong a clock is.

use super::{Level, Member, Micros};
use lockstep_core::{Entry, MemberId};

/// Clocks that differ by more are worth a line.
const FAR: i64 = 1_000_000;
/// So long entries are looked at, and so many at least.
const WINDOW: Micros = 10_000_000;
const ENOUGH: u32 = 5;
/// More at a time are old ones, that this member has missed.
const FRESH: usize = 64;
const SAY_EVERY: Micros = 600_000_000;

/// What the entries of one leader say.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    leader: Option<MemberId>,
    began: Micros,
    seen: u32,
    /// The least age at which one came here: the way, and what the clocks differ by.
    least: i64,
    said: Option<Micros>,
}

impl Member {
    /// These have come from the leader.
    pub(super) fn compare_clocks(&mut self, entries: &[Entry]) {
        let leader = self.raft.leader().filter(|id| *id != self.me.id);
        let is_delayed = !self.tuning.apply_hold.delay.is_zero();
        let (Some(leader), true, Some(last)) = (leader, is_delayed, entries.last()) else { return };
        if entries.len() > FRESH {
            return;
        }
        let age = self.wall as i64 - last.time as i64;
        let clocks = &mut self.clocks;
        if clocks.leader != Some(leader) || clocks.seen == 0 {
            let said = clocks.said.filter(|_| clocks.leader == Some(leader));
            *clocks = Clocks { leader: Some(leader), began: self.now, seen: 0, least: age, said };
        }
        clocks.seen += 1;
        clocks.least = clocks.least.min(age);
        if self.now < clocks.began + WINDOW || clocks.seen < ENOUGH {
            return;
        }
        clocks.seen = 0;
        let (least, said) = (clocks.least, clocks.said);
        if least.abs() <= FAR || said.is_some_and(|at| self.now < at + SAY_EVERY) {
            return;
        }
        self.clocks.said = Some(self.now);
        let (side, effect) = if least > 0 { ("behind", "sooner") } else { ("ahead of", "later") };
        let text = format!(
            "the clock of {}, which leads, is about {:.1} s {side} this member's: apply.delay lets entries through so much \
             {effect} than they are old; see that the clocks of both are set by the same time",
            self.name_of(&leader),
            least.unsigned_abs() as f64 / 1e6,
        );
        self.log(Level::Warn, text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::harness::Lab;
    use crate::api::{ApplyHold, Tuning};
    use std::time::Duration;

    /// What a delayed member says within half a minute where the leader's clock differs by so many seconds.
    fn said(seconds: i64, delay: Duration) -> Vec<String> {
        let mut lab = Lab::new(2, &Tuning::default());
        let apply_hold = ApplyHold { delay, ..ApplyHold::default() };
        lab.nodes[1].engine.set_tuning(Tuning { apply_hold, ..Tuning::default() });
        for at in 0..60 {
            lab.run(500_000);
            let engine = &mut lab.nodes[1].engine;
            let mut entry = engine.raft.entry(engine.raft.last_index()).cloned().unwrap();
            // One may be late.
            let late = if at % 10 == 3 { 4_000_000 } else { 30_000 };
            entry.time = (engine.wall() as i64 + seconds * 1_000_000 - late) as u64;
            engine.compare_clocks(&[entry]);
        }
        lab.run(1_000);
        lab.lines.into_iter().map(|(_, line)| line).filter(|line| line.contains("the clock of")).collect()
    }

    #[test]
    fn a_clock_that_is_far_off_is_said_once_where_something_goes_by_it() {
        let hour = Duration::from_secs(3600);
        let behind = said(-3, hour);
        assert!(
            behind.len() == 1 && behind[0].contains("n1, which leads, is about 3.0 s behind"),
            "{behind:?}"
        );
        let ahead = said(3, hour);
        assert!(ahead.len() == 1 && ahead[0].contains("3.0 s ahead of"), "{ahead:?}");
        assert_eq!((said(0, hour).len(), said(-3, Duration::ZERO).len()), (0, 0));
    }
}
