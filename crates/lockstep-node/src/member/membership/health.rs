//! When this member reports its health to the others: at once if its state changes, else periodically.

use crate::wire::Health;
use lockstep_core::Micros;

/// How often members send each other their health,
const PERIOD: Micros = 200_000;
/// and how often if writers slow down for the sake of this member's server (`apply.pace`).
const PERIOD_BEHIND: Micros = 50_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct HealthReports {
    sent: Option<Health>,
    sent_at: Micros,
}

impl HealthReports {
    /// Whether this health is to be sent now; then it counts as sent. `is_behind`: writers may slow down for this member's
    /// server.
    pub(in crate::member) fn is_due(&mut self, now: Micros, health: &Health, is_behind: bool) -> bool {
        let changed = self.sent.is_none_or(|sent| {
            sent.state != health.state
                || sent.leaving != health.leaving
                || sent.has_state != health.has_state
                || sent.held_back != health.held_back
        });
        let due = changed || now >= self.deadline(is_behind);
        if due {
            (self.sent, self.sent_at) = (Some(*health), now);
        }
        due
    }

    /// When the next report is due, unless the state changes.
    pub(in crate::member) fn deadline(&self, is_behind: bool) -> Micros {
        self.sent_at + if is_behind { PERIOD_BEHIND } else { PERIOD }
    }

    /// A new connection begins: the others have not received any report in it.
    pub(in crate::member) fn reset(&mut self) {
        self.sent = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::LocalState;

    #[test]
    fn health_is_sent_on_change_and_periodically() {
        let health = Health {
            state: LocalState::Joined,
            finished: 1,
            lowest_seen: 1,
            delivered: 1,
            leaving: false,
            has_state: true,
            held_back: false,
        };
        let mut reports = HealthReports::default();
        assert!(reports.is_due(10, &health, false));
        assert!(!reports.is_due(20, &Health { finished: 5, ..health }, false));
        assert!(reports.is_due(30, &Health { state: LocalState::Synced, ..health }, false));
        let synced = Health { state: LocalState::Synced, ..health };
        assert!(!reports.is_due(29 + PERIOD, &synced, false) && reports.is_due(30 + PERIOD, &synced, false));
        assert!(reports.is_due(30 + PERIOD + PERIOD_BEHIND, &synced, true));
        reports.reset();
        assert!(reports.is_due(31 + PERIOD, &synced, false));
    }
}
