//! The folder of results: what was measured, sample by sample, with what it was measured on. An experiment that was
//! interrupted goes on in it, and its report is made of it alone.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::drive::{Case, LINE_LATE};
use super::numbers::{Known, Stat};
use super::origin::{self, Origin};

const ABOUT: &str = "run.json";
const RUNS: &str = "runs.jsonl";
const FAILED: &str = "failed.jsonl";
const SAMPLES: &str = "samples.jsonl";
const CONFIG: &str = "config";
/// How names of option files end; a report shows these, and nothing else of what is beside them.
const OPTIONS: &str = ".cnf";
const REPORT: &str = "report.html";
/// The field of a run that says where its samples end in `samples.jsonl`: what is behind the last run's belongs to one
/// that was interrupted.
const SAMPLES_END: &str = "samples_end";

/// Why there is no run where none failed.
const INTERRUPTED: &str = "not run yet: go on with --resume";

/// A folder that is being written.
pub(super) struct Folder {
    path: PathBuf,
    runs: File,
    failed: File,
    samples: BufWriter<File>,
    /// Those that it lists.
    listed: Vec<Value>,
    /// What an earlier run has left here, in words; empty if this one began it.
    taken_over: String,
}

/// Whether, and how, to go on in a folder that has results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// Not.
    No,
    /// On the same machine, with the same versions.
    Same,
    /// Also with others; the report says so.
    Mixed,
}

/// What a folder holds.
#[derive(Debug, Clone)]
pub(super) struct Results {
    /// The experiment, the command, the parameters, the machine, the versions, and what was to be measured.
    pub(super) about: Value,
    /// One for each run of a set-up: `setup`, `repeat`, `version`, `measurements`, and what the experiment adds.
    pub(super) runs: Vec<Value>,
    /// Those that failed and were not repeated since: `setup`, `repeat`, `what`, `why`.
    pub(super) failed: Vec<Value>,
    /// Names and texts of option files.
    pub(super) config: Vec<(String, String)>,
}

impl Folder {
    /// Makes the folder; or, to resume, opens the one that an earlier run of the same experiment has left: with the same
    /// parameters always, and, if it is not said that they may differ, on the same machine with the same versions.
    pub(super) fn open(
        path: &Path,
        experiment: &str,
        parameters: Value,
        origin: Origin,
        resume: Resume,
    ) -> Result<Folder, String> {
        let failed = |what: &str| {
            let what = format!("cannot write {what} in {}", path.display());
            move |e: std::io::Error| format!("{what}: {e}")
        };
        let (listed, taken_over) = match (path.join(RUNS).exists(), resume) {
            (true, Resume::No) => {
                return Err(format!(
                    "there are results in {} already: go on with them by --resume, or name another folder with --out",
                    path.display()
                ));
            }
            (true, _) => {
                let mut results = Results::load(path)?;
                same_experiment(path, &results.about, experiment, &parameters)?;
                origin.go_on(path, &mut results.about, resume == Resume::Mixed)?;
                write(&path.join(ABOUT), &format!("{:#}\n", results.about))?;
                let begun = results.about["begun"].as_str().unwrap_or("unknown").to_owned();
                (results.runs, format!("of a run that began {begun}"))
            }
            // A slip of the pen must not begin hours of measuring.
            (false, Resume::Same | Resume::Mixed) if !path.join(ABOUT).exists() => {
                return Err(format!("nothing to resume in {}: leave --resume out", path.display()));
            }
            (false, _) => {
                create_dir_all(path.join(CONFIG))
                    .map_err(|e| format!("cannot make {}: {e}", path.display()))?;
                let about = json!({
                    "experiment": experiment,
                    "command": command(std::env::args()),
                    "begun": crate::arbitrator::timestamp(),
                    "load_before": origin::load(),
                    "parameters": parameters,
                    "machine": origin.machine,
                    "versions": origin.versions,
                });
                write(&path.join(ABOUT), &format!("{about:#}\n"))?;
                (Vec::new(), String::new())
            }
        };
        // What an interrupted run has left behind the last whole one goes.
        let text: String = listed.iter().map(|run| format!("{run}\n")).collect();
        write(&path.join(RUNS), &text)?;
        // What failed is tried again.
        write(&path.join(FAILED), "")?;
        let append = |name: &str| OpenOptions::new().create(true).append(true).open(path.join(name));
        let samples = append(SAMPLES).map_err(failed(SAMPLES))?;
        let end = listed.last().and_then(|run| run[SAMPLES_END].as_u64()).unwrap_or(0);
        samples.set_len(end).map_err(failed(SAMPLES))?;
        let runs = append(RUNS).map_err(failed(RUNS))?;
        let not_run = append(FAILED).map_err(failed(FAILED))?;
        let samples = BufWriter::new(samples);
        Ok(Folder { path: path.to_owned(), runs, failed: not_run, samples, listed, taken_over })
    }

