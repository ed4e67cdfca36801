//! The cluster's other members, this member's address, and conflicts of ports.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use lockstep_node::net::{Address, ClusterAddress, Host};

use super::{Check, Level};

const ADDRESS: &str = "wsrep_cluster_address";
const PORT_FOR_COPIES: u16 = 4444;
const PORT_FOR_SQL: u64 = 3306;

fn is_loopback(host: &Host) -> bool {
    match host {
        Host::Ip(ip) => ip.is_loopback(),
        Host::Name(name) => name == "localhost",
    }
}

/// The members in `wsrep_cluster_address`, as far as it can be read.
fn peers(check: &Check<'_>) -> Vec<Address> {
    let text = check.text(ADDRESS, "");
    ClusterAddress::parse(text, check.options.port()).map(|address| address.peers).unwrap_or_default()
}

/// Whether the cluster has members on other machines.
fn has_others(check: &Check<'_>) -> bool {
    peers(check).iter().any(|peer| !is_loopback(&peer.host))
}

/// `wsrep_cluster_name` and `wsrep_cluster_address`.
pub(super) fn cluster(check: &mut Check<'_>) {
    let name = check.cnf.get("wsrep_cluster_name");
    if name.is_none_or(|name| name.text().is_empty()) {
        let text = match name {
            None => {
                "is not set, so that it is my_wsrep_cluster: two clusters without a name of their own take each other's members"
            }
            Some(_) => {
                "is empty, and so is the cluster's name then: members of one with a name refuse this one"
            }
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
            "the option {name}={value} is not taken from there: write it into wsrep_provider_options"
        );
        check.at(Level::Ignored, setting, text);
    }
    match parsed.peers.len() {
        0 => {
            let text = "names nobody: in a file it founds a new cluster at each start (or is refused where the log knows of others): \
                        list all members, and found the cluster once, with galera_new_cluster";
            check.at(Level::Unwise, setting, text);
        }
        1 => {
            let text =
                "names one member: this one finds the cluster only while that one runs; list all of them";
            check.at(Level::Unwise, setting, text);
        }
        2 => {
            let text = "names two members: a majority of two is both, so that neither writes without the other; three, or two \
                        and an arbitrator (`lockstep arbitrator`, named here, too), bear the loss of one";
            check.at(Level::Unwise, setting, text);
        }
        _ => {}
    }
    let others = has_others(check);
    for peer in &parsed.peers {
        if let Host::Name(name) = &peer.host
            && let Err(why) = check.machine.resolve(name)
        {
            check.at(Level::Unwise, setting, format!("the name {name} has no address here ({why})"));
        }
        if others && is_loopback(&peer.host) {
            let text = format!("{peer} is every machine's own address, among addresses of other machines");
            check.at(Level::Unwise, setting, text);
        }
    }
}

/// Where the others are told that this member is: `base_host`, else `wsrep_node_address`, else the server's guess.
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
        // As with the provider, an IPv6 address alone needs no brackets here.
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
            "{given} means every address: it is fit to listen on, and no address at which the others can reach this member, which \
             they are told"
        );
        return check.about(Level::Unwise, option, text);
    }
    if !has_others(check) {
        return;
    }
    if receive.starts_with("127.") || receive.starts_with("localhost") {
        let text = format!(
            "{receive} is this machine's own address: no other machine can send a copy of the data there"
        );
        check.about(Level::Unwise, "wsrep_sst_receive_address", text);
    }
    if let Some(address) = address {
        if is_loopback(&address.host) {
            let text =
                format!("{given} is this machine's own address: the others cannot reach this member there");
            check.about(Level::Unwise, option, text);
        } else {
            let listen = Address::parse(&check.options.listen(), check.options.port()).map(|at| at.port);
            let told = Address::parse(&given, 0).map_or(0, |at| at.port);
            if let Ok(listen) = listen
                && told != 0
                && told != listen
            {
                let text = format!(
                    "the others are told port {told}, but this member listens on {listen} (gmcast.listen_addr): right only \
                     behind a translation of addresses"
                );
                check.about(Level::Unwise, option, text);
            }
            let own = check.machine.addresses();
            if let Host::Ip(ip) = address.host
                && !own.is_empty()
                && !own.contains(&ip)
            {
                let text = format!(
                    "{ip} is not an address of this machine: right only behind a translation of addresses"
                );
                check.about(Level::Unwise, option, text);
            }
        }
        let bind = check.text("bind_address", "");
        if bind.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) {
            let text = format!("{bind}: clients on other machines do not reach this server (members do)");
            check.about(Level::Note, "bind_address", text);
        }
        return;
    }
    // As the server guesses: bind_address if it is one, else the first interface.
    let bind = check.text("bind_address", "").to_owned();
    if let Ok(ip) = bind.parse::<IpAddr>()
        && !ip.is_unspecified()
    {
        if ip.is_loopback() {
            let text = format!(
                "{bind} is also what the others are told to connect to, for {NAME} is not set: they cannot reach this member; \
                 set {NAME} to its address"
            );
            check.about(Level::Unwise, "bind_address", text);
        }
        return;
    }
    let own: Vec<String> = check.machine.addresses().iter().map(ToString::to_string).collect();
    if own.len() > 1 {
        let text =
            format!("is not set, and this machine has {}: the server guesses; say which one", own.join(", "));
        check.about(Level::Unwise, NAME, text);
    }
}

