//! `lockstep up`: on a cluster of which one member has fallen out, or two have been left behind; and where it must not be.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError, free_ports};

use crate::fixture::{Kind, Test, alone, built, eventually, kind, same};

/// A cluster of `lockstep up`; stopped and removed with the test.
struct Up {
    dir: PathBuf,
    port: u16,
}

impl Up {
    fn run(&self, command: &str) -> Result<Output, LocalError> {
        self.run_with(command, &[])
    }

    fn run_with(&self, command: &str, more: &[&str]) -> Result<Output, LocalError> {
        let mut program = Command::new(built("lockstep"));
        program.arg(command).arg("--dir");
        match (self.dir.parent().filter(|beside| beside.is_dir()), self.dir.file_name()) {
            // As somebody says it who stands beside the folder.
            (Some(beside), Some(name)) => program.arg(name).current_dir(beside),
            _ => program.arg(&self.dir),
        };
        if command == "up" {
            program.arg("--port").arg(self.port.to_string());
        }
        program
            .args(more)
            .output()
            .map_err(|source| LocalError::Io { what: format!("run lockstep {command}"), source })
    }

    fn client(&self, name: &str) -> Result<Client, LocalError> {
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
    let first = up.run("up")?;
    assert!(first.status.success(), "{}", text(&first));

    let other = Up { dir: up.dir.clone(), port: up.port + 1 };
    let refused = text(&other.run("up")?);
    std::mem::forget(other);
    assert!(
        refused.contains(&format!("servers of {} run, with ports from {} on", up.dir.display(), up.port)),
        "{refused}"
    );

    // Its ports are its own, also where nothing but its process tells that it runs.
    let (socket, aside) = (up.dir.join("n1/lockstep.sock"), up.dir.join("n1/aside.sock"));
    std::fs::rename(&socket, &aside).expect("the socket can be renamed");
    let checked = Command::new(built("lockstep")).arg("check").arg(up.dir.join("n1.cnf")).output();
    std::fs::rename(&aside, &socket).expect("and back");
    let checked = text(&checked.expect("it runs"));
    assert!(checked.contains(" refused, ") && !checked.contains("is in use now"), "{checked}");

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
    for due in ["n3 has failed: Inconsistency detected", "n3.err", "Stop it: `kill ", "again to continue"] {
        assert!(said.contains(due), "[{due}] is not in: {said}");
    }
    // The suggested remedy works.
    let command = said.split('`').find(|words| words.starts_with("kill ")).unwrap_or_default();
    let killed = Command::new("sh").args(["-c", command]).status();
    assert!(killed.is_ok_and(|status| status.success()), "{said}");
    let look = command.replace("kill ", "kill -0 ");
    eventually("n3 is stopped", || {
        Ok(Command::new("sh").args(["-c", &look]).stderr(Stdio::null()).status().is_ok_and(|s| !s.success()))
    })?;
    // A user's edit of a file stays and takes effect.
    let file = up.dir.join("n3.cnf");
    let edited = std::fs::read_to_string(&file).unwrap_or_default() + "max_connections=77\n";
    std::fs::write(&file, &edited).expect("n3.cnf can be written");
    let last = up.run("up")?;
    assert!(last.status.success(), "{}", text(&last));
    assert!(
        text(&last).contains("n3.cnf differs from what `up` would write, and is kept"),
        "{}",
        text(&last)
    );
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

/// A member left behind by a bootstrap of another ends its process once; `up` restarts it.
#[test]
fn up_starts_again_who_ends_to_join_a_branch() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let dir = Path::new("/var/tmp").join(format!("lockstep-up-branch-{}", std::process::id()));
    let up = Up { dir, port: free_ports(40)? };
    let first = up.run("up")?;
    assert!(first.status.success(), "{}", text(&first));
    let mut third = up.client("n3")?;
    for name in ["n1", "n2"] {
        let pid = std::fs::read_to_string(up.dir.join(format!("{name}.pid"))).unwrap_or_default();
        let killed = Command::new("kill").args(["-KILL", pid.trim()]).status();
        assert!(killed.is_ok_and(|status| status.success()), "{name} cannot be killed");
    }
    eventually("n3 is alone", || Ok(third.status("wsrep_cluster_status")? == "non-Primary"))?;
    let socket = up.dir.join("n3/lockstep.sock");
    let done = Command::new(built("lockstep")).arg("bootstrap").arg("--socket").arg(&socket).output();
    assert!(done.as_ref().is_ok_and(|done| done.status.success()), "{done:?}");
    eventually("n3 writes", || Ok(third.query("CREATE DATABASE IF NOT EXISTS branch").is_ok()))?;
    let again = up.run("up")?;
    assert!(again.status.success(), "{}", text(&again));
    assert!(text(&again).contains("it ended for a restart"), "{}", text(&again));
    Ok(())
}

/// Where not all may write, and one is held, all is as somebody wants it: `up` says so, and shows what can be shown.
#[test]
fn up_writes_where_it_may_and_does_not_wait_for_who_is_held() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let dir = Path::new("/var/tmp").join(format!("lockstep-up-held-{}", std::process::id()));
    let up = Up { dir, port: free_ports(40)? };
    let first = up.run("up")?;
    assert!(first.status.success(), "{}", text(&first));
    up.client("n1")?.query("SET GLOBAL wsrep_provider_options = 'commit.policy=semisync'")?;
    let weak = up.run("up")?;
    assert!(weak.status.success(), "{}", text(&weak));
    assert!(text(&weak).contains("may write under semisync"), "{}", text(&weak));
    up.client("n2")?.query("SET GLOBAL wsrep_provider_options = 'apply.paused=yes'")?;
    // Once while all run, which gives it something that it does not get; and once after a stop.
    for _ in 0..2 {
        let held = up.run("up")?;
        assert!(held.status.success(), "{}", text(&held));
        assert!(
            text(&held).contains("n2 is held back by apply.paused (set while it ran)"),
            "{}",
            text(&held)
        );
        assert!(!text(&held).contains("does not vote"), "{}", text(&held));
        let down = up.run("down")?;
        assert!(down.status.success(), "{}", text(&down));
    }
    // One that was made a read replica stays one, and that is said each time.
    let file = up.dir.join("n3.cnf");
    let edited = std::fs::read_to_string(&file).unwrap_or_default();
    let edited = edited.replace("wsrep_provider_options=\"", "wsrep_provider_options=\"member.vote=no;");
    std::fs::write(&file, &edited).expect("n3.cnf can be written");
    for _ in 0..2 {
        let learner = up.run("up")?;
        assert!(learner.status.success(), "{}", text(&learner));
        assert!(text(&learner).contains("n3 does not vote: "), "{}", text(&learner));
    }
    Ok(())
}

