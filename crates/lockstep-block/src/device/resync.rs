//! The replica's part in a copy from another member: see [`crate::copy`].
//!
//! | state of a copy | saved as whole | client, promotion, donation | next |
//! |---|---|---|---|
//! | whole | yes | yes | state needed, if the log no longer continues it or an operator gives it up |
//! | state needed | as before | no | copying, once a donor whose copy is whole has connected |
//! | copying | no | no | whole up to Q1, once the donor has sent all |
//! | whole from Q1 on | no | no | whole, once the file has every entry up to Q1 |
//!
//! A position that is saved as not whole counts as none: the next start begins with "state needed". Until a donor has connected,
//! the file and its saved position do not change: if no copy is whole but one that was given up, its next start uses it again.

use super::attachments::Attachments;
use super::extent_map::ExtentMap;
use super::failpoints::Failpoint;
use super::file::{DeviceFile, Position};
use super::replica::{Log, Replica};
use crate::copy::pace::Pace;
use crate::copy::receiver::{self, Joiner};
use crate::copy::sender::{self, Donor};
use crate::copy::wire::{Hello, Token};
use crate::copy::{CopyError, Image, Progress};
use lockstep_core::{Gtid, Seqno, Uuid};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// How long a donor waits until its file has what it has taken from the log.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(50);

/// Whether the device file is a copy of the device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Wholeness {
    /// It is, as of its position.
    #[default]
    Whole,
    /// The log does not continue it, or it was given up. No donor has come yet: file and saved position are as before.
    Needed,
    /// A donor sends.
    Copying {
        /// The donor's name.
        donor: String,
        /// How far it is.
        progress: Progress,
    },
    /// It is, once it has every entry up to this one.
    Until(Seqno),
}

impl Wholeness {
    /// The wholeness of a copy with this saved position.
    pub(super) fn of(position: &Position) -> Wholeness {
        if position.whole { Wholeness::Whole } else { Wholeness::Needed }
    }

    /// Whether a file with every entry up to this one is whole.
    pub(super) fn is_whole_at(&self, seqno: Seqno) -> bool {
        match self {
            Wholeness::Whole => true,
            Wholeness::Needed | Wholeness::Copying { .. } => false,
            Wholeness::Until(until) => *until <= seqno,
        }
    }

    /// The file has every entry up to this one, and its position is saved. Returns whether it has become whole by that.
    pub(super) fn written(&mut self, seqno: Seqno) -> bool {
        let becomes = *self != Wholeness::Whole && self.is_whole_at(seqno);
        if becomes {
            *self = Wholeness::Whole;
        }
        becomes
    }

    /// Whether clients may attach.
    ///
    /// # Errors
    /// Why not: a text for people.
    pub(super) fn check(&self) -> Result<(), String> {
        let text = match self {
            Wholeness::Whole => return Ok(()),
            Wholeness::Needed => "it waits for another member that sends the device".into(),
            Wholeness::Copying { donor, progress } => format!(
                "{donor} sends the device to it, and {} of {} MiB are done",
                progress.done >> 20,
                progress.total >> 20
            ),
            Wholeness::Until(seqno) => format!("it still takes entries of the log, up to seqno {seqno}"),
        };
        Err(format!(
            "this member's copy is not whole: {text}. Attach to another member, or promote another one, or wait (see \
             `lockstep block status`)"
        ))
    }
}

/// A donation of this member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Donation {
    /// The joiner's name.
    pub joiner: String,
    /// How far it is.
    pub progress: Progress,
}

impl Position {
    /// The position of a file whose content does not count, and is not forgotten either.
    pub fn given_up() -> Position {
        Position { gtid: Gtid::UNDEFINED, log: Uuid::NIL, attachments: Attachments::default(), whole: false }
    }
}

impl Image for DeviceFile {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        DeviceFile::read(self, offset, into)
    }

    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        DeviceFile::extent(self, offset, length)
    }

    fn write(&self, runs: &ExtentMap) -> io::Result<()> {
        DeviceFile::write(self, runs)
    }

    fn unit(&self) -> u64 {
        self.copy_unit()
    }
}

/// The device file of a joiner: writes wait while its disk is full.
struct PatientImage<'a, L: Log>(&'a Replica<L>);

