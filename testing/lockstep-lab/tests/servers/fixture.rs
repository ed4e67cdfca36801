//! The provider under test and the one cluster that exists at a time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockstep_lab::{Cluster, ClusterSpec};
use lockstep_local::{Client, LocalError};

/// What a test returns: an error ends it with its text.
pub(crate) type Test = Result<(), LocalError>;

/// Which provider the tests run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lockstep,
    Galera,
}

/// Debian's Galera library.
pub(crate) const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// The provider's file.
pub(crate) fn provider() -> PathBuf {
    match std::env::var("LOCKSTEP_TEST_PROVIDER").as_deref() {
        Err(_) | Ok("" | "lockstep") => built("liblockstep.so"),
        Ok("galera") => GALERA.into(),
        Ok(path) => path.into(),
    }
}

/// Ours or Galera's, by the file's name.
pub(crate) fn kind() -> Kind {
    let path = provider();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name.contains("galera") { Kind::Galera } else { Kind::Lockstep }
}

/// A product of the release build.
pub(crate) fn built(name: &str) -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace.join("target"), PathBuf::from);
    target.join("release").join(name)
}

/// Provider options that every cluster of the tests has: small files, no matter which provider.
pub(crate) fn spec() -> ClusterSpec {
    let mut spec = ClusterSpec::new(&provider());
    spec.provider_options = vec![("gcache.size".into(), "128M".into())];
    // Killing a process does not lose data in the kernel's cache, so these tests need no flushes; three flushes per commit
    // would only slow them down.
    spec.extra = vec![
        "innodb_flush_log_at_trx_commit=2".into(),
        "wsrep_gtid_mode=ON".into(),
        "wsrep_gtid_domain_id=9".into(),
    ];
    spec
}

/// As [`spec`], for clients that set `wsrep_trx_fragment_size`.
pub(crate) fn streaming_spec() -> ClusterSpec {
    let mut spec = spec();
    if kind() == Kind::Lockstep {
        spec.provider_options.push(("trx.streaming".into(), "yes".into()));
    }
    spec
}

/// The lock on "one cluster at a time", with the shared one if it is alive.
static SHARED: Mutex<Option<Cluster>> = Mutex::new(None);

/// The shared cluster of three, for the length of a test.
pub(crate) struct Shared(MutexGuard<'static, Option<Cluster>>);

/// Three synced members, with an empty database `test`: the one that the test before left, or a new one.
pub(crate) fn shared() -> Result<Shared, LocalError> {
    let mut guard = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cluster) = guard.as_mut()
        && !cluster.is_whole()
    {
        eprintln!("the test before left the cluster broken; starting a new one\n{}", cluster.log_tails(15));
        *guard = None;
    }
    if guard.is_none() {
        *guard = Some(Cluster::start(&streaming_spec())?);
    }
    if let Some(cluster) = guard.as_ref() {
        cluster.servers[0].client()?.run(&["DROP DATABASE IF EXISTS test", "CREATE DATABASE test"])?;
    }
    Ok(Shared(guard))
}

impl std::ops::Deref for Shared {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        self.0.as_ref().expect("shared() put it there")
    }
}

impl std::ops::DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut Cluster {
        self.0.as_mut().expect("shared() put it there")
    }
}

/// Without the shared cluster's load: ends the shared cluster and keeps others of this process from starting while the value lives.
pub(crate) fn alone() -> MutexGuard<'static, Option<Cluster>> {
    let mut guard = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    *guard = None;
    guard
}

/// Whether there can be network namespaces: in a chroot, say, there cannot, and a test that needs them says so and ends.
/// Chaos goes without cuts there.
pub(crate) fn has_networks() -> bool {
    let possible = lockstep_lab::wan::is_possible();
    if !possible {
        eprintln!("NOT TESTED: no network namespaces can be made here");
    }
    possible
}

/// A session with causal reads in database `test` of member `n` (from 0).
pub(crate) fn session(cluster: &Cluster, n: usize) -> Result<Client, LocalError> {
    let mut client = cluster.servers[n].client()?;
    // USE does not wait, so a read before it does: another member may just have made the database.
    client.run(&["SET SESSION wsrep_sync_wait = 15", "SELECT COUNT(*) FROM mysql.db", "USE test"])?;
    Ok(client)
}

/// The statement must fail with this error number.
pub(crate) fn fails(client: &mut Client, sql: &str, code: u16) -> Test {
    match client.query(sql) {
        Err(e) if e.sql_code() == Some(code) => Ok(()),
        Err(e) => Err(e),
        Ok(_) => Err(LocalError::Value(format!("[{sql}] succeeded, but error {code} was due"))),
    }
}

/// Fails the test unless both are equal.
#[track_caller]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, due: T) {
    assert!(seen == due, "{what}: {seen:?}, but {due:?} was due");
}

/// Timeout for conditions that take a second or two on an idle machine.
const EVENTUALLY: std::time::Duration = std::time::Duration::from_secs(40);

/// Asks until `check` is content, for at most [`EVENTUALLY`].
pub(crate) fn eventually(what: &str, check: impl FnMut() -> Result<bool, LocalError>) -> Test {
    within(EVENTUALLY, what, check)
}

/// Asks until `check` is content, for at most this time.
pub(crate) fn within(
    limit: std::time::Duration,
    what: &str,
    mut check: impl FnMut() -> Result<bool, LocalError>,
) -> Test {
    let deadline = std::time::Instant::now() + limit;
    while !check()? {
        if std::time::Instant::now() > deadline {
            return Err(LocalError::Value(format!("not within {} s: {what}", limit.as_secs())));
        }
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    Ok(())
}

/// The status of the member in this folder; `None` if it does not answer.
pub(crate) fn status(dir: &Path) -> Option<String> {
    let output = Command::new(built("lockstep"))
        .args(["status", "--socket"])
        .arg(dir.join("lockstep.sock"))
        .output()
        .ok()?;
    // It ends with an error where nobody has a majority, and says so all the same.
    (!output.stdout.is_empty()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
