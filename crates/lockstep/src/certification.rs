//! Certifies the write-sets in a log. It runs the members' code over the same entries, so it reaches the same verdicts.
//! The start of the log limits how far back they are known.

use lockstep_node::core::certify::{Certification, Certifier, CertifyError, Failure};
use lockstep_node::core::policy::Writers;
use lockstep_node::core::snapshot::{StateSnapshot, TrimMark};
use lockstep_node::core::types::{Entry, EntryKind, Seqno};
use lockstep_node::core::writeset::WriteSet;
use serde::Serialize;

/// The certification verdict on a write-set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// Every member commits the write-set.
    Passed,
    /// Every member rolls the write-set back.
    Failed,
    /// The verdict depends on entries before the start of the log.
    Unknown,
}

impl Verdict {
    /// As `lockstep log` prints it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::Unknown => "?",
        }
    }
}

/// A verdict with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certified {
    pub(crate) verdict: Verdict,
    /// The reason, or empty.
    pub(crate) why: String,
}

impl Certified {
    fn unknown(why: &str) -> Certified {
        Certified { verdict: Verdict::Unknown, why: why.to_owned() }
    }
}

/// Certifies the entries of a log, in order.
///
/// If the verdict on an entry is unknown, certification restarts after it, as if the log began there. A later write-set
/// whose snapshot precedes that entry is unknown, too, unless it conflicts with a known key or a trim mark lists it.
/// No verdict is a guess.
pub(crate) struct LogCertifier {
    /// The log's trim marks, which carry verdicts.
    marks: Vec<TrimMark>,
    /// The state from which a certifier starts.
    state: StateSnapshot,
    certifier: Certifier,
    /// Under a weak policy only the leader's write-sets pass. This state depends on the log's entries alone, so a
    /// restart of certification does not reset it.
    writers: Writers,
    /// The error that ended certification: the log contradicts itself.
    broken: Option<String>,
}

impl LogCertifier {
    /// `base` is the state before the first entry, `marks` all trim marks after it.
    pub(crate) fn new(base: &StateSnapshot, marks: Vec<TrimMark>) -> LogCertifier {
        let mut certifier = LogCertifier {
            marks,
            state: base.clone(),
            certifier: Certifier::new(base),
            writers: base.writers(),
            broken: None,
        };
        certifier.restart(base.seqno);
        certifier
    }

    fn restart(&mut self, after: Seqno) {
        self.state.seqno = after;
        self.certifier = Certifier::new(&self.state);
        for mark in &self.marks {
            self.certifier.learn(mark);
        }
    }

    /// Certifies the next entry. `None` if entries of its kind are not certified.
    pub(crate) fn certify(&mut self, entry: &Entry) -> Option<Certified> {
        let is_certified = matches!(entry.kind, EntryKind::WriteSet | EntryKind::TotalOrder);
        if let Some(broken) = &self.broken {
            return is_certified.then(|| Certified::unknown(broken));
        }
        self.writers.follow(entry);
        let outcome = match entry.kind {
            EntryKind::WriteSet | EntryKind::TotalOrder => {
                let set = WriteSet::parse(&entry.payload()).ok();
                self.certifier.judge(&self.writers, entry, set.as_ref())
            }
            EntryKind::View => self.certifier.barrier(entry.seqno),
            EntryKind::Trim => {
                let trimmed = TrimMark::from_payload(entry.payload()).map(|mark| {
                    self.state.trim = self.state.trim.max(mark.trim);
                    self.state.verdicts_to = self.state.verdicts_to.max(mark.verdicts_to);
                    self.certifier.trim(&mark)
                });
                match trimmed {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => self.broken = Some(error.to_string()),
                    Err(error) => self.broken = Some(format!("entry {}: {error}", entry.index)),
                }
                return None;
            }
            _ => return None,
        };
        match outcome {
            Ok(outcome) => is_certified.then(|| with_reason(&outcome)),
            Err(CertifyError::Unknown { .. }) => {
                self.restart(entry.seqno);
                Some(Certified::unknown("the verdict depends on entries before the start of this log"))
            }
            Err(error) => {
                let broken = self.broken.insert(error.to_string());
                is_certified.then(|| Certified::unknown(broken))
            }
        }
    }
}

