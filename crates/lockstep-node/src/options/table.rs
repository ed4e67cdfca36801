//! The table: every option there is.

use super::value::Kind;
use std::time::Duration;

/// The effect of an option here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Lockstep's own.
    Own,
    /// Galera's, and does what it does there.
    Galera,
    /// Galera's, and sets this option of ours, unless that one is set itself.
    Sets(&'static str),
    /// Galera's, accepted without effect, for this reason.
    NoEffect(&'static str),
}

/// Refused values of the option's type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The refused values.
    pub when: When,
    /// The reason and the remedy.
    pub reason: &'static str,
}

/// A set of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// `yes`.
    On,
    /// Numbers above this one.
    Above(i64),
    /// All words but this one.
    Not(&'static str),
}

/// One option.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// The default; `None`: unset, and not shown.
    pub default: Option<&'static str>,
    /// Whether it can change while running.
    pub running: bool,
    /// Whether lists of all options leave it out.
    pub hidden: bool,
    /// Whether it is a command and not a state: each use has an effect, and no value is stored.
    pub command: bool,
    /// Its effect here.
    pub class: Class,
    /// Values that are refused.
    pub refused: Option<Refusal>,
    /// A line of help.
    pub help: &'static str,
}

impl Row {
    /// Whether it is the cluster's: a setting of the commit policy.
    pub fn is_of_policy(&self) -> bool {
        self.name.starts_with("commit.") || self.name.starts_with("async.")
    }
}

/// All options, sorted by name.
pub fn rows() -> &'static [Row] {
    ROWS
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const TIME: Kind = Kind::Time(Duration::ZERO, Duration::MAX);
const INT: Kind = Kind::Int(0, i64::MAX);
const SIZE: Kind = Kind::Size(0, u64::MAX);
const NAME: Kind = Kind::Text;
const PART: Kind = Kind::Real(0.0, 1.0);

const BEATS: &str = "members watch each other by net.heartbeat and cluster.election_timeout";
const LOG: &str = "entries are kept in the log, see log.size";
const FLOW: &str =
    "a slow member stops nobody: it lags, and reports itself desynced past apply.lag_limit; see apply.pace";
const TCP: &str = "members talk over TCP connections, one for each pair";
const PEERS: &str = "members take missing entries over the connections they have anyway";

const fn row(name: &'static str, kind: Kind, default: &'static str, class: Class, help: &'static str) -> Row {
    Row {
        name,
        kind,
        default: Some(default),
        running: false,
        hidden: false,
        command: false,
        class,
        refused: None,
        help,
    }
}

impl Row {
    /// It can change while running.
    const fn live(self) -> Row {
        Row { running: true, ..self }
    }

    /// It has no default.
    const fn unset(self) -> Row {
        Row { default: None, ..self }
    }

    const fn hide(self) -> Row {
        Row { hidden: true, ..self }
    }

    /// It is a command.
    const fn act(self) -> Row {
        Row { default: None, running: true, command: true, ..self }
    }

    const fn refuse(self, when: When, reason: &'static str) -> Row {
        Row { refused: Some(Refusal { when, reason }), ..self }
    }
}

