//! Faults on a replicated block device: real members, one client that knows what the device must hold, and fio beside it.
//! docs/block-chaos.md lists faults and checks.

mod fault;
mod fio;
mod model;
mod nbd;
mod report;
mod runner;
mod sector;
mod writer;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result};

use self::fault::ALL_FAULTS;
use self::runner::Rig;
use crate::bench::Bench;
use crate::block_group::{Group, GroupSpec, LOG_OF_FAULTS, program};
use crate::chaos::Dice;
use crate::needs;

pub use self::fault::{ALL_FAULTS as ALL_BLOCK_FAULTS, Fault};
pub use self::report::{FaultReport, Report};
pub use crate::block_group::Protocol;

/// Bytes of the part that our own client writes.
const OWN: u64 = 32 << 20;
/// Bytes of the part that fio writes.
const FIO: u64 = 16 << 20;
/// MiB of the members' caches: small, so that writes reach the device file during a round.
const CACHE: u32 = 16;

/// One group of members, and its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// When a flush is answered.
    pub protocol: Protocol,
    /// Two copies and an arbitrator in place of three copies.
    pub arbitrator: bool,
}

impl Stage {
    /// The stages of a whole campaign.
    pub const ALL: [Stage; 4] = [
        Stage { protocol: Protocol::C, arbitrator: false },
        Stage { protocol: Protocol::C, arbitrator: true },
        Stage { protocol: Protocol::B, arbitrator: false },
        Stage { protocol: Protocol::A, arbitrator: false },
    ];

    /// For people.
    pub fn text(&self) -> String {
        let members = if self.arbitrator { "two copies and an arbitrator" } else { "three copies" };
        format!("protocol {}, {members}", self.protocol.letter())
    }
}

/// A wrong byte that the campaign itself writes, so that its checks can be seen to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// One bit of a sector is flipped.
    Flip,
    /// A sector has the bytes of another one.
    Swap,
    /// A sector becomes zero, as if a write were lost.
    Lose,
}

/// All of them.
pub const ALL_PLANTS: [Plant; 3] = [Plant::Flip, Plant::Swap, Plant::Lose];

impl Plant {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Plant::Flip => "flip",
            Plant::Swap => "swap",
            Plant::Lose => "lose",
        }
    }
}

impl std::str::FromStr for Plant {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Plant, String> {
        ALL_PLANTS
            .into_iter()
            .find(|plant| plant.name() == text)
            .ok_or_else(|| format!("there is no corruption `{text}`: flip, swap, lose"))
    }
}

/// The parameters of a campaign.
#[derive(Debug, Clone)]
pub struct Spec {
    /// This project's command; none: the one in `PATH`.
    pub program: Option<PathBuf>,
    /// For how long faults are injected, in all stages.
    pub length: Duration,
    /// Each fault comes so often in each stage, in place of `length`.
    pub rounds: Option<u32>,
    /// The order of faults, their members, and the client's requests.
    pub seed: u64,
    /// The kinds to choose from.
    pub faults: Vec<Fault>,
    /// The groups, one after the other.
    pub stages: Vec<Stage>,
    /// How long a fault lasts.
    pub hold: Duration,
    /// How long the client works before a fault, and after it.
    pub calm: Duration,
    /// A corruption at the end of each stage, which the checks must find.
    pub plant: Option<Plant>,
    /// The folder for the members' logs, if they are to be kept.
    pub logs: Option<PathBuf>,
}

impl Spec {
    /// An hour of all faults.
    pub fn new(program: Option<PathBuf>) -> Spec {
        Spec {
            program,
            length: Duration::from_secs(3600),
            rounds: None,
            seed: 1,
            faults: ALL_FAULTS.to_vec(),
            stages: Stage::ALL.to_vec(),
            hold: Duration::from_secs(5),
            calm: Duration::from_secs(2),
            plant: None,
            logs: None,
        }
    }
}

