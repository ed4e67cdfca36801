//! Waiting for positions, standing still, lagging on purpose.

use crate::apply::monitor::{Stop, lock};
use crate::lifecycle::state_files::{gtid_in, gtid_out};
use crate::provider::{Connection, Provider};
use lockstep_abi::*;
use lockstep_node::LocalState;
use lockstep_node::core::Seqno;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// No wait is longer; the server means "for ever" by the greatest number it has.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

impl Provider {
    /// `sync_wait`: until `upto`, or all that anybody has acknowledged by now, has finished here. An `upto` that a new
    /// leader left out never does.
    pub(crate) fn sync_wait(&self, upto: Option<Gtid>, seconds: i32) -> Result<Gtid, Status> {
        let patience = match u64::try_from(seconds) {
            Ok(seconds) => Duration::from_secs(seconds).min(LONGEST),
            Err(_) => self.settings.causal_read_timeout(),
        };
        let until = Instant::now() + patience;
        let seqno = match upto {
            Some(upto) => {
                let upto = gtid_in(upto);
                if upto.uuid != self.history.get() {
                    return Err(Status::TRX_MISSING);
                }
                upto.seqno
            }
            None => {
                let node = self.node().ok_or(Status::TRX_FAIL)?;
                node.causal(patience).map_err(|error| {
                    self.log.debug(|| format!("causal read: {error:?}"));
                    Status::TRX_FAIL
                })?
            }
        };
        match self.finished.wait(seqno, None, Some(until.saturating_duration_since(Instant::now()))) {
            Ok(()) if upto.is_some() && self.is_left_out(seqno) => Err(Status::TRX_MISSING),
            Ok(()) => {
                self.counters.causal_reads.add(1);
                Ok(gtid_out(self.position()))
            }
            Err(Stop::TimedOut | Stop::Interrupted) => Err(Status::TRX_FAIL),
            Err(Stop::Failed) => Err(Status::NODE_FAIL),
        }
    }

    /// `pause`: nothing is applied or committed from now on; returns the last seqno that is.
    pub(crate) fn pause(&self) -> Seqno {
        let last = self.gate.close();
        if self.wait_finished(last, None, || "a pause".into()).is_err() {
            self.gate.open();
            return SEQNO_UNDEFINED;
        }
        let position = self.position();
        // The state file does not get it: after a crash the database may be behind, where its commits are not flushed,
        // and says so itself.
        self.log.info(format!("paused at {position}"));
        position.seqno
    }

    /// `resume`.
    pub(crate) fn resume(&self) -> Status {
        if !self.gate.is_closed() {
            // Not an error: the server takes one for fatal.
            self.log.warn("resume: not paused");
            return Status::OK;
        }
        // A member that has left meanwhile has said where its database stands.
        if *lock(&self.connection) == Connection::Open {
            self.save_running();
        }
        self.gate.open();
        self.log.info("resumed");
        Status::OK
    }

    /// `desync`: this member may lag, and says so, until as many `resync`s.
    pub(crate) fn desync(&self) -> Status {
        match (self.node(), self.local_state()) {
            (Some(node), LocalState::Synced | LocalState::Joined | LocalState::Donor) => {
                node.desync();
                self.counters.desyncs.fetch_add(1, Ordering::Relaxed);
                Status::OK
            }
            _ => {
                self.log.warn("desync: not connected to a primary component");
                Status::CONN_FAIL
            }
        }
    }

    /// `resync`. Does not fail: the server takes that for fatal.
    pub(crate) fn resync(&self) -> Status {
        let fewer = |n: u32| n.checked_sub(1);
        if self.counters.desyncs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_err() {
            self.log.warn("resync: not desynced");
            return Status::OK;
        }
        if let Some(node) = self.node() {
            node.resync();
        }
        Status::OK
    }
}
