//! A server on loopback, with a tiny client.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockstep_binlog::event::{
    Checksum, EventWriter, FormatDescription, GtidEvent, GtidList, HEADER_LEN, Header, Heartbeat, Query,
    Rotate, Stamp, gtid_flag, kind, split,
};
use lockstep_binlog::library::Visibility;
use lockstep_binlog::wire::command::{Ack, DUMP_ANNOTATE, DUMP_NON_BLOCK};
use lockstep_binlog::wire::handshake::{METHOD, Scramble, proof};
use lockstep_binlog::wire::packet::{Decoder, encode};
use lockstep_binlog::wire::session::Settings;
use lockstep_binlog::wire::{Accounts, Server, ServerConfig};
use lockstep_binlog::{Gtid, StreamState, Writer};

const STAMP: Stamp = Stamp { timestamp: 7, server_id: 10 };
const DEADLINE: Duration = Duration::from_secs(60);

struct Rig {
    folder: PathBuf,
    writer: Writer,
    server: Server,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Rig {
    /// A stream 1-10-1 to 1-10-`groups`, in files of three groups.
    fn new(groups: u64) -> Rig {
        Rig::with(groups, |_| {})
    }

    fn with(groups: u64, change: impl FnOnce(&mut ServerConfig)) -> Rig {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("lockstep-session-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let mut writer = Writer::open(&folder, "bin", Visibility::Appended).unwrap();
        writer.begin(1, &format(), &StreamState::default()).unwrap();
        let settings = Settings { server_id: 10, ..Settings::default() };
        let accounts = Accounts::parse("repl secret").unwrap();
        let mut config = ServerConfig::new((Ipv4Addr::LOCALHOST, 0).into(), settings, accounts);
        config.catch_up = Duration::from_millis(200);
        change(&mut config);
        let server = Server::start(config, writer.library().clone()).unwrap();
        let mut rig = Rig { folder, writer, server };
        (1..=groups).for_each(|seqno| rig.append(seqno));
        rig
    }

    fn append(&mut self, seqno: u64) {
        if seqno % 3 == 1 && seqno > 1 {
            let (next, before) = (self.writer.end().unwrap().file + 1, self.writer.state_at_end().clone());
            self.writer.cut(next, STAMP, &format(), &before).unwrap();
        }
        let mut events = EventWriter::at(self.writer.end().unwrap().offset);
        let gtid = Gtid { domain: 1, server: 10, seqno };
        events.gtid(
            7,
            &GtidEvent { gtid, flags: gtid_flag::TRANSACTIONAL, commit_id: None, extra: vec![0; 6] },
        );
        events.event(STAMP, kind::ANNOTATE_ROWS, 0, &[b"INSERT INTO t VALUES (1)"]);
        events.xid(STAMP, seqno);
        self.writer.append(&events.finish().unwrap()).unwrap();
    }

    fn client(&self) -> Client {
        let mut client = self.connect();
        assert_eq!(client.sign_in("repl", b"secret")[0], 0);
        client
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.server.address()).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let decoder = Decoder::new(usize::MAX);
        Client { stream, decoder, sequence: 0 }
    }
}

fn format() -> FormatDescription {
    FormatDescription {
        timestamp: 5,
        server_id: 10,
        version: "10.11.0-MariaDB-lockstep".into(),
        created: 9,
        checksum: Checksum::Crc32,
    }
}

struct Client {
    stream: TcpStream,
    decoder: Decoder,
    sequence: u8,
}

impl Client {
    fn send(&mut self, payload: &[u8]) {
        let mut out = Vec::new();
        encode(&[payload], &mut self.sequence, &mut out);
        self.stream.write_all(&out).unwrap();
        self.decoder.expect(self.sequence);
    }

    fn command(&mut self, payload: &[u8]) {
        self.sequence = 0;
        self.send(payload);
    }

    /// The next payload; empty at the end of the connection.
    fn read(&mut self) -> Vec<u8> {
        let mut buffer = [0; 4096];
        loop {
            if let Some((payload, next)) = self.decoder.take().unwrap() {
                self.sequence = next;
                self.decoder.expect(next);
                return payload;
            }
            match self.stream.read(&mut buffer).unwrap() {
                0 => return Vec::new(),
                len => self.decoder.push(&buffer[..len]),
            }
        }
    }

