//! A device on one member: the overlay, the attachment, the device file and the log, used by several threads.
//!
//! | thread | calls |
//! |---|---|
//! | the thread that takes the log's deliveries | [`Replica::deliver`], [`Replica::pass`], [`Replica::connected`] |
//! | a thread of its own | [`Replica::write_back`]: from the overlay to the device file |
//! | a thread of its own | [`Replica::submit_in_background`]: writes that nobody flushes, and lost entries |
//! | tasks of the server | [`crate::Export`], [`crate::Attachment`] |
//!
//! No lock is held across I/O.

use super::attachments::{Attachments, Effect, Holder};
use super::controls::{Controls, Outcome};
use super::entry::{Compared, Entry};
use super::environment::{Environment, System, wait};
use super::extent_map::ExtentMap;
use super::failpoints::{Failpoint, Failpoints};
use super::file::{DeviceFile, Position};
use super::overlay::Overlay;
use super::resync::{Donation, Wholeness};
use super::session::{Entries, Session};
use super::snapshot::Slot;
use super::verify::Verification;
use crate::export::{IoError, Peer};
use bytes::Bytes;
use lockstep_core::{Gtid, MemberId, Seqno, Uuid};
use std::collections::BTreeSet;
use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

mod client;
mod log;
mod submit;
mod write_back;

pub use client::ReplicaAttachment;
pub use log::{CopyMember, Log, NotSent, Notice, NoticeCall};
pub use submit::Refused;
pub use write_back::Batch;

/// How often the background threads look without a call.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// An entry of writes that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tag {
    epoch: u64,
    number: u64,
}

/// How long a control entry may take.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a command or an attach waits while the log takes no entry of this member.
const UNUSABLE_MAX: Duration = Duration::from_secs(10);
/// How long an attach may take. It is less than the handshake may take ([`crate::nbd::ServerConfig`]), so that the client gets the
/// reason.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(20);
/// How often an attach tries again whose entry came too late.
const ATTACH_TRIES: usize = 5;

/// The settings of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The export's name.
    pub name: String,
    /// `block.cache`: the most bytes of writes that are not on the device file.
    pub cache: u64,
    /// `block.timeout`: how long a flush may take, or another request may wait for a majority, before it fails; zero: any time.
    pub timeout: Duration,
}

/// A replica's state, for people and programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaStatus {
    /// The attachments, as of `delivered`.
    pub attachments: Attachments,
    /// The last entry taken.
    pub delivered: Seqno,
    /// The last entry that the device file has, durably.
    pub written: Seqno,
    /// Bytes that no log entry has.
    pub dirty: u64,
    /// Bytes of the overlay.
    pub cached: u64,
    /// The attachment of this member, if there is one.
    pub session: Option<SessionStatus>,
    /// Why the device file cannot be written now.
    pub trouble: Option<String>,
    /// Whether this member's copy is whole.
    pub wholeness: Wholeness,
    /// The copy to another member, if there is one.
    pub donation: Option<Donation>,
    /// The last comparison of all copies since this process began.
    pub compared: Option<Compared>,
}

/// This member's attachment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionStatus {
    /// Its epoch.
    pub epoch: u64,
    /// The client.
    pub peer: Peer,
    /// Its connections.
    pub connections: usize,
    /// Entries that are not committed.
    pub uncommitted: usize,
    /// Why it has ended.
    pub failure: Option<String>,
}

/// Why an entry cannot be taken. The member must end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotTaken {
    text: String,
    needs_operator: bool,
}

impl NotTaken {
    /// Whether each further start ends in the same way until an operator follows the text.
    pub fn needs_operator(&self) -> bool {
        self.needs_operator
    }
}

/// The text for people.
impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Measures for how long the log has taken no entry of this member.
#[derive(Debug, Default)]
struct Unusable {
    since: Option<Instant>,
}

impl Unusable {
    /// `reason`: why the log takes none now. Returns it once there has been one for [`UNUSABLE_MAX`].
    fn step(&mut self, reason: Option<String>, now: Instant) -> Option<String> {
        if reason.is_none() {
            self.since = None;
        }
        reason.filter(|_| now.duration_since(*self.since.get_or_insert(now)) >= UNUSABLE_MAX)
    }
}

