//! Local transactions, from their first key to `release`.

pub(crate) mod append;
pub(crate) mod local;
pub(crate) mod pace;
pub(crate) mod rollbacks;
pub(crate) mod state;
pub(crate) mod submit;
pub(crate) mod table;
pub(crate) mod unknown_outcome;
pub(crate) mod view_abort;
pub(crate) mod write_access;

#[cfg(test)]
mod tests;
