//! Log lines about connections from non-members: enough to find the sender, and few enough not to fill the log.
//! A sender that fails repeatedly for one reason (a member with another authority's certificate tries every second) is
//! logged at once, then after ten seconds, a minute, and so on. A sender that goes on for a minute needs an operator. One
//! that fails now and then does not: several members behind one address may each try TLS first while TLS is switched on.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// This many different lines at once, then one a second.
const BURST: u32 = 5;
const EVERY: Duration = Duration::from_secs(1);
/// The same line about the same address is repeated after this time, then after six times as long, up to [`RARELY`].
const SOON: Duration = Duration::from_secs(10);
const RARELY: Duration = Duration::from_secs(3600);
/// A sender persists if its connections were dropped for this long, with no longer pause than [`PAUSE`].
const PERSISTENT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(30);
/// The most addresses, with their reasons, that are remembered.
const REMEMBERED: usize = 64;

/// A line that was logged.
#[derive(Debug)]
struct Said {
    ip: IpAddr,
    what: String,
    /// When it may be logged again, and the pause until then.
    again: Instant,
    pause: Duration,
    /// How often the event happened since the last line, and its last time.
    since: u64,
    last: Instant,
    /// The first event that no pause longer than [`PAUSE`] separates from the last one.
    run: Instant,
    /// A line has said that the sender of this run persists.
    reported: bool,
}

impl Said {
    fn persists(&self) -> bool {
        self.last.saturating_duration_since(self.run) >= PERSISTENT
    }
}

/// How to log a dropped connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    /// Lines that were suppressed since the last one.
    pub(super) suppressed: u64,
    /// The sender has gone on for [`PERSISTENT`].
    pub(super) persists: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Noise {
    tokens: u32,
    refilled: Instant,
    suppressed: u64,
    said: Vec<Said>,
}

impl Noise {
    pub(super) fn new(now: Instant) -> Noise {
        Noise { tokens: BURST, refilled: now, suppressed: 0, said: Vec::new() }
    }

    /// A connection from `ip` was dropped for this reason. `None` if this is not to be logged.
    pub(super) fn record(&mut self, ip: IpAddr, what: &str, now: Instant) -> Option<Report> {
        self.said.retain(|said| now.saturating_duration_since(said.last) < RARELY);
        if let Some(said) = self.said.iter_mut().find(|said| said.ip == ip && said.what == what) {
            if now.saturating_duration_since(said.last) > PAUSE {
                (said.run, said.reported) = (now, false);
            }
            said.last = now;
            // A sender that begins to persist is reported at once: earlier lines may have made the pause an hour.
            if now < said.again && (said.reported || !said.persists()) {
                said.since += 1;
                return None;
            }
        }
        if !self.may_log(now) {
            self.suppressed += 1;
            return None;
        }
        let mut left_out = std::mem::take(&mut self.suppressed);
        let mut persists = false;
        match self.said.iter_mut().find(|said| said.ip == ip && said.what == what) {
            Some(said) => {
                persists = said.persists();
                said.reported = persists;
                left_out += std::mem::take(&mut said.since);
                said.pause = (said.pause * 6).min(RARELY);
                said.again = now + said.pause;
            }
            None => {
                if self.said.len() >= REMEMBERED {
                    let oldest = (0..self.said.len()).min_by_key(|at| self.said[*at].last);
                    // The suppressed lines are counted in this one.
                    left_out += oldest.map_or(0, |at| self.said.swap_remove(at).since);
                }
                let (what, again) = (what.to_owned(), now + SOON);
                self.said.push(Said {
                    ip,
                    what,
                    again,
                    pause: SOON,
                    since: 0,
                    last: now,
                    run: now,
                    reported: false,
                });
            }
        }
        Some(Report { suppressed: left_out, persists })
    }

    fn may_log(&mut self, now: Instant) -> bool {
        while self.tokens < BURST && now.saturating_duration_since(self.refilled) >= EVERY {
            self.tokens += 1;
            self.refilled += EVERY;
        }
        if self.tokens == 0 {
            return false;
        }
        if self.tokens == BURST {
            self.refilled = now;
        }
        self.tokens -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, n])
    }

    #[test]
    fn sender_failing_each_second_for_a_day_is_logged_rarely() {
        let start = Instant::now();
        let mut noise = Noise::new(start);
        let mut at = Vec::new();
        let mut counted = 0;
        for second in 0..86_400u64 {
            let now = start + Duration::from_secs(second);
            // Two members, for a reason each.
            for n in [1, 2] {
                if let Some(report) = noise.record(ip(n), "refused", now) {
                    counted += report.suppressed + 1;
                    assert_eq!(report.persists, second >= 60);
                    if n == 1 {
                        at.push(second);
                    }
                }
            }
        }
        assert_eq!(at[..4], [0, 10, 60, 420]);
        assert!(at.len() < 32, "{at:?}");
        assert!(counted > 2 * 82_000 && counted <= 2 * 86_400, "{counted}");
        // Another reason is said at once, and an old one, once it is news again.
        let end = start + Duration::from_secs(86_400);
        let first = Some(Report { suppressed: 0, persists: false });
        assert_eq!(noise.record(ip(1), "silent", end), first);
        assert_eq!(noise.record(ip(1), "refused", end + 2 * RARELY), first);
    }

    #[test]
    fn sender_persists_only_after_a_minute_without_pause() {
        let start = Instant::now();
        let mut noise = Noise::new(start);
        // Members behind one address are restarted in turn, and each is dropped a few times.
        for restart in 0..20 {
            for second in 0..5 {
                let now = start + Duration::from_secs(60 * restart + second);
                let persists = noise.record(ip(1), "TLS", now).is_some_and(|report| report.persists);
                assert!(!persists, "restart {restart}");
            }
        }
        // One of them keeps a wrong configuration. The lines before it do not hide that.
        let begin = start + Duration::from_secs(20 * 60);
        let warned = (0..600).find(|second| {
            let now = begin + Duration::from_secs(*second);
            noise.record(ip(1), "TLS", now).is_some_and(|report| report.persists)
        });
        assert_eq!(warned, Some(60));
    }

    #[test]
    fn flood_from_many_addresses_is_limited_and_counted() {
        let start = Instant::now();
        let mut noise = Noise::new(start);
        let mut lines = 0;
        let mut counted = 0;
        for n in 0..100_000u64 {
            let now = start + Duration::from_micros(n * 100);
            if let Some(report) = noise.record(ip(1), &format!("reason {n}"), now) {
                (lines, counted) = (lines + 1, counted + report.suppressed + 1);
            }
        }
        assert!((10..=16).contains(&lines), "{lines}");
        assert!(counted > 80_000 && counted <= 100_000, "{counted}");
        assert!(noise.said.len() <= REMEMBERED);
    }
}
