//! Reports on commit policies: the one in force, the missing acks for which commits wait, and settings that cannot be
//! met.

use crate::effect::Effect;
use crate::member::{Level, Member, Micros};
use lockstep_core::members::MemberInfo;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::BlockedOn;
use lockstep_core::{Entry, EntryKind, Index, MemberId};

/// How long commits wait for acks before this is logged, and how often it is repeated.
const LOG_INTERVAL: Micros = 10_000_000;
/// The least interval between logged fallbacks: if `commit.timeout` is close to the time that acks take, there are many
/// per second.
const FALLBACK_LOG_INTERVAL: Micros = 10_000_000;
/// How long commits wait for acks before the status shows it.
const SHOW_AFTER: Micros = 2_000_000;
/// Rounds are closer together than this unless the process stalled; after a stall, old measurements do not count.
const STALL: Micros = 2_000_000;

/// The settings beside the policy that differ, each with a note if the policy ignores it.
fn changed_settings(before: &Policy, now: &Policy) -> String {
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
    let facts = settings.into_iter().filter(|(changed, ..)| *changed).map(|(_, text, counts)| match counts {
        true => text,
        false => format!("{text} (ignored under {})", now.name()),
    });
    facts.collect::<Vec<_>>().join(", ")
}

/// The policy as last reported, and the wait under way.
#[derive(Debug, Default)]
pub(in crate::member) struct PolicyReports {
    /// The policy in force, as last reported.
    reported_policy: Option<Policy>,
    /// The settings, member count and zone count for which this leader has last checked and warned.
    checked_settings: Option<(Policy, usize, usize)>,
    /// The same for a request made on this member.
    warned: Option<(Policy, usize, usize)>,
    /// The first entry that waits for acks, or at the limit of transactions at risk, and when to log it.
    waits: Option<(Index, Micros)>,
    /// The wait has been logged for that entry.
    wait_logged: bool,
    /// When the wait was last checked.
    checked_at: Micros,
    fallen_back: bool,
    /// When a fallback was last logged, whether that is the present one, and how many were not logged since.
    fallback_logged_at: Option<Micros>,
    fallback_logged: bool,
    unlogged: u64,
}

impl PolicyReports {
    #[cfg(test)]
    pub(in crate::member) fn commits_wait(&self) -> bool {
        self.waits.is_some()
    }
}

impl Member {
    pub(in crate::member) fn report_policy(&mut self) {
        let policy = self.ctx.raft.committed_state().policy;
        let before = self.admin.reports.reported_policy.replace(policy);
        if before != Some(policy) {
            self.ctx.out.push(Effect::PolicyNow(policy));
        }
        match before {
            Some(before) if before == policy => {}
            Some(before) if before.kind == policy.kind => {
                let text = format!(
                    "commit.policy is {}, as before; from now on {}",
                    policy.name(),
                    changed_settings(&before, &policy)
                );
                self.ctx.log(Level::Info, text);
            }
            Some(_) => {
                let text =
                    format!("commit.policy is {} from now on{}", policy.name(), self.only_writer(policy));
                self.ctx.log(Level::Info, text);
            }
            None if policy != self.ctx.tuning.policy => {
                let text = format!(
                    "the cluster's commit.policy is {}{}: this member's own settings of commit.* and async.* count \
                     only when it founds a cluster",
                    policy.name(),
                    self.only_writer(policy)
                );
                self.ctx.log(Level::Info, text);
            }
            None => {}
        }
    }

    /// The permitted writer, as a suffix for log lines about the policy.
    fn only_writer(&self, policy: Policy) -> String {
        match (policy.is_weak(), self.ctx.raft.leader()) {
            (false, _) => String::new(),
            (true, Some(id)) => format!(": only its leader, {}, may write", self.ctx.name_of(&id)),
            (true, None) => ": only its leader may write".into(),
        }
    }

