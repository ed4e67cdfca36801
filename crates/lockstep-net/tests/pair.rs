//! Two connections joined by buffers in memory, with a clock of their own: no socket, no sleep.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_net::proto::{ConnEvent, Connection, ProtoConfig, Role, VERSIONS};
use lockstep_net::{Bytes, DialError, DownReason, ProtoError, Reason, SendError};
use proptest::prelude::*;

struct Side {
    conn: Connection,
    /// Bytes written that the other side has not received.
    wire: VecDeque<u8>,
    events: Vec<ConnEvent>,
}

impl Side {
    fn new(cfg: &Arc<ProtoConfig>, role: Role, hello: &'static str, now: Instant) -> Side {
        let hello = Bytes::from_static(hello.as_bytes());
        let conn = Connection::new(cfg.clone(), role, hello, now).unwrap();
        Side { conn, wire: VecDeque::new(), events: Vec::new() }
    }

    fn write_out(&mut self) {
        while self.conn.wants_write() {
            let mut slices = [IoSlice::new(&[]); 3];
            let n = self.conn.slices(&mut slices);
            let bytes: Vec<u8> = slices[..n].iter().flat_map(|s| s.iter().copied()).collect();
            self.conn.written(bytes.len());
            self.wire.extend(bytes);
        }
    }

    /// Receives up to `n` bytes; how many it took.
    fn receive(&mut self, from: &mut VecDeque<u8>, n: usize, now: Instant) -> usize {
        let mut left = n.min(from.len());
        let mut taken = 0;
        while left > 0 && self.conn.wants_read() {
            let room = self.conn.room();
            let k = room.len().min(left);
            assert!(k > 0, "no room offered");
            for (slot, byte) in room[..k].iter_mut().zip(from.drain(..k)) {
                *slot = byte;
            }
            self.conn.arrived(k, now);
            left -= k;
            taken += k;
        }
        self.collect();
        taken
    }

    fn collect(&mut self) {
        while let Some(event) = self.conn.poll_event() {
            self.events.push(event);
        }
    }

    fn frames(&self) -> Vec<(u8, Bytes)> {
        self.events
            .iter()
            .filter_map(|e| match e {
                ConnEvent::Frame { kind, payload } => Some((*kind, payload.clone())),
                _ => None,
            })
            .collect()
    }

    fn last(&self) -> &ConnEvent {
        self.events.last().expect("no event")
    }
}

struct Pair {
    a: Side,
    b: Side,
    now: Instant,
}

impl Pair {
    fn new() -> Pair {
        let cfg = Arc::new(ProtoConfig::new("bank"));
        Pair::with(&cfg, &cfg)
    }

    fn with(a: &Arc<ProtoConfig>, b: &Arc<ProtoConfig>) -> Pair {
        let now = Instant::now();
        Pair { a: Side::new(a, Role::Dialer, "alpha", now), b: Side::new(b, Role::Dialed, "beta", now), now }
    }

    /// Everything that was written arrives, `chunk` bytes at a time, until nothing moves.
    fn settle(&mut self, chunk: usize) {
        loop {
            self.a.write_out();
            self.b.write_out();
            let moved = self.b.receive(&mut self.a.wire, chunk, self.now)
                + self.a.receive(&mut self.b.wire, chunk, self.now);
            self.a.collect();
            self.b.collect();
            if moved == 0 && !self.a.conn.wants_write() && !self.b.conn.wants_write() {
                return;
            }
        }
    }

    fn open(chunk: usize) -> Pair {
        let mut pair = Pair::new();
        pair.settle(chunk);
        pair.a.conn.accept(pair.now);
        pair.b.conn.accept(pair.now);
        pair.settle(chunk);
        assert!(pair.a.conn.is_open() && pair.b.conn.is_open());
        pair
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.a.conn.tick(self.now);
        self.b.conn.tick(self.now);
        self.a.collect();
        self.b.collect();
    }
}

const MS: Duration = Duration::from_millis(1);

