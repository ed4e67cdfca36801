//! Clients of the device, and the operator who promotes copies.

use super::cells::{CELL, CELLS_MAX, content};
use super::machine::Device;
use super::model::Request;
use super::port::Port;
use super::world::{DeviceWorld, Event};
use crate::history::{Check, Violation, hold};
use crate::profile::SECOND;
use bytes::Bytes;
use lockstep_block::device::{Replica, ReplicaAttachment};
use lockstep_block::{Attachment, Export, Extent, IoError, Peer};
use lockstep_core::Micros;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The most requests of a client under way.
const REQUESTS_MAX: usize = 6;
/// After the faults, the operator who has moved leadership to a member brings clients to that member for so long.
const MOVES_FOR: Micros = 3 * SECOND;
/// The most attaches and promotions under way.
const CONTROLS_MAX: usize = 2;

/// A connection of a client.
pub(super) struct Connection {
    number: u64,
    attachment: Arc<ReplicaAttachment<Port>>,
}

/// A client, as the server of one process knows it.
pub(super) struct Client {
    number: u64,
    pub(super) at: usize,
    life: u64,
    pub(super) epoch: u64,
    name: String,
    peer: Peer,
    connections: Vec<Connection>,
    /// It had an error.
    pub(super) failed: bool,
}

/// The result of a task.
enum Done {
    Attached(Result<ReplicaAttachment<Port>, String>),
    Promoted(Result<u64, String>),
    Resized(Result<(), String>),
    Data(Result<Bytes, IoError>),
    Extents(Result<Vec<Extent>, IoError>),
    Detached,
}

/// The purpose of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Purpose {
    Attach {
        name: String,
        peer: Peer,
    },
    Promote,
    Resize,
    /// A request of the model.
    Request {
        client: u64,
        connection: u64,
        op: u64,
        first: usize,
        count: usize,
    },
    Detach {
        epoch: u64,
    },
}

/// A task of a server.
pub(super) struct Task {
    at: usize,
    life: u64,
    purpose: Purpose,
    future: Pin<Box<dyn Future<Output = Done> + Send>>,
}

impl DeviceWorld {
    /// Polls all tasks of a process.
    pub(super) fn poll_tasks(&mut self, at: usize, device: &Device) -> Check {
        let life = self.machines[at].life();
        let mut context = Context::from_waker(Waker::noop());
        let mut place = 0;
        while let Some(task) = self.tasks.get_mut(place) {
            if (task.at, task.life) != (at, life) {
                place += 1;
                continue;
            }
            match task.future.as_mut().poll(&mut context) {
                Poll::Pending => place += 1,
                Poll::Ready(done) => {
                    let task = self.tasks.remove(place);
                    self.is_done(device, task, done)?;
                }
            }
        }
        Ok(())
    }

