//! An event group: a GTID event, the events of one entry, and for a transaction an Xid event.

use super::source_events::SourceEvent;

/// The group ends with its statement, without an Xid event.
pub(super) const FL_STANDALONE: u8 = 1;
/// The GTID event has a commit id.
const FL_GROUP_COMMIT_ID: u8 = 2;
/// A replica can roll the group back.
pub(super) const FL_TRANSACTIONAL: u8 = 4;
/// A replica may apply the group in parallel (`slave_parallel_mode=optimistic`).
pub(super) const FL_ALLOW_PARALLEL: u8 = 8;
/// The group changes tables.
pub(super) const FL_DDL: u8 = 32;

const HEADER: usize = 19;
const CHECKSUM: usize = 4;
const XID: u8 = 16;
const GTID: u8 = 162;
/// The body of a GTID event: seqno, domain, flags, commit id.
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
    domain: u32,
    server_id: u32,
    seqno: u64,
    flags: u8,
    commit_id: u64,
    body: Body,
}

impl Group {
    pub(super) fn new(gtid: (u32, u32, u64), flags: u8, commit_id: u64, body: Body) -> Group {
        debug_assert!(!body.events().is_empty(), "an empty group would be a hole");
        let (domain, server_id, seqno) = gtid;
        Group { domain, server_id, seqno, flags: flags | FL_GROUP_COMMIT_ID, commit_id, body }
    }

    /// The seqno of its GTID.
    pub fn seqno(&self) -> u64 {
        self.seqno
    }

    /// The time of its first event, in seconds since 1970.
    pub fn timestamp(&self) -> u32 {
        self.body.events().first().map_or(0, |event| event.timestamp)
    }

    /// The bytes of the encoded group.
    pub fn len(&self) -> u64 {
        let event = |body: usize| (HEADER + body + CHECKSUM) as u64;
        let end = match self.body {
            Body::Transaction(_) => event(XID_BODY),
            Body::Statement(_) => 0,
        };
        event(GTID_BODY) + self.body.events().iter().map(|e| event(e.body.len())).sum::<u64>() + end
    }

    /// False: each group has events.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The group for a file in which it begins at `position`, in bytes.
    pub fn encode(&self, position: u32) -> Vec<u8> {
        let events = self.body.events();
        let last = events.last().map_or(0, |event| event.timestamp);
        let mut out = Vec::with_capacity(self.len() as usize);
        let mut gtid = Vec::with_capacity(GTID_BODY);
        gtid.extend(self.seqno.to_le_bytes());
        gtid.extend(self.domain.to_le_bytes());
        gtid.push(self.flags);
        gtid.extend(self.commit_id.to_le_bytes());
        self.put(&mut out, position, (GTID, self.timestamp(), 0), &gtid);
        for event in events {
            self.put(&mut out, position, (event.kind, event.timestamp, event.flags), &event.body);
        }
        if let Body::Transaction(_) = self.body {
            self.put(&mut out, position, (XID, last, 0), &self.seqno.to_le_bytes());
        }
        debug_assert_eq!(out.len() as u64, self.len());
        out
    }

    /// Appends an event with its checksum.
    fn put(&self, out: &mut Vec<u8>, position: u32, (kind, timestamp, flags): (u8, u32, u16), body: &[u8]) {
        let start = out.len();
        let len = (HEADER + body.len() + CHECKSUM) as u32;
        let end = position.wrapping_add(start as u32).wrapping_add(len);
        out.extend(timestamp.to_le_bytes());
        out.push(kind);
        out.extend(self.server_id.to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(end.to_le_bytes());
        out.extend(flags.to_le_bytes());
        out.extend(body);
        let sum = crc32fast::hash(&out[start..]);
        out.extend(sum.to_le_bytes());
    }
}
