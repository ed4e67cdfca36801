//! How entries reach a peer: from the leader, or through a relay of its zone.

use super::path::Path;
use crate::raft::inflight::Sent;
use crate::types::*;

/// See the module. A peer is a relay, a relay recipient, or neither.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// The peer's zone; `None` for a removed member. Set in each round in which relays are chosen.
    zone: Option<u8>,
    /// Its relay.
    via: Option<MemberId>,
    /// For a relay: since when it has received nothing although messages are in flight.
    stuck_since: Option<Micros>,
    /// For a recipient: the relay's received index when it was last ahead of this peer, and the time.
    lags: Option<(Index, Micros)>,
    /// For a relay: more entries wait than may be in flight.
    limited: bool,
    path: Path,
    /// Excluded from relaying until this time, and for how long.
    excluded: (Micros, Micros),
}

/// Zone and relay.
impl Route {
    /// The peer's zone, as of the last choice of relays; `None` for a removed member.
    pub(super) fn zone(&self) -> Option<u8> {
        self.zone
    }

    pub(super) fn set_zone(&mut self, zone: Option<u8>) {
        self.zone = zone;
    }

    /// The peer's relay; `None`: its entries come from the leader.
    pub(super) fn relay(&self) -> Option<MemberId> {
        self.via
    }

    /// The peer becomes a recipient of this relay.
    pub(super) fn begin_receiving(&mut self, relay: MemberId) {
        (self.via, self.lags) = (Some(relay), None);
    }

    /// The peer gets its entries from the leader. Whether it was a recipient.
    pub(super) fn end_receiving(&mut self) -> bool {
        self.via.take().is_some()
    }

    /// The peer begins to relay. `before`: see [`Path::begin`].
    pub(super) fn begin_relaying(&mut self, before: Option<usize>) {
        self.path.begin(before);
    }
}

/// Measurements.
impl Route {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A round trip took `took`.
    pub(super) fn measured(&mut self, took: Micros) {
        self.path.measured(took);
    }

    /// The peer has confirmed messages: see [`Path::confirmed`].
    pub(super) fn confirmed(&mut self, sent: (Sent, Sent), bytes: usize, now: Micros, moment: Micros) {
        // Entries sent through a relay are no measure of its own path.
        if self.via.is_none() {
            self.path.confirmed(sent, bytes, now, moment);
        }
    }

    /// The most bytes in flight while the peer relays; at most `most`.
    pub(super) fn share(&mut self, most: usize) -> usize {
        self.path.share(most)
    }

    /// As a relay, the peer took `rate` bytes a second while more entries waited.
    pub(super) fn note_rate(&mut self, rate: u64, now: Micros) {
        self.path.set_rate(rate, now);
    }

    /// Whether more entries wait for this relay than may be in flight.
    pub(super) fn is_limited(&self) -> bool {
        self.limited
    }

    pub(super) fn set_limited(&mut self, limited: bool) {
        self.limited = limited;
    }
}

/// Failures.
impl Route {
    /// The peer has received more than before.
    pub(super) fn advanced(&mut self) {
        self.stuck_since = None;
    }

    /// Since when this relay has received nothing; `now` if nothing is in flight.
    pub(super) fn track_stuck(&mut self, awaits_answers: bool, now: Micros) -> Micros {
        self.stuck_since = awaits_answers.then(|| self.stuck_since.unwrap_or(now));
        self.stuck_since.unwrap_or(now)
    }

    /// Returns how long this recipient has waited for the entries that its relay had received. The recipient has received
    /// everything up to `received`, the relay up to `relay_received` by now.
    pub(super) fn track_wait(&mut self, relay_received: Index, received: Index, now: Micros) -> Micros {
        self.stuck_since = None;
        let lags = self.lags.filter(|(had, _)| received < *had);
        self.lags = (received < relay_received).then(|| lags.unwrap_or((relay_received, now)));
        self.lags.map_or(0, |(_, since)| now - since)
    }

    /// Whether the peer is excluded from relaying.
    pub(super) fn is_excluded(&self, now: Micros) -> bool {
        now < self.excluded.0
    }

    /// For how long the peer was last excluded from relaying, if that was lately; else 0.
    pub(super) fn recent_exclusion(&self, now: Micros) -> Micros {
        let (until, time) = self.excluded;
        if now < until + 4 * time { time } else { 0 }
    }

    /// Excludes the peer from relaying: twice as long as lately, from `first` to `most`.
    pub(super) fn exclude(&mut self, now: Micros, (first, most): (Micros, Micros)) {
        let time = (2 * self.recent_exclusion(now)).clamp(first, most);
        self.excluded = (now + time, time);
        (self.stuck_since, self.lags) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_doubles_if_failures_follow_soon() {
        let mut route = Route::default();
        assert_eq!((route.is_excluded(0), route.recent_exclusion(0)), (false, 0));
        route.exclude(100, (10, 25));
        assert_eq!((route.is_excluded(109), route.is_excluded(110)), (true, false));
        assert_eq!((route.recent_exclusion(149), route.recent_exclusion(150)), (10, 0));
        route.exclude(149, (10, 25));
        assert_eq!(route.recent_exclusion(149), 20);
        route.exclude(149, (10, 25));
        assert_eq!(route.recent_exclusion(149), 25, "the longest");
        route.exclude(1_000, (10, 25));
        assert_eq!(route.recent_exclusion(1_000), 10, "the earlier failures are long ago");
    }

    #[test]
    fn recipient_waits_until_it_has_what_its_relay_had() {
        let mut route = Route::default();
        assert_eq!(route.track_wait(5, 5, 100), 0);
        assert_eq!(route.track_wait(7, 5, 200), 0);
        assert_eq!(route.track_wait(9, 6, 300), 100, "it lacks the entry 7");
        assert_eq!(route.track_wait(9, 7, 400), 0, "it has received the entry 7 and lacks later ones");
        assert_eq!(route.track_wait(9, 7, 450), 50);
        assert_eq!(route.track_wait(9, 9, 500), 0);
    }

    #[test]
    fn relay_is_stuck_while_messages_are_unanswered() {
        let mut route = Route::default();
        assert_eq!(route.track_stuck(true, 100), 100);
        assert_eq!(route.track_stuck(true, 200), 100);
        route.advanced();
        assert_eq!(route.track_stuck(true, 300), 300);
        assert_eq!(route.track_stuck(false, 400), 400);
        assert_eq!(route.track_stuck(true, 500), 500);
    }
}
