//! The options of `lockstep block serve`.

use super::listen;
use super::takeover::Takeover;
use crate::cfg::{self, Size, fill};
use crate::log_member::{MemberArgs, Plan};
use clap::Args;
use lockstep_block::device::Config;
use lockstep_block::nbd::{Listen, TlsFiles};
use lockstep_node::core::policy::{Policy, PolicyKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The default directory.
pub(super) const DEFAULT_DIR: &str = "/var/lib/lockstep/block";
/// The default name of the member.
const DEFAULT_NAME: &str = "block";
/// The default of `--cache`.
const DEFAULT_CACHE: u64 = 256 << 20;
/// The least cache: some entries of the log must fit.
const CACHE_MIN: u64 = 8 << 20;
/// The default of `--resync-rate`.
const DEFAULT_RESYNC_RATE: u64 = 32 << 20;
/// The least of them: an extent must not take longer than a joiner waits.
const RESYNC_RATE_MIN: u64 = 1 << 20;
/// The least time of `--auto-promote`: a connection that breaks and comes back is no failure.
const TAKEOVER_MIN: u64 = 2;

/// DRBD's replication protocols.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// A flush is answered when the own log has it.
    A,
    /// And another member has received it.
    B,
    /// And a majority has it on disk.
    C,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Protocol, String> {
        match text {
            "a" | "A" => Ok(Protocol::A),
            "b" | "B" => Ok(Protocol::B),
            "c" | "C" => Ok(Protocol::C),
            _ => Err("the protocols are a, b and c".into()),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::A => "A",
            Protocol::B => "B",
            Protocol::C => "C",
        })
    }
}

impl Protocol {
    /// The commit policy, as provider options.
    fn options(self) -> &'static str {
        match self {
            Protocol::A => "commit.policy=async",
            Protocol::B => "commit.policy=semisync; commit.ack_on=receive",
            Protocol::C => "commit.policy=quorum",
        }
    }

    /// Changes a commit policy to this protocol. Other settings stay.
    pub(super) fn apply(self, policy: &mut Policy) {
        (policy.kind, policy.on_receive) = match self {
            Protocol::A => (PolicyKind::Async, policy.on_receive),
            Protocol::B => (PolicyKind::Semisync, true),
            Protocol::C => (PolicyKind::Quorum, policy.on_receive),
        };
    }

    /// The protocol that a commit policy is.
    pub(super) fn of(policy: &Policy) -> Option<Protocol> {
        match policy.kind {
            PolicyKind::Async => Some(Protocol::A),
            PolicyKind::Semisync if policy.on_receive => Some(Protocol::B),
            PolicyKind::Semisync => None,
            PolicyKind::Quorum | PolicyKind::All => Some(Protocol::C),
        }
    }
}

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct ServeArgs {
    /// Addresses of the other members: gcomm://HOST[:PORT][,HOST[:PORT]]...
    #[arg(short, long, value_name = "GCOMM")]
    address: Option<String>,
    /// Name of this group of members, and of the export.
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this member [default: block].
    #[arg(short, long)]
    name: Option<String>,
    /// Directory of the log and of the device file [default: /var/lib/lockstep/block].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, commit.policy, log.size, ...
    #[arg(short, long)]
    options: Option<String>,
    /// The first member of a new group. Without effect once this member knows others.
    #[arg(long = "new", alias = "new-cluster")]
    new_group: bool,
    /// The device's size. It counts where the device has none yet.
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// Where NBD clients connect: unix:PATH or tcp:HOST:PORT. Several are separated by commas.
    #[arg(long, value_name = "PLACE")]
    listen: Option<String>,
    /// The protocol of a new group: a, b or c, as DRBD names them [default: c].
    #[arg(long)]
    protocol: Option<Protocol>,
    /// The most memory for writes that are not on the device file (block.cache) [default: 256M].
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
    /// How many seconds a flush may take, or another request may wait for a majority, before it fails and ends the attachment
    /// (block.timeout); 0: any time [default: 0].
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Take the device from another member, although this member has a copy: only what differs is copied. This copy is given up
    /// once the other member has connected.
    #[arg(long)]
    resync: bool,
    /// The port where this member takes the device from another one [default: the member's port + 1, or any if that is in use].
    #[arg(long, value_name = "PORT")]
    resync_port: Option<u16>,
    /// How many bytes a second this member sends to one that takes the device from it; 0: any number [default: 32M].
    #[arg(long, value_name = "SIZE")]
    resync_rate: Option<Size>,
    /// Promote this member by itself once the member with the client has been gone for so many seconds. Without this option
    /// only `lockstep block promote` does that.
    #[arg(long, value_name = "SECONDS")]
    auto_promote: Option<u64>,
    /// A command of the shell that runs after such a promotion, with the export's name in LOCKSTEP_EXPORT: it attaches a client,
    /// mounts, and starts the service.
    #[arg(long, value_name = "COMMAND")]
    on_promotion: Option<String>,
    /// Certificate for clients with TLS, in PEM. SIGHUP reloads it, and key and authority.
    #[arg(long, value_name = "FILE")]
    ssl_cert: Option<PathBuf>,
    /// The certificate's private key, in PEM without a password.
    #[arg(long, value_name = "FILE")]
    ssl_key: Option<PathBuf>,
    /// Authorities of clients' certificates, in PEM: a client must have one of their certificates.
    #[arg(long, value_name = "FILE")]
    ssl_ca: Option<PathBuf>,
    /// Refuse clients without TLS.
    #[arg(long)]
    require_secure_transport: bool,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// A file with lines `option = value`, with the names of these options. The command line takes precedence.
    #[arg(short, long, value_name = "FILE")]
    cfg: Option<PathBuf>,
}

