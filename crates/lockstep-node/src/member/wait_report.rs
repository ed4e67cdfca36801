//! What is said of commit policies: what is in force, what commits wait for and of whom, and what is more than there is.

use super::{Effect, Level, Member, Micros};
use lockstep_core::members::MemberInfo;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::BlockedOn;
use lockstep_core::{Entry, EntryKind, Index, MemberId};

/// Commits that wait for acks are spoken of after this, and again.
const SAY_EVERY: Micros = 10_000_000;
/// A fallback is said at once, but for one so soon after another: where `commit.timeout` is about what acknowledgements
/// take, there are many in a second.
const SAY_FALLBACK: Micros = 10_000_000;
/// And are shown in the status after this.
const SHOW_AFTER: Micros = 2_000_000;
/// Rounds are closer to each other than this, unless the process has stood still: what it knows is of before.
const STOOD_STILL: Micros = 2_000_000;

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
        false => format!("{text} (which does not matter under {})", now.name()),
    });
    said.collect::<Vec<_>>().join(", ")
}

impl Member {
    pub(super) fn say_policy(&mut self) {
        let policy = self.raft.committed_state().policy;
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
        match (policy.is_weak(), self.raft.leader()) {
            (false, _) => String::new(),
            (true, Some(id)) => format!(": only its leader, {}, may write", self.name_of(&id)),
            (true, None) => ": only its leader may write".into(),
        }
    }

    pub(super) fn say_fallback(&mut self) {
        let fallen = self.raft.has_fallen_back();
        if fallen == std::mem::replace(&mut self.commits.fallen, fallen) {
            // One that was not said, so soon after another, and lasts.
            if fallen && !self.commits.fallback_told && self.may_say_fallback() {
                self.commits.unsaid = self.commits.unsaid.saturating_sub(1);
                self.log_fallback();
            }
            return;
        }
        let text = if fallen {
            self.commits.fallbacks += 1;
            if self.may_say_fallback() {
                self.log_fallback();
            } else {
                self.commits.unsaid += 1;
            }
            self.fallback_text()
        } else {
            let text = "semisync: no longer fallen back, commits wait for acknowledgements";
            if std::mem::take(&mut self.commits.fallback_told) {
                self.log(Level::Info, text.to_owned());
            }
            text.to_owned()
        };
        let event = serde_json::json!({ "event": "semisync", "fallen_back": fallen, "msg": text });
        self.effects.push(Effect::Event(event.to_string()));
    }

    fn fallback_text(&self) -> String {
        let (why, who) = (self.why_fallen(), self.who_still_acknowledges());
        format!(
            "semisync has fallen back to async: {why}. What is committed now may be lost with the leader{who}"
        )
    }

    fn may_say_fallback(&self) -> bool {
        self.commits.said_fallback.is_none_or(|at| self.now >= at + SAY_FALLBACK)
    }

    fn log_fallback(&mut self) {
        self.commits.said_fallback = Some(self.now);
        self.commits.fallback_told = true;
        let mut text = self.fallback_text();
        match std::mem::take(&mut self.commits.unsaid) {
            0 => {}
            unsaid => text += &format!(" (it did so {unsaid} times more since this was last said)"),
        }
        self.log(Level::Warn, text);
    }

