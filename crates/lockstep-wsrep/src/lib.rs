//! `liblockstep.so`: the wsrep provider API, version 26, on one side, a [`lockstep_node::Node`] on the other.
//!
//! Start reading at `abi/entry_points` (every function of the API), then `trx` with `trx/local` (a transaction from its
//! first key to its release), `apply/applier` (the server's applier threads) and `apply/monitor` (commit order).
//! The code that fulfils an expectation of the server names it.
//!
//! Answered with `NOT_IMPLEMENTED`: preordered events, group locks, snapshots, read views, non-blocking statements.

mod abi;
mod apply;
mod ddl;
#[cfg(test)]
mod fuzz;
mod lifecycle;
mod provider;
mod status;
mod trx;

pub use abi::entry_points::{VersionText, wsrep_interface_version, wsrep_loader};
pub use abi::events::{wsrep_deinit_event_service_v1, wsrep_init_event_service_v1};
pub use abi::membership::{
    wsrep_deinit_membership_service_v1, wsrep_deinit_membership_service_v2, wsrep_init_membership_service_v1,
    wsrep_init_membership_service_v2,
};
pub use abi::parameters::{wsrep_deinit_config_service_v1, wsrep_init_config_service_v1};
pub use abi::services::{
    wsrep_deinit_allowlist_service_v1, wsrep_init_allowlist_service_v1, wsrep_node_isolation_mode_set_v1,
};