/// The memory of an attachment that has ended. It may be as large as the cache, so it is freed without the lock.
#[derive(Debug)]
struct Ended {
    _writes: [ExtentMap; 2],
    _entries: Option<Entries>,
    _session: Option<Session>,
}

/// All that the threads share, under one lock.
pub(super) struct State {
    pub(super) overlay: Overlay,
    pub(super) attachments: Attachments,
    pub(super) history: Uuid,
    /// The log's id; nil if unknown.
    pub(super) log_id: Uuid,
    pub(super) delivered: Seqno,
    pub(super) written: Seqno,
    pub(super) wholeness: Wholeness,
    pub(super) donation: Option<Donation>,
    pub(super) session: Option<Session>,
    pub(super) controls: Controls,
    /// Since when there are dirty writes.
    dirty_since: Option<Instant>,
    /// Since when committed writes wait for the device file.
    unwritten_since: Option<Instant>,
    /// Acknowledgements that count once everything up to a seqno was taken.
    early: Vec<(Tag, Seqno)>,
    /// Promotions of this member that are on their way to the log. They end the attachment, and entries behind them are void.
    promotions: BTreeSet<u64>,
    /// The epoch of the last promotion that this process has asked for.
    pub(super) promoted_here: Option<u64>,
    pub(super) trouble: Option<String>,
    /// When the last promotion was delivered here, or when this process began.
    pub(super) promoted_at: Instant,
    /// The log's end has been reached once: before, the state is one of long ago.
    pub(super) caught_up: bool,
    pub(super) closing: bool,
    pub(super) verification: Verification,
    /// The snapshot that is being made.
    pub(super) snapshot: Option<Slot>,
    /// The members of the last view; `None`: there was none.
    pub(super) view: Option<Vec<MemberId>>,
    failpoints: Failpoints,
}

impl State {
    /// The session of this epoch.
    ///
    /// # Errors
    /// The attachment has ended.
    fn session(&mut self, epoch: u64) -> Result<&mut Session, IoError> {
        if self.closing {
            return Err(IoError::Shutdown("the server ends".into()));
        }
        match self.session.as_mut().filter(|session| session.epoch() == epoch) {
            None => Err(IoError::Io(format!("the attachment of epoch {epoch} has ended").into())),
            Some(session) => match session.failure() {
                Some(text) => Err(IoError::Io(text.to_owned().into())),
                None => Ok(session),
            },
        }
    }

    /// Ends the attachment with an error, if there is one.
    #[must_use]
    fn fail_session(&mut self, text: String) -> Option<Ended> {
        let session = self.session.as_mut().filter(|session| session.failure().is_none())?;
        let entries = session.fail(text);
        Some(Ended { _writes: self.discard(), _entries: Some(entries), _session: None })
    }

    /// The memory of all writes that are not on the device file.
    fn memory(&self) -> u64 {
        self.overlay.memory(self.session.as_ref().map_or(0, Session::memory))
    }

    /// Whether an entry must wait until the device file has more. A primary's own writes are bounded before they are answered,
    /// and its deliveries must not wait: they answer flushes, and tell it of a promotion.
    fn waits_for_room(&self, is_own: bool, entry: &Entry, cache: u64) -> bool {
        let Entry::Writes { epoch, .. } = entry else { return false };
        let is_bounded = is_own
            && self
                .session
                .as_ref()
                .is_some_and(|session| session.epoch() == *epoch && session.failure().is_none());
        !is_bounded && !self.closing && self.overlay.unwritten() >= cache
    }

    /// Whether committed writes take so much memory that they go to the device file at once.
    fn must_write_back(&self, cache: u64) -> bool {
        self.overlay.unwritten() >= cache / 8
    }

    /// Forgets the attachment, and all of its writes that are not committed: in a later epoch they would cover newer ones.
    #[must_use]
    fn end_session(&mut self) -> Ended {
        self.early.clear();
        Ended { _writes: self.discard(), _entries: None, _session: self.session.take() }
    }

