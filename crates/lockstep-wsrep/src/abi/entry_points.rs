//! The function table: every entry point of the API. Each only converts arguments and calls another module.
//!
//! [`enter`] catches a Rust panic: the node fails, and the server gets `NODE_FAIL` (`FATAL` from `recv` and
//! `replay_trx`, where it must not continue). `recv` and `replay_trx` call the server back and are guarded step by step
//! instead (see [`crate::guard`]).

use crate::abi::services;
use crate::apply::applier;
use crate::ddl::statement;
use crate::guard::guarded;
use crate::lifecycle::connect::text_of;
use crate::lifecycle::state_files::gtid_out;
use crate::lifecycle::{connect as connection, control};
use crate::provider::{self, Provider};
use crate::status::log::Log;
use crate::status::stats;
use crate::trx::append;
use lockstep_abi::*;
use lockstep_node::options::Options;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

/// The version of Galera's newest library, which MariaDB's tests read, then Lockstep's own.
const VERSION: &str = if lockstep_node::core::raft::FAILPOINTS {
    concat!("26.4.23(lockstep-", env!("CARGO_PKG_VERSION"), "-failpoints)\0")
} else {
    concat!("26.4.23(lockstep-", env!("CARGO_PKG_VERSION"), ")\0")
};
const VENDOR: &std::ffi::CStr = c"Lockstep";

/// The interface version, as a C `char*`.
#[repr(transparent)]
pub struct VersionText(*const c_char);

// SAFETY: a pointer to a constant.
unsafe impl Sync for VersionText {}

/// See [`INTERFACE_VERSION_SYMBOL`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the server looks for this name")]
pub static wsrep_interface_version: VersionText = VersionText(INTERFACE_VERSION.as_ptr());

/// The provider of a table; `None` before `init` and after `free`.
///
/// # Safety
/// `wsrep` is null or a table that [`wsrep_loader`] filled in.
unsafe fn of<'a>(wsrep: *mut Wsrep) -> Option<&'a Provider> {
    // SAFETY: by this function's contract; `ctx` is what `init` put there, or null.
    unsafe { wsrep.as_ref().and_then(|table| table.ctx.cast::<Provider>().as_ref()) }
}

/// As [`of`], with access to the reference count.
///
/// # Safety
/// As for [`of`].
unsafe fn shared(wsrep: *mut Wsrep) -> Option<ManuallyDrop<Arc<Provider>>> {
    // SAFETY: `init` made the pointer with `Arc::into_raw`; this does not take its count.
    unsafe { of(wsrep) }.map(|provider| ManuallyDrop::new(unsafe { Arc::from_raw(provider) }))
}

/// Runs an entry point that does not call the server back.
///
/// # Safety
/// As for [`of`].
pub(crate) unsafe fn enter<T>(
    wsrep: *mut Wsrep,
    what: &str,
    failed: T,
    body: impl FnOnce(&Provider) -> T,
) -> T {
    // SAFETY: by this function's contract.
    match unsafe { of(wsrep) } {
        Some(provider) => provider.step(what, || body(provider)).unwrap_or(failed),
        // Before `init`, or after `free`: there is no log to write to.
        None => failed,
    }
}

unsafe extern "C-unwind" fn init(wsrep: *mut Wsrep, args: *const InitArgs) -> Status {
    // SAFETY: null, or as the API says.
    let (Some(table), Some(args)) = (unsafe { wsrep.as_mut() }, unsafe { args.as_ref() }) else {
        return Status::NODE_FAIL;
    };
    let log = Log::new(args.logger_cb);
    if !table.ctx.is_null() {
        log.error("init: called twice");
        return Status::NODE_FAIL;
    }
    // SAFETY: the server passes valid arguments.
    match guarded(|| unsafe { connection::init(args) }) {
        Ok(Ok(provider)) => {
            let name = provider.cx().host.settings.with(|options: &Options| options.text("provider.name"));
            if let Ok(name) = CString::new(name) {
                // Never freed: the server may read it at any time.
                table.provider_name = name.into_raw();
            }
            services::set_current(Arc::as_ptr(&provider));
            table.ctx = Arc::into_raw(provider).cast_mut().cast();
            Status::OK
        }
        Ok(Err(text)) => {
            log.error(text);
            Status::NODE_FAIL
        }
        Err(panicked) => {
            log.error(format!("init failed with an error in the program: {}", panicked.0));
            Status::NODE_FAIL
        }
    }
}

