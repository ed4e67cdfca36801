//! `lockstep binlog restore`: writes the transactions between a backup and a point in time to binlog files.

use super::target::open_target;
use clap::Args;
use lockstep_binlog::Gtid as BinlogGtid;
use lockstep_binlog::archive::{Head, Mark, Restored, Store, Target, clock_text, read_head, restore};
use lockstep_local::say;
use lockstep_node::Until;
use lockstep_node::core::{Gtid, Uuid};
use lockstep_node::options::Options;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The files in which `mariadb-backup` notes the position of a member.
const BACKUP_FILES: [&str; 2] = ["xtrabackup_galera_info", "mariadb_backup_galera_info"];

/// How many statements that failed are listed.
const FAILED_SHOWN: usize = 10;
/// How many characters of a statement are shown.
const STATEMENT_SHOWN: usize = 200;

#[derive(Args, Debug, Default, Clone)]
pub(crate) struct RestoreArgs {
    /// The archive: a directory, or s3://BUCKET/PREFIX with credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
    #[arg(long, value_name = "DIR|URL")]
    from: String,
    /// The last transaction: a GTID (1-482660751-1234), a seqno, a time in UTC as for apply.until
    /// ("2030-01-31 23:59:59.5"), or latest.
    #[arg(long, value_name = "GTID|TIME|latest")]
    to: String,
    /// The last transaction that the data have already: a GTID, a seqno, or UUID:SEQNO.
    #[arg(long, value_name = "GTID", required_unless_present = "backup", conflicts_with = "backup")]
    after: Option<String>,
    /// Take that position from a copy that mariadb-backup made.
    #[arg(long, value_name = "DIR")]
    backup: Option<PathBuf>,
    /// Write the binlog files to this directory, which must have none.
    #[arg(long, value_name = "DIR")]
    into: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl RestoreArgs {
    /// Whether to print JSON.
    pub(super) fn wants_json(&self) -> bool {
        self.json
    }
}

pub(super) fn run(args: RestoreArgs) -> Result<ExitCode, String> {
    let store = open_target(&args.from, false)?;
    let head = read_head(store.as_ref()).map_err(|e| e.to_string())?;
    let head = head.ok_or_else(|| format!("there is no archive in {}", store.name()))?;
    let to = target_of(&args.to, &head, &store.name())?;
    let after = match (&args.after, &args.backup) {
        (_, Some(dir)) => position_of(&position_in(dir)?, &head, &store.name())?,
        (Some(text), None) => position_of(text, &head, &store.name())?,
        (None, None) => return Err("give --after or --backup".into()),
    };
    eprintln!("reading the archive in {} after GTID {}", store.name(), head.gtid(after));
    let restored = restore(store.as_ref(), after, to, &args.into, &mut |found| {
        eprintln!("{}: {} bytes, up to {}", found.file, found.bytes, clock_text(found.complete.clock));
    });
    let restored = restored.map_err(|e| e.to_string())?;
    match args.json {
        true => say(&as_json(&restored, &head, &args.into).to_string()),
        false => report(&restored, &head, &args.into),
    }
    Ok(ExitCode::SUCCESS)
}

/// The result for programs.
fn as_json(restored: &Restored, head: &Head, into: &Path) -> Value {
    let mark =
        |mark: Mark| json!({ "gtid": head.gtid(mark.seqno).to_string(), "time": clock_text(mark.clock) });
    let failed = restored.failed.iter();
    let failed = failed.map(|(seqno, code)| json!({ "gtid": head.gtid(*seqno).to_string(), "error": code }));
    let by_hand = restored.by_hand.iter().map(
        |of| json!({ "gtid": head.gtid(of.seqno).to_string(), "error": of.code, "statement": of.statement }),
    );
    json!({
        "ok": true,
        "transactions": restored.groups,
        "last": restored.last.map(mark),
        "left_out": restored.next.map(mark),
        "complete": mark(restored.complete),
        "files": restored.files.iter().map(|file| into.join(file).display().to_string()).collect::<Vec<_>>(),
        "failed": failed.collect::<Vec<_>>(),
        "by_hand": by_hand.collect::<Vec<_>>(),
    })
}

fn report(restored: &Restored, head: &Head, into: &Path) {
    let Some(last) = restored.last else {
        println!("no transaction lies between the two: the data are those of that point in time already");
        return;
    };
    println!("transactions  {}", restored.groups);
    println!("last          {}  {}", head.gtid(last.seqno), clock_text(last.clock));
    match restored.next {
        Some(next) => {
            println!("left out      {} and later ones  {}", head.gtid(next.seqno), clock_text(next.clock))
        }
        None => println!("left out      none"),
    }
    for (seqno, code) in restored.failed.iter().take(FAILED_SHOWN) {
        let gtid = head.gtid(*seqno);
        println!("failed        {gtid} failed with error {code} on the cluster's servers, and does again");
    }
    if restored.failed.len() > FAILED_SHOWN {
        println!("failed        {} more statements", restored.failed.len() - FAILED_SHOWN);
    }
    for statement in &restored.by_hand {
        let text: String = statement.statement.split_whitespace().collect::<Vec<_>>().join(" ");
        println!(
            "by hand       {} failed with error {} on the cluster's servers, and is left out. Compare the objects that it \
             names: {}",
            head.gtid(statement.seqno),
            statement.code,
            text.chars().take(STATEMENT_SHOWN).collect::<String>()
        );
    }
    println!(
        "apply         mariadb-binlog {}/{}.* | mariadb --max-allowed-packet=1G",
        into.display(),
        head.files
    );
}

/// The position in a copy that `mariadb-backup` made: `UUID:SEQNO`, and perhaps a domain.
fn position_in(dir: &Path) -> Result<String, String> {
    for name in BACKUP_FILES {
        match std::fs::read_to_string(dir.join(name)) {
            Ok(text) => return Ok(text.split_whitespace().next().unwrap_or_default().to_owned()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{} cannot be read: {e}", dir.join(name).display())),
        }
    }
    Err(format!(
        "{} has neither {} nor {}: make the copy on a member, with mariadb-backup --galera-info",
        dir.display(),
        BACKUP_FILES[0],
        BACKUP_FILES[1]
    ))
}

fn position_of(text: &str, head: &Head, store: &str) -> Result<u64, String> {
    match target_of(text, head, store)? {
        Target::Seqno(seqno) => Ok(seqno),
        _ => Err(format!("'{text}' is no position: give a GTID, a seqno, or UUID:SEQNO")),
    }
}

fn target_of(text: &str, head: &Head, store: &str) -> Result<Target, String> {
    if text.eq_ignore_ascii_case("latest") {
        return Ok(Target::Latest);
    }
    if let Ok(gtid) = text.parse::<BinlogGtid>() {
        let own = head.gtid(gtid.seqno);
        return match gtid == own {
            true => Ok(Target::Seqno(gtid.seqno)),
            false => Err(format!(
                "{gtid} is no GTID of the archive in {store}, whose GTIDs are {}-{}-…",
                own.domain, own.server
            )),
        };
    }
    let parsed = Options::parse(&format!("apply.until = {text}"));
    let until =
        parsed.ok().filter(|_| !text.contains(';')).and_then(|options| options.tuning().apply_hold.until);
    match until {
        Some(Until::Seqno(seqno)) => Ok(Target::Seqno(seqno as u64)),
        Some(Until::Gtid(Gtid { uuid, seqno })) => of_history(uuid, seqno, head, store),
        Some(Until::Time(time)) => Ok(Target::Time(time)),
        None => Err(format!(
            "'{text}' is no GTID such as {}, no seqno, no UUID:SEQNO and no time such as '2030-01-31 23:59:59'",
            head.gtid(1234)
        )),
    }
}

fn of_history(uuid: Uuid, seqno: i64, head: &Head, store: &str) -> Result<Target, String> {
    match uuid == head.history {
        true => Ok(Target::Seqno(seqno as u64)),
        false => Err(format!(
            "{uuid}:{seqno} is of another history than the archive in {store}, which is of {}",
            head.history
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let history = Uuid([7; 16]);
        Head { files: "bin".into(), history, domain: 1, server: 5 }
    }

    #[test]
    fn targets_are_gtids_seqnos_and_times() {
        let of = |text: &str| target_of(text, &head(), "here");
        assert_eq!(of("1-5-9"), Ok(Target::Seqno(9)));
        assert_eq!(of("9"), Ok(Target::Seqno(9)));
        assert_eq!(of(&format!("{}:9", Uuid([7; 16]))), Ok(Target::Seqno(9)));
        assert_eq!(of("2030-03-17 17:46:40.5"), Ok(Target::Time(1_900_000_000_500_000)));
        assert_eq!(of("latest"), Ok(Target::Latest));
        assert!(of("1-6-9").unwrap_err().contains("1-5-"));
        assert!(of(&format!("{}:9", Uuid([8; 16]))).unwrap_err().contains("another history"));
        for wrong in ["", "yesterday", "none", "5; log.size=1", "-3"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(position_of("2030-03-17 17:46:40", &head(), "here").is_err());
    }

    #[test]
    fn result_is_json_with_gtids_and_times() {
        let mark = |seqno| Mark { seqno, clock: 1_900_000_000_500_000 };
        let restored = Restored {
            files: vec!["bin.000001".into()],
            groups: 7,
            last: Some(mark(9)),
            next: None,
            complete: mark(12),
            failed: vec![(8, 1051)],
            by_hand: Vec::new(),
        };
        let found = as_json(&restored, &head(), Path::new("/into"));
        let expected = json!({ "ok": true, "transactions": 7, "files": ["/into/bin.000001"], "left_out": null,
            "last": { "gtid": "1-5-9", "time": clock_text(1_900_000_000_500_000) },
            "complete": { "gtid": "1-5-12", "time": clock_text(1_900_000_000_500_000) },
            "failed": [{ "gtid": "1-5-8", "error": 1051 }], "by_hand": [] });
        assert_eq!(found, expected);
    }

    #[test]
    fn position_is_read_from_either_file_of_a_backup() {
        let dir = std::env::temp_dir().join(format!("lockstep-backup-position-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert!(position_in(&dir).unwrap_err().contains("--galera-info"));
        for name in BACKUP_FILES {
            std::fs::write(dir.join(name), format!("{}:48 0\n", Uuid([7; 16]))).unwrap();
            assert_eq!(position_of(&position_in(&dir).unwrap(), &head(), "here"), Ok(48));
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
