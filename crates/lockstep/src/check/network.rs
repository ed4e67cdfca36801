//! Checks of the cluster's other members, this member's address, and its ports.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use lockstep_node::net::{Address, ClusterAddress, Host};

use super::{Check, Level};

const ADDRESS: &str = "wsrep_cluster_address";
const SST_PORT: u16 = 4444;
const SQL_PORT: u64 = 3306;

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Ip(ip) => ip.is_loopback(),
        Host::Name(name) => name == "localhost",
    }
}

/// The members in `wsrep_cluster_address`. Empty if it is invalid.
fn peers(check: &Check<'_>) -> Vec<Address> {
    let text = check.text(ADDRESS, "");
    ClusterAddress::parse(text, check.options.port()).map(|address| address.peers).unwrap_or_default()
}

/// Whether the cluster has members on other machines.
fn has_others(check: &Check<'_>) -> bool {
    peers(check).iter().any(|peer| !is_loopback(&peer.host))
}

/// Checks `wsrep_cluster_name` and `wsrep_cluster_address`.
pub(super) fn cluster(check: &mut Check<'_>) {
    let name = check.cnf.get("wsrep_cluster_name");
    if name.is_none_or(|name| name.text().is_empty()) {
        let text = match name {
            None => {
                "is not set, so the name is my_wsrep_cluster: two clusters with this default name accept each other's members"
            }
            Some(_) => "is empty: members of a cluster with a name reject this member",
        };
        check.about(Level::Unwise, "wsrep_cluster_name", text);
    }
    let Some(setting) = check.cnf.get(ADDRESS) else {
        let (level, what) = match check.text("wsrep_sst_method", "rsync") {
            "mysqldump" => (Level::Unwise, "the server runs alone"),
            _ => (Level::Refused, "the server does not start"),
        };
        return check.about(
            level,
            ADDRESS,
            format!("is not set: {what}; list all members: gcomm://db1,db2,db3"),
        );
    };
    let parsed = match ClusterAddress::parse(setting.text(), check.options.port()) {
        Ok(parsed) => parsed,
        Err(error) => return check.at(Level::Refused, setting, error.to_string()),
    };
    for (name, value) in &parsed.options {
        let text = format!(
            "the option {name}={value} has no effect in this address: set it in wsrep_provider_options"
        );
        check.at(Level::Ignored, setting, text);
    }
    match parsed.peers.len() {
        0 => {
            let text = "lists no members: in a file it makes the server found a new cluster at each start (or fail to start if \
                        its log lists other members): list all members, and found the cluster once, with galera_new_cluster";
            check.at(Level::Unwise, setting, text);
        }
        1 => {
            let text = "lists one member: the server can join only while that member runs; list all members";
            check.at(Level::Unwise, setting, text);
        }
        2 => {
            let text = "lists two members: their majority is both, so neither accepts writes without the other. Three members, or \
                        two and an arbitrator (`lockstep arbitrator`, also listed here), survive the loss of one";
            check.at(Level::Unwise, setting, text);
        }
        _ => {}
    }
    let others = has_others(check);
    for peer in &parsed.peers {
        if let Host::Name(name) = &peer.host
            && let Err(why) = check.machine.resolve(name)
        {
            check.at(Level::Unwise, setting, format!("this machine cannot resolve the name {name} ({why})"));
        }
        if others && is_loopback(&peer.host) {
            let text = format!("{peer} is a loopback address, but the list has addresses of other machines");
            check.at(Level::Unwise, setting, text);
        }
    }
}

