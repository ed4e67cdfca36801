//! Reverted logs: a member finds out that its disk went back in time.
//!
//! A restored volume or snapshot, or a disk cache that lies, takes back entries that this member has acknowledged, and
//! votes that it has given. It must not vote on them: a leader could be elected that lacks committed entries. The other
//! members have evidence of this one's durable state ([`lockstep_core::raft::Durable`]), and report it at each connection.
//! This member compares the report with its disk as its process found it; or, if this process has sent the acks, with its
//! present state.
//!
//! The own database is a witness, too. It gets only entries on the own disk, and its directory names the log that it has
//! followed ([`crate::FollowedLog`]). If this member's log now ends before the database's position, or gives an incarnation
//! again, the log was reverted. Two things are no proof. A database with the state of another member names no log until its
//! own one has reached it. Under a weak commit policy a leader's database may have entries that a later leader has removed
//! from the log.
//!
//! The consequence is the least one that is safe:
//!
//! - The others go on without this member, as a reporter says: the member gives up its log like a damaged one. Its process
//!   ends, the next start quarantines the log, and the member returns under a new id. If its database was ahead of the log,
//!   it takes a state transfer: the others may have been reverted as well, and have other transactions under these seqnos.
//! - The others cannot go on, or no report says that they do: the member abstains, and keeps its log. Perhaps it is the only
//!   one that still has some committed entries.
//! - The reporter and this member are the only two voters: the reporter has every committed entry, and no other member can win
//!   an election. But without this member's vote the reporter cannot lead. So this member votes for it, persists its entries,
//!   and waits until the reporter has taken its vote and goes on.
//! - This process has been Primary: it has voted and acknowledged with this log already. It says what was found, and goes on.

use crate::api::FollowedLog;
use crate::wire::{Evidence, Sighting};
use lockstep_core::raft::{Durable, Raft};
use lockstep_core::{Gtid, Index, Seqno, ViewUuid};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct RevertedLog {
    /// The disk as the process found it.
    at_start: Durable,
    /// This process's incarnations begin here; those of earlier ones are lower.
    first_incarnation: u64,
    /// The view UUIDs of this process's connects.
    own: Vec<ViewUuid>,
    /// This process has been in a primary component.
    was_primary: bool,
    found: Option<Found>,
    /// The database's seqno, if it was above the log's end at a connect of this process.
    database_was_at: Option<Seqno>,
}

/// A proof that this member's log is reverted.
#[derive(Debug)]
struct Found {
    why: String,
    /// This member supports the only other voter, which has reported.
    supports_reporter: bool,
    by: Witness,
}

/// The witness of a proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Witness {
    /// Another member.
    Peer,
    /// The own database. A log with the entries that it has ends at this index or later.
    Database { reaches: Index },
}

/// The action of this member after a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::member) enum Consequence {
    /// It says so, and goes on.
    Report(String),
    /// It takes no part in elections and commits.
    Abstain(String),
    /// It supports the reporter, and no other candidate.
    SupportReporter(String),
    /// Its process ends, and its next start quarantines the log.
    GiveUpLog(String),
}

impl RevertedLog {
    /// `introduced`: view UUID and incarnation under which the process begins.
    pub(in crate::member) fn new(
        raft: &Raft,
        (view_uuid, first_incarnation): (ViewUuid, u64),
    ) -> RevertedLog {
        RevertedLog {
            at_start: raft.durable(),
            first_incarnation,
            own: vec![view_uuid],
            was_primary: false,
            found: None,
            database_was_at: None,
        }
    }

    /// A connect begins under this view UUID.
    pub(in crate::member) fn connect(&mut self, view_uuid: ViewUuid) {
        self.own.push(view_uuid);
    }

    /// The database has this seqno, and the log ends below it. Its transactions between the two may be ones that no other
    /// member has: a later log that reaches the seqno does not show that it has them.
    pub(in crate::member) fn database_is_ahead(&mut self, seqno: Seqno) {
        self.database_was_at = Some(seqno);
    }

    /// See [`RevertedLog::database_is_ahead`].
    pub(in crate::member) fn database_was_at(&self) -> Option<Seqno> {
        self.database_was_at
    }

    /// Which log another member must have, to go on without this one, for people: "a member" comes before it.
    pub(in crate::member) fn wanted_log(&self) -> String {
        match self.database_was_at {
            Some(seqno) => format!("whose log reaches seqno {seqno} (`lockstep status` shows it)"),
            None => "whose log is whole".into(),
        }
    }

