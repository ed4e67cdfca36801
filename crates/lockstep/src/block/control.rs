//! Commands to a running `lockstep block serve`: one request and one answer in JSON, a line each, over a Unix socket in its
//! directory.

use super::node_log::NodeLog;
use super::options::{self, Protocol};
use super::report::{self, BlockStatus, ComparedStatus};
use lockstep_block::device::Replica;
use lockstep_block::device::snapshot::{SnapshotDone, SnapshotProgress};
use lockstep_block::nbd::Connections;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Handle;

/// The socket's name.
const SOCKET: &str = "block.sock";
/// The longest request or answer.
const LINE_MAX: u64 = 1 << 20;
/// The node's list of members may be older than the log by a fifth of a second, or some more on a busy machine.
const LIST_OF_MEMBERS_AGE: Duration = Duration::from_secs(1);
/// How long a client may take for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take. A member answers within half of it, also if the command fails.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(180);

/// A command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Request {
    /// The status.
    Status,
    /// This member becomes the primary of a new epoch.
    Promote {
        /// Also if that ends an attachment in use.
        #[serde(default)]
        force: bool,
    },
    /// Whether `Promote` would be refused.
    #[serde(rename = "may_promote")]
    MayPromote {
        /// As of `Promote`.
        #[serde(default)]
        force: bool,
    },
    /// The device grows.
    Resize {
        /// Bytes.
        size: u64,
    },
    /// The group changes its commit policy.
    Protocol {
        /// The new one.
        protocol: Protocol,
    },
    /// Compares all copies. The answers before the last one tell the progress.
    Verify {
        /// The most bytes in a second.
        #[serde(default)]
        rate: Option<u64>,
    },
    /// Makes an image of the device. The answers before the last one tell the progress.
    Snapshot {
        /// The file: an absolute path.
        to: PathBuf,
    },
}

/// How far a long command has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Bytes that are done.
    pub(super) done: u64,
    /// All bytes.
    pub(super) total: u64,
    /// Of a comparison: bytes of blocks that differ.
    #[serde(default)]
    pub(super) differing: u64,
}

/// The answer.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Whether the command succeeded.
    pub(super) ok: bool,
    /// The result, or the reason and the remedy.
    pub(super) text: String,
    /// Of [`Request::Promote`]: the name that clients attach by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) export: Option<String>,
    /// Of [`Request::Status`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<BlockStatus>,
    /// The command goes on: this is not its last answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<Progress>,
    /// Of [`Request::Verify`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) compared: Option<ComparedStatus>,
    /// Of [`Request::Snapshot`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot: Option<Image>,
}

/// A complete snapshot.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Image {
    /// The file.
    pub(super) file: PathBuf,
    /// Its size.
    pub(super) bytes: u64,
    /// The position in the log (GTID) of which it is.
    pub(super) position: String,
    /// Whether it shares space with the device file.
    pub(super) cloned: bool,
}

impl Answer {
    fn done(text: String) -> Answer {
        Answer { ok: true, text, ..Answer::default() }
    }

    fn failed(text: String) -> Answer {
        Answer { ok: false, text, ..Answer::default() }
    }
}

/// The socket. It ends with this value.
pub(super) struct ControlSocket {
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ControlSocket {
    /// Whether a socket in this directory is possible.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn check(dir: &Path) -> Result<(), String> {
        let path = dir.join(SOCKET);
        SocketAddr::from_pathname(&path).map(drop).map_err(|_| {
            let length = path.as_os_str().len();
            format!(
                "the path {} has {length} bytes, too many for a Unix socket: name a shorter --dir",
                path.display()
            )
        })
    }

