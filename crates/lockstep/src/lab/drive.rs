//! Runs the set-ups of an experiment one after the other, again and again, into a folder of results.

use std::path::{Path, PathBuf};
use std::time::Instant;

use lockstep_lab::wan::Counters;
use serde_json::{Map, Value, json};

use super::folder::{self, Folder, Results};
use super::page::Page;
use crate::progress::{Step, say};

/// Debian's Galera library.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// The options that all experiments have.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct Common {
    /// Once, and smaller: in six minutes at most on two processors.
    #[arg(long)]
    pub(super) quick: bool,
    /// Where the results go [default: lab-NAME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Go on with what an interrupted run has left in that folder.
    #[arg(long)]
    pub(super) resume: bool,
    /// Our provider's file [default: liblockstep.so beside this program].
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// The rival's.
    #[arg(long, value_name = "FILE", default_value = GALERA)]
    pub(super) galera: PathBuf,
}

impl Common {
    /// The folder of results.
    pub(super) fn folder(&self, experiment: &str, parameters: Value) -> Result<Folder, String> {
        let default = || PathBuf::from(format!("lab-{experiment}"));
        let path = self.out.clone().unwrap_or_else(default);
        Folder::open(&path, experiment, parameters, self.resume)
    }

    /// Our provider's file.
    pub(super) fn provider(&self) -> Result<PathBuf, String> {
        self.provider.clone().map_or_else(crate::up::beside_this_program, Ok)
    }

    /// The set-ups to run: those that were named, or all of the lab's; without Galera's where its library is missing.
    pub(super) fn setups<S: Copy>(&self, named: &[S], each: &[S], is_galera: impl Fn(&S) -> bool) -> Vec<S> {
        let mut setups = if named.is_empty() { each.to_vec() } else { named.to_vec() };
        if setups.iter().any(&is_galera) && !self.has_galera() {
            setups.retain(|setup| !is_galera(setup));
        }
        setups
    }

    /// Whether the rival is there; says so if not.
    fn has_galera(&self) -> bool {
        let there = self.galera.is_file();
        if !there {
            say(&format!("without Galera: there is no {}", self.galera.display()));
        }
        there
    }
}

/// The set-up of this name, for the command line; an error that names them all.
pub(super) fn named<S: Copy, N: Into<String>>(
    each: &[S],
    name: impl Fn(S) -> N,
    wanted: &str,
) -> Result<S, String> {
    each.iter().copied().find(|setup| name(*setup).into() == wanted).ok_or_else(|| {
        let names: Vec<String> = each.iter().map(|setup| name(*setup).into()).collect();
        format!("there is no such set-up; there are {}", names.join(", "))
    })
}

/// What became of the packets of one direction, for the record of a run.
pub(super) fn line(counters: &Counters) -> Value {
    json!({ "packets": counters.delivered, "bytes": counters.delivered_bytes, "lost": counters.lost,
        "dropped": counters.dropped, "over_1_ms_late": counters.late, "latest_us": counters.latest / 1000 })
}

/// One set-up of an experiment.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Its short name, as in results.
    pub(super) setup: String,
    /// What it is, for people.
    pub(super) what: String,
    /// About how long one run takes.
    pub(super) seconds: f64,
}

/// What one run of a set-up found.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Of the server, and of the provider where there is one.
    pub(super) version: String,
    /// Each an object of what was asked (say, `clients`) and what was seen.
    pub(super) measurements: Vec<Value>,
    /// What else is to be known of the run.
    pub(super) more: Map<String, Value>,
    /// Raw; the set-up and the repeat are added to each.
    pub(super) samples: Vec<Value>,
    /// Name and option file of each server.
    pub(super) configurations: Vec<(String, String)>,
    /// For the line of the terminal.
    pub(super) headline: String,
}

/// After so many failures in a row the next one would fail, too.
const TOO_MANY: usize = 3;

