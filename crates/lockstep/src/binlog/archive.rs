//! `lockstep binlog archive`: joins the cluster as a member without a database, and copies its transactions to an archive.

use super::archive_status::ArchiveReport;
use super::disk_space::{DiskSpace, FileError};
use super::feed::{FILE_SEQNOS, FILES, Feed, SavedPosition};
use super::member_feed::{Output, open_files, plan_of_reader, take_deliveries};
use super::target::open_target;
use crate::log_member::{self, Hooks, MemberArgs, MessageLog, Plan, Role};
use crate::signals::Signals;
use clap::Args;
use lockstep_binlog::archive::{
    Advance, ArchiveError, Archiver, Clocks, Head, Mark, Progress, StartPoint, Store, clock_text, read_head,
};
use lockstep_binlog::stream::server_id_of;
use lockstep_binlog::{Library, Writer};
use lockstep_node::core::{Gtid, Uuid};
use lockstep_node::{Beginning, FrontEnd, Level, Node};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The default directory.
const DEFAULT_DIR: &str = "/var/lib/lockstep/archive";
/// The default name of the member.
const DEFAULT_NAME: &str = "archive";
/// The pause after a failure of the target, at most.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How often old files are looked for.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);
/// How often the log says how far the archive is, and that the target fails.
const SAY_EVERY: Duration = Duration::from_secs(600);
/// How long the program waits at its end until the archive has everything.
const LAST_COPY_MAX: Duration = Duration::from_secs(20);
/// How often the archive's end is read again at the start, while another archiver replaces it.
const FETCHES_MAX: u32 = 10;
/// The effect of a full disk.
const ON_FULL: &str =
    "and the archive gets no new transactions. Files that it has already are removed. Free space there";

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct ArchiveArgs {
    /// Addresses of members: gcomm://HOST[:PORT][,HOST[:PORT]]..., as in wsrep_cluster_address.
    #[arg(short, long, value_name = "GCOMM")]
    address: Option<String>,
    /// Name of the cluster, as in wsrep_cluster_name.
    #[arg(short, long, value_name = "NAME")]
    group: Option<String>,
    /// Name of this member.
    #[arg(short, long, default_value = DEFAULT_NAME)]
    name: String,
    /// Directory of the log, and of the binlog files that are not in the archive yet.
    #[arg(long, default_value = DEFAULT_DIR)]
    dir: PathBuf,
    /// Provider options, as in wsrep_provider_options: gmcast.listen_addr, base_host, status.address, ...
    #[arg(short, long)]
    options: Option<String>,
    /// The archive: a directory, or s3://BUCKET/PREFIX with credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    #[arg(long, value_name = "DIR|URL")]
    to: String,
    /// Remove files whose last transaction is older than this: 12h, 30d, 8w. Default: remove none.
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    keep: Option<Duration>,
    /// Seconds between two additions to the archive.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// The domain of the GTIDs: the same on every instance.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    gtid_domain_id: u32,
    /// Write log lines to this file instead of standard error. SIGHUP reopens it and reloads certificates.
    #[arg(short, long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl ArchiveArgs {
    fn plan(&self) -> Result<Plan, String> {
        plan_of_reader(MemberArgs {
            what: "binlog archiver",
            address: self.address.clone(),
            group: self.group.clone(),
            name: self.name.clone(),
            options: self.options.clone(),
            dir: self.dir.clone(),
            log: self.log.clone(),
            ..MemberArgs::default()
        })
    }
}

/// An age such as `30d`.
fn parse_age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no age: give a number with m, h, d or w, such as 30d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(u64::from(number) * seconds))
}

