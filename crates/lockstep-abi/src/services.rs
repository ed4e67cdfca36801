//! Services that a server offers to a provider (or asks of it) beside the function table. Each is reached by a
//! pair of exported symbols, `int wsrep_init_<service>_v<n>(struct*)` and `void wsrep_deinit_<service>_v<n>()`.
//! The first is called before [`crate::Wsrep::init`], the second after [`crate::Wsrep::free`]. A server does
//! without those that a provider does not export; 10.11.18 insists on the allow-list.

use crate::api::*;
use crate::types::*;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// An exported function that ends a service.
pub type ServiceDeinitFn = unsafe extern "C-unwind" fn();

// ---- allow-list ------------------------------------------------------------------------------------------

/// What kind of value an allow-list check is about.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllowlistKey(pub c_uint);

impl AllowlistKey {
    /// An IP address.
    pub const IP: AllowlistKey = AllowlistKey(0);
    /// The subject of a certificate.
    pub const SSL: AllowlistKey = AllowlistKey(1);
}

/// Asks the server whether a peer may connect: `OK` or `NOT_ALLOWED`. May block on an SQL thread.
pub type AllowlistCb =
    unsafe extern "C-unwind" fn(context: *mut c_void, key: AllowlistKey, value: *const Buf) -> Status;

/// The allow-list service, version 1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AllowlistServiceV1 {
    /// The check.
    pub allowlist_cb: Option<AllowlistCb>,
    /// Its first argument.
    pub context: *mut c_void,
}

/// Type of the exported initialiser; returns 0 or an errno.
pub type InitAllowlistServiceV1Fn = unsafe extern "C-unwind" fn(service: *mut AllowlistServiceV1) -> c_int;
/// Exported initialiser.
pub const ALLOWLIST_INIT_V1_SYMBOL: &CStr = c"wsrep_init_allowlist_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const ALLOWLIST_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_allowlist_service_v1";

// ---- events ----------------------------------------------------------------------------------------------

/// Takes an event: its name and a JSON value, both NUL-terminated.
pub type EventCb =
    unsafe extern "C-unwind" fn(context: *mut c_void, name: *const c_char, value: *const c_char);

/// The event service, version 1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EventServiceV1 {
    /// Receiver of events.
    pub event_cb: Option<EventCb>,
    /// Its first argument.
    pub context: *mut c_void,
}

/// Type of the exported initialiser; returns 0 or an errno.
pub type InitEventServiceV1Fn = unsafe extern "C-unwind" fn(service: *mut EventServiceV1) -> c_int;
/// Exported initialiser.
pub const EVENT_INIT_V1_SYMBOL: &CStr = c"wsrep_init_event_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const EVENT_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_event_service_v1";

// ---- configuration ---------------------------------------------------------------------------------------

/// The parameter is deprecated.
pub const PARAM_DEPRECATED: c_int = 1 << 0;
/// The parameter cannot change while running.
pub const PARAM_READONLY: c_int = 1 << 1;
/// The value is a boolean.
pub const PARAM_TYPE_BOOL: c_int = 1 << 2;
/// The value is an integer.
pub const PARAM_TYPE_INTEGER: c_int = 1 << 3;
/// The value is a double. Without any of the three it is text.
pub const PARAM_TYPE_DOUBLE: c_int = 1 << 4;

/// A parameter's value; the type bits say which field is meant.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ParameterValue {
    /// For [`PARAM_TYPE_BOOL`].
    pub as_bool: bool,
    /// For [`PARAM_TYPE_INTEGER`].
    pub as_integer: i64,
    /// For [`PARAM_TYPE_DOUBLE`].
    pub as_double: f64,
    /// For text.
    pub as_string: *const c_char,
}

/// One parameter of the provider.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Parameter {
    /// `PARAM_*` bits.
    pub flags: c_int,
    /// Name.
    pub name: *const c_char,
    /// Value.
    pub value: ParameterValue,
}

/// Called once for each parameter; anything but `OK` ends the walk.
pub type GetParametersCb =
    unsafe extern "C-unwind" fn(parameter: *const Parameter, context: *mut c_void) -> Status;
