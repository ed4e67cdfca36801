//! The stream of events for one consumer.
//!
//! [`Filter`] decides on each event of the files: sent as it is, changed, or left out. It performs no I/O. `run` reads
//! the files and writes to the connection. It never waits for an acknowledgement, so a consumer delays nobody but itself.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, Instant};

use super::command::{Ack, Command, Dump};
use super::consumers::{Registered, StreamProgress};
use super::reply::{SqlError, eof};
use super::session::{Settings, StreamOptions, knows};
use super::transport::Transport;
use crate::codec::DecodeError;
use crate::event::{
    Checksum, FormatDescription, Group, Header, artificial_gtid_list, artificial_rotate, flag,
    format_for_start, heartbeat, kind, to_begin, to_dummy, without_checksum,
};
use crate::gtid::{Gtid, ReplicaState};
use crate::library::{Library, LibraryError, Reader, Start, StartError, Step};

/// How often a waiting stream looks whether its consumer has gone.
const LOOK: Duration = Duration::from_secs(1);
/// The first bytes of an event for a semi-synchronous replica: a mark, and whether it is to acknowledge.
const SEMI_SYNC: [u8; 2] = [0xef, 0];
const SEMI_SYNC_ACK: [u8; 2] = [0xef, 1];

impl From<StartError> for SqlError {
    fn from(error: StartError) -> SqlError {
        match error {
            StartError::Library(error) => error.into(),
            // The consumer may try again.
            StartError::Empty => SqlError::new(1105, error.to_string()),
            error => SqlError::fatal(error.to_string()),
        }
    }
}

impl From<LibraryError> for SqlError {
    fn from(error: LibraryError) -> SqlError {
        match error {
            // Another server may have a disk that works, so a replica connects again.
            LibraryError::Io { .. } => SqlError::new(1105, error.to_string()),
            error => SqlError::fatal(error.to_string()),
        }
    }
}

/// The decision on an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed<'a> {
    /// The event to send; `None`: it is left out.
    pub event: Option<Cow<'a, [u8]>>,
    /// A group ends with this event, and was not left out.
    pub group_end: bool,
    /// The UNTIL condition is met after this event.
    pub until: bool,
}

/// Decides on the events of the files, from a start on.
#[derive(Clone, Debug)]
pub struct Filter {
    options: StreamOptions,
    start: Start,
    /// Domains that have not yet met the UNTIL condition.
    until: Option<ReplicaState>,
    group: Group,
    /// The current group is left out.
    leaving_out: bool,
    /// The last GTID of each domain that was sent.
    sent: ReplicaState,
}

impl Filter {
    /// Begins at this start.
    pub fn new(options: &StreamOptions, start: Start) -> Filter {
        let mut until = options.until.clone().filter(|_| options.gtids.is_some());
        if let Some(until) = &mut until {
            let met =
                |gtid: &Gtid| start.state.last(gtid.domain).is_some_and(|last| last.seqno >= gtid.seqno);
            let met: Vec<Gtid> = until.iter().filter(met).collect();
            met.iter().for_each(|gtid| until.remove(gtid.domain));
        }
        let sent = start.state.to_replica();
        Filter { options: options.clone(), start, until, group: Group::default(), leaving_out: false, sent }
    }

    /// Whether the UNTIL condition is met already.
    pub fn until_met(&self) -> bool {
        self.group == Group::Outside && self.until.as_ref().is_some_and(ReplicaState::is_empty)
    }

    /// The state of the stream after the last event.
    pub fn state(&self) -> &crate::gtid::StreamState {
        &self.start.state
    }

    /// The last GTID of each domain that was sent.
    pub fn sent(&self) -> &ReplicaState {
        &self.sent
    }

    /// The checksum of events that this consumer gets from a file.
    pub fn checksum_out(&self, file: Checksum) -> Checksum {
        if self.options.checksum.is_some() { file } else { Checksum::None }
    }

    /// The format description of a file. `from_start`: the consumer reads the file from its first byte.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no format description.
    pub fn format_description(&self, event: &[u8], from_start: bool) -> Result<Vec<u8>, DecodeError> {
        // While groups are left out, the replica has connected before, and may have temporary tables.
        let event = format_for_start(event, from_start, self.start.skip.is_empty())?;
        match FormatDescription::parse(&event)?.checksum {
            Checksum::Crc32 if self.options.checksum.is_none() => without_checksum(&event, Checksum::Crc32),
            _ => Ok(event),
        }
    }

