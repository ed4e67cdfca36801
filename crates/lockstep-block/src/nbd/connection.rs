//! The transmission phase of one connection, over any stream of bytes.
//!
//! One task does everything for a connection: it receives requests, polls those that are in flight, and sends replies. A
//! request that the export answers at once costs no task, no channel and no wake-up. Replies that are ready together leave
//! in one vectored write.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::io::poll_read_buf;
use tokio_util::sync::{CancellationToken, PollSemaphore};

use super::reply::{Freed, Output, Reply};
use super::request::{Command, Decoder, Next, Request};
use super::status::Counters;
use crate::export::{Attachment, IoError};

/// How long a client may take to close its side, at the end of a connection.
const LINGER: Duration = Duration::from_secs(2);
/// A client makes no progress if it has made none in so many ticks.
const TICKS: u32 = 4;

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests that have begun, until their replies are sent.
    pub(crate) requests: usize,
    /// Bytes of such requests. One request may exceed it, if it is the only one.
    pub(crate) bytes: u64,
    /// How long a client may make no progress in the middle of a request or of a reply.
    pub(crate) stall: Duration,
}

/// Why the transmission phase ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The client has sent `NBD_CMD_DISC`, and everything is answered.
    Left,
    /// The server is being stopped, and everything that had begun is answered.
    Stopped,
    /// The connection is lost or of no use, with the reason.
    Lost(String),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Lost(error.to_string())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Open,
    /// No more requests are received, because the client leaves.
    Leaving,
    /// No more requests are received, because the server stops.
    Stopping,
}

/// The result of something that the connection waits for.
enum Event {
    Answered { cookie: u64, reply: Reply, bytes: u64 },
    Stop,
    Tick,
}

type Waiting = Pin<Box<dyn Future<Output = Event> + Send>>;

/// The memory of all connections' requests, and the part of this one. The part goes back when this is dropped.
struct Memory {
    total: Arc<Semaphore>,
    waiting: PollSemaphore,
    held: u64,
}

impl Memory {
    fn new(total: Arc<Semaphore>) -> Memory {
        Memory { waiting: PollSemaphore::new(total.clone()), total, held: 0 }
    }

    fn poll_take(&mut self, bytes: u32, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(permit) = ready!(self.waiting.poll_acquire_many(cx, bytes)) {
            permit.forget();
            self.held += u64::from(bytes);
        }
        Poll::Ready(())
    }

    fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.held);
        self.held -= bytes;
        self.total.add_permits(bytes as usize);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.give_back(self.held);
    }
}

/// A connection in its transmission phase.
pub(crate) struct Transmission<S, A> {
    stream: S,
    attachment: Arc<A>,
    limits: Limits,
    counters: Arc<Counters>,
    decoder: Decoder,
    output: Output,
    /// The stream may hold bytes that it has not sent, as TLS does.
    unflushed: bool,
    phase: Phase,
    /// Requests that are executed, and two more entries: the order to stop and the next tick. Here they are polled only when
    /// they are ready.
    waiting: FuturesUnordered<Waiting>,
    executing: usize,
    /// Requests that have begun, until their replies are sent: `executing <= begun <= limits.requests`.
    begun: usize,
    memory: Memory,
    /// The next bytes must come from the client.
    starved: bool,
    moved: bool,
    idle_ticks: u32,
}

impl<S, A> Transmission<S, A>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Attachment,
{
    /// A connection that has `output` to send before its first reply. `total` has one permit for each byte that all
    /// connections' requests may take.
    pub(crate) fn new(
        stream: S,
        attachment: A,
        (decoder, output): (Decoder, Output),
        limits: Limits,
        total: Arc<Semaphore>,
        counters: Arc<Counters>,
    ) -> Self {
        Transmission {
            stream,
            attachment: Arc::new(attachment),
            limits,
            counters,
            decoder,
            output,
            unflushed: false,
            phase: Phase::Open,
            waiting: FuturesUnordered::new(),
            executing: 0,
            begun: 0,
            memory: Memory::new(total),
            starved: false,
            moved: false,
            idle_ticks: 0,
        }
    }

