//! A group of members that keep one block device: processes of `lockstep block serve`, perhaps with an arbitrator. Each has
//! a network namespace, and a disk that can be made slow. Copies may have small disks, which can be filled.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_local::{
    Disk, LocalError, Result, Session, find_program, free_ports, is_root, last_lines, run_to_end,
};
use serde::Serialize;
use serde_json::Value;

use crate::bench::{self, Bench};
use crate::mount::Mount;
use crate::netns::{self, Network};
use crate::slow_disk::SlowDisk;

/// The export's name, which is the group's.
pub(crate) const EXPORT: &str = "disk";
/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// How long a question to a member may take. A paused member does not answer at all.
const QUESTION: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(150);
/// The port of members that have a network of their own.
const PORT: u16 = 4567;
/// The size of a disk that can be filled: for the log, a device of some MiB, and rescued entries.
const SMALL_DISK: &str = "size=700m";
/// For [`GroupSpec::log`]: the log keeps enough for a member that a fault keeps away for some time, and the device takes the rest
/// of a small disk. Its files are small, so that it needs a new one, and space for it, while a disk is full.
pub(crate) const LOG_OF_FAULTS: &str = "log.size=128M; log.max_size=256M; log.segment=4M";

/// When a flush is answered, by DRBD's letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The primary's log has it.
    A,
    /// Another member has received it, too.
    B,
    /// A majority has it on disk.
    C,
}

impl Protocol {
    /// As in `--protocol`.
    pub fn letter(self) -> &'static str {
        match self {
            Protocol::A => "a",
            Protocol::B => "b",
            Protocol::C => "c",
        }
    }
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Protocol, String> {
        match text {
            "a" | "A" => Ok(Protocol::A),
            "b" | "B" => Ok(Protocol::B),
            "c" | "C" => Ok(Protocol::C),
            _ => Err(format!("there is no protocol `{text}`: a, b, c")),
        }
    }
}

/// The parameters of a group.
#[derive(Debug, Clone)]
pub(crate) struct GroupSpec {
    /// This project's command.
    pub(crate) program: PathBuf,
    /// The third member keeps no data.
    pub(crate) arbitrator: bool,
    /// The protocol.
    pub(crate) protocol: Protocol,
    /// Bytes of the device.
    pub(crate) size: u64,
    /// MiB of each member's cache of writes.
    pub(crate) cache: u32,
    /// Members with a copy have a small disk, which can be filled. Needs root.
    pub(crate) small_disks: bool,
    /// [`Group::slow_down`] is used. Each flush then passes through a thread of this process, which costs two context switches:
    /// not for measurements.
    pub(crate) slow_disks: bool,
    /// Options of the log of members with a copy.
    pub(crate) log: &'static str,
    /// MiB per second at which a member sends the device to another one; 0: as fast as it can.
    pub(crate) resync_rate: u32,
}

/// How many members a group has.
pub(crate) const MEMBERS: usize = 3;

#[derive(Debug)]
struct Member {
    dir: PathBuf,
    session: Option<Session>,
    disk: SlowDisk,
    /// How often its process was started.
    starts: u64,
}

/// The processes. They end with this value.
#[derive(Debug)]
pub(crate) struct Group {
    members: Vec<Member>,
    spec: GroupSpec,
    addresses: Vec<String>,
    /// Before the networks and the folder are removed, the members must have ended: the order of these fields.
    small_disks: Vec<Mount>,
    network: Option<Network>,
}

/// A member's view of the device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceStatus {
    /// The last entry of the log that the copy has.
    pub(crate) seqno: i64,
    /// The last entry that the device file has.
    pub(crate) written: i64,
    size: u64,
    /// No copy from or to another member is under way.
    is_whole: bool,
}

