//! Reports on commit policies: the one in force, the missing acks for which commits wait, and settings that cannot be
//! met.

use crate::api::{FrontEnd, Level};
use crate::effect::Effect;
use crate::member::admin::commits::Commits;
use crate::member::context::Context;
use crate::member::delivery::submissions::Submissions;
use crate::member::membership::wait_text::{SHOW_DISK_AFTER, own_disk_text};
use crate::terms::Terms;
use lockstep_core::members::MemberInfo;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::BlockedOn;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Micros};

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

impl PolicyReports {
    /// At the end of each round: reports what has changed.
    pub(in crate::member) fn step(
        &mut self,
        ctx: &mut Context,
        commits: &mut Commits,
        submissions: &Submissions,
    ) {
        self.report_policy(ctx);
        self.warn_of_unsatisfiable(ctx);
        self.report_fallback(ctx, commits);
        self.report_waiting(ctx, submissions);
    }

    fn report_policy(&mut self, ctx: &mut Context) {
        let policy = ctx.raft.committed_state().policy;
        let before = self.reported_policy.replace(policy);
        if before != Some(policy) {
            ctx.emit(Effect::PolicyNow(policy));
        }
        match before {
            Some(before) if before == policy => {}
            Some(before) if before.kind == policy.kind => {
                let text = format!(
                    "commit.policy is {}, as before; from now on {}",
                    policy.name(),
                    changed_settings(&before, &policy)
                );
                ctx.log(Level::Info, text);
            }
            Some(_) => {
                let text =
                    format!("commit.policy is {} from now on{}", policy.name(), only_writer(ctx, policy));
                ctx.log(Level::Info, text);
            }
            None if policy != ctx.tuning().policy => {
                let text = format!(
                    "the cluster's commit.policy is {}{}: this member's own settings of commit.* and async.* count \
                     only when it founds a cluster",
                    policy.name(),
                    only_writer(ctx, policy)
                );
                ctx.log(Level::Info, text);
            }
            None => {}
        }
    }

    fn report_fallback(&mut self, ctx: &mut Context, commits: &mut Commits) {
        let fallen_back = ctx.raft.has_fallen_back();
        if fallen_back == std::mem::replace(&mut self.fallen_back, fallen_back) {
            // The log interval suppressed the present fallback, and it lasts.
            if fallen_back && !self.fallback_logged && self.may_log_fallback(ctx) {
                self.unlogged = self.unlogged.saturating_sub(1);
                self.log_fallback(ctx);
            }
            return;
        }
        let text = if fallen_back {
            commits.fallbacks += 1;
            if self.may_log_fallback(ctx) {
                self.log_fallback(ctx);
            } else {
                self.unlogged += 1;
            }
            fallback_text(ctx)
        } else {
            let text = "semisync: no longer fallen back, commits wait for acknowledgements";
            if std::mem::take(&mut self.fallback_logged) {
                ctx.log(Level::Info, text.to_owned());
            }
            text.to_owned()
        };
        let event = serde_json::json!({ "event": "semisync", "fallen_back": fallen_back, "msg": text });
        ctx.emit(Effect::Event(event.to_string()));
    }

    fn may_log_fallback(&self, ctx: &Context) -> bool {
        self.fallback_logged_at.is_none_or(|at| ctx.now() >= at + FALLBACK_LOG_INTERVAL)
    }

    fn log_fallback(&mut self, ctx: &mut Context) {
        self.fallback_logged_at = Some(ctx.now());
        self.fallback_logged = true;
        let mut text = fallback_text(ctx);
        match std::mem::take(&mut self.unlogged) {
            0 => {}
            unlogged => text += &format!(" ({unlogged} more fallbacks since the last such line)"),
        }
        ctx.log(Level::Warn, text);
    }

    /// The members whose acks this leader's commits lack, after a fallback or a longer wait; for programs.
    pub(crate) fn not_acknowledged_by(&self, ctx: &Context) -> Vec<String> {
        if !ctx.raft.is_leader() {
            return Vec::new();
        }
        let waits =
            self.waits.filter(|_| ctx.raft.first_unacknowledged().is_some() && self.wait_is_long(ctx));
        let index = ctx.raft.first_overdue().or(waits.map(|(index, _)| index));
        index.map_or_else(Vec::new, |index| names_of_others(ctx, index, false))
    }

