//! The queue of deliveries for the front end's threads.
//!
//! First in, first out, with one exception: a lost majority and a failed node are reported to the server at once, however
//! far behind it is. Such deliveries overtake. The overtaken ones stay, because they are committed: write-sets are still
//! applied. Deliveries that would make the server Primary again are held back until it is.

use crate::api::{Delivery, ViewInfo, ViewStatus};
use crate::applier_pool::{ApplierPool, Done};
use crate::load_estimates::DeliveryTime;
use lockstep_core::{Gtid, Seqno};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Inner {
    /// Deliveries that overtake the others.
    urgent: VecDeque<Delivery>,
    items: VecDeque<Delivery>,
    closed: bool,
    /// An exclusive delivery has been taken, and is not handled yet.
    alone: bool,
    /// That delivery is a Primary view.
    in_hand: bool,
    /// The last view that the server was shown, or will be from `urgent`, is a Primary one.
    primary: bool,
    /// Threads that sleep,
    waiting: usize,
    /// and those among them that have been called and are not awake yet: never more.
    called: usize,
    delivery_time: DeliveryTime,
    pool: ApplierPool,
}

/// Many threads take deliveries. `ls-node` alone adds them, and stops at [`Deliveries::full`].
#[derive(Default)]
pub(crate) struct Deliveries {
    inner: Mutex<Inner>,
    wake: Condvar,
    len: AtomicUsize,
    bytes: AtomicUsize,
    /// A delivery overtakes: threads that hold another one check this flag.
    overtakes: AtomicBool,
    /// There is no majority: see [`Deliveries::is_held`].
    held: AtomicBool,
    /// Some sleep while something waits: [`Deliveries::nudge`] is due soon. Changes under the lock only.
    watched: AtomicBool,
}

/// Beyond this many the engine stops delivering: the rest stays in the log.
const LIMIT: usize = 16 * 1024;
/// Or bytes.
const BYTES: usize = 64 << 20;

fn size(delivery: &Delivery) -> usize {
    match delivery {
        Delivery::Ordered(ordered) => ordered.writeset.data.len(),
        _ => 0,
    }
}

/// The seqno of a delivery that has one.
fn seqno(delivery: &Delivery) -> Option<Seqno> {
    match delivery {
        Delivery::Ordered(ordered) => Some(ordered.seqno),
        Delivery::View { info, in_log: true } => Some(info.gtid.seqno),
        _ => None,
    }
}

/// A view that tells the server where it stands: Primary, and no entry of the log.
fn is_position(delivery: &Delivery) -> bool {
    matches!(delivery, Delivery::View { info, in_log: false } if info.status == ViewStatus::Primary)
}

impl Inner {
    /// Adds a delivery at its place in the order.
    fn add(&mut self, delivery: Delivery, held: &mut bool) {
        match delivery {
            Delivery::View { info, in_log: false } => match info.status {
                ViewStatus::NonPrimary => self.lose(info, held),
                ViewStatus::Primary => self.regain(info, held),
                ViewStatus::Disconnected => {
                    // The removed deliveries are no entries of the log, and are obsolete.
                    self.items.retain(|item| seqno(item).is_some());
                    self.urgent.retain(|item| !is_position(item));
                    *held = false;
                    self.items.push_back(Delivery::View { info, in_log: false });
                }
            },
            Delivery::Failed(_) | Delivery::StateFailed(_) | Delivery::Inconsistent(_) => {
                self.urgent.push_back(delivery)
            }
            other => self.items.push_back(other),
        }
    }

    /// The majority is lost. A server that has not seen a Primary view is not notified.
    fn lose(&mut self, info: ViewInfo, held: &mut bool) {
        *held = true;
        self.items.retain(|item| !is_position(item) && !matches!(item, Delivery::Synced));
        // An earlier regain that was not taken yet is void, too.
        self.urgent.retain(|item| !is_position(item));
        if std::mem::take(&mut self.primary) || self.in_hand {
            self.urgent.push_back(Delivery::View { info, in_log: false });
        }
    }