impl Group {
    /// Starts three members, one after the other, in the folder of the bench.
    ///
    /// # Errors
    /// A program or right is missing, or the members do not find each other.
    pub(crate) fn start(bench: &Bench, name: &str, spec: GroupSpec) -> Result<Group> {
        let network = if is_root()? { Network::new(MEMBERS).ok() } else { None };
        let addresses = (0..MEMBERS)
            .map(|at| {
                Ok(match &network {
                    Some(network) => format!("{}:{PORT}", network.host(at)),
                    None => format!("127.0.0.1:{}", free_ports(1)?),
                })
            })
            .collect::<Result<_>>()?;
        let members = (0..MEMBERS).map(|at| Member {
            dir: bench.dir().join(format!("{name}{}", at + 1)),
            session: None,
            disk: SlowDisk::new(),
            starts: 0,
        });
        let members: Vec<Member> = members.collect();
        for member in &members {
            std::fs::create_dir_all(&member.dir).map_err(LocalError::path("make", &member.dir))?;
        }
        let copies = if spec.arbitrator { MEMBERS - 1 } else { MEMBERS };
        let mut small_disks = Vec::new();
        if spec.small_disks && is_root()? {
            for member in &members[..copies] {
                let options = ["-t", "tmpfs", "-o", SMALL_DISK];
                small_disks.push(Mount::at(&member.dir, &options, Path::new("tmpfs"))?);
            }
        }
        let size = spec.size;
        let mut group = Group { members, spec, addresses, small_disks, network };
        for at in 0..MEMBERS {
            group.spawn(at)?;
            group.until("a new member joins", |group| Ok(group.synced_voters(0) == at + 1))?;
        }
        // Under protocol b that takes a second member.
        group.until("the device has its size", |group| {
            Ok(group.status(0).is_some_and(|status| status.size == size))
        })?;
        Ok(group)
    }

    /// Members with a copy.
    pub(crate) fn copies(&self) -> usize {
        if self.spec.arbitrator { MEMBERS - 1 } else { MEMBERS }
    }

    /// Whether members can be cut off.
    pub(crate) fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// Whether the disks of copies can be filled.
    pub(crate) fn has_small_disks(&self) -> bool {
        !self.small_disks.is_empty()
    }

    /// Where NBD clients reach this member.
    pub(crate) fn socket(&self, at: usize) -> PathBuf {
        self.members[at].dir.with_extension("nbd")
    }

    /// Its device file.
    pub(crate) fn image(&self, at: usize) -> PathBuf {
        self.members[at].dir.join("device.img")
    }

    /// The name of this member.
    pub(crate) fn name(&self, at: usize) -> String {
        format!("n{}", at + 1)
    }

    fn command(&self, at: usize) -> Command {
        let member = &self.members[at];
        let mut command = Command::new(&self.spec.program);
        let mut options = format!("gmcast.listen_addr=tcp://{}", self.addresses[at]);
        if self.spec.arbitrator && at + 1 == MEMBERS {
            command.arg("arbitrator");
        } else {
            options.push_str("; ");
            options.push_str(self.spec.log);
            let listen = format!("unix:{}", self.socket(at).display());
            let cache = format!("{}M", self.spec.cache);
            command.args(["block", "serve", "--cache", &cache, "--listen", &listen]);
            command.args(["--protocol", self.spec.protocol.letter()]);
            command.args(["--resync-rate", &format!("{}M", self.spec.resync_rate)]);
            if at == 0 {
                command.args(["--new", "--size", &self.spec.size.to_string()]);
            }
        }
        let address = format!("gcomm://{}", self.addresses.join(","));
        command.args(["--group", EXPORT, "--name", &self.name(at), "--address", &address]);
        command.args(["--options", &options]).arg("--dir").arg(&member.dir);
        command.arg("--log").arg(member.dir.with_extension("log")).current_dir("/");
        command
    }

