//! Mutated input of networks and disks: events, files, packets, handshakes, commands, statements.

use std::sync::Arc;

use lockstep_fuzz::{Target, outcome};

use crate::archive::{Head, Indexed, MANIFEST_MAX, Manifest, Mark, Part, decode_index, encode_index};
use crate::event::tests::{parse_any, repair, samples};
use crate::event::{Checksum, Group, HEADER_LEN, Header, MAGIC, to_begin, to_dummy, without_checksum};
use crate::gtid::{Gtid, ReplicaState, StreamState};
use crate::ingest::{Chunk, FileName, Follower, Origin, Place, SuccessorScan};
use crate::library::Library;
use crate::wire::accounts::Accounts;
use crate::wire::command::{Ack, Command, tests as commands};
use crate::wire::handshake::{
    Greeting, HandshakeReply, Scramble, greeting, is_tls_request, tests as handshakes,
};
use crate::wire::packet::{Decoder, encode};
use crate::wire::session::{Answer, Session, Settings, Sources};
use crate::wire::sql_client::parse_row;
use crate::wire::statement::{like, recognise};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn events() {
    let test = |input: &[u8]| {
        let parsed = parse_any(input, Checksum::Crc32);
        for checksum in [Checksum::Crc32, Checksum::None] {
            let _ = parse_any(input, checksum);
            for changed in [to_begin(input, checksum).ok().flatten(), to_dummy(input, checksum).ok()]
                .into_iter()
                .flatten()
            {
                assert_eq!(changed.len(), input.len());
                assert!(parse_any(&changed, checksum).is_ok());
            }
            if let Ok(plain) = without_checksum(input, checksum) {
                assert!(Header::parse(&plain).is_ok_and(|header| header.length as usize == plain.len()));
            }
        }
        outcome(&parsed)
    };
    let mut target = Target::new("event", DIR, samples(), &test);
    target.repair = Some(&|event| repair(event));
    target.run();
}

/// A whole file's bytes.
fn file() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    let mut events = crate::event::EventWriter::at(4);
    let samples = samples();
    for at in [0, 1, 3, 5, 4, 7, 8] {
        events.copy(&samples[at], Checksum::Crc32).unwrap();
    }
    out.extend(events.finish().unwrap());
    out
}

/// Makes the checksums of a file's events right again, as far as their lengths lead.
fn repair_file(bytes: &mut [u8]) {
    let mut at = MAGIC.len();
    while let Some(length) =
        bytes.get(at..).and_then(|rest| Header::parse(rest).ok()).map(|h| h.length as usize)
    {
        let Some(event) = bytes.get_mut(at..at.saturating_add(length)) else { return };
        if event.len() < HEADER_LEN + 4 {
            return;
        }
        repair(event);
        at += length;
    }
}

