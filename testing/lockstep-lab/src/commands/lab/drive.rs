//! Runs the set-ups of an experiment one after the other, again and again, into a folder of results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::{BUSY, Work};
use lockstep_local::{Step, say};
use serde_json::{Map, Value, json};

use super::folder::{self, Folder, Resume};
use super::line::Lateness;
use super::numbers::number;
use super::origin::Origin;
use super::page::Page;
use super::results::Results;
use super::turns::there_and_back;

/// Debian's Galera library.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// The exit code where something that was to be measured was not.
const NOT_WHOLE: u8 = 3;

/// The options that all experiments have.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct Common {
    /// Once, and smaller: in six minutes at most on two processors.
    #[arg(long)]
    pub(super) quick: bool,
    /// How often each set-up is measured [default: 1 with --quick, else 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,
    /// Where the results go [default: lab-NAME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Go on with what an interrupted run has left in that folder, with the same options, on the same machine, with the
    /// same versions.
    #[arg(long)]
    pub(super) resume: bool,
    /// With --resume: also on another machine, or with other versions. The report says that its results are mixed.
    #[arg(long, requires = "resume")]
    pub(super) mixed: bool,
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
        self.folder_of(experiment, parameters, Origin::of(&self.provider()?, &self.galera)?)
    }

    /// The same of an experiment that depends on other versions.
    pub(super) fn folder_of(
        &self,
        experiment: &str,
        parameters: Value,
        origin: Origin,
    ) -> Result<Folder, String> {
        let default = || PathBuf::from(format!("lab-{experiment}"));
        let path = self.out.clone().unwrap_or_else(default);
        let resume = match (self.resume, self.mixed) {
            (false, _) => Resume::No,
            (true, false) => Resume::Same,
            (true, true) => Resume::Mixed,
        };
        Folder::open(&path, experiment, parameters, origin, resume)
    }

    /// How often each set-up is measured.
    pub(super) fn repeats(&self) -> usize {
        self.repeats.map_or(if self.quick { 1 } else { 3 }, |repeats| repeats as usize)
    }

    /// Our provider's file.
    pub(super) fn provider(&self) -> Result<PathBuf, String> {
        self.provider.clone().map_or_else(lockstep_local::beside_this_program, Ok)
    }

    /// Why a set-up of the rival's cannot be measured, if it cannot.
    pub(super) fn no_galera(&self) -> Option<String> {
        (!self.galera.is_file()).then(|| format!("there is no {}", self.galera.display()))
    }
}

