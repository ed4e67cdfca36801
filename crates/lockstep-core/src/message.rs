//! Messages of the Raft protocol. Framing and checksums belong to the network crate.

use crate::codec::{DecodeError, Reader, Writer};
use crate::snapshot::StateSnapshot;
use crate::types::*;
use bytes::Bytes;

/// A proposal on its way to the leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// One of the kinds that [`EntryKind::may_be_proposed`].
    pub kind: EntryKind,
    /// The contents.
    pub payload: Bytes,
}

/// The contents of a [`Message::Append`] without its context, for several members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// The entry before `entries`.
    pub prev_index: Index,
    /// The term of that entry.
    pub prev_term: Term,
    /// The leader's commit index.
    pub commit: Index,
    /// Up to here the leader's own log is on disk: its ack.
    pub persisted: Index,
    /// The entries, dense from `prev_index + 1`.
    pub entries: Vec<Entry>,
}

/// A message of the Raft protocol. "I" is the sender, "you" the receiver. Each message carries the sender's term.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the variants say it; the fields repeat the paper's names")]
pub enum Message {
    /// Would you vote for me in `term` (which I have not entered)?
    PreVote { term: Term, last_index: Index, last_term: Term },
    /// `term` is the queried one if granted, otherwise the sender's own.
    PreVoteReply { term: Term, granted: bool },
    /// Vote for me. `transfer`: the old leader transfers leadership to me, so vote although it is not silent.
    Vote { term: Term, last_index: Index, last_term: Term, transfer: bool },
    /// The answer; the voter's vote is on its disk.
    VoteReply { term: Term, granted: bool },
    /// The leader's entries after (`prev_index`, `prev_term`). Empty: a probe or a heartbeat.
    Append {
        /// The leader's term.
        term: Term,
        /// The entry before `entries`.
        prev_index: Index,
        /// The term of that entry.
        prev_term: Term,
        /// The leader's commit index.
        commit: Index,
        /// Up to here the leader's own log is on disk: its ack.
        persisted: Index,
        /// Returned in the answer, for round-trip times and the read index; 0: none.
        context: u64,
        /// The entries, dense from `prev_index + 1`.
        entries: Vec<Entry>,
    },
    /// My log equals the leader's up to `persisted`, on disk. Sent to the leader and to origins that wait.
    Ack {
        /// The sender's current term: counts only if it is the entry's term.
        term: Term,
        /// On the sender's disk, and the same as the leader's log.
        persisted: Index,
        /// In the sender's memory, and the same as the leader's log.
        received: Index,
        /// The last seqno finished by the sender's server: trimming waits for it.
        finished: Seqno,
        /// The context of the append that this answers; 0: none.
        context: u64,
    },
    /// `prev_index` is not in my log, or of another term.
    Reject {
        /// The sender's term.
        term: Term,
        /// The append's `prev_index`.
        prev_index: Index,
        /// The next index for the leader to try: the last one at which the logs may agree.
        hint_index: Index,
        /// The term at that index.
        hint_term: Term,
        /// The position of the sender's database, if known. It decides which snapshot the leader sends.
        position: Option<Seqno>,
        /// The context of the append that this answers.
        context: u64,
    },
    /// Begin your log after this state. For a new learner, or a member with a log that is too old.
    Snapshot {
        /// The leader's term.
        term: Term,
        /// The state before the first entry that will follow.
        state: Box<StateSnapshot>,
        /// The append context, as in [`Message::Append`].
        context: u64,
    },
    /// The proposals with the numbers from `first` on of the sender's incarnation, in order. With `first` 0 and one empty
    /// note it is a query, answered with [`Message::ProposeReply`]. The query follows all proposals that were sent before.
    Propose { term: Term, incarnation: u64, first: u64, proposals: Vec<Proposal> },
    /// The leader's log has your proposals up to `number`: continue after it. A new leader sends this without a query.
    ProposeReply { term: Term, incarnation: u64, number: u64 },
    /// Which index covers everything acknowledged until now?
    ReadIndex { term: Term, context: u64 },
    /// The leader's last index at the time of the query, and it was still the leader after that. `None`: not a leader.
    ReadIndexReply { term: Term, context: u64, index: Option<Index> },
    /// Campaign at once: I transfer leadership to you.
    TimeoutNow { term: Term },
    /// From the leader: every entry up to `policy_index` meets its policy. `fallen_back`: semisync continues as async.
    PolicyMet { term: Term, policy_index: Index, fallen_back: bool },
    /// I would campaign in `term`: enter it, and report the end of your log.
    TailQuery { term: Term },
    /// The end of my log. I have entered `term` durably, and accept nothing more from older leaders.
    TailReply { term: Term, last_index: Index, last_term: Term },
    /// Send me your log from this index on.
    FetchTail { term: Term, from: Index },
    /// The entries after (`prev_index`, `prev_term`) of a log that ends at `last`.
    TailEntries { term: Term, prev_index: Index, prev_term: Term, last: Index, entries: Vec<Entry> },
    /// An append from the leader, to be forwarded to other members of the receiver's zone.
    Relay {
        /// The leader's term.
        term: Term,
        /// The recipients of [`Message::Relayed`].
        to: Vec<MemberId>,
        /// As in [`Message::Append`]; for the receiver alone.
        context: u64,
        /// The append.
        carried: Carried,
    },
    /// An append of the leader of `term`, forwarded by a relay. It may arrive before its predecessor. Then the receiver keeps
    /// it, and does not reject it.
    Relayed { term: Term, carried: Carried },
}

