//! The last view, for status variables and for `grastate.dat`.

use crate::sync::lock;
use lockstep_node::{ViewInfo, ViewStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module.
pub(crate) struct LastView {
    /// The members' addresses for clients (`wsrep_incoming_addresses`).
    incoming: Mutex<String>,
    /// As of the last Primary view.
    safe_to_bootstrap: AtomicBool,
}

impl LastView {
    pub(crate) fn new(safe_to_bootstrap: bool) -> LastView {
        LastView { incoming: Mutex::default(), safe_to_bootstrap: AtomicBool::new(safe_to_bootstrap) }
    }

    pub(crate) fn set(&self, info: &ViewInfo) {
        let incoming: Vec<&str> = info.members.iter().map(|member| member.incoming.as_str()).collect();
        *lock(&self.incoming) = incoming.join(",");
        if info.status == ViewStatus::Primary {
            // This member must be the one: a view of one may also be one that it has been removed from.
            let alone = info.members.len() == 1 && info.my_index.is_some();
            self.safe_to_bootstrap.store(alone, Ordering::SeqCst);
        }
    }

    /// This member has left.
    pub(crate) fn clear(&self) {
        lock(&self.incoming).clear();
    }

    pub(crate) fn incoming(&self) -> String {
        lock(&self.incoming).clone()
    }

    pub(crate) fn safe_to_bootstrap(&self) -> bool {
        self.safe_to_bootstrap.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::{Gtid, Uuid};

    #[test]
    fn only_sole_member_of_primary_view_may_bootstrap() {
        let view = LastView::new(true);
        let mut info = ViewInfo::disconnected(Gtid { uuid: Uuid([1; 16]), seqno: 4 });
        view.set(&info);
        assert!(view.safe_to_bootstrap(), "not a Primary view");
        info.status = ViewStatus::Primary;
        view.set(&info);
        assert!(!view.safe_to_bootstrap(), "no member");
        info.members = vec![lockstep_node::core::members::ViewMember {
            id: Uuid([2; 16]),
            view_uuid: Uuid([3; 16]),
            name: "n1".into(),
            incoming: "a:1".into(),
        }];
        view.set(&info);
        assert!(!view.safe_to_bootstrap(), "this member has been removed");
        info.my_index = Some(0);
        view.set(&info);
        assert!(view.safe_to_bootstrap() && view.incoming() == "a:1");
        view.clear();
        assert!(view.incoming().is_empty());
    }
}
