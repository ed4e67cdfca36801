//! Fuzzes the inputs of a port (handshakes, frames, TLS, status requests) and the addresses that people write.

use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_fuzz::{Random, Target, outcome};

use crate::addr::{Address, ClusterAddress};
use crate::error::Reason;
use crate::proto::{ConnEvent, Connection, ProtoConfig, Role};
use crate::status::{HEAD_MAX, Parser, Progress};
use crate::tls::Session;

const DIR: &str = env!("CARGO_MANIFEST_DIR");
const HELLO: usize = 24;
const FRAME: usize = 12;

/// All that a connection has to write.
fn drain(conn: &mut Connection) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 8];
        let n = conn.slices(&mut slices);
        let taken: Vec<u8> = slices[..n].iter().flat_map(|s| s.iter().copied()).collect();
        if taken.is_empty() {
            return out;
        }
        conn.written(taken.len());
        out.extend_from_slice(&taken);
    }
}

fn connection(role: Role, now: Instant) -> Connection {
    let cfg = ProtoConfig { max_frame: 1 << 20, ..ProtoConfig::new("bank") };
    Connection::new(Arc::new(cfg), role, Bytes::from_static(b"a blob"), now).unwrap()
}

/// The bytes that `role` sends in a valid conversation.
fn conversation(role: Role) -> Vec<u8> {
    let now = Instant::now();
    let mut sides = [connection(Role::Dialer, now), connection(Role::Dialed, now)];
    let me = usize::from(role == Role::Dialed);
    let mut said = Vec::new();
    for round in 0..6 {
        for at in 0..2 {
            if round == 2 {
                sides[at].accept(now);
            }
            if round == 4 {
                sides[at].send(3, &[Bytes::from_static(b"a frame of some bytes")]).unwrap();
                sides[at].tick(now + Duration::from_secs(2));
            }
            if round == 5 && at == me {
                sides[at].close(Reason::Shutdown, "bye", now);
            }
            let bytes = drain(&mut sides[at]);
            if at == me {
                said.extend_from_slice(&bytes);
            }
            feed(&mut sides[1 - at], &bytes, now);
        }
    }
    assert!(sides[1 - me].is_dead(), "the goodbye has arrived");
    said
}

fn feed(conn: &mut Connection, mut bytes: &[u8], now: Instant) {
    while !bytes.is_empty() && conn.wants_read() {
        let room = conn.room();
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
        conn.arrived(n, now);
        bytes = &bytes[n..];
    }
}

/// The checksums of the hello and of the frames behind it: docs/format-wire.md.
fn repair(input: &mut [u8]) {
    if input.len() < HELLO {
        return;
    }
    let u32_at = |b: &[u8], at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]) as usize;
    let mut at = HELLO.saturating_add(u32_at(input, 16));
    if let Some(hello) = input.get(..at) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&hello[..20]), &hello[HELLO..]);
        input[20..24].copy_from_slice(&crc.to_le_bytes());
    }
    while at.saturating_add(FRAME) <= input.len() {
        let seed = crc32c::crc32c(&input[at..at + 6]);
        let check = (seed >> 16) as u16 ^ seed as u16;
        input[at + 6..at + 8].copy_from_slice(&check.to_le_bytes());
        let end = at.saturating_add(FRAME).saturating_add(u32_at(input, at));
        if let Some(payload) = input.get(at + FRAME..end) {
            let crc = crc32c::crc32c_append(seed, payload);
            input[at + 8..at + 12].copy_from_slice(&crc.to_le_bytes());
        }
        at = end;
    }
}