/// Archives until a signal or an error ends it.
pub(super) fn run(args: ArchiveArgs) -> Result<ExitCode, String> {
    let plan = args.plan()?;
    let log = Arc::new(MessageLog::open(plan.log.clone())?);
    let store = open_target(&args.to, true)?;
    let signals = Signals::block();
    let known_target = KnownTarget::in_dir(&plan.dir);
    known_target.check(store.as_ref())?;
    let start = fetch_start(&plan.dir, store.as_ref(), &log)?;
    let (writer, saved) = open_files(&plan.dir, &log)?;
    let position = saved.load()?;
    check_history(store.as_ref(), position, &plan.dir)?;
    let known = start.map(|start| start.resume.clock);
    let report = Arc::new(ArchiveReport::new(store.name()));
    let mut copier = Copier::new(&args, &writer, (store, known_target), log.clone(), report.clone());
    let space = Arc::new(DiskSpace::new(writer.library().dir().to_owned(), log.clone(), ON_FULL));
    let mut feed = Feed::new(writer, saved, space, args.gtid_domain_id);
    feed.keep_clocks(known, position)?;
    if let Some(progress) = feed.progress() {
        // Before the member joins: it may need the space of files that are not archived yet.
        copier.tell(progress);
        copier.start(position.uuid)?;
    }
    let lines = log.clone();
    let role = Role {
        front_end: FrontEnd::Reader { begins: Beginning::MultipleOf(FILE_SEQNOS), prompt: false },
        position,
        log: lockstep_node::core::Uuid::NIL,
        needs_state: false,
        hooks: hooks(report),
        begin: log_member::once_joined(move |node: &Node| {
            let mut copier = copier;
            take_deliveries(node, feed, &lines, &mut copier)
        }),
    };
    log_member::run(&plan, log, &signals, role)
}

fn hooks(report: Arc<ArchiveReport>) -> Hooks {
    let numbers = report.clone();
    Hooks {
        stats: Some(Arc::new(move || numbers.status().metrics())),
        status: Some(Arc::new(move || serde_json::to_value(report.status()).unwrap_or_default())),
        ..Hooks::default()
    }
}

/// Where a new instance goes on, if the archive has transactions. Gets the archive's last file.
fn fetch_start(dir: &Path, store: &dyn Store, log: &MessageLog) -> Result<Option<StartPoint>, String> {
    let files = dir.join("files");
    let mut attempts = 0;
    loop {
        let Some(start) = start_if_empty(dir, store)? else { return Ok(None) };
        let seqno = start.resume.seqno;
        let text = format!(
            "the archive in {} has transactions already: this instance goes on from seqno {seqno}",
            store.name()
        );
        log.write(Level::Info, &text);
        SavedPosition::in_dir(&files)
            .save(Gtid { uuid: start.history, seqno: seqno as i64 })
            .map_err(FileError::into_text)?;
        match start.fetch(store, &files) {
            Ok(()) => return Ok(Some(start)),
            // Another archiver has replaced a part meanwhile.
            Err(ArchiveError::Missing { .. }) if attempts < FETCHES_MAX => attempts += 1,
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Where a new instance goes on, if the archive has transactions.
fn start_if_empty(dir: &Path, store: &dyn Store) -> Result<Option<StartPoint>, String> {
    let files = dir.join("files");
    std::fs::create_dir_all(&files).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", files.display())
    })?;
    let library = Library::open_read_only(&files, FILES);
    match library.is_ok_and(|library| library.files().is_empty()) {
        true => StartPoint::find(store).map_err(|e| e.to_string()),
        false => Ok(None),
    }
}

/// Refuses an archive of another history, before the instance joins the cluster.
fn check_history(store: &dyn Store, position: Gtid, dir: &Path) -> Result<(), String> {
    match read_head(store).map_err(|e| e.to_string())? {
        Some(head) if position != Gtid::UNDEFINED && head.history != position.uuid => Err(format!(
            "the archive in {} is of history {}, and the files in {} are of history {}: name another target with --to",
            store.name(),
            head.history,
            dir.display(),
            position.uuid
        )),
        _ => Ok(()),
    }
}

/// The archive that this instance has written to: a file in its directory. If that archive is gone, for instance because
/// its disk is not mounted, another one must not begin in its place unnoticed.
struct KnownTarget {
    path: PathBuf,
}

impl KnownTarget {
    fn in_dir(dir: &Path) -> KnownTarget {
        KnownTarget { path: dir.join("target") }
    }

    fn check(&self, store: &dyn Store) -> Result<(), String> {
        let known = std::fs::read_to_string(&self.path).unwrap_or_default();
        if known.trim_end() == store.name() && read_head(store).map_err(|e| e.to_string())?.is_none() {
            return Err(format!(
                "the archive in {} is gone. Is its disk mounted? To begin a new one, remove the file {}",
                store.name(),
                self.path.display()
            ));
        }
        Ok(())
    }

    fn note(&self, store: &impl Store) -> Result<(), String> {
        let text = format!("{}\n", store.name());
        // The disk may be full.
        if std::fs::read_to_string(&self.path).is_ok_and(|known| known == text) {
            return Ok(());
        }
        std::fs::write(&self.path, text)
            .map_err(|e| format!("{} cannot be written: {e}", self.path.display()))
    }
}

/// The state that the thread of deliveries and the archive's thread share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    progress: Option<Progress>,
    /// Why the archive cannot go on.
    failed: Option<String>,
    /// No more progress follows.
    closed: bool,
    /// The archive's thread has ended.
    ended: bool,
}