    /// Listens in this directory. The log's lock keeps a second process out of it.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn start(
        dir: &Path,
        replica: Replica<NodeLog>,
        connections: Connections,
        runtime: Handle,
    ) -> Result<ControlSocket, String> {
        let path = dir.join(SOCKET);
        let fails =
            |error: std::io::Error| format!("cannot listen at {}: {error}", dir.join(SOCKET).display());
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(fails)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(fails)?;
        let thread = std::thread::Builder::new().name("ls-control".into());
        thread
            .spawn(move || {
                for stream in listener.incoming() {
                    let Ok(stream) = stream else {
                        std::thread::sleep(Duration::from_millis(100));
                        continue;
                    };
                    let (replica, connections, handle) =
                        (replica.clone(), connections.clone(), runtime.clone());
                    // A command waits for the log, and a status must not wait for a command.
                    runtime.spawn_blocking(move || serve(stream, &replica, &connections, &handle));
                }
            })
            .map_err(fails)?;
        Ok(ControlSocket { path })
    }
}

fn serve(stream: UnixStream, replica: &Replica<NodeLog>, connections: &Connections, runtime: &Handle) {
    let _ = stream.set_read_timeout(Some(REQUEST_TIMEOUT));
    // A client that takes no answers ends its command.
    let _ = stream.set_write_timeout(Some(REQUEST_TIMEOUT));
    let mut line = String::new();
    let read = BufReader::new((&stream).take(LINE_MAX)).read_line(&mut line);
    let answer = match read.map_err(|e| e.to_string()).and_then(|_| {
        serde_json::from_str::<Request>(&line)
            .map_err(|e| format!("this is no command that this version knows ({e})"))
    }) {
        Ok(request) => {
            let mut tell =
                |progress| send(&stream, &Answer { progress: Some(progress), ..Answer::done(String::new()) });
            runtime.block_on(execute(request, replica, connections, &mut tell))
        }
        Err(text) => Answer::failed(text),
    };
    // The client may be gone.
    let _ = send(&stream, &answer);
}

/// Sends an answer. Returns whether the client could take it.
fn send(mut stream: &UnixStream, answer: &Answer) -> bool {
    let Ok(mut text) = serde_json::to_string(answer) else { return false };
    text.push('\n');
    stream.write_all(text.as_bytes()).is_ok()
}

/// `tell` sends the progress. It returns `false` if the client is gone.
async fn execute(
    request: Request,
    replica: &Replica<NodeLog>,
    connections: &Connections,
    tell: &mut (dyn FnMut(Progress) -> bool + Send),
) -> Answer {
    match request {
        Request::Verify { rate } => {
            // A member that has just joined must be compared, too.
            tokio::time::sleep(LIST_OF_MEMBERS_AGE).await;
            let compared = replica
                .verify(rate, |now| {
                    tell(Progress { done: now.done, total: now.total, differing: now.differing })
                })
                .await;
            match compared {
                Ok((compared, not_compared)) => {
                    let (_, mut text) = replica.result_text(&compared);
                    if !not_compared.is_empty() {
                        text.push_str(&format!(
                            ". Not compared, because not connected or behind: {}",
                            not_compared.join(", ")
                        ));
                    }
                    let compared = ComparedStatus { not_compared, ..ComparedStatus::of(replica, &compared) };
                    Answer { compared: Some(compared), ..Answer::done(text) }
                }
                Err(text) => Answer::failed(text),
            }
        }
        Request::Snapshot { to } => {
            if let Err(text) = replica.until_caught_up().await {
                return Answer::failed(text);
            }
            // It blocks, as this thread may.
            let tell =
                |now: SnapshotProgress| tell(Progress { done: now.done, total: now.total, differing: 0 });
            match replica.snapshot(&to, tell) {
                Ok(SnapshotDone { path, bytes, position, cloned }) => {
                    let text = format!("{bytes} bytes at position {position} in {}", path.display());
                    let image = Image { file: path, bytes, position: position.to_string(), cloned };
                    Answer { snapshot: Some(image), ..Answer::done(text) }
                }
                Err(text) => Answer::failed(text),
            }
        }
        Request::Status => {
            let status = report::status(replica, Some(connections));
            Answer { status: Some(status.clone()), ..Answer::done(status.text()) }
        }
        Request::Promote { force } => match replica.promote(force).await {
            Ok(epoch) => {
                let export = format!("{}@{epoch}", replica.config().name);
                Answer { export: Some(export.clone()), ..Answer::done(export) }
            }
            Err(text) => Answer::failed(text),
        },
        Request::MayPromote { force } => match replica.may_promote(force).await {
            Ok(()) => Answer::done("this member may be promoted".into()),
            Err(text) => Answer::failed(text),
        },
        Request::Resize { size } => {
            let resized = match options::checked(size) {
                Ok(size) => replica.resize(size).await,
                Err(text) => Err(text),
            };
            match resized {
                Ok(()) => Answer::done(format!(
                    "the device has {size} bytes; clients see that when they attach again"
                )),
                Err(text) => Answer::failed(text),
            }
        }
        Request::Protocol { protocol } => {
            let node = replica.log().node();
            match node.change_policy(Box::new(move |policy| protocol.apply(policy))) {
                Ok(true) => Answer::done(format!("protocol {protocol} is in force")),
                Ok(false) => Answer::failed(format!(
                    "protocol {protocol} is not in force yet: the member's log says when it is, or look at `lockstep block status`"
                )),
                Err(text) => Answer::failed(text),
            }
        }
    }
}

