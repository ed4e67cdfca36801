//! Failpoints: faults that the simulator plants, to show that its checks find them.
//!
//! They exist only with the feature `failpoints`. Without it [`Failpoints::is_active`] is always false, and the compiler removes
//! the code that depends on it.

/// The failpoint that is active, if there is one.
#[derive(Clone, Copy, Default, Debug)]
pub struct Failpoints {
    #[cfg(feature = "failpoints")]
    active: Option<Failpoint>,
}

#[cfg(feature = "failpoints")]
impl From<Option<Failpoint>> for Failpoints {
    fn from(active: Option<Failpoint>) -> Failpoints {
        Failpoints { active }
    }
}

impl Failpoints {
    /// Whether `failpoint` is active. False without the feature.
    #[inline(always)]
    pub(super) fn is_active(self, failpoint: Failpoint) -> bool {
        #[cfg(feature = "failpoints")]
        let active = self.active == Some(failpoint);
        #[cfg(not(feature = "failpoints"))]
        let active = {
            let _ = failpoint;
            false
        };
        active
    }
}

/// A fault that the simulator plants. Each variant says which rule is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failpoint {
    /// The position is saved before the data are synced.
    PositionBeforeData,
    /// Writes that are in no committed entry reach the device file.
    UncommittedWritten,
    /// A session goes on after an entry has begun a new epoch.
    SessionKept,
    /// A flush waits only for writes that are in entries already.
    FlushLeavesDirty,
    /// A flush is answered once its entries are sent.
    FlushBeforeLog,
    /// Replies are not held until a majority has answered lately.
    HoldSkipped,
    /// A promoted member takes clients at once.
    PromotedAtOnce,
    /// An acknowledgement counts although a promotion of this member may precede it.
    EarlyBehindPromotion,
    /// A failed flush does not end the attachment.
    FailedFlushForgotten,
    /// Writes that were not committed stay in the overlay when their attachment ends.
    WritesKept,
    /// A joiner takes its copy for whole once the donor has sent all.
    WholeAtOnce,
}
