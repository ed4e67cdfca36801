//! What results depend on besides the parameters: the machine, and the versions of all that ran. Medians over runs of
//! which some come from elsewhere say nothing, so an experiment goes on only where it began, unless somebody insists.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Of this run.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// Processors, memory, kernel.
    pub(super) machine: Map<String, Value>,
    /// Versions of our two files, MariaDB, Galera and sysbench; null for missing ones.
    pub(super) versions: Map<String, Value>,
}

impl Origin {
    /// Looks at this machine, and at these files.
    pub(super) fn of(provider: &Path, galera: &Path) -> Result<Origin, String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let ours =
            |path: &Path| Ok::<_, String>(json!(format!("{}, {}", env!("CARGO_PKG_VERSION"), print(path)?)));
        let mariadb = lockstep_local::Installation::find().and_then(|found| found.version());
        let sysbench = crate::Sysbench::find().and_then(|found| found.version());
        let mut versions = Map::new();
        versions.insert("lockstep".into(), ours(&program)?);
        versions.insert("provider".into(), ours(provider)?);
        versions.insert("mariadb".into(), mariadb.map_err(|e| e.to_string())?.into());
        versions.insert("galera".into(), galera.is_file().then(|| print(galera)).transpose()?.into());
        versions.insert("sysbench".into(), sysbench.ok().into());
        Ok(Origin { machine: machine(), versions })
    }

    /// The origin of an experiment in virtual machines. `packages` has a name and a version in each line.
    pub(super) fn of_guests(program: &Path, packages: &str) -> Result<Origin, String> {
        let mut versions = Map::new();
        versions
            .insert("lockstep".into(), format!("{}, {}", env!("CARGO_PKG_VERSION"), print(program)?).into());
        for (name, version) in packages.lines().filter_map(|line| line.split_once(char::is_whitespace)) {
            versions.insert(name.into(), version.trim().into());
        }
        Ok(Origin { machine: machine(), versions })
    }

    /// Records that this run continues in the folder. Refused on another machine or with other versions, unless they may
    /// be `mixed`.
    pub(super) fn go_on(&self, path: &Path, about: &mut Value, mixed: bool) -> Result<(), String> {
        let differences = self.differences(about);
        if !differences.is_empty() && !mixed {
            return Err(format!(
                "the results in {} were measured with something else, and medians over both would say nothing:\n  {}\n\
                 Name another folder with --out; or go on with --resume --mixed, and the report will say so.",
                path.display(),
                differences.join("\n  ")
            ));
        }
        let now =
            json!({ "at": lockstep_local::timestamp(), "load_before": load(), "differences": differences });
        match about["resumed"].as_array_mut() {
            Some(all) => all.push(now),
            None => about["resumed"] = json!([now]),
        }
        Ok(())
    }

    fn differences(&self, about: &Value) -> Vec<String> {
        let mut differences = Vec::new();
        for (part, now) in [("machine", &self.machine), ("versions", &self.versions)] {
            for (name, now) in now {
                let then = &about[part][name];
                // A missing program has measured nothing, and will not.
                let absent =
                    part == "versions" && about[part].is_object() && (then.is_null() || now.is_null());
                if then != now && !absent {
                    differences.push(format!("{name} was {}, and is {} now", plain(then), plain(now)));
                }
            }
        }
        differences
    }
}

/// In what the parts of a folder's results differ, if it was gone on with elsewhere.
pub(super) fn mixture(about: &Value) -> Vec<&str> {
    let resumed = about["resumed"].as_array().into_iter().flatten();
    resumed.filter_map(|time| time["differences"].as_array()).flatten().filter_map(Value::as_str).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "not recorded".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Tells builds of one version apart.
fn print(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    Ok(format!("{} bytes with CRC-32C {:08x}", bytes.len(), crc32c::crc32c(&bytes)))
}

/// How busy the machine is.
pub(super) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

fn machine() -> Map<String, Value> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo").lines().find_map(|line| {
        line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
    });
    let memory = read("/proc/meminfo").lines().next().and_then(|line| {
        let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(format!("{:.1} GiB", kibibytes / f64::from(1 << 20)))
    });
    let mut machine = Map::new();
    machine.insert("processors".into(), std::thread::available_parallelism().map_or(0, usize::from).into());
    machine.insert("processor".into(), model.into());
    machine.insert("memory".into(), memory.into());
    machine.insert("kernel".into(), read("/proc/sys/kernel/osrelease").trim().into());
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(machine: Value, versions: Value) -> Origin {
        let map = |value: Value| value.as_object().cloned().unwrap();
        Origin { machine: map(machine), versions: map(versions) }
    }

    #[test]
    fn another_machine_or_version_is_refused_unless_it_may_be_mixed() {
        let path = Path::new("/results");
        let same = || {
            json!({ "machine": { "processors": 2, "kernel": "6.1" },
            "versions": { "provider": "0.1, crc 1", "galera": null } })
        };
        let now = |kernel: &str, provider: &str, galera: Value| {
            let versions = json!({ "provider": provider, "galera": galera });
            origin(json!({ "processors": 2, "kernel": kernel }), versions)
        };
        let mut about = same();
        now("6.1", "0.1, crc 1", json!("26.4")).go_on(path, &mut about, false).unwrap();
        assert_eq!(about["resumed"].as_array().unwrap().len(), 1);
        assert!(mixture(&about).is_empty());

        for (other, why) in [
            (now("6.2", "0.1, crc 1", Value::Null), "kernel was 6.1, and is 6.2 now"),
            (now("6.1", "0.1, crc 2", Value::Null), "provider was 0.1, crc 1, and is 0.1, crc 2 now"),
        ] {
            let mut about = same();
            let refused = other.go_on(path, &mut about, false).unwrap_err();
            assert!(
                refused.contains(why) && refused.contains("--out") && refused.contains("--mixed"),
                "{refused}"
            );
            assert_eq!(about, same());
            other.go_on(path, &mut about, true).unwrap();
            assert_eq!(mixture(&about), [why]);
        }
        // The folder does not record the machine and versions: nothing to compare with.
        let mut silent = json!({ "machine": same()["machine"] });
        let refused = now("6.1", "0.1, crc 1", Value::Null).go_on(path, &mut silent, false).unwrap_err();
        assert!(refused.contains("provider was not recorded"), "{refused}");
    }

    #[test]
    fn builds_are_told_apart() {
        let path = std::env::temp_dir().join(format!("lockstep-origin-{}", std::process::id()));
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            print(&path).unwrap()
        };
        assert_eq!(of("123456789"), "9 bytes with CRC-32C e3069283");
        assert_ne!(of("123456788"), of("123456789"));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn this_machine_is_known() {
        let machine = machine();
        assert!(machine["processors"].as_u64().is_some_and(|count| count > 0));
        assert!(machine["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()));
    }
}
