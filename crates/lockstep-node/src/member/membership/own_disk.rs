//! A hung disk of this member: what its server and the others are told, and when this member leaves.
//!
//! A hung disk gives no error. Until its writes end, no commit of this member's clients returns. After
//! `leader.disk_timeout` the member is Desynced, so that proxies send it no more clients. If the others go on without its
//! disk (they commit entries that it lacks), it leaves after three times as long. Its clients are told that their commits
//! are in doubt, and its process ends. If they do not go on, because no majority of the disks works, it is non-Primary: its
//! end would help nobody.

use lockstep_core::Micros;

/// This member leaves after this many times `leader.disk_timeout`.
const LEAVES_AFTER: Micros = 3;

/// What changes for this member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) enum Change {
    /// The disk hangs: the member is Desynced from now on, and leaves after this time.
    Hangs { leaves_in: Micros },
    /// The disk has finished a write again.
    Works,
    /// The disk has hung for too long: the member leaves.
    Leaves,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::member) struct OwnDisk {
    hangs: bool,
    /// When the process must have ended, if it is to end.
    ends_by: Option<Micros>,
}

impl OwnDisk {
    /// In each round. `stands_still_for`: how long the disk has finished no write. `goes_on`: this member is in a primary
    /// component, and the others have committed entries without this disk.
    pub(in crate::member) fn step(
        &mut self,
        now: Micros,
        stands_still_for: Micros,
        timeout: Micros,
        goes_on: bool,
    ) -> Option<Change> {
        let leave_at = LEAVES_AFTER * timeout;
        let hangs = timeout > 0 && stands_still_for >= timeout;
        self.ends_by = (hangs && goes_on).then_some(now + leave_at.saturating_sub(stands_still_for));
        let hung = std::mem::replace(&mut self.hangs, hangs);
        match (hung, hangs) {
            (false, true) => Some(Change::Hangs { leaves_in: leave_at.saturating_sub(stands_still_for) }),
            (true, false) => Some(Change::Works),
            (true, true) if goes_on && stands_still_for >= leave_at => Some(Change::Leaves),
            _ => None,
        }
    }

    /// Whether the disk hangs, so that this member is Desynced.
    pub(in crate::member) fn hangs(&self) -> bool {
        self.hangs
    }

