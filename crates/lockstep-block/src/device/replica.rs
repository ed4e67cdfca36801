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
use super::environment::{Environment, System, blocking, wait};
use super::extent_map::{Content, ExtentMap, Run};
use super::failpoints::{Failpoint, Failpoints};
use super::file::{DeviceFile, Position};
use super::overlay::{Overlay, Part};
use super::resync::{Donation, Wholeness};
use super::session::{Entries, Session, ToSend};
use super::snapshot::Slot;
use super::verify::Verification;
use crate::export::{Attachment, Description, Export, Extent, IoError, Peer, Refusal, RefusalKind};
use bytes::{Bytes, BytesMut};
use lockstep_core::{Gtid, MemberId, Seqno, Uuid};
use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Dirty writes go to the log after this time, if no flush takes them before.
const DIRTY_MAX: Duration = Duration::from_secs(1);
/// Committed writes go to the device file after this time.
const WRITE_BACK_AFTER: Duration = Duration::from_millis(500);
/// How often the background threads look without a call.
pub(super) const LOOK: Duration = Duration::from_millis(200);
/// How often the thread that submits looks without a call.
const SUBMIT_LOOK: Duration = Duration::from_millis(20);
/// How often a held reply looks for a majority.
const HOLD_LOOK: Duration = Duration::from_millis(10);
/// A control entry that may be lost is sent again after this time: at most one of them is accepted.
const CONTROL_AGAIN: Duration = Duration::from_secs(2);
/// How long a control entry may take.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a control entry waits while there is no majority, or while only another member's clients may write.
const CONTROL_UNUSABLE: Duration = Duration::from_secs(5);
/// The least data under way to the log.
const WINDOW_MIN: u64 = 4 << 20;
/// The most data under way to the log. A line of 1 Gbit/s and 85 ms holds 10 MB. With much more, the log takes so long to commit
/// all of it that the member cannot tell in time whether it is still the primary, and replies wait.
const WINDOW_MAX: u64 = 16 << 20;
/// How long to wait before the next try where the device file's disk is full.
const FULL_RETRY: Duration = Duration::from_secs(1);
/// How long writes wait for the return of leadership, where only the leader writes.
const REFUSED_FOR: Duration = Duration::from_secs(15);
/// How long the copies may take to answer a step of a comparison.
const COMPARED_WITHIN: Duration = Duration::from_secs(90);
/// The most extents in one answer.
const EXTENTS_MAX: usize = 2048;
/// How often an attach tries again whose entry came too late.
const ATTACH_TRIES: usize = 5;

/// An entry of writes that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tag {
    epoch: u64,
    number: u64,
}

/// News of an entry apart from its delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// It is as durable as the commit policy asks, and not committed yet. That counts once everything up to this seqno was
    /// delivered: one of those entries may have ended the attachment.
    Acknowledged {
        /// The last committed seqno then.
        after: Seqno,
    },
    /// The log may have lost it. It may be delivered all the same.
    Lost,
}

/// Receives a notice, if there is one.
pub type NoticeCall = Box<dyn FnOnce(Notice) + Send>;

/// The log did not take an entry. The replica sends it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotSent;

/// Another member with a copy, or this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyMember {
    /// The member.
    pub member: MemberId,
    /// Its name.
    pub name: String,
    /// Whether it is connected and has caught up.
    pub ready: bool,
}

/// The log of a member.
pub trait Log: Send + Sync + 'static {
    /// Sends an entry. Entries come out in the order in which they were sent, but some may be lost.
    ///
    /// # Errors
    /// [`NotSent`].
    fn submit(&self, payload: Bytes, notice: NoticeCall) -> Result<(), NotSent>;

    /// The device file has everything up to this seqno, durably.
    fn finished(&self, seqno: Seqno);

    /// A copy with every entry up to this seqno has all that was committed [`Log::confirmed_for`] ago. `None`: that is not known,
    /// because no majority has answered lately.
    fn confirmed(&self) -> Option<Seqno>;

    /// The longest time for which a confirmation counts on any member, with what clocks differ. A promoted member takes no client
    /// before: until then, the primary before it may answer.
    fn confirmed_for(&self) -> Duration;

    /// Whether a majority has answered lately.
    fn is_live(&self) -> bool {
        self.confirmed().is_some()
    }

    /// Whether entries of this member may be refused although there is a majority, and why, for people: under a weak policy
    /// only the leader writes.
    fn refusal(&self) -> Option<String>;

    /// How long entries wait while [`Log::refusal`] says why. Then the attachment ends.
    fn refused_for(&self) -> Duration {
        REFUSED_FOR
    }

    /// This member.
    fn member(&self) -> MemberId;

    /// A member's name, for people.
    fn name_of(&self, member: &MemberId) -> String;

    /// Whether another member is connected.
    fn is_connected(&self, member: &MemberId) -> bool;

    /// All members that keep a copy.
    fn copies(&self) -> Vec<CopyMember> {
        Vec::new()
    }

    /// How long the copies may take to answer a step of a comparison.
    fn compared_within(&self) -> Duration {
        COMPARED_WITHIN
    }

    /// A line for people. `warn`: they should look.
    fn note(&self, warn: bool, text: &str);
}