    /// Whose acknowledgements did not come in time, where this is known.
    fn why_fallen(&self) -> String {
        let policy = self.raft.committed_state().policy;
        let Some(late) = self.raft.fallback_index() else {
            let leader = self.raft.leader().map_or_else(|| "the leader".into(), |id| self.name_of(&id));
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

    /// Some may: commits that wait for nobody are still sent to all. What came after that for which it fell back may be
    /// on its way, and says nothing.
    fn who_still_acknowledges(&self) -> String {
        let Some(late) = self.raft.fallback_index() else { return String::new() };
        let missing: Vec<MemberId> = self.raft.unacknowledged_by(late).map(|member| member.id).collect();
        let members = &self.raft.membership().members;
        let others = members.iter().filter(|m| m.id != self.me.id && !missing.contains(&m.id));
        let mut names: Vec<&str> = others.map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        match names.len() {
            0 => ": no other member acknowledges it".into(),
            1 => format!("; {} still acknowledges it", names[0]),
            _ => format!("; {} still acknowledge it", names.join(", ")),
        }
    }

    /// The other members that have not acknowledged this entry.
    fn names_of_others(&self, index: Index, with_zones: bool) -> Vec<String> {
        let others = self.raft.unacknowledged_by(index).filter(|member| member.id != self.me.id);
        let name = |member: &MemberInfo| match with_zones {
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
        if !self.raft.is_leader() {
            return Vec::new();
        }
        let waits =
            self.commits.waits.filter(|_| self.raft.first_unacknowledged().is_some() && self.waits_long());
        let index = self.raft.first_overdue().or(waits.map(|(index, _)| index));
        index.map_or_else(Vec::new, |index| self.names_of_others(index, false))
    }

    /// Nothing ends the wait for acks that do not come, but for `commit.timeout` under semisync, and nothing at all that for
    /// what may not be at risk as well: so it is said whose. The time in which this process itself stood still is nobody's.
    pub(super) fn say_waiting(&mut self) {
        let stood = self.now - std::mem::replace(&mut self.commits.looked_at, self.now) > STOOD_STILL;
        if stood {
            self.commits.waits = None;
        }
        // Behind what is no write-set nobody may be waiting.
        let holds_back =
            |(_, why): &(Index, BlockedOn)| !matches!(why, BlockedOn::Kind(_)) || self.waits_for_place();
        let blocked_on = self.raft.blocked_on().filter(holds_back).map(|(index, _)| index);
        // Nor behind views, while nothing else is there.
        let first_unacknowledged =
            self.raft.first_unacknowledged().filter(|first| self.has_commit_from(*first));
        let waits = first_unacknowledged.or(blocked_on);
        let Some(index) = waits.filter(|_| self.connection.is_primary()) else {
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
        let Policy { acks, zone_acks, .. } = self.raft.policy();
        let name = self.raft.policy().name();
        // Whose first: the text may be long.
        let why = self.unacknowledged(index);
        let text = match first_unacknowledged {
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
    pub(super) fn unacknowledged(&self, index: Index) -> String {
        let at_limit = self.raft.first_unacknowledged().is_none();
        let (mut said, lacks) = match at_limit {
            true => (vec![self.at_limit()], self.raft.commit() + 1),
            false => (self.asks_too_much(self.raft.policy()), index),
        };
        // Who has acknowledged what is known where it is waited for; elsewhere those would be blamed who are well.
        let knows = at_limit || self.raft.is_leader() || !self.slots.is_empty();
        let lacking: Vec<_> = match at_limit {
            _ if !knows => Vec::new(),
            true => self.raft.not_persisted_by(lacks).filter(|m| m.role.votes()).collect(),
            false => self.raft.unacknowledged_by(lacks).collect(),
        };
        let names = lacking.iter().map(|member| format!("{} (zone {})", member.name, member.zone));
        let names = names.collect::<Vec<_>>().join(", ");
        match (names.is_empty(), self.raft.leader()) {
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
        let policy = self.raft.policy();
        let members = &self.raft.membership().members;
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
        let policy = self.raft.policy();
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

    /// Whether there is an entry from this one on that a client may wait for, whose ever. What is in memory no more is taken
    /// for one.
    fn has_commit_from(&self, first: Index) -> bool {
        let commits = |entry: &Entry| crate::rescued::is_transaction(entry.kind);
        (first..=self.raft.last_index()).any(|index| self.raft.entry(index).is_none_or(commits))
    }

    /// Whether a thread of this member's server waits for the place of what it has sent.
    fn waits_for_place(&self) -> bool {
        !(self.slots.is_empty() && self.large.is_empty())
    }

    /// What stands in the way where no acknowledgement is asked for.
    fn at_limit(&self) -> String {
        let what = match self.raft.blocked_on() {
            Some((_, BlockedOn::Bytes(bytes))) => {
                format!("the last {} MiB of transactions, and no more may be at risk", bytes >> 20)
            }
            Some((_, BlockedOn::Kind(kind))) => {
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
                self.raft.policy().max_at_risk
            ),
        };
        format!("the cluster has not agreed on {what}: commit.timeout does not end that")
    }

    /// For people who look: why this member's commits wait, once they have for a while.
    pub(super) fn acks_awaited(&self) -> Option<String> {
        let (index, _) = self.commits.waits?;
        let what = if self.raft.first_unacknowledged().is_some() { " for acknowledgements. " } else { ": " };
        self.waits_long().then(|| format!("commits wait{what}{}", self.unacknowledged(index)))
    }

    /// Whether what waits has done so for a while.
    fn waits_long(&self) -> bool {
        // `due` moves on each time it is said; before the first time it is one period after the begin.
        let shown = |due: Micros| self.now + SAY_EVERY >= due + SHOW_AFTER;
        self.commits.waits.is_some_and(|(_, due)| self.commits.waited_long || shown(due))
    }

    /// What asks for more members or zones than there are waits for them. Who asks for it hears so at once.
    pub(super) fn warn_of_policy(&mut self, policy: Policy) {
        for text in self.asks_too_much(policy) {
            self.log(Level::Warn, text);
        }
        self.commits.told = Some(self.weighed(policy));
    }

    /// So does a leader, whoever asked for it, for it is on the leader that commits wait; also where a member or zone has
    /// gone for good, and where it has only just begun to lead.
    pub(super) fn say_too_much(&mut self) {
        if !self.raft.is_leader() {
            self.commits.weighed = None;
            return;
        }
        let policy = self.raft.committed_state().policy;
        let known = self.weighed(policy);
        let changed = self.commits.weighed.replace(known) != Some(known);
        if changed && self.commits.told.take_if(|told| *told == known).is_none() {
            for text in self.asks_too_much(policy) {
                self.log(Level::Warn, text);
            }
        }
    }

    /// All on which [`Member::asks_too_much`] depends.
    fn weighed(&self, policy: Policy) -> (Policy, usize, usize) {
        let members = &self.raft.membership().members;
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
        let said = self.asks_too_much(self.raft.committed_state().policy);
        (self.connection.is_primary() && !said.is_empty()).then(|| said.join("; "))
    }
}
