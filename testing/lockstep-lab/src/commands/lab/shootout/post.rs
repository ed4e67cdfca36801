//! The measurements of the post, for comparison.

use crate::shootout::{READ_ONLY, READ_WRITE, Setup};

use super::super::numbers::{number, text};
use super::super::page::{Section, Table};
use super::super::results::Results;
use super::{stat, times};

/// Numbers of threads of the post.
const POST_THREADS: [u64; 5] = [16, 64, 128, 256, 512];

/// A measurement of the post.
struct Post {
    what: &'static str,
    /// Our set-up that comes next to it, and the load.
    ours: (&'static str, &'static str),
    rates: [f64; 5],
    /// Shortest, average, 95 %; milliseconds.
    times: [[f64; 5]; 3],
}

const POST: [Post; 9] = [
    Post {
        what: "read-only, MySQL 5.1, ext3, pool of 110 GB",
        ours: ("ext4", READ_ONLY),
        rates: [21594.87, 21958.1, 21523.31, 18025.68, 14843.1],
        times: [
            [2.25, 2.59, 2.96, 4.21, 4.52],
            [10.35, 40.72, 82.8, 197.65, 468.77],
            [30.87, 125.14, 290.02, 581.86, 3183.94],
        ],
    },
    Post {
        what: "read-write, MySQL 5.1, ext3, pool of 110 GB",
        ours: ("ext4", READ_WRITE),
        rates: [1373.22, 1574.03, 1639.68, 1573.17, 1535.2],
        times: [
            [22.0, 64.37, 49.69, 118.66, 398.51],
            [221.26, 770.39, 1474.64, 3058.74, 6192.28],
            [447.92, 1389.09, 2543.69, 4448.12, 7943.08],
        ],
    },
    Post {
        what: "the same on a replicated block device",
        ours: ("device-c-ext4", READ_WRITE),
        rates: [4373.21, 4988.45, 4737.18, 4824.21, 4226.01],
        times: [
            [11.74, 33.03, 49.46, 63.92, 26.86],
            [69.47, 243.24, 511.0, 1000.3, 2250.76],
            [150.57, 1576.52, 1006.58, 1841.04, 4997.43],
        ],
    },
    Post {
        what: "read-write, MySQL 5.1, ext3, pool of 64 GB",
        ours: ("ext4-small-pool", READ_WRITE),
        rates: [7918.81, 8402.72, 8309.01, 8193.7, 7352.08],
        times: [
            [4.3, 6.74, 13.41, 13.07, 12.99],
            [38.36, 144.67, 292.54, 592.96, 1320.0],
            [54.19, 269.84, 569.79, 1175.77, 2240.49],
        ],
    },
    Post {
        what: "MySQL 5.5, XFS, pool of 64 GB",
        ours: ("xfs-small-pool", READ_WRITE),
        rates: [10610.73, 14221.56, 14365.29, 14724.68, 14997.44],
        times: [
            [5.11, 5.73, 5.96, 6.12, 6.29],
            [28.64, 85.47, 169.22, 330.04, 647.68],
            [49.77, 119.97, 274.48, 513.73, 930.94],
        ],
    },
    Post {
        what: "MySQL 5.5, XFS, pool of 110 GB",
        ours: ("xfs", READ_WRITE),
        rates: [10580.58, 14235.42, 14536.82, 14818.83, 14990.36],
        times: [
            [4.98, 5.99, 5.95, 5.95, 6.4],
            [28.72, 85.39, 167.23, 327.94, 647.92],
            [49.08, 116.71, 263.85, 502.03, 930.66],
        ],
    },
    Post {
        what: "the same, semi-sync",
        ours: ("mariadb-semi-sync", READ_WRITE),
        rates: [12573.71, 13187.09, 13670.54, 13670.37, 13589.85],
        times: [
            [5.73, 10.19, 8.6, 7.7, 9.52],
            [24.17, 92.19, 177.85, 355.63, 715.17],
            [33.2, 168.2, 378.45, 649.23, 1068.05],
        ],
    },
    Post {
        what: "the same, semi-sync, sync_binlog=0",
        ours: ("mariadb-semi-sync-binlog-0", READ_WRITE),
        rates: [23735.92, 27532.15, 27186.83, 24936.92, 20302.11],
        times: [
            [4.87, 7.66, 6.91, 8.63, 14.59],
            [12.8, 44.15, 89.43, 194.98, 478.89],
            [17.02, 78.5, 232.12, 487.51, 1009.0],
        ],
    },
    Post {
        what: "the same, no replication, no binlog",
        ours: ("no-binlog", READ_WRITE),
        rates: [25684.13, 29220.39, 28514.72, 25194.63, 20562.35],
        times: [
            [4.15, 5.07, 5.19, 7.19, 7.23],
            [11.82, 41.6, 85.26, 193.0, 472.8],
            [15.12, 77.89, 196.41, 528.71, 1039.35],
        ],
    },
];

