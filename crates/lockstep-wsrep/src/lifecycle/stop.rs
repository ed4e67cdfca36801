//! SIGTERM while the server does not react to it.
//!
//! MariaDB blocks the signal in all its threads. It starts the thread that takes the signal (`sigwait`) after its storage
//! engines. If the state transfer copies files, that is after the transfer. So a server that waits for a donor would not
//! react to SIGTERM. But the signal is pending, and can be checked.

use std::mem::MaybeUninit;
use std::time::Duration;

/// A thread in `sigwait` takes a signal at once. If it is pending for longer than this, there is no such thread.
const TAKEN_WITHIN: Duration = Duration::from_millis(50);

fn is_pending() -> bool {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigpending writes one set where the pointer points, which is ours; sigismember reads it then.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && libc::sigismember(set.as_ptr(), libc::SIGTERM) == 1 }
}

/// Whether SIGTERM is pending and no thread takes it.
pub(crate) fn is_wanted() -> bool {
    is_pending() && {
        std::thread::sleep(TAKEN_WITHIN);
        is_pending()
    }
}

/// Lets the pending signal end the process, so that a supervisor sees an ordinary stop.
pub(crate) fn terminate() -> ! {
    // SAFETY: both change the disposition and the mask of one signal only, and the process ends of it.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
    // Reached only if another thread has taken the signal meanwhile.
    std::process::abort()
}
