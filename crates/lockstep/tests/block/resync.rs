//! Copies of the device from another member.

use super::*;
use std::net::TcpStream;

/// Logs are short, so that a member that was away needs a copy.
const SHORT: &str = "log.size=1M; log.segment=1M; log.max_size=2M; log.keep_min=0s";
const CHUNK: usize = 64 << 10;
const SIZE: usize = 16 << 20;
/// A write of the load.
const LOAD: usize = 16 << 10;

/// Bytes that differ from chunk to chunk and from round to round.
fn chunk(at: usize, round: usize) -> Vec<u8> {
    (0..CHUNK).map(|byte| (byte * 31 + at * 7 + round * 13) as u8 | 1).collect()
}

/// Writes and flushes these chunks.
fn fill(client: &mut Client, chunks: std::ops::Range<usize>, round: usize) {
    for at in chunks {
        client.write((at * CHUNK) as u64, &chunk(at, round)).unwrap();
    }
    client.flush().unwrap();
}

impl Group {
    fn text(&self, at: usize) -> String {
        std::fs::read_to_string(self.dir.join(format!("n{}.log", at + 1))).unwrap_or_default()
    }

    fn log_bases(&self, at: usize) -> Option<i64> {
        let socket = self.member(at).join("lockstep.sock");
        let output = lockstep().args(["status", "--json", "--socket"]).arg(socket).output().ok()?;
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        status["log"]["first_seqno"].as_i64()
    }

    fn resync(&self, at: usize) -> serde_json::Value {
        self.status(at).map_or(serde_json::Value::Null, |status| status["resync"].clone())
    }

    fn until_whole(&self, at: usize) {
        self.until("the copy is whole", |group| {
            group.status(at).is_some_and(|status| {
                status["resync"].is_null()
                    && status["waits_for"].is_null()
                    && status["seqno"].as_i64() > Some(0)
            })
        });
    }

    /// A copy begins at this member.
    fn until_copying(&self, at: usize) {
        self.until("a copy runs", |group| {
            let resync = group.resync(at);
            resync["state"] == "copying" && resync["done_bytes"].as_u64() > Some(1 << 20)
        });
    }

    /// Writes until no log reaches back to this seqno.
    fn write_until_trimmed(&self, client: &mut Client, seqno: i64, members: &[usize]) {
        let end = Instant::now() + PATIENCE;
        let mut round = 100;
        while !members.iter().all(|at| self.log_bases(*at).is_some_and(|first| first > seqno + 1)) {
            assert!(Instant::now() < end, "logs are not trimmed\n{}", self.logs());
            fill(client, 0..32, round);
            round += 1;
        }
    }

    fn seqno(&self, at: usize) -> i64 {
        self.status(at).and_then(|status| status["seqno"].as_i64()).unwrap()
    }
}

#[test]
fn member_away_longer_than_the_log_copies_what_differs() {
    let mut group = Group::with("away", 3, true, "c", 16, SHORT, |_| Vec::new());
    let mut client = group.attach(0, "disk");
    fill(&mut client, 0..200, 0);
    group.assert_equal_copies();
    let seqno = group.seqno(1);
    group.kill(1);
    group.write_until_trimmed(&mut client, seqno, &[0, 2]);
    group.start(1);
    group.until_whole(1);
    fill(&mut client, 50..51, 1);
    client.detach();
    group.assert_equal_copies();
    let text = group.text(0);
    let sent =
        text.lines().find(|line| line.contains("has sent the device to n2")).expect("n1 was the donor");
    // 32 chunks of 64 KiB were written.
    assert!(sent.contains("16 of 16 MiB compared, 2 MiB sent"), "{sent}");
    let mut client = group.attach(1, "disk");
    assert_eq!(client.read(0, CHUNK).unwrap().len(), CHUNK);
    assert_eq!(client.read(50 * CHUNK as u64, CHUNK).unwrap(), chunk(50, 1));
    client.detach();
}

