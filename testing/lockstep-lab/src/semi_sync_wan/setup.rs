//! The set-ups: the servers with copies, and how they replicate.

use crate::far::{FAR, NEAR};
use crate::replica::{AFTER_SYNC, WAIT_POINT};

/// The set-ups that take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setup {
    /// One server, with a binlog.
    Alone,
    /// MariaDB's asynchronous replication to a far replica.
    MariadbAsync,
    /// MariaDB's semi-synchronous replication to a far replica.
    MariadbSemiSync,
    /// MariaDB's semi-synchronous replication to a near replica.
    MariadbSemiSyncNear,
    /// As [`Setup::MariadbSemiSync`], but nobody sees a commit before it is acknowledged, as with log members.
    MariadbAfterSync,
    /// The same with a near replica.
    MariadbAfterSyncNear,
    /// MariaDB's semi-synchronous replication to three log members (`lockstep binlog ingest`), all of them near: a commit waits
    /// until a majority has it on disk.
    IngestNear,
    /// The same, and one of the three is far: a commit waits for a near majority.
    IngestMajority,
    /// The same, and two of the three are far: a commit waits for one of these.
    IngestFar,
    /// Three members on Galera's library, one of them far.
    Galera,
    /// Three members on Lockstep, all of them near: the reference without a distance.
    QuorumNear,
    /// Three members on Lockstep, one of them far: a commit waits for nobody else.
    Async,
    /// The same: a commit waits for one other member, whichever is first.
    SemiSync,
    /// The same: a commit waits for a majority.
    Quorum,
    /// The same: a commit waits for everybody.
    All,
    /// A near server and a far one on Lockstep, and a near arbitrator, which keeps the log without a database: a commit
    /// waits for one of the others.
    SemiSyncArbitrator,
    /// A near server and a far one on Lockstep: a commit waits for the far one.
    SemiSyncTwo,
    /// The same, and the far one acknowledges what it has received, as MariaDB's does, and flushes it to its disk a moment
    /// later.
    SemiSyncTwoReceive,
}

impl Setup {
    /// All of them, ours beside their rivals; and that against which all others are compared in the middle.
    pub const EACH: [Setup; 18] = [
        Setup::MariadbAsync,
        Setup::Async,
        Setup::MariadbSemiSync,
        Setup::MariadbAfterSync,
        Setup::IngestFar,
        Setup::SemiSync,
        Setup::SemiSyncTwo,
        Setup::SemiSyncTwoReceive,
        Setup::Alone,
        Setup::IngestMajority,
        Setup::IngestNear,
        Setup::MariadbAfterSyncNear,
        Setup::MariadbSemiSyncNear,
        Setup::SemiSyncArbitrator,
        Setup::Galera,
        Setup::Quorum,
        Setup::QuorumNear,
        Setup::All,
    ];