    fn sign_in(&mut self, user: &str, password: &[u8]) -> Vec<u8> {
        let greeting = self.read();
        assert!(greeting.starts_with(b"\x0a5.5.5-10.11.0-MariaDB-lockstep\0"));
        let at = greeting.iter().position(|b| *b == 0).unwrap() + 5;
        let mut scramble = greeting[at..at + 8].to_vec();
        scramble.extend_from_slice(&greeting[at + 27..at + 39]);
        let scramble = Scramble(scramble.try_into().unwrap());
        let mut reply = 0x0008_8200u32.to_le_bytes().to_vec();
        reply.extend_from_slice(&[0, 0, 0, 1, 45]);
        reply.extend_from_slice(&[0; 23]);
        reply.extend_from_slice(user.as_bytes());
        reply.extend_from_slice(&[0, 20]);
        reply.extend_from_slice(&proof(password, &scramble));
        reply.extend_from_slice(METHOD);
        reply.push(0);
        self.send(&reply);
        self.read()
    }

    fn query(&mut self, sql: &str) -> Result<Vec<String>, String> {
        self.command(&[&[3], sql.as_bytes()].concat());
        let first = self.read();
        match first[0] {
            0 => return Ok(Vec::new()),
            0xff => return Err(error(&first)),
            _ => {}
        }
        (0..first[0]).for_each(|_| drop(self.read()));
        assert_eq!(self.read()[0], 0xfe);
        let mut values = Vec::new();
        loop {
            let row = self.read();
            if row[0] == 0xfe {
                return Ok(values);
            }
            let mut rest = row.as_slice();
            while let Some((len, after)) = rest.split_first() {
                if *len == 0xfb {
                    values.push("NULL".into());
                    rest = after;
                    continue;
                }
                let (value, after) = after.split_at(usize::from(*len));
                values.push(String::from_utf8(value.to_vec()).unwrap());
                rest = after;
            }
        }
    }

    fn set(&mut self, sql: &str) {
        assert_eq!(self.query(sql), Ok(Vec::new()), "{sql}");
    }

    /// What a replica of 10.11 sets before its request.
    fn as_replica(&mut self, state: &str) {
        self.set("SET @master_heartbeat_period= 50000000");
        self.set("SET @master_binlog_checksum= @@global.binlog_checksum");
        self.set("SET @mariadb_slave_capability=4");
        self.set(&format!("SET @slave_connect_state='{state}'"));
    }

    fn dump(&mut self, file: &str, offset: u32, flags: u16, server_id: u32) {
        let mut out = vec![18];
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&server_id.to_le_bytes());
        out.extend_from_slice(file.as_bytes());
        self.command(&out);
    }

    /// Events up to the end of the stream.
    fn events(&mut self) -> Vec<Vec<u8>> {
        let mut events = Vec::new();
        loop {
            let payload = self.read();
            match payload.first() {
                Some(0) => events.push(payload[1..].to_vec()),
                Some(0xfe) if payload.len() == 5 => return events,
                _ => panic!("{} after {} events", error(&payload), events.len()),
            }
        }
    }
}

fn error(payload: &[u8]) -> String {
    match payload {
        [0xff, a, b, b'#', text @ ..] => {
            format!("{} {}", u16::from_le_bytes([*a, *b]), String::from_utf8_lossy(&text[5..]))
        }
        other => panic!("no error: {other:02x?}"),
    }
}

fn kinds(events: &[Vec<u8>]) -> Vec<u8> {
    events.iter().map(|event| event[4]).collect()
}

#[test]
fn wrong_password_is_refused() {
    let rig = Rig::new(0);
    let refusal = rig.connect().sign_in("repl", b"wrong");
    assert_eq!(error(&refusal), "1045 Access denied for user 'repl' (using password: YES)");
    let refusal = rig.connect().sign_in("nobody", b"secret");
    assert!(error(&refusal).starts_with("1045"));
}

