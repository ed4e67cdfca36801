//! The folder of results: what was measured, sample by sample, with what it was measured on. An experiment that was
//! interrupted goes on in it, and its report is made of it alone.

use std::fs::{File, OpenOptions, create_dir_all};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::numbers::Stat;

const ABOUT: &str = "run.json";
const RUNS: &str = "runs.jsonl";
const SAMPLES: &str = "samples.jsonl";
const CONFIG: &str = "config";
const REPORT: &str = "report.html";
/// The field of a run that says where its samples end in `samples.jsonl`: what is behind the last run's belongs to one
/// that was interrupted.
const SAMPLES_END: &str = "samples_end";

/// A folder that is being written.
pub(super) struct Folder {
    path: PathBuf,
    runs: File,
    samples: BufWriter<File>,
    /// Those that it lists.
    listed: Vec<Value>,
}

/// What a folder holds.
#[derive(Debug, Clone)]
pub(super) struct Results {
    /// The experiment, the command, the parameters, the machine.
    pub(super) about: Value,
    /// One for each run of a set-up: `setup`, `repeat`, `version`, `measurements`, and what the experiment adds.
    pub(super) runs: Vec<Value>,
    /// Names and texts of option files.
    pub(super) config: Vec<(String, String)>,
}

impl Folder {
    /// Makes the folder; or, to resume, opens the one that an earlier run with the same parameters has left.
    pub(super) fn open(
        path: &Path,
        experiment: &str,
        parameters: Value,
        resume: bool,
    ) -> Result<Folder, String> {
        let failed = |what: &str| {
            let what = format!("cannot write {what} in {}", path.display());
            move |e: std::io::Error| format!("{what}: {e}")
        };
        let listed = match (path.join(RUNS).exists(), resume) {
            (true, false) => {
                return Err(format!(
                    "there are results in {} already: go on with them by --resume, or name another folder with --out",
                    path.display()
                ));
            }
            (true, true) => {
                let results = Results::load(path)?;
                same_experiment(path, &results.about, experiment, &parameters)?;
                results.runs
            }
            (false, _) => {
                create_dir_all(path.join(CONFIG))
                    .map_err(|e| format!("cannot make {}: {e}", path.display()))?;
                let about = json!({
                    "experiment": experiment,
                    "command": command(std::env::args()),
                    "begun": crate::arbitrator::timestamp(),
                    "parameters": parameters,
                    "machine": machine(),
                });
                write(&path.join(ABOUT), &format!("{about:#}\n"))?;
                Vec::new()
            }
        };
        // What an interrupted run has left behind the last whole one goes.
        let text: String = listed.iter().map(|run| format!("{run}\n")).collect();
        write(&path.join(RUNS), &text)?;
        let append = |name: &str| OpenOptions::new().create(true).append(true).open(path.join(name));
        let samples = append(SAMPLES).map_err(failed(SAMPLES))?;
        let end = listed.last().and_then(|run| run[SAMPLES_END].as_u64()).unwrap_or(0);
        samples.set_len(end).map_err(failed(SAMPLES))?;
        let runs = append(RUNS).map_err(failed(RUNS))?;
        Ok(Folder { path: path.to_owned(), runs, samples: BufWriter::new(samples), listed })
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

    /// Keeps an option file.
    pub(super) fn add_config(&self, setup: &str, server: &str, text: &str) -> Result<(), String> {
        write(&self.path.join(CONFIG).join(format!("{setup}-{server}.cnf")), text)
    }
}

impl Results {
    /// What is in a folder. A last line of a run that was not written to its end counts as not there.
    pub(super) fn load(path: &Path) -> Result<Results, String> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
        };
        let file = path.join(ABOUT);
        let about: Value =
            serde_json::from_str(&read(&file)?).map_err(|e| format!("{}: {e}", file.display()))?;
        let file = path.join(RUNS);
        let text = read(&file)?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let runs = whole.lines().enumerate().map(|(at, line)| {
            serde_json::from_str(line).map_err(|e| format!("{}: line {}: {e}", file.display(), at + 1))
        });
        let runs: Vec<Value> = runs.collect::<Result<_, String>>()?;
        let mut config = Vec::new();
        for entry in std::fs::read_dir(path.join(CONFIG)).into_iter().flatten().flatten() {
            config.push((entry.file_name().to_string_lossy().into_owned(), read(&entry.path())?));
        }
        config.sort();
        Ok(Results { about, runs, config })
    }

    /// The set-ups that have runs, in the order in which they came.
    pub(super) fn setups(&self) -> Vec<&str> {
        let mut setups: Vec<&str> = Vec::new();
        for setup in self.runs.iter().filter_map(|run| run["setup"].as_str()) {
            if !setups.contains(&setup) {
                setups.push(setup);
            }
        }
        setups
    }

    /// The measurements of a set-up, those of all its runs.
    pub(super) fn measurements<'a>(&'a self, setup: &'a str) -> impl Iterator<Item = &'a Value> {
        let runs = self.runs.iter().filter(move |run| run["setup"] == setup);
        runs.filter_map(|run| run["measurements"].as_array()).flatten()
    }

    /// What the repeats of a set-up found in this field, of the measurements that `chosen` takes.
    pub(super) fn stat(&self, setup: &str, field: &str, chosen: impl Fn(&Value) -> bool) -> Option<Stat> {
        Stat::of(self.measurements(setup).filter(|m| chosen(m)).filter_map(|m| m[field].as_f64()))
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
    let words = args.skip(1).filter(|arg| arg != "--resume").map(|arg| match arg.chars().all(sound) {
        true => arg,
        false => format!("'{}'", arg.replace('\'', "'\\''")),
    });
    std::iter::once("lockstep".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// What the results depend on besides the parameters.
fn machine() -> Value {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo").lines().find_map(|line| {
        line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
    });
    let memory = read("/proc/meminfo").lines().next().and_then(|line| {
        let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(format!("{:.1} GiB", kibibytes / f64::from(1 << 20)))
    });
    json!({
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "processor": model,
        "memory": memory,
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load_before": read("/proc/loadavg").trim(),
        "lockstep": env!("CARGO_PKG_VERSION"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut folder = Folder::open(&path, "x", parameters.clone(), false).unwrap();
        folder.add_config("alone", "n1", "[mysqld]\n").unwrap();
        let run = json!({ "setup": "alone", "repeat": 1, "measurements": [{ "rate": 3 }] });
        folder.add(run, [json!({ "us": 1 }), json!({ "us": 2 })]).unwrap();
        assert!(folder.has("alone", 1) && !folder.has("alone", 2) && !folder.has("far", 1));
        assert_eq!((lines(&path, RUNS), lines(&path, SAMPLES)), (1, 2));
        let results = Results::load(&path).unwrap();
        assert_eq!(results.about["parameters"]["inserts"], 2);
        assert_eq!(results.config, [("alone-n1.cnf".to_owned(), "[mysqld]\n".to_owned())]);
        assert_eq!(results.setups(), ["alone"]);
        assert_eq!(results.measurements("alone").collect::<Vec<_>>(), [&json!({ "rate": 3 })]);
        let refused = Folder::open(&path, "x", parameters, false).err().unwrap();
        assert!(refused.contains("--resume"), "{refused}");
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn an_interrupted_experiment_goes_on_after_its_last_whole_run() {
        let path = fresh("resumed");
        let parameters = json!({ "inserts": 2 });
        let mut folder = Folder::open(&path, "x", parameters.clone(), true).unwrap();
        folder.add(json!({ "setup": "alone", "repeat": 1 }), [json!({ "us": 1 })]).unwrap();
        drop(folder);
        // Killed while it wrote.
        let torn = |name: &str, text: &str| {
            let mut file = OpenOptions::new().append(true).open(path.join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        torn(SAMPLES, "{\"us\":2}\n{\"u");
        torn(RUNS, "{\"setup\":\"far\",");
        let mut folder = Folder::open(&path, "x", parameters.clone(), true).unwrap();
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
            let refused = Folder::open(&path, experiment, parameters, true).err().unwrap();
            assert!(refused.contains(why) && refused.contains("--out"), "{refused}");
        }
        assert_eq!(lines(&path, RUNS), 2);
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn numbers_are_the_same_after_they_have_been_read_and_written_again() {
        let path = fresh("digits");
        let open = |resume| Folder::open(&path, "x", json!({}), resume).unwrap();
        // One in a few hundred would be read as its neighbour.
        let rates: Vec<f64> = (1..2000).map(|n| f64::from(n) * 1234.567 / 7.3).collect();
        open(false).add(json!({ "setup": "alone", "repeat": 1, "rates": rates }), []).unwrap();
        let runs = || std::fs::read_to_string(path.join(RUNS)).unwrap();
        let before = runs();
        drop(open(true));
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