/// The options, validated.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) plan: Plan,
    pub(super) device: Config,
    /// The size of a device that has none.
    pub(super) size: Option<u64>,
    pub(super) listen: Vec<Listen>,
    pub(super) tls: Option<TlsFiles>,
    pub(super) require_tls: bool,
    /// Whether this member's copy is given up.
    pub(super) gives_up_copy: bool,
    /// Where this member takes the device from another one; `None`: the default.
    pub(super) resync_port: Option<u16>,
    /// Bytes a second that it sends; 0: any number.
    pub(super) resync_rate: u64,
    /// Automatic promotion.
    pub(super) takeover: Option<Takeover>,
}

impl ServeArgs {
    /// Adds the settings of the configuration file. The command line takes precedence.
    fn complete(mut self) -> Result<ServeArgs, String> {
        let Some(path) = self.cfg.clone() else { return Ok(self) };
        cfg::read(&path, |key, value| {
            // As in a server's my.cnf, `_` and `-` are the same.
            let key = key.replace('_', "-");
            match key.as_str() {
                "address" => fill(&mut self.address, &key, value),
                "group" => fill(&mut self.group, &key, value),
                "name" => fill(&mut self.name, &key, value),
                "dir" => fill(&mut self.dir, &key, value),
                "options" => fill(&mut self.options, &key, value),
                "size" => fill(&mut self.size, &key, value),
                "listen" => fill(&mut self.listen, &key, value),
                "protocol" => fill(&mut self.protocol, &key, value),
                "cache" => fill(&mut self.cache, &key, value),
                "timeout" => fill(&mut self.timeout, &key, value),
                "resync-port" => fill(&mut self.resync_port, &key, value),
                "resync-rate" => fill(&mut self.resync_rate, &key, value),
                "auto-promote" => fill(&mut self.auto_promote, &key, value),
                "on-promotion" => fill(&mut self.on_promotion, &key, value),
                "ssl-cert" => fill(&mut self.ssl_cert, &key, value),
                "ssl-key" => fill(&mut self.ssl_key, &key, value),
                "ssl-ca" => fill(&mut self.ssl_ca, &key, value),
                "log" => fill(&mut self.log, &key, value),
                "new" | "new-cluster" => {
                    self.new_group |= cfg::is_on(value);
                    Ok(())
                }
                "require-secure-transport" => {
                    self.require_secure_transport |= cfg::is_on(value);
                    Ok(())
                }
                other => {
                    Err(format!("unknown option '{other}'; `lockstep block serve --help` lists the options"))
                }
            }
        })?;
        Ok(self)
    }