/// The settings of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The export's name.
    pub name: String,
    /// `block.cache`: the most bytes of writes that are not on the device file.
    pub cache: u64,
    /// `block.timeout`: how long a flush may take before it fails; zero: any time.
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

    /// Forgets the attachment, and all of its writes that are not committed: in a later epoch they would cover newer ones.
    #[must_use]
    fn end_session(&mut self) -> Ended {
        self.early.clear();
        Ended { _writes: self.discard(), _entries: None, _session: self.session.take() }
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
    failpoints: Failpoints,
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

impl<L: Log> std::fmt::Debug for Replica<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

    /// As [`Replica::wait`], for tasks.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.changed.notified()
    }

    pub(super) fn file(&self) -> &DeviceFile {
        &self.0.file
    }

    pub(super) fn wake(&self) {
        self.0.changed.notify_waiters();
        self.0.work.notify_all();
    }

    pub(super) fn now(&self) -> Instant {
        self.0.environment.now()
    }

    /// µs since 1970.
    pub(super) fn clock(&self) -> u64 {
        self.0.environment.wall()
    }

    /// Waits for a change, but not for long.
    async fn look(&self, changed: impl Future<Output = ()>) {
        wait(&*self.0.environment, LOOK, changed).await;
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
                 member, or another group has this name. If the data of this log count, set this member's directory aside, and \
                 start it with a new one: it copies the device. Keep the old directory: it may have writes that the \
                 log lacks",
                own.uuid
            ));
        }
        if own.uuid == history && state.log_id != log_id && !state.log_id.is_nil() {
            return Err(format!(
                "the log's id is {log_id}, and the device file belongs to log {}: another group was founded with the same data. Set \
                 this member's directory aside, and start it with a new one, or start it in its own group",
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
        let until = self.now() + CONTROL_TIMEOUT;
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.lock();
                state.wholeness.check()?;
                if state.caught_up {
                    return Ok(());
                }
                if state.closing || self.now() >= until {
                    return Err(BEHIND.into());
                }
            }
            self.look(changed).await;
        }
    }

    /// Takes the next committed entry. Waits while the overlay is full of writes that are not on the device file.
    ///
    /// # Errors
    /// The entry cannot be taken: a text for people. The member must end.
    pub fn deliver(&self, seqno: Seqno, origin: &MemberId, payload: &Bytes) -> Result<(), String> {
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
    pub fn try_deliver(&self, seqno: Seqno, origin: &MemberId, payload: &Bytes) -> Result<bool, String> {
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
    fn received(&self, seqno: Seqno, payload: &Bytes) -> Result<Entry, String> {
        let entry = Entry::decode(payload).map_err(|error| {
            format!(
                "the entry at seqno {seqno} {error}: a newer version wrote it, or other programs are members of this group. \
                 Upgrade this member"
            )
        })?;
        if let Entry::Resize { before, size, .. } = entry
            && before == self.lock().attachments.size()
        {
            // First, so that no position is saved with a size that the file does not have. Only this thread changes the size.
            self.0.file.grow(size).map_err(|error| format!("cannot extend the device file: {error}"))?;
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
        let effect = state.attachments.take(origin, &entry);
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
                if let (true, Some(peer)) = (accepted, peer) {
                    ended.push(state.end_session());
                    state.session = Some(Session::new(outcome.epoch, peer, now));
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
        drop(state);
        self.wake();
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

/// Since when the log has refused entries although there is a majority.
#[derive(Debug, Default)]
pub struct Refused {
    since: Option<Instant>,
}

/// Closes a replica when a thread ends that it needs, also by a panic: else deliveries would wait for that thread for ever.
struct Closes<'a, L: Log>(&'a Replica<L>);

impl<L: Log> Drop for Closes<'_, L> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// To the log.
impl<L: Log> Replica<L> {
    fn window(&self) -> u64 {
        (self.0.config.cache / 2).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    /// Sends entries that are due. If another thread sends, that one goes on.
    fn send(&self) {
        self.0.more.store(true, Ordering::SeqCst);
        while self.0.more.load(Ordering::SeqCst) {
            let Ok(_guard) = self.0.sending.try_lock() else { return };
            while self.0.more.swap(false, Ordering::SeqCst) {
                while self.send_one() {}
            }
        }
    }

    /// Sends the next entry. Returns whether there may be another one.
    fn send_one(&self) -> bool {
        let (epoch, number, what) = {
            let state = self.lock();
            let session = state.session.as_ref().filter(|session| session.failure().is_none());
            let Some(session) = session else { return false };
            let Some((number, what)) = session.next_to_send(self.window()) else { return false };
            (session.epoch(), number, what)
        };
        let payload = match what {
            ToSend::Again(payload) => payload,
            ToSend::Runs(runs) => Entry::Writes { epoch, number, clock: self.clock(), runs }.encode(),
        };
        let (shared, tag) = (Arc::downgrade(&self.0), Tag { epoch, number });
        let notice = move |notice| {
            if let Some(shared) = shared.upgrade() {
                Replica(shared).noticed(tag, notice);
            }
        };
        if self.0.log.submit(payload.clone(), Box::new(notice)).is_err() {
            return false;
        }
        let mut state = self.lock();
        if let Ok(session) = state.session(epoch) {
            session.sent(number, payload, self.now());
        }
        true
    }

    fn noticed(&self, tag: Tag, notice: Notice) {
        let mut state = self.lock();
        match notice {
            Notice::Acknowledged { after } => {
                state.early.push((tag, after));
                state.count_early();
            }
            Notice::Lost => {
                if let Some(session) = state.session.as_mut().filter(|session| session.epoch() == tag.epoch) {
                    session.on_lost();
                }
            }
        }
        drop(state);
        self.wake();
    }

    /// Submits writes that nobody flushes, and sends again what was lost. Returns after [`Replica::close`]. However it ends, it
    /// closes the replica.
    pub fn submit_in_background(&self) {
        let _closes = Closes(self);
        let mut refused = Refused::default();
        let mut state = self.lock();
        while !state.closing {
            let waited = self.0.work.wait_timeout(state, SUBMIT_LOOK);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            self.submit_step(&mut refused);
            state = self.lock();
        }
    }

    /// One step of [`Replica::submit_in_background`].
    pub fn submit_step(&self, refused: &mut Refused) {
        let mut state = self.lock();
        let is_full = state.overlay.dirty() >= self.0.config.cache / 8;
        let now = self.now();
        if is_full || state.dirty_since.is_some_and(|since| now.duration_since(since) >= DIRTY_MAX) {
            state.seal(&(0..u64::MAX));
        }
        let waits = state.overlay.dirty() > 0
            || state
                .session
                .as_ref()
                .is_some_and(|session| session.uncommitted() > 0 || session.is_leaving());
        drop(state);
        let is_live = self.0.log.is_live();
        let refusal = self.0.log.refusal();
        let live = is_live && refusal.is_none();
        let mut state = self.lock();
        let (mut detach, mut ended) = (None, None);
        match refusal.filter(|_| is_live && waits) {
            None => refused.since = None,
            Some(text) => {
                let since = *refused.since.get_or_insert(now);
                if now.duration_since(since) >= self.0.log.refused_for() {
                    ended = state.fail_session(format!(
                        "leadership has moved to another member, and did not come back in time: this attachment has ended, and \
                         writes that were not flushed may be lost. {text}"
                    ));
                }
            }
        }
        if let Some(session) = &mut state.session {
            session.go_back_if_due(self.now(), live);
            detach = session.detach_to_send(self.now());
        }
        drop(state);
        if ended.is_some() {
            // Requests wait for the entries that will not come.
            self.wake();
        }
        drop(ended);
        if let Some(payload) = detach {
            // If the log does not take it, it is due again later.
            let _ = self.0.log.submit(payload, Box::new(|_| {}));
        }
        self.send();
    }

    /// Sends all dirty writes, and waits until they are committed, within this time: the member is about to end in order.
    pub fn drain(&self, timeout: Duration) {
        let until = self.now() + timeout;
        self.lock().seal(&(0..u64::MAX));
        self.send();
        let mut state = self.lock();
        while !state.closing
            && self.now() < until
            && state.session.as_ref().is_some_and(|session| session.uncommitted() > 0)
        {
            let waited = self.0.work.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends a control entry, and waits for its outcome. Nothing is sent while there is no majority.
    ///
    /// # Errors
    /// There was none in time. The text is for people. An entry that was sent may be accepted later.
    pub(super) async fn control(
        &self,
        peer: Option<Peer>,
        entry: impl FnOnce(u64) -> Entry,
    ) -> Result<Outcome, String> {
        struct Waiting<'a, L: Log> {
            replica: &'a Replica<L>,
            token: u64,
            was_sent: bool,
        }
        impl<L: Log> Drop for Waiting<'_, L> {
            fn drop(&mut self) {
                let mut state = self.replica.lock();
                state.controls.abandon(self.token);
                if !self.was_sent {
                    state.promotions.remove(&self.token);
                }
            }
        }
        let token = self.lock().controls.begin(peer);
        let mut waiting = Waiting { replica: self, token, was_sent: false };
        let entry = entry(token);
        if let Entry::Promote { token, .. } = entry {
            self.lock().promotions.insert(token);
        }
        let payload = entry.encode();
        let until = self.now() + CONTROL_TIMEOUT;
        let (mut sent_at, mut unusable_since) = (None::<Instant>, None);
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.lock();
                if let Some(outcome) = state.controls.take(token) {
                    return Ok(outcome);
                }
                if state.closing {
                    return Err("the server ends".into());
                }
            }
            let now = self.now();
            let unusable = self.unusable();
            match &unusable {
                None => unusable_since = None,
                Some(text) if now.duration_since(*unusable_since.get_or_insert(now)) >= CONTROL_UNUSABLE => {
                    let effect = if waiting.was_sent { MAY_COUNT } else { "Nothing was changed" };
                    return Err(format!("{text}. {effect}"));
                }
                Some(_) => {}
            }
            let is_due = sent_at.is_none_or(|at| now.duration_since(at) >= CONTROL_AGAIN);
            if unusable.is_none() && is_due && self.0.log.submit(payload.clone(), Box::new(|_| {})).is_ok() {
                waiting.was_sent = true;
                sent_at = Some(now);
            }
            if now >= until {
                return Err(format!("the log has not answered in time: this member lags. {MAY_COUNT}"));
            }
            self.look(changed).await;
        }
    }

    /// Why the log takes no entry of this member now, for people.
    fn unusable(&self) -> Option<String> {
        match self.0.log.is_live() {
            true => self.0.log.refusal(),
            false => Some("no majority of the members answers: look at `lockstep status`".into()),
        }
    }

    /// Whether [`Replica::promote`] would be refused, whichever member leads: before leadership moves here.
    ///
    /// # Errors
    /// A text for people.
    pub async fn may_promote(&self, force: bool) -> Result<(), String> {
        self.until_caught_up().await?;
        self.check_promotion(&self.lock(), force)
    }

    fn check_promotion(&self, state: &State, force: bool) -> Result<(), String> {
        if state.attachments.size() == 0 {
            return Err(NO_SIZE.into());
        }
        if let Some(session) = &state.session
            && session.failure().is_none()
            && session.connections() > 0
            && !force
        {
            return Err(format!(
                "{} is attached here in epoch {}: a promotion ends that attachment. Disconnect the client first, or give \
                 --force",
                session.peer(),
                session.epoch()
            ));
        }
        if let Holder::Attached { member, peer, .. } = state.attachments.holder()
            && *member != self.0.log.member()
            && self.0.log.is_connected(member)
            && !force
        {
            let name = self.0.log.name_of(member);
            return Err(format!(
                "{peer} is attached to {name}, and {name} is connected: a promotion ends that attachment. Disconnect the \
                 client first. If the attachment did not end in order (see `lockstep block status` on {name}), promote {name}, or \
                 give --force"
            ));
        }
        Ok(())
    }

    /// Makes this member the primary of a new epoch, and returns it. `force`: also if that ends an attachment in use.
    ///
    /// # Errors
    /// A text for people.
    pub async fn promote(&self, force: bool) -> Result<u64, String> {
        self.until_caught_up().await?;
        for _ in 0..ATTACH_TRIES {
            let before = {
                let state = self.lock();
                self.check_promotion(&state, force)?;
                if let Some(text) = self.0.log.refusal() {
                    return Err(text);
                }
                // An attachment of this member ends once the log has accepted the promotion, as one elsewhere does.
                state.attachments.epoch()
            };
            let outcome = self.control(None, |token| Entry::Promote { before, token }).await?;
            if outcome.accepted {
                return Ok(outcome.epoch);
            }
            // The state has changed meanwhile, or this member had not caught up.
        }
        Err("other members are promoted at the same time: look at `lockstep block status`".into())
    }

    /// Gives the device its first size, or makes it larger.
    ///
    /// # Errors
    /// A text for people.
    pub async fn resize(&self, size: u64) -> Result<(), String> {
        self.until_caught_up().await?;
        for _ in 0..ATTACH_TRIES {
            let before = self.lock().attachments.size();
            if before == size {
                return Ok(());
            }
            if size < before {
                return Err(format!("the device has {before} bytes, and cannot shrink to {size}"));
            }
            if let Some(text) = self.0.log.refusal() {
                return Err(text);
            }
            if self.control(None, |token| Entry::Resize { before, size, token }).await?.accepted {
                return Ok(());
            }
        }
        Err("the size is changed elsewhere at the same time: look at `lockstep block status`".into())
    }
}

pub(super) const NO_SIZE: &str = "the device has no size yet: start one member with --size SIZE";
pub(super) const BEHIND: &str = "this member has not caught up with the log yet: look at `lockstep status`";
const MAY_COUNT: &str = "The command was sent, and may still take effect: look at `lockstep block status`";

/// Committed writes on their way to the device file.
#[derive(Debug)]
pub struct Batch {
    runs: Arc<ExtentMap>,
    position: Position,
    /// The image that is begun afterwards.
    snapshot: Option<Arc<File>>,
}

impl Batch {
    /// The position that the device file has afterwards.
    pub fn position(&self) -> &Position {
        &self.position
    }
}

/// To the device file.
impl<L: Log> Replica<L> {
    /// Writes committed entries to the device file until [`Replica::close`]. However it ends, it closes the replica.
    ///
    /// # Errors
    /// The device file cannot be written: a text for people. The member must end; its next start reads the log again.
    pub fn write_back(&self) -> Result<(), String> {
        let _closes = Closes(self);
        loop {
            let mut state = self.answer_jobs(self.lock());
            while !self.is_write_back_due(&mut state) {
                let waited = self.0.work.wait_timeout(state, LOOK);
                state = self.answer_jobs(waited.unwrap_or_else(PoisonError::into_inner).0);
            }
            let closing = state.closing;
            drop(state);
            self.write_back_once()?;
            if closing {
                return Ok(());
            }
        }
    }

    fn is_write_back_due(&self, state: &mut State) -> bool {
        let is_full = state.overlay.unwritten() >= self.0.config.cache / 8;
        let now = self.now();
        let age = state.unwritten_since.map(|since| now.duration_since(since));
        let is_asked = state.snapshot.as_ref().is_some_and(|slot| slot.waiting().is_some());
        if is_full || is_asked || state.closing || age.is_some_and(|age| age >= WRITE_BACK_AFTER) {
            return true;
        }
        if state.unwritten_since.is_none() && state.delivered > state.written {
            // Only the position has moved.
            state.unwritten_since = Some(now);
        }
        false
    }

    /// Writes all that is committed now.
    ///
    /// # Errors
    /// As [`Replica::write_back`].
    pub fn write_back_once(&self) -> Result<(), String> {
        let Some(batch) = self.begin_write_back(self.lock()) else { return Ok(()) };
        self.until_it_fits(|file| self.write_batch(file, &batch))?;
        self.end_write_back(batch);
        Ok(())
    }

    /// The first step of a write-back, if one is due: takes what is committed. [`Replica::try_write_back`] follows until it
    /// returns true, then [`Replica::end_write_back`].
    pub fn begin_write_back_if_due(&self) -> Option<Batch> {
        let mut state = self.lock();
        state = self.answer_jobs(state);
        if self.is_write_back_due(&mut state) { self.begin_write_back(state) } else { None }
    }

    fn begin_write_back(&self, state: MutexGuard<'_, State>) -> Option<Batch> {
        // First: the file has none of the writes after them.
        let mut state = self.answer_jobs(state);
        state.unwritten_since = None;
        let gtid = Gtid { uuid: state.history, seqno: state.delivered };
        let whole = state.wholeness.is_whole_at(gtid.seqno);
        let position = Position { gtid, log: state.log_id, attachments: state.attachments.clone(), whole };
        let snapshot = state.snapshot.as_ref().and_then(Slot::waiting);
        if state.delivered == state.written && !state.overlay.has_committed() {
            drop(state);
            if let Some(target) = snapshot {
                self.begin_snapshot(target, &position);
            }
            return None;
        }
        if self.0.failpoints.is_active(Failpoint::UncommittedWritten) {
            state.overlay.commit_flying();
        }
        let runs = state.overlay.begin_write_back();
        let copy = state.snapshot.as_ref().and_then(Slot::copy);
        drop(state);
        if let Some(copy) = copy {
            copy.before_write(&self.0.file, &runs);
        }
        Some(Batch { runs, position, snapshot })
    }

    /// Writes a batch and its position. Also without runs: the file may have grown.
    fn write_batch(&self, file: &DeviceFile, batch: &Batch) -> std::io::Result<()> {
        if self.0.failpoints.is_active(Failpoint::PositionBeforeData) {
            file.save(&batch.position)?;
            return file.write(&batch.runs);
        }
        file.write(&batch.runs)?;
        file.save(&batch.position)
    }

    /// The second step of a write-back. Returns false if the disk is full: try again later.
    ///
    /// # Errors
    /// As [`Replica::write_back`].
    pub fn try_write_back(&self, batch: &Batch) -> Result<bool, String> {
        self.note_result(self.write_batch(&self.0.file, batch))
    }

    /// The last step of a write-back.
    pub fn end_write_back(&self, batch: Batch) {
        let Batch { runs, position, snapshot } = batch;
        drop(runs);
        let mut state = self.lock();
        let written = state.overlay.end_write_back();
        state.written = position.gtid.seqno;
        let has_become_whole = state.wholeness.written(position.gtid.seqno);
        drop(state);
        if has_become_whole {
            self.note_whole();
        }
        self.0.log.finished(position.gtid.seqno);
        self.wake();
        // Its memory is freed here: not under the lock.
        drop(written);
        if let Some(target) = snapshot {
            self.begin_snapshot(target, &position);
        }
    }

    /// Tries again while the disk is full. Every other error is final: after a failed sync, the content of the file is unknown.
    pub(super) fn until_it_fits(
        &self,
        write: impl Fn(&DeviceFile) -> std::io::Result<()>,
    ) -> Result<(), String> {
        while !self.note_result(write(&self.0.file))? {
            std::thread::sleep(FULL_RETRY);
        }
        Ok(())
    }

    /// The result of a write to the device file. Returns false if the disk is full.
    fn note_result(&self, result: std::io::Result<()>) -> Result<bool, String> {
        let Err(error) = result else {
            let before = self.lock().trouble.take();
            if before.is_some() {
                self.0.log.note(false, "the device file can be written again");
            }
            return Ok(true);
        };
        let is_full =
            matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        let text = format!("cannot write the device file: {error}");
        let is_new = {
            let mut state = self.lock();
            if !is_full || state.closing {
                return Err(text);
            }
            state.trouble.replace(text.clone()).is_none()
        };
        if is_new {
            self.0.log.note(true, &format!("{text}; tries again. Writes wait once block.cache is full"));
        }
        Ok(false)
    }
}

impl<L: Log> Export for Replica<L> {
    type Attachment = ReplicaAttachment<L>;

    fn names(&self) -> Vec<String> {
        vec![self.0.config.name.clone()]
    }

    fn describe(&self, name: &str) -> Result<Description, Refusal> {
        self.epoch_of(name)?;
        let state = self.lock();
        // A copy that is not whole does not know the device's size either.
        state.wholeness.check().map_err(|text| Refusal::new(RefusalKind::Policy, text))?;
        match state.attachments.size() {
            0 => Err(Refusal::new(RefusalKind::Policy, NO_SIZE)),
            size => Ok(Description::new(size)),
        }
    }

    async fn attach(&self, name: &str, peer: &Peer) -> Result<ReplicaAttachment<L>, Refusal> {
        let wanted = self.epoch_of(name)?;
        self.until_caught_up().await.map_err(|text| Refusal::new(RefusalKind::Policy, text))?;
        let until = self.now() + CONTROL_TIMEOUT;
        for _ in 0..ATTACH_TRIES {
            let way = loop {
                let changed = self.0.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                match self.way(wanted, peer)? {
                    Way::Wait if self.now() < until => self.look(changed).await,
                    way => break way,
                }
            };
            match way {
                Way::Join(epoch) => {
                    return Ok(ReplicaAttachment { replica: self.clone(), epoch, left: false });
                }
                Way::Wait => break,
                Way::Begin { before, promoted } => {
                    let (name, peer) = (peer.to_string(), *peer);
                    let entry = |token| Entry::Attach { before, peer: name, promoted, token };
                    let decided = self.control(Some(peer), entry).await;
                    decided.map_err(|text| Refusal::new(RefusalKind::Policy, text))?;
                }
            }
        }
        let text = "the device changes hands at the same time: try again";
        Err(Refusal::new(RefusalKind::Policy, text))
    }
}

/// The next step with a client.
enum Way {
    /// It joins the session of this epoch. It is counted.
    Join(u64),
    /// An attachment begins.
    Begin { before: u64, promoted: bool },
    /// The last client is leaving, or the primary before a promotion may still answer.
    Wait,
}

impl<L: Log> Replica<L> {
    /// The epoch in an export's name.
    fn epoch_of(&self, name: &str) -> Result<Option<u64>, Refusal> {
        let own = &self.0.config.name;
        // Without a name the client asks for the default export: there is only one.
        let rest = if name.is_empty() { Some("") } else { name.strip_prefix(own.as_str()) };
        let epoch = match rest {
            Some("") => Some(None),
            Some(rest) => rest.strip_prefix('@').and_then(|epoch| epoch.parse().ok()).map(Some),
            None => None,
        };
        let text = || format!("there is no export of this name here; there is {own}");
        epoch.ok_or_else(|| Refusal::new(RefusalKind::Unknown, text()))
    }

    fn way(&self, wanted: Option<u64>, peer: &Peer) -> Result<Way, Refusal> {
        let refuse = |text: String| Err(Refusal::new(RefusalKind::Policy, text));
        let name = &self.0.config.name;
        let promote = "see `lockstep block status`, then run `lockstep block promote` on the member that is to have the device, \
                       and attach by the name that it prints";
        let log = &self.0.log;
        let me = log.member();
        let mut state = self.lock();
        if state.closing {
            return Err(Refusal::new(RefusalKind::Shutdown, "the server ends"));
        }
        let (epoch, holder) = (state.attachments.epoch(), state.attachments.holder().clone());
        if state.attachments.size() == 0 {
            return refuse(NO_SIZE.into());
        }
        if let Some(session) = state.session.as_mut().filter(|session| session.epoch() == epoch)
            && let Holder::Attached { .. } = holder
        {
            if let Some(text) = session.failure() {
                return refuse(format!("{text}; {promote}"));
            }
            if wanted.is_some_and(|wanted| wanted != epoch) {
                return refuse(format!("the device is in epoch {epoch}: {promote}"));
            }
            if session.peer() != peer {
                return refuse(format!("{} is attached, in epoch {epoch}: {promote}", session.peer()));
            }
            if session.is_leaving() {
                return Ok(Way::Wait);
            }
            session.connected();
            return Ok(Way::Join(epoch));
        }
        let promoted = match (holder, wanted) {
            (Holder::Nobody, None) => false,
            (Holder::Nobody, Some(_)) => {
                return refuse(format!(
                    "that epoch is over, and nobody is attached: attach by the name {name}"
                ));
            }
            (Holder::Promoted(member), Some(wanted)) if member == me && wanted == epoch => true,
            (Holder::Promoted(member), _) if member == me => {
                return refuse(format!(
                    "this member was promoted in epoch {epoch}: attach by the name {name}@{epoch}"
                ));
            }
            (Holder::Promoted(member), _) => {
                return refuse(format!(
                    "{} was promoted in epoch {epoch}: attach there",
                    log.name_of(&member)
                ));
            }
            (Holder::Attached { member, peer, .. }, _) if member == me => {
                return refuse(format!(
                    "the attachment of {peer} in epoch {epoch} did not end in order, and writes may be lost: {promote}"
                ));
            }
            (Holder::Attached { member, peer, .. }, _) => {
                return refuse(format!(
                    "{peer} is attached to {}, in epoch {epoch}: {promote}",
                    log.name_of(&member)
                ));
            }
        };
        match log.refusal() {
            Some(text) => refuse(text),
            // The primary before may still answer reads, and writes that nobody has flushed.
            None if promoted
                && self.now().duration_since(state.promoted_at) < log.confirmed_for()
                && !self.0.failpoints.is_active(Failpoint::PromotedAtOnce) =>
            {
                Ok(Way::Wait)
            }
            None => Ok(Way::Begin { before: epoch, promoted }),
        }
    }
}

/// One connection's share of an attachment.
pub struct ReplicaAttachment<L: Log> {
    replica: Replica<L>,
    epoch: u64,
    left: bool,
}

impl<L: Log> std::fmt::Debug for ReplicaAttachment<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplicaAttachment({})", self.epoch)
    }
}

impl<L: Log> Drop for ReplicaAttachment<L> {
    fn drop(&mut self) {
        if !self.left {
            self.leave(false);
        }
    }
}

impl<L: Log> ReplicaAttachment<L> {
    fn shared(&self) -> &Shared<L> {
        &self.replica.0
    }

    /// Counts this connection out. Returns whether it was the last one of an attachment that goes on. `in_order`: then the
    /// attachment is leaving, and no client joins.
    fn leave(&mut self, in_order: bool) -> bool {
        self.left = true;
        let mut state = self.replica.lock();
        let Ok(session) = state.session(self.epoch) else { return false };
        session.disconnected();
        let is_last = session.connections() == 0;
        if is_last && in_order {
            session.set_leaving();
        }
        is_last
    }

    /// Waits until `ready` says so, of a session that has not failed.
    async fn until(&self, ready: impl Fn(&mut State) -> bool) -> Result<(), IoError> {
        let began = self.replica.now();
        let timeout = self.shared().config.timeout;
        loop {
            let changed = self.shared().changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.replica.lock();
                state.session(self.epoch)?;
                if ready(&mut state) {
                    return Ok(());
                }
                if !timeout.is_zero() && self.replica.now().duration_since(began) >= timeout {
                    let text = format!(
                        "a flush has taken longer than block.timeout ({} s): this attachment has ended",
                        timeout.as_secs()
                    );
                    let is_forgotten = self.shared().failpoints.is_active(Failpoint::FailedFlushForgotten);
                    let ended = if is_forgotten { None } else { state.fail_session(text.clone()) };
                    drop(state);
                    self.replica.wake();
                    drop(ended);
                    return Err(IoError::Io(text.into()));
                }
            }
            self.replica.look(changed).await;
        }
    }

    /// Waits until the log has this entry as durably as the policy asks.
    async fn durable(&self, number: u64) -> Result<(), IoError> {
        self.replica.send();
        let sent_is_enough = self.shared().failpoints.is_active(Failpoint::FlushBeforeLog);
        let ready = |state: &mut State| {
            let session = state.session.as_ref();
            session.is_some_and(|session| sent_is_enough || session.acknowledged() >= number)
        };
        self.until(ready).await
    }

    /// Holds a reply until this copy is known to have what was committed lately: another member may have become the primary. The
    /// entry that says so must have been taken, so the session is looked at last.
    async fn hold(&self) -> Result<(), IoError> {
        loop {
            let confirmed = self.shared().log.confirmed();
            {
                let mut state = self.replica.lock();
                state.session(self.epoch)?;
                if self.shared().failpoints.is_active(Failpoint::HoldSkipped)
                    || confirmed.is_some_and(|seqno| state.delivered >= seqno)
                {
                    return Ok(());
                }
            }
            self.shared().environment.sleep(HOLD_LOOK).await;
        }
    }

    fn range(&self, offset: u64, length: u64) -> Result<Range<u64>, IoError> {
        let size = self.replica.lock().attachments.size();
        match offset.checked_add(length).filter(|end| *end <= size) {
            Some(end) => Ok(offset..end),
            None => Err(IoError::Invalid(
                format!("{length} bytes at {offset} lie beyond the device's end at {size}").into(),
            )),
        }
    }

    async fn put(&self, run: Run, fua: bool) -> Result<(), IoError> {
        let range = self.range(run.offset, run.length)?;
        if range.is_empty() {
            return self.hold().await;
        }
        // Copied here: not under the lock.
        let mut runs = Some(Overlay::chunks(run));
        let mut number = 0;
        let cache = self.shared().config.cache;
        loop {
            let changed = self.shared().changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.replica.lock();
                state.session(self.epoch)?;
                if state.memory() < cache
                    && let Some(runs) = runs.take()
                {
                    runs.into_iter().for_each(|run| state.overlay.write(run));
                    state.dirty_since.get_or_insert(self.replica.now());
                    if fua {
                        number = state.seal(&range);
                    }
                    if state.overlay.dirty() >= cache / 8 {
                        self.shared().work.notify_all();
                    }
                    break;
                }
                // The cache is full: all of it must go to the log, and from there to the file.
                state.seal(&(0..u64::MAX));
            }
            self.replica.send();
            self.shared().work.notify_all();
            self.replica.look(changed).await;
        }
        if fua {
            self.durable(number).await?;
        }
        self.hold().await
    }

    /// Reads the parts that are in the file.
    async fn read_file(&self, parts: Vec<Part>, length: usize) -> Result<Bytes, IoError> {
        let replica = self.replica.clone();
        let read = move || -> std::io::Result<Bytes> {
            let mut out = BytesMut::zeroed(length);
            let Some(begin) = parts.first().map(|part| part.range.start) else { return Ok(out.freeze()) };
            for Part { range, content } in &parts {
                let into = &mut out[(range.start - begin) as usize..(range.end - begin) as usize];
                match content {
                    None => replica.0.file.read(range.start, into)?,
                    Some(Content::Data(bytes)) => into.copy_from_slice(bytes),
                    Some(Content::Zeroes { .. }) => {}
                }
            }
            Ok(out.freeze())
        };
        let read = blocking(&*self.shared().environment, read).await;
        let read = read.ok_or_else(|| IoError::Io("a read was interrupted".into()))?;
        read.map_err(|error| {
            let text = format!("cannot read the device file: {error}");
            self.shared().log.note(true, &text);
            IoError::Io(text.into())
        })
    }

    async fn read_range(&self, offset: u64, length: u32) -> Result<Bytes, IoError> {
        let range = self.range(offset, length.into())?;
        let parts = {
            let mut state = self.replica.lock();
            state.session(self.epoch)?;
            state.overlay.parts(range)
        };
        if let [Part { content: Some(Content::Data(bytes)), .. }] = &parts[..] {
            return Ok(bytes.clone());
        }
        self.read_file(parts, length as usize).await
    }

    async fn flush_all(&self) -> Result<(), IoError> {
        let number = {
            let mut state = self.replica.lock();
            let sealed = state.session(self.epoch)?.last();
            match self.shared().failpoints.is_active(Failpoint::FlushLeavesDirty) {
                true => sealed,
                false => state.seal(&(0..u64::MAX)),
            }
        };
        self.durable(number).await
    }

    async fn extents(&self, offset: u64, length: u32) -> Result<Vec<Extent>, IoError> {
        let range = self.range(offset, length.into())?;
        let parts = {
            let mut state = self.replica.lock();
            state.session(self.epoch)?;
            state.overlay.parts(range)
        };
        let replica = self.replica.clone();
        let found = blocking(&*self.shared().environment, move || extents_of(&replica.0.file, parts)).await;
        let found = found.ok_or_else(|| IoError::Io("a read of extents was interrupted".into()))?;
        found.map_err(|error| IoError::Io(format!("cannot read the device file's extents: {error}").into()))
    }
}

