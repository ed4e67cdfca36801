//! State transfers: the joiner asks the leader, the leader chooses a donor, the donor's server sends. Only requests and
//! results pass through here; the data goes from server to server.

use crate::api::Level;
use crate::api::{Delivery, LocalState};
use crate::member::context::Context;
use crate::member::facts::Standing;
use crate::wire::NodeMessage;
use crate::wire::{Health, Hello};
use bytes::Bytes;
use lockstep_core::{Gtid, MemberId, Micros, SEQNO_UNDEFINED, Seqno, ViewUuid};

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

/// The state that a joiner needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::member) struct Wanted {
    /// The joiner's log begins below this seqno.
    pub(in crate::member) at_least: Seqno,
    /// The position with which a confirmation suffices; −1 if there is none.
    pub(in crate::member) position: Seqno,
    /// The joiner's server's own request.
    pub(in crate::member) request: Bytes,
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

/// A state that the own server has received, and from which delivery has not begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) struct Received {
    /// Its position.
    pub(in crate::member) seqno: Seqno,
    /// It was copied from a donor; a donor's confirmation copies nothing.
    pub(in crate::member) copied: bool,
}

/// The state transfers in which this member takes part, as the joiner, the donor or the leader.
#[derive(Debug)]
pub(in crate::member) struct Transfers {
    donations: Vec<Donation>,
    /// Joiners whose donation this member had accepted and gave up before it began, with their view UUIDs. The news may
    /// be lost with the connection, so it is repeated when they are back.
    given_up: Vec<(MemberId, Option<ViewUuid>)>,
    /// The id of the last donation.
    donation_ids: u64,
    choices: Vec<Choice>,
    request: Option<Pending>,
    received: Option<Received>,
    /// With this position, the joiner needs only the donor's confirmation; −1 if it needs the state itself.
    bypass: Seqno,
}

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers {
            donations: Vec::new(),
            given_up: Vec::new(),
            donation_ids: 0,
            choices: Vec::new(),
            request: None,
            received: None,
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
        self.given_up.clear();
        self.request = None;
        self.received = None;
    }

    /// The server has received its state, or failed to. Returns the position with which it needed only a donor's
    /// confirmation, if so.
    pub(in crate::member) fn end_request(&mut self) -> Option<Seqno> {
        self.request = None;
        Some(self.bypass).filter(|bypass| *bypass >= 0)
    }

    /// The server has received this state.
    pub(in crate::member) fn set_received(&mut self, seqno: Seqno, copied: bool) {
        self.received = Some(Received { seqno, copied });
    }

    /// The state from which delivery is to begin, if the server has received one.
    pub(in crate::member) fn received(&self) -> Option<Received> {
        self.received
    }

    /// Delivery has begun.
    pub(in crate::member) fn end_received(&mut self) {
        self.received = None;
    }

    /// The database needs state, or at `bypass` only a donor's confirmation.
    pub(in crate::member) fn set_bypass(&mut self, bypass: Option<Seqno>) {
        self.bypass = bypass.unwrap_or(SEQNO_UNDEFINED);
    }
}

impl Transfers {
    /// Takes the server's request for state.
    pub(in crate::member) fn begin_request(&mut self, now: Micros, request: Bytes, donor: String) {
        let since = now;
        self.received = None;
        self.request = Some(Pending {
            request,
            donor,
            since,
            ask_at: Some(since),
            donor_id: None,
            donor_view_uuid: None,
        });
    }

