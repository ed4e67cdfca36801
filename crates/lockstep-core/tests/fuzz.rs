//! Fuzzes inputs from the network and the disk: messages, entries, snapshots, write-sets, whole logs.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use lockstep_core::branch::{Branch, Parent};
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::members::{MemberInfo, Membership, Role, View, ViewMember};
use lockstep_core::message::{Carried, Message, Proposal};
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::{RestoreBuilder, Vote};
use lockstep_core::snapshot::{Session, StateSnapshot, TrimMark};
use lockstep_core::writeset::{DataKind, KeyType, Meta, WriteSet, WriteSetBuilder, last_seen, split};
use lockstep_core::{Entry, EntryHeader, EntryKind, ProposalId, Uuid};
use lockstep_fuzz::{Target, outcome};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

/// Requires that a decoded value encodes to the input.
fn same<T: Debug>(input: &[u8], decoded: Result<T, DecodeError>, encode: impl Fn(&T) -> Bytes) -> u64 {
    if let Ok(value) = &decoded {
        assert_eq!(encode(value)[..], *input, "{value:?} encodes otherwise");
    }
    outcome(&decoded)
}

fn written(write: impl FnOnce(&mut Writer)) -> Bytes {
    let mut w = Writer::new();
    write(&mut w);
    w.into_bytes()
}

fn membership() -> Membership {
    let member = |n: u8, role| MemberInfo {
        id: Uuid([n; 16]),
        name: format!("n{n}"),
        address: format!("10.0.0.{n}:4567"),
        zone: n,
        role,
        wants_vote: true,
        arbitrator: false,
    };
    Membership { members: vec![member(1, Role::Voter), member(2, Role::Voter), member(3, Role::Learner)] }
}

fn view() -> View {
    let member = |n: u8| ViewMember {
        id: Uuid([n; 16]),
        view_uuid: Uuid([n + 100; 16]),
        name: format!("n{n}"),
        incoming: format!("10.0.0.{n}:3306"),
    };
    View { number: 7, members: vec![member(1), member(2)] }
}

fn state() -> StateSnapshot {
    let mut state = StateSnapshot::genesis(Uuid([9; 16]), 40, membership());
    state.view = Arc::new(view());
    state.log_id = Uuid([8; 16]);
    state.leader = Uuid([2; 16]);
    state.policy = policy();
    state.sessions.insert(Uuid([1; 16]), Session { incarnation: 2, number: 3 });
    state
}

fn entry(index: u64, kind: EntryKind, seqno: i64, number: u64, payload: Bytes) -> Entry {
    let proposal = match number {
        0 => ProposalId::default(),
        _ => ProposalId { member: Uuid([1; 16]), incarnation: 5, number },
    };
    Entry::new(EntryHeader { index, term: 3, kind, seqno, proposal, time: 1_700_000_000_000_000 }, &payload)
}

fn write_set(rows: u8) -> Bytes {
    let mut builder = WriteSetBuilder::new();
    for row in 0..rows {
        builder.append_key(&[b"db", b"table", &[row]], KeyType::Exclusive).unwrap();
        builder.append_key(&[b"db", b"parent"], KeyType::Reference).unwrap();
    }
    builder.append_data(DataKind::Ordered, &vec![rows; 30 * usize::from(rows)]).unwrap();
    builder.append_data(DataKind::Annotation, b"INSERT INTO t").unwrap();
    let meta = Meta { flags: 3, last_seen: 41, source: Uuid([101; 16]), epoch: 1, conn: 9, trx: 77 };
    builder.finish(&meta)
}

fn policy() -> Policy {
    let acks = 2;
    Policy { acks, zone_acks: 1, on_receive: true, timeout: 3_000_000, ..Policy::of(PolicyKind::Semisync) }
}

/// A log as a restart reads it: entries of all kinds.
fn entries() -> Vec<Entry> {
    let mark = TrimMark { trim: 41, verdicts_to: 42, failed: vec![42] };
    vec![
        entry(1, EntryKind::Noop, 40, 0, Bytes::new()),
        entry(2, EntryKind::Membership, 40, 0, written(|w| membership().encode(w))),
        entry(3, EntryKind::View, 41, 0, written(|w| view().encode(w))),
        entry(4, EntryKind::WriteSet, 42, 1, write_set(3)),
        entry(5, EntryKind::Policy, 42, 0, policy().to_payload()),
        entry(6, EntryKind::Piece, 42, 2, Bytes::from_static(b"a piece")),
        entry(7, EntryKind::TotalOrder, 43, 3, write_set(1)),
        entry(8, EntryKind::Trim, 43, 0, mark.to_payload()),
        entry(9, EntryKind::Note, 43, 4, Bytes::from_static(b"note")),
    ]
}

