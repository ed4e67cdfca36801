//! Invariants of every test: commits enter one at a time and in order, write-sets that depend on each other do not overlap, callbacks come on the right thread. Violations are collected, not fatal: a test
//! asks for them at its end.

use lockstep_abi::{Seqno, TrxMeta};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks a mutex; a panic of another thread does not spread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What [`Checks::begin_independent`] is told for a rollback fragment or a place without a change: nothing can
/// depend on these.
pub const WITHOUT_CHANGES: &str = "rollback";

/// One entry as this server saw it pass commit order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Place.
    pub seqno: Seqno,
    /// `commit`, `fragment`, `dummy`, `rollback`, `toi`, `view`, `failed`, `replay`.
    pub kind: &'static str,
    /// Origin, empty for views.
    pub origin: String,
    /// Transaction id at the origin.
    pub trx: u64,
}

#[derive(Debug, Default)]
struct Order {
    inside: Option<Seqno>,
    last: Seqno,
    in_flight: BTreeMap<Seqno, &'static str>,
    passed: Vec<Passed>,
    most_in_flight: usize,
}

/// The collector.
#[derive(Debug, Default)]
pub struct Checks {
    order: Mutex<Order>,
    violations: Mutex<Vec<String>>,
}

impl Checks {
    /// Notes a violation.
    pub fn violation(&self, text: String) {
        crate::log::event("violation", &text);
        lock(&self.violations).push(text);
    }

    /// Notes `text` unless `holds`.
    pub fn ensure(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violation(text());
        }
    }

    /// All violations so far.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    /// A write-set begins to be applied: everything it depends on must be finished.
    pub fn begin(&self, meta: &TrxMeta, what: &'static str) {
        self.begin_inner(meta, what, true);
    }

    /// As [`Checks::begin`], for write-sets that need not wait for their dependencies. These are a local transaction or
    /// its replay (row locks order it), and a rollback fragment or an entry without a change (invisible). Galera lets
    /// these run at once.
    pub fn begin_independent(&self, meta: &TrxMeta, what: &'static str) {
        self.begin_inner(meta, what, false);
    }

    fn begin_inner(&self, meta: &TrxMeta, what: &'static str, depends: bool) {
        let mut order = lock(&self.order);
        let seqno = meta.gtid.seqno;
        let parent = order
            .in_flight
            .range(..=meta.depends_on)
            .find(|(_, what)| **what != WITHOUT_CHANGES)
            .map(|(seqno, what)| (*seqno, *what));
        let twice = order.in_flight.insert(seqno, what);
        order.most_in_flight = order.most_in_flight.max(order.in_flight.len());
        drop(order);
        if let Some((parent, parent_what)) = parent.filter(|_| depends) {
            let depends_on = meta.depends_on;
            self.violation(format!(
                "{what} of {seqno} begins, which depends on {depends_on}, while {parent_what} of {parent} runs"
            ));
        }
        if let Some(before) = twice {
            self.violation(format!("{what} of {seqno} begins while {before} of the same runs"));
        }
        self.ensure(meta.depends_on < seqno, || format!("{seqno} depends on {}", meta.depends_on));
    }

    /// The write-set is finished: release is about to be called, or apply is about to return.
    pub fn end(&self, seqno: Seqno) {
        lock(&self.order).in_flight.remove(&seqno);
    }

    /// `commit_order_enter` returned OK.
    pub fn enter(&self, seqno: Seqno, what: &'static str) {
        let mut order = lock(&self.order);
        let (inside, last) = (order.inside, order.last);
        order.inside = Some(seqno);
        drop(order);
        if let Some(other) = inside {
            self.violation(format!("{what} of {seqno} enters commit order while {other} is inside"));
        }
        self.ensure(seqno > last, || format!("{what} of {seqno} enters commit order after {last}"));
    }

    /// `commit_order_leave` is about to be called.
    pub fn leave(&self, meta: &TrxMeta, kind: &'static str) {
        let mut order = lock(&self.order);
        let seqno = meta.gtid.seqno;
        let inside = order.inside.take();
        order.last = order.last.max(seqno);
        let origin = meta.stid.node.to_string();
        order.passed.push(Passed { seqno, kind, origin, trx: meta.stid.trx });
        drop(order);
        self.ensure(inside == Some(seqno), || format!("{seqno} leaves commit order, inside was {inside:?}"));
    }

    /// A primary view at `seqno`: everything before it must be finished.
    pub fn view(&self, seqno: Seqno) {
        let mut order = lock(&self.order);
        let (inside, last) = (order.inside, order.last);
        // Local transactions behind the view may be certified already, and wait for their turn.
        let running: Vec<Seqno> = order.in_flight.range(..seqno).map(|(seqno, _)| *seqno).collect();
        order.last = order.last.max(seqno);
        if seqno > last {
            order.passed.push(Passed { seqno, kind: "view", origin: String::new(), trx: 0 });
        }
        drop(order);
        self.ensure(inside.is_none(), || format!("view at {seqno} while {inside:?} is in commit order"));
        self.ensure(running.is_empty(), || format!("view at {seqno} while {running:?} run"));
        self.ensure(seqno >= last, || format!("view at {seqno} after {last}"));
    }

    /// The database jumped to `seqno`: a state transfer, or another history.
    pub fn jump(&self, seqno: Seqno) {
        let mut order = lock(&self.order);
        order.last = seqno;
        order.inside = None;
        order.in_flight.clear();
    }

    /// The entries that passed commit order here, from `from` on.
    pub fn passed(&self, from: Seqno) -> Vec<Passed> {
        lock(&self.order).passed.iter().filter(|passed| passed.seqno >= from).cloned().collect()
    }

    /// The largest number of write-sets that were in flight at once.
    pub fn most_in_flight(&self) -> usize {
        lock(&self.order).most_in_flight
    }
}

