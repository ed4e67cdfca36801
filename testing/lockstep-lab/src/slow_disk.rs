//! A disk on which each flush takes longer, as on spinning disks. It needs neither a compiler nor a library in front of
//! the C library's, and is the same for every program.
//!
//! The process is started behind a seccomp filter that hands each `fsync`, `fdatasync` and `msync` to a thread of ours
//! (`SECCOMP_RET_USER_NOTIF`, Linux 5.5). That lets the call go on to the kernel when its time has come. Calls do not wait
//! for each other: only the latency is that of another disk.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_local::{Disk, LocalError, Result};

use crate::machine::be_punctual;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The calls that wait for the disk.
const CALLS: [libc::c_long; 3] = [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_msync];

#[derive(Debug, Default)]
struct Shared {
    /// How much longer each takes, in nanoseconds.
    delay: AtomicU64,
    /// How many there were.
    flushes: AtomicU64,
}

/// The delay of the flushes of some processes. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SlowDisk {
    shared: Arc<Shared>,
}

impl SlowDisk {
    /// One that is as fast as the machine's.
    pub fn new() -> SlowDisk {
        SlowDisk::default()
    }

    /// From now on each flush takes this much longer.
    pub fn set(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.shared.delay.store(nanos, Ordering::Relaxed);
    }

    /// How many flushes there have been so far.
    pub fn flushes(&self) -> u64 {
        self.shared.flushes.load(Ordering::Relaxed)
    }
}

impl Disk for SlowDisk {
    fn attach(&self, command: &mut Command) -> Result<()> {
        let (ours, theirs) = socket_pair().map_err(LocalError::io("make a pair of sockets"))?;
        // SAFETY: the closure runs in the forked child, and makes system calls only.
        unsafe {
            command.pre_exec(move || {
                let listener = install_filter()?;
                send_descriptor(theirs.as_raw_fd(), listener.as_raw_fd())
            });
        }
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("slow-disk".into())
            .spawn(move || {
                // If the process was not started, its end of the pair is closed, and no byte arrives.
                if let Ok(listener) = receive_descriptor(ours.as_raw_fd()) {
                    drop(ours);
                    be_punctual();
                    serve(&listener, &shared);
                }
            })
            .map_err(LocalError::io("start the thread of a slow disk"))?;
        Ok(())
    }
}

/// Lets calls go on when they are due, until no process is left that could make one.
fn serve(listener: &OwnedFd, shared: &Shared) {
    let mut due: BinaryHeap<Reverse<(Instant, u64)>> = BinaryHeap::new();
    loop {
        let now = Instant::now();
        while let Some(Reverse((at, id))) = due.peek().copied() {
            if at > now {
                break;
            }
            due.pop();
            // One whose process has been killed is not there any more.
            let _ = go_on(listener, id);
        }
        let wait = due.peek().map(|Reverse((at, _))| at.saturating_duration_since(Instant::now()));
        match readable(listener, wait) {
            Ok(Ready::Timeout) => {}
            Ok(Ready::Call) => {
                let Ok(id) = take(listener) else { continue };
                shared.flushes.fetch_add(1, Ordering::Relaxed);
                let delay = Duration::from_nanos(shared.delay.load(Ordering::Relaxed));
                if delay.is_zero() {
                    let _ = go_on(listener, id);
                } else {
                    due.push(Reverse((Instant::now() + delay, id)));
                }
            }
            Ok(Ready::Nobody) | Err(_) => return,
        }
    }
}

enum Ready {
    Call,
    Timeout,
    /// All processes behind the filter have ended.
    Nobody,
}

fn readable(listener: &OwnedFd, wait: Option<Duration>) -> io::Result<Ready> {
    let mut watched = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let wait = wait.map(|wait| libc::timespec {
        tv_sec: wait.as_secs() as libc::time_t,
        tv_nsec: wait.subsec_nanos() as libc::c_long,
    });
    let wait = wait.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: one live pollfd, a live timespec or none, no signal mask.
    let ready = unsafe { libc::ppoll(&mut watched, 1, wait, std::ptr::null()) };
    match ready {
        0 => Ok(Ready::Timeout),
        1.. if watched.revents & libc::POLLIN != 0 => Ok(Ready::Call),
        1.. => Ok(Ready::Nobody),
        _ => match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => Ok(Ready::Timeout),
            e => Err(e),
        },
    }
}

