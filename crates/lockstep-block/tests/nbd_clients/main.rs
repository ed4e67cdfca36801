//! Serves a device in memory to real NBD clients: libnbd's tools, qemu's, fio.

#[allow(dead_code)]
#[path = "../../src/nbd/memory.rs"]
mod memory;
mod tls;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use lockstep_block::nbd::{Listen, Places, Server, ServerConfig};
use lockstep_block::{Attachment, Description, Export, Extent, IoError, Peer, Refusal, RefusalKind};
use tokio::runtime::Runtime;

use memory::Memory;

const MIB: u64 = 1 << 20;

/// A server of a device `disk` at a Unix socket and at a port; everything goes away with the test.
struct Lab {
    folder: PathBuf,
    device: Memory,
    port: u16,
    server: Option<Server>,
    runtime: Runtime,
}

impl Lab {
    fn new(name: &str, size: u64) -> Lab {
        Lab::with(name, Description { text: "a test".into(), ..Description::new(size) }, |_| {})
    }

    fn with(name: &str, description: Description, change: impl FnOnce(&mut ServerConfig)) -> Lab {
        let folder = std::env::temp_dir().join(format!("lockstep-nbd-clients-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let device = Memory::new("disk", description);
        let places = Places::take(&[
            Listen::Unix { path: folder.join("socket"), mode: 0o600 },
            Listen::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        ]);
        let log = std::sync::Arc::new(|line: &str| eprintln!("server: {line}"));
        let mut config = ServerConfig { log, ..ServerConfig::default() };
        change(&mut config);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = {
            let _inside = runtime.enter();
            Server::start(config, places.unwrap(), device.clone()).unwrap()
        };
        let port = server.addresses()[0].port();
        Lab { folder, device, port, server: Some(server), runtime }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.path("socket"))
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// A file of random bytes with holes.
    fn sparse_file(&self, name: &str, size: u64) -> Vec<u8> {
        let mut random = lockstep_fuzz::Random::new(size);
        let mut bytes = vec![0u8; size as usize];
        for block in bytes.chunks_mut(64 << 10).step_by(3) {
            block.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        }
        std::fs::write(self.path(name), &bytes).unwrap();
        bytes
    }

    fn wait(&self, what: &str, condition: impl Fn(&Memory) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition(&self.device) {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            self.runtime.block_on(server.stop());
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a program for at most two minutes: whether it succeeded, and both its outputs.
fn try_run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("timeout")
        .args(["-k", "5", "120", program])
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
    assert!(
        !matches!(output.status.code(), Some(124 | 127 | 137)),
        "{program} is missing (scripts/setup.sh test installs it) or hangs: {text}"
    );
    (output.status.success(), text)
}

fn run(program: &str, arguments: &[&str]) -> String {
    let (success, text) = try_run(program, arguments);
    assert!(success, "{program} {arguments:?}: {text}");
    text
}

#[track_caller]
fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn nbdinfo_shows_exports_with_all_properties() {
    let lab = Lab::new("info", 64 * MIB);
    let text = run("nbdinfo", &["--json", &lab.uri()]);
    assert_has(
        &text,
        &[
            r#""protocol": "newstyle-fixed""#,
            r#""structured": true"#,
            r#""export-name": "disk""#,
            r#""description": "a test""#,
            r#""export-size": 67108864"#,
            r#""base:allocation""#,
            r#""is_read_only": false"#,
            r#""can_cache": true"#,
            r#""can_df": true"#,
            r#""can_fast_zero": true"#,
            r#""can_flush": true"#,
            r#""can_fua": true"#,
            r#""can_multi_conn": true"#,
            r#""can_trim": true"#,
            r#""can_zero": true"#,
            r#""block_size_minimum": 1,"#,
            r#""block_size_preferred": 4096"#,
            r#""block_size_maximum": 33554432"#,
        ],
    );
    let list = run("nbdinfo", &["--list", "--json", &format!("nbd://127.0.0.1:{}", lab.port)]);
    assert_has(&list, &[r#""export-name": "disk""#, r#""export-size": 67108864"#]);
    assert_eq!(run("nbdinfo", &["--size", &lab.uri()]).trim(), "67108864");
    let other = format!("nbd+unix:///other?socket={}", lab.path("socket"));
    let (success, text) = try_run("nbdinfo", &[&other]);
    assert!(!success);
    assert_has(&text, &["No such file or directory for export: other"]);
}

#[test]
fn nbdinfo_map_shows_holes() {
    let lab = Lab::new("map", 16 * MIB);
    run("qemu-io", &["-f", "raw", "-c", "write -P 1 1M 2M", "-c", "write -P 1 8M 1M", &lab.uri()]);
    run("qemu-io", &["-f", "raw", "-c", "discard 2M 64k", &lab.uri()]);
    let map = run("nbdinfo", &["--map", &lab.uri()]);
    let columns = |line: &str| line.split_whitespace().take(3).map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = map.lines().map(columns).collect();
    let data = |offset: u64, length: u64| [offset.to_string(), length.to_string(), "0".into()].to_vec();
    let hole = |offset: u64, length: u64| [offset.to_string(), length.to_string(), "3".into()].to_vec();
    let expected = [
        hole(0, MIB),
        data(MIB, MIB),
        hole(2 * MIB, 64 << 10),
        data(2 * MIB + (64 << 10), MIB - (64 << 10)),
        hole(3 * MIB, 5 * MIB),
        data(8 * MIB, MIB),
        hole(9 * MIB, 7 * MIB),
    ];
    assert_eq!(lines, expected, "{map}");
}

#[test]
fn nbdcopy_copies_both_ways_over_several_connections() {
    let lab = Lab::new("copy", 64 * MIB);
    let bytes = lab.sparse_file("source", 64 * MIB);
    run("nbdcopy", &["--flush", "--threads=4", &lab.path("source"), &lab.uri()]);
    assert!(lab.device.content() == bytes);
    assert!(lab.device.flushes.load(Relaxed) > 0);
    run("nbdcopy", &["--connections=4", "--threads=4", &lab.uri(), &lab.path("target")]);
    assert!(std::fs::read(lab.path("target")).unwrap() == bytes);
    lab.wait("all clients have left in order", |device| {
        device.attached.load(Relaxed) == device.detached.load(Relaxed)
    });
    assert!(lab.device.attached.load(Relaxed) >= 8, "the server allows several connections");
    assert_eq!(lab.device.lost.load(Relaxed), 0);
    let uri = format!("nbd://127.0.0.1:{}/disk", lab.port);
    run("nbdcopy", &["--request-size=33554432", &uri, &lab.path("again")]);
    assert!(std::fs::read(lab.path("again")).unwrap() == bytes);
}

#[test]
fn qemu_io_writes_reads_discards_and_flushes() {
    let lab = Lab::new("qemu-io", 64 * MIB);
    let uri = lab.uri();
    let io = |commands: &[&str]| {
        let mut arguments = vec!["-f", "raw"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&uri);
        let text = run("qemu-io", &arguments);
        assert!(!text.contains("failed"), "{text}");
    };
    io(&["write -P 0xa5 1000 70000", "read -P 0xa5 1000 70000", "read -P 0 0 1000"]);
    io(&["write -f -P 0x11 1M 1M", "flush", "read -P 0x11 1M 1M"]);
    assert!(lab.device.durable_writes.load(Relaxed) >= 1, "FUA arrives");
    assert!(lab.device.flushes.load(Relaxed) >= 1);
    io(&["write -z 1M 64k", "write -z -u 1088k 64k", "write -z -f 1152k 64k"]);
    io(&["read -P 0 1M 192k", "read -P 0x11 1216k 832k"]);
    assert_eq!(lab.device.zeroes.load(Relaxed), 3);
    io(&["discard 1536k 128k", "read -P 0 1536k 128k"]);
    assert!(lab.device.trims.load(Relaxed) >= 1);
    io(&["aio_write -P 7 2M 1M", "aio_write -P 8 3M 1M", "aio_flush", "read -P 7 2M 1M", "read -P 8 3M 1M"]);
    io(&["writev -P 9 4M 512 4096 64k", "readv -P 9 4M 64k 512 4096"]);
    let (success, text) = try_run("qemu-io", &["-f", "raw", "-c", "write 64M 512", &uri]);
    assert!(!success || text.contains("error"), "{text}");
}

#[test]
fn qemu_io_sees_errors_of_the_device() {
    let lab = Lab::new("errors", 16 * MIB);
    lab.device.fails.store(true, Relaxed);
    for command in ["write 0 4k", "read 0 4k", "flush", "write -z 0 4k"] {
        let (success, text) = try_run("qemu-io", &["-f", "raw", "-c", command, &lab.uri()]);
        assert!(!success, "{command}: {text}");
    }
}

#[test]
fn qemu_img_converts_and_compares() {
    let lab = Lab::new("qemu-img", 32 * MIB);
    let bytes = lab.sparse_file("source", 32 * MIB);
    let (uri, source, target) = (lab.uri(), lab.path("source"), lab.path("target.qcow2"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16", &source, &uri]);
    assert!(lab.device.content() == bytes);
    assert_has(&run("qemu-img", &["compare", "-f", "raw", &source, &uri]), &["identical"]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, &target]);
    assert_has(&run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &target, &uri]), &["identical"]);
    assert_has(&run("qemu-img", &["info", "-f", "raw", &uri]), &["32 MiB"]);
    assert_has(&run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]), &[r#""zero": true"#]);
}

#[test]
fn fio_verifies_what_it_wrote() {
    let lab = Lab::new("fio", 64 * MIB);
    let uri = format!("--uri={}", lab.uri());
    let common =
        ["--name=verify", "--ioengine=nbd", &uri, "--size=64m", "--verify_fatal=1", "--verify_state_save=0"];
    for options in [
        &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--verify=crc32c", "--fsync=64"][..],
        &["--rw=write", "--bs=1m", "--iodepth=4", "--verify=crc32c"],
        &["--rw=randrw", "--bsrange=512-64k", "--bs_unaligned=1", "--iodepth=16", "--verify=md5"],
        &["--rw=randtrim", "--bs=64k", "--iodepth=8"],
    ] {
        let text = run("fio", &[&common[..], options].concat());
        assert_has(&text, &["err= 0"]);
    }
    assert!(lab.device.flushes.load(Relaxed) > 100);
    assert!(lab.device.trims.load(Relaxed) > 100);
}

/// libnbd's own shell: options and requests that its tools do not send.
#[test]
fn nbdsh_negotiates_and_fails_as_the_protocol_says() {
    let lab = Lab::new("nbdsh", 16 * MIB);
    let script = include_str!("protocol.py").replace("SOCKET", &lab.path("socket"));
    std::fs::write(lab.path("protocol.py"), script).unwrap();
    assert_has(&run("/usr/bin/python3", &[&lab.path("protocol.py")]), &["all passed"]);
}

/// nbdkit as a client: it passes everything on that its own clients ask for.
#[test]
fn nbdkit_forwards_all_requests() {
    let lab = Lab::new("nbdkit", 16 * MIB);
    let bytes = lab.sparse_file("source", 16 * MIB);
    let script = format!(
        "nbdinfo --json $uri | grep -q '\"can_fast_zero\": true' && nbdcopy {0} $uri && nbdcopy $uri {1} \
         && qemu-io -f raw -c 'write -z 0 1M' -c 'write -f -P 3 1M 1M' -c 'discard 2M 1M' -c flush $uri \
         && qemu-img map -f raw --output=json $uri",
        lab.path("source"),
        lab.path("target")
    );
    let remote = format!("uri={}", lab.uri());
    run("nbdkit", &["-U", "-", "nbd", &remote, "--run", &script]);
    assert!(std::fs::read(lab.path("target")).unwrap() == bytes);
    let content = lab.device.content();
    let mib = MIB as usize;
    assert!(content[..mib].iter().all(|byte| *byte == 0));
    assert!(content[mib..2 * mib].iter().all(|byte| *byte == 3));
    assert!(content[3 * mib..] == bytes[3 * mib..]);
    assert!(lab.device.durable_writes.load(Relaxed) >= 1);
    assert!(lab.device.trims.load(Relaxed) >= 1);
}

#[test]
fn killed_client_is_lost_and_not_detached() {
    let lab = Lab::new("kill", 16 * MIB);
    lab.device.hold(true);
    let mut client = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write 0 4k", &lab.uri()])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    lab.wait("the client attaches", |device| device.attached.load(Relaxed) == 1);
    client.kill().unwrap();
    client.wait().unwrap();
    lab.wait("the connection is lost", |device| device.lost.load(Relaxed) == 1);
    assert_eq!(lab.device.detached.load(Relaxed), 0);
}

#[test]
fn nbdfuse_makes_a_file_of_the_device() {
    if !std::path::Path::new("/dev/fuse").exists() {
        eprintln!("skipped: this machine has no /dev/fuse");
        return;
    }
    let lab = Lab::new("fuse", 16 * MIB);
    let mount = lab.path("mount");
    std::fs::create_dir(&mount).unwrap();
    let mut fuse = Command::new("nbdfuse").args([&mount, &lab.uri()]).spawn().unwrap();
    let file = format!("{mount}/nbd");
    lab.wait("the file appears", |_| std::fs::metadata(&file).is_ok_and(|file| file.len() == 16 * MIB));
    let bytes = lab.sparse_file("source", 16 * MIB);
    run("dd", &[&format!("if={}", lab.path("source")), &format!("of={file}"), "bs=1M", "conv=notrunc,fsync"]);
    assert!(std::fs::read(&file).unwrap() == bytes);
    assert!(lab.device.flushes.load(Relaxed) > 0, "fsync is a flush");
    run("fusermount3", &["-u", &mount]);
    assert!(fuse.wait().unwrap().success());
    assert!(lab.device.content() == bytes);
}