    /// Logs which members' acks the commits wait for. Only `commit.timeout` under semisync ends such a wait; nothing
    /// ends a wait at the limit of transactions at risk. The time of an own stall does not count.
    fn report_waiting(&mut self, ctx: &mut Context, submissions: &Submissions) {
        let stood = ctx.now() - std::mem::replace(&mut self.checked_at, ctx.now()) > STALL;
        if stood {
            self.waits = None;
        }
        // An entry other than a write-set may hold back no client at all.
        let holds_back =
            |(_, why): &(Index, BlockedOn)| !matches!(why, BlockedOn::Kind(_)) || !submissions.is_empty();
        let blocked_on = ctx.raft.blocked_on().filter(holds_back).map(|(index, _)| index);
        // A view delays clients only if write-sets follow.
        let first_unacknowledged =
            ctx.raft.first_unacknowledged().filter(|first| has_commit_from(ctx, *first));
        let waits = first_unacknowledged.or(blocked_on);
        let Some(index) = waits.filter(|_| ctx.connection().is_primary()) else {
            (self.waits, self.wait_logged) = (None, false);
            return;
        };
        match &mut self.waits {
            Some((first, due)) if *first == index => {
                if ctx.now() < *due {
                    return;
                }
                self.wait_logged = true;
                *due = ctx.now() + LOG_INTERVAL;
            }
            waits => {
                *waits = Some((index, ctx.now() + LOG_INTERVAL));
                self.wait_logged = false;
                return;
            }
        }
        let Policy { acks, zone_acks, .. } = ctx.raft.policy();
        let name = ctx.raft.policy().name();
        // Which acks are missing comes first: the text may be long.
        let why = unacknowledged(ctx, submissions, index);
        let text = match first_unacknowledged {
            Some(_) => format!(
                "commits wait for acknowledgements that have not come for 10 s: {why} (commit.policy = {name}, commit.acks = \
                 {acks}, commit.zone_acks = {zone_acks})"
            ),
            None => format!("commits have waited for 10 s (commit.policy = {name}): {why}"),
        };
        ctx.log(Level::Warn, text);
    }

    /// Why this member's commits wait, once they have for a while; for the status.
    pub(in crate::member) fn ack_wait_report(
        &self,
        ctx: &Context,
        submissions: &Submissions,
    ) -> Option<String> {
        let (index, _) = self.waits?;
        let what = if ctx.raft.first_unacknowledged().is_some() { " for acknowledgements. " } else { ": " };
        self.wait_is_long(ctx)
            .then(|| format!("commits wait{what}{}", unacknowledged(ctx, submissions, index)))
    }

    /// Whether the wait is long enough to show.
    fn wait_is_long(&self, ctx: &Context) -> bool {
        // `due` advances at each log line; until the first one, it is one period after the beginning.
        let shown = |due: Micros| ctx.now() + LOG_INTERVAL >= due + SHOW_AFTER;
        self.waits.is_some_and(|(_, due)| self.wait_logged || shown(due))
    }

    /// Warns the member that requested a policy if its settings ask for more members or zones than there are.
    pub(in crate::member) fn warn_requester(&mut self, ctx: &mut Context, policy: Policy) {
        for text in unsatisfiable_settings(ctx, policy) {
            ctx.log(Level::Warn, text);
        }
        self.warned = Some(checked_settings(ctx, policy));
    }

    /// The leader also warns, since commits wait there. It warns about anyone's request, after a member or zone has
    /// gone for good, and when its term begins.
    fn warn_of_unsatisfiable(&mut self, ctx: &mut Context) {
        if !ctx.raft.is_leader() {
            self.checked_settings = None;
            return;
        }
        let policy = ctx.raft.committed_state().policy;
        let known = checked_settings(ctx, policy);
        let changed = self.checked_settings.replace(known) != Some(known);
        if changed && self.warned.take_if(|warned| *warned == known).is_none() {
            for text in unsatisfiable_settings(ctx, policy) {
                ctx.log(Level::Warn, text);
            }
        }
    }
}

/// The permitted writer, as a suffix for log lines about the policy.
fn only_writer(ctx: &Context, policy: Policy) -> String {
    match (policy.is_weak(), ctx.raft.leader()) {
        (false, _) => String::new(),
        (true, Some(id)) => format!(": only its leader, {}, may write", ctx.name_of(&id)),
        (true, None) => ": only its leader may write".into(),
    }
}

fn fallback_text(ctx: &Context) -> String {
    let (why, who) = (fallback_reason(ctx), still_acknowledging(ctx));
    format!(
        "semisync has fallen back to async: {why}. What is committed now may be lost with the leader{who}"
    )
}