/// Starts the archive's thread once the stream has begun, and tells it how far the files are.
struct Copier {
    shared: Arc<Shared>,
    /// `None` once the thread runs.
    worker: Option<Worker>,
    domain: u32,
}

/// Tells the other thread that the archive's thread has ended, also by a panic.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            let text = "the archive's thread has ended by a defect of this program: its message is on standard error";
            state.failed.get_or_insert_with(|| text.to_owned());
        }
        state.ended = true;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Copier {
    fn new(
        args: &ArchiveArgs,
        writer: &Writer,
        (store, known_target): (Box<dyn Store>, KnownTarget),
        log: Arc<MessageLog>,
        report: Arc<ArchiveReport>,
    ) -> Copier {
        let shared = Arc::new(Shared::default());
        let worker = Worker {
            shared: shared.clone(),
            store,
            known_target,
            library: writer.library().clone(),
            log,
            report,
            interval: Duration::from_secs(args.interval),
            keep: args.keep,
        };
        Copier { shared, worker: Some(worker), domain: args.gtid_domain_id }
    }

    /// Starts the archive's thread, unless it runs.
    fn start(&mut self, history: Uuid) -> Result<(), String> {
        let Some(worker) = self.worker.take() else { return Ok(()) };
        let head = head_of(history, self.domain);
        let ending = Ending(self.shared.clone());
        let run = move || {
            let _ending = ending;
            worker.run(head);
        };
        let thread = std::thread::Builder::new().name("archive".into()).spawn(run);
        thread.map(drop).map_err(|e| format!("cannot start a thread: {e}"))
    }

    fn tell(&self, progress: Progress) {
        self.shared.lock().progress = Some(progress);
        self.shared.changed.notify_all();
    }
}

impl Output for Copier {
    fn on_round(&mut self, feed: &Feed) -> Result<(), String> {
        if let Some(history) = feed.history() {
            self.start(history)?;
        }
        let mut state = self.shared.lock();
        if let Some(text) = state.failed.take() {
            return Err(text);
        }
        if feed.progress() != state.progress {
            state.progress = feed.progress();
            self.shared.changed.notify_all();
        }
        Ok(())
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.changed.notify_all();
        // The thread archives the rest of the files, as this instance may not be started again.
        if self.worker.is_none() {
            drop(self.shared.changed.wait_timeout_while(state, LAST_COPY_MAX, |state| !state.ended));
        }
    }
}

fn head_of(history: Uuid, domain: u32) -> Head {
    Head { files: FILES.into(), history, domain, server: server_id_of(history) }
}

/// The archive's thread.
struct Worker {
    shared: Arc<Shared>,
    store: Box<dyn Store>,
    known_target: KnownTarget,
    library: Library,
    log: Arc<MessageLog>,
    report: Arc<ArchiveReport>,
    interval: Duration,
    keep: Option<Duration>,
}

impl Worker {
    fn run(self, head: Head) {
        let (shared, log) = (self.shared.clone(), self.log.clone());
        if let Err(text) = self.copy(head) {
            let mut state = shared.lock();
            match state.closed {
                true => log.write(Level::Error, &text),
                false => state.failed = Some(text),
            }
        }
    }

    fn copy(self, head: Head) -> Result<(), String> {
        let Worker { shared, store, known_target, library, log, report, interval, keep } = self;
        let target = store.name();
        let clocks = || Clocks::new(library.dir(), FILE_SEQNOS as u64);
        let mut archiver =
            Archiver::open(store, head.clone(), library.clone(), clocks()).map_err(|e| e.to_string())?;
        known_target.note(archiver.store())?;
        let mut notices = Notices::new(log.clone(), report, target);
        let mut expired_at: Option<Instant> = None;
        let mut copied: Option<Progress> = None;
        loop {
            let Some(progress) = shared.next(copied, keep.map(|_| EXPIRE_EVERY)) else { return Ok(()) };
            let is_done = match archiver.advance(&progress) {
                Ok(Advance::Done) => {
                    notices.done(&archiver, &head);
                    purge(&archiver, &library, &clocks())?;
                    true
                }
                Ok(Advance::Behind) => {
                    notices.behind();
                    false
                }
                Err(error) if error.is_transient() => {
                    let pause = notices.failed(&error.to_string());
                    if shared.pause(pause) {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error.to_string()),
            };
            copied = Some(progress);
            if let Some(keep) = keep.filter(|_| is_done)
                && expired_at.is_none_or(|at| at.elapsed() >= EXPIRE_EVERY)
            {
                expired_at = Some(Instant::now());
                match archiver.expire(expiry(&archiver, keep)) {
                    Ok(expired) if expired.removed.is_empty() => {}
                    Ok(expired) => {
                        let text =
                            format!("removed from the archive, as too old: {}", expired.removed.join(", "));
                        log.write(Level::Info, &text);
                    }
                    Err(error) => drop(notices.failed(&error.to_string())),
                }
            }
            shared.pause(interval);
        }
    }
}

/// Files with older groups are removed. The archive's own clock counts if it is behind: after a long absence, or with a
/// wrong clock here, there is nothing to remove that is not yet old for the archive.
fn expiry<S: Store>(archiver: &Archiver<S>, keep: Duration) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let last = archiver.end().map_or(0, |(.., complete)| complete.clock);
    (now.as_micros() as u64).min(last).saturating_sub(keep.as_micros() as u64)
}

