//! The API for front ends: start a node, connect it, submit to the log, take deliveries from it.
//!
//! A front end's threads are its own; the node has two (`ls-node`, `ls-log`). A thread that submits waits in
//! [`crate::Submission::wait`] and is woken exactly once, when its entry has been ordered and certified. Threads that take
//! deliveries call [`crate::Node::next`].

use crate::metric::Metric;
use bytes::Bytes;
use lockstep_core::members::ViewMember;
use lockstep_core::policy::Policy;
use lockstep_core::writeset::WriteSet;
use lockstep_core::{EntryKind, Gtid, MemberId, Micros, Seqno, Uuid, ViewUuid};
use lockstep_net::TlsFiles;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Submissions up to this size are ordered as they were submitted. Smaller ones may overtake larger ones.
pub const IN_ORDER_BYTES: usize = 1 << 20;

/// How serious a line of the log is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// The node cannot continue.
    Error,
    /// An operator should look.
    Warn,
    /// An event of normal operation.
    Info,
    /// Details for the search of a fault (`debug = yes`).
    Debug,
}

/// Receives the lines of the log. Called on the node's own threads; must not block for long.
pub type Logger = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// Supplies the front end's numbers for the metrics.
pub type FrontEndStats = Arc<dyn Fn() -> Vec<Metric> + Send + Sync>;

/// Supplies the front end's part of the status page.
pub type FrontEndStatus = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Receives the progress of catching up: the number of seqnos, and of those done. Called on `ls-node`: must not block.
pub type ProgressCall = Arc<dyn Fn(Seqno, Seqno) + Send + Sync>;

/// Receives an event for the server, a JSON object. Called on `ls-node`: must not block.
pub type EventCall = Arc<dyn Fn(&str) + Send + Sync>;

/// Receives each new commit policy when it is in force.
pub type PolicyCall = Arc<dyn Fn(&Policy) + Send + Sync>;

/// Why the node asks the front end to end the server's process: only a new process can continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerEnd {
    /// The database has transactions that the cluster lacks. They are in a rescue file.
    Diverged,
    /// The log does not reach back to the database's position, and a running server cannot take a copy.
    NeedsState,
    /// The log cannot be written or read; or its disk was full, and accepts writes again. The database is intact.
    LogFailed,
    /// This process cannot apply an entry that a new one applies. The database is intact.
    RepeatsFromLog,
    /// A write of the log has not ended for long, and the others go on. The database is intact.
    DiskHangs,
    /// The member yields to a branch and takes its state at the next start. If no member of the branch answers then, it
    /// continues with its own, complete data.
    YieldedToBranch,
    /// The log went back in time. The next start quarantines it, and the member returns as a new one.
    LogReverted {
        /// The database was ahead of the log, so that it may have transactions that the cluster lacks. It cannot be used any
        /// more.
        needs_state: bool,
    },
}

/// Ends the server's process. Receives the reason, and a text for the log. Called once: on `ls-node`, or on a thread of its
/// own if the log's disk was full or hangs. The node has failed by then and refuses all calls. Need not return.
pub type EndServer = Arc<dyn Fn(ServerEnd, &str) + Send + Sync>;

/// Whether a peer of this IP address may be a member. Called on a short-lived thread, so it may block. Meanwhile the last
/// answer counts, and the connection of an unknown peer waits.
pub type AllowCheck = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// The taker of a member's deliveries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FrontEnd {
    /// A database. It takes the entries after its position, or the state of another member.
    #[default]
    Database,
    /// A program without a database that takes the entries after its position, for instance to stream them as a binlog.
    /// It takes only what Raft has committed, and learns the results of statements ([`Delivery::Result`]). No state can be
    /// transferred to it: [`Delivery::StateNeeded`] means that the log lacks what follows its position.
    Reader {
        /// Where the deliveries begin without a position.
        begins: Beginning,
        /// Whether its consumers wait for each entry. Then this member does not defer the sync of its log, because it
        /// delivers only entries on its own disk.
        prompt: bool,
    },
    /// A program that keeps a copy of data without a database, such as a block device. It is a member with data: it may lead,
    /// and its state may be transferred. It takes only what Raft has committed, its own entries among the others' (see
    /// [`crate::Node::submit_with`]). Without a position it begins at the beginning of a log that has lost nothing.
    Device,
    /// Nothing: an arbitrator. An entry is finished once it is committed, and none is delivered.
    Nothing,
}

