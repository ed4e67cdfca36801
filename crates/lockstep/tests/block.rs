//! Real members of a replicated block device, a tiny NBD client, and kill -9.

use std::io::{Error, Read, Result, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SECTOR: usize = 512;
/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// An NBD client with one connection.
struct Client {
    stream: UnixStream,
    cookie: u64,
}

impl Client {
    /// Attaches by this name. The error has the server's text.
    fn attach(socket: &Path, name: &str) -> Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut out = 3_u32.to_be_bytes().to_vec();
        // NBD_OPT_GO.
        out.extend(b"IHAVEOPT");
        out.extend(7_u32.to_be_bytes());
        out.extend((name.len() as u32 + 6).to_be_bytes());
        out.extend((name.len() as u32).to_be_bytes());
        out.extend(name.as_bytes());
        out.extend([0, 0]);
        stream.write_all(&out)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut data = vec![0; word(16) as usize];
            stream.read_exact(&mut data)?;
            match word(12) {
                1 => return Ok(Client { stream, cookie: 0 }),
                3 => {}
                _ => return Err(Error::other(String::from_utf8_lossy(&data).into_owned())),
            }
        }
    }

    fn send(&mut self, command: u16, offset: u64, length: usize, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
        out.extend(0_u16.to_be_bytes());
        out.extend(command.to_be_bytes());
        out.extend(self.cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend((length as u32).to_be_bytes());
        out.extend(data);
        self.stream.write_all(&out)
    }

    fn answer(&mut self) -> Result<()> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        match u32::from_be_bytes(head[4..8].try_into().unwrap()) {
            0 => Ok(()),
            error => Err(Error::from_raw_os_error(error as i32)),
        }
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.send(0, offset, length, &[])?;
        self.answer()?;
        let mut data = vec![0; length];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(1, offset, data.len(), data)?;
        self.answer()
    }

    fn flush(&mut self) -> Result<()> {
        self.send(3, 0, 0, &[])?;
        self.answer()
    }

    /// Leaves in order.
    fn detach(mut self) {
        self.send(2, 0, 0, &[]).unwrap();
        // The server closes the connection once the detach is in the log.
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).unwrap();
    }
}

/// Members of one group, with their processes.
struct Group {
    dir: PathBuf,
    ports: Vec<u16>,
    processes: Vec<Option<Child>>,
    /// The last one is an arbitrator.
    arbitrator: bool,
    protocol: &'static str,
    /// The device's size in MiB.
    mib: u64,
    /// More provider options.
    options: String,
    /// More arguments of members with a copy.
    more: Vec<String>,
}

fn lockstep() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
}

impl Group {
    fn new(name: &str, members: usize, arbitrator: bool, protocol: &'static str) -> Group {
        Group::with(name, members, arbitrator, protocol, 16, "", |_| Vec::new())
    }

