//! From the events that a primary sends to chunks of its files.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Bytes, BytesMut};

use super::chunk::{CHUNK_MAX, Chunk, FileName, Origin, Place};
use crate::codec::DecodeError;
use crate::event::{Checksum, FormatDescription, Group, GtidList, Header, MAGIC, Rotate, flag, kind, split};
use crate::gtid::Gtid;

/// Why the events cannot be copied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FollowError {
    /// An event is damaged, or none.
    Damaged(Place, DecodeError),
    /// An event has another position than the bytes before it leave.
    Position {
        /// Where it belongs.
        expected: Place,
        /// The end that it names.
        end: u32,
    },
    /// The event at this place is another one than the copy's.
    OtherContent(Place),
    /// The binlog goes on with a file that does not follow the present one.
    OtherFile {
        /// The present file.
        present: FileName,
        /// The next one, as the primary names it.
        next: String,
    },
    /// The events of this file have no checksums.
    NoChecksums(FileName),
    /// The file is too long for the positions of the protocol.
    TooLong(FileName),
    /// The events are encrypted.
    Encrypted(Place),
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(place, why) => write!(f, "the primary's event at {place} {why}"),
            Self::Position { expected, end } => write!(
                f,
                "the primary's event at {expected} says that it ends at {end}: it is not the next event of this file"
            ),
            Self::OtherContent(place) => write!(
                f,
                "the primary's event at {place} is another one than in this copy: the primary's binlog was reset or \
                 restored, or this is another server"
            ),
            Self::OtherFile { present, next } => {
                write!(f, "the primary goes on with {next}, which does not follow {present}")
            }
            Self::NoChecksums(file) => write!(
                f,
                "the events of {file} have no checksums, which a copy needs: set binlog_checksum=CRC32 on the primary; a file \
                 from before that must be purged there before the copy begins"
            ),
            Self::TooLong(file) => {
                write!(
                    f,
                    "{file} is longer than 4 GiB, and a request for a binlog cannot name a position behind that: the copy cannot go on. Set \
                     rpl_semi_sync_master_enabled=OFF on the primary to let commits go on without a durable acknowledgement. \
                     Then FLUSH BINARY LOGS, PURGE BINARY LOGS up to the next file, and start a new group with empty \
                     directories. Keep max_binlog_size and the largest transaction below 4 GiB together: a transaction is not split"
                )
            }
            Self::Encrypted(place) => {
                write!(
                    f,
                    "the primary's binlog is encrypted at {place} (encrypt_binlog), which cannot be copied"
                )
            }
        }
    }
}

impl std::error::Error for FollowError {}

/// Follows a primary's files from an event on.
#[derive(Debug)]
pub struct Follower {
    /// Which primary of the group it is: see [`Chunk::generation`].
    generation: u32,
    /// The server. Unknown before the first event of a copy that begins.
    origin: Origin,
    /// Whether the copy, or that of another primary, begins with the next event.
    is_first: bool,
    /// The end of the last event.
    place: Place,
    /// The event at `place`, if the copy has it already: the primary's must be equal.
    known: Option<Bytes>,
    /// The events that follow, as another connection has read them: the primary's must be equal.
    expected: VecDeque<Bytes>,
    /// The predecessor of a file that begins.
    after: Option<(u64, u64)>,
    /// See [`Chunk::unlogged`].
    unlogged: Vec<Gtid>,
    /// Events of a file that begins, until its first chunk is cut.
    begun: Option<u32>,
    /// The event group at `place`.
    group: Group,
    /// The bytes that are not in a chunk yet; they end at `place`.
    bytes: BytesMut,
    chunks: Vec<Chunk>,
}

impl Follower {
    /// Begins with the first event of a file of the group's first primary.
    pub fn of_file(file: FileName) -> Follower {
        let place = Place { file, offset: MAGIC.len() as u64 };
        Follower {
            generation: 0,
            origin: Origin::default(),
            is_first: true,
            place,
            known: None,
            expected: VecDeque::new(),
            after: None,
            unlogged: Vec::new(),
            begun: Some(0),
            group: Group::default(),
            bytes: BytesMut::new(),
            chunks: Vec::new(),
        }
    }

