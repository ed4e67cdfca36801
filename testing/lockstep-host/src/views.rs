//! Connection, views and synchronisation, step by step as the server takes them.

use crate::checks::lock;
use crate::host::{Host, RecvCtx, Stream, TIMEOUT};
use crate::locks::Owner;
use crate::log;
use crate::state::{Machine, ServerState, View};
use lockstep_abi::*;
use std::sync::MutexGuard;

impl Host {
    /// A callback must come on the thread whose context it brings.
    pub(crate) fn check_thread(&self, ctx: &RecvCtx, what: &str) {
        self.checks.ensure(ctx.thread == std::thread::current().id(), || {
            format!("the {what} callback came on another thread than its context's")
        });
    }

    /// The first primary view is known.
    pub(crate) fn on_connect(&self, view: &View) -> bool {
        let Some(own) = usize::try_from(view.head.my_idx).ok().and_then(|at| view.members.get(at)) else {
            self.checks.violation(format!("connected to a view without this member: {:?}", view.head));
            return false;
        };
        let mut machine = self.states.lock();
        if !machine.id.is_undefined() && machine.id != own.id {
            self.checks
                .violation(format!("connected as {}, was {} and not disconnected", own.id, machine.id));
            return false;
        }
        machine.id = own.id;
        machine.connected_at = view.head.state_id;
        drop(self.step(machine, ServerState::Connected));
        true
    }

    /// A view in its place in the order.
    pub(crate) fn on_view(&self, view: View) -> bool {
        self.holds.pass("view");
        log::event(
            "view",
            &format!(
                "{} {} {} members={}",
                view.head.status,
                view.head.view,
                view.head.state_id,
                view.members.iter().map(MemberInfo::name).collect::<Vec<_>>().join(",")
            ),
        );
        let mut machine = self.states.lock();
        if let Some(before) = machine.view.take_if(|before| before.head.status == ViewStatus::PRIMARY) {
            machine.previous_primary = Some(before);
        }
        machine.view = Some(view.clone());
        machine.views += 1;
        let went = match view.head.status {
            ViewStatus::PRIMARY => self.on_primary(machine, &view),
            ViewStatus::NON_PRIMARY if !view.is_final() => {
                machine.was_cut_off = true;
                if machine.state != ServerState::Disconnecting {
                    drop(self.step(machine, ServerState::Connected));
                }
                true
            }
            ViewStatus::NON_PRIMARY | ViewStatus::DISCONNECTED => {
                self.checks.ensure(view.is_final(), || format!("a disconnected view has members: {view:?}"));
                self.close_streams();
                let mut machine = self.step(machine, ServerState::Disconnected);
                machine.streams_recovered = false;
                machine.id = Uuid::UNDEFINED;
                true
            }
            other => {
                self.checks.violation(format!("a view of unknown status {other:?}"));
                false
            }
        };
        if went && view.head.status == ViewStatus::PRIMARY {
            self.log_view(&view);
        }
        went
    }

    fn on_primary<'a>(&'a self, mut machine: MutexGuard<'a, Machine>, view: &View) -> bool {
        self.checks.ensure(!view.is_final(), || "a primary view without this member".into());
        // Views of the past, from the log, may lack this member, or have it under another id; so may those that the
        // others had while it was cut off.
        let past = view.head.state_id.seqno < machine.connected_at.seqno;
        self.checks.ensure(view.head.my_idx >= 0 || past || machine.was_cut_off, || {
            format!("a primary view without this member: {view:?}")
        });
        if machine.state == ServerState::Connected {
            machine = self.step(machine, ServerState::Joiner);
            let was_initialized = machine.initialized;
            machine = self.step(machine, ServerState::Initializing);
            if was_initialized {
                machine = self.step(machine, ServerState::Initialized);
            }
        }
        if !machine.initialized {
            let (back, waited) = self.states.wait_in(machine, ServerState::Initialized, TIMEOUT);
            machine = back;
            if waited.is_err() {
                return false;
            }
        }
        if machine.bootstrap {
            // Whatever position the database had belongs to an older history.
            self.with_store(|store| store.checkpoint(Gtid::UNDEFINED));
            self.checks.jump(SEQNO_UNDEFINED);
            machine.bootstrap = false;
        }
        let same_again = machine.previous_primary.as_ref().is_some_and(|before| before.same_members(view));
        let recovered = std::mem::replace(&mut machine.streams_recovered, true);
        drop(machine);
        if !recovered {
            self.recover_streams();
        }
        self.close_orphans(view, same_again);