    /// `options`: more provider options. `more`: arguments of members with a copy, in this directory.
    fn with(
        name: &str,
        members: usize,
        arbitrator: bool,
        protocol: &'static str,
        mib: u64,
        options: &str,
        more: impl FnOnce(&Path) -> Vec<String>,
    ) -> Group {
        let dir = std::env::temp_dir().join(format!("lockstep-block-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Group::inside(dir, members, arbitrator, protocol, mib, options, more)
    }

    /// As [`Group::with`], in an existing directory, which is removed in the end.
    fn inside(
        dir: PathBuf,
        members: usize,
        arbitrator: bool,
        protocol: &'static str,
        mib: u64,
        options: &str,
        more: impl FnOnce(&Path) -> Vec<String>,
    ) -> Group {
        // Held together, so that they differ.
        let held: Vec<TcpListener> =
            (0..members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = held.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(held);
        let processes = (0..members).map(|_| None).collect();
        let more = more(&dir);
        let options = options.to_owned();
        let mut group = Group { dir, ports, processes, arbitrator, protocol, mib, options, more };
        for at in 0..members {
            group.start(at);
            group.until(&format!("member {at} has joined"), |group| {
                group.status(0).is_some_and(|status| status["size_bytes"] == mib << 20)
                    && group.members_synced(0) == at + 1
            });
        }
        group
    }

    fn member(&self, at: usize) -> PathBuf {
        self.dir.join(format!("n{}", at + 1))
    }

    fn socket(&self, at: usize) -> PathBuf {
        self.dir.join(format!("n{}.nbd", at + 1))
    }

    fn start(&mut self, at: usize) {
        let addresses: Vec<String> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let address = format!("gcomm://{}", addresses.join(","));
        let name = format!("n{}", at + 1);
        let options = format!("gmcast.listen_addr=tcp://{}; {}", addresses[at], self.options);
        let mut command = lockstep();
        if self.arbitrator && at + 1 == self.ports.len() {
            command.arg("arbitrator");
        } else {
            let listen = format!("unix:{}", self.socket(at).display());
            command.args([
                "block",
                "serve",
                "--cache",
                "16M",
                "--protocol",
                self.protocol,
                "--listen",
                &listen,
            ]);
            if at == 0 {
                command.args(["--new", "--size", &format!("{}M", self.mib)]);
            }
            command.args(&self.more);
        }
        command.args(["--address", &address, "--group", "disk", "--name", &name, "--options", &options]);
        command.arg("--dir").arg(self.member(at)).arg("--log").arg(self.dir.join(format!("{name}.log")));
        self.processes[at] = Some(command.stdin(Stdio::null()).spawn().unwrap());
    }

    /// kill -9.
    fn kill(&mut self, at: usize) {
        let mut process = self.processes[at].take().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn signal(&self, at: usize, signal: &str) {
        let pid = self.processes[at].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        if signal == "-STOP" {
            // The signal takes effect once one thread of the process was scheduled. Until then the others go on.
            let end = Instant::now() + PATIENCE;
            while !is_stopped(&pid) {
                assert!(Instant::now() < end, "process {pid} does not stop");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// `lockstep block` with these arguments at a member: its standard output, or its error.
    fn block(&self, at: usize, arguments: &[&str]) -> std::result::Result<String, String> {
        let output = self.block_command(at, arguments).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn block_command(&self, at: usize, arguments: &[&str]) -> Command {
        let mut command = lockstep();
        command.arg("block").args(arguments).arg("--dir").arg(self.member(at));
        command
    }

    fn status(&self, at: usize) -> Option<serde_json::Value> {
        serde_json::from_str(&self.block(at, &["status", "--json"]).ok()?).ok()
    }

    fn members_synced(&self, at: usize) -> usize {
        let mut command = lockstep();
        let output = command
            .args(["status", "--json", "--socket"])
            .arg(self.member(at).join("lockstep.sock"))
            .output();
        let status = serde_json::from_slice::<serde_json::Value>(&output.unwrap().stdout);
        let Ok(status) = status else { return 0 };
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let votes = |member: &serde_json::Value| member["role"] != "learner" && member["state"] == "Synced";
        members.iter().filter(|member| votes(member)).count()
    }

    fn until(&self, what: &str, ready: impl Fn(&Group) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !ready(self) {
            if Instant::now() >= end {
                panic!("not in time: {what}\n{}", self.logs());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn logs(&self) -> String {
        let log = |at: usize| {
            let text = std::fs::read_to_string(self.dir.join(format!("n{}.log", at + 1))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("n{}:\n{}\n", at + 1, lines[lines.len().saturating_sub(25)..].join("\n"))
        };
        (0..self.ports.len()).map(log).collect()
    }

    /// Promotes a member, as soon as that is possible. Returns the export's name.
    fn promote(&self, at: usize) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.block(at, &["promote", "--force"]) {
                Ok(name) => return name,
                Err(text) => assert!(Instant::now() < end, "{text}\n{}", self.logs()),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn attach(&self, at: usize, name: &str) -> Client {
        Client::attach(&self.socket(at), name).unwrap_or_else(|error| panic!("{error}\n{}", self.logs()))
    }

    /// Waits until all copies have everything. Returns their number.
    fn settle(&self) -> usize {
        let copies = if self.arbitrator { self.ports.len() - 1 } else { self.ports.len() };
        self.until("all copies have everything", |group| {
            let found: Vec<_> = (0..copies).filter_map(|at| group.status(at)).collect();
            let seqno = found.first().map(|status| status["seqno"].clone());
            found.len() == copies
                && found.iter().all(|status| {
                    Some(&status["seqno"]) == seqno.as_ref() && status["written_seqno"] == status["seqno"]
                })
        });
        copies
    }

    /// Compares all copies, once they have everything.
    fn assert_equal_copies(&self) {
        let copies = self.settle();
        let image = |at: usize| std::fs::read(self.member(at).join("device.img")).unwrap();
        let first = image(0);
        assert!((1..copies).all(|at| image(at) == first), "copies differ");
    }
}

/// Whether all threads of a process are stopped.
fn is_stopped(pid: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    // The state follows the name, which is in parentheses.
    let mut states = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    states.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
}

impl Drop for Group {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// What a disk of numbered sectors may hold: for each the last flushed value, and the last written one.
struct Model {
    flushed: Vec<u32>,
    written: Vec<u32>,
    value: u32,
    random: u64,
}

impl Model {
    fn new(sectors: usize) -> Model {
        Model {
            flushed: vec![0; sectors],
            written: vec![0; sectors],
            value: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % n as u64) as usize
    }

    /// Writes and flushes until the time is over, or the connection ends.
    fn write(&mut self, client: &mut Client, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for _ in 0..self.below(20) {
                let sector = self.below(self.written.len());
                self.value += 1;
                // It may be written although the answer does not come.
                self.written[sector] = self.value;
                let mut data = [0; SECTOR];
                data[..4].copy_from_slice(&self.value.to_le_bytes());
                data[4..8].copy_from_slice(&(sector as u32).to_le_bytes());
                client.write((sector * SECTOR) as u64, &data)?;
            }
            let before = self.written.clone();
            client.flush()?;
            self.flushed = before;
        }
        Ok(())
    }

    /// Each sector holds its last flushed value or a later one, and never another sector's.
    fn check(&mut self, client: &mut Client) {
        let data = client.read(0, self.written.len() * SECTOR).unwrap();
        for sector in 0..self.written.len() {
            let word = |at: usize| {
                let at = sector * SECTOR + at;
                u32::from_le_bytes(data[at..at + 4].try_into().unwrap())
            };
            let (low, high) = (self.flushed[sector], self.written[sector]);
            let found = word(0);
            assert!(low <= found && found <= high, "sector {sector}: {low} <= {found} <= {high}");
            assert!(found == 0 || word(4) == sector as u32, "sector {sector} holds that of {}", word(4));
            (self.flushed[sector], self.written[sector]) = (found, found);
        }
        client.flush().unwrap();
    }
}

#[test]
fn killed_members_lose_no_flushed_write() {
    let mut group = Group::new("kill", 3, false, "c");
    let mut model = Model::new(2000);
    let mut name = "disk".to_owned();
    let mut primary = 0;
    for round in 0..4 {
        let mut client = group.attach(primary, &name);
        model.check(&mut client);
        let victim = group.processes[primary].as_ref().unwrap().id().to_string();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(1500));
            Command::new("kill").args(["-9", &victim]).status().unwrap()
        });
        assert!(model.write(&mut client, PATIENCE).is_err(), "the primary was killed");
        killer.join().unwrap();
        group.kill(primary);
        if round == 2 {
            (0..3).filter(|at| *at != primary).for_each(|at| group.kill(at));
            (0..3).filter(|at| *at != primary).for_each(|at| group.start(at));
        }
        let next = (primary + 1) % 3;
        group.until("the plain name is refused", |group| {
            Client::attach(&group.socket(next), "disk")
                .is_err_and(|error| error.to_string().contains("block promote"))
        });
        name = group.promote(next);
        group.start(primary);
        primary = next;
    }
    (0..3).for_each(|at| group.kill(at));
    (0..3).for_each(|at| group.start(at));
    let name = group.promote(primary);
    let mut client = group.attach(primary, &name);
    model.check(&mut client);
    model.write(&mut client, Duration::from_millis(300)).unwrap();
    client.detach();
    group.assert_equal_copies();
    let other = (primary + 1) % 3;
    let mut client = group.attach(other, "disk");
    model.check(&mut client);
    client.detach();
}

#[test]
fn two_copies_and_arbitrator_survive_stopped_primary() {
    let group = Group::new("pause", 3, true, "c");
    let mut model = Model::new(500);
    let mut old = group.attach(0, "disk");
    model.write(&mut old, Duration::from_millis(500)).unwrap();
    group.signal(0, "-STOP");
    let name = group.promote(1);
    let mut client = group.attach(1, &name);
    model.check(&mut client);
    model.write(&mut client, Duration::from_millis(500)).unwrap();
    group.signal(0, "-CONT");
    // Whatever the old client does, it is told that its attachment is over.
    assert!(old.write(0, &[0xff; SECTOR]).and_then(|()| old.flush()).is_err());
    group.until("the old primary is refused by its plain name", |group| {
        Client::attach(&group.socket(0), "disk")
            .is_err_and(|error| error.to_string().contains("attached to n2"))
    });
    model.check(&mut client);
    client.detach();
    group.assert_equal_copies();
}

#[test]
fn flush_waits_for_a_majority() {
    let mut group = Group::new("minority", 3, true, "c");
    let mut client = group.attach(0, "disk");
    client.write(0, &[1; SECTOR]).unwrap();
    client.flush().unwrap();
    client.write(0, &[2; SECTOR]).unwrap();
    group.kill(1);
    group.kill(2);
    client.send(3, 0, 0, &[]).unwrap();
    client.stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut byte = [0; 1];
    assert!(client.stream.read_exact(&mut byte).is_err(), "a flush without a majority");
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    group.start(2);
    client.answer().expect("the arbitrator is back");
    assert_eq!(client.read(0, 1).unwrap(), [2]);
    group.start(1);
    client.detach();
    group.assert_equal_copies();
}

/// Under a weak protocol the deposed leader has answered what the others lack: its process ends, and keeps the lost entries.
#[test]
fn deposed_primary_of_weak_protocol_returns_as_equal_copy() {
    let mut group = Group::new("deposed", 3, false, "a");
    let mut old = group.attach(0, "disk");
    old.write(0, &[1; SECTOR]).unwrap();
    old.flush().unwrap();
    group.assert_equal_copies();
    for at in [1, 2] {
        group.signal(at, "-STOP");
    }
    old.write(0, &[2; SECTOR]).unwrap();
    old.flush().unwrap();
    group.signal(0, "-STOP");
    for at in [1, 2] {
        // Messages that the kernel has received for a stopped process are lost with a killed one.
        group.kill(at);
        group.start(at);
    }
    let name = group.promote(1);
    let mut client = group.attach(1, &name);
    assert_eq!(client.read(0, 1).unwrap(), [1], "only the primary had the last flush");
    client.write(0, &[3; SECTOR]).unwrap();
    client.flush().unwrap();
    group.signal(0, "-CONT");
    assert!(old.write(0, &[4; SECTOR]).and_then(|()| old.flush()).is_err());
    let mut process = group.processes[0].take().unwrap();
    let end = Instant::now() + PATIENCE;
    while process.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the deposed member goes on\n{}", group.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    group.start(0);
    client.detach();
    group.assert_equal_copies();
    let rescued = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().contains("rescue");
    let file = std::fs::read_dir(group.member(0)).unwrap().flatten().find(rescued);
    let file = file.expect("the lost flush is kept").path();
    let text = std::fs::read_to_string(group.dir.join("n1.log")).unwrap();
    let line = text.lines().find(|line| line.contains("were perhaps acknowledged")).expect(&text);
    assert!(line.contains("of the device (seqnos") && !line.contains("transaction"), "{line}");
    let show = |more: &[&str]| lockstep().args(["log", "--rescue"]).arg(&file).args(more).output().unwrap();
    let shown = String::from_utf8_lossy(&show(&[]).stdout).into_owned();
    assert!(shown.contains("of epoch 1: 512 bytes at 0"), "{shown}");
    let sql = show(&["--sql"]);
    let text = String::from_utf8_lossy(&sql.stderr).into_owned();
    assert!(!sql.status.success() && text.contains("no SQL"), "{text}");
}

#[test]
fn weak_protocols_answer_without_the_others_and_keep_the_order() {
    let mut group = Group::new("weak", 3, false, "a");
    let mut client = group.attach(0, "disk");
    client.write(0, &[1; SECTOR]).unwrap();
    client.flush().unwrap();
    group.assert_equal_copies();
    for at in [1, 2] {
        group.signal(at, "-STOP");
    }
    // Within the time in which the leader does not miss them.
    let began = Instant::now();
    let mut flushed = 1;
    for sector in 1..20_u64 {
        client.write(sector * SECTOR as u64, &[1; SECTOR]).unwrap();
        client.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        if client.flush().is_err() || began.elapsed() > Duration::from_millis(300) {
            break;
        }
        flushed += 1;
    }
    assert!(flushed > 1, "protocol A waits for no other member");
    group.kill(0);
    for at in [1, 2] {
        group.signal(at, "-CONT");
    }
    let name = group.promote(1);
    let mut client = group.attach(1, &name);
    let data = client.read(0, 20 * SECTOR).unwrap();
    let kept = (0..20).take_while(|sector| data[sector * SECTOR] == 1).count();
    assert!(kept >= 1 && (kept..20).all(|sector| data[sector * SECTOR] == 0), "a prefix of the flushes");
    client.write(0, &[7; SECTOR]).unwrap();
    client.flush().unwrap();
    group.start(0);
    group.until("the old primary is back", |group| {
        group.status(0).is_some_and(|status| status["seqno"].as_i64() > Some(0))
    });
    assert_eq!(group.block(1, &["protocol", "c"]).map(|text| text.contains("in force")), Ok(true));
    client.detach();
    group.assert_equal_copies();
}

/// Tells a writer to end, also if the test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writes the numbers from 1 on, each into the next of so many sectors, and flushes each, until it is told to end.
fn write_in_order(mut client: Client, sectors: u64, ends: &AtomicBool, flushed: &AtomicU64) -> Client {
    for number in 1.. {
        let mut data = [0; SECTOR];
        data[..8].copy_from_slice(&u64::to_le_bytes(number));
        client.write(number % sectors * SECTOR as u64, &data).unwrap();
        client.flush().unwrap();
        flushed.store(number, Ordering::SeqCst);
        if ends.load(Ordering::SeqCst) {
            break;
        }
    }
    client
}

/// The last number in an image of [`write_in_order`]. It must have all numbers before it, and none after it.
fn prefix_of(image: &[u8], sectors: u64) -> u64 {
    let word = |sector: u64| {
        let at = sector as usize * SECTOR;
        u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
    };
    let last = (0..sectors).map(word).max().unwrap();
    for sector in 0..sectors {
        let rounds = last.saturating_sub(sector) / sectors;
        let expected = if sector <= last { rounds * sectors + sector } else { 0 };
        assert_eq!(word(sector), expected, "sector {sector} of a prefix of {last} writes");
    }
    last
}

/// Changes a byte of a copy behind its back.
fn flip(image: &Path, offset: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[!byte[0]], offset).unwrap();
}

#[test]
fn verify_finds_a_changed_byte_and_nothing_else() {
    let group = Group::with("verify", 3, false, "c", 48, "", |_| Vec::new());
    let mut client = group.attach(0, "disk");
    for at in 0..12 {
        client.write(at << 20, &[at as u8 + 1; 1 << 20]).unwrap();
    }
    let (ends, flushed) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = std::thread::scope(|scope| {
        let stops = Stops(&ends);
        let writer = scope.spawn(|| write_in_order(client, 3000, &ends, &flushed));
        let end = Instant::now() + PATIENCE;
        for round in 0.. {
            if round >= 6 && (flushed.load(Ordering::SeqCst) > 100 || Instant::now() >= end) {
                break;
            }
            let text = group.block(round % 3, &["verify"]);
            let alike = "50331648 bytes compared on 3 copies, all alike";
            assert_eq!(text.as_deref(), Ok(alike), "under load\n{}", group.logs());
        }
        drop(stops);
        writer.join().unwrap()
    });
    assert!(flushed.load(Ordering::SeqCst) > 100, "there was load");
    client.detach();
    group.settle();
    flip(&group.member(2).join("device.img"), (41 << 20) + 77);
    let output = group.block_command(0, &["verify", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = serde_json::json!([{ "offset": 41 << 20, "length": 1 << 20, "members": ["n3"] }]);
    assert_eq!(answer["compared"]["differences"], expected);
    group.until("each member knows the result", |group| {
        (0..3).all(|at| group.status(at).is_some_and(|status| status["compared"]["differences"] == expected))
    });
    let log = std::fs::read_to_string(group.dir.join("n2.log")).unwrap();
    assert!(log.contains("n3 differs from the others"), "{log}");
}

#[test]
fn verify_works_at_a_follower_of_a_weak_protocol() {
    let group = Group::new("verify-weak", 3, true, "a");
    let mut client = group.attach(0, "disk");
    client.write(5 << 20, &[1; 1 << 20]).unwrap();
    client.detach();
    let alike = "16777216 bytes compared on 2 copies, all alike";
    assert_eq!(group.block(1, &["verify", "--rate", "64M"]).as_deref(), Ok(alike), "{}", group.logs());
    group.settle();
    flip(&group.member(0).join("device.img"), 5 << 20);
    let output = group.block_command(1, &["verify"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("bytes 5242880 to 6291455: the copies differ"), "{text}");
}

#[test]
fn snapshot_under_load_is_one_position_also_after_kill() {
    const SECTORS: u64 = 100_000;
    let mut group = Group::with("snapshot", 3, false, "c", 64, "", |_| Vec::new());
    let mut client = group.attach(0, "disk");
    for at in 0..8 {
        client.write((56 + at) << 20, &[at as u8 + 1; 1 << 20]).unwrap();
    }
    client.flush().unwrap();
    let (ends, flushed) = (AtomicBool::new(false), AtomicU64::new(0));
    let image = |at: usize| group.dir.join(format!("image{at}"));
    let (mut last, partial) = (0, group.dir.join("killed.partial"));
    std::thread::scope(|scope| {
        let stops = Stops(&ends);
        let writer = scope.spawn(|| write_in_order(client, SECTORS, &ends, &flushed));
        for round in 0..6 {
            let before = flushed.load(Ordering::SeqCst);
            let to = image(round);
            let text = group.block(round % 2, &["snapshot", "--to", to.to_str().unwrap()]).unwrap();
            assert!(text.starts_with("67108864 bytes at position "), "{text}");
            let data = std::fs::read(&to).unwrap();
            let found = prefix_of(&data, SECTORS);
            assert!(found <= flushed.load(Ordering::SeqCst) + 1);
            // Another member may lag.
            assert!(round % 2 == 1 || found >= before, "{before} were flushed, and the image has {found}");
            assert!(data[60 << 20] == 5 || (found == 0 && round % 2 == 1), "flushed before the numbers");
            last = last.max(found);
            let again = group.block(0, &["snapshot", "--to", to.to_str().unwrap()]).unwrap_err();
            assert!(again.contains("exists"), "{again}");
        }
        drop(stops);
        writer.join().unwrap()
    })
    .detach();
    assert!(last > 10, "there was load");
    // The member is killed in the middle, if this machine lets it.
    let mut command =
        group.block_command(1, &["snapshot", "--to", group.dir.join("killed").to_str().unwrap()]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + PATIENCE;
    while !partial.exists() && running.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::yield_now();
    }
    group.kill(1);
    let is_complete = running.wait().unwrap().success();
    let killed = group.dir.join("killed");
    assert_eq!(killed.exists(), is_complete);
    if !is_complete {
        // In any case there is such a file.
        std::fs::write(&partial, b"half").unwrap();
    }
    let _ = std::fs::remove_file(&killed);
    group.start(1);
    group.until("the killed member is back", |group| group.status(1).is_some());
    group.settle();
    group.block(1, &["snapshot", "--to", killed.to_str().unwrap()]).unwrap();
    assert!(!partial.exists());
    let data = std::fs::read(&killed).unwrap();
    assert_eq!(prefix_of(&data, SECTORS), flushed.load(Ordering::SeqCst));
    assert!(data == std::fs::read(group.member(1).join("device.img")).unwrap());
}

/// The lines that the commands of promotions have written.
fn promotions(group: &Group) -> Vec<String> {
    let text = std::fs::read_to_string(group.dir.join("promotions")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn killed_primary_is_replaced_by_one_of_two_members() {
    let arguments = |dir: &Path| {
        let command = format!("echo \"$LOCKSTEP_EXPORT\" >> {}", dir.join("promotions").display());
        ["--auto-promote", "3", "--on-promotion", &command].map(str::to_owned).to_vec()
    };
    let mut group = Group::with("takeover", 3, false, "c", 16, "", arguments);
    let mut model = Model::new(500);
    let mut client = group.attach(0, "disk");
    model.write(&mut client, Duration::from_millis(500)).unwrap();
    // An idle client, and a member that is stopped for a short time, are no reason.
    group.signal(0, "-STOP");
    std::thread::sleep(Duration::from_millis(1500));
    group.signal(0, "-CONT");
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(promotions(&group), [""; 0], "{}", group.logs());
    model.write(&mut client, Duration::from_millis(300)).unwrap();
    group.kill(0);
    let killed = Instant::now();
    group.until("a member has promoted itself", |group| !promotions(group).is_empty());
    let promoted = killed.elapsed();
    let at = usize::from(group.status(1).unwrap()["primary"] != "n2") + 1;
    let name = promotions(&group)[0].clone();
    let mut client = group.attach(at, &name);
    let attached = killed.elapsed();
    eprintln!("--auto-promote 3: promoted after {promoted:?}, the next client attached after {attached:?}");
    assert!(promoted >= Duration::from_secs(3), "{promoted:?}");
    model.check(&mut client);
    group.start(0);
    group.until("the former primary is refused by the plain name", |group| {
        Client::attach(&group.socket(0), "disk")
            .is_err_and(|error| error.to_string().contains("is attached to"))
    });
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(promotions(&group), [name], "one promotion only\n{}", group.logs());
    model.check(&mut client);
    client.detach();
    group.assert_equal_copies();
}

#[path = "block/clone.rs"]
mod clone;
#[path = "block/founding.rs"]
mod founding;
#[path = "block/resync.rs"]
mod resync;
#[path = "block/starts.rs"]
mod starts;