    /// Starts the process of a member that does not run.
    pub(crate) fn spawn(&mut self, at: usize) -> Result<()> {
        let mut command = self.command(at);
        let member = &mut self.members[at];
        if self.spec.slow_disks {
            member.disk.attach(&mut command)?;
        }
        let session = match &self.network {
            Some(network) => {
                netns::within(&network.namespace(at), || bench::spawn(&mut command, &member.dir))??
            }
            None => bench::spawn(&mut command, &member.dir)?,
        };
        member.session = Some(session);
        member.starts += 1;
        Ok(())
    }

    /// Sends a signal and does not wait.
    pub(crate) fn signal(&self, at: usize, signal: i32) -> Result<()> {
        match &self.members[at].session {
            Some(session) => session.signal(signal),
            None => Err(LocalError::Value(format!("{} does not run", self.name(at)))),
        }
    }

    /// `kill -9`, and waits for the end.
    pub(crate) fn kill(&mut self, at: usize) {
        if let Some(mut session) = self.members[at].session.take() {
            session.kill();
        }
    }

    /// Stops a member in order.
    ///
    /// # Errors
    /// It does not end in time, or not in order.
    pub(crate) fn stop(&mut self, at: usize) -> Result<()> {
        let Some(mut session) = self.members[at].session.take() else { return Ok(()) };
        if session.ended().is_none() {
            session.signal(libc::SIGTERM)?;
        }
        if !session.wait(PATIENCE) {
            session.kill();
            return Err(LocalError::Value(format!(
                "{} does not end at SIGTERM\n{}",
                self.name(at),
                self.logs()
            )));
        }
        Ok(())
    }

    /// How often this member's process was started.
    pub(crate) fn starts(&self, at: usize) -> u64 {
        self.members[at].starts
    }

    /// Starts members again that have ended by themselves, as a supervisor does. Returns their names.
    pub(crate) fn supervise(&mut self) -> Result<Vec<String>> {
        let mut started = Vec::new();
        for at in 0..MEMBERS {
            let member = &mut self.members[at];
            if member.session.as_mut().is_none_or(|session| session.ended().is_some()) {
                self.spawn(at)?;
                started.push(self.name(at));
            }
        }
        Ok(started)
    }

    /// Nothing reaches or leaves this member.
    pub(crate) fn isolate(&self, at: usize) -> Result<()> {
        self.network.as_ref().map_or_else(|| Err(netns::missing()), |network| network.isolate(at))
    }

    /// All members reach all members.
    pub(crate) fn heal(&self) -> Result<()> {
        self.network.as_ref().map_or(Ok(()), Network::heal)
    }

    /// Each flush of this member's disk takes this much longer.
    pub(crate) fn slow_down(&self, at: usize, delay: Duration) {
        assert!(self.spec.slow_disks, "the disks of this group cannot be slowed down");
        self.members[at].disk.set(delay);
    }

    fn filler(&self, at: usize) -> Option<PathBuf> {
        self.small_disks.get(at).map(|mount| mount.path().join("filler"))
    }