impl<L: Log> Image for PatientImage<'_, L> {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.0.file.read(offset, into)
    }

    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        self.0.0.file.extent(offset, length)
    }

    fn write(&self, runs: &ExtentMap) -> io::Result<()> {
        self.0.until_it_fits(|file| file.write(runs)).map_err(io::Error::other)
    }

    fn unit(&self) -> u64 {
        self.0.0.file.copy_unit()
    }
}

/// What a donor's file has at least.
#[derive(Clone, Debug)]
pub struct Source {
    /// Every entry up to this one.
    gtid: Gtid,
    log: Uuid,
    attachments: Attachments,
}

/// As a joiner.
impl<L: Log> Replica<L> {
    /// The log does not continue this copy: no client attaches until another member has sent the device.
    pub fn needs_state(&self) {
        self.lock().wholeness = Wholeness::Needed;
        self.wake();
    }

    /// Whether this copy is whole.
    pub fn is_whole(&self) -> bool {
        self.lock().wholeness == Wholeness::Whole
    }

    /// Takes the device from a donor that has said Hello. Returns the position from which the log continues it. If that fails,
    /// the copy is not whole, and another donor may send.
    ///
    /// # Errors
    /// [`CopyError`]. After [`CopyError::Device`] the member must end.
    pub fn receive_copy<S: Read + Write>(&self, stream: &mut S, hello: &Hello) -> Result<Gtid, CopyError> {
        let mut joins = Joins(self);
        let received = receiver::receive(stream, &PatientImage(self), hello, &mut joins);
        if received.is_err() {
            let mut state = self.lock();
            if matches!(state.wholeness, Wholeness::Copying { .. }) {
                state.wholeness = Wholeness::Needed;
            }
        }
        received.map(|_| hello.gtid)
    }

    /// Tells people that this copy is whole again.
    pub(super) fn note_whole(&self) {
        self.0.log.note(false, "this member's copy is whole");
    }
}

struct Joins<'a, L: Log>(&'a Replica<L>);

impl<L: Log> Joiner for Joins<'_, L> {
    fn begin(&mut self, hello: &Hello) -> Result<(), CopyError> {
        let replica = self.0;
        let position = {
            let mut state = replica.lock();
            if state.closing {
                return Err(CopyError::Stopped);
            }
            if state.wholeness != Wholeness::Needed {
                return Err(CopyError::Refused("this member's copy needs no other one".into()));
            }
            if hello.gtid.uuid != state.history || !hello.gtid.is_defined() {
                return Err(CopyError::Refused(format!("this member is in the history {}", state.history)));
            }
            if !state.log_id.is_nil() && hello.log != state.log_id {
                return Err(CopyError::Refused(format!("this member is in the log {}", state.log_id)));
            }
            let total = hello.attachments.size();
            let progress = Progress { total, ..Progress::default() };
            state.wholeness = Wholeness::Copying { donor: hello.donor.clone(), progress };
            position_of(hello, false)
        };
        // While the old copy still counts: this file system may not hold the device.
        replica.0.file.grow(hello.attachments.size()).map_err(CopyError::Device)?;
        // Before the first write: from here on the file is neither the old copy nor the new one.
        replica.until_it_fits(|file| file.save(&position)).map_err(device)?;
        replica.until_it_fits(|file| file.fit(hello.attachments.size())).map_err(device)?;
        // The compared bytes must be on the disk, because an equal extent is not written again.
        replica.until_it_fits(DeviceFile::sync_and_reread).map_err(device)
    }

    fn progress(&mut self, now: Progress) -> Result<(), CopyError> {
        let mut state = self.0.lock();
        if state.closing {
            return Err(CopyError::Stopped);
        }
        if let Wholeness::Copying { progress, .. } = &mut state.wholeness {
            *progress = now;
        }
        Ok(())
    }

    fn end(&mut self, hello: &Hello, until: Seqno) -> Result<(), CopyError> {
        let replica = self.0;
        let Gtid { seqno, .. } = hello.gtid;
        let is_whole = until <= seqno || replica.0.failpoints.is_active(Failpoint::WholeAtOnce);
        let position = position_of(hello, is_whole);
        replica.until_it_fits(DeviceFile::sync_and_reread).map_err(device)?;
        replica.until_it_fits(|file| file.save(&position)).map_err(device)?;
        let mut state = replica.lock();
        // A promotion may have been among the entries that the donor's copy has.
        state.promoted_at = replica.now();
        state.attachments = position.attachments;
        (state.delivered, state.written) = (seqno, seqno);
        state.wholeness = if is_whole { Wholeness::Whole } else { Wholeness::Until(until) };
        drop(state);
        replica.wake();
        if is_whole {
            replica.note_whole();
        }
        Ok(())
    }
}

