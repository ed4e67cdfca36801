//! Which log the database has followed: `grastate.dat` keeps it, and the next process compares its log with it.

use crate::lifecycle::state_files::{DatabaseId, Followed, StateFile};
use lockstep_node::core::{SEQNO_UNDEFINED, Seqno};
use lockstep_node::{FollowedLog, Identity};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// See the module. Usable from any thread.
pub(crate) struct DatabaseLog {
    state_file: Arc<StateFile>,
    data_dir: PathBuf,
    /// The position of a state that a donor has sent, until this member's log has gone beyond it. [`Seqno::MAX`] if that
    /// position is not known yet, or never will be. [`SEQNO_UNDEFINED`] if the database follows this member's log.
    transferred: AtomicI64,
}

impl DatabaseLog {
    pub(crate) fn new(state_file: Arc<StateFile>, data_dir: PathBuf) -> DatabaseLog {
        DatabaseLog { state_file, data_dir, transferred: AtomicI64::new(SEQNO_UNDEFINED) }
    }

    /// A state transfer is about to overwrite the database.
    pub(crate) fn state_begins(&self) {
        self.transferred.store(Seqno::MAX, Ordering::Release);
    }

    /// The database has the transferred state, which ends at `seqno`. The log may end before it yet. No effect if no state
    /// transfer has begun.
    pub(crate) fn state_is_restored(&self, seqno: Seqno) {
        if !self.follows() {
            self.transferred.store(seqno, Ordering::Release);
        }
    }

    /// No state was transferred, and the database counts as having it. It may be ahead of this member's log.
    pub(crate) fn state_is_assumed(&self) {
        self.transferred.store(Seqno::MAX, Ordering::Release);
    }

    /// The database has everything up to `seqno`. Returns whether its log is to be named now: the first entry after a
    /// transferred state shows that this member's log has reached that state, for it was on this member's disk before it was
    /// delivered.
    pub(crate) fn has_finished(&self, seqno: Seqno) -> bool {
        let transferred = self.transferred.load(Ordering::Acquire);
        let ends = transferred != SEQNO_UNDEFINED && seqno > transferred;
        let (relaxed, none) = (Ordering::Relaxed, SEQNO_UNDEFINED);
        ends && self.transferred.compare_exchange(transferred, none, Ordering::AcqRel, relaxed).is_ok()
    }

    /// Names the log of this identity in the state file, for its next write, if the database has followed it.
    pub(crate) fn name(&self, identity: &Identity) {
        if self.follows() {
            self.set(FollowedLog { member: identity.member, incarnation: identity.incarnation });
        }
    }

    /// The log that the database has followed; `None` if it is not known, or if another database is in its place.
    pub(crate) fn get(&self) -> Option<FollowedLog> {
        let database = DatabaseId::of(&self.data_dir);
        let followed = self.state_file.get().followed.filter(|followed| followed.database == database);
        followed.map(|followed| followed.log)
    }

    /// The log has given this process an incarnation that the database, which has followed that log, knows already. Later
    /// starts get higher ones. So the state file keeps that the log has gone back, until [`DatabaseLog::name`].
    ///
    /// # Errors
    /// The state file cannot be written.
    pub(crate) fn keep_reused_incarnation(
        &self,
        identity: &Identity,
        followed: FollowedLog,
    ) -> io::Result<()> {
        if identity.member != followed.member || followed.incarnation < identity.incarnation {
            return Ok(());
        }
        self.set(FollowedLog { incarnation: u64::MAX, ..followed });
        self.state_file.rewrite()
    }

    fn follows(&self) -> bool {
        self.transferred.load(Ordering::Acquire) == SEQNO_UNDEFINED
    }

    fn set(&self, log: FollowedLog) {
        self.state_file.set_followed(Followed { log, database: DatabaseId::of(&self.data_dir) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::state_files::TestDir;
    use lockstep_node::core::Uuid;

    /// A directory with the files that identify a database.
    fn data_dir(name: &str) -> TestDir {
        let dir = TestDir::new(name);
        std::fs::create_dir(dir.0.join("mysql")).unwrap();
        std::fs::write(dir.0.join("ibdata1"), "").unwrap();
        dir
    }

    /// As a process that starts on this directory.
    fn open(dir: &TestDir) -> (DatabaseLog, Arc<StateFile>) {
        let file = Arc::new(StateFile::open(&dir.0).unwrap().0);
        (DatabaseLog::new(file.clone(), dir.0.clone()), file)
    }

    fn process(incarnation: u64) -> Identity {
        let log = Uuid([2; 16]);
        Identity { member: Uuid([1; 16]), view_uuid: Uuid([3; 16]), history: log, log, incarnation }
    }

    fn log_of(incarnation: u64) -> Option<FollowedLog> {
        Some(FollowedLog { member: process(incarnation).member, incarnation })
    }

    #[test]
    fn log_is_named_until_another_database_is_in_its_place() {
        let dir = data_dir("named");
        let (log, file) = open(&dir);
        assert_eq!(log.get(), None);
        log.name(&process(5));
        assert!(!log.has_finished(9), "the log is named already");
        file.rewrite().unwrap();
        drop((log, file));
        assert_eq!(open(&dir).0.get(), log_of(5));
        // The new file may get the inode of the old one.
        std::fs::remove_file(dir.0.join("ibdata1")).unwrap();
        std::fs::write(dir.0.join("ibdata1"), "").unwrap();
        assert_eq!(open(&dir).0.get(), None);
    }

    #[test]
    fn log_is_named_by_the_first_entry_after_a_transferred_state() {
        let dir = data_dir("transferred");
        let (log, _file) = open(&dir);
        log.state_begins();
        assert!(!log.has_finished(100), "the state is not there yet");
        log.state_is_restored(100);
        log.name(&process(5));
        assert_eq!((log.has_finished(100), log.get()), (false, None));
        assert!(log.has_finished(101));
        log.name(&process(5));
        assert_eq!((log.has_finished(102), log.get()), (false, log_of(5)));
        // A position that a donor confirms is no transfer.
        log.state_is_restored(200);
        log.name(&process(6));
        assert_eq!(log.get(), log_of(6));
    }

    #[test]
    fn log_is_never_named_after_an_assumed_state() {
        let dir = data_dir("assumed");
        let (log, _file) = open(&dir);
        log.state_begins();
        log.state_is_restored(100);
        log.state_is_assumed();
        assert!(!log.has_finished(101));
        log.name(&process(5));
        assert_eq!(log.get(), None);
    }

    #[test]
    fn reused_incarnation_is_kept_until_the_log_is_named_again() {
        let dir = data_dir("reused");
        let (log, file) = open(&dir);
        log.name(&process(5));
        file.rewrite().unwrap();
        let followed = log.get().unwrap();
        drop((log, file));
        // A later incarnation, and another member.
        let (log, file) = open(&dir);
        log.keep_reused_incarnation(&process(6), followed).unwrap();
        let other = Identity { member: Uuid([9; 16]), ..process(5) };
        log.keep_reused_incarnation(&other, followed).unwrap();
        assert_eq!(log.get(), log_of(5));
        log.keep_reused_incarnation(&process(5), followed).unwrap();
        drop((log, file));
        // The next process has a higher one, and knows all the same.
        let (log, _file) = open(&dir);
        assert_eq!(log.get(), log_of(u64::MAX));
        log.keep_reused_incarnation(&process(6), log.get().unwrap()).unwrap();
        assert_eq!(log.get(), log_of(u64::MAX));
        log.name(&process(6));
        assert_eq!(log.get(), log_of(6));
    }
}
