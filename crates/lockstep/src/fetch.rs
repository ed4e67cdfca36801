//! Asking a member's status service: HTTP/1.0 over its Unix socket or a TCP address, one request a connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Source;
use crate::up;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest timeout, even if no time is left: a healthy member answers within it.
pub(crate) const MOMENT: Duration = Duration::from_millis(200);
/// Error text for a socket that may not be opened.
pub(crate) const NOT_ALLOWED: &str = "permission denied: run this as root or as the server's account";
/// More than this is not a status.
const ANSWER_MAX: u64 = 64 << 20;
/// The status socket's name in a data directory.
const SOCKET: &str = "lockstep.sock";
/// Where a server that was installed the usual way keeps its data.
pub(crate) const USUAL_DATADIR: &str = "/var/lib/mysql";

/// Where a member answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Socket(PathBuf),
    Address(String),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Socket(path) => path.display().fmt(f),
            Target::Address(address) => f.write_str(address),
        }
    }
}

impl Source {
    /// Whom to ask, and whether whoever does not answer should.
    pub(crate) fn targets(&self) -> (Vec<Target>, bool) {
        if let Some(path) = &self.socket {
            return (vec![Target::Socket(path.clone())], true);
        }
        if let Some(address) = &self.address {
            return (vec![Target::Address(address.clone())], true);
        }
        let dir = self.dir.as_deref().unwrap_or(Path::new(up::DEFAULT_DIR));
        (sockets(dir), true)
    }

    /// Whom to ask where none of them answers, if nobody was named.
    pub(crate) fn fallback(&self) -> Option<Target> {
        let named = self.socket.is_some() || self.address.is_some() || self.dir.is_some();
        (!named).then(|| Target::Socket(Path::new(USUAL_DATADIR).join(SOCKET)))
    }
}

/// The status socket of the server with this data directory.
pub(crate) fn socket_in(datadir: &Path) -> Target {
    Target::Socket(datadir.join(SOCKET))
}

/// The status sockets of the cluster of `lockstep up` in `dir`.
pub(crate) fn sockets(dir: &Path) -> Vec<Target> {
    up::data_dirs(dir).iter().map(|dir| socket_in(dir)).collect()
}

/// `GET path` from one target; the body.
pub(crate) fn get(target: &Target, path: &str) -> Result<String, String> {
    get_within(target, path, TIMEOUT)
}

/// As [`get`], with a timeout (above zero) for each step.
pub(crate) fn get_within(target: &Target, path: &str, patience: Duration) -> Result<String, String> {
    let explain = |error| explain_after(error, patience);
    match target {
        Target::Socket(socket) => {
            let stream = UnixStream::connect(socket).map_err(explain)?;
            stream.set_read_timeout(Some(patience)).map_err(explain)?;
            stream.set_write_timeout(Some(patience)).map_err(explain)?;
            ask(stream, path).map_err(explain).and_then(|answer| parse(&answer))
        }
        Target::Address(address) => {
            let found = address.to_socket_addrs().map_err(|e| format!("not an address HOST:PORT ({e})"))?;
            let mut last = "the name has no address".to_owned();
            for one in found {
                match TcpStream::connect_timeout(&one, patience) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(patience)).map_err(explain)?;
                        stream.set_write_timeout(Some(patience)).map_err(explain)?;
                        return ask(stream, path).map_err(explain).and_then(|answer| parse(&answer));
                    }
                    Err(e) => last = explain(e),
                }
            }
            Err(last)
        }
    }
}

/// `POST path` to a member's socket; the status code and the body. The member has this long to do what it says.
pub(crate) fn post(
    socket: &Path,
    path: &str,
    body: &[u8],
    patience: Duration,
) -> Result<(u16, String), String> {
    let mut stream = UnixStream::connect(socket).map_err(explain)?;
    stream.set_read_timeout(Some(patience)).map_err(explain)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(explain)?;
    let mut request = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    let late = |error| explain_after(error, patience);
    stream.write_all(&request).map_err(late)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).map_err(late)?;
    let (code, _, body) = parts(&answer)?;
    Ok((code, body))
}

fn ask(mut stream: impl Read + Write, path: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Status code, first line and body of an answer.
fn parts(answer: &[u8]) -> Result<(u16, String, String), String> {
    if answer.is_empty() {
        return Err("it closed the connection without an answer".into());
    }
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("its answer is not HTTP")?;
    let line = head.lines().next().unwrap_or_default();
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let code = code.ok_or("its answer is not HTTP")?;
    Ok((code, line.to_owned(), body.to_owned()))
}

/// The body of a successful answer.
fn parse(answer: &[u8]) -> Result<String, String> {
    match parts(answer)? {
        (200, _, body) => Ok(body),
        (_, line, body) => Err(format!("{line} {}", body.trim())),
    }
}

fn explain(error: std::io::Error) -> String {
    explain_after(error, TIMEOUT)
}

fn explain_after(error: std::io::Error, patience: Duration) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such socket".into(),
        ErrorKind::ConnectionRefused => "nobody listens there".into(),
        ErrorKind::PermissionDenied => NOT_ALLOWED.into(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("no answer within {} s", (patience.as_secs_f64() * 10.0).round() / 10.0)
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_answer_is_parsed() {
        assert_eq!(parse(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n{}\r\n\r\n"), Ok("{}\r\n\r\n".into()));
        assert_eq!(parse(b"HTTP/1.0 404 Not Found\r\n\r\nno\n"), Err("HTTP/1.0 404 Not Found no".into()));
        assert!(parse(b"5.5.5-10.11.19-MariaDB").is_err());
        assert!(parse(b"220 smtp\r\n\r\n").is_err());
        assert!(parse(b"").is_err());
    }

    #[test]
    fn silent_member_takes_no_more_than_timeout() {
        // The kernel accepts connections for a frozen process, too.
        let path = std::env::temp_dir().join(format!("lockstep-fetch-{}-frozen", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let _frozen = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let began = std::time::Instant::now();
        let said = get_within(&Target::Socket(path.clone()), "/status", Duration::from_millis(200));
        let _ = std::fs::remove_file(&path);
        assert_eq!(said, Err("no answer within 0.2 s".into()));
        assert!(began.elapsed() < TIMEOUT / 2, "{:?}", began.elapsed());
    }

    #[test]
    fn member_is_queried_over_tcp() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 24];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nfine").unwrap();
            request
        });
        assert_eq!(get(&Target::Address(address), "/status"), Ok("fine".into()));
        assert_eq!(&server.join().unwrap(), b"GET /status HTTP/1.0\r\n\r\n");
    }
}
