//! Pacing (`apply.pace`): how many transactions of its own clients this member submits in a second while a server lags.
//!
//! Every member reports the last seqno that its server has finished ([`crate::wire::Health`]). This member knows when
//! later seqnos arrived in its own log. From that it computes, with its own clock only, how fast each server is and how
//! long an entry that arrives now has to wait there: the server's lag. Members of older versions count as well.
//!
//! While no server lags there is no limit. Otherwise the limit follows the speed of the server that lags, times a factor
//! that falls smoothly with its lag. Several members that write find their shares without knowing of each other: the lag
//! grows until the sum of their limits is what that server can apply.
//!
//! The delay of this loop decides how far the lag swings. So a server with a backlog reports more often, and between two
//! reports it is assumed to go on at its speed, while the arrivals are known at once. A limit ends by rising, not in a
//! step: with a step the writers fill the backlog again, and the server that lagged has nothing to do meanwhile.
//!
//! An old report says nothing, so a member that is stopped or cut off slows nobody down.

use crate::api::{Level, LocalState, Pace};
use crate::member::context::Context;
use crate::member::facts::Standing;
use lockstep_core::raft::WriteOp;
use lockstep_core::{MemberId, Micros, Seqno};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A report counts for this long. Members report every 200 ms, and more often with a backlog.
const REPORT_VALID: Micros = 1_000_000;
/// A server's speed is remembered for this long without a report.
const SPEED_VALID: Micros = 10_000_000;
/// How often the limit is computed.
const PERIOD: Micros = 20_000;
/// How often this member's own server is observed.
const OWN_PERIOD: Micros = 50_000;
/// The speed of a server is a mean over about this time.
const SPEED_WINDOW: f64 = 200_000.0;
/// A server has a backlog if the first seqno that it has not finished arrived so long ago.
const BACKLOG_AGE: Micros = 20_000;
/// A limit that is no longer needed grows by e in this time,
const RELEASE: f64 = 250_000.0;
/// and ends at so many times the speed of the fastest server.
const RELEASED: f64 = 4.0;
/// The least limit from which it grows, transactions per second.
const LEAST: f64 = 10.0;
/// So many spans of arrivals cover the bound.
const SPANS_PER_BOUND: Micros = 50;
/// So many spans are kept: those of more than twice the bound.
const SPANS_MAX: usize = 128;
/// How often the beginning of a limit is logged at most.
const LOG_INTERVAL: Micros = 600_000_000;
/// A transaction waits for a quarter of the bound at most, and never longer than this: writers slow down, and never stop.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The limit without a lagging server.
const UNLIMITED: f64 = f64::INFINITY;

/// How many transactions in a second a member may submit because of a server with this lag, which finishes `speed`
/// transactions in a second. There is no limit up to a quarter of the bound. Then it falls from 5/4 of the speed to an
/// eighth at 3/4 of the bound, and to a twenty-fifth at the bound. An entry takes two round trips to a far server and back,
/// which is no lag: there the limit begins later.
///
/// The decline is exponential, so that the loop is as stable with many members that write as with one.
fn limit_for(lag: Micros, speed: f64, bound: Micros, round_trip: Micros) -> f64 {
    let free = (bound / 4).max((2 * round_trip).min(bound / 2));
    if bound == 0 || lag <= free {
        return UNLIMITED;
    }
    let excess = (lag - free).min(bound - free) as f64 / (bound / 2) as f64;
    speed * 1.25 * f64::powf(10.0, -excess)
}

/// When seqnos arrived in the own log, by the monotonic clock.
#[derive(Debug, Default)]
struct Arrivals {
    /// Ascending: the last seqno of each span, and when its first one arrived.
    spans: VecDeque<(Seqno, Micros)>,
}

impl Arrivals {
    /// Everything up to `last` has arrived. Arrivals within `grain` form one span.
    fn note(&mut self, now: Micros, last: Seqno, grain: Micros) {
        match self.spans.back_mut() {
            Some((before, _)) if last <= *before => {}
            Some((before, began)) if now < *began + grain => *before = last,
            _ => {
                if self.spans.len() == SPANS_MAX {
                    self.spans.pop_front();
                }
                self.spans.push_back((last, now));
            }
        }
    }

    /// The log has lost everything above `kept`.
    fn truncate(&mut self, kept: Seqno) {
        let whole = self.spans.partition_point(|(last, _)| *last < kept);
        // The next span has seqnos up to `kept`, and perhaps later ones.
        self.spans.truncate(whole + 1);
        if let Some((last, _)) = self.spans.back_mut() {
            *last = kept.min(*last);
        }
    }

    /// How many seqnos above `finished` have arrived.
    fn above(&self, finished: Seqno) -> Seqno {
        self.spans.back().map_or(0, |(last, _)| (last - finished).max(0))
    }

