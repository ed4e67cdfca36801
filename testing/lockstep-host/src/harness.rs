//! Starts members on loopback and talks to them. A member is a child process; it ends when it is dropped, or
//! when this process does, because its standard input ends then.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::checks::lock;

/// How long a command may take unless it is told otherwise. The member's own waits are shorter.
const CALL_LIMIT: Duration = Duration::from_secs(75);

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The member says no: its code and line.
    Refused(String, String),
    /// No answer in time.
    Timeout(String),
    /// The process has ended.
    Gone(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::Refused(code, text) => write!(f, "{text} ({code})"),
            CallError::Timeout(what) => write!(f, "no answer in time to {what}"),
            CallError::Gone(what) => write!(f, "the member has ended before it answered {what}"),
        }
    }
}

impl std::error::Error for CallError {}

impl CallError {
    /// The member's status code, or a substitute.
    pub fn code(&self) -> &str {
        match self {
            CallError::Refused(code, _) => code,
            CallError::Timeout(_) => "timeout",
            CallError::Gone(_) => "gone",
        }
    }
}

/// Result of a command.
pub type CallResult = Result<Value, CallError>;

/// An answer that is still to come.
pub struct Pending {
    what: String,
    pid: u32,
    receiver: Receiver<Value>,
    early: Option<Value>,
}

impl Pending {
    /// Waits for it.
    pub fn wait(self) -> CallResult {
        self.wait_for(CALL_LIMIT)
    }

    /// Waits for it, up to `limit`.
    pub fn wait_for(mut self, limit: Duration) -> CallResult {
        let reply = match self.early.take() {
            Some(reply) => Ok(reply),
            None => self.receiver.recv_timeout(limit),
        };
        match reply {
            Ok(reply) => match reply.get("error") {
                Some(error) => Err(CallError::Refused(
                    error["code"].as_str().unwrap_or_default().to_owned(),
                    error["text"].as_str().unwrap_or_default().to_owned(),
                )),
                None => Ok(reply["ok"].clone()),
            },
            Err(RecvTimeoutError::Timeout) => {
                show_threads(&self.what, self.pid);
                Err(CallError::Timeout(self.what))
            }
            Err(RecvTimeoutError::Disconnected) => Err(CallError::Gone(self.what)),
        }
    }

    /// Whether the answer has still not come after `time`.
    pub fn is_pending_after(&mut self, time: Duration) -> bool {
        if self.early.is_none() {
            self.early = self.receiver.recv_timeout(time).ok();
        }
        self.early.is_none()
    }
}

/// Says where each thread of a process stands that does not answer; needs `gdb`, says nothing without.
fn show_threads(what: &str, pid: u32) {
    let pid = pid.to_string();
    let output =
        Command::new("gdb").args(["-p", &pid, "-batch", "-nx", "-ex", "thread apply all bt 24"]).output();
    if let Ok(output) = output {
        eprintln!("---- no answer to {what}, process {pid}:\n{}", String::from_utf8_lossy(&output.stdout));
    }
}

type Waiting = Arc<Mutex<BTreeMap<u64, Sender<Value>>>>;

/// A member: a running `lockstep-host` and the lines to it.
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its data directory.
    pub dir: PathBuf,
    child: Child,
    stdin: Mutex<Option<ChildStdin>>,
    waiting: Waiting,
    events: Arc<Mutex<Vec<(String, String)>>>,
    next: AtomicU64,
}