/// Where the deliveries to a reader of the log begin, if it has no position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beginning {
    /// After the last multiple of this seqno, or at the beginning of a log that has lost nothing. Where the log does not
    /// reach back to either, the member waits for the next multiple. At least 1.
    MultipleOf(Seqno),
    /// As early as the log reaches back.
    Earliest,
}

impl FrontEnd {
    /// Whether this is a database.
    pub fn is_database(self) -> bool {
        self == FrontEnd::Database
    }

    /// Whether it keeps a copy of the data. A member that does not is an arbitrator to the others.
    pub fn keeps_data(self) -> bool {
        matches!(self, FrontEnd::Database | FrontEnd::Device)
    }

    /// Whether a deferred sync of this member's log would delay its consumers.
    pub(crate) fn is_prompt(self) -> bool {
        matches!(self, FrontEnd::Reader { prompt: true, .. })
    }

    /// Whether it takes entries only once they are committed, also under a weak policy.
    pub(crate) fn takes_committed_only(self) -> bool {
        matches!(self, FrontEnd::Reader { .. } | FrontEnd::Device)
    }
}

/// Configuration of a node.
#[derive(Clone)]
pub struct NodeConfig {
    /// `wsrep_node_name`, at most 31 bytes.
    pub name: String,
    /// The directory of the log, the identity and the socket.
    pub data_dir: PathBuf,
    /// The directory of the log if it is another one (`log.dir`).
    pub log_dir: Option<PathBuf>,
    /// The address to listen on for peers: `tcp://host:port`, `host:port` or `host`.
    pub listen: String,
    /// The address advertised to peers (`host:port`).
    pub address: String,
    /// The server's address for clients (`wsrep_node_incoming_address`).
    pub incoming: String,
    /// `member.zone`, `gmcast.segment`.
    pub zone: u8,
    /// `member.vote`; false also for `pc.weight = 0`.
    pub wants_vote: bool,
    /// Whether to quarantine a damaged or lost log, so that this member returns as a new one. False for a founder, because
    /// it would split from the members that have the lost entries.
    pub may_begin_anew: bool,
    /// The taker of this member's deliveries.
    pub front_end: FrontEnd,
    /// False for `gcs.stateless`: the member is never chosen to copy its state. A member without a database never is, also
    /// if this is true.
    pub donates: bool,
    /// Timing and sizes.
    pub tuning: Tuning,
    /// Encryption of connections between members; `None`: none.
    pub tls: Option<TlsOptions>,
    /// `status.address`: a TCP address for read-only status, if any.
    pub status_address: Option<String>,
    /// Receives the log's lines.
    pub logger: Logger,
    /// Numbers of the front end that are served with the node's (called on `ls-node`: takes no lock for long).
    pub front_end_stats: Option<FrontEndStats>,
    /// The front end's part of the status page (called on `ls-node`: takes no lock for long).
    pub front_end_status: Option<FrontEndStatus>,
    /// Stops the front end's commits at a barrier; `None`: the front end has no commits.
    pub hold: Option<Arc<dyn CommitBarrier>>,
    /// The check of the allow-list; `None`: every peer that knows the cluster's name is accepted.
    pub allowed: Option<AllowCheck>,
    /// Progress callback on the way to Synced: called at the begin, once a second, and at the end.
    pub progress: Option<ProgressCall>,
    /// Event callback.
    pub event: Option<EventCall>,
    /// Called on `ls-node` when another policy is in force; must not block.
    pub policy_changed: Option<PolicyCall>,
    /// Ends the server's process; `None`: there is no server.
    pub end_server: Option<EndServer>,
}