    /// Ends an attachment in order that no client uses: the one that asked for it has gone.
    fn detach_unused(&mut self, epoch: u64) {
        let State { session: Some(session), controls, .. } = self else { return };
        let is_unused = session.epoch() == epoch && session.failure().is_none() && session.connections() == 0;
        if is_unused && !session.is_leaving() {
            session.set_leaving();
            let entry = Entry::Detach { epoch, number: session.last() + 1, token: controls.token() };
            session.detach(entry.encode());
        }
    }

    /// Forgets writes that are not committed.
    #[must_use]
    fn discard(&mut self) -> [ExtentMap; 2] {
        self.dirty_since = None;
        match self.failpoints.is_active(Failpoint::WritesKept) {
            true => <[ExtentMap; 2]>::default(),
            false => self.overlay.discard(),
        }
    }

    /// Makes entries of dirty writes within a range. Returns the number of the last entry of the session.
    fn seal(&mut self, range: &Range<u64>) -> u64 {
        let State { overlay, session: Some(session), .. } = self else { return 0 };
        if session.failure().is_none() {
            let runs = overlay.take_dirty(range);
            session.add(runs, |runs, number| overlay.fly(runs, number));
            if overlay.dirty() == 0 {
                self.dirty_since = None;
            }
        }
        session.last()
    }

    /// Counts acknowledgements whose time has come. None while a promotion of this member may precede their entries: its seqno is
    /// not known before it is committed.
    fn count_early(&mut self) {
        if !self.promotions.is_empty() && !self.failpoints.is_active(Failpoint::EarlyBehindPromotion) {
            // Acknowledgements do not count any more once their entries are committed or their attachment has ended.
            let session = self.session.as_ref();
            let counts =
                |tag: &Tag| session.is_some_and(|s| s.epoch() == tag.epoch && s.acknowledged() < tag.number);
            self.early.retain(|(tag, _)| counts(tag));
            return;
        }
        let delivered = self.delivered;
        for (tag, _) in self.early.extract_if(.., |(_, after)| *after <= delivered) {
            if let Some(session) = self.session.as_mut().filter(|session| session.epoch() == tag.epoch) {
                session.on_acknowledged(tag.number);
            }
        }
    }
}

pub(super) struct Shared<L> {
    pub(super) log: L,
    pub(super) file: DeviceFile,
    pub(super) config: Config,
    environment: Arc<dyn Environment>,
    pub(super) failpoints: Failpoints,
    state: Mutex<State>,
    /// Something has changed that a task may wait for.
    changed: Notify,
    /// As `changed`, for threads.
    pub(super) work: Condvar,
    /// Held while entries are sent: they must be sent in order.
    sending: Mutex<()>,
    /// There may be more to send.
    more: AtomicBool,
}

/// See the module's documentation.
pub struct Replica<L: Log>(pub(super) Arc<Shared<L>>);

impl<L: Log> Clone for Replica<L> {
    fn clone(&self) -> Replica<L> {
        Replica(self.0.clone())
    }
}

impl<L: Log> fmt::Debug for Replica<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replica({})", self.0.config.name)
    }
}

impl<L: Log> Replica<L> {
    /// A replica over a device file at its position. `seed` differs from run to run.
    pub fn new(log: L, file: DeviceFile, position: Position, config: Config, seed: u64) -> Replica<L> {
        Replica::with(log, file, position, config, seed, Arc::new(System), Failpoints::default())
    }

