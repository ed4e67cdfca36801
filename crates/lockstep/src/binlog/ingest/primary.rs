//! Reads the primary's binlog while this member leads, and submits it to the log.

use super::progress::{Begin, CopyNow, Progress};
use crate::log_member::MessageLog;
use bytes::Bytes;
use lockstep_binlog::event::MAGIC;
use lockstep_binlog::ingest::{Continues, FileName, FollowError, Follower, Origin, Place, SuccessorScan};
use lockstep_binlog::wire::source::{Acknowledger, DumpRequest, Events, request_binlog};
use lockstep_binlog::wire::sql_client::{SqlClient, SqlClientError, Target};
use lockstep_binlog::{Gtid, ReplicaState};
use lockstep_node::core::EntryKind;
use lockstep_node::core::writeset::{DataKind, Meta, WriteSetBuilder, flags};
use lockstep_node::{Level, Node, SubmitError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the primary sends a sign of life, and after how long without one the connection counts as lost.
const HEARTBEAT: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_secs(5);
/// How often the loop looks whether this member still leads.
const LOOK: Duration = Duration::from_millis(100);
/// How long entries of earlier leaders may take.
const CATCH_UP: Duration = Duration::from_secs(30);
/// Own chunks that may be on their way through the log. With chunks of full size: 32 MiB.
const ON_THE_WAY_MAX: u64 = 64;
/// Chunks that are on their way this long are lost.
const LOST_AFTER: Duration = Duration::from_secs(5);
/// How often the primary is asked for its settings.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(300);
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// The error of a server that has no connection left.
const TOO_MANY_CONNECTIONS: u16 = 1040;
/// The errors of an account that does not exist or lacks a privilege.
const ACCESS_DENIED: [u16; 3] = [1045, 1142, 1227];
/// How often the same failure is logged.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// The events of one submission, if more have arrived.
const BATCH: usize = 256 << 10;

/// The primary, and how to sign in.
#[derive(Clone)]
pub(super) struct PrimaryConfig {
    pub(super) primary: Target,
    /// The server id of all members towards the primary.
    pub(super) server_id: u32,
    /// This member's name.
    pub(super) name: String,
}

/// The reader's part of the status.
#[derive(Default)]
pub(super) struct PrimaryStatus {
    pub(super) connected: AtomicBool,
    pub(super) durable: AtomicBool,
    /// Why this member, which leads, cannot read the primary.
    trouble: Mutex<Option<String>>,
}

impl PrimaryStatus {
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, why: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }
}

/// See the module's documentation.
pub(super) struct PrimaryReader {
    pub(super) node: Node,
    pub(super) config: PrimaryConfig,
    pub(super) progress: Arc<Progress>,
    pub(super) status: Arc<PrimaryStatus>,
    pub(super) log: Arc<MessageLog>,
}

/// Where reading begins.
enum Start {
    /// With this file: there is no copy yet.
    File(FileName),
    /// With the copy's last event, which the primary must have as well.
    Event(Box<CopyNow>),
    /// With a file of another primary. A scan has shown that its binlog continues the copy.
    TakeOver(Box<CopyNow>, SuccessorsFile),
}

/// The file of another primary with which a copy goes on.
struct SuccessorsFile {
    name: FileName,
    /// The events that begin it.
    events: Vec<Bytes>,
    /// See [`Chunk::unlogged`](lockstep_binlog::ingest::Chunk::unlogged).
    unlogged: Vec<Gtid>,
}

/// The result of a scan of another primary's binlog from a file on.
enum Scanned {
    /// The copy goes on with the file.
    Continues(SuccessorsFile),
    /// The binlog has this transaction before the file, and the copy does not have it.
    NotFrom(Gtid),
}

impl Start {
    fn place(&self) -> Place {
        match self {
            Start::File(file) => begin_of(file.clone()),
            Start::TakeOver(_, file) => begin_of(file.name.clone()),
            Start::Event(copy) => copy.last.0.clone(),
        }
    }

