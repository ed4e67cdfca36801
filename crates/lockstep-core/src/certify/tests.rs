//! Certification against a model that remembers everything and looks at all of it, on random logs; and the same log
//! replayed from every place from which one may.

use super::*;
use crate::members::{Membership, View};
use crate::policy::{Policy, PolicyKind};
use crate::types::{EntryHeader, MemberId, ProposalId, Term, Uuid};
use crate::writeset::{DataKind, Key, KeyType, Meta, WriteSetBuilder};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use std::collections::{BTreeMap, BTreeSet};

const START: Seqno = 100;

fn source(n: u8) -> ViewUuid {
    Uuid([n + 1; 16])
}

/// The member that this source is of.
fn member(n: u8) -> MemberId {
    Uuid([n; 16])
}

/// A log with what its leader's certifier has made of it so far.
struct Group {
    entries: Vec<Entry>,
    /// `states[i]`: after the first `i` entries.
    states: Vec<StateSnapshot>,
    leader: (Certifier, Writers),
    term: Term,
    /// How many entries the leader has certified.
    done: usize,
    outcomes: Vec<Option<Certification>>,
    limits: TrimLimits,
}

impl Group {
    fn new() -> Group {
        let genesis = StateSnapshot::genesis(Uuid([9; 16]), START, Membership::default());
        Group {
            entries: vec![],
            leader: (Certifier::new(&genesis), genesis.writers()),
            term: 0,
            states: vec![genesis],
            done: 0,
            outcomes: vec![],
            limits: TrimLimits { min_advance: 1, max_window: 30 },
        }
    }

    fn tail(&self) -> &StateSnapshot {
        self.states.last().unwrap()
    }

    fn append(&mut self, kind: EntryKind, seqnos: i64, payload: Bytes) {
        self.append_of(MemberId::NIL, kind, seqnos, payload);
    }

    fn append_of(&mut self, member: MemberId, kind: EntryKind, seqnos: i64, payload: Bytes) {
        let tail = self.tail();
        let (index, seqno) = (tail.index + 1, tail.seqno + seqnos);
        let proposal = ProposalId { member, ..ProposalId::default() };
        let header = EntryHeader { index, term: self.term, kind, seqno, proposal, time: 0 };
        let entry = Entry::new(header, &payload);
        let mut next = tail.clone();
        next.apply(&entry).unwrap();
        self.states.push(next);
        self.entries.push(entry);
    }

    fn deliver(&mut self, count: usize) {
        for _ in 0..count.min(self.entries.len() - self.done) {
            let outcome = feed(&mut self.leader, &self.entries[self.done]).unwrap();
            self.outcomes.push(outcome);
            self.done += 1;
        }
    }

    fn trim(&mut self, lag: i64) {
        if let Some(mark) = self.leader.0.next_trim(self.leader.0.position() - lag, &self.limits, self.tail())
        {
            self.append(EntryKind::Trim, 0, mark.to_payload());
        }
    }
}

/// One entry goes through, as in a node.
fn feed(
    (certifier, writers): &mut (Certifier, Writers),
    entry: &Entry,
) -> Result<Option<Certification>, CertifyError> {
    writers.follow(entry);
    match entry.kind {
        EntryKind::WriteSet | EntryKind::TotalOrder => {
            let set = WriteSet::parse(&entry.payload()).ok();
            certifier.judge(writers, entry, set.as_ref()).map(Some)
        }
        EntryKind::View => certifier.barrier(entry.seqno).map(Some),
        EntryKind::Trim => certifier.trim(&TrimMark::from_payload(entry.payload()).unwrap()).map(|()| None),
        _ => Ok(None),
    }
}

/// Remembers all that passed.
struct Model {
    passed: Vec<(Seqno, Option<ViewUuid>, BTreeMap<u64, KeyType>)>,
    trim: Seqno,
    barrier: Seqno,
    /// The seqno of the entry before.
    last: Seqno,
    /// Seqnos that views have left out.
    left_out: BTreeSet<Seqno>,
    streams: BTreeMap<(ViewUuid, u64), Seqno>,
    /// The policy is a weak one.
    weak: bool,
    term: Term,
    leader: MemberId,
}