impl Carried {
    fn encode(&self, w: &mut Writer) {
        let Carried { prev_index, prev_term, commit, persisted, entries } = self;
        w.u64(*prev_index);
        w.u64(*prev_term);
        w.u64(*commit);
        w.u64(*persisted);
        encode_entries(w, entries);
    }

    fn decode(r: &mut Reader) -> Result<Carried, DecodeError> {
        let prev_index = r.u64()?;
        Ok(Carried {
            prev_index,
            prev_term: r.u64()?,
            commit: r.u64()?,
            persisted: r.u64()?,
            entries: decode_entries(r, prev_index)?,
        })
    }
}

fn encode_entries(w: &mut Writer, entries: &[Entry]) {
    w.u32(entries.len() as u32);
    for entry in entries {
        w.u64(entry.term);
        w.shared(entry.body());
    }
}

fn decode_entries(r: &mut Reader, prev_index: Index) -> Result<Vec<Entry>, DecodeError> {
    let n = r.count(12 + ENTRY_BODY_HEADER)?;
    let mut entries = Vec::with_capacity(n);
    for at in 0..n as u64 {
        let term = r.u64()?;
        let index = prev_index.checked_add(1 + at).ok_or(DecodeError::Invalid("index"))?;
        entries.push(Entry::decode_body(index, term, r.bytes()?)?);
    }
    Ok(entries)
}

impl Message {
    /// The sender's term (of a pre-vote, the one asked for).
    pub fn term(&self) -> Term {
        match self {
            Message::PreVote { term, .. }
            | Message::PreVoteReply { term, .. }
            | Message::Vote { term, .. }
            | Message::VoteReply { term, .. }
            | Message::Append { term, .. }
            | Message::Ack { term, .. }
            | Message::Reject { term, .. }
            | Message::Snapshot { term, .. }
            | Message::Propose { term, .. }
            | Message::ProposeReply { term, .. }
            | Message::ReadIndex { term, .. }
            | Message::ReadIndexReply { term, .. }
            | Message::PolicyMet { term, .. }
            | Message::TailQuery { term, .. }
            | Message::TailReply { term, .. }
            | Message::FetchTail { term, .. }
            | Message::TailEntries { term, .. }
            | Message::Relay { term, .. }
            | Message::Relayed { term, .. }
            | Message::TimeoutNow { term } => *term,
        }
    }