    /// Passes the next event of a file with this kind of checksum.
    ///
    /// # Errors
    /// [`SqlError`] for the consumer if the event is damaged, or the consumer's history is another one.
    pub fn pass<'a>(&mut self, event: &'a [u8], file: Checksum) -> Result<Passed<'a>, SqlError> {
        let damaged = |why: DecodeError| SqlError::fatal(format!("an event of the binlog {why}"));
        let header = Header::parse(event).map_err(damaged)?;
        if header.kind == kind::FORMAT_DESCRIPTION {
            // A crash of the source may have left a group incomplete. A replica rolls it back at this event.
            (self.group, self.leaving_out) = (Group::Outside, false);
            let event = self.format_description(event, true).map_err(damaged)?;
            return Ok(Passed { event: Some(Cow::Owned(event)), group_end: false, until: false });
        }
        let outside = self.group == Group::Outside;
        let gtid = self.group.pass(header.kind, event, file).map_err(damaged)?;
        if let Some(gtid) = &gtid {
            let has = self.start.pass(gtid.gtid)?;
            let beyond = self.is_beyond_until(gtid.gtid);
            self.leaving_out = has || beyond;
            if !self.leaving_out {
                self.sent.set(gtid.gtid);
            }
        }
        let in_group = !outside || gtid.is_some();
        let ended = in_group && self.group == Group::Outside;
        let left_out = in_group && self.leaving_out;
        if ended {
            self.leaving_out = false;
        }
        let until = self.until_met() && (ended || !in_group);
        if left_out || (self.options.skip_replication && header.flags & flag::SKIP_REPLICATION != 0) {
            return Ok(Passed { event: None, group_end: false, until });
        }
        let event = self.for_capability(header.kind, event, file).map_err(damaged)?;
        let event = match event {
            Some(event) if self.options.checksum.is_none() && file == Checksum::Crc32 => {
                Some(Cow::Owned(without_checksum(&event, file).map_err(damaged)?))
            }
            event => event,
        };
        Ok(Passed { event, group_end: ended, until })
    }

    /// Whether a group is behind the UNTIL condition of its domain. Notes when the condition is met.
    fn is_beyond_until(&mut self, group: Gtid) -> bool {
        let Some(until) = &mut self.until else { return false };
        match until.get(group.domain) {
            None => true,
            Some(last) if group.seqno < last.seqno => false,
            Some(last) => {
                until.remove(group.domain);
                group.seqno > last.seqno
            }
        }
    }

    /// The event, or what an old consumer gets in its place.
    fn for_capability<'a>(
        &self,
        kind: u8,
        event: &'a [u8],
        file: Checksum,
    ) -> Result<Option<Cow<'a, [u8]>>, DecodeError> {
        let capability = self.options.capability;
        let known = match kind {
            kind::ANNOTATE_ROWS => self.options.annotate || capability == knows::ANNOTATE,
            kind::BINLOG_CHECKPOINT => capability >= knows::CHECKPOINT,
            kind::GTID_LIST => capability >= knows::GTID,
            kind::GTID if capability < knows::GTID => match to_begin(event, file)? {
                Some(begin) => return Ok(Some(Cow::Owned(begin))),
                None => false,
            },
            _ => true,
        };
        if known {
            return Ok(Some(Cow::Borrowed(event)));
        }
        if capability >= knows::HOLES {
            return Ok(None);
        }
        to_dummy(event, file).map(|dummy| Some(Cow::Owned(dummy)))
    }
}

/// Bounds of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How long a consumer that is ahead of this server waits for it to catch up, before it is refused. A replica that
    /// changes from another server may be ahead for a moment.
    pub catch_up: Duration,
}

/// The inputs of a stream, beside its connection.
pub(super) struct Source<'a> {
    pub(super) library: &'a Library,
    pub(super) settings: &'a Settings,
    pub(super) limits: Limits,
    /// This connection, which another thread may close.
    pub(super) registered: &'a Registered,
}

