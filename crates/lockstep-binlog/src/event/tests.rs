//! Round trips of each event, and every truncation of it.

use super::*;
use crate::gtid::Gtid;

const STAMP: Stamp = Stamp { timestamp: 1_795_707_097, server_id: 7 };

fn format() -> FormatDescription {
    FormatDescription {
        timestamp: STAMP.timestamp,
        server_id: 7,
        version: "10.11.19-MariaDB-0+deb12u1-log".into(),
        created: STAMP.timestamp,
        checksum: Checksum::Crc32,
    }
}

fn gtid(flags: u8, commit_id: Option<u64>) -> GtidEvent {
    let extra = if commit_id.is_some() { Vec::new() } else { vec![0; 6] };
    GtidEvent { gtid: Gtid { domain: 3, server: 7, seqno: 9 }, flags, commit_id, extra }
}

fn one(build: impl FnOnce(&mut EventWriter)) -> Vec<u8> {
    let mut writer = EventWriter::at(4);
    build(&mut writer);
    writer.finish().unwrap()
}

/// One event of each kind.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let query = Query {
        thread_id: 5,
        exec_time: 1,
        error_code: 0,
        status_vars: &[0, 1, 2],
        database: b"a",
        sql: b"COMMIT",
    };
    let list = [Gtid { domain: 0, server: 1, seqno: 5 }, Gtid { domain: 3, server: 7, seqno: 8 }];
    vec![
        one(|w| w.format_description(&format())),
        one(|w| w.gtid_list(STAMP, &list)),
        one(|w| w.gtid_list(STAMP, &[])),
        one(|w| w.gtid(STAMP.timestamp, &gtid(gtid_flag::TRANSACTIONAL, None))),
        one(|w| w.gtid(STAMP.timestamp, &gtid(gtid_flag::GROUP_COMMIT_ID, Some(77)))),
        one(|w| w.query(STAMP, 0, &query).unwrap()),
        one(|w| w.begin(STAMP)),
        one(|w| w.xid(STAMP, 16)),
        one(|w| w.rotate(STAMP, "bin.000002")),
        heartbeat(7, "bin.000002", 400, Checksum::Crc32),
    ]
}

/// Parses an event by its own type. The text is a summary of the result.
pub(crate) fn parse_any(event: &[u8], checksum: Checksum) -> Result<String, DecodeError> {
    let (header, _) = split(event, checksum)?;
    Ok(match header.kind {
        kind::FORMAT_DESCRIPTION => format!("{:?}", FormatDescription::parse(event)?),
        kind::GTID => format!("{:?}", GtidEvent::parse(event, checksum)?),
        kind::GTID_LIST => format!("{:?}", GtidList::parse(event, checksum)?),
        kind::ROTATE => format!("{:?}", Rotate::parse(event, checksum)?),
        kind::QUERY => format!("{:?}", Query::parse(event, checksum)?),
        kind::XID => format!("{:?}", Xid::parse(event, checksum)?),
        kind::HEARTBEAT => format!("{:?}", Heartbeat::parse(event, checksum)?),
        _ => format!("{header:?}"),
    })
}

