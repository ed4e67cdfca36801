//! Entries and states, and what the log keeps of them. Both share their bytes: nothing is encoded here.

use lockstep_core::Entry;
use lockstep_core::codec::DecodeError;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_log::{Record, Reset};

/// The record of an entry.
pub(crate) fn record(entry: &Entry) -> Record {
    Record { index: entry.index, term: entry.term, body: entry.body().clone() }
}

/// The entry of a record.
///
/// # Errors
/// [`DecodeError`] where the record's body is not an entry's.
pub(crate) fn entry(record: Record) -> Result<Entry, DecodeError> {
    Entry::decode_body(record.index, record.term, record.body)
}

/// The state that a log, or a rescue file, begins with.
pub(crate) fn reset(state: &StateSnapshot) -> Reset {
    Reset { base: state.to_bytes(), index: state.index, term: state.term }
}