    /// When this member leaves if nothing changes.
    pub(in crate::member) fn ends_by(&self) -> Option<Micros> {
        self.ends_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{LocalState, SubmitOutcome, Tuning};
    use crate::member::harness::Lab;
    use std::time::Duration;

    #[test]
    fn hung_disk_desyncs_then_ends_member_if_others_go_on() {
        let mut disk = OwnDisk::default();
        assert_eq!(disk.step(100, 49, 50, true), None);
        assert_eq!(disk.step(101, 50, 50, true), Some(Change::Hangs { leaves_in: 100 }));
        assert_eq!((disk.hangs(), disk.ends_by()), (true, Some(201)));
        assert_eq!(disk.step(200, 149, 50, true), None);
        assert_eq!(disk.step(201, 150, 50, false), None, "no majority works: its end helps nobody");
        assert_eq!(disk.ends_by(), None);
        assert_eq!(disk.step(202, 151, 50, true), Some(Change::Leaves));
        assert_eq!(disk.step(203, 0, 50, true), Some(Change::Works));
        assert!(!disk.hangs());
        assert_eq!(disk.step(204, 1000, 0, true), None, "a timeout of 0 disables it");
    }

    fn tuning() -> Tuning {
        Tuning {
            disk_timeout: Duration::from_secs(2),
            apply_timeout: Duration::ZERO,
            follow_writer: false,
            ..Tuning::default()
        }
    }

    fn state(lab: &Lab, at: usize) -> LocalState {
        lab.nodes[at].member.local_state()
    }

    #[test]
    fn member_with_hung_disk_is_desynced_and_leaves() {
        let mut lab = Lab::new(3, &tuning());
        lab.run(1_000_000);
        lab.nodes[2].disk_hangs = true;
        let write = lab.write(2);
        lab.run(1_000_000);
        assert_eq!(state(&lab, 2), LocalState::Synced, "slow is not hung");
        lab.run(1_500_000);
        assert_eq!(state(&lab, 2), LocalState::Donor);
        assert!(lab.logged("this member's disk has finished no write of the log for 2 s: Desynced"));
        lab.nodes[0].member.ctx.peers.health_of(&lab.id(2)).expect("connected");
        assert!(write.wait_for(Duration::ZERO).is_none());
        lab.run(4_000_000);
        assert_eq!(state(&lab, 2), LocalState::Error);
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Unknown)));
        assert!(!lab.linked(0, 2) && !lab.linked(1, 2), "the others are rid of it");
        assert!(lab.nodes[2].member.hung_disk_ends_by().is_some(), "it ends even if a line of the log hangs");
        lab.run(1_500_000);
        let end = lab.nodes[2].member.server_must_end();
        assert!(matches!(end, Some((crate::api::ServerEnd::DiskHangs, _))), "{end:?}");
        // The others go on.
        let write = lab.write(1);
        lab.run(200_000);
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    }

    /// Under `async` a leader reports commits that no disk has. A hung follower's end would help nobody while nothing is
    /// committed.
    #[test]
    fn member_with_hung_disk_stays_if_nobody_commits_without_it() {
        use lockstep_core::policy::{Policy, PolicyKind};
        let policy = Policy { kind: PolicyKind::Async, ..Policy::default() };
        let mut lab = Lab::new(3, &Tuning { policy, ..tuning() });
        lab.run(1_000_000);
        lab.cut(1, true);
        lab.run(1_000_000);
        lab.nodes[2].disk_hangs = true;
        drop(lab.write(0));
        lab.run(20_000_000);
        assert_ne!(state(&lab, 2), LocalState::Error);
        lab.nodes[2].disk_hangs = false;
        lab.run(4_000_000);
        assert_eq!(state(&lab, 2), LocalState::Synced);
    }

    #[test]
    fn member_is_synced_again_once_its_disk_works() {
        let mut lab = Lab::new(3, &tuning());
        lab.run(1_000_000);
        lab.nodes[2].disk_hangs = true;
        let write = lab.write(2);
        lab.run(4_000_000);
        assert_eq!(state(&lab, 2), LocalState::Donor);
        lab.nodes[2].disk_hangs = false;
        lab.run(1_000_000);
        assert_eq!(state(&lab, 2), LocalState::Synced);
        assert!(lab.logged("this member's disk works again"));
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Ordered(_))));
    }

    /// n2 is off and the disk of n3 hangs: n1 can commit nothing, and nobody says that it could.
    #[test]
    fn nobody_is_primary_while_majority_of_disks_hangs() {
        let mut lab = Lab::new(3, &tuning());
        lab.run(1_000_000);
        lab.cut(1, true);
        lab.run(1_000_000);
        lab.nodes[2].disk_hangs = true;
        let write = lab.write(0);
        lab.run(6_000_000);
        for at in [0, 2] {
            assert!(!lab.nodes[at].member.ctx.connection().is_primary(), "n{}", at + 1);
        }
        assert!(matches!(write.wait_for(Duration::ZERO), Some(SubmitOutcome::Unknown)));
        let text = lab.nodes[0].member.waits_for().expect("it waits");
        assert!(text.contains("n3") && text.contains("disk"), "{text}");
        let text = lab.nodes[2].member.waits_for().expect("it waits");
        assert!(text.contains("this member's disk has finished no write"), "{text}");
        lab.run(20_000_000);
        assert_ne!(state(&lab, 2), LocalState::Error, "its end would help nobody");
        lab.nodes[2].disk_hangs = false;
        lab.run(4_000_000);
        for at in [0, 2] {
            assert_eq!(state(&lab, at), LocalState::Synced, "n{}", at + 1);
        }
    }
}
