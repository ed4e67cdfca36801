//! Addresses as people and servers write them.
//!
//! `wsrep_cluster_address` is `gcomm://host[:port][,host[:port]]...[?option=value[&option=value]...]`, a listen address is
//! `tcp://host[:port]`. A host is a name, an IPv4 address or an IPv6 address in brackets; each may carry its own
//! `tcp://` or `ssl://`. Nothing is percent-decoded: neither does Galera.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The port of Galera's, and our, peer connections when an address names none.
pub const DEFAULT_PORT: u16 = 4567;

/// A host name is never longer (RFC 1035), so that a mistyped option is not looked up in the DNS.
const MAX_HOST_LEN: usize = 253;

/// How an address asks to be spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Scheme {
    /// Plain TCP: `tcp://`, or nothing.
    #[default]
    Tcp,
    /// TLS: `ssl://`.
    Ssl,
}

/// A host: numeric, or a name to be resolved.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// A numeric address: no resolution needed.
    Ip(IpAddr),
    /// A name, or an IPv6 address with a zone (`fe80::1%eth0`), which the resolver must turn into a number.
    Name(String),
}

/// One address: scheme, host, port. Displayed as `host:port`, with brackets around IPv6.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Plain TCP or TLS.
    pub scheme: Scheme,
    /// Where.
    pub host: Host,
    /// TCP port. 0 only in a listen address: "any free port".
    pub port: u16,
}

/// A parsed `wsrep_cluster_address`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterAddress {
    /// The members to contact, in the order written, without repetitions. Empty: start a new cluster.
    pub peers: Vec<Address>,
    /// The options behind `?`, in the order written. A name may come twice: the last one counts.
    pub options: Options,
}

/// Options behind `?`: name and value, in the order written.
pub type Options = Vec<(String, String)>;

/// An error in an address. Each text names the wrong piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddrError {
    /// No host where one must be.
    NoHost(String),
    /// The port is not a number from 1 to 65535 (0 is allowed where a listener may choose).
    BadPort(String),
    /// An IPv6 address without its brackets, or with one of them missing.
    Brackets(String),
    /// The text in brackets is not an IPv6 address.
    BadIpv6(String),
    /// The host has characters that no host name has, or is too long.
    BadHost(String),
    /// A scheme that is not known.
    Scheme(String),
    /// A cluster address that does not begin with `gcomm://`.
    NoScheme(String),
    /// An option that is not `name=value`.
    BadOption(String),
    /// Options where none may be.
    OptionsNotAllowed(String),
}

impl fmt::Display for AddrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHost(s) => write!(f, "address '{s}' has no host: write host or host:port"),
            Self::BadPort(s) => write!(f, "address '{s}' has a bad port: write a number from 1 to 65535"),
            Self::Brackets(s) => {
                write!(f, "address '{s}': an IPv6 address needs brackets, as in [2001:db8::1]:{DEFAULT_PORT}")
            }
            Self::BadIpv6(s) => write!(f, "address '{s}': the text in brackets is not an IPv6 address"),
            Self::BadHost(s) => write!(f, "address '{s}' has no valid host name or IP address"),
            Self::NoScheme(s) => {
                write!(f, "cluster address '{s}' does not begin with gcomm://: write gcomm://{s}")
            }
            Self::Scheme(s) => {
                write!(
                    f,
                    "address '{s}' has an unknown scheme: a cluster address begins with gcomm://, a host with tcp:// \
                     or ssl://"
                )
            }
            Self::BadOption(s) => write!(f, "address option '{s}' is not of the form name=value"),
            Self::OptionsNotAllowed(s) => write!(f, "address '{s}' must not have options behind '?'"),
        }
    }
}

impl std::error::Error for AddrError {}

impl Address {
    /// Parses `[tcp://|ssl://]host[:port]`; without a port it is `default_port`.
    pub fn parse(text: &str, default_port: u16) -> Result<Address, AddrError> {
        let whole = text.trim();
        let (scheme, rest) = match whole.split_once("://") {
            None => (Scheme::Tcp, whole),
            Some(("tcp", rest)) => (Scheme::Tcp, rest),
            Some(("ssl", rest)) => (Scheme::Ssl, rest),
            Some(_) => return Err(AddrError::Scheme(whole.into())),
        };
        if rest.contains('?') {
            return Err(AddrError::OptionsNotAllowed(whole.into()));
        }
        let (host, port) = split_port(rest, whole)?;
        let port = match port {
            None => default_port,
            Some(text) => parse_port(text).ok_or_else(|| AddrError::BadPort(whole.into()))?,
        };
        Ok(Address { scheme, host: parse_host(host, whole)?, port })
    }

