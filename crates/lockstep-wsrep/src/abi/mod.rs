//! The C ABI: entry points that the server calls, services that it offers, and the guard against panics.

pub(crate) mod allocator;
pub(crate) mod entry_points;
pub(crate) mod events;
pub(crate) mod guard;
pub(crate) mod membership;
pub(crate) mod parameters;
pub(crate) mod services;