/// Makes the length and the checksum right, so that only the body's own checks are left.
pub(crate) fn repair(event: &mut [u8]) {
    let len = event.len();
    if len >= HEADER_LEN + CHECKSUM_LEN {
        event[9..13].copy_from_slice(&(len as u32).to_le_bytes());
        let crc = crc_of(&event[..len - CHECKSUM_LEN]);
        event[len - CHECKSUM_LEN..].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn event_truncated_at_any_byte_is_refused() {
    for event in samples() {
        parse_any(&event, Checksum::Crc32).unwrap();
        for cut in 0..event.len() {
            assert!(parse_any(&event[..cut], Checksum::Crc32).is_err());
        }
        let mut longer = event.clone();
        longer.push(0);
        assert!(parse_any(&longer, Checksum::Crc32).is_err());
    }
}

#[test]
fn fixed_fields_missing_are_refused_behind_valid_checksum() {
    for event in samples() {
        for cut in HEADER_LEN + CHECKSUM_LEN..event.len() {
            let mut shorter = event[..cut].to_vec();
            repair(&mut shorter);
            // Some bodies end with a text of any length. The parsers must return in each case.
            let _ = parse_any(&shorter, Checksum::Crc32);
        }
    }
    let mut xid = one(|w| w.xid(STAMP, 1));
    xid.pop();
    repair(&mut xid);
    assert_eq!(Xid::parse(&xid, Checksum::Crc32), Err(DecodeError::Short));
}

#[test]
fn event_with_any_changed_byte_fails_its_checksum() {
    for event in samples() {
        for at in 0..event.len() {
            let mut changed = event.clone();
            changed[at] ^= 0x55;
            assert!(split(&changed, Checksum::Crc32).is_err(), "byte {at} of {event:02x?}");
        }
    }
}

#[test]
fn built_events_parse_to_their_fields() {
    let parsed = FormatDescription::parse(&samples()[0]).unwrap();
    assert_eq!(parsed, format());
    for (flags, commit_id) in
        [(gtid_flag::STANDALONE | gtid_flag::DDL, None), (gtid_flag::GROUP_COMMIT_ID, Some(7))]
    {
        let event = one(|w| w.gtid(5, &gtid(flags, commit_id)));
        assert_eq!(GtidEvent::parse(&event, Checksum::Crc32), Ok(gtid(flags, commit_id)));
    }
    let rotate = Rotate::parse(&samples()[8], Checksum::Crc32).unwrap();
    assert_eq!(rotate, Rotate { position: 4, file: "bin.000002".into() });
    let parsed = Heartbeat::parse(&samples()[9], Checksum::Crc32).unwrap();
    assert_eq!(parsed, Heartbeat { file: "bin.000002".into(), position: 400 });
    assert_eq!(Header::parse(&samples()[7]).unwrap().end_pos, 4 + 31);
}

#[test]
fn format_description_equals_the_one_of_mariadb() {
    // Written by mariadbd 10.11.19-MariaDB-0+deb12u1 with log_bin, server_id=7.
    let hex = include_str!("format_description.hex");
    let bytes: Vec<u8> =
        hex.split_ascii_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    assert_eq!(one(|w| w.format_description(&format())), bytes);
    let mut open = bytes.clone();
    open[17] |= flag::IN_USE as u8;
    assert_eq!(
        FormatDescription::parse(&open),
        Ok(format()),
        "the flag of an open file has no part in the checksum"
    );
}

#[test]
fn writer_beyond_four_gib_is_refused() {
    let mut writer = EventWriter::at(u64::from(u32::MAX) - 10);
    writer.xid(STAMP, 1);
    assert_eq!(writer.finish(), Err(PositionTooFar(u64::from(u32::MAX) + 21)));
}

#[test]
fn copied_event_has_new_position_and_checksum() {
    let xid = one(|w| w.xid(STAMP, 1));
    let copied = {
        let mut writer = EventWriter::at(1000);
        writer.copy(&xid, Checksum::Crc32).unwrap();
        writer.finish().unwrap()
    };
    assert_eq!(split(&copied, Checksum::Crc32).unwrap().0.end_pos, 1031);
    assert_eq!(Xid::parse(&copied, Checksum::Crc32).unwrap().xid, 1);
}

#[test]
fn event_without_checksum_keeps_position_and_fields() {
    for event in samples() {
        let plain = without_checksum(&event, Checksum::Crc32).unwrap();
        let (before, after) = (Header::parse(&event).unwrap(), Header::parse(&plain).unwrap());
        assert_eq!(before.end_pos, after.end_pos);
        if before.kind == kind::FORMAT_DESCRIPTION {
            assert_eq!(FormatDescription::parse(&plain).unwrap().checksum, Checksum::None);
        } else {
            assert_eq!(plain.len(), event.len() - CHECKSUM_LEN);
            assert_eq!(parse_any(&plain, Checksum::None), parse_any(&event, Checksum::Crc32));
        }
    }
}

#[test]
fn format_description_within_a_file_has_no_position() {
    let event = &samples()[0];
    let whole = format_for_start(event, true, true).unwrap();
    assert_eq!(&whole, event);
    let mut open = event.clone();
    open[17] |= flag::IN_USE as u8;
    assert_eq!(&format_for_start(&open, true, true).unwrap(), event);
    let within = format_for_start(event, false, true).unwrap();
    assert_eq!(Header::parse(&within).unwrap().end_pos, 0);
    assert_eq!(FormatDescription::parse(&within).unwrap().created, 0);
    let later = format_for_start(event, true, false).unwrap();
    assert_eq!(Header::parse(&later).unwrap().end_pos, 256);
    assert_eq!(FormatDescription::parse(&later).unwrap().created, 0);
}

#[test]
fn gtid_becomes_begin_of_the_same_length() {
    for (commit_id, flags) in [(None, 0), (Some(4), gtid_flag::GROUP_COMMIT_ID)] {
        let event = one(|w| w.gtid(5, &gtid(flags, commit_id)));
        for checksum in [Checksum::Crc32, Checksum::None] {
            let event = match checksum {
                Checksum::Crc32 => event.clone(),
                Checksum::None => without_checksum(&event, Checksum::Crc32).unwrap(),
            };
            let begin = to_begin(&event, checksum).unwrap().unwrap();
            assert_eq!(begin.len(), event.len());
            assert_eq!(Query::parse(&begin, checksum).unwrap().sql, b"BEGIN");
        }
    }
    let ddl = one(|w| w.gtid(5, &gtid(gtid_flag::STANDALONE, None)));
    assert_eq!(to_begin(&ddl, Checksum::Crc32), Ok(None));
}

#[test]
fn dummy_has_the_length_of_each_event_it_replaces() {
    for len in 6..60 {
        let body = vec![7; len];
        let event = one(|w| w.event(STAMP, kind::ANNOTATE_ROWS, 0, &[&body]));
        let dummy = to_dummy(&event, Checksum::Crc32).unwrap();
        let (header, _) = split(&dummy, Checksum::Crc32).unwrap();
        assert_eq!(dummy.len(), event.len());
        assert_eq!(header.kind, if len < 15 { kind::USER_VAR } else { kind::QUERY });
    }
    let empty = one(|w| w.stop(STAMP));
    assert!(to_dummy(&empty, Checksum::Crc32).is_err());
}

#[test]
fn group_ends_with_commit_or_first_statement() {
    let feed = |events: &[Vec<u8>]| -> Result<Vec<Group>, DecodeError> {
        let mut group = Group::default();
        events
            .iter()
            .map(|event| {
                group.pass(event[4], event, Checksum::Crc32)?;
                Ok(group)
            })
            .collect()
    };
    let (transaction, standalone) =
        (one(|w| w.gtid(5, &gtid(0, None))), one(|w| w.gtid(5, &gtid(gtid_flag::STANDALONE, None))));
    let map = one(|w| w.event(STAMP, kind::TABLE_MAP, 0, &[&[0; 20]]));
    let rows = one(|w| w.event(STAMP, kind::WRITE_ROWS_V1, 0, &[&[0; 20]]));
    let (xid, commit) = (one(|w| w.xid(STAMP, 1)), samples()[5].clone());
    let begin = one(|w| w.begin(STAMP));
    use Group::{Outside, Standalone, Transaction};
    let seen = feed(&[transaction.clone(), map.clone(), rows.clone(), xid]).unwrap();
    assert_eq!(seen, [Transaction, Transaction, Transaction, Outside]);
    assert_eq!(feed(&[transaction.clone(), begin, commit]).unwrap(), [Transaction, Transaction, Outside]);
    assert_eq!(feed(&[standalone.clone(), map, rows]).unwrap(), [Standalone, Standalone, Outside]);
    assert!(feed(&[transaction.clone(), transaction.clone()]).is_err());
    assert!(feed(&[transaction, samples()[8].clone()]).is_err());
}
