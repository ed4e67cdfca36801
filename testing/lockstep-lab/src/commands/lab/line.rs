//! The long line of an experiment: packet counts, and whether its delay was as requested.

use std::time::Duration;

use crate::wan::Counters;
use serde_json::{Map, Value, json};

use super::numbers::number;

/// The name of the lab's delay line among an experiment's parameters.
pub(super) const NAME: &str = "own";

/// The share of packets that a line may deliver late. Above it, the measurement is in doubt.
const LATE_SHARE: f64 = 0.01;
/// What late means.
const LATE: Duration = Duration::from_millis(1);

/// By how much the line of a run broke its promise, if it did.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lateness {
    /// Which part of the packets was late, in the worse direction.
    pub(super) share: f64,
    /// In words.
    pub(super) text: String,
}

impl Lateness {
    /// Of both directions.
    pub(super) fn of(there: &Counters, back: &Counters) -> Option<Lateness> {
        let worse = if there.late_share() >= back.late_share() { there } else { back };
        let share = worse.late_share();
        (share > LATE_SHARE).then(|| Lateness {
            share,
            text: format!(
                "{} % of the packets came more than 1 ms late, one of them {} ms",
                number(100.0 * share),
                number(worse.latest as f64 / 1e6)
            ),
        })
    }

    /// The same; and a line of which not even the shortest round trip was what was asked for is late altogether.
    pub(super) fn of_run(
        there: &Counters,
        back: &Counters,
        asked: Duration,
        measured: Duration,
    ) -> Option<Lateness> {
        let ms = |time: Duration| number(time.as_secs_f64() * 1e3);
        if measured > asked + LATE {
            let text = format!("the shortest round trip took {} ms instead of {}", ms(measured), ms(asked));
            return Some(Lateness { share: 1.0, text });
        }
        Lateness::of(there, back)
    }
}

/// For the record of a run: the fate of the packets in both directions, and the shortest round trip.
pub(super) fn record(more: &mut Map<String, Value>, there: &Counters, back: &Counters, measured: Duration) {
    for (name, counters) in [("line_to_far", there), ("line_from_far", back)] {
        let of = json!({ "packets": counters.delivered, "bytes": counters.delivered_bytes, "dropped": counters.dropped,
            "lost": counters.lost, "over_1_ms_late": counters.late, "latest_us": counters.latest / 1000 });
        more.insert(name.into(), of);
    }
    more.insert("line_round_trip_ms".into(), (measured.as_secs_f64() * 1e3).into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_of_a_hundred_or_a_longer_way_is_late() {
        let of = |late| Counters { delivered: 1000, late, latest: 2_500_000, ..Counters::default() };
        let none = Counters::default();
        assert_eq!(Lateness::of(&of(10), &none), None);
        let late = Lateness::of(&of(5), &of(11)).unwrap();
        assert_eq!(late.text, "1.10 % of the packets came more than 1 ms late, one of them 2.50 ms");
        let ms = Duration::from_millis;
        assert_eq!(Lateness::of_run(&of(10), &none, ms(90), ms(91)), None);
        let late = Lateness::of_run(&of(10), &none, ms(90), ms(92)).unwrap();
        assert_eq!(late.text, "the shortest round trip took 92.0 ms instead of 90.0");
    }

    #[test]
    fn record_has_packets_of_both_directions() {
        let counters = Counters { delivered: 5, ..Counters::default() };
        let mut more = Map::new();
        record(&mut more, &counters, &counters, Duration::from_micros(90_500));
        assert_eq!(more["line_to_far"]["packets"], 5);
        assert_eq!(more["line_from_far"]["over_1_ms_late"], 0);
        assert_eq!(more["line_round_trip_ms"], 90.5);
    }
}
