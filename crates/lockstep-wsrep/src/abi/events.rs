//! The event service: what servers from 11.4 on show in `wsrep_status_file`, of a member's way to Synced, and what people
//! should hear of.
//!
//! The server's callback may write a file, so that a short-lived thread calls it, one at a time, in order.

use crate::sync::lock;
use lockstep_abi::{EventCb, EventServiceV1, MemberStatus};
use lockstep_node::core::Seqno;
use std::collections::VecDeque;
use std::ffi::{CString, c_int, c_void};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A server that does not take its events loses the oldest.
const QUEUED_MAX: usize = 64;
/// For the last of them, at the service's end.
const TIMEOUT: Duration = Duration::from_secs(3);

struct Events {
    /// How often the service was given: a server may load a provider twice.
    uses: usize,
    callback: Option<EventCb>,
    context: *mut c_void,
    queue: VecDeque<(&'static std::ffi::CStr, CString)>,
    /// A thread hands them out.
    busy: bool,
}

// SAFETY: the server offers the callback and its context to any thread.
unsafe impl Send for Events {}

static EVENTS: Mutex<Events> = Mutex::new(Events {
    uses: 0,
    callback: None,
    context: std::ptr::null_mut(),
    queue: VecDeque::new(),
    busy: false,
});
/// Notified when the thread ends.
static DONE: Condvar = Condvar::new();

/// Takes the service.
///
/// # Safety
/// `service` is null, or points to one whose callback may be called until [`wsrep_deinit_event_service_v1`].
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_init_event_service_v1(service: *const EventServiceV1) -> c_int {
    // SAFETY: null or a service.
    let Some(service) = (unsafe { service.as_ref() }) else { return libc::EINVAL };
    let mut events = lock(&EVENTS);
    events.uses += 1;
    if events.uses == 1 {
        events.callback = service.event_cb;
        events.context = service.context;
    }
    0
}

/// Releases the service: no thread calls it any more.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_event_service_v1() {
    let mut events = lock(&EVENTS);
    events.uses = events.uses.saturating_sub(1);
    if events.uses == 0 {
        events.callback = None;
        events.queue.clear();
        drop(DONE.wait_timeout_while(events, TIMEOUT, |events| events.busy));
    }
}

/// Reports this member's progress in catching up with the log, in JSON: its state, the next state, and the numbers.
/// Returns at once.
pub(crate) fn progress(total: Seqno, done: Seqno) {
    let (from, to) = (MemberStatus::JOINED.0, MemberStatus::SYNCED.0);
    let value = format!(
        "{{ \"from\": {from}, \"to\": {to}, \"total\": {total}, \"done\": {done}, \"undefined\": -1 }}"
    );
    enqueue(c"progress", value);
}

/// Something that happened: a JSON object. Returns at once.
pub(crate) fn event(json: &str) {
    enqueue(c"event", json.to_owned());
}

fn enqueue(name: &'static std::ffi::CStr, value: String) {
    let Ok(value) = CString::new(value) else { return };
    let mut events = lock(&EVENTS);
    if events.callback.is_none() {
        return;
    }
    if events.queue.len() >= QUEUED_MAX {
        events.queue.pop_front();
    }
    events.queue.push_back((name, value));
    if events.busy {
        return;
    }
    events.busy =
        std::thread::Builder::new().name("ls-event".into()).stack_size(512 * 1024).spawn(hand_out).is_ok();
}

fn hand_out() {
    /// Also when the callback throws.
    struct Busy;
    impl Drop for Busy {
        fn drop(&mut self) {
            lock(&EVENTS).busy = false;
            DONE.notify_all();
        }
    }
    let busy = Busy;
    loop {
        let mut events = lock(&EVENTS);
        let (Some(callback), Some((name, value))) = (events.callback, events.queue.pop_front()) else {
            // Under the same lock: a thread that queues an event now starts the next thread.
            events.busy = false;
            DONE.notify_all();
            std::mem::forget(busy);
            return;
        };
        let context = events.context;
        drop(events);
        // SAFETY: the server's callback with its context; both texts outlive the call.
        unsafe { callback(context, name.as_ptr(), value.as_ptr()) };
    }
}
