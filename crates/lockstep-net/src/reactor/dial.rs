//! Dial targets, their schedule and results. No sockets here.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::addr::{Address, Scheme};
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
enum State {
    /// To be dialed at this time.
    Waiting(Instant),
    /// The name is being resolved, until then at the latest.
    Resolving(Instant),
    /// TCP connects, or the handshake runs, or the connection is up.
    Busy(ConnId),
}

/// An address to be dialed. A round of attempts tries each socket address of its name once.
#[derive(Debug)]
pub(crate) struct Target {
    addr: Address,
    /// Dialed again and again, or just once.
    keep: bool,
    state: State,
    /// Addresses of the name that have not been tried in this round.
    untried: VecDeque<SocketAddr>,
    /// The member is reached by another connection: do not dial while that one lives.
    via: Option<ConnId>,
    /// This one of `untried` is to be dialed without encryption: it does not understand it (`socket.dynamic`).
    plain: Option<SocketAddr>,
    backoff: Duration,
    reported: Option<(DialError, Instant)>,
}

impl Target {
    /// Whether the address may be dialed with encryption only.
    pub(crate) fn requires_tls(&self) -> bool {
        self.addr.scheme == Scheme::Ssl
    }

    /// Begins a round of attempts. Returns the name to be resolved first, until `limit`; `None`: the address needs no
    /// resolution.
    pub(crate) fn begin_round(&mut self, limit: Instant) -> Option<Address> {
        self.plain = None;
        if let Some(addr) = self.addr.socket_addr() {
            self.untried = [addr].into();
            return None;
        }
        self.state = State::Resolving(limit);
        Some(self.addr.clone())
    }

    /// Whether the round waits for the socket addresses of the name.
    pub(crate) fn is_resolving(&self) -> bool {
        matches!(self.state, State::Resolving(_))
    }

    /// The name is resolved: the round tries these.
    pub(crate) fn resolved(&mut self, found: Vec<SocketAddr>) {
        self.untried = found.into();
    }

    /// The next socket address of the round, and whether it is to be dialed without encryption.
    pub(crate) fn next_attempt(&mut self) -> Option<(SocketAddr, bool)> {
        let remote = self.untried.pop_front()?;
        let is_plain = self.plain.take_if(|at| *at == remote).is_some();
        Some((remote, is_plain))
    }

    /// Whether the round has socket addresses left.
    pub(crate) fn has_untried(&self) -> bool {
        !self.untried.is_empty()
    }

    /// The attempt `conn` is under way.
    pub(crate) fn attempt(&mut self, conn: ConnId) {
        self.state = State::Busy(conn);
    }

    /// The peer at `remote` does not encrypt: it is tried once more, as the next one, without encryption.
    pub(crate) fn retry_plain(&mut self, remote: SocketAddr) {
        self.untried.push_front(remote);
        self.plain = Some(remote);
    }

    /// Another connection reaches the member: see [`Targets::unvia`].
    pub(crate) fn reached_via(&mut self, conn: ConnId) {
        self.via = Some(conn);
    }
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

    /// Adds an address to dial at `now`; or once `live`, a connection that was dialed earlier, is lost. An address in the list
    /// may only change from one dial to repeated ones.
    pub(crate) fn add(&mut self, addr: &Address, keep: bool, live: Option<ConnId>, now: Instant) {
        let backoff = self.backoff_min;
        let target = self.map.entry(addr.to_string()).or_insert_with(|| Target {
            addr: addr.clone(),
            keep,
            state: live.map_or(State::Waiting(now), State::Busy),
            untried: VecDeque::new(),
            via: None,
            plain: None,
            backoff,
            reported: None,
        });
        target.keep |= keep;
    }

    /// Removes an address. Returns its connection, or the attempt at one.
    pub(crate) fn remove(&mut self, key: &str) -> Option<ConnId> {
        match self.map.remove(key)?.state {
            State::Busy(conn) => Some(conn),
            State::Waiting(_) | State::Resolving(_) => None,
        }
    }

    /// Removes all addresses.
    pub(crate) fn clear(&mut self) {
        self.map.clear();
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
        t.add(&addr, true, None, t0);
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
        t.get_mut("h1:4567").unwrap().attempt(conn);
        t.lost("h1:4567", conn, None, now, now + GOOD_AFTER);
        assert!(t.next_timeout().unwrap() - (now + GOOD_AFTER) < Duration::from_micros(62_500));
    }

    #[test]
    fn repeated_failures_are_reported_once_in_a_while() {
        let (mut t, t0) = targets();
        t.add(&Address::parse("h1", 4567).unwrap(), true, None, t0);
        assert!(t.failed("h1:4567", &DialError::ConnectTimeout, t0));
        assert!(!t.failed("h1:4567", &DialError::ConnectTimeout, t0 + Duration::from_secs(1)));
        assert!(t.failed("h1:4567", &DialError::NoHello, t0 + Duration::from_secs(2)));
        assert!(t.failed("h1:4567", &DialError::NoHello, t0 + Duration::from_secs(12)));
    }

    #[test]
    fn once_means_once() {
        let (mut t, t0) = targets();
        t.add(&Address::parse("h1", 4567).unwrap(), false, None, t0);
        assert!(t.failed("h1:4567", &DialError::ConnectTimeout, t0));
        assert!(t.keys().is_empty());
    }

    #[test]
    fn via_another_connection() {
        let (mut t, t0) = targets();
        t.add(&Address::parse("h1", 4567).unwrap(), true, None, t0);
        t.get_mut("h1:4567").unwrap().reached_via(ConnId(3));
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