#[test]
fn handshake_tells_each_who_the_other_is() {
    let mut pair = Pair::open(7);
    let hello =
        |blob: &'static [u8]| ConnEvent::Hello { version: VERSIONS.1, blob: Bytes::from_static(blob) };
    assert_eq!(pair.a.events, [hello(b"beta"), ConnEvent::Ready]);
    assert_eq!(pair.b.events, [hello(b"alpha"), ConnEvent::Ready]);
    pair.a.conn.send(200, &[Bytes::from_static(b"to"), Bytes::from_static(b"gether")]).unwrap();
    pair.settle(3);
    assert_eq!(pair.b.frames(), [(200, Bytes::from_static(b"together"))]);
}

#[test]
fn stranger_receives_no_bytes() {
    let mut pair = Pair::new();
    pair.b.write_out();
    assert!(pair.b.wire.is_empty());
    let mut junk: VecDeque<u8> = b"GET / HTTP/1.1\r\n\r\n".iter().copied().collect();
    pair.b.receive(&mut junk, 100, pair.now);
    pair.b.write_out();
    assert!(pair.b.wire.is_empty() && pair.b.conn.is_dead());
    assert_eq!(pair.b.events, [ConnEvent::Failed(DialError::NotLockstep("an HTTP client".into()))]);
}

#[test]
fn another_cluster_is_refused_and_both_know_why() {
    let (ours, theirs) = (Arc::new(ProtoConfig::new("bank")), Arc::new(ProtoConfig::new("shop")));
    let mut pair = Pair::with(&ours, &theirs);
    pair.settle(1000);
    let wrong = |ours: &str, theirs: &str| {
        ConnEvent::Failed(DialError::WrongCluster { ours: ours.into(), theirs: theirs.into() })
    };
    assert_eq!(pair.a.events, [wrong("bank", "shop")]);
    assert_eq!(pair.b.events, [wrong("shop", "bank")]);
    assert!(pair.a.conn.wants_shutdown() && pair.b.conn.wants_shutdown());
    pair.pass(1001 * MS);
    assert!(pair.a.conn.is_dead() && pair.b.conn.is_dead());
}

#[test]
fn versions_are_agreed_or_refused() {
    let cfg = |versions| Arc::new(ProtoConfig { versions, ..ProtoConfig::new("bank") });
    let mut pair = Pair::with(&cfg((1, 4)), &cfg((3, 7)));
    pair.settle(1000);
    assert!(matches!(pair.a.last(), ConnEvent::Hello { version: 4, .. }));
    assert!(matches!(pair.b.last(), ConnEvent::Hello { version: 4, .. }));

    let mut pair = Pair::with(&cfg((1, 2)), &cfg((3, 7)));
    pair.settle(1000);
    assert_eq!(pair.a.events, [ConnEvent::Failed(DialError::Version { ours: (1, 2), theirs: (3, 7) })]);
    assert_eq!(pair.b.events, [ConnEvent::Failed(DialError::Version { ours: (3, 7), theirs: (1, 2) })]);
}

#[test]
fn rejection_arrives_with_its_reason() {
    let mut pair = Pair::new();
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    // Frames sent before the verdict are void.
    pair.a.conn.send(1, &[Bytes::from_static(b"hope")]).unwrap();
    pair.b.conn.close(Reason::NotAllowed, "a member 'n1' is here already", pair.now);
    pair.settle(1000);
    let text = "a member 'n1' is here already".to_owned();
    assert_eq!(*pair.a.last(), ConnEvent::Down(DownReason::Rejected(Reason::NotAllowed, text)));
    assert!(pair.a.conn.is_dead());
    assert_eq!(pair.b.events.len(), 1, "no event follows the caller's own verdict");
    assert_eq!(pair.a.conn.send(1, &[]), Err(SendError::NotConnected));
}

#[test]
fn goodbye_comes_behind_everything_sent_before() {
    let mut pair = Pair::open(1000);
    pair.a.conn.send(1, &[Bytes::from(vec![1; 100_000])]).unwrap();
    pair.a.conn.close(Reason::Shutdown, "server is stopping", pair.now);
    pair.settle(500);
    assert_eq!(pair.b.frames().len(), 1);
    let down = DownReason::Goodbye(Reason::Shutdown, "server is stopping".into());
    assert_eq!(*pair.b.last(), ConnEvent::Down(down));
}

