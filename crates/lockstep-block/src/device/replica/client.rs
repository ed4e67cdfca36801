//! A client's side: the export, and a connection's share of an attachment.

use super::super::attachments::Holder;
use super::super::entry::Entry;
use super::super::environment::blocking;
use super::super::extent_map::{Content, Run};
use super::super::failpoints::Failpoint;
use super::super::file::DeviceFile;
use super::super::overlay::{Overlay, Part};
use super::{ATTACH_TIMEOUT, ATTACH_TRIES, CONTROL_TIMEOUT, Log, NO_SIZE, Replica, Shared, State, Unusable};
use crate::export::{Attachment, Description, Export, Extent, IoError, Peer, Refusal, RefusalKind};
use bytes::{Bytes, BytesMut};
use std::future::Future;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How often a held reply looks for a majority.
const HOLD_LOOK: Duration = Duration::from_millis(10);
/// The most extents in one answer.
const EXTENTS_MAX: usize = 2048;
const WITHOUT_MAJORITY: &str = "a request has waited for an answer of a majority";

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
        let (size, has_caught_up) = (state.attachments.size(), state.caught_up);
        drop(state);
        match size {
            // The log may have given it one.
            0 if !has_caught_up => {
                Err(Refusal::new(RefusalKind::Policy, self.waits_for().unwrap_or_default()))
            }
            0 => Err(Refusal::new(RefusalKind::Policy, NO_SIZE)),
            size => Ok(Description::new(size)),
        }
    }

    async fn attach(&self, name: &str, peer: &Peer) -> Result<ReplicaAttachment<L>, Refusal> {
        let wanted = self.epoch_of(name)?;
        let refuse = |text: String| Refusal::new(RefusalKind::Policy, text);
        let until = self.now() + ATTACH_TIMEOUT;
        self.caught_up_by(until).await.map_err(refuse)?;
        for _ in 0..ATTACH_TRIES {
            let mut unusable = Unusable::default();
            let decided = self.until(|| match self.way(wanted, peer) {
                Ok(Way::Wait(why)) => {
                    let now = self.now();
                    match unusable.step(self.unusable(), now) {
                        Some(text) => Some(Ok(Way::Wait(format!("{why}: {text}")))),
                        None => (now >= until).then(|| Ok(Way::Wait(format!("{why}: try again")))),
                    }
                }
                way => Some(way),
            });
            match decided.await? {
                Way::Join(epoch) => {
                    return Ok(ReplicaAttachment { replica: self.clone(), epoch, left: false });
                }
                Way::Wait(text) => return Err(refuse(text)),
                Way::Begin { before, promoted } => {
                    let (name, peer) = (peer.to_string(), *peer);
                    let entry = |token| Entry::Attach { before, peer: name, promoted, token };
                    self.control_by(until, Some(peer), entry).await.map_err(refuse)?;
                }
            }
        }
        Err(refuse("the device changes hands at the same time: try again".into()))
    }
}

/// The next step with a client.
enum Way {
    /// It joins the session of this epoch. It is counted.
    Join(u64),
    /// An attachment begins.
    Begin { before: u64, promoted: bool },
    /// The last client is leaving, or the primary before a promotion may still answer: a text for people.
    Wait(String),
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
                let peer = session.peer();
                return refuse(format!(
                    "{peer} is attached, in epoch {epoch}: disconnect that client first. If it is lost, {promote}"
                ));
            }
            if session.is_leaving() {
                return Ok(Way::Wait(format!(
                    "{} is leaving, and the log does not have the end of its attachment yet",
                    session.peer()
                )));
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
                Ok(Way::Wait("the primary before may still answer for a moment".into()))
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

    /// Ends the attachment if this request has waited for longer than `block.timeout`. `what` did: a text for people.
    fn overdue(&self, began: Instant, what: &str) -> Result<(), IoError> {
        let timeout = self.shared().config.timeout;
        if timeout.is_zero() || self.replica.now().duration_since(began) < timeout {
            return Ok(());
        }
        let text =
            format!("{what} longer than block.timeout ({} s): this attachment has ended", timeout.as_secs());
        let is_forgotten = self.shared().failpoints.is_active(Failpoint::FailedFlushForgotten);
        let mut state = self.replica.lock();
        // Another attachment may have begun.
        state.session(self.epoch)?;
        let ended = if is_forgotten { None } else { state.fail_session(text.clone()) };
        drop(state);
        self.replica.wake();
        drop(ended);
        Err(IoError::Io(text.into()))
    }

    /// Waits until `ready` says so, of a session that has not failed.
    async fn until(&self, ready: impl Fn(&mut State) -> bool) -> Result<(), IoError> {
        let began = self.replica.now();
        self.replica
            .until(|| {
                let mut state = self.replica.lock();
                if let Err(error) = state.session(self.epoch) {
                    return Some(Err(error));
                }
                if ready(&mut state) {
                    return Some(Ok(()));
                }
                drop(state);
                self.overdue(began, "a flush has taken").err().map(Err)
            })
            .await
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
        let began = self.replica.now();
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
            self.overdue(began, WITHOUT_MAJORITY)?;
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
        let cache = self.shared().config.cache;
        let mut cut_off = None::<Instant>;
        let written = self.replica.until(|| {
            let mut state = self.replica.lock();
            if let Err(error) = state.session(self.epoch) {
                return Some(Err(error));
            }
            if state.memory() < cache
                && let Some(runs) = runs.take()
            {
                runs.into_iter().for_each(|run| state.overlay.write(run));
                state.dirty_since.get_or_insert(self.replica.now());
                let number = if fua { state.seal(&range) } else { 0 };
                if state.overlay.dirty() >= cache / 8 {
                    self.shared().work.notify_all();
                }
                return Some(Ok(number));
            }
            // The cache is full: all of it must go to the log, and from there to the file.
            state.seal(&(0..u64::MAX));
            drop(state);
            self.replica.send();
            self.shared().work.notify_all();
            if self.shared().log.is_live() {
                // A full disk of the device file is no reason to fail.
                cut_off = None;
                return None;
            }
            let since = *cut_off.get_or_insert(self.replica.now());
            self.overdue(since, WITHOUT_MAJORITY).err().map(Err)
        });
        let number = written.await?;
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
            // More would only hold the lock for longer: the answer may be shorter than the request.
            state.overlay.first_parts(range, EXTENTS_MAX)
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
        self.replica
            .until(|| {
                let mut state = self.replica.lock();
                let goes_on = state.session(self.epoch).is_ok_and(|session| session.is_detaching());
                (!goes_on || self.replica.now() >= until).then_some(())
            })
            .await;
    }
}