impl Source<'_> {
    fn stopping(&self) -> bool {
        self.registered.is_closed() || self.library.is_closed()
    }

    /// Where the consumer starts. Waits a while if it is ahead.
    fn start(&self, options: &StreamOptions, dump: &Dump) -> Result<Start, SqlError> {
        // Only tools that read files have no server id.
        if options.gtids.is_none() && dump.server_id != 0 && self.library.continues_another() {
            return Err(SqlError::fatal(
                "this server goes on with the binlog of another primary, whose files have other positions than those of the \
                 primary before: let the replica go on by GTID (CHANGE MASTER TO MASTER_USE_GTID=slave_pos)",
            ));
        }
        let deadline = Instant::now() + self.limits.catch_up;
        loop {
            let end = self.library.end();
            let error = match &options.gtids {
                Some(gtids) => match self.library.position_of(gtids) {
                    Ok(start) => return Ok(start),
                    Err(error) => error,
                },
                None => match self.library.position_in(&dump.file, u64::from(dump.offset)) {
                    Ok(start) => return Ok(start),
                    Err(error) => error,
                },
            };
            let ahead = match &error {
                StartError::BeyondEnd { .. } | StartError::Empty => true,
                StartError::OtherDomains { stream, .. } => stream.is_empty(),
                StartError::NoEvent { offset, end, .. } => offset > end,
                StartError::NoFile { file, range: Some((_, newest)) } => {
                    self.library.number_of(file) > self.library.number_of(newest)
                }
                _ => false,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if !ahead || self.stopping() {
                return Err(error.into());
            }
            if left.is_zero() {
                return Err(match self.library.is_behind() {
                    // A replica tries this again by itself, and a fatal error stops it for good.
                    true => {
                        SqlError::new(1105, format!("{error}. This server is catching up: connect again"))
                    }
                    false => error.into(),
                });
            }
            self.library.wait_beyond(end, left, || self.registered.is_closed());
        }
    }
}

/// Why a stream ends.
enum End {
    /// The consumer has gone, or the connection failed.
    Gone,
    /// All that the consumer asked for was sent.
    Done,
    /// The consumer gets an error.
    Failed(SqlError),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> End {
        End::Gone
    }
}

impl From<SqlError> for End {
    fn from(error: SqlError) -> End {
        End::Failed(error)
    }
}

impl From<LibraryError> for End {
    fn from(error: LibraryError) -> End {
        End::Failed(error.into())
    }
}

/// Sends the stream until the consumer goes or its request is fulfilled.
pub(super) fn run(
    transport: &mut Transport,
    source: &Source<'_>,
    options: &StreamOptions,
    dump: &Dump,
) -> io::Result<()> {
    match stream(transport, source, options, dump) {
        Ok(()) | Err(End::Done) => transport.send(&eof()),
        Err(End::Gone) => Ok(()),
        Err(End::Failed(error)) => transport.fail(&error),
    }
}

fn stream(
    transport: &mut Transport,
    source: &Source<'_>,
    options: &StreamOptions,
    dump: &Dump,
) -> Result<(), End> {
    let registered = source.registered;
    let start = source.start(options, dump)?;
    let filter = Filter::new(options, start.clone());
    let progress = StreamProgress {
        server_id: dump.server_id,
        file: source.library.file_name(start.at.file),
        sent: start.at,
        gtids: filter.sent().clone(),
        behind: 0,
        behind_seconds: None,
        sent_time: 0,
        caught_up: None,
        semi_sync: options.semi_sync,
        acked: None,
    };
    registered.update(|consumer| consumer.stream = Some(progress));
    let mut reader = source.library.reader(&registered.label(), start.at)?;
    let last_sent = Instant::now();
    let mut sender = Sender { transport, source, options, filter, last_sent, sent_time: 0 };
    sender.begin(&reader, &start)?;
    if sender.filter.until_met() {
        return sender.end_until(&reader);
    }
    loop {
        match reader.advance()? {
            Step::Event => sender.event(&reader)?,
            Step::FileEnd => {
                let checksum = sender.filter.checksum_out(reader.checksum());
                reader.next_file()?;
                sender.rotate(&reader, checksum)?;
            }
            Step::End if options.non_block => {
                sender.flush(&reader)?;
                return Ok(());
            }
            Step::End => sender.wait(&reader)?,
        }
    }
}

struct Sender<'a> {
    transport: &'a mut Transport,
    source: &'a Source<'a>,
    options: &'a StreamOptions,
    filter: Filter,
    last_sent: Instant,
    /// The time in the last event of the files.
    sent_time: u32,
}