impl Model {
    fn new() -> Model {
        Model {
            passed: vec![],
            trim: START,
            barrier: START,
            last: START,
            left_out: BTreeSet::new(),
            streams: BTreeMap::new(),
            weak: false,
            term: 0,
            leader: Uuid::NIL,
        }
    }

    fn feed(&mut self, entry: &Entry) -> Option<Certification> {
        let seqno = entry.seqno;
        let before = std::mem::replace(&mut self.last, seqno);
        if entry.term != self.term {
            (self.term, self.leader) = (entry.term, member(entry.payload()[0]));
        }
        let fail = |failure, depends_on| Certification {
            pass: false,
            depends_on,
            conflict: None,
            failure: Some(failure),
        };
        let alone = Certification { pass: true, depends_on: seqno - 1, conflict: None, failure: None };
        let mut floor = self.trim.max(self.barrier);
        match entry.kind {
            EntryKind::WriteSet | EntryKind::TotalOrder => {}
            EntryKind::View => {
                self.left_out.extend(before + 1..seqno);
                self.barrier = seqno;
                return Some(alone);
            }
            EntryKind::Trim => {
                self.trim = TrimMark::from_payload(entry.payload()).unwrap().trim;
                return None;
            }
            EntryKind::Policy => {
                // The first byte of a policy that is otherwise as by default: 0 async, 2 quorum.
                self.weak = entry.payload()[0] == 0;
                return None;
            }
            _ => return None,
        }
        let Ok(set) = WriteSet::parse(&entry.payload()) else {
            return Some(fail(Failure::Malformed, floor));
        };
        let meta = set.meta;
        if self.weak && entry.proposal.member != self.leader && !meta.has(flags::ROLLBACK) {
            return Some(fail(Failure::NotLeader, floor));
        }
        let mut keys: BTreeMap<u64, KeyType> = set.keys().map(|Key { hash, kind }| (hash, kind)).collect();
        keys.entry(ROOT).or_insert(KeyType::Shared);
        let stream = (meta.source, meta.trx);
        if meta.has(flags::IMPLICIT_DEPS) {
            floor = floor.max(meta.last_seen);
        }
        if !meta.has(flags::TRX_START) {
            floor = floor.max(self.streams.get(&stream).copied().unwrap_or(START));
        }
        let total_order = entry.kind == EntryKind::TotalOrder || meta.has(flags::ISOLATION);
        let mut parent = floor;
        let mut conflict = None;
        if !total_order && !meta.has(flags::ROLLBACK) {
            for (earlier, by, theirs) in &self.passed {
                for (hash, kind) in &keys {
                    let Some(held) = theirs.get(hash) else { continue };
                    let meets = naive_meeting(*held, *kind);
                    if meets != '-' {
                        parent = parent.max(*earlier);
                    }
                    if meets == 'C' && *by != Some(meta.source) && *earlier > meta.last_seen {
                        conflict = conflict.max(Some(*earlier));
                    }
                }
            }
            if meta.last_seen >= seqno {
                return Some(fail(Failure::Impossible, floor.min(seqno - 1)));
            }
            if meta.last_seen < self.trim {
                return Some(fail(Failure::BelowTrim, floor));
            }
            if self.left_out.contains(&meta.last_seen) {
                return Some(fail(Failure::LostSight, floor));
            }
            if conflict.is_some() {
                return Some(Certification { conflict, ..fail(Failure::Conflict, floor) });
            }
        }
        if !meta.has(flags::ROLLBACK) {
            self.passed.push((seqno, (!total_order).then_some(meta.source), keys));
        }
        let ends = meta.has(flags::TRX_END | flags::ROLLBACK);
        let whole = ends && meta.has(flags::TRX_START);
        if !meta.has(flags::ISOLATION) && !whole {
            match ends {
                true => drop(self.streams.remove(&stream)),
                false => drop(self.streams.insert(stream, seqno)),
            }
        }
        if total_order || meta.has(flags::ROLLBACK | flags::PA_UNSAFE) {
            self.barrier = seqno;
            return Some(alone);
        }
        Some(Certification { depends_on: parent.min(seqno - 1), ..alone })
    }
}

