//! The claims of the lab, and their upper bounds.

use crate::shootout::{READ_WRITE, UPDATE_INDEX};
use serde_json::Value;

use super::super::page::{Claims, Section, ratio};
use super::super::results::Results;
use super::{PURGED_RATE, lasting};

/// For each load that writes, and each number of threads.
pub(super) fn claims(results: &Results, threads: &[u64]) -> Section {
    let mut claims = Claims::new("claim, requests/s");
    let slow = results.about["parameters"]["slow_disk_adds_ms"].as_u64().unwrap_or(0);
    for (script, count) in
        [READ_WRITE, UPDATE_INDEX].iter().flat_map(|s| threads.iter().map(move |c| (*s, *c)))
    {
        let chosen = |m: &Value| m["script"] == script && m["threads"] == count;
        let rate = |setup| results.median(setup, "requests_per_s", chosen);
        let kept_up = |setup| lasting::kept_up_by(results, setup, chosen);
        let ours = rate("lockstep-semisync-innodb-0");
        let (flushing, alone) = (rate("mariadb-semi-sync"), rate("no-binlog-innodb-0"));
        claims.at_least(
            format!("{script}, {count} threads: semisync, InnoDB 0, against MariaDB semi-sync that flushes its binlog"),
            2.0,
            ratio(ours.clone(), flushing.clone()),
        );
        claims.told(
            "the same, both with the time until the copy has it all and nothing is left to purge: what they keep up",
            ratio(kept_up("lockstep-semisync-innodb-0"), kept_up("mariadb-semi-sync")),
        );
        claims.told(
            "what could be had at most: that server with no copy and no binlog against it",
            ratio(alone.clone(), flushing.clone()),
        );
        claims.told(
            "what could be had at most by a wsrep provider: one that costs nothing but a wait of 0.3 ms against it",
            ratio(rate("floor-innodb-0"), flushing),
        );
        let purged = |setup| results.median(setup, PURGED_RATE, chosen);
        claims.told(
            "the same, both with the time in which they purge what they have left",
            ratio(purged("floor-innodb-0"), purged("mariadb-semi-sync")),
        );
        for (what, rival) in [
            (
                "MariaDB semi-sync, InnoDB 0, that flushes its binlog as ours its log",
                rate("mariadb-semi-sync-innodb-0"),
            ),
            ("MariaDB semi-sync that flushes nothing", rate("mariadb-semi-sync-both-0")),
            ("Galera, InnoDB 0", rate("galera-innodb-0")),
            ("the same server with no copy and no binlog", alone),
        ] {
            claims.told(format!("ours against {what}"), ratio(ours.clone(), rival));
        }
        claims.at_least(
            format!("the same where a flush takes {slow} ms more: ours against MariaDB semi-sync"),
            2.0,
            ratio(rate("lockstep-semisync-innodb-0-slow-disk"), rate("mariadb-semi-sync-slow-disk")),
        );
        claims.told(
            "and of what they keep up there",
            ratio(kept_up("lockstep-semisync-innodb-0-slow-disk"), kept_up("mariadb-semi-sync-slow-disk")),
        );
    }
    claims.section(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::shootout::tests::results;
    use crate::shootout::Setup;

    #[test]
    fn claims_are_judged_by_what_was_measured() {
        let rows = claims(&results(&Setup::EACH), &[16, 64]).table.rows;
        let verdicts: Vec<(&str, &str)> = rows.iter().map(|row| (row[2].as_str(), row[3].as_str())).collect();
        // The load lasts a third of a second and a whole one; until all is purged takes one more, the copy less.
        let told = [[("1.50", "")].as_slice(), &[("1.00", ""); 3], &[("3.00", ""); 4]].concat();
        let slow = [("3.00", "met"), ("1.50", ""), ("1.00", "MISSED")];
        assert_eq!(verdicts[..12], [&[("3.00", "met")][..], &told[..], &slow[..]].concat());
        let rows = claims(&results(&Setup::EACH[..1]), &[16]).table.rows;
        assert!(rows.iter().all(|row| row[2] == "not measured" && row[3].contains("not chosen")), "{rows:?}");
    }
}
