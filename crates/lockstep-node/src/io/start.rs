//! The start of a node: the log is opened, sockets are made, the two threads begin.

use crate::api::*;
use crate::io::inbox::Inbox;
use crate::io::links::{DEFAULT_PORT, Links};
use crate::io::log_client::LogClient;
use crate::io::log_queue;
use crate::io::log_upkeep::LogUpkeep;
use crate::io::opened::Opened;
use crate::io::published::Published;
use crate::io::role_swap::RoleSwap;
use crate::io::runtime::Runtime;
use crate::io::server_signals::ServerSignals;
use crate::io::shared::Shared;
use crate::io::threads::{Role, work};
use crate::io::tls::tls_config;
use crate::io::writer::{LogJobs, Writer};
use crate::member::Member;
use crate::queue::Deliveries;
use crate::rescued::Rescued;
use crate::terms::Terms;
use crate::uuids::{random_uuid, timed_uuid};
use crate::wire::Hello;
use bytes::Bytes;
use lockstep_core::raft::{Config, Failpoints, Raft};
use lockstep_core::{Index, Micros, SEQNO_UNDEFINED, Seqno, Uuid};
use lockstep_log::{Disk, Options, RealDisk, Recovered, Shortened, Trimmed};
use lockstep_net::{Address, Reactor, TlsConfig};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::thread::JoinHandle;

/// Limit of entries in memory that the disk has not got. A working disk never falls that far behind, and the limit is
/// little beside a server's memory. A disk that hangs while the process answers would fill it all.
const MAX_UNWRITTEN: usize = 256 << 20;
/// What a leader under a weak policy has answered and no majority has, stays in memory: no more than this, though
/// `async.max_at_risk` transactions may be more.
const MAX_AT_RISK: usize = 256 << 20;

/// A node that runs.
pub(crate) struct Started {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node_thread: JoinHandle<()>,
    pub(crate) log_thread: JoinHandle<()>,
    /// The last seqno that the log held.
    pub(crate) log_end: Seqno,
}

