//! A provider library, loaded by path as the server loads one, and its function table behind plain methods.
//!
//! The methods keep to Rust types and leave the *order* of calls to the caller: calling too early or too late
//! is something the tests want to do.

use lockstep_abi::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::checks::lock;
use crate::host::RecvCtx;

/// Why a library could not be used as a provider.
#[derive(Debug)]
pub enum LoadError {
    /// The dynamic loader refused it.
    Open(String),
    /// It has no `wsrep_loader`.
    NoLoader,
    /// It speaks another version of the interface.
    Version(String),
    /// `wsrep_loader` returned this errno.
    Loader(i32),
    /// A function that the server insists on is missing from the table.
    Missing(&'static str),
    /// The allow-list service returned this errno.
    Allowlist(i32),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Open(why) => write!(f, "the library cannot be loaded: {why}"),
            LoadError::NoLoader => f.write_str("the library exports no wsrep_loader: it is not a provider"),
            LoadError::Version(found) => write!(f, "the provider speaks interface {found:?}, 26 is needed"),
            LoadError::Loader(errno) => write!(f, "wsrep_loader failed with errno {errno}"),
            LoadError::Missing(name) => write!(f, "the provider's table lacks {name}"),
            LoadError::Allowlist(errno) => write!(f, "the allow-list service failed with errno {errno}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// Names and addresses for [`Provider::init`].
#[derive(Clone, Debug)]
pub struct InitConfig {
    /// Node name.
    pub name: String,
    /// Node address.
    pub address: String,
    /// Address for clients.
    pub incoming: String,
    /// Data directory.
    pub dir: PathBuf,
    /// Options.
    pub options: String,
    /// The database's position.
    pub position: Gtid,
}

/// The callbacks for [`Provider::init`].
#[derive(Clone, Copy)]
pub struct Callbacks {
    /// First argument of most.
    pub app_ctx: *mut c_void,
    /// Logger.
    pub logger: LogCb,
    /// Connected.
    pub connected: ConnectedCb,
    /// View.
    pub view: ViewCb,
    /// SST request.
    pub sst_request: SstRequestCb,
    /// Apply.
    pub apply: ApplyCb,
    /// Donate.
    pub sst_donate: SstDonateCb,
    /// Synced.
    pub synced: SyncedCb,
}

/// A statistics value.
#[derive(Clone, Debug, PartialEq)]
pub enum Stat {
    /// Text.
    Text(String),
    /// Integer.
    Int(i64),
    /// Double.
    Double(f64),
}

/// A loaded provider.
pub struct Provider {
    table: *mut Wsrep,
    dlh: *mut c_void,
    allowlist: Mutex<Option<Box<AllowlistServiceV1>>>,
    has_events: AtomicBool,
    closed: AtomicBool,
}

// SAFETY: the API is meant to be called from many threads; the table is written once, by the loader.
unsafe impl Send for Provider {}
// SAFETY: as above.
unsafe impl Sync for Provider {}

/// Calls a function of the table that is allowed to be missing.
macro_rules! call {
    ($self:ident, $name:ident ( $($arg:expr),* )) => {{
        // SAFETY: `table` stays allocated until `self` is dropped, and nobody writes to it after loading.
        let function = unsafe { (*$self.table).$name };
        // SAFETY: the loader filled the table with functions of these types; pointers passed are valid for
        // the call.
        function.map(|function| unsafe { function($self.table $(, $arg)*) })
    }};
}

fn text(value: &str) -> CString {
    // A NUL inside ends the text, as it would for the server.
    let bytes: Vec<u8> = value.bytes().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// # Safety
/// `ptr` is null or a NUL-terminated string.
unsafe fn owned(ptr: *const c_char) -> String {
    if ptr.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for the string.
    unsafe { CStr::from_ptr(ptr) }.to_string_lossy().into_owned()
}

/// The context for callbacks: it lives as long as the call that it is passed to.
fn context(ctx: Option<&RecvCtx>) -> *mut c_void {
    ctx.map_or(std::ptr::null_mut(), |ctx| std::ptr::from_ref(ctx).cast_mut().cast())
}

/// The server's allow-list: `None` lets everybody in.
#[derive(Debug, Default)]
pub struct AllowRules {
    /// The addresses that may join.
    pub ips: Option<Vec<String>>,
    /// How long an answer takes: a lock on the table.
    pub delay: Duration,
    /// The addresses that were checked.
    pub asked: Vec<String>,
}

/// Those of this process's server.
pub static ALLOW_RULES: Mutex<AllowRules> =
    Mutex::new(AllowRules { ips: None, delay: Duration::ZERO, asked: Vec::new() });

unsafe extern "C-unwind" fn allow(_: *mut c_void, key: AllowlistKey, value: *const Buf) -> Status {
    // SAFETY: by the API a buffer; its content is read as a C string, as the server does.
    let ip = unsafe { owned((*value).ptr.cast()) };
    let delay = {
        let mut rules = lock(&ALLOW_RULES);
        rules.asked.push(ip.clone());
        rules.delay
    };
    std::thread::sleep(delay);
    let rules = lock(&ALLOW_RULES);
    match &rules.ips {
        Some(ips) if key != AllowlistKey::IP || !ips.contains(&ip) => Status::NOT_ALLOWED,
        _ => Status::OK,
    }
}

/// Options as a configuration service gives them: name, flags, value as text.
pub type Parameters = Vec<(String, i32, String)>;

/// `context` is the list that [`Provider::parameters`] fills.
unsafe extern "C-unwind" fn note_parameter(parameter: *const Parameter, context: *mut c_void) -> Status {
    // SAFETY: by the API a parameter with a C string as its name and the value that its flags say; the list is ours.
    unsafe {
        let (parameter, list) = (&*parameter, &mut *context.cast::<Parameters>());
        let value = match parameter.flags & (PARAM_TYPE_BOOL | PARAM_TYPE_INTEGER | PARAM_TYPE_DOUBLE) {
            PARAM_TYPE_BOOL => parameter.value.as_bool.to_string(),
            PARAM_TYPE_INTEGER => parameter.value.as_integer.to_string(),
            PARAM_TYPE_DOUBLE => parameter.value.as_double.to_string(),
            _ => owned(parameter.value.as_string),
        };
        list.push((owned(parameter.name), parameter.flags, value));
    }
    Status::OK
}

/// An answer of the membership service: the view's status, the history and the last seqno, the members.
pub type MembersSeen = (ViewStatus, Gtid, Vec<MemberInfoExtV2>);

/// Events received by the event service: name and value.
pub static EVENTS_SEEN: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
/// So many milliseconds the server takes for each: it writes a file.
pub static EVENTS_TAKE_MS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C-unwind" fn note_event(_: *mut c_void, name: *const c_char, value: *const c_char) {
    // SAFETY: by the API two C strings.
    let event = unsafe { (owned(name), owned(value)) };
    std::thread::sleep(Duration::from_millis(EVENTS_TAKE_MS.load(Ordering::SeqCst)));
    lock(&EVENTS_SEEN).push(event);
}

impl Provider {
    /// Loads the library at `path`, runs its loader and checks the table as the server does, then passes the
    /// allow-list service if the library takes it.
    pub fn load(path: &Path) -> Result<Provider, LoadError> {
        let c_path = text(&path.to_string_lossy());
        // SAFETY: a valid C string.
        let dlh = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if dlh.is_null() {
            // SAFETY: dlerror returns null or a C string.
            return Err(LoadError::Open(unsafe { owned(libc::dlerror()) }));
        }
        // The table's memory is the server's; the loader is to write all of it.
        // SAFETY: all-zero is valid for pointers and Option<fn>.
        let table = Box::into_raw(Box::new(unsafe { std::mem::zeroed::<Wsrep>() }));
        let provider = Provider {
            table,
            dlh,
            allowlist: Mutex::new(None),
            has_events: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        };
        provider.run_loader()?;
        provider.verify()?;
        provider.start_allowlist()?;
        provider.start_events();
        Ok(provider)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: `dlh` is an open library.
        unsafe { libc::dlsym(self.dlh, name.as_ptr()) }
    }

    fn run_loader(&self) -> Result<(), LoadError> {
        let loader = self.symbol(LOADER_SYMBOL);
        if loader.is_null() {
            return Err(LoadError::NoLoader);
        }
        let version = self.symbol(INTERFACE_VERSION_SYMBOL);
        if !version.is_null() {
            // SAFETY: by the API this symbol is a `char*` variable.
            let found = unsafe { owned(*version.cast::<*const c_char>()) };
            if found.as_bytes() != INTERFACE_VERSION.to_bytes() {
                return Err(LoadError::Version(found));
            }
        }
        // SAFETY: by the API this symbol is a function of this type.
        let loader: LoaderFn = unsafe { std::mem::transmute(loader) };
        // SAFETY: the table is ours and zeroed.
        match unsafe { loader(self.table) } {
            0 => Ok(()),
            errno => Err(LoadError::Loader(errno)),
        }
    }

    fn verify(&self) -> Result<(), LoadError> {
        // SAFETY: the loader has filled the table in.
        let table = unsafe { &*self.table };
        // SAFETY: by the API a C string.
        let version = unsafe { owned(table.version) };
        if version.as_bytes() != INTERFACE_VERSION.to_bytes() {
            return Err(LoadError::Version(version));
        }
        macro_rules! need {
            ($($name:ident)*) => {
                $(if table.$name.is_none() { return Err(LoadError::Missing(stringify!($name))); })*
            };
        }
        need!(init options_set options_get enc_set_key connect disconnect recv assign_read_view certify
              commit_order_enter commit_order_leave release replay_trx abort_certification append_key
              append_data free_connection to_execute_start to_execute_end preordered_collect
              preordered_commit sst_sent sst_received stats_get stats_free stats_reset pause resume desync
              resync lock unlock is_locked free);
        for (name, value) in [
            ("provider_name", table.provider_name),
            ("provider_version", table.provider_version),
            ("provider_vendor", table.provider_vendor),
        ] {
            if value.is_null() {
                return Err(LoadError::Missing(name));
            }
        }
        Ok(())
    }

    fn start_allowlist(&self) -> Result<(), LoadError> {
        let init = self.symbol(ALLOWLIST_INIT_V1_SYMBOL);
        if init.is_null() {
            // 10.11 refuses such a provider.
            return Err(LoadError::Missing("wsrep_init_allowlist_service_v1"));
        }
        // SAFETY: by the API this symbol is a function of this type.
        let init: InitAllowlistServiceV1Fn = unsafe { std::mem::transmute(init) };
        let mut service =
            Box::new(AllowlistServiceV1 { allowlist_cb: Some(allow), context: std::ptr::null_mut() });
        // SAFETY: the struct lives until after the service's end.
        match unsafe { init(&mut *service) } {
            0 => {
                *lock(&self.allowlist) = Some(service);
                Ok(())
            }
            errno => Err(LoadError::Allowlist(errno)),
        }
    }

    /// As newer servers do, where the library takes it.
    fn start_events(&self) {
        let init = self.symbol(EVENT_INIT_V1_SYMBOL);
        if init.is_null() {
            return;
        }
        // SAFETY: by the API this symbol is a function of this type.
        let init: InitEventServiceV1Fn = unsafe { std::mem::transmute(init) };
        let mut service = EventServiceV1 { event_cb: Some(note_event), context: std::ptr::null_mut() };
        // SAFETY: the struct's contents stay valid; the provider copies them.
        let taken = unsafe { init(&mut service) } == 0;
        self.has_events.store(taken, Ordering::SeqCst);
    }

    /// The members of the view from the membership service: status, last seqno, and the members; with flags in version 2.
    /// `None` if the library has no such service.
    pub fn membership(&self) -> Option<Result<MembersSeen, Status>> {
        unsafe extern "C-unwind" fn allocate(size: usize) -> *mut c_void {
            // SAFETY: plain malloc.
            unsafe { libc::malloc(size) }
        }
        let (v1, v2) = (self.symbol(MEMBERSHIP_INIT_V1_SYMBOL), self.symbol(MEMBERSHIP_INIT_V2_SYMBOL));
        if v1.is_null() || v2.is_null() {
            return None;
        }
        // SAFETY: by the API these symbols are functions of these types.
        let (v1, v2) = unsafe {
            (
                std::mem::transmute::<*mut c_void, InitMembershipServiceV1Fn>(v1),
                std::mem::transmute::<*mut c_void, InitMembershipServiceV2Fn>(v2),
            )
        };
        let mut first = MembershipServiceV1 { get_membership: None };
        let mut second = MembershipServiceV2 { get_membership: None };
        let (mut old, mut new) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the provider is initialised; both answers are ours to free.
        unsafe {
            if v1(&mut first) != Status::OK || v2(&mut second) != Status::OK {
                return None;
            }
            let (Some(first), Some(second)) = (first.get_membership, second.get_membership) else {
                return None;
            };
            for status in
                [first(self.table, Some(allocate), &mut old), second(self.table, Some(allocate), &mut new)]
            {
                if status != Status::OK {
                    return Some(Err(status));
                }
            }
            let members = std::slice::from_raw_parts((&raw const (*new).members).cast(), (*new).num).to_vec();
            let same: &[MemberInfoExt] =
                std::slice::from_raw_parts((&raw const (*old).members).cast(), (*old).num);
            let agree = same.len() == members.len()
                && same
                    .iter()
                    .zip(&members)
                    .all(|(a, b): (&MemberInfoExt, &MemberInfoExtV2)| a.base.id == b.base.id);
            let gtid = Gtid { uuid: (*new).group_uuid, seqno: (*new).last_received };
            let out = ((*new).state, gtid, members);
            libc::free(old.cast());
            libc::free(new.cast());
            Some(if agree { Ok(out) } else { Err(Status::NODE_FAIL) })
        }
    }

    /// True if the library exports this symbol.
    pub fn exports(&self, name: &CStr) -> bool {
        !self.symbol(name).is_null()
    }

    /// `wsrep_node_isolation_mode_set_v1`, which a server calls when it crashes; `None` if the library has none.
    pub fn set_isolation(&self, mode: NodeIsolationMode) -> Option<NodeIsolationResult> {
        let symbol = self.symbol(NODE_ISOLATION_MODE_SET_V1_SYMBOL);
        if symbol.is_null() {
            return None;
        }
        // SAFETY: by the API this symbol is a function of this type, which may be called at any time.
        Some(unsafe { std::mem::transmute::<*mut c_void, NodeIsolationModeSetV1Fn>(symbol)(mode) })
    }

    /// Name, version and vendor.
    pub fn identity(&self) -> (String, String, String) {
        // SAFETY: C strings, checked at load.
        unsafe {
            let table = &*self.table;
            (owned(table.provider_name), owned(table.provider_version), owned(table.provider_vendor))
        }
    }

    /// `init`.
    pub fn init(&self, config: &InitConfig, callbacks: Callbacks) -> Status {
        let name = text(&config.name);
        let address = text(&config.address);
        let incoming = text(&config.incoming);
        let dir = text(&config.dir.to_string_lossy());
        let options = text(&config.options);
        let args = InitArgs {
            app_ctx: callbacks.app_ctx,
            node_name: name.as_ptr(),
            node_address: address.as_ptr(),
            node_incoming: incoming.as_ptr(),
            data_dir: dir.as_ptr(),
            options: options.as_ptr(),
            proto_ver: 4,
            state_id: &config.position,
            state: std::ptr::null(),
            logger_cb: Some(callbacks.logger),
            connected_cb: Some(callbacks.connected),
            view_cb: Some(callbacks.view),
            sst_request_cb: Some(callbacks.sst_request),
            encrypt_cb: None,
            apply_cb: Some(callbacks.apply),
            unordered_cb: None,
            sst_donate_cb: Some(callbacks.sst_donate),
            synced_cb: Some(callbacks.synced),
        };
        call!(self, init(&args)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `capabilities`.
    pub fn capabilities(&self) -> Capabilities {
        call!(self, capabilities()).unwrap_or(0)
    }

    /// `options_set`.
    pub fn options_set(&self, options: &str) -> Status {
        let options = text(options);
        call!(self, options_set(options.as_ptr())).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `options_get`; `None` when it returned null.
    pub fn options_get(&self) -> Option<String> {
        let options = call!(self, options_get())?;
        if options.is_null() {
            return None;
        }
        // SAFETY: by the API a C string from malloc, ours to free.
        unsafe {
            let copy = owned(options);
            libc::free(options.cast());
            Some(copy)
        }
    }

    /// The answer of the configuration service; `None` if the library has none.
    pub fn parameters(&self) -> Option<Result<Parameters, Status>> {
        let (init, deinit) = (self.symbol(CONFIG_INIT_V1_SYMBOL), self.symbol(CONFIG_DEINIT_V1_SYMBOL));
        if init.is_null() || deinit.is_null() {
            return None;
        }
        // SAFETY: by the API these symbols are functions of these types.
        let (init, deinit) = unsafe {
            (
                std::mem::transmute::<*mut c_void, InitConfigServiceV1Fn>(init),
                std::mem::transmute::<*mut c_void, ServiceDeinitFn>(deinit),
            )
        };
        let mut service = ConfigServiceV1 { get_parameters: None };
        let mut seen = Parameters::new();
        // SAFETY: the provider is loaded; the callback gets the vector that it expects.
        let status = unsafe {
            if init(&mut service) != 0 {
                return None;
            }
            let status = service
                .get_parameters
                .map_or(Status::FATAL, |get| get(self.table, Some(note_parameter), (&raw mut seen).cast()));
            deinit();
            status
        };
        Some(if status == Status::OK { Ok(seen) } else { Err(status) })
    }

    /// `connect`.
    pub fn connect(&self, cluster: &str, url: &str, donor: &str, bootstrap: bool) -> Status {
        let (cluster, url, donor) = (text(cluster), text(url), text(donor));
        call!(self, connect(cluster.as_ptr(), url.as_ptr(), donor.as_ptr(), bootstrap))
            .unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `disconnect`.
    pub fn disconnect(&self) -> Status {
        call!(self, disconnect()).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `recv`: lends the calling thread. Without a context no callback may come.
    pub(crate) fn recv(&self, ctx: Option<&RecvCtx>) -> Status {
        call!(self, recv(context(ctx))).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `assign_read_view`.
    pub fn assign_read_view(&self, handle: &mut WsHandle, read_view: Option<&Gtid>) -> Status {
        let read_view = read_view.map_or(std::ptr::null(), std::ptr::from_ref);
        call!(self, assign_read_view(handle, read_view)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `append_key`, one key of these parts.
    pub fn append_key(&self, handle: &mut WsHandle, parts: &[&[u8]], key_type: KeyType) -> Status {
        let parts: Vec<Buf> = parts.iter().map(|part| Buf::of(part)).collect();
        let key = Key { key_parts: parts.as_ptr(), key_parts_num: parts.len() };
        call!(self, append_key(handle, &key, 1, key_type, true)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `append_data`, ordered.
    pub fn append_data(&self, handle: &mut WsHandle, data: &[u8]) -> Status {
        let buf = Buf::of(data);
        call!(self, append_data(handle, &buf, 1, DataType::ORDERED, true)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `wsrep_certify_v1`, where the library exports it, with how often it has called back, which calls `told`; else
    /// `certify`.
    pub fn certify_telling(
        &self,
        conn: ConnId,
        handle: &mut WsHandle,
        flags: u32,
        meta: &mut TrxMeta,
        told: &dyn Fn(),
    ) -> (Status, Option<u32>) {
        struct Calls<'a>(AtomicU32, &'a dyn Fn());
        unsafe extern "C-unwind" fn count(calls: *mut c_void) {
            // SAFETY: the value below outlives the call that receives it.
            let Calls(count, told) = unsafe { &*calls.cast::<Calls<'_>>() };
            count.fetch_add(1, Ordering::SeqCst);
            told();
        }
        let symbol = self.symbol(CERTIFY_V1_SYMBOL);
        if symbol.is_null() {
            return (self.certify(conn, handle, flags, meta), None);
        }
        // SAFETY: by the API this symbol is a function of this type.
        let certify: CertifyV1Fn = unsafe { std::mem::transmute(symbol) };
        let calls = Calls(AtomicU32::new(0), told);
        let seq_cb = SeqCb { ctx: std::ptr::from_ref(&calls).cast_mut().cast(), func: Some(count) };
        // SAFETY: pointers valid for the call.
        let status = unsafe { certify(self.table, conn, handle, flags, meta, &seq_cb) };
        (status, Some(calls.0.load(Ordering::SeqCst)))
    }

    /// `certify`.
    pub fn certify(&self, conn: ConnId, handle: &mut WsHandle, flags: u32, meta: &mut TrxMeta) -> Status {
        call!(self, certify(conn, handle, flags, meta)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `commit_order_enter`.
    pub fn commit_order_enter(&self, handle: &WsHandle, meta: &TrxMeta) -> Status {
        call!(self, commit_order_enter(handle, meta)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `commit_order_leave`.
    pub fn commit_order_leave(&self, handle: &WsHandle, meta: &TrxMeta, error: &[u8]) -> Status {
        let error = Buf::of(error);
        call!(self, commit_order_leave(handle, meta, &error)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `release`.
    pub fn release(&self, handle: &mut WsHandle) -> Status {
        call!(self, release(handle)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `replay_trx`.
    pub(crate) fn replay_trx(&self, handle: &WsHandle, ctx: Option<&RecvCtx>) -> Status {
        call!(self, replay_trx(handle, context(ctx))).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `abort_certification`; returns the victim's seqno too.
    pub fn abort_certification(&self, bf_seqno: Seqno, victim: TrxId) -> (Status, Seqno) {
        let mut seqno = SEQNO_UNDEFINED;
        let status = call!(self, abort_certification(bf_seqno, victim, &mut seqno));
        (status.unwrap_or(Status::NOT_IMPLEMENTED), seqno)
    }

    /// `rollback`, without data, as the server calls it.
    pub fn rollback(&self, trx: TrxId) -> Status {
        call!(self, rollback(trx, std::ptr::null())).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `sync_wait`: for everything ordered before (`upto` = `None`) or a position. Timeout in seconds, -1: the
    /// provider's. Returns the position reached in the first case.
    pub fn sync_wait(&self, upto: Option<Gtid>, timeout: c_int) -> (Status, Gtid) {
        let mut reached = Gtid::UNDEFINED;
        let status = match upto {
            Some(mut upto) => call!(self, sync_wait(&mut upto, timeout, std::ptr::null_mut())),
            None => call!(self, sync_wait(std::ptr::null_mut(), timeout, &mut reached)),
        };
        (status.unwrap_or(Status::NOT_IMPLEMENTED), reached)
    }

    /// `last_committed_id`.
    pub fn last_committed_id(&self) -> (Status, Gtid) {
        let mut gtid = Gtid::UNDEFINED;
        let status = call!(self, last_committed_id(&mut gtid));
        (status.unwrap_or(Status::NOT_IMPLEMENTED), gtid)
    }

    /// `free_connection`.
    pub fn free_connection(&self, conn: ConnId) -> Status {
        call!(self, free_connection(conn)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `to_execute_start` with keys of these parts and one buffer.
    pub fn to_execute_start(
        &self,
        conn: ConnId,
        keys: &[Vec<Vec<u8>>],
        action: &[u8],
        flags: u32,
        meta: &mut TrxMeta,
    ) -> Status {
        let parts: Vec<Vec<Buf>> =
            keys.iter().map(|key| key.iter().map(|part| Buf::of(part)).collect()).collect();
        let keys: Vec<Key> =
            parts.iter().map(|key| Key { key_parts: key.as_ptr(), key_parts_num: key.len() }).collect();
        let action = Buf::of(action);
        call!(self, to_execute_start(conn, keys.as_ptr(), keys.len(), &action, 1, flags, meta))
            .unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `to_execute_end`.
    pub fn to_execute_end(&self, conn: ConnId, error: &[u8]) -> Status {
        let error = Buf::of(error);
        call!(self, to_execute_end(conn, &error)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `sst_sent`.
    pub fn sst_sent(&self, gtid: &Gtid, rcode: c_int) -> Status {
        call!(self, sst_sent(gtid, rcode)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `sst_received`.
    pub fn sst_received(&self, gtid: &Gtid, rcode: c_int) -> Status {
        call!(self, sst_received(gtid, std::ptr::null(), rcode)).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `stats_get`, copied and freed.
    pub fn stats(&self) -> Vec<(String, Stat)> {
        let mut out = Vec::new();
        let Some(list) = call!(self, stats_get()) else { return out };
        let mut at = list;
        // SAFETY: by the API an array that ends with a null name, each value of the type it says.
        unsafe {
            while !at.is_null() && !(*at).name.is_null() {
                let value = match (*at).var_type {
                    VarType::INT64 => Stat::Int((*at).value.int64),
                    VarType::DOUBLE => Stat::Double((*at).value.double),
                    VarType::STRING => Stat::Text(owned((*at).value.string)),
                    other => Stat::Text(format!("a value of unknown type {}", other.0)),
                };
                out.push((owned((*at).name), value));
                at = at.add(1);
            }
        }
        if !list.is_null() {
            call!(self, stats_free(list));
        }
        out
    }

    /// `stats_reset`.
    pub fn stats_reset(&self) {
        call!(self, stats_reset());
    }

    /// `pause`.
    pub fn pause(&self) -> Seqno {
        call!(self, pause()).unwrap_or(-Seqno::from(libc::ENOSYS))
    }

    /// `resume`.
    pub fn resume(&self) -> Status {
        call!(self, resume()).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `desync`.
    pub fn desync(&self) -> Status {
        call!(self, desync()).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `resync`.
    pub fn resync(&self) -> Status {
        call!(self, resync()).unwrap_or(Status::NOT_IMPLEMENTED)
    }

    /// `free`, the end of the allow-list service, and `dlclose`, as the server unloads a provider. Nothing may
    /// be called afterwards; the owner sees to that.
    pub fn unload(&self) {
        call!(self, free());
        if lock(&self.allowlist).take().is_some() {
            let deinit = self.symbol(ALLOWLIST_DEINIT_V1_SYMBOL);
            if !deinit.is_null() {
                // SAFETY: by the API this symbol is a function of this type.
                let deinit: ServiceDeinitFn = unsafe { std::mem::transmute(deinit) };
                // SAFETY: the provider has been freed, nobody uses the service any more.
                unsafe { deinit() };
            }
        }
        let deinit = self.symbol(EVENT_DEINIT_V1_SYMBOL);
        if self.has_events.swap(false, Ordering::SeqCst) && !deinit.is_null() {
            // SAFETY: by the API this symbol is a function of this type; the provider has been freed.
            unsafe { std::mem::transmute::<*mut c_void, ServiceDeinitFn>(deinit)() };
        }
        self.close();
    }

    fn close(&self) {
        if !self.closed.swap(true, Ordering::SeqCst) {
            // SAFETY: open until now, and nothing of it is in use: see `unload` and `drop`.
            unsafe { libc::dlclose(self.dlh) };
        }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // Nothing of the library is in use: the owner unloads the provider before it drops it, or has never
        // initialised it.
        self.close();
        // SAFETY: from `Box::into_raw` in `load`.
        drop(unsafe { Box::from_raw(self.table) });
    }
}
