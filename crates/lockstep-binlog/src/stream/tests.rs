use super::source_events::testing::{event, query, statement};
use super::*;
use lockstep_core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder};

const HISTORY: Uuid = Uuid([9; 16]);
const ORIGIN: ViewUuid = Uuid([3; 16]);

fn writeset(flags: u32, trx: u64, row: &str, data: &[u8]) -> WriteSet {
    let mut builder = WriteSetBuilder::new();
    builder.append_key(&[b"shop", b"t", row.as_bytes()], KeyType::Exclusive).unwrap();
    builder.append_data(DataKind::Ordered, data).unwrap();
    let meta = Meta { flags, last_seen: 0, source: ORIGIN, epoch: 0, conn: 1, trx };
    WriteSet::parse(&builder.finish(&meta)).unwrap()
}

const WHOLE: u32 = flags::TRX_START | flags::TRX_END;

fn write(seqno: Seqno, flags: u32, trx: u64, row: &str) -> Item {
    let data = event(23, seqno as u32, row.as_bytes());
    Item::WriteSet { seqno, pass: true, writeset: writeset(flags, trx, row, &data) }
}

fn ddl(seqno: Seqno, text: &str) -> Item {
    Item::Statement { seqno, pass: true, data: statement("shop", text).into() }
}

fn stream() -> Stream {
    Stream::new(1, HISTORY, 0, 0)
}

fn seqnos(groups: &[Group]) -> Vec<u64> {
    groups.iter().map(|group| group.gtid().seqno).collect()
}

/// The types of the events in a group, with checked lengths, positions and checksums.
fn kinds(group: &Group, position: u32) -> Vec<u8> {
    let bytes = group.encode(position.into()).unwrap();
    assert_eq!(bytes.len() as u64, group.encoded_len());
    let (mut at, mut kinds) = (0, Vec::new());
    while at < bytes.len() {
        let word = |from: usize| u32::from_le_bytes(bytes[at + from..at + from + 4].try_into().unwrap());
        let len = word(9) as usize;
        assert_eq!(word(13), position + (at + len) as u32, "the position of its end");
        assert_eq!(word(5), server_id_of(HISTORY));
        let (event, sum) = bytes[at..at + len].split_at(len - 4);
        assert_eq!(crc32fast::hash(event).to_le_bytes(), sum);
        kinds.push(event[4]);
        at += len;
    }
    kinds
}

#[test]
fn transaction_has_gtid_before_and_xid_after() {
    let groups = stream().on_item(write(1, WHOLE, 1, "a")).unwrap();
    assert_eq!(seqnos(&groups), [1]);
    assert_eq!(kinds(&groups[0], 4), [162, 23, 16]);
}

#[test]
fn failed_and_empty_write_sets_leave_holes() {
    let mut stream = stream();
    let failed =
        Item::WriteSet { seqno: 1, pass: false, writeset: writeset(WHOLE, 1, "a", &event(23, 1, b"a")) };
    assert!(stream.on_item(failed).unwrap().is_empty());
    let empty = Item::WriteSet { seqno: 2, pass: true, writeset: writeset(WHOLE, 2, "a", b"") };
    assert!(stream.on_item(empty).unwrap().is_empty());
    assert_eq!(stream.done(), 2);
    assert_eq!(seqnos(&stream.on_item(write(3, WHOLE, 3, "a")).unwrap()), [3]);
}

#[test]
fn fragments_wait_for_end_of_their_transaction() {
    let mut stream = stream();
    assert!(stream.on_item(write(1, flags::TRX_START, 1, "a")).unwrap().is_empty());
    assert_eq!(seqnos(&stream.on_item(write(2, WHOLE, 2, "b")).unwrap()), [2]);
    assert!(stream.on_item(write(3, 0, 1, "c")).unwrap().is_empty());
    assert_eq!(stream.done(), 3);
    let groups = stream.on_item(write(4, flags::TRX_END, 1, "d")).unwrap();
    assert_eq!(seqnos(&groups), [4]);
    assert_eq!(kinds(&groups[0], 4), [162, 23, 23, 23, 16]);
}

