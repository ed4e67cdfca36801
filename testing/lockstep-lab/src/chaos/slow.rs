//! Disks that can be made slow, one by one: a small library in front of the C library's, which lets the calls that wait
//! for the disk take longer. It needs a C compiler but no rights, and works for every provider that calls the C library.
//! A device mapper or a FUSE file system needs rights that a plain container lacks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_local::{LocalError, Result, find_program, run_to_end};

const SOURCE: &str = include_str!("slow.c");
/// The variable with the name of the library's file.
const VARIABLE: &str = "LOCKSTEP_LAB_SLOW";

/// The compiler, if there is one.
pub(super) fn compiler() -> Option<PathBuf> {
    find_program("cc")
}

/// The library, built, in the folder of a cluster.
#[derive(Debug, Clone)]
pub(super) struct SlowDisks {
    dir: PathBuf,
}

impl SlowDisks {
    /// Builds it.
    pub(super) fn new(dir: &Path) -> Result<SlowDisks> {
        let compiler = compiler().ok_or_else(|| LocalError::Missing {
            what: "a C compiler (cc)".into(),
            hint: "the faults of slow disks need one: apt-get install gcc libc6-dev".into(),
        })?;
        let disks = SlowDisks { dir: dir.to_owned() };
        let source = dir.join("slow.c");
        std::fs::write(&source, SOURCE).map_err(LocalError::path("write", &source))?;
        run_to_end(
            Command::new(compiler)
                .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
                .arg(disks.library())
                .arg(&source)
                .arg("-ldl"),
        )?;
        Ok(disks)
    }

    fn library(&self) -> PathBuf {
        self.dir.join("slow.so")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.slow"))
    }

    /// The environment of the process of this name.
    pub(super) fn environment(&self, name: &str) -> Vec<(String, String)> {
        let text = |path: PathBuf| path.display().to_string();
        vec![("LD_PRELOAD".into(), text(self.library())), (VARIABLE.into(), text(self.file(name)))]
    }

    /// From now on each flush of that process takes this much longer.
    pub(super) fn slow(&self, name: &str, delay: Duration) -> Result<()> {
        let (file, fresh) = (self.file(name), self.dir.join(format!("{name}.slow.new")));
        std::fs::write(&fresh, delay.as_millis().to_string()).map_err(LocalError::path("write", &fresh))?;
        std::fs::rename(&fresh, &file).map_err(LocalError::path("put in place", &file))
    }

    /// It is as fast as it was, for calls that wait already, too.
    pub(super) fn fast(&self, name: &str) {
        let _ = std::fs::remove_file(self.file(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn slow_disk_delay_matches_setting() {
        if compiler().is_none() {
            eprintln!("NOT TESTED: no C compiler here");
            return;
        }
        let dir = std::env::temp_dir().join(format!("lockstep-slow-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let disks = SlowDisks::new(&dir).unwrap();
        // Coreutils' `sync FILE` calls fsync, with --data fdatasync.
        let flush = |name: &str, data: &[&str]| {
            let began = Instant::now();
            let mut command = Command::new("sync");
            command.args(data).arg(dir.join("slow.c")).envs(disks.environment(name));
            assert!(command.status().unwrap().success());
            began.elapsed()
        };
        disks.slow("n1", Duration::from_millis(700)).unwrap();
        assert!(flush("n1", &[]) >= Duration::from_millis(700));
        assert!(flush("n1", &["--data"]) >= Duration::from_millis(700));
        disks.slow("n1", Duration::from_secs(60)).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| flush("n1", &[]));
            // Another one's is not touched.
            assert!(flush("n2", &[]) < Duration::from_secs(20));
            disks.fast("n1");
            assert!(waiting.join().unwrap() < Duration::from_secs(50));
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