pub(crate) fn start(config: NodeConfig) -> Result<Started, NodeError> {
    let log_dir = config.log_dir.clone().unwrap_or_else(|| config.data_dir.clone());
    let disk =
        RealDisk::with(&log_dir, config.tuning.log_direct).map_err(|e| NodeError::Log(e.to_string()))?;
    let options = Options {
        segment_bytes: config.tuning.segment_bytes,
        new_member_id: random_uuid()?.0,
        ..Options::default()
    };
    let tls = tls_config(&config)?;
    crate::log_quarantine::execute(&disk, &log_dir, &config, tls.clone())?;
    let Opened { log, recovered, builder, marks } = open_log(&disk, options, &config)?;
    let id = Uuid(recovered.identity.member_id);
    // Each connection of this process is a life of its own: the low bits count them.
    let incarnation = recovered.identity.incarnation << 20;
    let vote = lockstep_core::raft::Vote {
        term: recovered.vote.term,
        voted_for: recovered.vote.voted_for.map(Uuid),
    };
    let restored = builder.finish(vote);
    let seed = u64::from_le_bytes(random_uuid()?.0[..8].try_into().unwrap_or_default());
    let tuning = config.tuning.clone();
    let order = Raft::new(
        Config {
            id,
            incarnation,
            heartbeat: tuning.heartbeat.as_micros() as Micros,
            election_timeout: tuning.election_timeout.as_micros() as Micros,
            disk_timeout: tuning.disk_timeout.as_micros() as Micros,
            segment_bytes: tuning.segment_bytes,
            max_append_bytes: 1 << 20,
            max_inflight_bytes: 16 << 20,
            cache_bytes: 64 << 20,
            max_unwritten_bytes: MAX_UNWRITTEN,
            max_at_risk_bytes: MAX_AT_RISK,
            seed,
            failpoints: Failpoints::default(),
        },
        restored,
        0,
    );
    let view_uuid = timed_uuid()?;
    let me = Hello { incarnation, ..Hello::without_log(&config, id, view_uuid) };
    let log_end = match order.last_index() {
        0 => SEQNO_UNDEFINED,
        _ => order.tail_state().seqno,
    };
    let finished = Arc::new(AtomicI64::new(SEQNO_UNDEFINED));
    let mut engine = Member::new(order, me, tuning, finished.clone(), 0);
    engine.set_commit_barrier(config.hold.clone());
    if !config.front_end.is_database() {
        engine.set_front_end(config.front_end);
    }
    let found = Rescued::of_start(&disk, &config.logger, Terms::of(config.front_end));
    engine.rescued_before(found.files.len() as u64, found.transactions);
    for entry in &marks {
        engine.remember(entry);
    }

    let listen = Address::parse(&config.listen, DEFAULT_PORT)
        .map_err(|e| NodeError::Setup(format!("the listen address {} is wrong: {e}", config.listen)))?;
    let reactor = make_reactor(&config, engine.introduction().to_bytes(), seed, tls)?;
    let introduction = engine.introduction();
    let (history, log_id) = (introduction.history, introduction.log_id);
    let histories = engine.own_histories();
    let identity = Identity { member: id, view_uuid, history, log: log_id, incarnation };
    let shared = Arc::new(Shared {
        inbox: Inbox::new(reactor.waker()),
        deliveries: Deliveries::default(),
        published: Published::new(config.tuning.policy, identity, histories),
        signals: ServerSignals::new(finished),
    });
    let (log_jobs, jobs) = log_queue::channel();
    let links = Links::new(listen, config.tls.is_some());
    let upkeep = LogUpkeep::new(log_dir, config.tuning.segment_bytes, log.bytes());
    let swap = Arc::new(RoleSwap::new(Writer::new(log)));
    let client = LogClient::new(log_jobs, swap.clone());
    let runtime = Box::new(Runtime::new(&config, engine, reactor, links, upkeep, client, shared.clone()));
    let spawn = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(|e| NodeError::Setup(format!("thread {name} cannot be started: {e}")))
    };
    let begin = |role: Role| {
        let (swap, shared, logger) = (swap.clone(), shared.clone(), config.logger.clone());
        Box::new(move || work(role, &swap, &shared, &logger)) as Box<dyn FnOnce() + Send>
    };
    let log_thread = spawn("ls-log", begin(Role::Log(LogJobs::new(jobs))))?;
    let node_thread = spawn("ls-node", begin(Role::Node(runtime)))?;
    Ok(Started { shared, node_thread, log_thread, log_end })
}

/// Opens the log. If only old segments are damaged, the log goes on without them. Another damaged log is set aside where
/// the configuration allows it.
fn open_log<D: Disk>(disk: &D, options: Options, config: &NodeConfig) -> Result<Opened<D>, NodeError> {
    let opened = match Opened::new(disk, options.clone()) {
        Err(error) if error.is_loss() && config.may_begin_anew => {
            // Under its old identity this member may have voted, and acknowledged entries that are lost now. So that identity
            // must not be used again.
            let aside = lockstep_log::quarantine(disk).map_err(|e| NodeError::Log(e.to_string()))?;
            let text = format!(
                "this member cannot vouch for what it had acknowledged: {error}. What is left of its log is set \
                 aside as {aside}.*; it comes back under a new identity and takes from the others what it lacks"
            );
            (config.logger)(Level::Warn, &text);
            Opened::new(disk, options)
        }
        opened => opened,
    };
    let opened = opened.map_err(|e| NodeError::Log(e.to_string()))?;
    if let Some(cut) = &opened.recovered.cut {
        let text = format!(
            "the log ends in a torn write, which nobody relied on: {} is cut at {} ({})",
            cut.file, cut.offset, cut.reason
        );
        (config.logger)(Level::Info, &text);
    }
    if let Some(trimmed) = &opened.recovered.trimmed {
        (config.logger)(Level::Warn, &trimmed_text(trimmed, opened.recovered.start.0));
    }
    if let Some(text) = shortened_text(&opened.recovered) {
        (config.logger)(Level::Warn, &text);
    }
    Ok(opened)
}