#[test]
fn rolled_back_streaming_transactions_leave_holes() {
    let mut stream = stream();
    for trx in 1..=3 {
        assert!(stream.on_item(write(trx, flags::TRX_START, trx as u64, "a")).unwrap().is_empty());
    }
    let rollback = Item::WriteSet {
        seqno: 4,
        pass: true,
        writeset: writeset(flags::ROLLBACK | flags::TRX_END, 1, "a", b""),
    };
    assert!(stream.on_item(rollback).unwrap().is_empty());
    let failed = Item::WriteSet { seqno: 5, pass: false, writeset: writeset(flags::TRX_END, 2, "a", b"") };
    assert!(stream.on_item(failed).unwrap().is_empty());
    let view = Item::View { seqno: 6, go_on: BTreeSet::new() };
    assert!(stream.on_item(view).unwrap().is_empty());
    assert_eq!((stream.done(), stream.open_bytes), (6, 0));
    assert_eq!(
        stream.on_item(write(7, flags::TRX_END, 3, "b")).unwrap_err(),
        StreamError::BeganBefore(7),
        "its first fragment is not known"
    );
}

#[test]
fn stream_waits_for_result_of_statement() {
    let mut stream = stream();
    assert!(stream.on_item(ddl(1, "CREATE TABLE t (a INT)")).unwrap().is_empty());
    assert!(stream.on_item(write(2, WHOLE, 1, "a")).unwrap().is_empty());
    assert_eq!((stream.waits_for(), stream.done()), (Some(1), 0));
    let groups = stream.on_result(1, None).unwrap();
    assert_eq!(seqnos(&groups), [1, 2]);
    assert_eq!(kinds(&groups[0], 4), [162, 2], "a statement has no Xid event");
    assert_eq!(stream.waits_for(), None);
}

#[test]
fn first_result_of_statement_counts() {
    let mut stream = stream();
    assert!(stream.on_result(1, None).unwrap().is_empty(), "of an earlier history: the statement follows");
    assert!(stream.on_item(ddl(1, "CREATE TABLE t (a INT)")).unwrap().is_empty());
    assert!(stream.on_item(ddl(2, "CREATE TABLE u (a INT)")).unwrap().is_empty());
    assert!(stream.on_result(2, Some("exists, Error_code: 1050;".into())).unwrap().is_empty());
    assert!(stream.on_result(2, None).unwrap().is_empty());
    assert_eq!(seqnos(&stream.on_result(1, None).unwrap()), [1], "the second one had no effect");
    assert_eq!(stream.done(), 2);
}

#[test]
fn failed_statement_with_effect_has_error_code() {
    let mut stream = stream();
    let error = "Unknown table 'shop.b', Error_code: 1051;";
    stream.on_item(ddl(1, "DROP TABLE a, b")).unwrap();
    let groups = stream.on_result(1, Some(error.into())).unwrap();
    let bytes = groups[0].encode(4).unwrap();
    let body = 44 + 19;
    assert_eq!(u16::from_le_bytes([bytes[body + 9], bytes[body + 10]]), 1051);
}

#[test]
fn server_id_depends_on_history_alone() {
    assert_eq!(stream().server_id(), Stream::new(7, HISTORY, 99, 99).server_id());
    assert_ne!(server_id_of(HISTORY), server_id_of(Uuid([8; 16])));
    assert!(server_id_of(HISTORY) > 1 && server_id_of(HISTORY) < 1 << 31);
}

#[test]
fn groups_do_not_depend_on_where_stream_began() {
    let items: Vec<Item> =
        (1..200).map(|seqno| write(seqno, WHOLE, seqno as u64, &format!("{}", seqno % 7))).collect();
    let all = |from: Seqno| {
        let mut stream = Stream::new(1, HISTORY, from, from);
        let later = items.iter().filter(|item| item.seqno() > from).cloned();
        later
            .flat_map(|item| stream.on_item(item).unwrap())
            .map(|group| group.encode(4).unwrap())
            .collect::<Vec<_>>()
    };
    let (whole, later) = (all(0), all(128));
    assert_eq!(whole[128..], later[..], "129 begins a block");
}

