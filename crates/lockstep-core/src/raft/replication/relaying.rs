//! Replication through relays: entries for several members of a zone go to one of them.

use super::progress::Progress;
use super::round::Round;
use crate::message::{Carried, Message};
use crate::raft::local::Local;
use crate::types::*;

/// A relay recipient.
pub(super) type Recipient<'a> = (MemberId, &'a mut Progress);

/// A relay recipient may have this many times the relay's bytes in flight, because its answer takes one hop more.
const RECIPIENT_WINDOW: usize = 3;

/// The most bytes of entries in one message to a relay, unless one entry is larger. A relay forwards only whole messages.
pub(super) const RELAYED_AT_ONCE: usize = 128 << 10;

/// The normal delay of a relay's answer beyond a round trip. The relay's share is what it forwards in this time.
pub(super) fn moment(local: &Local) -> Micros {
    (local.config().heartbeat * 3 / 2).min(local.config().election_timeout / 4)
}

/// Sends a recipient the entries that it lacks before `next`, the relay's next index. They go directly, and may overtake
/// entries that come through the relay. `window`: the most bytes in flight; `most`: the most in one message.
pub(super) fn send_below(
    round: &mut Round<'_>,
    id: MemberId,
    peer: &mut Progress,
    next: Index,
    (window, most): (usize, usize),
) {
    let (local, log) = (round.local(), round.local().log());
    while peer.next() < next && peer.window_open(window) {
        let prev_index = peer.next() - 1;
        let (entries, bytes) = log.slice(peer.next(), next - 1, most);
        let (Some(last), Some(prev_term)) = (entries.last(), log.term_at(prev_index)) else {
            return;
        };
        peer.sent_as_recipient(local, last.index, bytes);
        let (commit, persisted) = (local.commit(), local.acknowledged());
        let carried = Carried { prev_index, prev_term, commit, persisted, entries };
        round.send(id, Message::Relayed { term: local.term(), carried });
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
    let share = relay.relay_share(local.config().max_inflight_bytes);
    // A large entry fills the relay's window, although it is the only one.
    let window = RECIPIENT_WINDOW * share.max(relay.bytes_in_flight() + bytes);
    let mut to = Vec::new();
    for (id, recipient) in recipients {
        let fits = recipient.next() > prev_index && recipient.next() <= last;
        if fits && recipient.window_open(window) {
            recipient.sent_as_recipient(local, last, bytes);
            to.push(*id);
        }
    }
    to
}