    /// About how many bytes [`Message::encode`] copies, for a buffer of that size. Long bodies are referred to.
    pub fn copied_size(&self) -> usize {
        match self {
            Message::Append { entries, .. }
            | Message::TailEntries { entries, .. }
            | Message::Relay { carried: Carried { entries, .. }, .. }
            | Message::Relayed { carried: Carried { entries, .. }, .. } => {
                64 + entries.iter().map(|e| 12 + Writer::copied_len(e.body())).sum::<usize>()
            }
            Message::Propose { proposals, .. } => {
                64 + proposals.iter().map(|p| 8 + Writer::copied_len(&p.payload)).sum::<usize>()
            }
            _ => 128,
        }
    }

    /// Writes it: a tag, the term, the fields.
    pub fn encode(&self, w: &mut Writer) {
        match self {
            Message::PreVote { term, last_index, last_term } => {
                w.u8(1);
                w.u64(*term);
                w.u64(*last_index);
                w.u64(*last_term);
            }
            Message::PreVoteReply { term, granted } => {
                w.u8(2);
                w.u64(*term);
                w.bool(*granted);
            }
            Message::Vote { term, last_index, last_term, transfer } => {
                w.u8(3);
                w.u64(*term);
                w.u64(*last_index);
                w.u64(*last_term);
                w.bool(*transfer);
            }
            Message::VoteReply { term, granted } => {
                w.u8(4);
                w.u64(*term);
                w.bool(*granted);
            }
            Message::Append { term, prev_index, prev_term, commit, persisted, context, entries } => {
                w.u8(5);
                w.u64(*term);
                w.u64(*prev_index);
                w.u64(*prev_term);
                w.u64(*commit);
                w.u64(*persisted);
                w.u64(*context);
                encode_entries(w, entries);
            }
            Message::Ack { term, persisted, received, finished, context } => {
                w.u8(6);
                w.u64(*term);
                w.u64(*persisted);
                w.u64(*received);
                w.i64(*finished);
                w.u64(*context);
            }
            Message::Reject { term, prev_index, hint_index, hint_term, position, context } => {
                w.u8(7);
                w.u64(*term);
                w.u64(*prev_index);
                w.u64(*hint_index);
                w.u64(*hint_term);
                w.i64(position.unwrap_or(SEQNO_UNDEFINED));
                w.u64(*context);
            }
            Message::Snapshot { term, state, context } => {
                w.u8(8);
                w.u64(*term);
                w.u64(*context);
                w.raw(&state.to_bytes());
            }
            Message::Propose { term, incarnation, first, proposals } => {
                w.u8(9);
                w.u64(*term);
                w.u64(*incarnation);
                w.u64(*first);
                w.u32(proposals.len() as u32);
                for Proposal { kind, payload } in proposals {
                    w.u8(*kind as u8);
                    w.shared(payload);
                }
            }
            Message::ProposeReply { term, incarnation, number } => {
                w.u8(10);
                w.u64(*term);
                w.u64(*incarnation);
                w.u64(*number);
            }
            Message::ReadIndex { term, context } => {
                w.u8(11);
                w.u64(*term);
                w.u64(*context);
            }
            Message::ReadIndexReply { term, context, index } => {
                w.u8(12);
                w.u64(*term);
                w.u64(*context);
                w.bool(index.is_some());
                w.u64(index.unwrap_or(0));
            }
            Message::TimeoutNow { term } => {
                w.u8(13);
                w.u64(*term);
            }
            Message::PolicyMet { term, policy_index, fallen_back } => {
                w.u8(14);
                w.u64(*term);
                w.u64(*policy_index);
                w.bool(*fallen_back);
            }
            Message::TailQuery { term } => {
                w.u8(15);
                w.u64(*term);
            }
            Message::TailReply { term, last_index, last_term } => {
                w.u8(16);
                w.u64(*term);
                w.u64(*last_index);
                w.u64(*last_term);
            }
            Message::FetchTail { term, from } => {
                w.u8(17);
                w.u64(*term);
                w.u64(*from);
            }
            Message::TailEntries { term, prev_index, prev_term, last, entries } => {
                w.u8(18);
                w.u64(*term);
                w.u64(*prev_index);
                w.u64(*prev_term);
                w.u64(*last);
                encode_entries(w, entries);
            }
            Message::Relay { term, to, context, carried } => {
                w.u8(19);
                w.u64(*term);
                w.u64(*context);
                w.u32(to.len() as u32);
                to.iter().for_each(|id| w.raw(&id.0));
                carried.encode(w);
            }
            Message::Relayed { term, carried } => {
                w.u8(20);
                w.u64(*term);
                carried.encode(w);
            }
        }
    }

