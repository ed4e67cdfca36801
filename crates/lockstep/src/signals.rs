//! Waiting for the signals that end a daemon, without a handler: they are blocked in all threads, and one asks for them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// A signal received by a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    /// SIGTERM or SIGINT: end in good order.
    End,
    /// SIGHUP: open the log file anew.
    Reopen,
}

/// The signals of this process that are waited for.
#[derive(Debug)]
pub(crate) struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks SIGTERM, SIGINT and SIGHUP in this thread and in those that it starts from now on: call it before any is
    /// started.
    pub(crate) fn block() -> Signals {
        // SAFETY: a signal set is plain memory that sigemptyset fills; the calls change this thread's mask only, and
        // none of them fails for numbers that exist.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Signals { set }
        }
    }

    /// The next one, if it comes within this time.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Signal> {
        let time = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: both pointers are to live values of their types; a null siginfo is allowed.
        match unsafe { libc::sigtimedwait(&self.set, std::ptr::null_mut(), &time) } {
            libc::SIGTERM | libc::SIGINT => Some(Signal::End),
            libc::SIGHUP => Some(Signal::Reopen),
            _ => None,
        }
    }
}

/// Lets a command receive the signals that [`Signals::block`] blocks: a new process has the mask of the thread that starts it.
pub(crate) fn unblock_in(command: &mut Command) {
    let unblock = || {
        // SAFETY: as in `Signals::block`. Both calls are allowed between fork and exec.
        let error = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut())
        };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    };
    // SAFETY: the closure allocates nothing, and takes no lock.
    unsafe { command.pre_exec(unblock) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_signal_is_received_without_ending_process() {
        std::thread::spawn(|| {
            let signals = Signals::block();
            assert_eq!(signals.wait(Duration::from_millis(1)), None);
            for (number, due) in [(libc::SIGHUP, Signal::Reopen), (libc::SIGTERM, Signal::End)] {
                // SAFETY: to this very thread, which has it blocked.
                unsafe { libc::pthread_kill(libc::pthread_self(), number) };
                assert_eq!(signals.wait(Duration::from_secs(5)), Some(due));
            }
        })
        .join()
        .unwrap();
    }
}