    fn follower(&self) -> Follower {
        match self {
            Start::File(file) => Follower::of_file(file.clone()),
            Start::Event(copy) => {
                let (place, event) = copy.last.clone();
                Follower::after_event(copy.generation, copy.origin, place, event, copy.group)
                    .with_unlogged(copy.unlogged.clone())
            }
            Start::TakeOver(copy, file) => {
                let after = (copy.end.file.number(), copy.end.offset);
                let generation = copy.generation.saturating_add(1);
                Follower::taking_over(file.name.clone(), generation, after)
                    .with_unlogged(file.unlogged.clone())
                    .expecting(file.events.iter().cloned())
            }
        }
    }

    /// Which primary of the group is read, and which server: the one whose binlog has this first event.
    fn reads(&self, first: &[u8]) -> Result<(u32, Origin), End> {
        Ok(match self {
            Start::File(_) => (0, Origin::of(first)?),
            Start::Event(copy) => (copy.generation, copy.origin),
            Start::TakeOver(copy, ..) => (copy.generation.saturating_add(1), Origin::of(first)?),
        })
    }
}

/// The first event of a file.
fn begin_of(file: FileName) -> Place {
    Place { file, offset: MAGIC.len() as u64 }
}

/// The reason why reading has ended.
enum End {
    /// This member no longer leads, or the program ends.
    NotLeading,
    /// For people.
    Failed(String),
    /// Another primary cannot take over, for people. The next attempt reads much of its binlog.
    Refused(String),
}

impl<E: std::error::Error + 'static> From<E> for End {
    fn from(error: E) -> End {
        End::Failed(match (&error as &dyn std::error::Error).downcast_ref() {
            Some(SqlClientError::Server(code, _)) if ACCESS_DENIED.contains(code) => format!(
                "{error}. If the statement that creates or grants the account waits there for an acknowledgement: SET GLOBAL \
                 rpl_semi_sync_master_enabled=OFF, and ON again once the account has its privileges"
            ),
            _ => error.to_string(),
        })
    }
}

impl PrimaryReader {
    /// Reads until the program ends.
    pub(super) fn run(self) {
        let mut said: Option<(String, Instant)> = None;
        while !self.progress.is_stopped() {
            if !self.leads() {
                self.status.set_trouble(None);
                std::thread::sleep(LOOK);
                continue;
            }
            let end = self.read();
            self.status.connected.store(false, Ordering::Relaxed);
            self.progress.disconnected();
            self.status.set_trouble(match &end {
                End::NotLeading => None,
                End::Failed(text) | End::Refused(text) => Some(text.clone()),
            });
            let pause = if matches!(end, End::Refused(_)) { REFUSED_PAUSE } else { PAUSE };
            if let End::Failed(text) | End::Refused(text) = end {
                let is_new =
                    said.as_ref().is_none_or(|(last, at)| *last != text || at.elapsed() >= SAY_AGAIN);
                if is_new && !self.progress.is_stopped() {
                    let address = &self.config.primary.address;
                    self.log.write(
                        Level::Warn,
                        &format!("cannot read the primary {address}: {text}; tries again"),
                    );
                    said = Some((text, Instant::now()));
                }
                self.progress.pause(pause);
            }
        }
    }

    /// Whether this member leads, as of at most 0.2 s ago.
    fn leads(&self) -> bool {
        let status = self.node.status();
        self.node.is_primary()
            && !self.progress.is_stopped()
            && status.members.iter().any(|member| member.id == status.own.id && member.role == "leader")
    }

    fn read(&self) -> End {
        match self.try_read() {
            Ok(()) => End::NotLeading,
            Err(end) => end,
        }
    }

