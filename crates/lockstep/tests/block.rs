//! Real members of a replicated block device, a tiny NBD client, and kill -9.

use std::io::{Error, Read, Result, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
}

fn lockstep() -> Command {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
}

impl Group {
    fn new(name: &str, members: usize, arbitrator: bool, protocol: &'static str) -> Group {
        let dir = std::env::temp_dir().join(format!("lockstep-block-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        // Held together, so that they differ.
        let held: Vec<TcpListener> =
            (0..members).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports = held.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(held);
        let processes = (0..members).map(|_| None).collect();
        let mut group = Group { dir, ports, processes, arbitrator, protocol };
        for at in 0..members {
            group.start(at);
            group.until(&format!("member {at} has joined"), |group| {
                group.status(0).is_some_and(|status| status["size_bytes"] == 16 << 20)
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
        let options = format!("gmcast.listen_addr=tcp://{}", addresses[at]);
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
                command.args(["--new", "--size", "16M"]);
            }
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
    }

    /// `lockstep block` with these arguments at a member: its standard output, or its error.
    fn block(&self, at: usize, arguments: &[&str]) -> std::result::Result<String, String> {
        let mut command = lockstep();
        command.arg("block").args(arguments).arg("--dir").arg(self.member(at));
        let output = command.output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
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

    /// All copies, once they have everything.
    fn assert_equal_copies(&self) {
        let copies = if self.arbitrator { self.ports.len() - 1 } else { self.ports.len() };
        self.until("all copies have everything", |group| {
            let found: Vec<_> = (0..copies).filter_map(|at| group.status(at)).collect();
            let seqno = found.first().map(|status| status["seqno"].clone());
            found.len() == copies
                && found.iter().all(|status| {
                    Some(&status["seqno"]) == seqno.as_ref() && status["written_seqno"] == status["seqno"]
                })
        });
        let image = |at: usize| std::fs::read(self.member(at).join("device.img")).unwrap();
        let first = image(0);
        assert!((1..copies).all(|at| image(at) == first), "copies differ");
    }
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
    let rescued = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().contains("rescue");
    assert!(std::fs::read_dir(group.member(0)).unwrap().flatten().any(rescued), "the lost flush is kept");
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
