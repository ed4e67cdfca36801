//! A provider for measurements that only waits. It shows the upper bound: the rate of a MariaDB server that replicates
//! through the wsrep API, whatever the library. `lockstep lab shootout` runs it beside the others.
//!
//! It uses the table of another provider, the library in `names::REAL`, and replaces the calls of local transactions.
//! These copy, certify, order, write and send nothing. The server still collects keys and row events, passes them on, and
//! goes through its states, as for any provider. Views, statements in total order and all other calls go to the real
//! library.
//!
//! A commit waits for the next tick (`names::TICK`), in place of the wait for another machine. One call wakes all waiting
//! threads. Sleeping and waking is a good part of the cost of replication, and every provider that waits for another machine
//! has it.
//!
//! **Never for data**: no other member hears of what commits, conflicts are not found, and the positions that the server
//! notes mean nothing.

mod names;

use lockstep_abi::*;
use names::{REAL, TICK};
use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

/// Above any seqno of a real provider, so that the two cannot be confused.
const FIRST: Seqno = 1 << 40;

static NEXT: AtomicI64 = AtomicI64::new(FIRST);

/// `last_committed_id` of the real one: it knows the history.
static LAST_COMMITTED: OnceLock<LastCommittedIdFn> = OnceLock::new();
static HISTORY: OnceLock<Uuid> = OnceLock::new();

fn history(wsrep: *mut Wsrep) -> Option<Uuid> {
    if let Some(uuid) = HISTORY.get() {
        return Some(*uuid);
    }
    let mut gtid = Gtid::UNDEFINED;
    // SAFETY: the table that the server was given, with the context of the real provider.
    let status = unsafe { LAST_COMMITTED.get()?(wsrep, &mut gtid) };
    (status == Status::OK && gtid.uuid != Uuid::UNDEFINED).then(|| *HISTORY.get_or_init(|| gtid.uuid))
}

/// Whether there are ticks; and how many there have been.
static TICKS: OnceLock<bool> = OnceLock::new();
static TICKED: AtomicU32 = AtomicU32::new(0);

/// Starts them, if there are to be any.
fn tick() -> bool {
    let micros: Option<u64> = std::env::var(TICK).ok().and_then(|text| text.parse().ok());
    let Some(tick) = micros.filter(|micros| *micros > 0).map(Duration::from_micros) else { return false };
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(tick);
            TICKED.fetch_add(1, Ordering::SeqCst);
            futex(libc::FUTEX_WAKE, u32::MAX >> 1);
        }
    });
    true
}

fn await_tick() {
    let now = TICKED.load(Ordering::SeqCst);
    while TICKED.load(Ordering::SeqCst) == now {
        futex(libc::FUTEX_WAIT, now);
    }
}

/// Waits while [`TICKED`] is `value`, or wakes so many who do.
fn futex(operation: c_int, value: u32) {
    let (word, operation) = (TICKED.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG);
    // SAFETY: a static word; without a time the call reads nothing else.
    unsafe { libc::syscall(libc::SYS_futex, word, operation, value, std::ptr::null::<libc::timespec>()) };
}

unsafe extern "C-unwind" fn certify(
    wsrep: *mut Wsrep,
    conn: ConnId,
    handle: *mut WsHandle,
    _flags: u32,
    meta: *mut TrxMeta,
) -> Status {
    // SAFETY: the server's, for the time of the call.
    let (Some(handle), Some(meta)) = (unsafe { (handle.as_ref(), meta.as_mut()) }) else {
        return Status::FATAL;
    };
    let Some(uuid) = history(wsrep) else { return Status::CONN_FAIL };
    if *TICKS.get_or_init(tick) {
        await_tick();
    }
    let seqno = NEXT.fetch_add(1, Ordering::Relaxed);
    *meta = TrxMeta {
        gtid: Gtid { uuid, seqno },
        stid: Stid { node: uuid, trx: handle.trx_id, conn },
        depends_on: seqno - 1,
    };
    Status::OK
}

unsafe extern "C-unwind" fn enter(_: *mut Wsrep, _: *const WsHandle, _: *const TrxMeta) -> Status {
    Status::OK
}

