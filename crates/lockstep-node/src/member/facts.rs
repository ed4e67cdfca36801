//! Facts about the members, gathered from Raft, the peers and the options.

use crate::api::LocalState;
use crate::member::context::Context;
use crate::member::leadership::failure_detector::Network;
use crate::member::leadership::{Candidate, NEAR_ENOUGH};
use crate::member::membership::peers::Peer;
use lockstep_core::{MemberId, Seqno};

/// This member's own state, as its components see it.
#[derive(Clone, Copy, Debug)]
pub(in crate::member) struct Standing {
    pub(in crate::member) state: LocalState,
    /// Synced, or it would be but for the server's apply hold: it lacks nothing that it is due to have, and is not
    /// Desynced.
    pub(in crate::member) synced_but_for_hold: bool,
    /// This connection is being left, or has been.
    pub(in crate::member) leaving: bool,
    /// The last seqno delivered, or the position.
    pub(in crate::member) delivered: Seqno,
    /// Everything up to the position has been certified, so that later entries are delivered.
    pub(in crate::member) delivering: bool,
}

impl Context {
    /// The other voters, as possible leaders.
    pub(in crate::member) fn candidates(&self) -> Vec<Candidate> {
        let membership = self.raft.membership();
        let others = membership.members.iter().filter(|m| m.role.votes() && m.id != self.me().id);
        others
            .map(|member| {
                let peer = self.peers.get(&member.id);
                let health = peer.and_then(Peer::health);
                Candidate {
                    id: member.id,
                    view_uuid: peer.map(|peer| peer.hello().view_uuid),
                    leaving: peer.is_some_and(|peer| peer.leaving()),
                    fit: self.unfit_to_lead(&member.id).is_none(),
                    database: !member.arbitrator,
                    synced: self.is_synced(&member.id),
                    held_back: self.peer_is_held_back(&member.id),
                    matched: self.raft.matched(&member.id),
                    finished: health.map(|health| health.finished),
                }
            })
            .collect()
    }

    /// Why a member should not become the leader, if so.
    pub(in crate::member) fn unfit_to_lead(&self, id: &MemberId) -> Option<String> {
        let membership = self.raft.membership();
        let member = membership.get(id)?;
        if member.arbitrator {
            return Some("is an arbitrator: it leads only briefly, and never by command".into());
        }
        let Some(peer) = self.peers.get(id) else {
            return Some("is not connected".into());
        };
        if !member.role.votes() {
            return Some(match member.wants_vote {
                true => "does not vote yet: wait until `lockstep status` shows it as a voter".into(),
                false => "does not vote (member.vote=no, pc.weight=0), so it cannot lead".into(),
            });
        }
        if peer.leaving() {
            return Some("is about to leave".into());
        }
        (!self.responds(id)).then(|| "has not responded for some time".into())
    }

    pub(in crate::member) fn is_synced(&self, id: &MemberId) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.state() == Some(LocalState::Synced))
    }

    /// Whether a member's last health message says that an apply hold keeps entries from its server. Any other fit
    /// member should lead instead.
    pub(in crate::member) fn peer_is_held_back(&self, id: &MemberId) -> bool {
        self.peers.get(id).is_some_and(Peer::is_held_back)
    }

    /// Whether an apply hold keeps entries from the server of this member, or another one.
    pub(in crate::member) fn member_is_held_back(&self, id: &MemberId) -> bool {
        if *id == self.me().id { self.is_held_back() } else { self.peer_is_held_back(id) }
    }

    /// Whether a member has the state and is near the end of the log, so that its vote delays nothing.
    pub(in crate::member) fn has_caught_up(&self, id: &MemberId) -> bool {
        self.peers.get(id).is_some_and(Peer::is_ready)
            && self.raft.matched(id) + NEAR_ENOUGH >= self.raft.last_index()
    }

    /// Whether a connected member could confirm that another one continues by its log. This copies nothing, so members
    /// with `gcs.stateless` do it, too.
    pub(in crate::member) fn somebody_may_confirm(&self) -> bool {
        self.peers.values().any(|p| !p.hello().arbitrator && p.state() == Some(LocalState::Synced))
    }

    /// The round trips that an election needs.
    pub(in crate::member) fn network(&self) -> Network {
        let membership = self.raft.membership();
        let rtt = |id: MemberId| self.peers.rtt_to(&id);
        let own_vote = usize::from(membership.is_voter(&self.me().id));
        Network {
            voters: membership.voters().filter(|id| *id != self.me().id).filter_map(rtt).collect(),
            others_needed: membership.majority().saturating_sub(own_vote),
            leader: self.raft.leader().and_then(rtt),
            farthest: self.peers.values().filter_map(Peer::rtt).max(),
        }
    }
}