    /// As [`Replica::new`], in this environment.
    pub fn with(
        log: L,
        file: DeviceFile,
        position: Position,
        config: Config,
        seed: u64,
        environment: Arc<dyn Environment>,
        failpoints: Failpoints,
    ) -> Replica<L> {
        let state = State {
            wholeness: Wholeness::of(&position),
            donation: None,
            overlay: Overlay::default(),
            attachments: position.attachments,
            history: position.gtid.uuid,
            log_id: position.log,
            delivered: position.gtid.seqno,
            written: position.gtid.seqno,
            session: None,
            controls: Controls::new(seed),
            dirty_since: None,
            unwritten_since: None,
            early: Vec::new(),
            promotions: BTreeSet::new(),
            promoted_here: None,
            trouble: None,
            promoted_at: environment.now(),
            caught_up: false,
            closing: false,
            verification: Verification::default(),
            snapshot: None,
            view: None,
            failpoints,
        };
        Replica(Arc::new(Shared {
            log,
            file,
            config,
            environment,
            failpoints,
            state: Mutex::new(state),
            changed: Notify::new(),
            work: Condvar::new(),
            sending: Mutex::new(()),
            more: AtomicBool::new(false),
        }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changes, at most this long.
    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        self.0.work.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Calls `look` until it has a result: at once, after each change, and every [`LOOK`]. For tasks.
    pub(super) async fn until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // A change after this line counts, also before the wait begins.
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            wait(&*self.0.environment, LOOK, changed).await;
        }
    }

    pub(super) fn file(&self) -> &DeviceFile {
        &self.0.file
    }

    /// Tells clients and background threads of a change.
    pub(super) fn wake(&self) {
        self.wake_clients();
        self.0.work.notify_all();
    }

    /// Tells clients of a change that gives the background threads nothing to do. Each flush makes several, so waking two threads
    /// each time would cost more than the log does.
    pub(super) fn wake_clients(&self) {
        self.0.changed.notify_waiters();
    }

    pub(super) fn now(&self) -> Instant {
        self.0.environment.now()
    }

    /// µs since 1970.
    pub(super) fn clock(&self) -> u64 {
        self.0.environment.wall()
    }

    /// The log that it uses.
    pub fn log(&self) -> &L {
        &self.0.log
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The present state.
    pub fn status(&self) -> ReplicaStatus {
        let state = self.lock();
        let session = state.session.as_ref().map(|session| SessionStatus {
            epoch: session.epoch(),
            peer: *session.peer(),
            connections: session.connections(),
            uncommitted: session.uncommitted(),
            failure: session.failure().map(str::to_owned),
        });
        ReplicaStatus {
            attachments: state.attachments.clone(),
            delivered: state.delivered,
            written: state.written,
            dirty: state.overlay.dirty(),
            cached: state.memory(),
            session,
            trouble: state.trouble.clone(),
            wholeness: state.wholeness.clone(),
            donation: state.donation.clone(),
            compared: state.verification.last().cloned(),
        }
    }
}

/// Closes a replica when a thread ends that it needs, also by a panic: else deliveries would wait for that thread for ever.
struct Closes<'a, L: Log>(&'a Replica<L>);

impl<L: Log> Drop for Closes<'_, L> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// From the log.
impl<L: Log> Replica<L> {
    /// The member is in this log. `in_present_history` translates a position from before a branch that this member founded.
    ///
    /// # Errors
    /// The device is of another one: a text for people.
    pub fn connected(
        &self,
        history: Uuid,
        log_id: Uuid,
        in_present_history: impl FnOnce(Gtid) -> Gtid,
    ) -> Result<(), String> {
        let mut state = self.lock();
        let own = Gtid { uuid: state.history, seqno: state.delivered };
        if !own.uuid.is_nil() && in_present_history(own).uuid != history {
            return Err(format!(
                "the log's history is {history}, and the device file's {}: a branch was founded (lockstep bootstrap) on another \
                 member, or another group has this name",
                own.uuid
            ));
        }
        if own.uuid == history && state.log_id != log_id && !state.log_id.is_nil() {
            return Err(format!(
                "the log's id is {log_id}, and the device file belongs to log {}: another group was founded with the same data",
                state.log_id
            ));
        }
        (state.history, state.log_id) = (history, log_id);
        Ok(())
    }

    /// The log has an entry that is nothing to the device: a view, or a failed one.
    pub fn pass(&self, seqno: Seqno) {
        self.passed(self.lock(), seqno);
    }

    pub(super) fn passed(&self, mut state: MutexGuard<'_, State>, seqno: Seqno) {
        state.delivered = state.delivered.max(seqno);
        state.count_early();
        drop(state);
        self.wake();
    }

    /// The member has caught up with the log. Before that, no client attaches, and no command is taken.
    pub fn caught_up(&self) {
        self.lock().caught_up = true;
        self.wake();
    }

