//! `lockstep up` on a cluster of which one member has fallen out.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::{Client, Installation, LabError, free_ports};

use crate::fixture::{Kind, Test, alone, built, eventually, kind, same};

/// A cluster of `lockstep up`; stopped and removed with the test.
struct Up {
    dir: PathBuf,
    port: u16,
}

impl Up {
    fn run(&self, command: &str) -> Result<Output, LabError> {
        self.run_with(command, &[])
    }

    fn run_with(&self, command: &str, more: &[&str]) -> Result<Output, LabError> {
        let mut program = Command::new(built("lockstep"));
        program.arg(command).arg("--dir").arg(&self.dir);
        if command == "up" {
            program.arg("--port").arg(self.port.to_string());
        }
        program
            .args(more)
            .output()
            .map_err(|source| LabError::Io { what: format!("run lockstep {command}"), source })
    }

    fn client(&self, name: &str) -> Result<Client, LabError> {
        Client::connect(&self.dir.join(format!("{name}.sock")), "root", Duration::from_secs(20))
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.run("down");
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn up_says_at_once_which_member_cannot_go_on() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let dir = Path::new("/var/tmp").join(format!("lockstep-up-{}", std::process::id()));
    // The members' ports are those from 10 above the first one on.
    let up = Up { dir, port: free_ports(40)? };
    Installation::find()?.make_dir(&up.dir, 0o755)?;
    let first = up.run("up")?;
    assert!(first.status.success(), "{}", text(&first));

    // n3 alone has a row that the others are to write.
    up.client("n1")?.run(&["CREATE DATABASE odd", "CREATE TABLE odd.t (id INT PRIMARY KEY)"])?;
    up.client("n3")?.run(&[
        "SET SESSION wsrep_sync_wait = 15",
        "SELECT * FROM odd.t",
        "SET SESSION wsrep_on = OFF",
        "INSERT INTO odd.t VALUES (1)",
    ])?;
    up.client("n1")?.query("INSERT INTO odd.t VALUES (1)")?;
    eventually("n3 is out", || Ok(up.client("n3")?.status("wsrep_local_state_comment")? == "Inconsistent"))?;

    let began = Instant::now();
    let again = up.run("up")?;
    let (took, said) = (began.elapsed(), text(&again));
    assert!(!again.status.success(), "{said}");
    assert!(took < Duration::from_secs(5), "{took:?}: {said}");
    for due in
        ["n3 cannot go on: Inconsistency detected", "n3.err", "Stop it: `kill ", "it goes on from here"]
    {
        assert!(said.contains(due), "[{due}] is not in: {said}");
    }
    // What it says to do helps.
    let command = said.split('`').find(|words| words.starts_with("kill ")).unwrap_or_default();
    let killed = Command::new("sh").args(["-c", command]).status();
    assert!(killed.is_ok_and(|status| status.success()), "{said}");
    let look = command.replace("kill ", "kill -0 ");
    eventually("n3 is stopped", || {
        Ok(Command::new("sh").args(["-c", &look]).stderr(Stdio::null()).status().is_ok_and(|s| !s.success()))
    })?;
    // What somebody has put into a file stays there, and counts.
    let file = up.dir.join("n3.cnf");
    let edited = std::fs::read_to_string(&file).unwrap_or_default() + "max_connections=77\n";
    std::fs::write(&file, &edited).expect("n3.cnf can be written");
    let last = up.run("up")?;
    assert!(last.status.success(), "{}", text(&last));
    assert!(text(&last).contains("n3.cnf is not as `up` writes it, and is kept"), "{}", text(&last));
    same("n3.cnf", std::fs::read_to_string(&file).unwrap_or_default(), edited);
    same("what counts", up.client("n3")?.value("SELECT @@max_connections")?, "77".into());

    // One that hangs does not keep the others from being stopped.
    let pid = std::fs::read_to_string(up.dir.join("n2.pid")).unwrap_or_default();
    let stopped = Command::new("kill").args(["-STOP", pid.trim()]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "n2 cannot be paused");
    let down = up.run_with("down", &["--timeout", "5"])?;
    assert!(down.status.success(), "{}", text(&down));
    for due in ["n2: stopping", "did not end within 5 s: killed", "n1: stopping"] {
        assert!(text(&down).contains(due), "[{due}] is not in: {}", text(&down));
    }
    for name in ["n1", "n2", "n3"] {
        assert!(up.client(name).is_err(), "{name} still answers");
    }
    Ok(())
}
