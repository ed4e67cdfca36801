//! Two virtual machines of `scripts/vm.sh`, and commands in them.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, last_lines, run_to_end};

/// The script, so that the installed program needs no source tree.
const VM: &str = include_str!("../../../../scripts/vm.sh");
/// The part that runs in a guest.
const GUEST: &str = include_str!("guest.sh");
/// The exit code of the script where virtual machines cannot run.
const SKIPPED: i32 = 77;
/// A command in a guest that takes longer has failed: emulated processors are slow.
const TIMEOUT: Duration = Duration::from_secs(600);

/// One of the two guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guest {
    /// The primary.
    A,
    /// The replica.
    B,
}

impl Guest {
    fn name(self) -> &'static str {
        match self {
            Guest::A => "a",
            Guest::B => "b",
        }
    }
}

/// What runs the guests' kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machinery {
    /// QEMU with KVM.
    Kvm,
    /// User-mode Linux: each kernel is a process of the host.
    UserMode,
    /// QEMU, which emulates the processors.
    Emulated,
}

impl Machinery {
    /// The value of `VM_ACCEL`.
    fn name(self) -> &'static str {
        match self {
            Machinery::Kvm => "kvm",
            Machinery::UserMode => "uml",
            Machinery::Emulated => "tcg",
        }
    }

    /// In words.
    pub fn what(self) -> &'static str {
        match self {
            Machinery::Kvm => "KVM",
            Machinery::UserMode => "user-mode Linux",
            Machinery::Emulated => "emulated by QEMU (tcg)",
        }
    }
}

/// How the script is run.
#[derive(Debug, Clone)]
pub(crate) struct Scripts {
    dir: PathBuf,
    machinery: Machinery,
}

impl Scripts {
    /// Writes the scripts to this folder, which also has the images.
    pub(crate) fn new(dir: &Path, machinery: Machinery) -> Result<Scripts> {
        std::fs::create_dir_all(dir).map_err(LocalError::path("make", dir))?;
        for (name, text) in [("vm.sh", VM), ("guest.sh", GUEST)] {
            let path = dir.join(name);
            std::fs::write(&path, text).map_err(LocalError::path("write", &path))?;
        }
        Ok(Scripts { dir: dir.to_owned(), machinery })
    }

    fn command(&self, limit: Option<Duration>) -> Command {
        let mut command = Command::new(if limit.is_some() { "timeout" } else { "bash" });
        if let Some(limit) = limit {
            command.args([limit.as_secs().to_string().as_str(), "bash"]);
        }
        command.arg(self.dir.join("vm.sh"));
        command.env("VM_DIR", &self.dir).env("VM_ACCEL", self.machinery.name());
        command
    }

    /// Whether virtual machines can run here.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn check(&self) -> Result<()> {
        let output = self.command(None).arg("check").output().map_err(LocalError::io("run bash"))?;
        match output.status.code() {
            Some(0) => Ok(()),
            code => {
                let text = String::from_utf8_lossy(&output.stderr);
                let why = text
                    .trim()
                    .trim_start_matches("vm: ")
                    .trim_start_matches("skipped: ")
                    .replace("VM_ACCEL=uml", "--user-mode")
                    .replace("VM_ACCEL=tcg", "--emulated");
                let hint = if code == Some(SKIPPED) { why } else { format!("scripts/vm.sh check: {why}") };
                Err(LocalError::Missing { what: "a pair of virtual machines".into(), hint })
            }
        }
    }

    /// Makes the images, unless they exist.
    pub(crate) fn build(&self) -> Result<()> {
        run_to_end(self.command(None).arg("build")).map(drop)
    }

    /// Name and version of the guests' important packages, one a line.
    pub(crate) fn versions(&self) -> Result<String> {
        let path = self.dir.join(match self.machinery {
            Machinery::UserMode => "versions-uml",
            Machinery::Kvm | Machinery::Emulated => "versions",
        });
        std::fs::read_to_string(&path).map_err(LocalError::path("read", &path))
    }
}

