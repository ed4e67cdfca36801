//! The promises of a disk to its clients.
//!
//! Every request has the times at which it was sent and answered; all times differ. A write may take effect at any time between
//! the two, and one without an answer until its request was given up. For each epoch:
//!
//! - a read returns a write that no other write has replaced before the read began;
//! - when the epoch ends, each cell holds, if the policy is strong, the last write that a flush covers, or a later one;
//! - under every policy: where a write is missing that a flush covers, nothing is there that was sent after the flush's answer;
//! - no flush is answered well after one has failed;
//! - nothing is answered well once the client of a later epoch had an answer.

use super::cells::{CELL, CELLS_MAX, Value, value_of};
use crate::history::{Check, Violation, hold};
use std::collections::{BTreeMap, BTreeSet};

/// A time of the model.
type Tick = u64;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// Also of zeroes: the value 0.
    Write {
        first: usize,
        count: usize,
        value: Value,
        fua: bool,
    },
    Read {
        first: usize,
        count: usize,
    },
    Flush,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Open {
    epoch: u64,
    request: Request,
    invoked: Tick,
    /// The policy promised all that an answer says, when the request was sent.
    strong: bool,
}

/// A write to one cell.
#[derive(Clone, Copy, Debug)]
struct Written {
    value: Value,
    op: u64,
    invoked: Tick,
    answered: Option<Tick>,
    /// It takes no effect later.
    over: Option<Tick>,
    /// An answer says that it is durable.
    durable: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flush {
    invoked: Tick,
    answered: Tick,
    strong: bool,
}

#[derive(Clone, Debug, Default)]
struct Epoch {
    /// The first write of each is what the epoch began with.
    cells: Vec<Vec<Written>>,
    flushes: Vec<Flush>,
    /// When the first flush failed.
    failed: Option<Tick>,
    /// When a client began to leave in order.
    leaves: Option<Tick>,
    /// The value of each cell at the end.
    end: Option<Vec<Value>>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Model {
    tick: Tick,
    ops: u64,
    open: BTreeMap<u64, Open>,
    epochs: BTreeMap<u64, Epoch>,
    /// The last epoch whose client had an answer.
    answered: u64,
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) flushes: u64,
    /// Epochs that were checked at their end.
    pub(super) ended: u64,
    /// Epochs that have lost writes of a flush, under weak policies.
    pub(super) lost: BTreeSet<u64>,
}

/// The values of an image.
fn values_of(image: &[u8]) -> Result<Vec<Value>, Violation> {
    let cells = image.chunks(CELL).enumerate();
    let values = cells.map(|(cell, bytes)| value_of(bytes, cell)).collect::<Result<Vec<_>, _>>();
    values.map_err(|what| Violation { rule: "a cell holds a write of its own", what })
}

impl Model {
    fn tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// An epoch begins with this image.
    pub(super) fn begins(&mut self, epoch: u64, image: &[u8]) -> Check {
        if self.epochs.contains_key(&epoch) {
            return Ok(());
        }
        let at = self.tick();
        let first = |value: Value| Written {
            value,
            op: 0,
            invoked: at,
            answered: Some(at),
            over: Some(at),
            durable: true,
        };
        let cells = values_of(image)?.into_iter().map(|value| vec![first(value)]).collect();
        self.epochs.insert(epoch, Epoch { cells, ..Epoch::default() });
        while self.epochs.len() > 6 {
            self.epochs.pop_first();
        }
        Ok(())
    }

    /// An epoch ends with this image.
    pub(super) fn ends(&mut self, epoch: u64, image: &[u8], in_order: bool) -> Check {
        let Some(state) = self.epochs.get_mut(&epoch).filter(|state| state.end.is_none()) else {
            return Ok(());
        };
        state.end = Some(values_of(image)?);
        if let (true, Some(leaves)) = (in_order, state.leaves) {
            state.flushes.push(Flush { invoked: leaves, answered: leaves, strong: true });
        }
        self.ended += 1;
        if state.check_end(epoch)? {
            self.lost.insert(epoch);
        }
        Ok(())
    }

