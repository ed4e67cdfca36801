//! The states a server goes through, as the real one insists on them: a provider whose callbacks come in an
//! order that does not fit is found out here.

use lockstep_abi::{Gtid, MemberInfo, Uuid, ViewHead};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The server's state in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerState {
    /// Not connected.
    Disconnected,
    /// The database may start now: it has its state, or is getting none.
    Initializing,
    /// The database has started.
    Initialized,
    /// Connected to a group.
    Connected,
    /// Needs state.
    Joiner,
    /// Has state.
    Joined,
    /// Gives state away.
    Donor,
    /// In step with the group.
    Synced,
    /// Leaving.
    Disconnecting,
}

impl ServerState {
    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ServerState::Disconnected => "disconnected",
            ServerState::Initializing => "initializing",
            ServerState::Initialized => "initialized",
            ServerState::Connected => "connected",
            ServerState::Joiner => "joiner",
            ServerState::Joined => "joined",
            ServerState::Donor => "donor",
            ServerState::Synced => "synced",
            ServerState::Disconnecting => "disconnecting",
        }
    }

    /// The state of that name.
    pub fn named(name: &str) -> Option<ServerState> {
        use ServerState::*;
        [Disconnected, Initializing, Initialized, Connected, Joiner, Joined, Donor, Synced, Disconnecting]
            .into_iter()
            .find(|state| state.name() == name)
    }

    /// Whether the real server allows this step.
    pub fn may_become(self, next: ServerState) -> bool {
        use ServerState::*;
        match self {
            Disconnected => matches!(next, Initializing | Connected),
            Initializing => matches!(next, Disconnected | Initialized | Disconnecting),
            Initialized => matches!(next, Disconnected | Connected | Joined | Disconnecting),
            Connected => matches!(next, Disconnected | Connected | Joiner | Synced | Disconnecting),
            Joiner => matches!(next, Disconnected | Initializing | Joined | Disconnecting),
            Joined => matches!(next, Disconnected | Connected | Donor | Synced | Disconnecting),
            Donor => matches!(next, Disconnected | Connected | Joined | Disconnecting),
            Synced => matches!(next, Disconnected | Connected | Joined | Donor | Disconnecting),
            Disconnecting => matches!(next, Disconnected),
        }
    }
}

/// A view as the server keeps it.
#[derive(Clone, Debug)]
pub struct View {
    /// Everything but the members. `my_idx` is the server's own idea once it knows its id.
    pub head: ViewHead,
    /// The members.
    pub members: Vec<MemberInfo>,
}

impl View {
    /// The view that tells the server that it has left.
    pub fn is_final(&self) -> bool {
        self.members.is_empty() && self.head.my_idx < 0
    }

    /// Whether `id` is in it.
    pub fn has(&self, id: &Uuid) -> bool {
        self.members.iter().any(|member| member.id == *id)
    }

    /// Whether both have the same members, in any order.
    pub fn same_members(&self, other: &View) -> bool {
        self.members.len() == other.members.len() && self.members.iter().all(|member| other.has(&member.id))
    }
}

/// The data of the state machine.
#[derive(Debug)]
pub struct Machine {
    /// Current state.
    pub state: ServerState,
    /// The states before it, oldest first.
    pub past: Vec<ServerState>,
    /// The database has started.
    pub initialized: bool,
    /// The first `synced` has been.
    pub synced_once: bool,
    /// This start begins a new cluster.
    pub bootstrap: bool,
    /// Own id in the views; undefined while disconnected.
    pub id: Uuid,
    /// Position at which this server connected.
    pub connected_at: Gtid,
    /// A view has said that the majority is lost.
    pub was_cut_off: bool,
    /// Current view.
    pub view: Option<View>,
    /// The primary view before it.
    pub previous_primary: Option<View>,
    /// Number of views seen.
    pub views: u64,
    /// Streaming transactions have been taken up from storage.
    pub streams_recovered: bool,
    waiters: BTreeMap<ServerState, u32>,
}

/// The state machine: a lock and a condition.
#[derive(Debug)]
pub struct States {
    machine: Mutex<Machine>,
    changed: Condvar,
}

/// A wait ended without the state being reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitFailed {
    /// The state in which the waiting ended.
    pub at: ServerState,
}