    fn is_done(&mut self, device: &Device, task: Task, done: Done) -> Check {
        let (at, life) = (task.at, task.life);
        match (task.purpose, done) {
            (Purpose::Attach { name, peer }, Done::Attached(result)) => match result {
                Ok(attachment) => self.attached(device, at, life, name, peer, attachment)?,
                Err(text) => self.say(at, format_args!("refuses {peer} at {name}: {text}")),
            },
            (Purpose::Promote, Done::Promoted(result)) => match result {
                Ok(epoch) => {
                    hold!(
                        self.machines[at].is_whole,
                        "only a whole copy becomes the primary",
                        "n{} is promoted",
                        at + 1
                    );
                    self.say(at, format_args!("is promoted in epoch {epoch}"));
                    self.promotions += 1;
                    self.promoted = Some((at, epoch));
                    if self.trouble && self.rng.one_in(2) {
                        self.attach(at, format!("disk@{epoch}"), Peer::Uid(7));
                    }
                }
                Err(text) => {
                    self.say(at, format_args!("is not promoted: {text}"));
                    if text.contains("only the leader") {
                        let to = self.machines[at].hello.name.clone();
                        self.move_leadership(at, to);
                        self.leadership_moves = Some((at, self.now + MOVES_FOR));
                    }
                }
            },
            (Purpose::Resize, Done::Resized(result)) => {
                self.say(at, format_args!("resizes the device: {result:?}"));
            }
            (Purpose::Detach { epoch }, Done::Detached) => {
                self.say(at, format_args!("a client of epoch {epoch} has left"));
            }
            (Purpose::Request { client, op, .. }, Done::Data(Ok(data))) => {
                let strong = self.is_strong();
                self.trace.mix(op);
                self.say(at, format_args!("client {client}: request {op} is answered"));
                self.model.answers(op, &data, strong)?;
            }
            (Purpose::Request { client, op, first, count, .. }, Done::Extents(Ok(extents))) => {
                let total: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
                let (begin, end) = (first * CELL, (first + count) * CELL);
                hold!(
                    total > 0 && total <= (end - begin) as u64,
                    "extents lie within the request",
                    "client {client}: {extents:?}"
                );
                let mut offset = begin;
                for extent in extents {
                    let until = offset + extent.length as usize;
                    if extent.zero {
                        let cells = offset.div_ceil(CELL)..until / CELL;
                        self.model.are_zero(op, cells.start, cells.len())?;
                    }
                    offset = until;
                }
                self.model.gives_up(op, false);
            }
            (Purpose::Request { client, op, .. }, Done::Data(Err(error)) | Done::Extents(Err(error))) => {
                self.say(at, format_args!("client {client}: request {op} fails: {error}"));
                self.model.gives_up(op, true);
                if let Some(client) = self.clients.iter_mut().find(|one| one.number == client) {
                    client.failed = true;
                }
            }
            (purpose, _) => {
                return Err(Violation { rule: "tasks end as they should", what: format!("{purpose:?}") });
            }
        }
        Ok(())
    }

    fn attached(
        &mut self,
        device: &Device,
        at: usize,
        life: u64,
        name: String,
        peer: Peer,
        attachment: ReplicaAttachment<Port>,
    ) -> Check {
        let session = device.replica.status().session;
        let Some(epoch) = session.map(|session| session.epoch) else {
            return Err(Violation {
                rule: "a client attaches to a session",
                what: format!("n{}: {name}", at + 1),
            });
        };
        hold!(
            self.machines[at].is_whole,
            "only a whole copy becomes the primary",
            "n{} takes a client",
            at + 1
        );
        self.attached += 1;
        self.say(at, format_args!("{peer} attaches to {name} in epoch {epoch}"));
        let number = self.number();
        let connection = Connection { number, attachment: Arc::new(attachment) };
        let same = |one: &&mut Client| (one.at, one.life, one.epoch) == (at, life, epoch);
        if let Some(client) = self.clients.iter_mut().find(same) {
            hold!(
                client.peer == peer,
                "one attachment is one peer",
                "n{}: {peer} and {}",
                at + 1,
                client.peer
            );
            client.connections.push(connection);
            return Ok(());
        }
        let number = self.number();
        self.clients.push(Client {
            number,
            at,
            life,
            epoch,
            name,
            peer,
            connections: vec![connection],
            failed: false,
        });
        Ok(())
    }

    fn replica(&self, at: usize) -> Option<(u64, Replica<Port>)> {
        let process = self.machines[at].process.as_ref()?;
        Some((process.life, process.device.as_ref()?.replica.clone()))
    }

    fn begin(&mut self, at: usize, purpose: Purpose, task: impl Future<Output = Done> + Send + 'static) {
        let life = self.machines[at].life();
        self.tasks.push(Task { at, life, purpose, future: Box::pin(task) });
    }

    fn controls(&self) -> usize {
        let is_control = |task: &&Task| !matches!(task.purpose, Purpose::Request { .. });
        self.tasks.iter().filter(is_control).count()
    }

    pub(super) fn attach(&mut self, at: usize, name: String, peer: Peer) {
        let Some((_, replica)) = self.replica(at) else { return };
        let purpose = Purpose::Attach { name: name.clone(), peer };
        self.begin(at, purpose, async move {
            Done::Attached(replica.attach(&name, &peer).await.map_err(|refusal| refusal.text))
        });
    }

    pub(super) fn promote(&mut self, at: usize, force: bool) {
        let Some((_, replica)) = self.replica(at) else { return };
        self.say(at, format_args!("is to be promoted, force: {force}"));
        self.begin(at, Purpose::Promote, async move { Done::Promoted(replica.promote(force).await) });
    }