/// Removes local files that are archived, and clocks that are not needed any more.
fn purge<S: Store>(archiver: &Archiver<S>, library: &Library, clocks: &Clocks) -> Result<(), String> {
    let (Some(file), Some(resume)) = (archiver.file(), archiver.resume()) else { return Ok(()) };
    let purged = library.purge_to(file, u64::MAX).map_err(|e| e.to_string())?;
    if purged.removed.is_empty() {
        return Ok(());
    }
    // The block before the position has its clock.
    let needed = resume.seqno.saturating_sub(FILE_SEQNOS as u64);
    clocks
        .remove_before(needed)
        .map_err(|e| format!("old clocks in {} cannot be removed: {e}", library.dir().display()))
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for progress beyond `copied`, or for `timeout`. `None` if the deliveries have ended, and there is none.
    fn next(&self, copied: Option<Progress>, timeout: Option<Duration>) -> Option<Progress> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if state.closed {
                return state.progress.filter(|progress| Some(*progress) != copied);
            }
            let is_due = timeout.is_some_and(|timeout| begun.elapsed() >= timeout);
            if let Some(progress) = state.progress.filter(|progress| is_due || Some(*progress) != copied) {
                return Some(progress);
            }
            let waited = self.changed.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for this time. Returns whether the deliveries have ended.
    fn pause(&self, time: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, time, |state| !state.closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }
}

/// The lines about the archive's progress.
struct Notices {
    log: Arc<MessageLog>,
    report: Arc<ArchiveReport>,
    target: String,
    said: Option<Instant>,
    failing: Option<(Instant, Instant, Duration)>,
    is_behind: bool,
}

impl Notices {
    fn new(log: Arc<MessageLog>, report: Arc<ArchiveReport>, target: String) -> Notices {
        Notices { log, report, target, said: None, failing: None, is_behind: false }
    }

    fn done<S: Store>(&mut self, archiver: &Archiver<S>, head: &Head) {
        self.report.on_done(head, archiver.end().map(|(.., complete)| complete));
        if let Some((since, ..)) = self.failing.take() {
            let text = format!(
                "the archive in {} is written again, after {} s",
                self.target,
                since.elapsed().as_secs()
            );
            self.log.write(Level::Info, &text);
        }
        self.is_behind = false;
        if self.said.is_some_and(|at| at.elapsed() < SAY_EVERY) {
            return;
        }
        if let Some((file, bytes, Mark { seqno, clock })) = archiver.end() {
            self.said = Some(Instant::now());
            let text = format!(
                "the archive in {} is complete up to GTID {} of {} ({file}, byte {bytes})",
                self.target,
                head.gtid(seqno),
                clock_text(clock)
            );
            self.log.write(Level::Info, &text);
        }
    }

    fn behind(&mut self) {
        self.report.on_behind();
        if !self.is_behind {
            self.is_behind = true;
            let text =
                format!("the archive in {} is ahead of this instance, which first catches up", self.target);
            self.log.write(Level::Info, &text);
        }
    }

