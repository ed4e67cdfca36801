//! Where a member of a device listens, as its options say: no place may be named twice.

use crate::log_member::Plan;
use lockstep_block::nbd::Listen;
use lockstep_node::net::Address;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// The permissions of a Unix socket: only its owner connects.
const SOCKET_MODE: u32 = 0o600;
/// Files and sockets of the member's directory.
const OWN_FILES: [&str; 4] = ["block.sock", "lockstep.sock", "device.img", "device.state"];

/// The places of `--listen`.
///
/// # Errors
/// One is no place, or something else of this member is there: a text for people.
pub(super) fn places(text: &str, plan: &Plan, resync_port: Option<u16>) -> Result<Vec<Listen>, String> {
    let mut known = places_of_member(plan, resync_port)?;
    let mut places = Vec::new();
    for text in text.split(',').map(str::trim) {
        let place = place(text)?;
        let option = format!("--listen {text}");
        let sockets = match &place {
            Listen::Tcp(address) => Place::Tcp(vec![*address]),
            Listen::Unix { path, .. } => Place::File(real(path)),
        };
        check(&mut known, option, sockets)?;
        places.push(place);
    }
    Ok(places)
}

fn place(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
        return Ok(Listen::Unix { path: path.into(), mode: SOCKET_MODE });
    }
    let address = text
        .strip_prefix("tcp:")
        .ok_or_else(|| format!("--listen {text} is no place: give unix:PATH or tcp:HOST:PORT"))?;
    let found = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    found.map(Listen::Tcp).ok_or_else(|| format!("--listen {text} is no address: give tcp:HOST:PORT"))
}

/// Where something listens.
enum Place {
    /// The addresses of a name.
    Tcp(Vec<SocketAddr>),
    File(PathBuf),
}

impl Place {
    /// Whether both cannot be taken.
    fn overlaps(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Tcp(own), Place::Tcp(others)) => {
                own.iter().any(|own| others.iter().any(|other| are_one(*own, *other)))
            }
            (Place::File(own), Place::File(other)) => own == other,
            _ => false,
        }
    }
}

/// Whether both addresses cannot be taken. All addresses of IPv6 include those of IPv4.
fn are_one(one: SocketAddr, other: SocketAddr) -> bool {
    let includes = |all: SocketAddr, one: SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv6() || one.ip().to_canonical().is_ipv4())
    };
    // Port 0 is any free one.
    one.port() == other.port()
        && one.port() != 0
        && (one.ip().to_canonical() == other.ip().to_canonical()
            || includes(one, other)
            || includes(other, one))
}

/// The path without links in its directory.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
    match (dir, path.file_name()) {
        (Some(dir), Some(name)) => dir.join(name),
        _ => path,
    }
}

/// What listens apart from `--listen`, with the option that says so.
fn places_of_member(plan: &Plan, resync_port: Option<u16>) -> Result<Vec<(String, Place)>, String> {
    let address = |text: &str, port| Address::parse(text, port).map_err(|error| error.to_string());
    // A name that cannot be resolved now is reported where it is used.
    let tcp = |address: &Address| {
        Place::Tcp(address.to_string().to_socket_addrs().map(Iterator::collect).unwrap_or_default())
    };
    let mut known = Vec::new();
    let listen = plan.options.listen();
    let own = address(&listen, plan.options.port())?;
    check(&mut known, format!("the group's own address (gmcast.listen_addr={listen})"), tcp(&own))?;
    if let Some(text) = plan.options.status_address() {
        check(&mut known, format!("the status pages (status.address={text})"), tcp(&address(&text, 0)?))?;
    }
    if let Some(port) = resync_port {
        check(&mut known, format!("--resync-port {port}"), tcp(&Address { port, ..own }))?;
    }
    for name in OWN_FILES {
        let path = plan.dir.join(name);
        known.push((format!("this member's own file {}", path.display()), Place::File(real(&path))));
    }
    Ok(known)
}

/// Adds a place that an option names.
///
/// # Errors
/// Another option names it: a text for people.
fn check(known: &mut Vec<(String, Place)>, option: String, place: Place) -> Result<(), String> {
    if let Some((other, _)) = known.iter().find(|(_, other)| other.overlaps(&place)) {
        return Err(match *other == option {
            true => format!("{option} is given twice: give it once"),
            false => format!("{option} and {other} are the same place: give another one"),
        });
    }
    known.push((option, place));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_as_in_the_system() {
        let overlap = |one: &str, other: &str| {
            let (one, other) = (one.parse().unwrap(), other.parse().unwrap());
            assert_eq!(are_one(one, other), are_one(other, one));
            are_one(one, other)
        };
        assert!(overlap("127.0.0.1:5", "127.0.0.1:5"));
        assert!(overlap("127.0.0.1:5", "0.0.0.0:5"));
        assert!(overlap("127.0.0.1:5", "[::]:5"));
        assert!(overlap("127.0.0.1:5", "[::ffff:127.0.0.1]:5"));
        assert!(overlap("[::1]:5", "[::]:5"));
        assert!(!overlap("[::1]:5", "0.0.0.0:5"));
        assert!(!overlap("127.0.0.1:5", "127.0.0.2:5"));
        assert!(!overlap("127.0.0.1:5", "127.0.0.1:6"));
        assert!(!overlap("127.0.0.1:0", "127.0.0.1:0"), "any free port");
    }
}