    /// How long ago the first seqno above `finished` arrived; 0 if none has. Less if it arrived before the first span.
    fn age(&self, now: Micros, finished: Seqno) -> Micros {
        let at = self.spans.partition_point(|(last, _)| *last <= finished);
        self.spans.get(at).map_or(0, |(_, began)| now.saturating_sub(*began))
    }
}

/// A member's server, as last observed.
#[derive(Clone, Copy, Debug)]
struct Server {
    at: Micros,
    finished: Seqno,
    /// Seqnos that it finishes in a second if it has a backlog. `None`: not known yet.
    speed: Option<f64>,
    /// It had a backlog at `at`.
    is_behind: bool,
    /// When it last finished anything, or had nothing to do.
    moved_at: Micros,
}

impl Server {
    /// The server has finished this seqno. `on_the_way`: how long an entry that it gets and its report are under way.
    fn observe(
        before: Option<Server>,
        arrivals: &Arrivals,
        now: Micros,
        finished: Seqno,
        on_the_way: Micros,
    ) -> Server {
        let is_behind = arrivals.age(now, finished) > BACKLOG_AGE + on_the_way;
        let speed = match before {
            // Two reports were read at once.
            Some(before) if now == before.at => before.speed,
            Some(before) if finished >= before.finished => {
                let passed = (now - before.at) as f64;
                let throughput = (finished - before.finished) as f64 * 1e6 / passed;
                // A server that has had nothing to do for a part of that time is at least as fast.
                let is_bound = !(before.is_behind && is_behind);
                match before.speed {
                    Some(speed) if is_bound && throughput <= speed => Some(speed),
                    Some(speed) => {
                        Some(speed + (throughput - speed) * (1.0 - f64::exp(-passed / SPEED_WINDOW)))
                    }
                    None => Some(throughput).filter(|throughput| !is_bound || *throughput > 0.0),
                }
            }
            // Seqnos went back: the server begins anew.
            _ => None,
        };
        let stood = before.filter(|before| before.finished == finished && arrivals.above(finished) > 0);
        let moved_at = stood.map_or(now, |before| before.moved_at);
        Server { at: now, finished, speed, is_behind, moved_at }
    }

    /// How long an entry that arrives now has to wait until all before it have finished.
    fn lag(&self, arrivals: &Arrivals, now: Micros) -> Micros {
        // A server without a backlog reports less often. It is not assumed to have one now: if it has, it says so soon.
        let Some(speed) = self.speed.filter(|_| self.is_behind) else { return 0 };
        let since = (speed * now.saturating_sub(self.at) as f64 / 1e6) as Seqno;
        let wait = arrivals.above(self.finished.saturating_add(since)) as f64 * 1e6 / speed.max(1e-3);
        // The speed of a server that was never behind is not known: it may be faster. Then no entry is old.
        (wait as Micros).min(2 * arrivals.age(now, self.finished))
    }
}

/// The present limit and its history, for the status.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Paced {
    /// How many transactions of this member's clients are submitted in a second at most; infinite without a limit.
    pub(crate) limit: f64,
    /// The members that lag so far that there is a limit.
    pub(crate) because_of: Vec<MemberId>,
    /// How long there has been a limit, in all.
    pub(crate) total: Micros,
    /// How often a limit began.
    pub(crate) times: u64,
    /// How often this member's own lag began to cause one.
    pub(crate) own_times: u64,
}

impl Default for Paced {
    fn default() -> Paced {
        Paced { limit: UNLIMITED, because_of: Vec::new(), total: 0, times: 0, own_times: 0 }
    }
}

impl Paced {
    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit < UNLIMITED
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Pacing {
    arrivals: Arrivals,
    /// The members' servers, this member's included.
    servers: BTreeMap<MemberId, Server>,
    paced: Paced,
    computed_at: Micros,
    logged_at: Option<Micros>,
}

fn bound(ctx: &Context) -> Micros {
    ctx.tuning().apply_pace.as_micros() as Micros
}

impl Pacing {
    /// The log changes.
    pub(in crate::member) fn written(&mut self, ctx: &Context, op: &WriteOp) {
        if op.reset.is_some() {
            self.arrivals.spans.clear();
        } else if let Some(from) = op.truncate_from {
            // In memory are all entries but old committed ones.
            match ctx.raft.entry(from.saturating_sub(1)) {
                Some(kept) => self.arrivals.truncate(kept.seqno),
                None => self.arrivals.spans.clear(),
            }
        }
        let bound = bound(ctx);
        if bound > 0
            && let Some(entry) = op.entries.last()
        {
            self.arrivals.note(ctx.now(), entry.seqno, bound / SPANS_PER_BOUND);
        }
    }

    /// A member's server has finished this seqno.
    pub(in crate::member) fn reported(&mut self, ctx: &Context, member: MemberId, finished: Seqno) {
        let before = self.servers.get(&member).copied();
        let on_the_way = 2 * ctx.peers.rtt_to(&member).unwrap_or(0);
        let server = Server::observe(before, &self.arrivals, ctx.now(), finished, on_the_way);
        self.servers.insert(member, server);
    }

