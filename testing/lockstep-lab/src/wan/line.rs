//! One direction of a long line, as a state machine under the caller's clock: packets go in with the time, and come out
//! when they are due.
//!
//! A packet passes three things in this order, as on a real line. *The rate limit*: it
//! queues behind earlier packets at `rate`, and is dropped if the queue is full. *Loss*: a lost packet has used the rate.
//! *The distance*: `delay`, more or less by up to `jitter`, but no packet overtakes another, since a line does not
//! reorder either.

use std::collections::VecDeque;
use std::time::Duration;

/// The most packets that one direction holds, queued and in flight; further packets are dropped, to bound the memory of a
/// line that is not read. It is enough for 1500-byte packets at 4 Gbit/s over 100 ms.
const HELD_MAX: usize = 1 << 15;

/// The settings of one direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Time from one end to the other, without the turn at the narrow place.
    pub delay: Duration,
    /// By how much a packet's delay differs at most, evenly to both sides; not above `delay`.
    pub jitter: Duration,
    /// Which part of the packets is lost, 0 to 1.
    pub loss: f64,
    /// Bits (of IP packets) per second through the narrow place; none: as many as come.
    pub rate: Option<u64>,
    /// Bytes that may wait for their turn at the narrow place.
    pub queue: usize,
    /// The seed of loss and jitter: the same seed loses the same packets.
    pub seed: u64,
}

impl Settings {
    /// No loss, no jitter, no limit: only the distance.
    pub fn of_delay(delay: Duration) -> Settings {
        Settings { delay, jitter: Duration::ZERO, loss: 0.0, rate: None, queue: 1 << 20, seed: 1 }
    }

    /// The error in these settings, if there is one.
    pub(super) fn objection(&self) -> Option<String> {
        if !(0.0..=1.0).contains(&self.loss) {
            return Some(format!("a loss of {} is not between 0 and 1", self.loss));
        }
        if self.jitter > self.delay {
            return Some(format!("a jitter of {:?} is above the delay of {:?}", self.jitter, self.delay));
        }
        (self.rate == Some(0)).then(|| "a rate of 0 lets nothing pass; a loss of 1 says so".into())
    }
}

/// Counters of one direction's packets. Packets neither dropped, lost nor delivered are in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Came in.
    pub taken: u64,
    /// Dropped because too much was held or waited for the narrow place.
    pub dropped: u64,
    /// Lost on the way.
    pub lost: u64,
    /// Came out.
    pub delivered: u64,
    /// Bytes that came out.
    pub delivered_bytes: u64,
    /// Came out more than a millisecond after they were due, or may have, as far as the line can know: the machine was too
    /// busy for its promise.
    pub late: u64,
    /// The longest that one came out after it was due, in nanoseconds.
    pub latest: u64,
}

impl Counters {
    /// Which part of the packets came out late, 0 to 1.
    pub fn late_share(&self) -> f64 {
        if self.delivered == 0 { 0.0 } else { self.late as f64 / self.delivered as f64 }
    }
}

/// From when on a packet counts as late.
const LATE: u64 = 1_000_000;

/// One direction. `P` is whatever carries a packet. Times are nanoseconds of a clock that never goes back.
#[derive(Debug)]
pub(super) struct Line<P> {
    settings: Settings,
    random: u64,
    /// Until when the narrow place is taken.
    taken_until: u64,
    /// Ordered by the time at which each is due.
    held: VecDeque<Held<P>>,
    counters: Counters,
}

#[derive(Debug)]
struct Held<P> {
    due: u64,
    /// How long at most it had waited for somebody to take it when it entered.
    waited: u64,
    len: usize,
    packet: P,
}