unsafe extern "C-unwind" fn capabilities(wsrep: *mut Wsrep) -> Capabilities {
    // SAFETY: the server passes a valid table.
    unsafe { enter(wsrep, "capabilities", 0, |p| provider::capabilities(&p.cx().host.settings)) }
}

unsafe extern "C-unwind" fn options_set(wsrep: *mut Wsrep, conf: *const c_char) -> Status {
    // SAFETY: the server passes a valid table and string, here and in all functions below.
    unsafe { enter(wsrep, "options_set", Status::NODE_FAIL, |p| p.set_options(&text_of(conf))) }
}

unsafe extern "C-unwind" fn options_get(wsrep: *mut Wsrep) -> *mut c_char {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "options_get", ptr::null_mut(), |p| {
            if let Some(node) = p.cx().node() {
                p.cx().host.settings.adopt_policy(&node.policy());
            }
            let text = CString::new(p.cx().host.settings.with(Options::get_all).replace('\0', ""))
                .unwrap_or_default();
            // The server frees it with `free`.
            libc::strdup(text.as_ptr())
        })
    }
}

unsafe extern "C-unwind" fn enc_set_key(wsrep: *mut Wsrep, _key: *const EncKey) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "enc_set_key", Status::NODE_FAIL, |p| {
            p.cx().host.set_encryption_key();
            Status::OK
        })
    }
}

unsafe extern "C-unwind" fn connect(
    wsrep: *mut Wsrep,
    cluster_name: *const c_char,
    cluster_url: *const c_char,
    state_donor: *const c_char,
    bootstrap: bool,
) -> Status {
    // SAFETY: as above.
    let Some(provider) = (unsafe { shared(wsrep) }) else { return Status::NODE_FAIL };
    // SAFETY: as above.
    let [name, url, donor] = [cluster_name, cluster_url, state_donor].map(|text| unsafe { text_of(text) });
    match provider.step("connect", || provider.connect(&name, &url, &donor, bootstrap)) {
        Some(Ok(())) => Status::OK,
        Some(Err(text)) => {
            provider.cx().host.log.error(text);
            Status::NODE_FAIL
        }
        None => Status::NODE_FAIL,
    }
}

unsafe extern "C-unwind" fn disconnect(wsrep: *mut Wsrep) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "disconnect", Status::NODE_FAIL, |p| {
            p.disconnect();
            Status::OK
        })
    }
}

unsafe extern "C-unwind" fn recv(wsrep: *mut Wsrep, recv_ctx: *mut c_void) -> Status {
    // Not as a whole inside a guard: see `crate::guard`.
    // SAFETY: as above.
    match unsafe { shared(wsrep) } {
        // Counted: `free` may be called while this thread returns.
        Some(provider) => {
            let provider = Arc::clone(&provider);
            // SAFETY: the server passes a valid context.
            unsafe { applier::recv(&provider, recv_ctx) }
        }
        None => Status::FATAL,
    }
}

unsafe extern "C-unwind" fn assign_read_view(_: *mut Wsrep, _: *mut WsHandle, _: *const Gtid) -> Status {
    // As in Galera: the transaction's read position is sampled in `certify`.
    Status::NOT_IMPLEMENTED
}

unsafe extern "C-unwind" fn certify(
    wsrep: *mut Wsrep,
    conn_id: ConnId,
    ws_handle: *mut WsHandle,
    flags: u32,
    meta: *mut TrxMeta,
) -> Status {
    // SAFETY: as the table's caller vouches; no callback.
    unsafe { wsrep_certify_v1(wsrep, conn_id, ws_handle, flags, meta, ptr::null()) }
}

