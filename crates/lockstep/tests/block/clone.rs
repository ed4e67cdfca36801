//! Snapshots on a file system that shares space between files.

use super::*;

/// A new XFS, in a file.
struct Xfs {
    mount: PathBuf,
    image: PathBuf,
}

impl Xfs {
    /// The error is the reason why this is not possible here.
    fn new(name: &str) -> std::result::Result<Xfs, String> {
        let mount = std::env::temp_dir().join(format!("lockstep-block-{name}-{}", std::process::id()));
        let image = mount.with_extension("xfs");
        std::fs::create_dir_all(&mount).unwrap();
        // The least size of an XFS is 300 MB. The file is sparse.
        std::fs::File::create(&image).and_then(|file| file.set_len(1 << 30)).unwrap();
        let xfs = Xfs { mount, image };
        run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&xfs.image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&xfs.image).arg(&xfs.mount))?;
        Ok(xfs)
    }
}

impl Drop for Xfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mount).output();
        let _ = std::fs::remove_dir(&self.mount);
        let _ = std::fs::remove_file(&self.image);
    }
}

/// The output of a program that succeeds.
fn run(command: &mut Command) -> std::result::Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// The bytes of a file that have their place in common with another file, as the file system says.
fn shared_bytes(path: &Path) -> u64 {
    let text = run(Command::new("filefrag").args(["-v", "-b1"]).arg(path)).unwrap();
    // "   0:        0..    4095:  1540096..  1544191:   4096:    last,shared,eof"
    let length = |line: &str| line.split(':').nth(3)?.trim().parse::<u64>().ok();
    text.lines().filter(|line| line.contains("shared")).filter_map(length).sum()
}

impl Group {
    /// A snapshot, and whether the member says that it is a clone.
    fn image(&self, at: usize, to: &Path) -> (Vec<u8>, bool) {
        let text = self.block(at, &["snapshot", "--json", "--to", to.to_str().unwrap()]).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        (std::fs::read(to).unwrap(), answer["snapshot"]["cloned"].as_bool().unwrap())
    }
}

#[test]
fn snapshot_under_load_is_a_clone_on_xfs() {
    const SECTORS: u64 = 100_000;
    /// Behind the sectors of the load.
    const FILLED: std::ops::Range<u64> = 56 << 20..64 << 20;
    let xfs = match run(Command::new("filefrag").arg("-V")).and_then(|_| Xfs::new("clone")) {
        Ok(xfs) => xfs,
        Err(why) => return eprintln!("NOT TESTED: no XFS can be made and mounted here: {why}"),
    };
    let dir = xfs.mount.join("group");
    std::fs::create_dir(&dir).unwrap();
    let group = Group::inside(dir, 3, true, "c", 64, "log.size=64M", |_| Vec::new());
    let mut client = group.attach(0, "disk");
    for at in FILLED.step_by(1 << 20) {
        client.write(at, &[(at >> 20) as u8; 1 << 20]).unwrap();
    }
    client.flush().unwrap();
    group.settle();
    let (ends, flushed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stops = Stops(&ends);
        let writer = scope.spawn(|| write_in_order(client, SECTORS, &ends, &flushed));
        let end = Instant::now() + PATIENCE;
        for round in 0.. {
            if round >= 8 && (flushed.load(Ordering::SeqCst) > 200 || Instant::now() >= end) {
                break;
            }
            let at = round % 2;
            let before = flushed.load(Ordering::SeqCst);
            let to = group.dir.join(format!("image{round}"));
            let (data, cloned) = group.image(at, &to);
            assert!(cloned, "the image was copied\n{}", group.logs());
            assert_eq!(data.len(), 64 << 20);
            let found = prefix_of(&data, SECTORS);
            assert!(found <= flushed.load(Ordering::SeqCst) + 1);
            // The other member may lag.
            assert!(at == 1 || found >= before, "{before} were flushed, and the image has {found}");
            for at in FILLED.step_by(1 << 20) {
                assert!(data[at as usize..][..1 << 20].iter().all(|byte| *byte == (at >> 20) as u8));
            }
            // Blocks without new writes stay shared.
            let shared = shared_bytes(&to);
            assert!(shared >= FILLED.end - FILLED.start, "{shared} bytes are shared");
        }
        drop(stops);
        writer.join().unwrap()
    })
    .detach();
    let last = flushed.load(Ordering::SeqCst);
    assert!(last > 200, "there was load: {last}");
    group.settle();
    let device = std::fs::read(group.member(1).join("device.img")).unwrap();
    let (clone, cloned) = group.image(1, &group.dir.join("last"));
    assert!(cloned && clone == device && prefix_of(&clone, SECTORS) == last);
    // On another file system.
    let elsewhere = xfs.mount.with_extension("copy");
    let (copy, cloned) = group.image(1, &elsewhere);
    std::fs::remove_file(&elsewhere).unwrap();
    assert!(!cloned && copy == device);
    drop(group);
}