        let machine = self.states.lock();
        if machine.state < ServerState::Joined && view.head.state_id.seqno >= machine.connected_at.seqno {
            drop(self.step(machine, ServerState::Joined));
        }
        true
    }

    /// Stores the view and moves the position to it.
    fn log_view(&self, view: &View) {
        let at = view.head.state_id;
        let position = self.read_store(|store| store.position());
        let (status, last) = self.called().last_committed_id();
        self.checks.ensure(status == Status::OK, || format!("last_committed_id returned {status} in a view"));
        if position.uuid != at.uuid {
            self.checks.jump(at.seqno - 1);
        } else {
            self.checks.ensure(position.seqno <= at.seqno, || {
                format!("the view at {at} would move the database back from {position}")
            });
            // The server skips the checkpoint where they are equal, and may then wait for it for ever.
            self.checks.ensure(last.seqno < at.seqno || position.seqno == at.seqno, || {
                format!("last_committed_id is {last} already inside the view at {at}")
            });
        }
        self.checks.view(at.seqno);
        self.with_store(|store| store.store_view(view).and_then(|()| store.checkpoint(at)));
    }

    /// Takes open streaming transactions up from storage.
    pub(crate) fn recover_streams(&self) {
        for (id, parts) in self.read_store(|store| store.streams()) {
            let mut stream = Stream { ops: Vec::new(), fragments: parts.len() };
            for (_, changes) in parts {
                for name in changes.lock_names() {
                    if let Err(other) = self.locks.take(&name, Owner::Stream(id)) {
                        self.checks
                            .violation(format!("recovered stream {id:?}: {name} is held by {other:?}"));
                    }
                }
                stream.ops.extend(changes.ops);
            }
            lock(&self.streams).insert(id, stream);
        }
    }

    /// Rolls back streaming transactions whose origin is not in the view; all of them if the same members
    /// come together again, because nobody knows what happened between.
    fn close_orphans(&self, view: &View, same_again: bool) {
        if view.head.my_idx < 0 || same_again {
            let own: Vec<_> = lock(&self.trxs).values().cloned().collect();
            for trx in own {
                self.abort_stream_in_total_order(&trx, view.head.view);
            }
        }
        let gone: Vec<_> =
            lock(&self.streams).keys().filter(|id| same_again || !view.has(&id.node)).copied().collect();
        for id in gone {
            lock(&self.streams).remove(&id);
            self.locks.release(Owner::Stream(id));
            self.with_store(|store| store.forget(id));
        }
    }

    /// Forgets streaming transactions at disconnection; storage keeps them.
    fn close_streams(&self) {
        let all = std::mem::take(&mut *lock(&self.streams));
        for id in all.into_keys() {
            self.locks.release(Owner::Stream(id));
        }
    }

    /// This member has caught up.
    pub(crate) fn on_sync(&self) {
        use ServerState::*;
        let mut machine = self.states.lock();
        if machine.synced_once {
            if !matches!(machine.state, Synced | Disconnecting) {
                machine = self.step(machine, Synced);
            }
        } else {
            match machine.state {
                Disconnecting | Synced => {}
                Connected => {
                    machine = self.step(machine, Joiner);
                    machine = self.step(machine, Initializing);
                }
                Joiner => machine = self.step(machine, Initializing),
                Donor => {
                    self.checks.violation("synced for the first time as a donor".into());
                    machine = self.step(machine, Joined);
                    machine = self.step(machine, Synced);
                }
                Initialized => {
                    machine = self.step(machine, Joined);
                    machine = self.step(machine, Synced);
                }
                Disconnected | Initializing | Joined => machine = self.step(machine, Synced),
            }
        }
        machine.synced_once = true;
        let last = machine.view.as_ref().filter(|view| view.head.status == ViewStatus::PRIMARY);
        self.checks.ensure(last.is_none_or(|view| view.head.my_idx >= 0), || {
            format!("synced in a view without this member: {:?}", machine.view)
        });
        drop(machine);
        self.send_pending_rollbacks();
    }

    /// Sends rollback fragments that could not be sent before.
    pub(crate) fn send_pending_rollbacks(&self) -> Status {
        loop {
            let Some(trx) = lock(&self.pending_rollbacks).front().copied() else { return Status::OK };
            match self.called().rollback(trx) {
                Status::OK => {
                    lock(&self.pending_rollbacks).pop_front();
                }
                status => return status,
            }
        }
    }
}