    pub(in crate::member) fn step(&mut self, ctx: &mut Context, own: Standing) {
        if let Some(pending) = &mut self.request
            && pending.ask_at.is_some_and(|at| at <= ctx.now())
            && let Some(leader) = ctx.raft.leader()
        {
            // This member's log will begin below the present commit index, so the state must be at least as new.
            let at_least = ctx.raft.committed_state().seqno;
            let message = NodeMessage::StateRequest {
                donor: pending.donor.clone(),
                at_least,
                position: self.bypass,
                request: pending.request.clone(),
            };
            pending.ask_at = Some(ctx.now() + 10 * ASK_AGAIN);
            pending.donor_id = None;
            ctx.send(leader, &message);
        }
        let delivered = own.delivered;
        if own.delivering && delivered <= ctx.raft.committed_state().seqno {
            let ready: Vec<usize> = (0..self.donations.len())
                .filter(|&at| !self.donations[at].handed_over && self.donations[at].at_least <= delivered)
                .collect();
            for at in ready {
                let donation = &mut self.donations[at];
                donation.handed_over = true;
                let Donation { id, joiner, at_least, position, .. } = *donation;
                let request = donation.request.clone();
                let joiner = ctx.name_of(&joiner);
                let uuid = ctx.raft.tail_state().history;
                let bypass = (position >= 0).then_some(Gtid { uuid, seqno: position });
                ctx.log(
                    Level::Info,
                    match bypass {
                        Some(gtid) => format!("tells {joiner} to go on from {gtid} by the log"),
                        None => format!("donates its state to {joiner}"),
                    },
                );
                ctx.deliver(Delivery::Donate { id, request, joiner, at_least, bypass });
            }
        }
        self.give_up_held_donations(ctx);
    }

    /// Refuses accepted donations that an apply hold delays: an accepted joiner asks no other member, and the hold may
    /// last for any time.
    fn give_up_held_donations(&mut self, ctx: &mut Context) {
        if !ctx.is_held_back() {
            return;
        }
        for joiner in self.give_up(|_| true) {
            ctx.log(
                Level::Info,
                format!("does not donate its state to {}: {HELD_BACK}", ctx.name_of(&joiner)),
            );
            ctx.send(joiner, &refusal(AGAIN, HELD_BACK));
        }
    }

    /// Removes donations that have not begun. Returns their joiners.
    fn give_up(&mut self, which: impl Fn(&Donation) -> bool) -> Vec<MemberId> {
        let given_up = self.donations.extract_if(.., |d| !d.handed_over && which(d));
        let joiners: Vec<_> = given_up.map(|d| (d.joiner, d.view_uuid)).collect();
        self.given_up.extend_from_slice(&joiners);
        joiners.into_iter().map(|(joiner, _)| joiner).collect()
    }

    /// Chooses a donor: a Synced member that was named; else another Synced one, preferably in the joiner's zone. As a
    /// last resort the leader itself, or a member under an apply hold. A member with `gcs.stateless` is never chosen to
    /// copy its state. It is the very last resort for a confirmation, which copies nothing.
    pub(in crate::member) fn find_donor(
        &mut self,
        ctx: &mut Context,
        own: Standing,
        joiner: MemberId,
        donor: &str,
        wanted: Wanted,
    ) {
        let Wanted { at_least, position, request } = wanted;
        if !ctx.raft.is_leader() {
            return ctx.send(joiner, &refusal(AGAIN, "the member that was asked no longer leads"));
        }
        // A repeated request gets the same donor while that is donating. The answer may have been lost, or the donor
        // cannot reach the joiner.
        let view_uuid = ctx.peers.view_uuid_of(&joiner);
        if let Some(choice) = self.choices.iter().find(|c| c.joiner == joiner && c.view_uuid == view_uuid) {
            let donor = choice.donor;
            let donates = match donor == ctx.me().id {
                true => own.state == LocalState::Donor && may_serve(ctx.me(), position),
                false => ctx
                    .peers
                    .get(&donor)
                    .is_some_and(|p| may_serve(p.hello(), position) && p.state() == Some(LocalState::Donor)),
            };
            if donates && !is_held_back_below(ctx, own, &donor, choice.at_least) {
                return ctx.send(donor, &NodeMessage::Donate { joiner, at_least, position, request });
            }
        }
        let names: Vec<&str> = donor.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        let anyone = names.is_empty() || donor.trim_end().ends_with(',');
        let able = able_to_serve(ctx, own, &joiner, at_least);
        let (serving, stateless): (Vec<_>, Vec<_>) =
            able.into_iter().partition(|(_, hello)| may_serve(hello, position));
        let mut candidates: Vec<((bool, u8), MemberId, String)> = serving
            .into_iter()
            .map(|(rank, hello)| ((!hello.donates, rank), hello.id, hello.name.clone()))
            .collect();
        candidates.sort();
        let named = names.iter().find_map(|name| candidates.iter().find(|c| c.2 == *name));
        let chosen = named.or_else(|| candidates.first().filter(|_| anyone)).map(|c| (c.1, c.2.clone()));
        let joiner_name = ctx.name_of(&joiner);
        match chosen {
            Some((donor, name)) => {
                ctx.log(Level::Info, format!("{name} is to donate state to {joiner_name}"));
                self.choices.retain(|c| c.joiner != joiner);
                self.choices.truncate(CHOICES_MAX - 1);
                self.choices.insert(0, Choice { joiner, view_uuid, donor, at_least });
                ctx.send(donor, &NodeMessage::Donate { joiner, at_least, position, request });
            }
            None => {
                let known = |n: &&str| ctx.raft.membership().by_name(n).is_some();
                let (code, text) = if !anyone && !names.iter().any(known) {
                    (UNREACHABLE, format!("no member is named {donor}: correct wsrep_sst_donor"))
                } else {
                    let excluded = stateless.iter().map(|(_, hello)| &*hello.name);
                    (AGAIN, no_donor_text(excluded.filter(|name| anyone || names.contains(name)).collect()))
                };
                ctx.send(joiner, &refusal(code, &text));
            }
        }
    }

