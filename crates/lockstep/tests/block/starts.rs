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
fn second_start_at_one_socket_or_directory_leaves_the_first_alone() {
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
