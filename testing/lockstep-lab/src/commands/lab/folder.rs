//! The folder of results: all samples, and the machine and versions they were measured on. An interrupted experiment
//! resumes from it, and the report is made from it alone.

use std::fs::{File, create_dir_all};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::drive::Case;
use super::files::{append, has_lines, replace};
use super::origin::{self, Origin};
use super::results::Results;

pub(super) const ABOUT: &str = "run.json";
pub(super) const RUNS: &str = "runs.jsonl";
pub(super) const FAILED: &str = "failed.jsonl";
const SAMPLES: &str = "samples.jsonl";
pub(super) const CONFIG: &str = "config";
/// Suffix of option files; a report shows these files and no others.
pub(super) const OPTIONS: &str = ".cnf";
const REPORT: &str = "report.html";
/// The field of a run with the end of its samples in `samples.jsonl`. Samples after the last run's end belong to an
/// interrupted run.
const SAMPLES_END: &str = "samples_end";

/// A folder that is being written.
pub(super) struct Folder {
    path: PathBuf,
    /// Open, and locked: no other process writes here.
    _lock: File,
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

impl Folder {
    /// Makes the folder; or, to resume, opens the folder of an earlier run of the same experiment. Its parameters must be
    /// the same. Machine and versions must be the same unless the caller lets them differ.
    pub(super) fn open(
        path: &Path,
        experiment: &str,
        parameters: Value,
        origin: Origin,
        resume: Resume,
    ) -> Result<Folder, String> {
        // A slip of the pen must not begin hours of measuring.
        if resume != Resume::No && !path.join(ABOUT).exists() {
            return Err(format!("nothing to resume in {}: leave --resume out", path.display()));
        }
        create_dir_all(path.join(CONFIG)).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        let lock = lock(path)?;
        // A folder in which nothing was measured has no results.
        let (listed, taken_over) = match (has_lines(&path.join(RUNS))?, resume) {
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
                replace(&path.join(ABOUT), &format!("{:#}\n", results.about))?;
                let begun = results.about["begun"].as_str().unwrap_or("unknown").to_owned();
                (results.runs, format!("of a run that began {begun}"))
            }
            (false, _) => {
                let about = json!({
                    "experiment": experiment,
                    "command": command(std::env::args()),
                    "begun": lockstep_local::timestamp(),
                    "load_before": origin::load(),
                    "parameters": parameters,
                    "machine": origin.machine,
                    "versions": origin.versions,
                });
                replace(&path.join(ABOUT), &format!("{about:#}\n"))?;
                (Vec::new(), String::new())
            }
        };
        // Failed runs are repeated.
        replace(&path.join(FAILED), "")?;
        let open = |name: &str| append(&path.join(name));
        let (runs, failed, samples) = (open(RUNS)?, open(FAILED)?, open(SAMPLES)?);
        // Removes the results of an interrupted run after the last complete one.
        let end = listed.last().and_then(|run| run[SAMPLES_END].as_u64()).unwrap_or(0);
        samples.set_len(end).map_err(|e| format!("cannot write {SAMPLES} in {}: {e}", path.display()))?;
        let samples = BufWriter::new(samples);
        Ok(Folder { path: path.to_owned(), _lock: lock, runs, failed, samples, listed, taken_over })
    }

    /// Keeps what is to be measured, so that a report knows what is missing.
    pub(super) fn plan(&self, cases: &[Case], repeats: usize) -> Result<(), String> {
        let mut about = Results::load(&self.path)?.about;
        let plan = cases.iter().map(|case| json!({ "setup": case.setup, "what": case.what }));
        about["plan"] = plan.collect();
        about["repeats"] = repeats.into();
        replace(&self.path.join(ABOUT), &format!("{about:#}\n"))
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

    /// Saves an option file, or another file with a dot in its name.
    pub(super) fn add_config(&self, setup: &str, server: &str, text: &str) -> Result<(), String> {
        let end = if server.contains('.') { "" } else { OPTIONS };
        replace(&self.path.join(CONFIG).join(format!("{setup}-{server}{end}")), text)
    }
}

/// Writes the report of a folder, and says where it is.
pub(super) fn write_report(path: &Path, html: &str) -> Result<PathBuf, String> {
    let path = path.join(REPORT);
    replace(&path, html)?;
    Ok(path)
}

/// The lock on a folder, as long as it is open.
fn lock(path: &Path) -> Result<File, String> {
    let failed = |e: std::io::Error| format!("cannot lock {}: {e}", path.display());
    let folder = File::open(path).map_err(failed)?;
    match lockstep_local::try_lock(&folder).map_err(failed)? {
        true => Ok(folder),
        false => Err(format!(
            "another lab writes in {}: wait until it has ended, or name another folder with --out",
            path.display()
        )),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use Resume::{No, Same};
    use std::fs::OpenOptions;

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
        for resume in [No, Same] {
            let refused = open(&path, "x", parameters.clone(), resume).err().unwrap();
            assert!(refused.starts_with("another lab writes in"), "{refused}");
        }
        drop(folder);
        let refused = open(&path, "x", parameters, No).err().unwrap();
        assert!(refused.contains("--resume"), "{refused}");
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn resume_continues_after_last_complete_run() {
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
    fn folder_without_runs_has_no_results() {
        let path = fresh("empty");
        drop(open(&path, "x", json!({ "inserts": 2 }), No).unwrap());
        assert_eq!(lines(&path, RUNS), 0);
        drop(open(&path, "y", json!({ "inserts": 3 }), No).unwrap());
        assert_eq!(Results::load(&path).unwrap().about["experiment"], "y");
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn resume_without_results_is_refused() {
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
    fn numbers_survive_read_and_write() {
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
    fn folder_without_results_is_reported() {
        let path = fresh("none");
        let refused = Results::load(&path).unwrap_err();
        assert!(refused.contains("run.json"), "{refused}");
    }

    #[test]
    fn recorded_command_can_be_repeated() {
        let args = ["/x/lockstep", "lab", "a", "--out", "my dir", "--resume"].map(String::from);
        assert_eq!(command(args.into_iter()), "lockstep lab a --out 'my dir'");
    }
}