/// As `certify` of the table. Calls `seq_cb` once the order of the write-set among this member's own is fixed: a server
/// with an order of its own (a binlog's) then lets its next thread continue.
///
/// # Safety
/// As for the table's functions; `seq_cb` is null or points to one that is valid during the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn wsrep_certify_v1(
    wsrep: *mut Wsrep,
    conn_id: ConnId,
    ws_handle: *mut WsHandle,
    flags: u32,
    meta: *mut TrxMeta,
    seq_cb: *const SeqCb,
) -> Status {
    // SAFETY: as above, and for the handle and the callback.
    unsafe {
        enter(wsrep, "certify", Status::NODE_FAIL, |p| {
            let Some(handle) = ws_handle.as_mut() else { return Status::NODE_FAIL };
            let mut unused = TrxMeta::UNDEFINED;
            let in_order = || {
                if let Some(SeqCb { ctx, func: Some(func) }) = seq_cb.as_ref() {
                    func(*ctx);
                }
            };
            let meta = meta.as_mut().unwrap_or(&mut unused);
            p.certify(conn_id, handle, flags, meta, in_order)
        })
    }
}

unsafe extern "C-unwind" fn commit_order_enter(
    wsrep: *mut Wsrep,
    ws_handle: *const WsHandle,
    _meta: *const TrxMeta,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "commit_order_enter", Status::NODE_FAIL, |p| match ws_handle.as_ref() {
            Some(handle) => p.commit_order_enter(handle),
            None => Status::NODE_FAIL,
        })
    }
}

unsafe extern "C-unwind" fn commit_order_leave(
    wsrep: *mut Wsrep,
    ws_handle: *const WsHandle,
    _meta: *const TrxMeta,
    error: *const Buf,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "commit_order_leave", Status::NODE_FAIL, |p| match ws_handle.as_ref() {
            Some(handle) => {
                p.commit_order_leave(handle, error.as_ref().map_or(&[], |error| error.as_slice()))
            }
            None => Status::NODE_FAIL,
        })
    }
}

unsafe extern "C-unwind" fn release(wsrep: *mut Wsrep, ws_handle: *mut WsHandle) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "release", Status::NODE_FAIL, |p| match ws_handle.as_mut() {
            Some(handle) => p.release(handle),
            None => Status::NODE_FAIL,
        })
    }
}

unsafe extern "C-unwind" fn replay_trx(
    wsrep: *mut Wsrep,
    ws_handle: *const WsHandle,
    trx_ctx: *mut c_void,
) -> Status {
    // SAFETY: as above; guarded step by step.
    match unsafe { (of(wsrep), ws_handle.as_ref()) } {
        // SAFETY: the server passes a valid context.
        (Some(provider), Some(handle)) => unsafe { applier::replay(provider, handle, trx_ctx) },
        _ => Status::NODE_FAIL,
    }
}

unsafe extern "C-unwind" fn abort_certification(
    wsrep: *mut Wsrep,
    bf_seqno: Seqno,
    victim_trx: TrxId,
    victim_seqno: *mut Seqno,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "abort_certification", Status::NODE_FAIL, |p| {
            let (status, seqno) = p.abort(bf_seqno, victim_trx);
            if let Some(out) = victim_seqno.as_mut() {
                *out = seqno;
            }
            status
        })
    }
}

unsafe extern "C-unwind" fn rollback(wsrep: *mut Wsrep, trx: TrxId, data: *const Buf) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "rollback", Status::NODE_FAIL, |p| {
            p.rollback(trx, data.as_ref().map_or(&[], |data| data.as_slice()))
        })
    }
}

unsafe extern "C-unwind" fn append_key(
    wsrep: *mut Wsrep,
    ws_handle: *mut WsHandle,
    keys: *const Key,
    count: usize,
    key_type: KeyType,
    _copy: bool,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "append_key", Status::NODE_FAIL, |p| match ws_handle.as_mut() {
            Some(handle) => append::append_key(p.cx(), handle, keys, count, key_type),
            None => Status::NODE_FAIL,
        })
    }
}

unsafe extern "C-unwind" fn append_data(
    wsrep: *mut Wsrep,
    ws_handle: *mut WsHandle,
    data: *const Buf,
    count: usize,
    data_type: DataType,
    _copy: bool,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "append_data", Status::NODE_FAIL, |p| match ws_handle.as_mut() {
            Some(handle) => append::append_data(p.cx(), handle, data, count, data_type),
            None => Status::NODE_FAIL,
        })
    }
}

