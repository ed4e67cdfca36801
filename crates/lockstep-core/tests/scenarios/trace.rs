//! The output of a scenario, and the readable form of messages, writes and entries.

use lockstep_core::codec::Reader;
use lockstep_core::members::{Membership, Role as MemberRole, View};
use lockstep_core::message::{Carried, Message, Proposal};
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::{Vote, WriteOp};
use lockstep_core::{Entry, EntryKind, MemberId, Uuid};

/// The id of member `n`.
pub(crate) fn id(n: usize) -> MemberId {
    let mut raw = [0; 16];
    raw[0] = n as u8;
    Uuid(raw)
}

/// The number of a member.
pub(crate) fn number(id: MemberId) -> usize {
    usize::from(id.0[0])
}

/// What a trace keeps.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Detail {
    /// Messages, writes and changes of state.
    #[default]
    Everything,
    /// Changes of state.
    Changes,
    Nothing,
}

/// The lines of one block.
#[derive(Default)]
pub(crate) struct Trace {
    lines: Vec<String>,
    detail: Detail,
}

impl Trace {
    /// What to keep from now on.
    pub(crate) fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
    }

    /// A message, or a write.
    pub(crate) fn event(&mut self, line: String) {
        if self.detail == Detail::Everything {
            self.lines.push(line);
        }
    }

    /// A change of a member's state.
    pub(crate) fn change(&mut self, line: String) {
        if self.detail != Detail::Nothing {
            self.lines.push(line);
        }
    }

    /// The answer to a command.
    pub(crate) fn answer(&mut self, line: String) {
        self.lines.push(line);
    }

    /// All lines since the last call.
    pub(crate) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }
}

/// `Append term=2 prev=3/1 commit=3 persisted=3 entries=[4/2 noop] context=1`.
pub(crate) fn message(message: &Message) -> String {
    let term = message.term();
    let (name, rest) = match message {
        Message::PreVote { last_index, last_term, .. } => {
            ("PreVote", format!(" last={last_index}/{last_term}"))
        }
        Message::PreVoteReply { granted, .. } => ("PreVoteReply", granting(*granted)),
        Message::Vote { last_index, last_term, transfer, .. } => {
            let transfer = if *transfer { " transfer" } else { "" };
            ("Vote", format!(" last={last_index}/{last_term}{transfer}"))
        }
        Message::VoteReply { granted, .. } => ("VoteReply", granting(*granted)),
        Message::Append { prev_index, prev_term, commit, persisted, context, entries, .. } => {
            let (prev, list) = (format!("{prev_index}/{prev_term}"), entry_list(entries));
            let text = format!(" prev={prev} commit={commit} persisted={persisted} entries={list}");
            ("Append", text + &with_context(*context))
        }
        Message::Ack { persisted, received, context, .. } => {
            ("Ack", format!(" persisted={persisted} received={received}") + &with_context(*context))
        }
        Message::Reject { prev_index, hint_index, hint_term, context, .. } => {
            ("Reject", format!(" prev={prev_index} hint={hint_index}/{hint_term}") + &with_context(*context))
        }
        Message::Snapshot { state, context, .. } => {
            ("Snapshot", format!(" state={}/{}", state.index, state.term) + &with_context(*context))
        }
        Message::Propose { incarnation, first: 0, .. } => {
            ("Propose", format!(" incarnation={incarnation} question"))
        }
        Message::Propose { incarnation, first, proposals, .. } => {
            let texts: Vec<String> = proposals.iter().map(proposal).collect();
            ("Propose", format!(" incarnation={incarnation} first={first} [{}]", texts.join(", ")))
        }
        Message::ProposeReply { incarnation, number, .. } => {
            ("ProposeReply", format!(" incarnation={incarnation} number={number}"))
        }
        Message::ReadIndex { context, .. } => ("ReadIndex", format!(" read={}", read(*context))),
        Message::ReadIndexReply { context, index, .. } => {
            let index = index.map_or("none".to_string(), |index| index.to_string());
            ("ReadIndexReply", format!(" read={} index={index}", read(*context)))
        }
        Message::TimeoutNow { .. } => ("TimeoutNow", String::new()),
        Message::PolicyMet { policy_index, fallen_back, .. } => {
            ("PolicyMet", format!(" index={policy_index}{}", if *fallen_back { " fallen-back" } else { "" }))
        }
        Message::TailQuery { .. } => ("TailQuery", String::new()),
        Message::TailReply { last_index, last_term, .. } => {
            ("TailReply", format!(" last={last_index}/{last_term}"))
        }
        Message::FetchTail { from, .. } => ("FetchTail", format!(" from={from}")),
        Message::TailEntries { prev_index, prev_term, last, entries, .. } => {
            let list = entry_list(entries);
            ("TailEntries", format!(" prev={prev_index}/{prev_term} last={last} entries={list}"))
        }
        Message::Relay { to, context, carried: append, .. } => {
            let to: Vec<String> = to.iter().map(|id| number(*id).to_string()).collect();
            ("Relay", format!(" to=[{}]{}", to.join(", "), carried(append)) + &with_context(*context))
        }
        Message::Relayed { carried: append, .. } => ("Relayed", carried(append)),
    };
    format!("{name} term={term}{rest}")
}

