//! State transfers: the joiner asks the leader, the leader chooses a donor, the donor's server sends. Only requests and
//! results pass through here; the data goes from server to server.

use crate::api::{Delivery, LocalState};
use crate::member::membership::connection_state::ConnectionState;
use crate::member::{Level, Member, Micros, NodeMessage};
use crate::wire::Health;
use bytes::Bytes;
use lockstep_core::{Gtid, MemberId, SEQNO_UNDEFINED, Seqno, ViewUuid};

/// No member can donate right now: ask again.
pub(in crate::member) const AGAIN: i32 = -11;
/// The donor has accepted the request.
const ACCEPTED: i32 = 1;
/// The named donor is not there.
const UNREACHABLE: i32 = -113;
/// Why a donor whose apply hold lies before the joiner's starting point does not donate.
const HELD_BACK: &str = "entries are kept from the donor's server: apply.paused, apply.delay or apply.until";
/// How often a joiner asks again.
const ASK_AGAIN: Micros = 1_000_000;
/// A joiner may lack only a donor's confirmation, and be able to go on by its log. It gives up after this long if no
/// member is Synced: the members may all be waiting for each other.
const CONFIRMATION_TIMEOUT: Micros = 60_000_000;
/// A donor that is not connected for this long is given up.
const DONOR_TIMEOUT: Micros = 15_000_000;

/// A donation by this member.
#[derive(Debug)]
struct Donation {
    id: u64,
    joiner: MemberId,
    /// The joiner's view UUID: another connection makes another request, even with the same text.
    view_uuid: Option<ViewUuid>,
    at_least: Seqno,
    position: Seqno,
    request: Bytes,
    handed_over: bool,
}

/// A donor chosen by the leader.
#[derive(Debug)]
struct Choice {
    joiner: MemberId,
    view_uuid: Option<ViewUuid>,
    donor: MemberId,
    at_least: Seqno,
}

/// How many choices are remembered.
const CHOICES_MAX: usize = 64;

/// This member's own request for state.
#[derive(Debug)]
struct Pending {
    request: Bytes,
    donor: String,
    since: Micros,
    /// When to ask (again); `None` while a donation is under way.
    ask_at: Option<Micros>,
    donor_id: Option<MemberId>,
    /// The donor's view UUID: a restarted donor has forgotten the donation.
    donor_view_uuid: Option<ViewUuid>,
}

/// The state transfers in which this member takes part, as the joiner, the donor or the leader.
#[derive(Debug)]
pub(in crate::member) struct Transfers {
    donations: Vec<Donation>,
    /// The id of the last donation.
    donation_ids: u64,
    choices: Vec<Choice>,
    request: Option<Pending>,
    /// With this position, the joiner needs only the donor's confirmation; −1 if it needs the state itself.
    bypass: Seqno,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers {
            donations: Vec::new(),
            donation_ids: 0,
            choices: Vec::new(),
            request: None,
            bypass: SEQNO_UNDEFINED,
        }
    }
}

impl Transfers {
    /// Whether this member donates, or is about to.
    pub(in crate::member) fn is_donating(&self) -> bool {
        !self.donations.is_empty()
    }

    /// This member has left: its donations and its own request end.
    pub(in crate::member) fn end(&mut self) {
        self.donations.clear();
        self.request = None;
    }

    /// The database needs state, or at `bypass` only a donor's confirmation.
    pub(in crate::member) fn set_bypass(&mut self, bypass: Option<Seqno>) {
        self.bypass = bypass.unwrap_or(SEQNO_UNDEFINED);
    }
}

impl Member {
    /// Takes the server's request for state.
    pub(crate) fn request_state(&mut self, request: Bytes, donor: String) {
        let since = self.ctx.now;
        self.recovery.transfers.request = Some(Pending {
            request,
            donor,
            since,
            ask_at: Some(since),
            donor_id: None,
            donor_view_uuid: None,
        });
    }

