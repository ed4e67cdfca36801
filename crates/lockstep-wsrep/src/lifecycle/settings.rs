//! The provider's options: the node's table, and those few values of it that are looked at often.

use crate::apply::monitor::lock;
use crate::lifecycle::saved_options::SavedOptions;
use lockstep_node::core::policy::Policy;
use lockstep_node::core::{Seqno, Uuid};
use lockstep_node::options::{Change, Note, OptionError, Options};
use lockstep_node::{Tuning, Until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Warnings about the log's options, as `lockstep check` gives them. The server's own settings are unknown here.
pub(crate) fn unwise(options: &Options) -> Vec<String> {
    options.unwise("innodb_flush_log_at_timeout (1 s, where it is not set)", 1)
}

/// See the module.
pub(crate) struct Settings {
    options: Mutex<Options>,
    kept: Mutex<SavedOptions>,
    max_write_set: AtomicUsize,
    causal_read_us: AtomicU64,
    log_conflicts: AtomicBool,
    zone: u8,
}

impl Settings {
    pub(crate) fn new(options: Options, kept: SavedOptions) -> Settings {
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

    /// The result and changes of a [`Settings::set`], without making them.
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

    /// Changes options, all or none; `policy` is the one in force. Returns the changes, the new tuning, and lines for the log.
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
/// The log line about an `apply.until`, for a server `at` this seqno of this history (nil: none yet), and this time in µs
/// since 1970.
///
/// # Errors
/// It is of another history: its position is unknown, and the server would stop applying at once and for ever.
pub(crate) fn where_until_is(
    until: Until,
    history: Uuid,
    at: Seqno,
    wall: u64,
) -> Result<Option<String>, String> {
    let seqno = match until {
        Until::Gtid(gtid) if gtid.uuid != history && history != Uuid::NIL => {
            return Err(format!(
                "apply.until: {} is another history: this cluster's is {history}",
                gtid.uuid
            ));
        }
        Until::Gtid(gtid) => gtid.seqno,
        Until::Seqno(seqno) => seqno,
        Until::Time(time) => {
            let text = "apply.until is a time that is over (in UTC): this member may be beyond it already, and stands at what \
                        comes next";
            return Ok((wall > time).then(|| text.to_owned()));
        }
    };
    Ok((at > seqno).then(|| {
        format!(
            "apply.until={seqno}: this member is already beyond it, at {at}, and stands at what comes next"
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::Gtid;

    #[test]
    fn apply_until_must_be_ahead_in_this_history() {
        let (here, other) = (Uuid([1; 16]), Uuid([2; 16]));
        let gtid = |uuid, seqno| Until::Gtid(Gtid { uuid, seqno });
        let refused = where_until_is(gtid(other, 70), here, 60, 0).unwrap_err();
        assert_eq!(refused, format!("apply.until: {other} is another history: this cluster's is {here}"));
        // Before there is a history nobody can tell.
        assert_eq!(where_until_is(gtid(other, 70), Uuid::NIL, -1, 0), Ok(None));
        for until in [gtid(here, 70), Until::Seqno(70)] {
            assert_eq!(where_until_is(until, here, 69, 0), Ok(None));
            assert_eq!(where_until_is(until, here, 70, 0), Ok(None));
            let said = where_until_is(until, here, 84, 0).unwrap().unwrap_or_default();
            assert!(said.starts_with("apply.until=70: this member is already beyond it, at 84"), "{said}");
        }
        assert_eq!(where_until_is(Until::Time(7), here, 84, 7), Ok(None));
        let said = where_until_is(Until::Time(7), here, 84, 8).unwrap().unwrap_or_default();
        assert!(said.starts_with("apply.until is a time that is over"), "{said}");
    }
}
