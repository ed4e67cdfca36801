use super::*;
use crate::codec::Writer;
use crate::members::ViewMember;
use crate::types::{EntryHeader, ProposalId, Uuid};
use crate::writeset::{KeyType, Meta, OVERTAKEN, WriteSet, WriteSetBuilder, flags};

fn uuid(of: u8) -> ViewUuid {
    Uuid([of; 16])
}

fn view(seqno: Seqno, of: &[u8]) -> (View, Entry) {
    let member = |n: &u8| ViewMember {
        id: uuid(*n),
        view_uuid: uuid(*n),
        name: n.to_string(),
        incoming: String::new(),
    };
    let view = View { number: 1, members: of.iter().map(member).collect() };
    let mut w = Writer::new();
    view.encode(&mut w);
    let (kind, proposal, payload) = (EntryKind::View, ProposalId::default(), w.into_bytes());
    (view, Entry::new(EntryHeader { index: 1, term: 1, kind, seqno, proposal, time: 0 }, &payload))
}

fn write(source: u8, last_seen: Seqno, flags: u32) -> Bytes {
    let mut builder = WriteSetBuilder::new();
    builder.append_key(&[b"t"], KeyType::Exclusive).unwrap();
    builder.finish(&Meta { flags, last_seen, source: uuid(source), epoch: 0, conn: 7, trx: 9 })
}

/// Whether it is placed as one that fails.
fn fails(ends: &Ends, payload: Bytes) -> bool {
    let before = WriteSet::parse(&payload).unwrap();
    let placed = ends.pass(EntryKind::WriteSet, payload.clone());
    if placed == payload {
        return false;
    }
    let after = WriteSet::parse(&placed).unwrap();
    assert_eq!(after.meta, Meta { last_seen: OVERTAKEN, ..before.meta }, "nothing else is changed");
    assert!(after.keys().eq(before.keys()));
    true
}

const PARTS: [u32; 3] = [flags::TRX_START, 0, flags::TRX_END];

#[test]
fn view_ends_streams_of_absent_members() {
    let mut ends = Ends::new(&view(10, &[1, 2, 3]).0, 10);
    ends.viewed(&view(20, &[1, 3]).1);
    ends.viewed(&view(30, &[1, 2, 3]).1);
    for part in PARTS {
        assert!(fails(&ends, write(2, 19, part)), "sent before it was out, placed when it is back");
        assert!(!fails(&ends, write(2, 20, part)), "its server has been through that view");
        assert!(!fails(&ends, write(1, 19, part)), "another member's goes on");
    }
}

#[test]
fn view_of_same_members_ends_all_streams() {
    let mut ends = Ends::new(&view(10, &[1, 2, 3]).0, 10);
    // Another one leads: it comes first.
    ends.viewed(&view(20, &[3, 1, 2]).1);
    for (source, part) in [1, 2, 3].iter().zip(PARTS) {
        assert!(fails(&ends, write(*source, 19, part)));
        assert!(!fails(&ends, write(*source, 20, part)));
    }
    ends.viewed(&view(25, &[1, 2]).1);
    assert!(!fails(&ends, write(1, 20, 0)) && fails(&ends, write(3, 20, 0)));
}

#[test]
fn nobody_streams_who_is_not_listed_yet() {
    let mut ends = Ends::new(&view(10, &[1, 2]).0, 10);
    for part in PARTS {
        assert!(fails(&ends, write(3, 15, part)), "it has come back, and seen all that there is");
        assert!(!fails(&ends, write(1, 15, part)));
    }
    ends.viewed(&view(20, &[1, 2, 3]).1);
    assert!(!fails(&ends, write(3, 20, flags::TRX_START)));
    assert!(
        !fails(&ends, write(3, 15, flags::TRX_START)),
        "the first that it is in has not ended anything of it"
    );
}

#[test]
fn entry_unaffected_by_views_is_appended_unchanged() {
    let ends = Ends::new(&view(10, &[1, 2]).0, 10);
    let whole = flags::TRX_START | flags::TRX_END;
    for part in [whole, flags::ROLLBACK | flags::PA_UNSAFE, whole | flags::ISOLATION] {
        assert!(!fails(&ends, write(1, 5, part)), "flags {part}");
    }
    for payload in [Bytes::new(), Bytes::from_static(b"row"), Bytes::from_static(&[7; 200])] {
        assert_eq!(ends.pass(EntryKind::WriteSet, payload.clone()), payload);
    }
    let piece = write(1, 5, 0);
    assert_eq!(ends.pass(EntryKind::Piece, piece.clone()), piece);
}

#[test]
fn forgotten_stream_counts_as_ended() {
    let mut ends = Ends::new(&view(10, &[1, 2]).0, 10);
    assert!(fails(&ends, write(1, 9, 0)), "the views of leaders before");
    assert!(!fails(&ends, write(1, 10, 0)));
    for n in 0..=VIEWS_KEPT as i64 {
        ends.viewed(&view(11 + n, if n % 2 == 0 { &[1] } else { &[1, 2] }).1);
    }
    assert!(ends.views.len() <= VIEWS_KEPT);
    assert!(fails(&ends, write(1, 10, 0)) && !fails(&ends, write(1, 11, 0)));
}