    /// Returns how long to wait.
    fn failed(&mut self, why: &str) -> Duration {
        self.report.on_failure(why);
        let now = Instant::now();
        let (since, said, pause) = self.failing.unwrap_or((now, now, Duration::ZERO));
        let is_first = self.failing.is_none();
        let next = (pause * 2).clamp(Duration::from_secs(1), PAUSE_MAX);
        let is_due = is_first || said.elapsed() >= SAY_EVERY;
        self.failing = Some((since, if is_due { now } else { said }, next));
        if is_due {
            let text = format!(
                "the archive in {} cannot be written: {why}. The binlog files are kept in --dir meanwhile; trying again",
                self.target
            );
            self.log.write(Level::Warn, &text);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovered_files_are_archived_without_the_log() {
        use lockstep_binlog::archive::{ClockLog, DirStore};
        use lockstep_binlog::event::{Checksum, EventWriter, FormatDescription, GtidEvent, Stamp, gtid_flag};
        let dir = std::env::temp_dir().join(format!("lockstep-recovered-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let log = Arc::new(MessageLog::open(Some(dir.join("messages"))).unwrap());
        let position = Gtid { uuid: Uuid([7; 16]), seqno: 1 };
        let server = server_id_of(position.uuid);
        let (mut writer, saved) = open_files(&dir, &log).unwrap();
        let version = super::super::feed::VERSION.into();
        let checksum = Checksum::Crc32;
        let format = FormatDescription { timestamp: 5, server_id: server, version, created: 0, checksum };
        writer.begin(1, &format, &lockstep_binlog::StreamState::default()).unwrap();
        let mut clocks = ClockLog::new(writer.library().dir(), FILE_SEQNOS as u64);
        clocks.begin(0, None).unwrap();
        let mut ends = Vec::new();
        for seqno in 1..=3 {
            let mut events = EventWriter::at(writer.end().unwrap().offset);
            let gtid = lockstep_binlog::Gtid { domain: 1, server, seqno };
            let flags = gtid_flag::TRANSACTIONAL;
            events.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
            events.xid(Stamp { timestamp: 7, server_id: server }, seqno);
            writer.append(&events.finish().unwrap()).unwrap();
            ends.push(writer.end().unwrap());
            // The third one's clock was lost in a crash.
            if seqno < 3 {
                clocks.note(seqno, 1000 * seqno).unwrap();
            }
        }
        clocks.sync().unwrap();
        saved.save(position).map_err(FileError::into_text).unwrap();
        let store = DirStore::open(&dir.join("to"), true).unwrap();
        let args = ArchiveArgs { interval: 1, gtid_domain_id: 1, ..ArchiveArgs::default() };
        let target = (Box::new(store) as Box<dyn Store>, KnownTarget::in_dir(&dir));
        let mut copier = Copier::new(&args, &writer, target, log.clone(), Arc::default());
        let space = Arc::new(DiskSpace::new(dir.clone(), log, ON_FULL));
        let mut feed = Feed::new(writer, saved, space, 1);
        feed.keep_clocks(None, position).unwrap();
        let mark = Mark { seqno: 1, clock: 1000 };
        assert_eq!(feed.progress(), Some(Progress { end: ends[1], complete: mark, resume: mark }));
        copier.tell(feed.progress().unwrap());
        copier.start(position.uuid).unwrap();
        drop(copier);
        let start = StartPoint::find(&DirStore::open(&dir.join("to"), false).unwrap()).unwrap().unwrap();
        assert_eq!((start.history, start.resume), (position.uuid, mark));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn end_of_the_thread_is_noticed_after_a_panic() {
        let shared = Arc::new(Shared::default());
        let ending = Ending(shared.clone());
        let thread = std::thread::spawn(move || {
            let _ending = ending;
            panic!("as a defect does");
        });
        assert!(thread.join().is_err());
        let state = shared.lock();
        assert!(state.ended && state.failed.as_ref().is_some_and(|text| text.contains("a defect")));
        drop(state);
        let shared = Arc::new(Shared::default());
        drop(Ending(shared.clone()));
        assert!(shared.lock().ended && shared.lock().failed.is_none());
    }

    #[test]
    fn progress_is_copied_once_more_at_the_end() {
        let shared = Shared::default();
        let end = lockstep_binlog::library::Position { file: 1, offset: 9 };
        let progress = Progress { end, complete: Mark::default(), resume: Mark::default() };
        {
            let mut state = shared.lock();
            (state.progress, state.closed) = (Some(progress), true);
        }
        assert_eq!(shared.next(None, None), Some(progress));
        assert_eq!(shared.next(Some(progress), None), None);
    }

    #[test]
    fn ages_have_a_number_and_a_unit() {
        assert_eq!(parse_age("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(parse_age("5m"), Ok(Duration::from_secs(300)));
        for wrong in ["", "d", "30", "3.5h", "-1d", "30é"] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }
}
