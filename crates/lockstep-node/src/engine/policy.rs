//! Commit policies, as far as they are the node's: changes are asked of the leader, what happens is said and counted.

use super::peers::WISHES_SINCE;
use super::{Effect, Engine, Level, Micros, NodeMessage};
use crate::api::ServerEnd;
use crate::wish::Wish;
use lockstep_core::EntryKind;
use lockstep_core::codec::Reader;
use lockstep_core::members::Member;
use lockstep_core::order::Withheld;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::{Entry, Index, MemberId, Term};
use std::collections::BTreeMap;

/// Who asked the leader for a policy asks again after this, for the leader may be another one by then.
const ASK_AGAIN: Micros = 500_000;
/// Nobody waits longer for a policy to be in force.
const PATIENCE: Micros = 10_000_000;
/// What is under way at the end of a server has been told by then.
const SOON: Micros = 1_000_000;
/// Under `all` a member whose disk has not moved for so many election timeouts is taken out of the view.
const STALLED: Micros = 5;

/// A change of policy that has been asked for here.
#[derive(Debug)]
pub(crate) struct Wished {
    wish: Wish,
    /// The leader does it once, however often it is asked.
    number: u64,
    ask_at: Micros,
    until: Micros,
    /// When a leader was asked first.
    asked: Option<Micros>,
    /// Policies that were agreed on up to here have been looked at.
    looked: Index,
    /// An earlier wish of this member's may yet come about before this one: that all is as wished does not say that it
    /// stays so.
    unsure: bool,
}

/// What has been asked for here.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// What somebody here waits for.
    pending: Option<Wished>,
    /// Nobody waits any more for the last one, and it may yet come about.
    in_vain: bool,
}

/// The last wish of each member that the leader has put into the log, in its term.
#[derive(Debug, Default)]
pub(super) struct Granted {
    term: Term,
    last: BTreeMap<MemberId, u64>,
}

/// Commits that wait for acks are spoken of after this, and again.
const SAY_EVERY: Micros = 10_000_000;
/// And are shown in the status after this.
const SHOW_AFTER: Micros = 2_000_000;
/// Rounds are closer to each other than this, unless the process has stood still: what it knows is of before.
const STOOD_STILL: Micros = 2_000_000;

/// What a member has on its disk, and since when that has not moved.
#[derive(Clone, Copy, Debug)]
struct Moved {
    persisted: Index,
    at: Micros,
    /// Since when it is not waited for.
    stalled: Option<Micros>,
}

/// Under `all`, the disks of the members that are connected with the leader, in its term: what is known of them begins
/// anew with each.
#[derive(Debug, Default)]
pub(super) struct Disks {
    term: Term,
    moved: BTreeMap<MemberId, Moved>,
}

/// What policies have meant so far on this member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits {
    /// Semisync: transactions whose acks came.
    pub(crate) yes: u64,
    /// Transactions that returned without them, after the fallback.
    pub(crate) no: u64,
    /// How often it has fallen back.
    pub(crate) fallbacks: u64,
    /// Sum of the times from their place in the log to their return, µs, over `yes`.
    pub(crate) waited: u64,
    /// Rescue files: those found at the start, and those written since.
    pub(crate) rescued: u64,
    /// The transactions in them.
    pub(crate) rescued_transactions: u64,
    said: Option<Policy>,
    /// For these settings, and so many members in so many zones, this leader has said what is too much, or that nothing is.
    weighed: Option<(Policy, usize, usize)>,
    /// It has said so already when it was asked for these here.
    told: Option<(Policy, usize, usize)>,
    /// The first entry that waits for acks, or for others to have what is at risk, and when to say so.
    waits: Option<(Index, Micros)>,
    /// It has been said of that one.
    waited_long: bool,
    /// When this was last looked at.
    looked_at: Micros,
    fallen: bool,
}

