//! The commit policy of a run, and the losses that it allows (docs/policies.md).

use std::fmt;
use std::str::FromStr;

use super::fault::Fault;

/// A value of `commit.policy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The leader alone.
    Async,
    /// The leader and `commit.acks` others.
    Semisync,
    /// A majority.
    Quorum,
    /// Every member.
    All,
}

const ALL: [Policy; 4] = [Policy::Async, Policy::Semisync, Policy::Quorum, Policy::All];

impl Policy {
    /// Its name as the option has it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Async => "async",
            Policy::Semisync => "semisync",
            Policy::Quorum => "quorum",
            Policy::All => "all",
        }
    }

    /// Whether only the leader writes, and may answer ahead of the majority.
    pub fn is_weak(self) -> bool {
        matches!(self, Policy::Async | Policy::Semisync)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        ALL.into_iter().find(|policy| policy.name() == text).ok_or_else(|| {
            let names = ALL.map(Policy::name).join(", ");
            format!("there is no policy `{text}`: {names}")
        })
    }
}

/// Acknowledged transactions that are missing at the end of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// Neither in the tables nor in a rescue file.
    pub(super) gone: u64,
    /// Not in the tables, but in a rescue file.
    pub(super) rescued: u64,
    /// The most of those in one file, which is from one leader.
    pub(super) largest: u64,
    /// In which faults' time the inserts among the rescued were acknowledged; `None`: between two.
    pub(super) during: Vec<Option<Fault>>,
}

/// The promise of the policy.
#[derive(Debug, Clone)]
pub(super) struct Promise {
    pub(super) policy: Policy,
    /// `async.max_at_risk`.
    pub(super) max_at_risk: u64,
    /// Whether the leader is a majority by itself: then its writes are committed at once.
    pub(super) alone: bool,
    /// How often the leader was lost with its disk.
    pub(super) leaders_lost: u64,
    /// Whether a fault may come while the one before it is not over.
    pub(super) overlapping: bool,
}

impl Promise {
    /// What of the losses breaks it.
    pub(super) fn broken(&self, losses: &Losses) -> Vec<String> {
        let mut broken = Vec::new();
        let mut wrong = |text: String| broken.push(format!("under {}: {text}", self.policy));
        // Only what the leader alone had can go with its disk.
        let may_go = match self.policy {
            Policy::Async if self.alone && self.leaders_lost > 0 => u64::MAX,
            Policy::Async => self.max_at_risk * self.leaders_lost,
            _ => 0,
        };
        if losses.gone > may_go {
            wrong(format!(
                "{} acknowledged transactions are neither there nor in a rescue file, and {may_go} may be lost",
                losses.gone
            ));
        }
        match self.policy {
            Policy::Quorum | Policy::All if losses.rescued > 0 => {
                wrong(format!("{} acknowledged transactions are in rescue files only", losses.rescued));
            }
            Policy::Semisync if !self.overlapping => {
                let unexpected: Vec<_> =
                    losses.during.iter().filter(|fault| !fault.is_some_and(Fault::may_part_all)).collect();
                if let Some(first) = unexpected.first() {
                    let when = first.map_or("nothing", Fault::name);
                    wrong(format!(
                        "{} acknowledged rows are in rescue files only, though those who elected reached who had them \
                         (the first one's time: {when})",
                        unexpected.len()
                    ));
                }
            }
            _ => {}
        }
        if self.policy.is_weak() && losses.largest > self.max_at_risk {
            wrong(format!(
                "{} acknowledged transactions are in one rescue file, and async.max_at_risk is {}",
                losses.largest, self.max_at_risk
            ));
        }
        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(policy: Policy) -> Promise {
        Promise { policy, max_at_risk: 100, alone: false, leaders_lost: 0, overlapping: false }
    }

    fn rescued(rescued: u64, during: Option<Fault>) -> Losses {
        Losses { gone: 0, rescued, largest: rescued, during: vec![during] }
    }

    #[test]
    fn strong_policy_loses_nothing() {
        for policy in [Policy::Quorum, Policy::All] {
            let promise = Promise { leaders_lost: 3, ..promise(policy) };
            assert!(promise.broken(&Losses::default()).is_empty());
            assert_eq!(promise.broken(&Losses { gone: 1, ..Losses::default() }).len(), 1);
            assert_eq!(promise.broken(&rescued(1, Some(Fault::Split))).len(), 1);
        }
    }

    #[test]
    fn semisync_loses_what_nobody_reached_had_and_keeps_it() {
        let semisync = promise(Policy::Semisync);
        assert!(semisync.broken(&rescued(3, Some(Fault::Split))).is_empty());
        assert_eq!(semisync.broken(&rescued(3, Some(Fault::KillFirst))).len(), 1);
        assert_eq!(semisync.broken(&rescued(3, None)).len(), 1);
        let overlapping = Promise { overlapping: true, ..semisync.clone() };
        assert!(overlapping.broken(&rescued(3, Some(Fault::KillFirst))).is_empty());
        // A lost disk is no excuse: another member has it.
        let lost = Promise { leaders_lost: 1, ..semisync };
        assert_eq!(lost.broken(&Losses { gone: 1, ..Losses::default() }).len(), 1);
    }

    #[test]
    fn async_loses_no_more_than_was_at_risk() {
        let asynchronous = promise(Policy::Async);
        assert!(asynchronous.broken(&rescued(100, Some(Fault::KillFirst))).is_empty());
        assert_eq!(asynchronous.broken(&rescued(101, Some(Fault::KillFirst))).len(), 1);
        let gone = |gone| Losses { gone, ..Losses::default() };
        assert_eq!(asynchronous.broken(&gone(1)).len(), 1, "all disks are there");
        let lost = Promise { leaders_lost: 2, ..asynchronous };
        assert!(lost.broken(&gone(200)).is_empty());
        assert_eq!(lost.broken(&gone(201)).len(), 1);
        assert!(Promise { alone: true, ..lost }.broken(&gone(201)).is_empty());
    }

    #[test]
    fn policies_have_names_of_their_own() {
        for policy in ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!("semi-sync".parse::<Policy>().unwrap_err().contains("semisync"));
    }
}