#[test]
fn new_member_copies_the_device_under_load() {
    let mut group = Group::with("joins", 3, true, "c", 16, SHORT, |_| vec!["--resync-rate=1M".into()]);
    let mut client = group.attach(0, "disk");
    fill(&mut client, 32..256, 0);
    let seqno = group.seqno(1);
    group.kill(1);
    std::fs::remove_dir_all(group.member(1)).unwrap();
    group.write_until_trimmed(&mut client, seqno, &[0, 2]);
    group.start(1);
    group.until("the joiner listens", |group| group.text(1).contains("which connects to"));
    // Strangers at its port: garbage, another protocol, and silence.
    let text = group.text(1);
    let place = text.split("which connects to ").nth(1).unwrap();
    let place = place[..place.find(": ").unwrap()].to_owned();
    let mut strangers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&place).unwrap()).collect();
    strangers[0].write_all(&[0xff; 4096]).unwrap();
    strangers[1].write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut model = Model::new(0);
    let load = std::thread::spawn(move || {
        let mut writes = 0;
        let end = Instant::now() + Duration::from_secs(8);
        while Instant::now() < end {
            // The logs of the others are trimmed several times meanwhile.
            let at = model.below(SIZE / LOAD);
            client.write((at * LOAD) as u64, &[writes as u8 | 1; LOAD]).unwrap();
            client.flush().unwrap();
            writes += 1;
        }
        (client, writes)
    });
    group.until_copying(1);
    let refused = Client::attach(&group.socket(1), "disk").err().unwrap().to_string();
    assert!(refused.contains("not whole") && refused.contains("n1 sends"), "{refused}");
    let refused = group.block(1, &["promote", "--force"]).unwrap_err();
    assert!(refused.contains("not whole"), "{refused}");
    let shown = group.block(1, &["status"]).unwrap();
    assert!(shown.contains("takes the device from n1"), "{shown}");
    assert!(shown.contains("copy is not whole yet") && !shown.contains("no majority"), "{shown}");
    let text = group.text(1);
    let refused = "clients of the device are refused until this member has joined";
    assert!(text.contains(refused) && !text.contains("no majority"), "{text}");
    assert!(group.block(0, &["status"]).unwrap().contains("sends the device to n2"));
    let (client, writes) = load.join().unwrap();
    assert!(writes > 10, "clients go on: {writes}");
    group.until_whole(1);
    drop(strangers);
    client.detach();
    group.assert_equal_copies();
    assert!(
        group.text(1).contains("a token") || group.text(1).contains("has not ended"),
        "strangers are reported"
    );
}

#[test]
fn killed_joiner_and_killed_donor_end_in_a_whole_copy() {
    let mut group = Group::with("killed", 3, false, "c", 16, SHORT, |_| vec!["--resync-rate=1M".into()]);
    let mut client = group.attach(0, "disk");
    fill(&mut client, 32..256, 0);
    let seqno = group.seqno(2);
    // It keeps its directory, and with it its vote: a majority is left when the donor is killed.
    group.kill(2);
    fill(&mut client, 32..256, 1);
    group.write_until_trimmed(&mut client, seqno, &[0, 1]);
    group.start(2);
    group.until_copying(2);
    group.kill(2);
    group.start(2);
    group.until_copying(2);
    let donor = group.resync(2)["with"].as_str().unwrap().to_owned();
    assert_eq!(donor, "n2", "the leader donates only if nobody else does");
    group.kill(1);
    group.until("another donor sends", |group| {
        let resync = group.resync(2);
        resync.is_null() || resync["with"] == "n1" || resync["state"] == "until"
    });
    group.until_whole(2);
    fill(&mut client, 3..4, 5);
    client.detach();
    group.start(1);
    group.assert_equal_copies();
}