    /// The majority is back: queues the view at the position before the backlog.
    fn regain(&mut self, mut info: ViewInfo, held: &mut bool) {
        *held = false;
        if self.items.iter().any(|item| matches!(item, Delivery::Connected(_))) {
            self.items.push_back(Delivery::View { info, in_log: false });
            return;
        }
        // A queued view of the log serves the same purpose, and `info` has the members after that view.
        if self.items.iter().any(|item| matches!(item, Delivery::View { in_log: true, .. })) {
            return;
        }
        if let Some(next) = self.items.iter().find_map(seqno) {
            info.gtid.seqno = next - 1;
        }
        self.urgent.push_back(Delivery::View { info, in_log: false });
    }

    /// Whether the first one waits for a majority.
    fn waits(&self) -> bool {
        match self.items.front() {
            Some(Delivery::View { info, .. }) => info.status == ViewStatus::Primary,
            Some(Delivery::Synced | Delivery::Donate { .. }) => true,
            _ => false,
        }
    }

    /// A thread does not sleep any more, called or not.
    fn woke(&mut self) {
        self.waiting -= 1;
        self.called = self.called.saturating_sub(1).min(self.waiting);
    }

    /// How many threads may take what is first, as far as those at work are concerned. At the end all come, to hear of it.
    fn vacancies(&self) -> usize {
        match self.items.front() {
            Some(Delivery::Ordered(ordered)) if !self.closed => self.pool.vacancies(ordered.depends_on),
            _ => usize::MAX,
        }
    }

    /// Whether a thread sleeps that could take a delivery, after `called` threads have been woken.
    fn left_sleeping(&self, called: usize, held: bool) -> bool {
        let may_be_taken = !(self.items.is_empty() || self.alone || held && self.waits());
        may_be_taken && self.waiting > called.max(self.called)
    }

    fn took(&mut self, delivery: &Delivery) {
        self.alone = !matches!(delivery, Delivery::Ordered(_) | Delivery::Closed);
        if let Delivery::View { info, .. } = delivery {
            self.in_hand = info.status == ViewStatus::Primary;
            self.primary &= self.in_hand;
        }
        if let Delivery::Ordered(ordered) = delivery {
            self.pool.took(ordered.seqno);
        }
    }
}

impl Deliveries {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn open(&self) {
        let mut inner = self.lock();
        let (waiting, called, pool) = (inner.waiting, inner.called, std::mem::take(&mut inner.pool));
        *inner = Inner { waiting, called, pool, ..Inner::default() };
        self.bytes.store(0, Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        self.overtakes.store(false, Ordering::Release);
        self.held.store(false, Ordering::Release);
        self.watched.store(false, Ordering::Release);
    }

    /// Adds a batch: one lock, and no more wake-ups than it is worth. Some may sleep on while something waits:
    /// [`Deliveries::is_watched`].
    pub(crate) fn push(&self, batch: &mut Vec<Delivery>) {
        if batch.is_empty() {
            return;
        }
        let mut inner = self.lock();
        let plain = batch.iter().all(|d| matches!(d, Delivery::Ordered(_)));
        self.bytes.fetch_add(batch.iter().map(size).sum(), Ordering::Relaxed);
        let mut wake = inner.waiting;
        if plain {
            inner.items.extend(batch.drain(..));
            wake = (1 + inner.delivery_time.helpers(inner.items.len() - 1)).min(inner.vacancies());
        } else {
            let mut held = self.held.load(Ordering::Relaxed);
            for delivery in batch.drain(..) {
                inner.add(delivery, &mut held);
            }
            self.held.store(held, Ordering::Release);
            self.overtakes.store(!inner.urgent.is_empty(), Ordering::Release);
            // Held-back deliveries may be handed out now: wake all.
        }
        self.len.store(inner.items.len(), Ordering::Relaxed);
        let left = inner.left_sleeping(wake, self.is_held());
        if left {
            self.watched.store(true, Ordering::Release);
        }
        self.call(inner, wake);
    }

