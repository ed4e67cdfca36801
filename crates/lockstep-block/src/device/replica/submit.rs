//! Entries of this member on their way to the log: writes, and control entries.

use super::super::attachments::Holder;
use super::super::controls::Outcome;
use super::super::entry::Entry;
use super::super::environment::blocking;
use super::super::session::ToSend;
use super::{ATTACH_TRIES, CONTROL_TIMEOUT, Closes, Log, NO_SIZE, Notice, Replica, State, Tag, Unusable};
use crate::export::Peer;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Dirty writes go to the log after this time, if no flush takes them before.
const DIRTY_MAX: Duration = Duration::from_secs(1);
/// How often the thread that submits looks without a call.
const SUBMIT_LOOK: Duration = Duration::from_millis(20);
/// A control entry that may be lost is sent again after this time: at most one of them is accepted.
const CONTROL_AGAIN: Duration = Duration::from_secs(2);
/// The least data under way to the log.
const WINDOW_MIN: u64 = 4 << 20;
/// The most data under way to the log. A line of 1 Gbit/s and 85 ms holds 10 MB. With much more, the log takes so long to commit
/// all of it that the member cannot tell in time whether it is still the primary, and replies wait.
const WINDOW_MAX: u64 = 16 << 20;
const MAY_COUNT: &str = "The command was sent, and may still take effect: look at `lockstep block status`";

/// Since when the log has refused entries although there is a majority.
#[derive(Debug, Default)]
pub struct Refused {
    since: Option<Instant>,
}

/// To the log.
impl<L: Log> Replica<L> {
    fn window(&self) -> u64 {
        (self.0.config.cache / 2).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    /// Sends entries that are due. If another thread sends, that one goes on.
    pub(super) fn send(&self) {
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
                drop(state);
                self.wake_clients();
            }
            Notice::Lost => {
                if let Some(session) = state.session.as_mut().filter(|session| session.epoch() == tag.epoch) {
                    session.on_lost();
                }
                drop(state);
                self.wake();
            }
        }
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
            let waited = self.0.work.wait_timeout(state, SUBMIT_LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// As [`Replica::control_by`], for as long as a command may take.
    pub(in crate::device) async fn control(
        &self,
        entry: impl FnOnce(u64) -> Entry,
    ) -> Result<Outcome, String> {
        self.control_by(self.now() + CONTROL_TIMEOUT, None, entry).await
    }

    /// Sends a control entry, and waits for its outcome until this time. Nothing is sent while there is no majority. `peer`: the
    /// client, if the entry is an attach.
    ///
    /// # Errors
    /// There was none in time. The text is for people. An entry that was sent may be accepted later.
    pub(super) async fn control_by(
        &self,
        until: Instant,
        peer: Option<Peer>,
        entry: impl FnOnce(u64) -> Entry,
    ) -> Result<Outcome, String> {
        struct Waiting<'a, L: Log> {
            replica: &'a Replica<L>,
            token: u64,
            was_sent: bool,
        }
        impl<L: Log> Waiting<'_, L> {
            fn effect(&self) -> &'static str {
                if self.was_sent { MAY_COUNT } else { "Nothing was changed" }
            }
        }
        impl<L: Log> Drop for Waiting<'_, L> {
            fn drop(&mut self) {
                let mut state = self.replica.lock();
                if let Some(Outcome { accepted: true, epoch }) = state.controls.abandon(self.token) {
                    state.detach_unused(epoch);
                }
                if !self.was_sent && state.promotions.remove(&self.token) {
                    state.count_early();
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
        let (mut sent_at, mut unusable_for) = (None::<Instant>, Unusable::default());
        self.until(|| {
            {
                let mut state = self.lock();
                if let Some(outcome) = state.controls.take(token) {
                    return Some(Ok(outcome));
                }
                if state.closing {
                    return Some(Err("the server ends".into()));
                }
            }
            let now = self.now();
            let unusable = self.unusable();
            let is_usable = unusable.is_none();
            if let Some(text) = unusable_for.step(unusable, now) {
                return Some(Err(format!("{text}. {}", waiting.effect())));
            }
            let is_due = sent_at.is_none_or(|at| now.duration_since(at) >= CONTROL_AGAIN);
            if is_usable && is_due && self.0.log.submit(payload.clone(), Box::new(|_| {})).is_ok() {
                waiting.was_sent = true;
                sent_at = Some(now);
            }
            (now >= until).then(|| {
                Err(format!("the log has not answered in time: this member lags. {}", waiting.effect()))
            })
        })
        .await
    }

    /// Why the log takes no entry of this member now, for people.
    pub(super) fn unusable(&self) -> Option<String> {
        self.outside().or_else(|| self.0.log.refusal())
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
                 client first. If the attachment did not end in order (see `lockstep block status` on {name}), promote {name}. If \
                 {name} does not answer, stop its machine and give --force"
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
            let outcome = self.control(|token| Entry::Promote { before, token }).await?;
            if outcome.accepted {
                return Ok(outcome.epoch);
            }
            // The state has changed meanwhile, or this member had not caught up.
        }
        Err("other members are promoted at the same time: look at `lockstep block status`".into())
    }

    /// Gives the device its first size, or makes it larger. The own file grows first: once the log has a size, a member whose file
    /// system does not hold it ends.
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
            self.grow_file(size).await?;
            if self.control(|token| Entry::Resize { before, size, token }).await?.accepted {
                return Ok(());
            }
        }
        Err("the size is changed elsewhere at the same time: look at `lockstep block status`".into())
    }

    async fn grow_file(&self, size: u64) -> Result<(), String> {
        let replica = self.clone();
        let grown = blocking(&*self.0.environment, move || replica.0.file.grow(size)).await;
        match grown {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(format!(
                "cannot extend the device file: {error}, or give a smaller size. Nothing was changed"
            )),
            None => Err("the device file was not extended: try again".into()),
        }
    }
}