/// Walks the parameters; `OK`, or `FATAL` when the callback did not return `OK`.
pub type GetParametersFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    cb: Option<GetParametersCb>,
    context: *mut c_void,
) -> Status;

/// The configuration service, version 1: filled in by the provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConfigServiceV1 {
    /// Walks the parameters.
    pub get_parameters: Option<GetParametersFn>,
}

/// Type of the exported initialiser; returns 0 or an errno.
pub type InitConfigServiceV1Fn = unsafe extern "C-unwind" fn(service: *mut ConfigServiceV1) -> c_int;
/// Exported initialiser.
pub const CONFIG_INIT_V1_SYMBOL: &CStr = c"wsrep_init_config_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const CONFIG_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_config_service_v1";

// ---- membership ------------------------------------------------------------------------------------------

/// A member and its state.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemberInfoExt {
    /// Who.
    pub base: MemberInfo,
    /// Last seqno it has committed.
    pub last_committed: Seqno,
    /// State.
    pub status: MemberStatus,
}

/// A member, its state and its flags.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemberInfoExtV2 {
    /// Who.
    pub base: MemberInfo,
    /// Last seqno it has committed.
    pub last_committed: Seqno,
    /// State.
    pub status: MemberStatus,
    /// `MEMBER_FLAG_*` bits.
    pub flags: u8,
}

/// Represents the group.
pub const MEMBER_FLAG_REP: u8 = 0x01;
/// Its last applied position counts.
pub const MEMBER_FLAG_CLA: u8 = 0x02;
/// Takes part in a bootstrap.
pub const MEMBER_FLAG_BOOTSTRAP: u8 = 0x04;
/// Has no state: an arbitrator.
pub const MEMBER_FLAG_STATELESS: u8 = 0x08;

/// The membership right now, out of order, followed in memory by `num` members.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Membership {
    /// When the data was last updated: the group's id of then.
    pub group_uuid: Uuid,
    /// Last seqno received, not necessarily processed.
    pub last_received: Seqno,
    /// When the members' data was last updated.
    pub updated: Seqno,
    /// Status of the group.
    pub state: ViewStatus,
    /// Number of members.
    pub num: usize,
    /// First of them.
    pub members: [MemberInfoExt; 1],
}

/// As [`Membership`], with flags.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MembershipV2 {
    /// When the data was last updated: the group's id of then.
    pub group_uuid: Uuid,
    /// Last seqno received, not necessarily processed.
    pub last_received: Seqno,
    /// When the members' data was last updated.
    pub updated: Seqno,
    /// Status of the group.
    pub state: ViewStatus,
    /// Number of members.
    pub num: usize,
    /// First of them.
    pub members: [MemberInfoExtV2; 1],
}

/// Allocates memory that the caller of the query frees; null: none left.
pub type AllocatorCb = unsafe extern "C-unwind" fn(size: usize) -> *mut c_void;
/// Queries the membership into memory from `allocator`.
pub type GetMembershipFn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    allocator: Option<AllocatorCb>,
    membership: *mut *mut Membership,
) -> Status;
/// As [`GetMembershipFn`], with flags.
pub type GetMembershipV2Fn = unsafe extern "C-unwind" fn(
    wsrep: *mut Wsrep,
    allocator: Option<AllocatorCb>,
    membership: *mut *mut MembershipV2,
) -> Status;

/// The membership service, version 1: filled in by the provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MembershipServiceV1 {
    /// The query.
    pub get_membership: Option<GetMembershipFn>,
}

/// The membership service, version 2: filled in by the provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MembershipServiceV2 {
    /// The query.
    pub get_membership: Option<GetMembershipV2Fn>,
}

/// Type of the exported initialiser, version 1.
pub type InitMembershipServiceV1Fn = unsafe extern "C-unwind" fn(service: *mut MembershipServiceV1) -> Status;
/// Type of the exported initialiser, version 2.
pub type InitMembershipServiceV2Fn = unsafe extern "C-unwind" fn(service: *mut MembershipServiceV2) -> Status;
/// Exported initialiser, version 1.
pub const MEMBERSHIP_INIT_V1_SYMBOL: &CStr = c"wsrep_init_membership_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const MEMBERSHIP_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_membership_service_v1";
/// Exported initialiser, version 2.
pub const MEMBERSHIP_INIT_V2_SYMBOL: &CStr = c"wsrep_init_membership_service_v2";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const MEMBERSHIP_DEINIT_V2_SYMBOL: &CStr = c"wsrep_deinit_membership_service_v2";