/// The set-ups to run: those that were named, or all of the lab's.
pub(super) fn chosen<S: Copy>(named: &[S], each: &[S]) -> Vec<S> {
    if named.is_empty() { each.to_vec() } else { named.to_vec() }
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

/// One set-up of an experiment.
#[derive(Debug, Clone)]
pub(super) struct Case {
    /// Its short name, as in results.
    pub(super) setup: String,
    /// Its description.
    pub(super) what: String,
    /// About how long one run takes.
    pub(super) seconds: f64,
    /// Why it cannot be measured here, if it cannot.
    pub(super) absent: Option<String>,
}

/// What one run of a set-up found.
#[derive(Debug, Clone, Default)]
pub(super) struct CaseResult {
    /// Of the server, and of the provider where there is one.
    pub(super) version: String,
    /// Each an object with the parameters (such as `clients`) and the measured values.
    pub(super) measurements: Vec<Value>,
    /// Further facts about the run.
    pub(super) more: Map<String, Value>,
    /// Raw; the set-up and the repeat are added to each.
    pub(super) samples: Vec<Value>,
    /// Name and option file of each server.
    pub(super) configurations: Vec<(String, String)>,
    /// For the line of the terminal.
    pub(super) headline: String,
    /// Whether the lines were what they promise.
    pub(super) late: Option<Lateness>,
    /// Which part of the machine something else used meanwhile, as far as that is known.
    pub(super) elsewhere: Option<f64>,
}

impl CaseResult {
    /// Reasons to doubt it: the field that shows the reason, and its text.
    fn doubts(&self) -> Vec<(&'static str, String)> {
        let late = self.late.as_ref().map(|late| (LINE_LATE, late.text.clone()));
        let others = self.elsewhere.filter(|part| *part > BUSY);
        let busy = others.map(|part| {
            (MACHINE_BUSY, format!("{} % of the machine was busy with something else", number(100.0 * part)))
        });
        late.into_iter().chain(busy).collect()
    }

    /// Marks everything in it; in words, for the terminal.
    fn mark(&mut self) -> String {
        let doubts = self.doubts();
        for (field, why) in &doubts {
            self.more.insert((*field).into(), why.as_str().into());
            for value in self.measurements.iter_mut().chain(&mut self.samples) {
                value[*field] = true.into();
            }
        }
        if let Some(part) = self.elsewhere {
            self.more.insert(ELSEWHERE.into(), part.into());
        }
        let why: Vec<String> = doubts.into_iter().map(|(_, why)| why).collect();
        if why.is_empty() { String::new() } else { format!(" IN DOUBT: {},", why.join("; ")) }
    }
}

/// Runs a set-up, and looks what else the machine does meanwhile.
fn watched(
    mut run: impl FnMut(&Case) -> Result<CaseResult, String>,
) -> impl FnMut(&Case) -> Result<CaseResult, String> {
    move |case| {
        let before = Work::of_this_process().map_err(|e| e.to_string())?;
        let mut outcome = run(case)?;
        let after = Work::of_this_process().map_err(|e| e.to_string())?;
        outcome.elsewhere = after.elsewhere_since(&before);
        Ok(outcome)
    }
}

/// Runs a set-up; once more if the line was late and that takes no long time, and then the better of the two is taken. What
/// became of the other is kept beside it.
fn punctually(
    case: &Case,
    again: &mut usize,
    run: &mut impl FnMut(&Case) -> Result<CaseResult, String>,
    step: &Step,
) -> Result<CaseResult, String> {
    let began = Instant::now();
    let first = run(case)?;
    let Some(late) = first.late.clone() else { return Ok(first) };
    if *again > 0 && began.elapsed() < AGAIN_WITHIN {
        *again -= 1;
        step.note(&format!("the delay line was late: {}; once more", late.text));
        // The first result counts even if the second fails.
        if let Ok(second) = run(case) {
            let better = second.late.as_ref().is_none_or(|second| second.share < late.share);
            let (mut taken, left) = if better { (second, first) } else { (first, second) };
            let why = left.late.map(|late| late.text);
            taken
                .more
                .insert("not_taken".into(), json!({ LINE_LATE: why, "measurements": left.measurements }));
            return Ok(taken);
        }
    }
    Ok(first)
}

/// The field of a run, of its measurements and of its samples that says that the line was late.
pub(super) const LINE_LATE: &str = "line_late";
/// The same where the machine was busy with something else;
pub(super) const MACHINE_BUSY: &str = "machine_busy";
/// and of each run, which part of the machine that was.
const ELSEWHERE: &str = "machine_used_by_others";
/// A run is repeated for a late line if it took no longer than this,
const AGAIN_WITHIN: Duration = Duration::from_secs(60);
/// The most repetitions in one experiment, because its time is limited.
const AGAIN_MAX: usize = 3;

/// After so many failures in a row the next one would fail, too.
const TOO_MANY: usize = 3;

/// Runs each case `repeats` times, there and back, but for those that the folder has already. A failed case
/// does not stop the others; its reason is saved and reported at the end. Returns the failures, and the reason of an early
/// end if results could not be saved.
pub(super) fn drive(
    folder: &mut Folder,
    cases: &[Case],
    repeats: usize,
    run: impl FnMut(&Case) -> Result<CaseResult, String>,
) -> Vec<String> {
    let mut failed = Vec::new();
    if let Err(why) = drive_to_the_end(folder, cases, repeats, &mut failed, watched(run)) {
        failed.push(format!("nothing more was measured: {why}"));
    }
    failed.dedup();
    failed
}

fn drive_to_the_end(
    folder: &mut Folder,
    cases: &[Case],
    repeats: usize,
    failed: &mut Vec<String>,
    mut run: impl FnMut(&Case) -> Result<CaseResult, String>,
) -> Result<(), String> {
    folder.plan(cases, repeats)?;
    let all = there_and_back(cases, repeats).into_iter();
    let (done, due): (Vec<_>, Vec<_>) = all.partition(|(repeat, case)| folder.has(&case.setup, *repeat));
    let total = done.len() + due.len();
    if !folder.taken_over().is_empty() {
        let (from, rest) = (folder.taken_over(), due.len());
        say(&format!("{} of {total} runs are taken over, {from}; left to measure: {rest}", done.len()));
    }
    let due_seconds = due.iter().filter(|(_, case)| case.absent.is_none()).map(|(_, case)| case.seconds);
    let mut left = Left::new(due_seconds.sum());
    let (mut in_a_row, mut again) = (0, AGAIN_MAX);
    for (at, (repeat, case)) in due.into_iter().enumerate() {
        let reason = match (&case.absent, in_a_row) {
            (Some(why), _) => Some(why.clone()),
            (None, TOO_MANY) => Some(format!("not tried after {TOO_MANY} failures in a row")),
            _ => None,
        };
        if let Some(why) = reason {
            say(&format!("{} of {total}: {} is not measured: {why}", done.len() + at + 1, case.what));
            folder.add_failed(case, repeat, &why)?;
            failed.push(format!("{}: {why}", case.what));
            continue;
        }
        let step = Step::start(&format!("{} of {total}: {}", done.len() + at + 1, case.what));
        // Dirty pages of earlier cases must not slow down this one.
        crate::sync_disks();
        let began = Instant::now();
        let outcome = punctually(case, &mut again, &mut run, &step);
        left.did(case.seconds, began.elapsed().as_secs_f64());
        let mut outcome = match outcome {
            Ok(outcome) => outcome,
            Err(e) => {
                step.done(&format!("failed, {}", left.text()));
                folder.add_failed(case, repeat, &e)?;
                failed.push(format!("{}: {e}", case.what));
                in_a_row += 1;
                continue;
            }
        };
        in_a_row = 0;
        let doubt = outcome.mark();
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
        step.done(&format!("{},{doubt} {}", outcome.headline, left.text()));
    }
    Ok(())
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
fn report(path: &Path, page: impl FnOnce(&Results) -> Page) -> Result<Results, String> {
    let results = Results::load(path)?;
    let page = page(&results);
    say(&page.text(&results));
    let report = folder::write_report(path, &page.html(&results))?;
    say(&format!("Report: {}", report.display()));
    Ok(results)
}

/// Reports what there is; the exit code says whether that is all.
pub(super) fn finish(folder: &Folder, failed: &[String], page: impl FnOnce(&Results) -> Page) -> ExitCode {
    let mut failed = failed.to_vec();
    if let Err(why) = report(folder.path(), page) {
        failed.push(format!("the report: {why}"));
    }
    exit_code(&failed)
}

/// The same of a folder that a run has left, perhaps before its end.
pub(super) fn report_again(path: &Path, page: impl FnOnce(&Results) -> Page) -> Result<ExitCode, String> {
    let results = report(path, page)?;
    let mut missing: Vec<String> = results
        .missing()
        .into_iter()
        .map(|(what, repeats, why)| {
            format!("{what}, repeat {repeats}: {}", why.lines().next().unwrap_or_default())
        })
        .collect();
    if missing.is_empty() && results.runs.is_empty() {
        missing.push(format!("nothing is in {}", path.display()));
    }
    Ok(exit_code(&missing))
}

/// Says what is missing, if something is.
fn exit_code(missing: &[String]) -> ExitCode {
    if missing.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "lockstep: not everything was measured:\n{}\nWhat was measured is kept: try the rest again with --resume.",
        missing.join("\n")
    );
    ExitCode::from(NOT_WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::Counters;

    fn case_of(setup: &str) -> Case {
        Case { setup: setup.into(), what: setup.into(), seconds: 1.0, absent: None }
    }

    fn open(path: &Path) -> Folder {
        let resume = if path.exists() { Resume::Same } else { Resume::No };
        Folder::open(path, "x", json!({}), Origin::default(), resume).unwrap()
    }

    #[test]
    fn setups_alternate_and_resume_repeats_failed_only() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let case = |setup: &str| case_of(setup);
        let cases = [case("a"), case("b")];
        let mut ran = Vec::new();
        let mut go = |fail_at: usize| {
            let mut folder = open(&path);
            drive(&mut folder, &cases, 2, |case| {
                ran.push(case.setup.clone());
                if ran.len() == fail_at {
                    return Err("it broke".into());
                }
                let samples = vec![json!({ "us": 1 })];
                Ok(CaseResult {
                    measurements: vec![json!({ "rate": 1.0 })],
                    samples,
                    ..CaseResult::default()
                })
            })
        };
        assert_eq!(go(4), ["a: it broke"]);
        let missing = Results::load(&path).unwrap().missing();
        assert_eq!(missing, [("a".to_owned(), "2".to_owned(), "it broke".to_owned())]);
        assert!(go(0).is_empty());
        assert!(go(0).is_empty());
        assert!(Results::load(&path).unwrap().missing().is_empty());
        assert_eq!(ran, ["a", "b", "b", "a", "a"]);
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
    fn experiment_ends_early_when_everything_fails() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-fails-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let cases: Vec<Case> = (0..5).map(|n| case_of(&n.to_string())).collect();
        let mut folder = open(&path);
        let mut tried = 0;
        let failed = drive(&mut folder, &cases, 1, |_| {
            tried += 1;
            Err("no disk".into())
        });
        assert_eq!(failed[..3], ["0: no disk", "1: no disk", "2: no disk"]);
        assert_eq!((failed.len(), tried), (5, TOO_MANY));
        let results = Results::load(&path).unwrap();
        assert_eq!(results.missing().len(), 5);
        assert_eq!(results.why_not("1"), "1: no disk");
        assert_eq!(results.why_not("4"), "4: not tried after 3 failures in a row");
        assert_eq!(results.setups(), ["0", "1", "2", "3", "4"]);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn report_is_written_when_results_cannot_be_saved() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-full-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let cases: Vec<Case> = ["a", "b", "c"].map(case_of).into();
        let mut folder = open(&path);
        let failed = drive(&mut folder, &cases, 1, |case| {
            let mut outcome = CaseResult::default();
            if case.setup == "b" {
                // As on a full disk.
                outcome.configurations.push(("no/such/folder".into(), String::new()));
            }
            Ok(outcome)
        });
        assert!(
            failed.len() == 1 && failed[0].starts_with("nothing more was measured: cannot write"),
            "{failed:?}"
        );
        let code =
            finish(&folder, &failed, |_| Page { title: "x".into(), lead: Vec::new(), sections: Vec::new() });
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(NOT_WHOLE)));
        assert!(path.join("report.html").exists());
        drop(folder);
        // And it can be gone on with.
        let mut folder = open(&path);
        assert!(drive(&mut folder, &cases, 1, |_| Ok(CaseResult::default())).is_empty());
        drop(folder);
        assert_eq!(Results::load(&path).unwrap().setups(), ["a", "b", "c"]);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn missing_rival_is_reported_and_others_run() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-absent-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let mut cases = vec![case_of("a"), case_of("b")];
        cases[0].absent = Some("there is no x.so".into());
        let failed = drive(&mut open(&path), &cases, 4, |_| Ok(CaseResult::default()));
        assert_eq!(failed.len(), 1, "{failed:?}");
        let results = Results::load(&path).unwrap();
        let why = "there is no x.so".to_owned();
        assert_eq!(results.missing(), [("a".to_owned(), "1, 2, 3, 4".to_owned(), why)]);
        assert_eq!((results.runs.len(), results.repeats()), (4, (4, 4)));
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn incomplete_report_sets_exit_code() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-again-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let code = || {
            let page = |_: &Results| Page { title: "x".into(), lead: Vec::new(), sections: Vec::new() };
            format!("{:?}", report_again(&path, page).unwrap())
        };
        let whole =
            |whole: bool| format!("{:?}", if whole { ExitCode::SUCCESS } else { ExitCode::from(NOT_WHOLE) });
        drop(open(&path));
        assert_eq!(code(), whole(false), "nothing was even planned");
        let go = |fails: bool| {
            drive(&mut open(&path), &[case_of("a"), case_of("b")], 1, |case| {
                match case.setup == "b" && fails {
                    true => Err("it broke".into()),
                    false => Ok(CaseResult::default()),
                }
            })
        };
        assert_eq!(go(true), ["b: it broke"]);
        assert_eq!(code(), whole(false));
        assert!(path.join("report.html").exists());
        assert!(go(false).is_empty());
        assert_eq!(code(), whole(true));
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn interrupted_experiment_lists_missing_cases() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-killed-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        open(&path).plan(&[case_of("a")], 2).unwrap();
        let results = Results::load(&path).unwrap();
        assert_eq!(results.why_not("a"), "a: not run yet: go on with --resume");
        assert_eq!(results.why_not("b"), "b: not chosen");
        assert_eq!(results.missing()[0].1, "1, 2");
        std::fs::remove_dir_all(&path).unwrap();
    }

    /// A run in which so many of 1000 packets were late.
    fn overdue(packets: u64) -> CaseResult {
        let there = Counters { delivered: 1000, late: packets, latest: 5_000_000, ..Counters::default() };
        let mut outcome =
            CaseResult { late: Lateness::of(&there, &Counters::default()), ..CaseResult::default() };
        outcome.measurements.push(json!({ "rate": packets }));
        outcome.samples.push(json!({ "us": 1 }));
        outcome
    }

    #[test]
    fn run_over_late_line_is_repeated_and_marked() {
        assert_eq!(overdue(10).late, None);
        let path = std::env::temp_dir().join(format!("lockstep-drive-late-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let cases: Vec<Case> = ["mended", "late", "worse", "not again", "fine"].map(case_of).into();
        let mut outcomes = vec![
            overdue(500),
            overdue(0),
            overdue(20),
            overdue(500),
            overdue(500),
            overdue(30),
            overdue(40),
            overdue(0),
        ];
        outcomes.reverse();
        drive(&mut open(&path), &cases, 1, |_| outcomes.pop().ok_or_else(|| "too often".into()));
        let results = Results::load(&path).unwrap();
        let rates: Vec<u64> =
            results.runs.iter().filter_map(|r| r["measurements"][0]["rate"].as_u64()).collect();
        assert_eq!(rates, [0, 20, 30, 40, 0]);
        let text =
            |share| json!(format!("{share} % of the packets came more than 1 ms late, one of them 5.00 ms"));
        let marks: Vec<&Value> = results.runs.iter().map(|run| &run[LINE_LATE]).collect();
        assert_eq!(marks, [&Value::Null, &text("2.00"), &text("3.00"), &text("4.00"), &Value::Null]);
        assert_eq!(results.runs[0]["not_taken"][LINE_LATE], text("50.0"));
        assert_eq!(results.runs[1]["not_taken"]["measurements"][0]["rate"], 500);
        assert_eq!(results.runs[3]["not_taken"], Value::Null);
        let samples = std::fs::read_to_string(path.join("samples.jsonl")).unwrap();
        let marks = samples.lines().map(|line| line.contains("\"line_late\":true"));
        assert_eq!(marks.collect::<Vec<_>>(), [false, true, true, true, false]);
        let stat = |setup| results.stat(setup, "rate", |_| true).unwrap();
        assert_eq!((stat("late").text(), stat("mended").text()), ("20.0 †".into(), "0".into()));
        assert_eq!(results.doubtful(LINE_LATE).len(), 3);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn run_on_busy_machine_is_marked() {
        let path = std::env::temp_dir().join(format!("lockstep-drive-busy-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let cases: Vec<Case> = ["quiet", "busy", "both", "too short to tell"].map(case_of).into();
        let with = |late_packets, elsewhere| CaseResult { elsewhere, ..overdue(late_packets) };
        let mut outcomes = vec![
            with(0, Some(0.05)),
            with(0, Some(0.126)),
            with(500, Some(0.51)),
            with(500, Some(0.52)),
            with(0, None),
        ];
        outcomes.reverse();
        let mut folder = open(&path);
        let mut failed = Vec::new();
        drive_to_the_end(&mut folder, &cases, 1, &mut failed, |_| {
            outcomes.pop().ok_or_else(|| "none".into())
        })
        .unwrap();
        let results = Results::load(&path).unwrap();
        let why = |part| format!("{part} % of the machine was busy with something else");
        let (some, much) = (why("12.6"), why("51.0"));
        assert_eq!(results.doubtful(MACHINE_BUSY), [("busy", 1, some.as_str()), ("both", 1, much.as_str())]);
        assert_eq!(results.doubtful(LINE_LATE).len(), 1);
        let parts: Vec<&Value> = results.runs.iter().map(|run| &run[ELSEWHERE]).collect();
        assert_eq!(parts, [&json!(0.05), &json!(0.126), &json!(0.51), &Value::Null]);
        let text = |setup| results.stat(setup, "rate", |_| true).unwrap().text();
        assert_eq!(["quiet", "busy", "too short to tell"].map(text), ["0", "0 †", "0"]);
        let samples = std::fs::read_to_string(path.join("samples.jsonl")).unwrap();
        let marks = samples.lines().map(|line| line.contains("\"machine_busy\":true"));
        assert_eq!(marks.collect::<Vec<_>>(), [false, true, true, false]);
        let page = Page { title: "x".into(), lead: Vec::new(), sections: Vec::new() };
        let (html, text) = (page.html(&results), page.text(&results));
        for said in
            [&some, "1 of 4 runs with a late line", "2 of 4 while the machine was busy with something else"]
        {
            assert!(html.contains(said) && text.contains(said), "{said} is not in {text}");
        }
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn each_run_is_watched() {
        let mut run = watched(|_| {
            std::thread::sleep(Duration::from_millis(600));
            Ok(CaseResult::default())
        });
        let outcome = run(&case_of("a")).unwrap();
        assert!(outcome.elsewhere.is_some_and(|part| (0.0..=1.5).contains(&part)), "{:?}", outcome.elsewhere);
    }

    #[test]
    fn remaining_time_follows_measured_durations() {
        let mut left = Left::new(30.0);
        left.did(10.0, 20.0);
        assert_eq!(left.text(), "about 40 s left");
        left.did(20.0, 40.0);
        assert_eq!(left.text(), "all done");
    }
}
