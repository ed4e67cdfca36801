//! Mutated input of peers and people: introductions, messages between nodes, provider options.

use bytes::Bytes;
use lockstep_core::raft::Durable;
use lockstep_core::{Gtid, Uuid};
use lockstep_fuzz::{Target, outcome};

use crate::api::LocalState;
use crate::options::Options;
use crate::pack::{Packed, Packer, unpack};
use crate::wire::{Evidence, FRAME_RAFT, Health, Hello, NodeMessage, Sighting};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn hellos() {
    let hello = Hello {
        id: Uuid([1; 16]),
        incarnation: 7 << 20,
        view_uuid: Uuid([2; 16]),
        history: Uuid([3; 16]),
        log_id: Uuid([4; 16]),
        parents: Vec::new(),
        forks: Vec::new(),
        last_index: 99,
        name: "n1".into(),
        address: "10.0.0.1:4567".into(),
        incoming: "10.0.0.1:3306".into(),
        zone: 1,
        wants_vote: true,
        arbitrator: false,
        donates: true,
        device: false,
    };
    let test = |input: &[u8]| {
        let decoded = Hello::from_bytes(Bytes::copy_from_slice(input));
        if let Ok(hello) = &decoded {
            // A later version's further fields are left out, an older one's are filled in.
            assert_eq!(Hello::from_bytes(hello.to_bytes()).as_ref(), Ok(hello));
            assert!(!hello.name.contains('\n') && hello.name.len() < 256);
        }
        outcome(&decoded)
    };
    let bytes = hello.to_bytes().to_vec();
    let old = bytes[..bytes.len() - 16].to_vec();
    let parents = vec![(Uuid([5; 16]), Uuid([6; 16]))];
    let stateless = Hello { donates: false, ..hello.clone() };
    let branched = Hello { parents, forks: vec![(7, 8)], ..hello };
    let stateless_branched = Hello { donates: false, ..branched.clone() };
    let further = [stateless, branched, stateless_branched].map(|hello| hello.to_bytes().to_vec());
    Target::new("hello", DIR, [bytes, old].into_iter().chain(further).collect(), &test).run();
}

#[test]
fn node_messages() {
    let id = Uuid([7; 16]);
    let health = Health {
        state: LocalState::Donor,
        finished: 5,
        lowest_seen: 4,
        delivered: 9,
        leaving: true,
        has_state: false,
        held_back: false,
    };
    let durable = Durable { term: 3, last_term: 2, last_index: 9 };
    let request = Bytes::from_static(b"rsync\0tcp://x:4444");
    let messages = [
        NodeMessage::Health(health),
        NodeMessage::Health(Health { held_back: true, ..health }),
        NodeMessage::WritesRejected,
        NodeMessage::Evidence(Evidence {
            sighting: Sighting { view_uuid: id, incarnation: 3 << 20, durable },
            reporter: durable,
            only_two_vote: true,
            goes_on: false,
        }),
        NodeMessage::Peers(vec!["a:1".into(), "[::1]:2".into()]),
        NodeMessage::StateRequest {
            donor: "n1,".into(),
            at_least: 3,
            position: -1,
            request: request.clone(),
        },
        NodeMessage::Donate { joiner: id, at_least: 3, position: 7, request },
        NodeMessage::Donated { code: -110, gtid: Gtid { uuid: id, seqno: 4 }, text: "no donor".into() },
    ];
    let test = |input: &[u8]| {
        let decoded = NodeMessage::from_bytes(Bytes::copy_from_slice(input));
        if let Ok(message) = &decoded {
            assert_eq!(message.to_bytes()[..], *input);
        }
        outcome(&decoded)
    };
    Target::new("node_message", DIR, messages.iter().map(|m| m.to_bytes().to_vec()).collect(), &test).run();
}

#[test]
fn compressed_frames() {
    let plain: Vec<u8> =
        (0..60u32).flat_map(|n| [b"UPDATE t SET k = ".as_slice(), &n.to_le_bytes()].concat()).collect();
    let packed =
        |plain: &[u8]| Packer::default().pack(FRAME_RAFT, &[Bytes::copy_from_slice(plain)]).unwrap().to_vec();
    let test = |input: &[u8]| {
        let unpacked = unpack(input, &mut Packed::default());
        if let Ok((kind, plain)) = &unpacked
            && let Some(again) = Packer::default().pack(*kind, std::slice::from_ref(plain))
        {
            assert_eq!(unpack(&again, &mut Packed::default()).unwrap().1, plain);
        }
        unpacked.map_or(0, |(_, plain)| 1 + plain.len() as u64 / 64)
    };
    let mut target = Target::new("compressed_frame", DIR, vec![packed(&plain), packed(&[7; 3000])], &test);
    // The meaning of a byte, and its encoding.
    target.memory = (1 << 20, 1024);
    target.run();
}

#[test]
fn provider_options() {
    let test = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        match Options::parse(&text) {
            Ok(options) => {
                // The shown form is accepted, and shown the same again.
                let shown = options.get_all();
                let again = Options::parse(&shown).unwrap_or_else(|e| panic!("{shown}: {e}"));
                assert_eq!(again.get_all(), shown);
                let _ = (options.tls(), options.tuning(), options.listen(), options.notes());
                1
            }
            Err(error) => outcome(&error),
        }
    };
    let all = Options::default().get_all().into_bytes();
    let some =
        b"gcache.size=2G; evs.suspect_timeout = PT5S;socket.ssl_key=/k;socket.ssl_cert=/c\\;d; pc.weight=0"
            .to_vec();
    let times = b"net.heartbeat=100ms;cluster.election_timeout=1.5s;log.keep_min=P0DT0H10M;repl.max_ws_size=2147483647".to_vec();
    let mut target = Target::new("options", DIR, vec![all, some, times], &test);
    target.text = true;
    target.run();
}
