//! Log quarantine: the request to set a member's log aside at its next start, because another branch has replaced its own,
//! or because it went back in time. A file stores the request, because the log is open as long as the process runs.
//!
//! A reverted log is set aside in any case. A branch may have been given up by the operator meanwhile: then the request is
//! executed only if a member of that branch answers at the start. Otherwise it is dropped, and made again when the member
//! meets the branch later. Entries that the branch lacks go to a rescue file first.

use crate::api::{Level, NodeConfig, NodeError};
use crate::effect::{QuarantineRequest, Superseded};
use crate::records;
use crate::rescued::is_transaction;
use crate::terms::Terms;
use crate::uuids::random_uuid;
use crate::wire::Hello;
use lockstep_core::raft::{RestoreBuilder, Restored, Vote};
use lockstep_core::{Index, Uuid};
use lockstep_log::{Disk, Log, OpenError, Options, RealDisk, Replay};
use lockstep_net::{Address, Event, Reactor, Reason, TlsConfig};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// The file's name. State-transfer scripts keep files with this ending.
const FILE: &str = "lockstep.branch.log";
/// The first line of the request to give up a log for a branch.
const SUPERSEDED: &str = "lockstep branch 1";
/// The first line of the request to give up a log that went back in time.
const REVERTED: &str = "lockstep reverted 1";
/// How long a start waits for an answer of the branch.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

impl QuarantineRequest {
    fn to_text(&self) -> String {
        match self {
            QuarantineRequest::Superseded(superseded) => {
                let Superseded { member, own: (history, log_id), branch, fork, cluster, address, why } =
                    superseded;
                format!(
                    "{SUPERSEDED}\nmember {member}\nhistory {history}\nlog {log_id}\nbranch {branch}\nfork {fork}\n\
                     cluster {cluster}\naddress {address}\nwhy {why}\n"
                )
            }
            QuarantineRequest::Reverted { member, why } => {
                format!("{REVERTED}\nmember {member}\nwhy {why}\n")
            }
        }
    }

    fn from_text(text: &str) -> Option<QuarantineRequest> {
        let mut lines = text.lines();
        let first = lines.next()?;
        let mut next = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned);
        match first {
            SUPERSEDED => Some(QuarantineRequest::Superseded(Superseded {
                member: Uuid::parse(&next("member")?)?,
                own: (Uuid::parse(&next("history")?)?, Uuid::parse(&next("log")?)?),
                branch: Uuid::parse(&next("branch")?)?,
                fork: next("fork")?.parse().ok()?,
                cluster: next("cluster")?,
                address: next("address")?,
                why: next("why")?,
            })),
            REVERTED => Some(QuarantineRequest::Reverted {
                member: Uuid::parse(&next("member")?)?,
                why: next("why")?,
            }),
            _ => None,
        }
    }

    fn why(&self) -> &str {
        match self {
            QuarantineRequest::Superseded(superseded) => &superseded.why,
            QuarantineRequest::Reverted { why, .. } => why,
        }
    }
}

/// Writes the request, durably.
///
/// # Errors
/// A line for people.
pub(crate) fn request(dir: &Path, request: &QuarantineRequest) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(dir.join(FILE))?;
        file.write_all(request.to_text().as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|error| format!("{} cannot be written: {error}", dir.join(FILE).display()))
}

