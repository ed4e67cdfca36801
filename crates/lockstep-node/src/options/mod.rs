//! `wsrep_provider_options`: one table ([`table`]) from which parsing, `SHOW`, validation and `docs/options.md` come.
//!
//! The text is Galera's: `name = value; name = value`. Every name that Galera knows is known here, so that a
//! configuration written for it starts; what such an option does here, its row says. An unknown name is an error.

mod edit;
mod effective;
mod error;
mod policy;
mod table;
mod value;

pub use edit::{Change, nearest_of};
pub use effective::{Note, Options};
pub use error::OptionError;
pub use policy::PolicyChange;
pub use table::{Class, Refusal, Row, When, rows};
pub use value::{Kind, Value};

#[cfg(test)]
mod docs;
#[cfg(test)]
mod tests;
