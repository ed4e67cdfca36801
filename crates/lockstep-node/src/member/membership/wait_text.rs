//! For people: for which members a connecting member waits.

use crate::api::{Beginning, FrontEnd};
use crate::member::context::ConnectionState;
use crate::member::context::Context;
use crate::member::membership::peers::Peer;
use crate::wire::Hello;
use lockstep_core::members::MemberInfo;
use lockstep_core::raft::LogEnd;
use lockstep_core::{MemberId, Micros};

/// How long a disk completes no write before the status shows it.
pub(crate) const SHOW_DISK_AFTER: Micros = 1_000_000;

/// The members for which a connecting member waits, and those with which it cannot talk.
pub(in crate::member) fn missing(ctx: &Context) -> String {
    let hung = ctx.hung_disks();
    let disks = match own_disk_text(ctx) {
        None if !hung.is_empty() => Some(format!(
            "no majority of the voters' disks worked when this member stopped leading ({}), and no leader can be elected \
             before",
            hung_disks_text(ctx, hung)
        )),
        own => own,
    };
    let text = match disks {
        Some(disks) => format!("{disks}; {}", wait_text(ctx)),
        None => wait_text(ctx),
    };
    match ctx.peers.unlike() {
        Some(why) => format!("{text}. {why}"),
        None => text,
    }
}

/// That damage has taken the end of this member's log, and that it waits for a member that has it.
pub(in crate::member) fn lost_end_text(ctx: &Context) -> Option<String> {
    let LogEnd { term, index } = ctx.raft.former_end()?;
    Some(format!(
        "this member's log is damaged: it ends at index {}, and had ended at index {index} of term {term}. This member votes \
         only for members whose logs reach that. Start such a member; if there is none, stop this member and see \
         docs/operating.md, The logs of a majority are damaged.",
        ctx.raft.last_index()
    ))
}

/// That this member's own disk has completed no write for a while.
pub(in crate::member) fn own_disk_text(ctx: &Context) -> Option<String> {
    let time = ctx.raft.disk_stands_still_for();
    (time >= SHOW_DISK_AFTER)
        .then(|| format!("this member's disk has finished no write {}", for_seconds(time)))
}

