//! The thread `ls-node`: a loop of rounds. A round takes all pending inputs (frames, submissions, answers of the log) as
//! one batch, lets the member decide, and carries out the effects.

use crate::allow::{AllowList, Answer, ip_of};
use crate::api::{
    ConnectArgs, Delivery, EndServer, EventCall, FrontEndStats, Level, Logger, NodeError, PolicyCall,
    ProgressCall,
};
use crate::effect::Effect;
use crate::io::inbox::Input;
use crate::io::links::{Arrival, DEFAULT_PORT, Links, is_final};
use crate::io::published::RoundState;
use crate::io::shared::Shared;
use crate::io::writer::{LogDone, LogJob};
use crate::load_estimates::BatchEstimate;
use crate::member::Member;
use crate::operator::{Answer as CommandAnswer, Command};
use crate::pack::{Packer, UNPACKED_SINCE};
use crate::reply::Reply;
use crate::status::{Status, StatusContext};
use crate::uuids::timed_uuid;
use crate::wire::{FRAME_PACKED, Hello};
use bytes::Bytes;
use lockstep_core::{EntryKind, Micros, Seqno, Uuid};
use lockstep_net::{
    Address, ConnId, DialError, DownReason, Event, Method, PeerHello, Reactor, Reason, StatusRequest,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest sleep: timers that are not the engine's (status file, log size) need no better.
const NAP: Duration = Duration::from_millis(100);
/// How long awake threads may take to come back for queued deliveries.
const NUDGE: Micros = 1_000;
/// Frames of so many bytes have us look at once how long the queue is that they have joined.
const TELLS_QUEUE: usize = 32 << 10;
/// How often the published snapshot is made anew.
const PUBLISH: Micros = 200_000;
/// How often the log is told how far it is committed, which costs it a sync.
const HINT: Micros = 1_000_000;

pub(crate) struct Runtime {
    pub(crate) engine: Member,
    pub(crate) reactor: Reactor,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log_jobs: Sender<LogJob>,
    /// For the log, once the round's messages have left.
    pub(crate) log_later: Vec<LogJob>,
    pub(crate) packer: Packer,
    pub(crate) logger: Logger,
    pub(crate) listen: Address,
    pub(crate) origin: Instant,
    pub(crate) links: Links,
    pub(crate) listening: bool,
    pub(crate) log_bytes: u64,
    pub(crate) published: Micros,
    pub(crate) connecting: Option<Arc<Reply<Result<(), NodeError>>>>,
    pub(crate) leaving: Vec<Arc<Reply<()>>>,
    pub(crate) causal: BTreeMap<u64, Arc<Reply<Option<Seqno>>>>,
    /// Connections waiting for answers to commands, by token.
    pub(crate) commands: BTreeMap<u64, ConnId>,
    pub(crate) commands_given: u64,
    /// Connections waiting for the committed position, by token.
    pub(crate) asking: BTreeMap<u64, ConnId>,
    /// The same for the front end's own.
    pub(crate) asked_within: BTreeMap<u64, Arc<Reply<CommandAnswer>>>,
    /// Where the log is.
    pub(crate) log_dir: PathBuf,
    /// How much of it a new start wants there, in bytes.
    pub(crate) room: u64,
    /// Threads waiting for a policy to be in force.
    pub(crate) wishing: Vec<Arc<Reply<Result<(), String>>>>,
    pub(crate) front_end_stats: Option<FrontEndStats>,
    /// How far the log knows that it is committed, and since when.
    pub(crate) commit_hinted: u64,
    pub(crate) hinted_at: Micros,
    /// Since when the member is in its state.
    pub(crate) state_since: Micros,
    /// As the reactor was told last.
    pub(crate) isolated: bool,
    pub(crate) progress: Option<ProgressCall>,
    pub(crate) event: Option<EventCall>,
    pub(crate) policy_changed: Option<PolicyCall>,
    pub(crate) end_server: Option<EndServer>,
    pub(crate) allow: AllowList<ConnId>,
    /// The addresses of `wsrep_cluster_address`: whom its operator names is not asked about when this member dials him.
    pub(crate) named: BTreeSet<String>,
    /// Connections are encrypted, at least where the peer can.
    pub(crate) encrypts: bool,
    /// When to check whether the awake threads suffice for the queued deliveries.
    pub(crate) nudge_at: Option<Micros>,
    pub(crate) company: BatchEstimate,
}

impl Runtime {
    fn log(&self, level: Level, text: &str) {
        (self.logger)(level, text);
    }

    /// Runs until stopped.
    pub(crate) fn run(mut self) {
        let mut events = Vec::new();
        let mut inputs = Vec::new();
        let mut effects = Vec::new();
        let mut deliveries = Vec::new();
        loop {
            let now = self.origin.elapsed().as_micros() as Micros;
            // A round that ended with entries left over is followed by the next one at once.
            let more = self.engine.has_more() && !self.shared.deliveries.full();
            let nap = match more {
                true => Duration::ZERO,
                false => {
                    let next =
                        self.nudge_at.map_or(self.engine.deadline(), |at| at.min(self.engine.deadline()));
                    Duration::from_micros(next.saturating_sub(now)).min(NAP)
                }
            };
            self.company.counted(now, self.engine.under_way());
            self.reactor.set_gathers(self.company.is_expected(now));
            if let Err(error) = self.reactor.poll(Some(nap), &mut events) {
                self.engine.fail(&format!("the network cannot be waited for: {error}"));
                std::thread::sleep(NAP);
            }
            let now = self.origin.elapsed().as_micros() as Micros;
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as Micros);
            self.engine.at(now, wall);
            self.shared.inbox.take(&mut inputs);
            for event in events.drain(..) {
                self.event(event);
            }
            let mut stop = false;
            for input in inputs.drain(..) {
                stop |= self.input(input);
            }
            self.decide_waiting(now);
            let isolated = self.shared.signals.is_isolated();
            if isolated != self.isolated {
                self.isolated = isolated;
                self.reactor.set_isolated(isolated);
            }
            // A full queue empties by itself, unless its takers wait for somebody whose place is behind it.
            let hurry = self.shared.signals.is_hurried();
            self.engine.note_refused(self.shared.signals.refused());
            self.engine.round(hurry || !self.shared.deliveries.full());
            self.engine.take(&mut effects, &mut deliveries);
            // Published before the notification: a front end notified of Synced must not read Joined.
            let changed = self.publish_state();
            for effect in effects.drain(..) {
                self.effect(effect);
            }
            // A woken thread takes the processor, so first send what other members wait for.
            self.reactor.flush();
            self.hand_over();
            self.engine.wake();
            self.deliver(&mut deliveries);
            if self.nudge_at.take_if(|at| *at <= now).is_some() {
                self.shared.deliveries.nudge();
            }
            if self.shared.deliveries.is_watched() {
                self.nudge_at.get_or_insert(now + NUDGE);
            }
            self.publish(now, changed);
            if let Some((why, text)) = self.engine.server_must_end()
                && let Some(end) = &self.end_server
            {
                end(why, &text);
            }
            if stop {
                break;
            }
        }
        self.reactor.shutdown("the server stops", Duration::from_millis(200));
        self.hint(self.engine.ctx.now);
        let _ = self.log_jobs.send(LogJob::Stop);
        self.shared.deliveries.close();
    }

    /// Gives `ls-log` its jobs.
    fn hand_over(&mut self) {
        for job in self.log_later.drain(..) {
            let _ = self.log_jobs.send(job);
        }
    }

    fn deliver(&mut self, deliveries: &mut Vec<Delivery>) {
        let closes = deliveries.iter().any(|d| {
            matches!(d, Delivery::View { info, .. } if info.status == crate::api::ViewStatus::Disconnected)
        });
        self.shared.deliveries.push(deliveries);
        if closes {
            self.shared.deliveries.close();
        }
    }

    /// Publishes the state that the front end's threads check before each step. Returns whether it has changed.
    fn publish_state(&mut self) -> bool {
        let changed = self.shared.published.set_round(&RoundState {
            state: self.engine.local_state(),
            primary: self.engine.ctx.connection.is_primary(),
            delivered: self.engine.deliverer.delivered(),
            may_originate: self.engine.may_originate(),
            held_back: self.engine.ctx.is_held_back(),
            policy: self.engine.ctx.raft.committed_state().policy,
        });
        if changed {
            self.state_since = self.engine.ctx.now;
        }
        changed
    }

    fn publish(&mut self, now: Micros, changed: bool) {
        let shared = &self.shared;
        shared
            .published
            .set_certification(self.engine.deliverer.keys() as u64, self.engine.deliverer.window());
        if !changed && now < self.published + PUBLISH {
            return;
        }
        self.published = now;
        for (member, conn) in self.links.all() {
            let Some(stats) = self.reactor.stats(conn) else { continue };
            if let Some(rtt) = stats.rtt_min {
                self.engine.on_rtt(member, rtt.as_micros() as Micros);
            }
            self.engine.ctx.raft.set_queued(member, stats.queued);
        }
        let tail = self.engine.ctx.raft.tail_state();
        shared.published.set_history(tail.history, tail.log_id);
        shared.published.set_status(self.status());
        if now >= self.hinted_at + HINT {
            self.hint(now);
        }
        if let Err(error) = self.reactor.ensure_socket() {
            self.log(Level::Warn, &format!("the status socket cannot be made again: {error}"));
        }
    }

    /// The log remembers how far it is committed.
    fn hint(&mut self, now: Micros) {
        let commit = self.engine.ctx.raft.deliverable();
        if commit > self.commit_hinted {
            (self.commit_hinted, self.hinted_at) = (commit, now);
            let _ = self.log_jobs.send(LogJob::Hint(commit));
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::PeerUp { conn, hello } => self.peer_up(conn, hello),
            Event::Ready { .. } => {}
            Event::Frame { conn, kind, payload } => {
                if let Some(member) = self.links.member(&conn) {
                    self.engine.frame(member, kind, payload);
                }
            }
            Event::PeerDown { conn, reason } => {
                if is_final(&reason) {
                    self.engine.refused(&reason.to_string());
                }
                self.allow.gone(&conn);
                if let Some(member) = self.links.down(conn) {
                    self.engine.peer_down(member, &reason.to_string());
                }
                if matches!(reason, DownReason::Rejected(Reason::NotAllowed, _)) {
                    self.engine.not_allowed(&reason.to_string());
                }
                if matches!(reason, DownReason::Rejected(Reason::NotListed, _)) {
                    self.engine.not_listed(&reason.to_string());
                }
            }
            Event::DialFailed { addr, error } => {
                let text = error.to_string();
                let who = self.whose(&addr);
                let level = if error.is_for_a_person() { Level::Warn } else { Level::Info };
                if self.links.is_news(&addr, &text) {
                    let line = format!("{who} cannot be reached, and is tried again and again: {text}");
                    self.log(level, &line);
                }
                self.engine.not_reached(addr.clone(), who, error.is_for_a_person().then_some(text));
                if matches!(error, DialError::WrongCluster { .. } | DialError::Version { .. }) {
                    self.engine.refused(&format!("{addr}: {error}"));
                }
            }
            Event::Noise { addr, what, suppressed } => {
                let more =
                    if suppressed > 0 { format!(" ({suppressed} more like it)") } else { String::new() };
                self.log(Level::Warn, &format!("dropped a connection from {addr}: {what}{more}"));
            }
            Event::Request(request) => self.answer(request),
        }
    }

    /// A peer has introduced itself. The allow-list is asked first, which may take a while; except for a peer that is
    /// refused for another reason, or that the configuration names.
    fn peer_up(&mut self, conn: ConnId, hello: PeerHello) {
        let named = hello.dialed.as_ref().is_some_and(|address| self.named.contains(address));
        let ask = !named
            && self.allow.is_asked()
            && self.engine.ctx.connection.is_connected()
            && Hello::from_bytes(hello.blob.clone()).is_ok_and(|h| h.id != self.engine.ctx.me.id);
        if !ask {
            return self.arrived(conn, &hello);
        }
        let (now, shared) = (self.engine.ctx.now, self.shared.clone());
        let answered = move |ip, answer| shared.inbox.push(Input::Allowed(ip, answer));
        match self.allow.ask(now, ip_of(&hello), answered) {
            None => self.allow.wait(now, conn, hello),
            Some(answer) => self.decide(conn, &hello, answer),
        }
    }

    fn decide_waiting(&mut self, now: Micros) {
        for (waiting, answer) in self.allow.due(now) {
            self.decide(waiting.conn, &waiting.hello, answer);
        }
    }

    fn decide(&mut self, conn: ConnId, hello: &PeerHello, answer: Answer) {
        let ip = ip_of(hello);
        let who = Hello::from_bytes(hello.blob.clone()).map_or_else(|_| "a peer".into(), |h| h.name);
        let me = &self.engine.ctx.me.name;
        let (reason, to_peer, to_log) = match answer {
            Answer::Yes => return self.arrived(conn, hello),
            Answer::No => (
                Reason::NotListed,
                format!(
                    "{me} does not find {ip} in its allow-list; to let this member in, on a member of the cluster: \
                     INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('{ip}')"
                ),
                format!(
                    "Connection not allowed: {who} at {ip} is not in the allow-list; to let it in: \
                     INSERT INTO mysql.wsrep_allowlist (ip) VALUES ('{ip}')"
                ),
            ),
            Answer::Silence => (
                Reason::Busy,
                format!("{me} does not know yet whether {ip} is in its allow-list: try again"),
                format!(
                    "{who} at {ip} has to wait outside: the server does not say whether the address is in the \
                     allow-list; is the table mysql.wsrep_allowlist locked?"
                ),
            ),
        };
        self.reactor.reject(conn, reason, &to_peer);
        if self.allow.is_news(self.engine.ctx.now, ip) {
            self.log(Level::Warn, &to_log);
        }
    }

    fn arrived(&mut self, conn: ConnId, hello: &PeerHello) {
        match self.links.arrived(&mut self.reactor, &mut self.engine, conn, hello) {
            Arrival::Taken if self.encrypts && !hello.encrypted => {
                let text = format!(
                    "the connection with {} is not encrypted (socket.dynamic): that member has no socket.ssl",
                    hello.remote_addr
                );
                self.log(Level::Info, &text);
            }
            Arrival::Taken | Arrival::Quiet => {}
            Arrival::Refused { text, fatal } => {
                self.log(Level::Warn, &text);
                if fatal && hello.outgoing {
                    self.engine.refused(&text);
                }
            }
        }
    }

    fn status(&self) -> Status {
        self.engine.status(&StatusContext {
            queued: self.shared.deliveries.len(),
            queued_bytes: self.shared.deliveries.bytes(),
            log_bytes: self.log_bytes,
            state_since: self.state_since,
            protocol: self.links.protocol(),
            packed: self.packer.sent,
        })
    }

    fn answer(&mut self, request: StatusRequest) {
        // Over TCP nobody commands: such a request is refused where it is read, too.
        if request.method == Method::Post && request.local {
            return self.take_command(&request);
        }
        if (request.method, request.path.as_str()) == (Method::Get, "/agreed") {
            self.commands_given += 1;
            self.asking.insert(self.commands_given, request.conn);
            return self.engine.query_committed_position(self.commands_given);
        }
        let status = self.status();
        let (code, kind, body) = match (request.method, request.path.as_str()) {
            (Method::Get, "/status") => match serde_json::to_string(&status) {
                Ok(json) => (200, "application/json", json),
                Err(error) => (500, "text/plain", error.to_string()),
            },
            (Method::Get, "/metrics") => {
                let more = self.front_end_stats.as_ref().map_or_else(Vec::new, |f| f());
                (200, "text/plain; version=0.0.4", status.prometheus(&more))
            }
            _ => (404, "text/plain", "there are /status, /metrics and /agreed\n".to_string()),
        };
        self.reactor.respond(request.conn, code, kind, body);
    }

    fn take_command(&mut self, request: &StatusRequest) {
        if request.path != "/command" {
            let text = "commands are posted to /command\n".to_string();
            return self.reactor.respond(request.conn, 404, "text/plain", text);
        }
        match Command::parse(&request.body) {
            Ok(command) => {
                self.commands_given += 1;
                self.commands.insert(self.commands_given, request.conn);
                self.command(command);
            }
            Err(text) => self.answer_command(
                request.conn,
                400,
                &CommandAnswer { ok: false, text, seconds: 0.0, held: None },
            ),
        }
    }

    fn command(&mut self, command: Command) {
        match timed_uuid() {
            Ok(fresh) => self.engine.command(self.commands_given, command, fresh),
            Err(error) => self.log(Level::Error, &format!("a command is not carried out: {error}")),
        }
    }

    fn answer_command(&mut self, conn: ConnId, code: u16, answer: &CommandAnswer) {
        let json = serde_json::to_string(answer).unwrap_or_default();
        self.reactor.respond(conn, code, "application/json", json);
    }

    /// An address for people: with the name of the member that is known to live there.
    fn whose(&self, addr: &str) -> String {
        let membership = self.engine.ctx.raft.membership();
        match membership.members.iter().find(|m| m.address == addr) {
            Some(member) => format!("{} ({addr})", member.name),
            None => addr.to_owned(),
        }
    }

    fn input(&mut self, input: Input) -> bool {
        match input {
            Input::Submit { kind, payload, submission } => self.engine.submit(kind, payload, submission),
            Input::Connect { args, view_uuid, history, reply } => {
                match self.begin_to_connect(*args, view_uuid, history) {
                    Ok(()) => self.connecting = Some(reply),
                    Err(error) => reply.set(Err(error)),
                }
            }
            Input::Disconnect { reply } => {
                self.engine.disconnect();
                if self.engine.is_leaving() {
                    self.leaving.push(reply);
                } else {
                    // It was never there, or has left by itself: nothing more will come.
                    self.shared.deliveries.close();
                    reply.set(());
                }
            }
            Input::RequestState { request, donor } => self.engine.request_state(request, donor),
            Input::StateReceived(result) => self.engine.state_received(result),
            Input::DonationDone { id, result } => self.engine.donation_done(id, result),
            Input::Desync => self.engine.desync(),
            Input::Resync => self.engine.resync(),
            Input::Causal { id, reply } => {
                self.causal.insert(id, reply);
                self.engine.causal_read(id);
            }
            Input::CausalCancelled(id) => {
                self.causal.remove(&id);
                self.engine.causal_cancelled(id);
            }
            Input::Fail(text) => self.engine.give_up(&text),
            Input::Panic => panic!("debug.panic was set"),
            Input::FoundBefore(seqno) => self.engine.found_before(seqno),
            Input::Vote { seqno, opinion, text, reply } => self.engine.vote(seqno, opinion, text, reply),
            Input::Bootstrap(reply) => {
                self.commands_given += 1;
                self.asked_within.insert(self.commands_given, reply);
                self.command(Command::Bootstrap);
            }
            Input::Membership(reply) => reply.set(self.engine.membership_now()),
            Input::Allowed(ip, answer) => self.allow.answered(self.engine.ctx.now, ip, answer),
            Input::Identity(identity) => self.reactor.set_identity(identity),
            Input::Tuning(tuning) => self.engine.set_tuning(*tuning),
            Input::Policy { change, reply } => {
                self.wishing.push(reply);
                self.engine.request_policy(change);
            }
            Input::Log(done) => {
                for answer in done {
                    self.log_answered(answer);
                }
            }
            Input::Stop => return true,
        }
        false
    }

    fn begin_to_connect(
        &mut self,
        args: ConnectArgs,
        view_uuid: Uuid,
        history: Uuid,
    ) -> Result<(), NodeError> {
        self.reactor.set_cluster(&args.cluster).map_err(|e| NodeError::Setup(e.to_string()))?;
        if !self.listening {
            self.reactor
                .listen(std::slice::from_ref(&self.listen))
                .map_err(|e| NodeError::Setup(format!("cannot listen for members: {e}")))?;
            self.listening = true;
        }
        self.named = args
            .peers
            .iter()
            .filter_map(|peer| Address::parse(peer, DEFAULT_PORT).ok())
            .map(|address| address.to_string())
            .collect();
        self.shared.deliveries.open();
        self.engine.connect(args, view_uuid, history)?;
        self.refresh_hello();
        Ok(())
    }

    fn refresh_hello(&mut self) {
        let hello = self.engine.introduction().to_bytes();
        if let Err(error) = self.reactor.set_hello(hello) {
            self.log(Level::Error, &format!("this member's introduction is too long: {error}"));
        }
    }

    fn log_answered(&mut self, done: LogDone) {
        match done {
            LogDone::Written(ticket) => {
                self.engine.written(ticket);
            }
            LogDone::Read { whom, from, entries } => self.engine.read(whom, from, entries),
            LogDone::Trimmed { first, early } => self.engine.log_trimmed(first, early),
            LogDone::Size(bytes) => {
                self.log_bytes = bytes;
                self.engine.note_log_size(bytes);
            }
            LogDone::Rescued { text, transactions } => self.engine.rescued(&text, transactions),
            LogDone::Failed(text) => {
                self.engine
                    .fail(&format!("the log cannot be written, this member stops acknowledging: {text}"));
                if let Some(end) = self.end_server.take() {
                    let (dir, bytes) = (self.log_dir.clone(), self.room);
                    let (logger, shared) = (self.logger.clone(), Arc::downgrade(&self.shared));
                    crate::io::disk_full::end_when_there_is(dir, bytes, logger, end, move || {
                        shared.upgrade().is_none_or(|shared| shared.inbox.is_stopped())
                    });
                }
            }
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, kind, payload } => {
                if let Some((conn, version)) = self.links.conn_and_version(&to) {
                    let packs = version >= UNPACKED_SINCE && self.engine.compresses_to(&to);
                    let packed = if packs { self.packer.pack(kind, &payload) } else { None };
                    let (kind, payload) = match packed {
                        Some(packed) => (FRAME_PACKED, vec![packed]),
                        None => (kind, payload),
                    };
                    // A queue that overflows closes the connection, which comes back as an event.
                    let large = payload.iter().map(Bytes::len).sum::<usize>() >= TELLS_QUEUE;
                    let _ = self.reactor.send(conn, kind, &payload);
                    // Between two looks at all of them a relay's queue might become long.
                    if large && let Some(stats) = self.reactor.stats(conn) {
                        self.engine.ctx.raft.set_queued(to, stats.queued);
                    }
                }
            }
            Effect::Write(op) => {
                // The name of the log has changed.
                if op.reset.is_some() || op.entries.iter().any(|entry| entry.kind == EntryKind::Branch) {
                    self.refresh_hello();
                }
                let gather = self.company.is_expected(self.engine.ctx.now);
                self.log_later.push(LogJob::Write { op: Box::new(op), gather });
            }
            Effect::Read { whom, from, max_bytes } => {
                self.log_later.push(LogJob::Read { whom, from, max_bytes });
            }
            Effect::TrimLog(limits) => {
                self.log_later.push(LogJob::Trim(limits));
            }
            Effect::Dial(address) => {
                if let Err(error) = self.links.keep(&mut self.reactor, &address) {
                    self.log(Level::Warn, &format!("the address {address} cannot be used: {error}"));
                }
            }
            Effect::Drop(member) => {
                if self.links.drop_member(&mut self.reactor, &member) {
                    self.engine.peer_down(member, "closed by this member");
                }
            }
            Effect::Connected(result) => {
                if result.is_err() {
                    self.links.clear(&mut self.reactor, "this member does not join");
                }
                if let Some(reply) = self.connecting.take() {
                    reply.set(result);
                }
            }
            Effect::Left => {
                self.links.clear(&mut self.reactor, "this member has left the cluster");
                // Those that still know this address would show it to their servers again and again.
                self.reactor.unlisten();
                self.listening = false;
                for reply in self.leaving.drain(..) {
                    reply.set(());
                }
            }
            Effect::Log(level, text) => self.log(level, &text),
            Effect::Progress { total, done } => {
                if let Some(call) = &self.progress {
                    call(total, done);
                }
            }
            Effect::Event(text) => {
                if let Some(call) = &self.event {
                    call(&text);
                }
            }
            Effect::SetAside(wish) => {
                if let Err(error) = crate::log_quarantine::request(&self.log_dir, &wish) {
                    let text = format!(
                        "{error}; move this member's lockstep.* files away before it is started again"
                    );
                    self.log(Level::Error, &text);
                }
            }
            Effect::Answer { token, answer } => {
                if let Some(reply) = self.asked_within.remove(&token) {
                    reply.set(answer.clone());
                }
                if let Some(conn) = self.commands.remove(&token) {
                    self.answer_command(conn, if answer.ok { 200 } else { 409 }, &answer);
                }
            }
            Effect::CommittedPosition { token, result } => {
                if let Some(conn) = self.asking.remove(&token) {
                    let (code, kind, body) = match result {
                        Ok(gtid) => {
                            let body =
                                serde_json::json!({ "uuid": gtid.uuid.to_string(), "seqno": gtid.seqno });
                            (200, "application/json", body.to_string())
                        }
                        Err(text) => (503, "text/plain", text),
                    };
                    self.reactor.respond(conn, code, kind, body);
                }
            }
            Effect::PolicyNow(policy) => {
                self.shared.published.set_policy(policy);
                if let Some(call) = &self.policy_changed {
                    call(&policy);
                }
            }
            Effect::PolicyChanged(result) => {
                for reply in self.wishing.drain(..) {
                    reply.set(result.clone());
                }
            }
            Effect::Causal { id, seqno } => {
                if let Some(reply) = self.causal.remove(&id) {
                    reply.set(seqno);
                }
            }
        }
    }
}