/// The settings beside the policy that differ, and which of them it does not mind.
fn settings_that_changed(before: &Policy, now: &Policy) -> String {
    let is = |kinds: &[PolicyKind]| kinds.contains(&now.kind);
    let semisync = is(&[PolicyKind::Semisync]);
    let settings = [
        (before.acks != now.acks, format!("commit.acks = {}", now.acks), semisync),
        (
            before.zone_acks != now.zone_acks,
            format!("commit.zone_acks = {}", now.zone_acks),
            !is(&[PolicyKind::Async]),
        ),
        (before.on_receive != now.on_receive, format!("commit.ack_on = {}", now.ack_on()), semisync),
        (before.timeout != now.timeout, format!("commit.timeout = {} s", now.timeout as f64 / 1e6), semisync),
        (
            before.max_at_risk != now.max_at_risk,
            format!("async.max_at_risk = {}", now.max_at_risk),
            now.is_weak(),
        ),
    ];
    let said = settings.into_iter().filter(|(changed, ..)| *changed).map(|(_, text, counts)| match counts {
        true => text,
        false => format!("{text} (which {} does not mind)", now.name()),
    });
    said.collect::<Vec<_>>().join(", ")
}

/// An end of the server's process that waits for the rescue file to be on the disk, where there is one.
#[derive(Debug)]
pub(super) struct Ending {
    ticket: u64,
    /// No longer than this.
    until: Micros,
    why: ServerEnd,
    text: String,
}

impl Ending {
    pub(super) fn written(&mut self, ticket: u64) {
        if ticket >= self.ticket {
            self.until = 0;
        }
    }
}

/// What a diverged server is told.
const DIVERGED: &str = "another member has taken over and does not have all that this one had committed ahead of it \
                        (commit.policy was weak): what the cluster does not have is kept in lockstep.rescue.*.log";

impl Engine {
    /// Every round: what is new about policies.
    pub(super) fn policy_step(&mut self) {
        if !self.order.has_log() {
            return;
        }
        self.say_policy();
        self.say_too_much();
        self.say_fallback();
        self.say_waiting();
        self.wish_step();
    }

    fn wish_step(&mut self) {
        if self.wish_is_granted() {
            self.wishes = Wishes::default();
            return self.effects.push(Effect::PolicyChanged(Ok(())));
        }
        let Some(wish) = &mut self.wishes.pending else { return };
        if self.now >= wish.until {
            self.wishes = Wishes { pending: None, in_vain: true };
            let text = "the change of policy was not agreed on within 10 s: is there a leader, and a majority? It may yet \
                        come about";
            // Who has asked for it has been told to look here.
            self.log(Level::Warn, text);
            return self.effects.push(Effect::PolicyChanged(Err(text.into())));
        }
        if self.now >= wish.ask_at
            && let Some(leader) = self.order.leader()
        {
            wish.ask_at = self.now + ASK_AGAIN;
            wish.asked.get_or_insert(self.now);
            let knows = leader == self.me.id
                || self.peers.get(&leader).is_some_and(|peer| peer.version >= WISHES_SINCE);
            let message = match knows {
                true => NodeMessage::Wish { number: wish.number, wish: wish.wish },
                false => NodeMessage::Policy(wish.wish.on(&self.order.policy())),
            };
            self.tell(leader, &message);
        }
    }

    /// Whether a policy as it was wished has been agreed on: also where another one that was overruled it at once.
    fn wish_is_granted(&mut self) -> bool {
        let commit = self.order.commit();
        let Some(wished) = &mut self.wishes.pending else { return false };
        let wish = wished.wish;
        let met = |policy: Policy| wish.on(&policy) == policy;
        let new = wished.looked.max(self.order.first_index() - 1) + 1..=commit;
        wished.looked = commit;
        let mut policies = new
            .filter_map(|index| self.order.entry(index))
            .filter(|entry| entry.kind == EntryKind::Policy)
            .filter_map(|entry| Policy::decode(&mut Reader::new(entry.payload.clone())).ok());
        if policies.any(met) {
            return true;
        }
        // A leader that has been asked for the earlier one has been asked for this one since.
        let sure = !wished.unsure || wished.asked.is_some_and(|at| self.now >= at + ASK_AGAIN);
        sure && self.is_in_force(&wish)
    }

    /// Whether it changes nothing, neither of what is agreed on nor of what is about to be.
    fn is_in_force(&self, wish: &Wish) -> bool {
        let committed = self.order.committed_state().policy;
        [committed, self.order.policy()].iter().all(|policy| wish.on(policy) == *policy)
    }

