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