    pub(in crate::member) fn donations_step(&mut self) {
        if let Some(pending) = &mut self.recovery.transfers.request
            && pending.ask_at.is_some_and(|at| at <= self.ctx.now)
            && let Some(leader) = self.ctx.raft.leader()
        {
            // This member's log will begin below the present commit index, so the state must be at least as new.
            let at_least = self.ctx.raft.committed_state().seqno;
            let message = NodeMessage::StateRequest {
                donor: pending.donor.clone(),
                at_least,
                position: self.recovery.transfers.bypass,
                request: pending.request.clone(),
            };
            pending.ask_at = Some(self.ctx.now + 10 * ASK_AGAIN);
            pending.donor_id = None;
            self.tell(leader, &message);
        }
        let delivered = self.deliverer.delivered();
        if self.deliverer.is_running() && delivered <= self.ctx.raft.committed_state().seqno {
            let ready: Vec<usize> = (0..self.recovery.transfers.donations.len())
                .filter(|&at| {
                    !self.recovery.transfers.donations[at].handed_over
                        && self.recovery.transfers.donations[at].at_least <= delivered
                })
                .collect();
            for at in ready {
                let donation = &mut self.recovery.transfers.donations[at];
                donation.handed_over = true;
                let Donation { id, joiner, at_least, position, .. } = *donation;
                let request = donation.request.clone();
                let joiner = self.ctx.name_of(&joiner);
                let uuid = self.ctx.raft.tail_state().history;
                let bypass = (position >= 0).then_some(Gtid { uuid, seqno: position });
                self.ctx.log(
                    Level::Info,
                    match bypass {
                        Some(gtid) => format!("tells {joiner} to go on from {gtid} by the log"),
                        None => format!("donates its state to {joiner}"),
                    },
                );
                self.ctx.deliver(Delivery::Donate { id, request, joiner, at_least, bypass });
            }
        }
        self.give_up_held_donations();
    }

    /// Refuses accepted donations that an apply hold delays: an accepted joiner asks no other member, and the hold may
    /// last for any time.
    fn give_up_held_donations(&mut self) {
        if !self.ctx.is_held_back() {
            return;
        }
        let (begun, held) =
            std::mem::take(&mut self.recovery.transfers.donations).into_iter().partition(|d| d.handed_over);
        self.recovery.transfers.donations = begun;
        for Donation { joiner, .. } in held {
            self.ctx.log(
                Level::Info,
                format!("does not donate its state to {}: {HELD_BACK}", self.ctx.name_of(&joiner)),
            );
            self.tell(joiner, &refusal(AGAIN, HELD_BACK));
        }
    }

    /// Chooses a donor: a Synced member that was named; else another Synced one, preferably in the joiner's zone. As a
    /// last resort the leader itself, or a member under an apply hold.
    pub(in crate::member) fn find_donor(
        &mut self,
        joiner: MemberId,
        donor: &str,
        at_least: Seqno,
        position: Seqno,
        request: Bytes,
    ) {
        if !self.ctx.raft.is_leader() {
            return self.tell(joiner, &refusal(AGAIN, "the member that was asked no longer leads"));
        }
        // A repeated request gets the same donor while that is donating. The answer may have been lost, or the donor
        // cannot reach the joiner.
        let view_uuid = self.view_uuid_of(&joiner);
        if let Some(choice) =
            self.recovery.transfers.choices.iter().find(|c| c.joiner == joiner && c.view_uuid == view_uuid)
        {
            let donor = choice.donor;
            let donates = self.health_of(&donor).is_some_and(|health| health.state == LocalState::Donor);
            if donates && !self.is_held_back_below(&donor, choice.at_least) {
                return self.tell(donor, &NodeMessage::Donate { joiner, at_least, position, request });
            }
        }
        let names: Vec<&str> = donor.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        let anyone = names.is_empty() || donor.trim_end().ends_with(',');
        let zone = self.ctx.peers.get(&joiner).map(|p| p.hello.zone);
        let mut candidates: Vec<(u8, MemberId, String)> = self
            .ctx
            .peers
            .values()
            .filter(|p| p.hello.id != joiner && !p.hello.arbitrator && !p.leaving())
            .filter(|p| p.health.is_some_and(|h| h.state == LocalState::Synced))
            .map(|p| ((Some(p.hello.zone) != zone) as u8, p.hello.id, p.hello.name.clone()))
            .collect();
        // As the last resort, a member under an apply hold that has reached the joiner's starting point.
        let is_far_enough = |h: &Health| {
            h.state == LocalState::Donor && h.held_back && h.has_state && h.delivered >= at_least
        };
        candidates.extend(
            self.ctx
                .peers
                .values()
                .filter(|p| {
                    p.hello.id != joiner && !p.leaving() && p.health.as_ref().is_some_and(is_far_enough)
                })
                .map(|p| (4, p.hello.id, p.hello.name.clone())),
        );
        if joiner != self.ctx.me.id && !self.ctx.me.arbitrator && self.is_synced_but_for_hold() {
            let far = (Some(self.ctx.me.zone) != zone) as u8;
            candidates.push((far + 2, self.ctx.me.id, self.ctx.me.name.clone()));
        }
        candidates.sort();
        let named = names.iter().find_map(|name| candidates.iter().find(|c| c.2 == *name));
        let chosen = named.or_else(|| candidates.first().filter(|_| anyone)).map(|c| (c.1, c.2.clone()));
        let joiner_name = self.ctx.name_of(&joiner);
        match chosen {
            Some((donor, name)) => {
                self.ctx.log(Level::Info, format!("{name} is to donate state to {joiner_name}"));
                self.recovery.transfers.choices.retain(|c| c.joiner != joiner);
                self.recovery.transfers.choices.truncate(CHOICES_MAX - 1);
                self.recovery.transfers.choices.insert(0, Choice { joiner, view_uuid, donor, at_least });
                self.tell(donor, &NodeMessage::Donate { joiner, at_least, position, request });
            }
            None => {
                let known = |n: &&str| self.ctx.raft.membership().by_name(n).is_some();
                let (code, text) = if !anyone && !names.iter().any(known) {
                    (UNREACHABLE, format!("no member is named {donor}: correct wsrep_sst_donor"))
                } else {
                    (AGAIN, "no member is Synced and free to donate".to_string())
                };
                self.tell(joiner, &refusal(code, &text));
            }
        }
    }

