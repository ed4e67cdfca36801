//! Mutated input of clients: options, requests, and whole connections.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use lockstep_fuzz::{Target, outcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::runtime::Builder;

use crate::nbd::ServerConfig;
use crate::nbd::handshake::tests::{
    context_data, flags, info_data, modern, option, parse_replies, shelf, string_of,
};
use crate::nbd::handshake::{Handshake, Step, TlsMode};
use crate::nbd::memory::Memory;
use crate::nbd::request::tests::{decode, request, rules};
use crate::nbd::request::{Command, Decoder, Next};
use crate::nbd::server::{Service, serve_stream};
use crate::nbd::wire::{command, option as number};
use crate::{Description, Peer, RefusalKind};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

fn options() -> Vec<Vec<u8>> {
    vec![
        modern(),
        [flags(0), option(number::EXPORT_NAME, b"disk")].concat(),
        [flags(3), option(number::STARTTLS, b""), option(number::LIST, b"")].concat(),
        [flags(1), option(number::LIST, b""), option(number::INFO, &info_data("", &[3, 0]))].concat(),
        [
            flags(3),
            option(number::STRUCTURED_REPLY, b""),
            option(number::LIST_META_CONTEXT, &context_data("disk", &["base:", "x:"])),
            option(77, &string_of("disk")),
            option(number::ABORT, b""),
        ]
        .concat(),
    ]
}

fn requests() -> Vec<u8> {
    [
        &request(1, command::WRITE, 1, 0, 5)[..],
        b"hello",
        &request(0, command::READ, 2, 0, 9),
        &request(4, command::READ, 3, 0, 9),
        &request(0, command::TRIM, 4, 0, 4096),
        &request(0, command::WRITE_ZEROES, 5, 512, 4096),
        &request(8, command::BLOCK_STATUS, 6, 512, 4096),
        &request(0, command::CACHE, 7, 512, 4096),
        &request(0, command::FLUSH, 8, 0, 0),
        &request(0, command::DISCONNECT, 9, 0, 0),
    ]
    .concat()
}

#[test]
fn handshakes() {
    let shelf = shelf();
    let test = |input: &[u8]| {
        let mut steps = Vec::new();
        for (tls, part) in [(TlsMode::Off, 7), (TlsMode::Optional, usize::MAX), (TlsMode::Required, 100)] {
            let mut handshake = Handshake::new(tls);
            handshake.take_output();
            let (mut rest, mut received) = (input, BytesMut::new());
            let last = loop {
                match handshake.next(&mut received, &shelf) {
                    Ok(Step::Receive) if rest.is_empty() => break Ok(Step::Receive),
                    Ok(Step::Receive) => {
                        let (some, after) = rest.split_at(part.min(rest.len()));
                        received.extend_from_slice(some);
                        rest = after;
                    }
                    Ok(Step::StartTls) => assert!(received.is_empty()),
                    Ok(Step::Attach(request)) => {
                        let refusal = crate::Refusal::new(RefusalKind::Policy, "not now");
                        if !handshake.refused(&request, &refusal) {
                            break Ok(Step::Attach(request));
                        }
                    }
                    other => break other,
                }
            };
            let replies = parse_replies(&handshake.take_output());
            let kinds: Vec<_> = replies.iter().map(|(_, kind, data)| (*kind, data.is_empty())).collect();
            steps.push((last, kinds.len().min(8), kinds.last().copied()));
        }
        outcome(&steps)
    };
    Target::new("handshake", DIR, options(), &test).run();
}

#[test]
fn requests_of_a_connection() {
    let test = |input: &[u8]| {
        let whole = decode(rules(), input, usize::MAX);
        assert_eq!(decode(rules(), input, 5), whole);
        // Without admission nothing is allocated.
        let mut decoder = Decoder::new(rules(), input.into());
        while let Ok(Next::Request(..)) = decoder.next() {}
        if let Ok(requests) = &whole {
            for request in requests {
                match &request.command {
                    Command::Read { offset, length } | Command::Trim { offset, length, .. } => {
                        assert!(offset + u64::from(*length) <= 1 << 20 && *length > 0);
                    }
                    Command::Write { data, .. } => assert!(data.len() <= input.len()),
                    _ => {}
                }
            }
        }
        outcome(&whole)
    };
    let mut target = Target::new("request", DIR, vec![requests()], &test);
    // Headers may claim payloads up to the size of the export, one at a time.
    target.memory = ((1 << 20) + (256 << 10), 64);
    target.run();
}

