//! Work that a load leaves behind: purging, and entries that replicas have not applied. Lasting rates count both.

use crate::shootout::{Setup, UPDATE_INDEX};
use serde_json::Value;

use super::super::caught_up::CAUGHT_UP;
use super::{PAID, PURGED_RATE, UNPURGED, stat, table_of};
use crate::commands::lab::numbers::{Known, Stat, number};
use crate::commands::lab::page::Section;
use crate::commands::lab::results::Results;

/// Requests per second of a measurement, had the load lasted for so many seconds more.
pub(super) fn lasting(m: &Value, after: f64) -> Option<f64> {
    let of = |field: &str| m[field].as_f64();
    let lasted = of("transactions")? / of("transactions_per_s")?;
    Some(of("requests_per_s")? * lasted / (lasted + after)).filter(|rate| rate.is_finite())
}

/// Requests per second, had the load lasted until each copy had it all and nothing was left to purge: what the servers keep
/// up. Both are waited for at once.
fn kept_up(m: &Value, copied: bool) -> Option<f64> {
    let of = |field: &str| m[field].as_f64();
    let caught_up = if copied { of(CAUGHT_UP)? } else { 0.0 };
    lasting(m, caught_up.max(of(PAID)?))
}

/// The same of a set-up, or why it is not known.
pub(super) fn kept_up_by(
    results: &Results,
    setup: &str,
    chosen: impl Fn(&Value) -> bool + Copy,
) -> Result<Known, String> {
    let copied = Setup::EACH.iter().any(|s| s.name() == setup && s.kind.is_copied());
    let rates = results.measurements(setup).filter(|m| chosen(m)).filter_map(|m| kept_up(m, copied));
    // Doubtful is what the load's own rate is, too.
    let load = results.median(setup, "requests_per_s", chosen)?;
    results.known(setup, Stat::of(rates).map(|stat| Stat { doubtful: load.doubtful, ..stat }))
}

/// What nothing but commits left for the writer to do.
pub(super) fn purging(results: &Results, setups: &[Setup], threads: &[u64]) -> Section {
    let cell = |setup: Setup, count| {
        let of = |field| stat(results, setup.name(), UPDATE_INDEX, count, field);
        match (of(UNPURGED), of(PAID), of(PURGED_RATE)) {
            (Some(left), Some(time), Some(rate)) => {
                [left, time, rate].map(|stat| number(stat.median)).join(" / ")
            }
            _ => "–".into(),
        }
    };
    Section {
        heading: "What was left to purge after nothing but commits".into(),
        text: "Each update leaves an old version of its row, which InnoDB purges in the background. Where more clients want the \
               processor than there is, purge falls behind, the more so the less they wait for anything: their rate is partly \
               borrowed. Transactions to purge when the load ended, the seconds until they were purged, nobody else being at \
               work, and the requests per second if that time counts."
            .into(),
        table: table_of(setups, threads, "left to purge / seconds / requests/s with it, by threads", cell),
        notes: vec![results.repeats_text()],
        ..Section::default()
    }
}

/// The commit rates when purging and applying count, too.
pub(super) fn keeping_up(results: &Results, setups: &[Setup], threads: &[u64]) -> Section {
    let cell = |setup: Setup, count| {
        let chosen = |m: &Value| m["script"] == UPDATE_INDEX && m["threads"] == count;
        match kept_up_by(results, setup.name(), chosen) {
            Ok(rate) => number(rate.value),
            Err(_) => "–".into(),
        }
    };
    Section {
        heading: "Updates per second that last: until the copies have them, and nothing is left to purge".into(),
        text: "A copy may fall behind while a load runs, and what is left to purge is done later: a rate that lasts counts the time \
               until the copy has everything and nothing is left, nobody else being at work by then. Requests per second with that \
               time."
            .into(),
        table: table_of(setups, threads, "requests/s by threads", cell),
        notes: vec![results.repeats_text()],
        ..Section::default()
    }
}

#[test]
fn unknown_replica_lag_gives_no_lasting_rate() {
    let mut m = serde_json::json!({ "transactions": 100, "transactions_per_s": 100.0, "requests_per_s": 100.0, PAID: 0.0 });
    assert_eq!((kept_up(&m, false), kept_up(&m, true)), (Some(100.0), None));
    m[CAUGHT_UP] = 1.0.into();
    assert_eq!(kept_up(&m, true), Some(50.0));
}
