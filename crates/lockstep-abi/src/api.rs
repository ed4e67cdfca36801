//! The callbacks a server passes to `init`, and the function table a provider fills in.

use crate::types::*;
use std::ffi::{c_char, c_int, c_void};

/// Takes a log message.
pub type LogCb = unsafe extern "C-unwind" fn(level: LogLevel, message: *const c_char);

/// The first primary view is here: tells the server its own id and the history, nothing in order yet.
pub type ConnectedCb = unsafe extern "C-unwind" fn(app_ctx: *mut c_void, view: *const ViewInfo) -> CbStatus;

/// A view, in its place in the order: everything before it is finished.
/// `recv_ctx` is that of the receiving thread it is called on, or null outside one.
pub type ViewCb = unsafe extern "C-unwind" fn(
    app_ctx: *mut c_void,
    recv_ctx: *mut c_void,
    view: *const ViewInfo,
    state: *const c_char,
    state_len: usize,
) -> CbStatus;

/// Asks the server for a request that tells a donor how to reach it. The server allocates `*sst_req` with
/// `malloc`, the provider frees it. A length of zero: no state transfer by the server.
pub type SstRequestCb = unsafe extern "C-unwind" fn(
    app_ctx: *mut c_void,
    sst_req: *mut *mut c_void,
    sst_req_len: *mut usize,
) -> CbStatus;

/// Applies a write-set. Any result but zero is a failure; `*exit_loop` set to true ends the `recv` it runs in.
pub type ApplyCb = unsafe extern "C-unwind" fn(
    recv_ctx: *mut c_void,
    ws_handle: *const WsHandle,
    flags: u32,
    data: *const Buf,
    meta: *const TrxMeta,
    exit_loop: *mut bool,
) -> CbStatus;

/// Runs unordered actions of a write-set.
pub type UnorderedCb = unsafe extern "C-unwind" fn(recv_ctx: *mut c_void, data: *const Buf) -> CbStatus;

/// Tells a donor to send its state at `state_id` to the joiner that wrote `str_msg`; with `bypass`, the position only.
pub type SstDonateCb = unsafe extern "C-unwind" fn(
    app_ctx: *mut c_void,
    recv_ctx: *mut c_void,
    str_msg: *const Buf,
    state_id: *const Gtid,
    state: *const Buf,
    bypass: bool,
) -> CbStatus;

/// This member has caught up.
pub type SyncedCb = unsafe extern "C-unwind" fn(app_ctx: *mut c_void) -> CbStatus;

/// Encrypts or decrypts; returns the number of bytes written to `output`, or a negative error.
pub type EncryptCb = unsafe extern "C-unwind" fn(
    app_ctx: *mut c_void,
    enc_ctx: *mut EncCtx,
    input: *const Buf,
    output: *mut c_void,
    direction: EncDirection,
    last: bool,
) -> c_int;

/// The arguments of `init`. Pointers are valid for the call only; callbacks and `app_ctx` until `free`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InitArgs {
    /// First argument of most callbacks.
    pub app_ctx: *mut c_void,
    /// This node's name.
    pub node_name: *const c_char,
    /// Address for the provider, may be empty.
    pub node_address: *const c_char,
    /// Address for clients.
    pub node_incoming: *const c_char,
    /// Directory for the provider's files.
    pub data_dir: *const c_char,
    /// The provider's options, `name = value; ..`.
    pub options: *const c_char,
    /// Highest protocol of the server's.
    pub proto_ver: c_int,
    /// The database's position.
    pub state_id: *const Gtid,
    /// The provider's state as kept by the server; unused in practice.
    pub state: *const Buf,
    /// Logger.
    pub logger_cb: Option<LogCb>,
    /// See [`ConnectedCb`].
    pub connected_cb: Option<ConnectedCb>,
    /// See [`ViewCb`].
    pub view_cb: Option<ViewCb>,
    /// See [`SstRequestCb`].
    pub sst_request_cb: Option<SstRequestCb>,
    /// See [`EncryptCb`]; none: no encryption.
    pub encrypt_cb: Option<EncryptCb>,
    /// See [`ApplyCb`].
    pub apply_cb: Option<ApplyCb>,
    /// See [`UnorderedCb`].
    pub unordered_cb: Option<UnorderedCb>,
    /// See [`SstDonateCb`].
    pub sst_donate_cb: Option<SstDonateCb>,
    /// See [`SyncedCb`].
    pub synced_cb: Option<SyncedCb>,
}

