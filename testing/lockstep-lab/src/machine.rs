//! Measurements of the whole machine: its processor time, its disks, and a thread's place in the scheduler.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lockstep_local::{LocalError, Result, parents_and_times, ticks};

/// Processor time of all children of this process that have ended and were waited for.
pub fn children_cpu_time() -> Result<Duration> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes one rusage where the pointer points, which is where ours is, and nothing else.
    let answer = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    if answer != 0 {
        return Err(LocalError::io("ask for the children's processor time")(std::io::Error::last_os_error()));
    }
    // SAFETY: it was zeroed, which is a value of this type, and then filled in.
    let usage = unsafe { usage.assume_init() };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    Ok(time(usage.ru_utime) + time(usage.ru_stime))
}

/// Processor time that the whole machine has spent on work since it started, all processors together.
pub(crate) fn machine_cpu_time() -> Result<Duration> {
    let path = Path::new("/proc/stat");
    let text = std::fs::read_to_string(path).map_err(LocalError::path("read", path))?;
    // cpu user nice system idle iowait irq softirq steal; the guests' part is in `user` already.
    let fields: Vec<u64> =
        text.lines().next().unwrap_or_default().split_whitespace().skip(1).flat_map(str::parse).collect();
    match fields[..] {
        [user, nice, system, _idle, _wait, irq, soft, steal, ..] => {
            Ok(ticks(user + nice + system + irq + soft + steal))
        }
        _ => Err(LocalError::Value("the first line of /proc/stat has too few numbers".into())),
    }
}

/// Whose children the kernel's own threads are, itself one.
const KTHREADD: i32 = 2;

/// The processor time of each thread of the kernel; none where they are not to be seen, as in a container.
pub(crate) fn kernel_threads() -> BTreeMap<i32, Duration> {
    let name = std::fs::read_to_string(format!("/proc/{KTHREADD}/comm")).unwrap_or_default();
    let mut all = parents_and_times();
    all.retain(|pid, (parent, _)| name.trim_end() == "kthreadd" && [*pid, *parent].contains(&KTHREADD));
    all.into_iter().map(|(pid, (_, time))| (pid, time)).collect()
}

/// Of the calling thread: timers to the nanosecond rather than to 50 µs, and the processor before all who only compute. Where
/// the second is not allowed it works, but may be late on a busy machine.
pub(crate) fn be_punctual() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: both change how this very thread is scheduled; the only pointer is to a live sched_param.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::sched_setscheduler(0, libc::SCHED_RR, &priority);
    }
}

/// Waits until the machine's disks have what was written to them so far.
pub fn sync_disks() {
    // SAFETY: it takes nothing and gives nothing.
    unsafe { libc::sync() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn work_shows_in_the_machines_and_the_childrens_time() {
        let (machine, children) = (machine_cpu_time().unwrap(), children_cpu_time().unwrap());
        let burn = "n=0; while [ $n -lt 300000 ]; do n=$((n + 1)); done";
        assert!(Command::new("sh").args(["-c", burn]).status().unwrap().success());
        assert!(machine_cpu_time().unwrap() > machine);
        assert!(children_cpu_time().unwrap() > children + Duration::from_millis(10));
    }
}
