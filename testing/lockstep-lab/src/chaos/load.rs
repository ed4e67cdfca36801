//! The clients: they reconnect to another member when theirs goes, and remember what they heard.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockstep_local::{Client, LocalError, Result};

use super::ChaosSpec;
use super::transactions::{self, Objects, transaction};
use super::workload::Clients;
use crate::cluster::Cluster;
use crate::isolation::{Completion, Transaction};

/// How long a client waits for an answer before it tries another member, as an application's would be set that does not
/// want to hang with a server that hangs.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
const ACCOUNTS: u64 = 12;
const EACH: u64 = 1000;
/// Numbers that look random and are the same for the same seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides.max(1)
    }
}

/// The state that all clients share.
pub(super) struct Load {
    stop: AtomicBool,
    sockets: Vec<PathBuf>,
    began: Instant,
    snapshot_isolation: bool,
    /// Whether only the leader takes writes, the first of the view.
    first_writes: bool,
    clients: Clients,
    /// The highest row that each inserting client has had acknowledged.
    acknowledged: Vec<AtomicU64>,
    complaints: Mutex<Vec<String>>,
    blind: Mutex<Vec<Blind>>,
}

/// A causal read that did not see all that had been acknowledged before it began.
#[derive(Debug, Clone)]
pub(super) struct Blind {
    pub(super) member: String,
    pub(super) client: u64,
    /// The highest row that it saw, and the highest that was acknowledged.
    pub(super) seen: u64,
    pub(super) due: u64,
}

/// The answers that an inserting client received.
#[derive(Debug, Default)]
pub(super) struct Inserts {
    pub(super) client: u64,
    /// Numbers of acknowledged rows.
    pub(super) acknowledged: Vec<u64>,
    /// Of rows of which nobody knows.
    pub(super) unknown: Vec<u64>,
    /// When each acknowledgement came, in µs since the load began.
    pub(super) times: Vec<u64>,
}

/// Clients and their numbers of transfers.
type Transfers = Vec<(u64, u64)>;

/// The answers to the other clients.
#[derive(Debug, Default)]
pub(super) struct Heards {
    pub(super) inserts: Vec<Inserts>,
    /// By client and number.
    pub(super) transfers: BTreeSet<(u64, u64)>,
    pub(super) unknown_transfers: BTreeSet<(u64, u64)>,
    pub(super) audits: u64,
    pub(super) causal_reads: u64,
    pub(super) lists: Vec<Transaction>,
    pub(super) registers: Vec<Transaction>,
    pub(super) blind: Vec<Blind>,
    /// Violations seen while it ran.
    pub(super) complaints: Vec<String>,
}

/// Makes the tables.
pub(super) fn prepare(cluster: &Cluster) -> Result<()> {
    let mut client = cluster.servers[0].client()?;
    client.run(&[
        "CREATE DATABASE chaos",
        "USE chaos",
        "CREATE TABLE chaos.inserts (client INT, n BIGINT, PRIMARY KEY (client, n))",
        "CREATE TABLE chaos.bank (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
        "CREATE TABLE chaos.journal (id BIGINT AUTO_INCREMENT PRIMARY KEY, client INT, n BIGINT, a INT, b INT, amount INT)",
        &format!("INSERT INTO chaos.bank SELECT seq, {EACH} FROM seq_1_to_{ACCOUNTS}"),
    ])?;
    for sql in transactions::tables() {
        client.query(&sql)?;
    }
    cluster.same_everywhere("SELECT COUNT(*) FROM chaos.registers")?;
    Ok(())
}

/// Whether an error says for sure that nothing was, or will be, committed.
pub(super) fn is_definite(error: &LocalError) -> bool {
    // Deadlock, lock wait, changed since the snapshot, not a member of a primary component.
    matches!(error.sql_code(), Some(1213 | 1205 | 1020 | 1047))
}

/// Whether the session may go on after an error.
pub(super) fn is_conflict(error: &LocalError) -> bool {
    matches!(error.sql_code(), Some(1213 | 1205 | 1020))
}

/// A client that finds itself a member.
pub(super) struct Seat<'a> {
    load: &'a Load,
    at: usize,
    writes: bool,
    sync_wait: bool,
    session: Option<Client>,
}

