//! The views that this process has shown to its server.

use lockstep_core::members::{View, ViewMember};
use lockstep_core::{MemberId, ViewUuid};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct ViewsShown {
    /// The server has seen a Primary view in this connection.
    primary: bool,
    /// How many views of a position the server was shown in this process.
    positions: u64,
    /// This member's view UUID at each connect of this process.
    view_uuids: Vec<ViewUuid>,
    /// View UUIDs of the members in the last non-Primary view.
    minority: Vec<ViewUuid>,
}

/// A Primary view of a position.
#[derive(Debug)]
pub(in crate::member) struct PositionView {
    pub(in crate::member) members: Vec<ViewMember>,
    /// This member's place in it.
    pub(in crate::member) my_index: usize,
    /// The log's own view is to be shown after it.
    pub(in crate::member) settle: bool,
}

impl ViewsShown {
    /// A connect begins, with this view UUID.
    pub(in crate::member) fn connect(&mut self, view_uuid: ViewUuid) {
        self.primary = false;
        self.view_uuids.push(view_uuid);
    }

    /// Whether the server has seen a Primary view in this connection.
    pub(in crate::member) fn has_primary(&self) -> bool {
        self.primary
    }

    /// The server has seen a Primary view: delivered to it, or in the state that it received.
    pub(in crate::member) fn primary_seen(&mut self) {
        self.primary = true;
    }

    /// The majority is lost: the next non-Primary view is shown whoever is in it.
    pub(in crate::member) fn forget_minority(&mut self) {
        self.minority.clear();
    }

    /// Notes the members present without a majority. Returns whether they differ from those last shown.
    pub(in crate::member) fn minority_changes(&mut self, members: &[ViewMember]) -> bool {
        let members: Vec<ViewUuid> = members.iter().map(|m| m.view_uuid).collect();
        let changes = members != self.minority;
        self.minority = members;
        changes
    }

    /// The Primary view to show at exactly the delivered position, after the log's last view there. It contains each member
    /// of that view, with its UUID of that time, and this member, `own`.
    ///
    /// Open streaming transactions must survive this view, since they go on at the other members. A server rolls back
    /// streaming transactions whose origin is not in the view. It rolls back *all* of them after two successive Primary
    /// views with the same members. The view that the server saw last, or the log's next one, may have the same members
    /// as this one; two successive views of the log always differ. In that case this member gets a UUID here that no
    /// other view has. If one of its own streaming transactions may be open, its own UUID stays and the new one is
    /// added.
    pub(in crate::member) fn position(
        &mut self,
        view: &View,
        own: ViewMember,
        has_streams: impl Fn(&ViewUuid) -> bool,
    ) -> PositionView {
        let first = !std::mem::replace(&mut self.primary, true);
        self.positions += 1;
        let (id, present): (MemberId, ViewUuid) = (own.id, own.view_uuid);
        let mut stand_in = ViewMember { view_uuid: id, ..own };
        for (byte, of) in stand_in.view_uuid.0[8..].iter_mut().zip(self.positions.to_be_bytes()) {
            *byte ^= of;
        }
        let mut members = view.members.clone();
        let listed = members.iter().position(|m| m.id == id).map(|at| (at, members[at].view_uuid));
        let (my_index, settle) = match listed {
            // The log's last view is of this connection: the server has seen no view with these members.
            Some((at, uuid)) if uuid == present && first => (at, false),
            // The view is of an earlier process, and the server has seen no view in this one.
            Some((at, _)) if first && self.view_uuids.len() == 1 => (at, false),
            Some((at, uuid)) if self.view_uuids.contains(&uuid) && !has_streams(&uuid) => {
                members[at] = stand_in;
                (at, uuid == present)
            }
            listed => {
                let settle = listed.filter(|(_, uuid)| *uuid == present);
                members.push(stand_in);
                (settle.map_or(members.len() - 1, |(at, _)| at), settle.is_some())
            }
        };
        PositionView { members, my_index, settle }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::Uuid;

    fn member(n: u8, view_uuid: u8) -> ViewMember {
        ViewMember {
            id: Uuid([n; 16]),
            view_uuid: Uuid([view_uuid; 16]),
            name: format!("n{n}"),
            incoming: String::new(),
        }
    }

    #[test]
    fn second_position_view_lists_stand_in() {
        let mut shown = ViewsShown::default();
        shown.connect(Uuid([7; 16]));
        let view = View { number: 3, members: vec![member(1, 7), member(2, 8)] };
        let first = shown.position(&view, member(1, 7), |_| false);
        assert_eq!((first.my_index, first.settle, &first.members), (0, false, &view.members));
        let second = shown.position(&view, member(1, 7), |_| false);
        assert_eq!((second.my_index, second.settle, second.members.len()), (0, true, 2));
        assert_ne!(second.members[0].view_uuid, view.members[0].view_uuid);
        let streaming = shown.position(&view, member(1, 7), |_| true);
        assert_eq!((streaming.my_index, streaming.settle, streaming.members.len()), (0, true, 3));
        assert_ne!(streaming.members[2].view_uuid, second.members[0].view_uuid);
    }

    #[test]
    fn minority_is_shown_again_only_if_it_changes() {
        let mut shown = ViewsShown::default();
        assert!(shown.minority_changes(&[member(1, 7)]));
        assert!(!shown.minority_changes(&[member(1, 7)]));
        shown.forget_minority();
        assert!(shown.minority_changes(&[member(1, 7)]));
    }
}
