//! Runs a scenario file: one method for each group of commands.

use crate::cluster::{Cluster, member_info};
use crate::command::{Command, link};
use crate::scenario::Scenario;
use crate::trace::{self, Detail, Trace, id};
use bytes::Bytes;
use lockstep_core::members::{Membership, Role as MemberRole};
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::{EntryKind, Micros};
use std::path::Path;

/// After an election, so long until all members know the leader and its commit index.
const SETTLING: Micros = 200_000;

/// Set to rewrite the expected output of all scenarios.
const REWRITE: &str = "LOCKSTEP_REWRITE_SCENARIOS";

/// Runs a scenario of this folder, and compares its trace with the expected one, or rewrites that.
///
/// # Panics
/// If the file is malformed, or its trace differs.
pub(crate) fn check(folder: &Path, name: &str) {
    let path = folder.join(format!("{name}.txt"));
    let file = format!("crates/lockstep-core/tests/scenarios/{name}.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
    let at = |(line, error): (usize, String)| -> ! { panic!("{file}:{line}: {error}") };
    let scenario = Scenario::parse(&text).unwrap_or_else(|error| at(error));
    let outputs = run(&scenario).unwrap_or_else(|error| at(error));
    if std::env::var_os(REWRITE).is_some() {
        let rewritten = scenario.render(&outputs);
        if rewritten != text {
            std::fs::write(&path, rewritten).unwrap_or_else(|error| panic!("{file}: {error}"));
        }
    } else if let Some(difference) = scenario.difference(&file, &outputs) {
        panic!("{difference}\nSet {REWRITE}=1 to rewrite the expected trace, and review the change.");
    }
}

/// The output of each block.
fn run(scenario: &Scenario) -> Result<Vec<Vec<String>>, (usize, String)> {
    let mut runner = Runner::default();
    let mut outputs = Vec::new();
    for block in scenario.blocks() {
        for (line, text) in block.commands() {
            runner.run(text).map_err(|error| (line, error))?;
        }
        outputs.push(runner.trace.take());
    }
    Ok(outputs)
}

/// A cluster, and the trace of its actions.
#[derive(Default)]
struct Runner {
    cluster: Cluster,
    trace: Trace,
}

type Done = Result<(), String>;

impl Runner {
    fn run(&mut self, line: &str) -> Done {
        let mut command = Command::parse(line)?;
        let quiet = command.is_quiet() || command.name() == "run";
        self.trace.set_detail(if quiet { Detail::Changes } else { Detail::Everything });
        let name = command.name().to_string();
        match name.as_str() {
            "members" => self.members(&mut command),
            "log" => self.log(&mut command),
            "slow" | "fast" => self.disk(&mut command, name == "slow"),
            "sync" => self.sync(&mut command),
            "campaign" => self.cluster.campaign(command.number()?, &mut self.trace),
            "elect" => self.elect(&mut command),
            "tick" => self.tick(&mut command),
            "run" => self.cluster.run(command.duration()?, &mut self.trace),
            "propose" => self.propose(&mut command),
            "read" => self.read(&mut command),
            "deliver" => self.deliver(&mut command),
            "drop" => self.lose(&mut command),
            "cut" => self.cut(&mut command),
            "heal" => {
                self.cluster.heal();
                Ok(())
            }
            "stall" | "resume" => {
                self.cluster.set_stalled(command.number()?, name == "stall");
                Ok(())
            }
            "crash" => self.cluster.crash(command.number()?, &mut self.trace),
            "restart" => self.restart(&mut command),
            "reconnect" => {
                self.cluster.renew_connection(command.number()?, command.number()?, &mut self.trace)
            }
            "policy" => self.policy(&mut command),
            "transfer" => self.transfer(&mut command),
            "add-learner" | "promote" | "demote" | "remove" => self.change(&mut command, &name),
            "relays" => {
                self.cluster.set_relaying();
                Ok(())
            }
            "status" => self.status(),
            "entries" => self.entries(&mut command),
            _ => Err(format!("unknown command {name:?}")),
        }?;
        command.finish()
    }

    /// `members 3 voters 1 learners zones=0,0,1,1`.
    fn members(&mut self, command: &mut Command) -> Done {
        let mut membership = Membership::default();
        let zones: Vec<u8> = command.list_option("zones")?.unwrap_or_default();
        let mut count = command.number()?;
        loop {
            let role = match command.word()?.as_str() {
                "voters" => MemberRole::Voter,
                "learners" => MemberRole::Learner,
                other => return Err(format!("expected voters or learners, found {other:?}")),
            };
            for _ in 0..count {
                let n = membership.members.len() + 1;
                let zone = zones.get(n - 1).copied().unwrap_or(0);
                membership = membership.with(member_info(n, role, zone));
            }
            match command.optional_word() {
                Some(word) => {
                    count = word.parse().map_err(|_| format!("expected a number, found {word:?}"))?
                }
                None => break,
            }
        }
        let max_append_bytes = command.option("max_append_bytes")?.unwrap_or(1 << 20);
        self.cluster.found(membership, max_append_bytes);
        Ok(())
    }

    /// `log 2 terms=1,1,4 term=7`.
    fn log(&mut self, command: &mut Command) -> Done {
        let n = command.number()?;
        let terms = command.list_option("terms")?.unwrap_or_default();
        let term = command.option("term")?.or(terms.last().copied()).unwrap_or(0);
        self.cluster.set_log(n, &terms, term)
    }

    /// `slow 1`, `fast 1`.
    fn disk(&mut self, command: &mut Command, slow: bool) -> Done {
        self.cluster.member(command.number()?)?.disk_mut().set_slow(slow);
        Ok(())
    }

    /// `sync 1 count=1`.
    fn sync(&mut self, command: &mut Command) -> Done {
        let count = command.option("count")?.unwrap_or(usize::MAX);
        self.cluster.sync(command.number()?, count, &mut self.trace)
    }

    /// `elect 1`.
    fn elect(&mut self, command: &mut Command) -> Done {
        let n = command.number()?;
        self.trace.set_detail(Detail::Nothing);
        self.cluster.campaign(n, &mut self.trace)?;
        self.cluster.run(SETTLING, &mut self.trace)?;
        match self.cluster.leader()? {
            leader if leader == n => self.trace.answer(self.cluster.member(n)?.status()),
            leader => return Err(format!("member {leader} leads")),
        }
        Ok(())
    }

    /// `tick 1 150ms times=3`, `tick all 150ms`.
    fn tick(&mut self, command: &mut Command) -> Done {
        let word = command.word()?;
        let time = command.duration()?;
        for _ in 0..command.option("times")?.unwrap_or(1) {
            match word.parse() {
                Ok(n) => self.cluster.tick(&[n], time, &mut self.trace)?,
                Err(_) if word == "all" => self.cluster.tick_all(time, &mut self.trace)?,
                Err(_) => return Err(format!("expected a member or all, found {word:?}")),
            }
        }
        Ok(())
    }

    /// `propose 2 "x=1"`.
    fn propose(&mut self, command: &mut Command) -> Done {
        let n = command.number()?;
        let text = Bytes::from(command.word()?.into_bytes());
        self.cluster.input(n, &mut self.trace, |raft, now| raft.propose(now, EntryKind::WriteSet, text))?;
        Ok(())
    }

    /// `read 2`.
    fn read(&mut self, command: &mut Command) -> Done {
        let n = command.number()?;
        self.cluster.input(n, &mut self.trace, |raft, now| raft.read_index(now))?;
        Ok(())
    }

    /// `deliver 1->2 count=1`, `deliver once`, `deliver all`.
    fn deliver(&mut self, command: &mut Command) -> Done {
        match command.word()?.as_str() {
            "all" => self.cluster.deliver_all(&mut self.trace),
            "once" => {
                for _ in 0..command.option("count")?.unwrap_or(1) {
                    self.cluster.deliver_once(&mut self.trace);
                }
            }
            word => {
                let count = command.option("count")?.unwrap_or(usize::MAX);
                self.cluster.deliver_link(link(word)?, count, &mut self.trace);
            }
        }
        Ok(())
    }

    /// `drop 1->3`, `drop all`.
    fn lose(&mut self, command: &mut Command) -> Done {
        match command.word()?.as_str() {
            "all" => self.cluster.drop(|_, _| true, &mut self.trace),
            word => {
                let lost = link(word)?;
                self.cluster.drop(|from, to| (from, to) == lost, &mut self.trace);
            }
        }
        Ok(())
    }

    /// `cut 3`, `cut 1->3`.
    fn cut(&mut self, command: &mut Command) -> Done {
        let word = command.word()?;
        match word.parse() {
            Ok(n) => self.cluster.cut_off(n),
            Err(_) => {
                let (from, to) = link(&word)?;
                self.cluster.cut_link(from, to);
            }
        }
        Ok(())
    }

    /// `restart 2`.
    fn restart(&mut self, command: &mut Command) -> Done {
        let n = command.number()?;
        self.cluster.restart(n)?;
        self.trace.answer(self.cluster.member(n)?.status());
        self.cluster.reconnect(n, &mut self.trace);
        Ok(())
    }

    /// `policy semisync acks=1 timeout=300ms`.
    fn policy(&mut self, command: &mut Command) -> Done {
        let name = command.word()?;
        let kind = PolicyKind::of_name(&name).ok_or_else(|| format!("unknown policy {name:?}"))?;
        let mut policy = Policy::of(kind);
        policy.acks = command.option("acks")?.unwrap_or(policy.acks);
        policy.zone_acks = command.option("zone_acks")?.unwrap_or(policy.zone_acks);
        policy.timeout = command.duration_option("timeout")?.unwrap_or(policy.timeout);
        policy.max_at_risk = command.option("max_at_risk")?.unwrap_or(policy.max_at_risk);
        policy.on_receive = command.option::<String>("ack_on")?.is_some_and(|value| value == "receive");
        let leader = self.cluster.leader()?;
        let append = self.cluster.input(leader, &mut self.trace, |raft, now| {
            raft.append_control(now, EntryKind::Policy, policy.to_payload())
        })?;
        self.refused(append.err());
        Ok(())
    }

    /// `transfer 1 2`.
    fn transfer(&mut self, command: &mut Command) -> Done {
        let (from, to) = (command.number()?, command.number()?);
        let transfer =
            self.cluster.input(from, &mut self.trace, |raft, now| raft.transfer_leadership(now, id(to)))?;
        self.refused(transfer.err());
        Ok(())
    }

    /// `add-learner 4`, `promote 4`, `demote 4`, `remove 4`.
    fn change(&mut self, command: &mut Command, what: &str) -> Done {
        let n = command.number()?;
        if what == "add-learner" {
            self.cluster.add(n);
        }
        let leader = self.cluster.leader()?;
        let change = self.cluster.input(leader, &mut self.trace, |raft, now| {
            let all = raft.membership();
            let next = match what {
                "remove" => all.without(&id(n)),
                "promote" => all.with(member_info(n, MemberRole::Voter, 0)),
                _ => all.with(member_info(n, MemberRole::Learner, 0)),
            };
            raft.change_membership(now, next)
        })?;
        self.refused(change.err());
        Ok(())
    }

    fn refused<E: std::fmt::Display>(&mut self, error: Option<E>) {
        if let Some(error) = error {
            self.trace.answer(format!("refused: {error}"));
        }
    }

    fn status(&mut self) -> Done {
        for member in self.cluster.members() {
            self.trace.answer(member.status());
        }
        Ok(())
    }

    /// `entries 2`.
    fn entries(&mut self, command: &mut Command) -> Done {
        let n = command.number()?;
        let raft = self.cluster.member(n)?.raft();
        let held = (raft.first_index()..=raft.last_index()).filter_map(|index| raft.entry(index));
        let lines: Vec<String> = held.map(|entry| format!("{n} has {}", trace::entry(entry))).collect();
        lines.into_iter().for_each(|line| self.trace.answer(line));
        Ok(())
    }
}