fn trimmed_text(trimmed: &Trimmed, upto: Index) -> String {
    let Trimmed { damage, aside, files } = trimmed;
    let aside = match (aside, &files[..]) {
        (Some(aside), [first, .., last]) => format!("{first} to {last} are set aside as {aside}.*"),
        (Some(aside), _) => format!("{} is set aside as {aside}.*", files.join(", ")),
        (None, _) => "Nothing else of it was left".to_owned(),
    };
    format!(
        "the old part of this member's log is damaged: {}. {aside}. The log begins after index {upto} now. All entries \
         up to there are committed, so other members have them, and this member keeps its identity and its vote. \
         If its data are older than the log, they are replaced by a state transfer. Check the disk",
        damage.join(", ")
    )
}

fn shortened_text(recovered: &Recovered) -> Option<String> {
    let (end, former) = (recovered.last.0, recovered.former_end?);
    let what = match &recovered.shortened {
        Some(Shortened { damage, aside }) => format!(
            "this member's log is damaged near its end: {damage}{}. What is before the damage stays, up to index {end}. Check \
             the disk",
            aside
                .as_ref()
                .map_or(String::new(), |aside| format!("; later segments are set aside as {aside}.*"))
        ),
        None => format!("this member's log, which damage has shortened, ends at index {end}"),
    };
    Some(format!(
        "{what}. The log had ended at index {} of term {}. This member keeps its identity. Until its log reaches that again, \
         this member votes only for members whose logs reach that, and does not lead; a leader sends it what is missing",
        former.0, former.1
    ))
}