    /// A client of this epoch begins to leave in order.
    pub(super) fn leaves(&mut self, epoch: u64) {
        let at = self.tick();
        if let Some(state) = self.epochs.get_mut(&epoch) {
            state.leaves = Some(at);
        }
    }

    /// A request is sent. Returns its number.
    pub(super) fn sends(&mut self, epoch: u64, request: Request, strong: bool) -> u64 {
        let invoked = self.tick();
        self.ops += 1;
        let op = self.ops;
        self.open.insert(op, Open { epoch, request, invoked, strong });
        if let (Request::Write { first, count, value, .. }, Some(state)) =
            (request, self.epochs.get_mut(&epoch))
        {
            let written = Written { value, op, invoked, answered: None, over: None, durable: false };
            state.cells[first..first + count].iter_mut().for_each(|cell| cell.push(written));
        }
        op
    }

    /// A request is given up, or has failed. `failed`: the client has the error.
    pub(super) fn gives_up(&mut self, op: u64, failed: bool) {
        let at = self.tick();
        let Some(Open { epoch, request, .. }) = self.open.remove(&op) else { return };
        let Some(state) = self.epochs.get_mut(&epoch) else { return };
        match request {
            Request::Write { first, count, fua, .. } => {
                for written in state.cells[first..first + count].iter_mut().flatten() {
                    if written.op == op {
                        written.over = Some(at);
                    }
                }
                if fua && failed {
                    state.failed.get_or_insert(at);
                }
            }
            Request::Flush if failed => {
                state.failed.get_or_insert(at);
            }
            _ => {}
        }
    }

    /// A request was answered well. `data`: of a read. `strong`: the policy promises all that it answers.
    pub(super) fn answers(&mut self, op: u64, data: &[u8], strong: bool) -> Check {
        let at = self.tick();
        let Some(Open { epoch, request, invoked, strong: before }) = self.open.remove(&op) else {
            return Ok(());
        };
        let strong = strong && before;
        hold!(
            epoch >= self.answered,
            "a deposed primary answers nothing",
            "a request of epoch {epoch} was answered after one of epoch {}: {request:?}",
            self.answered
        );
        self.answered = epoch;
        let Some(state) = self.epochs.get_mut(&epoch) else { return Ok(()) };
        match request {
            Request::Write { first, count, fua, .. } => {
                self.writes += 1;
                for written in state.cells[first..first + count].iter_mut().flatten() {
                    if written.op == op {
                        (written.answered, written.over) = (Some(at), Some(at));
                        written.durable = fua && strong;
                    }
                }
                hold!(
                    !fua || state.failed.is_none(),
                    "no flush succeeds after one has failed",
                    "a write with FUA in epoch {epoch}"
                );
            }
            Request::Read { first, count } => {
                self.reads += 1;
                hold!(data.len() == count * CELL, "a read returns its length", "{} bytes", data.len());
                for (cell, bytes) in data.chunks(CELL).enumerate() {
                    let found = value_of(bytes, first + cell);
                    let value =
                        found.map_err(|what| Violation { rule: "a cell holds a write of its own", what })?;
                    state.check_read(epoch, first + cell, value, invoked)?;
                }
                return Ok(());
            }
            Request::Flush => {
                self.flushes += 1;
                hold!(
                    state.failed.is_none(),
                    "no flush succeeds after one has failed",
                    "a flush in epoch {epoch}"
                );
                state.flushes.push(Flush { invoked, answered: at, strong });
            }
        }
        if state.end.is_some() && state.check_end(epoch)? {
            self.lost.insert(epoch);
        }
        Ok(())
    }

