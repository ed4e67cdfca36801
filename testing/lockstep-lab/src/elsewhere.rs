//! Whether the machine was busy with something else while something was measured.
//!
//! Time elsewhere = total processor time − time of the measured processes − time of kernel threads. In a virtual machine it
//! includes time stolen by the host. Kernel threads (disk writes, loop devices) are excluded: their work cannot be
//! attributed, and a process that keeps them busy is seldom idle itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lockstep_local::{Result, parents_and_times};

use crate::machine::{kernel_threads, machine_cpu_time};

/// Above this share of the machine a measurement is in doubt.
pub const BUSY: f64 = 0.05;
/// Processor time is counted in hundredths of a second: of less than this nothing can be said.
const SHORTEST: Duration = Duration::from_millis(500);

/// Processor time that was used until now.
#[derive(Debug, Clone)]
pub struct Work {
    at: Instant,
    machine: Duration,
    /// By those who are measured.
    own: Duration,
    /// By each of the kernel's threads, of which some end and others begin.
    kernel: BTreeMap<i32, Duration>,
}

impl Work {
    /// `own`: processor time of the measured processes so far.
    pub fn so_far(own: Duration) -> Result<Work> {
        Ok(Work { at: Instant::now(), machine: machine_cpu_time()?, own, kernel: kernel_threads() })
    }

    /// Those who are measured are this process and all that it has started.
    pub fn of_this_process() -> Result<Work> {
        Work::so_far(own_cpu_time())
    }

    /// Which part of the machine, of all its processors, others have used since then; `None` if that was but a moment ago.
    pub fn elsewhere_since(&self, before: &Work) -> Option<f64> {
        let wall = self.at.saturating_duration_since(before.at);
        let of_kernel = |(thread, time): (&i32, &Duration)| {
            time.saturating_sub(before.kernel.get(thread).copied().unwrap_or_default())
        };
        let kernel: Duration = self.kernel.iter().map(of_kernel).sum();
        let known = self.own.saturating_sub(before.own) + kernel;
        let others = self.machine.saturating_sub(before.machine).saturating_sub(known);
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        (wall >= SHORTEST).then(|| others.as_secs_f64() / (wall.as_secs_f64() * processors))
    }
}

/// Processor time of this process and its descendants, including ended ones.
fn own_cpu_time() -> Duration {
    let all = parents_and_times();
    let mut own = BTreeSet::from([std::process::id() as i32]);
    // Until there are no more: children come after their parents only as long as numbers of processes do not begin anew.
    loop {
        let count = own.len();
        own.extend(
            all.iter()
                .filter(|(_, (parent, _))| own.contains(parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if own.len() == count {
            break;
        }
    }
    all.iter().filter(|(pid, _)| own.contains(pid)).map(|(_, (_, time))| *time).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn other_processes_count_as_elsewhere() {
        let s = Duration::from_secs;
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let at = Instant::now();
        let before = Work { at, machine: s(100), own: s(10), kernel: BTreeMap::from([(2, s(7)), (3, s(5))]) };
        let work = |wall, machine: Duration, own, kernel| Work { at: at + wall, machine, own, kernel };
        // Thread 3 has ended; 2 went on, and 4 began.
        let kernel = || BTreeMap::from([(2, s(8)), (4, s(1))]);
        let now = work(s(10), s(105) + s(2) * processors, s(13), kernel());
        assert_eq!(now.elsewhere_since(&before), Some(0.2));
        // Rounding at the edges must not appear as time elsewhere.
        assert_eq!(work(s(10), s(104), s(14), kernel()).elsewhere_since(&before), Some(0.0));
        assert_eq!(work(Duration::from_millis(10), s(200), s(13), kernel()).elsewhere_since(&before), None);
    }

    #[test]
    fn own_children_do_not_count_as_elsewhere() {
        // A grandchild computes until the child's input ends.
        let mut child = Command::new("sh")
            .args(["-c", "(while :; do :; done) & read -r line; kill $!; wait"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let ours = || Work::of_this_process().unwrap();
        let nobody = || Work::so_far(Duration::ZERO).unwrap();
        let (before, all_before) = (ours(), nobody());
        // On a machine that is crowded it may take a while to get its share. The time runs from the later of the two.
        let enough =
            || ours().own >= before.own + Duration::from_millis(300) && all_before.at.elapsed() >= SHORTEST;
        let counted = (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            enough()
        });
        assert!(counted, "a process of ours is not counted");
        let seen = nobody().elsewhere_since(&all_before).unwrap();
        let less = ours().elsewhere_since(&before).unwrap();
        let took = 0.3
            / (before.at.elapsed().as_secs_f64()
                * std::thread::available_parallelism().unwrap().get() as f64);
        drop(child.stdin.take());
        child.wait().unwrap();
        // Ended children count as ours.
        assert!(ours().own >= before.own + Duration::from_millis(300));
        assert!(seen - less > 0.5 * took, "{seen} and {less}: {took} were ours");
    }
}
