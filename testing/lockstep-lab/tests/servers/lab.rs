//! The lab's experiments show what they are to show, on a few samples, and the command makes a report of them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lockstep_lab::semi_sync_wan::{Run, Setup, Spec, run};
use lockstep_local::LocalError;

use crate::fixture::{GALERA, Test, alone, built, has_networks, provider};

fn spec() -> Spec {
    Spec {
        provider: provider(),
        galera: GALERA.into(),
        lockstep: Some(built("lockstep")),
        round_trip: Duration::from_micros(85_500),
        inserts: 30,
        far_inserts: 5,
        clients: vec![16],
        window: Duration::from_secs(1),
    }
}

fn measure(setup: Setup) -> Result<Run, LocalError> {
    let run = run(setup, &spec())?;
    let rates: Vec<String> = run.loads.iter().map(|load| format!("{:.1}", load.rate())).collect();
    eprintln!("{} ({}): {} inserts/s", setup.what(), run.version, rates.join(", "));
    Ok(run)
}

fn fastest(run: &Run) -> Duration {
    Duration::from_nanos(run.loads[0].connections[0].inserts.iter().min().copied().unwrap_or(0))
}

#[test]
fn far_replica_costs_round_trip_only_under_semisync() -> Test {
    let _alone = alone();
    let rtt = spec().round_trip;
    let far = fastest(&measure(Setup::MariadbSemiSync)?);
    assert!(far >= rtt, "{far:?} for a commit that the far replica has acknowledged");
    let near = fastest(&measure(Setup::Quorum)?);
    assert!(near < rtt / 2, "{near:?} for a commit that needs near members only");
    Ok(())
}

#[test]
fn near_arbitrator_acks_in_place_of_far_member() -> Test {
    let _alone = alone();
    let rtt = spec().round_trip;
    let arbitrated = fastest(&measure(Setup::SemiSyncArbitrator)?);
    assert!(arbitrated < rtt / 2, "{arbitrated:?} for a commit that the near arbitrator has acknowledged");
    let two = measure(Setup::SemiSyncTwo)?;
    assert!(
        fastest(&two) >= rtt,
        "{:?} for a commit that only the far member can acknowledge",
        fastest(&two)
    );
    // In turns it would be 11 or 12 in all.
    let together = two.loads[1].rate();
    assert!(together > 100.0, "{together:.1} inserts/s of 16 connections");
    Ok(())
}

#[test]
fn command_writes_report_and_resumes() -> Test {
    let _alone = alone();
    if !has_networks() {
        return Ok(());
    }
    let dir = std::env::temp_dir().join(format!("lockstep-lab-{}", std::process::id()));
    let lab = |rest: &[&str]| -> Result<(bool, String), LocalError> {
        let mut command = Command::new(built("lockstep"));
        command.arg("lab").args(rest).current_dir("/");
        let output =
            command.output().map_err(|source| LocalError::Io { what: "run lockstep".into(), source })?;
        let text = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
    };
    let out = dir.display().to_string();
    let run = ["semi-sync-wan", "--quick", "--setups", "alone", "--out", &out];
    let (sound, text) = lab(&run)?;
    assert!(sound && text.contains(Setup::Alone.what()) && text.contains("report.html"), "{text}");
    let kept = |name: &str| std::fs::read(Path::new(&out).join(name)).unwrap_or_default();
    let runs = kept("runs.jsonl");
    assert!(String::from_utf8_lossy(&kept("report.html")).contains("</html>"));
    assert!(text.contains("1 repeat, no deviation."), "{text}");
    assert!(!kept("config/alone-near.cnf").is_empty());
    let variables = String::from_utf8_lossy(&kept("config/alone-near.variables")).into_owned();
    assert!(variables.contains("\ninnodb_flush_log_at_trx_commit=0\n"), "{variables}");

    let (sound, text) = lab(&run)?;
    assert!(!sound && text.contains("--resume"), "{text}");
    let (sound, text) = lab(&[&run[..], &["--resume"]].concat())?;
    assert!(sound && text.contains("1 of 1 runs are taken over"), "{text}");
    let (sound, text) = lab(&[&run[..], &["--resume", "--rtt", "10"]].concat())?;
    assert!(!sound && text.contains("round_trip_ms was 85.5, and is 10.0 now"), "{text}");
    // As if the folder came from elsewhere.
    let about = String::from_utf8_lossy(&kept("run.json")).replace("\"kernel\": \"", "\"kernel\": \"0.1-");
    assert!(about.contains("\"mariadb\": \"1"), "{about}");
    std::fs::write(Path::new(&out).join("run.json"), about)
        .map_err(|source| LocalError::Io { what: "write run.json".into(), source })?;
    let (sound, text) = lab(&[&run[..], &["--resume"]].concat())?;
    assert!(!sound && text.contains("kernel was 0.1-") && text.contains("--mixed"), "{text}");
    let (sound, text) = lab(&[&run[..], &["--resume", "--mixed"]].concat())?;
    assert!(sound && text.contains("These results are mixed") && text.contains("kernel was 0.1-"), "{text}");
    let report = kept("report.html");
    let (sound, text) = lab(&["report", &out])?;
    assert!(sound && kept("report.html") == report && kept("runs.jsonl") == runs, "{text}");
    let _ = std::fs::remove_dir_all(&dir);

    // The report still lists missing runs.
    let run = ["semi-sync-wan", "--quick", "--setups", "galera", "--galera", "/none.so", "--out", &out];
    let (sound, text) = lab(&run)?;
    assert!(!sound && text.contains("there is no /none.so") && text.contains("not measured"), "{text}");
    let report = kept("report.html");
    assert!(String::from_utf8_lossy(&report).contains("there is no /none.so"));
    let (sound, text) = lab(&["report", &out])?;
    assert!(!sound && text.contains("not everything was measured:"), "{text}");
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}
