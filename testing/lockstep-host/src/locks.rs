//! Row locks. A local transaction waits for the holder of a row; an applier aborts a local holder.

use crate::checks::lock;
use crate::store::StreamId;
use lockstep_abi::{Seqno, TrxId};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A local transaction.
    Trx(TrxId),
    /// The applier of this seqno.
    Applier(Seqno),
    /// A streaming transaction of another member.
    Stream(StreamId),
}

/// The locks.
#[derive(Debug, Default)]
pub struct Locks {
    owners: Mutex<BTreeMap<String, Owner>>,
    changed: Condvar,
}

impl Locks {
    /// Takes `name` for `owner`, or says who has it.
    pub fn take(&self, name: &str, owner: Owner) -> Result<(), Owner> {
        let mut owners = lock(&self.owners);
        match owners.get(name) {
            Some(other) if *other != owner => Err(*other),
            _ => {
                owners.insert(name.to_owned(), owner);
                Ok(())
            }
        }
    }

    /// Gives everything back that `owner` holds.
    pub fn release(&self, owner: Owner) {
        lock(&self.owners).retain(|_, other| *other != owner);
        self.changed.notify_all();
    }

    /// Hands what `from` holds to `to`.
    pub fn hand_over(&self, from: Owner, to: Owner) {
        for owner in lock(&self.owners).values_mut().filter(|owner| **owner == from) {
            *owner = to;
        }
    }

    /// Wakes all who wait, to look at their reasons again.
    pub fn wake(&self) {
        // The lock makes sure that nobody is between looking and waiting.
        drop(lock(&self.owners));
        self.changed.notify_all();
    }

    /// Waits until `name` may be free, `give_up` says so, or `end`. Not longer than a while: look again.
    pub fn wait(&self, name: &str, owner: Owner, end: Instant, give_up: impl Fn() -> bool) {
        let owners = lock(&self.owners);
        let held = owners.get(name).is_some_and(|other| *other != owner);
        if held && !give_up() {
            let rest = end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
            drop(self.changed.wait_timeout(owners, rest).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Number of locks held.
    pub fn count(&self) -> usize {
        lock(&self.owners).len()
    }
}
