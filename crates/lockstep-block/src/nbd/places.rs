//! Where a server listens.
//!
//! A Unix socket has a lock file beside it, `PATH.lock`. The server that holds its lock may replace and remove the socket; a
//! second server is refused before it touches anything, even if both start in the same moment. The lock ends with its process.

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The longest path of a Unix socket in bytes.
const UNIX_PATH_MAX: usize = 107;
/// Connections that wait until the server accepts them.
const BACKLOG: i32 = 1024;
/// How often a lock file is opened again that another server has removed meanwhile.
const LOCK_TRIES: usize = 10;

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Listen {
    /// An address. Port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket with these permissions.
    Unix {
        /// Its path. A socket that nobody listens at is replaced.
        path: PathBuf,
        /// Its permissions, such as `0o660`.
        mode: u32,
    },
}

impl Listen {
    fn name(&self) -> String {
        match self {
            Listen::Tcp(address) => address.to_string(),
            Listen::Unix { path, .. } => path.display().to_string(),
        }
    }
}

/// Places that were taken: clients can connect, and wait until a server accepts them. Dropping it frees the places.
#[derive(Debug)]
pub struct Places(pub(super) Vec<Taken>);

impl Places {
    /// Takes all of these places, or none.
    ///
    /// # Errors
    /// Why one cannot be taken. The error names it.
    pub fn take(places: &[Listen]) -> Result<Places> {
        let take = |place: &Listen| {
            Taken::new(place).map_err(|error| {
                Error::new(error.kind(), format!("cannot listen at {}: {error}", place.name()))
            })
        };
        places.iter().map(take).collect::<Result<_>>().map(Places)
    }
}

/// A socket that listens, and does not block.
#[derive(Debug)]
pub(super) enum Taken {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Taken {
    fn new(place: &Listen) -> Result<Taken> {
        match place {
            Listen::Tcp(address) => {
                let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
                // Connections of a process before this one are no reason to refuse.
                socket.set_reuse_address(true)?;
                socket.bind(&(*address).into())?;
                socket.listen(BACKLOG)?;
                socket.set_nonblocking(true)?;
                Ok(Taken::Tcp(socket.into()))
            }
            Listen::Unix { path, mode } => {
                // Nobody can connect before the permissions are right, and the rename replaces an old socket.
                let new = beside(path, ".new");
                if new.as_os_str().len() > UNIX_PATH_MAX {
                    let length = path.as_os_str().len();
                    let most = UNIX_PATH_MAX - (new.as_os_str().len() - length);
                    let text = format!("the path has {length} bytes, and may have {most} at most");
                    return Err(Error::new(ErrorKind::InvalidInput, text));
                }
                let lock = LockFile::new(beside(path, ".lock"))?;
                refuse_if_used(path)?;
                refuse_if_used(&new)?;
                let _ = std::fs::remove_file(&new);
                let listener = UnixListener::bind(&new)?;
                let prepare = || -> Result<(u64, u64)> {
                    std::fs::set_permissions(&new, Permissions::from_mode(*mode))?;
                    listener.set_nonblocking(true)?;
                    let id = id(&std::fs::symlink_metadata(&new)?);
                    std::fs::rename(&new, path)?;
                    Ok(id)
                };
                let id = prepare().inspect_err(|_| drop(std::fs::remove_file(&new)))?;
                Ok(Taken::Unix(listener, SocketFile { path: path.clone(), id, _lock: lock }))
            }
        }
    }
}

/// A file's device and number.
fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// A socket in the file system. It ends with this value.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
    /// Freed last.
    _lock: LockFile,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another program may have replaced it.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|metadata| id(&metadata) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A locked file. It ends with this value.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    _file: File,
}

