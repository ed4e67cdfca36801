//! The thread between the zones' TUN devices: reads packets, puts each on the line to the zone of its destination, and
//! writes it there when it is due.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result};

use super::line::{Counters, Line, Settings};
use super::tun::MTU;
use crate::machine::be_punctual;
use crate::netns::NETWORK;

/// Packets read from one device before due packets of others are sent.
const BATCH: usize = 64;

type Packet = Box<[u8; MTU]>;

/// The lines between `zones` zones, both directions of each pair; none where nothing passes.
#[derive(Debug)]
struct Lines {
    zones: usize,
    lines: Vec<Option<Line<Packet>>>,
    /// Packets of IPv4 for which there is no line.
    strays: u64,
    /// Packets that a device did not take.
    refused: u64,
}

impl Lines {
    fn line(&mut self, from: usize, to: usize) -> Option<&mut Line<Packet>> {
        if from.max(to) >= self.zones {
            return None;
        }
        self.lines[from * self.zones + to].as_mut()
    }
}

/// The running relay; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Relay {
    lines: Arc<Mutex<Lines>>,
    /// Closed to end the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<io::Result<()>>>,
    /// Why the thread ended by itself.
    failure: Option<String>,
}

impl Relay {
    /// Starts it between these devices, one of each zone, with one line for each `(from, to, settings)`.
    pub(super) fn start(
        devices: Vec<File>,
        directions: impl IntoIterator<Item = (usize, usize, Settings)>,
    ) -> Result<Relay> {
        let zones = devices.len();
        let mut lines: Vec<_> = (0..zones * zones).map(|_| None).collect();
        for (from, to, settings) in directions {
            lines[from * zones + to] = Some(Line::new(settings));
        }
        let lines = Arc::new(Mutex::new(Lines { zones, lines, strays: 0, refused: 0 }));
        let (stopped, stop) = io::pipe().map_err(LocalError::io("make a pipe"))?;
        let shared = Arc::clone(&lines);
        let thread = std::thread::Builder::new()
            .name("wan".into())
            .spawn(move || {
                be_punctual();
                let work = Work {
                    devices,
                    lines: shared,
                    stopped,
                    start: Instant::now(),
                    queued: Queued::of_this_thread(),
                    looked: 0,
                    asleep: 0,
                    spare: Vec::new(),
                };
                work.run()
            })
            .map_err(LocalError::io("start the thread of the delay line"))?;
        Ok(Relay { lines, stop: Some(stop), thread: Some(thread), failure: None })
    }

    /// Counters of one direction's packets; none if there is no line.
    pub(super) fn counters(&self, from: usize, to: usize) -> Option<Counters> {
        lock(&self.lines).line(from, to).map(|line| line.counters())
    }

    /// Starts the counters of all lines at nothing.
    pub(super) fn count_anew(&self) {
        lock(&self.lines).lines.iter_mut().flatten().for_each(Line::count_anew);
    }

    /// Packets that had no line to where they wanted, and packets that a device did not take.
    pub(super) fn strays(&self) -> (u64, u64) {
        let lines = lock(&self.lines);
        (lines.strays, lines.refused)
    }

    /// Gives one direction other settings; whether there is a line.
    pub(super) fn set(&self, from: usize, to: usize, settings: Settings) -> bool {
        lock(&self.lines).line(from, to).map(|line| line.set(settings)).is_some()
    }