    /// Begins with the first event of a file of another primary, which takes over from the one before. The copy ends with
    /// `after`: the number and the end of the last file of that one.
    pub fn taking_over(file: FileName, generation: u32, after: (u64, u64)) -> Follower {
        Follower { generation, after: Some(after), ..Follower::of_file(file) }
    }

    /// Begins with the event at `place`, with which the copy ends. `group` is the state behind it.
    pub fn after_event(
        generation: u32,
        origin: Origin,
        place: Place,
        event: Bytes,
        group: Group,
    ) -> Follower {
        let follower = Follower::of_file(place.file.clone());
        Follower {
            generation,
            origin,
            place,
            known: Some(event),
            begun: None,
            is_first: false,
            group,
            ..follower
        }
    }

    /// The primary has these transactions, although its binlog does not name them: see [`Chunk::unlogged`].
    #[must_use]
    pub fn with_unlogged(self, unlogged: Vec<Gtid>) -> Follower {
        Follower { unlogged, ..self }
    }

    /// Which primary of the group it is: see [`Chunk::generation`].
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The first events must be these, as another connection has read them. Otherwise that one read another server.
    #[must_use]
    pub fn expecting(mut self, events: impl IntoIterator<Item = Bytes>) -> Follower {
        self.expected.extend(events);
        self
    }

    /// Whether all events were compared that are known from another connection.
    pub fn is_compared(&self) -> bool {
        self.known.is_none() && self.expected.is_empty()
    }

    /// Where the next event begins.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Takes the next event from the primary. Whether it is one of the file: the first one that is equals the copy's last
    /// one, if there is a copy.
    ///
    /// # Errors
    /// [`FollowError`]; the follower cannot be used any more.
    pub fn take(&mut self, event: &[u8]) -> Result<bool, FollowError> {
        let damaged = |place: &Place, why| FollowError::Damaged(place.clone(), why);
        let (header, _) = split(event, Checksum::Crc32).map_err(|why| damaged(&self.place, why))?;
        match header.kind {
            kind::HEARTBEAT => return Ok(false),
            kind::ROTATE if is_artificial(&header) => {
                let rotate =
                    Rotate::parse(event, Checksum::Crc32).map_err(|why| damaged(&self.place, why))?;
                return self.go_to(&rotate).map(|()| false);
            }
            _ if is_artificial(&header) => return Ok(false),
            kind::START_ENCRYPTION => return Err(FollowError::Encrypted(self.place.clone())),
            _ => {}
        }
        let end = self.place.offset + event.len() as u64;
        if header.end_pos != end as u32 {
            return Err(FollowError::Position { expected: self.place.clone(), end: header.end_pos });
        }
        if end > u64::from(u32::MAX) {
            return Err(FollowError::TooLong(self.place.file.clone()));
        }
        match self.known.take() {
            Some(known) if known == event => self.place.offset = end,
            Some(_) => return Err(FollowError::OtherContent(self.place.clone())),
            None => {
                if self.expected.pop_front().is_some_and(|expected| expected != event) {
                    return Err(FollowError::OtherContent(self.place.clone()));
                }
                self.check(&header, event)?;
                self.add(event);
            }
        }
        debug_assert_eq!(self.place.offset, end);
        Ok(true)
    }

    /// Refuses what the members' files could not hold: it must not become an entry of the log.
    fn check(&mut self, header: &Header, event: &[u8]) -> Result<(), FollowError> {
        let damaged = |why| FollowError::Damaged(self.place.clone(), why);
        match self.begun {
            Some(0) => {
                let format = FormatDescription::parse(event).map_err(damaged)?;
                if format.checksum == Checksum::None {
                    return Err(FollowError::NoChecksums(self.place.file.clone()));
                }
                if self.is_first {
                    (self.origin, self.is_first) = (Origin::of(event).map_err(damaged)?, false);
                }
            }
            Some(1) => drop(GtidList::parse(event, Checksum::Crc32).map_err(damaged)?),
            _ => {}
        }
        self.begun = self.begun.map(|events| events + 1);
        let mut group = self.group;
        group.pass(header.kind, event, Checksum::Crc32).map_err(damaged)?;
        self.group = group;
        Ok(())
    }