use Class::{Galera, NoEffect, Own, Sets};

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("apply.delay", Kind::Time(Duration::ZERO, ms(7 * 86_400_000)), "0s", Own, "the member's server gets entries when they are this old; it takes no writes meanwhile, and reports itself desynced").live(),
    row("apply.lag_limit", Kind::Int(1, i64::MAX), "10000", Own, "entries behind the cluster from which on the member reports itself desynced").live(),
    row("apply.order", Kind::Enum(&["writeset", "schema", "serial"]), "writeset", Own, "what is applied in parallel: write-sets without a row in common (writeset), without a database in common (schema), or nothing (serial)").live(),
    row("apply.pace", Kind::Time(Duration::ZERO, ms(600_000)), "0s", Own, "the member slows writes of its own clients down while the server of a Synced voter lags by more than a quarter of this, so that lags stay below it; each waits for a quarter of this at most, and for 1 s at most; at least 500ms, or 0: off").live(),
    row("apply.paused", Kind::Bool, "no", Own, "the member goes on receiving, acknowledging and keeping entries, but its server gets none; it takes no writes meanwhile").live(),
    row("apply.until", Kind::Until, "none", Own, "the member's server gets what is up to here, and no more; it takes no writes meanwhile").live(),
    row("async.max_at_risk", Kind::Int(1, 1_000_000_000), "10000", Own, "transactions that may be committed ahead of the cluster under async and semisync, of 256 MiB together at most; a new leader leaves out so many seqnos").live(),
    row("base_dir", NAME, ".", NoEffect("the server's data directory is used"), "where Galera keeps its state files"),
    row("base_host", NAME, "", Galera, "the host that peers are told to connect to (from wsrep_node_address)").unset(),
    row("base_port", Kind::Int(1, 65535), "4567", Galera, "the port for peers, where no address names one"),
    row("cert.length_check", INT, "127", NoEffect("trimming is decided by the log"), "how often Galera looks at cert.max_length").live().hide(),
    row("cert.log_conflicts", Kind::Bool, "no", Galera, "log a line for each transaction that fails certification").live(),
    row("cert.max_length", INT, "16384", NoEffect("trimming is decided by the log"), "longest certification window of Galera").live().hide(),
    row("cert.optimistic_pa", Kind::Bool, "yes", NoEffect("entries are applied as soon as those they depend on have finished"), "parallel apply beyond what ran in parallel at the origin").live(),
    row("cluster.election_timeout", Kind::Time(ms(50), ms(60_000)), "600ms", Own, "silence of the leader after which others stand for election, or 10 measured round trips if that is longer; with a leader that is usually late, up to twice this; randomised to twice that").live(),
    row("cluster.evict_timeout", Kind::Time(ms(1000), Duration::MAX), "5min", Own, "absence after which a dead voter is taken out, where that lowers the majority").live(),
    row("commit.ack_on", Kind::Enum(&["persist", "receive"]), "persist", Own, "semisync waits for what other members have on disk (persist), or in memory (receive)").live(),
    row("commit.acks", Kind::Int(0, 255), "1", Own, "other members that must have a transaction before its commit returns, under semisync").live(),
    row("commit.policy", Kind::Enum(&["quorum", "async", "semisync", "all"]), "quorum", Own, "the members that a commit waits for").live(),
    row("commit.timeout", TIME, "PT0S", Own, "how long a commit waits under semisync before it falls back to async; 0: for ever").live(),
    row("commit.zone_acks", Kind::Int(0, 255), "0", Own, "other zones (member.zone) that must have a transaction before its commit returns, in addition").live(),
    row("debug", Kind::Bool, "no", Galera, "log debugging lines").live(),
    row("debug.panic", Kind::Enum(&["node", "take", "applied", "view", "synced"]), "", Own, "for tests: an error in the program where this says, once, after which the member leaves the cluster and its server is to be started again").unset().live().hide(),
    row("evs.auto_evict", INT, "0", NoEffect(BEATS), "delays after which Galera evicts a member"),
    row("evs.causal_keepalive_period", TIME, "PT1S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.debug_log_mask", NAME, "0x1", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.delay_margin", TIME, "PT1S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.delayed_keep_period", TIME, "PT30S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.evict", NAME, "", NoEffect("take a member out by stopping it, or by cluster.evict_timeout"), "evicts the member of this UUID from Galera's group").unset().live(),
    row("evs.inactive_check_period", TIME, "PT0.5S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.inactive_timeout", TIME, "PT15S", NoEffect(BEATS), "silence after which Galera declares a member dead").live(),
    row("evs.info_log_mask", NAME, "0", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.install_timeout", TIME, "PT7.5S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.join_retrans_period", TIME, "PT1S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.keepalive_period", TIME, "PT1S", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.max_install_timeouts", INT, "3", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.send_window", INT, "4", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.stats_report_period", TIME, "PT1M", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.suspect_timeout", TIME, "PT5S", NoEffect(BEATS), "silence after which Galera suspects a member").live(),
    row("evs.use_aggregate", Kind::Bool, "true", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.user_send_window", INT, "2", NoEffect(BEATS), "Galera's group communication").live(),
    row("evs.version", INT, "1", NoEffect(BEATS), "Galera's group communication"),
    row("evs.view_forget_timeout", TIME, "P1D", NoEffect(BEATS), "Galera's group communication"),
    row("gcache.dir", NAME, "", Sets("log.dir"), "where the log is"),
    row("gcache.keep_pages_size", SIZE, "0", NoEffect(LOG), "Galera's write-set cache").live(),
    row("gcache.mem_size", SIZE, "0", NoEffect(LOG), "Galera's write-set cache").live(),
    row("gcache.name", NAME, "galera.cache", NoEffect(LOG), "Galera's write-set cache"),
    row("gcache.page_size", SIZE, "128M", NoEffect(LOG), "Galera's write-set cache").live(),
    row("gcache.recover", Kind::Bool, "yes", NoEffect("the log is always recovered"), "Galera's write-set cache"),
    row("gcache.size", SIZE, "1G", Sets("log.size"), "how much of the log is kept"),
    row("gcomm.thread_prio", NAME, "", NoEffect("the two permanent threads run at the server's priority"), "priority of Galera's network thread"),
    row("gcs.check_appl_proto", Kind::Bool, "", NoEffect("members check each other's protocol versions always"), "Galera's group communication").unset(),
    row("gcs.fc_debug", INT, "0", NoEffect(FLOW), "Galera's flow control").live(),
    row("gcs.fc_factor", PART, "1.0", NoEffect(FLOW), "Galera's flow control").live(),
    row("gcs.fc_limit", INT, "16", NoEffect(FLOW), "Galera's flow control").live(),
    row("gcs.fc_master_slave", Kind::Bool, "no", NoEffect(FLOW), "Galera's flow control"),
    row("gcs.fc_single_primary", Kind::Bool, "no", NoEffect(FLOW), "Galera's flow control"),
    row("gcs.max_packet_size", INT, "64500", NoEffect(TCP), "Galera's group communication").live(),
    row("gcs.max_throttle", PART, "0.25", NoEffect(FLOW), "Galera's flow control").live(),
    row("gcs.recv_q_hard_limit", INT, "9223372036854775807", NoEffect("the receive queue is the log"), "Galera's receive queue").live(),
    row("gcs.recv_q_soft_limit", PART, "0.25", NoEffect("the receive queue is the log"), "Galera's receive queue").live(),
    row("gcs.stateless", Kind::Bool, "no", Galera, "yes: this member never sends its data to a joiner"),
    row("gcs.sync_donor", Kind::Bool, "no", NoEffect("a donor never holds up the others"), "whether a donor takes part in Galera's flow control"),
    row("gcs.vote_policy", Kind::Int(0, 255), "0", Galera, "so many members that could apply an entry outvote all that could not; 0: the most frequent result counts. The leader's value"),
    row("gmcast.group", NAME, "", NoEffect("wsrep_cluster_name is the cluster's name"), "Galera's group communication").unset(),
    row("gmcast.isolate", Kind::Int(0, 2), "0", Galera, "1 cuts the member off from its peers, 0 lets it back").live().hide()
        .refuse(When::Above(1), "a provider does not end the server's process; stop the server instead"),
    row("gmcast.listen_addr", NAME, "", Galera, "where to listen for peers: tcp://host:port"),
    row("gmcast.max_initial_reconnect_attempts", INT, "", NoEffect("peers are tried until they answer"), "Galera's group communication").unset().live().hide(),
    row("gmcast.mcast_addr", NAME, "", NoEffect(TCP), "Galera's multicast"),
    row("gmcast.mcast_port", INT, "", NoEffect(TCP), "Galera's multicast").unset().hide(),
    row("gmcast.mcast_ttl", INT, "1", NoEffect(TCP), "Galera's multicast"),
    row("gmcast.peer_addr", NAME, "", NoEffect("peers learn each other's addresses from the log"), "another address for Galera to connect to").unset().live(),
    row("gmcast.peer_timeout", TIME, "PT3S", NoEffect(BEATS), "Galera's group communication"),
    row("gmcast.segment", Kind::Int(0, 255), "0", Sets("member.zone"), "where the member is"),
    row("gmcast.time_wait", TIME, "PT5S", NoEffect(BEATS), "Galera's group communication"),
    row("gmcast.version", INT, "0", NoEffect(TCP), "Galera's group communication"),
    row("ist.keep_keys", Kind::Bool, "", NoEffect("keys are part of the log"), "Galera's incremental state transfer").unset(),
    row("ist.recv_addr", NAME, "", NoEffect(PEERS), "where Galera receives incremental state transfers").unset(),
    row("ist.recv_bind", NAME, "", NoEffect(PEERS), "where Galera receives incremental state transfers").unset(),
    row("leader.apply_timeout", Kind::Time(Duration::ZERO, ms(86_400_000)), "30s", Own, "a leader whose database finishes nothing for so long, though transactions wait that others have finished, lets another member lead; 0: never").live(),
    row("leader.disk_timeout", Kind::Time(Duration::ZERO, ms(86_400_000)), "5s", Own, "a disk that finishes no write of the log for so long hangs: its member is Desynced and lets another one lead, and after three times as long it ends; 0: never").live(),
    row("leader.follow_writer", Kind::Bool, "yes", Own, "leadership moves to the member that proposes nearly everything, if it stays so for some seconds; under async and semisync back to the one before an election, if that member rejects writes; the leader's value counts").live(),
    row("log.dir", NAME, "", Own, "where the log is, if not in the data directory"),
    row("log.direct", Kind::Bool, "yes", Own, "what is appended to the log goes past the kernel's page cache (O_DIRECT), where the file system can"),
    row("log.keep_min", Kind::Time(Duration::ZERO, ms(2_700_000)), "10min", Own, "how long an entry is kept after the own server has finished it; more than innodb_flush_log_at_timeout").live(),
    row("log.max_size", SIZE, "8G", Own, "what the log may grow to for log.keep_min").live(),
    row("log.segment", Kind::Size(1 << 20, 1 << 30), "64M", Own, "how large one file of the log is").live(),
    row("log.size", SIZE, "1G", Own, "how much of the log is kept").live(),
    row("member.vote", Kind::Bool, "yes", Own, "whether the member's log counts for majorities; no: a read replica"),
    row("member.zone", Kind::Int(0, 255), "0", Own, "where the member is"),
    row("net.compress", Kind::Enum(&["off", "zone", "all"]), "off", Own, "compress the log's entries on their way to members of other zones (member.zone), or to all").live(),
    row("net.heartbeat", Kind::Time(ms(10), ms(10_000)), "100ms", Own, "interval of the leader's heartbeats when nothing happens").live(),
    row("net.relay", Kind::Bool, "yes", Own, "while this member leads, each other zone (member.zone) gets one copy of the log's entries, which one of its members passes on to the rest").live(),
    row("pc.announce_timeout", TIME, "PT3S", NoEffect(BEATS), "Galera's group communication"),
    row("pc.bootstrap", Kind::Bool, "", Galera, "this member goes on alone, without the majority, as a new branch of the data: the others must not run (docs/operating.md, No majority)").act().hide(),
    row("pc.checksum", Kind::Bool, "false", NoEffect("messages always carry a checksum"), "Galera's group communication").live(),
    row("pc.ignore_quorum", Kind::Bool, "false", NoEffect("only a majority writes"), "whether a Galera member without majority stays primary").live()
        .refuse(When::On, "two halves of a cluster that both write lose one half's transactions; for two servers run `lockstep arbitrator` on a third machine; without a majority, `lockstep bootstrap` makes one member go on alone"),
    row("pc.ignore_sb", Kind::Bool, "false", NoEffect("only a majority writes, so one of two members stays non-Primary alone; for two servers run `lockstep arbitrator` on a third machine; without a majority, `lockstep bootstrap` makes one member go on alone"), "whether a Galera member stays primary in a split brain").live(),
    row("pc.linger", TIME, "PT20S", NoEffect(BEATS), "Galera's group communication"),
    row("pc.npvo", Kind::Bool, "false", NoEffect(BEATS), "Galera's group communication").live(),
    row("pc.recovery", Kind::Bool, "true", NoEffect("members are always recovered from the log"), "whether Galera recovers its view from disk"),
    row("pc.version", INT, "0", NoEffect(BEATS), "Galera's group communication"),
    row("pc.wait_prim", Kind::Bool, "true", Galera, "whether a start waits for a majority"),
    row("pc.wait_prim_timeout", TIME, "PT30S", Galera, "how long a start waits for a majority; where it is not given, a member whose log names others waits for them without end"),
    row("pc.weight", Kind::Int(0, 255), "1", Sets("member.vote"), "the member's votes: 0 is member.vote = no")
        .refuse(When::Above(1), "a member has one vote or none; for two servers run `lockstep arbitrator` on a third machine; without a majority, `lockstep bootstrap` makes one member go on alone"),
    row("protonet.backend", NAME, "asio", NoEffect(TCP), "Galera's network library"),
    row("protonet.version", INT, "0", NoEffect(TCP), "Galera's network library"),
    row("provider.name", NAME, "Galera", Own, "what wsrep_provider_name says; tools look for Galera"),
    row("repl.causal_read_timeout", TIME, "PT30S", Galera, "how long a causal read (wsrep_sync_wait) waits").live(),
    row("repl.commit_order", Kind::Int(0, 3), "3", NoEffect("commits are always in order"), "which commits Galera puts in order"),
    row("repl.key_format", Kind::Enum(&["FLAT8", "FLAT8A", "FLAT16", "FLAT16A"]), "FLAT8", NoEffect("keys are 64-bit hashes"), "Galera's key format").live(),
    row("repl.max_ws_size", Kind::Size(0, 2_147_483_647), "2147483647", Galera, "the largest write-set, in bytes").live(),
    row("repl.proto_max", INT, "11", NoEffect("members agree on the protocol when they connect"), "Galera's highest protocol version"),
    row("socket.checksum", Kind::Int(0, 2), "2", NoEffect("messages always carry a CRC-32C"), "Galera's message checksum"),
    row("socket.dynamic", Kind::Bool, "", Galera, "with socket.ssl: also take connections that are not encrypted, and dial so where TLS is not understood; for the time in which members are changed one by one").unset(),
    row("socket.non_blocking", INT, "", NoEffect(TCP), "Galera's network library").unset().hide(),
    row("socket.recv_buf_size", NAME, "auto", NoEffect("the system sizes the buffers"), "Galera's socket buffers").live(),
    row("socket.send_buf_size", NAME, "auto", NoEffect("the system sizes the buffers"), "Galera's socket buffers").live(),
    row("socket.ssl", Kind::Bool, "", Galera, "encrypt connections between members (TLS 1.3, both sides show a certificate); yes if a key or certificate is set").unset(),
    row("socket.ssl_ca", NAME, "", Galera, "PEM file of the authorities that members' certificates are checked against; without it that of socket.ssl_cert").unset(),
    row("socket.ssl_cert", NAME, "", Galera, "PEM file of the member's certificate").unset(),
    row("socket.ssl_cipher", NAME, "", NoEffect("members speak TLS 1.3, whose few ciphers are all sound"), "the ciphers to use").unset(),
    row("socket.ssl_compression", Kind::Bool, "", NoEffect("TLS 1.3 does not compress"), "whether TLS compresses").unset(),
    row("socket.ssl_key", NAME, "", Galera, "PEM file of the member's private key, without a password").unset(),
    row("socket.ssl_password_file", NAME, "", NoEffect("keys are without a password"), "the private key's password").unset().refuse(When::Not(""), "a password beside the key protects nothing: write the key without one (openssl pkey -in KEY -out NEW), mode 0600"),
    row("socket.ssl_reload", Kind::Bool, "", Galera, "yes: read certificate, key and authority again, for connections made from now on; so does FLUSH SSL").act(),
    row("status.address", NAME, "", Own, "a TCP address (host:port) that serves the read-only status; none: only the socket in the data directory"),
    row("trx.streaming", Kind::Bool, "no", Own, "whether the server lets clients set wsrep_trx_fragment_size: streaming transactions that collide with others may hang, or lose updates, under any provider"),
];