    pub(in crate::member) fn on_donate(
        &mut self,
        ctx: &mut Context,
        own: Standing,
        joiner: MemberId,
        wanted: Wanted,
    ) {
        let Wanted { at_least, position, request } = wanted;
        let view_uuid = ctx.peers.view_uuid_of(&joiner);
        if self.donations.iter().any(|d| d.joiner == joiner && d.view_uuid == view_uuid) {
            return ctx.send(joiner, &accepted());
        }
        let free = own.synced_but_for_hold || own.state == LocalState::Joined;
        if !free || own.leaving {
            return ctx.send(joiner, &refusal(AGAIN, "the donor is busy"));
        }
        if is_held_back_below(ctx, own, &ctx.me().id, at_least) {
            return ctx.send(joiner, &refusal(AGAIN, HELD_BACK));
        }
        self.given_up.retain(|(other, _)| *other != joiner);
        self.donation_ids += 1;
        let id = self.donation_ids;
        self.donations.push(Donation {
            id,
            joiner,
            view_uuid,
            at_least,
            position,
            request,
            handed_over: false,
        });
        ctx.send(joiner, &accepted());
    }

    /// The front end's server has sent its state, or failed to. Returns whether that donation was under way.
    pub(in crate::member) fn donation_done(
        &mut self,
        ctx: &mut Context,
        id: u64,
        result: Result<Gtid, i32>,
    ) -> bool {
        let Some(at) = self.donations.iter().position(|d| d.id == id) else { return false };
        let donation = self.donations.remove(at);
        let name = ctx.name_of(&donation.joiner);
        let message = match result {
            Ok(gtid) => {
                ctx.log(Level::Info, format!("state sent to {name} up to {gtid}"));
                NodeMessage::Donated { code: 0, gtid, text: String::new() }
            }
            Err(code) => {
                ctx.log(
                    Level::Warn,
                    format!("sending state to {name} failed with {code}; see the script's output"),
                );
                refusal(if code < 0 { code } else { -code.max(1) }, "the donor's script failed; see its log")
            }
        };
        // A restarted joiner waits for another answer.
        let view_uuid = ctx.peers.view_uuid_of(&donation.joiner);
        if view_uuid.is_none_or(|view_uuid| donation.view_uuid.is_none_or(|of| of == view_uuid)) {
            ctx.send(donation.joiner, &message);
        }
        true
    }

