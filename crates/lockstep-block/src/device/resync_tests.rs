//! A copy from another member, while the log goes on.

use super::super::file::Position;
use super::super::resync::{Source, Wholeness};
use super::*;
use crate::copy::pace::Pace;
use crate::copy::receiver::greet;
use crate::copy::wire::Token;
use crate::copy::{CopyError, Progress};
use lockstep_core::Gtid;
use std::os::unix::net::UnixStream;
use std::time::Instant;

const TOKEN: Token = Token([1; 32]);

type Received = (Result<(Gtid, Progress), CopyError>, Result<Gtid, CopyError>);

/// A member that waits for a state: it takes no entries.
fn join(group: &mut Group, at: usize) {
    group.start(at);
    group.members[at].as_mut().unwrap().next = usize::MAX;
    group.replica(at).needs_state();
}

/// Copies from one member to another, on threads. `rate`: bytes a second.
fn copy(
    group: &Group,
    from: usize,
    to: usize,
    source: Source,
    rate: u64,
) -> std::thread::JoinHandle<Received> {
    let (donor, joiner) = (group.replica(from), group.replica(to));
    std::thread::spawn(move || {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let sender = std::thread::spawn(move || {
            let pace = Pace::new(rate, Instant::now());
            donor.send_copy(&mut near, source, TOKEN, ("n1", "n2"), pace)
        });
        let received =
            greet(&mut far, "disk", &TOKEN).and_then(|hello| joiner.receive_copy(&mut far, &hello));
        drop(far);
        (sender.join().unwrap(), received)
    })
}

fn begin_from(group: &mut Group, at: usize, gtid: Gtid) {
    // As the node does.
    group.replica(at).log().finished(gtid.seqno);
    group.members[at].as_mut().unwrap().next = gtid.seqno as usize + 1;
}

fn saved(group: &Group, at: usize) -> Position {
    Position::decode(&std::fs::read(group.member_dir(at).join("device.state")).unwrap()).unwrap()
}

#[test]
fn new_member_is_whole_after_a_copy_under_writes() {
    let mut group = Group::new("resync", 2);
    group.stop(1);
    std::fs::remove_dir_all(group.member_dir(1)).unwrap();
    let client = group.attach(0, "disk").unwrap();
    for at in 0..8 {
        group.write(&client, at * 100_000, at as u8 + 1, 50_000);
    }
    group.flush(&client);
    join(&mut group, 1);
    let source = group.replica(0).source().unwrap();
    // All of it counts, and is compared: half a second.
    let copied = copy(&group, 0, 1, source, 1 << 20);
    let mut writes = 0;
    while !copied.is_finished() {
        group.write(&client, (writes * 37_123) % (SIZE - 5000), writes as u8, 5000);
        group.flush(&client);
        writes += 1;
    }
    assert!(writes > 2, "{writes}");
    let (sent, received) = copied.join().unwrap();
    let gtid = received.unwrap();
    let sent = sent.unwrap();
    assert_eq!((sent.0, sent.1.done), (gtid, SIZE));
    begin_from(&mut group, 1, gtid);
    let images = group.images();
    assert!(images.len() == 2 && images[0] == images[1]);
    assert_eq!(group.replica(1).status().wholeness, Wholeness::Whole);
    assert!(saved(&group, 1).whole);
    group.detach(client);
    let client = group.attach(1, "disk").unwrap();
    assert_eq!(group.read(&client, 0, 4096), images[0][..4096]);
}