    fn resize(&mut self, at: usize, size: u64) {
        let Some((_, replica)) = self.replica(at) else { return };
        self.begin(at, Purpose::Resize, async move { Done::Resized(replica.resize(size).await) });
    }

    /// Clients of this process lose their connections.
    pub(super) fn lose_clients(&mut self, at: usize, life: u64) {
        let (mine, others) =
            std::mem::take(&mut self.tasks).into_iter().partition(|task| (task.at, task.life) == (at, life));
        self.tasks = others;
        self.give_up(mine);
        self.clients.retain(|client| (client.at, client.life) != (at, life));
    }

    fn give_up(&mut self, tasks: Vec<Task>) {
        for task in tasks {
            let purpose = task.purpose.clone();
            drop(task);
            if let Purpose::Request { op, .. } = purpose {
                self.model.gives_up(op, false);
            }
        }
    }

    /// A connection is lost, and its requests with it.
    fn disconnect(&mut self, place: usize, connection: usize) -> Connection {
        let connection = self.clients[place].connections.remove(connection);
        let is_mine = |task: &Task| matches!(task.purpose, Purpose::Request { connection: c, .. } if c == connection.number);
        let (mine, others) = std::mem::take(&mut self.tasks).into_iter().partition(is_mine);
        self.tasks = others;
        self.give_up(mine);
        connection
    }

    /// A client is gone with all of its connections.
    fn abandon(&mut self, place: usize) {
        while !self.clients[place].connections.is_empty() {
            drop(self.disconnect(place, 0));
        }
        self.clients.remove(place);
    }

    pub(super) fn abandon_all(&mut self) {
        while !self.clients.is_empty() {
            self.abandon(0);
        }
    }

    /// Clients or the operator do something.
    pub(super) fn clients_act(&mut self) {
        let after = self.rng.between(1, 2 * self.profile.request_every);
        self.queue.push(self.now + after, Event::Clients { round: self.round });
        let usable: Vec<usize> =
            (0..self.clients.len()).filter(|place| !self.clients[*place].connections.is_empty()).collect();
        let healthy = usable.iter().any(|place| !self.clients[*place].failed);
        if !healthy && self.rng.one_in(10) {
            self.bring_client();
        }
        if usable.is_empty() {
            return;
        }
        let place = *self.rng.pick(&usable);
        if self.clients[place].failed && self.rng.one_in(40) {
            self.abandon(place);
            return;
        }
        match self.rng.below(400) {
            0..=3 => self.bring_client(),
            4..=9 => {
                let client = &self.clients[place];
                let (at, name, peer) = (client.at, client.name.clone(), client.peer);
                if self.controls() < CONTROLS_MAX && client.connections.len() < 4 {
                    self.attach(at, name, peer);
                }
            }
            10..=13 => {
                let connection = self.rng.below(self.clients[place].connections.len() as u64) as usize;
                drop(self.disconnect(place, connection));
            }
            14..=15 => self.abandon(place),
            16..=18 => self.detach(place),
            19 => {
                let size =
                    self.profile.size.max((self.rng.between(1, CELLS_MAX as u64) as usize * CELL) as u64);
                if self.controls() < CONTROLS_MAX {
                    let at = self.clients[place].at;
                    self.resize(at, size);
                }
            }
            _ => self.request(place),
        }
    }

    /// The operator attaches a client anywhere, or promotes a copy.
    pub(super) fn bring_client(&mut self) {
        if self.controls() >= CONTROLS_MAX {
            return;
        }
        let copies: Vec<usize> = (0..self.machines.len()).filter(|at| self.replica(*at).is_some()).collect();
        if copies.is_empty() {
            return;
        }
        let at = match self.leadership_moves {
            Some((at, until)) if !self.trouble && self.now < until && copies.contains(&at) => at,
            _ => *self.rng.pick(&copies),
        };
        if self.reference.size() == 0 {
            self.resize(at, self.profile.size);
            return;
        }
        let peer = if self.rng.one_in(10) { Peer::Uid(8) } else { Peer::Uid(7) };
        match self.promoted.filter(|_| !self.rng.one_in(4)) {
            Some((at, epoch)) if epoch == self.reference.epoch() => {
                self.attach(at, format!("disk@{epoch}"), peer);
            }
            _ if self.rng.one_in(3) => self.attach(at, "disk".into(), peer),
            _ => {
                let force = self.rng.one_in(2);
                self.promote(at, force);
            }
        }
    }

