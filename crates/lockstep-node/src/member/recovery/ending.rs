//! The end of the server process, because only a new process can go on.

use crate::api::ServerEnd;
use lockstep_core::Micros;

/// How long the end waits for a rescue file.
const RESCUE_TIMEOUT: Micros = 10_000_000;
/// By then, the pending answers of a server that ends have been sent, and the other members know that it leaves.
const END_DELAY: Micros = 1_000_000;

/// An end under way; it waits until the rescue file, if any, is on disk.
#[derive(Debug)]
struct Planned {
    ticket: u64,
    /// The latest time for the end.
    until: Micros,
    why: ServerEnd,
    text: String,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Ending {
    planned: Option<Planned>,
    /// Why the process ends once this member has left.
    after_leave: Option<String>,
}

impl Ending {
    /// The log has lost transactions that this member's server has; the write with this ticket saves them. Replaces an
    /// end for another reason.
    pub(in crate::member) fn diverged(&mut self, now: Micros, ticket: u64, text: &str) {
        if self.planned.as_ref().is_none_or(|planned| planned.why != ServerEnd::Diverged) {
            let (until, why, text) = (now + RESCUE_TIMEOUT, ServerEnd::Diverged, text.to_owned());
            self.planned = Some(Planned { ticket, until, why, text });
        }
    }

    /// The server needs a state transfer.
    pub(in crate::member) fn needs_state(&mut self, now: Micros, text: &str) {
        self.plan(now + END_DELAY, ServerEnd::NeedsState, text);
    }

    /// The disk hangs. The other members and the clients are to learn first that this member leaves.
    pub(in crate::member) fn disk_hangs(&mut self, now: Micros, text: &str) {
        self.plan(now + END_DELAY, ServerEnd::DiskHangs, text);
    }

    /// When the process ends because its disk hangs, if that is planned.
    pub(in crate::member) fn hung_disk_ends_by(&self) -> Option<Micros> {
        self.planned
            .as_ref()
            .filter(|planned| planned.why == ServerEnd::DiskHangs)
            .map(|planned| planned.until)
    }

    /// This member gives up its log for a branch. A server that is starting has no pending answers, and must end for this
    /// reason before another failure is reported.
    pub(in crate::member) fn gives_way(&mut self, now: Micros, starts: bool, text: &str) {
        self.plan(if starts { now } else { now + END_DELAY }, ServerEnd::YieldedToBranch, text);
    }

    /// The log cannot be written or read. The next start reads it as a whole.
    pub(in crate::member) fn log_failed(&mut self, now: Micros, text: &str) {
        self.plan(now + END_DELAY, ServerEnd::LogFailed, text);
    }

    /// Delivery has lost an own entry. The next start delivers it from the log.
    pub(in crate::member) fn repeats_from_log(&mut self, now: Micros, text: &str) {
        self.plan(now + END_DELAY, ServerEnd::RepeatsFromLog, text);
    }

    /// A new process applies from the log what this one cannot. The others must not miss its vote: it leaves first.
    pub(in crate::member) fn ends_after_leave(&mut self, text: &str) {
        self.after_leave = Some(text.to_owned());
    }

    /// This member has left the cluster.
    pub(in crate::member) fn left(&mut self, now: Micros) {
        if let Some(text) = self.after_leave.take() {
            self.plan(now + END_DELAY, ServerEnd::RepeatsFromLog, &text);
        }
    }

    /// This member gives up its log, which went back in time. Its server has not been in a primary component.
    pub(in crate::member) fn gives_up_log(&mut self, now: Micros, needs_state: bool, text: &str) {
        self.plan(now, ServerEnd::LogReverted { needs_state }, text);
    }

    fn plan(&mut self, until: Micros, why: ServerEnd, text: &str) {
        self.planned.get_or_insert(Planned { ticket: u64::MAX, until, why, text: text.to_owned() });
    }

    /// All writes of the log up to this ticket are on disk.
    pub(in crate::member) fn written(&mut self, ticket: u64) {
        if let Some(planned) = self.planned.as_mut().filter(|planned| ticket >= planned.ticket) {
            planned.until = 0;
        }
    }

    /// When an end is due, if one is planned. A member that has left has no other reason to run.
    pub(in crate::member) fn deadline(&self) -> Micros {
        self.planned.as_ref().map_or(Micros::MAX, |planned| planned.until)
    }

    /// Why the server process must end now, if so: the rescue file is on disk, or could not be written in time. The log
    /// drops nothing before that, so the next start could still write the file.
    pub(in crate::member) fn take_due(&mut self, now: Micros) -> Option<(ServerEnd, String)> {
        self.planned.take_if(|planned| planned.until <= now).map(|planned| (planned.why, planned.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planned_end_wakes_member() {
        let mut ending = Ending::default();
        ending.ends_after_leave("lost");
        assert_eq!(ending.deadline(), Micros::MAX);
        ending.left(7);
        assert_eq!(ending.deadline(), 7 + END_DELAY);
    }

    #[test]
    fn diverged_server_ends_once_rescue_file_is_written() {
        let mut ending = Ending::default();
        ending.needs_state(0, "the log lacks entries");
        ending.diverged(10, 7, "diverged");
        ending.written(6);
        assert_eq!(ending.take_due(END_DELAY), None);
        ending.written(7);
        assert_eq!(ending.take_due(END_DELAY), Some((ServerEnd::Diverged, "diverged".into())));
        assert_eq!(ending.take_due(Micros::MAX), None);
    }

    #[test]
    fn process_that_repeats_from_log_ends_after_the_leave() {
        let mut ending = Ending::default();
        ending.left(5);
        assert_eq!(ending.take_due(Micros::MAX), None, "an ordinary leave");
        ending.ends_after_leave("lost COMMIT");
        assert_eq!(ending.take_due(Micros::MAX), None);
        ending.left(10);
        assert_eq!(ending.take_due(10), None);
        let end = Some((ServerEnd::RepeatsFromLog, "lost COMMIT".into()));
        assert_eq!(ending.take_due(10 + END_DELAY), end);
    }

    #[test]
    fn first_reason_to_end_is_kept() {
        let mut ending = Ending::default();
        ending.gives_way(5, true, "branch");
        ending.needs_state(5, "state");
        assert_eq!(ending.take_due(5), Some((ServerEnd::YieldedToBranch, "branch".into())));
    }
}
