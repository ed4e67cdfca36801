//! Opening sockets to listen on, with errors that name the address, and options common to all connections.

use std::fs;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream, UnixListener};
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::resolve;
use crate::addr::{Address, Scheme};
use crate::error::{ListenError, SUN_PATH_MAX};

/// How long the name of a listen address may take to resolve, at start only.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
const BACKLOG: i32 = 128;

/// Opens listeners on all addresses, or none.
///
/// A name may have addresses that this machine has not (`localhost` is often `::1` too where IPv6 is off): one is enough.
pub(crate) fn tcp(addrs: &[Address], encrypted: bool) -> Result<Vec<TcpListener>, ListenError> {
    let mut numeric: Vec<SocketAddr> = Vec::new();
    let mut groups: Vec<Vec<SocketAddr>> = Vec::new();
    for addr in addrs {
        if addr.scheme == Scheme::Ssl && !encrypted {
            return Err(ListenError::Tls(addr.to_string()));
        }
        let found =
            resolve::within(addr, RESOLVE_LIMIT).map_err(|e| ListenError::Resolve(addr.to_string(), e))?;
        let fresh: Vec<SocketAddr> = found.into_iter().filter(|a| !numeric.contains(a)).collect();
        numeric.extend(&fresh);
        groups.push(fresh);
    }
    let mut out = Vec::new();
    for group in groups {
        let mut missing = None;
        let before = out.len();
        for addr in &group {
            match tcp_one(*addr, &numeric) {
                Ok(listener) => out.push(listener),
                Err(e @ ListenError::NotLocal(_)) => missing = Some(e),
                Err(e) => return Err(e),
            }
        }
        if let Some(e) = missing.filter(|_| out.len() == before) {
            return Err(e);
        }
    }
    Ok(out)
}

fn tcp_one(addr: SocketAddr, all: &[SocketAddr]) -> Result<TcpListener, ListenError> {
    let open = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        // A member that restarts must not wait for the old connections' TIME_WAIT.
        socket.set_reuse_address(true)?;
        if addr.is_ipv6() {
            // [::] alone takes IPv4 too; beside a listener of its own for IPv4 it must not.
            let both = all.iter().any(|a| a.is_ipv4() && a.port() == addr.port());
            socket.set_only_v6(both || !addr.ip().is_unspecified())?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&addr.into())?;
        socket.listen(BACKLOG)?;
        Ok(TcpListener::from_std(socket.into()))
    };
    open().map_err(|e| {
        let name = format!("tcp://{addr}");
        match e.kind() {
            ErrorKind::AddrInUse => ListenError::InUse(name),
            ErrorKind::AddrNotAvailable => ListenError::NotLocal(name),
            _ if e.raw_os_error() == Some(libc::EAFNOSUPPORT) => ListenError::NotLocal(name),
            _ => ListenError::Io(name, e),
        }
    })
}

/// Connects, without waiting, from the first of the addresses `from` that is of the same family. So on a machine with
/// several addresses, peers see the one by which they know this member; an allow-list may name it. If the connect from
/// that address fails, another one is used.
pub(crate) fn dial(
    remote: SocketAddr,
    from: impl Iterator<Item = IpAddr>,
) -> io::Result<mio::net::TcpStream> {
    let bound = from.filter(|ip| ip.is_ipv4() == remote.is_ipv4()).find_map(|ip| {
        let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None).ok()?;
        socket.set_nonblocking(true).ok()?;
        socket.bind(&SocketAddr::new(ip, 0).into()).ok()?;
        match socket.connect(&remote.into()) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => None,
            _ => Some(mio::net::TcpStream::from_std(socket.into())),
        }
    });
    bound.map_or_else(|| mio::net::TcpStream::connect(remote), Ok)
}

/// The options of every connection between members. They cannot fail on a connection that lives; one that is dead
/// already shows that at its first read.
pub(crate) fn tune(stream: &TcpStream, silence: Duration) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_nodelay(true);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2))
        .with_retries(3);
    let _ = socket.set_tcp_keepalive(&keepalive);
    // The timeout for unacknowledged data. The kernel's own would be a quarter of an hour.
    let _ = socket.set_tcp_user_timeout(Some(silence));
}

/// `writev` for a socket, but without SIGPIPE: as a guest in a server's process we do not decide what that signal does.
pub(crate) fn send_vectored(socket: &impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    SockRef::from(socket).send_vectored_with_flags(slices, libc::MSG_NOSIGNAL)
}

/// A Unix socket in the file system, mode 0600, and how to recognise it there.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    path: PathBuf,
    /// Device and inode, as it was made; `None` once it is known to have vanished.
    made: Option<(u64, u64)>,
}

impl UnixSocket {
    pub(crate) fn open(path: &Path) -> Result<(UnixSocket, UnixListener), ListenError> {
        let name = path.display().to_string();
        let len = path.as_os_str().as_bytes().len();
        if len > SUN_PATH_MAX {
            return Err(ListenError::PathTooLong(name, len));
        }
        clear_stale(path, &name)?;
        let open = || -> io::Result<(UnixSocket, UnixListener)> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            socket.bind(&SockAddr::unix(path)?)?;
            // Before `listen`: nobody can connect while the mode is still what the umask made of it.
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            socket.listen(BACKLOG)?;
            let meta = fs::symlink_metadata(path)?;
            let listener = UnixListener::from_std(socket.into());
            Ok((UnixSocket { path: path.to_owned(), made: Some((meta.dev(), meta.ino())) }, listener))
        };
        open().map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => ListenError::InUse(name),
            _ => ListenError::Io(name, e),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The socket has vanished. A later file at its path is another one, even with the same inode number.
    pub(crate) fn disown(&mut self) {
        self.made = None;
    }

    /// Whether what is at the path is still this socket.
    pub(crate) fn in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|m| Some((m.dev(), m.ino())) == self.made)
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if self.in_place() {
            // Left behind it would only be recognised as stale at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket without a listener. Leaves a live one, and any other file, alone.
fn clear_stale(path: &Path, name: &str) -> Result<(), ListenError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(ListenError::Io(name.to_owned(), e)),
    };
    if !meta.file_type().is_socket() {
        return Err(ListenError::NotASocket(name.to_owned()));
    }
    // Not blocking, because `connect` would wait for a full backlog. Then it returns EAGAIN, and the socket is live.
    let answer = Socket::new(Domain::UNIX, Type::STREAM, None).and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    });
    match answer {
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {}
        _ => return Err(ListenError::InUse(name.to_owned())),
    }
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(ListenError::Io(name.to_owned(), e)),
        _ => Ok(()),
    }
}