impl Sender<'_> {
    /// The artificial events before the first one of the file.
    fn begin(&mut self, reader: &Reader, start: &Start) -> Result<(), End> {
        self.rotate(reader, self.options.checksum.unwrap_or(Checksum::None))?;
        if start.is_file_start() {
            return Ok(());
        }
        let damaged = |why: DecodeError| {
            SqlError::fatal(format!("the format description of {} {why}", reader.file_name()))
        };
        let format = self.filter.format_description(&reader.format_description()?, false).map_err(damaged)?;
        self.queue(&format, false, reader)?;
        if self.options.gtids.is_some() && self.options.capability >= knows::GTID {
            let checksum = self.filter.checksum_out(reader.checksum());
            let (list, end) = (start.state.to_list(), start.at.offset as u32);
            let list = artificial_gtid_list(self.source.settings.server_id, &list, false, end, checksum);
            self.queue(&list, false, reader)?;
        }
        Ok(())
    }

    fn rotate(&mut self, reader: &Reader, checksum: Checksum) -> Result<(), End> {
        let (file, offset) = (reader.file_name(), reader.position().offset);
        let rotate = artificial_rotate(self.source.settings.server_id, &file, offset, checksum);
        self.queue(&rotate, false, reader)
    }

    /// Sends the reader's event, unless the filter leaves it out.
    fn event(&mut self, reader: &Reader) -> Result<(), End> {
        let passed = self.filter.pass(reader.event(), reader.checksum())?;
        if let Some(time) =
            reader.event().first_chunk().map(|time| u32::from_le_bytes(*time)).filter(|t| *t != 0)
        {
            self.sent_time = time;
        }
        let Passed { event, group_end, until } = passed;
        if let Some(event) = event {
            // A burst is acknowledged once, at its end.
            let ack = self.options.semi_sync && group_end && reader.is_at_known_end();
            self.queue(&event, ack, reader)?;
        }
        if until { self.end_until(reader) } else { Ok(()) }
    }

    fn end_until(&mut self, reader: &Reader) -> Result<(), End> {
        let checksum = self.filter.checksum_out(reader.checksum());
        let (list, end) = (self.filter.state().to_list(), reader.position().offset as u32);
        let list = artificial_gtid_list(self.source.settings.server_id, &list, true, end, checksum);
        self.queue(&list, false, reader)?;
        self.flush(reader)?;
        Err(End::Done)
    }

    fn queue(&mut self, event: &[u8], ack: bool, reader: &Reader) -> Result<(), End> {
        let mark: &[u8] = match (self.options.semi_sync, ack) {
            (false, _) => &[],
            (true, false) => &SEMI_SYNC,
            (true, true) => &SEMI_SYNC_ACK,
        };
        let flushed = self.transport.queue(&[&[0], mark, event])?;
        if ack {
            self.flush(reader)?;
            // Both sides begin their numbers anew around an acknowledgement.
            self.transport.set_sequence(1);
        } else if flushed {
            self.note(reader)?;
        }
        Ok(())
    }

    fn flush(&mut self, reader: &Reader) -> Result<(), End> {
        self.transport.flush()?;
        self.note(reader)
    }

    /// Updates status after a write, and takes the consumer's packets.
    fn note(&mut self, reader: &Reader) -> Result<(), End> {
        self.last_sent = Instant::now();
        let (file, sent, gtids) = (reader.file_name(), reader.position(), self.filter.sent().clone());
        let sent_time = self.sent_time;
        self.source.registered.update(|consumer| {
            if let Some(stream) = &mut consumer.stream {
                (stream.file, stream.sent, stream.gtids, stream.sent_time) = (file, sent, gtids, sent_time);
            }
        });
        self.receive()
    }

    /// Takes acknowledgements. A consumer that closes the connection or says so ends the stream.
    fn receive(&mut self) -> Result<(), End> {
        let Some(payloads) = self.transport.poll()? else { return Err(End::Gone) };
        for payload in payloads {
            if let Ok(Some(ack)) = Ack::parse(&payload) {
                self.source.registered.update(|consumer| {
                    if let Some(stream) = &mut consumer.stream {
                        stream.acked = Some(ack);
                    }
                });
            } else if Command::parse(&payload) == Ok(Command::Quit) {
                return Err(End::Gone);
            }
            // Some clients send pings to keep the connection alive. An answer would be taken for an event.
        }
        Ok(())
    }

    /// Waits at the end of the stream for a while. Sends a heartbeat if the consumer wants one now.
    fn wait(&mut self, reader: &Reader) -> Result<(), End> {
        self.flush_if_any(reader)?;
        self.note_caught_up(reader);
        let due = self.options.heartbeat.map(|period| self.last_sent + period);
        let left = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
        reader.wait(left, || self.source.registered.is_closed());
        if self.source.stopping() {
            return Err(End::Gone);
        }
        self.receive()?;
        if due.is_some_and(|due| Instant::now() >= due) && reader.is_at_visible_end() {
            let (checksum, at) = (self.filter.checksum_out(reader.checksum()), reader.position());
            let event =
                heartbeat(self.source.settings.server_id, &reader.file_name(), at.offset as u32, checksum);
            self.queue(&event, false, reader)?;
            self.flush(reader)?;
        }
        Ok(())
    }

    /// Notes for status that nothing is left to send, also if the last events were left out.
    fn note_caught_up(&self, reader: &Reader) {
        let sent = reader.position();
        self.source.registered.update(|consumer| {
            if let Some(stream) = &mut consumer.stream {
                (stream.sent, stream.caught_up) = (sent, Some(Instant::now()));
            }
        });
    }

    fn flush_if_any(&mut self, reader: &Reader) -> Result<(), End> {
        if self.transport.has_queued() { self.flush(reader) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventWriter, GtidEvent, Stamp, gtid_flag};
    use crate::gtid::StreamState;
    use crate::library::Position;

    const STAMP: Stamp = Stamp { timestamp: 7, server_id: 10 };

    fn filter(change: impl FnOnce(&mut StreamOptions)) -> Filter {
        let mut options = StreamOptions {
            gtids: Some(ReplicaState::default()),
            until: None,
            capability: knows::GTID,
            checksum: Some(Checksum::Crc32),
            heartbeat: None,
            annotate: true,
            non_block: false,
            skip_replication: false,
            semi_sync: false,
        };
        change(&mut options);
        let at = Position { file: 1, offset: 4 };
        let start = Start {
            at,
            state: StreamState::default(),
            skip: ReplicaState::default(),
            seamless: None,
            any_order: false,
        };
        Filter::new(&options, start)
    }

    fn event(build: impl FnOnce(&mut EventWriter)) -> Vec<u8> {
        let mut writer = EventWriter::at(4);
        build(&mut writer);
        writer.finish().unwrap()
    }

    fn gtid(flags: u8, seqno: u64) -> Vec<u8> {
        let gtid = Gtid { domain: 1, server: 10, seqno };
        event(|w| w.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] }))
    }

    fn sends(filter: &mut Filter, event: &[u8]) -> bool {
        filter.pass(event, Checksum::Crc32).unwrap().event.is_some()
    }

    #[test]
    fn incomplete_group_of_a_crashed_source_ends_with_its_file() {
        let mut filter = filter(|_| {});
        let format = FormatDescription {
            timestamp: 1,
            server_id: 10,
            version: "10.11".into(),
            created: 1,
            checksum: Checksum::Crc32,
        };
        let format = event(|w| w.format_description(&format));
        let list = event(|w| w.gtid_list(STAMP, &[]));
        for event in [&gtid(0, 1), &format, &list, &gtid(0, 2)] {
            assert!(sends(&mut filter, event));
        }
    }

    #[test]
    fn skipped_replication_leaves_out_marked_events() {
        let marked = event(|w| w.event(STAMP, kind::QUERY, flag::SKIP_REPLICATION, &[&[0; 20]]));
        let group = gtid(gtid_flag::STANDALONE, 1);
        for skip in [true, false] {
            let mut filter = filter(|options| options.skip_replication = skip);
            assert!(sends(&mut filter, &group));
            assert_eq!(sends(&mut filter, &marked), !skip);
            assert_eq!(filter.group, Group::Outside);
        }
    }

    #[test]
    fn annotate_events_depend_on_request_and_capability() {
        let annotate = event(|w| w.event(STAMP, kind::ANNOTATE_ROWS, 0, &[b"INSERT INTO t VALUES (1)"]));
        for (wanted, capability, expected) in [
            (true, knows::GTID, Some(kind::ANNOTATE_ROWS)),
            (false, knows::GTID, None),
            (false, knows::ANNOTATE, Some(kind::ANNOTATE_ROWS)),
            (false, 0, Some(kind::QUERY)),
        ] {
            let mut filter = filter(|options| (options.annotate, options.capability) = (wanted, capability));
            let passed = filter.pass(&annotate, Checksum::Crc32).unwrap();
            assert_eq!(passed.event.map(|event| event[4]), expected);
        }
    }

    #[test]
    fn group_end_is_reported_for_sent_groups_only() {
        let mut filter = filter(|_| {});
        filter.start.skip.set(Gtid { domain: 1, server: 10, seqno: 1 });
        let xid = event(|w| w.xid(STAMP, 1));
        for (seqno, sent) in [(1, false), (2, true)] {
            assert_eq!(sends(&mut filter, &gtid(0, seqno)), sent);
            let passed = filter.pass(&xid, Checksum::Crc32).unwrap();
            assert_eq!((passed.event.is_some(), passed.group_end), (sent, sent));
        }
        assert_eq!(filter.sent().to_string(), "1-10-2");
    }
}