impl<P> Line<P> {
    pub(super) fn new(settings: Settings) -> Line<P> {
        let random = settings.seed;
        Line { settings, random, taken_until: 0, held: VecDeque::new(), counters: Counters::default() }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Resets the counters. Packets in flight count on delivery.
    pub(super) fn count_anew(&mut self) {
        self.counters = Counters::default();
    }

    /// Packets in flight keep their due times, and later ones do not overtake them.
    pub(super) fn set(&mut self, settings: Settings) {
        if settings.seed != self.settings.seed {
            self.random = settings.seed;
        }
        self.settings = settings;
    }

    /// A packet of `len` bytes enters. Returns it if it is dropped or lost.
    #[cfg(test)]
    pub(super) fn push(&mut self, now: u64, len: usize, packet: P) -> Result<(), P> {
        self.push_late(now, 0, len, packet)
    }

    /// The same, of a packet that may have waited so long for somebody to take it. It is not sent on its way as if it had, or
    /// it might come early; it counts as late by so much.
    pub(super) fn push_late(&mut self, now: u64, waited: u64, len: usize, packet: P) -> Result<(), P> {
        self.counters.taken += 1;
        let Some(passed) = self.pass_narrow_place(now, len) else {
            self.counters.dropped += 1;
            return Err(packet);
        };
        if self.is_lost() {
            self.counters.lost += 1;
            return Err(packet);
        }
        let due = passed + self.distance();
        let due = self.held.back().map_or(due, |before| due.max(before.due));
        self.held.push_back(Held { due, waited, len, packet });
        Ok(())
    }

    /// When the packet has left the narrow place; none if there is no room to wait for that.
    fn pass_narrow_place(&mut self, now: u64, len: usize) -> Option<u64> {
        if self.held.len() >= HELD_MAX {
            return None;
        }
        let Some(rate) = self.settings.rate else { return Some(now) };
        let bytes_in = |time: u64| u128::from(time) * u128::from(rate) / 8_000_000_000;
        let waiting = bytes_in(self.taken_until.saturating_sub(now));
        // A packet of any size passes an empty queue.
        if waiting > 0 && waiting + len as u128 > self.settings.queue as u128 {
            return None;
        }
        let takes = (len as u64 * 8_000_000_000).div_ceil(rate);
        self.taken_until = self.taken_until.max(now) + takes;
        Some(self.taken_until)
    }

    fn is_lost(&mut self) -> bool {
        // 53 bits are what a double has; without loss nothing is rolled, so that jitter has its own sequence.
        self.settings.loss > 0.0 && ((self.roll() >> 11) as f64) < self.settings.loss * (1u64 << 53) as f64
    }

    fn distance(&mut self) -> u64 {
        let (delay, jitter) = (nanos(self.settings.delay), nanos(self.settings.jitter));
        if jitter == 0 {
            return delay;
        }
        delay - jitter + self.roll() % (2 * jitter + 1)
    }

    /// splitmix64.
    fn roll(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// When the next packet comes out; none if none is under way.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.held.front().map(|held| held.due)
    }

    /// The next packet that is due by now, with its length.
    pub(super) fn pop(&mut self, now: u64) -> Option<(usize, P)> {
        let late = now.checked_sub(self.next_due()?)?;
        let held = self.held.pop_front()?;
        let late = late + held.waited;
        self.counters.delivered += 1;
        self.counters.delivered_bytes += held.len as u64;
        self.counters.late += u64::from(late > LATE);
        self.counters.latest = self.counters.latest.max(late);
        Some((held.len, held.packet))
    }
}

/// The nanoseconds of anything below some centuries.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn settings(delay_ms: u64) -> Settings {
        Settings::of_delay(Duration::from_millis(delay_ms))
    }

    /// When each packet comes out, to the nanosecond.
    fn run(line: &mut Line<u32>) -> Vec<(u64, u32)> {
        let mut out = Vec::new();
        while let Some(due) = line.next_due() {
            assert!(due == 0 || line.pop(due - 1).is_none(), "a packet came out before it was due");
            let (_, packet) = line.pop(due).expect("it is due");
            out.push((due, packet));
        }
        out
    }

    #[test]
    fn each_packet_comes_out_exactly_one_delay_after_it_went_in() {
        let mut line = Line::new(Settings::of_delay(Duration::from_micros(42_750)));
        for at in [0, 1, 5 * MS, 5 * MS, 100 * MS] {
            line.push(at, 1500, at as u32).unwrap();
        }
        let due = [0, 1, 5 * MS, 5 * MS, 100 * MS].map(|at| (at + 42_750_000, at as u32));
        assert_eq!(run(&mut line), due);
        let counters = line.counters();
        assert_eq!((counters.taken, counters.delivered, counters.delivered_bytes), (5, 5, 7500));
        assert_eq!((counters.late, counters.latest), (0, 0));
    }

    #[test]
    fn line_with_zero_delay_passes_at_once() {
        let mut line = Line::new(settings(0));
        line.push(7, 40, 1).unwrap();
        assert_eq!(line.pop(7), Some((40, 1)));
    }

    #[test]
    fn late_packets_are_counted() {
        let mut line = Line::new(settings(1));
        for n in 0..3 {
            line.push(0, 40, n).unwrap();
        }
        for now in [MS, 2 * MS, 2 * MS + 1] {
            line.pop(now).unwrap();
        }
        assert_eq!((line.counters().late, line.counters().latest), (1, MS + 1));
    }

    #[test]
    fn late_input_is_late_output() {
        let mut line = Line::new(settings(1));
        line.push_late(0, MS / 2, 40, 1).unwrap();
        line.push_late(0, MS + 1, 40, 2).unwrap();
        assert_eq!(run(&mut line), [(MS, 1), (MS, 2)]);
        assert_eq!((line.counters().late, line.counters().latest), (1, MS + 1));
        assert_eq!(line.counters().late_share(), 0.5);
        line.count_anew();
        assert_eq!((line.counters(), line.counters().late_share()), (Counters::default(), 0.0));
    }

    #[test]
    fn rate_limit_spaces_packets_by_length() {
        // 12 Mbit/s: a packet of 1500 bytes takes a millisecond.
        let mut line = Line::new(Settings { rate: Some(12_000_000), ..settings(10) });
        for (n, len) in [1500, 1500, 750].into_iter().enumerate() {
            line.push(0, len, n as u32).unwrap();
        }
        // Nobody waits any more: its turn is at once.
        line.push(20 * MS, 1500, 3).unwrap();
        assert_eq!(run(&mut line), [(11 * MS, 0), (12 * MS, 1), (12 * MS + MS / 2, 2), (31 * MS, 3)]);
    }

    #[test]
    fn full_queue_drops_tail_until_drained() {
        let mut line = Line::new(Settings { rate: Some(12_000_000), queue: 4500, ..settings(10) });
        let taken: Vec<bool> = (0..5).map(|n| line.push(0, 1500, n).is_ok()).collect();
        assert_eq!(taken, [true, true, true, false, false]);
        line.push(MS - MS / 10, 1500, 5).unwrap_err();
        line.push(MS, 1500, 6).unwrap();
        let out: Vec<u32> = run(&mut line).into_iter().map(|(_, packet)| packet).collect();
        assert_eq!(out, [0, 1, 2, 6]);
        assert_eq!((line.counters().dropped, line.counters().lost), (3, 0));
    }

    #[test]
    fn oversized_packet_passes_empty_queue() {
        let mut line = Line::new(Settings { rate: Some(12_000_000), queue: 100, ..settings(0) });
        line.push(0, 1500, 0).unwrap();
        line.push(0, 1500, 1).unwrap_err();
        line.push(MS, 1500, 2).unwrap();
    }

    #[test]
    fn memory_is_bounded_without_a_rate() {
        let mut line = Line::new(settings(1000));
        for n in 0..HELD_MAX as u32 + 10 {
            let _ = line.push(0, 40, n);
        }
        assert_eq!(line.counters().dropped, 10);
        assert_eq!(run(&mut line).len(), HELD_MAX);
    }

    #[test]
    fn jitter_stays_in_its_bounds_uses_them_and_keeps_the_order() {
        let mut line = Line::new(Settings { jitter: Duration::from_millis(4), ..settings(10) });
        // So far apart that none waits for the one before.
        let spaced: Vec<u64> = (0..2000u64).map(|n| n * 100 * MS).collect();
        for (n, at) in spaced.iter().enumerate() {
            line.push(*at, 100, n as u32).unwrap();
        }
        let delays: Vec<u64> = run(&mut line).iter().zip(&spaced).map(|((due, _), at)| due - at).collect();
        assert!(delays.iter().all(|delay| (6 * MS..=14 * MS).contains(delay)));
        assert!(delays.iter().any(|delay| *delay < 6 * MS + MS / 10), "none was nearly as fast as may be");
        assert!(delays.iter().any(|delay| *delay > 14 * MS - MS / 10), "none was nearly as slow as may be");
        let mean = delays.iter().sum::<u64>() / delays.len() as u64;
        assert!(mean.abs_diff(10 * MS) < MS / 4, "{mean} ns on the average");
        // All at once: in the order in which they came.
        for n in 0..2000 {
            line.push(1_000_000 * MS, 100, n).unwrap();
        }
        let order: Vec<u32> = run(&mut line).into_iter().map(|(_, packet)| packet).collect();
        assert!(order.is_sorted());
    }

    fn passed(settings: &Settings, count: u32) -> Vec<u32> {
        let mut line = Line::new(settings.clone());
        for n in 0..count {
            let _ = line.push(u64::from(n), 100, n);
        }
        assert_eq!(u64::from(count), line.counters().lost + line.held.len() as u64);
        run(&mut line).into_iter().map(|(_, packet)| packet).collect()
    }

    #[test]
    fn equal_seed_loses_same_packets() {
        let settings = Settings { loss: 0.05, seed: 7, ..settings(1) };
        let first = passed(&settings, 20_000);
        assert_eq!(first, passed(&settings, 20_000));
        assert_ne!(first, passed(&Settings { seed: 8, ..settings.clone() }, 20_000));
        // 1000 of 20,000, with a standard deviation of 31.
        let lost = 20_000 - first.len();
        assert!((880..1120).contains(&lost), "{lost} of 20000 were lost");
        // Not in clumps: of 20,000 pairs of neighbours, 50 are lost together, with a deviation of 7.
        let gaps = first.windows(2).filter(|pair| pair[1] - pair[0] == 3).count();
        assert!((20..90).contains(&gaps), "{gaps} times two in a row were lost");
        assert_eq!(passed(&Settings { loss: 0.0, ..settings.clone() }, 100).len(), 100);
        assert_eq!(passed(&Settings { loss: 1.0, ..settings }, 100).len(), 0);
    }

    #[test]
    fn new_settings_leave_what_is_under_way_in_its_place() {
        let mut line = Line::new(settings(100));
        line.push(0, 40, 0).unwrap();
        line.set(settings(10));
        line.push(1, 40, 1).unwrap();
        line.push(95 * MS, 40, 2).unwrap();
        assert_eq!(run(&mut line), [(100 * MS, 0), (100 * MS, 1), (105 * MS, 2)]);
    }

    #[test]
    fn nonsense_is_refused() {
        let fine = settings(10);
        assert_eq!(fine.objection(), None);
        let wrong = [
            Settings { loss: 1.5, ..fine.clone() },
            Settings { loss: f64::NAN, ..fine.clone() },
            Settings { jitter: Duration::from_millis(11), ..fine.clone() },
            Settings { rate: Some(0), ..fine },
        ];
        assert!(wrong.iter().all(|settings| settings.objection().is_some()));
    }
}
