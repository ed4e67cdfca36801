//! One side of a copy from another member: the real sender or receiver, on a thread that runs only while the world waits for it.
//!
//! The thread stops before each operation of the device's disk, and where it waits for its peer. So the world decides what
//! happens in between, and nothing depends on anything but the seed.

use lockstep_block::copy::CopyError;
use lockstep_core::Gtid;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The world's message to a side that goes on.
#[derive(Debug)]
enum Resume {
    /// These bytes have arrived meanwhile.
    Go(Vec<u8>),
    /// And nothing more will.
    Closed(Vec<u8>),
    /// Its process has ended.
    Killed,
}

/// Why a side has stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// Before an operation of the disk.
    Disk,
    /// It waits for bytes.
    Read,
    /// It has ended, with the position of the copy.
    Ended(Result<Gtid, CopyError>),
}

/// A side, as the world sees it.
#[derive(Debug)]
pub(super) struct Side {
    resume: Option<SyncSender<Resume>>,
    stopped: Receiver<(Vec<u8>, Stop)>,
    thread: Option<JoinHandle<()>>,
    /// Bytes that have arrived.
    pub(super) arrived: Vec<u8>,
    /// The connection has ended for this side.
    pub(super) closed: bool,
    /// It waits for bytes.
    waits: bool,
    /// It has ended.
    pub(super) ended: bool,
}

impl Side {
    /// Begins this work, which stops at once.
    pub(super) fn start(
        work: impl FnOnce(&mut Stream) -> Result<Gtid, CopyError> + Send + 'static,
    ) -> io::Result<Side> {
        let (resume, resumed) = sync_channel(0);
        let (stops, stopped) = sync_channel(0);
        let run = move || {
            let pipe = Rc::new(RefCell::new(Pipe {
                resumed,
                stops,
                arrived: VecDeque::new(),
                sent: Vec::new(),
                end: None,
            }));
            HOOK.set(Some(pipe.clone()));
            let mut stream = Stream(pipe.clone());
            // Nothing happens before the world lets it go on.
            let ended = match stop(&pipe, Stop::Disk) {
                Ok(()) => work(&mut stream),
                Err(error) => Err(CopyError::Stream(error)),
            };
            HOOK.set(None);
            let pipe = pipe.borrow();
            // A killed process reports nothing.
            let _ = pipe.stops.send((pipe.sent.clone(), Stop::Ended(ended)));
        };
        let thread = std::thread::Builder::new().name("copy".into()).spawn(run)?;
        let mut side = Side {
            resume: Some(resume),
            stopped,
            thread: Some(thread),
            arrived: Vec::new(),
            closed: false,
            waits: false,
            ended: false,
        };
        let _ = side.until_stopped();
        Ok(side)
    }

    /// Whether it would do something if it went on.
    pub(super) fn is_ready(&self) -> bool {
        !self.ended && (!self.waits || !self.arrived.is_empty() || self.closed)
    }

    /// Lets it go on to the next stop. Returns the bytes that it sends, and why it stops. `None`: it has panicked.
    pub(super) fn step(&mut self) -> Option<(Vec<u8>, Stop)> {
        let arrived = std::mem::take(&mut self.arrived);
        let resume = if self.closed { Resume::Closed(arrived) } else { Resume::Go(arrived) };
        self.resume.as_ref()?.send(resume).ok()?;
        self.until_stopped()
    }

    fn until_stopped(&mut self) -> Option<(Vec<u8>, Stop)> {
        let stopped = self.stopped.recv().ok()?;
        self.waits = matches!(stopped.1, Stop::Read);
        self.ended = matches!(stopped.1, Stop::Ended(_));
        Some(stopped)
    }
}