/// The table in the other direction: as one reads it in the module's text.
fn naive_meeting(earlier: KeyType, later: KeyType) -> char {
    let row = match earlier {
        KeyType::Shared => "--PP",
        KeyType::Reference => "--PC",
        KeyType::Update => "PPCC",
        KeyType::Exclusive => "CCCC",
    };
    row.as_bytes()[later as usize] as char
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        by: u8,
        unseen: i64,
        keys: Vec<(u8, KeyType)>,
        flags: u32,
        trx: u64,
    },
    TotalOrder {
        by: u8,
        unseen: i64,
        keys: Vec<(u8, KeyType)>,
    },
    View {
        left_out: i64,
    },
    Policy {
        weak: bool,
    },
    Leader {
        who: u8,
    },
    Noise,
    Deliver {
        count: usize,
    },
    Trim {
        lag: i64,
    },
    /// Only the leader: how much is forgotten already is no part of any verdict.
    Forget {
        keys: usize,
    },
}

/// Keys 0: the root; 1 to 3: tables; 4 to 12: rows of them.
fn append_key(b: &mut WriteSetBuilder, key: u8, kind: KeyType) {
    let table = [b'a' + key % 3];
    let row = [key / 3];
    let parts: &[&[u8]] = match key {
        0 => &[],
        1..=3 => &[b"db", &table],
        _ => &[b"db", &table, &row],
    };
    b.append_key(parts, kind).unwrap();
}

fn op() -> impl Strategy<Value = Op> {
    let kind = || (0u8..4).prop_map(|k| KeyType::from_u8(k).unwrap());
    // The root and whole tables rarely, or everything conflicts.
    let key = || prop_oneof![1 => Just(0u8), 2 => 1u8..4, 30 => 4u8..13];
    let keys = move || prop::collection::vec((key(), kind()), 0..3);
    let whole = flags::TRX_START | flags::TRX_END;
    let flags = prop_oneof![
        20 => Just(whole),
        1 => Just(whole | flags::PA_UNSAFE),
        2 => Just(whole | flags::IMPLICIT_DEPS | flags::COMMUTATIVE | flags::NATIVE | flags::SNAPSHOT),
        3 => Just(flags::TRX_START),
        3 => Just(0),
        2 => Just(flags::TRX_END),
        1 => Just(flags::ROLLBACK),
        1 => Just(flags::ROLLBACK | flags::PA_UNSAFE),
    ];
    prop_oneof![
        30 => (0u8..3, -1i64..14, keys(), flags, 0u64..3)
            .prop_map(|(by, unseen, keys, flags, trx)| Op::Write { by, unseen, keys, flags, trx }),
        1 => (0u8..3, -1i64..14, keys()).prop_map(|(by, unseen, keys)| Op::TotalOrder { by, unseen, keys }),
        1 => (1i64..6).prop_map(|left_out| Op::View { left_out }),
        1 => any::<bool>().prop_map(|weak| Op::Policy { weak }),
        1 => (0u8..3).prop_map(|who| Op::Leader { who }),
        1 => Just(Op::Noise),
        6 => (1usize..12).prop_map(|count| Op::Deliver { count }),
        5 => (0i64..12).prop_map(|lag| Op::Trim { lag }),
        2 => (0usize..9).prop_map(|keys| Op::Forget { keys }),
    ]
}

fn run(ops: &[Op]) -> Group {
    let mut group = Group::new();
    for op in ops {
        let at = group.tail().seqno;
        match op {
            Op::Write { by, unseen, keys, .. } | Op::TotalOrder { by, unseen, keys } => {
                let mut b = WriteSetBuilder::new();
                keys.iter().for_each(|(key, kind)| append_key(&mut b, *key, *kind));
                b.append_data(DataKind::Ordered, b"data").unwrap();
                let (kind, flags, trx) = match op {
                    Op::Write { flags, trx, .. } => (EntryKind::WriteSet, *flags, *trx),
                    _ => (EntryKind::TotalOrder, flags::ISOLATION | flags::TRX_START | flags::TRX_END, 77),
                };
                let meta =
                    Meta { flags, last_seen: at - unseen, source: source(*by), epoch: 0, conn: 1, trx };
                group.append_of(member(by + 1), kind, 1, b.finish(&meta));
            }
            Op::View { left_out } => {
                let mut w = crate::codec::Writer::new();
                View::default().encode(&mut w);
                group.append(EntryKind::View, *left_out, w.into_bytes());
            }
            Op::Policy { weak } => {
                let kind = if *weak { PolicyKind::Async } else { PolicyKind::Quorum };
                group.append(EntryKind::Policy, 0, Policy::of(kind).to_payload());
            }
            Op::Leader { who } => {
                group.term += 1;
                group.append(EntryKind::Noop, 0, Bytes::copy_from_slice(&member(*who + 1).0));
            }
            Op::Noise => group.append(EntryKind::WriteSet, 1, Bytes::from_static(b"noise")),
            Op::Deliver { count } => group.deliver(*count),
            Op::Trim { lag } => group.trim(*lag),
            Op::Forget { keys } => group.leader.0.forget(*keys),
        }
    }
    group.deliver(usize::MAX);
    group
}

