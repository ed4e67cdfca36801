//! A connection between two members, without a socket. The driver passes in bytes and the time, and takes bytes out.
//!
//! ```text
//!  dialer                                  dialed
//!    │ ── hello ─────────────────────────▶ │   says nothing until it has seen a valid hello
//!    │ ◀───────────────────────── hello ── │
//!    │ ── ACCEPT or REJECT ──────────────▶ │   each side's caller decides on the other's hello
//!    │ ◀────────────── ACCEPT or REJECT ── │
//!    │ ◀═════════════ frames ════════════▶ │   PING each second gives the round trip and shows life
//!    │ ── GOODBYE ───────────────────────▶ │   reason and text, by the side that closes on purpose
//! ```
//!
//! The driver reads into [`Connection::room`] and reports with [`Connection::arrived`], writes what
//! [`Connection::slices`] offers and reports with [`Connection::written`], calls [`Connection::tick`] when
//! [`Connection::next_timeout`] is due, and empties [`Connection::poll_event`] after each of these. Bytes behind the
//! hello wait until the caller has decided on it; [`Connection::wants_read`] is false while enough of them wait.

mod frame;
mod hello;
mod input;
mod output;
mod recognise;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::frame::{CONTROL_MAX, HEADER, Header, op};
pub(crate) use self::hello::MAGIC;
use self::hello::{BODY_MAX, Hello};
use self::input::Input;
pub(crate) use self::output::Output;
pub(crate) use self::recognise::{recognise, tls};
use crate::error::{DialError, DownReason, ProtoError, Reason, SendError, TlsFailure};

/// The protocol versions that this build speaks: lowest and highest. `docs/format-wire.md` says what they are. With the
/// feature `next-protocol` one more, which says what the highest before it says, under another number: for rehearsing upgrades.
pub const VERSIONS: (u16, u16) = (2, 7 + cfg!(feature = "next-protocol") as u16);

/// The shortest of this many recent round trips is reported.
const RTTS: usize = 8;
/// The number of a connection's first ping.
const FIRST_PING: u64 = 1;

/// Bytes that may wait undecoded before the handshake is complete.
const UNDECIDED_MAX: usize = 64 * 1024;

/// Configuration of a connection. Shared by all connections of a member.
#[derive(Debug, Clone)]
pub struct ProtoConfig {
    /// Cluster name: both sides must have the same.
    pub cluster: String,
    /// Lowest and highest protocol version: [`VERSIONS`], except in tests.
    pub versions: (u16, u16),
    /// Longest payload of a frame, in bytes, that this side takes.
    pub max_frame: usize,
    /// Most bytes queued for the peer; over it the connection is closed.
    pub send_queue_max: usize,
    /// From the connection to the peer's hello, and from our acceptance to the peer's verdict.
    pub handshake_timeout: Duration,
    /// Silence after which the peer is given up. Pings keep a live connection from being silent.
    pub idle_timeout: Duration,
    /// How often a ping is sent.
    pub ping_interval: Duration,
    /// How long a closing side waits for its last words to leave.
    pub linger: Duration,
}

impl ProtoConfig {
    /// The defaults, for a cluster of this name.
    pub fn new(cluster: impl Into<String>) -> ProtoConfig {
        ProtoConfig {
            cluster: cluster.into(),
            versions: VERSIONS,
            max_frame: 64 << 20,
            send_queue_max: 256 << 20,
            handshake_timeout: Duration::from_secs(3),
            idle_timeout: Duration::from_secs(10),
            ping_interval: Duration::from_secs(1),
            linger: Duration::from_secs(1),
        }
    }
}

/// The side that dialed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This side dialed: it speaks first.
    Dialer,
    /// This side was dialed: it says nothing to strangers.
    Dialed,
}