#[test]
fn statements_of_replica_and_tools_are_answered() {
    let rig = Rig::new(4);
    let mut client = rig.client();
    assert_eq!(client.query("SHOW VARIABLES LIKE 'SERVER_ID'").unwrap(), ["server_id", "10"]);
    assert_eq!(client.query("select @@server_id").unwrap(), ["10"]);
    client.set("SET @master_binlog_checksum= @@global.binlog_checksum");
    assert_eq!(client.query("SELECT @master_binlog_checksum").unwrap(), ["CRC32"]);
    assert_eq!(client.query("SELECT @@GLOBAL.gtid_domain_id").unwrap(), ["1"]);
    assert_eq!(client.query("SELECT VERSION()").unwrap(), ["10.11.0-MariaDB-lockstep"]);
    assert_eq!(client.query("SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'").unwrap()[1], "ON");
    assert_eq!(client.query("SELECT binlog_gtid_pos('bin.000002',4)").unwrap(), ["1-10-3"]);
    assert_eq!(client.query("SELECT binlog_gtid_pos('bin.000002',5)").unwrap(), ["NULL"]);
    assert!(client.query("SELECT UNIX_TIMESTAMP()").unwrap()[0].parse::<u64>().unwrap() > 1_700_000_000);
    let status = client.query("SHOW MASTER STATUS").unwrap();
    assert_eq!(status[..2], ["bin.000002".to_owned(), rig.writer.end().unwrap().offset.to_string()]);
    assert_eq!(client.query("SHOW BINARY LOGS").unwrap().len(), 4);
    assert_eq!(client.query("SHOW SLAVE HOSTS").unwrap(), Vec::<String>::new());
    let refused = client.query("SELECT * FROM mysql.user").unwrap_err();
    assert!(refused.starts_with("1235 ") && refused.ends_with("SELECT * FROM mysql.user"), "{refused}");
    assert!(client.query("SELECT @@no_such").unwrap_err().starts_with("1193"));
    assert!(client.query("SET @slave_connect_state='nonsense'").unwrap_err().contains("is no GTID"));
    client.command(&[9]);
    assert_eq!(error(&client.read()), "1047 Unknown command");
    client.command(&[14]);
    assert_eq!(client.read()[0], 0);
}

#[test]
fn gtid_replica_receives_artificial_events_then_the_stream() {
    let rig = Rig::new(4);
    let mut client = rig.client();
    client.as_replica("1-10-1");
    client.dump("", 4, DUMP_NON_BLOCK | DUMP_ANNOTATE, 9);
    let events = client.events();
    let group = [kind::GTID, kind::ANNOTATE_ROWS, kind::XID];
    let file = [kind::ROTATE, kind::FORMAT_DESCRIPTION, kind::GTID_LIST];
    let expected = [&file[..], &group, &group, &[kind::ROTATE], &file, &group].concat();
    assert_eq!(kinds(&events), expected);
    events.iter().for_each(|event| assert!(split(event, Checksum::Crc32).is_ok()));
    let rotate = Rotate::parse(&events[0], Checksum::Crc32).unwrap();
    let begin = Header::parse(&events[3]).unwrap();
    assert_eq!(rotate.position, u64::from(begin.end_pos - begin.length));
    assert_eq!(rotate.file, "bin.000001");
    // Within a file: no position, no time of the server's start.
    assert_eq!(Header::parse(&events[1]).unwrap().end_pos, 0);
    assert_eq!(FormatDescription::parse(&events[1]).unwrap().created, 0);
    assert_eq!(GtidList::parse(&events[2], Checksum::Crc32).unwrap().gtids[0].seqno, 1);
    assert_eq!(FormatDescription::parse(&events[11]).unwrap().created, 9);
}

#[test]
fn file_and_position_give_the_files_bytes() {
    let rig = Rig::new(7);
    let mut client = rig.client();
    client.set("SET @master_binlog_checksum='NONE'");
    client.set("SET @mariadb_slave_capability=4");
    client.dump("bin.000001", 4, DUMP_NON_BLOCK | DUMP_ANNOTATE, 0);
    let mut files: Vec<Vec<u8>> = Vec::new();
    for event in client.events() {
        let header = Header::parse(&event).unwrap();
        if header.kind == kind::ROTATE && header.timestamp == 0 {
            files.push(b"\xfebin".to_vec());
        } else {
            files.last_mut().unwrap().extend(event);
        }
    }
    for (at, bytes) in files.iter().enumerate() {
        let path = rig.folder.join(format!("bin.{:06}", at + 1));
        assert!(*bytes == std::fs::read(path).unwrap(), "file {}", at + 1);
    }
    assert_eq!(files.len(), 3);
}

