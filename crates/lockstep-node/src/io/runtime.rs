//! The thread `ls-node`: a loop of rounds. A round takes all pending inputs (frames, submissions, answers of the log) as
//! one batch, lets the member decide, and carries out the effects.

use crate::allow::{AllowList, Answer, Refusal, ip_of, refusal};
use crate::api::{ConnectArgs, Delivery, Level, Logger, NodeConfig, NodeError};
use crate::effect::Effect;
use crate::io::callers::{Callers, Commander};
use crate::io::front_end_calls::FrontEndCalls;
use crate::io::hung_disk::HungDisk;
use crate::io::inbox::Input;
use crate::io::links::{Arrival, DEFAULT_PORT, Links, is_final};
use crate::io::log_client::{LogClient, Wrote};
use crate::io::log_queue::LogJob;
use crate::io::log_upkeep::LogUpkeep;
use crate::io::pages::Page;
use crate::io::publisher::Publisher;
use crate::io::shared::Shared;
use crate::io::writer::{LogDone, LogFailure, LogJobs};
use crate::load_estimates::BatchEstimate;
use crate::member::Member;
use crate::operator::Command;
use crate::status::{Status, StatusContext};
use crate::uuids::timed_uuid;
use crate::wire::Hello;
use lockstep_core::{EntryKind, Micros, Uuid};
use lockstep_net::{
    Address, ConnId, DialError, DownReason, Event, Method, PeerHello, Reactor, Reason, StatusRequest,
};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest sleep: timers that are not the engine's (status file, log size) need no better.
const NAP: Duration = Duration::from_millis(100);
/// How long awake threads may take to come back for queued deliveries.
const NUDGE: Micros = 1_000;

/// What `ls-node` owns.
pub(crate) struct Runtime {
    engine: Member,
    reactor: Reactor,
    links: Links,
    allow: AllowList<ConnId>,
    shared: Arc<Shared>,
    log_client: LogClient<Box<Runtime>>,
    /// The log's answer to a write by this thread.
    own_done: Option<LogDone>,
    log: LogUpkeep,
    hung_disk: HungDisk,
    callers: Callers,
    calls: FrontEndCalls,
    publisher: Publisher,
    logger: Logger,
    /// The begin of this node's time.
    origin: Instant,
    /// When to check whether the awake threads suffice for the queued deliveries.
    nudge_at: Option<Micros>,
    batch_estimate: BatchEstimate,
}

impl Runtime {
    pub(crate) fn new(
        config: &NodeConfig,
        engine: Member,
        reactor: Reactor,
        links: Links,
        log: LogUpkeep,
        log_client: LogClient<Box<Runtime>>,
        shared: Arc<Shared>,
    ) -> Runtime {
        let origin = Instant::now();
        Runtime {
            engine,
            reactor,
            links,
            allow: AllowList::new(config.allowed.clone()),
            shared,
            log_client,
            own_done: None,
            log,
            hung_disk: HungDisk::new(origin),
            callers: Callers::default(),
            calls: FrontEndCalls::new(config),
            publisher: Publisher::default(),
            logger: config.logger.clone(),
            origin,
            nudge_at: None,
            batch_estimate: BatchEstimate::default(),
        }
    }

    fn say(&self, level: Level, text: &str) {
        (self.logger)(level, text);
    }

    /// This thread takes over from one that hangs in its own write.
    pub(crate) fn took_over(&mut self) {
        self.log_client.hung(self.now());
    }

    fn now(&self) -> Micros {
        self.origin.elapsed().as_micros() as Micros
    }

