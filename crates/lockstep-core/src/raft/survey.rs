//! The log survey before a forced bootstrap: would the other members vote for this one?
//!
//! A member refuses if its log is more up to date, or if it hears a leader. The question is a pre-vote, which changes
//! nothing at the member asked.

use super::election::pre_vote;
use super::local::Local;
use super::output::Outputs;
use crate::types::*;
use std::collections::BTreeMap;

/// The replies to the last survey, if there was one.
#[derive(Debug, Default)]
pub(super) struct LogSurvey {
    replies: Option<BTreeMap<MemberId, bool>>,
}

impl LogSurvey {
    /// Asks every other member, also learners. Earlier replies are discarded.
    pub(super) fn begin(&mut self, local: &Local, out: &mut Outputs) {
        self.replies = Some(BTreeMap::new());
        self.ask(local, out);
    }

    /// Asks the members that have not replied: a question or its reply may have been lost.
    pub(super) fn ask(&self, local: &Local, out: &mut Outputs) {
        let Some(replies) = &self.replies else { return };
        for to in local.other_members().filter(|id| !replies.contains_key(id)) {
            out.send(to, pre_vote(local));
        }
    }

    /// Records a reply. A leader asks no member. Returns true if the reply only says that the member is in a newer term: it
    /// has to be asked again from there.
    pub(super) fn record(&mut self, local: &Local, from: MemberId, term: Term, granted: bool) -> bool {
        let Some(replies) = &mut self.replies else { return false };
        if local.is_leader() || !local.is_member(&from) {
            return false;
        }
        let counts = granted || term <= local.term();
        if counts {
            replies.insert(from, granted);
        }
        !counts
    }

    /// Whether a member has replied that it would vote for this one. `None`: it has not replied.
    pub(super) fn would_vote(&self, id: &MemberId) -> Option<bool> {
        self.replies.as_ref()?.get(id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{follower, member};
    use super::*;

    #[test]
    fn member_in_newer_term_is_asked_again() {
        let (local, mut out, mut survey) = (follower(3, None), Outputs::new(), LogSurvey::default());
        assert!(!survey.record(&local, member(2), 1, true), "no survey");
        assert_eq!(survey.would_vote(&member(2)), None);
        survey.begin(&local, &mut out);
        assert_eq!(out.take().len(), 2);
        assert!(!survey.record(&local, member(2), 1, false));
        assert!(survey.record(&local, member(3), 5, false));
        assert_eq!((survey.would_vote(&member(2)), survey.would_vote(&member(3))), (Some(false), None));
        survey.ask(&local, &mut out);
        assert_eq!(out.take().len(), 1);
    }
}