    /// These cells were said to read as zeroes.
    pub(super) fn are_zero(&mut self, op: u64, first: usize, count: usize) -> Check {
        let Some(Open { epoch, invoked, .. }) = self.open.get(&op).copied() else { return Ok(()) };
        let Some(state) = self.epochs.get(&epoch) else { return Ok(()) };
        (first..(first + count).min(CELLS_MAX)).try_for_each(|cell| state.check_read(epoch, cell, 0, invoked))
    }
}

impl Epoch {
    fn check_read(&self, epoch: u64, cell: usize, value: Value, invoked: Tick) -> Check {
        let written = &self.cells[cell];
        // The last write that was answered before the read was sent replaces all that were over before it was sent itself.
        let before = written.iter().filter(|one| one.answered.is_some_and(|at| at < invoked));
        let floor = before.map(|one| one.invoked).max().unwrap_or(0);
        let may_be = |one: &Written| one.value == value && one.over.is_none_or(|over| over >= floor);
        hold!(
            written.iter().any(may_be),
            "a read returns the last write",
            "a read of cell {cell} in epoch {epoch} returns {value}: {:?}",
            &written[written.len().saturating_sub(4)..]
        );
        Ok(())
    }

    /// Checks what the epoch has left. Returns whether writes of a flush are lost.
    fn check_end(&self, epoch: u64) -> Result<bool, Violation> {
        let Some(end) = &self.end else { return Ok(false) };
        // The last strong flush covers what those before cover.
        let covered =
            self.flushes.iter().filter(|flush| flush.strong).map(|flush| flush.invoked).max().unwrap_or(0);
        // When the oldest write that a cell may hold was over at last, and the earliest that it may have been sent.
        let mut held = Vec::with_capacity(end.len());
        for (cell, (written, value)) in self.cells.iter().zip(end).enumerate() {
            let candidates = || written.iter().filter(|one| one.value == *value);
            hold!(
                candidates().next().is_some(),
                "a cell holds a write of its epoch, or what it held before",
                "cell {cell} holds {value} at the end of epoch {epoch}: {written:?}"
            );
            let over = candidates().map(|one| one.over.unwrap_or(Tick::MAX)).max().unwrap_or(0);
            let invoked = candidates().map(|one| one.invoked).min().unwrap_or(0);
            let is_durable = |one: &&Written| one.durable || one.answered.is_some_and(|at| at < covered);
            let floor = written.iter().filter(is_durable).map(|one| one.invoked).max().unwrap_or(0);
            hold!(
                over >= floor,
                "a flushed write survives",
                "cell {cell} holds {value} at the end of epoch {epoch}, which is older than what was flushed at {covered}: {written:?}"
            );
            held.push((over, invoked));
        }
        let mut lost = false;
        for flush in &self.flushes {
            let is_missing = |(written, (over, _)): &(&Vec<Written>, &(Tick, Tick))| {
                let covered = written.iter().filter(|one| one.answered.is_some_and(|at| at < flush.invoked));
                covered.map(|one| one.invoked).max().is_some_and(|floor| *over < floor)
            };
            let missing = self.cells.iter().zip(&held).position(|cell| is_missing(&cell));
            let Some(missing) = missing else { continue };
            lost = true;
            let newer = held.iter().position(|(_, invoked)| *invoked > flush.answered);
            hold!(
                newer.is_none(),
                "what is lost is a tail",
                "at the end of epoch {epoch}, cell {missing} lacks a flushed write, and cell {newer:?} has a write that was sent after \
                 the flush: {:?} {:?}",
                self.cells[missing],
                newer.map(|cell| &self.cells[cell])
            );
        }
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::content;
    use super::*;

    const EMPTY: [u8; CELLS_MAX * CELL] = [0; CELLS_MAX * CELL];

    fn model() -> Model {
        let mut model = Model::default();
        model.begins(1, &EMPTY).unwrap();
        model
    }

    fn write(model: &mut Model, cell: usize, value: Value) {
        let op = model.sends(1, Request::Write { first: cell, count: 1, value, fua: false }, true);
        model.answers(op, &[], true).unwrap();
    }

    fn flush(model: &mut Model, strong: bool) {
        let op = model.sends(1, Request::Flush, true);
        model.answers(op, &[], strong).unwrap();
    }

    fn image(cells: &[(usize, Value)]) -> Vec<u8> {
        let mut image = EMPTY.to_vec();
        for (cell, value) in cells {
            image[cell * CELL..][..CELL].copy_from_slice(&content(*value, *cell, 1));
        }
        image
    }

    fn rule(check: Check) -> &'static str {
        check.map_or_else(|violation| violation.rule, |()| "")
    }