#[test]
fn consumer_without_checksums_gets_shorter_events() {
    let rig = Rig::new(1);
    let mut client = rig.client();
    client.set("SET @mariadb_slave_capability=4");
    client.dump("bin.000001", 4, DUMP_NON_BLOCK, 0);
    let events = client.events();
    assert_eq!(
        kinds(&events),
        [kind::ROTATE, kind::FORMAT_DESCRIPTION, kind::GTID_LIST, kind::GTID, kind::XID]
    );
    assert_eq!(FormatDescription::parse(&events[1]).unwrap().checksum, Checksum::None);
    assert_eq!(events[4].len(), HEADER_LEN + 8);
    events.iter().for_each(|event| assert!(split(event, Checksum::None).is_ok()));
    assert_eq!(u64::from(Header::parse(&events[4]).unwrap().end_pos), rig.writer.end().unwrap().offset);
}

#[test]
fn consumer_without_gtids_gets_begin_and_dummies() {
    let rig = Rig::new(1);
    let mut client = rig.client();
    client.set("SET @master_binlog_checksum='CRC32'");
    client.dump("bin.000001", 4, DUMP_NON_BLOCK, 0);
    let events = client.events();
    // Gtid_list and Annotate_rows became statements or variables without effect; lengths are the same.
    let expected =
        [kind::ROTATE, kind::FORMAT_DESCRIPTION, kind::USER_VAR, kind::QUERY, kind::QUERY, kind::XID];
    assert_eq!(kinds(&events), expected);
    assert_eq!(Query::parse(&events[3], Checksum::Crc32).unwrap().sql, b"BEGIN");
    let bytes: usize = events[1..].iter().map(Vec::len).sum();
    assert_eq!(bytes as u64 + 4, rig.writer.end().unwrap().offset);
}

#[test]
fn until_ends_the_stream_with_a_marked_list() {
    let rig = Rig::new(7);
    let mut client = rig.client();
    client.as_replica("");
    client.set("SET @slave_until_gtid='1-10-5'");
    client.dump("", 4, 0, 9);
    let events = client.events();
    let gtids = events.iter().filter(|event| event[4] == kind::GTID);
    assert_eq!(gtids.count(), 5);
    assert_eq!(GtidList::parse(events.last().unwrap(), Checksum::Crc32).unwrap().flags, 1);
}

#[test]
fn impossible_starts_are_fatal_errors_that_name_both_sides() {
    let rig = Rig::new(3);
    for (state, expected) in [
        ("1-10-4", "1236 the replica is at GTID 1-10-4, but this stream ends at 1-10-3"),
        (
            "0-9-4",
            "1236 the replica is at GTID 0-9-4, but this stream is at 1-10-3 and has none of those domains",
        ),
    ] {
        let mut client = rig.client();
        client.as_replica(state);
        client.dump("", 4, 0, 9);
        assert_eq!(error(&client.read()), expected);
        assert!(client.read().is_empty(), "the connection ends");
    }
    let mut client = rig.client();
    client.dump("bin.000009", 4, 0, 9);
    assert!(error(&client.read()).starts_with("1236 the consumer asks for file 'bin.000009'"));
    let mut client = rig.client();
    client.dump("bin.000001", 5, 0, 9);
    assert!(error(&client.read()).contains("no event begins there"));
}