// ---- node isolation --------------------------------------------------------------------------------------

/// What [`NodeIsolationModeSetV1Fn`] shall do.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeIsolationMode(pub c_uint);

impl NodeIsolationMode {
    /// Take part as usual.
    pub const NOT_ISOLATED: NodeIsolationMode = NodeIsolationMode(0);
    /// Cut all connections and accept none.
    pub const ISOLATED: NodeIsolationMode = NodeIsolationMode(1);
    /// The same, and deliver a disconnected view.
    pub const FORCE_DISCONNECT: NodeIsolationMode = NodeIsolationMode(2);
}

/// Result of [`NodeIsolationModeSetV1Fn`].
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeIsolationResult(pub c_uint);

impl NodeIsolationResult {
    /// Done.
    pub const SUCCESS: NodeIsolationResult = NodeIsolationResult(0);
    /// No such mode.
    pub const INVALID_VALUE: NodeIsolationResult = NodeIsolationResult(1);
}

/// Cuts this member off, from a signal handler of a crashing server: must be async-signal-safe.
pub type NodeIsolationModeSetV1Fn =
    unsafe extern "C-unwind" fn(mode: NodeIsolationMode) -> NodeIsolationResult;
/// Name under which it is exported.
pub const NODE_ISOLATION_MODE_SET_V1_SYMBOL: &CStr = c"wsrep_node_isolation_mode_set_v1";

// ---- connection monitor ----------------------------------------------------------------------------------

/// Identifies a connection.
pub type ConnectionKey = *const c_void;

/// A peer is connected.
pub type ConnectionMonitorConnectCb = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    id: ConnectionKey,
    scheme: *const Buf,
    local_address: *const Buf,
    remote_address: *const Buf,
);
/// A peer is disconnected.
pub type ConnectionMonitorDisconnectCb = unsafe extern "C-unwind" fn(context: *mut c_void, id: ConnectionKey);
/// The negotiated TLS parameters.
pub type ConnectionMonitorSslInfoCb = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    id: ConnectionKey,
    cipher: *const Buf,
    certificate_subject: *const Buf,
    certificate_issuer: *const Buf,
    version: *const Buf,
);

/// The connection monitor service, version 1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConnectionMonitorServiceV1 {
    /// See [`ConnectionMonitorConnectCb`].
    pub connect_cb: Option<ConnectionMonitorConnectCb>,
    /// See [`ConnectionMonitorDisconnectCb`].
    pub disconnect_cb: Option<ConnectionMonitorDisconnectCb>,
    /// See [`ConnectionMonitorSslInfoCb`].
    pub ssl_info_cb: Option<ConnectionMonitorSslInfoCb>,
    /// First argument of the three.
    pub context: *mut c_void,
}

/// Type of the exported initialiser; returns 0 or an errno.
pub type InitConnectionMonitorServiceV1Fn =
    unsafe extern "C-unwind" fn(service: *mut ConnectionMonitorServiceV1) -> c_int;
/// Exported initialiser.
pub const CONNECTION_MONITOR_INIT_V1_SYMBOL: &CStr = c"wsrep_init_connection_monitor_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const CONNECTION_MONITOR_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_connection_monitor_service_v1";

// ---- TLS -------------------------------------------------------------------------------------------------

/// A connection whose bytes the server's TLS reads and writes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TlsStream {
    /// Its descriptor, which the provider opens and closes.
    pub fd: c_int,
    /// The server's own.
    pub opaque: *mut c_void,
}

/// Result of a TLS operation.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TlsResult(pub c_uint);