fn marks(entries: &[Entry]) -> impl Iterator<Item = TrimMark> + '_ {
    entries.iter().filter(|e| e.kind == EntryKind::Trim).map(|e| TrimMark::from_payload(e.payload()).unwrap())
}

/// Replays from the state after `from` entries, having learned the marks of the first `known`.
fn replay(group: &Group, from: usize, known: usize) -> Result<(), (usize, CertifyError)> {
    let mut certifier = (Certifier::new(&group.states[from]), group.states[from].writers());
    marks(&group.entries[from..known]).for_each(|mark| certifier.0.learn(&mark));
    for (at, entry) in group.entries.iter().enumerate().skip(from) {
        let outcome = feed(&mut certifier, entry).map_err(|e| (at, e))?;
        let expected = group.outcomes[at];
        assert_eq!(
            outcome.map(|o| o.pass),
            expected.map(|o| o.pass),
            "entry {at} from {from} knowing {known}"
        );
        if let (Some(outcome), Some(expected)) = (outcome, expected) {
            assert!(outcome.depends_on < entry.seqno);
            // A certifier that begins later may report more dependencies, never fewer among its own entries.
            assert!(outcome.depends_on >= expected.depends_on.min(entry.seqno - 1) || !outcome.pass);
            assert!(outcome.depends_on <= expected.depends_on.max(group.states[from].seqno) || !outcome.pass);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn as_the_model_says(ops in prop::collection::vec(op(), 1..150)) {
        let group = run(&ops);
        let mut model = Model::new();
        for (entry, outcome) in group.entries.iter().zip(&group.outcomes) {
            prop_assert_eq!(*outcome, model.feed(entry), "seqno {}", entry.seqno);
        }
        // One that forgets nothing at all says the same, parents and all.
        let genesis = &group.states[0];
        let mut keeper = (Certifier::new(genesis), genesis.writers());
        keeper.0.index.never_forgets = true;
        for (entry, outcome) in group.entries.iter().zip(&group.outcomes) {
            prop_assert_eq!(*outcome, feed(&mut keeper, entry).unwrap(), "seqno {}", entry.seqno);
        }
        // A trim at the last seqno removes all keys.
        let (mut leader, _) = group.leader;
        leader.trim(&TrimMark {
            trim: leader.position(),
            verdicts_to: leader.position(),
            failed: leader.failed.clone(),
        }).unwrap();
        leader.forget(usize::MAX);
        prop_assert!(leader.is_empty());
        prop_assert!(leader.index.is_spotless());
        prop_assert_eq!(leader.window(), 0);
        prop_assert!(leader.failed.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// From wherever one may begin, having learned what was committed then, all verdicts come out the same. From
    /// elsewhere, they do or it is said that they cannot be known; they never come out otherwise.
    #[test]
    fn the_same_from_anywhere(ops in prop::collection::vec(op(), 1..110)) {
        let group = run(&ops);
        let n = group.entries.len();
        for from in 0..=n {
            for known in from..=n {
                let result = replay(&group, from, known);
                if reaches(&group.states[from], &group.states[known]) {
                    prop_assert_eq!(result, Ok(()), "from {} knowing {}", from, known);
                } else if let Err((_, error)) = result {
                    prop_assert!(matches!(error, CertifyError::Unknown { .. }), "{:?}", error);
                }
            }
        }
    }
}

/// The log of the test above is no use if one can only begin at its beginning, or if not knowing never happens.
#[test]
fn logs_can_be_joined_midway() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut midway, mut unknown) = (0, 0);
    for _ in 0..40 {
        let ops = prop::collection::vec(op(), 100..110).new_tree(&mut runner).unwrap().current();
        let group = run(&ops);
        let n = group.entries.len();
        let last = group.states.iter().rposition(|s| reaches(s, group.tail())).unwrap();
        midway += (group.states[last].seqno > START) as u32;
        unknown += (0..=n).any(|from| replay(&group, from, from).is_err()) as u32;
    }
    assert!(midway > 10, "{midway} of 40");
    assert!(unknown > 10, "{unknown} of 40");
}

fn write(by: u8, last_seen: Seqno, keys: &[(u8, KeyType)]) -> WriteSet {
    let mut b = WriteSetBuilder::new();
    keys.iter().for_each(|(key, kind)| append_key(&mut b, *key, *kind));
    let meta = Meta {
        flags: flags::TRX_START | flags::TRX_END,
        last_seen,
        source: source(by),
        epoch: 0,
        conn: 1,
        trx: 1,
    };
    WriteSet::parse(&b.finish(&meta)).unwrap()
}

fn certifier() -> Certifier {
    Certifier::new(&StateSnapshot::genesis(Uuid([9; 16]), 0, Membership::default()))
}

/// Galera's conflict table, cell by cell.
#[test]
fn every_cell() {
    for earlier in KeyType::ALL {
        for later in KeyType::ALL {
            for same_source in [false, true] {
                for seen in [false, true] {
                    let mut c = certifier();
                    let first = c.certify(1, EntryKind::WriteSet, &write(0, 0, &[(5, earlier)])).unwrap();
                    assert!(first.pass);
                    let set = write(!same_source as u8, seen as Seqno, &[(5, later)]);
                    let outcome = c.certify(2, EntryKind::WriteSet, &set).unwrap();
                    let meets = naive_meeting(earlier, later);
                    let pass = meets != 'C' || same_source || seen;
                    assert_eq!(outcome.pass, pass, "{earlier:?} then {later:?}");
                    assert_eq!(outcome.conflict, (!pass).then_some(1));
                    if pass {
                        assert_eq!(outcome.depends_on, (meets != '-') as Seqno, "{earlier:?} then {later:?}");
                    }
                }
            }
        }
    }
}

/// A later write of the own source must not hide an earlier one of another source. T1 and T2 of source 1 took their
/// *last seen* in one order, and the log has them in the other.
#[test]
fn own_writes_hide_nobody() {
    let mut c = certifier();
    let x = [(5, KeyType::Exclusive)];
    assert!(c.certify(1, EntryKind::WriteSet, &write(0, 0, &x)).unwrap().pass);
    assert!(c.certify(2, EntryKind::WriteSet, &write(1, 1, &x)).unwrap().pass);
    let late = c.certify(3, EntryKind::WriteSet, &write(1, 0, &x)).unwrap();
    assert_eq!((late.pass, late.conflict), (false, Some(1)));
}

/// The same where a trim mark has taken the oldest of three uses in between.
#[test]
fn trimming_hides_nobody() {
    let mut c = certifier();
    let x = [(5, KeyType::Exclusive)];
    assert!(c.certify(1, EntryKind::WriteSet, &write(2, 0, &x)).unwrap().pass);
    assert!(c.certify(2, EntryKind::WriteSet, &write(0, 1, &x)).unwrap().pass);
    assert!(c.certify(3, EntryKind::WriteSet, &write(1, 2, &x)).unwrap().pass);
    c.trim(&TrimMark { trim: 1, verdicts_to: 3, failed: vec![] }).unwrap();
    let late = c.certify(4, EntryKind::WriteSet, &write(1, 1, &x)).unwrap();
    assert_eq!((late.pass, late.conflict), (false, Some(2)));
}

#[test]
fn table_lock_conflicts_with_its_rows() {
    let mut c = certifier();
    // Key 4 is a row of table 1 (4 % 3 == 1 % 3), key 5 of table 2.
    assert!(c.certify(1, EntryKind::TotalOrder, &write(0, 0, &[(1, KeyType::Exclusive)])).unwrap().pass);
    assert!(!c.certify(2, EntryKind::WriteSet, &write(0, 0, &[(4, KeyType::Update)])).unwrap().pass);
    assert!(c.certify(3, EntryKind::WriteSet, &write(1, 0, &[(5, KeyType::Exclusive)])).unwrap().pass);
    // A statement without tables locks the server.
    assert!(c.certify(4, EntryKind::TotalOrder, &write(0, 0, &[(0, KeyType::Exclusive)])).unwrap().pass);
    assert!(!c.certify(5, EntryKind::WriteSet, &write(1, 3, &[(5, KeyType::Exclusive)])).unwrap().pass);
    assert!(c.certify(6, EntryKind::WriteSet, &write(1, 4, &[])).unwrap().pass);
}

#[test]
fn out_of_order_and_false_marks_stop() {
    let mut c = certifier();
    let x = [(5, KeyType::Exclusive)];
    assert!(c.certify(1, EntryKind::WriteSet, &write(0, 0, &x)).unwrap().pass);
    assert_eq!(
        c.certify(3, EntryKind::WriteSet, &write(0, 0, &x)),
        Err(CertifyError::Order { seqno: 3, last: 1 })
    );
    assert_eq!(c.barrier(1), Err(CertifyError::Order { seqno: 1, last: 1 }));
    assert!(!c.certify(2, EntryKind::WriteSet, &write(1, 0, &x)).unwrap().pass);
    let mark = |trim, verdicts_to, failed| TrimMark { trim, verdicts_to, failed };
    assert!(matches!(c.trim(&mark(1, 9, vec![])), Err(CertifyError::Mark(_))));
    assert!(matches!(c.trim(&mark(2, 1, vec![])), Err(CertifyError::Mark(_))));
    assert!(matches!(c.trim(&mark(1, 2, vec![2, 1])), Err(CertifyError::Mark(_))));
    assert_eq!(c.trim(&mark(1, 2, vec![])), Err(CertifyError::Diverged { seqno: 2, recorded: true }));
    assert_eq!(c.trim(&mark(1, 2, vec![1, 2])), Err(CertifyError::Diverged { seqno: 1, recorded: false }));
    assert_eq!(c.failed, [2]);
    assert_eq!(c.trim(&mark(1, 2, vec![2])), Ok(()));
    assert_eq!(c.trim, 1);

    // Told ahead, and known better.
    let mut c = certifier();
    c.learn(&mark(1, 2, vec![1]));
    assert_eq!(
        c.certify(1, EntryKind::WriteSet, &write(0, 0, &x)),
        Err(CertifyError::Diverged { seqno: 1, recorded: false })
    );
}

#[test]
fn verdicts_are_known_from_own_certification_only() {
    let mut one = certifier();
    let mut other = certifier();
    let x = [(1, KeyType::Exclusive)];
    for (certifier, second) in [(&mut one, 0), (&mut other, 1)] {
        certifier.certify(1, EntryKind::WriteSet, &write(0, 0, &x)).unwrap();
        certifier.certify(2, EntryKind::WriteSet, &write(1, second, &x)).unwrap();
    }
    let known = |certifier: &Certifier, to| match certifier.verdicts(0, to) {
        Verdicts::Known(hash) => hash,
        not => panic!("{not:?}"),
    };
    assert_eq!(known(&one, 1), known(&other, 1));
    assert_ne!(known(&one, 2), known(&other, 2), "one failed it");
    assert_eq!(one.verdicts(0, 3), Verdicts::NotYet);
    assert_eq!(one.verdicts(1, 2), Verdicts::NotYet, "a mark is missing");
    one.trim(&TrimMark { trim: 0, verdicts_to: 2, failed: vec![2] }).unwrap();
    assert_eq!(one.verdicts(0, 2), Verdicts::Unknown, "a later mark went through");
    assert!(matches!(one.verdicts(2, 2), Verdicts::Known(_)));
    // This one's log begins behind the last mark.
    let genesis = StateSnapshot::genesis(Uuid([9; 16]), 0, Membership::default());
    let joined = Certifier::new(&StateSnapshot { seqno: 5, ..genesis });
    assert_eq!(joined.verdicts(0, 5), Verdicts::Unknown);
}

#[test]
fn marks_are_applied_one_at_a_time() {
    let mut c = certifier();
    for seqno in 1..=50 {
        c.certify(seqno, EntryKind::WriteSet, &write(0, seqno - 1, &[(5, KeyType::Exclusive)])).unwrap();
    }
    let mut tail = StateSnapshot::genesis(Uuid([9; 16]), 0, Membership::default());
    let limits = TrimLimits { min_advance: 10, max_window: 20 };
    assert_eq!(c.next_trim(9, &TrimLimits { max_window: 100, ..limits }, &tail), None);
    let mark = c.next_trim(0, &limits, &tail).unwrap();
    assert_eq!((mark.trim, mark.verdicts_to), (30, 50));
    assert_eq!(c.next_trim(45, &limits, &tail).unwrap().trim, 45);
    assert_eq!(c.next_trim(99, &limits, &tail).unwrap().trim, 50);
    // Appended, but not gone through here yet.
    (tail.trim, tail.verdicts_to) = (mark.trim, mark.verdicts_to);
    assert_eq!(c.next_trim(45, &limits, &tail), None);
    c.trim(&mark).unwrap();
    assert_eq!(c.next_trim(45, &limits, &tail).unwrap().trim, 45);
    c.forget(usize::MAX);
    assert_eq!(c.len(), 3);
}

/// The thread that certifies also tells the others that their leader is alive: a mark after a bulk load, which frees all
/// its keys, must not hold it up.
#[test]
fn mark_that_frees_many_keys_is_as_fast_as_others() {
    const KEYS: usize = 50_000;
    let mut c = certifier();
    let mut b = WriteSetBuilder::new();
    for row in 0..KEYS as u32 {
        b.append_key(&[b"db", b"t", &row.to_le_bytes()], KeyType::Exclusive).unwrap();
    }
    let meta = write(0, 0, &[]).meta;
    let load = WriteSet::parse(&b.finish(&meta)).unwrap();
    assert!(c.certify(1, EntryKind::WriteSet, &load).unwrap().pass);
    let held = c.len();
    assert!(held >= KEYS);
    c.trim(&TrimMark { trim: 1, verdicts_to: 1, failed: vec![] }).unwrap();
    assert_eq!(c.len(), held);
    c.forget(1000);
    assert_eq!(c.len(), held - 1000);
    // A new write-set removes as many keys as it adds, and finds none of the old ones.
    let small = write(1, 1, &[(4, KeyType::Exclusive), (5, KeyType::Exclusive)]);
    let outcome = c.certify(2, EntryKind::WriteSet, &small).unwrap();
    assert_eq!((outcome.pass, outcome.depends_on), (true, 1));
    let now = held - 1000;
    assert!((now - 2..=now).contains(&c.len()), "{} of {now}", c.len());
    let mut steps = 0;
    while c.len() > small.keys().len() {
        c.forget(1000);
        steps += 1;
    }
    assert!((held / 1000 - 2..=held / 1000).contains(&steps), "{steps}");
}

/// Sources are numbered; the numbers do not grow with each reconnect.
#[test]
fn many_sources_come_and_go() {
    let mut c = certifier();
    for seqno in 1..=1000 {
        let by = Uuid((seqno as u128).to_le_bytes());
        let mut set = write(0, seqno - 1, &[(5, KeyType::Exclusive)]);
        set.meta.source = by;
        assert!(c.certify(seqno, EntryKind::WriteSet, &set).unwrap().pass);
        c.trim(&TrimMark { trim: seqno - 1, verdicts_to: seqno, failed: vec![] }).unwrap();
    }
    assert!(c.index.source_numbers() <= 3, "{}", c.index.source_numbers());
}

/// An origin releases the locks of a write-set that it gave up. If the log has that write-set after all, it must conflict
/// with the origin's later ones, which have not seen it.
#[test]
fn abandoned_write_set_conflicts_with_later_ones_of_origin() {
    for (epoch, pass) in [(0, true), (1, false)] {
        let mut c = certifier();
        let given_up = write(1, 0, &[(5, KeyType::Exclusive)]);
        assert!(c.certify(1, EntryKind::WriteSet, &given_up).unwrap().pass);
        let mut later = write(1, 0, &[(5, KeyType::Exclusive)]);
        later.meta.epoch = epoch;
        assert_eq!(c.certify(2, EntryKind::WriteSet, &later).unwrap().pass, pass);
        let mut informed = write(1, 1, &[(5, KeyType::Exclusive)]);
        informed.meta.epoch = 1;
        let seen_all = !pass;
        assert_eq!(c.certify(3, EntryKind::WriteSet, &informed).unwrap().pass, seen_all, "epoch {epoch}");
    }
}