    pub(in crate::member) fn asked_to_donate(
        &mut self,
        joiner: MemberId,
        at_least: Seqno,
        position: Seqno,
        request: Bytes,
    ) {
        let view_uuid = self.view_uuid_of(&joiner);
        if self.recovery.transfers.donations.iter().any(|d| d.joiner == joiner && d.view_uuid == view_uuid) {
            return self.tell(joiner, &accepted());
        }
        let free = self.is_synced_but_for_hold() || self.local_state() == LocalState::Joined;
        if !free || self.roster.leave.has_begun() {
            return self.tell(joiner, &refusal(AGAIN, "the donor is busy"));
        }
        if self.is_held_back_below(&self.ctx.me.id, at_least) {
            return self.tell(joiner, &refusal(AGAIN, HELD_BACK));
        }
        self.recovery.transfers.donation_ids += 1;
        let id = self.recovery.transfers.donation_ids;
        self.recovery.transfers.donations.push(Donation {
            id,
            joiner,
            view_uuid,
            at_least,
            position,
            request,
            handed_over: false,
        });
        self.tell(joiner, &accepted());
    }

    /// Whether a member is under an apply hold before this seqno, so that it has not begun a donation that needs it.
    fn is_held_back_below(&self, id: &MemberId, seqno: Seqno) -> bool {
        self.health_of(id).is_some_and(|health| health.held_back && health.delivered < seqno)
    }

    fn view_uuid_of(&self, id: &MemberId) -> Option<ViewUuid> {
        self.ctx.peers.get(id).map(|peer| peer.hello.view_uuid)
    }

    /// The front end's server has sent its state, or failed to.
    pub(crate) fn donation_done(&mut self, id: u64, result: Result<Gtid, i32>) {
        let Some(at) = self.recovery.transfers.donations.iter().position(|d| d.id == id) else { return };
        let donation = self.recovery.transfers.donations.remove(at);
        let name = self.ctx.name_of(&donation.joiner);
        let message = match result {
            Ok(gtid) => {
                self.ctx.log(Level::Info, format!("state sent to {name} up to {gtid}"));
                NodeMessage::Donated { code: 0, gtid, text: String::new() }
            }
            Err(code) => {
                self.ctx.log(
                    Level::Warn,
                    format!("sending state to {name} failed with {code}; see the script's output"),
                );
                refusal(if code < 0 { code } else { -code.max(1) }, "the donor's script failed; see its log")
            }
        };
        // A restarted joiner waits for another answer.
        if self
            .view_uuid_of(&donation.joiner)
            .is_none_or(|view_uuid| donation.view_uuid.is_none_or(|of| of == view_uuid))
        {
            self.tell(donation.joiner, &message);
        }
        if let ConnectionState::Running { primary, .. } = self.ctx.connection {
            self.ctx.connection = ConnectionState::Running { primary, synced: false };
        }
    }

