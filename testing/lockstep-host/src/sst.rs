//! State transfer by the server itself: the request says where to connect, the donor sends its database there.

use crate::checks::lock;
use crate::host::{Host, SstMode, TIMEOUT};
use crate::log;
use crate::state::ServerState;
use crate::store::{Snapshot, Store};
use lockstep_abi::*;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const REQUEST: &str = "host-copy ";

/// The state that a donor sends.
#[derive(Serialize, Deserialize)]
struct Transfer {
    /// Its position, as text.
    gtid: String,
    /// Its database; none: bypassed, the joiner gets the rest from the log.
    snapshot: Option<Snapshot>,
}

impl Host {
    /// The provider wants a request. `None` is a failure, an empty one: no transfer.
    pub(crate) fn on_sst_request(&self) -> Option<Vec<u8>> {
        drop(self.step(self.states.lock(), ServerState::Joiner));
        log::event("sst", "request");
        match self.config.sst {
            SstMode::Trivial => return Some(STATE_TRANSFER_TRIVIAL.to_bytes().to_vec()),
            SstMode::None => return Some(STATE_TRANSFER_NONE.to_bytes().to_vec()),
            SstMode::Copy | SstMode::Fail => {}
        }
        let listener = TcpListener::bind(("127.0.0.1", 0)).ok()?;
        let request = format!("{REQUEST}{}", listener.local_addr().ok()?);
        let host = self.leaked()?;
        std::thread::Builder::new().name("joiner".into()).spawn(move || host.join_by_copy(&listener)).ok()?;
        Some(request.into_bytes())
    }

    fn join_by_copy(&'static self, listener: &TcpListener) {
        match receive(listener) {
            Ok(transfer) if self.config.sst == SstMode::Copy => self.sst_received(transfer),
            Ok(_) => self.sst_failed("told to fail"),
            Err(error) => self.sst_failed(&error.to_string()),
        }
    }

    fn sst_failed(&self, why: &str) {
        log::event("sst", &format!("failed: {why}"));
        let status = self.called().sst_received(&Gtid::UNDEFINED, -libc::EINTR);
        log::event("sst", &format!("sst_received returned {status}"));
    }

    fn sst_received(&self, transfer: Transfer) {
        let bypass = transfer.snapshot.is_none();
        log::event("sst", &format!("received {} bypass={bypass}", transfer.gtid));
        let mut machine = self.states.lock();
        let at = machine.state;
        self.checks.ensure(matches!(at, ServerState::Joiner | ServerState::Initialized), || {
            format!("a state transfer arrived in state {}", at.name())
        });
        if machine.initialized {
            drop(machine);
            if let Some(snapshot) = transfer.snapshot {
                self.with_store(|store| store.replace(&self.config.dir, snapshot));
            }
        } else {
            if let Some(snapshot) = &transfer.snapshot
                && let Err(error) = Store::install(&self.config.dir, snapshot)
            {
                drop(machine);
                return self.sst_failed(&error.0);
            }
            machine = self.step(machine, ServerState::Initializing);
            let (machine, waited) = self.states.wait_in(machine, ServerState::Initialized, TIMEOUT);
            drop(machine);
            if waited.is_err() {
                return self.sst_failed("the database did not start");
            }
        }
        // The position is what the database says, not what the donor said.
        let position = self.read_store(|store| store.position());
        self.checks.jump(position.seqno);
        let mut machine = self.states.lock();
        if machine.id.is_undefined() {
            self.checks.violation("a state transfer arrived before the connection to a cluster".into());
        }
        if position.seqno >= machine.connected_at.seqno {
            machine = self.step(machine, ServerState::Joined);
        }
        let stored = self.read_store(|store| store.view().cloned());
        if let Some(view) = stored.and_then(|view| view.restore(machine.id)) {
            let at = view.head.state_id;
            self.checks.ensure(at.uuid == position.uuid && at.seqno <= position.seqno, || {
                format!("the transferred database is at {position} and has a view at {at}")
            });
            machine.previous_primary =
                machine.view.take().filter(|before| before.head.status == ViewStatus::PRIMARY);
            machine.view = Some(view);
            machine.views += 1;
        }
        let recovered = std::mem::replace(&mut machine.streams_recovered, true);
        drop(machine);
        if !recovered {
            self.recover_streams();
        }
        let status = self.called().sst_received(&position, 0);
        log::event("sst", &format!("sst_received({position}) returned {status}"));
    }