    /// Validates the options.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn settings(self) -> Result<Settings, String> {
        let args = self.complete()?;
        let mut options = args.options.unwrap_or_default();
        if let Some(protocol) = args.protocol {
            if options.contains("commit.policy") {
                return Err(
                    "--protocol is a commit policy, and --options sets commit.policy: give one of them"
                        .into(),
                );
            }
            options = format!("{options}; {}", protocol.options());
        }
        let plan = MemberArgs {
            what: "block",
            address: args.address,
            group: args.group,
            name: args.name.unwrap_or_else(|| DEFAULT_NAME.into()),
            options: Some(options),
            dir: args.dir.unwrap_or_else(|| DEFAULT_DIR.into()),
            log: args.log,
            may_found: true,
            founds: args.new_group,
        };
        let plan = plan.plan()?;
        if plan.group.contains('@') {
            return Err(
                "--group is the export's name, and must not contain '@': an epoch follows it there".into()
            );
        }
        let listen = args
            .listen
            .ok_or("where clients connect is missing: give --listen unix:PATH or tcp:HOST:PORT")?;
        let listen = listen::places(&listen, &plan, args.resync_port)?;
        let tls = match (args.ssl_cert, args.ssl_key, args.ssl_ca) {
            (Some(cert), Some(key), ca) => {
                Some(TlsFiles { cert, key, require_client_certificate: ca.is_some(), ca })
            }
            (None, None, None) => None,
            _ => return Err("--ssl-cert and --ssl-key belong together: give both".into()),
        };
        if args.require_secure_transport && tls.is_none() {
            return Err(
                "--require-secure-transport needs a certificate: give --ssl-cert and --ssl-key".into()
            );
        }
        let cache = args.cache.map_or(DEFAULT_CACHE, |Size(bytes)| bytes);
        if cache < CACHE_MIN {
            return Err(format!("--cache must be at least {} MiB", CACHE_MIN >> 20));
        }
        let takeover = match (args.auto_promote, args.on_promotion) {
            (Some(seconds), _) if seconds < TAKEOVER_MIN => {
                return Err(format!("--auto-promote must be at least {TAKEOVER_MIN} seconds"));
            }
            (Some(seconds), command) => Some(Takeover::new(Duration::from_secs(seconds), command)),
            (None, Some(_)) => return Err("--on-promotion needs --auto-promote SECONDS".into()),
            (None, None) => None,
        };
        let size = args.size.map(|Size(size)| checked(size)).transpose()?;
        if args.resync && args.new_group {
            return Err(
                "--resync takes the device from another member, and --new founds a group: give one of them"
                    .into(),
            );
        }
        let rate = args.resync_rate.map_or(DEFAULT_RESYNC_RATE, |Size(rate)| rate);
        if rate != 0 && rate < RESYNC_RATE_MIN {
            return Err(format!("--resync-rate must be 0 or at least {} MiB", RESYNC_RATE_MIN >> 20));
        }
        Ok(Settings {
            device: Config {
                name: plan.group.clone(),
                cache,
                timeout: Duration::from_secs(args.timeout.unwrap_or(0)),
            },
            plan,
            size,
            listen,
            tls,
            require_tls: args.require_secure_transport,
            gives_up_copy: args.resync,
            resync_port: args.resync_port,
            resync_rate: rate,
            takeover,
        })
    }
}