unsafe extern "C-unwind" fn leave(
    _: *mut Wsrep,
    _: *const WsHandle,
    _: *const TrxMeta,
    _: *const Buf,
) -> Status {
    Status::OK
}

unsafe extern "C-unwind" fn release(_: *mut Wsrep, _: *mut WsHandle) -> Status {
    Status::OK
}

unsafe extern "C-unwind" fn append_key(
    _: *mut Wsrep,
    _: *mut WsHandle,
    _: *const Key,
    _: usize,
    _: KeyType,
    _: bool,
) -> Status {
    Status::OK
}

unsafe extern "C-unwind" fn append_data(
    _: *mut Wsrep,
    _: *mut WsHandle,
    _: *const Buf,
    _: usize,
    _: DataType,
    _: bool,
) -> Status {
    Status::OK
}

/// The server requires a provider to accept its allow-list. No member joins here, so the list is ignored.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_init_allowlist_service_v1(_: *mut AllowlistServiceV1) -> c_int {
    Status::OK.0 as c_int
}

/// See [`wsrep_init_allowlist_service_v1`].
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_allowlist_service_v1() {}

/// The loader of the real provider, which stays loaded for as long as the process lives.
fn real() -> Option<LoaderFn> {
    let path = CString::new(std::env::var_os(REAL)?.into_vec()).ok()?;
    // SAFETY: a C string; the library's initialisers are those of a provider.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library and a C string.
    let loader = unsafe { libc::dlsym(library, CStr::as_ptr(LOADER_SYMBOL)) };
    // SAFETY: under this name a provider has a function of this type; null is none.
    unsafe { std::mem::transmute::<*mut libc::c_void, Option<LoaderFn>>(loader) }
}

/// Fills in the table. `EINVAL` for a null pointer, `ENOENT` where `LOCKSTEP_FLOOR_OF` names no provider.
///
/// # Safety
/// `wsrep` is null or points to a table.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_loader(wsrep: *mut Wsrep) -> c_int {
    let Some(loader) = real() else { return libc::ENOENT };
    // SAFETY: the caller vouches for the pointer; the real one writes all of the table.
    let result = unsafe { loader(wsrep) };
    // SAFETY: as above.
    let Some(table) = (unsafe { wsrep.as_mut() }) else { return libc::EINVAL };
    if result != 0 {
        return result;
    }
    let Some(last_committed) = table.last_committed_id else { return libc::EINVAL };
    LAST_COMMITTED.get_or_init(|| last_committed);
    table.certify = Some(certify);
    table.commit_order_enter = Some(enter);
    table.commit_order_leave = Some(leave);
    table.release = Some(release);
    table.append_key = Some(append_key);
    table.append_data = Some(append_data);
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C-unwind" fn last_committed(_: *mut Wsrep, gtid: *mut Gtid) -> Status {
        // SAFETY: `history` passes a variable of its own.
        unsafe { *gtid = Gtid { uuid: Uuid { data: [7; 16] }, seqno: 3 } };
        Status::OK
    }

    #[test]
    fn each_commit_waits_for_its_own_tick_and_gets_its_own_seqno() {
        const LONG: Duration = Duration::from_millis(20);
        // SAFETY: this is the only test here, and nothing else reads the environment meanwhile.
        unsafe { std::env::set_var(TICK, LONG.as_micros().to_string()) };
        LAST_COMMITTED.get_or_init(|| last_committed);
        let began = std::time::Instant::now();
        for n in 0..3 {
            let mut handle = WsHandle { trx_id: n, opaque: std::ptr::null_mut() };
            let undefined = Stid { node: Uuid::UNDEFINED, trx: 0, conn: 0 };
            let mut meta = TrxMeta { gtid: Gtid::UNDEFINED, stid: undefined, depends_on: 0 };
            // SAFETY: as a server would; nothing looks into the table.
            let status = unsafe { certify(std::ptr::null_mut(), 5, &mut handle, 0, &mut meta) };
            assert_eq!((status, meta.gtid.seqno), (Status::OK, FIRST + n as Seqno));
            assert_eq!((meta.gtid.uuid.data, meta.stid.trx, meta.stid.conn), ([7; 16], n, 5));
        }
        // The first one's tick began with it.
        assert!(began.elapsed() >= 3 * LONG, "{:?}", began.elapsed());
    }
}