/// Whether clients get in over TCP at all.
pub(super) fn clients(check: &mut Check<'_>) {
    if check.is_on("skip_networking", false) {
        let text = "clients reach this server over its Unix socket only (members do reach it): `lockstep verify` and proxies on \
                    other machines cannot ask it";
        check.about(Level::Unwise, "skip_networking", text);
    }
}

/// A port that the member needs, and the option that says so.
struct Need {
    option: &'static str,
    what: &'static str,
    port: u16,
    address: IpAddr,
}

/// Every port is somebody's, and of one only.
pub(super) fn ports(check: &mut Check<'_>) {
    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let bind = check.text("bind_address", "").parse().unwrap_or(ANY);
    let sql = check.number("port", PORT_FOR_SQL) as u16;
    let mut needs = Vec::new();
    if !check.is_on("skip_networking", false) {
        needs.push(Need { option: "port", what: "clients", port: sql, address: bind });
    }
    match Address::parse(&check.options.listen(), check.options.port()) {
        Ok(listen) => needs.push(Need {
            option: "wsrep_provider_options",
            what: "the other members",
            port: listen.port,
            address: listen.socket_addr().map_or(ANY, |at| at.ip()),
        }),
        Err(error) => {
            check.about(Level::Refused, "wsrep_provider_options", format!("gmcast.listen_addr: {error}"))
        }
    }
    // mysqldump's copies come to the port for clients.
    if check.text("wsrep_sst_method", "rsync") != "mysqldump" {
        let receive = check.text("wsrep_sst_receive_address", "AUTO");
        let port = match receive.eq_ignore_ascii_case("AUTO") {
            true => PORT_FOR_COPIES,
            false => Address::parse(receive, PORT_FOR_COPIES).map_or(PORT_FOR_COPIES, |a| a.port),
        };
        needs.push(Need {
            option: "wsrep_sst_receive_address",
            what: "copies of the data",
            port,
            address: ANY,
        });
    }
    let ephemeral = check.machine.first_ephemeral_port();
    let datadir = check.text("datadir", "/var/lib/mysql").to_owned();
    let runs = check.machine.runs_in(Path::new(&datadir));
    for (at, need) in needs.iter().enumerate() {
        let Need { option, what, port, address } = need;
        let clash = needs[at + 1..].iter().find(|other| other.port == *port);
        if let Some(other) = clash {
            let text =
                format!("port {port} is wanted for {what} and for {}: one of them must move", other.what);
            check.about(Level::Refused, option, text);
        } else if !runs && check.machine.is_taken(*address, *port) {
            let text =
                format!("port {port} for {what} is taken now: `ss -ltnp 'sport = {port}'` says by whom");
            check.about(Level::Unwise, option, text);
        }
        if *port >= ephemeral {
            let text = format!(
                "port {port} for {what} is one of those that the system gives to outgoing connections (from {ephemeral} on): any \
                 of them can hold it for a while; take a lower one"
            );
            // make up's own ports are such: a start that meets one is tried again.
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
