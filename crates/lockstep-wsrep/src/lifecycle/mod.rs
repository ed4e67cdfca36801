//! From `init` to the end of the process: connecting, options, state files, positions.

pub(crate) mod connect;
pub(crate) mod control;
pub(crate) mod innodb_position;
pub(crate) mod option_sync;
pub(crate) mod process_exit;
pub(crate) mod saved_options;
pub(crate) mod settings;
pub(crate) mod state_files;
pub(crate) mod stop;
