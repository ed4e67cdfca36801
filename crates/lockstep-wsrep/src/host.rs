//! The process that loaded the provider: callbacks, log, options and names, as `init` got them.

use crate::lifecycle::settings::Settings;
use crate::server_symbol;
use crate::status::log::Log;
use lockstep_abi::{
    ApplyCb, ConnectedCb, InitArgs, SstDonateCb, SstRequestCb, SyncedCb, UnorderedCb, ViewCb,
};
use lockstep_node::core::Gtid;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// The server's context, passed back in its callbacks.
#[derive(Clone, Copy)]
pub(crate) struct AppCtx(pub(crate) *mut c_void);

// SAFETY: the pointer is only passed back to the server, whose callbacks may be called from any thread.
unsafe impl Send for AppCtx {}
// SAFETY: as above.
unsafe impl Sync for AppCtx {}

/// The server's callbacks. The API lets each be null; all but `unordered` are required.
#[derive(Clone, Copy)]
pub(crate) struct Callbacks {
    pub(crate) app: AppCtx,
    pub(crate) connected: ConnectedCb,
    pub(crate) view: ViewCb,
    pub(crate) sst_request: SstRequestCb,
    pub(crate) apply: ApplyCb,
    pub(crate) unordered: Option<UnorderedCb>,
    pub(crate) sst_donate: SstDonateCb,
    pub(crate) synced: SyncedCb,
}

impl Callbacks {
    /// # Errors
    /// A required callback is missing: which one.
    pub(crate) fn of(args: &InitArgs) -> Result<Callbacks, String> {
        let missing = |what: &str| format!("init: the server passes no {what} callback");
        Ok(Callbacks {
            app: AppCtx(args.app_ctx),
            connected: args.connected_cb.ok_or_else(|| missing("connected"))?,
            view: args.view_cb.ok_or_else(|| missing("view"))?,
            sst_request: args.sst_request_cb.ok_or_else(|| missing("sst_request"))?,
            apply: args.apply_cb.ok_or_else(|| missing("apply"))?,
            unordered: args.unordered_cb,
            sst_donate: args.sst_donate_cb.ok_or_else(|| missing("sst_donate"))?,
            synced: args.synced_cb.ok_or_else(|| missing("synced"))?,
        })
    }
}

/// The node's name and addresses, as `init` got them.
#[derive(Clone, Default)]
pub(crate) struct Names {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) incoming: String,
}

/// See the module. The open fields do not change after `init`, but for the options.
pub(crate) struct Host {
    pub(crate) calls: Callbacks,
    pub(crate) log: Log,
    pub(crate) settings: Settings,
    pub(crate) proto_ver: i32,
    pub(crate) data_dir: PathBuf,
    pub(crate) names: Names,
    /// The database's position according to the server (`wsrep_start_position`).
    pub(crate) start_position: Gtid,
    /// The warning about an unused encryption key has been logged.
    warned_of_key: AtomicBool,
}

impl Host {
    pub(crate) fn new(
        calls: Callbacks,
        log: Log,
        settings: Settings,
        proto_ver: i32,
        data_dir: PathBuf,
        names: Names,
        start_position: Gtid,
    ) -> Host {
        let warned_of_key = AtomicBool::new(false);
        Host { calls, log, settings, proto_ver, data_dir, names, start_position, warned_of_key }
    }

    /// Logs an I/O error of a state file. It is not fatal: after a crash the log still has all entries.
    pub(crate) fn note(&self, result: std::io::Result<()>) {
        if let Err(error) = result {
            self.log.warn(error.to_string());
        }
    }

    /// `enc_set_key`: warns once that the key has no effect.
    pub(crate) fn set_encryption_key(&self) {
        if !self.warned_of_key.swap(true, Ordering::Relaxed) {
            self.log.warn("an encryption key was set, but the log on disk is not encrypted in this version");
        }
    }
}

/// Whether `wsrep_gtid_mode` is on, read from the variable that the server exports to plugins. The server learns the
/// domain of the cluster's GTIDs only from a donor's script. `false` in a process without that variable.
pub(crate) fn server_keeps_gtids() -> bool {
    // SAFETY: the variable, if it exists, is the server's `my_bool`, which lives as long as
    // the process and is set before providers are loaded.
    unsafe { server_symbol::find(c"wsrep_gtid_mode").is_some_and(|mode| *mode.cast::<u8>() != 0) }
}