/// Checks the address that this member announces: `base_host`, else `wsrep_node_address`, else the server's guess.
pub(super) fn own_address(check: &mut Check<'_>) {
    const NAME: &str = "wsrep_node_address";
    let receive = check.text("wsrep_sst_receive_address", "AUTO").to_owned();
    let base = check.options.text("base_host");
    let (option, given) = match base.is_empty() {
        true => (NAME, check.text(NAME, "").to_owned()),
        false => ("wsrep_provider_options", base),
    };
    let address = match given.is_empty() {
        true => None,
        // The provider accepts an IPv6 address without brackets here, too.
        false if given.parse::<std::net::Ipv6Addr>().is_ok() => {
            Address::parse(&format!("[{given}]"), check.options.port()).ok()
        }
        false => match Address::parse(&given, check.options.port()) {
            Err(error) => return check.about(Level::Refused, option, error.to_string()),
            Ok(address) => Some(address),
        },
    };
    if address.as_ref().is_some_and(Address::is_wildcard) {
        let text = format!(
            "{given} means every address. A server can listen on it, but other members cannot connect to it: set an address \
             of this machine"
        );
        return check.about(Level::Unwise, option, text);
    }
    if !has_others(check) {
        return;
    }
    if receive.starts_with("127.") || receive.starts_with("localhost") {
        let text =
            format!("{receive} is a loopback address: no other machine can send a state transfer to it");
        check.about(Level::Unwise, "wsrep_sst_receive_address", text);
    }
    if let Some(address) = address {
        if is_loopback(&address.host) {
            let text =
                format!("{given} is a loopback address: members on other machines cannot connect to it");
            check.about(Level::Unwise, option, text);
        } else {
            let listen = Address::parse(&check.options.listen(), check.options.port()).map(|at| at.port);
            let announced = Address::parse(&given, 0).map_or(0, |at| at.port);
            if let Ok(listen) = listen
                && announced != 0
                && announced != listen
            {
                let text = format!(
                    "this member announces port {announced}, but listens on {listen} (gmcast.listen_addr): this works only \
                     behind network address translation"
                );
                check.about(Level::Unwise, option, text);
            }
            let own = check.machine.addresses();
            if let Host::Ip(ip) = address.host
                && !own.is_empty()
                && !own.contains(&ip)
            {
                let text = format!(
                    "{ip} is not an address of this machine: this works only behind network address translation"
                );
                check.about(Level::Unwise, option, text);
            }
        }
        let bind = check.text("bind_address", "");
        if bind.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
            let text =
                format!("{bind}: clients on other machines cannot connect to this server (members can)");
            check.about(Level::Note, "bind_address", text);
        }
        return;
    }
    // The server guesses: it uses bind_address if that is an address, else the first interface.
    let bind = check.text("bind_address", "").to_owned();
    if let Ok(ip) = bind.parse::<IpAddr>()
        && !ip.is_unspecified()
    {
        if ip.is_loopback() {
            let text = format!(
                "{bind} is also the address that this member announces, because {NAME} is not set: members on other machines \
                 cannot connect to it; set {NAME}"
            );
            check.about(Level::Unwise, "bind_address", text);
        }
        return;
    }
    let own: Vec<String> = check.machine.addresses().iter().map(ToString::to_string).collect();
    if own.len() > 1 {
        let text = format!(
            "is not set, and this machine has {}: the server guesses; set one of them",
            own.join(", ")
        );
        check.about(Level::Unwise, NAME, text);
    }
}

/// Reports a server that accepts no TCP connections of clients.
pub(super) fn clients(check: &mut Check<'_>) {
    if check.is_on("skip_networking", false) {
        let text = "clients can use this server's Unix socket only (members can connect): `lockstep verify` and proxies on other \
                    machines cannot query it";
        check.about(Level::Unwise, "skip_networking", text);
    }
}

/// A port that the member needs, and the option that sets it.
struct PortUse {
    option: &'static str,
    what: &'static str,
    port: u16,
    address: IpAddr,
}

