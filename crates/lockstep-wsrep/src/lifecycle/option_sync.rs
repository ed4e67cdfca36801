//! Keeps `@@wsrep_provider_options` up to date.
//!
//! The server reads the options when it loads the provider and after its own `SET GLOBAL`, and shows that copy. A policy
//! belongs to the cluster, and changes also when it is set on another member. The provider then renews the server's copy,
//! with the server's own function and under its lock.
//!
//! That may block: a session that sets an option holds the lock meanwhile. So it runs on a thread of its own, one at a
//! time.

use crate::server_symbol;
use crate::sync::lock;
use std::ffi::{CStr, c_char, c_void};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// How long a server that shuts down waits for the thread.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The server's lock and function.
#[derive(Clone, Copy)]
struct Server {
    lock: *mut libc::pthread_mutex_t,
    renew: unsafe extern "C-unwind" fn(*const c_char),
}

/// `None` if the process is no such server: its copy then stays as it is. Also `None` for a debug build, whose mutexes
/// (`safe_mutex`) have another layout.
fn server() -> Option<Server> {
    let lock = server_symbol::find(c"LOCK_global_system_variables")?;
    let renew = server_symbol::find(c"_Z27wsrep_provider_options_initPKc")?;
    if server_symbol::find(c"safe_mutex_lock").is_some() {
        return None;
    }
    // SAFETY: it is `void wsrep_provider_options_init(const char *)`, as its mangled name says.
    let renew =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*const c_char)>(renew) };
    // A `mysql_mutex_t` begins with the mutex itself.
    Some(Server { lock: lock.cast(), renew })
}

/// Whether the options of this server can be renewed.
pub(crate) fn is_possible() -> bool {
    server().is_some()
}

/// Renews the server's copy of the options.
pub(crate) fn renew(text: &CStr) {
    let Some(server) = server() else { return };
    // SAFETY: the server's mutex, which lives as long as the process, and its function, which is called under it,
    // copies the text, frees the former copy and does not throw.
    unsafe {
        libc::pthread_mutex_lock(server.lock);
        (server.renew)(text.as_ptr());
        libc::pthread_mutex_unlock(server.lock);
    }
}

#[derive(Default)]
struct State {
    /// A thread renews the copy.
    is_running: bool,
    /// The options have changed since it began.
    is_stale: bool,
    /// The server shuts down.
    is_closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct OptionSync {
    state: Mutex<State>,
    done: Condvar,
}

impl OptionSync {
    /// The provider is connected again.
    pub(crate) fn open(&self) {
        lock(&self.state).is_closed = false;
    }

    /// Ends the renewing, and waits for the thread, up to a timeout.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        drop(self.done.wait_timeout_while(state, TIMEOUT, |state| state.is_running));
    }

    /// The options have changed. Returns whether the caller has to start a thread that calls [`OptionSync::run`].
    pub(crate) fn begin(&self) -> bool {
        let mut state = lock(&self.state);
        if state.is_closed || std::mem::replace(&mut state.is_running, true) {
            state.is_stale = true;
            return false;
        }
        true
    }

    /// The thread could not be started.
    pub(crate) fn spawn_failed(&self) {
        lock(&self.state).is_running = false;
    }

    /// Calls `renew` until the options have not changed meanwhile.
    pub(crate) fn run(&self, renew: impl Fn()) {
        loop {
            renew();
            let mut state = lock(&self.state);
            if state.is_closed || !std::mem::take(&mut state.is_stale) {
                state.is_running = false;
                self.done.notify_all();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn change_during_renewal_renews_again_on_same_thread() {
        let sync = OptionSync::default();
        assert!(sync.begin());
        let count = Cell::new(0);
        sync.run(|| {
            count.set(count.get() + 1);
            if count.get() == 1 {
                assert!(!sync.begin());
            }
        });
        assert_eq!(count.get(), 2);
        assert!(sync.begin());
        sync.spawn_failed();
        sync.close();
        assert!(!sync.begin(), "closed");
        sync.open();
        assert!(sync.begin());
    }
}