    /// Why the relay ended by itself, if it has.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            self.failure = Some(match thread.join() {
                Ok(Err(e)) => e.to_string(),
                Ok(Ok(())) | Err(_) => "its thread ended".into(),
            });
        }
        match &self.failure {
            None => Ok(()),
            Some(why) => {
                Err(LocalError::Value(format!("the delay line stands still ({why}): make a new one")))
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A line is always whole: no panic of another thread leaves one half changed.
fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Work {
    devices: Vec<File>,
    lines: Arc<Mutex<Lines>>,
    stopped: PipeReader,
    start: Instant,
    queued: Queued,
    /// When all devices were last found empty, on the clock that began at `start`.
    looked: u64,
    /// How long the thread has slept since then. A packet ends the sleep, so a packet found now has waited no longer than
    /// the thread was awake or runnable.
    asleep: u64,
    /// Buffers to use again: in the long run none is made.
    spare: Vec<Packet>,
}

impl Work {
    fn run(mut self) -> io::Result<()> {
        let watch = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut watched: Vec<_> = self.devices.iter().map(|device| watch(device.as_raw_fd())).collect();
        watched.push(watch(self.stopped.as_raw_fd()));
        loop {
            let next = self.deliver();
            let wait = next.map(|due| Duration::from_nanos(due.saturating_sub(self.now())));
            let (began, queued) = (self.now(), self.queued.total());
            poll(&mut watched, wait)?;
            let woke = self.now();
            self.asleep += (woke - began).saturating_sub(self.queued.total() - queued);
            if watched.last().is_some_and(|stopped| stopped.revents != 0) {
                return Ok(());
            }
            let mut empty = true;
            for (from, state) in watched[..self.devices.len()].iter().enumerate() {
                if state.revents != 0 {
                    empty &= self.receive(from)?;
                }
            }
            if empty {
                (self.looked, self.asleep) = (woke, 0);
            }
        }
    }

    fn now(&self) -> u64 {
        super::line::nanos(self.start.elapsed())
    }

    /// Takes what a device has, a batch at most; whether nothing is left.
    fn receive(&mut self, from: usize) -> io::Result<bool> {
        for _ in 0..BATCH {
            let mut packet = self.spare.pop().unwrap_or_else(|| Box::new([0; MTU]));
            let len = match (&self.devices[from]).read(&mut packet[..]) {
                Ok(len) => len,
                Err(e) => {
                    self.spare.push(packet);
                    return match e.kind() {
                        io::ErrorKind::WouldBlock => Ok(true),
                        io::ErrorKind::Interrupted => Ok(false),
                        _ => Err(e),
                    };
                }
            };
            let now = self.now();
            let waited = (now - self.looked).saturating_sub(self.asleep);
            if let Some(back) = accept(&mut lock(&self.lines), from, now, waited, len, packet) {
                self.spare.push(back);
            }
        }
        Ok(false)
    }

    /// Writes all that is due; when the next will be.
    fn deliver(&mut self) -> Option<u64> {
        let mut lines = lock(&self.lines);
        let lines = &mut *lines;
        let mut next: Option<u64> = None;
        for (at, line) in lines.lines.iter_mut().enumerate() {
            let Some(line) = line else { continue };
            let device = &self.devices[at % lines.zones];
            let now = super::line::nanos(self.start.elapsed());
            while let Some((len, packet)) = line.pop(now) {
                let mut device = device;
                lines.refused += u64::from(device.write(&packet[..len]).is_err());
                self.spare.push(packet);
            }
            next = [next, line.next_due()].into_iter().flatten().min();
        }
        next
    }
}

/// For how long this thread wanted a processor and had none, which nothing else tells it: the time between a packet's arrival
/// and its own awakening looks like sleep.
struct Queued(Option<File>);

impl Queued {
    fn of_this_thread() -> Queued {
        Queued(File::open("/proc/thread-self/schedstat").ok())
    }

    /// In nanoseconds so far; 0 where the kernel does not say.
    fn total(&self) -> u64 {
        let mut text = [0; 64];
        let len = self.0.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        queued(&text[..len]).unwrap_or(0)
    }
}

/// The second number.
fn queued(schedstat: &[u8]) -> Option<u64> {
    std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Puts a packet on its line, or gives it back.
fn accept(
    lines: &mut Lines,
    from: usize,
    now: u64,
    waited: u64,
    len: usize,
    packet: Packet,
) -> Option<Packet> {
    match zone_of(&packet[..len]) {
        Destination::Zone(to) => match lines.line(from, to) {
            Some(line) => line.push_late(now, waited, len, packet).err(),
            None => {
                lines.strays += 1;
                Some(packet)
            }
        },
        Destination::Elsewhere => {
            lines.strays += 1;
            Some(packet)
        }
        Destination::NotIpv4 => Some(packet),
    }
}

#[derive(Debug, PartialEq)]
enum Destination {
    Zone(usize),
    Elsewhere,
    /// The kernel talks IPv6 on any link by itself; nobody misses that.
    NotIpv4,
}

/// The destination of an IP packet: zone `z` has the addresses `NETWORK.z.0/24`.
fn zone_of(packet: &[u8]) -> Destination {
    match packet {
        [first, ..] if packet.len() >= 20 && first >> 4 == 4 => match packet[16..20] {
            [a, b, zone, _] if [a, b] == NETWORK => Destination::Zone(usize::from(zone)),
            _ => Destination::Elsewhere,
        },
        _ => Destination::NotIpv4,
    }
}

/// Waits until a descriptor is ready or the time is over; a signal ends the wait early.
fn poll(watched: &mut [libc::pollfd], wait: Option<Duration>) -> io::Result<()> {
    let time = wait.map(|wait| libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(wait.subsec_nanos() as i32),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice is ours, with its true length; the time is null or a live value; no signal mask is given.
    let ready =
        unsafe { libc::ppoll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, time, std::ptr::null()) };
    if ready >= 0 {
        return Ok(());
    }
    // Readiness from before the call is stale.
    watched.iter_mut().for_each(|state| state.revents = 0);
    match io::Error::last_os_error() {
        e if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_processor_is_known() {
        assert_eq!(queued(b"123 456 7\n"), Some(456));
        assert_eq!(queued(b""), None);
        // A thread that is not punctual, on the one processor of another: both want it all the time.
        let one = || {
            // SAFETY: changes this thread's processors only; the set is a live value of the size that is said.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
                let first =
                    (0..libc::CPU_SETSIZE as usize).find(|at| libc::CPU_ISSET(*at, &set)).unwrap_or(0);
                libc::CPU_ZERO(&mut set);
                libc::CPU_SET(first, &mut set);
                libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
            }
        };
        let end = Instant::now() + Duration::from_millis(300);
        let other = std::thread::spawn(move || {
            one();
            while Instant::now() < end {}
        });
        let waited = std::thread::spawn(move || {
            one();
            let queued = Queued::of_this_thread();
            while Instant::now() < end {}
            queued.total()
        });
        let waited = Duration::from_nanos(waited.join().unwrap());
        other.join().unwrap();
        assert!(waited > Duration::from_millis(20), "{waited:?} of 300 ms");
    }

    #[test]
    fn zone_is_parsed_from_destination() {
        let mut packet = [0u8; 40];
        packet[0] = 0x45;
        packet[16..20].copy_from_slice(&[NETWORK[0], NETWORK[1], 3, 9]);
        assert_eq!(zone_of(&packet), Destination::Zone(3));
        packet[17] += 1;
        assert_eq!(zone_of(&packet), Destination::Elsewhere);
        assert_eq!(zone_of(&packet[..19]), Destination::NotIpv4);
        assert_eq!(zone_of(&[]), Destination::NotIpv4);
        packet[0] = 0x60;
        assert_eq!(zone_of(&packet), Destination::NotIpv4);
    }
}