/// The first extents of a range that has these parts, with those of the file where it counts.
fn extents_of(file: &DeviceFile, parts: Vec<Part>) -> std::io::Result<Vec<Extent>> {
    let mut extents: Vec<Extent> = Vec::new();
    for Part { range, content } in parts {
        let mut at = range.start;
        while at < range.end {
            if extents.len() >= EXTENTS_MAX {
                return Ok(extents);
            }
            let (length, hole, zero) = match &content {
                Some(Content::Data(_)) => (range.end - at, false, false),
                Some(Content::Zeroes { hole }) => (range.end - at, *hole, true),
                None => {
                    let (length, hole) = file.extent(at, range.end - at)?;
                    (length, hole, hole)
                }
            };
            at += length;
            // Not more than the request's length, which is of this type.
            let length = length as u32;
            match extents.last_mut() {
                Some(last) if last.hole == hole && last.zero == zero => last.length += length,
                _ => extents.push(Extent { length, hole, zero }),
            }
        }
    }
    Ok(extents)
}

impl<L: Log> Attachment for ReplicaAttachment<L> {
    async fn read(&self, offset: u64, length: u32) -> Result<Bytes, IoError> {
        let bytes = self.read_range(offset, length).await?;
        self.hold().await?;
        Ok(bytes)
    }