    fn try_read(&self) -> Result<(), End> {
        let waits = |what: &str| End::Failed(format!("{what} for {} s", CATCH_UP.as_secs()));
        // Chunks of earlier leaders come first. If more of them arrive later, each member decides about them.
        let seqno = self.node.causal(CATCH_UP).map_err(|_| waits("the log has not answered"))?;
        if !self.progress.wait_done(seqno, CATCH_UP) {
            return Err(waits("the copy has lagged behind the log"));
        }
        let mut connection = self.connect()?;
        self.facts(&mut connection, None)?;
        let id = server_id(&mut connection)?;
        let begin = self.begin(&mut connection, &id)?;
        // A semi-synchronous request acknowledges everything before its place: the primary's binlog is compared before that.
        let (events, _) = self.request(connection, &begin.place(), false)?;
        let first = self.compare(events, begin.follower())?;
        let reads = begin.reads(&first)?;
        let mut connection = self.connect()?;
        let control = self.connect()?;
        // An address may move to another server between two connections.
        let now = server_id(&mut connection)?;
        if now != id {
            return Err(End::Failed(format!(
                "it has server id {now} now, and had {id}: another server answers"
            )));
        }
        let (events, acknowledger) = self.request(connection, &begin.place(), true)?;
        let follower = match &begin {
            Start::File(_) => begin.follower().expecting([first]),
            _ => begin.follower(),
        };
        let number = self.progress.connected(acknowledger, reads);
        self.follow(events, follower, number, control)
    }

    fn connect(&self) -> Result<SqlClient, End> {
        SqlClient::connect(&self.config.primary).map_err(|error| match &error {
            SqlClientError::Server(TOO_MANY_CONNECTIONS, _) => End::Failed(format!(
                "{error}: its clients wait in their commits for these members, and leave them no connection. Set extra_port \
                 and extra_max_connections=10 there, and give that port in --from"
            )),
            _ => error.into(),
        })
    }

    fn request(
        &self,
        connection: SqlClient,
        place: &Place,
        semi_sync: bool,
    ) -> Result<(Events, Acknowledger), End> {
        let offset = u32::try_from(place.offset).map_err(|_| FollowError::TooLong(place.file.clone()))?;
        let request = DumpRequest {
            server_id: self.config.server_id,
            report_host: self.config.name.clone(),
            file: place.file.to_string(),
            offset,
            semi_sync,
            non_block: !semi_sync,
            heartbeat: HEARTBEAT,
        };
        Ok(request_binlog(connection, &request)?)
    }

    fn facts(&self, connection: &mut SqlClient, before: Option<&Facts>) -> Result<Facts, End> {
        let voters = self.node.status().members.iter().filter(|member| member.role != "learner").count();
        Facts::read(connection, before, voters)
    }

    /// Shows and logs the primary's settings, if they have changed.
    fn announce(&self, facts: &Facts, before: Option<&Facts>) {
        self.status.connected.store(true, Ordering::Relaxed);
        self.status.set_trouble(None);
        self.status.durable.store(facts.is_durable(), Ordering::Relaxed);
        if before.is_some_and(|before| before.says_the_same(facts)) {
            return;
        }
        if facts.is_durable() {
            match facts.is_alone {
                true => self.log.write(
                    Level::Warn,
                    "a commit on the primary returns once this member alone has it on disk: it is the only voter of its group. \
                     Start two more members",
                ),
                false => self.log.write(
                    Level::Info,
                    &format!(
                        "a commit on the primary returns once a majority of these members has it on disk: {} of {}",
                        facts.voters / 2 + 1,
                        facts.voters
                    ),
                ),
            }
            return;
        }
        let address = &self.config.primary.address;
        let remedies = facts.remedies(address).join("; ");
        let text =
            format!("the primary does not wait for a majority of these members at each commit: {remedies}");
        self.log.write(Level::Warn, &text);
    }

