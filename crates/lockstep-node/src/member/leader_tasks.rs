//! What a leader does beside ordering: it lets members in and out, shows them to each other in views, and makes and
//! unmakes voters. One membership change at a time; each duty is looked at again in every round, so that a change
//! that was refused or lost is simply tried again.

use super::connection_state::ConnectionState;
use super::{Member, Micros};
use crate::api::{Level, LocalState};
use lockstep_core::EntryKind;
use lockstep_core::codec::Writer;
use lockstep_core::members::{MemberInfo, Membership, Role, View, ViewMember};
use lockstep_core::policy::PolicyKind;
use lockstep_core::{Index, MemberId};

/// A learner that is behind by no more than this may vote.
pub(super) const NEAR_ENOUGH: Index = 1000;
/// A connection that breaks and comes back within this makes no view.
const VIEW_GRACE: Micros = 250_000;

/// A learner that is gone stays a member for so many `cluster.evict_timeout`s.
const LEARNER_KEPT: Micros = 12;

impl Member {
    /// All duties of a leader, in the order of their urgency.
    pub(super) fn lead(&mut self) {
        if !self.raft.has_committed_in_term() {
            return;
        }
        if let Some((membership, why)) = self.next_membership() {
            // Refused while the previous change is under way: tried again soon.
            if self.raft.change_membership(self.now, membership).is_ok() {
                self.log(Level::Info, why);
            }
        }
        if self.pass_on() {
            return;
        }
        self.look_whether_somebody_writes();
        self.watch_disks(NEAR_ENOUGH);
        // Sees the view that was there when this member came to lead, if it has just done so.
        self.place_leadership();
        self.return_leadership();
        self.make_view();
        self.make_trim_mark();
        self.check_own_fitness();
    }

    /// An arbitrator leads only where nobody else has what it has, and no longer than until somebody with a database has
    /// that, too. A member whose server stands at a gate makes no trim marks, without which all others' certification
    /// remembers ever more, and its server refuses writes: it leads no longer than until there is one whose does not. That
    /// something comes to its gate it does not wait for: where nobody else writes, or may, nothing ever would. The same goes
    /// for one whose server waits for its state, and cannot write before it has it.
    fn pass_on(&mut self) -> bool {
        let stands = self.has_held_server() || matches!(self.connection, ConnectionState::NeedState { .. });
        if !self.me.arbitrator && !stands {
            return false;
        }
        let heir = self.best_successor(|id| {
            self.unfit_to_lead(id).is_none()
                && self.raft.matched(id) + NEAR_ENOUGH >= self.raft.last_index()
                && (!stands || self.is_synced(id))
        });
        heir.is_some_and(|heir| self.raft.transfer_leadership(self.now, heir).is_ok())
    }

    /// Who is to lead instead of this member, of the other voters that are fit for it: one with a database; that is Synced; from
    /// whose server nothing is kept; and the one of those with most of the log.
    pub(super) fn best_successor(&self, fit: impl Fn(&MemberId) -> bool) -> Option<MemberId> {
        let membership = self.raft.membership();
        let serves = |id: &MemberId| membership.get(id).is_some_and(|m| !m.arbitrator);
        let others = membership.voters().filter(|id| *id != self.me.id && fit(id));
        others
            .max_by_key(|id| (serves(id), self.is_synced(id), !self.is_kept_from(id), self.raft.matched(id)))
    }

    pub(super) fn is_synced(&self, id: &MemberId) -> bool {
        self.peers.get(id).and_then(|peer| peer.health).is_some_and(|h| h.state == LocalState::Synced)
    }

