//! A member without a database as a process of this project's command.

use std::path::{Path, PathBuf};

use lockstep_local::{LocalError, Result, Session, find_program, last_lines, prefixed};

use crate::bench::{self, Bench};

/// Its program, its arguments and its process; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct MemberProcess {
    program: PathBuf,
    pub(crate) args: Vec<String>,
    namespace: Option<String>,
    /// The only processor that it may use.
    pub(crate) processor: Option<usize>,
    dir: PathBuf,
    session: Option<Session>,
}

impl MemberProcess {
    /// One of this name, not started. It has a folder of its own. `lockstep` is this project's command.
    pub(crate) fn new(
        bench: &Bench,
        name: &str,
        namespace: Option<String>,
        lockstep: Option<&Path>,
    ) -> Result<MemberProcess> {
        let dir = bench.dir().join(name);
        bench.installation().make_dir(&dir, 0o755)?;
        let program = lockstep.map(Path::to_owned).or_else(|| find_program("lockstep"));
        let program = program.ok_or_else(|| LocalError::Missing {
            what: "the program lockstep, which is the member".into(),
            hint: "build it with `cargo build --release -p lockstep`".into(),
        })?;
        Ok(MemberProcess { program, args: Vec::new(), namespace, processor: None, dir, session: None })
    }

    /// Starts it.
    pub(crate) fn start(&mut self) -> Result<()> {
        let mut words: Vec<String> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip".into(), "netns".into(), "exec".into(), namespace.clone()]);
        }
        if let Some(processor) = self.processor {
            words.extend(["taskset".into(), "-c".into(), processor.to_string()]);
        }
        let mut command = prefixed(&words, &self.program);
        command.args(&self.args).current_dir("/");
        self.session = Some(bench::spawn(&mut command, &self.dir)?);
        Ok(())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.session.as_mut().is_some_and(|session| session.ended().is_none())
    }

    /// The process number, while it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.session.as_ref().map(Session::pid)
    }

    /// Its folder.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.dir.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Its messages.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read(self.dir.with_extension("out")).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// An error with its last messages.
    pub(crate) fn failed(&self, what: &str) -> LocalError {
        LocalError::Value(format!("{what}:\n{}", last_lines(&self.log(), 20)))
    }

    /// Its command line, for the record.
    pub(crate) fn command(&self) -> String {
        format!("{} {}\n", self.program.display(), self.args.join(" "))
    }
}

impl Drop for MemberProcess {
    fn drop(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.kill();
        }
    }
}
