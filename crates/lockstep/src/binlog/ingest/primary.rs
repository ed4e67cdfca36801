//! Reads the primary's binlog while this member leads, and submits it to the log.

use super::progress::{Begin, Progress};
use crate::log_member::MessageLog;
use bytes::Bytes;
use lockstep_binlog::event::MAGIC;
use lockstep_binlog::ingest::{FileName, Follower, Place};
use lockstep_binlog::wire::source::{DumpRequest, Events, request_binlog};
use lockstep_binlog::wire::sql_client::{SqlClient, SqlClientError, Target};
use lockstep_node::core::EntryKind;
use lockstep_node::core::writeset::{DataKind, Meta, WriteSetBuilder, flags};
use lockstep_node::{Level, Node, SubmitError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(300);
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

/// What the reader shows in status.
#[derive(Default)]
pub(super) struct PrimaryStatus {
    pub(super) connected: AtomicBool,
    pub(super) durable: AtomicBool,
}

/// See the module's documentation.
pub(super) struct PrimaryReader {
    pub(super) node: Node,
    pub(super) config: PrimaryConfig,
    pub(super) progress: Arc<Progress>,
    pub(super) status: Arc<PrimaryStatus>,
    pub(super) log: Arc<MessageLog>,
}

/// Why reading has ended.
enum End {
    /// This member no longer leads, or the program ends.
    NotLeading,
    /// For people.
    Failed(String),
}

impl<E: std::error::Error> From<E> for End {
    fn from(error: E) -> End {
        End::Failed(error.to_string())
    }
}

impl PrimaryReader {
    /// Reads until the program ends.
    pub(super) fn run(self) {
        let mut said: Option<(String, Instant)> = None;
        while !self.progress.is_stopped() {
            if !self.leads() {
                std::thread::sleep(LOOK);
                continue;
            }
            let end = self.read();
            self.status.connected.store(false, Ordering::Relaxed);
            self.progress.disconnected();
            if let End::Failed(text) = end {
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
                std::thread::sleep(PAUSE);
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
        // What earlier leaders have submitted comes first. What arrives from them later is sorted out by each member.
        let seqno = self.node.causal(CATCH_UP).map_err(|_| waits("the log has not answered"))?;
        if !self.progress.wait_done(seqno, CATCH_UP) {
            return Err(waits("the copy has lagged behind the log"));
        }
        let mut connection = SqlClient::connect(&self.config.primary)?;
        let facts = Facts::read(&mut connection)?;
        let (place, known) = self.begin(&mut connection)?;
        let offset = u32::try_from(place.offset)
            .map_err(|_| End::Failed(format!("{} is longer than 4 GiB", place.file)))?;
        let request = DumpRequest {
            server_id: self.config.server_id,
            report_host: self.config.name.clone(),
            file: place.file.to_string(),
            offset,
            semi_sync: facts.semi_sync,
            heartbeat: HEARTBEAT,
        };
        let (events, acknowledger) = request_binlog(connection, &request)?;
        self.progress.connected(acknowledger);
        self.follow(events, Follower::new(place, known), &facts)
    }

    /// The primary has sent its first event, so it does not refuse the request.
    fn announce(&self, facts: &Facts, place: &Place) {
        self.status.connected.store(true, Ordering::Relaxed);
        self.status.durable.store(facts.missing.is_empty(), Ordering::Relaxed);
        let address = &self.config.primary.address;
        let text = format!("reads the binlog of {address} ({}) from {place}", facts.version);
        self.log.write(Level::Info, &text);
        match facts.missing.is_empty() {
            true => self.log.write(
                Level::Info,
                "a commit on the primary returns once a majority of these members has it on disk",
            ),
            false => {
                let missing = facts.missing.join(", ");
                self.log.write(
                    Level::Warn,
                    &format!(
                        "the primary does not wait for a majority of these members at each commit: on {address} set {missing}"
                    ),
                );
            }
        }
    }

    /// Where to begin, and the event there if the copy has it.
    fn begin(&self, connection: &mut SqlClient) -> Result<(Place, Option<Bytes>), End> {
        let at_begin = |file: FileName| Place { file, offset: MAGIC.len() as u64 };
        match self.progress.begin(CATCH_UP) {
            None => Err(End::Failed("the copy's end is not known yet".into())),
            Some(Begin::Event(place, event)) => Ok((place, Some(event))),
            Some(Begin::File(file)) => Ok((at_begin(file), None)),
            Some(Begin::Oldest) => {
                let rows = connection.rows("SHOW BINARY LOGS")?;
                let oldest = rows.into_iter().next().and_then(|row| row.into_iter().next()).flatten();
                let oldest =
                    oldest.ok_or_else(|| End::Failed("it has no binlog: set log_bin there".into()))?;
                Ok((at_begin(FileName::parse(&oldest)?), None))
            }
        }
    }

    fn follow(&self, mut events: Events, mut follower: Follower, facts: &Facts) -> Result<(), End> {
        let begin = follower.place().clone();
        let mut is_announced = false;
        let (mut submitted, gaps) = self.progress.seen();
        let (mut heard, mut moved) = (Instant::now(), (Instant::now(), submitted));
        let mut trx = 0;
        while self.leads() {
            let (seen, gaps_now) = self.progress.seen();
            if gaps_now != gaps {
                return Err(End::Failed(
                    "a part of the binlog did not reach the log: begins again at its end".into(),
                ));
            }
            if seen >= submitted {
                submitted = seen;
            }
            if seen != moved.1 || seen == submitted {
                moved = (Instant::now(), seen);
            } else if moved.0.elapsed() >= LOST_AFTER {
                return Err(End::Failed(format!(
                    "the log has not confirmed a part of the binlog for {} s: begins again at its end",
                    LOST_AFTER.as_secs()
                )));
            }
            if submitted - seen >= ON_THE_WAY_MAX {
                self.progress.wait(LOOK);
                continue;
            }
            let next = events.next(LOOK).map_err(|error| refused(error, follower.place()))?;
            let Some(first) = next else {
                if heard.elapsed() >= SILENCE {
                    return Err(End::Failed(format!("it has been silent for {} s", SILENCE.as_secs())));
                }
                continue;
            };
            heard = Instant::now();
            let mut next = Some(first);
            while let Some(received) = next {
                let is_in_file = follower.take(&received.event)?;
                if is_in_file && !is_announced {
                    self.announce(facts, &begin);
                    is_announced = true;
                }
                if received.ack {
                    self.progress.expects_ack(follower.place().clone());
                }
                // The primary waits for this transaction: what follows it is for the next submission.
                let is_full = follower.waiting() >= BATCH;
                next = if is_full { None } else { events.next_received()? };
            }
            self.progress.received(follower.place());
            for chunk in follower.chunks() {
                self.submit(&chunk.encode(), &mut trx)?;
                submitted += 1;
            }
        }
        Ok(())
    }

    fn submit(&self, chunk: &[u8], trx: &mut u64) -> Result<(), End> {
        *trx += 1;
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, chunk)?;
        let meta = Meta {
            flags: flags::TRX_START | flags::TRX_END | flags::PA_UNSAFE,
            last_seen: self.node.last_committed().max(0),
            source: self.node.identity().view_uuid,
            epoch: 0,
            conn: 0,
            trx: *trx,
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

/// What the primary says of itself.
struct Facts {
    version: String,
    /// Whether the primary waits for acknowledgements at all.
    semi_sync: bool,
    /// Settings that a durable acknowledgement needs, and that it does not have.
    missing: Vec<String>,
}

impl Facts {
    /// Reads them.
    ///
    /// # Errors
    /// The primary's binlog cannot be copied, or the connection fails.
    fn read(connection: &mut SqlClient) -> Result<Facts, End> {
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
        let semi_sync = value("rpl_semi_sync_master_enabled")? == "1";
        if !semi_sync {
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
        Ok(Facts { version: value("version")?, semi_sync, missing })
    }
}
