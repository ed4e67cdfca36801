//! The set-ups: flush settings, file systems, and replicas.

use FileSystem::{Ext4, Xfs};

/// How many log members acknowledge.
pub(super) const LOG_MEMBERS: usize = 3;

/// The copies of the single writer's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// No copies.
    Alone,
    /// A replica, by MariaDB's semi-synchronous replication.
    SemiSync,
    /// Three log members (`lockstep binlog ingest`), which keep the binlog and acknowledge it: they have no database.
    Ingest,
    /// A second copy of the disk, by `lockstep block` with this protocol. No server runs there.
    Device(&'static str),
    /// A second member of a cluster on Galera's library.
    Galera,
    /// A second member of a cluster on Lockstep, with this `commit.policy`.
    Lockstep(&'static str),
    /// Nobody; but the server does all that it does for any provider, and one answers it that costs nothing but a wait of up
    /// to 0.3 ms (lockstep-floor).
    Floor,
}

impl Kind {
    /// Whether there is a second copy of the database or of its disk, which may lag.
    pub fn is_copied(self) -> bool {
        !matches!(self, Kind::Alone | Kind::Floor | Kind::Ingest)
    }
}

/// The file system of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

/// Which set-ups run the load that only reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// All of them.
    All,
    /// Without set-ups that differ from others only in flushing: reads flush nothing.
    Distinct,
}

impl Reading {
    /// Whether this one does.
    pub fn is_by(self, setup: Setup) -> bool {
        self == Reading::All || (setup.flush && setup.binlog != Some(false) && !setup.slow_disk)
    }
}

/// A set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    name: &'static str,
    what: &'static str,
    /// The copies.
    pub kind: Kind,
    /// The file system of the data.
    pub(super) file_system: FileSystem,
    /// Whether InnoDB has the larger of the two buffer pools.
    pub(super) large_pool: bool,
    /// Whether InnoDB's log is flushed at each commit.
    pub(super) flush: bool,
    /// Whether there is a binlog, and whether that is flushed at each commit.
    pub(super) binlog: Option<bool>,
    /// Whether each flush of its servers takes longer: as on a volume in a network, or on the disks of the post's days.
    pub(super) slow_disk: bool,
}

/// On XFS and with the larger pool.
const fn of(name: &'static str, what: &'static str, kind: Kind, flush: bool, binlog: Option<bool>) -> Setup {
    Setup { name, what, kind, file_system: Xfs, large_pool: true, flush, binlog, slow_disk: false }
}

/// One server that flushes everything.
const fn alone(name: &'static str, what: &'static str, file_system: FileSystem, large_pool: bool) -> Setup {
    Setup {
        name,
        what,
        kind: Kind::Alone,
        file_system,
        large_pool,
        flush: true,
        binlog: Some(true),
        slow_disk: false,
    }
}

/// One server that flushes everything, on a replicated device.
const fn device(
    name: &'static str,
    what: &'static str,
    protocol: &'static str,
    file_system: FileSystem,
) -> Setup {
    Setup { kind: Kind::Device(protocol), ..alone(name, what, file_system, true) }
}

/// The same where each flush takes longer.
const fn slow(setup: Setup, name: &'static str, what: &'static str) -> Setup {
    Setup { name, what, slow_disk: true, ..setup }
}

const SEMI_SYNC: Setup = of("mariadb-semi-sync", "MariaDB semi-sync", Kind::SemiSync, true, Some(true));
const OURS: Setup =
    of("lockstep-semisync-innodb-0", "Lockstep semisync, InnoDB 0", Kind::Lockstep("semisync"), false, None);

/// All set-ups in the order in which they run.
const TURNS: [&str; Setup::EACH.len()] = [
    "ext4-small-pool",
    "ext4",
    "lockstep-quorum",
    "galera",
    "xfs-small-pool",
    "device-c",
    "xfs",
    "device-b",
    "device-a",
    "device-c-ext4",
    "device-b-ext4",
    "device-a-ext4",
    "lockstep-semisync",
    "mariadb-semi-sync-binlog-0",
    "xfs-binlog-0",
    "xfs-innodb-0",
    "mariadb-semi-sync",
    "mariadb-ingest",
    "lockstep-semisync-innodb-0",
    "mariadb-semi-sync-innodb-0",
    "no-binlog-innodb-0",
    "floor-innodb-0",
    "mariadb-semi-sync-both-0",
    "lockstep-quorum-innodb-0",
    "galera-innodb-0",
    "xfs-both-0",
    "no-binlog",
    "mariadb-semi-sync-slow-disk",
    "lockstep-semisync-innodb-0-slow-disk",
];

