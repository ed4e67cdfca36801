//! A network for each server: namespaces on a bridge in a namespace of its own. So members can be cut off from each other
//! without a trace on the machine's own network. Clients come by Unix sockets, which no namespace separates.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use lockstep_local::{LocalError, Result, command, run_to_end};

const PREFIX: &str = "lockstep-";
const FOLDER: &str = "/run/netns";

/// Whether this namespace forwards packets.
const FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// The first half of every address.
pub(crate) const NETWORK: [u8; 2] = [10, 77];
/// Zones in one network of networks.
pub(crate) const ZONES_MAX: usize = 256;
/// Members in one of them; the last address but one is the gateway's.
pub(crate) const MEMBERS_MAX: usize = 253;
const GATEWAY: u8 = 254;

/// Namespaces `0..count`, all of which reach each other. Deleted when dropped.
#[derive(Debug)]
pub(crate) struct Network {
    tag: String,
    zone: usize,
    count: usize,
}

/// Whether this account and machine can make any.
pub(crate) fn is_possible() -> bool {
    Network::new(1).is_ok()
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(args: &[&str]) -> Result<()> {
    run_to_end(Command::new("ip").args(args)).map(drop)
}

/// Runs a closure in a network namespace, on a thread of its own. Sockets opened there stay in that namespace when other
/// threads use them.
pub(crate) fn within<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = Path::new(FOLDER).join(namespace);
    let file = File::open(&path).map_err(LocalError::path("open", &path))?;
    let entered = move || {
        // SAFETY: setns changes the network of this new thread only, and the descriptor is open.
        match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(work()),
            _ => Err(LocalError::path("enter the network namespace", &path)(io::Error::last_os_error())),
        }
    };
    let ended = std::thread::scope(|scope| scope.spawn(entered).join());
    // A panic is the caller's.
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The addresses of all zones.
fn all_networks() -> String {
    format!("{}.{}.0.0/16", NETWORK[0], NETWORK[1])
}

impl Network {
    pub(crate) fn new(count: usize) -> Result<Network> {
        Network::of_zone(0, count)
    }

