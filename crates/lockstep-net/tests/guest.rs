//! A guest in somebody else's process: descriptors close at exec, and none is left behind.
//!
//! Alone in its binary: it counts the descriptors of the whole process.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Node, connect, numeric, until};
use lockstep_net::{Address, Reason};

/// Open descriptors: number and target.
fn descriptors() -> BTreeMap<u32, String> {
    let mut out = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if let Ok(target) = std::fs::read_link(entry.path()) {
            out.insert(entry.file_name().to_str().unwrap().parse().unwrap(), target.display().to_string());
        }
    }
    // The directory being read.
    out.retain(|_, target| !target.starts_with("/proc/"));
    out
}

#[test]
fn descriptors_close_at_exec_and_with_their_owner() {
    let before = descriptors();
    let dir = std::env::temp_dir().join(format!("ls-net-guest-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    {
        let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
        connect(&mut a, &mut b);
        let at = b.listen();
        b.reactor.serve_unix(&dir.join("s.sock")).unwrap();
        b.reactor.serve_tcp(&Address::parse("127.0.0.1:0", 0).unwrap()).unwrap();
        let mine = TcpStream::connect(at).unwrap();
        for _ in 0..10 {
            a.poll();
            b.poll();
        }
        let now = descriptors();
        let new: Vec<_> = now.iter().filter(|(fd, _)| !before.contains_key(fd)).collect();
        assert!(new.len() >= 12, "{new:?}");
        for (fd, what) in new {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            let flags = info.lines().find_map(|l| l.strip_prefix("flags:")).unwrap().trim();
            let flags = u32::from_str_radix(flags, 8).unwrap();
            assert!(flags & 0o2_000_000 != 0, "descriptor {fd} ({what}) survives exec");
        }
        drop(mine);
        // Connections come and go in many ways; each gives its descriptor back.
        let settled = |a: &mut Node, b: &mut Node| {
            let end = Instant::now() + Duration::from_millis(1500);
            while Instant::now() < end {
                a.poll();
                b.poll();
            }
            a.events.clear();
            b.events.clear();
            descriptors().len()
        };
        let count = settled(&mut a, &mut b);
        for round in 0..30 {
            TcpStream::connect(at).unwrap().write_all(b"junk").unwrap();
            a.reactor.dial(&numeric(at));
            let (conn, _) = until(&mut [&mut a, &mut b], "up", |n| n[1].take(common::up));
            if round % 2 == 0 {
                b.reactor.reject(conn, Reason::Busy, "");
            } else {
                b.reactor.accept(conn);
                b.reactor.close(conn, Reason::Failure, "");
            }
            let (conn, _) = until(&mut [&mut a, &mut b], "up there too", |n| n[0].take(common::up));
            a.reactor.accept(conn);
            until(&mut [&mut a, &mut b], "down", |n| n[0].take(common::down));
        }
        assert_eq!(settled(&mut a, &mut b), count);
    }
    let _ = std::fs::remove_dir_all(&dir);
    let end = Instant::now() + Duration::from_secs(5);
    while descriptors() != before && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(descriptors(), before);
}