    /// Waits for [`Replica::caught_up`].
    ///
    /// # Errors
    /// It takes too long, or the copy is not whole: a text for people.
    pub async fn until_caught_up(&self) -> Result<(), String> {
        self.caught_up_by(self.now() + CONTROL_TIMEOUT).await
    }

    async fn caught_up_by(&self, until: Instant) -> Result<(), String> {
        let mut cut_off = Unusable::default();
        self.until(|| {
            {
                let state = self.lock();
                if let Err(text) = state.wholeness.check() {
                    return Some(Err(text));
                }
                if state.caught_up {
                    return Some(Ok(()));
                }
                if state.closing {
                    return Some(Err("the server ends".into()));
                }
            }
            let now = self.now();
            match cut_off.step(self.outside(), now) {
                Some(text) => Some(Err(text)),
                None => (now >= until).then(|| Err(BEHIND.into())),
            }
        })
        .await
    }

    /// Why this member has not caught up with the log since its process began, and so takes no client. `None`: it has.
    pub fn waits_for(&self) -> Option<String> {
        let (has_caught_up, is_whole) = {
            let state = self.lock();
            (state.caught_up, state.wholeness.check().is_ok())
        };
        let own = if is_whole { BEHIND } else { NOT_WHOLE };
        (!has_caught_up).then(|| self.outside().unwrap_or_else(|| own.into()))
    }

    /// Explains to people why this member is without a majority. Returns `None` if it has one.
    fn outside(&self) -> Option<String> {
        let log = &self.0.log;
        if log.has_majority() {
            return None;
        }
        let outside = match log.knows_leader() {
            true => "this member has not joined the others yet",
            false => "no majority of the members answers",
        };
        Some(match log.waits_for() {
            Some(why) => format!("{outside} ({why})"),
            None => format!("{outside}: look at `lockstep status`"),
        })
    }

    /// Takes the next committed entry. Waits while the overlay is full of writes that are not on the device file.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn deliver(&self, seqno: Seqno, origin: &MemberId, payload: &Bytes) -> Result<(), NotTaken> {
        let entry = self.received(seqno, payload)?;
        let Err(entry) = self.take_verification(seqno, origin, entry) else { return Ok(()) };
        let is_own = *origin == self.0.log.member();
        let mut state = self.lock();
        while state.waits_for_room(is_own, &entry, self.0.config.cache) {
            let waited = self.0.work.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.take(state, seqno, origin, entry);
        Ok(())
    }

    /// As [`Replica::deliver`], without waiting. Returns false if it would have to wait: the entry is not taken.
    ///
    /// # Errors
    /// As of [`Replica::deliver`].
    pub fn try_deliver(&self, seqno: Seqno, origin: &MemberId, payload: &Bytes) -> Result<bool, NotTaken> {
        let entry = self.received(seqno, payload)?;
        let Err(entry) = self.take_verification(seqno, origin, entry) else { return Ok(true) };
        let state = self.lock();
        if state.waits_for_room(*origin == self.0.log.member(), &entry, self.0.config.cache) {
            return Ok(false);
        }
        self.take(state, seqno, origin, entry);
        Ok(true)
    }

    /// The entry in a payload. Makes the file larger if the entry makes the device so.
    fn received(&self, seqno: Seqno, payload: &Bytes) -> Result<Entry, NotTaken> {
        let entry = Entry::decode(payload).map_err(|error| {
            let text = format!(
                "the entry at seqno {seqno} {error}: a newer version wrote it, or other programs are members of this group. \
                 Upgrade this member"
            );
            NotTaken { text, needs_operator: false }
        })?;
        if let Entry::Resize { before, size, .. } = entry
            && before == self.lock().attachments.size()
        {
            // First, so that no position is saved with a size that the file does not have. Only this thread changes the size.
            self.0.file.grow(size).map_err(|error| NotTaken {
                text: format!("cannot extend the device file: {error}. Then start this member again"),
                needs_operator: error.kind() == ErrorKind::FileTooLarge,
            })?;
        }
        Ok(entry)
    }

