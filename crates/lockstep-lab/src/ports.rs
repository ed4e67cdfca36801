//! Free ports on loopback.
//!
//! Ports are taken from below the range that the system gives to outgoing connections (32768 and up), so that no
//! client's connection can sit on a port between the moment it is picked and the moment a server opens it.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::error::{LabError, Result};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Picks `count` neighbouring free ports and returns the first. No two calls of one process return the same ones
/// until the range is used up; another process may still race for them, which its start offset makes unlikely.
pub fn free_ports(count: u16) -> Result<u16> {
    let offset = (std::process::id() as u16).wrapping_mul(97) % COUNT;
    for _ in 0..COUNT / count.max(1) {
        let step = NEXT.fetch_add(count, Ordering::Relaxed);
        let first = FIRST + (offset + step % COUNT) % (COUNT - count);
        if (first..first + count).all(is_free) {
            return Ok(first);
        }
    }
    Err(LabError::Value(format!("no {count} neighbouring free ports between {FIRST} and {}", FIRST + COUNT)))
}

/// Whether nobody listens on `port` of loopback, IPv4 and (where the machine has it) IPv6.
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
}