    /// Whether [`Deliveries::nudge`] is to be called, some time from now.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Wakes one more sleeping thread if the awake ones have not taken the queued deliveries. Returns whether to call this
    /// again.
    pub(crate) fn nudge(&self) -> bool {
        let mut inner = self.lock();
        let mut wanted = 1 + inner.called;
        if inner.left_sleeping(0, self.is_held()) {
            inner.pool.nudged();
            wanted = wanted.min(inner.vacancies());
        }
        let left = inner.left_sleeping(wanted, self.is_held());
        self.watched.store(left, Ordering::Release);
        if inner.left_sleeping(0, self.is_held()) {
            self.call(inner, wanted);
        }
        left
    }

    /// Wakes threads until this number of them has been called.
    fn call(&self, mut inner: MutexGuard<'_, Inner>, wanted: usize) {
        let more = wanted.min(inner.waiting).saturating_sub(inner.called);
        inner.called += more;
        drop(inner);
        for _ in 0..more {
            self.wake.notify_one();
        }
    }

    /// Closes the queue: queued deliveries are still taken, then every thread gets [`Delivery::Closed`].
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        self.held.store(false, Ordering::Release);
        self.call(inner, usize::MAX);
    }

    /// Closes the queue of a failed node. The front end gets the reason ahead of all queued deliveries, and at the end a
    /// final view for its server. No effect on a closed queue.
    pub(crate) fn fail(&self, text: String, at: Gtid) {
        if !self.lock().closed {
            let info = ViewInfo::disconnected(at);
            self.push(&mut vec![Delivery::Failed(text), Delivery::View { info, in_log: false }]);
        }
        self.close();
    }