    /// Keeps what is to be measured, so that a report knows what is missing.
    pub(super) fn plan(&self, cases: &[Case], repeats: usize) -> Result<(), String> {
        let mut about = Results::load(&self.path)?.about;
        let plan = cases.iter().map(|case| json!({ "setup": case.setup, "what": case.what }));
        about["plan"] = plan.collect();
        about["repeats"] = repeats.into();
        write(&self.path.join(ABOUT), &format!("{about:#}\n"))
    }

    /// What an earlier run has left here, in words; empty if this one began it.
    pub(super) fn taken_over(&self) -> &str {
        &self.taken_over
    }

    /// Keeps why a run failed.
    pub(super) fn add_failed(&mut self, case: &Case, repeat: usize, why: &str) -> Result<(), String> {
        let failed = json!({ "setup": case.setup, "repeat": repeat, "what": case.what, "why": why });
        self.failed
            .write_all(format!("{failed}\n").as_bytes())
            .map_err(|e| format!("cannot write {FAILED} in {}: {e}", self.path.display()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this run of a set-up is there already.
    pub(super) fn has(&self, setup: &str, repeat: usize) -> bool {
        self.listed.iter().any(|run| run["setup"] == setup && run["repeat"] == repeat)
    }

    /// Keeps the samples of a run, and then the run: one that is listed is whole.
    pub(super) fn add(
        &mut self,
        mut run: Value,
        samples: impl IntoIterator<Item = Value>,
    ) -> Result<(), String> {
        let path = self.path.clone();
        let failed = |e: std::io::Error| format!("cannot write results in {}: {e}", path.display());
        samples.into_iter().try_for_each(|sample| writeln!(self.samples, "{sample}")).map_err(failed)?;
        self.samples.flush().map_err(failed)?;
        run[SAMPLES_END] = self.samples.get_mut().seek(SeekFrom::End(0)).map_err(failed)?.into();
        // In one piece.
        self.runs.write_all(format!("{run}\n").as_bytes()).map_err(failed)?;
        self.listed.push(run);
        Ok(())
    }

    /// Keeps an option file, or whatever else has a name with a dot.
    pub(super) fn add_config(&self, setup: &str, server: &str, text: &str) -> Result<(), String> {
        let end = if server.contains('.') { "" } else { OPTIONS };
        write(&self.path.join(CONFIG).join(format!("{setup}-{server}{end}")), text)
    }
}

impl Results {
    /// What is in a folder. A last line of a run that was not written to its end counts as not there.
    pub(super) fn load(path: &Path) -> Result<Results, String> {
        let file = path.join(ABOUT);
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

    /// The set-ups that were to be measured, and whatever else has runs: a report leaves none out.
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

    /// What was to be measured and was not: what it is, which repeats of it, and why.
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
            false => format!("{setup}: not chosen"),
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

    /// What its numbers are, for all who read them.
    pub(super) fn repeats_text(&self) -> String {
        let doubt = match self.late().len() {
            0 => String::new(),
            late => format!(" †: with a late line, as in {late} of {} runs.", self.runs.len()),
        };
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

    /// What the repeats of a set-up found in this field, of the measurements that `chosen` takes.
    pub(super) fn stat(&self, setup: &str, field: &str, chosen: impl Fn(&Value) -> bool) -> Option<Stat> {
        let chosen = || self.measurements(setup).filter(|m| chosen(m));
        let stat = Stat::of(chosen().filter_map(|m| m[field].as_f64()))?;
        Some(Stat { doubtful: chosen().any(|m| m[LINE_LATE] == true), ..stat })
    }

    /// The runs in which the delay line was late: set-up, repeat, and how late.
    pub(super) fn late<'a>(&'a self) -> Vec<(&'a str, u64, &'a str)> {
        let of = |run: &'a Value| {
            let how = run[LINE_LATE].as_str()?;
            Some((run["setup"].as_str().unwrap_or_default(), run["repeat"].as_u64().unwrap_or(0), how))
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
        self.stat(setup, field, chosen).map(Known::of).ok_or_else(|| self.why_not(setup))
    }

    /// The numbers that this field of any measurement has, in order.
    pub(super) fn counts(&self, field: &str) -> Vec<u64> {
        let all = self.runs.iter().filter_map(|run| run["measurements"].as_array()).flatten();
        let mut counts: Vec<u64> = all.filter_map(|m| m[field].as_u64()).collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }
}

/// Writes the report of a folder, and says where it is.
pub(super) fn write_report(path: &Path, html: &str) -> Result<PathBuf, String> {
    let path = path.join(REPORT);
    write(&path, html)?;
    Ok(path)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// A value from each line that was written to its end.
fn read_lines(path: &Path) -> Result<Vec<Value>, String> {
    let text = read(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let values = whole.lines().enumerate().map(|(at, line)| {
        serde_json::from_str(line).map_err(|e| format!("{}: line {}: {e}", path.display(), at + 1))
    });
    values.collect()
}

fn same_experiment(path: &Path, about: &Value, experiment: &str, parameters: &Value) -> Result<(), String> {
    let refused = |why: String| {
        Err(format!(
            "the results in {} are of another experiment: {why}. Give the same options, or name another folder with --out",
            path.display()
        ))
    };
    if about["experiment"] != experiment {
        return refused(format!("{}, not {experiment}", about["experiment"].as_str().unwrap_or("unknown")));
    }
    let empty = serde_json::Map::new();
    let (then, now) = (about["parameters"].as_object(), parameters.as_object());
    let (then, now) = (then.unwrap_or(&empty), now.unwrap_or(&empty));
    for name in then.keys().chain(now.keys()) {
        let value = |of: &serde_json::Map<String, Value>| of.get(name).cloned().unwrap_or_default();
        if value(then) != value(now) {
            return refused(format!("{name} was {}, and is {} now", value(then), value(now)));
        }
    }
    Ok(())
}

/// As somebody would type it.
fn command(args: impl Iterator<Item = String>) -> String {
    let sound = |c: char| c.is_ascii_alphanumeric() || "-_./=:,".contains(c);
    let words = args.skip(1).filter(|arg| arg != "--resume" && arg != "--mixed").map(|arg| {
        match arg.chars().all(sound) {
            true => arg,
            false => format!("'{}'", arg.replace('\'', "'\\''")),
        }
    });
    std::iter::once("lockstep".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Resume::{No, Same};

    fn open(path: &Path, name: &str, parameters: Value, resume: Resume) -> Result<Folder, String> {
        Folder::open(path, name, parameters, Origin::default(), resume)
    }

    fn fresh(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lockstep-results-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn lines(path: &Path, name: &str) -> usize {
        std::fs::read_to_string(path.join(name)).unwrap().lines().count()
    }

    #[test]
    fn results_are_kept_and_not_written_over() {
        let path = fresh("kept");
        let parameters = json!({ "inserts": 2 });
        let mut folder = open(&path, "x", parameters.clone(), No).unwrap();
        folder.add_config("alone", "n1", "[mysqld]\n").unwrap();
        folder.add_config("alone", "n1.variables", "a=b\n").unwrap();
        let run = json!({ "setup": "alone", "repeat": 1, "measurements": [{ "rate": 3 }] });
        folder.add(run, [json!({ "us": 1 }), json!({ "us": 2 })]).unwrap();
        assert!(folder.has("alone", 1) && !folder.has("alone", 2) && !folder.has("far", 1));
        assert_eq!((lines(&path, RUNS), lines(&path, SAMPLES)), (1, 2));
        let results = Results::load(&path).unwrap();
        assert_eq!(results.about["parameters"]["inserts"], 2);
        assert_eq!(results.config, [("alone-n1.cnf".to_owned(), "[mysqld]\n".to_owned())]);
        assert_eq!(std::fs::read_to_string(path.join("config/alone-n1.variables")).unwrap(), "a=b\n");
        assert_eq!(results.setups(), ["alone"]);
        assert_eq!(results.measurements("alone").collect::<Vec<_>>(), [&json!({ "rate": 3 })]);
        let refused = open(&path, "x", parameters, No).err().unwrap();
        assert!(refused.contains("--resume"), "{refused}");
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn an_interrupted_experiment_goes_on_after_its_last_whole_run() {
        let path = fresh("resumed");
        let parameters = json!({ "inserts": 2 });
        let mut folder = open(&path, "x", parameters.clone(), No).unwrap();
        folder.add(json!({ "setup": "alone", "repeat": 1 }), [json!({ "us": 1 })]).unwrap();
        drop(folder);
        // Killed while it wrote.
        let torn = |name: &str, text: &str| {
            let mut file = OpenOptions::new().append(true).open(path.join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        torn(SAMPLES, "{\"us\":2}\n{\"u");
        torn(RUNS, "{\"setup\":\"far\",");
        let mut folder = open(&path, "x", parameters.clone(), Same).unwrap();
        assert!(folder.has("alone", 1) && !folder.has("far", 1));
        folder.add(json!({ "setup": "far", "repeat": 1 }), [json!({ "us": 3 })]).unwrap();
        drop(folder);
        assert_eq!(std::fs::read_to_string(path.join(SAMPLES)).unwrap(), "{\"us\":1}\n{\"us\":3}\n");
        assert_eq!(Results::load(&path).unwrap().setups(), ["alone", "far"]);

        for (experiment, parameters, why) in [
            ("y", parameters.clone(), "x, not y"),
            ("x", json!({ "inserts": 3 }), "inserts was 2, and is 3 now"),
            ("x", json!({ "inserts": 2, "more": true }), "more was null, and is true now"),
        ] {
            let refused = open(&path, experiment, parameters, Same).err().unwrap();
            assert!(refused.contains(why) && refused.contains("--out"), "{refused}");
        }
        assert_eq!(lines(&path, RUNS), 2);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn where_there_is_nothing_to_resume_nothing_begins() {
        let path = fresh("nothing");
        for made in [false, true] {
            if made {
                create_dir_all(&path).unwrap();
            }
            for resume in [Same, Resume::Mixed] {
                let refused = open(&path, "x", json!({}), resume).err().unwrap();
                assert!(
                    refused.starts_with("nothing to resume in") && refused.ends_with(": leave --resume out"),
                    "{refused}"
                );
            }
            assert!(!path.join(ABOUT).exists());
        }
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn numbers_are_the_same_after_they_have_been_read_and_written_again() {
        let path = fresh("digits");
        let open = |resume| open(&path, "x", json!({}), resume).unwrap();
        // One in a few hundred would be read as its neighbour.
        let rates: Vec<f64> = (1..2000).map(|n| f64::from(n) * 1234.567 / 7.3).collect();
        open(No).add(json!({ "setup": "alone", "repeat": 1, "rates": rates }), []).unwrap();
        let runs = || std::fs::read_to_string(path.join(RUNS)).unwrap();
        let before = runs();
        drop(open(Same));
        assert!(runs() == before);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn a_folder_without_results_is_told() {
        let path = fresh("none");
        let refused = Results::load(&path).unwrap_err();
        assert!(refused.contains("run.json"), "{refused}");
    }

    #[test]
    fn the_command_can_be_typed_again() {
        let args = ["/x/lockstep", "lab", "a", "--out", "my dir", "--resume"].map(String::from);
        assert_eq!(command(args.into_iter()), "lockstep lab a --out 'my dir'");
    }
}
