//! `@@wsrep_provider_options`: the server asks for it when it loads the provider and after its own `SET GLOBAL`, and keeps
//! the answer. The commit policy is the cluster's, and may change through another member: then the server's copy is refreshed
//! by the server's own function and under its own lock.
//!
//! That may block, because a session that sets an option holds the lock. So it runs on a thread of its own, one at a time.

use crate::apply::monitor::lock;
use crate::provider::Provider;
use lockstep_node::options::Options;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A server that goes down does not wait longer for the thread.
const PATIENCE: Duration = Duration::from_secs(2);

/// The server's symbols that are needed.
#[derive(Clone, Copy)]
struct Server {
    lock: *mut libc::pthread_mutex_t,
    renew: unsafe extern "C-unwind" fn(*const c_char),
}

fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: the name is NUL-terminated.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// `None` where the process is no such server: then its copy stays as it is. Nor where its mutexes watch themselves, as
/// those of a debug build do: they are others than they look like.
fn server() -> Option<Server> {
    let lock = symbol(c"LOCK_global_system_variables");
    let renew = symbol(c"_Z27wsrep_provider_options_initPKc");
    if lock.is_null() || renew.is_null() || !symbol(c"safe_mutex_lock").is_null() {
        return None;
    }
    // SAFETY: it is `void wsrep_provider_options_init(const char *)`, as its mangled name says.
    let renew =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn(*const c_char)>(renew) };
    // A `mysql_mutex_t` begins with the mutex itself.
    Some(Server { lock: lock.cast(), renew })
}

#[derive(Default)]
struct Under {
    /// A thread is at it.
    way: bool,
    /// There is something newer to be shown.
    again: bool,
    /// The server goes down.
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct OptionSync {
    under: Mutex<Under>,
    done: Condvar,
}

impl OptionSync {
    /// No thread is at it any more, or it does not come back in time; none will be from now on.
    pub(crate) fn close(&self) {
        let mut under = lock(&self.under);
        under.closed = true;
        drop(self.done.wait_timeout_while(under, PATIENCE, |under| under.way));
    }

    /// The provider is used again.
    pub(crate) fn open(&self) {
        lock(&self.under).closed = false;
    }
}

impl Provider {
    /// Another policy is in force. Called on `ls-node`: does not block.
    pub(crate) fn show_policy(self: &Arc<Self>) {
        {
            let mut under = lock(&self.option_sync.under);
            if under.closed || std::mem::replace(&mut under.way, true) {
                under.again = true;
                return;
            }
        }
        let provider = self.clone();
        let spawned =
            std::thread::Builder::new().name("ls-show".into()).spawn(move || provider.show_options());
        if let Err(error) = spawned {
            lock(&self.option_sync.under).way = false;
            self.log.warn(format!("wsrep_provider_options do not show the new policy: no thread: {error}"));
        }
    }

    fn show_options(&self) {
        loop {
            if let (Some(server), Some(node)) = (server(), self.node()) {
                self.settings.adopt_policy(&node.policy());
                let text = self.settings.with(Options::get_all).replace('\0', "");
                let text = CString::new(text).unwrap_or_default();
                // SAFETY: the server's mutex, which lives as long as the process, and its function, which is called
                // under it, copies the text, frees the copy before and does not throw.
                unsafe {
                    libc::pthread_mutex_lock(server.lock);
                    (server.renew)(text.as_ptr());
                    libc::pthread_mutex_unlock(server.lock);
                }
            }
            let mut under = lock(&self.option_sync.under);
            if under.closed || !std::mem::take(&mut under.again) {
                under.way = false;
                self.option_sync.done.notify_all();
                return;
            }
        }
    }
}
