//! Counters of simulated runs.

use crate::profile::FAULTS;
use lockstep_core::Micros;

/// Counters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Faults, of all kinds.
    pub faults: u64,
    /// Events.
    pub events: u64,
    /// Messages sent.
    pub messages: u64,
    /// Proposals made.
    pub proposals: u64,
    /// Reads answered.
    pub reads: u64,
    /// Fsyncs.
    pub syncs: u64,
    /// Processes started.
    pub starts: u64,
    /// Membership changes begun.
    pub changes: u64,
    /// Logs that began anew with another member's snapshot.
    pub snapshots: u64,
    /// Times that everything healed.
    pub heals: u64,
    /// The longest that healing took, µs.
    pub longest_heal: Micros,
    /// The longest that a leader was then waited for, µs.
    pub longest_election: Micros,
    /// Databases copied.
    pub transfers: u64,
    /// Logs that were found damaged.
    pub damaged_logs: u64,
    /// Logs of which only old segments were damaged: they went on without those.
    pub trimmed_logs: u64,
    /// Logs that lost their ends: they keep their members' ids.
    pub shortened_logs: u64,
    /// Disks that lost their latest writes, and a part of earlier ones, so that the log could not keep its identity.
    pub lost_batches: u64,
    /// Members that came back under a new id.
    pub identities: u64,
    /// Starts that failed on the way and were tried again.
    pub failed_starts: u64,
    /// Acknowledged before they were committed; and those of them that were lost.
    pub early: u64,
    /// See `early`.
    pub lost: u64,
    /// Histories that ended because each database had diverged under a weak policy: members wait for each other's data.
    pub no_donor: u64,
    /// How often a leader's semisync has fallen back.
    pub fallbacks: u64,
    /// Members that left because their disks hung.
    pub hung_disks: u64,
    /// Terms that an arbitrator led.
    pub arbitrators_led: u64,
    /// Leadership transfers to the main writer.
    pub follows: u64,
    /// Members that found out that their disks went back in time.
    pub rewound: u64,
    /// Appends that went to a relay, and that relays passed on.
    pub relays: u64,
    /// See `relays`.
    pub relayed: u64,
    /// Of `faults`, each of [`crate::profile::FAULTS`].
    pub by_kind: [u64; FAULTS.len()],
}

impl Counters {
    /// Adds another seed's.
    pub fn add(&mut self, other: &Counters) {
        let Counters {
            faults,
            events,
            messages,
            proposals,
            reads,
            syncs,
            starts,
            changes,
            snapshots,
            heals,
            longest_heal,
            longest_election,
            transfers,
            damaged_logs,
            trimmed_logs,
            shortened_logs,
            lost_batches,
            identities,
            failed_starts,
            early,
            lost,
            no_donor,
            fallbacks,
            hung_disks,
            arbitrators_led,
            follows,
            rewound,
            relays,
            relayed,
            by_kind,
        } = other;
        self.early += early;
        self.lost += lost;
        self.no_donor += no_donor;
        self.fallbacks += fallbacks;
        self.hung_disks += hung_disks;
        self.arbitrators_led += arbitrators_led;
        self.follows += follows;
        self.rewound += rewound;
        self.relays += relays;
        self.relayed += relayed;
        self.faults += faults;
        self.events += events;
        self.messages += messages;
        self.proposals += proposals;
        self.reads += reads;
        self.syncs += syncs;
        self.starts += starts;
        self.changes += changes;
        self.snapshots += snapshots;
        self.heals += heals;
        self.longest_heal = self.longest_heal.max(*longest_heal);
        self.longest_election = self.longest_election.max(*longest_election);
        self.transfers += transfers;
        self.damaged_logs += damaged_logs;
        self.trimmed_logs += trimmed_logs;
        self.shortened_logs += shortened_logs;
        self.lost_batches += lost_batches;
        self.identities += identities;
        self.failed_starts += failed_starts;
        self.by_kind.iter_mut().zip(by_kind).for_each(|(sum, n)| *sum += n);
    }
}