#[test]
fn connections() {
    let device = Memory::new("disk", Description::new(1 << 20));
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let config = ServerConfig {
        max_requests: 8,
        max_connection_bytes: 1 << 20,
        handshake_timeout: Duration::from_secs(1),
        stall_timeout: Duration::from_secs(1),
        ..ServerConfig::default()
    };
    let service = Service::new(config, device.clone());
    let test = |input: &[u8]| {
        let before = (device.attached.load(Relaxed), device.detached.load(Relaxed));
        let received = runtime.block_on(async {
            let (near, far) = duplex(4096);
            let (mut read, mut write) = tokio::io::split(near);
            let server = serve_stream(&service, far, Peer::Uid(0), "fuzz".into());
            let client = async {
                // The server may have closed the connection.
                let _ = write.write_all(input).await;
                let _ = write.shutdown().await;
            };
            let reader = async {
                let (mut received, mut part) = (0, vec![0; 4096]);
                while let Ok(count @ 1..) = read.read(&mut part).await {
                    received += count;
                }
                received
            };
            tokio::join!(server, client, reader).2
        });
        assert!(device.lost.load(Relaxed) + device.detached.load(Relaxed) == device.attached.load(Relaxed));
        let attached = device.attached.load(Relaxed) - before.0;
        assert!(attached <= 1);
        // Each reply more is progress.
        let detached = device.detached.load(Relaxed) - before.1;
        (received.min(1 << 16) << 2) as u64 | attached << 1 | detached
    };
    let mut seeds = options();
    seeds.push([modern(), requests()].concat());
    seeds.push([flags(3), option(number::EXPORT_NAME, b"disk"), requests()].concat());
    let mut target = Target::new("connection", DIR, seeds, &test);
    // The bytes in flight of a connection twice, as request and as reply; and the buffers of both streams.
    target.memory = ((2 << 20) + (256 << 10), 64);
    target.run();
    // Mutations must get past the handshake.
    assert!(device.attached.load(Relaxed) > 1000);
    assert!(device.detached.load(Relaxed) > 10);
}

#[test]
fn copies_of_a_device() {
    use crate::copy::tests::{both_sides, donor_of, joiner_of};
    use crate::copy::wire::tests::{request, samples};
    use crate::copy::wire::{Message, Request, receive};

    // A frame has its checksum before the rest.
    let repair = |bytes: &mut [u8]| {
        let mut at = 0;
        while at + 8 < bytes.len() {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let end = (at + 8).saturating_add(length).min(bytes.len());
            let sum = crc32c::crc32c(&bytes[at + 8..end]).to_le_bytes();
            bytes[at + 4..at + 8].copy_from_slice(&sum);
            at = end;
        }
    };
    let message = |mut input: &[u8]| {
        let received = receive(&mut input);
        if let Ok(message) = &received {
            assert_eq!(receive(&mut &message.encode()[..]).unwrap(), *message);
        }
        outcome(&received.map(|message| format!("{message:?}")).map_err(|error| error.to_string()))
    };
    let seeds = samples().iter().map(|message: &Message| message.encode().to_vec()).collect();
    let mut target = Target::new("copy-message", DIR, seeds, &message);
    target.repair = Some(&repair);
    target.run();

    let requests = |input: &[u8]| {
        let input = bytes::Bytes::copy_from_slice(input);
        let decoded = Request::decode(&input);
        if let Ok(request) = &decoded {
            assert_eq!(request.encode(), input, "one way to write a request");
        }
        outcome(&decoded)
    };
    Target::new("copy-request", DIR, vec![request().encode().to_vec()], &requests).run();

    let [donor, joiner] = both_sides();
    let joiner_side = |input: &[u8]| outcome(&joiner_of(input));
    let mut target = Target::new("copy-joiner", DIR, vec![donor], &joiner_side);
    target.repair = Some(&repair);
    target.max_len = 128 << 10;
    // The joiner's file and its hashes, and frames.
    target.memory = (1 << 20, 64);
    target.run();
    let donor_side = |input: &[u8]| outcome(&donor_of(input));
    let mut target = Target::new("copy-donor", DIR, vec![joiner], &donor_side);
    target.repair = Some(&repair);
    target.memory = (1 << 20, 64);
    target.run();
}