/// A member of the present view, by this member's knowledge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberNow {
    /// Its identity in views.
    pub view_uuid: ViewUuid,
    /// `wsrep_node_name`.
    pub name: String,
    /// Its address for clients.
    pub incoming: String,
    /// Its state; `None`: not reported yet.
    pub state: Option<LocalState>,
    /// The last seqno finished by its server; −1 if unknown.
    pub finished: Seqno,
    /// Whether it leads.
    pub leader: bool,
    /// Whether it is an arbitrator, without a database.
    pub arbitrator: bool,
}

/// The members of the present view and their states. Not ordered with deliveries, unlike delivered views.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MembershipNow {
    /// The history and the last committed seqno.
    pub gtid: Gtid,
    /// Whether there is a majority.
    pub status: ViewStatus,
    /// The members of the view.
    pub members: Vec<MemberNow>,
}

/// `socket.ssl*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsOptions {
    /// Certificate, key, authority.
    pub files: TlsFiles,
    /// `socket.dynamic`: also accept connections without encryption, and dial peers that do not know TLS without it.
    pub dynamic: bool,
}

/// Stops a front end's commits for a moment. Called on `ls-node`; must not block.
pub trait CommitBarrier: Send + Sync {
    /// Lets no further seqno begin its commit. Returns the last one that has begun.
    fn close(&self) -> Seqno;
    /// Lets all seqnos up to this one begin.
    fn until(&self, seqno: Seqno);
    /// Lets all seqnos begin. Returns whether the barrier had held until then.
    fn open(&self) -> bool;
}

/// What a member's server may apply in parallel (`apply.order`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ApplyOrder {
    /// Write-sets that have no row in common.
    #[default]
    Writeset,
    /// Write-sets that have no database in common.
    Schema,
    /// Nothing.
    Serial,
}

impl ApplyOrder {
    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            ApplyOrder::Writeset => "writeset",
            ApplyOrder::Schema => "schema",
            ApplyOrder::Serial => "serial",
        }
    }
}

/// The last entry that a member's server applies (`apply.until`), inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// This seqno, in any history.
    Seqno(Seqno),
    /// This seqno of this history.
    Gtid(Gtid),
    /// The entries appended up to this time, in µs since 1970.
    Time(Micros),
}

/// Entries held back from a member's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApplyHold {
    /// Everything (`apply.paused`).
    pub paused: bool,
    /// Entries younger than this (`apply.delay`); zero: none.
    pub delay: Duration,
    /// Entries after this (`apply.until`).
    pub until: Option<Until>,
}

impl ApplyHold {
    /// Whether entries are held back now or may be later.
    pub fn is_set(&self) -> bool {
        *self != ApplyHold::default()
    }
}

/// Which connections carry compressed messages (`net.compress`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compress {
    /// None.
    #[default]
    Off,
    /// Those to members of other zones.
    Zone,
    /// All.
    All,
}

