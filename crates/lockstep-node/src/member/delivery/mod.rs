//! Between the log and the front end: submissions, and entries delivered in order.

pub(in crate::member) mod apply_hold;
pub(in crate::member) mod causal_reads;
pub(in crate::member) mod clocks;
pub(in crate::member) mod feed;
pub(in crate::member) mod finished;
pub(in crate::member) mod lag;
pub(in crate::member) mod low_water_mark;
pub(in crate::member) mod requests;
pub(in crate::member) mod submissions;

use apply_hold::ApplyHolds;
use causal_reads::CausalReads;
use clocks::Clocks;
use lag::CatchUp;
use low_water_mark::LowWaterMark;
use submissions::Submissions;

/// The components of this room, beside the feed. Each keeps its fields to itself.
#[derive(Default)]
pub(in crate::member) struct Delivery {
    /// The front end's submissions under way.
    pub(in crate::member) submissions: Submissions,
    /// Causal reads under way.
    pub(in crate::member) causal_reads: CausalReads,
    /// Apply holds, and the permitted parallelism.
    pub(in crate::member) apply_holds: ApplyHolds,
    /// The difference of the leader's clock.
    pub(in crate::member) clocks: Clocks,
    /// How far certification may forget keys.
    pub(in crate::member) low_water_mark: LowWaterMark,
    /// The progress towards Synced.
    pub(in crate::member) catching_up: CatchUp,
}