fn carried() -> Carried {
    Carried { prev_index: 3, prev_term: 3, commit: 4, persisted: 9, entries: entries()[3..].to_vec() }
}

fn messages() -> Vec<Message> {
    let proposals = vec![
        Proposal { kind: EntryKind::WriteSet, payload: write_set(2) },
        Proposal { kind: EntryKind::Note, payload: Bytes::new() },
    ];
    let (term, context) = (3, 17);
    vec![
        Message::PreVote { term, last_index: 9, last_term: 3 },
        Message::PreVoteReply { term, granted: true },
        Message::Vote { term, last_index: 9, last_term: 3, transfer: false },
        Message::VoteReply { term, granted: false },
        Message::Append {
            term,
            prev_index: 0,
            prev_term: 0,
            commit: 4,
            persisted: 9,
            context,
            entries: entries(),
        },
        Message::Ack { term, persisted: 9, received: 9, finished: 43, context },
        Message::Reject { term, prev_index: 9, hint_index: 4, hint_term: 2, position: Some(7), context },
        Message::Reject { term, prev_index: 9, hint_index: 4, hint_term: 2, position: None, context },
        Message::Snapshot { term, state: Box::new(state()), context },
        Message::Propose { term, incarnation: 5, first: 1, proposals },
        Message::ProposeReply { term, incarnation: 5, number: 2 },
        Message::ReadIndex { term, context },
        Message::ReadIndexReply { term, context, index: Some(9) },
        Message::ReadIndexReply { term, context, index: None },
        Message::TimeoutNow { term },
        Message::PolicyMet { term, policy_index: 9, fallen_back: true },
        Message::TailQuery { term },
        Message::TailReply { term, last_index: 9, last_term: 2 },
        Message::FetchTail { term, from: 5 },
        Message::TailEntries {
            term,
            prev_index: 3,
            prev_term: 3,
            last: 12,
            entries: entries()[3..].to_vec(),
        },
        Message::Relay { term, to: vec![Uuid([5; 16]), Uuid([6; 16])], context, carried: carried() },
        Message::Relayed { term, carried: carried() },
    ]
}

#[test]
fn fuzz_messages() {
    let encode = |m: &Message| written(|w| m.encode(w));
    let test = |input: &[u8]| same(input, Message::decode(Bytes::copy_from_slice(input)), encode);
    Target::new("message", DIR, messages().iter().map(|m| encode(m).to_vec()).collect(), &test).run();
}

#[test]
fn fuzz_entries() {
    let decode = |input: &[u8]| Entry::decode_body(7, 3, Bytes::copy_from_slice(input));
    let test = |input: &[u8]| same(input, decode(input), |entry| entry.body().clone());
    Target::new("entry", DIR, entries().iter().map(|e| e.body().to_vec()).collect(), &test).run();
}

#[test]
fn fuzz_states() {
    let test = |input: &[u8]| {
        let decoded = StateSnapshot::from_bytes(Bytes::copy_from_slice(input));
        if let Ok(state) = &decoded {
            // An older version's is written in the present one; sessions have an order.
            assert_eq!(StateSnapshot::from_bytes(state.to_bytes()).as_ref(), Ok(state));
        }
        outcome(&decoded)
    };
    let old = |version: u8, missing: usize| {
        let mut old = state().to_bytes().to_vec();
        old.truncate(old.len() - missing);
        old[0] = version;
        old
    };
    let id = Uuid([3; 16]);
    let parent = Parent { history: id, log_id: id, index: 7, term: 2, seqno: 5, founder: id };
    let branched = StateSnapshot { parents: vec![parent; 2], ..state() }.to_bytes().to_vec();
    Target::new("state", DIR, vec![state().to_bytes().to_vec(), old(2, 16), old(1, 32), branched], &test)
        .run();
}