#[test]
fn replica_by_position_is_refused_after_another_primary() {
    let rig = Rig::new(3);
    rig.writer.library().continue_another(&[]);
    let mut client = rig.client();
    client.dump("bin.000001", 4, 0, 9);
    let refused = error(&client.read());
    assert!(refused.starts_with("1236 ") && refused.contains("MASTER_USE_GTID=slave_pos"), "{refused}");
    // A tool that reads files, and a replica that knows GTIDs.
    let mut client = rig.client();
    client.dump("bin.000001", 4, DUMP_NON_BLOCK, 0);
    assert!(client.events().len() > 5);
    let mut client = rig.client();
    client.as_replica("1-10-2");
    client.dump("", 4, DUMP_NON_BLOCK, 9);
    assert_eq!(client.events().iter().filter(|event| event[4] == kind::GTID).count(), 1);
}

#[test]
fn replica_ahead_of_the_stream_waits_for_it() {
    let mut rig = Rig::with(1, |config| config.catch_up = DEADLINE);
    let mut client = rig.client();
    client.as_replica("1-10-2");
    client.dump("", 4, 0, 9);
    std::thread::sleep(Duration::from_millis(50));
    (2..=3).for_each(|seqno| rig.append(seqno));
    let first = (0..4).map(|_| client.read()).last().unwrap();
    assert_eq!(GtidEvent::parse(&first[1..], Checksum::Crc32).unwrap().gtid.seqno, 3);
}

#[test]
fn replica_ahead_of_lagging_stream_gets_retryable_error() {
    let rig = Rig::with(3, |config| config.catch_up = Duration::from_millis(50));
    rig.writer.library().set_behind(true);
    let refusal = || {
        let mut client = rig.client();
        client.as_replica("1-10-4");
        client.dump("", 4, 0, 9);
        error(&client.read())
    };
    let refused = refusal();
    assert!(refused.starts_with("1105 ") && refused.contains("ends at 1-10-3"), "{refused}");
    let mut client = rig.client();
    client.dump("bin.000002", 4, 0, 9);
    assert!(error(&client.read()).starts_with("1105 "));
    rig.writer.library().set_behind(false);
    assert!(refusal().starts_with("1236 "));
}

#[test]
fn idle_replica_gets_heartbeats_and_then_new_events() {
    let mut rig = Rig::new(1);
    let mut client = rig.client();
    client.as_replica("1-10-1");
    client.dump("", 4, 0, 9);
    let mut next = || client.read()[1..].to_vec();
    let start = Instant::now();
    let heartbeat = loop {
        let event = next();
        if event[4] == kind::HEARTBEAT {
            break Heartbeat::parse(&event, Checksum::Crc32).unwrap();
        }
    };
    assert!(start.elapsed() >= Duration::from_millis(45));
    assert_eq!(u64::from(heartbeat.position), rig.writer.end().unwrap().offset);
    assert_eq!(heartbeat.file, "bin.000001");
    rig.append(2);
    let gtid = loop {
        let event = next();
        if event[4] != kind::HEARTBEAT {
            break GtidEvent::parse(&event, Checksum::Crc32).unwrap();
        }
    };
    assert_eq!(gtid.gtid.seqno, 2);
}