/// Reads the request, if there is one; `Some(None)` if it is invalid.
///
/// # Errors
/// A line for people.
fn requested(dir: &Path) -> Result<Option<Option<QuarantineRequest>>, String> {
    match std::fs::read(dir.join(FILE)) {
        Ok(text) => Ok(Some(QuarantineRequest::from_text(&String::from_utf8_lossy(&text)))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {error}", dir.join(FILE).display())),
    }
}

/// Removes the request, executed or not. After a crash before this, it is executed again on an empty log.
///
/// # Errors
/// A line for people.
fn done(dir: &Path) -> Result<(), String> {
    std::fs::remove_file(dir.join(FILE))
        .and_then(|()| std::fs::File::open(dir)?.sync_all())
        .map_err(|error| format!("{} cannot be removed: {error}", dir.join(FILE).display()))
}

/// Executes the request before the log is opened, if a member of the branch answers.
///
/// # Errors
/// [`NodeError::Log`]; a later start continues. [`NodeError::Refused`] on a member that is to found a cluster.
pub(crate) fn execute(
    disk: &RealDisk,
    dir: &Path,
    config: &NodeConfig,
    tls: Option<TlsConfig>,
) -> Result<(), NodeError> {
    let Some(request) = requested(dir).map_err(NodeError::Log)? else { return Ok(()) };
    let terms = Terms::of(config.front_end);
    let drop_it = |why: &str| {
        (config.logger)(Level::Warn, &format!("this member keeps its log, which was to be set aside: {why}"));
        done(dir).map_err(NodeError::Log)
    };
    let Some(request) = request else {
        return drop_it("for what branch, cannot be read");
    };
    if !config.may_begin_anew {
        return Err(NodeError::Refused(format!(
            "{}. Start this member without {}",
            request.why(),
            terms.new
        )));
    }
    let request = match request {
        QuarantineRequest::Superseded(request) => request,
        QuarantineRequest::Reverted { member, why } => {
            let identity = lockstep_log::peek_identity(disk).map_err(|e| NodeError::Log(e.to_string()))?;
            if identity.is_some_and(|identity| identity.member_id != member.0) {
                return drop_it("that was said of another member's log");
            }
            let kept = match rescue(disk, None, terms) {
                Ok(Rescued::Kept(text)) => text,
                Ok(Rescued::OtherLog | Rescued::Beyond(_)) => String::new(),
                Err(error) if error.is_loss() => format!(", and what only it had is in there: {error}"),
                Err(error) => return Err(NodeError::Log(error.to_string())),
            };
            let aside = lockstep_log::quarantine(disk).map_err(|e| NodeError::Log(e.to_string()))?;
            done(dir).map_err(NodeError::Log)?;
            let text =
                format!("{why}. It is set aside now, as {aside}.*{kept}. This member joins as a new one");
            (config.logger)(Level::Warn, &text);
            return Ok(());
        }
    };
    if !reaches(&request, config, tls)? {
        return drop_it(&format!(
            "nobody of the branch, history {}, answers at {}. When it meets that branch again it will look again",
            request.branch, request.address
        ));
    }
    let kept = match rescue(disk, Some(&request), terms) {
        Ok(Rescued::Kept(text)) => text,
        Ok(Rescued::OtherLog) => return drop_it("that was said of another log"),
        Ok(Rescued::Beyond(commit)) => {
            return drop_it(&format!(
                "it has committed up to index {commit}, beyond the branch's beginning after {}",
                request.fork
            ));
        }
        // The damage alone is a reason for the quarantine.
        Err(error) if error.is_loss() => format!(", and what only it had is in there: {error}"),
        Err(error) => return Err(NodeError::Log(error.to_string())),
    };
    let aside = lockstep_log::quarantine(disk).map_err(|e| NodeError::Log(e.to_string()))?;
    done(dir).map_err(NodeError::Log)?;
    let text =
        format!("{}. It is set aside now, as {aside}.*{kept}. This member joins as a new one", request.why);
    (config.logger)(Level::Warn, &text);
    Ok(())
}

/// Whether a member of the branch answers now. The introduction carries the old log, so the branch refuses it and does not
/// take it for a joiner.
fn reaches(request: &Superseded, config: &NodeConfig, tls: Option<TlsConfig>) -> Result<bool, NodeError> {
    let Ok(address) = Address::parse(&request.address, 4567) else { return Ok(false) };
    let me = Hello {
        history: request.own.0,
        log_id: request.own.1,
        wants_vote: false,
        ..Hello::without_log(config, request.member, random_uuid()?)
    };
    let mut net = lockstep_net::Config::new(request.cluster.clone(), me.to_bytes(), 1);
    net.tls = tls;
    let setup = |e| NodeError::Setup(format!("the network cannot be used: {e}"));
    let mut reactor = Reactor::new(net).map_err(setup)?;
    reactor.keep(&address);
    let (end, mut events) = (Instant::now() + REACHED_WITHIN, Vec::new());
    while Instant::now() < end {
        reactor.poll(Some(Duration::from_millis(100)), &mut events).map_err(setup)?;
        for event in events.drain(..) {
            let Event::PeerUp { conn, hello } = event else { continue };
            reactor.reject(conn, Reason::Busy, "this member only asks who is there");
            if let Ok(peer) = Hello::from_bytes(hello.blob)
                && (peer.history == request.branch || peer.parents.iter().any(|p| p.0 == request.branch))
            {
                reactor.flush();
                return Ok(true);
            }
        }
    }
    Ok(false)
}

enum Rescued {
    /// The line about the rescue file.
    Kept(String),
    /// This is not the log that was wished away.
    OtherLog,
    /// It has committed beyond the fork.
    Beyond(Index),
}

/// Writes what the log holds beyond the fork to a rescue file; without a branch, all that it does not know to be committed.
fn rescue<D: Disk + Clone>(
    disk: &D,
    branch: Option<&Superseded>,
    terms: &Terms,
) -> Result<Rescued, OpenError> {
    let hint = lockstep_log::peek_vote(disk)?.map_or(0, |vote| vote.commit_hint);
    let mut builder = RestoreBuilder::new(hint);
    let mut visit = |replay: Replay| match replay {
        Replay::Base { base, .. } if base.is_empty() => Ok(()),
        Replay::Base { base, .. } => {
            builder.base(base).map_err(|e| format!("the state at the head of a segment {e}"))
        }
        Replay::Record(record) => builder
            .record(record.index, record.term, record.body)
            .map_err(|e| format!("entry {} {e}", record.index)),
        // It is given up as a whole.
        Replay::Trim | Replay::Shorten => Err("it is damaged".to_owned()),
    };
    let (mut log, _) = Log::open(disk.clone(), Options::default(), &mut visit)?;
    let Some(Restored { committed: Some(mut base), tail, .. }) = builder.finish(Vote::default()) else {
        return Ok(Rescued::Kept(String::new()));
    };
    let fork = branch.map_or(base.index, |branch| branch.fork);
    if base.index > fork {
        return Ok(Rescued::Beyond(base.index));
    }
    let mut lost = tail.into_iter().peekable();
    while let Some(entry) = lost.next_if(|entry| entry.index <= fork) {
        if base.apply(&entry).is_err() {
            return Ok(Rescued::Kept(", with all that only it had".into()));
        }
    }
    if branch.is_some_and(|branch| (base.history, base.log_id) != branch.own) {
        return Ok(Rescued::OtherLog);
    }
    let entries: Vec<_> = lost.collect();
    let transactions = entries.iter().filter(|e| is_transaction(e.kind)).count();
    if transactions == 0 {
        return Ok(Rescued::Kept(String::new()));
    }
    let records: Vec<_> = entries.iter().map(records::record).collect();
    let which = match branch {
        Some(_) => "that the branch has not",
        None => "not known here to be committed",
    };
    Ok(Rescued::Kept(match log.rescue(records::reset(&base), &records) {
        Ok(name) => format!(", and {transactions} {} {which} are kept in {name}", terms.counted),
        Err(error) => format!(", with {transactions} {} {which}: no rescue file, {error}", terms.counted),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FrontEnd;
    use crate::testing::config;
    use lockstep_core::members::Membership;
    use lockstep_core::snapshot::StateSnapshot;
    use lockstep_core::{Entry, EntryHeader, EntryKind, ProposalId};
    use lockstep_log::MemDisk;

    fn example() -> Superseded {
        Superseded {
            member: Uuid([1; 16]),
            own: (Uuid([2; 16]), Uuid([0xa3; 16])),
            branch: Uuid([4; 16]),
            fork: 2,
            cluster: "my cluster".into(),
            address: "10.0.0.1:4567".into(),
            why: "n2 goes on alone".into(),
        }
    }

    #[test]
    fn quarantine_request_persists_until_done() {
        let dir = std::env::temp_dir().join(format!("lockstep-aside-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(requested(&dir), Ok(None));
        let reverted = QuarantineRequest::Reverted { member: Uuid([1; 16]), why: "as n2 knows: lost".into() };
        for wanted in [QuarantineRequest::Superseded(example()), reverted] {
            request(&dir, &wanted).unwrap();
            assert_eq!(requested(&dir), Ok(Some(Some(wanted))));
        }
        std::fs::write(dir.join(FILE), "n2 goes on alone").unwrap();
        assert_eq!(requested(&dir), Ok(Some(None)), "not one that can be done");
        done(&dir).unwrap();
        assert_eq!(requested(&dir), Ok(None));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(request(&dir, &QuarantineRequest::Superseded(example())).is_err());
    }

    /// A log of three transactions.
    fn log_of_three(log_id: Uuid) -> MemDisk {
        let disk = MemDisk::new();
        let options = Options { new_member_id: [1; 16], ..Options::default() };
        let (mut log, _) = Log::open(disk.clone(), options, &mut |_| Ok(())).unwrap();
        let genesis =
            StateSnapshot { log_id, ..StateSnapshot::genesis(example().own.0, 0, Membership::default()) };
        let record = |index| {
            let (kind, proposal) = (EntryKind::WriteSet, ProposalId::default());
            let header = EntryHeader { index, term: 1, kind, seqno: index as i64, proposal, time: 0 };
            records::record(&Entry::new(header, b"row"))
        };
        let records: Vec<_> = (1..=3).map(record).collect();
        let reset = records::reset(&genesis);
        log.write(lockstep_log::WriteOp { reset: Some(reset), records, ..Default::default() }).unwrap();
        log.close().unwrap();
        disk
    }

    /// A log is kept where nobody of the branch is there any more, and given up where somebody is.
    #[test]
    fn quarantine_needs_reachable_branch() {
        let dir = std::env::temp_dir().join(format!("lockstep-quarantine-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let disk = RealDisk::new(&dir).unwrap();
        let id = || dir.join("lockstep.id.log").exists();
        drop(Log::open(disk.clone(), Options { new_member_id: [1; 16], ..Options::default() }, &mut |_| {
            Ok(())
        }));
        assert!(id());
        // Of a member of the branch, and of one of another.
        for (history, there) in [(Uuid([5; 16]), false), (example().branch, true)] {
            let hello = Hello {
                id: Uuid([8; 16]),
                incarnation: 1,
                view_uuid: Uuid([8; 16]),
                history,
                log_id: history,
                parents: vec![example().own],
                forks: vec![(2, 1)],
                last_index: 9,
                name: "n2".into(),
                address: "127.0.0.1:2".into(),
                incoming: String::new(),
                zone: 0,
                wants_vote: true,
                arbitrator: false,
                donates: true,
                device: false,
            };
            let net = lockstep_net::Config::new("my cluster", hello.to_bytes(), 2);
            let mut reactor = Reactor::new(net).unwrap();
            let port = reactor.listen(&[Address::parse("127.0.0.1:0", 0).unwrap()]).unwrap()[0].port();
            let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let end = over.clone();
            let thread = std::thread::spawn(move || {
                let mut events = Vec::new();
                while !end.load(std::sync::atomic::Ordering::Acquire) {
                    reactor.poll(Some(Duration::from_millis(20)), &mut events).unwrap();
                    for event in events.drain(..) {
                        if let Event::PeerUp { conn, .. } = event {
                            reactor.reject(conn, Reason::Busy, "its log is of the branch before");
                        }
                    }
                }
            });
            let superseded = Superseded { address: format!("127.0.0.1:{port}"), ..example() };
            request(&dir, &QuarantineRequest::Superseded(superseded)).unwrap();
            execute(&disk, &dir, &config(&dir), None).unwrap();
            assert_eq!(id(), !there, "whether its log is where it was");
            assert_eq!(dir.join("lockstep.damaged.1.id.log").exists(), there);
            assert_eq!(requested(&dir), Ok(None), "it is asked once");
            over.store(true, std::sync::atomic::Ordering::Release);
            thread.join().unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn reverted_log_is_set_aside_unless_it_is_of_another_member() {
        let dir = std::env::temp_dir().join(format!("lockstep-reverted-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let disk = RealDisk::new(&dir).unwrap();
        drop(Log::open(disk.clone(), Options { new_member_id: [1; 16], ..Options::default() }, &mut |_| {
            Ok(())
        }));
        for (member, is_owner) in [(Uuid([2; 16]), false), (Uuid([1; 16]), true)] {
            request(&dir, &QuarantineRequest::Reverted { member, why: "it lacks index 9".into() }).unwrap();
            execute(&disk, &dir, &config(&dir), None).unwrap();
            assert_eq!(dir.join("lockstep.id.log").exists(), !is_owner);
            assert_eq!(dir.join("lockstep.damaged.1.id.log").exists(), is_owner);
            assert_eq!(requested(&dir), Ok(None), "it is executed once");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn entries_beyond_fork_go_to_rescue_file() {
        let disk = log_of_three(example().own.1);
        let terms = Terms::of(FrontEnd::Database);
        let Ok(Rescued::Kept(text)) = rescue(&disk, Some(&example()), terms) else { panic!() };
        assert!(
            text.contains("1 transactions that the branch has not are kept in lockstep.rescue.1.log"),
            "{text}"
        );
        assert_eq!(crate::rescued::Rescued::find(&disk).unwrap().transactions, 1);
        lockstep_log::quarantine(&disk).unwrap();
        assert_eq!(crate::rescued::Rescued::find(&disk).unwrap().transactions, 1, "it outlives the log");
        let other = log_of_three(Uuid([9; 16]));
        assert!(matches!(rescue(&other, Some(&example()), terms), Ok(Rescued::OtherLog)));
        let device = rescue(&log_of_three(example().own.1), Some(&example()), Terms::of(FrontEnd::Device));
        let Ok(Rescued::Kept(text)) = device else { panic!() };
        assert!(text.contains("1 entries of the device that the branch has not are kept in"), "{text}");
    }

    #[test]
    fn uncommitted_entries_of_reverted_log_go_to_rescue_file() {
        let disk = log_of_three(example().own.1);
        let Ok(Rescued::Kept(text)) = rescue(&disk, None, Terms::of(FrontEnd::Database)) else { panic!() };
        assert!(text.contains("transactions not known here to be committed are kept in"), "{text}");
        let hint = lockstep_log::peek_vote(&disk).unwrap().map_or(0, |vote| vote.commit_hint);
        assert_eq!(crate::rescued::Rescued::find(&disk).unwrap().transactions, 3 - hint);
    }
}
