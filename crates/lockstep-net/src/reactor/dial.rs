//! Dial targets, their schedule and results. No sockets here.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::addr::Address;
use crate::conn_id::ConnId;
use crate::error::{DialError, Reason};

/// A failure that repeats is reported again after this long.
const REPORT_AGAIN: Duration = Duration::from_secs(10);
/// How long not to dial an address whose member has another connection with us.
const AFTER_DUPLICATE: Duration = Duration::from_secs(5);
/// How long not to dial an address that turned out to be our own. Addresses move: not for ever.
const AFTER_MYSELF: Duration = Duration::from_secs(30);
/// A connection that lived this long shows that the address is good: the next failure starts with the shortest wait.
const GOOD_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) enum State {
    /// To be dialed at this time.
    Waiting(Instant),
    /// The name is being resolved, until then at the latest.
    Resolving(Instant),
    /// TCP connects, or the handshake runs, or the connection is up.
    Busy(ConnId),
}

#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) addr: Address,
    /// Dialed again and again, or just once.
    pub(crate) keep: bool,
    pub(crate) state: State,
    /// Addresses of the name that have not been tried in this round.
    pub(crate) untried: VecDeque<SocketAddr>,
    /// The member is reached by another connection: do not dial while that one lives.
    pub(crate) via: Option<ConnId>,
    /// This one of `untried` is to be dialed without encryption: it does not understand it (`socket.dynamic`).
    pub(crate) plain: Option<SocketAddr>,
    backoff: Duration,
    reported: Option<(DialError, Instant)>,
}

/// All addresses to be dialed, by the text of the address.
#[derive(Debug)]
pub(crate) struct Targets {
    map: BTreeMap<String, Target>,
    backoff_min: Duration,
    backoff_max: Duration,
    /// State of the generator that spreads members' attempts.
    random: u64,
}

impl Targets {
    pub(crate) fn new(backoff_min: Duration, backoff_max: Duration, seed: u64) -> Targets {
        Targets { map: BTreeMap::new(), backoff_min, backoff_max: backoff_max.max(backoff_min), random: seed }
    }

    /// Adds an address to dial at `now`. An address in the list may only change from one dial to repeated ones.
    pub(crate) fn add(&mut self, addr: &Address, keep: bool, now: Instant) {
        let backoff = self.backoff_min;
        let target = self.map.entry(addr.to_string()).or_insert_with(|| Target {
            addr: addr.clone(),
            keep,
            state: State::Waiting(now),
            untried: VecDeque::new(),
            via: None,
            plain: None,
            backoff,
            reported: None,
        });
        target.keep |= keep;
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Target> {
        self.map.remove(key)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Target> {
        self.map.get_mut(key)
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.map.keys().cloned().collect()
    }

    /// The addresses to be dialed now.
    pub(crate) fn due(&self, now: Instant) -> Vec<String> {
        let due = |t: &Target| matches!(t.state, State::Waiting(at) if at <= now && t.via.is_none());
        self.map.iter().filter(|(_, t)| due(t)).map(|(k, _)| k.clone()).collect()
    }

    /// The addresses whose name took too long to resolve.
    pub(crate) fn unresolved(&self, now: Instant) -> Vec<String> {
        let late = |t: &Target| matches!(t.state, State::Resolving(limit) if limit <= now);
        self.map.iter().filter(|(_, t)| late(t)).map(|(k, _)| k.clone()).collect()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.map
            .values()
            .filter_map(|t| match t.state {
                State::Waiting(at) if t.via.is_none() => Some(at),
                State::Resolving(limit) => Some(limit),
                _ => None,
            })
            .min()
    }

    /// An attempt failed. Returns whether to report it: always when dialed once, else when it is news.
    pub(crate) fn failed(&mut self, key: &str, error: &DialError, now: Instant) -> bool {
        let jitter = self.jitter();
        let backoff_max = self.backoff_max;
        let Some(target) = self.map.get_mut(key) else { return false };
        if !target.keep {
            self.map.remove(key);
            return true;
        }
        target.state = State::Waiting(now + spread(target.backoff, jitter));
        target.backoff = (target.backoff * 2).min(backoff_max);
        let old = target.reported.as_ref().is_some_and(|(e, at)| e == error && now < *at + REPORT_AGAIN);
        if !old {
            target.reported = Some((error.clone(), now));
        }
        !old
    }

    /// A connection to the address, up since `since`, is down; `why` if one side said so.
    pub(crate) fn lost(
        &mut self,
        key: &str,
        conn: ConnId,
        why: Option<Reason>,
        since: Instant,
        now: Instant,
    ) {
        let jitter = self.jitter();
        let (backoff_min, backoff_max) = (self.backoff_min, self.backoff_max);
        let Some(target) = self.map.get_mut(key) else { return };
        if !matches!(target.state, State::Busy(c) if c == conn) {
            return;
        }
        if !target.keep {
            self.map.remove(key);
            return;
        }
        target.reported = None;
        let wait = match why {
            Some(Reason::Duplicate) => AFTER_DUPLICATE,
            Some(Reason::Myself) => AFTER_MYSELF,
            _ => {
                if now.saturating_duration_since(since) >= GOOD_AFTER {
                    target.backoff = backoff_min;
                }
                let wait = target.backoff;
                target.backoff = (wait * 2).min(backoff_max);
                wait
            }
        };
        target.state = State::Waiting(now + spread(wait, jitter));
    }

    /// A connection by which members are reached is gone: their addresses are dialed (almost) at once.
    pub(crate) fn unvia(&mut self, conn: ConnId, now: Instant) {
        let (jitter, wait) = (self.jitter(), self.backoff_min);
        for target in self.map.values_mut().filter(|t| t.via == Some(conn)) {
            target.via = None;
            target.backoff = wait;
            if let State::Waiting(at) = &mut target.state {
                *at = now + spread(wait, jitter);
            }
        }
    }

    /// A number from 0 to 255: SplitMix64, because attempts need to differ between members, not to be secret.
    fn jitter(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) & 0xff) as u32
    }
}