#[test]
fn fuzz_members_views_and_marks() {
    // The first byte says which.
    let read = |input: &[u8]| -> u64 {
        let Some((which, rest)) = input.split_first() else { return 0 };
        let bytes = Bytes::copy_from_slice(rest);
        let mut r = Reader::new(bytes.clone());
        match which % 5 {
            0 => {
                let decoded = Membership::decode(&mut r).and_then(|m| r.end().map(|()| m));
                same(rest, decoded, |m| written(|w| m.encode(w)))
            }
            1 => {
                let decoded = View::decode(&mut r).and_then(|v| r.end().map(|()| v));
                same(rest, decoded, |v| written(|w| v.encode(w)))
            }
            2 => same(rest, TrimMark::from_payload(bytes), TrimMark::to_payload),
            3 => {
                let decoded = Policy::decode(&mut r).and_then(|p| r.end().map(|()| p));
                same(rest, decoded, |p| p.to_payload())
            }
            _ => same(rest, Branch::from_payload(bytes), Branch::to_payload),
        }
    };
    let founder = membership().members.into_iter().find(|m| m.role == Role::Voter).unwrap();
    let branch = Branch { history: Uuid([3; 16]), log_id: Uuid([4; 16]), founder };
    let seed = |which: u8, bytes: Bytes| [&[which], &bytes[..]].concat();
    let mark = TrimMark { trim: 5, verdicts_to: 9, failed: vec![6, 8] };
    let seeds = vec![
        seed(0, written(|w| membership().encode(w))),
        seed(1, written(|w| view().encode(w))),
        seed(2, mark.to_payload()),
        seed(3, policy().to_payload()),
        seed(3, Policy::default().to_payload()),
        seed(4, branch.to_payload()),
    ];
    Target::new("members", DIR, seeds, &read).run();
}

#[test]
fn fuzz_write_sets() {
    let test = |input: &[u8]| {
        let payload = Bytes::copy_from_slice(input);
        let _ = last_seen(input);
        let parsed = WriteSet::parse(&payload);
        let Ok(set) = &parsed else { return outcome(&parsed) };
        assert_eq!(set.keys().count(), set.key_count());
        assert_eq!(last_seen(input), Some(set.meta.last_seen));
        // Cut up, it is whole again once its pieces are there.
        let parts = split(&payload, 16).unwrap();
        let last = WriteSet::parse(&parts.last).unwrap();
        if !parts.pieces.is_empty() {
            let whole = lockstep_core::writeset::assemble(last, &parts.pieces).unwrap();
            assert_eq!((&whole.data, whole.meta), (&set.data, set.meta));
            assert!(whole.keys().eq(set.keys()));
        } else if last.pieces.is_some() {
            // Pieces that are not there.
            assert!(lockstep_core::writeset::assemble(last, &[]).is_err());
        }
        outcome(&(set.key_count().min(20), set.data.is_empty(), set.pieces.is_some()))
    };
    let seeds = (0..6).map(|rows| write_set(rows).to_vec()).collect();
    let mut target = Target::new("write_set", DIR, seeds, &test);
    // Each piece of 16 bytes is an item of a list.
    target.memory.1 = 128;
    target.run();
}

/// A log that a restart reads: a base and records, each with its length before it.
#[test]
fn fuzz_logs() {
    let pack = |base: Bytes, entries: &[Entry]| {
        written(|w| {
            w.bytes(&base);
            for entry in entries {
                w.u64(entry.index);
                w.u64(entry.term);
                w.bytes(entry.body());
            }
        })
        .to_vec()
    };
    let test = |input: &[u8]| {
        let mut builder = RestoreBuilder::new(4);
        let mut r = Reader::new(Bytes::copy_from_slice(input));
        let mut read = || -> Result<u64, DecodeError> {
            builder.base(r.bytes()?)?;
            let mut count = 0;
            while r.remaining() > 0 {
                let (index, term) = (r.u64()?, r.u64()?);
                builder.record(index, term, r.bytes()?)?;
                count += 1;
            }
            Ok(count)
        };
        let outcome = outcome(&read());
        let _ = builder.finish(Vote::default());
        outcome
    };
    let seeds = vec![pack(state().to_bytes(), &entries()), pack(state().to_bytes(), &entries()[..3])];
    let mut target = Target::new("log", DIR, seeds, &test);
    target.memory.1 = 256;
    target.run();
}

#[test]
fn fuzz_uuids() {
    let test = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let parsed = Uuid::parse(&text);
        if let Some(uuid) = parsed {
            assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
        }
        u64::from(parsed.is_some())
    };
    let mut target = Target::new("uuid", DIR, vec![Uuid([0xab; 16]).to_string().into_bytes()], &test);
    target.text = true;
    target.run();
}
