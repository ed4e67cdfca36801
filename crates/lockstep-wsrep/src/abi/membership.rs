//! The membership service: the members of the present view and their states, not ordered with deliveries, for
//! administrators' tools.

use crate::abi::entry_points::enter;
use crate::lifecycle::state_files::uuid_out;
use crate::provider::Provider;
use lockstep_abi::*;
use lockstep_node::{LocalState, MemberNow, MembershipNow, ViewStatus as NodeViewStatus};
use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// Tells the server where to ask.
///
/// # Safety
/// `service` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_init_membership_service_v1(
    service: *mut MembershipServiceV1,
) -> Status {
    // SAFETY: the caller vouches for it.
    let Some(service) = (unsafe { service.as_mut() }) else { return Status::NODE_FAIL };
    service.get_membership = Some(get_membership);
    Status::OK
}

/// The server asks no more. Nothing is kept.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_membership_service_v1() {}

/// As [`wsrep_init_membership_service_v1`], with members' flags.
///
/// # Safety
/// `service` is null or points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn wsrep_init_membership_service_v2(
    service: *mut MembershipServiceV2,
) -> Status {
    // SAFETY: the caller vouches for it.
    let Some(service) = (unsafe { service.as_mut() }) else { return Status::NODE_FAIL };
    service.get_membership = Some(get_membership_v2);
    Status::OK
}

/// The server asks no more. Nothing is kept.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn wsrep_deinit_membership_service_v2() {}

fn member_status(state: Option<LocalState>) -> MemberStatus {
    match state {
        None | Some(LocalState::Initialized) => MemberStatus::UNDEFINED,
        Some(LocalState::Joining) => MemberStatus::JOINER,
        Some(LocalState::Donor) => MemberStatus::DONOR,
        Some(LocalState::Joined) => MemberStatus::JOINED,
        Some(LocalState::Synced) => MemberStatus::SYNCED,
        Some(LocalState::Error) => MemberStatus::ERROR,
    }
}

fn member(now: &MemberNow) -> MemberInfoExt {
    MemberInfoExt {
        base: MemberInfo::new(uuid_out(now.view_uuid), &now.name, &now.incoming),
        last_committed: now.finished,
        status: member_status(now.state),
    }
}

fn member_v2(now: &MemberNow) -> MemberInfoExtV2 {
    let MemberInfoExt { base, last_committed, status } = member(now);
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let flags = flag(now.leader, MEMBER_FLAG_REP)
        | flag(!now.arbitrator, MEMBER_FLAG_CLA)
        | flag(now.arbitrator, MEMBER_FLAG_STATELESS);
    MemberInfoExtV2 { base, last_committed, status, flags }
}

fn ask(provider: &Provider) -> Option<MembershipNow> {
    provider.cx().node().and_then(|node| node.membership())
}

fn view_status(status: NodeViewStatus) -> ViewStatus {
    match status {
        NodeViewStatus::Primary => ViewStatus::PRIMARY,
        NodeViewStatus::NonPrimary => ViewStatus::NON_PRIMARY,
        NodeViewStatus::Disconnected => ViewStatus::DISCONNECTED,
    }
}

/// Makes room for so many members behind `head` bytes of the structure, in memory of the caller's; null: there is none.
///
/// # Safety
/// The allocator may be called for any size.
unsafe fn room(
    allocator: AllocatorCb,
    head: usize,
    members: usize,
    each: usize,
    least: usize,
) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { allocator((head + members * each).max(least)) }
}

macro_rules! query {
    ($name:ident, $membership:ident, $member:ty, $convert:ident) => {
        unsafe extern "C-unwind" fn $name(
            wsrep: *mut Wsrep,
            allocator: Option<AllocatorCb>,
            membership: *mut *mut $membership,
        ) -> Status {
            let Some(allocator) = allocator.filter(|_| !membership.is_null()) else {
                return Status::NODE_FAIL;
            };
            let (head, each) = (offset_of!($membership, members), size_of::<$member>());
            // SAFETY: as for every entry point.
            let Some(now) = (unsafe { enter(wsrep, "get_membership", None, ask) }) else {
                return Status::NODE_FAIL;
            };
            // SAFETY: by the API.
            let memory = unsafe { room(allocator, head, now.members.len(), each, size_of::<$membership>()) };
            if memory.is_null() {
                return Status::NODE_FAIL;
            }
            let out: *mut $membership = memory.cast();
            // SAFETY: an allocator gives memory for any type, enough for the head and all the members; nobody else
            // knows of it yet. The place for the answer is the caller's.
            unsafe {
                (&raw mut (*out).group_uuid).write(uuid_out(now.gtid.uuid));
                (&raw mut (*out).last_received).write(now.gtid.seqno);
                (&raw mut (*out).updated).write(now.gtid.seqno);
                (&raw mut (*out).state).write(view_status(now.status));
                (&raw mut (*out).num).write(now.members.len());
                let first: *mut $member = (&raw mut (*out).members).cast();
                for (at, each) in now.members.iter().enumerate() {
                    first.add(at).write($convert(each));
                }
                *membership = out;
            }
            Status::OK
        }
    };
}

query!(get_membership, Membership, MemberInfoExt, member);
query!(get_membership_v2, MembershipV2, MemberInfoExtV2, member_v2);
