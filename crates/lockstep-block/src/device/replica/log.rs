//! The log of a member, as its replica uses it.

use bytes::Bytes;
use lockstep_core::{MemberId, Seqno};
use std::time::Duration;

/// How long writes wait for the return of leadership, where only the leader writes.
const REFUSED_FOR: Duration = Duration::from_secs(15);
/// How long the copies may take to answer a step of a comparison.
const COMPARED_WITHIN: Duration = Duration::from_secs(90);

/// News of an entry apart from its delivery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// It is as durable as the commit policy asks, and not committed yet. That counts once everything up to this seqno was
    /// delivered: one of those entries may have ended the attachment.
    Acknowledged {
        /// The last committed seqno then.
        after: Seqno,
    },
    /// The log may have lost it. It may be delivered all the same.
    Lost,
}

/// Receives a notice, if there is one.
pub type NoticeCall = Box<dyn FnOnce(Notice) + Send>;

/// The log did not take an entry. The replica sends it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotSent;

/// Another member with a copy, or this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyMember {
    /// The member.
    pub member: MemberId,
    /// Its name.
    pub name: String,
    /// Whether it is connected and has caught up.
    pub ready: bool,
}

/// The log of a member.
pub trait Log: Send + Sync + 'static {
    /// Sends an entry. Entries come out in the order in which they were sent, but some may be lost.
    ///
    /// # Errors
    /// [`NotSent`].
    fn submit(&self, payload: Bytes, notice: NoticeCall) -> Result<(), NotSent>;

    /// The device file has everything up to this seqno, durably.
    fn finished(&self, seqno: Seqno);

    /// A copy with every entry up to this seqno has all that was committed [`Log::confirmed_for`] ago. `None`: that is not known,
    /// because no majority has answered lately.
    fn confirmed(&self) -> Option<Seqno>;

    /// The longest time for which a confirmation counts on any member, with what clocks differ. A promoted member takes no client
    /// before: until then, the primary before it may answer.
    fn confirmed_for(&self) -> Duration;

    /// Whether a majority has answered lately.
    fn is_live(&self) -> bool {
        self.confirmed().is_some()
    }

    /// Whether this member belongs to a majority. It may still lag, so that [`Log::is_live`] is false.
    fn has_majority(&self) -> bool {
        self.is_live()
    }

    /// Whether this member knows a leader, and so some majority works. It may still have to join.
    fn knows_leader(&self) -> bool {
        false
    }

    /// A text for people: this member belongs to no majority, and waits for this.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// Whether entries of this member may be refused although there is a majority, and why, for people: under a weak policy
    /// only the leader writes.
    fn refusal(&self) -> Option<String>;

    /// How long entries wait while [`Log::refusal`] says why. Then the attachment ends.
    fn refused_for(&self) -> Duration {
        REFUSED_FOR
    }

    /// This member.
    fn member(&self) -> MemberId;

    /// A member's name, for people.
    fn name_of(&self, member: &MemberId) -> String;

    /// Whether another member is connected.
    fn is_connected(&self, member: &MemberId) -> bool;

    /// All members that keep a copy.
    fn copies(&self) -> Vec<CopyMember> {
        Vec::new()
    }

    /// How long the copies may take to answer a step of a comparison.
    fn compared_within(&self) -> Duration {
        COMPARED_WITHIN
    }

    /// A line for people. `warn`: they should look.
    fn note(&self, warn: bool, text: &str);
}