    /// One of several whose addresses differ, so that they can be joined.
    pub(crate) fn of_zone(zone: usize, count: usize) -> Result<Network> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        sweep();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let network = Network { tag: format!("{PREFIX}{}-{number}", std::process::id()), zone, count };
        let hub = network.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "hub", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "hub", "up"])?;
        for at in 0..count {
            let (space, port) = (network.namespace(at), port(at));
            ip(&["netns", "add", &space])?;
            ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &space])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "hub", "up"])?;
            ip(&["-n", &space, "addr", "add", &format!("{}/24", network.host(at)), "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
        }
        Ok(network)
    }

    /// The namespace of the bridge.
    pub(crate) fn hub(&self) -> String {
        format!("{}-hub", self.tag)
    }

    fn address(&self, last: impl std::fmt::Display) -> String {
        format!("{}.{}.{}.{last}", NETWORK[0], NETWORK[1], self.zone)
    }

    /// Routes the members' packets for our other networks through the bridge's namespace. Packets to foreign networks fail
    /// at once: otherwise a program that asks a name server (as rsync does for each client) would wait for seconds.
    pub(crate) fn add_gateway(&self) -> Result<()> {
        let (hub, gateway) = (self.hub(), self.address(GATEWAY));
        ip(&["-n", &hub, "addr", "add", &format!("{gateway}/24"), "dev", "hub"])?;
        within(&hub, || std::fs::write(FORWARD, "1"))?
            .map_err(LocalError::path("write", Path::new(FORWARD)))?;
        (0..self.count).try_for_each(|at| {
            ip(&["-n", &self.namespace(at), "route", "add", &all_networks(), "via", &gateway])
        })
    }

    /// Sends what is for the other networks into a device of the bridge's namespace.
    pub(crate) fn route_others_through(&self, device: &str) -> Result<()> {
        ip(&["-n", &self.hub(), "route", "add", &all_networks(), "dev", device])
    }

    /// The name of a namespace, for `ip netns exec`.
    pub(crate) fn namespace(&self, at: usize) -> String {
        format!("{}-{at}", self.tag)
    }

    /// The address of the server in it.
    pub(crate) fn host(&self, at: usize) -> String {
        self.address(at + 1)
    }

    fn set(&self, at: usize, setting: &[&str]) -> Result<()> {
        let (hub, port) = (self.hub(), port(at));
        run_to_end(command("bridge").args(["-n", &hub, "link", "set", "dev", &port]).args(setting)).map(drop)
    }

    /// Nothing reaches or leaves this one. Its link stays up: nobody is told.
    pub(crate) fn isolate(&self, at: usize) -> Result<()> {
        // The state "disabled" of a bridge's port.
        self.set(at, &["state", "0"])
    }

    /// These two do not reach each other; the others reach both.
    pub(crate) fn part(&self, a: usize, b: usize) -> Result<()> {
        self.set(a, &["isolated", "on"])?;
        self.set(b, &["isolated", "on"])
    }

    /// All reach all.
    pub(crate) fn heal(&self) -> Result<()> {
        // "Forwarding".
        (0..self.count).try_for_each(|at| {
            self.set(at, &["isolated", "off"]).and_then(|()| self.set(at, &["state", "3"]))
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in (0..self.count).map(|at| self.namespace(at)).chain([self.hub()]) {
            let _ = ip(&["netns", "del", &space]);
        }
    }
}

fn port(at: usize) -> String {
    format!("port{at}")
}

/// Deletes what processes have left that are gone. Names without a process's number belong to others.
fn sweep() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

/// Why there is none.
pub(crate) fn missing() -> LocalError {
    LocalError::Missing {
        what: "the members' own network".into(),
        hint: "faults of the network need root and iproute2".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_process_are_removed() {
        // Above the highest that the kernel gives; a process that is there as long as any; and no process's.
        let names = ["4194305", "1", "vm"].map(|owner| format!("{PREFIX}{owner}-swept-hub"));
        if ip(&["netns", "add", &names[0]]).is_err() {
            eprintln!("NOT TESTED: no network namespaces here");
            return;
        }
        names[1..].iter().for_each(|name| ip(&["netns", "add", name]).unwrap());
        sweep();
        let there = names.each_ref().map(|name| Path::new(FOLDER).join(name).exists());
        for (name, _) in names.iter().zip(there).filter(|(_, there)| *there) {
            ip(&["netns", "del", name]).unwrap();
        }
        assert_eq!(there, [false, true, true]);
    }

    #[test]
    fn members_are_cut_off_and_come_back() {
        let Ok(network) = Network::new(3) else {
            eprintln!("NOT TESTED: no network namespaces here");
            return;
        };
        let reach = |from: usize, to: usize| {
            // Without `ping`, which a bare machine lacks: a neighbour that answers is refused at once, another is waited for.
            let connect = format!("exec 3<>/dev/tcp/{}/9", network.host(to));
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &network.namespace(from), "timeout", "1", "bash", "-c", &connect]);
            let status = command.stderr(std::process::Stdio::null()).status().unwrap();
            status.code() == Some(1)
        };
        let pairs = [(0, 1), (1, 2), (0, 2)];
        assert_eq!(pairs.map(|(a, b)| reach(a, b)), [true, true, true]);
        network.isolate(0).unwrap();
        assert_eq!(pairs.map(|(a, b)| reach(a, b)), [false, true, false]);
        network.heal().unwrap();
        network.part(0, 1).unwrap();
        assert_eq!(pairs.map(|(a, b)| reach(a, b)), [false, true, true]);
        network.heal().unwrap();
        assert_eq!(pairs.map(|(a, b)| reach(a, b)), [true, true, true]);
    }
}
