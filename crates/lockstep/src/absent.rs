//! Absent members with data. A command that proceeds without them lists them in its result.

use lockstep_node::MemberStatus;
use serde::Serialize;

/// An absent member with data.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
pub(crate) struct Absent {
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) state: String,
    /// The member is connected, and `apply.delay`, `apply.paused` or `apply.until` holds it back.
    pub(crate) held_back: bool,
}

impl From<&MemberStatus> for Absent {
    fn from(member: &MemberStatus) -> Absent {
        Absent {
            name: member.name.clone(),
            id: member.id.clone(),
            state: member.state.clone(),
            held_back: member.held_back,
        }
    }
}

/// The members as text: `n1 (Disconnected), n3 (Synced, held back)`.
pub(crate) fn names(absent: &[Absent]) -> String {
    let each: Vec<String> = absent
        .iter()
        .map(|m| format!("{} ({}{})", m.name, m.state, if m.held_back { ", held back" } else { "" }))
        .collect();
    each.join(", ")
}