    /// Where to begin.
    fn begin(&self, connection: &mut SqlClient, id: &str) -> Result<Start, End> {
        match self.progress.begin(CATCH_UP) {
            None => Err(End::Failed("the copy's end is not known yet".into())),
            Some(Begin::Copy(copy)) => {
                if id == copy.server_id.to_string() {
                    return Ok(Start::Event(copy));
                }
                if copy.is_partial {
                    self.progress.fail(format!(
                        "this member leads, and {} has server id {id}, and not the primary's so far, {}. This member began with \
                         an empty directory, and cannot tell whether that server has all transactions that were \
                         acknowledged: it ends, so that another member leads. Start it again",
                        self.config.primary.address, copy.server_id
                    ));
                    return Err(End::NotLeading);
                }
                let file = self.successors_file(connection, &copy).map_err(|end| match end {
                    End::NotLeading => End::NotLeading,
                    End::Refused(text) | End::Failed(text) => End::Refused(format!(
                        "it has server id {id}, and the primary so far had {}: it cannot take over, because {text}. Nothing is \
                         acknowledged",
                        copy.server_id
                    )),
                })?;
                Ok(Start::TakeOver(copy, file))
            }
            Some(Begin::Unknown) => {
                // Others have the copy, and may lead.
                self.progress.fail(
                    "this member leads and has no copy, because the log no longer begins with the primary's first file: it \
                     ends, so that another member leads. Start it again"
                        .into(),
                );
                Err(End::NotLeading)
            }
            Some(Begin::Oldest) => {
                let rows = connection.rows("SHOW BINARY LOGS")?;
                let oldest = rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten();
                let oldest =
                    oldest.ok_or_else(|| End::Failed("it has no binlog: set log_bin there".into()))?;
                Ok(Start::File(FileName::parse(&oldest)?))
            }
        }
    }

    /// The file of another primary with which this copy goes on: the newest one that has, from its begin on, all that the
    /// copy does not have.
    fn successors_file(&self, connection: &mut SqlClient, copy: &CopyNow) -> Result<SuccessorsFile, End> {
        // Before its binlog: what it applies meanwhile is there.
        let applied = connection.value("SELECT @@GLOBAL.gtid_slave_pos")?.unwrap_or_default().parse()?;
        let rows = connection.rows("SHOW BINARY LOGS")?;
        let names = rows.into_iter().rev().filter_map(|row| row.into_iter().next().flatten());
        let mut before = None;
        for name in names {
            let file = FileName::parse(&name)?;
            match self.scan_successor(&file, copy, &applied)? {
                Scanned::NotFrom(gtid) => before = Some((file, gtid)),
                Scanned::Continues(file) => return Ok(file),
            }
        }
        Err(End::Failed(match before {
            None => "it has no binlog: set log_bin there".into(),
            Some((file, gtid)) => {
                let last = copy.transactions.last(gtid.domain);
                let last = last.map_or("nothing".to_owned(), |last| last.to_string());
                format!(
                    "before {file}, its oldest file, it had transaction {gtid}, which this copy does not have: in domain {} this \
                     copy ends with {last}. Its data differ, or its older files were purged",
                    gtid.domain
                )
            }
        }))
    }

    /// Reads another primary's binlog from this file on, until it is known whether the copy goes on with the file. The
    /// server has applied these transactions as a replica.
    fn scan_successor(
        &self,
        file: &FileName,
        copy: &CopyNow,
        applied: &ReplicaState,
    ) -> Result<Scanned, End> {
        let connection = self.connect()?;
        let (mut events, _) = self.request(connection, &begin_of(file.clone()), false)?;
        let mut scan = SuccessorScan::new(copy.transactions.clone(), applied.clone());
        let mut silence = Silence::default();
        let continues = |scan: &SuccessorScan, unlogged| {
            let events = scan.begin().to_vec();
            Scanned::Continues(SuccessorsFile { name: file.clone(), events, unlogged })
        };
        while self.leads() {
            let next = match events.next(LOOK) {
                Err(error) if has_ended(&error) => return Ok(continues(&scan, scan.end()?)),
                next => next?,
            };
            silence.check(&events)?;
            if let Some(received) = next {
                match scan.pass(&received.event)? {
                    Continues::Maybe => {}
                    Continues::Yes => return Ok(continues(&scan, Vec::new())),
                    Continues::NotFrom(gtid) => return Ok(Scanned::NotFrom(gtid)),
                }
            }
        }
        Err(End::NotLeading)
    }