#[test]
fn schema_change_in_transaction_is_marked() {
    let mut data = event(2, 5, &query("shop", "CREATE TABLE t AS SELECT 1"));
    data.extend(event(23, 5, b"a"));
    let item = Item::WriteSet { seqno: 1, pass: true, writeset: writeset(WHOLE, 1, "a", &data) };
    let groups = stream().on_item(item).unwrap();
    assert_eq!(kinds(&groups[0], 4), [162, 2, 23, 16]);
    let flags = groups[0].encode(4).unwrap()[19 + 12];
    assert_eq!(flags & (gtid_flag::DDL | gtid_flag::ALLOW_PARALLEL), gtid_flag::DDL);
}

#[test]
fn resume_position_is_before_open_transaction_and_block() {
    let mut stream = stream();
    for seqno in 1..=130 {
        stream.on_item(write(seqno, WHOLE, seqno as u64, "a")).unwrap();
    }
    assert_eq!(stream.resume_position(), 128, "129 begins the block of 131");
    stream.on_item(write(131, flags::TRX_START, 500, "b")).unwrap();
    for seqno in 132..=196 {
        stream.on_item(write(seqno, WHOLE, seqno as u64, "a")).unwrap();
    }
    assert_eq!(stream.resume_position(), 130, "131 is the first fragment");
    stream.on_item(write(197, flags::TRX_END, 500, "c")).unwrap();
    assert_eq!(stream.resume_position(), 192);
}

#[test]
fn written_streaming_transaction_is_skipped_without_its_fragments() {
    let mut stream = Stream::new(1, HISTORY, 64, 70);
    assert!(stream.on_item(write(66, 0, 1, "a")).unwrap().is_empty());
    assert!(stream.on_item(write(68, flags::TRX_END, 1, "b")).unwrap().is_empty());
    assert!(stream.on_item(write(69, 0, 2, "a")).unwrap().is_empty());
    let lost = stream.on_item(write(71, flags::TRX_END, 2, "b")).unwrap_err();
    assert_eq!(lost, StreamError::BeganBefore(71));
}

#[test]
fn commit_ids_do_not_depend_on_missing_fragments() {
    let items = |stream: &mut Stream, from: Seqno| {
        let all = [
            write(60, flags::TRX_START, 1, "s"),
            write(65, WHOLE, 2, "a"),
            write(66, flags::TRX_END, 1, "s"),
            write(67, WHOLE, 3, "b"),
        ];
        let later = all.into_iter().filter(|item| item.seqno() > from);
        let groups: Vec<Group> = later.flat_map(|item| stream.on_item(item).unwrap()).collect();
        groups.last().unwrap().encode(4).unwrap()
    };
    let whole = items(&mut Stream::new(1, HISTORY, 0, 0), 0);
    assert_eq!(items(&mut Stream::new(1, HISTORY, 64, 66), 64), whole);
}

#[test]
fn statement_of_two_queries_is_one_group_with_commit() {
    let mut stream = stream();
    let mut data = statement("shop", "CREATE TEMPORARY TABLE x (a INT)");
    data.extend(statement("shop", "CREATE TABLE t LIKE x"));
    stream.on_item(Item::Statement { seqno: 1, pass: true, data: data.into() }).unwrap();
    assert_eq!(kinds(&stream.on_result(1, None).unwrap()[0], 4), [162, 2, 2, 16]);
}

#[test]
fn plugin_of_one_server_is_no_part_of_the_stream() {
    let mut stream = stream();
    stream.on_item(ddl(1, "INSTALL PLUGIN x SONAME 'x.so'")).unwrap();
    assert!(stream.on_result(1, None).unwrap().is_empty());
}

#[test]
fn last_error_number_of_text_counts() {
    assert_eq!(error_code("deprecated, Error_code: 1287; unknown table, Error_code: 1051;"), Some(1051));
    assert_eq!(error_code("no number"), None);
}
