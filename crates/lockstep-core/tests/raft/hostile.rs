//! No message from any sender makes the core panic.

use crate::net::*;
use lockstep_core::message::{Carried, Message, Proposal};
use lockstep_core::raft::*;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::*;
use proptest::prelude::*;

fn any_index() -> impl Strategy<Value = u64> {
    prop_oneof![0..8u64, Just(u64::MAX), Just(u64::MAX - 1), Just(u64::MAX / 2), any::<u64>()]
}

fn any_seqno() -> impl Strategy<Value = i64> {
    prop_oneof![-2..8i64, Just(i64::MAX), Just(i64::MIN)]
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let payload = prop_oneof![
        Just(bytes::Bytes::new()),
        Just(bytes::Bytes::from_static(b"xx")),
        Just({
            let mut w = codec::Writer::new();
            voters([1, 2]).encode(&mut w);
            w.into_bytes()
        }),
    ];
    (any_index(), any_index(), 0..9u8, any_seqno(), (0..4usize, any_index(), any_index()), payload).prop_map(
        |(index, term, kind, seqno, (member, incarnation, number), payload)| {
            let kind = EntryKind::from_u8(kind).unwrap();
            let proposal = ProposalId { member: id(member), incarnation, number };
            Entry::new(EntryHeader { index, term, kind, seqno, proposal, time: 0 }, &payload)
        },
    )
}

fn any_state() -> impl Strategy<Value = StateSnapshot> {
    (any_index(), any_index(), any_seqno(), 0..2u8, any_index()).prop_map(
        |(index, term, seqno, history, number)| {
            let mut state = genesis(voters(1..=3));
            state.index = index;
            state.term = term;
            state.seqno = seqno;
            if history == 0 {
                state.history = Uuid([9; 16]);
            }
            state.sessions.insert(id(2), lockstep_core::snapshot::Session { incarnation: number, number });
            state
        },
    )
}

fn any_carried() -> impl Strategy<Value = Carried> {
    let n = any_index;
    (n(), n(), n(), n(), prop::collection::vec(any_entry(), 0..4)).prop_map(
        |(prev_index, prev_term, commit, persisted, entries)| Carried {
            prev_index,
            prev_term,
            commit,
            persisted,
            entries,
        },
    )
}

fn any_message() -> impl Strategy<Value = Message> {
    let n = any_index;
    prop_oneof![
        (n(), n(), n()).prop_map(|(term, last_index, last_term)| Message::PreVote {
            term,
            last_index,
            last_term
        }),
        (n(), any::<bool>()).prop_map(|(term, granted)| Message::PreVoteReply { term, granted }),
        (n(), n(), n(), any::<bool>()).prop_map(|(term, last_index, last_term, transfer)| Message::Vote {
            term,
            last_index,
            last_term,
            transfer
        }),
        (n(), any::<bool>()).prop_map(|(term, granted)| Message::VoteReply { term, granted }),
        (n(), n(), n(), n(), n(), n(), prop::collection::vec(any_entry(), 0..4)).prop_map(
            |(term, prev_index, prev_term, commit, persisted, context, entries)| Message::Append {
                term,
                prev_index,
                prev_term,
                commit,
                persisted,
                context,
                entries
            }
        ),
        (n(), n(), n(), any_seqno(), n()).prop_map(|(term, persisted, received, finished, context)| {
            Message::Ack { term, persisted, received, finished, context }
        }),
        (n(), n(), n(), n(), proptest::option::of(any_seqno()), n()).prop_map(
            |(term, prev_index, hint_index, hint_term, position, context)| Message::Reject {
                term,
                prev_index,
                hint_index,
                hint_term,
                position,
                context
            }
        ),
        (n(), any_state(), n()).prop_map(|(term, state, context)| Message::Snapshot {
            term,
            state: Box::new(state),
            context
        }),
        (n(), n(), n(), 0..9u8, 0..3usize).prop_map(|(term, incarnation, first, kind, count)| {
            Message::Propose {
                term,
                incarnation,
                first,
                proposals: vec![
                    Proposal {
                        kind: EntryKind::from_u8(kind).unwrap(),
                        payload: bytes::Bytes::from_static(b"p")
                    };
                    count
                ],
            }
        }),
        (n(), n(), n()).prop_map(|(term, incarnation, number)| Message::ProposeReply {
            term,
            incarnation,
            number
        }),
        (n(), n()).prop_map(|(term, context)| Message::ReadIndex { term, context }),
        (n(), n(), proptest::option::of(n())).prop_map(|(term, context, index)| Message::ReadIndexReply {
            term,
            context,
            index
        }),
        n().prop_map(|term| Message::TimeoutNow { term }),
        (n(), any_carried(), n(), prop::collection::vec(1..6usize, 0..3)).prop_map(
            |(term, carried, context, to)| Message::Relay {
                term,
                to: to.into_iter().map(id).collect(),
                context,
                carried
            }
        ),
        (n(), any_carried()).prop_map(|(term, carried)| Message::Relayed { term, carried }),
    ]
}

const CASES: u32 = 2000;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    /// A member in any role accepts any message from any sender, and still returns outputs.
    #[test]
    fn nothing_makes_it_panic(
        role in 0..4,
        messages in prop::collection::vec((2..5usize, any_message(), any::<bool>()), 1..40),
    ) {
        let mut net = Net::new(4);
        net.relay();
        match role {
            0 => net.add(1, DiskImage::default(), |_| {}),
            1 => net.elect(1),
            2 => net.elect(2),
            _ => {}
        }
        net.settle();
        net.propose(1, "x");
        let mut raft = net.nodes.remove(&1).unwrap().raft;
        let mut now = net.now;
        for (from, message, pause) in messages {
            now += if pause { ELECTION } else { 1 };
            raft.step(now, id(from), message);
            raft.tick(now);
            raft.read_index(now);
            for output in raft.drain(now) {
                match output {
                    Output::Write(op) => raft.written(now, op.ticket),
                    Output::Fetch { to, from, .. } => raft.fetched(now, to, from, Vec::new()),
                    _ => {}
                }
            }
            prop_assert!(raft.commit() <= raft.last_index());
            prop_assert!(raft.first_index() <= raft.last_index() + 1);
        }
    }
}
