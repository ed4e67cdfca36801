//! How far copies are behind when a load ends: the same in each experiment that measures it.

/// The field of a measurement.
pub(super) const CAUGHT_UP: &str = "seconds_until_the_copies_had_it_all";

pub(super) const CAUGHT_UP_HEADING: &str = "How long until the copies had it all";

/// The text above the table.
pub(super) const CAUGHT_UP_TEXT: &str = "From the end of the load until every copy had applied what was written, to some milliseconds; \
     then rows were compared. Galera holds its writer up while a member is behind (flow control). Neither MariaDB's replica nor a \
     member of ours does: the writer's rate is not the copy's where this is more than a moment.";