    pub(in crate::member) fn report_fallback(&mut self) {
        let fallen_back = self.ctx.raft.has_fallen_back();
        if fallen_back == std::mem::replace(&mut self.admin.reports.fallen_back, fallen_back) {
            // The log interval suppressed the present fallback, and it lasts.
            if fallen_back && !self.admin.reports.fallback_logged && self.may_log_fallback() {
                self.admin.reports.unlogged = self.admin.reports.unlogged.saturating_sub(1);
                self.log_fallback();
            }
            return;
        }
        let text = if fallen_back {
            self.admin.commits.fallbacks += 1;
            if self.may_log_fallback() {
                self.log_fallback();
            } else {
                self.admin.reports.unlogged += 1;
            }
            self.fallback_text()
        } else {
            let text = "semisync: no longer fallen back, commits wait for acknowledgements";
            if std::mem::take(&mut self.admin.reports.fallback_logged) {
                self.ctx.log(Level::Info, text.to_owned());
            }
            text.to_owned()
        };
        let event = serde_json::json!({ "event": "semisync", "fallen_back": fallen_back, "msg": text });
        self.ctx.out.push(Effect::Event(event.to_string()));
    }

    fn fallback_text(&self) -> String {
        let (why, who) = (self.fallback_reason(), self.still_acknowledging());
        format!(
            "semisync has fallen back to async: {why}. What is committed now may be lost with the leader{who}"
        )
    }

    fn may_log_fallback(&self) -> bool {
        self.admin.reports.fallback_logged_at.is_none_or(|at| self.ctx.now >= at + FALLBACK_LOG_INTERVAL)
    }

    fn log_fallback(&mut self) {
        self.admin.reports.fallback_logged_at = Some(self.ctx.now);
        self.admin.reports.fallback_logged = true;
        let mut text = self.fallback_text();
        match std::mem::take(&mut self.admin.reports.unlogged) {
            0 => {}
            unlogged => text += &format!(" ({unlogged} more fallbacks since the last such line)"),
        }
        self.ctx.log(Level::Warn, text);
    }

    /// The members whose acks did not come in time, if known.
    fn fallback_reason(&self) -> String {
        let policy = self.ctx.raft.committed_state().policy;
        let Some(late) = self.ctx.raft.fallback_index() else {
            let leader =
                self.ctx.raft.leader().map_or_else(|| "the leader".into(), |id| self.ctx.name_of(&id));
            return format!(
                "the acknowledgements did not come within commit.timeout (the error log of {leader} names the \
                 members)"
            );
        };
        let mut facts: Vec<String> = self.unsatisfiable_facts(&policy);
        let names = self.names_of_others(late, true);
        let seconds = policy.timeout as f64 / 1e6;
        if !names.is_empty() {
            let names = names.join(", ");
            facts.push(format!("not acknowledged within commit.timeout ({seconds} s) by {names}"));
        }
        if facts.is_empty() {
            facts.push(format!("the acknowledgements took longer than commit.timeout ({seconds} s)"));
        }
        facts.join("; ")
    }

    /// The members that still acknowledge: commits that wait for no acks are still sent to all. Only `late` counts;
    /// acks for later entries may still be on their way.
    fn still_acknowledging(&self) -> String {
        let Some(late) = self.ctx.raft.fallback_index() else { return String::new() };
        let missing: Vec<MemberId> = self.ctx.raft.unacknowledged_by(late).map(|member| member.id).collect();
        let members = &self.ctx.raft.membership().members;
        let others = members.iter().filter(|m| m.id != self.ctx.me.id && !missing.contains(&m.id));
        let mut names: Vec<&str> = others.map(|member| member.name.as_str()).collect();
        names.sort_unstable();
        match names.len() {
            0 => ": no other member acknowledges it".into(),
            1 => format!("; {} still acknowledges it", names[0]),
            _ => format!("; {} still acknowledge it", names.join(", ")),
        }
    }

