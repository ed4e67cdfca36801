//! Accessors that callers use in every round: no allocation.

use super::*;

impl Raft {
    /// The membership in force: the latest in the own log, committed or not.
    pub fn membership(&self) -> Arc<Membership> {
        self.log.tail().membership.clone()
    }

    /// This member's id.
    pub fn id(&self) -> MemberId {
        self.config.id
    }

    /// Whether we vote, by the membership in force.
    pub fn is_voter(&self) -> bool {
        self.log.tail().membership.is_voter(&self.config.id)
    }

    /// Whether we lead, as far as we know.
    pub fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }

    /// Whether we lead and an entry of our own term is committed: from then on the commit index is the cluster's.
    pub fn has_committed_in_term(&self) -> bool {
        self.is_leader() && self.log.term_at(self.log.commit()) == Some(self.term)
    }

    /// The last index on a peer's disk, as far as its leader knows; 0 if we do not lead.
    pub fn matched(&self, id: &MemberId) -> Index {
        self.peers.get(id).map_or(0, |peer| peer.matched)
    }

    /// When a peer last answered us as its leader.
    pub fn last_heard(&self, id: &MemberId) -> Option<Micros> {
        self.peers.get(id).map(|peer| peer.last_heard)
    }

    /// The smoothed round trip to a peer, measured as its leader.
    pub fn rtt(&self, id: &MemberId) -> Option<Micros> {
        self.peers.get(id).and_then(|peer| peer.rtt)
    }

    /// Other timing from now on: how often a leader speaks, and after which silence others campaign.
    pub fn set_timing(&mut self, heartbeat: Micros, election_timeout: Micros) {
        self.config.heartbeat = heartbeat;
        self.config.election_timeout = election_timeout;
    }

    /// Sets a timeout for a leader whose heartbeats are usually late because its threads wait for a processor. While the
    /// connection holds and `timeout` exceeds the election timeout, this member campaigns only after a silence of `timeout`
    /// (randomised up to twice that), and as a leader it does not step down earlier. Votes for others are not affected.
    pub fn set_leader_timeout(&mut self, patience: Micros) {
        self.leader_timeout = patience;
    }

    /// What [`Raft::set_leader_timeout`] has set.
    pub fn leader_timeout(&self) -> Micros {
        self.leader_timeout
    }

    /// The round trip to the member farthest away, of those that there is a connection with.
    pub fn set_longest_rtt(&mut self, rtt: Micros) {
        self.longest_rtt = rtt;
    }

    /// Silence of a leader after which others campaign.
    pub fn election_timeout(&self) -> Micros {
        self.config.election_timeout
    }

    /// Whether we are handing leadership over: nothing is appended meanwhile.
    pub fn is_transferring_leadership(&self) -> bool {
        self.lead.transfer.is_some()
    }
}