#[test]
fn semi_sync_acknowledgement_appears_in_status() {
    let mut rig = Rig::new(1);
    let mut client = rig.client();
    client.as_replica("1-10-1");
    client.set("SET @master_heartbeat_period=0");
    client.set("SET @rpl_semi_sync_slave= 1");
    client.dump("", 4, DUMP_ANNOTATE, 9);
    (0..3).for_each(|_| assert_eq!(client.read()[..3], [0, 0xef, 0]));
    rig.append(2);
    assert_eq!(client.read()[..3], [0, 0xef, 0]);
    assert_eq!(client.read()[..3], [0, 0xef, 0]);
    assert_eq!(client.read()[..3], [0, 0xef, 1], "the last event of the group asks for an acknowledgement");
    let offset = rig.writer.end().unwrap().offset;
    client.command(&[&[0xef], offset.to_le_bytes().as_slice(), b"bin.000001"].concat());
    let deadline = Instant::now() + DEADLINE;
    let stream = loop {
        let stream = rig.server.consumers()[0].stream.clone().unwrap();
        if stream.acked.is_some() || Instant::now() > deadline {
            break stream;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(stream.acked, Some(Ack { offset, file: "bin.000001".into() }));
    assert_eq!((stream.server_id, stream.behind, stream.semi_sync), (9, 0, true));
    assert_eq!(stream.gtids.to_string(), "1-10-2");
    rig.append(3);
    client.decoder.expect(1);
    assert_eq!(client.read()[3 + 4], kind::GTID, "numbers begin anew after the acknowledgement");
}

#[test]
fn replica_with_the_streams_server_id_is_refused() {
    let rig = Rig::new(0);
    let mut client = rig.client();
    let register = |id: u32| [&[21], id.to_le_bytes().as_slice(), &[0, 0, 0, 0xea, 0x0c], &[0; 8]].concat();
    client.command(&register(10));
    assert!(error(&client.read()).contains("server id 10"));
    client.command(&register(9));
    assert_eq!(client.read()[0], 0);
    assert_eq!(client.query("SHOW SLAVE HOSTS").unwrap(), ["9", "127.0.0.1", "3306", "10"]);
}

#[test]
fn second_stream_of_a_replica_replaces_the_first() {
    let rig = Rig::new(1);
    let mut first = rig.client();
    first.as_replica("");
    first.dump("", 4, 0, 9);
    assert!(!first.read().is_empty());
    let mut second = rig.client();
    second.as_replica("");
    second.dump("", 4, 0, 9);
    assert!(!second.read().is_empty());
    while !first.read().is_empty() {}
    let start = Instant::now();
    while rig.server.consumers().iter().filter(|consumer| consumer.stream.is_some()).count() > 1 {
        assert!(start.elapsed() < DEADLINE, "the first stream goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn slow_consumer_delays_nobody_and_is_dropped_by_its_timeout() {
    let mut rig = Rig::with(1, |config| config.write_timeout = Duration::from_millis(300));
    let mut slow = rig.client();
    slow.as_replica("1-10-1");
    slow.dump("", 4, DUMP_ANNOTATE, 9);
    // More than the buffers of both sockets hold.
    for seqno in 2..=40 {
        let mut events = EventWriter::at(rig.writer.end().unwrap().offset);
        let gtid = Gtid { domain: 1, server: 10, seqno };
        events.gtid(7, &GtidEvent { gtid, flags: 0, commit_id: None, extra: vec![0; 6] });
        events.event(STAMP, kind::WRITE_ROWS_V1, 0, &[&vec![b'x'; 1 << 20]]);
        events.xid(STAMP, seqno);
        rig.writer.append(&events.finish().unwrap()).unwrap();
    }
    let mut other = rig.client();
    other.as_replica("1-10-1");
    other.dump("", 4, DUMP_NON_BLOCK, 8);
    assert_eq!(other.events().iter().filter(|event| event[4] == kind::XID).count(), 39);
    let deadline = Instant::now() + DEADLINE;
    while rig
        .server
        .consumers()
        .iter()
        .any(|consumer| consumer.stream.as_ref().is_some_and(|s| s.server_id == 9))
    {
        assert!(Instant::now() < deadline, "the slow consumer is still connected");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn connections_beyond_the_limit_are_refused() {
    let rig = Rig::with(0, |config| config.max_connections = 2);
    let _held = (rig.client(), rig.client());
    assert_eq!(error(&rig.connect().read()), "1040 Too many connections");
}

#[test]
fn garbage_and_closed_connections_end_their_thread_only() {
    let rig = Rig::new(0);
    let mut garbage = rig.connect();
    garbage.read();
    garbage.stream.write_all(&[0xff; 100]).unwrap();
    assert!(garbage.read().is_empty());
    drop(rig.connect());
    let mut wrong = rig.client();
    wrong.stream.write_all(&[1, 0, 0, 7, 14]).unwrap();
    wrong.decoder.expect(0);
    let _ = wrong.stream.read(&mut [0; 64]);
    rig.client().set("SET NAMES utf8mb4");
}

#[test]
fn stop_ends_waiting_streams_at_once() {
    let mut rig = Rig::new(1);
    let mut client = rig.client();
    client.set("SET @mariadb_slave_capability=4");
    client.dump("bin.000001", 4, 0, 9);
    (0..5).for_each(|_| assert!(!client.read().is_empty()));
    let start = Instant::now();
    rig.server.stop();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(client.read().is_empty());
    assert!(rig.server.consumers().is_empty());
}
