//! Load from sysbench, the program that published figures of this family are made with.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_local::{LocalError, Result, find_program, prefixed, run_to_end};

/// The database that holds sysbench's tables.
pub const SYSBENCH_DATABASE: &str = "sbtest";

/// sysbench, and the tables that it is to work on.
#[derive(Debug, Clone)]
pub struct Sysbench {
    program: PathBuf,
    /// How many tables.
    pub tables: u32,
    /// How many rows each has at first.
    pub rows: u32,
    /// Further options of every run, as sysbench takes them.
    pub extra: Vec<String>,
    /// Runs (not the filling of tables) are in this network namespace, and connect to this host and port as the account
    /// `far` in place of sockets.
    pub far: Option<(String, String, u16)>,
    /// The processors that it may use, as taskset takes them (`1-3,5`); none for all.
    pub processors: Option<String>,
}

/// How many transactions took how long: milliseconds, in sysbench's steps, and the number of those.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram(pub Vec<(f64, u64)>);

impl Histogram {
    /// What so many of 100 stayed below, in milliseconds; `None` where there were none.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let all: u64 = self.0.iter().map(|(_, count)| count).sum();
        let wanted = (all as f64 * percent / 100.0).ceil() as u64;
        let mut seen = 0;
        self.0.iter().find(|(_, count)| (seen += count, seen >= wanted).1).map(|(ms, _)| *ms)
    }

    /// The standard deviation of a transaction's time, in milliseconds.
    pub fn deviation(&self) -> Option<f64> {
        let all: u64 = self.0.iter().map(|(_, count)| count).sum();
        if all == 0 {
            return None;
        }
        let mean_of = |of: &dyn Fn(f64) -> f64| {
            self.0.iter().map(|(ms, count)| of(*ms) * *count as f64).sum::<f64>() / all as f64
        };
        let mean = mean_of(&|ms| ms);
        Some(mean_of(&|ms| (ms - mean).powi(2)).sqrt())
    }
}

/// The results of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// Transactions that committed.
    pub transactions: u64,
    /// Those per second.
    pub per_second: f64,
    /// Statements that read and those that write, per second, without those that begin and end transactions.
    pub requests_per_second: f64,
    /// The fastest transaction, in milliseconds.
    pub min_ms: f64,
    /// How long one took on average, in milliseconds.
    pub avg_ms: f64,
    /// What 95 of 100 stayed below, in milliseconds.
    pub p95_ms: f64,
    /// The slowest, in milliseconds.
    pub max_ms: f64,
    /// Errors that were passed over: lost conflicts, which were tried again.
    pub errors: u64,
}

impl Load {
    /// Errors that were passed over, per second.
    pub fn errors_per_second(&self) -> f64 {
        if self.transactions == 0 {
            return 0.0;
        }
        self.errors as f64 * self.per_second / self.transactions as f64
    }
}

impl Sysbench {
    /// Finds the program. Says what to install if there is none.
    pub fn find() -> Result<Sysbench> {
        let program = find_program("sysbench").ok_or_else(|| LocalError::Missing {
            what: "the program sysbench".into(),
            hint: "run scripts/setup.sh test (Debian: apt-get install sysbench)".into(),
        })?;
        Ok(Sysbench { program, tables: 1, rows: 10_000, extra: Vec::new(), far: None, processors: None })
    }

    /// Its version, as it says it.
    pub fn version(&self) -> Result<String> {
        Ok(run_to_end(Command::new(&self.program).arg("--version"))?.trim().to_owned())
    }

    /// An error if there is no test of this name, or if it is not one that works on the tables of [`Sysbench::prepare`].
    pub fn check(&self, script: &str) -> Result<()> {
        let known = script.starts_with("oltp_")
            && run_to_end(Command::new(&self.program).args([script, "help"])).is_ok();
        if known {
            return Ok(());
        }
        Err(LocalError::Value(format!(
            "sysbench has no test `{script}`: one of its oltp_ tests is wanted, such as oltp_update_index or \
             oltp_write_only"
        )))
    }

    /// The program behind these words, on its processors.
    fn program(&self, words: &[&str]) -> Command {
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        if let Some(processors) = &self.processors {
            words.extend(["taskset".into(), "-c".into(), processors.clone()]);
        }
        prefixed(&words, &self.program)
    }

    /// `sockets` are the servers' to connect to; threads take turns among them.
    fn command(&self, script: &str, sockets: &[&Path], threads: u32) -> Command {
        let sockets: Vec<String> = sockets.iter().map(|s| s.display().to_string()).collect();
        let mut command = self.program(&[]);
        command
            .arg(script)
            .args(["--mysql-user=root".into(), format!("--mysql-socket={}", sockets.join(","))]);
        self.with_tables(command, threads)
    }

    /// A run's, from wherever it is.
    fn run_command(&self, script: &str, sockets: &[&Path], threads: u32) -> Command {
        let Some((namespace, host, port)) = &self.far else { return self.command(script, sockets, threads) };
        let mut command = self.program(&["ip", "netns", "exec", namespace]);
        command.arg(script).args([
            "--mysql-user=far".into(),
            format!("--mysql-host={host}"),
            format!("--mysql-port={port}"),
        ]);
        self.with_tables(command, threads)
    }

    fn with_tables(&self, mut command: Command, threads: u32) -> Command {
        command
            .arg(format!("--tables={}", self.tables))
            .arg(format!("--table-size={}", self.rows))
            .arg(format!("--threads={threads}"))
            .arg(format!("--mysql-db={SYSBENCH_DATABASE}"))
            // In a cluster the server strides auto-increment: the tables would hold ids 1, 4, 7, ..., and two of
            // three updates would hit no row and replicate nothing.
            .arg("--auto-inc=off")
            .args(&self.extra);
        command
    }