    fn say_policy(&mut self) {
        let policy = self.order.committed_state().policy;
        let before = self.commits.said.replace(policy);
        if before != Some(policy) {
            self.effects.push(Effect::PolicyNow(policy));
        }
        match before {
            Some(before) if before == policy => {}
            Some(before) if before.kind == policy.kind => {
                let text = format!(
                    "commit.policy is {}, as before; from now on {}",
                    policy.name(),
                    settings_that_changed(&before, &policy)
                );
                self.log(Level::Info, text);
            }
            Some(_) => {
                let text =
                    format!("commit.policy is {} from now on{}", policy.name(), self.only_writer(policy));
                self.log(Level::Info, text);
            }
            None if policy != self.tuning.policy => {
                let text = format!(
                    "the cluster's commit.policy is {}{}: what this member's configuration says of commit.* and \
                     async.* counts only where a cluster is founded",
                    policy.name(),
                    self.only_writer(policy)
                );
                self.log(Level::Info, text);
            }
            None => {}
        }
    }

    /// Who may write, for a line about the policy.
    fn only_writer(&self, policy: Policy) -> String {
        match (policy.is_weak(), self.order.leader()) {
            (false, _) => String::new(),
            (true, Some(id)) => format!(": only its leader, {}, may write", self.name_of(&id)),
            (true, None) => ": only its leader may write".into(),
        }
    }

    fn say_fallback(&mut self) {
        let fallen = self.order.has_fallen_back();
        if fallen == std::mem::replace(&mut self.commits.fallen, fallen) {
            return;
        }
        if fallen {
            self.commits.fallbacks += 1;
            let text = format!(
                "semisync has fallen back to async: {}. What is committed now is lost if the leader is",
                self.why_fallen()
            );
            self.log(Level::Warn, text);
        } else {
            self.log(Level::Info, "semisync: no longer fallen back, commits wait for acknowledgements");
        }
    }

    /// Whose acknowledgements did not come in time, where this is known.
    fn why_fallen(&self) -> String {
        let policy = self.order.committed_state().policy;
        let Some(late) = self.order.late() else {
            let leader = self.order.leader().map_or_else(|| "the leader".into(), |id| self.name_of(&id));
            return format!(
                "the acknowledgements did not come within commit.timeout (whose, the error log of {leader} says)"
            );
        };
        let mut said: Vec<String> = self.too_much(&policy);
        let names = self.names_of_others(late, true);
        let seconds = policy.timeout as f64 / 1e6;
        if !names.is_empty() {
            let names = names.join(", ");
            said.push(format!("not acknowledged within commit.timeout ({seconds} s) by {names}"));
        }
        if said.is_empty() {
            said.push(format!("the acknowledgements took longer than commit.timeout ({seconds} s)"));
        }
        said.join("; ")
    }

    /// The other members that have not acknowledged this entry.
    fn names_of_others(&self, index: Index, with_zones: bool) -> Vec<String> {
        let others = self.order.unacknowledged_by(index).filter(|member| member.id != self.me.id);
        let name = |member: &Member| match with_zones {
            true => format!("{} (zone {})", member.name, member.zone),
            false => member.name.clone(),
        };
        let mut names: Vec<String> = others.map(name).collect();
        names.sort_unstable();
        names
    }

    /// For programs: the other members whose acknowledgements this leader's commits have waited for in vain, after a
    /// fallback or for a while.
    pub(crate) fn not_acknowledged_by(&self) -> Vec<String> {
        if !self.order.is_leader() {
            return Vec::new();
        }
        let waits = self.commits.waits.filter(|_| self.order.unanswered().is_some() && self.waits_long());
        let index = self.order.late().or(waits.map(|(index, _)| index));
        index.map_or_else(Vec::new, |index| self.names_of_others(index, false))
    }

