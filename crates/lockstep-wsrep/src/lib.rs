//! `liblockstep.so`: connects the wsrep provider API, version 26, with a [`lockstep_node::Node`].
//!
//! `abi/entry_points` has every function of the API. It calls `trx/local` for a transaction from its first key to its
//! release, `ddl/statement` for a statement in total order, and `apply/applier` for the server's applier threads.
//! `apply/sequence` keeps the positions of seqnos on their way through the server.
//!
//! Modules form layers in this order. None imports a later one.
//!
//! 1. Components: `host`, `apply/sequence`, `ddl`, `trx/table`, ...
//! 2. `context` groups the components that every call needs.
//! 3. The server's calls: `trx/local`, `ddl/statement`, `lifecycle/control`, ...
//! 4. `provider` owns all components.
//! 5. `apply/applier`, `lifecycle/connect` and `abi`.
//!
//! Not implemented: preordered events, group locks, snapshots, read views, non-blocking statements.

mod abi;
mod apply;
mod context;
mod ddl;
#[cfg(test)]
mod fuzz;
mod guard;
mod host;
mod lifecycle;
mod provider;
mod server_symbol;
mod status;
mod sync;
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