    /// Runs until stopped, or until another thread took over (see [`crate::io::role_swap`]): then returns the jobs of
    /// `ls-log`, which this thread continues with.
    pub(crate) fn run(mut self: Box<Self>) -> Option<LogJobs> {
        let mut events = Vec::new();
        let mut inputs = Vec::new();
        let mut effects = Vec::new();
        let mut deliveries = Vec::new();
        loop {
            let now = self.now();
            // A round that ended with entries left over, or with a write, is followed by the next one at once.
            let more = self.engine.has_more() && !self.shared.deliveries.full();
            let nap = match more || self.own_done.is_some() {
                true => Duration::ZERO,
                false => {
                    let next =
                        self.nudge_at.map_or(self.engine.deadline(), |at| at.min(self.engine.deadline()));
                    Duration::from_micros(next.saturating_sub(now)).min(NAP)
                }
            };
            self.batch_estimate.counted(now, self.engine.under_way());
            self.reactor.set_coalesces(self.batch_estimate.is_expected(now));
            if let Err(error) = self.reactor.poll(Some(nap), &mut events) {
                self.engine.fail(&format!("the network cannot be waited for: {error}"));
                std::thread::sleep(NAP);
            }
            let now = self.now();
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as Micros);
            self.engine.at(now, wall);
            if let Some(done) = self.own_done.take() {
                self.log_answered(done);
            }
            self.shared.inbox.take(&mut inputs);
            for event in events.drain(..) {
                self.event(event);
            }
            let mut stop = false;
            for input in inputs.drain(..) {
                stop |= self.input(input);
            }
            self.decide_waiting(now);
            self.links.isolate(&mut self.reactor, self.shared.signals.is_isolated());
            // A full queue empties by itself, unless its appliers wait for a transaction that is ordered after it.
            let hurry = self.shared.signals.is_hurried();
            self.engine.note_refused(self.shared.signals.refused());
            self.engine.round(hurry || !self.shared.deliveries.full());
            self.engine.take(&mut effects, &mut deliveries);
            self.hung_disk.set(self.engine.hung_disk_ends_by(), self.calls.end());
            // Published before the notification: a front end notified of Synced must not read Joined.
            let now_at = self.engine.ctx.now();
            if let Some(line) = self.publisher.publish_round(now_at, &self.engine, &self.shared.published) {
                self.say(Level::Info, &line);
            }
            let mut end = self.engine.server_must_end();
            for effect in effects.drain(..) {
                // A server whose start is refused exits with an error. Debian's unit restarts only one that aborts.
                if matches!(effect, Effect::Connected(Err(_)))
                    && let Some((why, text)) = end.take()
                {
                    self.calls.end_server(why, &text);
                }
                self.effect(effect);
            }
            // A woken thread takes the processor, so first send what other members wait for.
            self.reactor.flush();
            // Inputs that arrive during a write by this thread form the next batch.
            let allowed = !stop && !self.engine.has_causal_reads();
            let own_write = self.log_client.hand_over(now, allowed, self.engine.only_follows());
            self.engine.wake();
            // Before the deliveries: a front end that handles a view or a request reads a status of that moment.
            self.publish(now, deliveries.iter().any(Delivery::is_exclusive));
            self.deliver(&mut deliveries);
            if self.nudge_at.take_if(|at| *at <= now).is_some() {
                self.shared.deliveries.nudge();
            }
            if self.shared.deliveries.is_watched() {
                self.nudge_at.get_or_insert(now + NUDGE);
            }
            if let Some((why, text)) = end {
                self.calls.end_server(why, &text);
            }
            if stop {
                break;
            }
            let Some(op) = own_write else { continue };
            let (writer, shared, began) = (self.log_client.writer(), self.shared.clone(), Instant::now());
            match writer.write(self, op) {
                Wrote::Done(node, done) => {
                    self = node;
                    self.log_client.took(now, began);
                    self.own_done = Some(done);
                }
                Wrote::Busy(node, op) => {
                    self = node;
                    self.log_client.send(LogJob::Write { op, may_defer: false, coalesce: false });
                }
                Wrote::Swapped(done, jobs) => {
                    shared.inbox.push(Input::Log(vec![done]));
                    return jobs;
                }
            }
        }
        self.reactor.shutdown("the server stops", Duration::from_millis(200));
        self.hint(self.engine.ctx.now());
        self.log_client.send(LogJob::Stop);
        self.shared.deliveries.close();
        None
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

    fn publish(&mut self, now: Micros, at_once: bool) {
        let published = &self.shared.published;
        published.set_certification(
            self.engine.delivery.deliverer.keys() as u64,
            self.engine.delivery.deliverer.window(),
        );
        if !self.publisher.is_status_due(now, at_once) {
            return;
        }
        for (member, conn) in self.links.all() {
            let Some(stats) = self.reactor.stats(conn) else { continue };
            if let Some(rtt) = stats.rtt_min {
                self.engine.on_rtt(member, rtt.as_micros() as Micros);
            }
            self.engine.ctx.raft.set_queued(member, stats.queued);
        }
        published.set_status(self.status());
        if self.log.is_hint_due(now) {
            self.hint(now);
        }
        if let Err(error) = self.reactor.ensure_socket() {
            self.say(Level::Warn, &format!("the status socket cannot be made again: {error}"));
        }
    }

