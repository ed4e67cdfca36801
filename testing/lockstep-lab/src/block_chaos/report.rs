//! The report of a campaign.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::fault::Fault;
use super::writer::Done;
use super::{Spec, Stage};

/// How many violations the text has.
const LISTED: usize = 30;

/// What one kind of fault did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct FaultReport {
    /// How often it was injected.
    pub rounds: u64,
    /// The longest time in which the client got no answer, in seconds.
    pub longest_gap_s: f64,
    /// How often a member was promoted.
    pub promotions: u64,
    /// The longest promotion in seconds, from the first try to the new name.
    pub longest_promotion_s: f64,
    /// The longest time in seconds from the end of the client's work until all copies were equal.
    pub longest_until_whole_s: f64,
    /// Answered flushes that were lost, as the protocol allows.
    pub lost_flushes: u64,
}

/// The result of a campaign.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Seconds from the start of the first group to the end of the last.
    pub seconds: f64,
    /// The groups, one after the other.
    pub stages: Vec<String>,
    /// By kind.
    pub faults: BTreeMap<Fault, FaultReport>,
    /// Answered writes, also of zeroes.
    pub writes: u64,
    /// Answered flushes.
    pub flushes: u64,
    /// Bytes that were compared with the model.
    pub bytes_verified: u64,
    /// Rounds of fio, and the bytes that it verified after faults.
    pub fio_rounds: u64,
    /// See there.
    pub fio_bytes_verified: u64,
    /// How often all device files were compared byte by byte.
    pub comparisons: u64,
    /// How often a supervisor started a member again that a fault had not killed.
    pub own_ends: u64,
    /// The corruption that was planted, if any.
    pub planted: Option<String>,
    /// Wrong bytes, wrong answers, and members that did not return.
    pub violations: Vec<String>,
}

impl Report {
    pub(super) fn new(spec: &Spec) -> Report {
        Report {
            seed: spec.seed,
            stages: spec.stages.iter().map(Stage::text).collect(),
            planted: spec.plant.map(|plant| plant.name().to_owned()),
            ..Report::default()
        }
    }

    /// Whether nothing was found that must not be.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    pub(super) fn fault(&mut self, fault: Fault) -> &mut FaultReport {
        self.faults.entry(fault).or_default()
    }

    pub(super) fn did(&mut self, done: Done) {
        self.writes += done.writes;
        self.flushes += done.flushes;
        self.bytes_verified += done.verified;
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "seed {} · {:.0} s · {}", self.seed, self.seconds, self.stages.join(", then "));
        let _ = writeln!(
            out,
            "{:<20} {:>6} {:>12} {:>11} {:>12} {:>12} {:>12}",
            "fault", "rounds", "no answer", "promotions", "longest", "until whole", "lost flushes"
        );
        for (fault, of) in &self.faults {
            let _ = writeln!(
                out,
                "{:<20} {:>6} {:>10.2} s {:>11} {:>10.2} s {:>10.1} s {:>12}",
                fault.name(),
                of.rounds,
                of.longest_gap_s,
                of.promotions,
                of.longest_promotion_s,
                of.longest_until_whole_s,
                of.lost_flushes
            );
        }
        let mib = |bytes: u64| bytes >> 20;
        let _ = writeln!(
            out,
            "{} writes, {} flushes, {} MiB verified; fio: {} rounds, {} MiB verified after faults; device files compared {} \
             times; members that ended by themselves: {}",
            self.writes,
            self.flushes,
            mib(self.bytes_verified),
            self.fio_rounds,
            mib(self.fio_bytes_verified),
            self.comparisons,
            self.own_ends
        );
        if let Some(planted) = &self.planted {
            let _ = writeln!(out, "planted corruption: {planted}");
        }
        let _ = write!(out, "violations: {}", self.violations.len());
        for violation in self.violations.iter().take(LISTED) {
            let _ = write!(out, "\n  {violation}");
        }
        out
    }
}

/// Raises a maximum.
pub(super) fn raise(maximum: &mut f64, time: Duration) {
    *maximum = maximum.max(time.as_secs_f64());
}
