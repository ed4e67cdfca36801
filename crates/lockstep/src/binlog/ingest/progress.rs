//! The state that two threads share: one takes deliveries, the other one reads the primary.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lockstep_binlog::event::Group;
use lockstep_binlog::ingest::{CopyEnd, Origin, Place};
use lockstep_binlog::wire::source::Acknowledger;
use lockstep_binlog::{Gtid, StreamState};
use lockstep_node::core::Seqno;

/// The most acknowledgements that may wait. A primary asks for far fewer.
const ACKS_MAX: usize = 1 << 20;

/// Where reading the primary begins.
#[derive(Clone, Debug)]
pub(super) enum Begin {
    /// With the primary's oldest file: there is no copy yet.
    Oldest,
    /// Nobody knows here: the group may have a copy, and this member has neither files nor the log's begin.
    Unknown,
    /// Where the copy ends.
    Copy(Box<CopyNow>),
}

/// What a reader of the primary needs to know of the copy.
#[derive(Clone, Debug)]
pub(super) struct CopyNow {
    /// Which primary of the group the copy's last file is of.
    pub(super) generation: u32,
    /// Which server that is.
    pub(super) origin: Origin,
    /// Whether the copy began later than the group's.
    pub(super) is_partial: bool,
    /// The server id of that primary.
    pub(super) server_id: u32,
    /// The copy's end.
    pub(super) end: Place,
    /// The last event, which that primary must have as well, and where it begins.
    pub(super) last: (Place, Bytes),
    /// The event group behind it.
    pub(super) group: Group,
    /// See [`Chunk::unlogged`](lockstep_binlog::ingest::Chunk::unlogged).
    pub(super) unlogged: Vec<Gtid>,
    /// All transactions of the copy.
    pub(super) transactions: StreamState,
}

/// Places in the primary's binlog.
pub(super) struct Places {
    /// The end of the bytes that have arrived.
    pub(super) received: Option<Place>,
    /// The copy's end.
    pub(super) copied: Option<Place>,
    /// The last place that was acknowledged.
    pub(super) acknowledged: Option<Place>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    begin: Option<Begin>,
    /// The reader of the primary waits for `begin`.
    wants_begin: bool,
    /// The copy's end.
    end: CopyEnd,
    /// The last entry of the log that was taken.
    done: Seqno,
    /// The number of the present connection to the primary.
    connection: u64,
    /// Chunks of it that have come back from the log, and how many of these were gaps.
    seen: u64,
    gaps: u64,
    /// Why this member must end, for people.
    failed: Option<String>,
    /// Places that the primary waits for, ascending, which server and primary of the group it is, and the connection for
    /// the answers.
    acks: VecDeque<Place>,
    reads: (u32, Origin),
    acknowledger: Option<Acknowledger>,
    acknowledged: Option<Place>,
    /// The end of the bytes that have arrived from the primary.
    received: Option<Place>,
    stopped: bool,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy has this end after this entry. Returns whether [`Progress::give_begin`] is wanted.
    pub(super) fn took(&self, seqno: Seqno, end: &CopyEnd) -> bool {
        let mut state = self.lock();
        state.done = state.done.max(seqno);
        if state.end != *end {
            state.end = end.clone();
            Self::acknowledge(&mut state);
        }
        let wants = state.wants_begin;
        drop(state);
        self.changed.notify_all();
        wants
    }

    /// Where reading begins at this moment.
    pub(super) fn give_begin(&self, begin: Begin) {
        let mut state = self.lock();
        state.begin = Some(begin);
        state.wants_begin = false;
        drop(state);
        self.changed.notify_all();
    }