#[test]
fn bytes_wait_for_the_decision_and_are_bounded() {
    let mut pair = Pair::new();
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    for _ in 0..100 {
        // a has not received b's verdict. b buffers a's frames and reads no more than it must.
        pair.a.conn.send(1, &[Bytes::from(vec![7; 4000])]).unwrap();
    }
    pair.settle(1000);
    assert!(!pair.b.conn.wants_read());
    assert!(pair.a.wire.len() > 300_000, "all but 64 KiB stays in the network");
    pair.b.conn.accept(pair.now);
    pair.b.collect();
    pair.settle(1000);
    assert_eq!(pair.b.frames().len(), 100);
}

#[test]
fn end_of_stream_comes_after_bytes_awaiting_the_verdict() {
    let mut pair = Pair::new();
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    pair.a.conn.send(1, &[Bytes::from_static(b"last words")]).unwrap();
    pair.settle(1000);
    pair.b.conn.ended(pair.now);
    pair.b.collect();
    assert_eq!(pair.b.events.len(), 1, "only the hello so far: {:?}", pair.b.events);
    pair.b.conn.accept(pair.now);
    pair.b.collect();
    assert_eq!(pair.b.frames().len(), 1);
    assert_eq!(*pair.b.last(), ConnEvent::Down(DownReason::Closed));
}

#[test]
fn silence_is_noticed_at_each_stage() {
    // Nothing said at all.
    let mut pair = Pair::new();
    pair.pass(2999 * MS);
    assert!(pair.a.events.is_empty());
    assert_eq!(pair.a.conn.next_timeout(), Some(pair.now + MS));
    pair.pass(MS);
    assert_eq!(pair.a.events, [ConnEvent::Failed(DialError::NoHello)]);
    // One byte at a time does not prolong it.
    let mut pair = Pair::new();
    pair.a.write_out();
    for _ in 0..30 {
        pair.b.receive(&mut pair.a.wire, 1, pair.now);
        pair.pass(100 * MS);
    }
    assert!(matches!(pair.b.last(), ConnEvent::Failed(DialError::NotLockstep(_))), "{:?}", pair.b.events);
    // No verdict.
    let mut pair = Pair::new();
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    pair.pass(3000 * MS);
    assert_eq!(*pair.a.last(), ConnEvent::Down(DownReason::HandshakeTimeout));
    // Silence when all was well.
    let mut pair = Pair::open(1000);
    pair.pass(9999 * MS);
    assert_eq!(*pair.a.last(), ConnEvent::Ready);
    pair.pass(MS);
    assert_eq!(*pair.a.last(), ConnEvent::Down(DownReason::Silent));
}

#[test]
fn pings_keep_an_idle_connection_and_measure_it() {
    let mut pair = Pair::open(1000);
    for _ in 0..200 {
        pair.pass(1000 * MS);
        pair.a.write_out();
        pair.b.write_out();
        // 20 ms there, 10 ms back.
        pair.now += 20 * MS;
        pair.b.receive(&mut pair.a.wire, usize::MAX, pair.now);
        pair.a.receive(&mut pair.b.wire, usize::MAX, pair.now);
        pair.b.write_out();
        pair.now += 10 * MS;
        pair.a.receive(&mut pair.b.wire, usize::MAX, pair.now);
    }
    assert!(pair.a.conn.is_open() && pair.b.conn.is_open());
    let rtt = pair.a.conn.rtt().unwrap();
    assert!(rtt >= 29 * MS && rtt <= 31 * MS, "{rtt:?}");
    let least = pair.a.conn.rtt_min().unwrap();
    assert!(least >= 29 * MS && least <= 31 * MS, "{least:?}");
}

