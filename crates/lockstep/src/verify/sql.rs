//! A session with one server through MariaDB's client program. The program supports every way to log in, and every
//! machine with a server has it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Time that an idle client may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A running `mariadb`.
#[derive(Debug)]
pub(super) struct Session {
    /// The member's name.
    pub(super) name: String,
    child: Child,
    /// `None` after the end of the session.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    /// Number of statements sent so far.
    sent: u64,
}

/// Rows, as text.
pub(super) type Rows = Vec<Vec<String>>;

impl Session {
    /// Connects to `address`: `host:port`, or the path of a socket.
    pub(super) fn open(name: &str, address: &str, options: &[String]) -> Result<Session, String> {
        let mut command = Command::new("mariadb");
        // Options about option files must come first.
        let (first, rest): (Vec<&String>, Vec<&String>) =
            options.iter().partition(|o| o.starts_with("--defaults") || o.starts_with("--no-defaults"));
        command
            .args(first)
            .args(["--batch", "--skip-column-names", "--unbuffered", "--connect-timeout=10"])
            .args(rest);
        match address.contains('/') {
            true => command.arg(format!("--socket={address}")),
            false => {
                let (host, port) = address.rsplit_once(':').unwrap_or((address, "3306"));
                let host = host.trim_start_matches('[').trim_end_matches(']');
                command.args(["--protocol=tcp", &format!("--host={host}"), &format!("--port={port}")])
            }
        };
        let io = |e: std::io::Error| format!("cannot run the program mariadb, MariaDB's client: {e}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("cannot open pipes to the program mariadb".into());
        };
        let mut session = Session {
            name: name.to_owned(),
            child,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout),
            sent: 0,
        };
        let rows = session.query("SELECT @@GLOBAL.wsrep_node_name").map_err(|e| format!("{address}: {e}"))?;
        let found = rows.first().and_then(|row| row.first()).cloned().unwrap_or_default();
        if found != name {
            return Err(format!(
                "the server at {address} is {found}, not {name}: give its address with --server {name}=HOST:PORT"
            ));
        }
        Ok(session)
    }

    /// Sends a statement. The caller reads its result with [`Session::receive`].
    pub(super) fn send(&mut self, sql: &str) -> Result<(), String> {
        self.sent += 1;
        let text = format!("{sql};\nSELECT '{}';\n", self.marker());
        let sent =
            self.stdin.as_mut().map(|stdin| stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()));
        // The write fails after the client has ended. The client's error output has the reason.
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.client_error()) }
    }

    /// Reads the result of the last statement.
    pub(super) fn receive(&mut self) -> Result<Rows, String> {
        let marker = self.marker();
        let mut rows = Vec::new();
        loop {
            let mut line = Vec::new();
            let n = self.stdout.read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
            if n == 0 {
                return Err(self.client_error());
            }
            let line = String::from_utf8_lossy(&line);
            let line = line.strip_suffix('\n').unwrap_or(&line);
            if line == marker {
                return Ok(rows);
            }
            rows.push(line.split('\t').map(unescape).collect());
        }
    }

    pub(super) fn query(&mut self, sql: &str) -> Result<Rows, String> {
        self.send(sql)?;
        self.receive()
    }

    fn marker(&self) -> String {
        format!("lockstep-verify-end-{}", self.sent)
    }

    /// The error with which the client program ended.
    fn client_error(&mut self) -> String {
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        let text = text.trim();
        let last = text.lines().last().unwrap_or("the program mariadb ended without an error text");
        format!("{}: {last}", self.name)
    }
}

impl Drop for Session {
    /// Ends the client. At the end of its input it closes the connection properly; a killed client would cause a warning
    /// in the server's log. A client that still waits for a result is killed after [`END_TIMEOUT`].
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + END_TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Decodes the escapes of the client's batch mode.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('0') => out.push('\0'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            (c, _) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_escapes_are_decoded() {
        assert_eq!(unescape(r"a\tb\\n\n\0'"), "a\tb\\n\n\0'");
        assert_eq!(unescape("\\"), "\\");
    }
}