fn carried(append: &Carried) -> String {
    let Carried { prev_index, prev_term, commit, persisted, entries } = append;
    let list = entry_list(entries);
    format!(" prev={prev_index}/{prev_term} commit={commit} persisted={persisted} entries={list}")
}

fn granting(granted: bool) -> String {
    if granted { " granted" } else { " refused" }.to_string()
}

fn with_context(context: u64) -> String {
    if context == 0 { String::new() } else { format!(" context={context}") }
}

fn proposal(proposal: &Proposal) -> String {
    format!("{:?}", String::from_utf8_lossy(&proposal.payload))
}

/// The number of a read within the incarnation of its member.
pub(crate) fn read(context: u64) -> u64 {
    context & u64::from(u32::MAX)
}

fn entry_list(entries: &[Entry]) -> String {
    let entries: Vec<String> = entries.iter().map(entry).collect();
    format!("[{}]", entries.join(", "))
}

/// `4/2 write-set "x=1" seqno=3`.
pub(crate) fn entry(entry: &Entry) -> String {
    let text = || format!(" {:?}", String::from_utf8_lossy(&entry.payload()));
    let mut reader = Reader::new(entry.payload());
    let contents = match entry.kind {
        EntryKind::Noop => "noop".to_string(),
        EntryKind::WriteSet => "write-set".to_string() + &text(),
        EntryKind::Note => "note".to_string(),
        EntryKind::Membership => {
            let members = Membership::decode(&mut reader).expect("a membership can be read");
            format!("membership {}", membership(&members))
        }
        EntryKind::View => {
            let view = View::decode(&mut reader).expect("a view can be read");
            let members: Vec<String> = view.members.iter().map(|m| number(m.id).to_string()).collect();
            format!("view [{}]", members.join(", "))
        }
        EntryKind::Policy => {
            let policy = Policy::decode(&mut reader).expect("a policy can be read");
            format!("policy {}", policy_text(&policy))
        }
        kind => format!("{kind:?}"),
    };
    let seqno = if entry.kind.takes_seqno() { format!(" seqno={}", entry.seqno) } else { String::new() };
    format!("{}/{} {contents}{seqno}", entry.index, entry.term)
}

fn policy_text(policy: &Policy) -> String {
    match policy.kind {
        PolicyKind::Semisync => format!("semisync acks={}", policy.acks),
        kind => kind.name().to_string(),
    }
}

/// `voters=1,2,3 learners=4`.
pub(crate) fn membership(membership: &Membership) -> String {
    let list = |voters: bool| {
        let members = membership.members.iter().filter(|m| (m.role != MemberRole::Learner) == voters);
        members.map(|m| number(m.id).to_string()).collect::<Vec<_>>().join(",")
    };
    match list(false) {
        learners if learners.is_empty() => format!("voters={}", list(true)),
        learners => format!("voters={} learners={learners}", list(true)),
    }
}

/// `vote term=2 for 1, entries 4..4`.
pub(crate) fn write(op: &WriteOp) -> String {
    let WriteOp { ticket, rescue, reset, truncate_from, roll, entries, vote } = op;
    let mut parts = Vec::new();
    for rescue in rescue {
        parts.push(format!("rescue {}", entry_list(&rescue.entries)));
    }
    if let Some(state) = reset {
        parts.push(format!("reset to {}/{}", state.index, state.term));
    }
    parts.extend(truncate_from.map(|from| format!("truncate from {from}")));
    parts.extend(roll.as_ref().map(|_| "new segment".to_string()));
    if let (Some(first), Some(last)) = (entries.first(), entries.last()) {
        parts.push(format!("entries {}..{}", first.index, last.index));
    }
    parts.extend(vote.map(vote_text));
    format!("#{ticket}: {}", parts.join(", "))
}

fn vote_text(vote: Vote) -> String {
    match vote.voted_for {
        Some(id) => format!("vote term={} for {}", vote.term, number(id)),
        None => format!("term={}", vote.term),
    }
}