/// Sends a request to the member of this directory. A refused command is an error.
///
/// # Errors
/// A text for people.
pub(super) fn ask(dir: &Path, request: &Request) -> Result<Answer, String> {
    ask_long(dir, request, |_| {})
}

/// As [`ask`], of a long command. `progress` is told how far it has come. The command ends with this process.
///
/// # Errors
/// A text for people.
pub(super) fn ask_long(
    dir: &Path,
    request: &Request,
    mut progress: impl FnMut(Progress),
) -> Result<Answer, String> {
    let path = dir.join(SOCKET);
    let fails = |error: std::io::Error| {
        let why = match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                "no `lockstep block serve` runs there: name its directory with --dir".to_owned()
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
            _ => error.to_string(),
        };
        format!("{}: {why}", path.display())
    };
    let mut stream = UnixStream::connect(&path).map_err(fails)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(fails)?;
    let mut line = serde_json::to_string(request).map_err(|e| format!("cannot write JSON: {e}"))?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(fails)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut text = String::new();
        if (&mut reader).take(LINE_MAX).read_line(&mut text).map_err(fails)? == 0 {
            return Err(format!("{}: the member has ended: see its log", path.display()));
        }
        let answer: Answer = serde_json::from_str(&text).map_err(|_| {
            format!("{}: the answer cannot be read: does it run another version?", path.display())
        })?;
        match answer.progress {
            Some(now) => progress(now),
            None if answer.ok => return Ok(answer),
            None => return Err(answer.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_nonsense_is_refused() {
        let read = |text: &str| serde_json::from_str::<Request>(text);
        assert_eq!(read(r#"{"command":"promote"}"#).unwrap(), Request::Promote { force: false });
        assert_eq!(read(r#"{"command":"resize","size":4096}"#).unwrap(), Request::Resize { size: 4096 });
        let dry = read(r#"{"command":"may_promote","force":true}"#).unwrap();
        assert_eq!(dry, Request::MayPromote { force: true });
        assert_eq!(read(r#"{"command":"verify"}"#).unwrap(), Request::Verify { rate: None });
        let snapshot = read(r#"{"command":"snapshot","to":"/x"}"#).unwrap();
        assert_eq!(snapshot, Request::Snapshot { to: "/x".into() });
        let protocol = read(r#"{"command":"protocol","protocol":"b"}"#).unwrap();
        assert_eq!(protocol, Request::Protocol { protocol: Protocol::B });
        for bad in ["", "{}", r#"{"command":"format"}"#, r#"{"command":"promote","now":true}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn missing_member_is_named() {
        let text = ask(Path::new("/nonexistent"), &Request::Status).unwrap_err();
        assert!(text.contains("/nonexistent/block.sock") && text.contains("--dir"), "{text}");
    }
}