    /// Serves the client to its end, and closes the stream.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> End {
        let stopped = stop.cancelled_owned();
        self.waiting.push(Box::pin(async move {
            stopped.await;
            Event::Stop
        }));
        self.push_tick();
        let end = poll_fn(|cx| self.poll(cx)).await;
        let Transmission { mut stream, attachment, waiting, memory, .. } = self;
        // Requests hold the attachment too.
        drop((waiting, memory));
        match end {
            End::Lost(_) => return end,
            End::Stopped => {}
            End::Left => {
                if let Some(attachment) = Arc::into_inner(attachment) {
                    attachment.detach().await;
                }
            }
        }
        // Bytes that nobody has read would make the system reset the connection, and the client could lose its last replies.
        let _ = timeout(LINGER, async {
            stream.shutdown().await?;
            let mut unread = BytesMut::with_capacity(4096);
            while stream.read_buf(&mut unread).await? > 0 {
                unread.clear();
            }
            io::Result::Ok(())
        })
        .await;
        end
    }

    fn push_tick(&mut self) {
        let pause = self.limits.stall / TICKS;
        self.waiting.push(Box::pin(async move {
            sleep(pause).await;
            Event::Tick
        }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            match self.advance(cx) {
                Err(end) => return Poll::Ready(end),
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
            }
        }
    }

    /// One round. Whether there may be more to do without waiting.
    fn advance(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut advanced = self.collect(cx)?;
        advanced |= self.send(cx)?;
        advanced |= self.receive(cx)?;
        let answered = self.executing == 0 && self.output.is_empty() && !self.unflushed;
        match self.phase {
            Phase::Leaving if answered => Err(End::Left),
            Phase::Stopping if answered => Err(End::Stopped),
            _ => Ok(advanced),
        }
    }

    /// Takes what has become ready.
    fn collect(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut advanced = false;
        while let Poll::Ready(Some(event)) = self.waiting.poll_next_unpin(cx) {
            advanced = true;
            match event {
                Event::Answered { cookie, reply, bytes } => {
                    self.executing -= 1;
                    self.answer(cookie, reply, bytes);
                }
                Event::Stop => {
                    if self.phase == Phase::Open {
                        self.phase = Phase::Stopping;
                    }
                }
                Event::Tick => {
                    self.check_progress()?;
                    self.push_tick();
                }
            }
        }
        Ok(advanced)
    }

    fn check_progress(&mut self) -> Result<(), End> {
        let client_is_late =
            (self.starved && self.decoder.is_inside_request()) || !self.output.is_empty() || self.unflushed;
        if std::mem::take(&mut self.moved) || !client_is_late {
            self.idle_ticks = 0;
            return Ok(());
        }
        self.idle_ticks += 1;
        if self.idle_ticks < TICKS {
            return Ok(());
        }
        let waits_for =
            if self.output.is_empty() { "sends no more of its request" } else { "takes no replies" };
        Err(End::Lost(format!("the client {waits_for} for {} s", self.limits.stall.as_secs())))
    }

    fn answer(&mut self, cookie: u64, reply: Reply, bytes: u64) {
        self.output.push(cookie, reply, bytes);
    }

    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut advanced = false;
        while !self.output.is_empty() {
            let slices = self.output.slices();
            let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write_vectored(cx, &slices) else {
                return Ok(advanced);
            };
            drop(slices);
            let written = written?;
            if written == 0 {
                return Err(End::Lost("the connection takes no more bytes".into()));
            }
            advanced = true;
            self.moved = true;
            self.unflushed = true;
            let Freed { requests, bytes } = self.output.sent(written);
            self.begun -= requests;
            self.memory.give_back(bytes);
        }
        if self.unflushed
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(cx)
        {
            flushed?;
            self.unflushed = false;
            advanced = true;
        }
        Ok(advanced)
    }

    /// Receives once, and begins the requests that are complete.
    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let (mut advanced, mut received) = (false, false);
        while self.phase == Phase::Open && self.begun < self.limits.requests {
            match self.decoder.next().map_err(|violation| End::Lost(violation.to_string()))? {
                Next::Request(request, bytes) => {
                    self.begin(request, bytes, cx);
                    advanced = true;
                }
                Next::Admit(bytes) => {
                    self.starved = false;
                    let alone = self.memory.held == 0;
                    if !alone && self.memory.held + u64::from(bytes) > self.limits.bytes {
                        return Ok(advanced);
                    }
                    if self.memory.poll_take(bytes, cx).is_pending() {
                        return Ok(advanced);
                    }
                    self.decoder.admit();
                }
                // Replies to the received requests leave first.
                Next::Receive if received => return Ok(true),
                Next::Receive => {
                    let (buffer, most) = self.decoder.target();
                    let read = poll_read_buf(Pin::new(&mut self.stream), cx, &mut buffer.limit(most));
                    let Poll::Ready(read) = read else {
                        self.starved = true;
                        return Ok(advanced);
                    };
                    if read? == 0 {
                        return Err(End::Lost(
                            "the client closed the connection without NBD_CMD_DISC".into(),
                        ));
                    }
                    received = true;
                    advanced = true;
                    self.moved = true;
                }
            }
        }
        if self.phase == Phase::Open {
            self.starved = false;
        }
        Ok(advanced)
    }

    fn begin(&mut self, request: Request, bytes: u32, cx: &mut Context<'_>) {
        let Request { cookie, command } = request;
        let bytes = u64::from(bytes);
        self.counters.count(&command);
        let immediate = match &command {
            Command::Disconnect => {
                self.phase = Phase::Leaving;
                return;
            }
            Command::Refused(refused) => {
                Some(Reply::Failed { errno: refused.errno, text: refused.text.to_owned() })
            }
            // The export has no cache to fill.
            Command::Cache => Some(Reply::Done),
            _ => None,
        };
        self.begun += 1;
        if let Some(reply) = immediate {
            return self.answer(cookie, reply, bytes);
        }
        let (attachment, counters) = (self.attachment.clone(), self.counters.clone());
        let mut request: Waiting = Box::pin(async move {
            let reply = execute(&*attachment, command).await.unwrap_or_else(|error| counters.failed(&error));
            Event::Answered { cookie, reply, bytes }
        });
        match request.as_mut().poll(cx) {
            Poll::Ready(Event::Answered { cookie, reply, bytes }) => self.answer(cookie, reply, bytes),
            Poll::Ready(_) => {}
            Poll::Pending => {
                self.executing += 1;
                self.waiting.push(request);
            }
        }
    }
}

async fn execute<A: Attachment>(attachment: &A, command: Command) -> Result<Reply, IoError> {
    match command {
        Command::Read { offset, length } => {
            let data = attachment.read(offset, length).await?;
            if data.len() != length as usize {
                return Err(IoError::Io("the device returned a read of another length".into()));
            }
            return Ok(Reply::Data { offset, data });
        }
        Command::BlockStatus { offset, length, one } => {
            let extents = attachment.block_status(offset, length).await?;
            return Ok(Reply::Extents { extents, length, one });
        }
        Command::Write { offset, data, fua } => attachment.write(offset, data, fua).await?,
        Command::Flush => attachment.flush().await?,
        Command::Trim { offset, length, fua } => attachment.trim(offset, length, fua).await?,
        Command::WriteZeroes { offset, length, may_trim, fua } => {
            attachment.write_zeroes(offset, length, may_trim, fua).await?;
        }
        Command::Cache | Command::Disconnect | Command::Refused(_) => {}
    }
    Ok(Reply::Done)
}