    /// Handles an answer to this member's request.
    pub(in crate::member) fn on_donated(
        &mut self,
        ctx: &mut Context,
        from: MemberId,
        code: i32,
        gtid: Gtid,
        text: String,
    ) {
        let name = ctx.name_of(&from);
        let again = ctx.now() + ASK_AGAIN;
        let view_uuid = ctx.peers.view_uuid_of(&from);
        let no_donor = self.bypass >= 0 && !ctx.somebody_may_confirm();
        let Some(pending) = &mut self.request else { return };
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
                ctx.log(Level::Info, format!("{name} donates"));
            }
            0 => ctx.log(Level::Info, format!("{name} has sent its state up to {gtid}")),
            AGAIN if no_donor && ctx.now().saturating_sub(pending.since) > CONFIRMATION_TIMEOUT => {
                self.request = None;
                ctx.deliver(Delivery::StateFailed(format!(
                    "for {} s there was no Synced member to confirm that this one may go on by its log: this {} ends. After a \
                     restart it goes on by its log if there is still none",
                    CONFIRMATION_TIMEOUT / 1_000_000,
                    ctx.terms().process
                )));
            }
            AGAIN => {
                pending.ask_at = Some(again);
                pending.donor_id = None;
                ctx.log(Level::Info, format!("no donor yet ({text}): asks again"));
            }
            _ => {
                self.request = None;
                ctx.deliver(Delivery::StateFailed(format!("{name}: {text} (code {code})")));
            }
        }
    }

    /// A peer's connection ended. If its transfer had begun, the stream breaks, which the own server's script notices;
    /// otherwise another donor is asked.
    pub(in crate::member) fn donor_may_be_gone(&mut self, now: Micros, id: MemberId) {
        self.give_up(|d| d.joiner == id);
        // The donor's script may go on although the connection broke: two overlapping transfers would corrupt the
        // state.
        let timeout = now + DONOR_TIMEOUT;
        if let Some(pending) = &mut self.request
            && pending.donor_id == Some(id)
        {
            pending.ask_at = Some(timeout);
        }
    }

    /// A peer is connected (again).
    pub(in crate::member) fn donor_is_back(&mut self, ctx: &mut Context, id: MemberId) {
        let view_uuid = ctx.peers.view_uuid_of(&id);
        if let Some(pending) = &mut self.request
            && pending.donor_id == Some(id)
        {
            if pending.donor_view_uuid == view_uuid {
                pending.ask_at = None;
            } else {
                pending.ask_at = Some(ctx.now());
                pending.donor_id = None;
            }
        }
        if self.donations.iter().any(|d| d.joiner == id && d.view_uuid == view_uuid) {
            ctx.send(id, &accepted());
        } else if self.given_up.contains(&(id, view_uuid)) {
            // The joiner may still count on this member, and asks no other one then.
            ctx.send(id, &refusal(AGAIN, "the connection was lost before the transfer began"));
        } else {
            self.given_up.retain(|(joiner, _)| *joiner != id);
        }
    }
}

/// The members whose state is new enough for a joiner, with their ranks: the lowest is the best.
fn able_to_serve<'a>(
    ctx: &'a Context,
    own: Standing,
    joiner: &MemberId,
    at_least: Seqno,
) -> Vec<(u8, &'a Hello)> {
    let zone = ctx.peers.get(joiner).map(|p| p.hello().zone);
    let far = |hello: &Hello| u8::from(Some(hello.zone) != zone);
    // As the last resort, a member under an apply hold that has reached the joiner's starting point.
    let is_far_enough =
        |h: &Health| h.state == LocalState::Donor && h.held_back && h.has_state && h.delivered >= at_least;
    let rank = |hello: &Hello, health: &Health| match health.state {
        LocalState::Synced => Some(far(hello)),
        _ => is_far_enough(health).then_some(4),
    };
    let peers = ctx.peers.values().filter(|p| !p.leaving());
    let ranked = peers.filter_map(|p| Some((rank(p.hello(), &p.health()?)?, p.hello())));
    let myself = own.synced_but_for_hold.then(|| (far(ctx.me()) + 2, ctx.me()));
    ranked.chain(myself).filter(|(_, hello)| hello.id != *joiner && !hello.arbitrator).collect()
}

/// Why no donor is chosen; `excluded`: members that only `gcs.stateless` excludes.
fn no_donor_text(mut excluded: Vec<&str>) -> String {
    excluded.sort_unstable();
    let excludes = match excluded[..] {
        [] => String::new(),
        _ => format!("; gcs.stateless=yes excludes {}", excluded.join(", ")),
    };
    format!("no member is Synced and free to donate{excludes}")
}

/// Whether a member may serve a joiner. With a position, the joiner needs only a confirmation.
fn may_serve(hello: &Hello, position: Seqno) -> bool {
    !hello.arbitrator && (hello.donates || position >= 0)
}

/// Whether a member is under an apply hold before this seqno, so that it has not begun a donation that needs it.
fn is_held_back_below(ctx: &Context, own: Standing, id: &MemberId, seqno: Seqno) -> bool {
    match *id == ctx.me().id {
        true => ctx.has_held_server() && own.delivered < seqno,
        false => ctx.peers.health_of(id).is_some_and(|health| health.held_back && health.delivered < seqno),
    }
}