impl Setup {
    /// All of them, as tables list them.
    pub const EACH: [Setup; 29] = [
        alone("ext4-small-pool", "one server, ext4, small pool", Ext4, false),
        alone("ext4", "one server, ext4", Ext4, true),
        alone("xfs-small-pool", "one server, XFS, small pool", Xfs, false),
        alone("xfs", "one server", Xfs, true),
        of("xfs-binlog-0", "one server, sync_binlog=0", Kind::Alone, true, Some(false)),
        of("xfs-innodb-0", "one server, InnoDB 0", Kind::Alone, false, Some(true)),
        of("xfs-both-0", "one server, sync_binlog=0, InnoDB 0", Kind::Alone, false, Some(false)),
        of("no-binlog", "one server, no binlog", Kind::Alone, true, None),
        of("no-binlog-innodb-0", "one server, no binlog, InnoDB 0", Kind::Alone, false, None),
        of(
            "floor-innodb-0",
            "one server, InnoDB 0, a provider that costs nothing but 0.3 ms",
            Kind::Floor,
            false,
            None,
        ),
        SEMI_SYNC,
        of(
            "mariadb-semi-sync-binlog-0",
            "MariaDB semi-sync, sync_binlog=0",
            Kind::SemiSync,
            true,
            Some(false),
        ),
        of("mariadb-semi-sync-innodb-0", "MariaDB semi-sync, InnoDB 0", Kind::SemiSync, false, Some(true)),
        of(
            "mariadb-semi-sync-both-0",
            "MariaDB semi-sync, sync_binlog=0, InnoDB 0",
            Kind::SemiSync,
            false,
            Some(false),
        ),
        of("mariadb-ingest", "MariaDB, three log members", Kind::Ingest, true, Some(true)),
        device("device-a", "one server on a Lockstep device, protocol A", "a", Xfs),
        device("device-b", "one server on a Lockstep device, protocol B", "b", Xfs),
        device("device-c", "one server on a Lockstep device, protocol C", "c", Xfs),
        device("device-a-ext4", "one server on a Lockstep device, protocol A, ext4", "a", Ext4),
        device("device-b-ext4", "one server on a Lockstep device, protocol B, ext4", "b", Ext4),
        device("device-c-ext4", "one server on a Lockstep device, protocol C, ext4", "c", Ext4),
        of("galera", "Galera", Kind::Galera, true, None),
        of("galera-innodb-0", "Galera, InnoDB 0", Kind::Galera, false, None),
        of("lockstep-semisync", "Lockstep semisync", Kind::Lockstep("semisync"), true, None),
        OURS,
        of("lockstep-quorum", "Lockstep quorum", Kind::Lockstep("quorum"), true, None),
        of("lockstep-quorum-innodb-0", "Lockstep quorum, InnoDB 0", Kind::Lockstep("quorum"), false, None),
        slow(SEMI_SYNC, "mariadb-semi-sync-slow-disk", "MariaDB semi-sync, slow disk"),
        slow(OURS, "lockstep-semisync-innodb-0-slow-disk", "Lockstep semisync, InnoDB 0, slow disk"),
    ];

    /// Its place in the order: ours run between the rivals they are compared with, so that compared set-ups run within the
    /// same minutes.
    pub fn turn(self) -> usize {
        TURNS.iter().position(|name| *name == self.name).unwrap_or(TURNS.len())
    }

    /// A short name, as in results.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Setup> {
        Setup::EACH.into_iter().find(|setup| setup.name == name)
    }

    /// A short description.
    pub fn what(self) -> &'static str {
        self.what
    }

    /// How many servers it has.
    pub fn servers(self) -> usize {
        match self.kind {
            Kind::Alone | Kind::Floor | Kind::Ingest | Kind::Device(_) => 1,
            Kind::SemiSync | Kind::Galera | Kind::Lockstep(_) => 2,
        }
    }

    /// How many networks its servers and log members need.
    pub(super) fn networks(self) -> usize {
        match self.kind {
            Kind::Ingest => 1 + LOG_MEMBERS,
            Kind::Device(_) => 2,
            _ => self.servers(),
        }
    }

    /// How many file systems' worth of space it takes. A device has its image and its log on both members.
    pub(super) fn disks(self) -> usize {
        if let Kind::Device(_) = self.kind { 4 } else { self.servers() }
    }

    /// Further lines of each server's `[mysqld]`; the pools are sizes in MiB, the smaller first.
    pub(super) fn options(self, pools: [u32; 2]) -> Vec<String> {
        let mut lines = vec![
            format!("innodb_buffer_pool_size={}M", pools[usize::from(self.large_pool)]),
            "innodb_log_file_size=256M".into(),
            "max_connections=600".into(),
            // Each of 512 threads prepares some for each table; by default 16382 are too few.
            "max_prepared_stmt_count=200000".into(),
            format!("innodb_flush_log_at_trx_commit={}", u8::from(self.flush)),
        ];
        if let Some(flushed) = self.binlog {
            lines.push(format!("sync_binlog={}", u8::from(flushed)));
        }
        if self.kind == Kind::SemiSync {
            // As many as a member of a cluster has appliers.
            lines.push("slave_parallel_threads=4".into());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setups_have_unique_names_and_describe_flushes() {
        for setup in Setup::EACH {
            let count =
                |same: &dyn Fn(&Setup) -> bool| Setup::EACH.iter().filter(|other| same(other)).count();
            assert_eq!(Setup::of_name(setup.name()), Some(setup));
            assert_eq!(count(&|other| other.name == setup.name), 1);
            assert_eq!(TURNS[setup.turn()], setup.name);
            assert_eq!(count(&|other| other.what == setup.what), 1);
            let both = setup.what.contains("sync_binlog=0, InnoDB 0");
            assert_eq!(!setup.flush, setup.what.contains("InnoDB 0"), "{}", setup.name);
            assert_eq!(setup.binlog == Some(false), both || setup.what.contains("sync_binlog=0"));
            assert_eq!(setup.file_system == Ext4, setup.what.contains("ext4"));
            assert_eq!(setup.slow_disk, setup.what.contains("slow disk"));
            let options = setup.options([64, 256]);
            let pool = if setup.what.contains("small pool") { 64 } else { 256 };
            assert!(options.contains(&format!("innodb_buffer_pool_size={pool}M")), "{options:?}");
            assert!(options.contains(&"max_prepared_stmt_count=200000".to_owned()), "for 512 threads");
            assert!(options.contains(&format!("innodb_flush_log_at_trx_commit={}", u8::from(setup.flush))));
        }
        assert_eq!(Setup::of_name("else"), None);
    }
}