    /// The next change of the membership that is due, with its line for the log.
    fn next_membership(&self) -> Option<(Membership, String)> {
        let membership = self.raft.membership();
        let connected = |id: &MemberId| *id == self.me.id || self.peers.contains_key(id);
        // The leader is a member, too: its address may be new since its last life.
        for hello in self.peers.values().map(|peer| &peer.hello).chain([&self.me]) {
            match membership.get(&hello.id) {
                None if hello.id == self.me.id || self.was_removed(hello) => {}
                None => {
                    let former = membership.former(&hello.name, &hello.address);
                    let mut why = format!("{} ({}) joins as a learner", hello.name, hello.address);
                    if let Some(old) = former.filter(|old| !connected(&old.id)) {
                        // From elsewhere it may be another server with a copied name, and the old one only restarts.
                        if old.address == hello.address || self.is_long_gone(&old.id) {
                            // Its log was lost: the old id goes first, the new one comes by an entry of its own.
                            let why = format!(
                                "{} is back without its log: its old identity is removed",
                                hello.name
                            );
                            return Some((self.demoted_or_removed(&membership, &old.id, true), why));
                        }
                        if old.role.votes() {
                            why += &self.rival_text(old);
                        }
                    }
                    return Some((membership.with(hello.as_member(Role::Learner)), why));
                }
                Some(known) => {
                    let told = hello.as_member(known.role);
                    if *known != told {
                        return Some((
                            membership.with(told),
                            format!("{} has a new address or zone", hello.name),
                        ));
                    }
                    // It came back so soon without its log that its former self was still thought to be there.
                    let former = membership.members.iter().find(|m| {
                        m.id != hello.id
                            && m.name == hello.name
                            && m.address == hello.address
                            && !connected(&m.id)
                    });
                    if let Some(old) = former {
                        let why = format!("{} is back under a new identity: the old one goes", hello.name);
                        return Some((self.demoted_or_removed(&membership, &old.id, true), why));
                    }
                }
            }
        }
        self.departure(&membership)
            .or_else(|| self.replacement(&membership))
            .or_else(|| self.promotion(&membership))
            .or_else(|| self.eviction(&membership))
            .or_else(|| self.forgotten(&membership))
    }

    /// Whether it has been away for so long that it may be given up.
    fn is_long_gone(&self, id: &MemberId) -> bool {
        let patience = self.tuning.evict_timeout.as_micros() as Micros;
        self.gone_since(id).is_some_and(|since| self.now.saturating_sub(since) > patience)
    }

    /// What is said of a new member that has the name of one that is away, which is at another address.
    fn rival_text(&self, old: &MemberInfo) -> String {
        format!(
            "; a member of the same name at {} is away: if the new one is its replacement, it votes when the old one has \
             been gone for {} s (cluster.evict_timeout), or after `lockstep remove --name {}`; if not, give it a \
             wsrep_node_name of its own",
            old.address,
            self.tuning.evict_timeout.as_secs(),
            old.name
        )
    }

