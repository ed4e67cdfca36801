//! A replicated block device (`lockstep block serve`) of two members, as a file that a file system can be made on.
//!
//! `nbdfuse` is the client: it needs no kernel module. The file's writes and syncs become NBD's writes and flushes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Session, free_ports, host_port, prefixed};
use serde_json::Value;

use crate::bench::{self, Bench};
use crate::cluster::Place;
use crate::far::PAUSE;
use crate::member_process::MemberProcess;
use crate::needs;

/// The group, and so the export.
const GROUP: &str = "disk";
/// How long the members may take until both have the device, and the file may take to appear.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long the client may take to end.
const STOP: Duration = Duration::from_secs(30);

/// The members, the primary first, and the client; killed when dropped. Unmount the file system before.
#[derive(Debug)]
pub(crate) struct ReplicatedDevice {
    // The first to go: the client leaves in order.
    client: Client,
    members: Vec<MemberProcess>,
}

/// `nbdfuse`.
#[derive(Debug)]
struct Client {
    mount: PathBuf,
    session: Option<Session>,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mount).output();
        if let Some(session) = &mut self.session {
            session.wait(STOP);
            session.kill();
        }
        // Where the client was killed.
        let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
    }
}

/// Whether there can be such a device on this machine.
pub(crate) fn check() -> Result<()> {
    needs::program("nbdfuse", "nbdfuse")?;
    if Path::new("/dev/fuse").exists() {
        return Ok(());
    }
    Err(LocalError::Missing {
        what: "/dev/fuse, with which a device becomes a file".into(),
        hint: "modprobe fuse, or leave the set-ups with a device out".into(),
    })
}

impl ReplicatedDevice {
    /// Starts two members at these places, and the client at the first one. `size` is in GiB; `processors` are for the members,
    /// and the client has the first one's. `lockstep` is this project's command.
    pub(crate) fn start(
        bench: &Bench,
        places: [Place; 2],
        protocol: &str,
        size: u32,
        processors: [Option<usize>; 2],
        lockstep: Option<&Path>,
    ) -> Result<ReplicatedDevice> {
        let ports = free_ports(2)?;
        let seats: Vec<String> =
            places.iter().zip(0..).map(|(place, at)| host_port(&place.host, ports + at)).collect();
        let mut members = Vec::new();
        for (at, place) in places.into_iter().enumerate() {
            let name = format!("disk{}", at + 1);
            let mut member = MemberProcess::new(bench, &name, Some(place.namespace), lockstep)?;
            member.processor = processors[at];
            let dir = member.dir().display().to_string();
            member.args = vec!["block".into(), "serve".into(), format!("--group={GROUP}")];
            member.args.extend([
                format!("--name={name}"),
                format!("--dir={dir}"),
                format!("--protocol={protocol}"),
                format!("--options=gmcast.listen_addr=tcp://{}", seats[at]),
                format!("--listen=unix:{dir}/nbd.sock"),
            ]);
            match at {
                0 => member.args.extend(["--new".into(), format!("--size={size}G")]),
                _ => member.args.push(format!("--address=gcomm://{}", seats[0])),
            }
            member.start()?;
            members.push(member);
            wait(&mut members, "does not become a member", |members| synced(&members[0]) == Some(at + 1))?;
        }
        let mount = bench.dir().join("device");
        std::fs::create_dir(&mount).map_err(LocalError::path("make", &mount))?;
        let mut device = ReplicatedDevice { client: Client { mount, session: None }, members };
        device.attach(processors[0])?;
        Ok(device)
    }

    /// The client runs outside the member's network namespace. A mount made in there is not visible elsewhere, and a Unix socket
    /// needs no network.
    fn attach(&mut self, processor: Option<usize>) -> Result<()> {
        let words = processor.map(|processor| ["taskset".into(), "-c".into(), processor.to_string()]);
        let words: Vec<String> = words.into_iter().flatten().collect();
        let socket = self.members[0].dir().join("nbd.sock");
        let mut command = prefixed(&words, Path::new("nbdfuse"));
        command.arg(&self.client.mount).arg(format!("nbd+unix:///{GROUP}?socket={}", socket.display()));
        self.client.session = Some(bench::spawn(&mut command, &self.client.mount)?);
        let end = Instant::now() + TIMEOUT;
        while !std::fs::metadata(self.file()).is_ok_and(|file| file.len() > 0) {
            let ended = self.client.session.as_mut().is_some_and(|session| session.ended().is_some());
            if ended || Instant::now() > end {
                let output = self.client.mount.with_extension("out");
                let said = std::fs::read_to_string(output).unwrap_or_default();
                return Err(self.members[0].failed(&format!("nbdfuse shows no device: {said}")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// The device as a file.
    pub(crate) fn file(&self) -> PathBuf {
        self.client.mount.join("nbd")
    }

    /// Waits until both copies have everything on their device files. Returns how long that took.
    pub(crate) fn catch_up(&self) -> Result<Duration> {
        let began = Instant::now();
        while !self.is_complete() {
            if began.elapsed() > TIMEOUT {
                return Err(self.members[1].failed("the second copy of the device does not have everything"));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(began.elapsed())
    }

    fn is_complete(&self) -> bool {
        let states: Option<Vec<Value>> = self.members.iter().map(status).collect();
        states.is_some_and(|states| {
            states.iter().all(|state| {
                state["seqno"] == states[0]["seqno"]
                    && state["written_seqno"] == state["seqno"]
                    && state["dirty_bytes"] == 0
            })
        })
    }

    /// The members' command lines, for the record.
    pub(crate) fn commands(&self) -> Vec<(String, String)> {
        self.members.iter().map(|member| (member.name().to_owned(), member.command())).collect()
    }
}

/// Waits until `ready` says so, while all members run.
fn wait(members: &mut [MemberProcess], what: &str, ready: impl Fn(&[MemberProcess]) -> bool) -> Result<()> {
    let end = Instant::now() + TIMEOUT;
    while !ready(members) {
        if Instant::now() > end || !members.iter_mut().all(MemberProcess::is_running) {
            let last = members.last().expect("there are members");
            return Err(last.failed(&format!("a member with a copy of the device {what}")));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// The answer of this command in JSON.
fn ask(member: &MemberProcess, arguments: &[&str], at: &Path) -> Option<Value> {
    let output = Command::new(member.program()).args(arguments).arg(at).output().ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

fn status(member: &MemberProcess) -> Option<Value> {
    ask(member, &["block", "status", "--json", "--dir"], member.dir())
}

/// How many members have a vote, and have everything, as this one sees it.
fn synced(member: &MemberProcess) -> Option<usize> {
    let status = ask(member, &["status", "--json", "--socket"], &member.dir().join("lockstep.sock"))?;
    let votes = |member: &&Value| member["role"] != "learner" && member["state"] == "Synced";
    Some(status["members"].as_array()?.iter().filter(votes).count())
}
