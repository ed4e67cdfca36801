//! One stage: a group, its client, and rounds of one fault each.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result};

use super::fault::Fault;
use super::fio::{self, Part};
use super::model::{Loss, Model};
use super::nbd::{Command, Connection};
use super::report::{Report, raise};
use super::sector::{self, Content, SECTOR};
use super::writer::{Answers, Deposed, End, Signal, Writer, Written, probe, read_all};
use super::{FIO, OWN, Plant, Spec, Stage};
use crate::block_group::{EXPORT, Group, MEMBERS, PATIENCE, Protocol};
use crate::chaos::Dice;

/// How long a fault waits for its member's end, and a promotion between two tries.
const POLL: Duration = Duration::from_millis(100);
/// How long an attachment may take before the next try: the new primary waits for the old one's time to pass.
const ATTACH: Duration = Duration::from_secs(20);
/// The delays of a slow disk, in milliseconds.
const DELAYS: [u64; 3] = [20, 150, 1000];

/// An attached client.
#[derive(Debug)]
struct Client {
    connection: Connection,
    member: usize,
    /// The name by which it attached.
    name: String,
    /// How often the server's process had been started by then.
    starts: u64,
}

/// A stage.
#[derive(Debug)]
pub(super) struct Rig<'a> {
    group: Group,
    stage: Stage,
    spec: &'a Spec,
    report: &'a mut Report,
    answers: Answers,
    client: Option<Client>,
    /// Taken while a writer has it.
    model: Option<Model>,
    rounds: u64,
    seed: u64,
}

/// The state that a fault leaves behind until it is ended.
#[derive(Debug, Clone, Copy)]
enum Held {
    Nothing,
    Paused(usize),
    Cut,
    Filled(usize),
    Slow(usize),
    Down(usize),
}

impl<'a> Rig<'a> {
    /// Attaches a client at the first member of a new group.
    pub(super) fn new(
        group: Group,
        stage: Stage,
        spec: &'a Spec,
        seed: u64,
        report: &'a mut Report,
    ) -> Result<Rig<'a>> {
        let model = Model::new((OWN / SECTOR as u64) as u32, 0x5eed_0000 ^ seed as u32);
        let answers = Answers::default();
        let mut rig =
            Rig { group, stage, spec, report, answers, client: None, model: Some(model), rounds: 0, seed };
        rig.client = Some(rig.attach(0, EXPORT)?);
        Ok(rig)
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    fn violation(&mut self, say: &dyn Fn(&str), text: &str) {
        let text = format!("{}, round {}: {text}", self.stage.text(), self.rounds);
        say(&format!("VIOLATION: {text}"));
        self.report.violations.push(text);
    }

    fn try_attach(&self, member: usize, name: &str) -> std::io::Result<Client> {
        let connection = Connection::attach(&self.group.socket(member), name, ATTACH)?;
        Ok(Client { connection, member, name: name.to_owned(), starts: self.group.starts(member) })
    }

