//! A session with one server, by way of MariaDB's own client program: it knows every way to log in, and is there where a
//! server is.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A client that has nothing to do ends within this.
const FAREWELL: Duration = Duration::from_secs(1);

/// A running `mariadb`.
#[derive(Debug)]
pub(super) struct Session {
    /// The member.
    pub(super) name: String,
    child: Child,
    /// `None` once it is closed.
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    asked: u64,
}

/// Rows, as text.
pub(super) type Rows = Vec<Vec<String>>;

impl Session {
    /// Connects; `place` is `host:port`, or the path of a socket.
    pub(super) fn open(name: &str, place: &str, options: &[String]) -> Result<Session, String> {
        let mut command = Command::new("mariadb");
        // Options about option files must come first.
        let (first, rest): (Vec<&String>, Vec<&String>) =
            options.iter().partition(|o| o.starts_with("--defaults") || o.starts_with("--no-defaults"));
        command
            .args(first)
            .args(["--batch", "--skip-column-names", "--unbuffered", "--connect-timeout=10"])
            .args(rest);
        match place.contains('/') {
            true => command.arg(format!("--socket={place}")),
            false => {
                let (host, port) = place.rsplit_once(':').unwrap_or((place, "3306"));
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
            return Err("cannot talk with the program mariadb".into());
        };
        let mut session = Session {
            name: name.to_owned(),
            child,
            stdin: Some(stdin),
            stdout: BufReader::new(stdout),
            asked: 0,
        };
        let who = session.query("SELECT @@GLOBAL.wsrep_node_name").map_err(|e| format!("{place}: {e}"))?;
        let who = who.first().and_then(|row| row.first()).cloned().unwrap_or_default();
        if who != name {
            return Err(format!("the server at {place} is {who}, not {name}: say --server {name}=HOST:PORT"));
        }
        Ok(session)
    }

    /// Sends a statement; its answer is to be taken.
    pub(super) fn ask(&mut self, sql: &str) -> Result<(), String> {
        self.asked += 1;
        let text = format!("{sql};\nSELECT '{}';\n", self.marker());
        let sent =
            self.stdin.as_mut().map(|stdin| stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()));
        // A client that has ended reports its error.
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.complaint()) }
    }

    /// The answer to the last statement.
    pub(super) fn take(&mut self) -> Result<Rows, String> {
        let marker = self.marker();
        let mut rows = Vec::new();
        loop {
            let mut line = Vec::new();
            let n = self.stdout.read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
            if n == 0 {
                return Err(self.complaint());
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
        self.ask(sql)?;
        self.take()
    }

    fn marker(&self) -> String {
        format!("lockstep-verify-end-{}", self.asked)
    }

    /// Why it has ended.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut text);
        }
        let text = text.trim();
        let first = text.lines().last().unwrap_or("its client program has ended");
        format!("{}: {first}", self.name)
    }
}

impl Drop for Session {
    /// The client takes its leave of the server when there is nothing more to read: killed, it would leave a warning in
    /// the server's log. One that still waits for an answer is not waited for.
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + FAREWELL;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the client's batch mode makes of special characters, undone.
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
