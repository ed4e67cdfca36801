//! The client under faults: it writes, flushes and reads with several requests in flight, and tells the model each step.
//! The prober is the same client after another one has taken its place: it must get no answer.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::model::{Model, Write};
use super::nbd::{Command, Connection};
use super::sector::{self, SECTOR};
use crate::block_group::PATIENCE;
use crate::chaos::Dice;

/// Requests in flight.
const DEPTH: usize = 8;
/// The time from one request to the next: the log must keep what a member misses during a fault.
const INTERVAL: Duration = Duration::from_micros(2500);
/// How long a thread waits before it looks for a signal.
const LOOK: Duration = Duration::from_millis(50);
/// The longest request, in sectors.
const LENGTH_MAX: u32 = 32;
/// Half of the requests go to so many sectors, so that writes overlap earlier ones.
const HOT: u32 = 1024;
/// An answer that the prober's thread takes late may have been sent in time.
const SCHEDULING: Duration = Duration::from_secs(1);

/// When answers came.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Times>);

#[derive(Debug, Default)]
struct Times {
    last: Option<Instant>,
    longest: Duration,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Times> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a client waits for answers.
    pub(crate) fn begin(&self) {
        *self.lock() = Times { last: Some(Instant::now()), longest: Duration::ZERO };
    }

    /// A request was answered without an error.
    pub(crate) fn came(&self) {
        let mut times = self.lock();
        let now = Instant::now();
        if let Some(last) = times.last.replace(now) {
            times.longest = times.longest.max(now - last);
        }
    }

    /// Whether one has come since then.
    pub(crate) fn since(&self, time: Instant) -> bool {
        self.lock().last.is_some_and(|last| last > time)
    }

    /// The longest time without an answer since the beginning.
    pub(crate) fn longest(&self) -> Duration {
        self.lock().longest
    }
}

/// The client's answered requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Done {
    /// Answered writes, also of zeroes.
    pub(crate) writes: u64,
    /// Answered flushes.
    pub(crate) flushes: u64,
    /// Bytes that were read and were right.
    pub(crate) verified: u64,
}

/// An order to the writer's thread.
#[derive(Debug, Default)]
pub(crate) struct Signal(AtomicU8);

const STOP: u8 = 1;
const ABANDON: u8 = 2;

impl Signal {
    /// Sends nothing more, and waits for all answers.
    pub(crate) fn stop(&self) {
        self.0.store(STOP, Ordering::SeqCst);
    }

    /// Ends at once.
    pub(crate) fn abandon(&self) {
        self.0.store(ABANDON, Ordering::SeqCst);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::SeqCst)
    }
}

/// How the writer ended.
#[derive(Debug)]
pub(crate) enum End {
    /// As it was told to. Unless it was abandoned, all requests were answered.
    Told(Connection),
    /// The server ended the connection, or answered with an error.
    Broken(String),
    /// An answer did not come, although nothing stood in its way.
    Hung,
}

/// The result of a writer.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) model: Model,
    pub(crate) done: Done,
    pub(crate) end: End,
    /// Wrong reads.
    pub(crate) violations: Vec<String>,
}

#[derive(Debug)]
enum Pending {
    Write(Write, bool),
    Flush(Vec<Write>),
    Read(u32, u32),
}

/// The client.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    model: Model,
    dice: Dice,
    answers: &'a Answers,
    pending: HashMap<u64, Pending>,
    done: Done,
    violations: Vec<String>,
}