/// Makes the sockets of the status service, and the reactor for all.
fn make_reactor(
    config: &NodeConfig,
    hello: Bytes,
    seed: u64,
    tls: Option<TlsConfig>,
) -> Result<Reactor, NodeError> {
    let mut net = lockstep_net::Config::new("", hello, seed);
    // The largest entry must fit into a frame, and a few of them into a queue.
    net.proto.max_frame = 192 << 20;
    net.proto.send_queue_max = 512 << 20;
    net.tls = tls;
    let mut reactor =
        Reactor::new(net).map_err(|e| NodeError::Setup(format!("the network cannot be used: {e}")))?;
    let socket = config.data_dir.join("lockstep.sock");
    if let Err(error) = reactor.serve_unix(&socket) {
        let text = format!("no status socket: {error}; `lockstep status` will not work here");
        (config.logger)(Level::Warn, &text);
    }
    if let Some(address) = &config.status_address {
        let address = Address::parse(address, 0)
            .map_err(|e| NodeError::Setup(format!("status.address {address} is wrong: {e}")))?;
        reactor.serve_tcp(&address).map_err(|e| NodeError::Setup(format!("status.address: {e}")))?;
    }
    Ok(reactor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records;
    use crate::testing::config;
    use lockstep_core::members::{MemberInfo, Membership, Role};
    use lockstep_core::raft::LogEnd;
    use lockstep_core::snapshot::{StateSnapshot, TrimMark};
    use lockstep_core::{Entry, EntryHeader, EntryKind, ProposalId};
    use lockstep_log::{Log, MemDisk, WriteOp};
    use std::path::Path;
    use std::sync::Mutex;

    const SECOND: &str = "lockstep.0000000000000002.log";

    /// Three segments of three entries: two write-sets and a trim mark up to the second one. `committed` is known to be.
    fn log_of_three_segments(committed: Index) -> MemDisk {
        log_of(committed, Membership::default())
    }

    fn log_of(committed: Index, membership: Membership) -> MemDisk {
        let disk = MemDisk::new();
        let options = Options { new_member_id: [1; 16], ..Options::default() };
        let (mut log, _) = Log::open(disk.clone(), options, &mut |_| Ok(())).unwrap();
        let mut state = StateSnapshot::genesis(Uuid([2; 16]), 0, membership);
        log.write(WriteOp { reset: Some(records::reset(&state)), ..WriteOp::default() }).unwrap();
        for _ in 0..3 {
            let roll = (state.index > 0).then(|| state.to_bytes());
            let mut entry = |kind: EntryKind| {
                let seqno = state.seqno + kind.takes_seqno() as i64;
                let payload = match kind {
                    EntryKind::Trim => {
                        TrimMark { trim: seqno, verdicts_to: seqno, failed: Vec::new() }.to_payload()
                    }
                    _ => Bytes::from_static(b"row"),
                };
                let (index, proposal) = (state.index + 1, ProposalId::default());
                let entry =
                    Entry::new(EntryHeader { index, term: 1, kind, seqno, proposal, time: 0 }, &payload);
                state.apply(&entry).unwrap();
                records::record(&entry)
            };
            let records = [EntryKind::WriteSet, EntryKind::WriteSet, EntryKind::Trim].map(&mut entry);
            log.write(WriteOp { roll, records: records.to_vec(), ..WriteOp::default() }).unwrap();
        }
        log.sync().unwrap();
        log.note_committed(committed).unwrap();
        log.close().unwrap();
        disk
    }

    /// Opens the log with its second segment damaged. The member's id, the index at which the log begins, and the lines of
    /// the error log.
    fn opened_with_damage(committed: Index) -> ([u8; 16], Index, Vec<(Level, String)>) {
        let disk = log_of_three_segments(committed);
        assert!(disk.corrupt(SECOND, 20, 1));
        let (Opened { recovered, .. }, lines) = opened(&disk);
        (recovered.identity.member_id, recovered.start.0, lines)
    }

    fn opened(disk: &MemDisk) -> (Opened<MemDisk>, Vec<(Level, String)>) {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let logger = Arc::new(move |level, text: &str| kept.lock().unwrap().push((level, text.to_owned())));
        let config = NodeConfig { logger, ..config(Path::new("unused")) };
        let options = Options { new_member_id: [9; 16], ..Options::default() };
        let opened = open_log(disk, options, &config).unwrap();
        let lines = lines.lock().unwrap().clone();
        (opened, lines)
    }

    #[test]
    fn member_with_old_segment_damaged_keeps_identity() {
        let (id, begins, lines) = opened_with_damage(9);
        assert_eq!((id, begins), ([1; 16], 6));
        let [(Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("lockstep.0000000000000002.log is corrupt at byte 0"), "{line}");
        assert!(
            line.contains(
                "lockstep.0000000000000001.log to lockstep.0000000000000002.log are set aside as lockstep.damaged.1.*"
            ),
            "{line}"
        );
        assert!(line.contains("begins after index 6"), "{line}");
    }

    /// The mark before the last committed one is at seqno 2, and the third segment begins after seqno 4.
    #[test]
    fn damage_that_certification_needs_gives_up_log() {
        let (id, begins, lines) = opened_with_damage(8);
        assert_eq!((id, begins), ([9; 16], 0));
        let [(Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("cannot vouch for what it had acknowledged"), "{line}");
    }

    /// With two voters, this member the first, and the last record of the second segment damaged.
    fn damaged_near_end(voters: &[u8]) -> MemDisk {
        let voter = |n: &u8| MemberInfo {
            id: Uuid([*n; 16]),
            name: format!("n{n}"),
            address: String::new(),
            zone: 0,
            role: Role::Voter,
            wants_vote: true,
            arbitrator: false,
        };
        let disk = log_of(4, Membership { members: voters.iter().map(voter).collect() });
        let last = disk.contents(SECOND).unwrap().iter().rposition(|byte| *byte != 0).unwrap();
        assert!(disk.corrupt(SECOND, last as u64, 1));
        disk
    }

    #[test]
    fn member_with_log_damaged_near_end_keeps_identity() {
        let disk = damaged_near_end(&[1, 3]);
        for is_first in [true, false] {
            let (Opened { log, recovered, builder, .. }, lines) = opened(&disk);
            drop(log);
            disk.kill();
            assert_eq!((recovered.identity.member_id, recovered.last.0), ([1; 16], 5));
            let restored = builder.finish(Default::default()).unwrap();
            assert_eq!(restored.former_end, Some(LogEnd { term: 1, index: 9 }));
            assert_eq!(restored.last_index(), 5);
            let [(Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
            assert_eq!(line.contains("lockstep.0000000000000002.log is corrupt at byte"), is_first, "{line}");
            assert!(line.contains("The log had ended at index 9 of term 1"), "{line}");
        }
    }

    #[test]
    fn only_voter_with_log_damaged_near_end_gives_it_up() {
        let (Opened { recovered, .. }, lines) = opened(&damaged_near_end(&[1]));
        assert_eq!(recovered.identity.member_id, [9; 16]);
        let [(Level::Warn, line)] = &lines[..] else { panic!("{lines:?}") };
        assert!(line.contains("cannot vouch for what it had acknowledged"), "{line}");
    }
}
