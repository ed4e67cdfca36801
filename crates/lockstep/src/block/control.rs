//! Commands to a running `lockstep block serve`: one request and one answer in JSON, a line each, over a Unix socket in its
//! directory.

use super::node_log::NodeLog;
use super::options::{self, Protocol};
use super::report::{self, BlockStatus};
use lockstep_block::device::Replica;
use lockstep_block::nbd::Connections;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::runtime::Handle;

/// The socket's name.
const SOCKET: &str = "block.sock";
/// The longest request or answer.
const LINE_MAX: u64 = 1 << 20;
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
    let mut line = String::new();
    let read = BufReader::new((&stream).take(LINE_MAX)).read_line(&mut line);
    let answer = match read.map_err(|e| e.to_string()).and_then(|_| {
        serde_json::from_str::<Request>(&line)
            .map_err(|e| format!("this is no command that this version knows ({e})"))
    }) {
        Ok(request) => runtime.block_on(execute(request, replica, connections)),
        Err(text) => Answer::failed(text),
    };
    if let Ok(mut text) = serde_json::to_string(&answer) {
        text.push('\n');
        // The client may be gone.
        let _ = (&stream).write_all(text.as_bytes());
    }
}

async fn execute(request: Request, replica: &Replica<NodeLog>, connections: &Connections) -> Answer {
    match request {
        Request::Status => {
            let status = report::status(replica, Some(connections));
            Answer { ok: true, text: status.text(), export: None, status: Some(status) }
        }
        Request::Promote { force } => match replica.promote(force).await {
            Ok(epoch) => {
                let export = format!("{}@{epoch}", replica.config().name);
                Answer { ok: true, text: export.clone(), export: Some(export), status: None }
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
    let mut text = String::new();
    BufReader::new(stream.take(LINE_MAX)).read_line(&mut text).map_err(fails)?;
    let answer: Answer = serde_json::from_str(&text).map_err(|_| {
        format!("{}: the answer cannot be read: does it run another version?", path.display())
    })?;
    if answer.ok { Ok(answer) } else { Err(answer.text) }
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