    fn write(&self, offset: u64, data: Bytes, fua: bool) -> impl Future<Output = Result<(), IoError>> + Send {
        self.put(Run::data(offset, data), fua)
    }

    fn trim(&self, offset: u64, length: u32, fua: bool) -> impl Future<Output = Result<(), IoError>> + Send {
        self.put(Run::zeroes(offset, length.into(), true), fua)
    }

    fn write_zeroes(
        &self,
        offset: u64,
        length: u32,
        may_trim: bool,
        fua: bool,
    ) -> impl Future<Output = Result<(), IoError>> + Send {
        self.put(Run::zeroes(offset, length.into(), may_trim), fua)
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.flush_all().await?;
        self.hold().await
    }

    async fn block_status(&self, offset: u64, length: u32) -> Result<Vec<Extent>, IoError> {
        let extents = self.extents(offset, length).await?;
        self.hold().await?;
        Ok(extents)
    }

    async fn detach(mut self) {
        /// Lets clients join again if no entry was made that ends the attachment. With such an entry only its outcome counts:
        /// it may come at any time, and a client that joined before would lose its writes.
        struct Leaving<'a, L: Log>(&'a Replica<L>, u64);
        impl<L: Log> Drop for Leaving<'_, L> {
            fn drop(&mut self) {
                if let Ok(session) = self.0.lock().session(self.1)
                    && !session.is_detaching()
                {
                    session.stay();
                }
                self.0.wake();
            }
        }
        if !self.leave(true) {
            return;
        }
        let _leaving = Leaving(&self.replica, self.epoch);
        if self.flush_all().await.is_err() {
            return;
        }
        // The entry must follow all writes, also those that the policy acknowledged before they were committed.
        let committed =
            |state: &mut State| state.session.as_ref().is_some_and(|session| session.uncommitted() == 0);
        if self.until(committed).await.is_err() {
            return;
        }
        {
            let mut state = self.replica.lock();
            let token = state.controls.token();
            let Ok(session) = state.session(self.epoch) else { return };
            let entry = Entry::Detach { epoch: self.epoch, number: session.last() + 1, token };
            session.detach(entry.encode());
        }
        // The thread that submits sends it until the log has decided, also after this task.
        self.replica.wake();
        let until = self.replica.now() + CONTROL_TIMEOUT;
        while self.replica.now() < until {
            let changed = self.shared().changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.replica.lock().session(self.epoch).is_ok_and(|session| session.is_detaching()) {
                return;
            }
            self.replica.look(changed).await;
        }
    }
}