#[derive(Debug, Default)]
struct Hold {
    on: bool,
    waiting: u32,
}

/// Places in the code where a test can make threads wait: `before_certify`, `after_certify`,
/// `before_commit_order`, `in_commit_order`, `apply`, `apply_in_commit_order`, `donate`, `view`.
#[derive(Debug, Default)]
pub struct Holds {
    points: Mutex<BTreeMap<String, Hold>>,
    changed: Condvar,
}

/// No hold lasts longer than this, so that a failed test ends.
const HOLD_LIMIT: Duration = Duration::from_secs(60);

impl Holds {
    /// From now on threads stop at `point`.
    pub fn set(&self, point: &str) {
        lock(&self.points).entry(point.to_owned()).or_default().on = true;
    }

    /// Lets them go on.
    pub fn release(&self, point: &str) {
        lock(&self.points).entry(point.to_owned()).or_default().on = false;
        self.changed.notify_all();
    }

    /// Waits until `count` threads stand at `point`.
    pub fn wait(&self, point: &str, count: u32, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut points = lock(&self.points);
        while points.get(point).is_none_or(|hold| hold.waiting < count) {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            points = self.changed.wait_timeout(points, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Passes `point`, waiting if it is held.
    pub fn pass(&self, point: &str) {
        let mut points = lock(&self.points);
        if !points.get(point).is_some_and(|hold| hold.on) {
            return;
        }
        let end = Instant::now() + HOLD_LIMIT;
        points.entry(point.to_owned()).or_default().waiting += 1;
        self.changed.notify_all();
        while points.get(point).is_some_and(|hold| hold.on) && Instant::now() < end {
            points = self
                .changed
                .wait_timeout(points, Duration::from_millis(500))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        points.entry(point.to_owned()).or_default().waiting -= 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_abi::Gtid;

    fn meta(seqno: Seqno, depends_on: Seqno) -> TrxMeta {
        let mut meta = TrxMeta::UNDEFINED;
        meta.gtid = Gtid { uuid: lockstep_abi::Uuid { data: [1; 16] }, seqno };
        meta.depends_on = depends_on;
        meta
    }

    #[test]
    fn orderly_commits_pass() {
        let checks = Checks::default();
        for seqno in 1..5 {
            checks.begin(&meta(seqno, 0), "apply");
        }
        for seqno in 1..5 {
            checks.enter(seqno, "apply");
            checks.leave(&meta(seqno, 0), "commit");
            checks.end(seqno);
        }
        checks.view(5);
        assert_eq!(checks.violations(), Vec::<String>::new());
        assert_eq!(checks.passed(3).len(), 3);
        assert_eq!(checks.most_in_flight(), 4);
    }

    #[test]
    fn each_disorder_is_found() {
        type Case = (&'static str, fn(&Checks));
        let cases: [Case; 6] = [
            ("depends on", |checks| {
                checks.begin(&meta(1, 0), "apply");
                checks.begin(&meta(2, 1), "apply");
            }),
            ("while 1 is inside", |checks| {
                checks.enter(1, "apply");
                checks.enter(2, "apply");
            }),
            ("after 2", |checks| {
                checks.enter(2, "apply");
                checks.leave(&meta(2, 0), "commit");
                checks.enter(1, "apply");
            }),
            ("inside was", |checks| checks.leave(&meta(2, 0), "commit")),
            ("run", |checks| {
                checks.begin(&meta(1, 0), "apply");
                checks.view(2);
            }),
            ("view at 1", |checks| {
                checks.view(2);
                checks.view(1);
            }),
        ];
        for (expected, case) in cases {
            let checks = Checks::default();
            case(&checks);
            let found = checks.violations();
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }
}