/// Feeds the input in pieces whose sizes follow from it, and does what a driver and a caller do.
fn converse(role: Role, input: &[u8]) -> u64 {
    let mut now = Instant::now();
    let mut conn = connection(role, now);
    let mut random = Random::new(crc32c::crc32c(input).into());
    let (mut rest, mut shape) = (input, Vec::new());
    while !rest.is_empty() && !conn.is_dead() && conn.wants_read() {
        let room = conn.room();
        let n = (1 + random.below(200)).min(rest.len()).min(room.len());
        room[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        conn.arrived(n, now);
        while let Some(event) = conn.poll_event() {
            if let ConnEvent::Hello { .. } = event {
                match random.below(8) {
                    0 => conn.close(Reason::Duplicate, "have one", now),
                    _ => conn.accept(now),
                }
            }
            if shape.len() < 12 {
                shape.push(outcome(&event));
            }
        }
        drain(&mut conn);
        if random.below(16) == 0 {
            now += Duration::from_millis(700);
            conn.tick(now);
        }
    }
    conn.ended(now);
    while let Some(event) = conn.poll_event() {
        shape.push(outcome(&event));
        // The error is one line for the log, for any input.
        let text = match &event {
            ConnEvent::Failed(e) => e.to_string(),
            ConnEvent::Down(e) => e.to_string(),
            _ => continue,
        };
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    outcome(&shape) ^ shape.iter().fold(0, |sum: u64, n| sum.rotate_left(5) ^ n)
}

#[test]
fn repaired_checksums_equal_those_of_the_protocol() {
    for role in [Role::Dialer, Role::Dialed] {
        let mut said = conversation(role);
        let good = said.clone();
        repair(&mut said);
        assert!(said == good);
        let mut damaged = good.clone();
        damaged[21] ^= 1;
        damaged[HELLO + 40] ^= 1;
        repair(&mut damaged);
        assert!(damaged[20..24] != good[20..24] || damaged == good);
    }
}

#[test]
fn conversations() {
    for (name, role) in [("dialed", Role::Dialed), ("dialer", Role::Dialer)] {
        let other = if role == Role::Dialed { Role::Dialer } else { Role::Dialed };
        let test = |input: &[u8]| converse(role, input);
        let mut seeds = vec![conversation(other)];
        for text in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"GET / HTTP/1.0\r\n\r\n",
            b"SSH-2.0-x\r\n",
            b"\x16\x03\x01\x02\x00\x01",
            b"\x5a\0\0\0\x0a5.5.5-10.11.18-MariaDB\0\x01\0\0\0",
            b"\x24\0\0\x02\x01\x02\x03\x04\0\x01\x04\0\x07\x07",
        ] {
            seeds.push(text.to_vec());
        }
        let mut target = Target::new(name, DIR, seeds, &test);
        target.repair = Some(&repair);
        target.memory = (512 * 1024, 64);
        target.run();
    }
}

#[test]
fn status_requests() {
    let test = |input: &[u8]| {
        // In one piece and in several: the same comes of it.
        let whole = |local| Parser::new(local).push(input);
        let pieces = |local| {
            let mut parser = Parser::new(local);
            let mut random = Random::new(input.len() as u64);
            let mut rest = input;
            loop {
                let n = (1 + random.below(40)).min(rest.len());
                match parser.push(&rest[..n]) {
                    Progress::More if !rest[n..].is_empty() => rest = &rest[n..],
                    last => return last,
                }
            }
        };
        let mut shape = 0;
        for local in [false, true] {
            let one = whole(local);
            if input.len() <= HEAD_MAX {
                assert_eq!(one, pieces(local));
            }
            shape = shape * 31 + outcome(&one) % 1_000_003;
        }
        shape
    };
    let seeds = [
        &b"GET /status?pretty=1 HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n"[..],
        b"POST /command HTTP/1.0\ncontent-length: 7\n\n{\"a\":1}",
        b"HEAD /metrics HTTP/1.0\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ];
    let mut target = Target::new("status", DIR, seeds.map(<[u8]>::to_vec).into(), &test);
    target.text = true;
    target.run();
}

#[test]
fn addresses() {
    let test = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let address = Address::parse(&text, 4567);
        if let Ok(address) = &address {
            let shown = address.to_string();
            let again = Address::parse(&shown, 1).unwrap_or_else(|e| panic!("{text:?}: {shown}: {e}"));
            assert_eq!((&again.host, again.port), (&address.host, address.port), "{text:?}");
        }
        let cluster = ClusterAddress::parse(&text, 4567);
        for text in [address.as_ref().err(), cluster.as_ref().err()].into_iter().flatten() {
            assert!(!text.to_string().is_empty());
        }
        outcome(&(address.map(|a| a.host), cluster.map(|c| (c.peers.len(), c.options.len()))))
    };
    let seeds = [
        &b"gcomm://h1:4567,10.0.0.2,[::1]:5?gmcast.segment=1&pc.wait_prim=no"[..],
        b"tcp://[fe80::1%eth0]:4567",
        b"ssl://0.0.0.0:4567",
        b"db1.example.com",
    ];
    let mut target = Target::new("address", DIR, seeds.map(<[u8]>::to_vec).into(), &test);
    target.text = true;
    target.run();
}

#[test]
fn certificates() {
    let params = rcgen::CertificateParams::new(vec!["n1".into()]).unwrap();
    let cert = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let test = |input: &[u8]| outcome(&crate::tls::validity_of(input));
    let mut target = Target::new("certificate", DIR, vec![cert.der().to_vec()], &test);
    target.max_len = 4096;
    target.run();
}

/// The start of TLS, and other bytes in its place, on both sides.
#[test]
fn tls_handshakes() {
    let folder = std::env::temp_dir().join(format!("ls-net-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = crate::TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem"), ca: None };
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    std::fs::write(&files.cert, cert.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    let identity = crate::TlsIdentity::load(&files).unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    let remote: IpAddr = [127, 0, 0, 1].into();
    let now = Instant::now();
    let session = |role: Role, dynamic| match role {
        Role::Dialer => Session::dialer(&identity, remote).unwrap(),
        Role::Dialed => Session::dialed(&identity, dynamic).unwrap(),
    };
    // Everything that either side says until both have introduced themselves.
    let mut sides =
        [Role::Dialer, Role::Dialed].map(|role| (session(role, false), connection(role, now), Vec::new()));
    for _ in 0..8 {
        for at in 0..2 {
            let (tls, conn, said) = &mut sides[at];
            let mut out = Vec::new();
            while tls.wants_write(conn) && tls.write(conn, &mut out).unwrap() > 0 {}
            said.extend_from_slice(&out);
            let (tls, conn, _) = &mut sides[1 - at];
            if !out.is_empty() {
                tls.room()[..out.len()].copy_from_slice(&out);
                tls.arrived(out.len());
                assert!(tls.pump(conn, now).is_none());
            }
        }
    }
    assert!(sides.iter().all(|(_, conn, _)| conn.is_introduced()));
    let [dialer, dialed] = sides.map(|(_, _, said)| said);
    for (name, role, said) in [("tls_dialed", Role::Dialed, dialer), ("tls_dialer", Role::Dialer, dialed)] {
        let test = |input: &[u8]| {
            let mut shape = Vec::new();
            for dynamic in [false, true] {
                let mut tls = session(role, dynamic);
                let mut conn = connection(role, now);
                let mut random = Random::new(input.len() as u64);
                let (mut rest, mut out) = (input, Vec::new());
                while !rest.is_empty() {
                    let room = tls.room();
                    let n = (1 + random.below(300)).min(rest.len()).min(room.len());
                    if n == 0 {
                        break;
                    }
                    room[..n].copy_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    tls.arrived(n);
                    if let Some(plain) = tls.pump(&mut conn, now) {
                        assert!(dynamic && role == Role::Dialed);
                        feed(&mut conn, &plain, now);
                        break;
                    }
                    while tls.wants_write(&conn) && tls.write(&mut conn, &mut out).unwrap() > 0 {}
                }
                tls.ended(None, &mut conn, now);
                while let Some(event) = conn.poll_event() {
                    assert!(!matches!(event, ConnEvent::Frame { .. }));
                    shape.push(event);
                }
            }
            outcome(&shape)
        };
        let plain = conversation(if role == Role::Dialed { Role::Dialer } else { Role::Dialed });
        let mut target = Target::new(name, DIR, vec![said, plain], &test);
        target.max_len = 16 * 1024;
        target.memory = (1 << 20, 64);
        target.run();
    }
}