    /// Compares the first events with those that are known. Returns the first one.
    fn compare(&self, mut events: Events, mut follower: Follower) -> Result<Bytes, End> {
        let mut first = None;
        let mut silence = Silence::default();
        while self.leads() {
            let next = events.next(LOOK).map_err(|error| refused(error, follower.place()))?;
            silence.check(&events)?;
            let Some(received) = next else { continue };
            if follower.take(&received.event)? {
                let first = first.get_or_insert_with(|| Bytes::from(received.event));
                if follower.is_compared() {
                    return Ok(first.clone());
                }
            }
        }
        Err(End::NotLeading)
    }

    /// Copies until this member no longer leads. `number` is the connection's; `control` is another one, for questions.
    fn follow(
        &self,
        mut events: Events,
        mut follower: Follower,
        number: u64,
        mut control: SqlClient,
    ) -> Result<(), End> {
        let begin = follower.place().clone();
        let mut facts: Option<Facts> = None;
        let mut asked = Instant::now();
        let (mut submitted, mut trx) = (0, 0);
        let mut silence = Silence::default();
        let mut moved = (Instant::now(), 0);
        while self.leads() {
            self.check_way(submitted, &mut moved)?;
            let mut next = events.next(LOOK).map_err(|error| refused(error, follower.place()))?;
            silence.check(&events)?;
            while let Some(received) = next {
                let is_in_file = follower.take(&received.event)?;
                if is_in_file && facts.is_none() {
                    let now = self.facts(&mut control, None)?;
                    let text = format!(
                        "reads the binlog of {} ({}) from {begin}",
                        self.config.primary.address, now.version
                    );
                    self.log.write(Level::Info, &text);
                    self.announce(&now, None);
                    facts = Some(now);
                }
                if received.ack {
                    self.progress.expects_ack(follower.place().clone());
                }
                let is_full = follower.waiting() >= BATCH;
                if is_full {
                    self.submit_all(number, &mut follower, &mut submitted, &mut trx)?;
                }
                next = events.next_received()?;
            }
            // Nothing leaves before it is known that this is the server that was compared.
            if follower.is_compared() {
                self.submit_all(number, &mut follower, &mut submitted, &mut trx)?;
            }
            if facts.is_some() && asked.elapsed() >= ASK_EVERY {
                asked = Instant::now();
                let now = self.facts(&mut control, facts.as_ref())?;
                self.announce(&now, facts.as_ref());
                facts = Some(now);
            }
        }
        Ok(())
    }

    /// Fails if chunks were lost on their way through the log.
    fn check_way(&self, submitted: u64, moved: &mut (Instant, u64)) -> Result<(), End> {
        let (seen, gaps) = self.progress.seen();
        if gaps > 0 {
            return Err(End::Failed(
                "a part of the binlog did not reach the log: begins again at its end".into(),
            ));
        }
        if seen != moved.1 || seen >= submitted {
            *moved = (Instant::now(), seen);
        } else if moved.0.elapsed() >= LOST_AFTER {
            return Err(End::Failed(format!(
                "the log has not confirmed a part of the binlog for {} s: begins again at its end",
                LOST_AFTER.as_secs()
            )));
        }
        Ok(())
    }