/// The loader that a provider exports under [`LOADER_SYMBOL`]: fills in the table, returns 0 or an errno.
pub type LoaderFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep) -> c_int;

/// A function of the table that takes the table only and returns a status.
pub type PlainFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep) -> Status;

/// Type of [`Wsrep::init`].
pub type InitFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, args: *const InitArgs) -> Status;
/// Type of [`Wsrep::capabilities`].
pub type CapabilitiesFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep) -> Capabilities;
/// Type of [`Wsrep::options_set`].
pub type OptionsSetFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, conf: *const c_char) -> Status;
/// Type of [`Wsrep::options_get`].
pub type OptionsGetFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep) -> *mut c_char;
/// Type of [`Wsrep::enc_set_key`].
pub type EncSetKeyFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, key: *const EncKey) -> Status;
/// Type of [`Wsrep::connect`].
pub type ConnectFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    cluster_name: *const c_char,
    cluster_url: *const c_char,
    state_donor: *const c_char,
    bootstrap: bool,
) -> Status;
/// Type of [`Wsrep::recv`].
pub type RecvFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, recv_ctx: *mut c_void) -> Status;
/// Type of [`Wsrep::assign_read_view`].
pub type AssignReadViewFn =
    unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, handle: *mut WsHandle, rv: *const Gtid) -> Status;
/// Type of [`Wsrep::certify`].
pub type CertifyFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    conn_id: ConnId,
    ws_handle: *mut WsHandle,
    flags: u32,
    meta: *mut TrxMeta,
) -> Status;
/// Type of [`Wsrep::commit_order_enter`].
pub type CommitOrderEnterFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    ws_handle: *const WsHandle,
    meta: *const TrxMeta,
) -> Status;
/// Type of [`Wsrep::commit_order_leave`].
pub type CommitOrderLeaveFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    ws_handle: *const WsHandle,
    meta: *const TrxMeta,
    error: *const Buf,
) -> Status;
/// Type of [`Wsrep::release`].
pub type ReleaseFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, ws_handle: *mut WsHandle) -> Status;
/// Type of [`Wsrep::replay_trx`].
pub type ReplayTrxFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    ws_handle: *const WsHandle,
    trx_ctx: *mut c_void,
) -> Status;
/// Type of [`Wsrep::abort_certification`].
pub type AbortCertificationFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    bf_seqno: Seqno,
    victim_trx: TrxId,
    victim_seqno: *mut Seqno,
) -> Status;
/// Type of [`Wsrep::rollback`].
pub type RollbackFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, trx: TrxId, data: *const Buf) -> Status;
/// Type of [`Wsrep::append_key`].
pub type AppendKeyFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    ws_handle: *mut WsHandle,
    keys: *const Key,
    count: usize,
    key_type: KeyType,
    copy: bool,
) -> Status;
/// Type of [`Wsrep::append_data`].
pub type AppendDataFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    ws_handle: *mut WsHandle,
    data: *const Buf,
    count: usize,
    data_type: DataType,
    copy: bool,
) -> Status;
/// Type of [`Wsrep::sync_wait`].
pub type SyncWaitFn =
    unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, upto: *mut Gtid, tout: c_int, gtid: *mut Gtid) -> Status;
