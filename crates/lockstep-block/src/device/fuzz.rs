//! Mutated input of the log and of the disk.

use super::attachments::Attachments;
use super::entry::{Entry, tests::samples};
use super::file::Position;
use bytes::Bytes;
use lockstep_core::{Gtid, Uuid};
use lockstep_fuzz::{Target, outcome};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn device_entries() {
    let samples = samples().iter().map(|entry| entry.encode().to_vec()).collect();
    let test = |input: &[u8]| {
        let decoded = Entry::decode(&Bytes::copy_from_slice(input));
        if let Ok(entry) = &decoded {
            assert_eq!(&entry.encode()[..], input, "one way to write an entry");
            Attachments::default().take(&Uuid([1; 16]), entry);
        }
        outcome(&decoded)
    };
    Target::new("device-entry", DIR, samples, &test).run();
}

#[test]
fn device_positions() {
    let sample = Position {
        log: lockstep_core::Uuid([8; 16]),
        gtid: Gtid { uuid: Uuid([3; 16]), seqno: 9 },
        attachments: Attachments::default(),
        whole: true,
    };
    let test = |input: &[u8]| {
        let decoded = Position::decode(input);
        if let Ok(position) = &decoded {
            assert_eq!(position.encode(), input);
        }
        outcome(&decoded)
    };
    let mut target = Target::new("device-position", DIR, vec![sample.encode()], &test);
    target.repair = Some(&|bytes| {
        let at = bytes.len().saturating_sub(4);
        let sum = crc32c::crc32c(&bytes[..at]).to_le_bytes();
        let length = bytes.len();
        bytes[at..].copy_from_slice(&sum[..length - at]);
    });
    target.run();
}
