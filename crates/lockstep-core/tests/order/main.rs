//! Scenarios of the order core: each a short story on a network in memory.

mod happy;
mod net;