/// `wait` plus or minus a quarter.
fn spread(wait: Duration, jitter: u32) -> Duration {
    wait * (384 + jitter) / 512
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets() -> (Targets, Instant) {
        (Targets::new(Duration::from_millis(50), Duration::from_secs(1), 7), Instant::now())
    }

    #[test]
    fn backoff_grows_to_its_limit_and_starts_anew() {
        let (mut t, t0) = targets();
        let addr = Address::parse("h1", 4567).unwrap();
        t.add(&addr, true, t0);
        let mut now = t0;
        let mut waits = Vec::new();
        for _ in 0..8 {
            assert_eq!(t.due(now), ["h1:4567"]);
            t.failed("h1:4567", &DialError::ConnectTimeout, now);
            let next = t.next_timeout().unwrap();
            waits.push(next - now);
            now = next;
        }
        assert!(
            waits[0] >= Duration::from_micros(37_500) && waits[0] < Duration::from_micros(62_500),
            "{waits:?}"
        );
        assert!(
            waits[7] >= Duration::from_millis(750) && waits[7] < Duration::from_millis(1250),
            "{waits:?}"
        );
        let conn = ConnId(9);
        t.get_mut("h1:4567").unwrap().state = State::Busy(conn);
        t.lost("h1:4567", conn, None, now, now + GOOD_AFTER);
        assert!(t.next_timeout().unwrap() - (now + GOOD_AFTER) < Duration::from_micros(62_500));
    }

    #[test]
    fn repeated_failures_are_reported_once_in_a_while() {
        let (mut t, t0) = targets();
        t.add(&Address::parse("h1", 4567).unwrap(), true, t0);
        assert!(t.failed("h1:4567", &DialError::ConnectTimeout, t0));
        assert!(!t.failed("h1:4567", &DialError::ConnectTimeout, t0 + Duration::from_secs(1)));
        assert!(t.failed("h1:4567", &DialError::NoHello, t0 + Duration::from_secs(2)));
        assert!(t.failed("h1:4567", &DialError::NoHello, t0 + Duration::from_secs(12)));
    }

    #[test]
    fn once_means_once() {
        let (mut t, t0) = targets();
        t.add(&Address::parse("h1", 4567).unwrap(), false, t0);
        assert!(t.failed("h1:4567", &DialError::ConnectTimeout, t0));
        assert!(t.keys().is_empty());
    }

    #[test]
    fn via_another_connection() {
        let (mut t, t0) = targets();
        t.add(&Address::parse("h1", 4567).unwrap(), true, t0);
        t.get_mut("h1:4567").unwrap().via = Some(ConnId(3));
        assert!(t.due(t0 + Duration::from_secs(99)).is_empty() && t.next_timeout().is_none());
        t.unvia(ConnId(3), t0);
        assert_eq!(t.due(t0 + Duration::from_secs(1)).len(), 1);
    }

    #[test]
    fn seeds_differ() {
        let (mut a, _) = targets();
        let mut b = Targets::new(Duration::ZERO, Duration::ZERO, 8);
        let (a, b): (Vec<u32>, Vec<u32>) =
            ((0..8).map(|_| a.jitter()).collect(), (0..8).map(|_| b.jitter()).collect());
        assert_ne!(a, b);
    }
}