    /// Whether pacing is on and this member's own server lags by less than twice the bound.
    pub(in crate::member) fn contains_lag(&self, ctx: &Context) -> bool {
        self.arrivals.age(ctx.now(), ctx.finished()) < 2 * bound(ctx)
    }

    /// Whether this member's server has a backlog, of which the others are to hear soon.
    pub(in crate::member) fn is_behind(&self, ctx: &Context) -> bool {
        bound(ctx) > 0 && self.arrivals.age(ctx.now(), ctx.finished()) > BACKLOG_AGE
    }

    /// Computes the limit, if due.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context, own: Standing) {
        let bound = bound(ctx);
        if bound == 0 && !self.paced.is_limited() || ctx.now() < self.computed_at + PERIOD {
            return;
        }
        let passed = ctx.now() - std::mem::replace(&mut self.computed_at, ctx.now());
        if self.paced.is_limited() {
            self.paced.total += passed;
        }
        if self.servers.get(&ctx.me().id).is_none_or(|server| ctx.now() >= server.at + OWN_PERIOD) {
            self.reported(ctx, ctx.me().id, ctx.finished());
        }
        // A server that receives its state finishes many seqnos at once, which is no speed.
        self.servers.retain(|id, server| ctx.now() < server.at + SPEED_VALID && counts(ctx, own, id));
        let mut limit = UNLIMITED;
        let mut because_of = Vec::new();
        let mut longest = 0;
        for (id, server) in &self.servers {
            // Slower writers do not help a server that applies nothing, in a long statement for example.
            let is_stuck = ctx.now().saturating_sub(server.moved_at) >= 2 * bound;
            if is_stuck || ctx.now() >= server.at + REPORT_VALID {
                continue;
            }
            let round_trip = ctx.peers.rtt_to(id).unwrap_or(0);
            let lag = server.lag(&self.arrivals, ctx.now());
            let own_limit = limit_for(lag, server.speed.unwrap_or(0.0), bound, round_trip);
            if own_limit < UNLIMITED {
                because_of.push(*id);
                longest = longest.max(lag);
            }
            limit = limit.min(own_limit);
        }
        if bound > 0 {
            limit = limit.min(self.released(passed));
        }
        let begins = limit < UNLIMITED && !self.paced.is_limited();
        let is_own = |ids: &[MemberId]| ids.contains(&ctx.me().id);
        self.paced.own_times += u64::from(is_own(&because_of) && !is_own(&self.paced.because_of));
        self.paced.times += u64::from(begins);
        self.paced.limit = limit;
        // A limit that is being released keeps its reason.
        if !because_of.is_empty() || limit == UNLIMITED {
            self.paced.because_of = because_of;
        }
        if begins && self.logged_at.is_none_or(|at| ctx.now() >= at + LOG_INTERVAL) {
            self.logged_at = Some(ctx.now());
            let names: Vec<String> = self.paced.because_of.iter().map(|id| ctx.name_of(id)).collect();
            let text = format!(
                "writes of this server's clients are slowed down: {} lags by {:.1} s (apply.pace)",
                names.join(", "),
                longest as f64 / 1e6
            );
            ctx.log(Level::Info, text);
        }
    }

    /// The limit to which the present one may rise after `passed`.
    fn released(&self, passed: Micros) -> f64 {
        let fastest = self.servers.values().filter_map(|server| server.speed).fold(0.0, f64::max);
        let limit = self.paced.limit.max(LEAST.min(fastest)) * f64::exp(passed as f64 / RELEASE);
        if limit < RELEASED * fastest { limit } else { UNLIMITED }
    }

    /// The present limit, if there is one, for the threads that submit.
    pub(crate) fn present(&self, ctx: &Context) -> Option<Pace> {
        let longest_wait = (ctx.tuning().apply_pace / 4).min(LONGEST_WAIT);
        let interval = Duration::from_nanos((1e9 / self.paced.limit) as u64);
        self.paced.is_limited().then_some(Pace { interval, longest_wait })
    }

    /// The present limit and its history.
    pub(crate) fn paced(&self) -> &Paced {
        &self.paced
    }
}

/// Whether the lag of this member counts: a voter with a database, in a primary component and Synced.
///
/// Not Synced are members that join, are Desynced or held back, or lag beyond `apply.lag_limit`.
fn counts(ctx: &Context, own: Standing, id: &MemberId) -> bool {
    let votes = ctx.raft.membership().get(id).is_some_and(|m| m.role.votes() && !m.arbitrator);
    let synced = match *id == ctx.me().id {
        true => own.state == LocalState::Synced && !own.leaving,
        false => ctx.peers.health_of(id).is_some_and(|h| h.state == LocalState::Synced && !h.leaving),
    };
    votes && synced && ctx.connection().is_primary()
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