    /// Nothing ends the wait for acks that do not come, but for `commit.timeout` under semisync, and nothing at all that for
    /// what may not be at risk as well: so it is said whose. The time in which this process itself stood still is nobody's.
    fn say_waiting(&mut self) {
        let stood = self.now - std::mem::replace(&mut self.commits.looked_at, self.now) > STOOD_STILL;
        if stood {
            self.commits.waits = None;
        }
        // Behind what is no write-set nobody may be waiting.
        let holds_back =
            |(_, why): &(Index, Withheld)| !matches!(why, Withheld::Kind(_)) || self.waits_for_place();
        let withheld = self.order.withheld().filter(holds_back).map(|(index, _)| index);
        let waits = self.order.unanswered().or(withheld);
        let Some(index) = waits.filter(|_| self.phase.is_primary()) else {
            (self.commits.waits, self.commits.waited_long) = (None, false);
            return;
        };
        match &mut self.commits.waits {
            Some((first, due)) if *first == index => {
                if self.now < *due {
                    return;
                }
                self.commits.waited_long = true;
                *due = self.now + SAY_EVERY;
            }
            waits => {
                *waits = Some((index, self.now + SAY_EVERY));
                self.commits.waited_long = false;
                return;
            }
        }
        let Policy { acks, zone_acks, .. } = self.order.policy();
        let name = self.order.policy().name();
        // Whose first: the text may be long.
        let why = self.unacknowledged(index);
        let text = match self.order.unanswered() {
            Some(_) => format!(
                "commits wait for acknowledgements that have not come for 10 s: {why} (commit.policy = {name}, commit.acks = \
                 {acks}, commit.zone_acks = {zone_acks})"
            ),
            None => format!("commits have waited for 10 s (commit.policy = {name}): {why}"),
        };
        self.log(Level::Warn, text);
    }

    /// Why the entry at `index` is not acknowledged by as many as the policy asks for, or is not to be at risk as well; and
    /// what to do.
    fn unacknowledged(&self, index: Index) -> String {
        let at_limit = self.order.unanswered().is_none();
        let (mut said, lacks) = match at_limit {
            true => (vec![self.at_limit()], self.order.commit() + 1),
            false => (self.asks_too_much(self.order.policy()), index),
        };
        // Who has acknowledged what is known where it is waited for; elsewhere those would be blamed who are well.
        let knows = at_limit || self.order.is_leader() || !self.slots.is_empty();
        let lacking: Vec<_> = match at_limit {
            _ if !knows => Vec::new(),
            true => self.order.lacking(lacks).filter(|m| m.role.votes()).collect(),
            false => self.order.unacknowledged_by(lacks).collect(),
        };
        let names = lacking.iter().map(|member| format!("{} (zone {})", member.name, member.zone));
        let names = names.collect::<Vec<_>>().join(", ");
        match (names.is_empty(), self.order.leader()) {
            (true, Some(leader)) if !knows && said.is_empty() => {
                said.push(format!("Whose, {} says, which leads", self.name_of(&leader)));
            }
            (true, None) if !knows && said.is_empty() => {
                said.push("Whose, the leader says, of which nothing is heard here".into());
            }
            (true, _) => {}
            (false, _) if at_limit => said.push(format!("Not on the disks of: {names}. See to those")),
            (false, _) => said.push(format!("Not from: {names}. Start who is missing")),
        }
        // Another policy would have to be agreed on, too.
        let lacking: Vec<MemberId> = lacking.iter().map(|member| member.id).collect();
        if let Some(settings) = self.can_be_had(&lacking).filter(|_| !at_limit) {
            said.push(format!("Ask for less: SET GLOBAL wsrep_provider_options = '{settings}'"));
        }
        said.join(". ")
    }

    /// The policy's settings that would be met without these members, where those in force are not.
    fn can_be_had(&self, without: &[MemberId]) -> Option<String> {
        let policy = self.order.policy();
        let members = &self.order.membership().members;
        let others: Vec<_> =
            members.iter().filter(|m| m.id != self.me.id && !without.contains(&m.id)).collect();
        let zone = members.iter().find(|m| m.id == self.me.id).map(|m| m.zone);
        let mut zones: Vec<u8> = others.iter().map(|m| m.zone).filter(|z| Some(*z) != zone).collect();
        zones.sort_unstable();
        zones.dedup();
        let mut settings = Vec::new();
        if policy.kind == PolicyKind::Semisync && usize::from(policy.acks) > others.len() {
            settings.push(format!("commit.acks={}", others.len()));
        }
        if policy.kind == PolicyKind::All && !without.is_empty() {
            settings.push("commit.policy=quorum".into());
        }
        if policy.kind != PolicyKind::Async && usize::from(policy.zone_acks) > zones.len() {
            settings.push(format!("commit.zone_acks={}", zones.len()));
        }
        (!settings.is_empty()).then(|| settings.join("; "))
    }

