//! Which membership changes a leader may append.
//!
//! A membership is in force once it is appended, committed or not. One voter changes at a time: then any majority of
//! the old one and any of the new one share a member. That holds for neighbours only, so the previous change must be
//! committed first. An entry of the own term must be committed, too: until then a predecessor's change, unknown to this
//! leader, could still win.

use super::errors::{ChangeError, NotLeader};
use super::failpoints::Failpoint;
use super::local::Local;
use crate::members::Membership;

/// Checks a change of the membership in force to this one.
///
/// # Errors
/// Why a leader must not append it now.
pub(super) fn check_change(
    local: &Local,
    membership: &Membership,
    hands_over: bool,
) -> Result<(), ChangeError> {
    if !local.is_leader() {
        return Err(ChangeError::NotLeader(NotLeader { leader: local.leader() }));
    }
    if hands_over {
        return Err(ChangeError::HandingOver);
    }
    let sorted = membership.members.windows(2).all(|pair| pair[0].id < pair[1].id);
    if !sorted {
        return Err(ChangeError::Malformed);
    }
    if membership.voters().next().is_none() {
        return Err(ChangeError::NoVoters);
    }
    if !local.is_active(Failpoint::MembershipTooEarly) {
        let is_committed = local.log().tail().membership_index <= local.commit();
        if !is_committed || !local.has_committed_in_term() {
            return Err(ChangeError::TooEarly);
        }
    }
    if membership.voters_changed(local.membership()) > 1 {
        return Err(ChangeError::TooMuch);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{follower, leader, member, persisted, with_entries};
    use super::*;

    #[test]
    fn change_waits_for_commit_in_own_term() {
        let mut local = with_entries(leader(3), 2);
        let same = Membership::clone(local.membership());
        assert_eq!(check_change(&local, &same, false), Err(ChangeError::TooEarly));
        local.commit_to(2);
        assert_eq!(check_change(&local, &same, false), Ok(()));
        assert_eq!(check_change(&local, &same, true), Err(ChangeError::HandingOver));
    }

    #[test]
    fn only_one_voter_changes_at_a_time() {
        let mut local = persisted(with_entries(leader(3), 2));
        local.commit_to(2);
        let mut next = Membership::clone(local.membership());
        next.members.truncate(2);
        assert_eq!(check_change(&local, &next, false), Ok(()));
        next.members.truncate(1);
        assert_eq!(check_change(&local, &next, false), Err(ChangeError::TooMuch));
        next.members.clear();
        assert_eq!(check_change(&local, &next, false), Err(ChangeError::NoVoters));
    }

    #[test]
    fn follower_refuses_change() {
        let local = follower(3, Some(member(2)));
        let refused = ChangeError::NotLeader(NotLeader { leader: Some(member(2)) });
        assert_eq!(check_change(&local, &Membership::clone(local.membership()), false), Err(refused));
    }
}