#[test]
fn files() {
    let folder = std::env::temp_dir().join(format!("lockstep-binlog-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("bin.000001");
    let test = |input: &[u8]| {
        std::fs::write(&path, input).unwrap();
        let opened = Library::open_read_only(&folder, "bin");
        let Ok(library) = opened else { return outcome(&opened.map(|_| ()).map_err(|e| e.to_string())) };
        let end = library.end().unwrap();
        assert!(end.offset <= input.len() as u64);
        // What the scan accepted, searches accept as well.
        let state = library.state_at_end().to_replica();
        let started = library.position_of(&state).map(|start| start.state.to_list());
        assert_eq!(library.position_in("bin.000001", end.offset).unwrap().state, library.state_at_end());
        let mut reader = library.reader("fuzz", library.position_in("", 4).unwrap().at).unwrap();
        let mut count = 0u64;
        while reader.advance().unwrap() == crate::library::Step::Event {
            count += 1;
        }
        outcome(&started.map_err(|e| e.to_string())).wrapping_add(count)
    };
    let mut target = Target::new("file", DIR, vec![file()], &test);
    target.repair = Some(&repair_file);
    // Buffers of a scan and of a reader.
    target.memory = (4 << 20, 256);
    target.run();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn groups() {
    let test = |input: &[u8]| {
        let (mut group, mut rest, mut steps) = (Group::default(), input, Vec::new());
        while let Ok(header) = Header::parse(rest) {
            let Some((event, after)) = rest.split_at_checked(header.length as usize) else { break };
            let passed = group.pass(header.kind, event, Checksum::Crc32);
            steps.push((passed.is_ok(), group));
            if passed.is_err() {
                break;
            }
            rest = after;
        }
        outcome(&steps)
    };
    let file = file();
    let target = Target::new("group", DIR, vec![file[MAGIC.len()..].to_vec()], &test);
    target.run();
}

#[test]
fn packets() {
    let test = |input: &[u8]| {
        let mut decoder = Decoder::new(1 << 16);
        let mut seen = Vec::new();
        for part in input.chunks(7) {
            decoder.push(part);
            loop {
                match decoder.take() {
                    Ok(Some((payload, answer))) => {
                        assert!(payload.len() <= 1 << 16);
                        seen.push((payload.len().min(3), answer > 1));
                    }
                    Ok(None) => break,
                    Err(error) => return outcome(&(error, seen)),
                }
            }
        }
        outcome(&seen)
    };
    let mut two = Vec::new();
    encode(&[b"SELECT 1"], &mut 0, &mut two);
    encode(&[b"SELECT VERSION()"], &mut 0, &mut two);
    Target::new("packet", DIR, vec![two], &test).run();
}

#[test]
fn handshakes_and_commands() {
    let test = |input: &[u8]| {
        let reply = HandshakeReply::parse(input);
        if let Ok(reply) = &reply {
            assert!(!reply.user.contains('\n'));
            let _ = reply.needs_switch();
        }
        assert!(!is_tls_request(input) || reply.is_err());
        let command = Command::parse(input);
        if let Ok(Command::Dump(dump)) = &command {
            assert!(dump.file.len() < 512);
        }
        let greeting = Greeting::parse(input);
        let row = parse_row(input);
        if let Ok(row) = &row {
            assert!(row.len() <= input.len());
        }
        outcome(&(reply, command, Ack::parse(input), greeting, row))
    };
    let seeds = vec![
        handshakes::reply("repl", &[7; 20]),
        commands::register(),
        commands::dump("bin.000001", 4, 2, 9),
        commands::ack("bin.000001", 400),
        greeting("10.11.0-MariaDB", 7, &Scramble([b'a'; 20]), true),
        b"\x04copy\x01%\xfb\xfc\x02\x00ab".to_vec(),
    ];
    Target::new("command", DIR, seeds, &test).run();
}

#[test]
fn statements() {
    let library =
        Arc::new(Library::open_read_only(&std::env::temp_dir(), "lockstep-no-such-binlog").unwrap());
    let settings = Settings::default();
    let test = |input: &[u8]| {
        let mut session = Session::new(1);
        let from = Sources { settings: &settings, library: &library, with_tls: true, consumers: &Vec::new };
        let answer = session.query(input, &from);
        if let Ok(Answer::Rows(rows)) = &answer {
            assert!(rows.rows.iter().all(|row| row.len() == rows.columns.len()));
            rows.to_payloads();
        }
        let text = String::from_utf8_lossy(input);
        let (name, pattern) = text.split_at(text.char_indices().nth(5).map_or(0, |(at, _)| at));
        like(name, pattern);
        let state = text.parse::<ReplicaState>();
        if let Ok(state) = &state {
            assert_eq!(state.to_string().parse(), Ok(state.clone()));
        }
        outcome(&(recognise(input), answer.is_ok(), state.is_ok(), Accounts::parse(&text).is_ok()))
    };
    let seeds = [
        "SELECT UNIX_TIMESTAMP()",
        "SET @slave_connect_state='0-1-5,1-2-3', @a := `b`",
        "SHOW GLOBAL VARIABLES WHERE Variable_name LIKE 'binlog\\_%';",
        "/* c */ SELECT @@session.sql_mode AS mode, binlog_gtid_pos('bin.000001', 4) LIMIT 1",
        "1-2-3, 0-1-2",
    ];
    let mut target = Target::new("statement", DIR, seeds.map(|sql| sql.as_bytes().to_vec()).to_vec(), &test);
    target.text = true;
    target.run();
}

#[test]
fn chunks() {
    let place = Place { file: FileName::parse("mariadb-bin.000007").unwrap(), offset: 4 };
    let chunk = Chunk {
        generation: 0,
        origin: Origin::default(),
        at: place,
        after: Some((6, 900)),
        unlogged: Vec::new(),
        data: b"events"[..].into(),
    };
    let unlogged = vec![Gtid { domain: 1, server: 10, seqno: 3 }];
    let later = Chunk { generation: 3, origin: Origin::new(5), unlogged, ..chunk.clone() };
    let test = |input: &[u8]| {
        let decoded = Chunk::decode(&bytes::Bytes::copy_from_slice(input));
        if let Ok(chunk) = &decoded {
            assert_eq!(&chunk.encode()[..], input);
        }
        outcome(&decoded)
    };
    Target::new("chunk", DIR, vec![chunk.encode().to_vec(), later.encode().to_vec()], &test).run();
}

#[test]
fn events_of_a_primary() {
    let test = |input: &[u8]| {
        let mut follower = Follower::of_file(FileName::parse("bin.000001").unwrap());
        let mut scan = SuccessorScan::new(
            StreamState::from_list(&[Gtid { domain: 1, server: 10, seqno: 3 }]),
            ReplicaState::default(),
        );
        let (mut rest, mut steps) = (input, Vec::new());
        while let Ok(header) = Header::parse(rest) {
            let Some((event, after)) = rest.split_at_checked(header.length as usize) else { break };
            let (taken, passed) = (follower.take(event), scan.pass(event));
            steps.push((taken.is_ok(), passed.is_ok()));
            if taken.is_err() && passed.is_err() {
                break;
            }
            rest = after;
        }
        let copied: usize = follower.chunks().iter().map(|chunk| chunk.data.len()).sum();
        assert!(copied <= input.len());
        outcome(&(steps, copied))
    };
    let file = file();
    let mut target = Target::new("primary", DIR, vec![file[MAGIC.len()..].to_vec()], &test);
    target.repair = Some(&|events| {
        let mut file = [&MAGIC, &events[..]].concat();
        repair_file(&mut file);
        events.copy_from_slice(&file[MAGIC.len()..]);
    });
    target.memory = (4 << 20, 256);
    target.run();
}

/// Makes the sum in the last line of a description right again.
fn repair_sum(text: &mut [u8]) {
    let Some(body) = text.len().checked_sub(13) else { return };
    if text[body..].starts_with(b"sum ") {
        let sum = format!("{:08x}", crc32fast::hash(&text[..body]));
        text[body + 4..body + 12].copy_from_slice(sum.as_bytes());
    }
}

#[test]
fn descriptions_of_archives() {
    let test = |input: &[u8]| {
        assert!(input.len() as u64 <= MANIFEST_MAX);
        let (head, manifest) = (Head::decode(input), Manifest::decode(input));
        if let Ok(head) = &head {
            assert_eq!(Head::decode(&head.encode()).as_ref(), Ok(head));
            assert!(!head.files.contains('/'));
        }
        if let Ok(manifest) = &manifest {
            assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(manifest));
            let length: u64 = manifest.parts.iter().map(|part| part.end - part.begin).sum();
            assert_eq!(length, manifest.end(), "no gap");
            assert!(manifest.parts.iter().all(|part| !part.key("bin.000001")[11..].contains('/')));
        }
        outcome(&(head, manifest))
    };
    let part =
        |begin, end, groups| Part { begin, end, digest: "ab".repeat(32), groups, index: "0f".repeat(32) };
    let mark = |seqno, clock| Mark { seqno, clock };
    let gtid = crate::Gtid { domain: 1, server: 5, seqno: 8 };
    let manifest = Manifest {
        file: 11,
        before: crate::StreamState::from_list(&[gtid]),
        resume: mark(10, 90),
        complete: mark(30, 200),
        next: Some(12),
        parts: vec![
            part(0, 500, Some((9, mark(12, 100)))),
            part(500, 900, None),
            part(900, 1000, Some((20, mark(29, 150)))),
        ],
    };
    let history = lockstep_core::Uuid([9; 16]);
    let head = Head { files: "lockstep-bin".into(), history, domain: 1, server: 5 };
    let mut target = Target::new("archive", DIR, vec![head.encode(), manifest.encode()], &test);
    target.repair = Some(&|text| repair_sum(text));
    target.text = true;
    target.run();
}

#[test]
fn packets_of_a_primary() {
    let samples = vec![b"\0\xef\x01event".to_vec(), b"\xff\xd4\x04#HY000no such file".to_vec()];
    let test = |input: &[u8]| {
        let parsed =
            [true, false].map(|semi_sync| crate::wire::source::parse(input.to_vec(), semi_sync).is_ok());
        outcome(&parsed)
    };
    Target::new("packet-of-primary", DIR, samples, &test).run();
}

#[test]
fn indexes_of_archives() {
    let test = |input: &[u8]| {
        let groups = decode_index(input);
        if let Ok(groups) = &groups {
            assert!(groups.windows(2).all(|pair| {
                let [a, b] = pair else { return false };
                a.seqno < b.seqno && a.begin < b.begin && a.clock <= b.clock
            }));
            assert_eq!(decode_index(&encode_index(groups)).as_ref(), Ok(groups));
        }
        outcome(&groups)
    };
    let groups = [
        (5, 300, 1_900_000_000_000_000),
        (6, 900, 1_900_000_000_000_000),
        (900, 70_000, 1_900_000_001_000_000),
    ];
    let groups = groups.map(|(seqno, begin, clock)| Indexed { seqno, begin, clock });
    let mut target = Target::new("index", DIR, vec![encode_index(&groups), encode_index(&[])], &test);
    target.repair = Some(&|index| {
        if let Some((body, crc)) = index.split_last_chunk_mut::<4>() {
            crc.copy_from_slice(&crc32fast::hash(body).to_le_bytes());
        }
    });
    target.run();
}
