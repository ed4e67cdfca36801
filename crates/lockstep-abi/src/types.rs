//! Values: identifiers, status codes, flags, buffers, views, statistics.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;

/// The interface version that both sides must name, NUL included.
pub const INTERFACE_VERSION: &std::ffi::CStr = c"26";

/// Name of the loader entry point a provider exports: `int wsrep_loader(wsrep_t*)`.
pub const LOADER_SYMBOL: &std::ffi::CStr = c"wsrep_loader";

/// Name of the exported `char*` variable that holds [`INTERFACE_VERSION`]. Optional; checked when present.
pub const INTERFACE_VERSION_SYMBOL: &std::ffi::CStr = c"wsrep_interface_version";

/// Capacity of [`MemberInfo::name`] in bytes, the terminating NUL included.
pub const MEMBER_NAME_LEN: usize = 32;

/// Capacity of [`MemberInfo::incoming`] in bytes, the terminating NUL included.
pub const INCOMING_LEN: usize = 256;

/// Length of a UUID's text form, without NUL.
pub const UUID_STR_LEN: usize = 36;

/// Greatest length of a GTID's text form, without NUL.
pub const GTID_STR_LEN: usize = 57;

/// Position in the order that servers see. Negative: undefined, or an error code where a call says so.
pub type Seqno = i64;

/// The seqno that means "none".
pub const SEQNO_UNDEFINED: Seqno = -1;

/// The server's transaction id.
pub type TrxId = u64;

/// The server's connection id.
pub type ConnId = u64;

/// Set of `CAP_*` bits.
pub type Capabilities = u32;

/// An SST request with this text (and its NUL) asks for no data: the member counts as joined at once.
pub const STATE_TRANSFER_TRIVIAL: &std::ffi::CStr = c"trivial";

/// An SST request with this text (and its NUL) asks for no state transfer at all: the member stays undefined.
pub const STATE_TRANSFER_NONE: &std::ffi::CStr = c"none";