/// Timing and sizes, from the options.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// `net.heartbeat`.
    pub heartbeat: Duration,
    /// `cluster.election_timeout`, randomised to twice that.
    pub election_timeout: Duration,
    /// `cluster.evict_timeout`.
    pub evict_timeout: Duration,
    /// `leader.disk_timeout`; zero: never.
    pub disk_timeout: Duration,
    /// `leader.apply_timeout`; zero: never.
    pub apply_timeout: Duration,
    /// `net.compress`.
    pub compress: Compress,
    /// `net.relay`.
    pub relay: bool,
    /// `leader.follow_writer`.
    pub follow_writer: bool,
    /// `log.segment`, bytes.
    pub segment_bytes: u64,
    /// `log.direct`.
    pub log_direct: bool,
    /// `log.size`, bytes: trimmed above this.
    pub log_bytes: u64,
    /// `log.max_size`, bytes.
    pub log_max_bytes: u64,
    /// `log.keep_min`.
    pub log_keep: Duration,
    /// `apply.lag_limit`, entries.
    pub lag_limit: u64,
    /// `apply.order`.
    pub apply_order: ApplyOrder,
    /// `apply.pace`; zero: off.
    pub apply_pace: Duration,
    /// `apply.paused`, `apply.delay`, `apply.until`.
    pub apply_hold: ApplyHold,
    /// Apply holds set at run time that override the configuration, as texts for people.
    pub apply_kept: Vec<String>,
    /// `gcs.vote_policy`: this number of members that applied an entry outvotes all others; 0: the most frequent result wins.
    pub vote_policy: usize,
    /// `commit.*` and `async.*`: the first policy of a cluster that this member founds.
    pub policy: Policy,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            heartbeat: Duration::from_millis(100),
            election_timeout: Duration::from_millis(600),
            evict_timeout: Duration::from_secs(300),
            disk_timeout: Duration::from_secs(5),
            apply_timeout: Duration::from_secs(30),
            compress: Compress::default(),
            relay: true,
            follow_writer: true,
            segment_bytes: 64 << 20,
            log_direct: true,
            log_bytes: 1 << 30,
            log_max_bytes: 8 << 30,
            log_keep: Duration::from_secs(600),
            lag_limit: 10_000,
            apply_order: ApplyOrder::default(),
            apply_pace: Duration::ZERO,
            apply_hold: ApplyHold::default(),
            apply_kept: Vec::new(),
            vote_policy: 0,
            policy: Policy::default(),
        }
    }
}

/// A limit on the transactions of a member's clients (`apply.pace`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// The time that is to pass between two submissions.
    pub interval: Duration,
    /// A transaction waits no longer than this for its turn.
    pub longest_wait: Duration,
}

/// How to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectArgs {
    /// `wsrep_cluster_name`.
    pub cluster: String,
    /// Peers to try, `host:port` each, from `wsrep_cluster_address`.
    pub peers: Vec<String>,
    /// Whether to found a new cluster.
    pub bootstrap: bool,
    /// The database's position ([`Gtid::UNDEFINED`] if unknown): later entries of the log are delivered. If it is unknown,
    /// or older than the log, the state is transferred. With `bootstrap`, the new history continues from here (a database
    /// that comes from Galera keeps its GTIDs).
    pub position: Gtid,
    /// Whether the data of a device count for nothing, although there are some: without a position, the state of another member
    /// is needed even where the log begins with an empty device.
    pub needs_state: bool,
    /// The id of the log with which the database reached its position ([`lockstep_core::snapshot::StateSnapshot::log_id`]);
    /// nil if unknown. It need not be this member's own log: a member that was killed between its new log and the transfer
    /// of its state has the data of another one.
    pub log: Uuid,
    /// The log that the database has followed to its position, if this process has not been connected yet and that is known.
    pub followed: Option<FollowedLog>,
    /// Whether to continue from the position through a donor's script that copies nothing ("bypass"), if there is a donor.
    /// Only this script gives the server the domain of the cluster's GTIDs (`wsrep_gtid_mode`).
    pub by_donor: bool,
    /// How long to wait for a primary component (`pc.wait_prim_timeout`).
    pub timeout: Duration,
    /// Whether to wait without a limit if the own log names other voters. After an outage of all members their machines
    /// return at different times, and a server that gave up would need an operator.
    pub waits_for_others: bool,
    /// The seqno of an in-doubt statement: it follows the position, and this member cannot tell whether the database has it.
    /// This member takes the state of a member that knows. If no member knows, the statement is delivered.
    pub in_doubt: Option<Seqno>,
}

/// The log of a member, as a process had opened it. A database has *followed* it if it has got no entry that was not in that
/// log, durably. So a log that now ends before the database's position has gone back in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FollowedLog {
    /// The member.
    pub member: MemberId,
    /// The process's [`Identity::incarnation`].
    pub incarnation: u64,
}

