//! The queue of inputs from other threads to `ls-node`.

use crate::api::{ConnectArgs, MembershipNow, NodeError, StatementResult, Tuning, VoteReply};
use crate::io::writer::LogDone;
use crate::operator::Answer;
use crate::options::PolicyChange;
use crate::reply::Reply;
use crate::submit::Filler;
use bytes::Bytes;
use lockstep_core::{EntryKind, Gtid, Seqno, Uuid};
use lockstep_net::{TlsIdentity, Waker};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Inputs from other threads to `ls-node`.
pub(crate) enum Input {
    Submit {
        kind: EntryKind,
        payload: Bytes,
        submission: Filler,
    },
    Connect {
        args: Box<ConnectArgs>,
        view_uuid: Uuid,
        history: Uuid,
        reply: Arc<Reply<Result<(), NodeError>>>,
    },
    Disconnect {
        reply: Arc<Reply<()>>,
    },
    RequestState {
        request: Bytes,
        donor: String,
    },
    StateReceived(Result<Gtid, i32>),
    DonationDone {
        id: u64,
        result: Result<Gtid, i32>,
    },
    Desync,
    Resync,
    Causal {
        id: u64,
        reply: Arc<Reply<Option<Seqno>>>,
    },
    CausalCancelled(u64),
    Fail(String),
    /// As `Fail`; then the process ends.
    RepeatFromLog(String),
    /// To see what comes of an error in the program.
    Panic,
    Membership(Arc<Reply<MembershipNow>>),
    /// This member is to go on alone.
    Bootstrap(Arc<Reply<Answer>>),
    FoundBefore(Seqno),
    /// Whether the statement was of this member's client.
    StatementExecuted(StatementResult, bool),
    Vote {
        seqno: Seqno,
        opinion: u64,
        text: String,
        reply: VoteReply,
    },
    /// Whether a peer of this address is accepted; `None`: the check failed.
    Allowed(IpAddr, Option<bool>),
    Tuning(Box<Tuning>),
    Identity(Arc<TlsIdentity>),
    Policy {
        change: PolicyChange,
        reply: Arc<Reply<Result<(), String>>>,
    },
    Log(Vec<LogDone>),
    Stop,
}

/// The queue, and whether `ls-node` still takes inputs.
pub(crate) struct Inbox {
    inputs: Mutex<Vec<Input>>,
    waker: Waker,
    stopped: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(waker: Waker) -> Inbox {
        Inbox { inputs: Mutex::new(Vec::new()), waker, stopped: AtomicBool::new(false) }
    }

    /// Only the first input of a batch wakes `ls-node`: if the inbox is not empty, `ls-node` is awake or being woken.
    pub(crate) fn push(&self, input: Input) {
        let first = {
            let mut inputs = self.inputs.lock().unwrap_or_else(PoisonError::into_inner);
            inputs.push(input);
            inputs.len() == 1
        };
        if first {
            self.wake();
        }
        if self.is_stopped() {
            self.clear();
        }
    }

    /// Swaps the queued inputs for an empty list.
    pub(crate) fn take(&self, into: &mut Vec<Input>) {
        debug_assert!(into.is_empty(), "inputs of the last round are left");
        std::mem::swap(&mut *self.inputs.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    pub(crate) fn len(&self) -> usize {
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Makes `ls-node` begin a round.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// `ls-node` has ended. Queued and later inputs are dropped: the drop of a submission's filler wakes its thread.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Drops the queued inputs.
    pub(crate) fn clear(&self) {
        self.take(&mut Vec::new());
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}