fn position_of(hello: &Hello, whole: bool) -> Position {
    Position { gtid: hello.gtid, log: hello.log, attachments: hello.attachments.clone(), whole }
}

fn device(text: String) -> CopyError {
    CopyError::Device(io::Error::other(text))
}

/// As a donor.
impl<L: Log> Replica<L> {
    /// Sends the device to a joiner. Returns the position from which the log continues its copy, and the progress. Clients go on
    /// meanwhile. `names`: the donor's and the joiner's.
    ///
    /// # Errors
    /// [`CopyError`].
    pub fn send_copy<S: Read + Write>(
        &self,
        stream: &mut S,
        source: Source,
        token: Token,
        names: (&str, &str),
        pace: Pace,
    ) -> Result<(Gtid, Progress), CopyError> {
        let Source { gtid, log, attachments } = source;
        let (donor, joiner) = names;
        let hello = Hello {
            token,
            group: self.0.config.name.clone(),
            donor: donor.to_owned(),
            gtid,
            log,
            attachments,
        };
        let mut donates = Donates { replica: self, joiner };
        let sent = sender::send(stream, &self.0.file, hello, pace, &mut donates);
        self.lock().donation = None;
        Ok((gtid, sent?))
    }

    /// Waits until the file has every entry that this member has taken by now.
    ///
    /// # Errors
    /// [`CopyError`]; [`CopyError::Refused`] if this copy is not whole itself.
    pub fn source(&self) -> Result<Source, CopyError> {
        let until = Instant::now() + WRITTEN_WITHIN;
        let source = self.begin_source()?;
        let mut state = self.lock();
        while state.written < source.gtid.seqno {
            if state.closing {
                return Err(CopyError::Stopped);
            }
            if Instant::now() >= until {
                return Err(CopyError::Device(io::Error::other(
                    "it does not take the writes of the log in time",
                )));
            }
            // Short, because the condition is shared: a notice may have been another thread's.
            let waited = self.0.work.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        Ok(source)
    }

    /// The entries that this member has taken by now. The copy may begin once the file has them, too: see
    /// [`Replica::has_written`].
    ///
    /// # Errors
    /// [`CopyError::Refused`] if this copy is not whole itself.
    pub fn begin_source(&self) -> Result<Source, CopyError> {
        let state = self.lock();
        if state.wholeness != Wholeness::Whole {
            return Err(CopyError::Refused("this member's own copy is not whole".into()));
        }
        if !state.caught_up {
            // After a kill, the file may have parts of entries that are taken again.
            return Err(CopyError::Refused("this member has not caught up with the log".into()));
        }
        // One state of one moment: the attachments are those of this seqno.
        let gtid = Gtid { uuid: state.history, seqno: state.delivered };
        Ok(Source { gtid, log: state.log_id, attachments: state.attachments.clone() })
    }

    /// Whether the file has everything of a source.
    pub fn has_written(&self, source: &Source) -> bool {
        self.lock().written >= source.gtid.seqno
    }
}

struct Donates<'a, L: Log> {
    replica: &'a Replica<L>,
    joiner: &'a str,
}

impl<L: Log> Donor for Donates<'_, L> {
    fn progress(&mut self, progress: Progress) -> Result<(), CopyError> {
        let mut state = self.replica.lock();
        if state.closing {
            return Err(CopyError::Stopped);
        }
        state.donation = Some(Donation { joiner: self.joiner.to_owned(), progress });
        Ok(())
    }

    fn until(&mut self) -> Seqno {
        // A batch that is being written may have entries up to the last one taken.
        self.replica.lock().delivered
    }

    fn now(&self) -> Instant {
        self.replica.now()
    }
}