/// A device's size.
///
/// # Errors
/// It is none: a text for people.
pub(super) fn checked(size: u64) -> Result<u64, String> {
    const LEAST: u64 = 4096;
    match size {
        0 => Err("the size must not be 0".into()),
        size if size % LEAST != 0 => Err(format!("the size must be a multiple of {LEAST} bytes")),
        size if size > lockstep_block::device::entry::SIZE_MAX => Err("the size is too large".into()),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;

    const LEAST: &str = "-a gcomm://a -g disk --listen unix:/run/disk.sock";

    fn settings(line: &str) -> Result<Settings, String> {
        let line = format!("lockstep block serve {line}");
        match Cli::try_parse_from(line.split(' ')).map_err(|e| e.to_string())?.command {
            crate::Command::Block(args) => args.serve_args().settings(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn least_options_have_defaults() {
        let found = settings(LEAST).unwrap();
        assert_eq!((found.plan.name.as_str(), found.device.name.as_str()), ("block", "disk"));
        assert_eq!((found.device.cache, found.device.timeout, found.size), (256 << 20, Duration::ZERO, None));
        assert_eq!(found.listen, [Listen::Unix { path: "/run/disk.sock".into(), mode: 0o600 }]);
        assert_eq!(found.plan.options.tuning().policy, Policy::default());
        assert_eq!((found.gives_up_copy, found.resync_port, found.resync_rate), (false, None, 32 << 20));
    }

    #[test]
    fn protocols_are_commit_policies() {
        for (letter, protocol, kind) in [
            ("a", Protocol::A, PolicyKind::Async),
            ("b", Protocol::B, PolicyKind::Semisync),
            ("C", Protocol::C, PolicyKind::Quorum),
        ] {
            let policy =
                settings(&format!("{LEAST} --protocol {letter}")).unwrap().plan.options.tuning().policy;
            assert_eq!((policy.kind, Protocol::of(&policy)), (kind, Some(protocol)));
            let mut changed = Policy::of(PolicyKind::All);
            protocol.apply(&mut changed);
            assert_eq!(Protocol::of(&changed), Some(protocol));
        }
        assert!(settings(&format!("{LEAST} --protocol d")).is_err());
        let both = settings(&format!("{LEAST} --protocol a --options commit.policy=all"));
        assert!(both.unwrap_err().contains("one of them"));
    }

    #[test]
    fn wrong_options_are_named() {
        let refused = |line: &str| settings(line).unwrap_err();
        assert!(refused("-a gcomm://a -g disk").contains("--listen"));
        assert!(refused("-a gcomm://a -g disk --listen /x").contains("unix:PATH"));
        assert!(refused("-a gcomm://a -g disk@1 --listen unix:/x").contains("'@'"));
        assert!(refused("-g disk --listen unix:/x").contains("--address"));
        assert!(refused(&format!("{LEAST} --size 4097")).contains("multiple"));
        assert!(refused(&format!("{LEAST} --cache 1M")).contains("at least 8 MiB"));
        assert!(refused(&format!("{LEAST} --ssl-cert /x")).contains("--ssl-key"));
        assert!(refused(&format!("{LEAST} --resync-rate 1000")).contains("at least 1 MiB"));
        assert!(refused(&format!("{LEAST} --resync --new")).contains("one of them"));
        assert!(refused(&format!("{LEAST} --require-secure-transport")).contains("--ssl-cert"));
        assert!(refused(&format!("{LEAST} --auto-promote 1")).contains("at least 2"));
        assert!(refused(&format!("{LEAST} --on-promotion true")).contains("--auto-promote"));
    }

    #[test]
    fn place_that_is_named_twice_is_refused_with_both_names() {
        let listen = |places: &str, more: &str| {
            settings(
                &format!("-a gcomm://a -g disk --dir /x --listen {places} {more}")
                    .trim_end()
                    .replace("  ", " "),
            )
        };
        let own = "-o gmcast.listen_addr=tcp://127.0.0.1:4567;status.address=127.0.0.1:9405";
        for (places, more, names) in [
            ("unix:/run/a,unix:/run/a", "", ["--listen unix:/run/a ", "twice"]),
            ("unix:/run/a,unix:/run/../run/a", "", ["--listen unix:/run/a ", "unix:/run/../run/a"]),
            ("tcp:127.0.0.1:5,tcp:127.0.0.1:5", "", ["--listen tcp:127.0.0.1:5 ", "twice"]),
            ("tcp:127.0.0.1:5,tcp:0.0.0.0:5", "", ["--listen tcp:127.0.0.1:5 ", "--listen tcp:0.0.0.0:5 "]),
            (
                "tcp:127.0.0.1:4567",
                "",
                ["--listen tcp:127.0.0.1:4567", "gmcast.listen_addr=tcp://0.0.0.0:4567"],
            ),
            (
                "tcp:0.0.0.0:4567",
                own,
                ["--listen tcp:0.0.0.0:4567", "gmcast.listen_addr=tcp://127.0.0.1:4567"],
            ),
            ("tcp:0.0.0.0:9405", own, ["--listen tcp:0.0.0.0:9405", "status.address=127.0.0.1:9405"]),
            ("tcp:0.0.0.0:4999", "--resync-port 4999", ["--listen tcp:0.0.0.0:4999", "--resync-port 4999"]),
            (
                "unix:/run/a",
                "--resync-port 4567",
                ["--resync-port 4567", "gmcast.listen_addr=tcp://0.0.0.0:4567"],
            ),
            ("unix:/x/block.sock", "", ["--listen unix:/x/block.sock", "own file /x/block.sock"]),
        ] {
            let text = listen(places, more).unwrap_err();
            assert!(names.iter().all(|name| text.contains(name)), "{places} {more}: {text}");
        }
        let both =
            "tcp:127.0.0.1:10809,tcp:127.0.0.2:10809,unix:/run/a,unix:/run/b,tcp:127.0.0.1:0,tcp:127.0.0.1:0";
        assert_eq!(listen(both, own).unwrap().listen.len(), 6);
    }

    #[test]
    fn example_of_the_package_is_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/block.cnf");
        let found = settings(&format!("--cfg {path}")).unwrap();
        assert_eq!(
            (found.plan.name.as_str(), found.size, found.plan.founds()),
            ("m1", Some(20 << 30), false)
        );
        assert_eq!(found.plan.dir, PathBuf::from(DEFAULT_DIR));
    }

    #[test]
    fn file_supplies_options_and_the_command_line_wins() {
        let path = std::env::temp_dir().join(format!("lockstep-block-cfg-{}", std::process::id()));
        let text = "[block]\naddress = gcomm://a,b\ngroup = disk\nname = b1\ndir = /x\nsize = 20G\nprotocol = b\n\
                    listen = tcp:127.0.0.1:10809,unix:/run/x\ncache = 64M\ntimeout = 30\nnew = yes\n\
                    resync_port = 4000\nresync-rate = 0\nauto_promote = 10\non_promotion = mount-it now\n";
        std::fs::write(&path, text).unwrap();
        let found = settings(&format!("--cfg {} --name b2 --cache 128M", path.display())).unwrap();
        assert_eq!((found.plan.name.as_str(), found.size, found.listen.len()), ("b2", Some(20 << 30), 2));
        assert_eq!((found.device.cache, found.device.timeout), (128 << 20, Duration::from_secs(30)));
        assert_eq!((found.resync_port, found.resync_rate), (Some(4000), 0));
        let takeover = Takeover::new(Duration::from_secs(10), Some("mount-it now".into()));
        assert_eq!(found.takeover, Some(takeover));
        std::fs::write(&path, "sise = 1G\n").unwrap();
        let error = settings(&format!("--cfg {}", path.display())).unwrap_err();
        assert!(error.contains("line 1: unknown option 'sise'"), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
}