unsafe extern "C-unwind" fn sync_wait(
    wsrep: *mut Wsrep,
    upto: *mut Gtid,
    tout: c_int,
    gtid: *mut Gtid,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "sync_wait", Status::NODE_FAIL, |p| match p.sync_wait(upto.as_ref().copied(), tout) {
            Ok(reached) => {
                if let Some(out) = gtid.as_mut() {
                    *out = reached;
                }
                Status::OK
            }
            Err(status) => status,
        })
    }
}

unsafe extern "C-unwind" fn last_committed_id(wsrep: *mut Wsrep, gtid: *mut Gtid) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "last_committed_id", Status::NODE_FAIL, |p| {
            let Some(out) = gtid.as_mut() else { return Status::NODE_FAIL };
            *out = gtid_out(p.cx().position());
            Status::OK
        })
    }
}

unsafe extern "C-unwind" fn free_connection(_: *mut Wsrep, _: ConnId) -> Status {
    // Connections have no state here but their statement in total order.
    Status::OK
}

unsafe extern "C-unwind" fn to_execute_start(
    wsrep: *mut Wsrep,
    conn_id: ConnId,
    keys: *const Key,
    keys_num: usize,
    action: *const Buf,
    count: usize,
    flags: u32,
    meta: *mut TrxMeta,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "to_execute_start", Status::NODE_FAIL, |p| {
            let Some(meta) = meta.as_mut() else { return Status::NODE_FAIL };
            let action = if action.is_null() { &[] } else { std::slice::from_raw_parts(action, count) };
            statement::start(p.cx(), conn_id, keys, keys_num, action, flags, meta)
        })
    }
}

unsafe extern "C-unwind" fn to_execute_end(wsrep: *mut Wsrep, conn_id: ConnId, error: *const Buf) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "to_execute_end", Status::NODE_FAIL, |p| {
            statement::end(p.cx(), conn_id, error.as_ref().map_or(&[], |error| error.as_slice()))
        })
    }
}

unsafe extern "C-unwind" fn preordered_collect(
    _: *mut Wsrep,
    _: *mut PoHandle,
    _: *const Buf,
    _: usize,
    _: bool,
) -> Status {
    Status::NOT_IMPLEMENTED
}

unsafe extern "C-unwind" fn preordered_commit(
    _: *mut Wsrep,
    _: *mut PoHandle,
    _: *const Uuid,
    _: u32,
    _: c_int,
    _: bool,
) -> Status {
    Status::NOT_IMPLEMENTED
}

unsafe extern "C-unwind" fn sst_sent(wsrep: *mut Wsrep, state_id: *const Gtid, rcode: c_int) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "sst_sent", Status::NODE_FAIL, |p| {
            p.state_sent(state_id.as_ref().copied().unwrap_or(Gtid::UNDEFINED), rcode)
        })
    }
}

unsafe extern "C-unwind" fn sst_received(
    wsrep: *mut Wsrep,
    state_id: *const Gtid,
    _state: *const Buf,
    rcode: c_int,
) -> Status {
    // SAFETY: as above.
    unsafe {
        enter(wsrep, "sst_received", Status::NODE_FAIL, |p| {
            p.state_received(state_id.as_ref().copied().unwrap_or(Gtid::UNDEFINED), rcode)
        })
    }
}

unsafe extern "C-unwind" fn snapshot(_: *mut Wsrep, _: *const Buf, _: *const c_char) -> Status {
    Status::NOT_IMPLEMENTED
}

unsafe extern "C-unwind" fn stats_get(wsrep: *mut Wsrep) -> *mut StatsVar {
    // SAFETY: as above.
    unsafe { enter(wsrep, "stats_get", ptr::null_mut(), |p| stats::lay_out(&stats::stats(p))) }
}

unsafe extern "C-unwind" fn stats_free(_: *mut Wsrep, var_array: *mut StatsVar) {
    // SAFETY: `stats_get` returned it: one block from malloc, or null.
    unsafe { libc::free(var_array.cast()) }
}

unsafe extern "C-unwind" fn stats_reset(wsrep: *mut Wsrep) {
    // SAFETY: as above.
    unsafe { enter(wsrep, "stats_reset", (), |p| stats::reset(p.cx())) }
}

unsafe extern "C-unwind" fn pause(wsrep: *mut Wsrep) -> Seqno {
    // SAFETY: as above.
    unsafe { enter(wsrep, "pause", SEQNO_UNDEFINED, |p| control::pause(p.cx())) }
}

