//! Services that the server offers beside the function table, and the one that it asks for in a signal handler.

use crate::provider::Provider;
use lockstep_abi::*;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Takes the allow-list service: the server does not start without. Members' addresses are not checked against it in
/// this version, so that nothing of it is kept.
///
/// # Safety
/// `service` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_init_allowlist_service_v1(service: *mut AllowlistServiceV1) -> c_int {
    if service.is_null() { libc::EINVAL } else { 0 }
}

/// Gives it back.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_allowlist_service_v1() {}

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
        && let Some(node) = provider.node()
    {
        node.isolate(isolated);
    }
    NodeIsolationResult::SUCCESS
}