    /// A short name, as in results.
    pub fn name(self) -> &'static str {
        match self {
            Setup::Alone => "alone",
            Setup::MariadbAsync => "mariadb-async",
            Setup::MariadbSemiSync => "mariadb-semi-sync",
            Setup::MariadbSemiSyncNear => "mariadb-semi-sync-near",
            Setup::MariadbAfterSync => "mariadb-after-sync",
            Setup::MariadbAfterSyncNear => "mariadb-after-sync-near",
            Setup::IngestNear => "ingest-near",
            Setup::IngestMajority => "ingest-majority",
            Setup::IngestFar => "ingest-far",
            Setup::Galera => "galera",
            Setup::QuorumNear => "lockstep-quorum-near",
            Setup::Async => "lockstep-async",
            Setup::SemiSync => "lockstep-semisync",
            Setup::Quorum => "lockstep-quorum",
            Setup::All => "lockstep-all",
            Setup::SemiSyncArbitrator => "lockstep-semisync-arbitrator",
            Setup::SemiSyncTwo => "lockstep-semisync-two",
            Setup::SemiSyncTwoReceive => "lockstep-semisync-two-receive",
        }
    }

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Setup> {
        Setup::EACH.into_iter().find(|setup| setup.name() == name)
    }

    /// A short description.
    pub fn what(self) -> &'static str {
        match self {
            Setup::Alone => "one server, no replica",
            Setup::MariadbAsync => "MariaDB async, replica far",
            Setup::MariadbSemiSync => "MariaDB semi-sync, replica far",
            Setup::MariadbSemiSyncNear => "MariaDB semi-sync, replica near",
            Setup::MariadbAfterSync => "MariaDB semi-sync AFTER_SYNC, replica far",
            Setup::MariadbAfterSyncNear => "MariaDB semi-sync AFTER_SYNC, replica near",
            Setup::IngestNear => "MariaDB, three log members near",
            Setup::IngestMajority => "MariaDB, three log members, one far",
            Setup::IngestFar => "MariaDB, three log members, two far",
            Setup::Galera => "Galera, two near, one far",
            Setup::QuorumNear => "Lockstep quorum, three near",
            Setup::Async => "Lockstep async, two near, one far",
            Setup::SemiSync => "Lockstep semisync, two near, one far",
            Setup::Quorum => "Lockstep quorum, two near, one far",
            Setup::All => "Lockstep all, two near, one far",
            Setup::SemiSyncArbitrator => "Lockstep semisync, near arbitrator, one far",
            Setup::SemiSyncTwo => "Lockstep semisync, one far",
            Setup::SemiSyncTwoReceive => "Lockstep semisync on receipt, one far",
        }
    }

    /// Whether each commit waits for the far member, so that a connection inserts a row per round trip.
    pub fn waits_for_far(self) -> bool {
        use Setup::*;
        matches!(
            self,
            MariadbSemiSync | MariadbAfterSync | IngestFar | Galera | All | SemiSyncTwo | SemiSyncTwoReceive
        )
    }

    /// Whether a copy is far.
    pub fn has_far_copy(self) -> bool {
        use Setup::*;
        !matches!(self, Alone | QuorumNear | MariadbSemiSyncNear | MariadbAfterSyncNear | IngestNear)
    }

    /// When the primary waits, if a replica of MariaDB's acknowledges: a value of `rpl_semi_sync_master_wait_point`.
    pub fn stock_wait_point(self) -> Option<&'static str> {
        match self {
            Setup::MariadbSemiSync | Setup::MariadbSemiSyncNear => Some(WAIT_POINT),
            Setup::MariadbAfterSync | Setup::MariadbAfterSyncNear => Some(AFTER_SYNC),
            _ => None,
        }
    }

    /// Whether our log members acknowledge what a MariaDB server commits.
    pub fn is_ingested(self) -> bool {
        !self.log_places().is_empty()
    }

    /// The zone and the place in it of each log member; the first one reads the server's binlog.
    pub(super) fn log_places(self) -> &'static [(usize, usize)] {
        match self {
            Setup::IngestNear => &[(NEAR, 1), (NEAR, 2), (NEAR, 3)],
            Setup::IngestMajority => &[(NEAR, 1), (NEAR, 2), (FAR, 0)],
            Setup::IngestFar => &[(NEAR, 1), (FAR, 0), (FAR, 1)],
            _ => &[],
        }
    }

    /// Whether it is on this project's provider.
    pub fn is_ours(self) -> bool {
        self.policy().is_some()
    }

    /// Its `commit.policy`, if it is ours.
    pub fn policy(self) -> Option<&'static str> {
        match self {
            Setup::Alone
            | Setup::MariadbAsync
            | Setup::MariadbSemiSync
            | Setup::MariadbSemiSyncNear
            | Setup::MariadbAfterSync
            | Setup::MariadbAfterSyncNear
            | Setup::IngestNear
            | Setup::IngestMajority
            | Setup::IngestFar
            | Setup::Galera => None,
            Setup::Async => Some("async"),
            Setup::SemiSync | Setup::SemiSyncTwo | Setup::SemiSyncTwoReceive | Setup::SemiSyncArbitrator => {
                Some("semisync")
            }
            Setup::Quorum | Setup::QuorumNear => Some("quorum"),
            Setup::All => Some("all"),
        }
    }

    /// The zone and the place in it of each server; the client writes to the first.
    pub(super) fn places(self) -> &'static [(usize, usize)] {
        match self {
            Setup::Alone | Setup::IngestNear | Setup::IngestMajority | Setup::IngestFar => &[(NEAR, 0)],
            Setup::MariadbSemiSyncNear | Setup::MariadbAfterSyncNear => &[(NEAR, 0), (NEAR, 1)],
            Setup::QuorumNear => &[(NEAR, 0), (NEAR, 1), (NEAR, 2)],
            Setup::MariadbAsync
            | Setup::MariadbSemiSync
            | Setup::MariadbAfterSync
            | Setup::SemiSyncTwo
            | Setup::SemiSyncTwoReceive
            | Setup::SemiSyncArbitrator => &[(NEAR, 0), (FAR, 0)],
            Setup::Galera | Setup::Async | Setup::SemiSync | Setup::Quorum | Setup::All => {
                &[(NEAR, 0), (NEAR, 1), (FAR, 0)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_ups_have_names_and_words_of_their_own() {
        for setup in Setup::EACH {
            assert_eq!(Setup::of_name(setup.name()), Some(setup));
            assert_eq!(Setup::EACH.into_iter().filter(|other| other.what() == setup.what()).count(), 1);
            let mut places = setup.places().iter().chain(setup.log_places());
            assert_eq!(setup.has_far_copy(), places.any(|(zone, _)| *zone == FAR));
            assert_eq!(setup.is_ours(), setup.name().starts_with("lockstep-"));
        }
        assert_eq!(Setup::of_name("else"), None);
    }
}