impl Member {
    /// Starts `binary` with `args` for a member of this name, in `dir`, which is made if it is missing. What the
    /// provider logs goes to `<dir>/provider.log`.
    pub fn spawn(binary: &Path, args: &[String], name: &str, dir: &Path) -> std::io::Result<Member> {
        std::fs::create_dir_all(dir)?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("provider.log"))?;
        let mut child = Command::new(binary)
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let waiting = Waiting::default();
        let events = Arc::new(Mutex::new(Vec::new()));
        if let Some(stdout) = stdout {
            let (waiting, events) = (Arc::clone(&waiting), Arc::clone(&events));
            std::thread::spawn(move || read_lines(BufReader::new(stdout), &waiting, &events));
        }
        Ok(Member {
            name: name.to_owned(),
            dir: dir.to_owned(),
            child,
            stdin: Mutex::new(stdin),
            waiting,
            events,
            next: AtomicU64::new(1),
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a command to a client of the member; the answer comes later.
    pub fn send(&self, client: &str, cmd: &str, args: Value) -> Pending {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let mut command = match args {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        command.insert("id".into(), json!(id));
        command.insert("cmd".into(), json!(cmd));
        command.insert("client".into(), json!(client));
        let what = format!("{}: {cmd}", self.name);
        let (sender, receiver) = channel();
        lock(&self.waiting).insert(id, sender);
        let mut line = Value::Object(command).to_string();
        line.push('\n');
        let written = match lock(&self.stdin).as_mut() {
            Some(stdin) => stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_ok(),
            None => false,
        };
        if !written {
            lock(&self.waiting).remove(&id);
        }
        Pending { what, pid: self.pid(), receiver, early: None }
    }

    /// Runs a command on a client.
    pub fn on(&self, client: &str, cmd: &str, args: Value) -> CallResult {
        self.send(client, cmd, args).wait()
    }

    /// Runs a command on the client "main".
    pub fn call(&self, cmd: &str, args: Value) -> CallResult {
        self.on("main", cmd, args)
    }

    /// Runs a command on a client of its own, so that it never waits for others.
    pub fn ask(&self, cmd: &str, args: Value) -> CallResult {
        self.on("ask", cmd, args)
    }

    /// A transaction of one write: begin, put, commit.
    pub fn put(&self, client: &str, row: &str, value: &str) -> CallResult {
        self.on(client, "begin", json!({}))?;
        self.on(client, "put", json!({ "row": row, "value": value }))?;
        self.on(client, "commit", json!({}))
    }

    /// The events so far: kind and text.
    pub fn events(&self) -> Vec<(String, String)> {
        lock(&self.events).clone()
    }

    /// Whether the process still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Leaves the cluster and ends the process.
    pub fn stop(&mut self) -> Result<(), CallError> {
        self.call("disconnect", json!({}))?;
        self.call("unload", json!({}))?;
        lock(&self.stdin).take();
        let end = Instant::now() + Duration::from_secs(10);
        while self.is_alive() {
            if Instant::now() > end {
                self.kill();
                return Err(CallError::Timeout("end of input".into()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The last lines of the provider's log.
    pub fn log_tail(&self, lines: usize) -> String {
        let text = std::fs::read(self.dir.join("provider.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lines(input: impl BufRead, waiting: &Waiting, events: &Mutex<Vec<(String, String)>>) {
    for line in input.lines() {
        let Ok(line) = line else { break };
        let Ok(value) = serde_json::from_str::<Value>(&line) else {
            lock(events).push(("garbage".into(), line));
            continue;
        };
        match value["id"].as_u64() {
            Some(id) => {
                if let Some(sender) = lock(waiting).remove(&id) {
                    let _ = sender.send(value);
                }
            }
            None => {
                let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
                lock(events).push((text("event"), text("text")));
            }
        }
    }
    // Pending waiters learn that the stream has ended.
    lock(waiting).clear();
}

static PORTS: AtomicU64 = AtomicU64::new(0);

/// Ports of loopback that were free just now, `count` in a row. They lie below the range of ports for outgoing
/// connections, so that none of those comes in between. Each call of this process looks further on.
pub fn free_ports(count: u16) -> Option<u16> {
    const FIRST: u64 = 12_000;
    const LAST: u64 = 32_000;
    let stride = u64::from(count.max(1));
    let places = (LAST - FIRST) / stride;
    let start = u64::from(std::process::id()).wrapping_mul(7919);
    (0..places).find_map(|_| {
        let place = start.wrapping_add(PORTS.fetch_add(1, Ordering::SeqCst)) % places;
        let first = (FIRST + place * stride) as u16;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        (first..first + count).all(free).then_some(first)
    })
}

/// Which provider runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Galera's library, to see that the tests are right.
    Galera,
    /// Ours.
    Lockstep,
}

/// The path of Galera's library on Debian.
pub const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

impl Kind {
    /// The library: Galera's from its package, ours from `LOCKSTEP_PROVIDER` or beside the test's binary. The
    /// error says why there is none.
    pub fn library(self, binary: &Path) -> Result<PathBuf, String> {
        let path = match self {
            Kind::Galera => PathBuf::from(GALERA),
            Kind::Lockstep => match std::env::var_os("LOCKSTEP_PROVIDER") {
                Some(path) => PathBuf::from(path),
                None => binary.parent().unwrap_or(Path::new(".")).join("liblockstep.so"),
            },
        };
        if path.is_file() { Ok(path) } else { Err(format!("there is no provider at {}", path.display())) }
    }
}

/// Configuration of a member: see [`Cluster::start`].
#[derive(Clone, Debug)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Port for peers; the next one is for incremental state transfer.
    pub port: u16,
    /// Arguments for `configure` beside the usual ones.
    pub extra: Map<String, Value>,
    /// Options beside the usual ones.
    pub options: String,
}

/// Options for tests: small caches, quick detection of failures.
const QUICK: &str = "gcache.size=16M; gcache.page_size=4M; evs.inactive_check_period=PT0.2S; \
                     evs.keepalive_period=PT0.3S; evs.suspect_timeout=PT2S; evs.inactive_timeout=PT4S; \
                     evs.install_timeout=PT3S; pc.announce_timeout=PT1S";

/// Members on loopback that make one cluster.
pub struct Cluster {
    /// Which provider.
    pub kind: Kind,
    /// Its library.
    pub library: PathBuf,
    /// The host's binary.
    pub binary: PathBuf,
    /// Arguments between its name and the commands.
    pub binary_args: Vec<String>,
    /// Options of every member beside its ports.
    pub tuning: String,
    /// Directory of all members; deleted when the cluster is dropped, kept when a test fails.
    pub dir: PathBuf,
    /// How the members start.
    pub nodes: Vec<Node>,
    /// Those that run.
    pub members: Vec<Option<Member>>,
}

static CLUSTERS: AtomicU64 = AtomicU64::new(1);

impl Cluster {
    /// `count` members, none of them started.
    pub fn prepare(
        kind: Kind,
        library: &Path,
        binary: &Path,
        name: &str,
        count: usize,
    ) -> std::io::Result<Cluster> {
        let number = CLUSTERS.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir()
            .join(format!("lockstep-host-{}-{number}-{name}-{kind:?}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut nodes = Vec::new();
        for n in 0..count {
            let port = free_ports(4).ok_or_else(|| std::io::Error::other("no free ports on loopback"))?;
            let name = format!("n{}", n + 1);
            nodes.push(Node { name, port, extra: Map::new(), options: String::new() });
        }
        let members = (0..count).map(|_| None).collect();
        Ok(Cluster {
            kind,
            library: library.to_owned(),
            binary: binary.to_owned(),
            binary_args: Vec::new(),
            tuning: QUICK.into(),
            dir,
            nodes,
            members,
        })
    }

    /// The cluster address that names all members.
    pub fn url(&self) -> String {
        let all: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("gcomm://{}", all.join(","))
    }

    /// The options of a member: its own ports, and the common ones.
    pub fn options(&self, n: usize) -> String {
        let Node { port, options, .. } = &self.nodes[n];
        let mut all = format!(
            "base_host=127.0.0.1; base_port={port}; gmcast.listen_addr=tcp://127.0.0.1:{port}; \
             ist.recv_addr=tcp://127.0.0.1:{}",
            port + 1
        );
        for more in [&self.tuning, options].into_iter().filter(|more| !more.is_empty()) {
            all.push_str("; ");
            all.push_str(more);
        }
        all
    }

    /// Starts the process of member `n` and configures it, nothing more.
    pub fn configure(&mut self, n: usize, bootstrap: bool) -> Result<&Member, CallError> {
        let node = self.nodes[n].clone();
        let dir = self.dir.join(&node.name);
        let member = Member::spawn(&self.binary, &self.binary_args, &node.name, &dir)
            .map_err(|error| CallError::Gone(format!("{}: {error}", self.binary.display())))?;
        let mut args = json!({
            "name": node.name, "dir": dir, "address": "127.0.0.1", "cluster": "host-test",
            "options": self.options(n), "url": self.url(), "bootstrap": bootstrap,
        });
        if let Some(map) = args.as_object_mut() {
            map.extend(node.extra);
        }
        member.call("configure", args)?;
        Ok(self.members[n].insert(member))
    }

    /// Starts member `n` and waits until it is synced.
    pub fn start(&mut self, n: usize, bootstrap: bool) -> Result<&Member, CallError> {
        let library = self.library.clone();
        let member = self.configure(n, bootstrap)?;
        member.call("start", json!({ "library": library }))?;
        member.call("wait_state", json!({ "state": "synced", "limit_ms": 30_000 }))?;
        Ok(member)
    }

    /// Starts all, the first one as a new cluster, and waits until each sees all.
    pub fn start_all(&mut self) -> Result<(), CallError> {
        for n in 0..self.nodes.len() {
            self.start(n, n == 0)?;
        }
        let count = self.nodes.len();
        for member in self.members.iter().flatten() {
            member.call("wait_members", json!({ "count": count }))?;
            member.call("wait_state", json!({ "state": "synced" }))?;
        }
        Ok(())
    }

    /// Member `n`, which runs.
    ///
    /// # Panics
    /// When it does not: a mistake of the test.
    pub fn member(&self, n: usize) -> &Member {
        match &self.members[n] {
            Some(member) => member,
            None => panic!("member {n} does not run"),
        }
    }

    /// The running members.
    pub fn running(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }

    /// Stops member `n` in an orderly way.
    pub fn stop(&mut self, n: usize) -> Result<(), CallError> {
        match self.members[n].as_mut() {
            Some(member) => {
                member.stop()?;
                self.members[n] = None;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Kills member `n`.
    pub fn kill(&mut self, n: usize) {
        self.members[n] = None;
    }

    /// Waits until all running members have reached the most advanced one's position, then compares their
    /// databases and asks for violations. The error names the difference.
    ///
    /// The load is over, but the rollback of a stream may still be on its way to one of them: members that differ are
    /// compared again for a few seconds. Differences in committed data never go away.
    pub fn agree(&self) -> Result<(), String> {
        for _ in 0..20 {
            if self.agree_now().is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        self.agree_now()
    }

    fn agree_now(&self) -> Result<(), String> {
        let mut top = 0;
        for member in self.running() {
            let digest = member.ask("digest", json!({})).map_err(|error| error.to_string())?;
            top = top.max(digest["seqno"].as_i64().unwrap_or(0));
        }
        let mut seen: Option<(String, Value)> = None;
        for member in self.running() {
            member.ask("wait_seqno", json!({ "seqno": top })).map_err(|error| error.to_string())?;
            let mut digest = member.ask("digest", json!({})).map_err(|error| error.to_string())?;
            let mut violations = member.ask("violations", json!({})).map_err(|error| error.to_string())?;
            // Galera's library sends a write-set again, and calls back again, where a change of its members met it. Ours
            // calls back once.
            if self.kind == Kind::Galera
                && let Some(list) = violations.as_array_mut()
            {
                let again = "certify returned OK(0) and had called back Some(2) times";
                list.retain(|violation| violation.as_str() != Some(again));
            }
            if violations != json!([]) {
                return Err(format!("{}: {violations:#}", member.name));
            }
            if let Some(digest) = digest.as_object_mut() {
                // A member may have passed places since that carry no change.
                digest.remove("position");
                digest.remove("seqno");
            }
            match &seen {
                Some((name, other)) if *other != digest => {
                    return Err(format!("{name} has {other}, {} has {digest}", member.name));
                }
                Some(_) => {}
                None => seen = Some((member.name.clone(), digest)),
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for member in self.members.iter().flatten() {
                eprintln!("---- {} ({}): events", member.name, member.dir.display());
                for (kind, text) in member.events().iter().rev().take(40).rev() {
                    eprintln!("{kind}: {text}");
                }
                eprintln!("---- {}: provider's log\n{}", member.name, member.log_tail(40));
            }
        }
        for member in &mut self.members {
            *member = None;
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
