//! States of a member, for unit tests of single components.

use super::config::Config;
use super::failpoints::Failpoints;
use super::local::{Local, Role};
use super::log::Log;
use super::restore::LogEnd;
use super::write::Vote;
use crate::members::{MemberInfo, Membership, Role as MemberRole};
use crate::policy::Policy;
use crate::snapshot::StateSnapshot;
use crate::types::*;
use bytes::Bytes;

/// The member with this number; tests run as member 1.
pub(super) fn member(n: u8) -> MemberId {
    Uuid([n; 16])
}

pub(super) fn config() -> Config {
    Config {
        id: member(1),
        incarnation: 1,
        heartbeat: 100_000,
        election_timeout: 1_000_000,
        disk_timeout: 5_000_000,
        segment_bytes: 1 << 20,
        max_append_bytes: 64 << 10,
        max_inflight_bytes: 1 << 20,
        cache_bytes: 1 << 20,
        max_unwritten_bytes: 1 << 20,
        max_at_risk_bytes: 1 << 20,
        seed: 7,
        failpoints: Failpoints::default(),
    }
}

/// A follower in term 1 of a cluster of `voters` members, with an empty log.
pub(super) fn follower(voters: u8, leader: Option<MemberId>) -> Local {
    damaged_follower(voters, leader, None)
}

/// A follower like that of [`follower`]. Its log had ended at `former_end` before damage.
pub(super) fn damaged_follower(voters: u8, leader: Option<MemberId>, former_end: Option<LogEnd>) -> Local {
    let info = |n| MemberInfo {
        id: member(n),
        name: format!("n{n}"),
        address: String::new(),
        zone: 0,
        role: MemberRole::Voter,
        wants_vote: true,
        arbitrator: false,
    };
    let membership = Membership { members: (1..=voters).map(info).collect() };
    let state = StateSnapshot::genesis(Uuid([9; 16]), 0, membership);
    let mut local = Local::new(config(), Vote::default(), (Log::starting_at(state), former_end), 0);
    local.enter_term(1);
    local.set_leader(leader);
    local
}

/// A leader in term 1 of a cluster of `voters` members, with an empty log.
pub(super) fn leader(voters: u8) -> Local {
    let mut local = follower(voters, None);
    local.set_role(Role::Candidate);
    local.vote_for(member(1));
    local.lead();
    local
}

/// With `n` more entries of term 1, which are equal to the leader's.
pub(super) fn with_entries(mut local: Local, n: u64) -> Local {
    for _ in 0..n {
        let payload = Bytes::from_static(b"entry");
        let seqno = local.log().tail().seqno;
        let entry = local.next_entry(1, EntryKind::Note, ProposalId::default(), &payload, seqno);
        assert!(local.append(entry).is_ok(), "a note can be appended");
    }
    local.agree_up_to(local.log().last());
    local
}

/// With an entry of term 1 that puts `policy` in force, and one more.
pub(super) fn with_policy(mut local: Local, policy: Policy) -> Local {
    let seqno = local.log().tail().seqno;
    let entry = local.next_entry(1, EntryKind::Policy, ProposalId::default(), &policy.to_payload(), seqno);
    assert!(local.append(entry).is_ok(), "a policy can be appended");
    with_entries(local, 1)
}

/// With all of its log on the disk.
pub(super) fn persisted(mut local: Local) -> Local {
    if let Some(op) = local.write() {
        local.written(op.ticket);
    }
    assert_eq!(local.persisted(), local.log().last());
    local
}