/// The members whose disks have completed no write, and for how long.
pub(in crate::member) fn hung_disks_text(ctx: &Context, disks: &[(MemberId, Micros)]) -> String {
    let of = |(id, time): &(MemberId, Micros)| {
        format!("no write on the disk of {} {}", ctx.name_of(id), for_seconds(*time))
    };
    disks.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn for_seconds(time: Micros) -> String {
    format!("for {} s", time / 1_000_000)
}

fn wait_text(ctx: &Context) -> String {
    let membership = ctx.raft.membership();
    if membership.members.is_empty() {
        return match ctx.peers.len() {
            0 if ctx.peers.unlike().is_some() => {
                format!("nobody at the addresses of {} can be talked to", ctx.terms().addresses)
            }
            0 => format!(
                "nobody answers at the addresses of {}; start the first member with {}",
                ctx.terms().addresses,
                ctx.terms().new
            ),
            _ => nobody_founded(ctx),
        };
    }
    if let Some(leader) = ctx.raft.leader().filter(|leader| *leader != ctx.me().id) {
        return format!(
            "{} leads: this member takes the log from it, up to index {} so far",
            ctx.name_of(&leader),
            ctx.raft.last_index()
        );
    }
    let missing = ctx.absent_voters();
    if !missing.is_empty() {
        let text = format!("not connected: {missing}; a majority of the voters is needed");
        return match back_without_their_logs(ctx) {
            Some(names) => format!(
                "{text}. Connected, but back without the logs that they had: {names}. They cannot vote on what they \
                 have lost; where no more of the voters can be started, docs/operating.md, No majority, says how this \
                 member goes on"
            ),
            None => text,
        };
    }
    // The other logs may list voters added after this log's end.
    let others: Vec<String> =
        membership.voters().filter(|id| *id != ctx.me().id).map(|id| ctx.name_of(&id)).collect();
    // Connected but silent: the process may be stopped, or the machine gone.
    let silent = membership.voters().filter(|id| *id != ctx.me().id && !ctx.responds(id));
    let silent: Vec<String> = silent.map(|id| ctx.name_of(&id)).collect();
    let voters = others.len() + usize::from(membership.is_voter(&ctx.me().id));
    if voters - silent.len() < membership.majority() {
        return format!(
            "connected, but nothing has come for a while from {}; a majority of the voters is needed",
            silent.join(", ")
        );
    }
    match others.is_empty() {
        true => "an election is under way".into(),
        false => format!(
            "connected to {}, none leads yet: an election is under way, or they wait for other members (see their \
             error logs and status)",
            others.join(", ")
        ),
    }
}

/// The wait report of a member without a log, connected only to members that do not let it in.
fn nobody_founded(ctx: &Context) -> String {
    let names = |of: &[&Peer]| of.iter().map(|p| p.hello().name.as_str()).collect::<Vec<_>>().join(", ");
    let (known, unknown): (Vec<_>, Vec<_>) = ctx.peers.values().partition(|p| p.hello().last_index > 0);
    if known.is_empty() {
        let at = match ctx.connection() {
            ConnectionState::Connecting { args, .. } if args.position.is_defined() => {
                format!(" (this one's data are at {})", args.position)
            }
            _ => String::new(),
        };
        let also = match ctx.front_end() {
            FrontEnd::Device => Some(" and the device's --size"),
            FrontEnd::Reader { begins: Beginning::Earliest, .. } => Some(""),
            _ => None,
        };
        if let Some(also) = also {
            return format!(
                "connected to {}, but nobody has a log, and so there is no group yet: stop one of the members, and start it with \
                 {}{also}; the others join it",
                names(&unknown),
                ctx.terms().new
            );
        }
        return format!(
            "connected to {}, but nobody has a log, and so there is no cluster yet: found it on the member with the \
             highest position{at}. Stop that one, set safe_to_bootstrap to 1 in its grastate.dat, and start it with \
             --wsrep-new-cluster; the others join it",
            names(&unknown)
        );
    }
    format!(
        "this member has no log, and {}, whose logs it could get, {} no leader: their error logs and `lockstep \
         status` say for which members they wait. Start those; where they are gone for good, docs/operating.md, \
         No majority",
        names(&known),
        if known.len() == 1 { "has" } else { "have" }
    )
}

/// The names of voters that are back under another identity, because their logs are damaged or lost.
fn back_without_their_logs(ctx: &Context) -> Option<String> {
    let membership = ctx.raft.membership();
    let is_back = |m: &&MemberInfo| {
        let same = |hello: &Hello| hello.name == m.name && hello.address == m.address;
        m.role.votes()
            && m.id != ctx.me().id
            && !ctx.peers.contains_key(&m.id)
            && ctx.peers.values().any(|p| same(p.hello()) && membership.get(&p.id()).is_none())
    };
    let names: Vec<&str> = membership.members.iter().filter(is_back).map(|m| m.name.as_str()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Tuning;
    use crate::member::harness::{Lab, context, leaderless};

    #[test]
    fn member_without_log_names_addresses_it_cannot_use() {
        let mut ctx = context();
        ctx.raft = leaderless();
        assert!(missing(&ctx).starts_with("nobody answers at the addresses"), "{}", missing(&ctx));
        let why = "speaks only version 1 of the protocol";
        ctx.peers.not_reached("10.0.0.9:4567".into(), "n9".into(), Some(why.into()));
        let text = missing(&ctx);
        assert!(text.contains("can be talked to") && text.ends_with(&format!("n9: {why}")), "{text}");
    }

    #[test]
    fn member_behind_a_leader_says_that_it_takes_the_log() {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.run(1_000_000);
        let follower = lab.nodes.iter().find(|node| !node.member.ctx.raft.is_leader()).unwrap();
        let ctx = &follower.member.ctx;
        let leader = ctx.name_of(&ctx.raft.leader().unwrap());
        let text = missing(ctx);
        assert!(text.starts_with(&format!("{leader} leads: this member takes the log")), "{text}");
    }

    #[test]
    fn disconnected_and_silent_voters_are_named_apart() {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.cut(2, true);
        lab.run(100_000);
        let text = missing(&lab.nodes[0].member.ctx);
        assert_eq!(text, "not connected: n3; a majority of the voters is needed");
        lab.cut(2, false);
        lab.run(1_000_000);
        (lab.nodes[1].frozen, lab.nodes[2].frozen) = (true, true);
        lab.run(10_000_000);
        let text = missing(&lab.nodes[0].member.ctx);
        assert!(text.contains("nothing has come for a while from n2, n3"), "{text}");
    }
}
