//! The contents of a folder of results, from which reports are made.

use std::path::Path;

use serde_json::Value;

use super::drive::{LINE_LATE, MACHINE_BUSY};
use super::files::{read, read_lines};
use super::folder::{ABOUT, CONFIG, FAILED, OPTIONS, RUNS};
use super::numbers::{Known, Partial, Stat};

/// Why there is no run where none failed.
const INTERRUPTED: &str = "not run yet: go on with --resume";
/// Why nothing is known of a set-up that was not to be measured.
pub(super) const NOT_CHOSEN: &str = "not chosen";

/// The contents of a folder.
#[derive(Debug, Clone)]
pub(super) struct Results {
    /// The experiment, the command, the parameters, the machine, the versions, and the planned cases.
    pub(super) about: Value,
    /// One for each run of a set-up: `setup`, `repeat`, `version`, `measurements`, and what the experiment adds.
    pub(super) runs: Vec<Value>,
    /// Those that failed and were not repeated since: `setup`, `repeat`, `what`, `why`.
    pub(super) failed: Vec<Value>,
    /// Names and texts of option files.
    pub(super) config: Vec<(String, String)>,
}

impl Results {
    /// Reads a folder. A torn last line counts as absent.
    pub(super) fn load(path: &Path) -> Result<Results, String> {
        let file = path.join(ABOUT);
        if !file.is_file() {
            return Err(format!(
                "{} is no folder of a lab's results, for it has no {ABOUT}: name the one that was given to --out",
                path.display()
            ));
        }
        let about: Value =
            serde_json::from_str(&read(&file)?).map_err(|e| format!("{}: {e}", file.display()))?;
        let runs = read_lines(&path.join(RUNS))?;
        let mut failed = match path.join(FAILED).exists() {
            true => read_lines(&path.join(FAILED))?,
            false => Vec::new(),
        };
        failed.retain(|f| !runs.iter().any(|run| run["setup"] == f["setup"] && run["repeat"] == f["repeat"]));
        let mut config = Vec::new();
        for entry in std::fs::read_dir(path.join(CONFIG)).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(OPTIONS) {
                config.push((name, read(&entry.path())?));
            }
        }
        config.sort();
        Ok(Results { about, runs, failed, config })
    }

    /// The planned set-ups, and any others with runs: a report leaves none out.
    pub(super) fn setups(&self) -> Vec<&str> {
        let planned = self.planned().iter().filter_map(|case| case["setup"].as_str());
        let mut setups: Vec<&str> = Vec::new();
        for setup in planned.chain(self.runs.iter().filter_map(|run| run["setup"].as_str())) {
            if !setups.contains(&setup) {
                setups.push(setup);
            }
        }
        setups
    }

    fn planned(&self) -> &[Value] {
        self.about["plan"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Planned cases that were not measured: the case, its repeats, and the reason.
    pub(super) fn missing(&self) -> Vec<(String, String, String)> {
        let repeats = self.about["repeats"].as_u64().unwrap_or(0);
        let mut missing: Vec<(String, String, String)> = Vec::new();
        for case in self.planned() {
            for repeat in 1..=repeats {
                let is_this = |run: &&Value| run["setup"] == case["setup"] && run["repeat"] == repeat;
                if self.runs.iter().any(|run| is_this(&run)) {
                    continue;
                }
                let failed = self.failed.iter().find(is_this).and_then(|failed| failed["why"].as_str());
                let why = failed.unwrap_or(INTERRUPTED);
                let what = case["what"].as_str().unwrap_or_default();
                match missing.last_mut() {
                    Some((last, repeats, reason)) if last == what && reason == why => {
                        *repeats = format!("{repeats}, {repeat}");
                    }
                    _ => missing.push((what.into(), repeat.to_string(), why.into())),
                }
            }
        }
        missing
    }

    /// Why there is nothing measured of a set-up, in few words.
    pub(super) fn why_not(&self, setup: &str) -> String {
        if self.runs.iter().any(|run| run["setup"] == setup) {
            return format!("{setup}: not with these options");
        }
        if let Some(why) = self.failed.iter().find(|failed| failed["setup"] == setup) {
            let why = why["why"].as_str().unwrap_or_default();
            return format!("{setup}: {}", why.lines().next().unwrap_or_default());
        }
        match self.planned().iter().any(|case| case["setup"] == setup) {
            true => format!("{setup}: {INTERRUPTED}"),
            false => format!("{setup}: {NOT_CHOSEN}"),
        }
    }

    /// The least and the most repeats that a set-up has which was measured at all.
    pub(super) fn repeats(&self) -> (usize, usize) {
        let mut counts = std::collections::BTreeMap::new();
        for run in &self.runs {
            *counts.entry(run["setup"].as_str()).or_insert(0) += 1;
        }
        let (least, most) = (counts.values().copied().min(), counts.values().copied().max());
        (least.unwrap_or(0), most.unwrap_or(0))
    }

    /// How the numbers are computed, for the reader.
    pub(super) fn repeats_text(&self) -> String {
        let all = self.runs.len();
        let (late, busy) = (self.doubtful(LINE_LATE).len(), self.doubtful(MACHINE_BUSY).len());
        let late = (late > 0).then(|| format!("{late} of {all} runs with a late line"));
        let busy = (busy > 0).then(|| {
            let runs = if late.is_none() { " runs" } else { "" };
            format!("{busy} of {all}{runs} while the machine was busy with something else")
        });
        let doubts: Vec<String> = late.into_iter().chain(busy).collect();
        let doubt = if doubts.is_empty() { String::new() } else { format!(" †: {}.", doubts.join(", ")) };
        format!("{}{doubt}", self.medians_text())
    }

    fn medians_text(&self) -> String {
        match self.repeats() {
            (0, _) => "Nothing was measured.".into(),
            (1, 1) => "1 repeat, no deviation.".into(),
            (least, most) if least == most => format!("Medians of {most} repeats, ± standard deviation."),
            (least, most) => format!(
                "Medians of {least} to {most} repeats, ± standard deviation where there is more than one."
            ),
        }
    }

    /// The measurements of a set-up, those of all its runs.
    pub(super) fn measurements<'a>(&'a self, setup: &'a str) -> impl Iterator<Item = &'a Value> {
        let runs = self.runs.iter().filter(move |run| run["setup"] == setup);
        runs.filter_map(|run| run["measurements"].as_array()).flatten()
    }

    /// The values of this field in the repeats of a set-up, of the measurements that `chosen` selects.
    pub(super) fn stat(&self, setup: &str, field: &str, chosen: impl Fn(&Value) -> bool) -> Option<Stat> {
        stat_of(self.measurements(setup).filter(|m| chosen(m)), field)
    }

    /// The runs that this field calls doubtful: set-up, repeat, and why.
    pub(super) fn doubtful<'a>(&'a self, field: &str) -> Vec<(&'a str, u64, &'a str)> {
        let of = |run: &'a Value| {
            let why = run[field].as_str()?;
            Some((run["setup"].as_str().unwrap_or_default(), run["repeat"].as_u64().unwrap_or(0), why))
        };
        self.runs.iter().filter_map(of).collect()
    }

    /// The median of the same, or why there is none.
    pub(super) fn median(
        &self,
        setup: &str,
        field: &str,
        chosen: impl Fn(&Value) -> bool,
    ) -> Result<Known, String> {
        self.known(setup, self.stat(setup, field, chosen))
    }

    /// The result of a set-up with its number of repeats; or the reason why there is none.
    pub(super) fn known(&self, setup: &str, stat: Option<Stat>) -> Result<Known, String> {
        let known = stat.map(Known::of).ok_or_else(|| self.why_not(setup))?;
        Ok(Known { partial: self.partial(setup), ..known })
    }

    /// Whether a set-up was repeated less often than it was to be.
    fn partial(&self, setup: &str) -> Option<Partial> {
        let wanted = self.about["repeats"].as_u64().unwrap_or(0);
        let of_it = |run: &&Value| run["setup"] == setup;
        let had = self.runs.iter().filter(of_it).count() as u64;
        let failed = self.failed.iter().any(|run| of_it(&run));
        (had < wanted).then_some(Partial { had, wanted, failed })
    }

    /// The numbers that were to be measured with, in order, as this parameter has them: also those that came to nothing. Where
    /// there is no such parameter, those that this field of any measurement has.
    pub(super) fn counts(&self, parameter: &str, field: &str) -> Vec<u64> {
        let measured = || {
            let all = self.runs.iter().filter_map(|run| run["measurements"].as_array()).flatten();
            all.filter_map(|m| m[field].as_u64()).collect()
        };
        let asked = self.about["parameters"][parameter].as_array();
        let mut counts: Vec<u64> =
            asked.map_or_else(measured, |all| all.iter().filter_map(Value::as_u64).collect());
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}

/// Statistics of this field over the measurements.
pub(super) fn stat_of<'a>(measurements: impl Iterator<Item = &'a Value>, field: &str) -> Option<Stat> {
    let of: Vec<&Value> = measurements.collect();
    let stat = Stat::of(of.iter().filter_map(|m| m[field].as_f64()))?;
    let doubtful = |m: &&Value| [LINE_LATE, MACHINE_BUSY].iter().any(|why| m[*why] == true);
    Some(Stat { doubtful: of.iter().any(doubtful), ..stat })
}

#[test]
fn planned_cases_are_derived_from_parameters() {
    use serde_json::json;
    let about = json!({ "parameters": { "threads": [64, 16] } });
    let runs = vec![json!({ "setup": "a", "measurements": [{ "threads": 16, "clients": 4 }] })];
    let results = Results { about, runs, failed: Vec::new(), config: Vec::new() };
    assert_eq!(results.counts("threads", "threads"), [16, 64]);
    assert_eq!(results.counts("connections", "clients"), [4]);
}