/// An event of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnEvent {
    /// The peer introduced itself, its cluster name and versions fit. Answer with accept or reject.
    Hello {
        /// The version that both will speak.
        version: u16,
        /// The peer's introduction.
        blob: Bytes,
    },
    /// Both sides have accepted.
    Ready,
    /// A frame from the peer.
    Frame {
        /// The sender's kind.
        kind: u8,
        /// The payload: a slice of the receive buffer.
        payload: Bytes,
    },
    /// The connection failed before the peer introduced itself acceptably. Nothing follows.
    Failed(DialError),
    /// The connection ended after [`ConnEvent::Hello`]. Nothing follows.
    Down(DownReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waiting for the peer's hello.
    AwaitHello,
    /// The caller has the hello and has not decided.
    AwaitDecision,
    /// We accepted; the peer's verdict is missing.
    AwaitVerdict,
    /// Both accepted.
    Open,
    /// The closing message is queued, and input is discarded.
    Closing,
    /// Over.
    Dead,
}

/// A connection. See the module.
#[derive(Debug)]
pub struct Connection {
    cfg: Arc<ProtoConfig>,
    hello: Bytes,
    role: Role,
    stage: Stage,
    input: Input,
    output: Output,
    events: VecDeque<ConnEvent>,
    /// How the byte stream ended, while bytes before its end still wait for the caller's decision.
    end: Option<DownReason>,
    /// The agreed version; 0 before the hello.
    version: u16,
    /// The longest payload that the peer takes.
    peer_max_frame: usize,
    /// When the present stage must be over: handshake and closing only.
    deadline: Option<Instant>,
    last_arrival: Instant,
    next_ping: Instant,
    ping: Option<(u64, Instant)>,
    ping_number: u64,
    rtt: Option<Duration>,
    /// The latest round trips, as many as [`RTTS`].
    rtts: VecDeque<Duration>,
    frames_in: u64,
    frames_out: u64,
    bytes_in: u64,
    bytes_out: u64,
}

impl Connection {
    /// A connection whose transport has just been established. `hello` is the blob by which we introduce ourselves.
    ///
    /// Fails if cluster name and blob together are longer than a hello may be (64 KiB).
    pub fn new(
        cfg: Arc<ProtoConfig>,
        role: Role,
        hello: Bytes,
        now: Instant,
    ) -> Result<Connection, ProtoError> {
        let mut conn = Connection {
            hello: Bytes::new(),
            role,
            stage: Stage::AwaitHello,
            input: Input::default(),
            output: Output::default(),
            events: VecDeque::new(),
            end: None,
            version: 0,
            peer_max_frame: 0,
            deadline: Some(now + cfg.handshake_timeout),
            last_arrival: now,
            next_ping: now,
            ping: None,
            ping_number: 0,
            rtt: None,
            rtts: VecDeque::new(),
            frames_in: 0,
            frames_out: 0,
            bytes_in: 0,
            bytes_out: 0,
            cfg,
        };
        conn.hello = conn.encode_hello(hello)?;
        if role == Role::Dialer {
            conn.output.push(&conn.hello);
        }
        Ok(conn)
    }

    fn encode_hello(&self, blob: Bytes) -> Result<Bytes, ProtoError> {
        let (lowest, highest) = self.cfg.versions;
        let max_frame = u32::try_from(self.cfg.max_frame).unwrap_or(u32::MAX);
        let hello = Hello { lowest, highest, max_frame, cluster: self.cfg.cluster.clone(), blob };
        hello.encode().map(Bytes::from)
    }

    // ---- what the caller says

    /// Takes the peer: frames may be sent from now on.
    ///
    /// Does nothing if there is nothing to decide (any more).
    pub fn accept(&mut self, now: Instant) {
        if self.stage != Stage::AwaitDecision {
            return;
        }
        self.control(op::ACCEPT, &self.version.to_le_bytes());
        self.stage = Stage::AwaitVerdict;
        self.deadline = Some(now + self.cfg.handshake_timeout);
        self.pump(now);
    }