    /// The exclusive delivery taken last has been handled.
    pub(crate) fn handled(&self) {
        let mut inner = self.lock();
        inner.alone = false;
        inner.primary |= std::mem::take(&mut inner.in_hand);
        self.call(inner, usize::MAX);
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The bytes of all queued write-sets.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_half_full(&self) -> bool {
        self.len() == LIMIT / 2
    }

    pub(crate) fn full(&self) -> bool {
        self.len() >= LIMIT || self.bytes.load(Ordering::Relaxed) >= BYTES
    }

    /// Whether the server knows, or is about to learn, that there is no majority. Then a Primary view that was taken before
    /// must not reach the server.
    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Whether a queued delivery overtakes those that were taken before.
    pub(crate) fn overtakes(&self) -> bool {
        self.overtakes.load(Ordering::Acquire)
    }

    /// The server has received its state from another member, and with it a Primary view.
    pub(crate) fn filled(&self) {
        self.lock().primary = true;
    }

    /// The delivery that overtakes the one in a thread's hands, to be handled first. `alone`: the one in its hands is
    /// exclusive, so no other thread takes anything meanwhile. The caller calls [`Deliveries::handled`] after it unless
    /// `alone`. Never a Primary view: that comes after the deliveries taken.
    pub(crate) fn overtaking(&self, alone: bool) -> Option<Delivery> {
        let mut inner = self.lock();
        if (inner.alone && !alone) || inner.urgent.front().is_none_or(is_position) {
            return None;
        }
        let item = inner.urgent.pop_front()?;
        let in_hand = inner.in_hand;
        inner.took(&item);
        inner.in_hand = in_hand;
        self.overtakes.store(!inner.urgent.is_empty(), Ordering::Release);
        Some(item)
    }

    /// The thread with this write-set in its hands takes no more.
    pub(crate) fn gone(&self, seqno: Seqno) {
        let mut inner = self.lock();
        inner.pool.gone(seqno);
        let wanted = inner.vacancies().min(1);
        if inner.left_sleeping(0, self.is_held()) {
            self.call(inner, wanted);
        }
    }

    /// The next one. `None` after `timeout`. `last`: the write-set that the thread took before. `watch` is
    /// called where [`Deliveries::is_watched`] becomes true.
    pub(crate) fn next(
        &self,
        timeout: Option<Duration>,
        last: Option<Done>,
        watch: impl Fn(),
    ) -> Option<Delivery> {
        let until = timeout.map(|t| Instant::now() + t);
        let mut inner = self.lock();
        if let Some(last) = last {
            inner.delivery_time.took(last.time);
            inner.pool.back(&last);
        }
        loop {
            if !inner.alone {
                if let Some(item) = inner.urgent.pop_front() {
                    inner.took(&item);
                    self.overtakes.store(!inner.urgent.is_empty(), Ordering::Release);
                    return Some(item);
                }
                if !(self.held.load(Ordering::Relaxed) && inner.waits())
                    && inner.vacancies() > 0
                    && let Some(item) = inner.items.pop_front()
                {
                    inner.took(&item);
                    self.len.store(inner.items.len(), Ordering::Relaxed);
                    self.bytes.fetch_sub(size(&item), Ordering::Relaxed);
                    let helpers = if inner.alone {
                        0
                    } else {
                        inner.delivery_time.helpers(inner.items.len()).min(inner.vacancies())
                    };
                    self.call(inner, helpers);
                    return Some(item);
                }
            }
            if inner.closed && inner.items.is_empty() && inner.urgent.is_empty() && !inner.alone {
                return Some(Delivery::Closed);
            }
            inner.waiting += 1;
            if inner.vacancies() == 0 && !self.watched.swap(true, Ordering::AcqRel) {
                // Those at work may all be stuck before one of them comes back.
                watch();
            }
            inner = match until {
                None => self.wake.wait(inner).unwrap_or_else(|poisoned| poisoned.into_inner()),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        inner.woke();
                        return None;
                    }
                    self.wake.wait_timeout(inner, left).unwrap_or_else(|poisoned| poisoned.into_inner()).0
                }
            };
            inner.woke();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Ordered;
    use crate::applier_pool::Spent;
    use lockstep_core::writeset::WriteSet;
    use lockstep_core::{EntryKind, Uuid};

    fn view(status: ViewStatus, seqno: Seqno, in_log: bool) -> Delivery {
        let gtid = Gtid { uuid: Uuid([1; 16]), seqno };
        let info = ViewInfo {
            gtid,
            before: gtid.seqno,
            number: 1,
            status,
            members: Vec::new(),
            my_index: None,
            time: None,
        };
        Delivery::View { info, in_log }
    }

    fn write(seqno: Seqno) -> Delivery {
        Delivery::Ordered(Ordered {
            seqno,
            kind: EntryKind::WriteSet,
            pass: true,
            depends_on: 0,
            serial: false,
            origin: Uuid([2; 16]),
            time: 0,
            writeset: WriteSet::void(),
        })
    }

    /// Takes all that may be taken, and handles it.
    fn taken(queue: &Deliveries, most: usize) -> Vec<String> {
        let mut all = Vec::new();
        while all.len() < most
            && let Some(item) = queue.next(Some(Duration::ZERO), None, || ())
        {
            all.push(match &item {
                Delivery::Ordered(ordered) => format!("{}", ordered.seqno),
                Delivery::View { info, in_log } => {
                    format!("{:?}{}{}", info.status, if *in_log { "=" } else { "@" }, info.gtid.seqno)
                }
                Delivery::Closed => break,
                other => format!("{other:?}"),
            });
            if !matches!(item, Delivery::Ordered(_)) {
                queue.handled();
            }
        }
        all
    }

    /// Shown a Primary view at 3; 4 to 6, a view and 8 wait.
    fn behind() -> Deliveries {
        let queue = Deliveries::default();
        queue.open();
        queue.push(&mut vec![view(ViewStatus::Primary, 3, false)]);
        assert_eq!(taken(&queue, 9), ["Primary@3"]);
        queue.push(&mut vec![write(4), write(5), write(6)]);
        queue
    }

    #[test]
    fn loss_overtakes_queue_up_to_next_primary_view() {
        let queue = behind();
        queue.push(&mut vec![view(ViewStatus::Primary, 7, true), write(8), Delivery::Synced]);
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 8, false)]);
        assert!(queue.is_held() && queue.overtakes());
        assert_eq!(taken(&queue, 9), ["NonPrimary@8", "4", "5", "6"]);
        // The view of the log that waits says that it is Primary again: no other is wanted.
        queue.push(&mut vec![view(ViewStatus::Primary, 8, false)]);
        assert!(!queue.is_held());
        assert_eq!(taken(&queue, 9), ["Primary=7", "8"]);
    }

    #[test]
    fn position_is_start_of_backlog() {
        let queue = behind();
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 6, false)]);
        assert_eq!(taken(&queue, 2), ["NonPrimary@6", "4"]);
        queue.push(&mut vec![view(ViewStatus::Primary, 6, false), view(ViewStatus::Primary, 6, false)]);
        assert_eq!(taken(&queue, 9), ["Primary@4", "Primary@4", "5", "6"]);
    }

    #[test]
    fn lost_again_before_it_was_shown_that_it_is_back() {
        let queue = behind();
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 6, false)]);
        assert_eq!(taken(&queue, 1), ["NonPrimary@6"]);
        queue.push(&mut vec![view(ViewStatus::Primary, 6, false)]);
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 6, false)]);
        assert_eq!(taken(&queue, 9), ["4", "5", "6"]);
        // Nor is a server told that has not been shown anything yet.
        let queue = Deliveries::default();
        queue.open();
        queue.push(&mut vec![view(ViewStatus::Primary, 3, false)]);
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 3, false)]);
        assert_eq!(taken(&queue, 9), Vec::<String>::new());
        queue.push(&mut vec![view(ViewStatus::Primary, 3, false)]);
        assert_eq!(taken(&queue, 9), ["Primary@3"]);
    }

    #[test]
    fn thread_holding_view_is_notified_of_loss_first() {
        let queue = behind();
        queue.push(&mut vec![view(ViewStatus::Primary, 7, true)]);
        for seqno in 4..=6 {
            assert_eq!(taken(&queue, 1), [seqno.to_string()]);
        }
        let in_hand = queue.next(Some(Duration::ZERO), None, || ());
        assert!(matches!(in_hand, Some(Delivery::View { in_log: true, .. })));
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 7, false)]);
        assert!(queue.next(Some(Duration::ZERO), None, || ()).is_none() && queue.overtaking(false).is_none());
        assert!(matches!(queue.overtaking(true), Some(Delivery::View { .. })));
        assert!(queue.is_held(), "the one in hand waits");
        queue.push(&mut vec![view(ViewStatus::Primary, 7, false)]);
        assert!(!queue.is_held() && queue.overtaking(true).is_none());
        queue.handled();
        // It is Primary by the view that was in hand: the next loss is told.
        queue.push(&mut vec![view(ViewStatus::NonPrimary, 7, false)]);
        assert_eq!(taken(&queue, 9), ["NonPrimary@7"]);
    }

    /// Two threads that sleep are numbers here: a real one may wake without a call, if the call comes just before it
    /// sleeps.
    #[test]
    fn nudge_wakes_second_thread_if_first_is_stuck() {
        let queue = behind();
        queue.lock().delivery_time.took(Duration::from_micros(1));
        assert_eq!(taken(&queue, 9), ["4", "5", "6"]);
        queue.lock().waiting = 2;
        let called = || queue.lock().called;
        let wake = || {
            queue.lock().woke();
            queue.next(Some(Duration::ZERO), None, || ()).as_ref().and_then(super::seqno)
        };
        queue.push(&mut vec![write(7), write(8)]);
        assert_eq!(called(), 1, "two short ones are one's work");
        assert!(queue.is_watched(), "one thread is left asleep");
        assert_eq!(wake(), Some(7));
        assert_eq!(called(), 0);
        // The thread never comes back with it.
        assert!(!queue.nudge(), "nobody else is there to be called");
        assert_eq!(called(), 1);
        assert_eq!(wake(), Some(8));
        assert!(!queue.nudge());
        assert_eq!((called(), queue.is_watched()), (0, false));
    }

    /// The report on a write-set that did not wait.
    fn quick(seqno: Seqno) -> Option<Done> {
        Some(Done {
            seqno,
            time: Duration::from_micros(10),
            spent: Some(Spent { worked: Duration::from_micros(10), waited: Duration::ZERO }),
        })
    }

    /// It is known that write-sets do not wait, and one after the other is taken by those who come back.
    fn limited() -> (Deliveries, usize) {
        let queue = behind();
        for seqno in 4..=6 {
            assert_eq!(
                queue.next(None, quick(seqno - 1), || ()).as_ref().and_then(super::seqno),
                Some(seqno)
            );
        }
        assert!(queue.next(Some(Duration::ZERO), quick(6), || ()).is_none());
        let most = queue.lock().pool.vacancies(0);
        assert!(most <= std::thread::available_parallelism().map_or(1, usize::from));
        (queue, most)
    }

    #[test]
    fn working_threads_are_limited_to_processors() {
        let (queue, most) = limited();
        let first = 7..7 + most as Seqno;
        queue.push(&mut (7..20 + most as Seqno).map(write).collect());
        let take = |last| queue.next(Some(Duration::ZERO), last, || ()).as_ref().and_then(seqno);
        assert!(first.clone().all(|seqno| take(None) == Some(seqno)));
        assert!(!queue.is_watched());
        assert_eq!(take(None), None, "it is of no use");
        assert!(queue.is_watched(), "for nobody may come back");
        // One that comes back takes the next.
        let next = first.end;
        assert_eq!(take(quick(7)), Some(next));
        assert_eq!(take(None), None);
        // Then none does: each nudge lets somebody go who sleeps.
        let (sender, received) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (queue, sender) = (&queue, sender.clone());
                scope.spawn(move || {
                    let item = queue.next(None, None, || ());
                    sender.send(item.as_ref().and_then(seqno)).unwrap();
                });
            }
            while queue.lock().waiting < 2 {
                std::thread::yield_now();
            }
            assert!(queue.nudge() && received.try_recv().is_err(), "one has come back since");
            assert!(queue.nudge());
            assert_eq!(received.recv().unwrap(), Some(next + 1));
            assert!(received.try_recv().is_err());
            queue.nudge();
            assert_eq!(received.recv().unwrap(), Some(next + 2));
        });
    }

    #[test]
    fn sleeping_thread_wakes_when_another_ends() {
        let (queue, most) = limited();
        queue.push(&mut (7..20 + most as Seqno).map(write).collect());
        (0..most).for_each(|_| drop(queue.next(None, None, || ())));
        let (sender, received) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let queue = &queue;
            scope.spawn(move || {
                while let Some(item) = queue.next(None, None, || ()) {
                    let end = matches!(item, Delivery::Closed);
                    sender.send(seqno(&item)).unwrap();
                    if end {
                        break;
                    }
                }
            });
            let sleeps = || {
                while queue.lock().waiting == 0 {
                    std::thread::yield_now();
                }
            };
            sleeps();
            queue.gone(7);
            assert_eq!(received.recv().unwrap(), Some(7 + most as Seqno));
            sleeps();
            assert!(received.try_recv().is_err());
            queue.close();
            let rest: Vec<_> = received.iter().collect();
            assert_eq!((rest.len(), rest.last()), (13, Some(&None)));
        });
    }

    #[test]
    fn dropped_node_delivers_failure_and_final_view() {
        let queue = behind();
        let at = Gtid { uuid: Uuid([1; 16]), seqno: 6 };
        queue.push(&mut vec![Delivery::Synced]);
        queue.fail("gone".into(), at);
        queue.fail("gone".into(), at);
        assert_eq!(taken(&queue, 9), ["Failed(\"gone\")", "4", "5", "6", "Disconnected@6"]);
        assert!(matches!(queue.next(None, None, || ()), Some(Delivery::Closed)));
        // One that had left before has nothing to tell.
        let queue = behind();
        queue.push(&mut vec![view(ViewStatus::Disconnected, 6, false)]);
        queue.close();
        queue.fail("gone".into(), at);
        assert_eq!(taken(&queue, 9), ["4", "5", "6", "Disconnected@6"]);
    }

    #[test]
    fn close_delivers_ordered_entries_first() {
        let queue = behind();
        queue.push(&mut vec![Delivery::Synced, view(ViewStatus::NonPrimary, 6, false)]);
        queue.push(&mut vec![view(ViewStatus::Disconnected, 6, false)]);
        queue.close();
        assert_eq!(taken(&queue, 9), ["NonPrimary@6", "4", "5", "6", "Disconnected@6"]);
        assert!(matches!(queue.next(None, None, || ()), Some(Delivery::Closed)));
    }
}