/// Type of [`Wsrep::last_committed_id`].
pub type LastCommittedIdFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, gtid: *mut Gtid) -> Status;
/// Type of [`Wsrep::free_connection`].
pub type FreeConnectionFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, conn_id: ConnId) -> Status;
/// Type of [`Wsrep::to_execute_start`].
pub type ToExecuteStartFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    conn_id: ConnId,
    keys: *const Key,
    keys_num: usize,
    action: *const Buf,
    count: usize,
    flags: u32,
    meta: *mut TrxMeta,
) -> Status;
/// Type of [`Wsrep::to_execute_end`].
pub type ToExecuteEndFn =
    unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, conn_id: ConnId, error: *const Buf) -> Status;
/// Type of [`Wsrep::preordered_collect`].
pub type PreorderedCollectFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    handle: *mut PoHandle,
    data: *const Buf,
    count: usize,
    copy: bool,
) -> Status;
/// Type of [`Wsrep::preordered_commit`].
pub type PreorderedCommitFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    handle: *mut PoHandle,
    source_id: *const Uuid,
    flags: u32,
    pa_range: c_int,
    commit: bool,
) -> Status;
/// Type of [`Wsrep::sst_sent`].
pub type SstSentFn =
    unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, state_id: *const Gtid, rcode: c_int) -> Status;
/// Type of [`Wsrep::sst_received`].
pub type SstReceivedFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    state_id: *const Gtid,
    state: *const Buf,
    rcode: c_int,
) -> Status;
/// Type of [`Wsrep::snapshot`].
pub type SnapshotFn =
    unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, msg: *const Buf, donor_spec: *const c_char) -> Status;
/// Type of [`Wsrep::stats_get`].
pub type StatsGetFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep) -> *mut StatsVar;
/// Type of [`Wsrep::stats_free`].
pub type StatsFreeFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, var_array: *mut StatsVar);
/// Type of [`Wsrep::stats_reset`] and [`Wsrep::free`].
pub type VoidFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep);
/// Type of [`Wsrep::pause`].
pub type PauseFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep) -> Seqno;
/// Type of [`Wsrep::lock`].
pub type LockFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    name: *const c_char,
    shared: bool,
    owner: u64,
    tout: i64,
) -> Status;
/// Type of [`Wsrep::unlock`].
pub type UnlockFn = unsafe extern "C-unwind" fn(wsrep: *mut Wsrep, name: *const c_char, owner: u64) -> Status;
/// Type of [`Wsrep::is_locked`].
pub type IsLockedFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    name: *const c_char,
    conn: *mut u64,
    node: *mut Uuid,
) -> bool;