macro_rules! c_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$cmeta:meta])* $const:ident = $value:expr => $text:literal,)+ }) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub c_uint);

        impl $name {
            $($(#[$cmeta])* pub const $const: $name = $name($value);)+

            /// The constant's usual name, or "unknown" for a value outside the list.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($value => $text,)+
                    _ => "unknown",
                }
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", self.name(), self.0)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

c_enum! {
    /// Result of a provider call.
    Status {
        /// Success.
        OK = 0 => "OK",
        /// Done with a reservation, which was logged; for options: not understood, nothing changed.
        WARNING = 1 => "WARNING",
        /// The provider does not know this transaction.
        TRX_MISSING = 2 => "TRX_MISSING",
        /// The transaction must roll back; the server goes on.
        TRX_FAIL = 3 => "TRX_FAIL",
        /// The transaction was aborted by one earlier in the order and must be replayed.
        BF_ABORT = 4 => "BF_ABORT",
        /// The data exceeds the size limit.
        SIZE_EXCEEDED = 5 => "SIZE_EXCEEDED",
        /// The client connection must end.
        CONN_FAIL = 6 => "CONN_FAIL",
        /// The node is not fit for this; the provider must be initialised anew.
        NODE_FAIL = 7 => "NODE_FAIL",
        /// The server must abort.
        FATAL = 8 => "FATAL",
        /// The provider does not have this function.
        NOT_IMPLEMENTED = 9 => "NOT_IMPLEMENTED",
        /// The provider declines.
        NOT_ALLOWED = 10 => "NOT_ALLOWED",
    }
}

c_enum! {
    /// Result of a callback into the server. Every value above zero is a failure.
    CbStatus {
        /// No critical failure.
        SUCCESS = 0 => "SUCCESS",
        /// Critical failure: the server's state may differ from the group's.
        FAILURE = 1 => "FAILURE",
    }
}

c_enum! {
    /// Severity of a log message, first argument of the logger callback.
    LogLevel {
        /// The process must end.
        FATAL = 0 => "FATAL",
        /// An operation failed.
        ERROR = 1 => "ERROR",
        /// Something unexpected that did not make an operation fail.
        WARN = 2 => "WARN",
        /// Information.
        INFO = 3 => "INFO",
        /// For debugging.
        DEBUG = 4 => "DEBUG",
    }
}

c_enum! {
    /// A member's state, as statistics and membership queries show it.
    MemberStatus {
        /// No state known.
        UNDEFINED = 0 => "UNDEFINED",
        /// Waits for or receives a state transfer.
        JOINER = 1 => "JOINER",
        /// Donates, or is desynced by request.
        DONOR = 2 => "DONOR",
        /// Has complete state, catching up.
        JOINED = 3 => "JOINED",
        /// Has complete state and keeps up.
        SYNCED = 4 => "SYNCED",
        /// Failed; this and above are provider-specific.
        ERROR = 5 => "ERROR",
    }
}

c_enum! {
    /// Status of a view.
    ViewStatus {
        /// The group has a quorum.
        PRIMARY = 0 => "PRIMARY",
        /// The group has lost its quorum.
        NON_PRIMARY = 1 => "NON_PRIMARY",
        /// Not connected to a group.
        DISCONNECTED = 2 => "DISCONNECTED",
    }
}

c_enum! {
    /// How a key is used, which decides what it conflicts with.
    KeyType {
        /// A resource that is used and not modified: a table, by those who change its rows.
        SHARED = 0 => "SHARED",
        /// A row that another one refers to.
        REFERENCE = 1 => "REFERENCE",
        /// A row that is modified.
        UPDATE = 2 => "UPDATE",
        /// A row that is created or deleted.
        EXCLUSIVE = 3 => "EXCLUSIVE",
    }
}

c_enum! {
    /// The purpose of appended data.
    DataType {
        /// Changes of state, applied and committed in order.
        ORDERED = 0 => "ORDERED",
        /// Optional actions without an order.
        UNORDERED = 1 => "UNORDERED",
        /// A remark for people.
        ANNOTATION = 2 => "ANNOTATION",
    }
}

c_enum! {
    /// Type of a statistics value.
    VarType {
        /// NUL-terminated text.
        STRING = 0 => "STRING",
        /// Signed 64-bit integer.
        INT64 = 1 => "INT64",
        /// Double.
        DOUBLE = 2 => "DOUBLE",
    }
}

c_enum! {
    /// Direction of an encryption callback.
    EncDirection {
        /// Encrypt.
        ENCRYPT = 0 => "ENCRYPT",
        /// Decrypt.
        DECRYPT = 1 => "DECRYPT",
    }
}

/// Several members may write.
pub const CAP_MULTI_MASTER: Capabilities = 1 << 0;
/// Transactions are certified.
pub const CAP_CERTIFICATION: Capabilities = 1 << 1;
/// Write-sets may be applied in parallel.
pub const CAP_PARALLEL_APPLYING: Capabilities = 1 << 2;
/// `replay_trx` works.
pub const CAP_TRX_REPLAY: Capabilities = 1 << 3;
/// Total order isolation works.
pub const CAP_ISOLATION: Capabilities = 1 << 4;
/// `pause` and `resume` work.
pub const CAP_PAUSE: Capabilities = 1 << 5;
/// `sync_wait` works.
pub const CAP_CAUSAL_READS: Capabilities = 1 << 6;
/// Causal transactions.
pub const CAP_CAUSAL_TRX: Capabilities = 1 << 7;
/// A write-set may be handed over in pieces.
pub const CAP_INCREMENTAL_WRITESET: Capabilities = 1 << 8;
/// Locks of a connection.
pub const CAP_SESSION_LOCKS: Capabilities = 1 << 9;
/// Locks of the group.
pub const CAP_DISTRIBUTED_LOCKS: Capabilities = 1 << 10;
/// Consistency checks.
pub const CAP_CONSISTENCY_CHECK: Capabilities = 1 << 11;
/// Unordered data.
pub const CAP_UNORDERED: Capabilities = 1 << 12;
/// Annotations.
pub const CAP_ANNOTATION: Capabilities = 1 << 13;
/// Preordered events.
pub const CAP_PREORDERED: Capabilities = 1 << 14;
/// Streaming replication.
pub const CAP_STREAMING: Capabilities = 1 << 15;
/// `assign_read_view` works.
pub const CAP_SNAPSHOT: Capabilities = 1 << 16;
/// Non-blocking operations (total order in two phases).
pub const CAP_NBO: Capabilities = 1 << 17;

/// This write-set ends its transaction with a commit.
pub const FLAG_TRX_END: u32 = 1 << 0;
/// The transaction's earlier fragments must be rolled back.
pub const FLAG_ROLLBACK: u32 = 1 << 1;
/// To be applied and committed alone.
pub const FLAG_ISOLATION: u32 = 1 << 2;
/// Not to be applied in parallel with anything.
pub const FLAG_PA_UNSAFE: u32 = 1 << 3;
/// Its order does not matter.
pub const FLAG_COMMUTATIVE: u32 = 1 << 4;
/// Holds another write-set in the provider's format.
pub const FLAG_NATIVE: u32 = 1 << 5;
/// First fragment of its transaction; set by the provider.
pub const FLAG_TRX_START: u32 = 1 << 6;
/// The fragment that prepares the transaction.
pub const FLAG_TRX_PREPARE: u32 = 1 << 7;
/// A read view is assigned.
pub const FLAG_SNAPSHOT: u32 = 1 << 8;
/// Depends on everything its origin had seen.
pub const FLAG_IMPLICIT_DEPS: u32 = 1 << 9;
/// All flags of this version.
pub const FLAGS_MASK: u32 = (FLAG_IMPLICIT_DEPS << 1) - 1;

/// A 16-byte identifier, aligned like `size_t`.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid {
    /// The bytes, in the order of the text form.
    pub data: [u8; 16],
}

impl Uuid {
    /// All zero: no identifier.
    pub const UNDEFINED: Uuid = Uuid { data: [0; 16] };

    /// True for the all-zero identifier.
    pub fn is_undefined(&self) -> bool {
        *self == Self::UNDEFINED
    }
}

/// A place in a history: the history's UUID and a seqno.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gtid {
    /// History.
    pub uuid: Uuid,
    /// Place in it.
    pub seqno: Seqno,
}