    /// Takes the next entry.
    fn take(&self, mut state: MutexGuard<'_, State>, seqno: Seqno, origin: &MemberId, entry: Entry) {
        let is_own = *origin == self.0.log.member();
        let is_epoch = matches!(entry, Entry::Attach { .. } | Entry::Promote { .. });
        let now = self.now();
        let mut ended = Vec::new();
        let epoch_before = state.attachments.epoch();
        let is_data = matches!(entry, Entry::Writes { .. });
        let effect = state.attachments.take(origin, &entry);
        let notice = match effect {
            Effect::Accepted(_) => entry.notice(&self.0.log.name_of(origin), state.attachments.epoch()),
            _ => None,
        };
        if let (Effect::Accepted(_), Entry::Promote { .. }) = (&effect, &entry) {
            state.promoted_at = now;
        }
        match (&effect, entry) {
            (Effect::Writes, Entry::Writes { epoch, number, runs, .. }) => {
                let State { session, overlay, .. } = &mut *state;
                let session = session
                    .as_mut()
                    .filter(|session| is_own && session.epoch() == epoch && session.failure().is_none());
                overlay.commit(runs, session.is_some().then_some(number));
                if let Some(session) = session {
                    session.on_committed(number, now);
                }
                state.unwritten_since.get_or_insert(now);
            }
            (Effect::Accepted(token) | Effect::Refused(token), entry) if is_own => {
                let accepted = matches!(effect, Effect::Accepted(_));
                let outcome = Outcome { accepted, epoch: state.attachments.epoch() };
                if state.promotions.remove(token) && accepted {
                    state.promoted_here = Some(outcome.epoch);
                }
                let peer = state.controls.decided(*token, outcome);
                if let (true, Some((peer, waits))) = (accepted, peer) {
                    ended.push(state.end_session());
                    state.session = Some(Session::new(outcome.epoch, peer, now));
                    if !waits {
                        state.detach_unused(outcome.epoch);
                    }
                }
                if let Entry::Detach { epoch, .. } = entry {
                    if accepted {
                        ended.push(state.end_session());
                    } else if let Some(session) =
                        state.session.as_mut().filter(|session| session.epoch() == epoch)
                    {
                        session.stay();
                    }
                }
            }
            (Effect::Gap, Entry::Writes { epoch, .. }) if is_own => {
                if let Some(session) = state.session.as_mut().filter(|session| session.epoch() == epoch) {
                    session.on_lost();
                }
            }
            _ => {}
        }
        let epoch = state.attachments.epoch();
        if matches!(effect, Effect::Accepted(_)) && is_epoch {
            state.controls.forget_abandoned();
        }
        if epoch != epoch_before {
            // They name an earlier epoch.
            state.promotions.clear();
        }
        let is_over = state.session.as_ref().is_some_and(|session| session.epoch() != epoch);
        if is_over && !self.0.failpoints.is_active(Failpoint::SessionKept) {
            let name = match state.attachments.holder() {
                Holder::Promoted(member) | Holder::Attached { member, .. } => self.0.log.name_of(member),
                Holder::Nobody => "nobody".into(),
            };
            let text = format!("{name} was promoted in epoch {epoch}: this attachment has ended");
            ended.extend(state.fail_session(text));
        }
        state.delivered = seqno;
        state.count_early();
        let is_small = is_data && !state.must_write_back(self.0.config.cache);
        drop(state);
        if let Some(notice) = notice {
            self.0.log.note(false, &notice);
        }
        match is_small {
            true => self.wake_clients(),
            false => self.wake(),
        }
        drop(ended);
        // The window may have room again.
        self.send();
    }

    /// An entry of this member came out, and was refused: under a weak policy it does not lead.
    pub fn refused(&self, seqno: Seqno) {
        if let Some(session) = &mut self.lock().session {
            session.on_lost();
        }
        self.pass(seqno);
    }

    /// Ends the background threads and all requests.
    pub fn close(&self) {
        self.lock().closing = true;
        self.wake();
    }
}

pub(super) const NO_SIZE: &str =
    "the device has no size yet: give it one with `lockstep block resize --size SIZE`";
pub(super) const BEHIND: &str = "this member has not caught up with the log yet: look at `lockstep status`";
const NOT_WHOLE: &str = "this member's copy is not whole yet: look at `lockstep block status`";
