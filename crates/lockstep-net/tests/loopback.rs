//! Reactors talking over real sockets on ephemeral ports.

mod common;

use common::{Node, numeric, until};
use lockstep_net::{Bytes, ConnId, Event};

fn up(e: &Event) -> Option<ConnId> {
    match e {
        Event::PeerUp { conn, .. } => Some(*conn),
        _ => None,
    }
}

fn ready(e: &Event) -> Option<ConnId> {
    match e {
        Event::Ready { conn } => Some(*conn),
        _ => None,
    }
}

/// Connects `a` to `b`; the connection as each of them knows it.
fn connect(a: &mut Node, b: &mut Node) -> (ConnId, ConnId) {
    let addr = b.listen();
    a.reactor.keep(&numeric(addr));
    let (mut at_a, mut at_b) = (None, None);
    until(&mut [a, b], "both ready", |n| {
        for (node, at) in n.iter_mut().zip([&mut at_a, &mut at_b]) {
            if let Some(conn) = node.take(up) {
                node.reactor.accept(conn);
            }
            *at = at.or(node.take(ready));
        }
        at_a.zip(at_b)
    })
}

#[test]
fn frames_of_all_sizes_arrive_in_order() {
    let (mut a, mut b) = (Node::new("c", "alpha"), Node::new("c", "beta"));
    let (ca, _) = connect(&mut a, &mut b);
    let big = Bytes::from((0..20_000_000u32).map(|i| (i * 7) as u8).collect::<Vec<u8>>());
    let sizes = [0usize, 1, 11, 12, 13, 4096, 70_000, 1, 20_000_000, 5, 262_144, 3];
    for (i, &size) in sizes.iter().enumerate() {
        let half = size / 2;
        a.reactor.send(ca, i as u8, &[big.slice(..half), big.slice(half..size)]).unwrap();
    }
    a.reactor.flush();
    let mut got = 0;
    until(&mut [&mut a, &mut b], "all frames", |n| {
        while let Some((kind, payload)) = n[1].take(|e| match e {
            Event::Frame { kind, payload, .. } => Some((*kind, payload.clone())),
            _ => None,
        }) {
            assert_eq!(usize::from(kind), got);
            assert!(payload == big.slice(..sizes[got]), "frame {got}");
            got += 1;
        }
        (got == sizes.len()).then_some(())
    });
    assert!(a.reactor.stats(ca).unwrap().rtt.is_some());
}
