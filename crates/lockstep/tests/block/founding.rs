//! Messages of `block serve` before and after it founds a group.

use super::*;
use std::os::unix::net::UnixListener;

/// A member that founds a group, in a directory of its own.
struct Founder {
    dir: PathBuf,
    process: Option<Child>,
}

impl Founder {
    fn new(name: &str) -> Founder {
        let dir = std::env::temp_dir().join(format!("lockstep-block-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Founder { dir, process: None }
    }

    fn member(&self) -> PathBuf {
        self.dir.join("member")
    }

    fn command(&self, listen: &str, more: &[&str]) -> Command {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = lockstep();
        command.args(["block", "serve", "--group", "disk", "--name", "n1", "--new", "--listen", listen]);
        command.args(["--options", &format!("gmcast.listen_addr=tcp://127.0.0.1:{port}")]).args(more);
        command.arg("--dir").arg(self.member()).stdin(Stdio::null());
        command
    }

    /// The error of a start that is refused at once.
    fn refused(&self, listen: &str) -> String {
        let output = self.command(listen, &["--size", "16M"]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    fn until(&self, what: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.text().contains(what) {
            assert!(Instant::now() < end, "not in time: {what}\n{}", self.text());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Founder {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

#[test]
fn place_that_cannot_be_taken_ends_the_start_before_founding() {
    let founder = Founder::new("places");
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = held.local_addr().unwrap().to_string();
    let text = founder.refused(&format!("tcp:{used}"));
    assert!(text.contains(&used) && text.contains("in use") && text.contains("--listen"), "{text}");
    let path = founder.dir.join("nbd");
    let listener = UnixListener::bind(&path).unwrap();
    let text = founder.refused(&format!("unix:{}", path.display()));
    assert!(text.contains("another server listens there"), "{text}");
    drop(listener);
    let text = founder.refused(&format!("unix:{}", founder.dir.join("x".repeat(120)).display()));
    assert!(text.contains("at most"), "{text}");
    let text = founder.refused("unix:/proc/nobody/may/write/here");
    assert!(text.contains("cannot listen at /proc"), "{text}");
    assert_eq!(std::fs::read_dir(founder.member()).unwrap().count(), 0, "nothing is founded or written");
    // A directory whose own sockets would have too long paths.
    let long = founder.dir.join("d".repeat(110));
    let output = lockstep()
        .args(["block", "serve", "--group", "disk", "--new", "--listen", "tcp:127.0.0.1:0", "--dir"])
        .arg(&long)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("shorter --dir") && !long.exists(), "{text}");
}

#[test]
fn founding_warns_of_a_second_group_and_of_a_missing_size() {
    let mut founder = Founder::new("founding");
    let listen = format!("unix:{}", founder.dir.join("nbd").display());
    let log = founder.dir.join("log");
    let mut command = founder.command(&listen, &["--log", log.to_str().unwrap()]);
    founder.process = Some(command.spawn().unwrap());
    founder.until("this is a second group");
    founder.until("serves the export disk");
    let text = founder.text();
    let size = text.find("--new is given without --size").expect(&text);
    assert!(size < text.find("a new cluster begins").unwrap(), "it is said at once\n{text}");
    let advice = format!("lockstep block resize --dir {} --size SIZE", founder.member().display());
    assert!(text.contains(&advice), "{text}");
    let refused = Client::attach(&founder.dir.join("nbd"), "disk").err().unwrap().to_string();
    assert!(refused.contains("no size"), "{refused}");
    let resize = |size: &str| {
        let mut command = lockstep();
        command.args(["block", "resize", "--size", size, "--dir"]).arg(founder.member());
        command.output().unwrap()
    };
    let end = Instant::now() + PATIENCE;
    while !resize("16M").status.success() {
        assert!(Instant::now() < end, "{}", founder.text());
        std::thread::sleep(Duration::from_millis(100));
    }
    Client::attach(&founder.dir.join("nbd"), "disk").unwrap().detach();
    let mut process = founder.process.take().unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    // The next start neither founds nor warns.
    std::fs::remove_file(&log).unwrap();
    let mut command = founder.command(&listen, &["--log", log.to_str().unwrap()]);
    founder.process = Some(command.spawn().unwrap());
    founder.until("serves the export disk");
    assert!(!founder.text().contains("--new"), "{}", founder.text());
}
