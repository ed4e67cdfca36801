//! Services that the server offers beside the function table, and the one that it asks for in a signal handler.

use crate::provider::Provider;
use crate::sync::lock;
use lockstep_abi::*;
use std::ffi::{CString, c_int};
use std::net::IpAddr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// The allow-list service: its use count (a server may load a provider twice), the service, and the number of threads in
/// its callback.
struct AllowList {
    uses: usize,
    service: Option<AllowlistServiceV1>,
    inside: usize,
}

// SAFETY: the server offers the callback and its context to any thread.
unsafe impl Send for AllowList {}

static ALLOW_LIST: Mutex<AllowList> = Mutex::new(AllowList { uses: 0, service: None, inside: 0 });
/// Notified when a thread comes out of the callback.
static OUT_OF_CALLBACK: Condvar = Condvar::new();
/// For a server that goes down while a question is open, which a lock on the table may hold up.
const ALLOW_TIMEOUT: Duration = Duration::from_secs(3);

/// Takes the allow-list service. Without it the server does not start.
///
/// # Safety
/// `service` is null, or points to one that lives until [`wsrep_deinit_allowlist_service_v1`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_init_allowlist_service_v1(service: *mut AllowlistServiceV1) -> c_int {
    // SAFETY: null or a service.
    let Some(service) = (unsafe { service.as_ref() }) else { return libc::EINVAL };
    let mut list = lock(&ALLOW_LIST);
    list.uses += 1;
    list.service.get_or_insert(*service);
    0
}

/// Releases the service. No thread is in the callback any more, unless the wait for it has timed out.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_allowlist_service_v1() {
    let mut list = lock(&ALLOW_LIST);
    list.uses = list.uses.saturating_sub(1);
    if list.uses == 0 {
        list.service = None;
        drop(list);
        wait_for_allow_list();
    }
}

/// Waits until no check is in progress, for at most [`ALLOW_TIMEOUT`].
pub(crate) fn wait_for_allow_list() {
    let list = lock(&ALLOW_LIST);
    drop(OUT_OF_CALLBACK.wait_timeout_while(list, ALLOW_TIMEOUT, |list| list.inside > 0));
}

/// Whether the server accepts a peer of this address. Blocks as long as the server does. Without a service every peer is
/// accepted.
pub(crate) fn is_allowed(ip: IpAddr) -> bool {
    /// Counts itself out, also when the callback throws.
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            lock(&ALLOW_LIST).inside -= 1;
            OUT_OF_CALLBACK.notify_all();
        }
    }
    let service = {
        let mut list = lock(&ALLOW_LIST);
        list.inside += usize::from(list.service.is_some());
        list.service
    };
    let Some(AllowlistServiceV1 { allowlist_cb, context }) = service else { return true };
    let _inside = Inside;
    let Some(callback) = allowlist_cb else { return true };
    // The server ignores the length and reads up to a NUL.
    let text = CString::new(ip.to_string()).unwrap_or_default();
    let value = Buf { ptr: text.as_ptr().cast(), len: text.as_bytes().len() };
    // SAFETY: the server's callback with its context; the buffer outlives the call.
    unsafe { callback(context, AllowlistKey::IP, &value) == Status::OK }
}

/// The provider, for the signal handler.
static CURRENT: AtomicPtr<Provider> = AtomicPtr::new(ptr::null_mut());

/// `provider` is the one that [`wsrep_node_isolation_mode_set_v1`] means; null: none.
pub(crate) fn set_current(provider: *const Provider) {
    CURRENT.store(provider.cast_mut(), Ordering::Release);
}

/// Cuts this member off from the others, or lets it back. Called in signal handlers: atomics and one `write`.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_node_isolation_mode_set_v1(mode: NodeIsolationMode) -> NodeIsolationResult {
    let isolated = match mode {
        NodeIsolationMode::NOT_ISOLATED => false,
        NodeIsolationMode::ISOLATED | NodeIsolationMode::FORCE_DISCONNECT => true,
        _ => return NodeIsolationResult::INVALID_VALUE,
    };
    // SAFETY: null, or a provider that is not freed while the server may call this.
    if let Some(provider) = unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
        && let Some(node) = provider.cx().node()
    {
        node.isolate(isolated);
    }
    NodeIsolationResult::SUCCESS
}