/// The function table (`wsrep_st`). The server allocates it, the provider's loader fills it in. The server
/// insists on all but `capabilities`, `rollback`, `sync_wait`, `last_committed_id`, `snapshot`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Wsrep {
    /// [`INTERFACE_VERSION`].
    pub version: *const c_char,
    /// Prepares the provider; nothing is connected yet. A bad option fails here with `NODE_FAIL`.
    pub init: Option<InitFn>,
    /// Capabilities of this provider (a view has those common to all its members).
    pub capabilities: Option<CapabilitiesFn>,
    /// Changes options: all of the string or nothing.
    pub options_set: Option<OptionsSetFn>,
    /// All options as text, allocated with `malloc`: the server frees it.
    pub options_get: Option<OptionsGetFn>,
    /// Sets or rotates the encryption key.
    pub enc_set_key: Option<EncSetKeyFn>,
    /// Joins the cluster, or begins one. Returns when it is known whether that works.
    pub connect: Option<ConnectFn>,
    /// Leaves the cluster.
    pub disconnect: Option<PlainFn>,
    /// Lends the calling thread to the provider, which calls back on it, until disconnected.
    pub recv: Option<RecvFn>,
    /// Says what the transaction has seen; null: the provider shall find out.
    pub assign_read_view: Option<AssignReadViewFn>,
    /// Replicates and certifies. A GTID in `meta`: the write-set has a place in the order, whatever the result.
    pub certify: Option<CertifyFn>,
    /// Waits for the write-set's turn to commit.
    pub commit_order_enter: Option<CommitOrderEnterFn>,
    /// Lets the next one have its turn.
    pub commit_order_leave: Option<CommitOrderLeaveFn>,
    /// The transaction is finished; for a streaming one, this fragment is.
    pub release: Option<ReleaseFn>,
    /// Applies an ordered transaction again that was aborted by an earlier one, on the calling thread.
    pub replay_trx: Option<ReplayTrxFn>,
    /// Makes a running or the next certify or order wait of `victim_trx` return. Never blocks.
    pub abort_certification: Option<AbortCertificationFn>,
    /// Sends a rollback fragment. Only enqueues.
    pub rollback: Option<RollbackFn>,
    /// Adds keys to a write-set.
    pub append_key: Option<AppendKeyFn>,
    /// Adds data to a write-set.
    pub append_data: Option<AppendDataFn>,
    /// Waits until `upto` (null: everything ordered before the call) is finished here. `tout` in seconds, -1:
    /// the configured limit. `gtid`, if not null, receives the position reached.
    pub sync_wait: Option<SyncWaitFn>,
    /// The last position that is finished here.
    pub last_committed_id: Option<LastCommittedIdFn>,
    /// The connection is gone; forget what belongs to it.
    pub free_connection: Option<FreeConnectionFn>,
    /// Orders a statement; on return the caller is alone.
    pub to_execute_start: Option<ToExecuteStartFn>,
    /// Ends what `to_execute_start` began.
    pub to_execute_end: Option<ToExecuteEndFn>,
    /// Collects events that have an order of their own.
    pub preordered_collect: Option<PreorderedCollectFn>,
    /// Replicates or drops what was collected.
    pub preordered_commit: Option<PreorderedCommitFn>,
    /// The donor has sent its state up to `state_id`, or failed (`rcode` < 0).
    pub sst_sent: Option<SstSentFn>,
    /// The joiner has state up to `state_id`, or failed (`rcode` < 0).
    pub sst_received: Option<SstReceivedFn>,
    /// Asks for a snapshot to be donated.
    pub snapshot: Option<SnapshotFn>,
    /// Status variables, to be given back to `stats_free`.
    pub stats_get: Option<StatsGetFn>,
    /// Frees what `stats_get` returned.
    pub stats_free: Option<StatsFreeFn>,
    /// Sets counters back that `FLUSH STATUS` resets.
    pub stats_reset: Option<VoidFn>,
    /// Stops applying and committing; returns the last finished seqno, or a negative errno.
    pub pause: Option<PauseFn>,
    /// Undoes `pause`.
    pub resume: Option<PlainFn>,
    /// Lets this member lag without holding up others.
    pub desync: Option<PlainFn>,
    /// Asks to be synced again; `synced_cb` tells when it is.
    pub resync: Option<PlainFn>,
    /// Takes a lock of the group.
    pub lock: Option<LockFn>,
    /// Gives a lock back.
    pub unlock: Option<UnlockFn>,
    /// Asks for a lock's owner.
    pub is_locked: Option<IsLockedFn>,
    /// Name of the provider.
    pub provider_name: *const c_char,
    /// Version of the provider.
    pub provider_version: *const c_char,
    /// The vendor.
    pub provider_vendor: *const c_char,
    /// Gives everything back before the library is unloaded.
    pub free: Option<VoidFn>,
    /// The server's handle of the library.
    pub dlh: *mut c_void,
    /// The provider's own.
    pub ctx: *mut c_void,
}

/// Optional entry point beside the table: `certify` that calls `seq_cb` as soon as the order is fixed.
pub type CertifyV1Fn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    conn_id: ConnId,
    ws_handle: *mut WsHandle,
    flags: u32,
    meta: *mut TrxMeta,
    seq_cb: *const SeqCb,
) -> Status;

/// Name under which a [`CertifyV1Fn`] is exported.
pub const CERTIFY_V1_SYMBOL: &std::ffi::CStr = c"wsrep_certify_v1";
