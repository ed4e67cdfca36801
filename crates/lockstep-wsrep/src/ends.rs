//! The end of the server's process, where only a new one can go on.

use crate::provider::Provider;
use std::sync::atomic::Ordering;

impl Provider {
    /// The database has what the cluster does not have: no thread of the server is waited for.
    pub(crate) fn end_server(&self, reason: &str) {
        self.failed.store(true, Ordering::SeqCst);
        // In this order: without marks, a file that names a history would have statements executed again.
        self.note(self.state_file.mark_corrupt());
        self.note(self.marks.forget());
        self.log.error(format!(
            "{reason}: this server's database has it and is of no use to the cluster, so its process ends now. It takes a full \
             state transfer when it is started again, which systemd does by itself"
        ));
        self.die()
    }

    /// Ends the process: what it needs only a new one can do. The server's own handler would call it a crash, and ask
    /// for a bug report.
    pub(crate) fn die(&self) -> ! {
        // SAFETY: only the process's own disposition of one signal changes, and the process ends here.
        unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
        std::process::abort()
    }
}