    /// The names of the other members that have not acknowledged this entry.
    fn names_of_others(&self, index: Index, with_zones: bool) -> Vec<String> {
        let others = self.ctx.raft.unacknowledged_by(index).filter(|member| member.id != self.ctx.me.id);
        let name = |member: &MemberInfo| match with_zones {
            true => format!("{} (zone {})", member.name, member.zone),
            false => member.name.clone(),
        };
        let mut names: Vec<String> = others.map(name).collect();
        names.sort_unstable();
        names
    }

    /// The members whose acks this leader's commits lack, after a fallback or a longer wait; for programs.
    pub(crate) fn not_acknowledged_by(&self) -> Vec<String> {
        if !self.ctx.raft.is_leader() {
            return Vec::new();
        }
        let waits = self
            .admin
            .reports
            .waits
            .filter(|_| self.ctx.raft.first_unacknowledged().is_some() && self.wait_is_long());
        let index = self.ctx.raft.first_overdue().or(waits.map(|(index, _)| index));
        index.map_or_else(Vec::new, |index| self.names_of_others(index, false))
    }

    /// Logs which members' acks the commits wait for. Only `commit.timeout` under semisync ends such a wait; nothing
    /// ends a wait at the limit of transactions at risk. The time of an own stall does not count.
    pub(in crate::member) fn report_waiting(&mut self) {
        let stood =
            self.ctx.now - std::mem::replace(&mut self.admin.reports.checked_at, self.ctx.now) > STALL;
        if stood {
            self.admin.reports.waits = None;
        }
        // An entry other than a write-set may hold back no client at all.
        let holds_back =
            |(_, why): &(Index, BlockedOn)| !matches!(why, BlockedOn::Kind(_)) || self.waits_to_be_ordered();
        let blocked_on = self.ctx.raft.blocked_on().filter(holds_back).map(|(index, _)| index);
        // A view delays clients only if write-sets follow.
        let first_unacknowledged =
            self.ctx.raft.first_unacknowledged().filter(|first| self.has_commit_from(*first));
        let waits = first_unacknowledged.or(blocked_on);
        let Some(index) = waits.filter(|_| self.ctx.connection.is_primary()) else {
            (self.admin.reports.waits, self.admin.reports.wait_logged) = (None, false);
            return;
        };
        match &mut self.admin.reports.waits {
            Some((first, due)) if *first == index => {
                if self.ctx.now < *due {
                    return;
                }
                self.admin.reports.wait_logged = true;
                *due = self.ctx.now + LOG_INTERVAL;
            }
            waits => {
                *waits = Some((index, self.ctx.now + LOG_INTERVAL));
                self.admin.reports.wait_logged = false;
                return;
            }
        }
        let Policy { acks, zone_acks, .. } = self.ctx.raft.policy();
        let name = self.ctx.raft.policy().name();
        // Which acks are missing comes first: the text may be long.
        let why = self.unacknowledged(index);
        let text = match first_unacknowledged {
            Some(_) => format!(
                "commits wait for acknowledgements that have not come for 10 s: {why} (commit.policy = {name}, commit.acks = \
                 {acks}, commit.zone_acks = {zone_acks})"
            ),
            None => format!("commits have waited for 10 s (commit.policy = {name}): {why}"),
        };
        self.ctx.log(Level::Warn, text);
    }

