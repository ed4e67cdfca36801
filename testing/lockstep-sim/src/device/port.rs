//! A simulated member as the log of its device.

use bytes::Bytes;
use lockstep_block::device::{Log, NotSent, NoticeCall};
use lockstep_core::writeset::{DataKind, Meta, WriteSetBuilder, flags};
use lockstep_core::{MemberId, SEQNO_UNDEFINED, Seqno, ViewUuid};
use lockstep_node::LIVE_FOR;
use lockstep_node::simulation::PublishedState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// As in the program.
const CLOCKS_DIFFER: Duration = Duration::from_millis(100);

/// An entry for the member.
pub(super) struct Submitted {
    /// The device's entry.
    pub(super) payload: Bytes,
    pub(super) writeset: Bytes,
    pub(super) notice: NoticeCall,
}

struct State {
    view_uuid: ViewUuid,
    published: PublishedState,
    boot: Duration,
    connected: Vec<MemberId>,
    submitted: Vec<Submitted>,
    finished: Seqno,
    notes: Vec<String>,
}

/// The queues between a member and its device.
#[derive(Clone)]
pub(super) struct Port {
    member: MemberId,
    state: Arc<Mutex<State>>,
}

impl Port {
    pub(super) fn new(member: MemberId, view_uuid: ViewUuid) -> Port {
        let state = State {
            view_uuid,
            published: PublishedState::default(),
            boot: Duration::ZERO,
            connected: Vec::new(),
            submitted: Vec::new(),
            finished: SEQNO_UNDEFINED,
            notes: Vec::new(),
        };
        Port { member, state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member publishes its state.
    pub(super) fn publish(&self, published: PublishedState, connected: Vec<MemberId>) {
        let mut state = self.lock();
        (state.published, state.connected) = (published, connected);
    }

    /// Sets the time since boot.
    pub(super) fn set_boot(&self, boot: Duration) {
        self.lock().boot = boot;
    }

    /// Takes the entries for the member.
    pub(super) fn take_submitted(&self) -> Vec<Submitted> {
        std::mem::take(&mut self.lock().submitted)
    }

    pub(super) fn has_submitted(&self) -> bool {
        !self.lock().submitted.is_empty()
    }

    /// The last seqno that the device file has, durably.
    pub(super) fn finished_to(&self) -> Seqno {
        self.lock().finished
    }

    pub(super) fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().notes)
    }

    pub(super) fn published(&self) -> PublishedState {
        self.lock().published.clone()
    }
}

impl Log for Port {
    fn submit(&self, payload: Bytes, notice: NoticeCall) -> Result<(), NotSent> {
        let mut state = self.lock();
        if !state.published.is_primary {
            return Err(NotSent);
        }
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, &payload).map_err(|_| NotSent)?;
        let writeset = builder.finish(&Meta {
            flags: flags::TRX_START | flags::TRX_END | flags::PA_UNSAFE,
            last_seen: state.published.delivered.max(0),
            source: state.view_uuid,
            epoch: 0,
            conn: 0,
            trx: 0,
        });
        state.submitted.push(Submitted { payload, writeset, notice });
        Ok(())
    }

    fn finished(&self, seqno: Seqno) {
        self.lock().finished = seqno;
    }

    fn confirmed(&self) -> Option<Seqno> {
        let state = self.lock();
        state.published.confirmed(state.boot)
    }

    fn confirmed_for(&self) -> Duration {
        LIVE_FOR + CLOCKS_DIFFER
    }

    fn has_majority(&self) -> bool {
        self.lock().published.is_primary
    }

    fn refusal(&self) -> Option<String> {
        (!self.lock().published.may_originate).then(|| "only the leader's clients write".to_owned())
    }

    fn member(&self) -> MemberId {
        self.member
    }

    fn name_of(&self, member: &MemberId) -> String {
        format!("n{}", member.0[0])
    }

    fn is_connected(&self, member: &MemberId) -> bool {
        self.lock().connected.contains(member)
    }

    fn note(&self, _warn: bool, text: &str) {
        self.lock().notes.push(text.to_owned());
    }
}
