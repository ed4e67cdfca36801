//! What the node's threads and the front end's share.

use crate::io::inbox::Inbox;
use crate::io::published::Published;
use crate::io::server_signals::ServerSignals;
use crate::queue::Deliveries;

pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) deliveries: Deliveries,
    pub(crate) published: Published,
    pub(crate) signals: ServerSignals,
}