impl<'a> Seat<'a> {
    pub(super) fn new(load: &'a Load, at: usize) -> Seat<'a> {
        Seat { load, at, writes: true, sync_wait: false, session: None }
    }

    pub(super) fn reader(load: &'a Load, at: usize) -> Seat<'a> {
        Seat { writes: false, ..Seat::new(load, at) }
    }

    /// A session; `None` if the member that was tried has none to give, or the load has ended.
    pub(super) fn session(&mut self) -> Option<&mut Client> {
        if self.session.is_none() {
            let socket = &self.load.sockets[self.member()];
            match self.open(socket) {
                Ok(client) => self.session = Some(client),
                Err(_) => {
                    self.leave();
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        self.session.as_mut()
    }

    fn open(&self, socket: &std::path::Path) -> Result<Client> {
        let mut client = Client::connect(socket, "root", TIMEOUT)?;
        let snapshot = self.load.snapshot_isolation as u8;
        let sync_wait = if self.sync_wait { 15 } else { 0 };
        client.run(&[
            &format!("SET SESSION wsrep_sync_wait = {sync_wait}, innodb_snapshot_isolation = {snapshot}, innodb_lock_wait_timeout = 5"),
            // Refused where there is no primary component.
            "SELECT COUNT(*) FROM chaos.bank",
        ])?;
        if self.writes && self.load.first_writes && client.status("wsrep_local_index")? != "0" {
            return Err(LocalError::Value("it does not lead".into()));
        }
        Ok(client)
    }

    /// The member of the session, from 0.
    pub(super) fn member(&self) -> usize {
        self.at % self.load.sockets.len()
    }

    /// Whether the session waits for all that is acknowledged.
    pub(super) fn sync_wait(&self) -> bool {
        self.sync_wait
    }

    /// The next session is with this member.
    pub(super) fn take(&mut self, at: usize, sync_wait: bool) {
        (self.at, self.sync_wait, self.session) = (at, sync_wait, None);
    }

    /// The next session is with another member.
    fn leave(&mut self) {
        self.session = None;
        self.at += 1;
    }

    pub(super) fn after(&mut self, error: &LocalError) {
        if !is_conflict(error) {
            self.leave();
        }
    }
}

impl Load {
    pub(super) fn new(cluster: &Cluster, spec: &ChaosSpec) -> Load {
        let clients = spec.workload.clients(spec.inserters);
        Load {
            stop: AtomicBool::new(false),
            sockets: cluster.servers.iter().map(|server| server.config.socket()).collect(),
            began: Instant::now(),
            snapshot_isolation: spec.snapshot_isolation,
            first_writes: spec.policy.is_weak(),
            clients,
            acknowledged: (0..clients.inserts).map(|_| AtomicU64::new(0)).collect(),
            complaints: Mutex::new(Vec::new()),
            blind: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Time since the load began, in µs.
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Between two transactions. Where commits do not wait for the others these would fall behind: their servers share the
    /// machine.
    pub(super) fn pause(&self, ms: u64) {
        std::thread::sleep(Duration::from_millis(if self.first_writes { 4 * ms } else { ms }));
    }

    fn complain(&self, text: String) {
        let mut complaints = self.complaints.lock().unwrap_or_else(|p| p.into_inner());
        // One kind of trouble says the same thing again and again.
        if complaints.len() < 20 {
            complaints.push(text);
        }
    }

    /// Runs until [`Load::stop`], with `body` beside it.
    pub(super) fn run<T>(&self, seed: u64, body: impl FnOnce() -> T) -> (T, Heards) {
        std::thread::scope(|scope| {
            let inserts: Vec<_> = (0..self.acknowledged.len())
                .map(|client| scope.spawn(move || self.inserts(client)))
                .collect();
            let banks: Vec<_> = (0..self.clients.banks)
                .map(|n| scope.spawn(move || self.transfers(n, Dice(seed.wrapping_mul(31) + n as u64))))
                .collect();
            // Elements are unique among all objects.
            let histories = |objects, first: u64, clients: usize| -> Vec<_> {
                (first..first + clients as u64)
                    .map(|n| {
                        let dice = Dice(seed.wrapping_mul(37) + n);
                        scope.spawn(move || self.transactions(objects, n, dice))
                    })
                    .collect()
            };
            let lists = histories(Objects::Lists, 0, self.clients.lists);
            let registers = histories(Objects::Registers, 100, self.clients.registers);
            let auditor = scope.spawn(move || self.audits(Dice(seed)));
            let causal = scope.spawn(move || self.causal_reads(Dice(seed + 1)));
            let outcome = body();
            self.stop();
            // A client thread that panics is a mistake of this program: nothing it found can be believed.
            let mut heards = Heards {
                inserts: inserts
                    .into_iter()
                    .map(|t| t.join().expect("an inserting client panicked"))
                    .collect(),
                ..Heards::default()
            };
            for bank in banks {
                let (done, unknown) = bank.join().expect("a bank client panicked");
                heards.transfers.extend(done);
                heards.unknown_transfers.extend(unknown);
            }
            for list in lists {
                heards.lists.extend(list.join().expect("a list client panicked"));
            }
            for register in registers {
                heards.registers.extend(register.join().expect("a register client panicked"));
            }
            heards.audits = auditor.join().expect("the auditor panicked");
            heards.causal_reads = causal.join().expect("the reader panicked");
            heards.blind = self.blind.lock().unwrap_or_else(|p| p.into_inner()).clone();
            heards.complaints = self.complaints.lock().unwrap_or_else(|p| p.into_inner()).clone();
            (outcome, heards)
        })
    }

    fn inserts(&self, client: usize) -> Inserts {
        let mut heard = Inserts { client: client as u64, ..Inserts::default() };
        let mut seat = Seat::new(self, client);
        let mut n = 0;
        while self.goes_on() {
            let Some(session) = seat.session() else { continue };
            n += 1;
            match session.query(&format!("INSERT INTO chaos.inserts VALUES ({client}, {n})")) {
                Ok(_) => {
                    heard.acknowledged.push(n);
                    heard.times.push(self.now());
                    self.acknowledged[client].store(n, Ordering::Release);
                }
                Err(error) => {
                    if !is_definite(&error) {
                        heard.unknown.push(n);
                    }
                    seat.after(&error);
                }
            }
            self.pause(5);
        }
        heard
    }

    /// Acknowledged transfers, and those of which nobody knows.
    fn transfers(&self, member: usize, mut dice: Dice) -> (Transfers, Transfers) {
        let (mut done, mut unknown) = (Transfers::new(), Transfers::new());
        let client = member as u64;
        let mut n = 0;
        let mut seat = Seat::new(self, member);
        while self.goes_on() {
            let Some(session) = seat.session() else { continue };
            let from = 1 + dice.roll(ACCOUNTS);
            let to = 1 + (from + dice.roll(ACCOUNTS - 1)) % ACCOUNTS;
            let amount = 1 + dice.roll(5);
            n += 1;
            let steps = [
                format!("UPDATE chaos.bank SET balance = balance - {amount} WHERE id = {from}"),
                format!("UPDATE chaos.bank SET balance = balance + {amount} WHERE id = {to}"),
                format!(
                    "INSERT INTO chaos.journal (client, n, a, b, amount) VALUES ({client}, {n}, {from}, {to}, {amount})"
                ),
            ];
            let (completion, error) =
                transaction(session, |client| steps.iter().try_for_each(|step| client.query(step).map(drop)));
            match completion {
                Completion::Committed => done.push((client, n)),
                Completion::Unknown => unknown.push((client, n)),
                Completion::Aborted => {}
            }
            if let Some(error) = error {
                seat.after(&error);
            }
            self.pause(10);
        }
        (done, unknown)
    }

    /// Every look into the bank finds all the money, on whichever member.
    fn audits(&self, mut dice: Dice) -> u64 {
        let mut looks = 0;
        let mut seat = Seat::reader(self, 0);
        while self.goes_on() {
            let Some(session) = seat.session() else { continue };
            match session.number("SELECT SUM(balance) FROM chaos.bank") {
                Ok(total) if total == (ACCOUNTS * EACH) as i64 => looks += 1,
                Ok(total) => {
                    let member = self.sockets[seat.member()].display().to_string();
                    self.complain(format!(
                        "{total} in the bank instead of {}, as {member} says",
                        ACCOUNTS * EACH
                    ));
                }
                Err(_) => {}
            }
            seat.at = dice.roll(self.sockets.len() as u64) as usize;
            seat.leave();
            std::thread::sleep(Duration::from_millis(20));
        }
        looks
    }

    /// With `wsrep_sync_wait` a read on any member sees what was acknowledged anywhere before it began.
    fn causal_reads(&self, mut dice: Dice) -> u64 {
        let mut reads = 0;
        let mut seat = Seat::reader(self, 1);
        while self.goes_on() {
            let client = dice.roll(self.acknowledged.len() as u64) as usize;
            let Some(session) = seat.session() else { continue };
            if session.query("SET SESSION wsrep_sync_wait = 1").is_ok() {
                let due = self.acknowledged[client].load(Ordering::Acquire);
                let read = format!("SELECT COALESCE(MAX(n), 0) FROM chaos.inserts WHERE client = {client}");
                match session.number(&read) {
                    Ok(seen) if seen as u64 >= due => reads += 1,
                    Ok(seen) => {
                        let member = self.sockets[seat.member()].display().to_string();
                        let seen = u64::try_from(seen).unwrap_or(0);
                        let mut blind = self.blind.lock().unwrap_or_else(|p| p.into_inner());
                        if blind.len() < 1000 {
                            blind.push(Blind { member, client: client as u64, seen, due });
                        }
                    }
                    Err(_) => {}
                }
            }
            seat.at = dice.roll(self.sockets.len() as u64) as usize;
            seat.leave();
            std::thread::sleep(Duration::from_millis(20));
        }
        reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_errors_say_that_nothing_is_committed() {
        let sql = |code| LocalError::Sql {
            code,
            state: String::new(),
            message: String::new(),
            statement: String::new(),
        };
        assert!(is_definite(&sql(1213)) && is_definite(&sql(1047)) && is_conflict(&sql(1020)));
        assert!(!is_definite(&sql(1180)) && !is_definite(&sql(2013)) && !is_conflict(&sql(1047)));
        assert!(!is_definite(&LocalError::Protocol("broken off".into())));
    }
}