/// Both guests, which end with this.
#[derive(Debug)]
pub(crate) struct Guests {
    scripts: Scripts,
    hold: Child,
    /// The script stops the guests when this is closed.
    input: Option<ChildStdin>,
}

impl Guests {
    /// Boots both, and copies our program into them.
    pub(crate) fn start(scripts: &Scripts, program: Option<&Path>) -> Result<Guests> {
        let mut hold = scripts
            .command(None)
            .arg("hold")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(LocalError::io("run bash"))?;
        let input = hold.stdin.take();
        let output = hold.stdout.take();
        let guests = Guests { scripts: scripts.clone(), hold, input };
        let mut line = String::new();
        let read = output.map(|output| BufReader::new(output).read_line(&mut line));
        if !matches!(read, Some(Ok(_))) || line.trim() != "ready" {
            return Err(LocalError::Value("the virtual machines did not start: see the lines above".into()));
        }
        for guest in [Guest::A, Guest::B] {
            guests.equip(guest, program)?;
        }
        Ok(guests)
    }

    fn equip(&self, guest: Guest, program: Option<&Path>) -> Result<()> {
        let script = self.scripts.dir.join("guest.sh");
        self.script([
            OsStr::new("copy"),
            guest.name().as_ref(),
            script.as_ref(),
            "/usr/local/sbin/guest".as_ref(),
        ])?;
        self.script(["run", guest.name(), "chmod 755 /usr/local/sbin/guest"])?;
        if let Some(program) = program {
            let to = "/usr/local/bin/lockstep";
            self.script([OsStr::new("copy"), guest.name().as_ref(), program.as_ref(), to.as_ref()])?;
        }
        Ok(())
    }

    fn script<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<String> {
        run_to_end(self.scripts.command(Some(TIMEOUT)).args(words))
    }

    /// Runs a command of guest.sh in a guest, and returns its standard output.
    pub(crate) fn run(&self, guest: Guest, command: &str) -> Result<String> {
        self.script(["run", guest.name(), &format!("guest {command}")])
    }

    /// The same in both guests at once.
    pub(crate) fn run_both(&self, command: &str) -> Result<()> {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| self.run(Guest::B, command));
            let first = self.run(Guest::A, command);
            let second = other.join().unwrap_or_else(|_| Err(LocalError::Value("a thread panicked".into())));
            first.and(second).map(drop)
        })
    }

    /// Switches a guest off like a power failure.
    pub(crate) fn kill(&self, guest: Guest) -> Result<()> {
        self.script(["kill", guest.name()]).map(drop)
    }

    /// Boots a guest that was switched off.
    pub(crate) fn restart(&self, guest: Guest, program: Option<&Path>) -> Result<()> {
        self.script(["start", guest.name()])?;
        self.equip(guest, program)
    }

    /// Runs a command in `guest` once `failure` is over; the time from the failure until the command's output had each of
    /// these lines.
    pub(crate) fn times_of(
        &self,
        guest: Guest,
        command: &str,
        lines: &[&str],
        failure: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<Duration>> {
        let began = Instant::now();
        failure()?;
        let mut child = self
            .scripts
            .command(Some(TIMEOUT))
            .args(["run", guest.name(), &format!("guest {command}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(LocalError::io("run bash"))?;
        let output = child.stdout.take();
        let mut times = Vec::new();
        for line in output
            .into_iter()
            .flat_map(|output| BufReader::new(output).lines())
            .map_while(std::io::Result::ok)
        {
            if lines.get(times.len()) == Some(&line.trim()) {
                times.push(began.elapsed());
            }
        }
        let ended = child.wait_with_output().map_err(LocalError::io("wait for bash"))?;
        match times.len() == lines.len() {
            true => Ok(times),
            false => Err(LocalError::Command {
                command: command.into(),
                output: last_lines(&String::from_utf8_lossy(&ended.stderr), 5),
            }),
        }
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.hold.wait();
    }
}