#[test]
fn copy_is_not_whole_before_the_donors_last_seqno() {
    let mut group = Group::new("until", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 200_000);
    group.flush(&client);
    group.stop(1);
    group.write(&client, 100_000, 2, 4096);
    group.flush(&client);
    join(&mut group, 1);
    let source = group.replica(0).source().unwrap();
    group.write(&client, 300_000, 3, 200_000);
    group.flush(&client);
    let until = group.replica(0).status().delivered;
    let (sent, received) = copy(&group, 0, 1, source, 0).join().unwrap();
    let gtid = received.unwrap();
    assert!(gtid.seqno < until);
    assert!(sent.unwrap().1.sent <= 5 * 65_536 + 2 * 65_536, "only what differs is sent");
    let refused = |group: &mut Group| {
        let attached = group.attach(1, "disk").err().unwrap();
        assert!(attached.contains("not whole"), "{attached}");
        assert!(group.promote(1, true).unwrap_err().contains("not whole"));
        assert!(matches!(group.replica(1).source(), Err(CopyError::Refused(_))));
    };
    assert_eq!(group.replica(1).status().wholeness, Wholeness::Until(until));
    refused(&mut group);
    // A crash now loses the copy's position, and not its content.
    let position = saved(&group, 1);
    assert!(!position.whole && position.gtid == gtid);
    group.stop(1);
    join(&mut group, 1);
    assert_eq!(group.replica(1).status().wholeness, Wholeness::Needed);
    refused(&mut group);
    let source = group.replica(0).source().unwrap();
    let (sent, received) = copy(&group, 0, 1, source, 0).join().unwrap();
    begin_from(&mut group, 1, received.unwrap());
    assert!(sent.unwrap().1.sent <= 5 * 65_536, "the rest was there");
    let images = group.images();
    assert!(images[0] == images[1]);
    assert_eq!(group.replica(1).status().wholeness, Wholeness::Whole);
}

#[test]
fn copy_that_breaks_leaves_a_copy_that_is_not_whole() {
    let mut group = Group::new("breaks", 2);
    let client = group.attach(0, "disk").unwrap();
    group.write(&client, 0, 1, 900_000);
    group.flush(&client);
    group.stop(1);
    group.write(&client, 0, 2, 900_000);
    group.flush(&client);
    join(&mut group, 1);
    let source = group.replica(0).source().unwrap();
    let (donor, joiner) = (group.replica(0), group.replica(1));
    let (mut near, mut far) = UnixStream::pair().unwrap();
    let end = near.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        // About half of it.
        let pace = Pace::new(1 << 20, Instant::now());
        donor.send_copy(&mut near, source, TOKEN, ("n1", "n2"), pace).map(drop)
    });
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(400));
        end.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let received = greet(&mut far, "disk", &TOKEN).and_then(|hello| joiner.receive_copy(&mut far, &hello));
    assert!(received.is_err() && sender.join().unwrap().is_err());
    killer.join().unwrap();
    drop(joiner);
    assert_eq!(group.replica(1).status().wholeness, Wholeness::Needed);
    assert!(group.replica(0).status().donation.is_none());
    assert!(!saved(&group, 1).whole);
    let source = group.replica(0).source().unwrap();
    let (_, received) = copy(&group, 0, 1, source, 0).join().unwrap();
    begin_from(&mut group, 1, received.unwrap());
    let images = group.images();
    assert!(images[0] == images[1]);
}

#[test]
fn copy_that_needs_none_refuses_a_donor() {
    let mut group = Group::new("refuses", 2);
    while group.step() {}
    let source = group.replica(0).source().unwrap();
    let (sent, received) = copy(&group, 0, 1, source, 0).join().unwrap();
    assert!(matches!(&sent, Err(CopyError::Refused(text)) if text.contains("needs no other")), "{sent:?}");
    assert!(received.is_err());
    assert_eq!(group.replica(1).status().wholeness, Wholeness::Whole);
    assert!(saved(&group, 1).whole);
}

#[test]
fn joiner_whose_file_system_is_too_small_keeps_its_copy() {
    let mut group = Group::new("small-joiner", 2);
    while group.step() {}
    group.images();
    group.stop(1);
    let before = saved(&group, 1);
    let replica = group.replica(0);
    assert_eq!(group.run(async move { replica.resize(2 * SIZE).await }), Ok(()));
    group.largest = SIZE;
    join(&mut group, 1);
    let source = group.replica(0).source().unwrap();
    let (_, received) = copy(&group, 0, 1, source, 0).join().unwrap();
    let Err(CopyError::Device(error)) = received else { panic!("{received:?}") };
    assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
    assert_eq!(saved(&group, 1), before);
}