    /// An address made of numbers.
    pub fn numeric(addr: SocketAddr) -> Address {
        Address { scheme: Scheme::Tcp, host: Host::Ip(addr.ip()), port: addr.port() }
    }

    /// The socket address, if the host is numeric; `None` for a name.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Name(_) => None,
        }
    }

    /// Whether the address means "every interface of this machine": fit to listen on, not to dial.
    pub fn is_wildcard(&self) -> bool {
        matches!(self.host, Host::Ip(ip) if ip.is_unspecified())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]:{}", self.port),
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}:{}", self.port),
            Host::Name(name) if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

impl ClusterAddress {
    /// Parses a `wsrep_cluster_address`: `gcomm://`, hosts with commas, options behind `?`. Or nothing at all.
    pub fn parse(text: &str, default_port: u16) -> Result<ClusterAddress, AddrError> {
        let whole = text.trim();
        let rest = match whole.split_once("://") {
            Some(("gcomm", rest)) => rest,
            None if whole.is_empty() => whole,
            None => return Err(AddrError::NoScheme(whole.into())),
            Some(_) => return Err(AddrError::Scheme(whole.into())),
        };
        let (hosts, options) = split_options(rest)?;
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts);
        Ok(ClusterAddress { peers: parse_hosts(hosts, default_port)?, options })
    }

    /// The value of an option: the last one given under this name.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

fn parse_hosts(hosts: &str, default_port: u16) -> Result<Vec<Address>, AddrError> {
    let mut out: Vec<Address> = Vec::new();
    if hosts.trim().is_empty() {
        return Ok(out);
    }
    // Galera takes a trailing comma. But a list of nothing else must not become "start a new cluster".
    for piece in hosts.split(',').filter(|p| !p.trim().is_empty()) {
        let address = Address::parse(piece, default_port)?;
        if !out.contains(&address) {
            out.push(address);
        }
    }
    if out.is_empty() { Err(AddrError::NoHost(hosts.into())) } else { Ok(out) }
}

fn split_options(text: &str) -> Result<(&str, Options), AddrError> {
    let Some((hosts, query)) = text.split_once('?') else { return Ok((text, Vec::new())) };
    let mut options = Vec::new();
    for piece in query.split('&').filter(|p| !p.is_empty()) {
        match piece.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                options.push((name.trim().to_owned(), value.trim().to_owned()));
            }
            _ => return Err(AddrError::BadOption(piece.into())),
        }
    }
    Ok((hosts, options))
}

/// Splits `host`, `host:port`, `[v6]`, `[v6]:port`. The host keeps its brackets.
fn split_port<'a>(text: &'a str, whole: &str) -> Result<(&'a str, Option<&'a str>), AddrError> {
    if text.starts_with('[') {
        let end = text.find(']').ok_or_else(|| AddrError::Brackets(whole.into()))?;
        let (host, rest) = text.split_at(end + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(AddrError::Brackets(whole.into())),
        };
    }
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((_, port)) if port.contains(':') => Err(AddrError::Brackets(whole.into())),
        Some((host, port)) => Ok((host, Some(port))),
    }
}

