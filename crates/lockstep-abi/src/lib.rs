//! The C layouts of the wsrep provider API, version 26: what a MariaDB server and a wsrep provider exchange.
//!
//! Types and function-pointer signatures only, plus the few functions that both sides need (text forms of UUID
//! and GTID, buffers, views). Names follow Rust's conventions: `wsrep_trx_meta_t` is [`TrxMeta`], the function
//! table `wsrep_st` is [`Wsrep`]. Three rules hold throughout:
//!
//! * Every C function pointer is `Option<unsafe extern "C-unwind" fn ..>`, where a null pointer is `None`. The server's
//!   C++ may throw through a provider's frames: its `fatal_error` does so on purpose.
//! * A C enum is a transparent integer type with associated constants, never a Rust enum. A value outside the list that
//!   arrives from the other side must not be undefined behaviour.
//! * Everything here is for 64-bit targets; [`layout`] refuses to compile elsewhere.

mod api;
pub mod layout;
mod services;
mod text;
mod types;

pub use api::*;
pub use services::*;
pub use text::{GtidParseError, UuidParseError};
pub use types::*;