impl Default for States {
    fn default() -> States {
        States {
            machine: Mutex::new(Machine {
                state: ServerState::Disconnected,
                past: Vec::new(),
                initialized: false,
                synced_once: false,
                bootstrap: false,
                id: Uuid::UNDEFINED,
                connected_at: Gtid::UNDEFINED,
                was_cut_off: false,
                view: None,
                previous_primary: None,
                views: 0,
                streams_recovered: false,
                waiters: BTreeMap::new(),
            }),
            changed: Condvar::new(),
        }
    }
}

impl States {
    /// Locks the machine.
    pub fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes to `next`. The error text names a step that the real server does not allow (the step is taken
    /// nevertheless, as in a release build). A thread waiting for `next` sees it before it can change again.
    pub fn step<'a>(
        &self,
        mut machine: MutexGuard<'a, Machine>,
        next: ServerState,
    ) -> (MutexGuard<'a, Machine>, Result<(), String>) {
        let from = machine.state;
        let verdict = if from.may_become(next) {
            Ok(())
        } else {
            Err(format!("the server may not go from {} to {}", from.name(), next.name()))
        };
        machine.past.push(from);
        machine.state = next;
        self.changed.notify_all();
        while machine.state == next && machine.waiters.get(&next).is_some_and(|count| *count > 0) {
            machine = self.changed.wait(machine).unwrap_or_else(PoisonError::into_inner);
        }
        (machine, verdict)
    }

    /// Waits until the state is `state`; fails after `limit`, or when the server disconnects meanwhile.
    pub fn wait(&self, state: ServerState, limit: Duration) -> Result<(), WaitFailed> {
        let machine = self.lock();
        self.wait_in(machine, state, limit).1
    }

    /// As [`States::wait`], with the lock held at both ends.
    pub fn wait_in<'a>(
        &self,
        mut machine: MutexGuard<'a, Machine>,
        state: ServerState,
        limit: Duration,
    ) -> (MutexGuard<'a, Machine>, Result<(), WaitFailed>) {
        use ServerState::{Disconnected, Disconnecting};
        let end = Instant::now() + limit;
        *machine.waiters.entry(state).or_default() += 1;
        let mut left_start = machine.state != Disconnected;
        let verdict = loop {
            let at = machine.state;
            if at == state {
                break Ok(());
            }
            left_start |= at != Disconnected;
            let leaving = at == Disconnecting || (at == Disconnected && left_start);
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() || (leaving && !matches!(state, Disconnected | Disconnecting)) {
                break Err(WaitFailed { at });
            }
            machine = self.changed.wait_timeout(machine, rest).unwrap_or_else(PoisonError::into_inner).0;
        };
        if let Some(count) = machine.waiters.get_mut(&state) {
            *count -= 1;
        }
        self.changed.notify_all();
        (machine, verdict)
    }

    /// Waits until `found` says so; false after `limit`.
    pub fn wait_for(&self, limit: Duration, mut found: impl FnMut(&Machine) -> bool) -> bool {
        let end = Instant::now() + limit;
        let mut machine = self.lock();
        while !found(&machine) {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            // Views change without a change of state: look again now and then.
            let rest = rest.min(Duration::from_millis(20));
            machine = self.changed.wait_timeout(machine, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn step_out_of_order_is_reported_and_accepted() {
        let states = States::default();
        let (machine, verdict) = states.step(states.lock(), ServerState::Connected);
        assert_eq!(verdict, Ok(()));
        let (machine, verdict) = states.step(machine, ServerState::Donor);
        assert!(verdict.unwrap_err().contains("from connected to donor"));
        assert_eq!(machine.state, ServerState::Donor);
    }

    #[test]
    fn waiter_sees_state_before_change() {
        let states = Arc::new(States::default());
        let waiter = {
            let states = Arc::clone(&states);
            std::thread::spawn(move || states.wait(ServerState::Connected, Duration::from_secs(5)))
        };
        while states.lock().waiters.get(&ServerState::Connected).is_none_or(|count| *count == 0) {
            std::thread::yield_now();
        }
        let (machine, _) = states.step(states.lock(), ServerState::Connected);
        let (machine, _) = states.step(machine, ServerState::Synced);
        drop(machine);
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(
            states.wait(ServerState::Joined, Duration::from_millis(1)),
            Err(WaitFailed { at: ServerState::Synced })
        );
    }
}
