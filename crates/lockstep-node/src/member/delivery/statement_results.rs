//! Results of statements in total order, as notes in the log.
//!
//! A write-set is certified, so each member knows its fate from the log. A statement in total order always passes, and
//! may fail in every server all the same. A reader of the log ([`FrontEnd::Reader`](crate::FrontEnd::Reader)) has no server
//! to execute it. So a member whose server has executed a statement writes its result to the log.
//!
//! The origin reports at once. The other members report only if no result is in the log after [`REPORT_AFTER`]: then
//! the origin was lost. Several results of one statement are equal, because members whose results differ vote, and the
//! losers leave. A result that was executed after a crash, with an error that may be the crash's, is not reported.
//!
//! Members of older versions ignore notes.

use crate::api::StatementResult;
use crate::member::context::Context;
use bytes::Bytes;
use lockstep_core::{Entry, EntryKind, Micros, Seqno, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The time that the origin has before other members report.
const REPORT_AFTER: Micros = 3_000_000;
/// A report that is not in the log by then is sent again.
const REPEAT_AFTER: Micros = 30_000_000;
/// The number of results kept until they are in the log, and of those known to be there. The oldest are dropped first.
const PENDING_MAX: usize = 4096;
/// The longest error text in a note.
const TEXT_MAX: usize = 512;
/// The first words of the payload, which is text: `lockstep log` prints it.
const PREFIX: &str = "result of statement ";
/// The result of a statement that succeeded.
const SUCCESS: &str = "ok";

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct StatementResults {
    /// Results of this member's server that are not in the log, and when each is to be reported.
    pending: BTreeMap<Seqno, (StatementResult, Micros)>,
    /// Statements whose results are in the log. This member's server may execute them later.
    reported: BTreeSet<Seqno>,
    /// The history of both.
    history: Uuid,
}

impl StatementResults {
    /// This member's server has executed a statement of this history. `own`: of this member's client.
    pub(in crate::member) fn executed(
        &mut self,
        now: Micros,
        history: Uuid,
        result: StatementResult,
        own: bool,
    ) {
        if std::mem::replace(&mut self.history, history) != history {
            self.pending.clear();
            self.reported.clear();
        }
        if self.reported.contains(&result.seqno) {
            return;
        }
        let due = if own { now } else { now.saturating_add(REPORT_AFTER) };
        self.pending.insert(result.seqno, (result, due));
        while self.pending.len() > PENDING_MAX {
            self.pending.pop_first();
        }
    }

    /// Reads the results among entries of the own log.
    pub(in crate::member) fn follow(&mut self, written: &[Entry]) {
        for result in written.iter().filter_map(StatementResult::of) {
            self.pending.remove(&result.seqno);
            self.reported.insert(result.seqno);
        }
        while self.reported.len() > PENDING_MAX {
            self.reported.pop_first();
        }
    }

    /// Proposes the results that are due, while there is a primary component.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context) {
        if self.pending.is_empty() || !ctx.connection().is_primary() {
            return;
        }
        let now = ctx.now();
        for (result, due) in self.pending.values_mut().filter(|(_, due)| *due <= now) {
            *due = now.saturating_add(REPEAT_AFTER);
            ctx.raft.propose(now, EntryKind::Note, result.to_payload());
        }
    }

    /// When the next result is due.
    pub(in crate::member) fn deadline(&self) -> Micros {
        self.pending.values().map(|(_, due)| *due).min().unwrap_or(Micros::MAX)
    }
}

impl StatementResult {
    /// The result in an entry, if it is such a note of a member.
    pub(in crate::member) fn of(entry: &Entry) -> Option<StatementResult> {
        if entry.kind != EntryKind::Note || entry.proposal.member.is_nil() {
            return None;
        }
        let payload = entry.payload();
        let rest = std::str::from_utf8(&payload).ok()?.strip_prefix(PREFIX)?;
        let (seqno, text) = rest.split_once(": ")?;
        let seqno = seqno.parse().ok().filter(|seqno| *seqno >= 0)?;
        let error = (text != SUCCESS).then(|| text.to_owned());
        Some(StatementResult { seqno, error })
    }

    fn to_payload(&self) -> Bytes {
        let text = self.error.as_deref().unwrap_or(SUCCESS);
        let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        format!("{PREFIX}{}: {}", self.seqno, &text[..end]).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::{EntryHeader, MemberId, ProposalId, Uuid};

    const HISTORY: Uuid = Uuid([4; 16]);

    fn note(member: MemberId, payload: Bytes) -> Entry {
        let proposal = ProposalId { member, ..ProposalId::default() };
        let header = EntryHeader { index: 7, term: 1, kind: EntryKind::Note, seqno: 4, proposal, time: 0 };
        Entry::new(header, &payload)
    }

    fn result(error: Option<&str>) -> StatementResult {
        StatementResult { seqno: 4, error: error.map(str::to_owned) }
    }

    #[test]
    fn result_of_member_round_trips_and_other_notes_are_ignored() {
        let member = Uuid([1; 16]);
        for result in [result(None), result(Some("Unknown table, Error_code: 1051;"))] {
            assert_eq!(StatementResult::of(&note(member, result.to_payload())), Some(result.clone()));
            assert_eq!(StatementResult::of(&note(MemberId::NIL, result.to_payload())), None);
        }
        for text in
            ["", "result of statement ", "result of statement 4", "result of statement x: ok", "n1 donates"]
        {
            assert_eq!(StatementResult::of(&note(member, text.into())), None, "{text}");
        }
        let long = result(Some(&"é".repeat(TEXT_MAX)));
        let read = StatementResult::of(&note(member, long.to_payload())).unwrap();
        assert_eq!(read.error.unwrap().len(), TEXT_MAX);
    }

    #[test]
    fn other_members_result_is_due_after_the_origins_time() {
        let mut results = StatementResults::default();
        assert_eq!(results.deadline(), Micros::MAX);
        results.executed(1_000, HISTORY, result(None), false);
        assert_eq!(results.deadline(), 1_000 + REPORT_AFTER);
        results.executed(2_000, HISTORY, StatementResult { seqno: 5, error: None }, true);
        assert_eq!(results.deadline(), 2_000);
    }

    #[test]
    fn result_that_is_in_the_log_before_is_not_reported() {
        let mut results = StatementResults::default();
        results.executed(0, HISTORY, StatementResult { seqno: 1, error: None }, true);
        let entries = vec![note(Uuid([1; 16]), result(None).to_payload())];
        results.follow(&entries);
        results.executed(0, HISTORY, result(None), false);
        assert_eq!(results.pending.keys().collect::<Vec<_>>(), [&1], "4 is in the log");
        results.executed(0, Uuid([5; 16]), result(None), true);
        assert_eq!(results.pending.keys().collect::<Vec<_>>(), [&4], "of another history");
    }

    #[test]
    fn pending_results_are_bounded() {
        let mut results = StatementResults::default();
        for seqno in 0..PENDING_MAX as Seqno + 10 {
            results.executed(0, HISTORY, StatementResult { seqno, error: None }, true);
        }
        assert_eq!(results.pending.len(), PENDING_MAX);
        assert_eq!(results.pending.first_key_value().unwrap().0, &10);
    }
}
