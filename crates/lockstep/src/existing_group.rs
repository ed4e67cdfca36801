//! Before a member founds a group: whether a group of that name exists already.
//!
//! A member whose directory was lost, and that still has `--new-cluster` in its arguments, would found a second group beside the
//! one that goes on without it. Both would acknowledge, each by itself.

use crate::log_member::Plan;
use lockstep_node::net::{Config, Event, Reactor, Reason, TlsConfig, TlsIdentity};
use lockstep_node::{Hello, random_uuid};
use std::time::{Duration, Instant};

/// How long the members in `--address` may take to answer. Members that do not run refuse at once.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
/// How often the time is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A member that has a log of the group.
#[derive(Debug)]
pub(crate) struct ExistingMember {
    name: String,
    address: String,
}

impl ExistingMember {
    /// Why the member does not found the group. `option` would let it do so.
    pub(crate) fn refusal(&self, group: &str, option: &str) -> String {
        format!(
            "{option} would found the group {group} a second time: its member {} at {} has a log already. Start this member \
             without {option}: then it joins that group. To begin another one, give it another name",
            self.name, self.address
        )
    }
}

/// Asks the members that the plan names. `None` if none of them answers, or those that do have no log yet.
///
/// # Errors
/// A text for people.
pub(crate) fn existing_member(plan: &Plan) -> Result<Option<ExistingMember>, String> {
    // The introduction names a log that nobody has, so that it is refused and not taken for a joiner's.
    let unknown = || random_uuid().map_err(|e| e.to_string());
    let hello = Hello {
        id: unknown()?,
        incarnation: 0,
        view_uuid: unknown()?,
        history: unknown()?,
        log_id: unknown()?,
        parents: Vec::new(),
        forks: Vec::new(),
        last_index: 0,
        name: plan.name.clone(),
        address: String::new(),
        incoming: String::new(),
        zone: 0,
        wants_vote: false,
        arbitrator: true,
        donates: false,
        device: false,
    };
    let mut net = Config::new(plan.group.clone(), hello.to_bytes(), 1);
    if let Some(tls) = plan.options.tls() {
        let identity = TlsIdentity::load(&tls.files).map_err(|e| e.to_string())?;
        net.tls = Some(TlsConfig { identity: identity.into(), dynamic: tls.dynamic });
    }
    let failed = |e| format!("the network cannot be used: {e}");
    let mut reactor = Reactor::new(net).map_err(failed)?;
    plan.peers.iter().for_each(|peer| reactor.keep(peer));
    let (end, mut events) = (Instant::now() + ANSWERED_WITHIN, Vec::new());
    while Instant::now() < end {
        reactor.poll(Some(LOOK), &mut events).map_err(failed)?;
        for event in events.drain(..) {
            let Event::PeerUp { conn, hello } = event else { continue };
            reactor.reject(conn, Reason::Busy, "this member only asks who is there");
            if let Ok(peer) = Hello::from_bytes(hello.blob)
                && !peer.log_id.is_nil()
            {
                reactor.flush();
                return Ok(Some(ExistingMember { name: peer.name, address: peer.address }));
            }
        }
    }
    Ok(None)
}