    /// Reads one; payloads share `bytes`' memory.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one.
    pub fn decode(bytes: Bytes) -> Result<Message, DecodeError> {
        let mut r = Reader::new(bytes);
        let tag = r.u8()?;
        let term = r.u64()?;
        let message = match tag {
            1 => Message::PreVote { term, last_index: r.u64()?, last_term: r.u64()? },
            2 => Message::PreVoteReply { term, granted: r.bool()? },
            3 => Message::Vote { term, last_index: r.u64()?, last_term: r.u64()?, transfer: r.bool()? },
            4 => Message::VoteReply { term, granted: r.bool()? },
            5 => {
                let prev_index = r.u64()?;
                let prev_term = r.u64()?;
                let commit = r.u64()?;
                let persisted = r.u64()?;
                let context = r.u64()?;
                let entries = decode_entries(&mut r, prev_index)?;
                Message::Append { term, prev_index, prev_term, commit, persisted, context, entries }
            }
            6 => Message::Ack {
                term,
                persisted: r.u64()?,
                received: r.u64()?,
                finished: r.i64()?,
                context: r.u64()?,
            },
            7 => Message::Reject {
                term,
                prev_index: r.u64()?,
                hint_index: r.u64()?,
                hint_term: r.u64()?,
                position: match r.i64()? {
                    SEQNO_UNDEFINED => None,
                    seqno if seqno < 0 => return Err(DecodeError::Invalid("position")),
                    seqno => Some(seqno),
                },
                context: r.u64()?,
            },
            8 => {
                let context = r.u64()?;
                return Ok(Message::Snapshot {
                    term,
                    state: Box::new(StateSnapshot::from_bytes(r.rest())?),
                    context,
                });
            }
            9 => {
                let incarnation = r.u64()?;
                let first = r.u64()?;
                let n = r.count(5)?;
                let mut proposals = Vec::with_capacity(n);
                for _ in 0..n {
                    let kind = EntryKind::from_u8(r.u8()?)
                        .filter(|k| k.may_be_proposed())
                        .ok_or(DecodeError::Invalid("kind of a proposal"))?;
                    proposals.push(Proposal { kind, payload: r.bytes()? });
                }
                Message::Propose { term, incarnation, first, proposals }
            }
            10 => Message::ProposeReply { term, incarnation: r.u64()?, number: r.u64()? },
            11 => Message::ReadIndex { term, context: r.u64()? },
            12 => {
                let context = r.u64()?;
                let known = r.bool()?;
                let index = r.u64()?;
                if !known && index != 0 {
                    return Err(DecodeError::Invalid("index of a read"));
                }
                Message::ReadIndexReply { term, context, index: known.then_some(index) }
            }
            13 => Message::TimeoutNow { term },
            14 => Message::PolicyMet { term, policy_index: r.u64()?, fallen_back: r.bool()? },
            15 => Message::TailQuery { term },
            16 => Message::TailReply { term, last_index: r.u64()?, last_term: r.u64()? },
            17 => Message::FetchTail { term, from: r.u64()? },
            18 => {
                let (prev_index, prev_term, last) = (r.u64()?, r.u64()?, r.u64()?);
                let entries = decode_entries(&mut r, prev_index)?;
                Message::TailEntries { term, prev_index, prev_term, last, entries }
            }
            19 => {
                let context = r.u64()?;
                let n = r.count(16)?;
                let to = (0..n).map(|_| r.array().map(Uuid)).collect::<Result<_, _>>()?;
                Message::Relay { term, to, context, carried: Carried::decode(&mut r)? }
            }
            20 => Message::Relayed { term, carried: Carried::decode(&mut r)? },
            _ => return Err(DecodeError::Invalid("kind of a message")),
        };
        r.end()?;
        Ok(message)
    }
}
