//! From `init` to the end of the process: connecting, options, state transfers, state files, positions.

pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod database_log;
pub(crate) mod identity;
pub(crate) mod innodb_position;
pub(crate) mod last_view;
pub(crate) mod node_slot;
pub(crate) mod option_change;
pub(crate) mod option_sync;
pub(crate) mod process_exit;
pub(crate) mod receivers;
pub(crate) mod saved_options;
pub(crate) mod settings;
pub(crate) mod start_position;
pub(crate) mod state_files;
pub(crate) mod state_transfer;
pub(crate) mod stop;