unsafe extern "C-unwind" fn resume(wsrep: *mut Wsrep) -> Status {
    // SAFETY: as above.
    unsafe { enter(wsrep, "resume", Status::NODE_FAIL, |p| p.resume()) }
}

unsafe extern "C-unwind" fn desync(wsrep: *mut Wsrep) -> Status {
    // SAFETY: as above.
    unsafe { enter(wsrep, "desync", Status::NODE_FAIL, |p| control::desync(p.cx())) }
}

unsafe extern "C-unwind" fn resync(wsrep: *mut Wsrep) -> Status {
    // SAFETY: as above.
    unsafe { enter(wsrep, "resync", Status::NODE_FAIL, |p| control::resync(p.cx())) }
}

unsafe extern "C-unwind" fn lock(_: *mut Wsrep, _: *const c_char, _: bool, _: u64, _: i64) -> Status {
    Status::NOT_IMPLEMENTED
}

unsafe extern "C-unwind" fn unlock(_: *mut Wsrep, _: *const c_char, _: u64) -> Status {
    Status::NOT_IMPLEMENTED
}

unsafe extern "C-unwind" fn is_locked(_: *mut Wsrep, _: *const c_char, _: *mut u64, _: *mut Uuid) -> bool {
    false
}

unsafe extern "C-unwind" fn free(wsrep: *mut Wsrep) {
    // SAFETY: as above.
    let Some(table) = (unsafe { wsrep.as_mut() }) else { return };
    services::set_current(ptr::null());
    let ctx: *mut Provider = std::mem::replace(&mut table.ctx, ptr::null_mut()).cast();
    if ctx.is_null() {
        return;
    }
    // SAFETY: from `Arc::into_raw` in `init`; this takes its count.
    let provider = unsafe { Arc::from_raw(ctx) };
    let _ = guarded(|| {
        provider.disconnect();
        if let Some(node) = provider.cx().node() {
            node.stop();
        }
    });
}

/// Fills in the table. Returns 0, or `EINVAL` for a null pointer.
///
/// # Safety
/// `wsrep` is null or points to a table.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_loader(wsrep: *mut Wsrep) -> c_int {
    // SAFETY: by this function's contract. Written as a whole: the server's may be uninitialised, but for `dlh`.
    let Some(table) = (unsafe { wsrep.as_mut() }) else { return libc::EINVAL };
    *table = Wsrep {
        version: INTERFACE_VERSION.as_ptr(),
        init: Some(init),
        capabilities: Some(capabilities),
        options_set: Some(options_set),
        options_get: Some(options_get),
        enc_set_key: Some(enc_set_key),
        connect: Some(connect),
        disconnect: Some(disconnect),
        recv: Some(recv),
        assign_read_view: Some(assign_read_view),
        certify: Some(certify),
        commit_order_enter: Some(commit_order_enter),
        commit_order_leave: Some(commit_order_leave),
        release: Some(release),
        replay_trx: Some(replay_trx),
        abort_certification: Some(abort_certification),
        rollback: Some(rollback),
        append_key: Some(append_key),
        append_data: Some(append_data),
        sync_wait: Some(sync_wait),
        last_committed_id: Some(last_committed_id),
        free_connection: Some(free_connection),
        to_execute_start: Some(to_execute_start),
        to_execute_end: Some(to_execute_end),
        preordered_collect: Some(preordered_collect),
        preordered_commit: Some(preordered_commit),
        sst_sent: Some(sst_sent),
        sst_received: Some(sst_received),
        snapshot: Some(snapshot),
        stats_get: Some(stats_get),
        stats_free: Some(stats_free),
        stats_reset: Some(stats_reset),
        pause: Some(pause),
        resume: Some(resume),
        desync: Some(desync),
        resync: Some(resync),
        lock: Some(lock),
        unlock: Some(unlock),
        is_locked: Some(is_locked),
        provider_name: c"Galera".as_ptr(),
        provider_version: VERSION.as_ptr().cast(),
        provider_vendor: VENDOR.as_ptr(),
        free: Some(free),
        dlh: table.dlh,
        ctx: ptr::null_mut(),
    };
    0
}