/// Runs the campaign. `say` gets a line for each event.
///
/// # Errors
/// The machine lacks a program or right, or a group does not recover at all. Wrong bytes are in the report.
pub fn run(spec: &Spec, say: &dyn Fn(&str)) -> Result<Report> {
    needs::program("fio", "fio")?;
    let program = program(spec.program.as_deref())?;
    let bench = Bench::without_servers()?;
    let mut report = Report::new(spec);
    let began = Instant::now();
    let share = spec.length / spec.stages.len().max(1) as u32;
    for (at, stage) in spec.stages.iter().enumerate() {
        say(&format!("stage {}: {}", at + 1, stage.text()));
        let group = GroupSpec {
            program: program.clone(),
            arbitrator: stage.arbitrator,
            protocol: stage.protocol,
            size: OWN + FIO,
            cache: CACHE,
            small_disks: spec.faults.contains(&Fault::FullDisk),
            slow_disks: true,
            log: LOG_OF_FAULTS,
            resync_rate: 32,
        };
        let folder = spec.logs.as_ref().map(|folder| folder.join(format!("stage{}", at + 1)));
        if let Err(error) = run_stage(spec, (at, *stage), share, (&bench, group), folder, &mut report, say) {
            // The rounds so far must not be lost with the error.
            report.violations.push(format!("stage {}: {error}", at + 1));
            say(&format!("stage {} ended early: {error}", at + 1));
        }
        report.seconds = began.elapsed().as_secs_f64();
    }
    Ok(report)
}

/// One group, from its start to the comparison of its device files.
fn run_stage(
    spec: &Spec,
    (at, stage): (usize, Stage),
    length: Duration,
    (bench, group): (&Bench, GroupSpec),
    logs: Option<PathBuf>,
    report: &mut Report,
    say: &dyn Fn(&str),
) -> Result<()> {
    let group = Group::start(bench, &format!("stage{}n", at + 1), group)?;
    let faults = possible(spec, &group, say)?;
    let seed = spec.seed.wrapping_mul(1000).wrapping_add(at as u64);
    let mut rig = Rig::new(group, stage, spec, seed, report)?;
    let result = inject_all(spec, &faults, length, &mut rig, Dice(seed), say)
        .and_then(|()| rig.finish(spec.plant, say));
    let kept = logs.map_or(Ok(()), |folder| rig.group().keep_logs(&folder));
    result.and(kept)
}

/// The faults that this machine and account allow; says which are left out.
fn possible(spec: &Spec, group: &Group, say: &dyn Fn(&str)) -> Result<Vec<Fault>> {
    let missing = |fault: Fault| match fault {
        fault if fault.needs_network() && !group.has_network() => {
            Some("it needs network namespaces (root, iproute2)")
        }
        Fault::FullDisk if !group.has_small_disks() => Some("it needs a mounted disk (root)"),
        _ => None,
    };
    let faults = spec.faults.iter().copied().filter(|fault| {
        let missing = missing(*fault);
        if let Some(why) = missing {
            say(&format!("NOT TESTED: {fault}: {why}"));
        }
        missing.is_none()
    });
    let faults: Vec<Fault> = faults.collect();
    if faults.is_empty() {
        return Err(LocalError::Value("no fault is left to inject".into()));
    }
    Ok(faults)
}

/// One fault after the other, until the time is up or each has come as often as it is to.
fn inject_all(
    spec: &Spec,
    faults: &[Fault],
    length: Duration,
    rig: &mut Rig<'_>,
    mut dice: Dice,
    say: &dyn Fn(&str),
) -> Result<()> {
    let end = Instant::now() + length;
    let mut deck: Vec<Fault> = Vec::new();
    let mut turns = 0;
    loop {
        // Each kind comes once before any comes twice.
        if deck.is_empty() {
            deck = faults.to_vec();
            turns += 1;
        }
        if spec.rounds.map_or(Instant::now() >= end, |rounds| turns > rounds) {
            return Ok(());
        }
        let fault = deck.swap_remove(dice.roll(deck.len() as u64) as usize);
        rig.round(fault, &mut dice, say)?;
    }
}
