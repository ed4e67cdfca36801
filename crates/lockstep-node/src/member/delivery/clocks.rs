//! Checks whether the leader's clock differs from this member's: `apply.delay` compares the leader's append times with
//! the own clock. A difference is logged, not corrected: message delay and clock error cannot be told apart.

use lockstep_core::{Entry, MemberId, Micros};

/// A larger difference, µs, is logged.
const DIFFERENCE_MAX: i64 = 1_000_000;
/// How long entries are observed, and how many at least.
const WINDOW: Micros = 10_000_000;
const ENOUGH: u32 = 5;
/// More entries at a time are old ones that this member had missed.
const BATCH_MAX: usize = 64;
const LOG_INTERVAL: Micros = 600_000_000;

/// Observations of one leader's entries.
#[derive(Debug, Default)]
pub(in crate::member) struct Clocks {
    leader: Option<MemberId>,
    began: Micros,
    seen: u32,
    /// The least age of an entry at arrival: network delay plus the difference of the clocks.
    least: i64,
    logged: Option<Micros>,
}

impl Clocks {
    /// Notes the append times of entries from the leader. Returns by how much its clock is behind, µs (ahead if negative),
    /// if that is to be logged.
    pub(in crate::member) fn compare(
        &mut self,
        now: Micros,
        wall: Micros,
        leader: MemberId,
        entries: &[Entry],
    ) -> Option<i64> {
        let last = entries.last().filter(|_| entries.len() <= BATCH_MAX)?;
        let age = wall as i64 - last.time as i64;
        if self.leader != Some(leader) || self.seen == 0 {
            let logged = self.logged.filter(|_| self.leader == Some(leader));
            *self = Clocks { leader: Some(leader), began: now, seen: 0, least: age, logged };
        }
        self.seen += 1;
        self.least = self.least.min(age);
        if now < self.began + WINDOW || self.seen < ENOUGH {
            return None;
        }
        self.seen = 0;
        let due = self.logged.is_none_or(|at| now >= at + LOG_INTERVAL);
        if self.least.abs() <= DIFFERENCE_MAX || !due {
            return None;
        }
        self.logged = Some(now);
        Some(self.least)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::{ApplyHold, Tuning};
    use crate::member::harness::Lab;
    use lockstep_core::{Entry, EntryHeader};
    use std::time::Duration;

    /// The log lines of a delayed member within half a minute, if the leader's clock differs by `seconds`.
    fn logged(seconds: i64, delay: Duration) -> Vec<String> {
        let mut lab = Lab::new(2, &Tuning::default());
        let apply_hold = ApplyHold { delay, ..ApplyHold::default() };
        lab.nodes[1].member.set_tuning(Tuning { apply_hold, ..Tuning::default() });
        for at in 0..60 {
            lab.run(500_000);
            let member = &mut lab.nodes[1].member;
            let last = member.ctx.raft.entry(member.ctx.raft.last_index()).unwrap();
            // Single entries may be late.
            let late = if at % 10 == 3 { 4_000_000 } else { 30_000 };
            let time = (member.wall() as i64 + seconds * 1_000_000 - late) as u64;
            let entry = Entry::new(EntryHeader { time, ..**last }, &last.payload());
            member.compare_clocks(&[entry]);
        }
        lab.run(1_000);
        lab.lines.into_iter().map(|(_, line)| line).filter(|line| line.contains("the clock of")).collect()
    }

    #[test]
    fn clock_difference_is_logged_once_under_apply_delay() {
        let hour = Duration::from_secs(3600);
        let behind = logged(-3, hour);
        assert!(behind.len() == 1 && behind[0].contains("leader n1 is about 3.0 s behind"), "{behind:?}");
        let ahead = logged(3, hour);
        assert!(ahead.len() == 1 && ahead[0].contains("3.0 s ahead of"), "{ahead:?}");
        assert_eq!((logged(0, hour).len(), logged(-3, Duration::ZERO).len()), (0, 0));
    }
}