    /// The artificial Rotate event names the file that follows.
    fn go_to(&mut self, rotate: &Rotate) -> Result<(), FollowError> {
        let present = &self.place.file;
        if rotate.file == present.to_string() {
            return Ok(());
        }
        let next = FileName::parse(&rotate.file).ok();
        let next = next.filter(|next| next.base() == present.base() && next.number() > present.number());
        let (Some(next), true, None) = (next, rotate.position == MAGIC.len() as u64, &self.known) else {
            return Err(FollowError::OtherFile { present: present.clone(), next: rotate.file.clone() });
        };
        self.cut();
        self.after = Some((self.place.file.number(), self.place.offset));
        // A primary that was killed leaves a group open.
        (self.begun, self.group) = (Some(0), Group::default());
        self.place = Place { file: next, offset: MAGIC.len() as u64 };
        Ok(())
    }

    fn add(&mut self, event: &[u8]) {
        if self.bytes.len() + event.len() > CHUNK_MAX {
            self.cut();
        }
        let mut rest = event;
        // An event that is longer than a chunk takes several.
        while rest.len() > CHUNK_MAX {
            let (now, later) = rest.split_at(CHUNK_MAX);
            self.bytes.extend_from_slice(now);
            self.place.offset += now.len() as u64;
            self.cut();
            rest = later;
        }
        self.bytes.extend_from_slice(rest);
        self.place.offset += rest.len() as u64;
    }

    /// Makes a chunk of the bytes so far.
    fn cut(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        let data = self.bytes.split().freeze();
        let offset = self.place.offset - data.len() as u64;
        let at = Place { file: self.place.file.clone(), offset };
        let mut chunk = Chunk {
            generation: self.generation,
            origin: self.origin,
            at,
            after: self.after.take(),
            unlogged: Vec::new(),
            data,
        };
        // Of each file, since a member may begin with any.
        if chunk.begins_file() {
            chunk.unlogged.clone_from(&self.unlogged);
        }
        self.chunks.push(chunk);
    }

    /// The bytes that wait to become a chunk.
    pub fn waiting(&self) -> usize {
        self.bytes.len()
    }

    /// The chunks of all events so far that were not returned before. A file's first chunk has at least three events, so that
    /// no member's file ends within what begins it.
    pub fn chunks(&mut self) -> Vec<Chunk> {
        if self.begun.is_none_or(|events| events >= 3) {
            self.begun = None;
            self.cut();
        }
        std::mem::take(&mut self.chunks)
    }
}