    /// The last connection of a client leaves in order, if it has nothing under way.
    pub(super) fn detach(&mut self, place: usize) {
        while self.clients[place].connections.len() > 1 {
            drop(self.disconnect(place, 0));
        }
        let client = self.clients[place].number;
        let is_mine = |task: &Task| matches!(task.purpose, Purpose::Request { client: c, .. } if c == client);
        if self.tasks.iter().any(is_mine) {
            return;
        }
        let mut client = self.clients.remove(place);
        let Some(connection) = client.connections.pop() else { return };
        let Ok(attachment) = Arc::try_unwrap(connection.attachment) else { return };
        self.say(client.at, format_args!("client {} of epoch {} leaves", client.number, client.epoch));
        self.model.leaves(client.epoch);
        self.begin(client.at, Purpose::Detach { epoch: client.epoch }, async move {
            attachment.detach().await;
            Done::Detached
        });
    }

    /// A client sends a request.
    fn request(&mut self, place: usize) {
        let client = self.clients[place].number;
        let is_mine =
            |task: &&Task| matches!(task.purpose, Purpose::Request { client: c, .. } if c == client);
        if self.tasks.iter().filter(is_mine).count() >= REQUESTS_MAX {
            return;
        }
        let size = self.reference.size().min(self.profile.size) as usize / CELL;
        let hot = self.profile.hot.min(size);
        let first = self.rng.below(hot as u64) as usize;
        let count = self.rng.between(1, self.profile.cells as u64).min((size - first) as u64) as usize;
        let kind = self.rng.below(100);
        self.ask(place, kind, first, count);
    }

    /// A client sends a request of a kind (of 100) for these cells.
    pub(super) fn ask(&mut self, place: usize, kind: u64, first: usize, count: usize) {
        let connection = self.rng.below(self.clients[place].connections.len() as u64) as usize;
        let client = &self.clients[place];
        let (at, epoch, number) = (client.at, client.epoch, client.number);
        let connection = &client.connections[connection];
        let (connection, attachment) = (connection.number, connection.attachment.clone());
        let (offset, length) = ((first * CELL) as u64, (count * CELL) as u32);
        let strong = self.is_strong();
        let wrote = |result: Result<(), IoError>| Done::Data(result.map(|()| Bytes::new()));
        let fua = kind.is_multiple_of(5);
        let (request, task): (Request, Pin<Box<dyn Future<Output = Done> + Send>>) = match kind {
            0..45 => {
                let value = self.number();
                let data = Bytes::from(content(value, first, count));
                let task = async move { wrote(attachment.write(offset, data, fua).await) };
                (Request::Write { first, count, value, fua }, Box::pin(task))
            }
            45..50 => {
                let task = async move { wrote(attachment.trim(offset, length, fua).await) };
                (Request::Write { first, count, value: 0, fua }, Box::pin(task))
            }
            50..55 => {
                let may_trim = kind.is_multiple_of(2);
                let task = async move { wrote(attachment.write_zeroes(offset, length, may_trim, fua).await) };
                (Request::Write { first, count, value: 0, fua }, Box::pin(task))
            }
            55..68 => (Request::Flush, Box::pin(async move { wrote(attachment.flush().await) })),
            68..71 => {
                let task = async move { Done::Extents(attachment.block_status(offset, length).await) };
                (Request::Read { first, count }, Box::pin(task))
            }
            _ => {
                let task = async move { Done::Data(attachment.read(offset, length).await) };
                (Request::Read { first, count }, Box::pin(task))
            }
        };
        let op = self.model.sends(epoch, request, strong);
        self.say(at, format_args!("client {number} of epoch {epoch} sends {op}: {request:?}"));
        let purpose = Purpose::Request { client: number, connection, op, first, count };
        let life = self.clients[place].life;
        self.tasks.push(Task { at, life, purpose, future: task });
    }
}