    /// Why the entry at `index` lacks acks, or waits at the limit of transactions at risk; and the remedy.
    pub(in crate::member) fn unacknowledged(&self, index: Index) -> String {
        let risk_limit_text = self.ctx.raft.first_unacknowledged().is_none();
        let (mut facts, lacks) = match risk_limit_text {
            true => (vec![self.risk_limit_text()], self.ctx.raft.commit() + 1),
            false => (self.unsatisfiable_settings(self.ctx.raft.policy()), index),
        };
        // The leader and waiting members know the acks. Others would blame members that are well.
        let knows =
            risk_limit_text || self.ctx.raft.is_leader() || self.delivery.submissions.proposed_len() > 0;
        let lacking: Vec<_> = match risk_limit_text {
            _ if !knows => Vec::new(),
            true => self.ctx.raft.not_persisted_by(lacks).filter(|m| m.role.votes()).collect(),
            false => self.ctx.raft.unacknowledged_by(lacks).collect(),
        };
        let names = lacking.iter().map(|member| format!("{} (zone {})", member.name, member.zone));
        let names = names.collect::<Vec<_>>().join(", ");
        match (names.is_empty(), self.ctx.raft.leader()) {
            (true, Some(leader)) if !knows && facts.is_empty() => {
                facts.push(format!("The leader, {}, reports which members", self.ctx.name_of(&leader)));
            }
            (true, None) if !knows && facts.is_empty() => {
                facts.push("The leader reports which members, but is not known here".into());
            }
            (true, _) => {}
            (false, _) if risk_limit_text => {
                facts.push(format!("Not on the disks of: {names}. Check those servers"))
            }
            (false, _) => facts.push(format!("Not from: {names}. Start the missing members")),
        }
        // A change of the policy itself would need a majority, too.
        let lacking: Vec<MemberId> = lacking.iter().map(|member| member.id).collect();
        if let Some(settings) = self.satisfiable_settings(&lacking).filter(|_| !risk_limit_text) {
            facts.push(format!("Or lower the settings: SET GLOBAL wsrep_provider_options = '{settings}'"));
        }
        facts.join(". ")
    }

