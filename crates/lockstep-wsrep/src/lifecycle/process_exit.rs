//! The end of the server's process, when only a new process can continue.

use crate::context::Context;
use lockstep_node::ServerEnd;
use std::time::Duration;

/// The last line of the log has this long.
const LOG_WITHIN: Duration = Duration::from_secs(1);

/// Ends the process at the node's request. No thread of the server is waited for.
pub(crate) fn end_server(cx: &Context, why: ServerEnd, reason: &str) {
    cx.set_failed();
    let corrupt = matches!(
        why,
        ServerEnd::Diverged | ServerEnd::NeedsState | ServerEnd::LogReverted { needs_state: true }
    );
    if corrupt {
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
        ServerEnd::DiskHangs => {
            "this server's process ends now, so that its clients go to another member. After a restart, which systemd does \
             by itself once the disk lets the process go, it continues by its log"
        }
        ServerEnd::LogReverted { needs_state: false } => {
            "this server's process ends now, to join as a new member after a restart, which systemd does by itself"
        }
        ServerEnd::LogReverted { needs_state: true } => {
            "this server's process ends now, to join as a new member after a restart, which systemd does by itself. Its data \
             were ahead of its log, so it gets a full state transfer"
        }
        ServerEnd::LogFailed => {
            "this server's process ends now, to continue by its log after a restart, which systemd does by itself. If the \
             disk still fails then, the start is refused"
        }
        ServerEnd::RepeatsFromLog => {
            "this server's process ends now, to continue by its log after a restart, which systemd does by itself"
        }
    };
    log_briefly(cx, format!("{reason}: {then}"));
    close_sockets();
    abort()
}

/// Logs a line, but waits for it only briefly: the error log may be on the disk that hangs.
fn log_briefly(cx: &Context, text: String) {
    let log = cx.host.log.detached();
    let (done, logged) = std::sync::mpsc::channel();
    let logs = std::thread::Builder::new().name("ls-last".into()).spawn(move || {
        log.error(text);
        let _ = done.send(());
    });
    if logs.is_ok() {
        let _ = logged.recv_timeout(LOG_WITHIN);
    }
}

/// Shuts down all sockets of the process. A process with a thread that waits for a hung disk ends only once the disk lets
/// that thread go. Until then the kernel would keep its connections open, and its clients would wait for answers.
fn close_sockets() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for number in numbers.collect::<Vec<_>>() {
        // SAFETY: shutdown changes only the state of a connection; on a file, or a closed number, it fails.
        unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    }
}

/// Aborts the process without the server's signal handler, which would report a crash and ask for a bug report.
pub(crate) fn abort() -> ! {
    // SAFETY: changes only the process's disposition of one signal, and the process ends here.
    unsafe { libc::signal(libc::SIGABRT, libc::SIG_DFL) };
    std::process::abort()
}