/// Foreign files stay untouched, and a refusal leaves nothing behind.
#[test]
fn up_takes_no_folder_that_it_has_not_made() -> Test {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let _alone = alone();
    let root = Path::new("/var/tmp").join(format!("lockstep-up-foreign-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    let (foreign, closed) = (root.join("foreign"), root.join("closed"));
    for dir in [&foreign, &closed] {
        std::fs::create_dir_all(dir).expect("a folder of root's");
    }
    std::fs::write(foreign.join("precious"), "x").expect("a file");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("its mode");
    let port = free_ports(40)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).expect("a port that is free");
    let refused = |dir: &Path, due: &str| {
        let up = Up { dir: dir.to_owned(), port };
        let (said, stopped) = (up.run("up"), up.run("down"));
        // Its drop would remove the folder.
        std::mem::forget(up);
        let (said, stopped) = (said.expect("it runs"), stopped.expect("it runs"));
        assert!(!said.status.success() && text(&said).contains(due), "{}: {}", dir.display(), text(&said));
        assert!(!text(&said).contains("rm -r"), "{}", text(&said));
        assert!(!stopped.status.success(), "{}", text(&stopped));
    };
    refused(&foreign, "`up` did not create it: nothing was changed");
    refused(&closed.join("c"), &format!("may not enter {}", closed.display()));
    refused(&root.join("with space"), "letters, digits");
    refused(&root.join("above/new"), &format!("port {port} of loopback"));
    drop(listener);
    let left: Vec<String> = std::fs::read_dir(&root)
        .expect("it")
        .flatten()
        .map(|f| f.file_name().to_string_lossy().into())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
    let owner = std::fs::metadata(&foreign).expect("it").uid();
    assert_eq!((owner, std::fs::read_dir(&foreign).expect("it").count()), (0, 1));
    assert_eq!(std::fs::read_dir(&closed).expect("it").count(), 0);
    let _ = std::fs::remove_dir_all(&root);
    Ok(())
}
