//! An event group: a GTID event, the events of one entry, and for a transaction an Xid event.

use super::source_events::SourceEvent;
use crate::event::{Checksum, EventWriter, GtidEvent, HEADER_LEN, PositionTooFar, Stamp, gtid_flag};
use crate::gtid::Gtid;

/// The body of a GTID event with a commit id: seqno, domain, flags, commit id.
const GTID_BODY: usize = 21;
/// The body of an Xid event.
const XID_BODY: usize = 8;
/// The largest group: a file's positions have 32 bits, and a group begins before 1 GiB.
pub(super) const LEN_MAX: u64 = 3 << 30;

/// The events of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Body {
    Transaction(Vec<SourceEvent>),
    Statement(Vec<SourceEvent>),
}

impl Body {
    fn events(&self) -> &[SourceEvent] {
        match self {
            Body::Transaction(events) | Body::Statement(events) => events,
        }
    }
}

/// An event group that is not in a file yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    gtid: Gtid,
    flags: u8,
    commit_id: u64,
    body: Body,
}

impl Group {
    pub(super) fn new(gtid: Gtid, flags: u8, commit_id: u64, body: Body) -> Group {
        debug_assert!(!body.events().is_empty(), "an empty group would be a hole");
        Group { gtid, flags: flags | gtid_flag::GROUP_COMMIT_ID, commit_id, body }
    }

    /// Its GTID.
    pub fn gtid(&self) -> Gtid {
        self.gtid
    }

    /// The time of its first event, in seconds since 1970.
    pub fn timestamp(&self) -> u32 {
        self.body.events().first().map_or(0, |event| event.timestamp)
    }

    /// The bytes of the encoded group.
    pub fn encoded_len(&self) -> u64 {
        let event = |body: usize| (HEADER_LEN + body + Checksum::Crc32.len()) as u64;
        let end = match self.body {
            Body::Transaction(_) => event(XID_BODY),
            Body::Statement(_) => 0,
        };
        event(GTID_BODY) + self.body.events().iter().map(|e| event(e.body.len())).sum::<u64>() + end
    }

    /// The group for a file in which it begins at `position`, in bytes.
    ///
    /// # Errors
    /// [`PositionTooFar`] if it would end beyond 4 GiB.
    pub fn encode(&self, position: u64) -> Result<Vec<u8>, PositionTooFar> {
        let stamp = |timestamp| Stamp { timestamp, server_id: self.gtid.server };
        let mut out = EventWriter::at(position);
        let commit_id = Some(self.commit_id);
        let event = GtidEvent { gtid: self.gtid, flags: self.flags, commit_id, extra: Vec::new() };
        out.gtid(self.timestamp(), &event);
        let events = self.body.events();
        for event in events {
            out.event(stamp(event.timestamp), event.kind, event.flags, &[&event.body]);
        }
        if let (Body::Transaction(_), Some(last)) = (&self.body, events.last()) {
            out.xid(stamp(last.timestamp), self.gtid.seqno);
        }
        debug_assert_eq!(out.position() - position, self.encoded_len());
        out.finish()
    }
}