    /// Fills the small disk of this member to the last byte.
    pub(crate) fn fill(&self, at: usize) -> Result<()> {
        let path =
            self.filler(at).ok_or_else(|| LocalError::Value("this member has no small disk".into()))?;
        let mut file = File::create(&path).map_err(LocalError::path("create", &path))?;
        // Until the disk is full, which is the aim.
        for block in [vec![0; 1 << 20], vec![0; 4096]] {
            while file.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    /// Removes what [`Group::fill`] has written.
    pub(crate) fn empty(&self, at: usize) {
        if let Some(path) = self.filler(at) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Runs `lockstep` with these arguments, for at most this long. Returns its standard output.
    ///
    /// # Errors
    /// Its standard error.
    pub(crate) fn lockstep(&self, words: &[&str], limit: Duration) -> std::result::Result<String, String> {
        let mut command = Command::new("timeout");
        command
            .args(["-s", "KILL", &format!("{:.3}", limit.as_secs_f64())])
            .arg(&self.spec.program)
            .args(words);
        let output = command.output().map_err(|error| format!("cannot run `timeout`: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => match text(&output.stderr) {
                text if text.is_empty() => Err("no answer in time".into()),
                text => Err(text),
            },
        }
    }

    /// The device as this member sees it; `None` if it does not answer.
    pub(crate) fn status(&self, at: usize) -> Option<DeviceStatus> {
        let dir = self.members[at].dir.display().to_string();
        let text = self.lockstep(&["block", "status", "--json", "--dir", &dir], QUESTION).ok()?;
        let status: Value = serde_json::from_str(&text).ok()?;
        Some(DeviceStatus {
            seqno: status["seqno"].as_i64()?,
            written: status["written_seqno"].as_i64()?,
            size: status["size_bytes"].as_u64()?,
            is_whole: status["resync"].is_null() && status["waits_for"].is_null(),
        })
    }

    /// How many voters are synced, as this member sees it.
    pub(crate) fn synced_voters(&self, at: usize) -> usize {
        let socket = self.members[at].dir.join("lockstep.sock").display().to_string();
        let Ok(text) = self.lockstep(&["status", "--json", "--socket", &socket], QUESTION) else { return 0 };
        let Ok(status) = serde_json::from_str::<Value>(&text) else { return 0 };
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let votes = |member: &&Value| member["role"] != "learner" && member["state"] == "Synced";
        members.iter().filter(votes).count()
    }

    /// Tries once to promote this member. Returns the name by which a client attaches.
    ///
    /// # Errors
    /// The member's refusal.
    pub(crate) fn promote(&self, at: usize, force: bool) -> std::result::Result<String, String> {
        let dir = self.members[at].dir.display().to_string();
        let words = ["block", "promote", "--dir", &dir, "--force"];
        self.lockstep(&words[..if force { 5 } else { 4 }], Duration::from_secs(60))
    }

    /// Waits until all members are synced and all copies have the same entries. No client may write meanwhile.
    pub(crate) fn until_whole(&mut self) -> Result<()> {
        self.until("all members are synced, and all copies have everything", |group| {
            group.supervise()?;
            Ok(group.are_equal(false))
        })
    }

    /// Waits until all device files have everything.
    pub(crate) fn until_written(&mut self) -> Result<()> {
        self.until("all device files have everything", |group| Ok(group.are_equal(true)))
    }

    /// Whether this member is synced, and takes the device from no other member. Clients may write meanwhile.
    pub(crate) fn is_synced(&self, at: usize) -> bool {
        self.synced_voters(0) == MEMBERS && self.status(at).is_some_and(|status| status.is_whole)
    }

    /// The last line of all members' logs that has this text.
    pub(crate) fn last_line(&self, text: &str) -> Option<String> {
        let mut found = None;
        for member in &self.members {
            let log = std::fs::read_to_string(member.dir.with_extension("log")).unwrap_or_default();
            found = log.lines().rfind(|line| line.contains(text)).map(str::to_owned).or(found);
        }
        found
    }

    fn are_equal(&self, written: bool) -> bool {
        let found: Vec<DeviceStatus> = (0..self.copies()).filter_map(|at| self.status(at)).collect();
        let Some(first) = found.first() else { return false };
        let equal = |status: &DeviceStatus| {
            status.seqno == first.seqno && (!written || status.written == first.seqno)
        };
        found.len() == self.copies() && found.iter().all(equal) && self.synced_voters(0) == MEMBERS
    }

    /// Waits for a condition.
    pub(crate) fn until(
        &mut self,
        what: &str,
        mut ready: impl FnMut(&mut Group) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !ready(self)? {
            if Instant::now() >= end {
                return Err(LocalError::Value(format!(
                    "not within {} s: {what}\n{}",
                    PATIENCE.as_secs(),
                    self.logs()
                )));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Kills the members, and removes their files, but for disks of their own.
    pub(crate) fn remove(&mut self) {
        for at in 0..MEMBERS {
            self.kill(at);
            let _ = std::fs::remove_dir_all(&self.members[at].dir);
        }
    }

    /// The ends of all logs.
    pub(crate) fn logs(&self) -> String {
        let log = |at: usize| {
            let dir = &self.members[at].dir;
            let read = |extension: &str| {
                let bytes = std::fs::read(dir.with_extension(extension)).unwrap_or_default();
                last_lines(&String::from_utf8_lossy(&bytes), 25)
            };
            format!("{}:\n{}\n{}\n", self.name(at), read("log"), read("out"))
        };
        (0..MEMBERS).map(log).collect()
    }

    /// Stops all members in order, and compares their device files byte by byte. Returns the differences, a line each.
    pub(crate) fn stop_and_compare(&mut self) -> Result<Vec<String>> {
        self.until_whole()?;
        self.until_written()?;
        for at in 0..MEMBERS {
            self.stop(at)?;
        }
        self.compare()
    }

    /// Compares the device files of stopped members.
    pub(crate) fn compare(&self) -> Result<Vec<String>> {
        let mut wrong = Vec::new();
        for at in 1..self.copies() {
            if let Some(offset) = first_difference(&self.image(0), &self.image(at))? {
                wrong.push(format!(
                    "the copies of {} and {} differ at byte {offset}",
                    self.name(0),
                    self.name(at)
                ));
            }
        }
        Ok(wrong)
    }

    /// Copies the members' logs to a folder, for an investigation.
    pub(crate) fn keep_logs(&self, to: &Path) -> Result<()> {
        std::fs::create_dir_all(to).map_err(LocalError::path("make", to))?;
        for member in &self.members {
            for extension in ["log", "out"] {
                let from = member.dir.with_extension(extension);
                if from.exists() {
                    run_to_end(Command::new("cp").arg(&from).arg(to))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for at in 0..MEMBERS {
            self.kill(at);
        }
    }
}

/// The offset of the first byte in which two files differ.
fn first_difference(one: &Path, other: &Path) -> Result<Option<u64>> {
    let open = |path: &Path| File::open(path).map_err(LocalError::path("open", path));
    let (mut one_file, mut other_file) = (open(one)?, open(other)?);
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut offset = 0;
    loop {
        let a = read_full(&mut one_file, &mut left).map_err(LocalError::path("read", one))?;
        let b = read_full(&mut other_file, &mut right).map_err(LocalError::path("read", other))?;
        if left[..a] != right[..b] {
            let same = left[..a].iter().zip(&right[..b]).take_while(|(a, b)| a == b).count();
            return Ok(Some(offset + same as u64));
        }
        if a == 0 {
            return Ok(None);
        }
        offset += a as u64;
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

/// The program `lockstep`: the named one, else this process's own, else the installed one.
pub(crate) fn program(given: Option<&Path>) -> Result<PathBuf> {
    let own = std::env::current_exe().ok().filter(|file| file.file_stem() == Some("lockstep".as_ref()));
    let found = given.map(Path::to_owned).or(own).or_else(|| find_program("lockstep"));
    found.ok_or_else(|| LocalError::Missing {
        what: "the program lockstep, which keeps the device".into(),
        hint: "build it with `cargo build --release -p lockstep`".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_differing_byte_is_found() {
        let dir = std::env::temp_dir().join(format!("lockstep-difference-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut bytes = vec![7; (1 << 20) + 100];
        let one = file("one", &bytes);
        let same = file("same", &bytes);
        let short = file("short", &bytes[..bytes.len() - 1]);
        bytes[(1 << 20) + 5] = 8;
        let other = file("other", &bytes);
        assert_eq!(first_difference(&one, &same).unwrap(), None);
        assert_eq!(first_difference(&one, &other).unwrap(), Some((1 << 20) + 5));
        assert_eq!(first_difference(&one, &short).unwrap(), Some((1 << 20) + 99));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