impl Writer<'_> {
    /// One that writes what the dice say.
    pub(crate) fn new(model: Model, dice: Dice, answers: &Answers) -> Writer<'_> {
        Writer {
            model,
            dice,
            answers,
            pending: HashMap::new(),
            done: Done::default(),
            violations: Vec::new(),
        }
    }

    /// Works until it is told to end, or the connection is broken.
    pub(crate) fn run(mut self, mut connection: Connection, signal: &Signal) -> Written {
        let end = match self.work(&mut connection, signal) {
            Ok(true) => End::Told(connection),
            Ok(false) => End::Hung,
            Err(error) => End::Broken(error.to_string()),
        };
        Written { model: self.model, done: self.done, end, violations: self.violations }
    }

    /// `false`: an answer did not come.
    fn work(&mut self, connection: &mut Connection, signal: &Signal) -> std::io::Result<bool> {
        let mut due = Instant::now();
        let mut stopped = None;
        loop {
            match signal.get() {
                ABANDON => return Ok(true),
                STOP if self.pending.is_empty() => return Ok(true),
                STOP => {
                    if stopped.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Ok(false);
                    }
                }
                _ => {
                    let now = Instant::now();
                    if now >= due && self.pending.len() < DEPTH {
                        self.send(connection)?;
                        due = (due + INTERVAL).max(now);
                    }
                }
            }
            let full = stopped.is_some() || self.pending.len() >= DEPTH;
            let wait = if full { LOOK } else { due.saturating_duration_since(Instant::now()).min(LOOK) };
            if let Some(answer) = connection.receive(wait)? {
                let data = answer.result?;
                self.answers.came();
                self.take(answer.cookie, &data);
            }
        }
    }

    fn take(&mut self, cookie: u64, data: &[u8]) {
        match self.pending.remove(&cookie) {
            Some(Pending::Write(write, durable)) => {
                self.model.answered(write, durable);
                self.done.writes += 1;
            }
            Some(Pending::Flush(writes)) => {
                self.model.flushed(&writes);
                self.done.flushes += 1;
            }
            Some(Pending::Read(first, _)) => match self.model.check_read(first, data) {
                None => self.done.verified += data.len() as u64,
                Some(text) => self.violations.push(text),
            },
            None => {}
        }
    }

    /// Requests in flight never overlap: their order would not be defined.
    fn is_free(&self, first: u32, count: u32) -> bool {
        let apart = |from: u32, length: u32| first + count <= from || from + length <= first;
        self.pending.values().all(|pending| match pending {
            Pending::Write(write, _) => apart(write.first, write.count),
            Pending::Read(from, length) => apart(*from, *length),
            Pending::Flush(_) => true,
        })
    }

    fn send(&mut self, connection: &mut Connection) -> std::io::Result<()> {
        let kind = self.dice.roll(100);
        let flushes = self.pending.values().any(|pending| matches!(pending, Pending::Flush(_)));
        if kind < 8 {
            // With two flushes in flight the later answer would say nothing of the earlier one's writes.
            if !flushes {
                let writes = self.model.flush();
                let cookie = connection.send(Command::Flush, &[])?;
                self.pending.insert(cookie, Pending::Flush(writes));
            }
            return Ok(());
        }
        let room = if self.dice.roll(2) == 0 { HOT.min(self.model.sectors()) } else { self.model.sectors() };
        let mut count = 1 + self.dice.roll(u64::from(LENGTH_MAX)) as u32;
        let mut first = self.dice.roll(u64::from(room - LENGTH_MAX)) as u32;
        if self.dice.roll(2) == 0 {
            // Whole blocks of 4 KiB.
            (first, count) = (first & !7, (count + 7) & !7);
        }
        if !self.is_free(first, count) {
            return Ok(());
        }
        let (offset, length) = (u64::from(first) * SECTOR as u64, count * SECTOR as u32);
        let durable = self.dice.roll(20) == 0;
        let (cookie, pending) = match kind {
            8..16 => (connection.send(Command::Read { offset, length }, &[])?, Pending::Read(first, count)),
            16..22 => {
                let (write, _) = self.model.write(first, count, true);
                let command = Command::Zero { offset, length, durable };
                (connection.send(command, &[])?, Pending::Write(write, durable))
            }
            _ => {
                let (write, bytes) = self.model.write(first, count, false);
                let command = Command::Write { offset, length, durable };
                (connection.send(command, &bytes)?, Pending::Write(write, durable))
            }
        };
        self.pending.insert(cookie, pending);
        Ok(())
    }
}

/// When the former primary's time was over: another client has its answers since.
#[derive(Debug, Default)]
pub(crate) struct Deposed(Mutex<Option<Instant>>);

impl Deposed {
    /// From now on.
    pub(crate) fn set(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the former primary for all kinds of requests, until the connection ends or `signal` says so. An answer without an
/// error is a violation. The bytes that it writes are of another run, so a check finds them wherever they get.
pub(crate) fn probe(
    mut connection: Connection,
    salt: u32,
    deposed: &Deposed,
    signal: &Signal,
) -> Vec<String> {
    /// Flushes and durable writes may have no answer for as long as the fault lasts. Reads are asked for on and on.
    const WAITING_MAX: usize = 32;
    const READS_MAX: usize = 256;
    const PAUSE: Duration = Duration::from_millis(50);
    let mut foreign = vec![0; SECTOR];
    sector::fill(&mut foreign, !salt, 0, 0);
    let mut violations = Vec::new();
    let length = SECTOR as u32;
    let read = Command::Read { offset: 0, length };
    let requests = [
        Command::Write { offset: 0, length, durable: false },
        Command::Flush,
        read,
        Command::Write { offset: 0, length, durable: true },
    ];
    let mut turns = requests.into_iter().cycle();
    let mut due = Instant::now();
    while signal.get() == 0 {
        let since = deposed.get();
        if since.is_some() && Instant::now() >= due && connection.in_flight() < READS_MAX {
            due = Instant::now() + PAUSE;
            let waiting = connection.in_flight() >= WAITING_MAX;
            let request = if waiting { read } else { turns.next().unwrap_or(read) };
            let data: &[u8] = if matches!(request, Command::Write { .. }) { &foreign } else { &[] };
            if connection.send(request, data).is_err() {
                return violations;
            }
        }
        match connection.receive(PAUSE) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                if let (Some(since), Ok(_)) = (since, &answer.result)
                    && since.elapsed() > SCHEDULING
                {
                    violations.push(format!(
                        "the former primary answered a request {:.1} s after another client had attached",
                        since.elapsed().as_secs_f64()
                    ));
                }
            }
            Err(_) => return violations,
        }
    }
    violations
}

/// Reads all sectors of the model.
///
/// # Errors
/// The server's.
pub(crate) fn read_all(
    connection: &mut Connection,
    sectors: u32,
    answers: &Answers,
) -> std::io::Result<Vec<u8>> {
    const PIECE: u32 = 2048;
    let mut image = Vec::with_capacity(sectors as usize * SECTOR);
    for first in (0..sectors).step_by(PIECE as usize) {
        let count = PIECE.min(sectors - first);
        let command =
            Command::Read { offset: u64::from(first) * SECTOR as u64, length: count * SECTOR as u32 };
        image.extend(connection.ask(command, PATIENCE)?);
        answers.came();
    }
    if image.len() != sectors as usize * SECTOR {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(image)
}