    /// Refuses the peer, or says goodbye to one that was accepted, and closes. No event follows.
    pub fn close(&mut self, reason: Reason, text: &str, now: Instant) {
        match self.stage {
            Stage::Closing | Stage::Dead => return,
            // A non-member gets no answer.
            Stage::AwaitHello => return self.die(),
            Stage::AwaitDecision => self.control(op::REJECT, &frame::encode_reason(reason.code(), text)),
            Stage::AwaitVerdict | Stage::Open => {
                self.control(op::GOODBYE, &frame::encode_reason(reason.code(), text));
            }
        }
        self.start_closing(now);
    }

    /// Queues a frame whose payload is `parts` one after the other. Large parts are referenced, not copied.
    pub fn send(&mut self, kind: u8, parts: &[Bytes]) -> Result<(), SendError> {
        if !matches!(self.stage, Stage::AwaitVerdict | Stage::Open) {
            return Err(SendError::NotConnected);
        }
        let len: usize = parts.iter().map(Bytes::len).sum();
        let max = self.peer_max_frame;
        let len32 = u32::try_from(len).ok().filter(|_| len <= max).ok_or(SendError::TooLong { len, max })?;
        if self.output.len() + HEADER + len > self.cfg.send_queue_max {
            self.events.push_back(ConnEvent::Down(DownReason::Overflow));
            self.die();
            return Err(SendError::Overflow);
        }
        let header = Header::encode(kind, false, len32, parts.iter().map(|p| &p[..]));
        self.output.push_slice(&header);
        for part in parts {
            self.output.push(part);
        }
        self.frames_out += 1;
        Ok(())
    }

    // ---- what the driver does

    /// Whether the driver should read. False while bytes wait for the caller's decision, and after the end.
    pub fn wants_read(&self) -> bool {
        match self.stage {
            Stage::AwaitDecision => self.end.is_none() && self.input.bytes().len() < UNDECIDED_MAX,
            Stage::Dead => false,
            _ => self.end.is_none(),
        }
    }

    /// Room to read into. Never empty.
    pub fn room(&mut self) -> &mut [u8] {
        let want = self.wanted();
        self.input.room(want)
    }

    /// `n` bytes were read into [`Connection::room`].
    pub fn arrived(&mut self, n: usize, now: Instant) {
        self.input.arrived(n);
        self.bytes_in += n as u64;
        self.last_arrival = now;
        self.pump(now);
    }

    /// The byte stream from the peer has ended, in order.
    pub fn ended(&mut self, now: Instant) {
        self.finish_input(DownReason::Closed, now);
    }

    /// The transport failed. Bytes received before that are still decoded.
    pub fn failed(&mut self, error: &str, now: Instant) {
        self.output.clear();
        self.finish_input(DownReason::Io(error.to_owned()), now);
    }

    /// The encryption below has failed, and what it hands on is no longer to be believed. The driver may still have last
    /// words of its own for the peer: the connection lingers as after [`Connection::close`].
    pub(crate) fn insecure(&mut self, failure: TlsFailure, now: Instant) {
        match self.stage {
            Stage::Dead | Stage::Closing => return,
            Stage::AwaitHello => self.events.push_back(ConnEvent::Failed(failure.dial())),
            Stage::AwaitDecision | Stage::AwaitVerdict | Stage::Open => {
                self.events.push_back(ConnEvent::Down(failure.down()));
            }
        }
        self.output.clear();
        self.start_closing(now);
    }

    /// Time has passed: pings, timeouts.
    pub fn tick(&mut self, now: Instant) {
        match self.stage {
            Stage::Dead => {}
            Stage::AwaitHello if self.overdue(now) => {
                let silent = self.input.bytes().is_empty();
                let error = if silent { DialError::NoHello } else { self.stranger() };
                self.fail(error);
            }
            Stage::AwaitVerdict if self.overdue(now) => self.down(DownReason::HandshakeTimeout),
            Stage::Closing if self.overdue(now) => self.die(),
            Stage::Open => {
                if now.saturating_duration_since(self.last_arrival) >= self.cfg.idle_timeout {
                    return self.down(DownReason::Silent);
                }
                if now >= self.next_ping {
                    self.send_ping(now);
                }
            }
            _ => {}
        }
    }