fn parse_port(text: &str) -> Option<u16> {
    // `parse` alone would take "+80".
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn parse_host(text: &str, whole: &str) -> Result<Host, AddrError> {
    if let Some(inner) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        return match inner.split_once('%') {
            None => inner
                .parse::<Ipv6Addr>()
                .map(|ip| Host::Ip(ip.into()))
                .map_err(|_| AddrError::BadIpv6(whole.into())),
            Some((ip, zone)) if ip.parse::<Ipv6Addr>().is_ok() && is_name(zone) => {
                Ok(Host::Name(inner.to_owned()))
            }
            Some(_) => Err(AddrError::BadIpv6(whole.into())),
        };
    }
    if text.is_empty() {
        return Err(AddrError::NoHost(whole.into()));
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Host::Ip(ip));
    }
    // "10.0.0.300" is a mistyped number, not a name to ask the DNS for.
    let numberish = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if numberish || !is_name(text) {
        Err(AddrError::BadHost(whole.into()))
    } else {
        Ok(Host::Name(text.into()))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_HOST_LEN
        && !text.starts_with('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.') || b >= 0x80)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(text: &str) -> String {
        Address::parse(text, 4567).map_or_else(|e| format!("ERR {e}"), |a| a.to_string())
    }

    #[test]
    fn hosts_and_ports() {
        for (text, expected) in [
            ("h1", "h1:4567"),
            (" db-1.example.com:1 ", "db-1.example.com:1"),
            ("tcp://10.0.0.1", "10.0.0.1:4567"),
            ("10.0.0.1:65535", "10.0.0.1:65535"),
            ("[::1]", "[::1]:4567"),
            ("[2001:DB8::0:1]:99", "[2001:db8::1]:99"),
            ("tcp://[::]:4567", "[::]:4567"),
            ("[fe80::1%eth0]:7", "[fe80::1%eth0]:7"),
            ("localhost:0", "localhost:0"),
            ("datenbänke:1", "datenbänke:1"),
        ] {
            assert_eq!(show(text), expected, "{text}");
            // The displayed form parses to the same address.
            assert_eq!(show(expected), expected);
        }
        assert_eq!(Address::parse("ssl://h", 1).unwrap().scheme, Scheme::Ssl);
        assert!(Address::parse("0.0.0.0", 1).unwrap().is_wildcard());
        assert!(!Address::parse("h", 1).unwrap().is_wildcard());
        assert_eq!(Address::parse("[::1]:5", 1).unwrap().socket_addr(), "[::1]:5".parse().ok());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("", "no host"),
            (":4567", "no host"),
            ("h:", "port"),
            ("h:x", "port"),
            ("h:65536", "port"),
            ("h:+80", "port"),
            ("h:-1", "port"),
            ("::1", "brackets"),
            ("::1:4567", "brackets"),
            ("[::1", "brackets"),
            ("[::1]4567", "brackets"),
            ("[h]:1", "not an IPv6"),
            ("[10.0.0.1]:1", "not an IPv6"),
            ("[]:1", "not an IPv6"),
            ("[::1%a b]:1", "not an IPv6"),
            ("10.0.0.256", "valid host"),
            ("10.0.0", "valid host"),
            ("h 1", "valid host"),
            ("user@h", "valid host"),
            ("-h", "valid host"),
            ("udp://h", "scheme"),
            ("gcomm://h", "scheme"),
            ("h?a=b", "options"),
        ] {
            let shown = show(text);
            assert!(shown.starts_with("ERR") && shown.contains(expected), "'{text}': {shown}");
            assert!(!shown.contains('\n'));
        }
        assert!(show(&"h".repeat(254)).contains("valid host"));
    }

    #[test]
    fn cluster_addresses() {
        let parse = |text| ClusterAddress::parse(text, 4567);
        let peers =
            |text| parse(text).unwrap().peers.iter().map(Address::to_string).collect::<Vec<_>>().join(" ");
        assert_eq!(peers("gcomm://"), "");
        assert_eq!(peers(""), "");
        assert_eq!(peers("gcomm://?pc.bootstrap=1"), "");
        assert_eq!(peers("gcomm://h1:1,h2, [::1]:3 ,tcp://10.0.0.4"), "h1:1 h2:4567 [::1]:3 10.0.0.4:4567");
        assert_eq!(peers("gcomm://h1,h1:4567,h2,"), "h1:4567 h2:4567");
        assert_eq!(peers("gcomm://h1/?gmcast.segment=1"), "h1:4567");
        let address = parse("gcomm://h1?gmcast.segment=1&pc.weight = 0&gmcast.segment=2&").unwrap();
        assert_eq!(address.option("gmcast.segment"), Some("2"));
        assert_eq!(address.option("pc.weight"), Some("0"));
        assert_eq!(address.option("pc.wait"), None);
        assert_eq!(address.options.len(), 3);
        for (text, expected) in [
            // A list that came out empty must not start a new cluster.
            ("gcomm://,", "no host"),
            ("gcomm:// , ,?a=b", "no host"),
            ("dummy://", "gcomm://"),
            // As with Galera: a word that somebody mistyped is no host's name.
            ("h1,h2", "write gcomm://h1,h2"),
            ("tcp://h1", "gcomm://"),
            ("http://h1", "gcomm://"),
            ("gcomm://h1,:1", "no host"),
            ("gcomm://h1:1:2", "brackets"),
            ("gcomm://h1?segment", "name=value"),
            ("gcomm://h1?=1", "name=value"),
            ("gcomm://h1/x", "valid host"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "'{text}': {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics_and_what_parses_is_stable(text in "\\PC{0,40}|[a-z0-9.:,\\[\\]?=&/% -]{0,40}") {
            let _ = ClusterAddress::parse(&text, 1);
            if let Ok(address) = Address::parse(&text, 4567) {
                let again = Address::parse(&address.to_string(), 1).unwrap();
                proptest::prop_assert_eq!(again.to_string(), address.to_string());
            }
        }
    }
}
