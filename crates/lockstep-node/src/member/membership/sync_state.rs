//! Whether this member counts as Synced: the notices to its server, and the reasons to be Desynced for others.

use crate::api::{Delivery as ToServer, Level};
use crate::effect::Effect;
use crate::member::context::ConnectionState;
use crate::member::context::Context;
use crate::member::delivery::Delivery;
use lockstep_core::Seqno;

/// A member is Synced if its server is at most this many seqnos behind.
const SYNCED_WITHIN: i64 = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct SyncState {
    /// How many users' and donations' reasons there are to be Desynced. They outlast a connection: the server still
    /// wants to be Desynced when it connects again.
    desyncs: u32,
    /// The server has been told that it is synced, and has not seen a loss of the majority since.
    notified: bool,
    /// More than `apply.lag_limit` behind, and not caught up since.
    lagging: bool,
    /// The seqno of the view with which this connection began. A member below it has not caught up.
    connected_seqno: Seqno,
}

impl SyncState {
    /// A connection has begun with the view at this seqno.
    pub(in crate::member) fn connected(&mut self, view_seqno: Seqno) {
        self.connected_seqno = view_seqno;
    }

    /// This member has left.
    pub(in crate::member) fn left(&mut self) {
        self.notified = false;
        self.lagging = false;
    }

    /// The server wants to be Desynced.
    pub(in crate::member) fn desync(&mut self) {
        self.desyncs += 1;
    }

    /// One reason to be Desynced ends. Returns whether it was the last.
    pub(in crate::member) fn resync(&mut self) -> bool {
        self.desyncs = self.desyncs.saturating_sub(1);
        self.desyncs == 0
    }

    /// Whether the server wants to be Desynced.
    pub(in crate::member) fn is_desynced_by_server(&self) -> bool {
        self.desyncs > 0
    }

    pub(in crate::member) fn is_lagging(&self) -> bool {
        self.lagging
    }

    /// Whether the server may be told that it is synced. One that is Desynced by choice must still be told once: until
    /// then it refuses all queries.
    fn may_notify(&self) -> bool {
        self.desyncs == 0 || !self.notified
    }

    /// The server is told that it is synced. Returns whether that is the first time.
    fn notify(&mut self) -> bool {
        !std::mem::replace(&mut self.notified, true)
    }

    /// The server sees a loss of the majority.
    pub(in crate::member) fn majority_lost(&mut self) {
        self.notified = false;
    }

    /// Whether this seqno is that of the connection's first view, or later.
    fn reaches_connect(&self, delivered: Seqno) -> bool {
        delivered >= self.connected_seqno
    }

    /// Marks the member Synced once caught up. Beyond the lag limit it is Desynced, so that proxies avoid it, until it
    /// has caught up again. With `apply.pace` a lag of less than twice that bound is within the limit: a Desynced member
    /// slows no writers down.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context, delivery: &mut Delivery, donating: bool) {
        let &ConnectionState::Running { primary: true, synced } = ctx.connection() else { return };
        let lag = ctx.lag_of(ctx.finished());
        if synced && delivery.apply_holds.is_holding() {
            // The server has all that its apply hold permits; `lagging` shows the rest to others.
            self.lagging = self.lagging || lag > 0;
            return;
        }
        if synced {
            // The apply hold is open again: the member catches up normally.
            let was_lagging = self.lagging;
            if was_lagging && ctx.is_held_back() && lag <= SYNCED_WITHIN {
                // Only the entries that became old enough were missing: no change of state for the server.
                self.lagging = lag > 0;
            } else if was_lagging {
                ctx.not_synced();
            } else if lag > ctx.tuning().lag_limit as i64 && !delivery.pace.contains_lag(ctx) {
                self.lagging = true;
                ctx.not_synced();
                ctx.log(
                    Level::Warn,
                    format!("behind by {lag} {}: Desynced until it has caught up", ctx.terms().entries),
                );
            }
            return;
        }
        let has_its_part = delivery.apply_holds.is_holding()
            && delivery.deliverer.is_running()
            && ctx.finished() >= delivery.deliverer.delivered();
        let caught_up = has_its_part
            || delivery.deliverer.is_running()
                && delivery.deliverer.next_index() + SYNCED_WITHIN as u64 > ctx.raft.commit()
                && self.reaches_connect(delivery.deliverer.delivered())
                && delivery.deliverer.view().position(&ctx.me().id).is_some()
                && ctx.raft.seqnos_between(ctx.finished(), delivery.deliverer.delivered()) <= SYNCED_WITHIN
                && (!self.lagging || ctx.is_held_back() || lag <= near_enough(ctx));
        // Other members see a server that is held back by choice as Desynced.
        if caught_up && self.may_notify() && !donating {
            if self.notify() {
                warn_if_still_voter(ctx);
            }
            // Caught up for its server, but still Desynced for other members.
            self.lagging = delivery.apply_holds.is_holding() && lag > 0;
            report_progress(ctx, delivery, true);
            ctx.became_synced();
            ctx.deliver(ToServer::Synced);
        } else {
            report_progress(ctx, delivery, false);
        }
    }

    #[cfg(test)]
    pub(in crate::member) fn is_notified(&self) -> bool {
        self.notified
    }
}

/// The lag at which a Desynced member is Synced again: well within `apply.lag_limit`, however low, so that a steady
/// lag does not make the member alternate.
fn near_enough(ctx: &Context) -> i64 {
    SYNCED_WITHIN.min((ctx.tuning().lag_limit / 2) as i64)
}

/// Reports the progress towards Synced, if due; `synced`: for the last time.
fn report_progress(ctx: &mut Context, delivery: &mut Delivery, synced: bool) {
    let finished = ctx.finished();
    let Some(from) = delivery.catching_up.report(ctx.now(), finished, synced) else { return };
    let (total, done) = (ctx.lag_of(from), ctx.raft.seqnos_between(from, finished));
    if total > 0 {
        ctx.emit(Effect::Progress { total, done: done.min(total) });
    }
}

/// Logs if a member that is configured as a replica is still a voter, because its server was not shut down cleanly.
fn warn_if_still_voter(ctx: &mut Context) {
    if ctx.raft.membership().is_voter(&ctx.me().id) && !ctx.me().wants_vote {
        let process = ctx.terms().process;
        let text = format!(
            "this member votes, and may lead, though its options say member.vote=no (or pc.weight=0): it voted when its \
             {process} was lost, was promoted, or has founded the cluster. It votes no more once its {process} has been \
             stopped in order and started again"
        );
        ctx.log(Level::Warn, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desynced_server_is_notified_once() {
        let mut sync = SyncState::default();
        sync.desync();
        assert!(sync.may_notify() && sync.notify());
        assert!(!sync.may_notify());
        sync.desync();
        assert!(!sync.resync() && !sync.may_notify());
        assert!(sync.resync() && sync.may_notify() && !sync.notify());
        sync.majority_lost();
        assert!(sync.notify());
    }
}