    /// Submits all chunks so far, no more than may be on their way.
    fn submit_all(
        &self,
        number: u64,
        follower: &mut Follower,
        submitted: &mut u64,
        trx: &mut u64,
    ) -> Result<(), End> {
        self.progress.received(follower.place());
        for chunk in follower.chunks() {
            let mut moved = (Instant::now(), 0);
            while submitted.saturating_sub(self.progress.seen().0) >= ON_THE_WAY_MAX {
                if !self.leads() {
                    return Err(End::NotLeading);
                }
                self.check_way(*submitted, &mut moved)?;
                self.progress.wait(LOOK);
            }
            *trx += 1;
            self.submit(&chunk.encode(), number, *trx)?;
            *submitted += 1;
        }
        Ok(())
    }

    fn submit(&self, chunk: &[u8], connection: u64, trx: u64) -> Result<(), End> {
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, chunk)?;
        let meta = Meta {
            flags: flags::TRX_START | flags::TRX_END | flags::PA_UNSAFE,
            last_seen: self.node.last_committed().max(0),
            source: self.node.identity().view_uuid,
            epoch: 0,
            conn: connection,
            trx,
        };
        let payload = builder.finish(&meta);
        loop {
            match self.node.submit_unattended(EntryKind::WriteSet, payload.clone()) {
                Ok(()) => return Ok(()),
                Err(SubmitError::Busy) => std::thread::sleep(Duration::from_millis(1)),
                Err(SubmitError::TooLarge) => {
                    return Err(End::Failed("a part of the binlog is too large".into()));
                }
                Err(SubmitError::NotPrimary | SubmitError::Closed) => return Err(End::NotLeading),
            }
        }
    }
}

/// How long the primary has sent nothing.
struct Silence {
    since: Instant,
    received: u64,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { since: Instant::now(), received: 0 }
    }
}

impl Silence {
    /// Fails if it lasts too long. A large event takes time: each byte counts.
    fn check(&mut self, events: &Events) -> Result<(), End> {
        if events.received() != self.received {
            (self.since, self.received) = (Instant::now(), events.received());
        } else if self.since.elapsed() >= SILENCE {
            return Err(End::Failed(format!("it has been silent for {} s", SILENCE.as_secs())));
        }
        Ok(())
    }
}

/// The id of the server that answers.
fn server_id(connection: &mut SqlClient) -> Result<String, End> {
    Ok(connection.value("SELECT @@GLOBAL.server_id")?.unwrap_or_default())
}

/// Whether the primary has sent all of its binlog. A connection that breaks says nothing about it.
fn has_ended(error: &SqlClientError) -> bool {
    matches!(error, SqlClientError::Ended)
}

/// The error of a primary that does not send the binlog from this place on.
fn refused(error: SqlClientError, place: &Place) -> End {
    match &error {
        SqlClientError::Server(1236, _) => End::Failed(format!(
            "{error}. The copy goes on at {place}: the primary's binlog was reset, purged or restored, or this is another \
             server. Nothing is acknowledged. Start a new group with empty directories to copy it anew"
        )),
        _ => error.into(),
    }
}

/// The primary's settings.
struct Facts {
    version: String,
    /// Settings that a durable acknowledgement needs, and that it does not have.
    missing: Vec<String>,
    /// How many replicas acknowledge, these members' reader included.
    acknowledging: u64,
    /// Whether others acknowledge as well: the primary waits for the first one only. Two readings must say so, because the
    /// connection of a former reader counts until the primary has closed it.
    others_acknowledge: bool,
    /// How many members of this group vote.
    voters: usize,
    /// Whether this member is the only one. Two readings must say so: others join after the first one has founded the group.
    is_alone: bool,
}

impl Facts {
    fn says_the_same(&self, other: &Facts) -> bool {
        let said =
            |facts: &Facts| (facts.missing.clone(), facts.others_acknowledge, facts.voters, facts.is_alone);
        said(self) == said(other)
    }

    /// Whether a commit waits for a majority of the members.
    fn is_durable(&self) -> bool {
        self.missing.is_empty() && !self.others_acknowledge
    }