    /// The loss that a report proves, for people; `None` if nothing is lost.
    pub(in crate::member) fn judge(&self, raft: &Raft, evidence: &Evidence) -> Option<String> {
        let evidence = &evidence.sighting;
        let is_own = self.own.contains(&evidence.view_uuid);
        let (has, had) = (if is_own { raft.durable() } else { self.at_start }, evidence.durable);
        if has.last_index < had.last_index || has.last_term < had.last_term {
            return Some(format!(
                "it had acknowledged its log up to index {} of term {}, but its disk holds index {} of term {}",
                had.last_index, had.last_term, has.last_index, has.last_term
            ));
        }
        if has.is_behind(&had) {
            return Some(format!(
                "it had entered term {}, but its disk knows only term {}",
                had.term, has.term
            ));
        }
        let is_reused = !is_own && evidence.incarnation >= self.first_incarnation;
        is_reused.then(|| "an earlier process has used the incarnation that its disk gave to this one".into())
    }

    /// This process is in a primary component.
    pub(in crate::member) fn became_primary(&mut self) {
        self.was_primary = true;
    }

    /// Decides on a report of the member named `by`. `None`: there is nothing new to do.
    pub(in crate::member) fn on_report(
        &mut self,
        raft: &Raft,
        by: &str,
        evidence: &Evidence,
    ) -> Option<Consequence> {
        let proof = self.judge(raft, evidence).map(|what| text(by, &what));
        let is_new = self.found.is_none();
        let why = match &self.found {
            Some(found) => found.why.clone(),
            None => proof.clone()?,
        };
        if self.was_primary {
            let by = Witness::Peer;
            self.found.get_or_insert(Found { why: why.clone(), supports_reporter: false, by });
            return is_new.then_some(Consequence::Report(why));
        }
        // An operator has let this member go on alone meanwhile.
        if !is_new && !raft.distrusts_own_log() {
            return None;
        }
        if evidence.goes_on {
            return Some(Consequence::GiveUpLog(why));
        }
        // While it supports the other voter, only the others' going on counts. That support stays safe: all that it has
        // acknowledged since is on its disk.
        let supports = self.found.as_ref().is_some_and(|found| found.supports_reporter);
        let by = self.found.as_ref().map_or(Witness::Peer, |found| found.by);
        let is_witnessed = match by {
            Witness::Peer => proof.is_some(),
            // The reporter's own log may be reverted as well.
            Witness::Database { reaches } => evidence.reporter.last_index >= reaches,
        };
        if !is_witnessed || supports || !is_new && !evidence.only_two_vote {
            return None;
        }
        self.found = Some(Found { why: why.clone(), supports_reporter: evidence.only_two_vote, by });
        Some(match evidence.only_two_vote {
            true => Consequence::SupportReporter(why),
            false => Consequence::Abstain(why),
        })
    }

    /// The own database's proof at the first connect of a process, for people: see the module's documentation. The caller
    /// lets this member abstain. `position` is the database's. `None`: no proof, or none that is new.
    pub(in crate::member) fn on_database(
        &mut self,
        raft: &Raft,
        followed: &FollowedLog,
        position: Gtid,
    ) -> Option<String> {
        if self.was_primary || self.found.is_some() || followed.member != raft.id() {
            return None;
        }
        let tail = raft.tail_state();
        let is_ahead = position.uuid == tail.history && position.seqno > tail.seqno;
        let what = if is_ahead && raft.former_end().is_none() && !tail.policy.is_weak() {
            Some(format!("it reached {position} with this log, which ends at seqno {}", tail.seqno))
        } else {
            let sighting = Sighting { incarnation: followed.incarnation, ..Sighting::default() };
            self.judge(raft, &Evidence { sighting, ..Evidence::default() })
        }?;
        let why = text("its database", &what);
        // Each seqno has an entry, but for those that weak policies leave out.
        let lacks = match is_ahead && !tail.policy.is_weak() {
            true => position.seqno.abs_diff(tail.seqno),
            false => 0,
        };
        let reaches = raft.last_index().saturating_add(lacks);
        let by = Witness::Database { reaches };
        self.found = Some(Found { why: why.clone(), supports_reporter: false, by });
        Some(why)
    }

    /// Whether the own database has proved it, and an operator cannot let this member go on alone with its log and data.
    pub(in crate::member) fn lacks_entries_of_database(&self, raft: &Raft) -> bool {
        let lacks =
            |found: &Found| matches!(found.by, Witness::Database { reaches } if reaches > raft.last_index());
        raft.distrusts_own_log() && self.found.as_ref().is_some_and(lacks)
    }

    /// Why this member takes no part with its log, if so.
    pub(in crate::member) fn waits(&self, raft: &Raft) -> Option<&str> {
        self.found.as_ref().filter(|_| raft.distrusts_own_log()).map(|found| found.why.as_str())
    }

    /// The finding about the log of a member that goes on with it.
    pub(in crate::member) fn notice(&self) -> Option<&str> {
        self.found.as_ref().filter(|_| self.was_primary).map(|found| found.why.as_str())
    }
}

/// The proof for people.
fn text(by: &str, what: &str) -> String {
    format!(
        "this member's log went back in time, as {by} knows: {what}. Likely causes: a restored volume or snapshot, or a disk \
         cache that loses synced writes"
    )
}
