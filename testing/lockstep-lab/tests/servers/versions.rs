//! Members and files of another version: refused in one clear line, and nothing is touched.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_local::{LocalError, free_ports, host_port};

use crate::fixture::{Kind, Test, eventually, kind, same, session, shared};

/// A version that there will not be for long.
const FUTURE: u16 = 77;
const MAGIC: &[u8] = b"LOCKSTEP\r\n\r\n";

/// CRC-32C, bit by bit, from `docs/format-wire.md` and independent of the code under test.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ if c & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// The hello of a member of cluster `lab` that speaks protocol versions from `FUTURE` on.
fn future_hello() -> Vec<u8> {
    let cluster = b"lab";
    let mut body = Vec::new();
    body.extend_from_slice(&(1u32 << 20).to_le_bytes());
    body.extend_from_slice(&(cluster.len() as u16).to_le_bytes());
    body.extend_from_slice(cluster);
    body.extend_from_slice(&0u32.to_le_bytes());
    body.extend_from_slice(b"what later versions append");
    let mut hello = MAGIC.to_vec();
    hello.extend_from_slice(&FUTURE.to_le_bytes());
    hello.extend_from_slice(&(FUTURE + 1).to_le_bytes());
    hello.extend_from_slice(&(body.len() as u32).to_le_bytes());
    let crc = crc32c(&[&hello[..], &body[..]].concat());
    hello.extend_from_slice(&crc.to_le_bytes());
    hello.extend_from_slice(&body);
    hello
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> LocalError {
    let what = what.to_owned();
    move |source| LocalError::Io { what, source }
}

#[test]
fn checksum_matches_documented_format() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn member_of_other_protocol_version_is_refused() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // it has another protocol altogether
    }
    let mark = cluster.servers[0].log().len();
    let address = cluster.servers[0].config.wsrep.as_ref().map(|w| w.peer_address()).unwrap_or_default();
    let mut stream = TcpStream::connect(address).map_err(io("connect to a member"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(io("set a timeout"))?;
    stream.write_all(&future_hello()).map_err(io("introduce ourselves"))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(io("read the member's answer"))?;

    // Its own hello, then the one frame that every version can read: REJECT (2), for want of a common version (2).
    assert!(answer.starts_with(MAGIC), "{answer:?}");
    let hello = 24 + u32::from_le_bytes([answer[16], answer[17], answer[18], answer[19]]) as usize;
    let frame = &answer[hello..];
    assert!(frame.len() > 14, "no REJECT after the hello: {frame:?}");
    same("the frame's opcode and that it is one of control", (frame[4], frame[5]), (2, 1));
    same("the reason", u16::from_le_bytes([frame[12], frame[13]]), 2);
    let said = String::from_utf8_lossy(&frame[14..]).into_owned();
    assert!(said.contains("protocol version"), "{said}");
    eventually("the refusal is in the log", || {
        let log = cluster.servers[0].log_since(mark);
        Ok(log.lines().any(|l| l.contains("protocol versions 77 to 78")))
    })?;
    assert!(cluster.is_whole(), "{}", cluster.log_tails(20));
    Ok(())
}

#[test]
fn joiner_refuses_cluster_of_other_protocol_version() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    let port = free_ports(1)?;
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(io("listen"))?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
            let mut hello = [0; 24];
            if stream.read_exact(&mut hello).is_ok() && hello.starts_with(MAGIC) {
                let _ = stream.write_all(&future_hello());
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    });
    let mut server = cluster.another("old")?;
    let wsrep = server.wsrep_mut()?;
    wsrep.peers = vec![host_port("127.0.0.1", port)];
    wsrep.provider_options.push(("pc.wait_prim_timeout".into(), "PT5S".into()));
    server.spawn(&[])?;
    let ended = server.wait_ended(Duration::from_secs(60));
    let log = server.log();
    server.kill();
    ended?;
    let said =
        log.lines().any(|l| l.contains("protocol versions 77 to 78") && l.contains("upgrade the older"));
    assert!(said, "{log}");
    assert!(cluster.is_whole(), "{}", cluster.log_tails(20));
    Ok(())
}

/// Writes a format version over that of a file of the log, at each of these places.
fn set_version(file: &Path, version: u16, places: &[usize]) -> Test {
    let mut bytes = std::fs::read(file).map_err(io("read a file of the log"))?;
    for at in places {
        bytes[*at..*at + 2].copy_from_slice(&version.to_le_bytes());
    }
    std::fs::write(file, &bytes).map_err(io("write a file of the log"))
}

/// All files of a member's log, with their contents.
fn log_files(datadir: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, LocalError> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(datadir).map_err(io("look into a data directory"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("lockstep.") && name.ends_with(".log") && name != "lockstep.spare.log" {
            files.push((entry.path(), std::fs::read(entry.path()).map_err(io("read a file of the log"))?));
        }
    }
    files.sort();
    Ok(files)
}

#[test]
fn log_of_newer_version_is_untouched() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(());
    }
    session(&cluster, 0)?.run(&["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;
    cluster.servers[2].stop()?;
    let datadir = cluster.servers[2].datadir();
    let before = log_files(&datadir)?;
    let identity = datadir.join("lockstep.id.log");
    // Not the marks of statements, which are no part of the log.
    let numbered =
        |f: &std::path::Path| f.to_string_lossy().trim_end_matches(".log").ends_with(char::is_numeric);
    let segment = before.iter().map(|(f, _)| f).rfind(|f| numbered(f)).cloned();
    let segment = segment.ok_or_else(|| LocalError::Value("the member has no segment".into()))?;

    // The identity file has a second version, of a log whose end is damaged: docs/format-disk.md.
    for (file, places, known) in [(&segment, &[8][..], "up to 1"), (&identity, &[8, 4096 + 8][..], "up to 2")]
    {
        set_version(file, FUTURE, places)?;
        let changed = log_files(&datadir)?;
        let mark = cluster.servers[2].log().len();
        cluster.servers[2].spawn(&[])?;
        cluster.servers[2].wait_ended(Duration::from_secs(60))?;
        let log = cluster.servers[2].log_since(mark);
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let words = [name.as_str(), "version 77", known, "newer version"];
        let said = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(said, "no line with all of {words:?}:\n{log}");
        assert!(log_files(&datadir)? == changed, "files of the log were changed");
        set_version(file, 1, places)?;
    }
    assert!(log_files(&datadir)? == before, "the files are not what they were");
    session(&cluster, 1)?.query("INSERT INTO t VALUES (2)")?;
    // As after going back to the newer version: the member goes on.
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 2);
    Ok(())
}
