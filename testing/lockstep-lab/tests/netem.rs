//! The lines made of the kernel's netem, on machines whose kernel has none: all that the lab does for them, with a stand-in for
//! `tc` first in `PATH` that asks the kernel for a plain queue instead (`stand_in/tc.sh`); and the very commands, given to the
//! real `tc`, which reads them before it asks the kernel.
//!
//! Each test runs itself once more, as a process whose `PATH` is another: which namespaces it makes, and so each word of the
//! commands, is known then.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_lab::wan::{Counters, Kind, Link, Settings, Wan, is_possible};

const TC: &str = include_str!("stand_in/tc.sh");
/// Names the stand-in's folder in the process that a test runs itself in; or is empty, where that has the real `tc`.
const FOLDER: &str = "LOCKSTEP_TEST_STAND_IN";
/// What a kernel without netem says.
const UNKNOWN: &str = "Error: Specified qdisc kind is unknown.";

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The folder of a stand-in; deleted when dropped.
struct StandIn(PathBuf);

impl StandIn {
    fn new(test: &str) -> StandIn {
        let dir = std::env::temp_dir().join(format!("lockstep-tc-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("tc"), TC).unwrap();
        std::fs::set_permissions(dir.join("tc"), std::fs::Permissions::from_mode(0o755)).unwrap();
        StandIn(dir)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the test of this name, `body`, in a process of its own that has `PATH` begin with a stand-in, or be `path`.
fn run_apart(test: &str, path: Option<&str>, body: impl FnOnce(&Path)) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return body(Path::new(&folder));
    }
    let real = ["/usr/sbin/tc", "/usr/bin/tc", "/sbin/tc"].iter().any(|tc| Path::new(tc).exists());
    if !is_possible() || !real {
        eprintln!("NOT TESTED: no network namespaces or no tc here");
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    let stand_in = StandIn::new(test);
    match path {
        Some(path) => command.env("PATH", path).env(FOLDER, ""),
        None => {
            let path = std::env::var("PATH").unwrap();
            command.env("PATH", format!("{}:{path}", stand_in.0.display())).env(FOLDER, &stand_in.0)
        }
    };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    eprintln!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// The stand-in's calls since the last query, with `@` for the prefix of our namespaces.
fn calls(folder: &Path) -> Vec<String> {
    let file = folder.join("calls");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    text.replace(&format!("lockstep-{}-", std::process::id()), "@").lines().map(str::to_owned).collect()
}

fn refuse(folder: &Path, which: &str) {
    std::fs::write(folder.join("refused"), which).unwrap();
}

/// Namespaces of this process.
fn namespaces() -> usize {
    let ours = format!("lockstep-{}-", std::process::id());
    let all = std::fs::read_dir("/run/netns").unwrap().flatten();
    all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&ours)).count()
}

/// A line whose directions differ in everything.
fn link() -> Link {
    let mut link = Link::of_round_trip(0, 1, Duration::from_micros(85_501));
    link.back.jitter = ms(4);
    link.back.loss = 0.0125;
    link.back.rate = Some(12_000_000);
    link.back.queue = 15_000;
    link
}

#[test]
fn each_direction_gets_its_words_and_all_of_it_goes_in_the_end() {
    run_apart("each_direction_gets_its_words_and_all_of_it_goes_in_the_end", None, |folder| {
        let mut wan = Wan::of(Kind::Netem, &[2, 1], &[link()]).unwrap();
        // The third namespace is for the question whether there is netem. Half of the way each; a tc that truncates to its
        // clock's ticks (64 ns) shortens no way by as much as a packet takes through the kernel.
        let none = "loss random 0% rate 0bit";
        assert_eq!(
            calls(folder),
            [
                "-n @2-hub qdisc add dev lo root netem delay 1000us".to_owned(),
                format!("-n @0-hub qdisc add dev wan1 root netem limit 32768 delay 42750.5us 0us {none}"),
                // 46.8 ms of 12 Mbit/s are 46.8 packets of 1500 bytes, and ten may wait.
                "-n @1-hub qdisc add dev wan0 root netem limit 57 delay 42750.5us 4000us loss random 1.25% rate 12000000bit -14"
                    .to_owned(),
            ]
        );

        // Omitted settings would keep their values in the kernel, so the command repeats all.
        wan.set(1, 0, Settings::of_delay(ms(10))).unwrap();
        assert_eq!(
            calls(folder),
            [format!("-n @1-hub qdisc change dev wan0 root netem limit 32768 delay 10000us 0us {none}")]
        );
        let said = wan.set(0, 2, Settings::of_delay(ms(10))).unwrap_err().to_string();
        assert_eq!(said, "there is no line from zone 0 to zone 2");
        assert_eq!(calls(folder), [""; 0]);

        // A line that does not delay is noticed, and its packets are counted: four there, four back.
        wan.count_anew().unwrap();
        let said = wan.set_round_trip(0, 1, Duration::from_micros(90_001)).unwrap_err().to_string();
        assert!(said.starts_with("the line was to take 90.001ms there and back, and takes "), "{said}");
        let (there, back) = (wan.counters(0, 1).unwrap(), wan.counters(1, 0).unwrap());
        for counters in [there, back] {
            let Counters { delivered, delivered_bytes, dropped, taken, .. } = counters;
            // Besides them there may be some with which the kernel asks for addresses.
            assert!((4..=40).contains(&delivered) && delivered_bytes >= 4 * 29, "{counters:?}");
            assert_eq!((dropped, taken), (0, delivered));
        }
        wan.count_anew().unwrap();
        assert!(wan.counters(0, 1).unwrap().delivered < 4);
        let show = |zone: usize| format!("-n @{zone}-hub -s qdisc show dev wan{}", 1 - zone);
        let change = |zone: usize, delay: &str| {
            let dev = 1 - zone;
            format!(
                "-n @{zone}-hub qdisc change dev wan{dev} root netem limit 32768 delay {delay}us 0us {none}"
            )
        };
        assert_eq!(
            calls(folder),
            [
                show(0),
                show(1),
                change(0, "45000.5"),
                change(1, "45000.5"),
                show(0),
                show(1),
                show(0),
                show(1),
                show(0),
            ]
        );
        assert_eq!(wan.strays(), (0, 0));

        // The queues go with their devices, and those with their namespaces.
        assert_eq!(namespaces(), 5);
        drop(wan);
        assert_eq!(namespaces(), 0);
        assert_eq!(calls(folder), [""; 0]);
    });
}

#[test]
fn missing_netem_is_detected() {
    run_apart("missing_netem_is_detected", None, |folder| {
        assert_eq!(Kind::of_this_machine(), (Kind::Netem, None));
        Kind::Netem.check().unwrap();
        refuse(folder, "all");
        let why = format!("the kernel has no netem: {UNKNOWN}");
        assert_eq!(Kind::of_this_machine(), (Kind::Own, Some(why.clone())));
        assert_eq!(Kind::Netem.check().unwrap_err().to_string(), why);
        let said = Wan::of(Kind::Netem, &[1, 1], &[link()]).unwrap_err().to_string();
        assert_eq!(said, why);
        Kind::Own.check().unwrap();
        let asked = calls(folder);
        assert_eq!(asked.len(), 5);
        assert!(asked.iter().all(|call| call.ends_with("-hub qdisc add dev lo root netem delay 1000us")));
        assert_eq!(namespaces(), 0);
    });
}

#[test]
fn late_queue_failure_is_error_and_cleans_up() {
    run_apart("late_queue_failure_is_error_and_cleans_up", None, |folder| {
        refuse(folder, "3 7");
        let said = Wan::of(Kind::Netem, &[1, 1], &[link()]).unwrap_err().to_string();
        // The command, and its result.
        assert!(
            said.contains(r#""dev" "wan0" "root" "netem" "limit" "57""#) && said.contains(UNKNOWN),
            "{said}"
        );
        assert_eq!(namespaces(), 0);
        let wan = Wan::of(Kind::Netem, &[1, 1], &[link()]).unwrap();
        let said = wan.set_round_trip(0, 1, ms(40)).unwrap_err().to_string();
        assert!(said.contains(r#""change""#) && said.contains(UNKNOWN), "{said}");
        drop(wan);
        assert_eq!((namespaces(), calls(folder).len()), (0, 7));
    });
}

/// Debian's `su` leaves a PATH without sbin, where tc is.
#[test]
fn tc_is_found_where_the_path_has_no_sbin() {
    run_apart("tc_is_found_where_the_path_has_no_sbin", Some("/usr/bin:/bin"), |_| {
        let (kind, why) = Kind::of_this_machine();
        let refused = format!("the kernel has no netem: {UNKNOWN}");
        assert!(kind == Kind::Netem || why == Some(refused), "{why:?}");
    });
}

/// Runs each kind of command with the real `tc`: it succeeds if the kernel has netem, and otherwise the kernel refuses it.
/// `tc` itself reports a command that it does not understand.
#[test]
fn real_tc_accepts_each_command() {
    let test = "real_tc_accepts_each_command";
    run_apart(test, None, |folder| {
        // Each command of the lab, from the calls of the stand-in.
        let mut wan = Wan::of(Kind::Netem, &[1, 1], &[link()]).unwrap();
        wan.set(0, 1, link().back).unwrap();
        wan.counters(0, 1).unwrap();
        let said = calls(folder);
        let words: Vec<Vec<String>> = said
            .iter()
            .map(|call| call.replace('@', &format!("lockstep-{}-", std::process::id())))
            .map(|call| call.split(' ').map(str::to_owned).collect())
            .collect();
        assert_eq!(words.len(), 5);
        let path = std::env::var("PATH").unwrap();
        let path = path.strip_prefix(&format!("{}:", folder.display())).unwrap();
        let tc = |words: &[String]| {
            let output = Command::new("tc")
                .env("PATH", format!("{path}:/usr/sbin:/sbin"))
                .args(words)
                .output()
                .unwrap();
            (output.status.success(), String::from_utf8_lossy(&output.stderr).trim().to_owned())
        };
        // The namespace for the question is gone; the queues of the stand-in are to go, for the real ones to come.
        let zones = &words[1..];
        for add in &zones[..2] {
            let device = [&add[..2], &["qdisc", "del", "dev", &add[5], "root"].map(str::to_owned)].concat();
            assert_eq!(tc(&device), (true, String::new()));
        }
        for words in zones {
            let (done, said) = tc(words);
            let kernels = [UNKNOWN, "Error: Qdisc not found."];
            let refused = !done && kernels.iter().any(|text| said.starts_with(text));
            eprintln!("tc {}: {}", words.join(" "), if done { "done" } else { &said });
            assert!(done || refused, "{said}");
            // A kernel with netem accepts all of them.
            let has = tc(&words_of(&format!("-n {} qdisc replace dev hub root netem delay 1ms", words[1]))).0;
            assert!(done == has || words.contains(&"show".to_owned()), "{said}");
        }
        // Counter-check: `tc` itself refuses an unknown word.
        let mut wrong = zones[0].clone();
        wrong.push("quickly".into());
        let (done, said) = tc(&wrong);
        assert!(!done && said.starts_with("What is \"quickly\"?"), "{said}");
        let (done, said) = tc(&words_of(&zones[0].join(" ").replace("42750.5us", "42750.5parsec")));
        assert!(!done && said.contains("Illegal \"latency\""), "{said}");
        drop(wan);
    });
}

fn words_of(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}