/// Why a node does not start or connect. The text names the problem and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeError {
    /// The configuration or the environment: a port taken, a directory not writable, a bad address.
    Setup(String),
    /// The log folder: damaged, of a newer version, of another member, in use.
    Log(String),
    /// The cluster refused this member: another cluster's name, the name is taken, a protocol too old.
    Refused(String),
    /// No primary component within the time.
    Timeout(String),
    /// The call does not fit the node's state (connect twice, submit before connect).
    State(&'static str),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::Setup(text)
            | NodeError::Log(text)
            | NodeError::Refused(text)
            | NodeError::Timeout(text) => f.write_str(text),
            NodeError::State(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for NodeError {}

/// The status of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewStatus {
    /// The view has the majority.
    Primary,
    /// The view has no majority, or this member is cut off.
    NonPrimary,
    /// The last view before [`Delivery::Closed`].
    Disconnected,
}

/// A view in the form for the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewInfo {
    /// Its position in the history. A non-Primary view has the seqno of the last delivery.
    pub gtid: Gtid,
    /// The seqno before it. Usually one less; a view of the log may leave seqnos out.
    pub before: Seqno,
    /// `wsrep_cluster_conf_id`; −1 unless Primary.
    pub number: i64,
    /// The status.
    pub status: ViewStatus,
    /// The members, the leader first.
    pub members: Vec<ViewMember>,
    /// This member's index in `members`; `None` in a view without this member.
    pub my_index: Option<usize>,
    /// Of an entry of the log: the leader's wall clock at the append, in µs since 1970.
    pub time: Option<Micros>,
}

impl ViewInfo {
    /// The final view of a member that has left, with its database at this position.
    pub fn disconnected(gtid: Gtid) -> ViewInfo {
        ViewInfo {
            gtid,
            before: gtid.seqno,
            number: -1,
            status: ViewStatus::Disconnected,
            members: Vec::new(),
            my_index: None,
            time: None,
        }
    }
}

/// A write-set or statement in total order, with its seqno.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// Its seqno; the history is that of the last Primary view.
    pub seqno: Seqno,
    /// [`EntryKind::WriteSet`] or [`EntryKind::TotalOrder`].
    pub kind: EntryKind,
    /// Certification's verdict, the same on every member. A failed one still takes its turn in commit order.
    pub pass: bool,
    /// All seqnos up to this one must have finished before this one may be applied.
    pub depends_on: Seqno,
    /// Whether these must also be on disk before this one is applied (`apply.order=serial`).
    pub serial: bool,
    /// The member that proposed it.
    pub origin: MemberId,
    /// The leader's wall clock at the append, in µs since 1970. It may be before that of an earlier entry.
    pub time: Micros,
    /// The write-set, its pieces put together.
    pub writeset: WriteSet,
}

/// The result of a statement in total order, as a server has reported it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatementResult {
    /// The statement's seqno.
    pub seqno: Seqno,
    /// The server's error, which all members had; `None`: it succeeded.
    pub error: Option<String>,
}

/// The result of a submission.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are of the large one; a box would cost each commit an allocation"
)]
pub enum SubmitOutcome {
    /// The entry is ordered, and belongs to the waiting thread.
    Ordered(Ordered),
    /// The entry was not sent to any member, so it will never be ordered.
    NotSent,
    /// As [`SubmitOutcome::NotSent`]: the write-set is larger than the largest entry of the log.
    TooLarge,
    /// Unknown: the majority or the connection was lost meanwhile. If the log has the entry after all, it is delivered like
    /// an entry of another member.
    Unknown,
}

