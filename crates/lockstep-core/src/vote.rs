//! Votes on results: each member's result of applying a seqno, and the decision between differing ones.
//!
//! Members apply the same entries to the same data, so their results are equal. A member with another result has other
//! data, or a fault. If results differ, the most frequent one is the best guess.

use crate::codec::{DecodeError, Reader, Writer};
use crate::types::*;
use bytes::Bytes;
use std::collections::BTreeMap;

/// The result of applying an entry: [`SUCCESS`], or a hash of the error's text.
pub type Opinion = u64;

/// The entry was applied.
pub const SUCCESS: Opinion = 0;

/// The opinion of a member whose server reports this error. Equal texts give equal opinions.
pub fn opinion(error: &[u8]) -> Opinion {
    // Only the bytes before the first NUL are the server's text.
    let text = error.split(|byte| *byte == 0).next().unwrap_or_default();
    match text.is_empty() {
        true => SUCCESS,
        false => xxhash_rust::xxh3::xxh3_64(text).max(1),
    }
}

/// The outcome of a vote; the payload of an [`EntryKind::Outcome`] entry. A member with another opinion on this seqno is
/// inconsistent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VoteOutcome {
    /// The seqno whose result was voted on.
    pub seqno: Seqno,
    /// The winning opinion.
    pub winner: Opinion,
    /// The opinions by member, for the log line.
    pub opinions: Vec<(MemberId, Opinion)>,
}

impl VoteOutcome {
    /// As an entry's payload.
    pub fn to_payload(&self) -> Bytes {
        let VoteOutcome { seqno, winner, opinions } = self;
        let mut w = Writer::with_capacity(20 + opinions.len() * 24);
        w.i64(*seqno);
        w.u64(*winner);
        w.u32(opinions.len() as u32);
        for (member, opinion) in opinions {
            w.raw(&member.0);
            w.u64(*opinion);
        }
        w.into_bytes()
    }

    /// Reads an entry's payload.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one.
    pub fn from_payload(payload: Bytes) -> Result<VoteOutcome, DecodeError> {
        let mut r = Reader::new(payload);
        let (seqno, winner) = (r.i64()?, r.u64()?);
        let n = r.count(24)?;
        let mut opinions = Vec::with_capacity(n);
        for _ in 0..n {
            opinions.push((Uuid(r.array()?), r.u64()?));
        }
        r.end()?;
        Ok(VoteOutcome { seqno, winner, opinions })
    }
}

/// The winner among these opinions while `missing` members have not voted: the most frequent one; among equals success,
/// else the higher. `None`: the missing votes may change the result. With `enough` > 0 (`gcs.vote_policy`), that many
/// votes for success decide.
pub fn winner(opinions: impl IntoIterator<Item = Opinion>, missing: usize, enough: usize) -> Option<Opinion> {
    let mut counts: BTreeMap<Opinion, usize> = BTreeMap::new();
    for opinion in opinions {
        *counts.entry(opinion).or_default() += 1;
    }
    let successes = counts.get(&SUCCESS).copied().unwrap_or(0);
    if enough > 0 {
        if successes >= enough {
            return Some(SUCCESS);
        }
        if successes + missing >= enough {
            return None;
        }
    }
    // The best of those that are as frequent: success first, then the higher.
    let rank = |opinion: Opinion, count: usize| (count, opinion == SUCCESS, opinion);
    let (&best, &count) = counts.iter().max_by_key(|(opinion, count)| rank(**opinion, **count))?;
    // The best possible rival: an opinion, perhaps a new one, that gets all missing votes.
    let others = counts.iter().filter(|(opinion, _)| **opinion != best).map(|(o, c)| (*o, *c));
    let unheard = [(SUCCESS, successes), (Opinion::MAX, 0)].into_iter().filter(|(o, _)| *o != best);
    let turned = missing > 0
        && others.chain(unheard).any(|(opinion, had)| rank(opinion, had + missing) > rank(best, count));
    (!turned).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vote_outcome_round_trips_and_truncated_one_is_refused() {
        let outcome =
            VoteOutcome { seqno: 7, winner: 3, opinions: vec![(Uuid([1; 16]), 3), (Uuid([2; 16]), SUCCESS)] };
        let bytes = outcome.to_payload();
        assert_eq!(VoteOutcome::from_payload(bytes.clone()), Ok(outcome));
        for cut in 0..bytes.len() {
            assert!(VoteOutcome::from_payload(bytes.slice(..cut)).is_err());
        }
    }

    #[test]
    fn servers_that_say_the_same_are_of_one_opinion() {
        assert_eq!(opinion(b""), SUCCESS);
        assert_eq!(opinion(b"\0"), SUCCESS);
        assert_eq!(opinion(b"Error_code: 1050\0"), opinion(b"Error_code: 1050"));
        assert_ne!(opinion(b"Error_code: 1050"), opinion(b"Error_code: 1049"));
    }

    #[test]
    fn most_votes_win_and_success_wins_ties() {
        for (opinions, missing, enough, due) in [
            // One of three fails: two successes decide.
            (vec![5, 0], 1, 0, None),
            (vec![5, 0, 0], 0, 0, Some(0)),
            (vec![0, 0], 1, 0, Some(0)),
            // Two fail alike: the third is the odd one, and need not be waited for.
            (vec![5, 5], 1, 0, Some(5)),
            (vec![5, 5], 2, 0, None),
            (vec![5, 5, 0], 0, 0, Some(5)),
            // For different reasons.
            (vec![5, 6, 0], 0, 0, Some(0)),
            (vec![5, 6], 0, 0, Some(6)),
            // Two members.
            (vec![5], 1, 0, None),
            (vec![5, 0], 0, 0, Some(0)),
            (vec![5, 5], 0, 0, Some(5)),
            (vec![5], 0, 0, Some(5)),
            (vec![], 3, 0, None),
            // gcs.vote_policy = 1: one success is enough.
            (vec![5, 5, 0], 0, 1, Some(0)),
            (vec![5, 5], 1, 1, None),
            (vec![5, 5, 5], 0, 1, Some(5)),
        ] {
            assert_eq!(winner(opinions.clone(), missing, enough), due, "{opinions:?} {missing} {enough}");
        }
    }

    proptest! {
        /// Whatever the missing ones say, they do not turn what has been decided.
        #[test]
        fn a_decision_is_final(
            given in prop::collection::vec(0u64..4, 0..6),
            later in prop::collection::vec(0u64..5, 0..4),
            enough in 0usize..4,
        ) {
            if let Some(early) = winner(given.iter().copied(), later.len(), enough) {
                let all = given.iter().chain(&later).copied();
                prop_assert_eq!(winner(all, 0, enough), Some(early));
            }
        }

        /// When all have spoken there is an outcome, and one that somebody has said.
        #[test]
        fn everybody_is_enough(given in prop::collection::vec(0u64..4, 1..8)) {
            let winner = winner(given.iter().copied(), 0, 0).unwrap();
            prop_assert!(given.contains(&winner));
        }
    }
}
