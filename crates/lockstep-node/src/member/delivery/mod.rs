//! Between the log and the front end: submissions, and entries delivered in order.

pub(in crate::member) mod apply_hold;
pub(in crate::member) mod causal_reads;
pub(in crate::member) mod clocks;
pub(in crate::member) mod feed;
pub(in crate::member) mod lag;
pub(in crate::member) mod low_water_mark;
pub(in crate::member) mod requests;
pub(in crate::member) mod submissions;