/// A delivery to the front end, in order. All kinds except [`Delivery::Ordered`] are exclusive: the front end handles one
/// after all earlier deliveries have finished. The node hands out no later delivery until the front end has called
/// [`crate::Node::handled`]. [`Delivery::Closed`] needs no such call.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The node has joined the cluster's log (`connected_cb`), with the newest view that contains this member. The first
    /// delivery; repeated when this member's view UUID has changed.
    Connected(ViewInfo),
    /// The log does not reach back to the database's position. The front end gets a state-transfer request from the server
    /// (`sst_request_cb`), passes it to [`crate::Node::request_state`], and continues to take deliveries. Until
    /// [`crate::Node::state_received`] these are only non-Primary views.
    StateNeeded {
        /// The database is complete and stays as it is. Only the output of the donor's script is needed.
        bypass: bool,
    },
    /// A view.
    View {
        /// The view.
        info: ViewInfo,
        /// Whether the view is an entry of the log: it has its own seqno, and takes its turn in apply and commit order. A
        /// Primary view at exactly the database's position, and a non-Primary view, are no entries.
        in_log: bool,
    },
    /// An entry of another member, or an own one whose thread no longer waits for it.
    Ordered(Ordered),
    /// The result of a statement in total order, once a server has executed it. For [`FrontEnd::Reader`] only, after the
    /// statement; repeated if several servers have reported it.
    Result(StatementResult),
    /// This member is to donate its state (`sst_donate_cb`) at its last finished seqno, then to call
    /// [`crate::Node::donation_done`]. From now until then it is Donor.
    Donate {
        /// The number to pass to `donation_done`.
        id: u64,
        /// The joiner's request, as its server made it.
        request: Bytes,
        /// The joiner's name, for the log.
        joiner: String,
        /// Donate nothing below this seqno (already reached when this is delivered).
        at_least: Seqno,
        /// Send only this position ("bypass"): the joiner continues from it by the log.
        bypass: Option<Gtid>,
    },
    /// The requested state transfer has failed: there is no donor, or the donor failed. The text is for the log. The node
    /// tries again only if `request_state` is called again.
    StateFailed(String),
    /// The node has failed, and has logged this text. The front end leaves. If the database is the reason,
    /// [`Delivery::StateFailed`] precedes.
    Failed(String),
    /// A vote has shown that this member's data differ from the other members'. The node has logged this text. The front end
    /// stops using the data, and leaves.
    Inconsistent(String),
    /// This member has caught up (`synced_cb`).
    Synced,
    /// No delivery follows.
    Closed,
}

impl Delivery {
    /// Whether the front end handles it after all earlier deliveries, and before all later ones.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        !matches!(self, Delivery::Ordered(_))
    }
}

/// The result of [`crate::Node::vote`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// The other members have the same error: this member continues.
    Agreed,
    /// The other members succeeded: this member's data differ, or it has a fault.
    Inconsistent,
    /// The vote has no outcome yet.
    Open,
    /// This member leaves or has failed, so the vote will have no outcome.
    NoOutcome,
}

/// The thread waiting for the outcome of a vote.
pub(crate) struct VoteReply(pub(crate) Arc<crate::reply::Reply<Vote>>);

impl VoteReply {
    /// Passes on the outcome: whether it equals this member's own opinion. Returns false if no thread waits for it.
    pub(crate) fn answer(&self, same: bool) -> bool {
        self.0.offer(if same { Vote::Agreed } else { Vote::Inconsistent })
    }

    /// The vote will have no outcome.
    pub(crate) fn none(&self) {
        self.0.offer(Vote::NoOutcome);
    }
}

/// `wsrep_local_state`, as the node keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LocalState {
    /// Not connected, or no primary component.
    Initialized = 0,
    /// Waiting for state.
    Joining = 1,
    /// Donating, or desynced by the user or by lag.
    Donor = 2,
    /// Has the state, catches up.
    Joined = 3,
    /// Caught up.
    Synced = 4,
    /// Inconsistent; must not continue.
    Error = 5,
}

/// This member's identity towards its server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// In the log.
    pub member: MemberId,
    /// In the views of servers; new at each connect.
    pub view_uuid: ViewUuid,
    /// The history; nil before the first view.
    pub history: Uuid,
    /// The log id; nil without a log.
    pub log: Uuid,
    /// The process's first incarnation. The log counts them: a later process has a higher one.
    pub incarnation: u64,
}

/// The text of `wsrep_local_state_comment`.
pub fn state_comment(state: LocalState) -> &'static str {
    match state {
        LocalState::Initialized => "Initialized",
        LocalState::Joining => "Joining: receiving State Transfer",
        LocalState::Donor => "Donor/Desynced",
        LocalState::Joined => "Joined",
        LocalState::Synced => "Synced",
        LocalState::Error => "Inconsistent",
    }
}