/// Whether the event is in no file.
fn is_artificial(header: &Header) -> bool {
    header.end_pos == 0 || header.flags & flag::ARTIFICIAL != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventWriter, FormatDescription, HEADER_LEN, Stamp, artificial_rotate};

    const STAMP: Stamp = Stamp { timestamp: 7, server_id: 10 };

    fn name(number: u64) -> FileName {
        FileName::new("bin", number).unwrap()
    }

    fn at(number: u64, offset: u64) -> Place {
        Place { file: name(number), offset }
    }

    fn rotate(number: u64, position: u64) -> Vec<u8> {
        artificial_rotate(10, &name(number).to_string(), position, Checksum::Crc32)
    }

    /// The events of a file: a format description, a Gtid_list, and one of each length.
    fn events(lengths: &[usize]) -> Vec<Vec<u8>> {
        let mut position = 4;
        let mut event = |build: &dyn Fn(&mut EventWriter)| {
            let mut writer = EventWriter::at(position);
            build(&mut writer);
            position = writer.position();
            writer.finish().unwrap()
        };
        let format = FormatDescription {
            timestamp: 1,
            server_id: 10,
            version: "10.11".into(),
            created: 1,
            checksum: Checksum::Crc32,
        };
        let mut events = vec![event(&|w| w.format_description(&format)), event(&|w| w.gtid_list(STAMP, &[]))];
        events.extend(
            lengths.iter().map(|len| event(&|w| w.event(STAMP, kind::TABLE_MAP, 0, &[&vec![7; *len]]))),
        );
        events
    }

    fn follow(follower: &mut Follower, events: &[Vec<u8>]) {
        events.iter().for_each(|event| assert!(follower.take(event).is_ok()));
    }

    #[test]
    fn chunks_are_the_bytes_of_each_file() {
        let (first, second) = (events(&[100, CHUNK_MAX - 50, 3 * CHUNK_MAX, 5]), events(&[9]));
        let mut follower = Follower::of_file(name(1));
        follower.take(&rotate(1, 4)).unwrap();
        follow(&mut follower, &first);
        follower.take(&rotate(2, 4)).unwrap();
        follow(&mut follower, &second);
        let chunks = follower.chunks();
        for (number, events) in [(1, &first), (2, &second)] {
            let own: Vec<&Chunk> = chunks.iter().filter(|chunk| chunk.at.file == name(number)).collect();
            let mut end = 4;
            for chunk in &own {
                assert!(chunk.at.offset == end && chunk.data.len() <= CHUNK_MAX);
                end += chunk.data.len() as u64;
            }
            let bytes: Vec<u8> = own.iter().flat_map(|chunk| chunk.data.to_vec()).collect();
            assert!(bytes == events.concat(), "{number}");
        }
        let last = chunks.last().unwrap();
        assert_eq!(last.after, Some((1, 4 + first.concat().len() as u64)));
        assert!(chunks[..chunks.len() - 1].iter().all(|chunk| chunk.after.is_none()));
        assert_eq!(follower.place(), &at(2, 4 + second.concat().len() as u64));
        assert!(follower.chunks().is_empty());
    }

    #[test]
    fn copys_last_event_is_compared_and_not_copied_again() {
        let events = events(&[100, 200]);
        let begin = at(1, 4 + events[..2].concat().len() as u64);
        let after = |event: &[u8]| {
            let event = Bytes::copy_from_slice(event);
            Follower::after_event(2, Origin::new(5), begin.clone(), event, Group::default())
        };
        let mut follower = after(&events[2]);
        follow(&mut follower, &events[2..]);
        let chunks = follower.chunks();
        assert_eq!(chunks.len(), 1);
        assert_eq!((chunks[0].generation, &chunks[0].data[..]), (2, &events[3][..]));
        assert_eq!(chunks[0].origin, Origin::new(5));
        assert_eq!(after(&events[3]).take(&events[2]), Err(FollowError::OtherContent(begin.clone())));
    }

    #[test]
    fn file_beyond_4_gib_is_refused_with_a_way_out() {
        let event = |end: u64| {
            let mut writer = EventWriter::at(4);
            writer.event(STAMP, kind::TABLE_MAP, 0, &[&[7; 100 - HEADER_LEN - 4]]);
            assert_eq!(writer.position(), 104);
            let mut event = writer.finish().unwrap();
            event[13..17].copy_from_slice(&(end as u32).to_le_bytes());
            crate::event::tests::repair(&mut event);
            event
        };
        let limit = u64::from(u32::MAX);
        let (known, begin) = (event(limit - 100).into(), at(1, limit - 200));
        let mut follower = Follower::after_event(0, Origin::new(5), begin, known, Group::default());
        follow(&mut follower, &[event(limit - 100), event(limit)]);
        let refused = follower.take(&event(limit + 100)).unwrap_err();
        assert_eq!(refused, FollowError::TooLong(name(1)));
        let text = refused.to_string();
        assert!(text.contains("PURGE BINARY LOGS") && text.contains("max_binlog_size"), "{text}");
    }

    #[test]
    fn first_chunk_of_another_primary_names_the_copys_end() {
        let events = events(&[100, CHUNK_MAX]);
        let unlogged: Vec<Gtid> = vec!["3-4-5".parse().unwrap()];
        let mut follower = Follower::taking_over(name(4), 3, (9, 500)).with_unlogged(unlogged.clone());
        follow(&mut follower, &events);
        let chunks = follower.chunks();
        let found: Vec<_> = chunks.iter().map(|chunk| (chunk.generation, chunk.after)).collect();
        assert_eq!(found, [(3, Some((9, 500))), (3, None), (3, None)]);
        // The first chunk of each file names the transactions that no file has.
        let named = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.unlogged.len()).collect::<Vec<_>>();
        assert_eq!((named(&chunks), &chunks[0].unlogged), (vec![1, 0, 0], &unlogged));
        follower.take(&rotate(5, 4)).unwrap();
        follow(&mut follower, &events);
        assert_eq!(named(&follower.chunks()), [1, 0, 0]);
        assert!(chunks[0].begins_file() && chunks[0].at.file == name(4));
        let origin = Origin::of(&events[0]).unwrap();
        assert!(chunks.iter().all(|chunk| chunk.origin == origin));
    }

    #[test]
    fn first_events_other_than_scanned_are_refused() {
        let own = events(&[100]);
        let expected = || own[..2].iter().map(|event| Bytes::copy_from_slice(event));
        let mut follower = Follower::of_file(name(1)).expecting(expected());
        for (event, is_compared) in own.iter().zip([false, true, true]) {
            follower.take(event).unwrap();
            assert_eq!(follower.is_compared(), is_compared);
        }
        assert_eq!(follower.chunks()[0].data, own.concat());
        for changed in 0..2 {
            let mut other = events(&[100]);
            other[changed][0] ^= 1;
            crate::event::tests::repair(&mut other[changed]);
            let mut follower = Follower::of_file(name(1)).expecting(expected());
            follow(&mut follower, &other[..changed]);
            let taken = follower.take(&other[changed]);
            assert!(matches!(taken, Err(FollowError::OtherContent(_))), "{changed}");
        }
    }

    #[test]
    fn first_chunk_of_a_file_has_more_than_what_begins_it() {
        let events = events(&[100]);
        let mut follower = Follower::of_file(name(1));
        for event in &events[..2] {
            follower.take(event).unwrap();
            assert!(follower.chunks().is_empty());
        }
        follower.take(&events[2]).unwrap();
        assert_eq!(follower.chunks()[0].data, events.concat());
    }

    #[test]
    fn events_unfit_for_members_files_are_refused() {
        let mut events = events(&[100]);
        let mut follower = Follower::of_file(name(1));
        assert!(matches!(follower.take(&events[2]), Err(FollowError::Position { .. })));
        follower.take(&events[0]).unwrap();
        // In place of the Gtid_list.
        let mut writer = EventWriter::at(follower.place().offset);
        writer.xid(STAMP, 1);
        assert!(matches!(follower.take(&writer.finish().unwrap()), Err(FollowError::Damaged(..))));
        // The algorithm is the last byte before the checksum.
        let algorithm = events[0].len() - 5;
        events[0][algorithm] = 0;
        crate::event::tests::repair(&mut events[0]);
        assert_eq!(Follower::of_file(name(1)).take(&events[0]), Err(FollowError::NoChecksums(name(1))));
    }

    #[test]
    fn artificial_events_are_in_no_file() {
        let mut follower = Follower::of_file(name(1));
        let heartbeat = crate::event::heartbeat(10, "bin.000001", 4, Checksum::Crc32);
        follow(&mut follower, &[rotate(1, 4), heartbeat]);
        assert!(follower.chunks().is_empty());
        assert_eq!(follower.place(), &at(1, 4));
    }

    #[test]
    fn wrong_event_or_file_is_refused() {
        let events = events(&[100]);
        let new = || Follower::of_file(name(3));
        let mut flipped = events[0].clone();
        flipped[30] ^= 1;
        assert!(matches!(new().take(&flipped), Err(FollowError::Damaged(..))));
        assert!(matches!(new().take(&events[1]), Err(FollowError::Position { .. })));
        for file in ["bin.000002", "other.000004", "nonsense"] {
            let rotate = artificial_rotate(10, file, 4, Checksum::Crc32);
            assert!(matches!(new().take(&rotate), Err(FollowError::OtherFile { .. })), "{file}");
        }
        assert!(new().take(&rotate(4, 99)).is_err());
        for cut in 0..events[0].len() {
            assert!(new().take(&events[0][..cut]).is_err(), "{cut}");
        }
    }
}
