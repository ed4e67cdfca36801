//! A short scheduler slice for the node's threads, so that they run soon on a crowded processor.
//!
//! Linux divides a processor among runnable threads by weight. Among threads that are due it picks the one whose slice ends
//! first (EEVDF). By default all slices are equal, some milliseconds. A thread with a shorter slice runs sooner and more
//! often, with the same share in total. On Linux 6.18, where a yield forfeits a whole slice, the write coalescing of
//! `lockstep-net` then costs a tenth or less. No privilege is needed. Kernels before 6.12 ignore the setting.
//! The gain was not measured alone on 2026-11-25 (docs/results.md, "Timing devices").
//!
//! A lower nice value, which gives a larger share, is no alternative: a thread that runs before all others finds smaller
//! batches, and syncs more often. In the shootout's loads, -5 cost 2 to 25 % of the rate, and -20 cost 5 to 50 % (two short
//! runs each).

use std::mem::size_of;

/// The shortest slice that Linux accepts, ns.
const SLICE: u64 = 100_000;

/// Shortens the calling thread's slice. If the kernel or a container's filter refuses, nothing changes.
pub(crate) fn shorten_sched_slice() {
    let Some(mut attributes) = attributes() else { return };
    // An operator who has set another scheduling class for the server's threads has chosen deliberately.
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = SLICE;
    // SAFETY: the kernel reads `size` bytes of a structure that lives through the call; nothing else changes in it.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// The thread's attributes, with its nice value, which must not change.
fn attributes() -> Option<libc::sched_attr> {
    // SAFETY: all its fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the kernel writes at most `size` bytes to a structure that lives through the call.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (done == 0).then_some(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_is_shortened_and_other_attributes_stay() {
        std::thread::spawn(|| {
            // SAFETY: changes only this thread's nice value. Refused if it is higher already.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 7) };
            let before = attributes().expect("Linux has it");
            shorten_sched_slice();
            let after = attributes().expect("Linux has it");
            assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
            // Older kernels report no slice, and another scheduling class is left unchanged.
            if before.sched_runtime != 0 && before.sched_policy == libc::SCHED_OTHER as u32 {
                assert_eq!(after.sched_runtime, SLICE);
            }
        })
        .join()
        .expect("no panic");
    }
}
