//! The provider's options: the node's table, and copies of the values that are read often.

use crate::lifecycle::saved_options::SavedOptions;
use crate::sync::lock;
use lockstep_node::core::policy::Policy;
use lockstep_node::core::{Seqno, Uuid};
use lockstep_node::options::{Change, Note, OptionError, Options};
use lockstep_node::{Tuning, Until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Warnings about the options for the log, as in `lockstep check`. The server's own settings are not known here.
pub(crate) fn unwise(options: &Options) -> Vec<String> {
    options.unwise("innodb_flush_log_at_timeout (1 s if it is not set)", 1)
}

/// See the module.
pub(crate) struct Settings {
    options: Mutex<Options>,
    saved: Mutex<SavedOptions>,
    max_write_set: AtomicUsize,
    causal_read_us: AtomicU64,
    log_conflicts: AtomicBool,
    zone: u8,
    streams: bool,
}

impl Settings {
    pub(crate) fn new(options: Options, saved: SavedOptions) -> Settings {
        let settings = Settings {
            max_write_set: AtomicUsize::new(0),
            causal_read_us: AtomicU64::new(0),
            log_conflicts: AtomicBool::new(false),
            zone: options.zone(),
            streams: options.bool("trx.streaming"),
            options: Mutex::new(options),
            saved: Mutex::new(saved),
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

    /// Calls `read` with the options, under their lock.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Options) -> T) -> T {
        read(&lock(&self.options))
    }

    /// The node's tuning.
    pub(crate) fn tuning(&self) -> Tuning {
        let tuning = lock(&self.options).tuning();
        Tuning { apply_kept: lock(&self.saved).list(), ..tuning }
    }

    /// Copies the policy in force into the options.
    pub(crate) fn adopt_policy(&self, policy: &Policy) {
        lock(&self.options).adopt_policy(policy);
    }

    /// The options after [`Settings::set`], and the changes, without making them.
    pub(crate) fn preview(
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

    /// Changes all options in `text`, or none. `policy`: the one in force. Returns the changes, the new tuning, and lines
    /// for the log.
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
        let mut saved = lock(&self.saved);
        if let Err(text) = saved.changed(&options, &changes) {
            notes.push(Note { warn: true, text });
        }
        Ok((changes, Tuning { apply_kept: saved.list(), ..options.tuning() }, notes))
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

    /// `trx.streaming`.
    pub(crate) fn streams(&self) -> bool {
        self.streams
    }
}

/// Checks `apply.until` against the server's position and the time in microseconds since 1970. Returns a warning if it has
/// been passed already. A nil `history`: there is none yet.
///
/// # Errors
/// `apply.until` is of another history: its position in this one is unknown, and apply would stop at once and for ever.
pub(crate) fn check_until(
    until: Until,
    history: Uuid,
    at: Seqno,
    wall: u64,
) -> Result<Option<String>, String> {
    let seqno = match until {
        Until::Gtid(gtid) if gtid.uuid != history && history != Uuid::NIL => {
            return Err(format!(
                "apply.until: {} is not the history of this cluster, which is {history}",
                gtid.uuid
            ));
        }
        Until::Gtid(gtid) => gtid.seqno,
        Until::Seqno(seqno) => seqno,
        Until::Time(time) => {
            let text = "apply.until is in the past (UTC): this member may have applied later transactions already, \
                 and stops at the next one";
            return Ok((wall > time).then(|| text.to_owned()));
        }
    };
    Ok((at > seqno).then(|| {
        format!(
            "apply.until={seqno}: this member has already applied later transactions, up to {at}, and stops at the \
             next one"
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
        let refused = check_until(gtid(other, 70), here, 60, 0).unwrap_err();
        assert_eq!(
            refused,
            format!("apply.until: {other} is not the history of this cluster, which is {here}")
        );
        // Without a history every GTID is accepted.
        assert_eq!(check_until(gtid(other, 70), Uuid::NIL, -1, 0), Ok(None));
        for until in [gtid(here, 70), Until::Seqno(70)] {
            assert_eq!(check_until(until, here, 69, 0), Ok(None));
            assert_eq!(check_until(until, here, 70, 0), Ok(None));
            let warning = check_until(until, here, 84, 0).unwrap().unwrap_or_default();
            assert!(
                warning.starts_with(
                    "apply.until=70: this member has already applied later transactions, up to 84"
                ),
                "{warning}"
            );
        }
        assert_eq!(check_until(Until::Time(7), here, 84, 7), Ok(None));
        let warning = check_until(Until::Time(7), here, 84, 8).unwrap().unwrap_or_default();
        assert!(warning.starts_with("apply.until is in the past (UTC)"), "{warning}");
    }
}