impl TlsResult {
    /// Done.
    pub const SUCCESS: TlsResult = TlsResult(0);
    /// Try again when the descriptor is readable.
    pub const WANT_READ: TlsResult = TlsResult(1);
    /// Try again when the descriptor is writable.
    pub const WANT_WRITE: TlsResult = TlsResult(2);
    /// The peer ended the stream properly.
    pub const EOF: TlsResult = TlsResult(3);
    /// Failed; the error functions say why.
    pub const ERROR: TlsResult = TlsResult(4);
}

/// Prepares a stream; no I/O. Returns 0 or an errno.
pub type TlsStreamInitCb = unsafe extern "C-unwind" fn(context: *mut c_void, stream: *mut TlsStream) -> c_int;
/// Forgets a stream; does not close its descriptor.
pub type TlsStreamDeinitCb = unsafe extern "C-unwind" fn(context: *mut c_void, stream: *mut TlsStream);
/// Number of the stream's last error.
pub type TlsErrorNumberCb =
    unsafe extern "C-unwind" fn(context: *mut c_void, stream: *const TlsStream) -> c_int;
/// Category of the stream's last error; null: an errno.
pub type TlsErrorCategoryCb =
    unsafe extern "C-unwind" fn(context: *mut c_void, stream: *const TlsStream) -> *const c_void;
/// Handshakes and shutdown.
pub type TlsStreamStepCb =
    unsafe extern "C-unwind" fn(context: *mut c_void, stream: *mut TlsStream) -> TlsResult;
/// Reads.
pub type TlsStreamReadCb = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    stream: *mut TlsStream,
    buf: *mut c_void,
    max_count: usize,
    bytes_transferred: *mut usize,
) -> TlsResult;
/// Writes.
pub type TlsStreamWriteCb = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    stream: *mut TlsStream,
    buf: *const c_void,
    count: usize,
    bytes_transferred: *mut usize,
) -> TlsResult;
/// Text of an error.
pub type TlsErrorMessageCb = unsafe extern "C-unwind" fn(
    context: *mut c_void,
    stream: *const TlsStream,
    error_number: c_int,
    category: *const c_void,
) -> *const c_char;

/// The TLS service, version 1: the server does TLS for the provider.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TlsServiceV1 {
    /// Prepares a stream.
    pub stream_init: Option<TlsStreamInitCb>,
    /// Forgets a stream.
    pub stream_deinit: Option<TlsStreamDeinitCb>,
    /// Number of the last error.
    pub stream_get_error_number: Option<TlsErrorNumberCb>,
    /// Category of the last error.
    pub stream_get_error_category: Option<TlsErrorCategoryCb>,
    /// Handshake of who connected.
    pub stream_client_handshake: Option<TlsStreamStepCb>,
    /// Handshake of who accepted.
    pub stream_server_handshake: Option<TlsStreamStepCb>,
    /// Reads.
    pub stream_read: Option<TlsStreamReadCb>,
    /// Writes.
    pub stream_write: Option<TlsStreamWriteCb>,
    /// Ends TLS on the stream; does not close it.
    pub stream_shutdown: Option<TlsStreamStepCb>,
    /// Text of an error.
    pub error_message_get: Option<TlsErrorMessageCb>,
    /// First argument of all.
    pub context: *mut c_void,
}

/// Type of the exported initialiser; returns 0 or an errno.
pub type InitTlsServiceV1Fn = unsafe extern "C-unwind" fn(service: *mut TlsServiceV1) -> c_int;
/// Exported initialiser.
pub const TLS_INIT_V1_SYMBOL: &CStr = c"wsrep_init_tls_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const TLS_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_tls_service_v1";

// ---- threads ---------------------------------------------------------------------------------------------