    /// For people who have changed who votes: whom a commit needs, of voters of whom this many are a majority.
    pub(super) fn commit_needs(&self, majority: usize) -> String {
        let policy = self.order.policy();
        let Policy { kind, acks, zone_acks, .. } = policy;
        let count = |count: u8, what: &str| match count {
            1 => format!("1 other {what}"),
            count => format!("{count} other {what}s"),
        };
        let zones = match zone_acks {
            0 => String::new(),
            zones => format!(" and {}", count(zones, "zone")),
        };
        let others = match kind {
            PolicyKind::Quorum => return format!("a commit needs {majority} of them{zones}"),
            PolicyKind::All => format!("all members of the view{zones}"),
            PolicyKind::Semisync if !policy.awaits_acks() => "no other member".into(),
            PolicyKind::Semisync => format!("{}{zones}", count(acks, "member")),
            PolicyKind::Async => "no other member".into(),
        };
        // Without one nobody leads, and nobody writes.
        let name = policy.name();
        format!("{majority} of them are a majority; a commit needs {others} (commit.policy is {name})")
    }

    /// Whether a thread of this member's server waits for the place of what it has sent.
    fn waits_for_place(&self) -> bool {
        !(self.slots.is_empty() && self.large.is_empty())
    }

    /// What stands in the way where no acknowledgement is asked for.
    fn at_limit(&self) -> String {
        let what = match self.order.withheld() {
            Some((_, Withheld::Bytes(bytes))) => {
                format!("the last {} MiB of transactions, and no more may be at risk", bytes >> 20)
            }
            Some((_, Withheld::Kind(kind))) => {
                let what = match kind {
                    EntryKind::View | EntryKind::Membership => "a change of the members",
                    EntryKind::Policy => "a change of the commit policy",
                    EntryKind::TotalOrder => "a statement such as ALTER",
                    _ => "what comes before them",
                };
                format!("{what}, which takes a majority under each policy")
            }
            _ => format!(
                "the last {} transactions, and no more may be at risk (async.max_at_risk)",
                self.order.policy().max_at_risk
            ),
        };
        format!("the cluster has not agreed on {what}: commit.timeout does not end that")
    }

    /// For people who look: why this member's commits wait, once they have for a while.
    pub(super) fn acks_awaited(&self) -> Option<String> {
        let (index, _) = self.commits.waits?;
        let what = if self.order.unanswered().is_some() { " for acknowledgements. " } else { ": " };
        self.waits_long().then(|| format!("commits wait{what}{}", self.unacknowledged(index)))
    }

    /// Whether what waits has done so for a while.
    fn waits_long(&self) -> bool {
        // `due` moves on each time it is said; before the first time it is one period after the begin.
        let shown = |due: Micros| self.now + SAY_EVERY >= due + SHOW_AFTER;
        self.commits.waits.is_some_and(|(_, due)| self.commits.waited_long || shown(due))
    }

    /// The front end wants another policy.
    pub(crate) fn wish_for_policy(&mut self, change: impl Fn(&mut Policy)) {
        let new = Wish::of(change);
        let Wishes { pending, in_vain } = std::mem::take(&mut self.wishes);
        let unsure = in_vain || pending.is_some();
        if !unsure && self.is_in_force(&new) {
            return self.effects.push(Effect::PolicyChanged(Ok(())));
        }
        if !self.phase.is_primary() {
            // What is refused takes what it was to replace with it.
            self.wishes.in_vain = unsure;
            let text = "there is no primary component: a policy is agreed on by a majority";
            return self.effects.push(Effect::PolicyChanged(Err(text.into())));
        }
        // One that is under way is not to be lost for the next.
        let wish = pending.map_or(new, |wished| wished.wish.and(&new));
        let (number, until, looked) = (self.wall(), self.now + PATIENCE, self.order.commit());
        let pending = Wished { wish, number, ask_at: self.now, until, asked: None, looked, unsure };
        self.wishes = Wishes { pending: Some(pending), in_vain };
        self.warn_of_policy(wish.on(&self.order.policy()));
    }

    /// What asks for more members or zones than there are waits for them. Who asks for it hears so at once.
    fn warn_of_policy(&mut self, policy: Policy) {
        for text in self.asks_too_much(policy) {
            self.log(Level::Warn, text);
        }
        self.commits.told = Some(self.weighed(policy));
    }