impl Gtid {
    /// No history, no place.
    pub const UNDEFINED: Gtid = Gtid { uuid: Uuid::UNDEFINED, seqno: SEQNO_UNDEFINED };

    /// True when the history or the place is undefined.
    pub fn is_undefined(&self) -> bool {
        self.uuid.is_undefined() || self.seqno == SEQNO_UNDEFINED
    }
}

/// The origin of a transaction.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stid {
    /// Origin, by the id it has in the view.
    pub node: Uuid,
    /// Transaction id at the origin.
    pub trx: TrxId,
    /// Connection id at the origin.
    pub conn: ConnId,
}

/// A write-set's place, origin and last dependency.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TrxMeta {
    /// Place; undefined means that it was not ordered.
    pub gtid: Gtid,
    /// Origin.
    pub stid: Stid,
    /// Seqno of the last write-set that this one may depend on.
    pub depends_on: Seqno,
}

impl TrxMeta {
    /// The value for an unordered transaction.
    pub const UNDEFINED: TrxMeta = TrxMeta {
        gtid: Gtid::UNDEFINED,
        stid: Stid { node: Uuid::UNDEFINED, trx: u64::MAX, conn: u64::MAX },
        depends_on: SEQNO_UNDEFINED,
    };
}

/// Borrowed bytes. The owner keeps them alive for the duration of the call they are passed to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Buf {
    /// First byte; may be null when `len` is zero.
    pub ptr: *const c_void,
    /// Number of bytes.
    pub len: usize,
}

impl Buf {
    /// No bytes.
    pub const EMPTY: Buf = Buf { ptr: std::ptr::null(), len: 0 };

    /// The bytes of `data`, which must outlive every use of the result. No bytes make a null pointer, as C++'s
    /// empty vectors do: some readers look at the pointer alone.
    pub const fn of(data: &[u8]) -> Buf {
        if data.is_empty() {
            return Buf::EMPTY;
        }
        Buf { ptr: data.as_ptr().cast(), len: data.len() }
    }

    /// The bytes; empty for a null pointer.
    ///
    /// # Safety
    /// `ptr` is null or points to `len` initialised bytes that nobody changes during `'a`.
    pub const unsafe fn as_slice<'a>(&self) -> &'a [u8] {
        if self.ptr.is_null() || self.len == 0 {
            return &[];
        }
        // SAFETY: the caller vouches for pointer, length and lifetime.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len) }
    }
}

/// A transaction as both sides know it: the server's id, the provider's context.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WsHandle {
    /// The server's id.
    pub trx_id: TrxId,
    /// The provider's; null until the provider sets it.
    pub opaque: *mut c_void,
}