/// The thread service, version 1: the server's own threads, mutexes and condition variables in place of the
/// provider's. A provider that has no use for it does not export its symbols; the layout is here so that a
/// host can be written against it. All pointers but the obvious ones are opaque to one side.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ThreadServiceV1 {
    /// Names a kind of thread.
    pub thread_key_create: Option<unsafe extern "C-unwind" fn(name: *const c_char) -> *const Opaque>,
    /// Starts a thread.
    pub thread_create: Option<
        unsafe extern "C-unwind" fn(
            key: *const Opaque,
            thread: *mut *mut Opaque,
            start: Option<unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void>,
            arg: *mut c_void,
        ) -> c_int,
    >,
    /// Detaches a thread.
    pub thread_detach: Option<unsafe extern "C-unwind" fn(thread: *mut Opaque) -> c_int>,
    /// Compares two threads.
    pub thread_equal: Option<unsafe extern "C-unwind" fn(a: *mut Opaque, b: *mut Opaque) -> c_int>,
    /// Ends the calling thread.
    pub thread_exit: Option<unsafe extern "C-unwind" fn(thread: *mut Opaque, retval: *mut c_void) -> !>,
    /// Waits for a thread's end.
    pub thread_join:
        Option<unsafe extern "C-unwind" fn(thread: *mut Opaque, retval: *mut *mut c_void) -> c_int>,
    /// The calling thread.
    pub thread_self: Option<unsafe extern "C-unwind" fn() -> *mut Opaque>,
    /// Sets scheduling; `param` is C's `struct sched_param`.
    pub thread_setschedparam: Option<
        unsafe extern "C-unwind" fn(thread: *mut Opaque, policy: c_int, param: *const c_void) -> c_int,
    >,
    /// Reads scheduling.
    pub thread_getschedparam: Option<
        unsafe extern "C-unwind" fn(thread: *mut Opaque, policy: *mut c_int, param: *mut c_void) -> c_int,
    >,
    /// Names a kind of mutex.
    pub mutex_key_create: Option<unsafe extern "C-unwind" fn(name: *const c_char) -> *const Opaque>,
    /// Makes a mutex, in `memblock` if that is large enough.
    pub mutex_init: Option<
        unsafe extern "C-unwind" fn(key: *const Opaque, memblock: *mut c_void, size: usize) -> *mut Opaque,
    >,
    /// Ends a mutex.
    pub mutex_destroy: Option<unsafe extern "C-unwind" fn(mutex: *mut Opaque) -> c_int>,
    /// Locks.
    pub mutex_lock: Option<unsafe extern "C-unwind" fn(mutex: *mut Opaque) -> c_int>,
    /// Locks or returns `EBUSY`.
    pub mutex_trylock: Option<unsafe extern "C-unwind" fn(mutex: *mut Opaque) -> c_int>,
    /// Unlocks.
    pub mutex_unlock: Option<unsafe extern "C-unwind" fn(mutex: *mut Opaque) -> c_int>,
    /// Names a kind of condition variable.
    pub cond_key_create: Option<unsafe extern "C-unwind" fn(name: *const c_char) -> *const Opaque>,
    /// Makes a condition variable.
    pub cond_init: Option<
        unsafe extern "C-unwind" fn(key: *const Opaque, memblock: *mut c_void, size: usize) -> *mut Opaque,
    >,
    /// Ends a condition variable.
    pub cond_destroy: Option<unsafe extern "C-unwind" fn(cond: *mut Opaque) -> c_int>,
    /// Waits.
    pub cond_wait: Option<unsafe extern "C-unwind" fn(cond: *mut Opaque, mutex: *mut Opaque) -> c_int>,
    /// Waits until a time (C's `struct timespec`) or returns `ETIMEDOUT`.
    pub cond_timedwait: Option<
        unsafe extern "C-unwind" fn(cond: *mut Opaque, mutex: *mut Opaque, until: *const c_void) -> c_int,
    >,
    /// Wakes one.
    pub cond_signal: Option<unsafe extern "C-unwind" fn(cond: *mut Opaque) -> c_int>,
    /// Wakes all.
    pub cond_broadcast: Option<unsafe extern "C-unwind" fn(cond: *mut Opaque) -> c_int>,
}

/// Type of the exported initialiser; returns 0 or an errno.
pub type InitThreadServiceV1Fn = unsafe extern "C-unwind" fn(service: *mut ThreadServiceV1) -> c_int;
/// Exported initialiser.
pub const THREAD_INIT_V1_SYMBOL: &CStr = c"wsrep_init_thread_service_v1";
/// Exported counterpart, a [`ServiceDeinitFn`].
pub const THREAD_DEINIT_V1_SYMBOL: &CStr = c"wsrep_deinit_thread_service_v1";