    /// A chunk that this member has submitted during this connection has come back from the log.
    pub(super) fn saw_own(&self, connection: u64, is_gap: bool) {
        let mut state = self.lock();
        if state.connection == connection {
            state.seen += 1;
            state.gaps += u64::from(is_gap);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// This member must end.
    pub(super) fn fail(&self, text: String) {
        self.lock().failed = Some(text);
    }

    /// Why this member must end, if it must.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failed.clone()
    }

    /// Answers the primary for all that is in the copy now.
    fn acknowledge(state: &mut State) {
        // The places of another server say nothing about this one.
        let is_this = (state.end.generation(), state.end.origin()) == state.reads;
        let Some(end) = state.end.place().filter(|_| is_this) else { return };
        let has = |place: &Place| (place.file.number(), place.offset) <= (end.file.number(), end.offset);
        let mut last = None;
        while state.acks.front().is_some_and(has) {
            last = state.acks.pop_front();
        }
        let Some(place) = last else { return };
        if let Some(acknowledger) = &mut state.acknowledger {
            let sent = acknowledger.acknowledge(&place.file.to_string(), place.offset);
            if sent.is_err() {
                acknowledger.close();
            } else {
                state.acknowledged = Some(place);
            }
        }
    }

    /// The primary waits for an acknowledgement of everything up to this place.
    pub(super) fn expects_ack(&self, place: Place) {
        let mut state = self.lock();
        if state.acks.len() < ACKS_MAX {
            state.acks.push_back(place);
        }
        Self::acknowledge(&mut state);
    }

    /// Reading begins: acknowledgements leave by this connection, to this primary of the group. Returns its number.
    pub(super) fn connected(&self, acknowledger: Acknowledger, reads: (u32, Origin)) -> u64 {
        let mut state = self.lock();
        state.acks.clear();
        state.reads = reads;
        state.acknowledger = Some(acknowledger);
        state.connection += 1;
        (state.seen, state.gaps) = (0, 0);
        state.connection
    }

    /// Reading has ended.
    pub(super) fn disconnected(&self) {
        let mut state = self.lock();
        state.acks.clear();
        state.acknowledger = None;
    }

    /// Chunks of the present connection that have come back, and how many of them were gaps.
    pub(super) fn seen(&self) -> (u64, u64) {
        let state = self.lock();
        (state.seen, state.gaps)
    }

    /// Waits for a change, at most this long.
    pub(super) fn wait(&self, timeout: Duration) {
        let state = self.lock();
        let _ = self.changed.wait_timeout(state, timeout);
    }

    /// Waits until the entry `seqno` was taken. Whether it was, within this time.
    pub(super) fn wait_done(&self, seqno: Seqno, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.done >= seqno || state.stopped || left.is_zero() {
                return state.done >= seqno;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Everything up to this place has arrived from the primary.
    pub(super) fn received(&self, place: &Place) {
        self.lock().received = Some(place.clone());
    }

    /// How far this member is, for status.
    pub(super) fn places(&self) -> Places {
        let state = self.lock();
        Places {
            received: state.received.clone(),
            copied: state.end.place().cloned(),
            acknowledged: state.acknowledged.clone(),
        }
    }

    /// Asks the thread that takes deliveries where reading begins. `None` without an answer in time.
    pub(super) fn begin(&self, timeout: Duration) -> Option<Begin> {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        (state.begin, state.wants_begin) = (None, true);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.begin.is_some() || state.stopped || left.is_zero() {
                return state.begin.take();
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The program ends.
    pub(super) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        if let Some(acknowledger) = &state.acknowledger {
            acknowledger.close();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits this long, or until the program ends.
    pub(super) fn pause(&self, time: Duration) {
        let state = self.lock();
        let _ = self.changed.wait_timeout_while(state, time, |state| !state.stopped);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_binlog::ingest::FileName;

    #[test]
    fn pause_lasts_over_changes_and_ends_with_the_program() {
        let progress = Progress::default();
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| progress.saw_own(0, false));
            progress.pause(Duration::from_millis(200));
        });
        assert!(began.elapsed() >= Duration::from_millis(200));
        progress.stop();
        progress.pause(Duration::from_secs(3600));
    }

    #[test]
    fn copy_of_another_server_acknowledges_nothing() {
        let place = |number, offset| Place { file: FileName::new("bin", number).unwrap(), offset };
        let waiting = |generation: u32, origin: u64| {
            let progress = Progress::default();
            progress.lock().reads = (1, Origin::new(7));
            progress.expects_ack(place(5, 300));
            let end = CopyEnd::new(generation, Origin::new(origin), place(9, 200));
            progress.took(3, &end);
            progress.lock().acks.len()
        };
        assert_eq!(waiting(1, 7), 0);
        assert_eq!(waiting(1, 8), 1, "another server in the same generation");
        assert_eq!(waiting(0, 7), 1, "the primary before");
    }
}