    /// Attaches, as soon as that is possible.
    fn attach(&self, member: usize, name: &str) -> Result<Client> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_attach(member, name) {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() > end => {
                    return Err(LocalError::Value(format!(
                        "no client can attach to {} by the name {name}: {error}\n{}",
                        self.group.name(member),
                        self.group.logs()
                    )));
                }
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    /// Promotes a member and attaches there.
    fn promote(&mut self, fault: Fault, member: usize, supervised: bool) -> Result<Client> {
        let name = self.promoted(fault, member, supervised)?;
        self.attach(member, &name)
    }

    /// Promotes a member, as soon as that is possible. Returns the name by which clients attach.
    fn promoted(&mut self, fault: Fault, member: usize, supervised: bool) -> Result<String> {
        let began = Instant::now();
        let name = loop {
            if supervised {
                self.supervise()?;
            }
            match self.group.promote(member, true) {
                Ok(name) => break name,
                Err(text) if began.elapsed() > PATIENCE => {
                    return Err(LocalError::Value(format!(
                        "{} cannot be promoted: {text}\n{}",
                        self.group.name(member),
                        self.group.logs()
                    )));
                }
                Err(_) => std::thread::sleep(POLL),
            }
        };
        let of = self.report.fault(fault);
        of.promotions += 1;
        raise(&mut of.longest_promotion_s, began.elapsed());
        Ok(name)
    }

    fn supervise(&mut self) -> Result<()> {
        let started = self.group.supervise()?;
        self.report.own_ends += started.len() as u64;
        Ok(())
    }

    /// One fault under load, and all checks.
    pub(super) fn round(&mut self, fault: Fault, dice: &mut Dice, say: &dyn Fn(&str)) -> Result<()> {
        self.rounds += 1;
        let began = Instant::now();
        let Some(client) = self.client.take() else {
            return Err(LocalError::Value("the client is gone".into()));
        };
        let primary = client.member;
        let part = Part { offset: OWN, size: FIO };
        let seed = self.seed ^ self.rounds << 20;
        fio::write(&self.group.socket(primary), &client.name, part, seed)?;
        self.answers.begin();
        let target = self.target(fault, primary, dice);
        let other = self.other(primary, dice);
        let (mut client, loss) = self.under_fault(fault, client, (target, other), dice, say)?;
        let gap = self.answers.longest();
        let of = self.report.fault(fault);
        of.rounds += 1;
        raise(&mut of.longest_gap_s, gap);
        self.check(&mut client, Loss::Nothing, fault, say)?;
        // Where flushes may be lost, fio's may be, too.
        if loss != Loss::Suffix {
            self.report.fio_rounds += 1;
            match fio::verify(&self.group.socket(client.member), &client.name, part, seed)? {
                None => self.report.fio_bytes_verified += FIO,
                Some(text) => self.violation(say, &text),
            }
        }
        let whole = Instant::now();
        self.group.until_whole()?;
        raise(&mut self.report.fault(fault).longest_until_whole_s, whole.elapsed());
        say(&format!(
            "{fault}: {} to {}, no answer for {:.1} s, round of {:.1} s",
            self.group.name(primary),
            self.group.name(client.member),
            gap.as_secs_f64(),
            began.elapsed().as_secs_f64()
        ));
        self.client = Some(client);
        Ok(())
    }

    /// The member that the client uses after the fault, if its server does not live through it.
    fn target(&self, fault: Fault, primary: usize, dice: &mut Dice) -> usize {
        let copies = self.group.copies();
        match fault {
            Fault::KillPrimary => primary,
            Fault::KillPrimaryMove
            | Fault::PausePrimaryMove
            | Fault::CutPrimaryMove
            | Fault::StopPrimary
            | Fault::Handover => {
                let step = 1 + dice.roll(copies as u64 - 1) as usize;
                (primary + step) % copies
            }
            _ => dice.roll(copies as u64) as usize,
        }
    }

    /// A member other than the primary, perhaps the arbitrator.
    fn other(&self, primary: usize, dice: &mut Dice) -> usize {
        (primary + 1 + dice.roll(MEMBERS as u64 - 1) as usize) % MEMBERS
    }

    /// A member with a copy: the primary in more than half of all cases.
    fn any_copy(&self, primary: usize, dice: &mut Dice) -> usize {
        match dice.roll(2) {
            0 => primary,
            _ => dice.roll(self.group.copies() as u64) as usize,
        }
    }

    /// Injects a fault while the client writes. Afterwards the client has written for a while without a fault, all its
    /// requests are answered, and no fault is left. Returns the client, and the loss that is allowed.
    fn under_fault(
        &mut self,
        fault: Fault,
        client: Client,
        (target, other): (usize, usize),
        dice: &mut Dice,
        say: &dyn Fn(&str),
    ) -> Result<(Client, Loss)> {
        let Client { connection, member: primary, name, starts } = client;
        let Some(model) = self.model.take() else {
            return Err(LocalError::Value("the model is gone".into()));
        };
        let writer_dice = Dice(self.seed ^ self.rounds << 8);
        let answers = std::mem::take(&mut self.answers);
        let signal = Signal::default();
        let deposed = Deposed::default();
        let salt = model.salt();
        let result = std::thread::scope(|scope| {
            // The threads end after an error, too.
            let _guard = StopGuard(&signal);
            let writer = Writer::new(model, writer_dice, &answers);
            let work = scope.spawn(|| writer.run(connection, &signal));
            let calm = Calm { rig: self, work, answers: &answers, signal: &signal };
            calm.run(fault, primary, (target, other), dice).and_then(|(rig, phase)| {
                let Phase { held, written, moved, promoted } = phase;
                let Written { model, done, end, violations } = written;
                rig.report.did(done);
                for text in violations {
                    rig.violation(say, &text);
                }
                rig.model = Some(model);
                let mut loss = Loss::Nothing;
                let mut prober = None;
                let stop_probing = std::sync::Arc::new(Signal::default());
                let client = match (end, moved) {
                    (End::Hung, _) => {
                        return Err(LocalError::Value(format!(
                            "{fault}: a request has had no answer for {} s after the fault\n{}",
                            PATIENCE.as_secs(),
                            rig.group.logs()
                        )));
                    }
                    (End::Told(connection), false) => Client { connection, member: primary, name, starts },
                    (end, _) => {
                        if let End::Told(connection) = end {
                            if fault == Fault::Handover {
                                connection.detach(PATIENCE).map_err(LocalError::io("detach the client"))?;
                            } else {
                                let (signal, deposed) = (stop_probing.clone(), &deposed);
                                prober = Some(scope.spawn(move || probe(connection, salt, deposed, &signal)));
                            }
                        }
                        let found = match promoted {
                            Some(name) => rig
                                .attach(target, &name)
                                .map(|client| (client, fault.loss(rig.stage.protocol))),
                            None => rig.reattach(fault, &name, (primary, starts), target, moved),
                        };
                        if found.is_err() {
                            stop_probing.stop();
                        }
                        let (client, lost) = found?;
                        loss = lost;
                        deposed.set();
                        client
                    }
                };
                let checked = rig.second_phase(fault, client, (loss, held), &answers, dice, say);
                stop_probing.stop();
                if let Some(prober) = prober {
                    match prober.join() {
                        Ok(violations) => {
                            violations.iter().take(3).for_each(|text| rig.violation(say, text));
                        }
                        Err(_) => return Err(LocalError::Value("the prober's thread panicked".into())),
                    }
                }
                checked.map(|client| (client, loss))
            })
        });
        self.answers = answers;
        result
    }

    /// Attaches the client after it has lost its server. Returns the client, and the loss that is allowed.
    fn reattach(
        &mut self,
        fault: Fault,
        name: &str,
        (primary, starts): (usize, u64),
        target: usize,
        moved: bool,
    ) -> Result<(Client, Loss)> {
        if fault == Fault::Handover {
            let client = match self.stage.protocol {
                Protocol::C => self.attach(target, EXPORT)?,
                // Only the leader takes clients.
                Protocol::A | Protocol::B => self.promote(fault, target, false)?,
            };
            return Ok((client, Loss::Nothing));
        }
        if !moved {
            self.supervise()?;
            // The server that lives has all writes.
            if self.group.starts(primary) == starts
                && let Ok(client) = self.try_attach(primary, name)
                && self.group.starts(primary) == starts
            {
                return Ok((client, Loss::Nothing));
            }
        }
        let loss = fault.loss(self.stage.protocol);
        let client = self.promote(fault, target, !moved)?;
        Ok((client, loss))
    }

    /// After the fault, or after the client has moved: checks the image, ends the fault, and writes again.
    fn second_phase(
        &mut self,
        fault: Fault,
        mut client: Client,
        (loss, held): (Loss, Held),
        answers: &Answers,
        dice: &mut Dice,
        say: &dyn Fn(&str),
    ) -> Result<Client> {
        let image = self.read(&mut client, answers)?;
        self.compare(fault, &image, loss, say)?;
        self.adopt(&mut client, &image)?;
        let Some(model) = self.model.take() else {
            return Err(LocalError::Value("the model is gone".into()));
        };
        let signal = Signal::default();
        let Client { connection, member, name, starts } = client;
        let writer = Writer::new(model, Dice(dice.roll(u64::MAX >> 32)), answers);
        let written = std::thread::scope(|scope| {
            let guard = StopGuard(&signal);
            let work = scope.spawn(|| writer.run(connection, &signal));
            if matches!(held, Held::Cut | Held::Paused(_)) {
                // The former primary's client must get no answer while another one has its place.
                std::thread::sleep(self.spec.hold);
            }
            let ended = self.end(held);
            std::thread::sleep(self.spec.calm);
            let supervised = self.supervise();
            drop(guard);
            let written =
                work.join().map_err(|_| LocalError::Value("the client's thread panicked".into()))?;
            ended.and(supervised).map(|()| written)
        })?;
        let Written { model, done, end, violations } = written;
        self.report.did(done);
        for text in violations {
            self.violation(say, &text);
        }
        self.model = Some(model);
        match end {
            End::Told(connection) => Ok(Client { connection, member, name, starts }),
            End::Hung => Err(LocalError::Value(format!(
                "{fault}: after it a request has had no answer for {} s\n{}",
                PATIENCE.as_secs(),
                self.group.logs()
            ))),
            End::Broken(text) => {
                // No fault any more, and yet the attachment has ended: it may, if the log moved under a weak protocol.
                say(&format!("{fault}: the new attachment broke ({text})"));
                let loss = fault.loss(self.stage.protocol);
                let (mut client, loss) = match self.try_attach(member, &name) {
                    Ok(client) if self.group.starts(member) == starts => (client, Loss::Nothing),
                    _ => (self.promote(fault, member, true)?, loss),
                };
                let image = self.read(&mut client, answers)?;
                self.compare(fault, &image, loss, say)?;
                self.adopt(&mut client, &image)?;
                Ok(client)
            }
        }
    }

    fn end(&mut self, held: Held) -> Result<()> {
        match held {
            Held::Nothing => Ok(()),
            Held::Down(at) => self.group.spawn(at),
            Held::Paused(at) => self.group.signal(at, libc::SIGCONT),
            Held::Cut => self.group.heal(),
            Held::Filled(at) => {
                self.group.empty(at);
                Ok(())
            }
            Held::Slow(at) => {
                self.group.slow_down(at, Duration::ZERO);
                Ok(())
            }
        }
    }

    fn read(&self, client: &mut Client, answers: &Answers) -> Result<Vec<u8>> {
        let sectors = (OWN / SECTOR as u64) as u32;
        read_all(&mut client.connection, sectors, answers).map_err(|error| {
            LocalError::Value(format!("the device cannot be read: {error}\n{}", self.group.logs()))
        })
    }

    /// Compares an image with the model.
    fn compare(&mut self, fault: Fault, image: &[u8], loss: Loss, say: &dyn Fn(&str)) -> Result<()> {
        let Some(model) = &self.model else { return Err(LocalError::Value("the model is gone".into())) };
        let checked = model.check(image, loss);
        self.report.bytes_verified += image.len() as u64;
        self.report.fault(fault).lost_flushes += u64::from(checked.lost_flushes);
        for text in &checked.violations {
            self.violation(say, &format!("{fault}: {text}"));
        }
        Ok(())
    }

    /// From now on the image is the truth: a flush has made it durable.
    fn adopt(&mut self, client: &mut Client, image: &[u8]) -> Result<()> {
        client.connection.ask(Command::Flush, PATIENCE).map_err(|error| {
            LocalError::Value(format!("a flush after a check failed: {error}\n{}", self.group.logs()))
        })?;
        if let Some(model) = &mut self.model {
            model.adopt(image);
        }
        Ok(())
    }

    fn check(&mut self, client: &mut Client, loss: Loss, fault: Fault, say: &dyn Fn(&str)) -> Result<()> {
        let answers = Answers::default();
        let image = self.read(client, &answers)?;
        self.compare(fault, &image, loss, say)?;
        self.adopt(client, &image)
    }

    /// The end of the stage: the client leaves in order, the members are stopped in order, and their files are compared with
    /// each other and with the model.
    pub(super) fn finish(&mut self, plant: Option<Plant>, say: &dyn Fn(&str)) -> Result<()> {
        if let Some(client) = self.client.take() {
            client.connection.detach(PATIENCE).map_err(LocalError::io("detach the client"))?;
        }
        let wrong = self.group.stop_and_compare()?;
        self.report.comparisons += 1;
        for text in wrong {
            self.violation(say, &text);
        }
        for at in 0..self.group.copies() {
            self.check_file(at, say)?;
        }
        if let Some(plant) = plant {
            self.plant(plant)?;
            for text in self.group.compare()? {
                self.violation(say, &text);
            }
            (0..MEMBERS).try_for_each(|at| self.group.spawn(at))?;
            self.group.until_whole()?;
            let mut client = self.attach(0, EXPORT).or_else(|_| self.promote(Fault::Handover, 0, true))?;
            self.check(&mut client, Loss::Nothing, Fault::Handover, say)?;
            client.connection.detach(PATIENCE).map_err(LocalError::io("detach the client"))?;
        }
        Ok(())
    }

    /// Compares a stopped member's file with the model.
    fn check_file(&mut self, at: usize, say: &dyn Fn(&str)) -> Result<()> {
        let path = self.group.image(at);
        let mut image = std::fs::read(&path).map_err(LocalError::path("read", &path))?;
        image.truncate(OWN as usize);
        let name = self.group.name(at);
        let checked = self.model.as_ref().map(|model| model.check(&image, Loss::Nothing));
        self.report.bytes_verified += image.len() as u64;
        for text in checked.unwrap_or_default().violations {
            self.violation(say, &format!("the device file of {name}: {text}"));
        }
        Ok(())
    }

    /// Damages a sector in the file of the first member, which is stopped.
    fn plant(&self, plant: Plant) -> Result<()> {
        let path = self.group.image(0);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(LocalError::path("open", &path))?;
        let written = self.model.as_ref().and_then(|model| {
            (0..model.sectors() - 1).find(|at| model.is_written(*at) && model.is_written(*at + 1))
        });
        let number =
            written.ok_or_else(|| LocalError::Value("no two sectors were written: run longer".into()))?;
        let offset = u64::from(number) * SECTOR as u64;
        let mut bytes = vec![0; 2 * SECTOR];
        file.read_exact_at(&mut bytes, offset).map_err(LocalError::path("read", &path))?;
        match plant {
            Plant::Flip => bytes[100] ^= 1,
            Plant::Swap => bytes.copy_within(SECTOR.., 0),
            Plant::Lose => bytes[..SECTOR].fill(0),
        }
        let salt = self.model.as_ref().map_or(0, Model::salt);
        let content = sector::read(&bytes[..SECTOR], salt, number);
        assert!(!matches!(content, Content::Write(_)), "a planted corruption is none: {content:?}");
        file.write_all_at(&bytes[..SECTOR], offset).map_err(LocalError::path("write", &path))
    }
}

/// Stops the client's thread when a round ends, also by an error.
struct StopGuard<'a>(&'a Signal);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The client works, and the fault is to come.
struct Calm<'a, 'r, 'scope> {
    rig: &'a mut Rig<'r>,
    work: ScopedJoinHandle<'scope, Written>,
    answers: &'a Answers,
    signal: &'a Signal,
}

