//! The provider's options: the node's table, and those few values of it that are looked at often.

use crate::kept::Kept;
use crate::monitor::lock;
use lockstep_node::Tuning;
use lockstep_node::core::policy::Policy;
use lockstep_node::options::{Change, Note, OptionError, Options};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What is unwise about the options for the log, as `lockstep check` says it. What the server has set is not known here.
pub(crate) fn unwise(options: &Options) -> Vec<String> {
    options.unwise("innodb_flush_log_at_timeout (1 s, where it is not set)", 1)
}

/// See the module.
pub(crate) struct Settings {
    options: Mutex<Options>,
    kept: Mutex<Kept>,
    max_write_set: AtomicUsize,
    causal_read_us: AtomicU64,
    log_conflicts: AtomicBool,
    zone: u8,
}

impl Settings {
    pub(crate) fn new(options: Options, kept: Kept) -> Settings {
        let settings = Settings {
            max_write_set: AtomicUsize::new(0),
            causal_read_us: AtomicU64::new(0),
            log_conflicts: AtomicBool::new(false),
            zone: options.zone(),
            options: Mutex::new(options),
            kept: Mutex::new(kept),
        };
        settings.refresh(&lock(&settings.options));
        settings
    }

    fn refresh(&self, options: &Options) {
        self.max_write_set.store(options.size("repl.max_ws_size") as usize, Relaxed);
        let causal = options.time("repl.causal_read_timeout").as_micros();
        self.causal_read_us.store(u64::try_from(causal).unwrap_or(u64::MAX / 2), Relaxed);
        self.log_conflicts.store(options.bool("cert.log_conflicts"), Relaxed);
    }

    /// Looks at the options.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&Options) -> T) -> T {
        look(&lock(&self.options))
    }

    /// For the node.
    pub(crate) fn tuning(&self) -> Tuning {
        let tuning = lock(&self.options).tuning();
        Tuning { apply_kept: lock(&self.kept).list(), ..tuning }
    }

    /// The policy that is in force, for those who look at the options.
    pub(crate) fn adopt_policy(&self, policy: &Policy) {
        lock(&self.options).adopt_policy(policy);
    }

    /// What [`Settings::set`] would make of them, and what it would change.
    pub(crate) fn look_ahead(
        &self,
        text: &str,
        policy: Option<Policy>,
    ) -> Result<(Options, Vec<Change>), OptionError> {
        let mut options = lock(&self.options).clone();
        if let Some(policy) = policy {
            options.adopt_policy(&policy);
        }
        let changes = options.set(text, true)?;
        Ok((options, changes))
    }

    /// Changes options, all or none, `policy` being the one in force: what has changed, the new tuning, and lines for the log.
    pub(crate) fn set(
        &self,
        text: &str,
        policy: Option<Policy>,
    ) -> Result<(Vec<Change>, Tuning, Vec<Note>), OptionError> {
        let mut options = lock(&self.options);
        if let Some(policy) = policy {
            options.adopt_policy(&policy);
        }
        let changes = options.set(text, true)?;
        self.refresh(&options);
        let mut notes = options.notes_on(&changes);
        if changes.iter().any(|change| change.name.starts_with("log.")) {
            notes.extend(unwise(&options).into_iter().map(|text| Note { warn: true, text }));
        }
        let mut kept = lock(&self.kept);
        if let Err(text) = kept.changed(&options, &changes) {
            notes.push(Note { warn: true, text });
        }
        Ok((changes, Tuning { apply_kept: kept.list(), ..options.tuning() }, notes))
    }

    /// `repl.max_ws_size`, bytes.
    pub(crate) fn max_write_set(&self) -> usize {
        self.max_write_set.load(Relaxed)
    }

    /// `repl.causal_read_timeout`.
    pub(crate) fn causal_read_timeout(&self) -> Duration {
        Duration::from_micros(self.causal_read_us.load(Relaxed))
    }

    /// `cert.log_conflicts`.
    pub(crate) fn log_conflicts(&self) -> bool {
        self.log_conflicts.load(Relaxed)
    }

    /// `member.zone`.
    pub(crate) fn zone(&self) -> u8 {
        self.zone
    }
}