/// Context of preordered events. Null before first use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoHandle {
    /// The provider's.
    pub opaque: *mut c_void,
}

/// A certification key: its parts from the most general (database) to the most special (row).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The parts.
    pub key_parts: *const Buf,
    /// How many.
    pub key_parts_num: usize,
}

/// A member of a view.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemberInfo {
    /// Id, unique in the group.
    pub id: Uuid,
    /// Name for people, NUL-terminated.
    pub name: [c_char; MEMBER_NAME_LEN],
    /// Address for clients, NUL-terminated.
    pub incoming: [c_char; INCOMING_LEN],
}

fn put_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(&text.as_bytes()[..end]) {
        *to = *from as c_char;
    }
    out
}

fn get_text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl MemberInfo {
    /// A member; texts too long for their field are cut at a character's border.
    pub fn new(id: Uuid, name: &str, incoming: &str) -> MemberInfo {
        MemberInfo { id, name: put_text(name), incoming: put_text(incoming) }
    }

    /// The name.
    pub fn name(&self) -> String {
        get_text(&self.name)
    }

    /// The address for clients.
    pub fn incoming(&self) -> String {
        get_text(&self.incoming)
    }
}

impl std::fmt::Debug for MemberInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemberInfo")
            .field("id", &self.id)
            .field("name", &self.name())
            .field("incoming", &self.incoming())
            .finish()
    }
}

/// A view, followed in memory by `memb_num` members (the declared array of one is C's way of saying so).
/// Build one with [`ViewBuffer`], read one with [`ViewInfo::members`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ViewInfo {
    /// Place of the view in the order.
    pub state_id: Gtid,
    /// Number of the view; negative outside a primary group.
    pub view: Seqno,
    /// Status.
    pub status: ViewStatus,
    /// What every member of the view can do.
    pub capabilities: Capabilities,
    /// This member's place in the list; negative: not in it.
    pub my_idx: c_int,
    /// Number of members.
    pub memb_num: c_int,
    /// The server's protocol that the view agreed on.
    pub proto_ver: c_int,
    /// First of the members.
    pub members: [MemberInfo; 1],
}

impl ViewInfo {
    /// The members.
    ///
    /// # Safety
    /// `view` points to a view whose memory holds `memb_num` members, unchanged during `'a`. A pointer, not a
    /// reference: a reference would be valid for the first member only.
    pub unsafe fn members<'a>(view: *const ViewInfo) -> &'a [MemberInfo] {
        // SAFETY: the caller vouches for the view.
        let (first, count) = unsafe { (&raw const (*view).members, (*view).memb_num) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => {
                // SAFETY: the caller vouches for `memb_num` members from here on.
                unsafe { std::slice::from_raw_parts(first.cast::<MemberInfo>(), count) }
            }
            _ => &[],
        }
    }
}

/// A view without its members: see the fields of [`ViewInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewHead {
    /// Place of the view in the order.
    pub state_id: Gtid,
    /// Number of the view.
    pub view: Seqno,
    /// Status.
    pub status: ViewStatus,
    /// Capabilities common to all members.
    pub capabilities: Capabilities,
    /// This member's place in the list, or negative.
    pub my_idx: i32,
    /// The server's protocol.
    pub proto_ver: i32,
}

/// Owns the memory of one [`ViewInfo`] with any number of members.
#[derive(Clone, Debug)]
pub struct ViewBuffer {
    words: Vec<u64>,
}

impl ViewBuffer {
    /// Lays out a view. More members than `c_int` can count is impossible in practice and cut.
    pub fn new(head: ViewHead, members: &[MemberInfo]) -> ViewBuffer {
        let members = &members[..members.len().min(c_int::MAX as usize)];
        let bytes = std::mem::offset_of!(ViewInfo, members) + size_of_val(members);
        // Never less than the declared struct, so that a `&ViewInfo` to it is valid.
        let mut words = vec![0u64; bytes.max(size_of::<ViewInfo>()).div_ceil(8)];
        let view: *mut ViewInfo = words.as_mut_ptr().cast();
        let ViewHead { state_id, view: number, status, capabilities, my_idx, proto_ver } = head;
        // SAFETY: the memory is zeroed, 8-aligned like ViewInfo (checked in `layout`), and at least as long as
        // the head and `members`; fields are written through raw pointers into it.
        unsafe {
            (*view).state_id = state_id;
            (*view).view = number;
            (*view).status = status;
            (*view).capabilities = capabilities;
            (*view).my_idx = my_idx;
            (*view).memb_num = members.len() as c_int;
            (*view).proto_ver = proto_ver;
            let first: *mut MemberInfo = (&raw mut (*view).members).cast();
            // The pointer's provenance is the whole Vec: it derives from `as_mut_ptr`.
            std::ptr::copy_nonoverlapping(members.as_ptr(), first, members.len());
        }
        ViewBuffer { words }
    }