/// Runs each case `repeats` times, taking turns, but for those that the folder has already. One that fails does not keep the
/// others from being measured, and is said again in the end.
pub(super) fn drive(
    folder: &mut Folder,
    cases: &[Case],
    repeats: usize,
    mut run: impl FnMut(&Case) -> Result<Outcome, String>,
) -> Result<(), String> {
    let all = (1..=repeats).flat_map(|repeat| cases.iter().map(move |case| (repeat, case)));
    let (done, due): (Vec<_>, Vec<_>) = all.partition(|(repeat, case)| folder.has(&case.setup, *repeat));
    let total = done.len() + due.len();
    if !done.is_empty() {
        say(&format!("{} of {total} runs are there already", done.len()));
    }
    let mut left = Left::new(due.iter().map(|(_, case)| case.seconds).sum());
    let (mut failed, mut in_a_row) = (Vec::new(), 0);
    for (at, (repeat, case)) in due.into_iter().enumerate() {
        if in_a_row == TOO_MANY {
            break;
        }
        let step = Step::start(&format!("{} of {total}: {}", done.len() + at + 1, case.what));
        let began = Instant::now();
        let outcome = run(case);
        left.did(case.seconds, began.elapsed().as_secs_f64());
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(e) => {
                step.done(&format!("failed, {}", left.text()));
                failed.push(format!("{}: {e}", case.what));
                in_a_row += 1;
                continue;
            }
        };
        in_a_row = 0;
        for (server, text) in &outcome.configurations {
            folder.add_config(&case.setup, server, text)?;
        }
        let mut about = json!({ "setup": case.setup, "repeat": repeat, "version": outcome.version,
            "seconds": began.elapsed().as_secs_f64(), "measurements": outcome.measurements });
        for (name, value) in outcome.more {
            about[name] = value;
        }
        let samples = outcome.samples.into_iter().map(|mut sample| {
            sample["setup"] = case.setup.as_str().into();
            sample["repeat"] = repeat.into();
            sample
        });
        folder.add(about, samples)?;
        step.done(&format!("{}, {}", outcome.headline, left.text()));
    }
    if failed.is_empty() {
        return Ok(());
    }
    let (failures, path) = (failed.join("\n"), folder.path().display());
    Err(format!(
        "{failures}\nwhat was measured is kept: go on with --resume, or see what there is with `lockstep lab report {path}`"
    ))
}

/// How long the rest takes: as was expected, corrected by how long what is done took against what was expected of it.
struct Left {
    expected: f64,
    done: f64,
    took: f64,
}

impl Left {
    fn new(expected: f64) -> Left {
        Left { expected, done: 0.0, took: 0.0 }
    }

    fn did(&mut self, expected: f64, took: f64) {
        self.expected -= expected;
        self.done += expected;
        self.took += took;
    }

    fn text(&self) -> String {
        let factor = if self.done > 0.0 { self.took / self.done } else { 1.0 };
        let seconds = (self.expected * factor).max(0.0);
        match seconds {
            s if s < 0.5 => "all done".into(),
            s if s < 100.0 => format!("about {s:.0} s left"),
            s => format!("about {:.0} min left", s / 60.0),
        }
    }
}

/// Prints the tables of a folder's results and writes its report.
pub(super) fn report(path: &Path, page: impl FnOnce(&Results) -> Page) -> Result<(), String> {
    let results = Results::load(path)?;
    let page = page(&results);
    say(&page.text());
    let report = folder::write_report(path, &page.html(&results))?;
    say(&format!("Report: {}", report.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_ups_take_turns_and_a_failed_one_is_all_that_resume_repeats() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let case = |setup: &str| Case { setup: setup.into(), what: setup.into(), seconds: 1.0 };
        let cases = [case("a"), case("b")];
        let mut ran = Vec::new();
        let mut go = |fail_at: usize| {
            let mut folder = Folder::open(&path, "x", json!({}), true).unwrap();
            drive(&mut folder, &cases, 2, |case| {
                ran.push(case.setup.clone());
                if ran.len() == fail_at {
                    return Err("it broke".into());
                }
                let samples = vec![json!({ "us": 1 })];
                Ok(Outcome { measurements: vec![json!({ "rate": 1.0 })], samples, ..Outcome::default() })
            })
        };
        let failed = go(3).unwrap_err();
        assert!(failed.contains("a: it broke") && failed.contains("--resume"), "{failed}");
        go(0).unwrap();
        go(0).unwrap();
        assert_eq!(ran, ["a", "b", "a", "b", "a"]);
        let results = Results::load(&path).unwrap();
        let of: Vec<(&str, u64)> = results
            .runs
            .iter()
            .map(|r| (r["setup"].as_str().unwrap(), r["repeat"].as_u64().unwrap()))
            .collect();
        assert_eq!(of, [("a", 1), ("b", 1), ("b", 2), ("a", 2)]);
        let samples = std::fs::read_to_string(path.join("samples.jsonl")).unwrap();
        let last: Value = serde_json::from_str(samples.lines().last().unwrap()).unwrap();
        assert_eq!(last, json!({ "setup": "a", "repeat": 2, "us": 1 }));
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn where_everything_fails_it_soon_ends() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-fails-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let case = |n: usize| Case { setup: n.to_string(), what: n.to_string(), seconds: 1.0 };
        let cases: Vec<Case> = (0..9).map(case).collect();
        let mut folder = Folder::open(&path, "x", json!({}), true).unwrap();
        let mut tried = 0;
        let failed = drive(&mut folder, &cases, 1, |_| {
            tried += 1;
            Err("no disk".into())
        });
        assert!(failed.unwrap_err().starts_with("0: no disk\n1: no disk\n2: no disk\n"));
        assert_eq!(tried, TOO_MANY);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn the_time_left_follows_what_was_seen() {
        let mut left = Left::new(30.0);
        left.did(10.0, 20.0);
        assert_eq!(left.text(), "about 40 s left");
        left.did(20.0, 40.0);
        assert_eq!(left.text(), "all done");
    }
}