/// The fault has come.
struct Phase {
    /// The part of the fault that lasts.
    held: Held,
    written: Written,
    /// Whether the client is to move although its server may live.
    moved: bool,
    /// The name by which it attaches at its new server, if that is promoted already.
    promoted: Option<String>,
}

impl<'a, 'r> Calm<'a, 'r, '_> {
    /// Lets the client write, injects the fault, and waits until the client's first part is over.
    fn run(
        self,
        fault: Fault,
        primary: usize,
        (target, other): (usize, usize),
        dice: &mut Dice,
    ) -> Result<(&'a mut Rig<'r>, Phase)> {
        let Calm { rig, work, answers, signal } = self;
        // Not always the same part of a flush, an entry or a write to the file.
        std::thread::sleep(rig.spec.calm + Duration::from_millis(dice.roll(1000)));
        let hold = rig.spec.hold;
        let (mut moved, mut promoted) = (false, None);
        let mut held = Held::Nothing;
        match fault {
            Fault::KillPrimary | Fault::KillPrimaryMove => {
                rig.group.kill(primary);
                moved = fault == Fault::KillPrimaryMove;
                if moved {
                    signal.stop();
                    held = Held::Down(primary);
                } else {
                    rig.group.spawn(primary)?;
                }
            }
            Fault::KillAll => {
                // All at once, before the first is waited for.
                (0..MEMBERS).try_for_each(|at| rig.group.signal(at, libc::SIGKILL))?;
                (0..MEMBERS).for_each(|at| rig.group.kill(at));
                (0..MEMBERS).try_for_each(|at| rig.group.spawn(at))?;
            }
            Fault::KillOther => {
                rig.group.kill(other);
                std::thread::sleep(hold);
                rig.group.spawn(other)?;
            }
            Fault::PausePrimary | Fault::PauseOther | Fault::PausePrimaryMove => {
                let at = if fault == Fault::PauseOther { other } else { primary };
                rig.group.signal(at, libc::SIGSTOP)?;
                held = Held::Paused(at);
            }
            Fault::CutPrimary | Fault::CutPrimaryMove => {
                rig.group.isolate(primary)?;
                held = Held::Cut;
            }
            Fault::CutOther => {
                rig.group.isolate(other)?;
                held = Held::Cut;
            }
            Fault::Split => {
                (0..MEMBERS).try_for_each(|at| rig.group.isolate(at))?;
                held = Held::Cut;
            }
            Fault::FullDisk => {
                let at = rig.any_copy(primary, dice);
                rig.group.fill(at)?;
                held = Held::Filled(at);
            }
            Fault::SlowDisk => {
                let at = rig.any_copy(primary, dice);
                let delay = DELAYS[dice.roll(DELAYS.len() as u64) as usize];
                rig.group.slow_down(at, Duration::from_millis(delay));
                held = Held::Slow(at);
            }
            Fault::StopPrimary => {
                rig.group.stop(primary)?;
                held = Held::Down(primary);
                signal.stop();
                moved = true;
            }
            Fault::Handover => {
                signal.stop();
                moved = true;
            }
        }
        if matches!(fault, Fault::PausePrimaryMove | Fault::CutPrimaryMove) {
            moved = true;
            // The client works on at its server until another one is promoted: all answers until then count.
            promoted = Some(rig.promoted(fault, target, false)?);
            signal.abandon();
        } else if !moved && !matches!(held, Held::Nothing) {
            std::thread::sleep(hold);
            rig.end(held)?;
            held = Held::Nothing;
        }
        if !moved {
            // The client goes on by itself, or learns that it cannot.
            let ended = Instant::now();
            while !work.is_finished() && !answers.since(ended) && ended.elapsed() < PATIENCE {
                rig.supervise()?;
                std::thread::sleep(POLL);
            }
            std::thread::sleep(rig.spec.calm);
            signal.stop();
        }
        let written = work.join().map_err(|_| LocalError::Value("the client's thread panicked".into()))?;
        Ok((rig, Phase { held, written, moved, promoted }))
    }
}