/// The members whose acks did not come in time, if known.
fn fallback_reason(ctx: &Context) -> String {
    let policy = ctx.raft.committed_state().policy;
    let Some(late) = ctx.raft.fallback_index() else {
        let leader = ctx.raft.leader().map_or_else(|| "the leader".into(), |id| ctx.name_of(&id));
        return format!(
            "the acknowledgements did not come within commit.timeout (the error log of {leader} names the \
             members)"
        );
    };
    let mut facts: Vec<String> = unsatisfiable_facts(ctx, &policy);
    let names = names_of_others(ctx, late, true);
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
fn still_acknowledging(ctx: &Context) -> String {
    let Some(late) = ctx.raft.fallback_index() else { return String::new() };
    let missing: Vec<MemberId> = ctx.raft.unacknowledged_by(late).map(|member| member.id).collect();
    let members = &ctx.raft.membership().members;
    let others = members.iter().filter(|m| m.id != ctx.me().id && !missing.contains(&m.id));
    let mut names: Vec<&str> = others.map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    match names.len() {
        0 => ": no other member acknowledges it".into(),
        1 => format!("; {} still acknowledges it", names[0]),
        _ => format!("; {} still acknowledge it", names.join(", ")),
    }
}

/// Why commits wait for disks, under any policy: for this member's own disk, or for a majority of the voters' disks.
pub(in crate::member) fn disk_wait_report(ctx: &Context) -> Option<String> {
    if !ctx.connection().is_primary() {
        return None;
    }
    if let Some(text) = own_disk_text(ctx) {
        return Some(format!("commits wait: {text}"));
    }
    // Under a weak policy commits wait at the limit of transactions at risk, which has a report of its own.
    if ctx.raft.commits_stand_still_for() < SHOW_DISK_AFTER || ctx.raft.policy().is_weak() {
        return None;
    }
    let lacking = ctx.raft.not_persisted_by(ctx.raft.commit() + 1).filter(|member| member.role.votes());
    let of = |member: &MemberInfo| {
        let time = ctx.raft.disk_of_stands_still_for(&member.id);
        let why = match ctx.peers.contains_key(&member.id) {
            _ if time >= SHOW_DISK_AFTER => format!("no write finished for {} s", time / 1_000_000),
            false if member.id != ctx.me().id => "not connected".into(),
            _ => format!("zone {}", member.zone),
        };
        format!("{} ({why})", member.name)
    };
    let names = lacking.map(of).collect::<Vec<_>>().join(", ");
    Some(format!("commits wait for the disks of a majority of the voters. Not on the disks of: {names}"))
}

/// The names of the other members that have not acknowledged this entry.
fn names_of_others(ctx: &Context, index: Index, with_zones: bool) -> Vec<String> {
    let others = ctx.raft.unacknowledged_by(index).filter(|member| member.id != ctx.me().id);
    let name = |member: &MemberInfo| match with_zones {
        true => format!("{} (zone {})", member.name, member.zone),
        false => member.name.clone(),
    };
    let mut names: Vec<String> = others.map(name).collect();
    names.sort_unstable();
    names
}

/// Why the entry at `index` lacks acks, or waits at the limit of transactions at risk; and the remedy.
pub(in crate::member) fn unacknowledged(ctx: &Context, submissions: &Submissions, index: Index) -> String {
    let at_risk_limit = ctx.raft.first_unacknowledged().is_none();
    let (mut facts, lacks) = match at_risk_limit {
        true => (vec![risk_limit_text(ctx)], ctx.raft.commit() + 1),
        false => (unsatisfiable_settings(ctx, ctx.raft.policy()), index),
    };
    // The leader and waiting members know the acks. Others would blame members that are well.
    let knows = at_risk_limit || ctx.raft.is_leader() || submissions.proposed_len() > 0;
    let lacking: Vec<_> = match at_risk_limit {
        _ if !knows => Vec::new(),
        true => ctx.raft.not_persisted_by(lacks).filter(|m| m.role.votes()).collect(),
        false => ctx.raft.unacknowledged_by(lacks).collect(),
    };
    let names = lacking.iter().map(|member| format!("{} (zone {})", member.name, member.zone));
    let names = names.collect::<Vec<_>>().join(", ");
    match (names.is_empty(), ctx.raft.leader()) {
        (true, Some(leader)) if !knows && facts.is_empty() => {
            facts.push(format!("The leader, {}, reports which members", ctx.name_of(&leader)));
        }
        (true, None) if !knows && facts.is_empty() => {
            facts.push("The leader reports which members, but is not known here".into());
        }
        (true, _) => {}
        (false, _) if at_risk_limit => {
            let what = if ctx.front_end() == FrontEnd::Device { "members" } else { "servers" };
            facts.push(format!("Not on the disks of: {names}. Check those {what}"))
        }
        (false, _) => facts.push(format!("Not from: {names}. Start the missing members")),
    }
    // A change of the policy itself would need a majority, too.
    let lacking: Vec<MemberId> = lacking.iter().map(|member| member.id).collect();
    if let Some(settings) = satisfiable_settings(ctx, &lacking).filter(|_| !at_risk_limit) {
        facts.push(format!("Or lower the settings: {}", ctx.terms().set(&settings)));
    }
    facts.join(". ")
}

/// Settings that these members' absence would not block, if the present ones are blocked.
fn satisfiable_settings(ctx: &Context, without: &[MemberId]) -> Option<String> {
    let policy = ctx.raft.policy();
    let members = &ctx.raft.membership().members;
    let others: Vec<_> = members.iter().filter(|m| m.id != ctx.me().id && !without.contains(&m.id)).collect();
    let zone = members.iter().find(|m| m.id == ctx.me().id).map(|m| m.zone);
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
pub(in crate::member) fn commit_needs(policy: &Policy, majority: usize) -> String {
    let Policy { kind, acks, zone_acks, .. } = *policy;
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
fn has_commit_from(ctx: &Context, first: Index) -> bool {
    let commits = |entry: &Entry| crate::rescued::is_transaction(entry.kind);
    (first..=ctx.raft.last_index()).any(|index| ctx.raft.entry(index).is_none_or(commits))
}

/// What blocks commits that need no acks.
fn risk_limit_text(ctx: &Context) -> String {
    let blocked_on = ctx.raft.blocked_on().map(|(_, why)| why);
    blocked_text(blocked_on, ctx.raft.policy().max_at_risk, ctx.terms())
}

fn blocked_text(blocked_on: Option<BlockedOn>, max_at_risk: u64, terms: &Terms) -> String {
    let what = match blocked_on {
        Some(BlockedOn::Stall) => {
            return "this process stalled, and no majority has answered since: commit.timeout does not end that wait"
                .to_owned();
        }
        Some(BlockedOn::Bytes(bytes)) => {
            format!("the last {} MiB of {}, and no more may be at risk", bytes >> 20, terms.entries)
        }
        Some(BlockedOn::Kind(kind)) => {
            let what = match kind {
                EntryKind::View | EntryKind::Membership => "a change of the members",
                EntryKind::Policy => "a change of the commit policy",
                EntryKind::TotalOrder => "a statement such as ALTER",
                _ => "the entries before them",
            };
            format!("{what}, which needs a majority under every policy")
        }
        _ => format!(
            "the last {max_at_risk} {}, and no more may be at risk (async.max_at_risk)",
            terms.entries
        ),
    };
    format!("the cluster has not committed {what}: commit.timeout does not end that wait")
}

/// The inputs of [`unsatisfiable_settings`].
fn checked_settings(ctx: &Context, policy: Policy) -> (Policy, usize, usize) {
    let members = &ctx.raft.membership().members;
    let zones = members.iter().fold([0u64; 4], |mut seen, member| {
        seen[usize::from(member.zone >> 6)] |= 1 << (member.zone & 63);
        seen
    });
    (policy, members.len(), zones.iter().map(|part| part.count_ones() as usize).sum())
}

/// Which settings no acks of the present members can meet, and the consequence.
fn unsatisfiable_settings(ctx: &Context, policy: Policy) -> Vec<String> {
    let then = match policy.timeout {
        timeout if timeout > 0 && policy.kind == PolicyKind::Semisync => format!(
            "a commit waits for commit.timeout ({} s), then semisync falls back to async, until there are more",
            timeout as f64 / 1e6
        ),
        _ => "commits wait until there are more".to_owned(),
    };
    unsatisfiable_facts(ctx, &policy).into_iter().map(|fact| format!("{fact}: {then}")).collect()
}

fn unsatisfiable_facts(ctx: &Context, policy: &Policy) -> Vec<String> {
    let (_, members, zones) = checked_settings(ctx, *policy);
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
pub(crate) fn unsatisfiable_policy(ctx: &Context) -> Option<String> {
    let facts = unsatisfiable_settings(ctx, ctx.raft.committed_state().policy);
    (ctx.connection().is_primary() && !facts.is_empty()).then(|| facts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_after_stall_names_missing_answers() {
        let terms = Terms::of(FrontEnd::Database);
        assert_eq!(
            blocked_text(Some(BlockedOn::Stall), 10, terms),
            "this process stalled, and no majority has answered since: commit.timeout does not end that wait"
        );
        assert!(blocked_text(Some(BlockedOn::Number), 10, terms).contains("the last 10 transactions"));
        let terms = Terms::of(FrontEnd::Device);
        assert!(blocked_text(Some(BlockedOn::Number), 10, terms).contains("the last 10 writes"));
    }
}
