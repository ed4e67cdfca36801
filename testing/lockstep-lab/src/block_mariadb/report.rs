//! The report: the failovers and their times.

use std::fmt::Write;

use serde::Serialize;

/// How many violations the text has.
const LISTED: usize = 30;

/// One failover, in seconds.
#[derive(Debug, Clone, Serialize)]
pub struct Failover {
    /// `process`: the processes were killed; `machine`: it was also cut off, so that no connection was refused.
    pub lost: &'static str,
    /// From the kill until a member accepted the promotion.
    pub detection_s: f64,
    /// The promotion.
    pub promotion_s: f64,
    /// Until nbdfuse had attached there.
    pub attach_s: f64,
    /// Until ext4 was mounted.
    pub mount_s: f64,
    /// Until MariaDB had recovered and answered.
    pub start_s: f64,
    /// From the kill until MariaDB answered.
    pub total_s: f64,
    /// Rows of acknowledged commits that were compared with the table, of all rounds so far.
    pub acknowledged: usize,
}

/// The result of a campaign.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The server's version.
    pub version: String,
    /// In order.
    pub failovers: Vec<Failover>,
    /// Rows of acknowledged commits, all found in the end if nothing was lost.
    pub acknowledged: usize,
    /// Rows in the table at the end.
    pub rows: usize,
    /// Lost, foreign or half commits, damage, and failovers that did not succeed.
    pub violations: Vec<String>,
}

impl Report {
    /// Whether nothing was found that must not be.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "seed {} · MariaDB {} · {} failovers, {} acknowledged rows, {} rows in the table",
            self.seed,
            self.version,
            self.failovers.len(),
            self.acknowledged,
            self.rows
        );
        let _ = writeln!(
            out,
            "{:<26} {:>8} {:>10} {:>10} {:>10}",
            "seconds", "rounds", "median", "longest", "shortest"
        );
        for lost in ["process", "machine"] {
            let of: Vec<&Failover> = self.failovers.iter().filter(|failover| failover.lost == lost).collect();
            let part = |name: &str, time: &dyn Fn(&Failover) -> f64| {
                let mut times: Vec<f64> = of.iter().map(|failover| time(failover)).collect();
                times.sort_by(f64::total_cmp);
                let (Some(least), Some(most)) = (times.first(), times.last()) else { return String::new() };
                let median = times[times.len() / 2];
                format!(
                    "{:<26} {:>8} {median:>10.2} {most:>10.2} {least:>10.2}\n",
                    format!("{lost}: {name}"),
                    times.len()
                )
            };
            out += &part("detection", &|failover| failover.detection_s);
            out += &part("promotion", &|failover| failover.promotion_s);
            out += &part("recovery: attach", &|failover| failover.attach_s);
            out += &part("recovery: mount", &|failover| failover.mount_s);
            out += &part("recovery: MariaDB", &|failover| failover.start_s);
            out += &part("all", &|failover| failover.total_s);
        }
        let _ = write!(out, "violations: {}", self.violations.len());
        for violation in self.violations.iter().take(LISTED) {
            let _ = write!(out, "\n  {violation}");
        }
        out
    }
}
