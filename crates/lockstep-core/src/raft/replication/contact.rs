//! When a peer was heard, and how long a round trip to it takes.

use crate::types::Micros;

/// Contexts number a leader's messages: an answer names the last context that has arrived.
#[derive(Debug)]
pub(super) struct Contact {
    last_answer: Micros,
    /// The time of a round trip, smoothed, if measured.
    rtt: Option<Micros>,
    /// A context that was sent and has not come back (0: none), and when: measures round trips.
    sent: (u64, Micros),
    /// The last context that came back.
    context_answered: u64,
    /// Rejections count only once an answer to this context, or a later one, has come: earlier ones may answer messages that
    /// were sent again since.
    rejects_from: u64,
}

impl Contact {
    /// A peer counts as heard when it becomes one.
    pub(super) fn new(now: Micros) -> Contact {
        Contact { last_answer: now, rtt: None, sent: (0, 0), context_answered: 0, rejects_from: 0 }
    }

    pub(super) fn last_answer(&self) -> Micros {
        self.last_answer
    }

    pub(super) fn rtt(&self) -> Option<Micros> {
        self.rtt
    }

    pub(super) fn context_answered(&self) -> u64 {
        self.context_answered
    }

    /// A message with this context leaves. One at a time is measured: a round trip may take many heartbeats.
    pub(super) fn sent(&mut self, context: u64, now: Micros) {
        if self.sent.0 == 0 {
            self.sent = (context, now);
        }
    }

    /// The connection was interrupted, or the leader did not run: the answer to an earlier message is no measure of a round
    /// trip.
    pub(super) fn interrupted(&mut self) {
        self.sent = (0, 0);
    }

    /// An answer to this context has arrived. Returns the time of the round trip, if it was measured.
    pub(super) fn note_answer(&mut self, context: u64, now: Micros) -> Option<Micros> {
        self.last_answer = now;
        self.context_answered = self.context_answered.max(context);
        if self.sent.0 == 0 || context < self.sent.0 {
            return None;
        }
        let sample = now.saturating_sub(self.sent.1);
        self.rtt = Some(self.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
        self.sent = (0, 0);
        Some(sample)
    }

    /// Messages were sent again: rejections count once `context` has come back.
    pub(super) fn ignore_rejections_before(&mut self, context: u64) {
        self.rejects_from = context;
    }

    /// Whether a rejection answers a message that was not sent again since.
    pub(super) fn believes_rejections(&self) -> bool {
        self.context_answered >= self.rejects_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_is_measured_one_context_at_a_time() {
        let mut contact = Contact::new(0);
        contact.sent(1, 100);
        contact.sent(2, 150);
        assert_eq!(contact.note_answer(0, 160), None, "an answer without a context");
        assert_eq!(contact.note_answer(2, 180), Some(80));
        assert_eq!((contact.rtt(), contact.note_answer(2, 190)), (Some(80), None));
        contact.sent(3, 200);
        contact.interrupted();
        assert_eq!(contact.note_answer(3, 900), None);
        assert_eq!(contact.last_answer(), 900);
    }

    #[test]
    fn rejections_count_after_next_context() {
        let mut contact = Contact::new(0);
        contact.ignore_rejections_before(2);
        contact.note_answer(1, 10);
        assert!(!contact.believes_rejections());
        contact.note_answer(2, 20);
        assert!(contact.believes_rejections());
    }
}