#[test]
fn copy_is_given_up_on_request_unless_it_is_the_only_one() {
    let mut group = Group::new("repair", 3, true, "c");
    let mut client = group.attach(0, "disk");
    fill(&mut client, 0..200, 0);
    group.assert_equal_copies();
    group.kill(1);
    // The disk has damaged a sector, and a hole.
    use std::os::unix::fs::FileExt;
    let image = std::fs::OpenOptions::new().write(true).open(group.member(1).join("device.img")).unwrap();
    image.write_all_at(&[9; SECTOR], 777_216).unwrap();
    image.write_all_at(&[9; SECTOR], 15 << 20).unwrap();
    group.more = vec!["--resync".into()];
    group.start(1);
    group.until_whole(1);
    client.detach();
    group.assert_equal_copies();
    assert!(group.text(0).contains("16 of 16 MiB compared, 0 MiB sent"), "{}", group.logs());
    // The first member alone: its arguments have --new.
    let mut sole = Group::new("sole", 1, false, "c");
    let dir = sole.member(0);
    let mut client = sole.attach(0, "disk");
    fill(&mut client, 0..8, 3);
    client.detach();
    sole.assert_equal_copies();
    sole.kill(0);
    let before = std::fs::read(dir.join("device.state")).unwrap();
    let address = format!("gcomm://127.0.0.1:{}", sole.ports[0]);
    let options = format!("gmcast.listen_addr=tcp://127.0.0.1:{}", sole.ports[0]);
    let listen = format!("unix:{}", sole.socket(0).display());
    let output = lockstep()
        .args(["block", "serve", "--resync", "--group", "disk", "--name", "n1", "--listen", &listen])
        .args(["--address", &address, "--options", &options, "--dir"])
        .arg(&dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("no other member"), "{text}");
    assert_eq!(std::fs::read(dir.join("device.state")).unwrap(), before, "nothing is given up");
    sole.start(0);
    sole.until("it is back", |group| group.status(0).is_some());
    let mut client = sole.attach(0, "disk");
    assert_eq!(client.read(0, CHUNK).unwrap(), chunk(0, 3));
    client.detach();
}

/// The options of members that use TLS, with a new authority in this directory.
fn tls_options(dir: &Path) -> String {
    let output = lockstep()
        .args(["cert", "--name", "member", "--san", "127.0.0.1", "--dir"])
        .arg(dir.join("tls"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let file = |name: &str| dir.join("tls").join(name).display().to_string();
    format!(
        "{SHORT}; socket.ssl_cert={}; socket.ssl_key={}; socket.ssl_ca={}",
        file("member-cert.pem"),
        file("member-key.pem"),
        file("ca.pem")
    )
}

#[test]
fn device_is_copied_over_tls_and_strangers_are_refused() {
    let dir = std::env::temp_dir().join(format!("lockstep-block-tls-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let options = tls_options(&dir);
    let mut group = Group::inside(dir, 3, true, "c", 16, &options, |_| vec!["--resync-rate=1M".into()]);
    let mut client = group.attach(0, "disk");
    fill(&mut client, 32..256, 0);
    group.assert_equal_copies();
    let seqno = group.seqno(1);
    group.kill(1);
    fill(&mut client, 64..192, 1);
    group.write_until_trimmed(&mut client, seqno, &[0, 2]);
    group.start(1);
    group.until("the joiner listens", |group| group.text(1).contains("which connects to"));
    let text = group.text(1);
    let place = text.split("which connects to ").nth(1).unwrap();
    let place = &place[..place.find(": ").unwrap()];
    // A greeting without TLS is answered by an alert of TLS, and not by the protocol of copies.
    let mut stranger = TcpStream::connect(place).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    stranger.write_all(&[0x47; 64]).unwrap();
    let mut alert = [0; 2];
    stranger.read_exact(&mut alert).unwrap();
    assert_eq!(alert, [21, 3]);
    // A connection with TLS, but without a certificate of the group.
    let output = Command::new("openssl")
        .args(["s_client", "-connect", place, "-ign_eof"])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => assert!(
            String::from_utf8_lossy(&output.stderr).contains("certificate required"),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(why) => eprintln!("NOT TESTED: a stranger with TLS: openssl: {why}"),
    }
    group.until_copying(1);
    assert_eq!(group.resync(1)["with"], "n1");
    group.until_whole(1);
    fill(&mut client, 50..51, 2);
    client.detach();
    group.assert_equal_copies();
    assert!(group.text(0).contains("has sent the device to n2: 16 of 16 MiB compared"), "{}", group.logs());
    let mut client = group.attach(1, "disk");
    assert_eq!(client.read(50 * CHUNK as u64, CHUNK).unwrap(), chunk(50, 2));
    assert_eq!(client.read(100 * CHUNK as u64, CHUNK).unwrap(), chunk(100, 1));
    client.detach();
}