    /// The voter whose name this learner has, and which is away: both may be one server that has lost its log and is at
    /// another address now, or two with one name. Of several of the name nobody can tell which one it would be.
    fn rival<'a>(&self, membership: &'a Membership, learner: &MemberInfo) -> Option<&'a MemberInfo> {
        let mut named = membership.members.iter().filter(|m| m.name == learner.name && m.id != learner.id);
        let only = named.next().filter(|_| named.next().is_none())?;
        (only.role.votes() && self.gone_since(&only.id).is_some()).then_some(only)
    }

    /// A learner could take the place of the voter whose name it has, and that one has been gone for long. It loses its
    /// vote and no more, for it may still be another server.
    fn replacement(&self, membership: &Membership) -> Option<(Membership, String)> {
        let learners = membership.members.iter().filter(|m| m.role == Role::Learner && m.wants_vote);
        let (new, old) = learners
            .filter(|m| self.has_caught_up(&m.id))
            .filter_map(|m| Some((m, self.rival(membership, m)?)))
            .find(|(_, old)| self.is_long_gone(&old.id))?;
        let why = format!(
            "{} ({}) has been gone for more than {} s, and {} has its name: that one is to vote in its place",
            old.name,
            old.address,
            self.tuning.evict_timeout.as_secs(),
            new.address
        );
        Some((self.demoted_or_removed(membership, &old.id, false), why))
    }

    /// A voter goes to learner first; a learner that is to go, goes.
    fn demoted_or_removed(&self, membership: &Membership, id: &MemberId, remove: bool) -> Membership {
        match membership.get(id) {
            Some(member) if member.role.votes() && !remove => {
                membership.with(MemberInfo { role: Role::Learner, ..member.clone() })
            }
            _ => membership.without(id),
        }
    }

    /// Who leaves in good order: dead voters go before it, so that the last one standing still writes.
    fn departure(&self, membership: &Membership) -> Option<(Membership, String)> {
        let leaver = self.peers.values().find(|p| p.leaving() && membership.is_voter(&p.hello.id))?;
        if membership.voters().count() == 1 {
            return None;
        }
        let alive = |id: &MemberId| *id == self.me.id || self.peers.contains_key(id);
        if let Some(dead) = membership.voters().find(|id| !alive(id)) {
            let name = self.name_of(&dead);
            let why =
                format!("{name} is not connected and {} leaves: {name} votes no more", leaver.hello.name);
            return Some((self.demoted_or_removed(membership, &dead, false), why));
        }
        let why = format!("{} leaves the voters", leaver.hello.name);
        Some((self.demoted_or_removed(membership, &leaver.hello.id, false), why))
    }

    /// Whether a member has the state and is near the end of the log: its vote would hold nobody up.
    pub(super) fn has_caught_up(&self, id: &MemberId) -> bool {
        let ready = |p: &super::peers::Peer| p.health.is_some_and(|h| h.has_state && !h.leaving);
        self.peers.get(id).is_some_and(ready) && self.raft.matched(id) + NEAR_ENOUGH >= self.raft.last_index()
    }

    /// A learner that has the state and is near the end of the log votes, if it wants to, and is not perhaps another
    /// one's second self.
    fn promotion(&self, membership: &Membership) -> Option<(Membership, String)> {
        let member = membership
            .members
            .iter()
            .filter(|m| m.role == Role::Learner && m.wants_vote)
            .filter(|m| self.has_caught_up(&m.id) && self.responds(&m.id))
            .find(|m| self.rival(membership, m).is_none())?;
        let role = if member.arbitrator { Role::Arbitrator } else { Role::Voter };
        let why = format!("{} has caught up and votes from now on", member.name);
        Some((membership.with(MemberInfo { role, ..member.clone() }), why))
    }

    /// Voters that have been dead for long are taken out where all of them together lower the majority.
    fn eviction(&self, membership: &Membership) -> Option<(Membership, String)> {
        let patience = self.tuning.evict_timeout.as_secs();
        let dead: Vec<MemberId> = membership.voters().filter(|id| self.is_long_gone(id)).collect();
        let voters = membership.voters().count();
        if dead.is_empty() || (voters - dead.len()) / 2 + 1 >= membership.majority() {
            return None;
        }
        let name = self.name_of(&dead[0]);
        let why =
            format!("{name} has been gone for more than {patience} s: it votes no more until it is back");
        Some((self.demoted_or_removed(membership, &dead[0], false), why))
    }

    /// A learner that has been gone for long is no member any more: its name and address are free, and the log is not
    /// kept for it. If it comes back it joins anew.
    fn forgotten(&self, membership: &Membership) -> Option<(Membership, String)> {
        let patience = LEARNER_KEPT * self.tuning.evict_timeout.as_micros() as Micros;
        let member = membership.members.iter().find(|m| {
            m.role == Role::Learner
                && self.gone_since(&m.id).is_some_and(|since| self.now.saturating_sub(since) > patience)
        })?;
        let why = format!(
            "{} does not vote and has been gone for {} min: it is forgotten until it is back",
            member.name,
            patience / 60_000_000
        );
        Some((membership.without(&member.id), why))
    }

    /// A view of all that should be in it now, if that is another than before, this member first (an arbitrator never). A change of leader
    /// alone makes no view, but under a weak policy.
    fn make_view(&mut self) {
        let current = self.raft.tail_state().view.clone();
        let members = self.who_is_there(self.me.id);
        let same = members.len() == current.members.len()
            && members
                .iter()
                .all(|m| current.members.iter().any(|c| c.id == m.id && c.view_uuid == m.view_uuid))
            && self.is_first_who_must_be(&members, &current);
        if !same {
            self.place_view(members);
        }
    }

    /// Under a weak policy only the leader takes writes, and proxies send them to the first: leadership may have moved
    /// without a view before that policy came.
    fn is_first_who_must_be(&self, members: &[ViewMember], current: &View) -> bool {
        let first = |members: &[ViewMember]| members.first().map(|m| m.id);
        !self.raft.policy().is_weak() || first(members) == first(&current.members)
    }

    /// Who should be in the view now: this member and all that are connected and in the log, `first` before the others,
    /// then by age.
    pub(super) fn who_is_there(&self, first: MemberId) -> Vec<ViewMember> {
        let membership = self.raft.membership();
        let current = &self.raft.tail_state().view;
        let mut members: Vec<ViewMember> = self
            .peers
            .values()
            .filter(|p| membership.get(&p.hello.id).is_some() && !p.left())
            .filter(|p| !self.silent(&p.hello.id))
            .map(|p| ViewMember {
                id: p.hello.id,
                view_uuid: p.hello.view_uuid,
                name: p.hello.name.clone(),
                incoming: p.hello.incoming.clone(),
            })
            .chain([self.own_view_member()])
            .collect();
        if self.raft.policy().kind == PolicyKind::All {
            // Every commit waits for who is in the view: who comes (back) is there once it has nearly caught up.
            let last = self.raft.last_index();
            let stays = |m: &ViewMember| {
                m.id == self.me.id
                    || current.members.iter().any(|c| c.id == m.id && c.view_uuid == m.view_uuid)
            };
            let near = |m: &ViewMember| self.raft.matched(&m.id) + NEAR_ENOUGH >= last;
            members.retain(|m| !self.stalls(&m.id) && (stays(m) || near(m)));
        }
        for gone in &current.members {
            let grace = !self.stalls(&gone.id)
                && self.gone.get(&gone.id).is_some_and(|g| self.now.saturating_sub(g.since) < VIEW_GRACE)
                && membership.get(&gone.id).is_some();
            if grace && !members.iter().any(|m| m.id == gone.id) {
                members.push(gone.clone());
            }
        }
        // Clients are sent to the first: it has a database.
        let serves = |id: &MemberId| membership.get(id).is_none_or(|m| !m.arbitrator);
        let wanted = [Some(first), current.members.first().map(|m| m.id)].into_iter().flatten();
        let first = wanted
            .filter(|id| members.iter().any(|m| m.id == *id))
            .chain(members.iter().map(|m| m.id))
            .find(serves)
            .unwrap_or(first);
        // A server that got its state from another reads its first view back sorted by UUID: as UUIDs of views begin
        // with the time, its own place is the same in both orders.
        members.sort_by_key(|member| (member.id != first, member.view_uuid));
        members
    }

    /// Places a view of these in the log; its number.
    pub(super) fn place_view(&mut self, members: Vec<ViewMember>) -> Option<u64> {
        let view = View { number: self.raft.tail_state().view.number + 1, members };
        let names: Vec<&str> = view.members.iter().map(|m| m.name.as_str()).collect();
        let text = format!("view {}: {}", view.number, names.join(", "));
        let mut w = Writer::new();
        view.encode(&mut w);
        self.raft.append_control(self.now, EntryKind::View, w.into_bytes()).ok()?;
        self.log(Level::Info, text);
        Some(view.number)
    }

    /// Lets all members forget what no write-set under way can conflict with: what every member of the view has
    /// finished. One that lags by more than the limit does not hold it back for ever.
    fn make_trim_mark(&mut self) {
        let due = self.now.saturating_sub(self.last_trim_mark) > super::TRIM_PERIOD
            || self.deliverer.seqno() - self.raft.tail_state().trim > super::TRIM_STEP;
        if !due || !self.deliverer.is_running() {
            return;
        }
        self.last_trim_mark = self.now;
        let lag_limit = self.tuning.lag_limit as i64;
        let mut low = self.lowest_seen().min(self.deliverer.seqno());
        for peer in self.peers.values() {
            if let Some(health) = peer.health
                && matches!(health.state, LocalState::Synced | LocalState::Joined | LocalState::Donor)
            {
                low = low.min(health.seen.max(self.deliverer.seqno() - lag_limit));
            }
        }
        // A mark that is not committed yet would be repeated by this one: wait for it.
        if self.raft.tail_state().verdicts_to != self.raft.committed_state().verdicts_to {
            return;
        }
        let Some(mark) = self.deliverer.next_trim(low, self.raft.tail_state()) else { return };
        let _ = self.raft.append_control(self.now, EntryKind::Trim, mark.to_payload());
    }
}

#[cfg(test)]
#[path = "leader_tasks_tests.rs"]
mod tests;
