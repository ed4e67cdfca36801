//! When a member takes over by itself (`lockstep block serve --auto-promote`).
//!
//! A member promotes itself once all of this has held without a break for the time that the operator has chosen:
//!
//! - The present epoch has an owner, and that owner is gone. Another member is gone if it is not connected, the last view does
//!   not list it, and none of its writes come. An owner that is only slow is connected. This member is gone as an owner if its
//!   process was started again, so that it knows neither the attachment nor who waits for the promotion.
//! - A majority answers, and this copy is whole and has everything that was committed.
//!
//! Under a weak commit policy it waits until it leads. The entry of the promotion names the epoch before, so of several members
//! one is promoted. The former primary answers nothing by the time at which the new one takes a client: see the crate's README.

use super::attachments::Holder;
use super::entry::Entry;
use super::replica::{Log, Replica};
use super::resync::Wholeness;
use lockstep_core::MemberId;
use std::time::{Duration, Instant};

/// How often the member looks.
const PERIOD: Duration = Duration::from_millis(100);

/// An observation of the present epoch's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    epoch: u64,
    /// Moves with each entry of the owner.
    next: u64,
    /// The owner is gone.
    is_gone: bool,
    /// A majority answers, and this copy has everything.
    is_current: bool,
}

/// Measures for how long the owner has been gone.
#[derive(Debug)]
struct Watch {
    after: Duration,
    /// The first observation of this state, and its time.
    since: Option<(Seen, Instant)>,
}

impl Watch {
    fn new(after: Duration) -> Watch {
        Watch { after, since: None }
    }

    /// Returns whether the owner has been gone for long enough.
    fn step(&mut self, seen: Seen, now: Instant) -> bool {
        if !seen.is_gone || !seen.is_current {
            self.since = None;
            return false;
        }
        let since = match self.since {
            Some((before, since)) if before == seen => since,
            _ => {
                self.since = Some((seen, now));
                now
            }
        };
        now.saturating_duration_since(since) >= self.after
    }
}

impl<L: Log> Replica<L> {
    /// The log's last view has these members.
    pub fn viewed(&self, members: Vec<MemberId>) {
        self.lock().view = Some(members);
    }

    /// Waits until the owner of the present epoch has been gone for this time, and this member was promoted by itself. Returns
    /// the new epoch, or `None` after [`Replica::close`].
    pub async fn promote_when_owner_is_gone(&self, after: Duration) -> Option<u64> {
        let me = self.log().member();
        let (mut watch, mut tried) = (Watch::new(after), None);
        loop {
            tokio::time::sleep(PERIOD).await;
            {
                let state = self.lock();
                if state.closing {
                    return None;
                }
                // The entry of a try came late.
                let epoch = state.attachments.epoch();
                if tried.is_some_and(|before| before + 1 == epoch)
                    && *state.attachments.holder() == Holder::Promoted(me)
                {
                    return Some(epoch);
                }
            }
            let seen = self.seen();
            if !watch.step(seen, Instant::now()) || self.log().refusal().is_some() {
                continue;
            }
            let before = seen.epoch;
            tried = Some(before);
            let outcome = tokio::select! {
                outcome = self.control(|token| Entry::Promote { before, token }) => outcome.ok(),
                () = self.until_owner_is_back(before) => None,
            };
            if let Some(outcome) = outcome.filter(|outcome| outcome.accepted) {
                return Some(outcome.epoch);
            }
            // Another member was promoted, or the log has no answer: the time begins again.
            watch = Watch::new(after);
        }
    }

    /// Waits until the owner of this epoch is no longer gone: a promotion must not be sent again then.
    async fn until_owner_is_back(&self, epoch: u64) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let seen = self.seen();
            if seen.epoch == epoch && !seen.is_gone {
                return;
            }
        }
    }

    fn seen(&self) -> Seen {
        let confirmed = self.log().confirmed();
        let me = self.log().member();
        let state = self.lock();
        let epoch = state.attachments.epoch();
        let (owner, next) = match state.attachments.holder() {
            Holder::Nobody => (None, 0),
            Holder::Promoted(member) => (Some(*member), 0),
            Holder::Attached { member, next, .. } => (Some(*member), *next),
        };
        let is_forgotten = match state.attachments.holder() {
            Holder::Nobody => false,
            Holder::Promoted(_) => state.promoted_here != Some(epoch),
            Holder::Attached { .. } => state.session.as_ref().is_none_or(|session| session.epoch() != epoch),
        };
        let is_listed = |member: &MemberId| state.view.as_ref().is_some_and(|view| view.contains(member));
        let is_unlisted = owner.is_some_and(|owner| !is_listed(&owner));
        let is_current = state.caught_up
            && state.wholeness == Wholeness::Whole
            && confirmed.is_some_and(|seqno| state.delivered >= seqno);
        drop(state);
        let is_gone = match owner {
            None => false,
            Some(owner) if owner == me => is_forgotten,
            Some(owner) => is_unlisted && !self.log().is_connected(&owner),
        };
        Seen { epoch, next, is_gone, is_current }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(10);

    #[test]
    fn owner_must_be_gone_for_the_whole_time() {
        let gone = Seen { epoch: 3, next: 7, is_gone: true, is_current: true };
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut watch = Watch::new(AFTER);
        assert!(!watch.step(gone, at(0)));
        assert!(!watch.step(gone, at(9)));
        assert!(watch.step(gone, at(10)));
        let breaks = [
            ("it is connected", Seen { is_gone: false, ..gone }),
            ("this member is cut off", Seen { is_current: false, ..gone }),
        ];
        for (why, seen) in breaks {
            let mut watch = Watch::new(AFTER);
            assert!(!watch.step(gone, at(0)));
            assert!(!watch.step(seen, at(5)));
            assert!(!watch.step(gone, at(6)));
            assert!(!watch.step(gone, at(15)), "{why}");
            assert!(watch.step(gone, at(16)), "{why}");
        }
        for seen in [Seen { next: 8, ..gone }, Seen { epoch: 4, ..gone }] {
            let mut watch = Watch::new(AFTER);
            assert!(!watch.step(gone, at(0)));
            assert!(!watch.step(seen, at(5)), "it writes, or another epoch has begun");
            assert!(!watch.step(seen, at(14)));
            assert!(watch.step(seen, at(15)));
        }
    }
}
