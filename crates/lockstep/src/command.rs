//! `lockstep switchover`, `remove`, `promote` and `bootstrap`: sends a command for the cluster to a reachable member.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lockstep_local::say;
use lockstep_node::{Answer, Command};

use crate::fetch::{self, Target};
use crate::query;
use crate::source::Source;

/// Timeout of a command. A member answers within 10 s, even if the command fails; a busy machine may need more.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends the command to a member, and prints its answer. Exit code 0: the command succeeded.
pub(crate) fn run(source: &Source, command: &Command, json: bool) -> Result<ExitCode, String> {
    let socket = choose(source)?;
    let answer = send(&socket, command)?;
    if json {
        say(&serde_json::to_string(&answer).map_err(|e| format!("cannot write JSON: {e}"))?);
    } else if answer.ok {
        say(&format!("{} ({:.3} s)", answer.text, answer.seconds));
    } else {
        return Err(answer.text);
    }
    Ok(if answer.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Sends a command to one member.
pub(crate) fn send(socket: &Path, command: &Command) -> Result<Answer, String> {
    let body = serde_json::to_vec(command).map_err(|e| format!("cannot write JSON: {e}"))?;
    let (code, text) = fetch::post(socket, "/command", &body, COMMAND_TIMEOUT).map_err(|error| {
        if !socket.exists() {
            return format!("{}: {error}", socket.display());
        }
        format!(
            "{}: {error}. If the member accepted the command before, it may still finish it: check `lockstep status`. If \
             not, it will not run it",
            socket.display()
        )
    })?;
    serde_json::from_str(&text).map_err(|_| {
        format!("{} answers {code} {}: does it run an older version?", socket.display(), text.trim())
    })
}

/// The socket of the best member for a command: the leader if reachable, else a member of a primary component. A frozen
/// member does not delay the choice.
pub(crate) fn choose(source: &Source) -> Result<PathBuf, String> {
    let (mut targets, _) = source.targets();
    targets.extend(source.fallback());
    targets.retain(|target| matches!(target, Target::Socket(_)));
    if let [Target::Socket(only)] = &targets[..] {
        return Ok(only.clone());
    }
    let mut best: Option<((bool, bool), PathBuf)> = None;
    let mut errors = Vec::new();
    for (target, answer) in targets.iter().zip(query::each(&targets, fetch::TIMEOUT)) {
        match (target, answer) {
            (Target::Socket(socket), Some(Ok(status))) => {
                let rank = (status.cluster.primary, status.leads());
                if best.as_ref().is_none_or(|(highest, _)| rank > *highest) {
                    best = Some((rank, socket.clone()));
                }
            }
            (_, answer) => errors.push(query::no_answer(target, answer.and_then(Result::err))),
        }
    }
    best.map(|(_, socket)| socket).ok_or_else(|| {
        format!(
            "no member accepts the command. Run this on a member's machine as root or as the server's account, or name a \
             socket with --socket\n  {}",
            errors.join("\n  ")
        )
    })
}

/// Prints the error of a command; with `json` to standard output, too, in the format of a member's refusal.
pub(crate) fn complain(text: &str, json: bool) {
    if json {
        lockstep_local::say(&serde_json::json!({ "ok": false, "text": text }).to_string());
    }
    eprintln!("lockstep: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    fn member(name: &str, answer: &'static [u8]) -> (PathBuf, std::thread::JoinHandle<String>) {
        let path = std::env::temp_dir().join(format!("lockstep-command-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let n = stream.read(&mut request).unwrap();
            stream.write_all(answer).unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        (path, thread)
    }

    #[test]
    fn frozen_member_does_not_delay_command() {
        let dir = std::env::temp_dir().join(format!("lockstep-command-{}-some", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let mut sockets = Vec::new();
        for name in ["n1", "n2", "n3"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
            sockets.push(dir.join(name).join("lockstep.sock"));
        }
        // The kernel accepts connections to this socket, but no thread answers them.
        let _frozen = UnixListener::bind(&sockets[0]).unwrap();
        let well = UnixListener::bind(&sockets[2]).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = well.accept().unwrap();
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).unwrap();
            let status = serde_json::to_string(&lockstep_node::Status::default()).unwrap();
            stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{status}").as_bytes()).unwrap();
        });
        let began = std::time::Instant::now();
        let chosen = choose(&Source { dir: Some(dir.clone()), socket: None, address: None });
        let _ = std::fs::remove_dir_all(&dir);
        assert_eq!(chosen, Ok(sockets.remove(2)));
        assert!(began.elapsed() < fetch::TIMEOUT / 2, "{:?}", began.elapsed());
        thread.join().unwrap();
    }

    #[test]
    fn command_is_posted_and_answer_is_read() {
        let command = Command::Switchover { to: "n2".into() };
        let (path, thread) = member(
            "good",
            b"HTTP/1.0 409 Conflict\r\n\r\n{\"ok\":false,\"text\":\"n2 is not connected\",\"seconds\":0.5}",
        );
        let answer = send(&path, &command).unwrap();
        assert!(!answer.ok && answer.text == "n2 is not connected");
        let request = thread.join().unwrap();
        let _ = std::fs::remove_file(&path);
        assert_eq!(
            request,
            "POST /command HTTP/1.0\r\nContent-Length: 34\r\n\r\n{\"command\":\"switchover\",\"to\":\"n2\"}"
        );
        let (path, thread) =
            member("old", b"HTTP/1.0 400 Bad Request\r\n\r\nthis version knows no commands\n");
        assert!(send(&path, &command).unwrap_err().contains("older version"));
        thread.join().unwrap();
        let _ = std::fs::remove_file(&path);
        assert!(send(&path, &command).unwrap_err().contains("no such socket"));
    }
}
