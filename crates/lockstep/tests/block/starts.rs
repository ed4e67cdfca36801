//! Starts at the same moment, without a majority, and with a copy of a branch that was left.

use super::*;
use std::process::Output;

/// `block serve --new` in a directory of its own, with this socket.
fn founder(dir: &Path, name: &str, socket: &Path) -> Command {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = lockstep();
    command.args(["block", "serve", "--group", "disk", "--name", "n1", "--new", "--size", "16M"]);
    command.args(["--options", &format!("gmcast.listen_addr=tcp://127.0.0.1:{port}")]);
    command.args(["--listen", &format!("unix:{}", socket.display())]).arg("--dir").arg(dir.join(name));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Starts both at once. Returns the one that goes on, and the output of the other one.
fn race(mut commands: [Command; 2]) -> (Child, Output) {
    let [mut one, mut other] = commands.each_mut().map(|command| command.spawn().unwrap());
    let end = Instant::now() + PATIENCE;
    loop {
        if other.try_wait().unwrap().is_some() {
            return (one, other.wait_with_output().unwrap());
        }
        if one.try_wait().unwrap().is_some() {
            return (other, one.wait_with_output().unwrap());
        }
        assert!(Instant::now() < end, "both go on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Attaches as soon as the device has its size.
fn attach_in_time(socket: &Path) -> Client {
    let end = Instant::now() + PATIENCE;
    loop {
        match Client::attach(socket, "disk") {
            Ok(client) => return client,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn second_start_at_one_socket_or_directory_is_refused() {
    let dir = std::env::temp_dir().join(format!("lockstep-block-twice-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let socket = dir.join("nbd");
    let (mut first, refused) = race(["a", "b"].map(|name| founder(&dir, name, &socket)));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("another server listens there") && text.contains("--listen"), "{text}");
    attach_in_time(&socket).detach();
    // A third one, later.
    let late = founder(&dir, "c", &socket).output().unwrap();
    let text = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && text.contains("another server listens there"), "{text}");
    attach_in_time(&socket).detach();
    first.kill().unwrap();
    first.wait().unwrap();
    // One directory, and two sockets.
    let sockets = [dir.join("nbd1"), dir.join("nbd2")];
    let [one, other] = sockets.each_ref().map(|socket| founder(&dir, "d", socket));
    let (mut first, refused) = race([one, other]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("another process uses") && text.contains("--dir"), "{text}");
    let socket = sockets.iter().find(|socket| socket.exists()).expect("the first one's");
    attach_in_time(socket).detach();
    let mut status = lockstep();
    let status = status.args(["block", "status", "--dir"]).arg(dir.join("d")).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    first.kill().unwrap();
    first.wait().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn restart_without_majority_tells_clients_log_and_status_why() {
    let mut group = Group::new("alone", 3, false, "c");
    let mut client = group.attach(0, "disk");
    client.write(0, &[1; SECTOR]).unwrap();
    client.detach();
    (0..3).for_each(|at| group.kill(at));
    let before = std::fs::read_to_string(group.dir.join("n1.log")).unwrap().len();
    group.start(0);
    group.until("the status says why", |group| {
        group.block(0, &["status"]).is_ok_and(|text| {
            text.contains("clients are refused until this member has joined") && text.contains("n2")
        })
    });
    group.until("the log says why", |group| {
        let text = std::fs::read_to_string(group.dir.join("n1.log")).unwrap();
        text[before..].contains("clients of the device are refused until this member has joined: no majority")
    });
    let began = Instant::now();
    let text = Client::attach(&group.socket(0), "disk").err().expect("no majority").to_string();
    assert!(text.contains("no majority") && text.contains("not connected: n"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let text = group.block(0, &["promote"]).unwrap_err();
    assert!(text.contains("no majority"), "{text}");
    group.start(1);
    group.until("it has joined", |group| {
        group.status(0).is_some_and(|status| status["waits_for"].is_null() && status["live"] == true)
    });
    let mut client = group.attach(0, "disk");
    assert_eq!(client.read(0, 1).unwrap(), [1]);
    client.detach();
}

/// `lockstep bootstrap` on this member, once it misses the others.
fn go_on_alone(group: &Group, at: usize) {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut command = lockstep();
        command.args(["bootstrap", "--socket"]).arg(group.member(at).join("lockstep.sock"));
        let output = command.output().unwrap();
        // Before it misses them, the command does nothing.
        if String::from_utf8_lossy(&output.stdout).contains("goes on alone") {
            return;
        }
        assert!(Instant::now() < end, "{}", String::from_utf8_lossy(&output.stderr));
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn removed_member_keeps_its_name_in_status_and_log() {
    let mut group = Group::new("names", 2, false, "c");
    let mut client = group.attach(1, "disk");
    client.write(0, &[1; SECTOR]).unwrap();
    client.flush().unwrap();
    group.settle();
    let id = {
        let mut command = lockstep();
        command.args(["status", "--json", "--socket"]).arg(group.member(1).join("lockstep.sock"));
        let status: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        status["self"]["id"].as_str().unwrap().to_owned()
    };
    group.kill(1);
    go_on_alone(&group, 0);
    group.until("the branch is live", |group| group.status(0).is_some_and(|status| status["live"] == true));
    let shown = group.block(0, &["status"]).unwrap();
    assert!(shown.contains("attached to n2") && !shown.contains(&id), "{shown}");
    let refused =
        Client::attach(&group.socket(0), "disk").err().expect("n2's client may come back").to_string();
    assert!(refused.contains("attached to n2"), "{refused}");
    group.promote(0);
    let text = std::fs::read_to_string(group.dir.join("n1.log")).unwrap();
    let (_, later) = text.split_once("goes on alone").expect("the log has the command's result");
    assert!(later.contains("n1 was promoted in epoch 2") && !later.contains(&id), "{later}");
}

#[test]
fn copy_of_a_branch_that_was_left_needs_its_operator_once() {
    let mut group = Group::new("branch", 2, false, "c");
    let mut client = group.attach(0, "disk");
    client.write(0, &[1; SECTOR]).unwrap();
    client.flush().unwrap();
    // Without a position, the copy would count as empty.
    group.settle();
    group.kill(1);
    go_on_alone(&group, 0);
    let name = group.promote(0);
    drop(client);
    let mut client = group.attach(0, &name);
    client.write(SECTOR as u64, &[2; SECTOR]).unwrap();
    client.flush().unwrap();
    // As a supervisor does: again, until the exit code forbids it.
    let mut starts = 0;
    let code = loop {
        group.start(1);
        starts += 1;
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = group.processes[1].as_mut().unwrap().try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < end, "it goes on\n{}", group.logs());
            std::thread::sleep(Duration::from_millis(50));
        };
        match status.code() {
            Some(1) if starts < 5 => {}
            code => break code,
        }
    };
    assert_eq!(code, Some(78), "after {starts} starts\n{}", group.logs());
    let text = std::fs::read_to_string(group.dir.join("n2.log")).unwrap();
    let (_, command) = text.rsplit_once("take them once: ").expect(&text);
    let command = command.lines().next().unwrap();
    assert!(command.ends_with(" --resync") && !command.contains("--new"), "{command}");
    // The command of the log, as it is.
    let shell = Command::new("/bin/sh").args(["-c", &format!("exec {command}")]).spawn().unwrap();
    group.processes[1] = Some(shell);
    group.until("the copy is whole", |group| {
        group.status(1).is_some_and(|status| status["resync"].is_null() && status["seqno"].as_i64() > Some(0))
    });
    group.kill(1);
    group.start(1);
    client.detach();
    group.assert_equal_copies();
    let mut client = group.attach(1, "disk");
    assert_eq!(client.read(0, SECTOR + 1).unwrap()[SECTOR - 1..], [1, 2]);
    client.detach();
}
