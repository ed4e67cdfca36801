//! The binlog front end.

pub mod stream;