    #[test]
    fn stale_read_is_found_and_concurrent_one_is_not() {
        let mut model = model();
        write(&mut model, 3, 1);
        let read = model.sends(1, Request::Read { first: 3, count: 1 }, true);
        write(&mut model, 3, 2);
        assert_eq!(model.clone_open(read).answers(read, &content(1, 3, 1), true), Ok(()));
        assert_eq!(model.answers(read, &content(2, 3, 1), true), Ok(()));
        let read = model.sends(1, Request::Read { first: 3, count: 1 }, true);
        assert_eq!(rule(model.answers(read, &content(1, 3, 1), true)), "a read returns the last write");
        let read = model.sends(1, Request::Read { first: 3, count: 1 }, true);
        assert_eq!(rule(model.answers(read, &content(2, 4, 1), true)), "a cell holds a write of its own");
    }

    #[test]
    fn lost_flushed_write_is_found() {
        let mut model = model();
        write(&mut model, 3, 1);
        flush(&mut model, true);
        write(&mut model, 3, 2);
        assert_eq!(model.clone_open(0).ends(1, &image(&[(3, 1)]), false), Ok(()));
        assert_eq!(model.clone_open(0).ends(1, &image(&[(3, 2)]), false), Ok(()));
        assert_eq!(rule(model.clone_open(0).ends(1, &EMPTY, false)), "a flushed write survives");
        assert_eq!(
            rule(model.ends(1, &image(&[(3, 9)]), false)),
            "a cell holds a write of its epoch, or what it held before"
        );
    }

    #[test]
    fn weak_policy_may_lose_a_tail_and_nothing_before() {
        let mut model = model();
        write(&mut model, 3, 1);
        flush(&mut model, false);
        write(&mut model, 4, 2);
        assert_eq!(model.clone_open(0).ends(1, &EMPTY, false), Ok(()));
        assert_eq!(rule(model.ends(1, &image(&[(4, 2)]), false)), "what is lost is a tail");
    }

    #[test]
    fn clean_end_keeps_all_writes() {
        let mut model = model();
        write(&mut model, 3, 1);
        model.leaves(1);
        assert_eq!(model.clone_open(0).ends(1, &EMPTY, false), Ok(()), "the client did not leave in order");
        assert_eq!(rule(model.ends(1, &EMPTY, true)), "a flushed write survives");
    }

    #[test]
    fn answers_of_an_earlier_epoch_and_after_a_failure_are_found() {
        let mut model = model();
        let first = model.sends(1, Request::Flush, true);
        let second = model.sends(1, Request::Flush, true);
        model.gives_up(first, true);
        assert_eq!(rule(model.answers(second, &[], true)), "no flush succeeds after one has failed");
        model.begins(2, &EMPTY).unwrap();
        let late = model.sends(1, Request::Read { first: 0, count: 1 }, true);
        let new = model.sends(2, Request::Flush, true);
        model.answers(new, &[], true).unwrap();
        assert_eq!(rule(model.answers(late, &EMPTY[..CELL], true)), "a deposed primary answers nothing");
    }

    impl Model {
        /// A copy, to try what comes next.
        fn clone_open(&self, _: u64) -> Model {
            Model {
                tick: self.tick,
                ops: self.ops,
                open: self.open.clone(),
                epochs: self.epochs.clone(),
                answered: self.answered,
                ..Model::default()
            }
        }
    }
}