    /// The remedies if it does not, for people.
    fn remedies(&self, address: &str) -> Vec<String> {
        let mut remedies = Vec::new();
        if !self.missing.is_empty() {
            remedies.push(format!("on {address} set {}", self.missing.join(", ")));
        }
        if self.others_acknowledge {
            remedies.push(format!(
                "other replicas of {address} that acknowledge as well: {}. It waits for the first acknowledgement only: on them \
                 set rpl_semi_sync_slave_enabled=OFF, then STOP SLAVE and START SLAVE",
                self.acknowledging - 1
            ));
        }
        remedies
    }

    /// Reads them. `before` is what was read some seconds ago.
    ///
    /// # Errors
    /// The primary's binlog cannot be copied, or the connection fails.
    fn read(connection: &mut SqlClient, before: Option<&Facts>, voters: usize) -> Result<Facts, End> {
        let mut value = |name: &str| -> Result<String, End> {
            let value = connection.value(&format!("SELECT @@GLOBAL.{name}"))?;
            Ok(value.unwrap_or_default())
        };
        if value("log_bin")? != "1" {
            return Err(End::Failed("it has no binlog: set log_bin there".into()));
        }
        if value("binlog_checksum")? != "CRC32" {
            return Err(End::Failed("its binlog has no checksums: set binlog_checksum=CRC32 there".into()));
        }
        let mut missing = Vec::new();
        if value("rpl_semi_sync_master_enabled")? != "1" {
            missing.push("rpl_semi_sync_master_enabled=ON".to_owned());
        }
        if value("rpl_semi_sync_master_wait_point")? != "AFTER_SYNC" {
            missing.push("rpl_semi_sync_master_wait_point=AFTER_SYNC".into());
        }
        if value("rpl_semi_sync_master_wait_no_slave")? != "1" {
            missing.push("rpl_semi_sync_master_wait_no_slave=ON".into());
        }
        if value("rpl_semi_sync_master_timeout")?.parse::<u64>().unwrap_or(0) < 3_600_000 {
            missing.push("rpl_semi_sync_master_timeout=3600000 or more".into());
        }
        if value("sync_binlog")? != "1" {
            missing.push("sync_binlog=1".into());
        }
        let version = value("version")?;
        let mut status = |name: &str| -> Result<Option<String>, End> {
            let rows = connection.rows(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
            Ok(rows.into_iter().next().and_then(|row| row.into_iter().nth(1)).flatten())
        };
        if missing.is_empty() && status("Rpl_semi_sync_master_status")?.is_some_and(|status| status != "ON") {
            missing.push(
                "rpl_semi_sync_master_enabled=OFF and ON again, because it has given up waiting".into(),
            );
        }
        let acknowledging = status("Rpl_semi_sync_master_clients")?;
        let acknowledging = acknowledging.and_then(|number| number.parse().ok()).unwrap_or(0);
        let others_acknowledge = acknowledging > 1 && before.is_some_and(|before| before.acknowledging > 1);
        let is_alone = voters <= 1 && before.is_some_and(|before| before.voters <= 1);
        Ok(Facts { version, missing, acknowledging, others_acknowledge, voters, is_alone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_acknowledging_replica_is_named_with_remedy() {
        let facts = |others_acknowledge, missing: Vec<String>| Facts {
            version: "10.11".into(),
            missing,
            acknowledging: 3,
            others_acknowledge,
            voters: 3,
            is_alone: false,
        };
        assert!(facts(false, vec![]).is_durable());
        assert!(facts(false, vec![]).remedies("db1:3306").is_empty());
        let others = facts(true, vec![]);
        assert!(!others.is_durable());
        let text = others.remedies("db1:3306").join("; ");
        assert!(text.contains("db1:3306 that acknowledge as well: 2."), "{text}");
        assert!(text.contains("rpl_semi_sync_slave_enabled=OFF"), "{text}");
        let both = facts(true, vec!["sync_binlog=1".into()]);
        assert_eq!(both.remedies("db1:3306").len(), 2);
    }
}