impl LockFile {
    fn new(path: PathBuf) -> Result<LockFile> {
        let in_use = || Error::new(ErrorKind::AddrInUse, "another server listens there");
        for _ in 0..LOCK_TRIES {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
            let file = options.open(&path).map_err(|error| {
                Error::new(error.kind(), format!("its lock file {}: {error}", path.display()))
            })?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(in_use()),
                Err(error) => return Err(error.into()),
            }
            // The server before may have removed the file between both steps: then this is the lock of no file.
            let found = std::fs::symlink_metadata(&path);
            if found.is_ok_and(|found| file.metadata().is_ok_and(|own| id(&own) == id(&found))) {
                return Ok(LockFile { path, _file: file });
            }
        }
        Err(in_use())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // While the lock is held: a later server makes a file of its own.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An error if a server listens at this path, or if something else than a socket is there.
fn refuse_if_used(path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(Error::new(ErrorKind::AlreadyExists, "a file is there that is not a socket"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(Error::new(ErrorKind::AddrInUse, "another server listens there")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-nbd-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn unix(path: impl Into<PathBuf>) -> Listen {
        Listen::Unix { path: path.into(), mode: 0o600 }
    }

    #[test]
    fn place_that_cannot_be_taken_is_named_and_others_are_freed() {
        let dir = folder("places");
        let refused = |place: Listen| Places::take(&[place]).unwrap_err().to_string();
        let held = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = held.local_addr().unwrap();
        let text = refused(Listen::Tcp(address));
        assert!(text.contains(&format!("cannot listen at {address}: ")) && text.contains("in use"), "{text}");
        let socket = dir.join("socket");
        assert!(Places::take(&[unix(&socket), Listen::Tcp(address)]).is_err());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing stays");
        drop(held);
        for _ in 0..2 {
            let places = Places::take(&[Listen::Tcp(address), unix(&socket)]).unwrap();
            UnixStream::connect(&socket).unwrap();
            drop(places);
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "nothing stays");
        assert!(refused(unix(dir.join("x".repeat(120)))).contains("at most"), "a socket's path is short");
        assert!(refused(unix(dir.join("missing/socket"))).contains("cannot listen at"));
        std::fs::write(&socket, b"somebody's data").unwrap();
        assert!(refused(unix(&socket)).contains("not a socket"));
        assert_eq!(std::fs::read(&socket).unwrap(), b"somebody's data");
        std::fs::remove_file(&socket).unwrap();
        let other = UnixListener::bind(&socket).unwrap();
        assert!(refused(unix(&socket)).contains("another server listens there"));
        drop(other);
        // A killed server leaves its socket and its lock file.
        std::fs::write(beside(&socket, ".lock"), "").unwrap();
        Places::take(&[unix(&socket)]).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn socket_with_many_servers_is_taken_by_one_and_stays() {
        const SERVERS: usize = 8;
        let dir = folder("race");
        let socket = dir.join("socket");
        for round in 0..100 {
            let begin = Barrier::new(SERVERS);
            let start = || {
                begin.wait();
                Places::take(&[unix(&socket)])
            };
            let taken: Vec<Result<Places>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..SERVERS).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let errors: Vec<String> =
                taken.iter().filter_map(|taken| Some(taken.as_ref().err()?.to_string())).collect();
            assert_eq!(errors.len(), SERVERS - 1, "round {round}: {errors:?}");
            assert!(errors.iter().all(|text| text.contains("another server listens there")), "{errors:?}");
            let Some(Taken::Unix(listener, _)) = taken.iter().flatten().next().map(|places| &places.0[0])
            else {
                panic!("it is a Unix socket");
            };
            let client = UnixStream::connect(&socket).expect("the socket is the winner's");
            listener.accept().expect("the socket is the winner's");
            drop(client);
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn socket_of_another_program_is_not_removed_at_the_end() {
        let dir = folder("foreign");
        let socket = dir.join("socket");
        let places = Places::take(&[unix(&socket)]).unwrap();
        std::fs::remove_file(&socket).unwrap();
        let _other = UnixListener::bind(&socket).unwrap();
        drop(places);
        UnixStream::connect(&socket).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