fn with_reason(outcome: &Certification) -> Certified {
    let verdict = if outcome.pass { Verdict::Passed } else { Verdict::Failed };
    let why = match (outcome.failure, outcome.conflict) {
        (None, _) => String::new(),
        (Some(Failure::Conflict), Some(seqno)) => format!("conflicts with the earlier seqno {seqno}"),
        (Some(failure), _) => failure.to_string(),
    };
    Certified { verdict, why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::members::Membership;
    use lockstep_node::core::policy::{Policy, PolicyKind};
    use lockstep_node::core::types::{EntryHeader, MemberId, ProposalId, Term, Uuid};
    use lockstep_node::core::writeset::{KeyType, Meta, WriteSetBuilder, flags};

    fn base(seqno: Seqno) -> StateSnapshot {
        StateSnapshot::genesis(Uuid([9; 16]), seqno, Membership::default())
    }

    /// A write of one row in a snapshot at `last_seen`.
    fn write(seqno: Seqno, source: u8, last_seen: Seqno, row: &[u8]) -> Entry {
        let mut builder = WriteSetBuilder::new();
        builder.append_key(&[b"d", b"t", row], KeyType::Exclusive).unwrap();
        let meta = Meta {
            source: Uuid([source; 16]),
            last_seen,
            flags: flags::TRX_START | flags::TRX_END,
            ..Meta::default()
        };
        entry_with(EntryKind::WriteSet, seqno, &builder.finish(&meta))
    }

    fn entry_with(kind: EntryKind, seqno: Seqno, payload: &[u8]) -> Entry {
        let (index, proposal) = (seqno as u64, ProposalId::default());
        Entry::new(EntryHeader { index, term: 1, kind, seqno, proposal, time: 0 }, payload)
    }

    fn in_term(term: Term, entry: &Entry) -> Entry {
        Entry::new(EntryHeader { term, ..**entry }, &entry.payload())
    }

    fn trim(seqno: Seqno, mark: &TrimMark) -> Entry {
        entry_with(EntryKind::Trim, seqno, &mark.to_payload())
    }

    fn verdicts(certifier: &mut LogCertifier, entries: &[Entry]) -> Vec<Verdict> {
        entries.iter().filter_map(|e| certifier.certify(e)).map(|c| c.verdict).collect()
    }

    #[test]
    fn conflict_loser_fails_and_winner_passes() {
        let mut certifier = LogCertifier::new(&base(10), Vec::new());
        assert_eq!(certifier.certify(&write(11, 1, 10, b"x")).unwrap().verdict, Verdict::Passed);
        let loser = certifier.certify(&write(12, 2, 10, b"x")).unwrap();
        assert_eq!(
            (loser.verdict, loser.why.as_str()),
            (Verdict::Failed, "conflicts with the earlier seqno 11")
        );
        // A failed write-set leaves no keys behind.
        assert_eq!(verdicts(&mut certifier, &[write(13, 3, 11, b"x")]), [Verdict::Passed]);
    }

    #[test]
    fn verdicts_beyond_log_start_are_unknown() {
        use Verdict::*;
        let mut certifier =
            LogCertifier::new(&StateSnapshot { trim: 5, verdicts_to: 5, ..base(10) }, Vec::new());
        let log = [
            write(11, 1, 8, b"x"),  // its snapshot lacks 9 and 10, which are not in the log
            write(12, 2, 10, b"x"), // fails if 11 passed
            write(13, 3, 12, b"x"),
            write(14, 4, 12, b"x"), // fails in any case
            write(15, 5, 14, b"y"),
        ];
        assert_eq!(verdicts(&mut certifier, &log), [Unknown, Unknown, Passed, Failed, Passed]);
    }

    #[test]
    fn trim_mark_supplies_verdicts_before_log_start() {
        use Verdict::*;
        let mark = TrimMark { trim: 10, verdicts_to: 12, failed: vec![12] };
        let mut certifier =
            LogCertifier::new(&StateSnapshot { trim: 5, verdicts_to: 5, ..base(10) }, vec![mark.clone()]);
        let log = [
            write(11, 1, 8, b"x"),
            write(12, 2, 8, b"y"),
            trim(12, &mark),
            write(13, 3, 10, b"x"),
            write(14, 3, 9, b"z"),
        ];
        assert_eq!(verdicts(&mut certifier, &log), [Passed, Failed, Failed, Failed]);
    }

    #[test]
    fn contradictory_log_stops_verdicts() {
        let mut certifier = LogCertifier::new(&base(10), Vec::new());
        let wrong = TrimMark { trim: 11, verdicts_to: 11, failed: vec![11] };
        let log = [write(11, 1, 10, b"x"), trim(11, &wrong), write(12, 1, 11, b"x")];
        assert_eq!(verdicts(&mut certifier, &log), [Verdict::Passed, Verdict::Unknown]);
    }

    /// A write-set that this member proposed and a leader appended in this term. `Meta::source` is independent of both.
    fn of(member: MemberId, term: Term, write: Entry) -> Entry {
        let proposal = ProposalId { member, ..ProposalId::default() };
        Entry::new(EntryHeader { term, proposal, ..*write }, &write.payload())
    }

    #[test]
    fn former_leaders_write_fails_under_weak_policy() {
        use Verdict::*;
        let (old, new) = (Uuid([1; 16]), Uuid([2; 16]));
        let state =
            StateSnapshot { policy: Policy::of(PolicyKind::Semisync), term: 1, leader: old, ..base(10) };
        let led_by =
            |term, leader: MemberId, seqno| in_term(term, &entry_with(EntryKind::Noop, seqno, &leader.0));
        let mark = TrimMark { trim: 10, verdicts_to: 13, failed: vec![12] };
        let log = [
            of(old, 1, write(11, 1, 10, b"x")),
            led_by(2, new, 11),
            of(old, 2, write(12, 1, 11, b"y")), // proposed before leadership moved
            of(new, 2, write(13, 2, 11, b"y")), // no conflict: a failed write-set has no keys
            in_term(2, &trim(13, &mark)),
            of(new, 2, write(14, 2, 13, b"z")),
        ];
        // With and without the mark known in advance. The command knows it in advance.
        for marks in [vec![], vec![mark.clone()]] {
            let mut certifier = LogCertifier::new(&state, marks);
            assert_eq!(verdicts(&mut certifier, &log), [Passed, Failed, Passed, Passed]);
        }
        let mut certifier = LogCertifier::new(&state, vec![]);
        let certified: Vec<Certified> =
            log[..3].iter().filter_map(|entry| certifier.certify(entry)).collect();
        assert!(certified[1].why.contains("only the leader may write"), "{}", certified[1].why);
    }

    #[test]
    fn writers_are_known_after_certification_restart() {
        use Verdict::*;
        let (old, new) = (Uuid([1; 16]), Uuid([2; 16]));
        let state = StateSnapshot { term: 1, leader: old, trim: 5, verdicts_to: 5, ..base(10) };
        let weak = Policy::of(PolicyKind::Async).to_payload();
        let log = [
            entry_with(EntryKind::Policy, 10, &weak),
            of(old, 1, write(11, 1, 8, b"x")), // its snapshot lacks 9 and 10, which are not in the log
            of(new, 1, write(12, 2, 11, b"y")),
            of(old, 1, write(13, 1, 11, b"y")),
        ];
        assert_eq!(verdicts(&mut LogCertifier::new(&state, vec![]), &log), [Unknown, Failed, Passed]);
    }
}