    /// Handles an answer to this member's request.
    pub(in crate::member) fn donated(&mut self, from: MemberId, code: i32, gtid: Gtid, text: String) {
        let name = self.ctx.name_of(&from);
        let again = self.ctx.now + ASK_AGAIN;
        let view_uuid = self.view_uuid_of(&from);
        let no_donor = self.recovery.transfers.bypass >= 0 && !self.somebody_may_donate();
        let Some(pending) = &mut self.recovery.transfers.request else { return };
        // While a donation is under way, only its donor's answers count: two overlapping transfers would corrupt the
        // state.
        if pending.donor_id.is_some_and(|donor| donor != from) {
            return;
        }
        match code {
            ACCEPTED => {
                pending.ask_at = None;
                pending.donor_id = Some(from);
                pending.donor_view_uuid = view_uuid;
                self.ctx.log(Level::Info, format!("{name} donates"));
            }
            0 => self.ctx.log(Level::Info, format!("{name} has sent its state up to {gtid}")),
            AGAIN if no_donor && self.ctx.now.saturating_sub(pending.since) > CONFIRMATION_TIMEOUT => {
                self.recovery.transfers.request = None;
                self.ctx.deliver(Delivery::StateFailed(format!(
                    "for {} s there was no Synced member to confirm that this one may go on by its log: this server \
                     ends. After a restart it goes on by its log if there is still none",
                    CONFIRMATION_TIMEOUT / 1_000_000
                )));
            }
            AGAIN => {
                pending.ask_at = Some(again);
                pending.donor_id = None;
                self.ctx.log(Level::Info, format!("no donor yet ({text}): asks again"));
            }
            _ => {
                self.recovery.transfers.request = None;
                self.ctx.deliver(Delivery::StateFailed(format!("{name}: {text} (code {code})")));
            }
        }
    }

    /// A peer's connection ended. If its transfer had begun, the stream breaks, which the own server's script notices;
    /// otherwise another donor is asked.
    pub(in crate::member) fn donor_may_be_gone(&mut self, id: MemberId) {
        self.recovery.transfers.donations.retain(|d| d.handed_over || d.joiner != id);
        // The donor's script may go on although the connection broke: two overlapping transfers would corrupt the
        // state.
        let timeout = self.ctx.now + DONOR_TIMEOUT;
        if let Some(pending) = &mut self.recovery.transfers.request
            && pending.donor_id == Some(id)
        {
            pending.ask_at = Some(timeout);
        }
    }

    /// A peer is connected (again).
    pub(in crate::member) fn donor_is_back(&mut self, id: MemberId) {
        let view_uuid = self.view_uuid_of(&id);
        if let Some(pending) = &mut self.recovery.transfers.request
            && pending.donor_id == Some(id)
        {
            if pending.donor_view_uuid == view_uuid {
                pending.ask_at = None;
            } else {
                pending.ask_at = Some(self.ctx.now);
                pending.donor_id = None;
            }
        }
        if self.recovery.transfers.donations.iter().any(|d| d.joiner == id && d.view_uuid == view_uuid) {
            self.tell(id, &accepted());
        }
    }

    /// The server has received its state, or failed to.
    pub(crate) fn state_received(&mut self, result: Result<Gtid, i32>) {
        self.recovery.transfers.request = None;
        let ConnectionState::NeedState { primary } = self.ctx.connection else { return };
        let gtid = match result {
            Ok(gtid) if gtid.is_defined() => gtid,
            Ok(_) => {
                return self.fail("the state transfer ended without a position: start this server again");
            }
            Err(code) => {
                return self.fail(&format!("the state transfer failed ({code}): see the SST script's lines"));
            }
        };
        let history = self.ctx.raft.tail_state().history;
        if gtid.uuid != history {
            return self
                .fail(&format!("the state that was received is of history {}, not {history}", gtid.uuid));
        }
        let bases: Vec<lockstep_core::snapshot::StateSnapshot> =
            self.ctx.raft.segment_bases().cloned().collect();
        match self.deliverer.start(&bases, self.ctx.raft.committed_state(), gtid.seqno) {
            Ok(()) => {
                self.ctx.log(Level::Info, format!("state received up to seqno {}", gtid.seqno));
                self.ctx.connection = ConnectionState::Running { primary, synced: false };
                self.recovery.votes.begin(
                    gtid.seqno,
                    self.ctx.raft.last_index(),
                    self.recovery.transfers.bypass != gtid.seqno,
                );
                // The server finds the donor's last view in the transferred state.
                self.roster.views_shown.primary_seen();
            }
            Err(text) => self.fail(&text),
        }
    }
}

fn accepted() -> NodeMessage {
    NodeMessage::Donated { code: ACCEPTED, gtid: Gtid::UNDEFINED, text: String::new() }
}

fn refusal(code: i32, text: &str) -> NodeMessage {
    NodeMessage::Donated { code, gtid: Gtid::UNDEFINED, text: text.to_string() }
}
