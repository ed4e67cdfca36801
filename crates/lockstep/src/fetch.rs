//! A client of a member's status service: HTTP/1.0 over its Unix socket or a TCP address, one request per connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster_dir;

/// The default timeout of each step of a request.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest timeout, even if the caller has no time left. A healthy member answers within it.
pub(crate) const MIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Error text for a socket that this account may not open.
pub(crate) const NOT_ALLOWED: &str = "permission denied: run this as root or as the server's account";
/// The size limit of an answer. A status is far smaller.
const ANSWER_MAX: u64 = 64 << 20;
/// The status socket's name in a data directory.
const SOCKET: &str = "lockstep.sock";
/// The default data directory of an installed server.
pub(crate) const USUAL_DATADIR: &str = "/var/lib/mysql";

/// The endpoint of a member's status service.
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

/// The status socket in a data directory.
pub(crate) fn socket_in(datadir: &Path) -> Target {
    Target::Socket(datadir.join(SOCKET))
}

/// The status sockets of the cluster of `lockstep up` in `dir`.
pub(crate) fn sockets(dir: &Path) -> Vec<Target> {
    cluster_dir::data_dirs(dir).iter().map(|dir| socket_in(dir)).collect()
}

/// Sends `GET path` to one target, and returns the body of the answer.
pub(crate) fn get(target: &Target, path: &str) -> Result<String, String> {
    get_within(target, path, TIMEOUT)
}

/// As [`get`], with a timeout for each step. The timeout must not be zero.
pub(crate) fn get_within(target: &Target, path: &str, timeout: Duration) -> Result<String, String> {
    let explain = |error| explain_with_timeout(error, timeout);
    match target {
        Target::Socket(socket) => {
            let stream = UnixStream::connect(socket).map_err(explain)?;
            stream.set_read_timeout(Some(timeout)).map_err(explain)?;
            stream.set_write_timeout(Some(timeout)).map_err(explain)?;
            request(stream, path).map_err(explain).and_then(|answer| parse(&answer))
        }
        Target::Address(address) => {
            let found =
                address.to_socket_addrs().map_err(|e| format!("this is not an address HOST:PORT ({e})"))?;
            let mut last = "the host name has no address".to_owned();
            for one in found {
                match TcpStream::connect_timeout(&one, timeout) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(timeout)).map_err(explain)?;
                        stream.set_write_timeout(Some(timeout)).map_err(explain)?;
                        return request(stream, path).map_err(explain).and_then(|answer| parse(&answer));
                    }
                    Err(e) => last = explain(e),
                }
            }
            Err(last)
        }
    }
}

/// Sends `POST path` to a member's socket, and returns the status code and the body. `timeout` covers the execution of
/// the command.
pub(crate) fn post(
    socket: &Path,
    path: &str,
    body: &[u8],
    timeout: Duration,
) -> Result<(u16, String), String> {
    let mut stream = UnixStream::connect(socket).map_err(explain)?;
    stream.set_read_timeout(Some(timeout)).map_err(explain)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(explain)?;
    let mut request = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    request.extend_from_slice(body);
    let explain = |error| explain_with_timeout(error, timeout);
    stream.write_all(&request).map_err(explain)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).map_err(explain)?;
    let (code, _, body) = parts(&answer)?;
    Ok((code, body))
}

fn request(mut stream: impl Read + Write, path: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Splits an answer into status code, first line and body.
fn parts(answer: &[u8]) -> Result<(u16, String, String), String> {
    if answer.is_empty() {
        return Err("the member closed the connection without an answer".into());
    }
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("the answer is not HTTP")?;
    let line = head.lines().next().unwrap_or_default();
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
    let code = code.ok_or("the answer is not HTTP")?;
    Ok((code, line.to_owned(), body.to_owned()))
}

/// Returns the body of a successful answer.
fn parse(answer: &[u8]) -> Result<String, String> {
    match parts(answer)? {
        (200, _, body) => Ok(body),
        (_, line, body) => Err(format!("{line} {}", body.trim())),
    }
}

fn explain(error: std::io::Error) -> String {
    explain_with_timeout(error, TIMEOUT)
}

fn explain_with_timeout(error: std::io::Error, timeout: Duration) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such socket".into(),
        ErrorKind::ConnectionRefused => "connection refused: no process listens there".into(),
        ErrorKind::PermissionDenied => NOT_ALLOWED.into(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("no answer within {} s", (timeout.as_secs_f64() * 10.0).round() / 10.0)
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