/// Checks that each port has one use and is free.
pub(super) fn ports(check: &mut Check<'_>) {
    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let bind = check.text("bind_address", "").parse().unwrap_or(ANY);
    let sql = check.number("port", SQL_PORT) as u16;
    let mut uses = Vec::new();
    if !check.is_on("skip_networking", false) {
        uses.push(PortUse { option: "port", what: "clients", port: sql, address: bind });
    }
    match Address::parse(&check.options.listen(), check.options.port()) {
        Ok(listen) => uses.push(PortUse {
            option: "wsrep_provider_options",
            what: "the other members",
            port: listen.port,
            address: listen.socket_addr().map_or(ANY, |at| at.ip()),
        }),
        Err(error) => {
            check.about(Level::Refused, "wsrep_provider_options", format!("gmcast.listen_addr: {error}"))
        }
    }
    // mysqldump sends state transfers to the SQL port.
    if check.text("wsrep_sst_method", "rsync") != "mysqldump" {
        let receive = check.text("wsrep_sst_receive_address", "AUTO");
        let port = match receive.eq_ignore_ascii_case("AUTO") {
            true => SST_PORT,
            false => Address::parse(receive, SST_PORT).map_or(SST_PORT, |a| a.port),
        };
        uses.push(PortUse {
            option: "wsrep_sst_receive_address",
            what: "state transfers",
            port,
            address: ANY,
        });
    }
    let ephemeral = check.machine.first_ephemeral_port();
    let datadir = check.text("datadir", "/var/lib/mysql").to_owned();
    let runs = check.machine.runs_in(Path::new(&datadir));
    for (at, one) in uses.iter().enumerate() {
        let PortUse { option, what, port, address } = one;
        let conflict = uses[at + 1..].iter().find(|other| other.port == *port);
        if let Some(other) = conflict {
            let text = format!("port {port} is set for {what} and for {}: change one of them", other.what);
            check.about(Level::Refused, option, text);
        } else if !runs && check.machine.is_taken(*address, *port) {
            let text = format!(
                "port {port} for {what} is in use now: `ss -ltnp 'sport = {port}'` shows the process"
            );
            check.about(Level::Unwise, option, text);
        }
        if *port >= ephemeral {
            let text = format!(
                "port {port} for {what} is in the system's range for outgoing connections (from {ephemeral} on), so one of \
                 them may use it: set a lower port"
            );
            // Only a note: the ports of `make up` are in this range, and `make up` retries.
            check.about(Level::Note, option, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cnf::Cnf;
    use super::super::machine::tests::Fake;
    use super::Level;

    /// Findings for a member's file with these lines, with the cluster on this machine: option, level, text.
    fn found(lines: &str) -> Vec<(String, Level, String)> {
        let path = std::env::temp_dir().join(format!(
            "lockstep-check-net-{}-{:?}.cnf",
            std::process::id(),
            std::thread::current().id()
        ));
        let text = format!(
            "[mysqld]\nbinlog_format=ROW\ninnodb_autoinc_lock_mode=2\nwsrep_slave_threads=4\nwsrep_on=ON\n\
             wsrep_provider=/usr/lib/lockstep/liblockstep.so\nwsrep_cluster_name=shop\n\
             wsrep_cluster_address=gcomm://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3\n{lines}\n"
        );
        std::fs::write(&path, text).unwrap();
        let cnf = Cnf::read(std::slice::from_ref(&path), "10.11").unwrap();
        std::fs::remove_file(&path).unwrap();
        let all = super::super::check(&cnf, &Fake::default());
        all.into_iter().map(|f| (f.option, f.level, f.text)).collect()
    }

    #[test]
    fn refused_address_is_found_on_loopback() {
        assert_eq!(found("wsrep_node_address=127.0.0.1:9"), []);
        assert_eq!(found("wsrep_node_address=::1"), []);
        for bad in ["127.0.0.1:99999", "127.0.0.1:"] {
            let all = found(&format!("wsrep_node_address={bad}"));
            assert!(
                matches!(&all[..], [(option, Level::Refused, text)] if option == "wsrep_node_address" && text.contains("bad port")),
                "{bad}: {all:?}"
            );
        }
        let all = found("wsrep_node_address=0.0.0.0");
        assert!(matches!(&all[..], [(_, Level::Unwise, text)] if text.contains("every address")), "{all:?}");
    }

    #[test]
    fn provider_options_without_a_value_are_refused() {
        let all = found("wsrep_provider_options");
        assert!(
            matches!(&all[..], [(_, Level::Refused, text)] if text.starts_with("has no value")),
            "{all:?}"
        );
        assert_eq!(found("wsrep_provider_options="), []);
    }

    #[test]
    fn empty_cluster_name_differs_from_missing_one() {
        let all = found("wsrep_cluster_name=");
        assert!(matches!(&all[..], [(_, Level::Unwise, text)] if text.starts_with("is empty")), "{all:?}");
    }

    #[test]
    fn server_without_tcp_is_reported() {
        let all = found("skip-networking");
        assert!(
            matches!(&all[..], [(_, Level::Unwise, text)] if text.contains("Unix socket only")),
            "{all:?}"
        );
        assert_eq!(found("skip-networking=0"), []);
    }
}
