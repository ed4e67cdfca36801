//! State transfers: the one that this server waits for, and the one that it gives as a donor.

use crate::context::Context;
use crate::lifecycle::process_exit;
use crate::lifecycle::state_files::uuid_in;
use crate::sync::lock;
use lockstep_abi::*;
use lockstep_node::core;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A state transfer that this member gives.
struct Donation {
    id: u64,
    joiner: String,
}

/// See the module.
#[derive(Default)]
pub(crate) struct StateTransfer {
    /// `wsrep_sst_donor`.
    donor: Mutex<String>,
    donation: Mutex<Option<Donation>>,
    /// The server has been asked for a state-transfer request, and has not received the state yet.
    awaits_state: AtomicBool,
    /// The transfer is a bypass: the donor only confirms the position, and the log supplies the rest.
    is_bypass: AtomicBool,
}

impl StateTransfer {
    /// `connect`: the donors that the server prefers.
    pub(crate) fn set_donor(&self, donor: &str) {
        donor.clone_into(&mut lock(&self.donor));
    }

    /// Whether the server waits for a state.
    pub(crate) fn awaits_state(&self) -> bool {
        self.awaits_state.load(Ordering::SeqCst)
    }

    /// This server needs a state transfer.
    pub(crate) fn begin(&self, cx: &Context, bypass: bool) {
        self.is_bypass.store(bypass, Ordering::SeqCst);
        self.awaits_state.store(true, Ordering::SeqCst);
        if bypass {
            return;
        }
        if let Err(error) = cx.database_is_replaced() {
            cx.host.log.error(format!(
                "{error}: a state transfer would overwrite this server's data, and a later start could not tell. The data stay \
                 as they are, and this server's process ends now. Free space on the disk, or repair it"
            ));
            process_exit::abort();
        }
    }

    /// No donor can give the state.
    pub(crate) fn fails(&self, cx: &Context, text: &str) {
        match self.is_bypass.load(Ordering::SeqCst) {
            // The database is not touched by a bypass.
            true => cx.stop_with(&format!("no donor can confirm this member's position: {text}"), false),
            false => cx.fail(&format!("this member cannot get a state transfer: {text}")),
        }
    }

    /// The server's answer to `sst_request_cb`.
    pub(crate) fn request(&self, cx: &Context, result: CbStatus, request: Vec<u8>) {
        let Some(node) = cx.node() else { return };
        if result != CbStatus::SUCCESS {
            // The server waits for the transfer, and would for ever.
            cx.fail(
                "Requesting state transfer failed: the server could not prepare for it, see its lines above",
            );
            process_exit::abort();
        }
        let is = |text: &std::ffi::CStr| request.starts_with(text.to_bytes_with_nul());
        if request.is_empty() {
            // The configured method cannot fill a running server; only a new process can.
            cx.fail("this server needs a state transfer that its method cannot do while it runs");
            process_exit::abort();
        } else if is(STATE_TRANSFER_TRIVIAL) || is(STATE_TRANSFER_NONE) {
            // The server's first delivery is the view in which this member is connected.
            let at = cx.identity.at(cx.identity.connected_at() - 1);
            cx.host.log.warn(format!(
                "no state transfer, as configured: assuming that this server's data are those of {at}"
            ));
            self.set_position(cx, at);
            cx.state_is_assumed();
            node.state_received(Ok(at));
        } else {
            let donor = lock(&self.donor).clone();
            cx.host.log.info("requesting a state transfer");
            node.request_state(request.into(), &donor);
        }
    }

    /// The database is at `at` now. The node delivers the next entry once it knows, so the caller tells it last.
    fn set_position(&self, cx: &Context, at: core::Gtid) {
        cx.sequence.set_position(at.seqno);
        cx.identity.position_is_set();
        self.awaits_state.store(false, Ordering::SeqCst);
        cx.save_restored();
    }

    /// `sst_received`.
    pub(crate) fn received(&self, cx: &Context, at: Gtid, code: i32) -> Status {
        let Some(node) = cx.node() else { return Status::CONN_FAIL };
        if !self.awaits_state() {
            cx.host.log.error("sst_received: no state transfer was requested");
            return Status::CONN_FAIL;
        }
        if code != 0 || at.is_undefined() {
            let code = if code < 0 { code } else { -libc::EINVAL };
            cx.host
                .log
                .error(format!("the state transfer failed with {code}: see the lines of the SST script"));
            node.state_received(Err(code));
            return Status::OK;
        }
        let history = cx.identity.history();
        if uuid_in(at.uuid) != history {
            cx.fail(&format!("the received state has history {}, not {history}", uuid_in(at.uuid)));
            return Status::CONN_FAIL;
        }
        let at = core::Gtid { uuid: history, seqno: at.seqno };
        self.set_position(cx, at);
        node.state_received(Ok(at));
        Status::OK
    }

    /// This member is the donor for `joiner`.
    pub(crate) fn begin_donation(&self, id: u64, joiner: String) {
        *lock(&self.donation) = Some(Donation { id, joiner });
    }

    /// `sst_sent`.
    pub(crate) fn sent(&self, cx: &Context, at: Gtid, code: i32) -> Status {
        let Some(node) = cx.node() else { return Status::CONN_FAIL };
        let Some(Donation { id, joiner }) = lock(&self.donation).take() else {
            cx.host.log.error("sst_sent: this member does not donate");
            return Status::CONN_FAIL;
        };
        let history = cx.identity.history();
        let result = if code != 0 {
            Err(if code < 0 { code } else { -code })
        } else if uuid_in(at.uuid) != history {
            cx.host.log.error(format!(
                "the state that was sent to {joiner} has history {}, not {history}",
                uuid_in(at.uuid)
            ));
            Err(-libc::EREMCHG)
        } else {
            Ok(core::Gtid { uuid: history, seqno: at.seqno })
        };
        node.donation_done(id, result);
        Status::OK
    }

    /// The server could not begin the donation.
    pub(crate) fn donation_failed(&self, cx: &Context, id: u64) {
        if lock(&self.donation).take_if(|donation| donation.id == id).is_some()
            && let Some(node) = cx.node()
        {
            node.donation_done(id, Err(-libc::ECANCELED));
        }
    }

    /// This member has left. Returns whether the server was waiting for a state.
    pub(crate) fn end(&self) -> bool {
        lock(&self.donation).take();
        self.awaits_state.swap(false, Ordering::SeqCst)
    }
}