#[test]
fn round_trip_begun_during_peer_start_is_not_measured() {
    let mut pair = Pair::new();
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    pair.b.conn.accept(pair.now);
    pair.a.write_out();
    pair.b.write_out();
    pair.b.receive(&mut pair.a.wire, usize::MAX, pair.now);
    pair.a.receive(&mut pair.b.wire, usize::MAX, pair.now);
    assert!(pair.a.conn.is_open() && pair.b.conn.is_open());
    // The first ping is answered by a peer that was busy starting, the ones that follow at once.
    pair.a.write_out();
    pair.now += 2000 * MS;
    pair.b.receive(&mut pair.a.wire, usize::MAX, pair.now);
    pair.b.write_out();
    pair.a.receive(&mut pair.b.wire, usize::MAX, pair.now);
    assert_eq!((pair.a.conn.rtt(), pair.a.conn.rtt_min()), (None, None));
    // The second leaves with the first one's answer, not a second later.
    pair.a.write_out();
    pair.now += 10 * MS;
    pair.b.receive(&mut pair.a.wire, usize::MAX, pair.now);
    pair.b.write_out();
    pair.a.receive(&mut pair.b.wire, usize::MAX, pair.now);
    assert_eq!((pair.a.conn.rtt(), pair.a.conn.rtt_min()), (Some(10 * MS), Some(10 * MS)));
}

#[test]
fn too_much_is_refused_by_the_sender_and_by_the_receiver() {
    let small = Arc::new(ProtoConfig { max_frame: 1000, ..ProtoConfig::new("bank") });
    let big = Arc::new(ProtoConfig { send_queue_max: 5000, ..ProtoConfig::new("bank") });
    let mut pair = Pair::with(&big, &small);
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    pair.b.conn.accept(pair.now);
    pair.settle(1000);
    let kib = Bytes::from(vec![0; 1001]);
    assert_eq!(
        pair.a.conn.send(1, std::slice::from_ref(&kib)),
        Err(SendError::TooLong { len: 1001, max: 1000 })
    );
    for _ in 0..4 {
        pair.a.conn.send(1, &[kib.slice(1..)]).unwrap();
    }
    assert_eq!(pair.a.conn.send(1, &[kib.slice(1..)]), Err(SendError::Overflow));
    pair.a.collect();
    assert_eq!(*pair.a.last(), ConnEvent::Down(DownReason::Overflow));
    assert!(!pair.a.conn.wants_write());

    // A peer that claims to have a limit and does not keep to it.
    let mut pair = Pair::open(1000);
    pair.a.write_out();
    pair.a.wire.extend(frame_header(3, 0x7fff_ffff));
    pair.settle(1000);
    let too_long = ProtoError::TooLong { len: 0x7fff_ffff, max: 64 << 20 };
    assert_eq!(*pair.b.last(), ConnEvent::Down(DownReason::Proto(too_long)));
}

#[test]
fn ping_flood_without_reading_is_dropped() {
    let cfg = Arc::new(ProtoConfig { send_queue_max: 10_000, ..ProtoConfig::new("bank") });
    let mut pair = Pair::with(&cfg, &cfg);
    pair.settle(1000);
    pair.a.conn.accept(pair.now);
    pair.b.conn.accept(pair.now);
    pair.settle(1000);
    let mut ping = vec![8, 0, 0, 0, 3, 1];
    let seed = crc32c::crc32c(&ping);
    ping.extend(((seed >> 16) as u16 ^ seed as u16).to_le_bytes());
    ping.extend(crc32c::crc32c_append(seed, &[9; 8]).to_le_bytes());
    ping.extend([9; 8]);
    let mut flood: VecDeque<u8> = ping.repeat(10_000).into();
    while pair.b.conn.wants_read() && !flood.is_empty() {
        pair.b.receive(&mut flood, 1000, pair.now);
        assert!(pair.b.conn.queued() < 20_000);
    }
    assert_eq!(*pair.b.last(), ConnEvent::Down(DownReason::Overflow));
}

/// A valid header, with a checksum of a payload that will not come.
fn frame_header(kind: u8, len: u32) -> Vec<u8> {
    let mut out = len.to_le_bytes().to_vec();
    out.extend([kind, 0]);
    let seed = crc32c::crc32c(&out);
    out.extend(((seed >> 16) as u16 ^ seed as u16).to_le_bytes());
    out.extend([0; 4]);
    out
}

