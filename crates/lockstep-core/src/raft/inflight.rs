//! Messages with entries that were sent to a member and are not answered yet.

use crate::types::*;
use std::collections::VecDeque;

/// One message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    /// Its last entry.
    pub(super) last: Index,
    /// Bytes of its entries.
    pub(super) bytes: usize,
    /// When it was sent.
    pub(super) at: Micros,
}

/// **Invariants:** `last` ascends; `bytes` is the sum over all messages.
#[derive(Debug, Default)]
pub(super) struct Inflight {
    sent: VecDeque<Sent>,
    bytes: usize,
}

impl Inflight {
    /// A message was sent.
    pub(super) fn push(&mut self, last: Index, bytes: usize, at: Micros) {
        debug_assert!(self.sent.back().is_none_or(|sent| sent.last < last), "messages ascend");
        self.sent.push_back(Sent { last, bytes, at });
        self.bytes += bytes;
    }

    /// Removes the oldest message if all its entries have arrived: those up to `upto`.
    pub(super) fn confirm(&mut self, upto: Index) -> Option<Sent> {
        let sent = self.sent.front().copied().filter(|sent| sent.last <= upto)?;
        self.sent.pop_front();
        debug_assert!(self.bytes >= sent.bytes, "the sum covers each message");
        self.bytes -= sent.bytes;
        Some(sent)
    }

    /// The messages are given up for lost.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
        self.bytes = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Bytes of all messages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirm_removes_messages_that_arrived_whole() {
        let mut inflight = Inflight::default();
        inflight.push(3, 300, 10);
        inflight.push(5, 200, 20);
        assert_eq!(inflight.confirm(2), None, "a part of a message is no answer to it");
        assert_eq!(inflight.confirm(4), Some(Sent { last: 3, bytes: 300, at: 10 }));
        assert_eq!((inflight.confirm(4), inflight.bytes()), (None, 200));
        inflight.clear();
        assert!(inflight.is_empty() && inflight.bytes() == 0);
    }
}