    /// So does a leader, whoever asked for it, for it is on the leader that commits wait; also where a member or zone has
    /// gone for good, and where it has only just begun to lead.
    fn say_too_much(&mut self) {
        if !self.order.is_leader() {
            self.commits.weighed = None;
            return;
        }
        let policy = self.order.committed_state().policy;
        let known = self.weighed(policy);
        let changed = self.commits.weighed.replace(known) != Some(known);
        if changed && self.commits.told.take_if(|told| *told == known).is_none() {
            for text in self.asks_too_much(policy) {
                self.log(Level::Warn, text);
            }
        }
    }

    /// All on which [`Engine::asks_too_much`] depends.
    fn weighed(&self, policy: Policy) -> (Policy, usize, usize) {
        let members = &self.order.membership().members;
        let zones = members.iter().fold([0u64; 4], |mut seen, member| {
            seen[usize::from(member.zone >> 6)] |= 1 << (member.zone & 63);
            seen
        });
        (policy, members.len(), zones.iter().map(|part| part.count_ones() as usize).sum())
    }

    /// What no number of acknowledgements from the members that there are can meet; and what comes of that.
    fn asks_too_much(&self, policy: Policy) -> Vec<String> {
        let then = match policy.timeout {
            timeout if timeout > 0 && policy.kind == PolicyKind::Semisync => format!(
                "a commit waits for commit.timeout ({} s), then semisync falls back to async, until there are more",
                timeout as f64 / 1e6
            ),
            _ => "commits wait until there are more".to_owned(),
        };
        self.too_much(&policy).into_iter().map(|fact| format!("{fact}: {then}")).collect()
    }

    fn too_much(&self, policy: &Policy) -> Vec<String> {
        let (_, members, zones) = self.weighed(*policy);
        let others = members.saturating_sub(1);
        let mut said = Vec::new();
        if policy.kind == PolicyKind::Semisync && usize::from(policy.acks) > others {
            said.push(format!("commit.acks = {}, but there are {others} other members", policy.acks));
        }
        if policy.kind != PolicyKind::Async && usize::from(policy.zone_acks) >= zones.max(1) {
            said.push(format!(
                "commit.zone_acks = {} asks for acknowledgements from as many other zones, but the members are in {zones} \
                 in all (member.zone)",
                policy.zone_acks
            ));
        }
        said
    }

    /// The same, for people who look, at any member.
    pub(crate) fn asks_for_more_than_there_is(&self) -> Option<String> {
        let said = self.asks_too_much(self.order.committed_state().policy);
        (self.phase.is_primary() && !said.is_empty()).then(|| said.join("; "))
    }

    /// A member asks for another policy.
    pub(super) fn asked_for_policy(&mut self, from: MemberId, wanted: impl Fn(&Policy) -> Policy) -> bool {
        let member = self.order.membership().get(&from).is_some();
        if !member || !self.order.leads_in_earnest() {
            return false;
        }
        let now = self.order.policy();
        let policy = wanted(&now);
        policy == now || self.order.append_control(self.now, EntryKind::Policy, policy.to_payload()).is_ok()
    }

    /// The same, of the settings that are named. Asked again it is done already, and not once more: somebody may have
    /// changed the same settings since.
    pub(super) fn wished(&mut self, from: MemberId, number: u64, wish: Wish) {
        let term = self.order.term();
        if self.granted.term != term {
            self.granted = Granted { term, ..Granted::default() };
        }
        if self.granted.last.get(&from) != Some(&number) && self.asked_for_policy(from, |now| wish.on(now)) {
            self.granted.last.insert(from, number);
        }
    }

    /// Whether this member's server may write: under a weak policy the leader's alone.
    pub(crate) fn may_originate(&self) -> bool {
        !self.order.has_log() || !self.order.policy().is_weak() || self.order.is_leader()
    }