impl Drop for Side {
    /// The process ends: no operation of the disk begins any more.
    fn drop(&mut self) {
        if !self.ended
            && let Some(resume) = &self.resume
        {
            let _ = resume.send(Resume::Killed);
            // Its last words count for nothing.
            let _ = self.stopped.recv();
        }
        self.resume = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Why a stream has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending {
    Closed,
    Killed,
}

/// The ends of the channels on the side's own thread.
#[derive(Debug)]
struct Pipe {
    resumed: Receiver<Resume>,
    stops: SyncSender<(Vec<u8>, Stop)>,
    arrived: VecDeque<u8>,
    sent: Vec<u8>,
    end: Option<Ending>,
}

thread_local! {
    /// The pipe of a side's thread.
    static HOOK: RefCell<Option<Rc<RefCell<Pipe>>>> = const { RefCell::new(None) };
}

fn killed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the process has ended")
}

/// Stops until the world lets this side go on.
fn stop(pipe: &RefCell<Pipe>, why: Stop) -> io::Result<()> {
    let mut pipe = pipe.borrow_mut();
    if pipe.end == Some(Ending::Killed) {
        return Err(killed());
    }
    let sent = std::mem::take(&mut pipe.sent);
    let resumed = match pipe.stops.send((sent, why)) {
        Ok(()) => pipe.resumed.recv().unwrap_or(Resume::Killed),
        Err(_) => Resume::Killed,
    };
    match resumed {
        Resume::Go(bytes) => pipe.arrived.extend(bytes),
        Resume::Closed(bytes) => {
            pipe.arrived.extend(bytes);
            pipe.end = Some(Ending::Closed);
        }
        Resume::Killed => {
            pipe.end = Some(Ending::Killed);
            return Err(killed());
        }
    }
    Ok(())
}

/// Called before each operation of a disk. On the thread of a side it stops there.
///
/// # Errors
/// The side's process has ended: the operation must not take place.
pub(super) fn before_disk() -> io::Result<()> {
    let pipe = HOOK.with_borrow(Clone::clone);
    pipe.map_or(Ok(()), |pipe| stop(&pipe, Stop::Disk))
}

/// The connection of a side.
#[derive(Debug)]
pub(super) struct Stream(Rc<RefCell<Pipe>>);

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut pipe = self.0.borrow_mut();
                if !pipe.arrived.is_empty() || pipe.end == Some(Ending::Closed) {
                    return pipe.arrived.read(into);
                }
            }
            stop(&self.0, Stop::Read)?;
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let mut pipe = self.0.borrow_mut();
        match pipe.end {
            Some(Ending::Killed) => Err(killed()),
            Some(Ending::Closed) => Err(io::ErrorKind::BrokenPipe.into()),
            None => {
                pipe.sent.extend(from);
                Ok(from.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A side that reads two bytes, with an operation of the disk after each, and counts the operations.
    fn side() -> (Side, Arc<AtomicUsize>) {
        let done = Arc::new(AtomicUsize::new(0));
        let count = done.clone();
        let side = Side::start(move |stream| {
            for _ in 0..2 {
                let mut byte = [0];
                stream.read_exact(&mut byte).map_err(CopyError::Stream)?;
                stream.write_all(&[byte[0] + 1]).map_err(CopyError::Stream)?;
                before_disk().map_err(CopyError::Device)?;
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok(Gtid::UNDEFINED)
        });
        (side.unwrap(), done)
    }

    #[test]
    fn side_stops_at_reads_and_before_operations() {
        let (mut side, done) = side();
        assert!(matches!(side.step(), Some((sent, Stop::Read)) if sent.is_empty()));
        assert!(!side.is_ready());
        side.arrived = vec![5, 7];
        assert!(side.is_ready());
        assert!(matches!(side.step(), Some((sent, Stop::Disk)) if sent == [6]));
        assert_eq!(done.load(Ordering::SeqCst), 0, "the operation has not begun");
        assert!(matches!(side.step(), Some((sent, Stop::Disk)) if sent == [8]));
        assert!(matches!(side.step(), Some((_, Stop::Ended(Ok(_))))));
        assert_eq!(done.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn killed_side_begins_no_operation() {
        let (mut side, done) = side();
        side.arrived = vec![5];
        assert!(matches!(side.step(), Some((_, Stop::Disk))));
        drop(side);
        assert_eq!(done.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn closed_stream_ends_a_side_after_its_last_bytes() {
        let (mut side, done) = side();
        (side.arrived, side.closed) = (vec![5], true);
        assert!(matches!(side.step(), Some((_, Stop::Ended(Err(CopyError::Stream(_)))))));
        assert!(side.ended && done.load(Ordering::SeqCst) == 0);
    }
}
