//! The end of the server's process, when only a new process can continue.

use crate::context::Context;
use lockstep_node::ServerEnd;

/// Ends the process at the node's request. No thread of the server is waited for.
pub(crate) fn end_server(cx: &Context, why: ServerEnd, reason: &str) {
    cx.set_failed();
    if matches!(why, ServerEnd::Diverged | ServerEnd::NeedsState) {
        cx.ddl.database_is_corrupt(&cx.host);
    }
    let then = match why {
        ServerEnd::Diverged => {
            "this server's database has it and cannot be used in the cluster, so its process ends now. After a \
             restart, which systemd does by itself, it gets a full state transfer"
        }
        ServerEnd::NeedsState => {
            "this server's process ends now, for a state transfer after a restart, which systemd does by itself"
        }
        ServerEnd::YieldedToBranch => {
            "this server's process ends now, to join that branch after a restart, which systemd does by itself"
        }
        ServerEnd::LogFailed => {
            "this server's process ends now, to continue by its log after a restart, which systemd does by itself"
        }
    };
    cx.host.log.error(format!("{reason}: {then}"));
    abort()
}

/// Aborts the process without the server's signal handler, which would report a crash and ask for a bug report.
pub(crate) fn abort() -> ! {
    // SAFETY: changes only the process's disposition of one signal, and the process ends here.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    std::process::abort()
}