    /// When [`Connection::tick`] must be called next, at the latest.
    pub fn next_timeout(&self) -> Option<Instant> {
        match self.stage {
            Stage::Dead | Stage::AwaitDecision => None,
            Stage::Open => Some(self.next_ping.min(self.last_arrival + self.cfg.idle_timeout)),
            _ => self.deadline,
        }
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<ConnEvent> {
        self.events.pop_front()
    }

    /// Fills in slices for one vectored write; how many, 0 if nothing is queued.
    pub fn slices<'a>(&'a mut self, out: &mut [IoSlice<'a>]) -> usize {
        self.output.slices(out)
    }

    /// The first `n` of the bytes offered were written.
    pub fn written(&mut self, n: usize) {
        self.output.written(n);
        self.bytes_out += n as u64;
    }

    /// Whether anything is queued for the peer.
    pub fn wants_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// The GOODBYE has been written. The driver shuts down its sending side, then reads until the peer closes or until
    /// [`Connection::is_dead`]. With unread input the kernel would discard the GOODBYE.
    pub fn wants_shutdown(&self) -> bool {
        self.stage == Stage::Closing && self.output.is_empty()
    }

    /// The connection is over: the driver drops the socket.
    pub fn is_dead(&self) -> bool {
        self.stage == Stage::Dead
    }

    /// Whether the caller has been told of the peer ([`ConnEvent::Hello`]) at some time.
    pub fn is_introduced(&self) -> bool {
        self.version != 0
    }

    /// Whether our last words are queued, or have left.
    pub fn is_closing(&self) -> bool {
        self.stage == Stage::Closing
    }

    /// Whether both sides have accepted and neither has closed.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Smoothed round-trip time, once two pings came back: the first does not count.
    pub fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// The shortest of the latest round trips: how long the way is, whatever a busy or stopped peer added to it.
    pub fn rtt_min(&self) -> Option<Duration> {
        self.rtts.iter().min().copied()
    }

    /// Bytes queued and not yet written.
    pub fn queued(&self) -> usize {
        self.output.len()
    }

    /// Frames received, frames sent, bytes received, bytes sent.
    pub fn counters(&self) -> (u64, u64, u64, u64) {
        (self.frames_in, self.frames_out, self.bytes_in, self.bytes_out)
    }

    // ---- inside

    fn overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|d| now >= d)
    }

    /// The error for a peer that is no member speaking the plain protocol.
    fn stranger(&self) -> DialError {
        let bytes = self.input.bytes();
        match tls(bytes) {
            Some(what) => DialError::Encrypts(what),
            None => DialError::NotLockstep(recognise(bytes)),
        }
    }

    /// Length of the whole message at the front of the input, as far as it is known and credible; else 0.
    fn wanted(&self) -> usize {
        match self.stage {
            Stage::AwaitHello => Hello::total_len(self.input.bytes()).ok().flatten().unwrap_or(0),
            Stage::AwaitVerdict | Stage::Open => match Header::decode(self.input.bytes()) {
                Ok(head) if head.len as usize <= self.frame_max(&head) => HEADER + head.len as usize,
                _ => 0,
            },
            _ => 0,
        }
    }

    fn frame_max(&self, head: &Header) -> usize {
        if head.control || self.stage != Stage::Open { CONTROL_MAX } else { self.cfg.max_frame }
    }

    /// Decodes whatever can be decoded.
    fn pump(&mut self, now: Instant) {
        loop {
            let progress = match self.stage {
                Stage::AwaitHello => self.pump_hello(now),
                Stage::AwaitVerdict | Stage::Open => match self.pump_frame(now) {
                    Ok(progress) => progress,
                    Err(e) => {
                        self.down(DownReason::Proto(e));
                        false
                    }
                },
                Stage::AwaitDecision | Stage::Dead => false,
                Stage::Closing => {
                    let n = self.input.bytes().len();
                    drop(self.input.take(n));
                    false
                }
            };
            if !progress {
                break;
            }
        }
        // The end counts when everything before it has been decoded, which needs the caller's decision.
        if let Some(end) = self.end.take_if(|_| self.stage != Stage::AwaitDecision) {
            match self.stage {
                Stage::AwaitHello => {
                    let error = if self.input.bytes().is_empty() {
                        DialError::ClosedEarly(match end {
                            DownReason::Io(text) => text,
                            _ => "end of stream".into(),
                        })
                    } else {
                        self.stranger()
                    };
                    self.fail(error);
                }
                Stage::Closing => self.die(),
                Stage::Dead => {}
                _ => self.down(end),
            }
        }
    }

    fn pump_hello(&mut self, now: Instant) -> bool {
        let bytes = self.input.bytes();
        let n = bytes.len().min(MAGIC.len());
        if bytes[..n] != MAGIC[..n] {
            self.fail(self.stranger());
            return false;
        }
        match Hello::total_len(bytes) {
            Err(e) => {
                self.fail(DialError::Handshake(e));
                false
            }
            Ok(Some(total)) if bytes.len() >= total => {
                let whole = self.input.take(total);
                match Hello::decode(&whole) {
                    Ok(hello) => self.introduce(hello, now),
                    Err(e) => self.fail(DialError::Handshake(e)),
                }
                true
            }
            Ok(_) => false,
        }
    }

    fn introduce(&mut self, theirs: Hello, now: Instant) {
        if self.role == Role::Dialed {
            // From here on the other side is a Lockstep member and may know who we are.
            self.output.push(&self.hello);
        }
        let (lowest, highest) = self.cfg.versions;
        if theirs.cluster != self.cfg.cluster {
            let ours = self.cfg.cluster.clone();
            let text = format!("this member belongs to cluster '{ours}'");
            self.refuse(
                Reason::WrongCluster,
                &text,
                DialError::WrongCluster { ours, theirs: printable(&theirs.cluster) },
                now,
            );
        } else if let Some(version) = theirs.agree(lowest, highest).filter(|&v| v != 0) {
            self.version = version;
            self.peer_max_frame = theirs.max_frame as usize;
            self.stage = Stage::AwaitDecision;
            self.deadline = None;
            self.events.push_back(ConnEvent::Hello { version, blob: theirs.blob });
        } else {
            let text = format!("this member speaks protocol versions {lowest} to {highest}");
            let theirs = (theirs.lowest, theirs.highest);
            self.refuse(Reason::Version, &text, DialError::Version { ours: self.cfg.versions, theirs }, now);
        }
    }

    /// Refuses a peer that the caller never hears of.
    fn refuse(&mut self, reason: Reason, text: &str, error: DialError, now: Instant) {
        self.control(op::REJECT, &frame::encode_reason(reason.code(), text));
        self.events.push_back(ConnEvent::Failed(error));
        self.start_closing(now);
    }

    fn pump_frame(&mut self, now: Instant) -> Result<bool, ProtoError> {
        if self.input.bytes().len() < HEADER {
            return Ok(false);
        }
        let head = Header::decode(self.input.bytes())?;
        let (len, max) = (head.len as usize, self.frame_max(&head));
        if len > max {
            return Err(ProtoError::TooLong { len: len as u64, max: max as u64 });
        }
        if self.input.bytes().len() < HEADER + len {
            return Ok(false);
        }
        head.verify(&self.input.bytes()[HEADER..HEADER + len])?;
        let mut payload = self.input.take(HEADER + len);
        let payload = payload.split_off(HEADER);
        self.frames_in += 1;
        if head.control {
            self.on_control(head.kind, &payload, now)?;
        } else if self.stage == Stage::Open {
            self.events.push_back(ConnEvent::Frame { kind: head.kind, payload });
        } else {
            // Before its verdict a peer has nothing to say.
            return Err(ProtoError::BadControl(head.kind));
        }
        Ok(true)
    }

    fn on_control(&mut self, opcode: u8, payload: &[u8], now: Instant) -> Result<(), ProtoError> {
        let bad = ProtoError::BadControl(opcode);
        match (opcode, self.stage) {
            (op::ACCEPT, Stage::AwaitVerdict) => {
                if payload.get(..2) != Some(&self.version.to_le_bytes()[..]) {
                    return Err(bad);
                }
                self.stage = Stage::Open;
                self.deadline = None;
                self.events.push_back(ConnEvent::Ready);
                self.send_ping(now);
            }
            (op::REJECT, Stage::AwaitVerdict) | (op::GOODBYE, Stage::AwaitVerdict | Stage::Open) => {
                let (code, text) = frame::decode_reason(payload).ok_or(bad)?;
                let reason = Reason::from_code(code);
                self.down(if opcode == op::REJECT {
                    DownReason::Rejected(reason, text)
                } else {
                    DownReason::Goodbye(reason, text)
                });
            }
            // A peer that asks without reading the answers is cut off like one that does not read frames.
            (op::PING, Stage::Open) if self.output.len() > self.cfg.send_queue_max => {
                self.down(DownReason::Overflow)
            }
            (op::PING, Stage::Open) if payload.len() == 8 => self.control(op::PONG, payload),
            (op::PONG, Stage::Open) => {
                let number = payload.try_into().map(u64::from_le_bytes).map_err(|_| bad)?;
                // An answer to an older ping, sent before a long stall, says nothing about the present.
                let Some((_, sent)) = self.ping.take_if(|(n, _)| *n == number) else { return Ok(()) };
                if number == FIRST_PING {
                    // Begun before both sides were seen to run: it may contain the rest of a member's start. The next
                    // one is measured at once instead.
                    self.send_ping(now);
                } else {
                    let sample = now.saturating_duration_since(sent);
                    self.rtt = Some(self.rtt.map_or(sample, |old| (old * 7 + sample) / 8));
                    self.rtts.truncate(RTTS - 1);
                    self.rtts.push_front(sample);
                }
            }
            _ => return Err(bad),
        }
        Ok(())
    }

    fn send_ping(&mut self, now: Instant) {
        self.next_ping = now + self.cfg.ping_interval;
        // One ping at a time: they must not pile up for a peer that does not read.
        if self.ping.is_some_and(|(_, sent)| now < sent + self.cfg.idle_timeout) {
            return;
        }
        self.ping_number += 1;
        self.ping = Some((self.ping_number, now));
        self.control(op::PING, &self.ping_number.to_le_bytes());
    }

    fn control(&mut self, opcode: u8, payload: &[u8]) {
        debug_assert!(payload.len() <= CONTROL_MAX);
        let header = Header::encode(opcode, true, payload.len() as u32, std::iter::once(payload));
        self.output.push_slice(&header);
        self.output.push_slice(payload);
    }

    fn finish_input(&mut self, how: DownReason, now: Instant) {
        if self.end.is_none() {
            self.end = Some(how);
        }
        self.pump(now);
    }

    fn start_closing(&mut self, now: Instant) {
        self.stage = Stage::Closing;
        self.deadline = Some(now + self.cfg.linger);
        if self.end.is_some() {
            self.die();
        }
    }

    fn fail(&mut self, error: DialError) {
        self.events.push_back(ConnEvent::Failed(error));
        self.die();
    }

    fn down(&mut self, reason: DownReason) {
        self.events.push_back(ConnEvent::Down(reason));
        self.die();
    }

    fn die(&mut self) {
        self.stage = Stage::Dead;
        self.deadline = None;
        self.output.clear();
    }
}

/// A peer's text, made safe for a log line.
fn printable(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

const _: () = assert!(BODY_MAX < UNDECIDED_MAX && CONTROL_MAX < UNDECIDED_MAX);
