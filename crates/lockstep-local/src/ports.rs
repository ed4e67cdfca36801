//! Free ports on loopback.
//!
//! Ports are taken from below the range that the system gives to outgoing connections (32768 and up). So no client's
//! connection takes a port between its choice and the server's start. For the same reason each process has a block of its
//! own, which a lock on a file says.

use std::fs::{File, OpenOptions};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::error::{LocalError, Result};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;
const BLOCK: u16 = 1_000;
/// The folder of the locks, which all accounts share.
const LOCKS: &str = "/var/tmp";

/// The range of ports of this process.
#[derive(Debug)]
struct Range {
    first: u16,
    count: u16,
    /// Held until the process ends.
    lock: Option<File>,
}

impl Range {
    /// The first free block. If none is free or there is no folder for locks, all ports.
    fn take(folder: &Path) -> Range {
        let blocks = (FIRST..FIRST + COUNT).step_by(usize::from(BLOCK));
        let mine = blocks.filter_map(|first| Some((first, lock(folder, first)?))).next();
        match mine {
            Some((first, file)) => Range { first, count: BLOCK, lock: Some(file) },
            None => Range { first: FIRST, count: COUNT, lock: None },
        }
    }
}

/// Locks a file, or a folder that is open as one, as long as it is open; false if another process has it.
pub fn try_lock(file: &File) -> std::io::Result<bool> {
    // SAFETY: flock takes a descriptor, which `file` keeps open, and touches no memory of ours.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    match std::io::Error::last_os_error() {
        e if e.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
        e => Err(e),
    }
}

/// The lock on a block, if it is free.
fn lock(folder: &Path, first: u16) -> Option<File> {
    let path = folder.join(format!("lockstep-ports-{first}.lock"));
    // Read-only suffices for a lock, so it does not matter which account has made the file.
    let file = File::open(&path)
        .or_else(|_| OpenOptions::new().write(true).create_new(true).open(&path))
        .or_else(|_| File::open(&path))
        .ok()?;
    try_lock(&file).ok()?.then_some(file)
}

static RANGE: OnceLock<Range> = OnceLock::new();
static NEXT: AtomicU16 = AtomicU16::new(0);

/// Picks `count` neighbouring free ports and returns the first. No two calls of one process return the same ones
/// until its block is used up, and no other process takes from that block.
pub fn free_ports(count: u16) -> Result<u16> {
    let range = RANGE.get_or_init(|| Range::take(Path::new(LOCKS)));
    // Without a block of its own it is at least unlikely that another process picks the same ones at once.
    let offset =
        if range.lock.is_some() { 0 } else { (std::process::id() as u16).wrapping_mul(97) % range.count };
    for _ in 0..range.count / count.max(1) {
        let step = NEXT.fetch_add(count, Ordering::Relaxed);
        let first = range.first + (offset + step % range.count) % (range.count - count);
        if (first..first + count).all(is_free) {
            return Ok(first);
        }
    }
    let last = range.first + range.count;
    Err(LocalError::Value(format!("no {count} neighbouring free ports between {} and {last}", range.first)))
}

/// Whether no program listens on `port` of loopback, IPv4 and (if the machine has it) IPv6.
pub fn is_free(port: u16) -> bool {
    let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let v6 = match TcpListener::bind((Ipv6Addr::LOCALHOST, port)) {
        Ok(_) => true,
        Err(e) => e.kind() != std::io::ErrorKind::AddrInUse,
    };
    v4 && v6
}

/// Whether this machine has the IPv6 loopback address.
pub fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_differ() {
        let a = free_ports(4).unwrap();
        let b = free_ports(4).unwrap();
        assert!(a.abs_diff(b) >= 4, "{a} and {b} overlap");
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, a)).unwrap();
        assert!(!is_free(a));
        drop(held);
        assert!(is_free(a));
    }

    #[test]
    fn leftover_files_are_documented() {
        let page = include_str!("../../../docs/lab.md");
        assert!(page.contains(&format!("{LOCKS}/lockstep-ports-{FIRST}.lock")));
        assert!(page.contains(&format!("from {FIRST} to {}", FIRST + COUNT - 1)));
    }

    #[test]
    fn processes_have_port_blocks_of_their_own() {
        let dir = std::env::temp_dir().join(format!("lockstep-ports-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut blocks: Vec<Range> = (0..COUNT / BLOCK).map(|_| Range::take(&dir)).collect();
        for (at, block) in blocks.iter().enumerate() {
            assert_eq!((block.first, block.count), (FIRST + at as u16 * BLOCK, BLOCK));
        }
        let none = Range::take(&dir);
        assert_eq!((none.first, none.count, none.lock.is_none()), (FIRST, COUNT, true));
        // The lock ends with its process.
        drop(blocks.remove(3));
        // A child process that another test is starting has a copy of the descriptor until it executes its program.
        let is_freed = || {
            std::thread::sleep(std::time::Duration::from_millis(10));
            Range::take(&dir).first == FIRST + 3 * BLOCK
        };
        assert!((0..500).any(|_| is_freed()), "the lock is still held after 5 s");
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(Range::take(&dir).lock.is_none(), "no folder");
    }
}