/// The number of a call that waits.
fn take(listener: &OwnedFd) -> io::Result<u64> {
    // SAFETY: all zero is what the kernel wants to be given.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the structure that this request fills in, alive through the call.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) })?;
    Ok(call.id)
}

/// Lets a call go on to the kernel.
fn go_on(listener: &OwnedFd, id: u64) -> io::Result<()> {
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the structure that this request reads, alive through the call.
    check(unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &mut answer) })?;
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// In the child: from here on its flushes ask the listener that this returns. Makes system calls only.
fn install_filter() -> io::Result<OwnedFd> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Of seccomp_data, the number of the call is at 0 and the architecture at 4.
    let [first, second, third] = CALLS.map(|call| call as u32);
    let mut program = [
        step(LOAD, 0, 0, 4),
        step(EQUAL, 0, 4, ARCHITECTURE),
        step(LOAD, 0, 0, 0),
        step(EQUAL, 3, 0, first),
        step(EQUAL, 2, 0, second),
        step(EQUAL, 1, 0, third),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the first takes no pointer; the second a live program.
    let listener = unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &filter,
        )
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just made for us.
    Ok(unsafe { OwnedFd::from_raw_fd(listener as RawFd) })
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr())
    })?;
    // SAFETY: descriptors that the kernel has just made for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) })
}

/// Room for the one control message that carries a descriptor.
#[repr(C, align(8))]
struct Control([u8; 32]);

/// What `sendmsg` and `recvmsg` take: one byte, and room for a descriptor. Valid while both live.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all zero is an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: arithmetic only.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as _;
    message
}

fn send_descriptor(socket: RawFd, descriptor: RawFd) -> io::Result<()> {
    let (mut byte, mut control) = ([0u8], Control([0; 32]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let message = message(&mut part, &mut control);
    // SAFETY: the message has room for one header and one descriptor behind it, all of it alive and aligned.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(descriptor);
        libc::sendmsg(socket, &message, 0)
    };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn receive_descriptor(socket: RawFd) -> io::Result<OwnedFd> {
    let (mut byte, mut control) = ([0u8], Control([0; 32]));
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut message = message(&mut part, &mut control);
    // SAFETY: as above; where a message came with a descriptor, that is a new one of ours.
    unsafe {
        if libc::recvmsg(socket, &mut message, libc::MSG_CMSG_CLOEXEC) != 1 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let header = libc::CMSG_FIRSTHDR(&message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_disk_delays_and_counts_flushes() {
        let path = std::env::temp_dir().join(format!("lockstep-slow-disk-{}", std::process::id()));
        std::fs::write(&path, "some").unwrap();
        // Coreutils' `sync FILE` calls fsync, with --data fdatasync.
        let flush = |disk: &SlowDisk, option: &[&str]| {
            let mut command = Command::new("sync");
            command.args(option).arg(&path);
            disk.attach(&mut command).unwrap();
            let began = Instant::now();
            assert!(command.status().unwrap().success());
            began.elapsed()
        };
        let (disk, other) = (SlowDisk::new(), SlowDisk::new());
        flush(&disk, &[]);
        assert_eq!(disk.flushes(), 1);
        disk.set(Duration::from_millis(700));
        assert!(flush(&disk, &[]) >= Duration::from_millis(700));
        assert!(flush(&disk, &["--data"]) >= Duration::from_millis(700));
        assert_eq!((disk.flushes(), other.flushes()), (3, 0));
        // One that cannot be started is an error, not a wait.
        let mut nothing = Command::new("/nonexistent/program");
        disk.attach(&mut nothing).unwrap();
        assert!(nothing.status().is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