    /// Settings that these members' absence would not block, if the present ones are blocked.
    fn satisfiable_settings(&self, without: &[MemberId]) -> Option<String> {
        let policy = self.ctx.raft.policy();
        let members = &self.ctx.raft.membership().members;
        let others: Vec<_> =
            members.iter().filter(|m| m.id != self.ctx.me.id && !without.contains(&m.id)).collect();
        let zone = members.iter().find(|m| m.id == self.ctx.me.id).map(|m| m.zone);
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

    /// The requirements of a commit, for reports on a change of voters; `majority` is the new voters' majority.
    pub(in crate::member) fn commit_needs(&self, majority: usize) -> String {
        let policy = self.ctx.raft.policy();
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
        // Without a majority there is no leader, and no writes.
        let name = policy.name();
        format!("{majority} of them are a majority; a commit needs {others} (commit.policy is {name})")
    }

    /// Whether a client, of any member, may wait for an entry from `first` on. Entries no longer in memory count.
    fn has_commit_from(&self, first: Index) -> bool {
        let commits = |entry: &Entry| crate::rescued::is_transaction(entry.kind);
        (first..=self.ctx.raft.last_index()).any(|index| self.ctx.raft.entry(index).is_none_or(commits))
    }

    /// Whether a local thread waits for its submission to be ordered.
    fn waits_to_be_ordered(&self) -> bool {
        !self.delivery.submissions.is_empty()
    }

    /// What blocks commits that need no acks.
    fn risk_limit_text(&self) -> String {
        let what = match self.ctx.raft.blocked_on() {
            Some((_, BlockedOn::Bytes(bytes))) => {
                format!("the last {} MiB of transactions, and no more may be at risk", bytes >> 20)
            }
            Some((_, BlockedOn::Kind(kind))) => {
                let what = match kind {
                    EntryKind::View | EntryKind::Membership => "a change of the members",
                    EntryKind::Policy => "a change of the commit policy",
                    EntryKind::TotalOrder => "a statement such as ALTER",
                    _ => "the entries before them",
                };
                format!("{what}, which needs a majority under every policy")
            }
            _ => format!(
                "the last {} transactions, and no more may be at risk (async.max_at_risk)",
                self.ctx.raft.policy().max_at_risk
            ),
        };
        format!("the cluster has not committed {what}: commit.timeout does not end that wait")
    }

    /// Why this member's commits wait, once they have for a while; for the status.
    pub(in crate::member) fn ack_wait_report(&self) -> Option<String> {
        let (index, _) = self.admin.reports.waits?;
        let what =
            if self.ctx.raft.first_unacknowledged().is_some() { " for acknowledgements. " } else { ": " };
        self.wait_is_long().then(|| format!("commits wait{what}{}", self.unacknowledged(index)))
    }

    /// Whether the wait is long enough to show.
    fn wait_is_long(&self) -> bool {
        // `due` advances at each log line; until the first one, it is one period after the beginning.
        let shown = |due: Micros| self.ctx.now + LOG_INTERVAL >= due + SHOW_AFTER;
        self.admin.reports.waits.is_some_and(|(_, due)| self.admin.reports.wait_logged || shown(due))
    }

    /// Warns the member that requested a policy if its settings ask for more members or zones than there are.
    pub(in crate::member) fn warn_requester(&mut self, policy: Policy) {
        for text in self.unsatisfiable_settings(policy) {
            self.ctx.log(Level::Warn, text);
        }
        self.admin.reports.warned = Some(self.checked_settings(policy));
    }

    /// The leader also warns, since commits wait there. It warns about anyone's request, after a member or zone has
    /// gone for good, and when its term begins.
    pub(in crate::member) fn warn_of_unsatisfiable(&mut self) {
        if !self.ctx.raft.is_leader() {
            self.admin.reports.checked_settings = None;
            return;
        }
        let policy = self.ctx.raft.committed_state().policy;
        let known = self.checked_settings(policy);
        let changed = self.admin.reports.checked_settings.replace(known) != Some(known);
        if changed && self.admin.reports.warned.take_if(|warned| *warned == known).is_none() {
            for text in self.unsatisfiable_settings(policy) {
                self.ctx.log(Level::Warn, text);
            }
        }
    }

    /// The inputs of [`Member::unsatisfiable_settings`].
    fn checked_settings(&self, policy: Policy) -> (Policy, usize, usize) {
        let members = &self.ctx.raft.membership().members;
        let zones = members.iter().fold([0u64; 4], |mut seen, member| {
            seen[usize::from(member.zone >> 6)] |= 1 << (member.zone & 63);
            seen
        });
        (policy, members.len(), zones.iter().map(|part| part.count_ones() as usize).sum())
    }

    /// Which settings no acks of the present members can meet, and the consequence.
    fn unsatisfiable_settings(&self, policy: Policy) -> Vec<String> {
        let then = match policy.timeout {
            timeout if timeout > 0 && policy.kind == PolicyKind::Semisync => format!(
                "a commit waits for commit.timeout ({} s), then semisync falls back to async, until there are more",
                timeout as f64 / 1e6
            ),
            _ => "commits wait until there are more".to_owned(),
        };
        self.unsatisfiable_facts(&policy).into_iter().map(|fact| format!("{fact}: {then}")).collect()
    }

    fn unsatisfiable_facts(&self, policy: &Policy) -> Vec<String> {
        let (_, members, zones) = self.checked_settings(*policy);
        let others = members.saturating_sub(1);
        let mut facts = Vec::new();
        if policy.kind == PolicyKind::Semisync && usize::from(policy.acks) > others {
            facts.push(format!("commit.acks = {}, but there are {others} other members", policy.acks));
        }
        if policy.kind != PolicyKind::Async && usize::from(policy.zone_acks) >= zones.max(1) {
            facts.push(format!(
                "commit.zone_acks = {} asks for acknowledgements from as many other zones, but the members are in {zones} \
                 in all (member.zone)",
                policy.zone_acks
            ));
        }
        facts
    }

    /// The same for the status, on any member.
    pub(crate) fn unsatisfiable_policy(&self) -> Option<String> {
        let facts = self.unsatisfiable_settings(self.ctx.raft.committed_state().policy);
        (self.ctx.connection.is_primary() && !facts.is_empty()).then(|| facts.join("; "))
    }
}
