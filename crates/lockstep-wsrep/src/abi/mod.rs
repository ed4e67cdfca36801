//! The C ABI: entry points that the server calls, and the services that it offers.

pub(crate) mod allocator;
pub(crate) mod entry_points;
pub(crate) mod events;
pub(crate) mod membership;
pub(crate) mod parameters;
pub(crate) mod services;
