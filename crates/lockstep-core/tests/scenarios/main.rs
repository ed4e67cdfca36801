//! Scenario files of the Raft core: prose, commands, and the trace that they produce.
//!
//! A scenario is a text file beside this one. It says what it shows, lists commands, and holds the expected output of
//! each. Nothing is random: the clock moves only by commands, and the seed of the election timeouts is fixed.
//!
//! # How to write one
//!
//! 1. Choose a name of the form `subject_condition_result`, and add it to `scenarios!` below.
//! 2. Begin the file with three to eight lines of prose that state the invariant shown, each with a leading `#`.
//! 3. Write blocks of commands, each followed by a line `----`, and separated by empty lines. Comments may stand
//!    between blocks.
//! 4. Produce the output: `LOCKSTEP_REWRITE_SCENARIOS=1 cargo test -p lockstep-core --test scenarios`.
//! 5. Read the trace. It must show what the prose claims. Commit a changed trace only if you understand the change.
//!
//! # Commands
//!
//! | Command | Effect |
//! | --- | --- |
//! | `members 3 voters 1 learners zones=0,0,1,1` | creates the members 1 to 4; learners and zones are optional |
//! | `members 5 voters max_append_bytes=1` | creates members that send each entry in a message of its own |
//! | `log 2 terms=1,1,4 term=7` | gives member 2 a log of notes of these terms, and its current term |
//! | `slow 1`, `fast 1` | writes of member 1 stay in flight until `sync`, or complete at the end of each round |
//! | `sync 1`, `sync 1 count=1` | completes all writes in flight of member 1, or the oldest |
//! | `campaign 1` | advances the clock to the election deadline of member 1, and ticks only this member |
//! | `elect 1` | member 1 campaigns and becomes the leader; prints only that |
//! | `tick 1 150ms`, `tick all 150ms` | advances the clock once, and ticks one member, or all; several times with `times=3` |
//! | `run 2s` | advances the clock, ticks all members, delivers all messages; prints only changes of state |
//! | `propose 2 "x=1"` | member 2 proposes a write-set |
//! | `read 2` | member 2 asks for a read index |
//! | `deliver 1->2`, `deliver 1->2 count=1` | delivers the messages on a link, or the oldest ones |
//! | `deliver once`, `deliver once count=3` | delivers the messages on their way, once or several times |
//! | `deliver all` | delivers messages until none is on its way |
//! | `drop 1->3`, `drop all` | loses messages that are on their way |
//! | `cut 3`, `cut 1->3`, `heal` | loses all messages of member 3, or of one link, from now on; until `heal` |
//! | `stall 1`, `resume 1` | the process of member 1 does not run: it is not ticked, and its messages wait; it runs again |
//! | `crash 2`, `restart 2` | ends the process, with the writes in flight lost and the connections closed; starts it |
//! | `reconnect 1 2` | breaks the connection between two members, with the messages on it, and makes a new one |
//! | `policy semisync acks=1 zone_acks=0 timeout=300ms max_at_risk=10 ack_on=receive` | the leader changes the policy |
//! | `transfer 1 2` | member 1 hands leadership to member 2 |
//! | `add-learner 4`, `promote 4`, `demote 4`, `remove 4` | the leader changes the membership |
//! | `relays` | all members relay entries inside their zones |
//! | `status`, `entries 2` | prints the state of all members, or the log of member 2 |
//!
//! `quietly COMMAND` omits messages and writes from the output. The leader of a command without a leader is the live
//! leader of the highest term.
//!
//! # The trace
//!
//! A member's inputs of one command make one round, as in the real program. Messages and writes appear in the order in
//! which the core gives them out:
//!
//! ```text
//! 1->2 Append term=2 prev=3/1 commit=3 persisted=3 entries=[4/2 noop]      index/term, then the entry's kind
//! 1->3 Append term=2 prev=3/1 commit=3 persisted=3 entries=[] (lost)       the link is cut, or 3 is down
//! 1 writes #2: vote term=2 for 1, entries 4..4                             given to the disk
//! 1 synced #2                                                              the write is durable
//! 1 is Leader in term 2                                                    a change of role, term or leader
//! 1 commit=4 deliverable=4                                                 what changed since the last round
//! ```

mod checks;
mod cluster;
mod command;
mod disk;
mod member;
mod network;
mod runner;
mod scenario;
mod trace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folder of the scenario files.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// One test for each scenario file of this name.
macro_rules! scenarios {
    ($($name:ident),+ $(,)?) => {
        const NAMES: &[&str] = &[$(stringify!($name)),+];
        $(#[test]
        fn $name() {
            runner::check(&folder(), stringify!($name));
        })+
    };
}

scenarios! {
    ack_with_slow_disk_waits_for_sync,
    async_lost_tail_is_rescued_and_left_out,
    candidate_with_majority_is_elected,
    candidate_with_short_log_is_refused,
    deposed_leader_after_stall_answers_nothing_early,
    entry_of_old_term_commits_with_own_term,
    leader_that_stalls_repeatedly_without_answers_steps_down,
    leader_without_quorum_steps_down,
    learner_joins_votes_and_leaves,
    lost_leader_is_replaced_and_steps_down,
    new_leader_repairs_diverged_logs,
    prevote_of_deaf_member_disturbs_nobody,
    proposal_resent_to_new_leader_appended_once,
    read_index_needs_quorum_after_question,
    relay_forwards_entries_inside_its_zone,
    replaced_write_in_flight_is_not_acked,
    semisync_new_leader_fetches_learner_tail,
    semisync_timeout_falls_back_and_returns,
    stalled_leader_delivers_early_after_majority_answers,
    stalled_leader_with_live_peer_stays,
    transfer_waits_until_target_has_full_log,
    uncommitted_membership_is_rolled_back,
    vote_reply_waits_for_durable_vote,
}

#[test]
fn folder_holds_only_listed_scenarios() {
    let files = std::fs::read_dir(folder()).expect("the folder is there").map(|file| file.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|e| e == "txt"));
    let found: BTreeSet<String> =
        texts.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(found, NAMES.iter().map(|name| (*name).to_string()).collect());
}