/// The post's figures, each with ours below, for those numbers of threads that were chosen here, too; none if none was.
pub(super) fn beside_the_post(results: &Results, threads: &[u64]) -> Vec<Section> {
    let shared: Vec<(usize, u64)> =
        POST_THREADS.into_iter().enumerate().filter(|(_, count)| threads.contains(count)).collect();
    if shared.is_empty() {
        return Vec::new();
    }
    let table =
        |what: &str, theirs: &dyn Fn(&Post, usize) -> String, ours: &dyn Fn(&str, &str, u64) -> String| {
            let mut head = vec![what.to_owned()];
            head.extend(shared.iter().map(|(_, count)| count.to_string()));
            let mut table = Table { head, rows: Vec::new() };
            for post in &POST {
                let cells = shared.iter().map(|(at, _)| theirs(post, *at));
                table.row(std::iter::once(post.what.to_owned()).chain(cells));
                let (name, script) = post.ours;
                let what = Setup::of_name(name).map_or(name, Setup::what);
                let cells = shared.iter().map(|(_, count)| ours(name, script, *count));
                table.row(std::iter::once(format!("    here: {what}")).chain(cells));
            }
            table
        };
    let rates =
        table("requests/s by threads", &|post, at| number(post.rates[at]), &|setup, script, count| {
            text(stat(results, setup, script, count, "requests_per_s"))
        });
    let latencies = table(
        "ms by threads: shortest / average / 95 %",
        &|post, at| post.times.map(|times| number(times[at])).join(" / "),
        &|setup, script, count| times(results, setup, script, count),
    );
    vec![
        Section {
            heading: "The post's figures, and ours".into(),
            text: "The post's server had 8 cores, 132 GB of memory, six disks behind a controller whose cache made flushes cheap, \
                   and a table of 10 million rows. What can be compared are the ratios of rows, not the rates."
                .into(),
            table: rates,
            ..Section::default()
        },
        Section { heading: "The post's times, and ours".into(), table: latencies, ..Section::default() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn post_figures_precede_ours() {
        let results = super::super::tests::results(&Setup::EACH);
        let sections = beside_the_post(&results, &[16, 64]);
        let (rates, times) = (&sections[0], &sections[1]);
        let at = rates.table.rows.iter().position(|row| row[0] == "the same, semi-sync").unwrap();
        assert_eq!(rates.table.head[1..], ["16", "64"]);
        assert_eq!(rates.table.rows[at][1..], ["12\u{202f}574", "13\u{202f}187"]);
        assert_eq!(rates.table.rows[at + 1], ["    here: MariaDB semi-sync", "1800", "1800"]);
        assert!(beside_the_post(&results, &[8]).is_empty());
        assert_eq!(times.table.rows[at][1], "5.73 / 24.2 / 33.2");
        assert_eq!(times.table.rows[at + 1][1], "1.50 / 12.5 / 20.0");
        for post in &POST {
            assert!(Setup::of_name(post.ours.0).is_some(), "{}", post.what);
        }
    }
}
