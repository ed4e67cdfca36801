//! Replication through relays: entries for several members of a zone go to one of them.

use super::{Peers, Progress, Replication, Round};
use crate::message::{Carried, Message};
use crate::raft::local::Local;
use crate::types::*;

/// A relay recipient.
pub(super) type Recipient<'a> = (MemberId, &'a mut Progress);

/// A relay recipient may have this many times the relay's bytes in flight, because its answer takes one hop more.
const RECIPIENT_WINDOW: usize = 3;

/// The most bytes of entries in one message to a relay, unless one entry is larger. A relay forwards only whole messages.
const RELAYED_AT_ONCE: usize = 128 << 10;

/// The normal delay of a relay's answer beyond a round trip. The relay's share is what it forwards in this time.
pub(super) fn moment(local: &Local) -> Micros {
    (local.config().heartbeat * 3 / 2).min(local.config().election_timeout / 4)
}

impl Replication {
    /// Ends a leader's round if there are relays.
    pub(super) fn send_zones(&self, round: &mut Round<'_>, peers: &mut Peers, heartbeat: bool) {
        let all = peers.iter_mut().map(|(id, peer)| (*id, peer));
        let (mut recipients, direct): (Vec<Recipient<'_>>, Vec<Recipient<'_>>) =
            all.partition(|(_, p)| p.route.via.is_some());
        recipients.sort_by_key(|(_, peer)| peer.route.via);
        for (id, peer) in direct {
            let first = recipients.partition_point(|(_, recipient)| recipient.route.via < Some(id));
            let end = recipients.partition_point(|(_, recipient)| recipient.route.via <= Some(id));
            let own = &mut recipients[first..end];
            for (recipient_id, recipient) in own.iter_mut() {
                self.send_below(round, *recipient_id, recipient, peer.next);
            }
            self.send_to(round, id, peer, heartbeat, own);
        }
        for (id, recipient) in recipients {
            self.send_news(round, id, recipient, heartbeat);
        }
    }

    /// The most bytes in flight to a peer, and in one message.
    pub(super) fn limits(&self, local: &Local, peer: &mut Progress, relays: bool) -> (usize, usize) {
        let window = self.window(local, peer);
        let message = self.after_fruitless_terms(local.config().max_append_bytes);
        if relays { (peer.route.path.share(window), message.min(RELAYED_AT_ONCE)) } else { (window, message) }
    }

    /// Sends a recipient the entries that it lacks before `next`, the relay's next index. They go directly, and may overtake
    /// entries that come through the relay.
    fn send_below(&self, round: &mut Round<'_>, id: MemberId, peer: &mut Progress, next: Index) {
        let (window, most) = self.limits(round.local, peer, false);
        let (local, log) = (round.local, round.local.log());
        while peer.next < next && peer.window_open(window) {
            let prev_index = peer.next - 1;
            let (entries, bytes) = log.slice(peer.next, next - 1, most);
            let (Some(last), Some(prev_term)) = (entries.last(), log.term_at(prev_index)) else {
                return;
            };
            peer.sent(last.index, bytes, local.now());
            peer.note_announced(local);
            let (commit, persisted) = (local.commit(), local.acknowledged());
            let carried = Carried { prev_index, prev_term, commit, persisted, entries };
            round.out.send(id, Message::Relayed { term: local.term(), carried });
        }
    }
}

/// The relay recipients for the entries after `prev_index` up to `last`: members that were sent all earlier entries, and
/// not all of these.
pub(super) fn add_recipients(
    local: &Local,
    relay: &mut Progress,
    recipients: &mut [Recipient<'_>],
    (prev_index, last): (Index, Index),
    bytes: usize,
) -> Vec<MemberId> {
    let share = relay.route.path.share(local.config().max_inflight_bytes);
    // A large entry fills the relay's window, although it is the only one.
    let window = RECIPIENT_WINDOW * share.max(relay.bytes_in_flight() + bytes);
    let mut to = Vec::new();
    for (id, recipient) in recipients {
        let fits = recipient.next > prev_index && recipient.next <= last;
        if fits && recipient.window_open(window) {
            recipient.sent(last, bytes, local.now());
            recipient.note_announced(local);
            to.push(*id);
        }
    }
    to
}
