//! The state that `ls-node` publishes. The front end's threads read it without waiting for a round of `ls-node`.

use crate::api::{Identity, LocalState, Pace};
use crate::io::liveness::Liveness;
use crate::member::{Confirmation, branch};
use crate::status::Status;
use lockstep_core::policy::Policy;
use lockstep_core::{Gtid, SEQNO_UNDEFINED, Seqno, Uuid};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The state after a round.
pub(crate) struct RoundState {
    pub(crate) state: LocalState,
    pub(crate) primary: bool,
    /// The last seqno handed to the server.
    pub(crate) delivered: Seqno,
    /// Seqnos above this one are lost.
    pub(crate) lost_after: Seqno,
    pub(crate) may_originate: bool,
    pub(crate) held_back: bool,
    pub(crate) pace: Option<Pace>,
    pub(crate) policy: Policy,
    /// For a device: since when its state is the present one.
    pub(crate) confirmations: Vec<Confirmation>,
}

/// The published state. Its locks are held for a few instructions each.
pub(crate) struct Published {
    state: AtomicU8,
    primary: AtomicBool,
    delivered: AtomicI64,
    lost_after: AtomicI64,
    may_originate: AtomicBool,
    held_back: AtomicBool,
    /// [`Pace`] in ns; 0 without a limit.
    pace_interval: AtomicU64,
    pace_longest_wait: AtomicU64,
    policy: Mutex<Policy>,
    liveness: Liveness,
    cert_keys: AtomicU64,
    cert_window: AtomicU64,
    identity: Mutex<Identity>,
    histories: Vec<Uuid>,
    /// See [`branch::own_forks`].
    forks: Mutex<Vec<Gtid>>,
    status: Mutex<Arc<Status>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state with this number.
fn local_state(number: u8) -> LocalState {
    match number {
        1 => LocalState::Joining,
        2 => LocalState::Donor,
        3 => LocalState::Joined,
        4 => LocalState::Synced,
        5 => LocalState::Error,
        _ => LocalState::Initialized,
    }
}

impl Published {
    pub(crate) fn new(policy: Policy, identity: Identity, histories: Vec<Uuid>) -> Published {
        Published {
            state: AtomicU8::new(0),
            primary: AtomicBool::new(false),
            delivered: AtomicI64::new(SEQNO_UNDEFINED),
            lost_after: AtomicI64::new(Seqno::MAX),
            may_originate: AtomicBool::new(true),
            held_back: AtomicBool::new(false),
            pace_interval: AtomicU64::new(0),
            pace_longest_wait: AtomicU64::new(0),
            policy: Mutex::new(policy),
            liveness: Liveness::default(),
            cert_keys: AtomicU64::new(0),
            cert_window: AtomicU64::new(0),
            identity: Mutex::new(identity),
            histories,
            forks: Mutex::default(),
            status: Mutex::new(Arc::new(Status::default())),
        }
    }

    /// Publishes the state that the front end's threads check before each step. Returns the previous [`LocalState`] if
    /// it has changed.
    pub(crate) fn set_round(&self, round: &RoundState) -> Option<LocalState> {
        self.primary.store(round.primary, Ordering::Release);
        self.delivered.store(round.delivered, Ordering::Release);
        self.lost_after.store(round.lost_after, Ordering::Release);
        self.may_originate.store(round.may_originate, Ordering::Release);
        self.held_back.store(round.held_back, Ordering::Release);
        let nanos =
            |time: fn(&Pace) -> Duration| round.pace.as_ref().map_or(0, |pace| time(pace).as_nanos() as u64);
        self.pace_longest_wait.store(nanos(|pace| pace.longest_wait), Ordering::Relaxed);
        self.pace_interval.store(nanos(|pace| pace.interval), Ordering::Relaxed);
        self.set_policy(round.policy);
        self.liveness.note(&round.confirmations);
        let before = local_state(self.state.swap(round.state as u8, Ordering::AcqRel));
        Some(before).filter(|before| *before != round.state)
    }

    pub(crate) fn confirmed(&self) -> Option<Seqno> {
        self.liveness.confirmed()
    }

    /// `ls-node` has ended.
    pub(crate) fn set_failed(&self) {
        self.liveness.note(&[]);
        self.primary.store(false, Ordering::Release);
        self.state.store(LocalState::Error as u8, Ordering::Release);
    }

    /// Keys in the certification index, and seqnos it looks back over.
    pub(crate) fn set_certification(&self, keys: u64, window: u64) {
        self.cert_keys.store(keys, Ordering::Relaxed);
        self.cert_window.store(window, Ordering::Relaxed);
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        *lock(&self.policy) = policy;
    }

    pub(crate) fn set_history(&self, history: Uuid, log: Uuid, forks: Vec<Gtid>) {
        // Before the history: a reader that knows that one finds its forks.
        *lock(&self.forks) = forks;
        let mut identity = lock(&self.identity);
        (identity.history, identity.log) = (history, log);
    }

    pub(crate) fn in_present_history(&self, position: Gtid) -> Gtid {
        let history = self.identity().history;
        branch::translated(&lock(&self.forks), history, position)
    }

    pub(crate) fn set_view_uuid(&self, view_uuid: Uuid) {
        lock(&self.identity).view_uuid = view_uuid;
    }

    pub(crate) fn set_status(&self, status: Status) {
        *lock(&self.status) = Arc::new(status);
    }

    pub(crate) fn state(&self) -> LocalState {
        local_state(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.primary.load(Ordering::Acquire)
    }

    pub(crate) fn delivered(&self) -> Seqno {
        self.delivered.load(Ordering::Acquire)
    }

    pub(crate) fn is_lost(&self, seqno: Seqno) -> bool {
        seqno > self.lost_after.load(Ordering::Acquire)
    }

    /// The position of the last delivery.
    pub(crate) fn delivered_at(&self) -> Gtid {
        Gtid { uuid: self.identity().history, seqno: self.delivered() }
    }

    pub(crate) fn may_originate(&self) -> bool {
        self.may_originate.load(Ordering::Acquire)
    }

    pub(crate) fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Acquire)
    }

    pub(crate) fn pace(&self) -> Option<Pace> {
        let interval = self.pace_interval.load(Ordering::Relaxed);
        (interval > 0).then(|| Pace {
            interval: Duration::from_nanos(interval),
            longest_wait: Duration::from_nanos(self.pace_longest_wait.load(Ordering::Relaxed)),
        })
    }

    pub(crate) fn policy(&self) -> Policy {
        *lock(&self.policy)
    }

    pub(crate) fn certification(&self) -> (u64, u64) {
        (self.cert_keys.load(Ordering::Relaxed), self.cert_window.load(Ordering::Relaxed))
    }

    pub(crate) fn identity(&self) -> Identity {
        *lock(&self.identity)
    }

    pub(crate) fn histories(&self) -> Vec<Uuid> {
        self.histories.clone()
    }

    pub(crate) fn status(&self) -> Arc<Status> {
        lock(&self.status).clone()
    }
}
