//! The end of the server's process, where only a new one can go on.

use crate::provider::Provider;
use lockstep_node::ServerEnd;
use std::sync::atomic::Ordering;

impl Provider {
    /// The process ends, for a new one can do what this one cannot: no thread of the server is waited for.
    pub(crate) fn end_server(&self, why: ServerEnd, reason: &str) {
        self.failed.store(true, Ordering::SeqCst);
        if matches!(why, ServerEnd::Diverged | ServerEnd::NeedsState) {
            // In this order: without marks, a file that names a history would have statements executed again.
            self.note(self.state_file.mark_corrupt());
            self.note(self.marks.forget());
        }
        let then = match why {
            ServerEnd::Diverged => {
                "this server's database has it and is of no use to the cluster, so its process ends now. It takes a full \
                 state transfer when it is started again, which systemd does by itself"
            }
            ServerEnd::NeedsState => {
                "this server's process ends now, to take a state transfer when it is started again, which systemd does \
                 by itself"
            }
            ServerEnd::GaveWay => {
                "this server's process ends now, to join that branch when it is started again, which systemd does by itself"
            }
            ServerEnd::LogFailed => {
                "this server's process ends now, to go on by its log when it is started again, which systemd does by \
                 itself"
            }
        };
        self.log.error(format!("{reason}: {then}"));
        self.die()
    }

    /// Ends the process, because only a new one can continue. The server's own handler would call it a crash, and ask for a
    /// bug report.
    pub(crate) fn die(&self) -> ! {
        // SAFETY: only the process's own disposition of one signal changes, and the process ends here.
        unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
        std::process::abort()
    }
}