fn accepted() -> NodeMessage {
    NodeMessage::Donated { code: ACCEPTED, gtid: Gtid::UNDEFINED, text: String::new() }
}

fn refusal(code: i32, text: &str) -> NodeMessage {
    NodeMessage::Donated { code, gtid: Gtid::UNDEFINED, text: text.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Tuning;
    use crate::effect::Effect;
    use crate::member::harness::{Lab, context};
    use crate::wire::FRAME_NODE;
    use lockstep_core::Uuid;

    const JOINER: MemberId = Uuid([9; 16]);

    fn standing(delivered: Seqno) -> Standing {
        let state = LocalState::Synced;
        Standing { state, synced_but_for_hold: true, leaving: false, delivered, delivering: true }
    }

    fn wanted(at_least: Seqno) -> Wanted {
        Wanted { at_least, position: SEQNO_UNDEFINED, request: Bytes::from_static(b"sst") }
    }

    /// The codes of the answers sent to the joiner, and the donations handed to the server.
    fn outcome(ctx: &mut Context) -> (Vec<i32>, usize) {
        let (mut effects, mut deliveries) = (Vec::new(), Vec::new());
        ctx.take_outputs(&mut effects, &mut deliveries);
        let code = |effect: Effect| match effect {
            Effect::Send { to: JOINER, kind: FRAME_NODE, payload } => {
                match NodeMessage::from_bytes(payload.concat().into()) {
                    Ok(NodeMessage::Donated { code, .. }) => Some(code),
                    _ => None,
                }
            }
            _ => None,
        };
        let donations = deliveries.iter().filter(|d| matches!(d, Delivery::Donate { .. })).count();
        (effects.into_iter().filter_map(code).collect(), donations)
    }

    #[test]
    fn repeated_request_makes_one_donation() {
        let (mut ctx, mut transfers) = (context(), Transfers::default());
        let seqno = ctx.raft.committed_state().seqno;
        for _ in 0..2 {
            transfers.on_donate(&mut ctx, standing(seqno), JOINER, wanted(seqno));
        }
        transfers.step(&mut ctx, standing(seqno));
        transfers.step(&mut ctx, standing(seqno));
        assert_eq!(outcome(&mut ctx), (vec![ACCEPTED, ACCEPTED], 1));
    }

    #[test]
    fn donation_begins_once_its_seqno_is_delivered() {
        let (mut ctx, mut transfers) = (context(), Transfers::default());
        let seqno = ctx.raft.committed_state().seqno;
        transfers.on_donate(&mut ctx, standing(seqno - 1), JOINER, wanted(seqno));
        transfers.step(&mut ctx, standing(seqno - 1));
        assert_eq!(outcome(&mut ctx).1, 0);
        transfers.step(&mut ctx, standing(seqno));
        assert_eq!(outcome(&mut ctx).1, 1);
    }

    #[test]
    fn donation_lost_with_connection_is_refused_on_return() {
        let (mut ctx, mut transfers) = (context(), Transfers::default());
        let seqno = ctx.raft.committed_state().seqno;
        transfers.on_donate(&mut ctx, standing(seqno - 1), JOINER, wanted(seqno));
        transfers.donor_may_be_gone(ctx.now(), JOINER);
        transfers.donor_is_back(&mut ctx, JOINER);
        assert_eq!(outcome(&mut ctx).0, [ACCEPTED, AGAIN]);
        transfers.on_donate(&mut ctx, standing(seqno), JOINER, wanted(seqno));
        transfers.step(&mut ctx, standing(seqno));
        transfers.donor_may_be_gone(ctx.now(), JOINER);
        transfers.donor_is_back(&mut ctx, JOINER);
        assert_eq!(outcome(&mut ctx), (vec![ACCEPTED, ACCEPTED], 1), "this one has begun");
    }

    #[test]
    fn joiner_asks_again_after_returned_donor_refuses() {
        let (mut ctx, mut transfers) = (context(), Transfers::default());
        let donor = Uuid([8; 16]);
        transfers.begin_request(ctx.now(), Bytes::from_static(b"sst"), String::new());
        transfers.on_donated(&mut ctx, donor, ACCEPTED, Gtid::UNDEFINED, String::new());
        transfers.donor_may_be_gone(ctx.now(), donor);
        transfers.donor_is_back(&mut ctx, donor);
        let asks_at = |transfers: &Transfers| transfers.request.as_ref().and_then(|pending| pending.ask_at);
        assert_eq!(asks_at(&transfers), None);
        transfers.on_donated(&mut ctx, donor, AGAIN, Gtid::UNDEFINED, String::new());
        assert_eq!(asks_at(&transfers), Some(ctx.now() + ASK_AGAIN));
    }

    #[test]
    fn leaving_donor_refuses() {
        let (mut ctx, mut transfers) = (context(), Transfers::default());
        let own = Standing { leaving: true, ..standing(1) };
        transfers.on_donate(&mut ctx, own, JOINER, wanted(1));
        assert_eq!(outcome(&mut ctx).0, [AGAIN]);
        assert!(!transfers.is_donating());
    }

    fn until_all_are_synced(lab: &mut Lab) {
        lab.until("all are Synced", 10_000_000, |lab| {
            lab.nodes.iter().all(|node| node.member.local_state() == LocalState::Synced)
        });
    }

    /// The member is to continue by its log, with a donor's confirmation.
    fn restart_by_donor(lab: &mut Lab, at: usize) {
        let state = lab.nodes[0].member.ctx.raft.committed_state();
        let position = Gtid { uuid: state.history, seqno: state.seqno };
        lab.restart(at, |args| {
            args.position = position;
            args.by_donor = true;
        });
    }

    #[test]
    fn stateless_member_is_never_chosen_as_donor() {
        let tuning = Tuning::default();
        let mut lab = Lab::new(1, &tuning);
        lab.add(&tuning, |hello| hello.donates = false);
        lab.add(&tuning, |_| {});
        until_all_are_synced(&mut lab);
        lab.nodes[2].member.request_state(Bytes::from_static(b"request"), "n2".into());
        lab.until("nobody else is named", 5_000_000, |lab| {
            lab.logged("no donor yet (no member is Synced and free to donate; gcs.stateless=yes excludes n2)")
        });
        lab.nodes[2].member.request_state(Bytes::from_static(b"request"), "n2,".into());
        lab.until("another one donates", 5_000_000, |lab| lab.logged("n1 is to donate state to n3"));
        assert!(!lab.logged("n2 is to donate"));
    }

    #[test]
    fn stateless_member_confirms_if_no_other_member_can() {
        let tuning = Tuning::default();
        let mut lab = Lab::empty();
        lab.add(&tuning, |hello| hello.donates = false);
        lab.add(&tuning, |_| {});
        until_all_are_synced(&mut lab);
        restart_by_donor(&mut lab, 1);
        lab.until("n1 confirms", 5_000_000, |lab| lab.logged("tells n2 to go on from"));
    }

    #[test]
    fn stateless_member_is_last_resort_for_confirmation() {
        let tuning = Tuning::default();
        let mut lab = Lab::new(1, &tuning);
        lab.add(&tuning, |hello| hello.donates = false);
        lab.add(&tuning, |_| {});
        lab.add(&tuning, |_| {});
        until_all_are_synced(&mut lab);
        restart_by_donor(&mut lab, 3);
        lab.until("n3 confirms", 5_000_000, |lab| lab.logged("n3 is to donate state to n4"));
    }

    #[test]
    fn choice_is_dropped_once_its_donor_is_stateless() {
        let tuning = Tuning::default();
        let mut lab = Lab::new(4, &tuning);
        let ask = |lab: &mut Lab| {
            lab.nodes[3].member.request_state(Bytes::from_static(b"request"), "n2,".into());
        };
        ask(&mut lab);
        lab.until("n2 donates", 5_000_000, |lab| lab.logged("donates its state to n4"));
        let (leader, donor) = (0, lab.id(1));
        assert_eq!(lab.nodes[1].member.local_state(), LocalState::Donor);
        let peers = &mut lab.nodes[leader].member.ctx.peers;
        peers.make_stateless(&donor);
        ask(&mut lab);
        lab.until("n3 is chosen", 5_000_000, |lab| lab.logged("n3 is to donate state to n4"));
    }
}