    /// The provider wants this member to donate. Comes on a receiving thread; must not take long.
    pub(crate) fn on_sst_donate(&self, request: &[u8], state_id: Gtid, bypass: bool) -> bool {
        drop(self.step(self.states.lock(), ServerState::Donor));
        log::event("sst", &format!("donate at {state_id} bypass={bypass}"));
        let position = self.read_store(|store| store.position());
        self.checks.ensure(state_id.uuid == position.uuid && state_id.seqno <= position.seqno, || {
            format!("asked to donate at {state_id}, the database is at {position}")
        });
        let text = String::from_utf8_lossy(request);
        let address = text.trim_end_matches('\0').strip_prefix(REQUEST).map(str::to_owned);
        let (Some(address), Some(host)) = (address, self.leaked()) else {
            self.checks.violation(format!("the state transfer request came as {text:?}"));
            drop(self.step(self.states.lock(), ServerState::Joined));
            return false;
        };
        let spawned = std::thread::Builder::new()
            .name("donor".into())
            .spawn(move || host.donate(&address, state_id, bypass));
        spawned.is_ok()
    }

    fn donate(&self, address: &str, state_id: Gtid, bypass: bool) {
        self.holds.pass("donate");
        let (gtid, sent) = if bypass {
            (state_id, send(address, &Transfer { gtid: state_id.to_string(), snapshot: None }))
        } else {
            match self.desync_and_pause() {
                Ok(seqno) => {
                    // The pause's seqno becomes the copy's position.
                    let gtid = Gtid { uuid: state_id.uuid, seqno };
                    let snapshot = self.read_store(Store::snapshot);
                    let at = self.read_store(|store| store.position());
                    self.checks.ensure(at.seqno <= seqno && at.uuid == gtid.uuid, || {
                        format!("paused at {gtid}, the database is at {at}")
                    });
                    if let Err(error) = self.resume_and_resync() {
                        self.checks.violation(error.to_string());
                    }
                    (gtid, send(address, &Transfer { gtid: gtid.to_string(), snapshot: Some(snapshot) }))
                }
                Err(error) => (state_id, Err(std::io::Error::other(error.text))),
            }
        };
        let rcode = match sent {
            Ok(()) => 0,
            Err(error) => {
                log::event("sst", &format!("sending failed: {error}"));
                -libc::EPIPE
            }
        };
        let machine = self.states.lock();
        if machine.state == ServerState::Donor {
            drop(self.step(machine, ServerState::Joined));
        } else {
            drop(machine);
        }
        let status = self.called().sst_sent(&gtid, rcode);
        log::event("sst", &format!("sst_sent({gtid}, {rcode}) returned {status}"));
        self.checks.ensure(status == Status::OK || rcode != 0, || format!("sst_sent returned {status}"));
    }

    /// Desyncs as the server's variable does.
    pub fn desync(&self) -> Result<(), crate::host::HostError> {
        match self.provider()?.desync() {
            Status::OK => Ok(()),
            status => Err(crate::host::HostError::status("desync", status)),
        }
    }

    /// Resyncs.
    pub fn resync(&self) -> Result<(), crate::host::HostError> {
        match self.provider()?.resync() {
            Status::OK => Ok(()),
            status => Err(crate::host::HostError::status("resync", status)),
        }
    }

    /// The seqno at which the provider is paused, if it is.
    pub fn paused_at(&self) -> Option<Seqno> {
        *lock(&self.paused_at)
    }
}

fn receive(listener: &TcpListener) -> std::io::Result<Transfer> {
    listener.set_nonblocking(true)?;
    let end = Instant::now() + 2 * TIMEOUT;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

fn send(address: &str, transfer: &Transfer) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(&serde_json::to_vec(transfer)?)
}
