//! Faults, and their ends.

use super::World;
use crate::api::{ApplyHold, ConnectArgs};
use crate::member::harness::{Node, args_at, pair};
use crate::operator::Command;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::{Gtid, Micros, Uuid};
use std::sync::atomic::Ordering;

/// The end of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Line(usize, usize),
    Disk(usize),
    Database(usize),
    Frozen(usize),
    Paused(usize),
    /// The process starts.
    Down(usize),
}

impl World {
    fn later(&mut self, low: Micros, high: Micros, end: End) {
        let at = self.lab.now + self.rng.between(low, high);
        self.ends.push((at, end));
    }

    pub(super) fn crash(&mut self, at: usize, low: Micros, high: Micros) {
        self.crashes += 1;
        let waiting = self.lab.nodes[at].disk.waiting() as u64;
        let (whole, entries) = (self.rng.below(waiting + 1), self.rng.below(4));
        self.lab.crash(at, whole as usize, entries as usize);
        let positions = self.server(at).possible_positions();
        let to = *self.rng.pick(&positions);
        let given_up = self.server(at).gives_up_data;
        self.server(at).roll_back(to);
        self.server(at).gives_up_data = given_up;
        self.note(format!("n{} crashes; its database comes back at {to}", at + 1));
        self.ends.retain(|(_, end)| !matches!(end, End::Frozen(n) if *n == at));
        self.lab.nodes[at].frozen = false;
        self.later(low, high, End::Down(at));
    }

    fn start(&mut self, at: usize) {
        let node = &self.lab.nodes[at];
        let history = match node.disk.log.last_state() {
            Some(state) => state.history,
            None => Uuid([0x77; 16]),
        };
        let position = match node.setup.hello.arbitrator {
            true => Gtid::UNDEFINED,
            false => node.server.as_ref().expect("each has one").position(history),
        };
        let args = ConnectArgs { waits_for_others: true, ..args_at(position) };
        self.note(format!("n{} starts at {position}", at + 1));
        self.server(at).begin(position.seqno);
        self.lab.start(at, args).expect("a member can be started");
        let begun = self.lab.nodes[at].finished.load(Ordering::Acquire);
        self.server(at).begin(begun);
    }

    pub(super) fn end(&mut self, end: End) {
        match end {
            End::Line(a, b) => drop(self.lab.severed.remove(&pair(a, b))),
            End::Disk(at) => self.lab.nodes[at].disk_hangs = false,
            End::Database(at) => self.lab.nodes[at].database_hangs = false,
            End::Frozen(at) => self.lab.nodes[at].frozen = false,
            End::Paused(at) => self.pause(at, false),
            End::Down(at) => return self.start(at),
        }
        self.note(format!("ends: {end:?}"));
    }

    pub(super) fn fault(&mut self) {
        let members = self.lab.nodes.len();
        let up = self.up();
        if up.is_empty() {
            return;
        }
        let at = *self.rng.pick(&up);
        match self.rng.weighted(&[10, 2, 14, 6, 10, 14, 8, 14, 8, 6]) {
            Some(0) => self.crash(at, 30_000, 3_000_000),
            Some(1) => {
                for at in up {
                    self.crash(at, 30_000, 2_000_000);
                }
            }
            Some(2) => {
                let other = (at + 1 + self.rng.below(members as u64 - 1) as usize) % members;
                self.sever(at, other);
            }
            Some(3) => (0..members).filter(|other| *other != at).for_each(|other| self.sever(at, other)),
            Some(4) => {
                self.lab.nodes[at].frozen = true;
                self.later(20_000, 2_000_000, End::Frozen(at));
                self.note(format!("n{} stands still", at + 1));
            }
            Some(5) => {
                self.lab.nodes[at].disk_hangs = true;
                self.later(5_000, 1_500_000, End::Disk(at));
                self.note(format!("n{}'s disk hangs", at + 1));
            }
            Some(6) => {
                self.lab.nodes[at].database_hangs = true;
                self.later(5_000, 1_500_000, End::Database(at));
            }
            Some(7) => self.change_policy(at),
            Some(8) => {
                self.pause(at, true);
                self.later(50_000, 4_000_000, End::Paused(at));
                self.note(format!("n{} applies nothing", at + 1));
            }
            _ => {
                let to = format!("n{}", self.rng.below(members as u64) + 1);
                self.note(format!("n{} is asked to hand the lead to {to}", at + 1));
                self.lab.command(at, Command::Switchover { to });
            }
        }
    }

    fn pause(&mut self, at: usize, paused: bool) {
        let Node { member, setup, up, .. } = &mut self.lab.nodes[at];
        setup.tuning.apply_hold = ApplyHold { paused, ..ApplyHold::default() };
        if *up {
            member.set_tuning(setup.tuning.clone());
        }
    }

    fn sever(&mut self, a: usize, b: usize) {
        self.lab.unlink(a, b);
        self.lab.severed.insert(pair(a, b));
        self.later(20_000, 2_000_000, End::Line(a, b));
        self.note(format!("n{} and n{} are cut", a + 1, b + 1));
    }

    /// Requests a policy that can be met while all members are present.
    fn change_policy(&mut self, at: usize) {
        let others = self.lab.nodes.len() as u64 - 1;
        let kinds = [
            PolicyKind::Async,
            PolicyKind::Semisync,
            PolicyKind::Semisync,
            PolicyKind::Quorum,
            PolicyKind::All,
        ];
        let policy = Policy {
            kind: *self.rng.pick(&kinds),
            acks: self.rng.between(0, others) as u8,
            zone_acks: self.rng.below(self.zones.min(others as usize + 1) as u64) as u8,
            on_receive: self.rng.one_in(4),
            timeout: *self.rng.pick(&[0, 0, 200_000, 1_000_000]),
            max_at_risk: *self.rng.pick(&[50, 10_000]),
        };
        self.note(format!("n{} wishes for {policy:?}", at + 1));
        self.lab.nodes[at].member.request_policy(|wanted| *wanted = policy);
    }
}