    /// The log remembers how far it is committed.
    fn hint(&mut self, now: Micros) {
        if let Some(index) = self.log.hint(now, self.engine.ctx.raft.deliverable()) {
            self.log_client.send(LogJob::Hint(index));
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
                    self.say(level, &line);
                }
                self.engine.not_reached(addr.clone(), who, error.is_for_a_person().then_some(text));
                if matches!(error, DialError::WrongCluster { .. } | DialError::Version { .. }) {
                    self.engine.refused(&format!("{addr}: {error}"));
                }
            }
            Event::Noise { addr, what, suppressed, persists } => {
                let more =
                    if suppressed > 0 { format!(" ({suppressed} more like it)") } else { String::new() };
                // A few need no action: a port scanner, or members that try TLS first (`socket.dynamic`).
                let level = if persists { Level::Warn } else { Level::Info };
                self.say(level, &format!("dropped a connection from {addr}: {what}{more}"));
            }
            Event::Request(request) => self.answer(request),
        }
    }

    /// A peer has introduced itself. The allow-list is asked first, which may take a while; except for a peer that is
    /// refused for another reason, or that the configuration names.
    fn peer_up(&mut self, conn: ConnId, hello: PeerHello) {
        let ask = self.allow.is_asked(hello.dialed.as_deref())
            && self.engine.ctx.connection().is_connected()
            && Hello::from_bytes(hello.blob.clone()).is_ok_and(|h| h.id != self.engine.ctx.me().id);
        if !ask {
            return self.arrived(conn, &hello);
        }
        let (now, shared) = (self.engine.ctx.now(), self.shared.clone());
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
        if answer == Answer::Yes {
            return self.arrived(conn, hello);
        }
        let ip = ip_of(hello);
        let who = Hello::from_bytes(hello.blob.clone()).map_or_else(|_| "a peer".into(), |h| h.name);
        let Refusal { reason, to_peer, to_log } = refusal(answer, ip, &self.engine.ctx.me().name, &who);
        self.reactor.reject(conn, reason, &to_peer);
        if self.allow.is_news(self.engine.ctx.now(), ip) {
            self.say(Level::Warn, &to_log);
        }
    }

    fn arrived(&mut self, conn: ConnId, hello: &PeerHello) {
        match self.links.arrived(&mut self.reactor, &mut self.engine, conn, hello) {
            Arrival::Unencrypted => {
                let text = format!(
                    "the connection with {} is not encrypted (socket.dynamic): that member has no socket.ssl",
                    hello.remote_addr
                );
                self.say(Level::Info, &text);
            }
            Arrival::Taken | Arrival::Quiet => {}
            Arrival::Refused { text, fatal } => {
                self.say(Level::Warn, &text);
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
            log_bytes: self.log.bytes(),
            state_since: self.publisher.state_since(),
            protocol: self.links.protocol(),
            packed: self.links.packed(),
        })
    }

    fn answer(&mut self, request: StatusRequest) {
        let conn = request.conn;
        // Over TCP nobody commands: such a request is refused where it is read, too.
        if request.method == Method::Post && request.local {
            return self.take_command(&request);
        }
        let page = match (request.method, request.path.as_str()) {
            (Method::Get, "/agreed") => {
                let token = self.callers.begin_position_query(conn);
                return self.engine.query_committed_position(token);
            }
            (Method::Get, "/status") => {
                Page::status(&Status { front_end: self.calls.status(), ..self.status() })
            }
            (Method::Get, "/metrics") => Page::metrics(&self.status(), &self.calls.stats()),
            _ => Page::text(404, "there are /status, /metrics and /agreed\n"),
        };
        self.respond(conn, page);
    }

    fn respond(&mut self, conn: ConnId, page: Page) {
        self.reactor.respond(conn, page.code, page.kind, page.body);
    }

    fn take_command(&mut self, request: &StatusRequest) {
        if request.path != "/command" {
            return self.respond(request.conn, Page::text(404, "commands are posted to /command\n"));
        }
        match Command::parse(&request.body) {
            Ok(command) => self.command(command, Commander::Client(request.conn)),
            Err(text) => self.respond(request.conn, Page::malformed_command(text)),
        }
    }

    fn command(&mut self, command: Command, commander: Commander) {
        let token = self.callers.begin_command(commander);
        match timed_uuid() {
            Ok(fresh) => self.engine.command(token, command, fresh),
            Err(error) => self.say(Level::Error, &format!("a command is not carried out: {error}")),
        }
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
                    Ok(()) => self.callers.begin_to_connect(reply),
                    Err(error) => reply.set(Err(error)),
                }
            }
            Input::Disconnect { reply } => {
                self.engine.disconnect();
                if self.engine.is_leaving() {
                    self.callers.begin_to_leave(reply);
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
                // The entries that the read needs may be waiting for a sync.
                self.log_client.push(LogJob::SyncNow);
                self.callers.begin_causal_read(id, reply);
                self.engine.causal_read(id);
            }
            Input::CausalCancelled(id) => {
                self.callers.cancel_causal_read(id);
                self.engine.causal_cancelled(id);
            }
            Input::Fail(text) => self.engine.give_up(&text),
            Input::RepeatFromLog(text) => self.engine.repeat_from_log(&text),
            Input::Panic => panic!("debug.panic was set"),
            Input::FoundBefore(seqno) => self.engine.found_before(seqno),
            Input::StatementExecuted(result, own) => self.engine.statement_executed(result, own),
            Input::Vote { seqno, opinion, text, reply } => self.engine.vote(seqno, opinion, text, reply),
            Input::Bootstrap(reply) => self.command(Command::Bootstrap, Commander::Thread(reply)),
            Input::Membership(reply) => reply.set(self.engine.membership_now()),
            Input::Allowed(ip, answer) => self.allow.answered(self.engine.ctx.now(), ip, answer),
            Input::Identity(identity) => self.reactor.set_identity(identity),
            Input::Tuning(tuning) => self.engine.set_tuning(*tuning),
            Input::Policy { change, reply } => {
                self.callers.request_policy(reply);
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
        self.links
            .listen(&mut self.reactor)
            .map_err(|e| NodeError::Setup(format!("cannot listen for members: {e}")))?;
        let addresses = args.peers.iter().filter_map(|peer| Address::parse(peer, DEFAULT_PORT).ok());
        self.allow.set_named(addresses.map(|address| address.to_string()).collect());
        self.shared.deliveries.open();
        self.engine.connect(args, view_uuid, history)?;
        self.refresh_hello();
        Ok(())
    }

    fn refresh_hello(&mut self) {
        let hello = self.engine.introduction().to_bytes();
        if let Err(error) = self.reactor.set_hello(hello) {
            self.say(Level::Error, &format!("this member's introduction is too long: {error}"));
        }
    }

    fn log_answered(&mut self, done: LogDone) {
        match done {
            LogDone::Written(ticket) => {
                self.log_client.completed(ticket);
                self.engine.written(ticket);
            }
            LogDone::Read { request, result } => self.engine.read(request, result),
            LogDone::Trimmed { first, early } => self.engine.log_trimmed(first, early),
            LogDone::Size(bytes) => {
                self.log.set_bytes(bytes);
                self.engine.note_log_size(bytes);
            }
            LogDone::Rescued(kept) => self.engine.rescued(&kept),
            LogDone::Failed(LogFailure { text, waits }) => {
                let text = format!("the log cannot be written, this member stops acknowledging: {text}");
                if !waits {
                    return self.engine.log_failed(&text);
                }
                self.engine.fail(&text);
                if let Some(end) = self.calls.hand_over_end() {
                    let shared = Arc::downgrade(&self.shared);
                    self.log.end_once_writable(self.logger.clone(), end, move || {
                        shared.upgrade().is_none_or(|shared| shared.inbox.is_stopped())
                    });
                }
            }
        }
    }

    fn effect(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, kind, payload } => {
                let compresses = self.engine.compresses_to(&to);
                let queued = self.links.send(&mut self.reactor, &to, kind, payload, compresses);
                // Between two looks at all of them a relay's queue might become long.
                if let Some(bytes) = queued {
                    self.engine.ctx.raft.set_queued(to, bytes);
                }
            }
            Effect::Write { op, may_defer } => {
                // The name of the log has changed.
                if op.reset.is_some() || op.entries.iter().any(|entry| entry.kind == EntryKind::Branch) {
                    self.refresh_hello();
                }
                let coalesce = self.batch_estimate.is_expected(self.engine.ctx.now());
                self.log_client.push(LogJob::Write { op: Box::new(op), may_defer, coalesce });
            }
            Effect::Read(request) => self.log_client.push(LogJob::Read(request)),
            Effect::TrimLog(limits) => {
                self.log_client.push(LogJob::Trim(limits));
            }
            Effect::Dial(address) => {
                if let Err(error) = self.links.keep(&mut self.reactor, &address) {
                    self.say(Level::Warn, &format!("the address {address} cannot be used: {error}"));
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
                self.callers.connected(result);
            }
            Effect::Left => {
                self.links.leave(&mut self.reactor, "this member has left the cluster");
                self.callers.left();
            }
            Effect::Log(level, text) => self.say(level, &text),
            Effect::Progress { total, done } => self.calls.progress(total, done),
            Effect::Event(text) => self.calls.event(&text),
            Effect::QuarantineLog(request) => {
                if let Err(text) = self.log.quarantine(&request) {
                    self.say(Level::Error, &text);
                }
            }
            Effect::Answer { token, answer } => {
                if let Some(conn) = self.callers.command_answered(token, &answer) {
                    self.respond(conn, Page::command_answer(&answer));
                }
            }
            Effect::CommittedPosition { token, result } => {
                if let Some(conn) = self.callers.position_answered(token) {
                    self.respond(conn, Page::committed_position(result));
                }
            }
            Effect::PolicyNow(policy) => {
                self.shared.published.set_policy(policy);
                self.calls.policy_changed(&policy);
            }
            Effect::PolicyChanged(result) => self.callers.policy_changed(&result),
            Effect::Causal { id, seqno } => self.callers.finish_causal_read(id, seqno),
        }
    }
}