    /// The view, valid as long as `self` lives and is not moved out of.
    pub fn as_ptr(&self) -> *const ViewInfo {
        self.words.as_ptr().cast()
    }
}

/// A statistics value; [`StatsVar::var_type`] says which field is meant.
#[repr(C)]
#[derive(Clone, Copy)]
pub union StatsValue {
    /// For [`VarType::INT64`].
    pub int64: i64,
    /// For [`VarType::DOUBLE`].
    pub double: f64,
    /// For [`VarType::STRING`].
    pub string: *const c_char,
}

/// One status variable. A list of them ends with one whose name is null.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StatsVar {
    /// Name, without the server's `wsrep_` prefix.
    pub name: *const c_char,
    /// Type of the value.
    pub var_type: VarType,
    /// Value.
    pub value: StatsValue,
}

/// Encryption key, opaque to the provider.
pub type EncKey = Buf;

/// Nonce of an encryption.
pub type EncIv = [c_char; 32];

/// An encryption in progress.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EncCtx {
    /// Key.
    pub key: *const EncKey,
    /// Nonce.
    pub iv: *const EncIv,
    /// The callback's own; null at the start of a stream.
    pub ctx: *mut c_void,
}

/// A call that the provider makes once the write-set's place is fixed (see [`crate::CertifyV1Fn`]).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SeqCb {
    /// Argument.
    pub ctx: *mut c_void,
    /// Function.
    pub func: Option<unsafe extern "C-unwind" fn(ctx: *mut c_void)>,
}

/// Marks types that C knows by pointer only.
#[repr(C)]
pub struct Opaque {
    _bytes: [u8; 0],
    _marker: PhantomData<(*mut u8, std::marker::PhantomPinned)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_buffer_round_trips() {
        let members: Vec<MemberInfo> = (0..5u8)
            .map(|n| MemberInfo::new(Uuid { data: [n; 16] }, &format!("n{n}"), &format!("10.0.0.{n}:3306")))
            .collect();
        for count in 0..members.len() {
            let head = ViewHead {
                state_id: Gtid { uuid: Uuid { data: [9; 16] }, seqno: 77 },
                view: 3,
                status: ViewStatus::PRIMARY,
                capabilities: CAP_STREAMING,
                my_idx: count as i32 - 1,
                proto_ver: 4,
            };
            let buffer = ViewBuffer::new(head, &members[..count]);
            // SAFETY: the buffer holds a whole view and lives to the end of the block.
            let (view, list) = unsafe { (&*buffer.as_ptr(), ViewInfo::members(buffer.as_ptr())) };
            assert_eq!((view.state_id, view.view, view.status), (head.state_id, 3, ViewStatus::PRIMARY));
            assert_eq!((view.my_idx, view.proto_ver, list.len()), (head.my_idx, 4, count));
            for (n, member) in list.iter().enumerate() {
                assert_eq!(member.id, members[n].id);
                assert_eq!(member.name(), format!("n{n}"));
                assert_eq!(member.incoming(), format!("10.0.0.{n}:3306"));
            }
        }
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        let name = "é".repeat(40);
        let member = MemberInfo::new(Uuid::UNDEFINED, &name, &name.repeat(9));
        assert_eq!(member.name(), "é".repeat(15));
        assert_eq!(member.name[MEMBER_NAME_LEN - 1], 0);
        assert_eq!(member.incoming(), "é".repeat(127));
    }

    #[test]
    fn codes_have_names() {
        assert_eq!(Status::NOT_ALLOWED.to_string(), "NOT_ALLOWED");
        assert_eq!(format!("{:?}", Status(99)), "unknown(99)");
        assert_eq!(FLAGS_MASK, 0x3ff);
    }
}