    /// A query with one value: row counts and checksums of all tables.
    pub(crate) fn rows_as_one_value(&self) -> String {
        let table = |number| {
            format!(
                "(SELECT CONCAT(COUNT(*), '/', SUM(k), '/', SUM(CRC32(c))) FROM {SYSBENCH_DATABASE}.sbtest{number})"
            )
        };
        let tables: Vec<String> = (1..=self.tables).map(table).collect();
        format!("SELECT CONCAT_WS(' ', {})", tables.join(", "))
    }

    /// Makes and fills the tables. The database must exist.
    pub fn prepare(&self, script: &str, socket: &Path) -> Result<()> {
        run_to_end(self.command(script, &[socket], self.tables.min(2)).arg("prepare")).map(|_| ())
    }

    /// Runs `script` (`oltp_update_index`, ...) for a time.
    pub fn run(&self, script: &str, sockets: &[&Path], threads: u32, time: Duration) -> Result<Load> {
        self.run_and_read(script, sockets, threads, time, &[]).map(|(load, _)| load)
    }

    /// The same, and how many transactions took how long.
    pub fn run_with_histogram(
        &self,
        script: &str,
        sockets: &[&Path],
        threads: u32,
        time: Duration,
    ) -> Result<(Load, Histogram)> {
        let (load, text) = self.run_and_read(script, sockets, threads, time, &["--histogram=on"])?;
        Ok((load, histogram(&text)))
    }

    fn run_and_read(
        &self,
        script: &str,
        sockets: &[&Path],
        threads: u32,
        time: Duration,
        options: &[&str],
    ) -> Result<(Load, String)> {
        let mut command = self.run_command(script, sockets, threads);
        command.args([format!("--time={}", time.as_secs().max(1)), "--percentile=95".into()]);
        let text = run_to_end(command.args(options).arg("run"))?;
        match parse(&text) {
            Some(load) => Ok((load, text)),
            None => Err(LocalError::Command {
                command: format!("{command:?}"),
                output: format!("(its report could not be read)\n{text}"),
            }),
        }
    }
}

/// Reads the lines `   1.234 |*****     56`.
fn histogram(text: &str) -> Histogram {
    let line = |line: &str| {
        let (value, rest) = line.split_once('|')?;
        Some((
            value.trim().parse().ok()?,
            rest.split_whitespace().last()?.trim_start_matches('*').parse().ok()?,
        ))
    };
    Histogram(text.lines().filter_map(line).collect())
}

/// Reads the report at the end of a run.
fn parse(text: &str) -> Option<Load> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    let number = |name: &str| field(name)?.split_whitespace().next()?.parse::<f64>().ok();
    let counted = field("transactions:")?;
    let (transactions, rate) = counted.split_once('(')?;
    let seconds: f64 = field("total time:")?.trim_end_matches('s').parse().ok()?;
    Some(Load {
        transactions: transactions.trim().parse().ok()?,
        per_second: rate.split_whitespace().next()?.parse().ok()?,
        requests_per_second: (number("read:")? + number("write:")?) / seconds,
        min_ms: number("min:")?,
        avg_ms: number("avg:")?,
        p95_ms: number("95th percentile:")?,
        max_ms: number("max:")?,
        errors: number("ignored errors:")? as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_deviation_are_those_of_what_was_counted() {
        let histogram = Histogram(vec![(1.0, 50), (2.0, 45), (9.0, 5)]);
        let seen = [1.0, 50.0, 51.0, 95.0, 96.0, 100.0].map(|p| histogram.percentile(p));
        assert_eq!(seen, [1.0, 1.0, 2.0, 2.0, 9.0, 9.0].map(Some));
        // 0.5 * 0.85^2 + 0.45 * 0.15^2 + 0.05 * 7.15^2, of a mean of 1.85.
        assert!((histogram.deviation().unwrap() - 1.711).abs() < 0.001, "{histogram:?}");
        assert_eq!((Histogram(Vec::new()).percentile(50.0), Histogram(Vec::new()).deviation()), (None, None));
    }

    #[test]
    fn report_is_parsed() {
        let text = "
SQL statistics:
    queries performed:
        read:                            1400
        write:                           905
        other:                           2
        total:                           2307
    transactions:                        2305   (384.01 per sec.)
    queries:                             2307   (384.34 per sec.)
    ignored errors:                      2      (0.33 per sec.)
    reconnects:                          0      (0.00 per sec.)

General statistics:
    total time:                          6.0000s
    total number of events:              2305

Latency (ms):
         min:                                    1.05
         avg:                                   10.41
         max:                                   48.88
         95th percentile:                       20.37
         sum:                                23995.02
";
        let due = Load {
            transactions: 2305,
            per_second: 384.01,
            requests_per_second: 2305.0 / 6.0,
            min_ms: 1.05,
            avg_ms: 10.41,
            p95_ms: 20.37,
            max_ms: 48.88,
            errors: 2,
        };
        assert_eq!(parse(text), Some(due));
        assert_eq!(parse("FATAL: no such table"), None);
    }

    #[test]
    fn histogram_is_parsed() {
        let text = "
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.052 |**                                       12
       1.234 |**************************************** 345
       9.910 |                                         1

SQL statistics:
";
        assert_eq!(histogram(text), Histogram(vec![(0.052, 12), (1.234, 345), (9.91, 1)]));
        assert_eq!(histogram(""), Histogram::default());
    }
}
