//! A TUN device: reading its file returns the kernel's packets, and writing delivers packets to the kernel.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use lockstep_local::{LocalError, Result};

use crate::netns;

const DEVICE: &str = "/dev/net/tun";

/// The name that the device has in its namespace.
pub(super) const NAME: &str = "wan";

/// The longest packet of the device.
pub(super) const MTU: usize = 1500;

/// Packets that the kernel keeps until they are read: 60 ms of 1500-byte packets at 1.6 Gbit/s.
const KERNEL_QUEUE: usize = 8192;

/// Makes the device in this network namespace and sets it up; it goes when the file is closed. The file does not block.
pub(super) fn open(namespace: &str) -> Result<File> {
    if !Path::new(DEVICE).exists() {
        return Err(LocalError::Missing {
            what: DEVICE.into(),
            hint: "the delay line needs the kernel's tun driver (modprobe tun; in a container: --device /dev/net/tun)"
                .into(),
        });
    }
    let file = netns::within(namespace, || {
        let mut options = OpenOptions::new();
        // The device belongs to the namespace of the thread that opens this.
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
        name_it(&file)?;
        io::Result::Ok(file)
    })?
    .map_err(LocalError::io(format!(
        "make a device of {DEVICE} in the network namespace {namespace} (as root?)"
    )))?;
    netns::ip(&["-n", namespace, "link", "set", NAME, "mtu", &MTU.to_string()])?;
    netns::ip(&["-n", namespace, "link", "set", NAME, "txqueuelen", &KERNEL_QUEUE.to_string()])?;
    netns::ip(&["-n", namespace, "link", "set", NAME, "up"])?;
    Ok(file)
}

fn name_it(file: &File) -> io::Result<()> {
    // SAFETY: ifreq is plain memory, for which zeros are a value: no name, no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(NAME.bytes()) {
        *to = from as libc::c_char;
    }
    // Bare IP packets.
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and TUNSETIFF reads and writes one ifreq, which is ours and lives.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
