//! The files of the router: they pass inputs to components and carry the outputs on.

mod connection;
mod inputs;
mod leading;
