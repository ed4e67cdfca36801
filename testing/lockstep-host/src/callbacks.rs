//! The functions that the provider calls. Each one finds the server behind its context and goes on in safe
//! code. A panic must not cross into the provider: it becomes a failure.

use crate::host::{Host, RecvCtx};
use crate::log;
use crate::state::View;
use lockstep_abi::*;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// # Safety
/// `app_ctx` is what [`Host::init`] passed.
unsafe fn host(app_ctx: *mut c_void) -> &'static Host {
    // SAFETY: a leaked Host, never moved or freed.
    unsafe { &*app_ctx.cast::<Host>() }
}

fn guarded(host: &Host, what: &str, body: impl FnOnce() -> bool) -> CbStatus {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(true) => CbStatus::SUCCESS,
        Ok(false) => CbStatus::FAILURE,
        Err(_) => {
            host.checks.violation(format!("the {what} callback panicked"));
            CbStatus::FAILURE
        }
    }
}

pub(crate) unsafe extern "C-unwind" fn logger(level: LogLevel, message: *const c_char) {
    if message.is_null() {
        return;
    }
    // SAFETY: by the API a C string.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    // The provider's log goes to standard error: a file, when the harness has started us.
    eprintln!("{} {message}", level.name());
    if level <= LogLevel::ERROR {
        log::event("provider_error", &message);
    }
}

/// # Safety
/// `view` is null or a view with its members.
unsafe fn read_view(view: *const ViewInfo, own: Uuid) -> Option<View> {
    if view.is_null() {
        return None;
    }
    // SAFETY: by the API a view; only its head is read through the reference.
    let (state_id, number, status, capabilities, my_idx, proto_ver) = unsafe {
        (
            (*view).state_id,
            (*view).view,
            (*view).status,
            (*view).capabilities,
            (*view).my_idx,
            (*view).proto_ver,
        )
    };
    // SAFETY: by the API followed by its members.
    let members = unsafe { ViewInfo::members(view) }.to_vec();
    // Once the server knows its id, it finds itself by that and ignores what the provider says.
    let my_idx = if own.is_undefined() {
        my_idx
    } else {
        members.iter().position(|member| member.id == own).map_or(-1, |at| at as i32)
    };
    let head = ViewHead { state_id, view: number, status, capabilities, my_idx, proto_ver };
    Some(View { head, members })
}

pub(crate) unsafe extern "C-unwind" fn connected(app_ctx: *mut c_void, view: *const ViewInfo) -> CbStatus {
    // SAFETY: see `host`.
    let host = unsafe { host(app_ctx) };
    // SAFETY: by the API.
    let view = unsafe { read_view(view, host.id()) };
    guarded(host, "connected", || view.is_some_and(|view| host.on_connect(&view)))
}

pub(crate) unsafe extern "C-unwind" fn view(
    app_ctx: *mut c_void,
    recv_ctx: *mut c_void,
    view: *const ViewInfo,
    _state: *const c_char,
    _state_len: usize,
) -> CbStatus {
    // SAFETY: see `host`.
    let host = unsafe { host(app_ctx) };
    // SAFETY: by the API.
    let view = unsafe { read_view(view, host.id()) };
    if recv_ctx.is_null() {
        host.checks.violation("a view came without a receiving thread's context".into());
    } else {
        // SAFETY: not null, so what `recv` was given on a thread that is still inside it.
        let ctx = unsafe { &*recv_ctx.cast::<RecvCtx>() };
        host.check_thread(ctx, "view");
    }
    guarded(host, "view", || view.is_some_and(|view| host.on_view(view)))
}

pub(crate) unsafe extern "C-unwind" fn synced(app_ctx: *mut c_void) -> CbStatus {
    // SAFETY: see `host`.
    let host = unsafe { host(app_ctx) };
    guarded(host, "synced", || {
        host.on_sync();
        true
    })
}

pub(crate) unsafe extern "C-unwind" fn sst_request(
    app_ctx: *mut c_void,
    request: *mut *mut c_void,
    request_len: *mut usize,
) -> CbStatus {
    // SAFETY: see `host`.
    let host = unsafe { host(app_ctx) };
    guarded(host, "SST request", || {
        let Some(mut text) = host.on_sst_request() else { return false };
        text.push(0);
        // SAFETY: plain malloc; by the API both pointers are writable, and the provider frees the buffer.
        unsafe {
            let buffer = libc::malloc(text.len());
            if buffer.is_null() {
                return false;
            }
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), text.len());
            *request = buffer;
            *request_len = text.len();
        }
        true
    })
}

pub(crate) unsafe extern "C-unwind" fn sst_donate(
    app_ctx: *mut c_void,
    recv_ctx: *mut c_void,
    request: *const Buf,
    state_id: *const Gtid,
    _state: *const Buf,
    bypass: bool,
) -> CbStatus {
    // SAFETY: see `host`.
    let host = unsafe { host(app_ctx) };
    if !recv_ctx.is_null() {
        // SAFETY: the context given to `recv` on a thread that is still inside it.
        let ctx = unsafe { &*recv_ctx.cast::<RecvCtx>() };
        host.check_thread(ctx, "SST donation");
    }
    // SAFETY: by the API both are valid for the call.
    let (request, state_id) = unsafe { ((*request).as_slice().to_vec(), *state_id) };
    guarded(host, "SST donate", || host.on_sst_donate(&request, state_id, bypass))
}

pub(crate) unsafe extern "C-unwind" fn apply(
    recv_ctx: *mut c_void,
    ws_handle: *const WsHandle,
    flags: u32,
    data: *const Buf,
    meta: *const TrxMeta,
    exit_loop: *mut bool,
) -> CbStatus {
    // SAFETY: what `recv` or `replay_trx` was given on a thread that is still inside it.
    let ctx = unsafe { &*recv_ctx.cast::<RecvCtx>() };
    // SAFETY: by the API all are valid for the call.
    let (handle, data, meta) = unsafe { (*ws_handle, (*data).as_slice(), *meta) };
    let host = ctx.host;
    let status = guarded(host, "apply", || host.on_apply(ctx, &handle, flags, data, &meta));
    if status == CbStatus::SUCCESS && !exit_loop.is_null() {
        // SAFETY: by the API writable.
        unsafe { *exit_loop = host.applier_shall_exit(ctx) };
    }
    status
}