    /// How many transactions have been acknowledged and would be lost with the leader, as it last said where that is
    /// another member; or with this one, if it was the leader and knows no other.
    pub(crate) fn at_risk(&self) -> u64 {
        let committed = self.order.committed_state();
        let leader = self.order.leader().and_then(|id| self.peers.get(&id));
        let theirs = leader.and_then(|peer| peer.health).map_or(0, |health| health.delivered);
        // A leader that votes alone agrees with itself at once: what counts is what another member is known to have.
        let agreed = self.order.held_elsewhere().unwrap_or(committed.seqno);
        let beyond = self.order.seqnos_between(agreed, self.feed.delivered().max(theirs));
        let weak = self.order.policy().is_weak() || committed.policy.is_weak();
        if weak { beyond as u64 } else { 0 }
    }

    /// A thread of this member's server hears that its transaction, which passes, may return. Of those that were placed
    /// under another policy, or may return since it is another one, nothing is known of acknowledgements.
    pub(super) fn count_answer(&mut self, entry: &Entry, placed_under: Policy) {
        if !placed_under.awaits_acks() || !self.order.committed_state().policy.awaits_acks() {
            return;
        }
        if self.order.has_fallen_back() {
            self.commits.no += 1;
        } else {
            self.commits.yes += 1;
            self.commits.waited += self.wall().saturating_sub(entry.time);
        }
    }

    /// The log has lost what this member's server has.
    pub(super) fn has_diverged(&mut self, ticket: u64) {
        let first = self.ending.as_ref().is_none_or(|ending| ending.why != ServerEnd::Diverged);
        self.needs_state(DIVERGED);
        if first {
            let (until, why, text) = (self.now + PATIENCE, ServerEnd::Diverged, DIVERGED.to_string());
            self.ending = Some(Ending { ticket, until, why, text });
        }
    }

    /// The server's process is to end soon: those who wait have their answers first, and the others hear that it leaves.
    pub(super) fn end_for_state(&mut self, text: &str) {
        self.end_at(self.now + SOON, ServerEnd::NeedsState, text);
    }

    /// The same, for a branch. A server that starts has nobody who waits, and is to end by this and not as one that was told
    /// something wrong.
    pub(super) fn end_for_branch(&mut self, starts: bool, text: &str) {
        self.end_at(if starts { self.now } else { self.now + SOON }, ServerEnd::GaveWay, text);
    }

    fn end_at(&mut self, until: Micros, why: ServerEnd, text: &str) {
        self.ending.get_or_insert(Ending { ticket: u64::MAX, until, why, text: text.to_string() });
    }

    /// Why the server's process is to end now, if it is: the rescue file is on the disk, or does not come about. The log
    /// loses nothing before it does, so that the next start would write it.
    pub(crate) fn server_must_end(&mut self) -> Option<(ServerEnd, String)> {
        self.ending.take_if(|ending| ending.until <= self.now).map(|ending| (ending.why, ending.text))
    }

    /// A rescue file has been written.
    pub(crate) fn rescued(&mut self, text: &str, transactions: u64) {
        self.commits.rescued += 1;
        self.commits.rescued_transactions += transactions;
        self.log(Level::Warn, text);
    }

    /// Under `all`: whose disks move? Everybody waits in vain for one that does not. It is back once it moves again and
    /// has nearly caught up.
    pub(super) fn watch_disks(&mut self, near: Index) {
        let term = self.order.term();
        if self.order.policy().kind != PolicyKind::All || self.disks.term != term {
            self.disks = Disks { term, ..Disks::default() };
        }
        if self.order.policy().kind != PolicyKind::All {
            return;
        }
        let (now, last) = (self.now, self.order.last_index());
        // The one in force: it follows the round trips, and an ack is no sooner there than they allow.
        let patience = STALLED * self.order.election_timeout();
        let peers = &self.peers;
        self.disks.moved.retain(|id, _| peers.contains_key(id));
        for id in peers.keys() {
            let persisted = self.order.matched(id);
            let moved = self.disks.moved.entry(*id).or_insert(Moved { persisted, at: now, stalled: None });
            if persisted > moved.persisted || persisted >= last {
                (moved.persisted, moved.at) = (persisted, now);
            }
            moved.stalled = match moved.stalled {
                Some(since) if moved.at > since && persisted + near >= last => None,
                Some(since) => Some(since),
                None => (now.saturating_sub(moved.at) > patience).then_some(now),
            };
        }
    }

    /// Whether this member is out of the view because its disk does not move.
    pub(super) fn stalls(&self, id: &MemberId) -> bool {
        self.disks.moved.get(id).is_some_and(|moved| moved.stalled.is_some())
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