fn frames() -> impl Strategy<Value = Vec<(u8, Vec<Vec<u8>>)>> {
    let size = prop_oneof![0..40usize, 900..1200usize, 10_000..40_000usize];
    let part =
        (any::<u8>(), size).prop_map(|(b, n)| (0..n).map(|i| b.wrapping_add((i % 251) as u8)).collect());
    prop::collection::vec((any::<u8>(), prop::collection::vec(part, 0..4)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_pieces_the_frames_are_the_same(
        frames in frames(),
        chunks in prop::collection::vec(1..20_000usize, 1..20),
        handshake in 1..200usize,
    ) {
        let mut pair = Pair::open(handshake);
        let mut expected = Vec::new();
        for (kind, parts) in &frames {
            let parts: Vec<Bytes> = parts.iter().map(|p| Bytes::from(p.clone())).collect();
            pair.a.conn.send(*kind, &parts).unwrap();
            expected.push((*kind, Bytes::from(parts.concat())));
        }
        pair.a.write_out();
        for chunk in chunks.iter().cycle() {
            if pair.a.wire.is_empty() {
                break;
            }
            pair.b.receive(&mut pair.a.wire, *chunk, pair.now);
        }
        prop_assert!(pair.b.frames() == expected);
        prop_assert!(pair.b.conn.is_open());
    }

    #[test]
    fn a_damaged_byte_never_becomes_a_frame(
        frames in frames(),
        at in any::<prop::sample::Index>(),
        xor in 1..=255u8,
        chunk in 1..20_000usize,
    ) {
        let mut pair = Pair::open(1000);
        let mut expected = Vec::new();
        for (kind, parts) in &frames {
            let parts: Vec<Bytes> = parts.iter().map(|p| Bytes::from(p.clone())).collect();
            pair.a.conn.send(*kind, &parts).unwrap();
            expected.push((*kind, Bytes::from(parts.concat())));
        }
        pair.a.write_out();
        let at = at.index(pair.a.wire.len());
        pair.a.wire[at] ^= xor;
        while !pair.a.wire.is_empty() && pair.b.conn.wants_read() {
            pair.b.receive(&mut pair.a.wire, chunk, pair.now);
        }
        let got = pair.b.frames();
        prop_assert!(got.len() < expected.len() && got[..] == expected[..got.len()]);
        // Noticed at once, not after as many bytes as a damaged length claims.
        let noticed = matches!(
            pair.b.last(),
            ConnEvent::Down(DownReason::Proto(ProtoError::BadHeader | ProtoError::BadChecksum))
        );
        prop_assert!(noticed, "{:?}", pair.b.last());
    }

    #[test]
    fn a_damaged_handshake_never_introduces_anybody(at in any::<prop::sample::Index>(), xor in 1..=255u8) {
        let mut pair = Pair::new();
        pair.a.write_out();
        let at = at.index(pair.a.wire.len());
        pair.a.wire[at] ^= xor;
        pair.b.receive(&mut pair.a.wire, usize::MAX, pair.now);
        pair.pass(3000 * MS);
        prop_assert!(matches!(&pair.b.events[..], [ConnEvent::Failed(_)]), "{:?}", pair.b.events);
    }

    #[test]
    fn random_bytes_do_no_harm(
        junk in prop::collection::vec(any::<u8>(), 0..2000),
        stage in 0..3usize,
        role in any::<bool>(),
        chunk in 1..300usize,
    ) {
        let mut pair = match stage {
            0 => Pair::new(),
            _ => Pair::open(1000),
        };
        let mut junk: VecDeque<u8> = junk.into();
        if stage == 2 {
            // Behind the start of a true frame.
            let mut front: VecDeque<u8> = frame_header(1, 64 << 20).into();
            front.append(&mut junk);
            junk = front;
        }
        let (now, side) = (pair.now, if role { &mut pair.a } else { &mut pair.b });
        while !junk.is_empty() && side.conn.wants_read() {
            prop_assert!(side.conn.room().len() <= 1 << 20, "room for what was only claimed");
            side.receive(&mut junk, chunk, now);
        }
        side.conn.ended(now);
        side.collect();
        prop_assert!(side.frames().is_empty());
        prop_assert!(side.conn.is_dead());
        let ends = side.events.iter().filter(|e| matches!(e, ConnEvent::Failed(_) | ConnEvent::Down(_))).count();
        prop_assert_eq!(ends, 1);
    }
}
