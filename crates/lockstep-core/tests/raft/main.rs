//! Scenarios of the Raft core, on a network in memory.

mod branch;
mod chaos;
mod damage;
mod elections;
mod happy;
mod hostile;
mod hung_disks;
mod lines;
mod membership;
mod net;
mod oracle;
mod placement;
mod policy;
mod proposal_lines;
mod proposals;
mod reads;
mod relay;
mod relay_lines;
mod repair;
mod replication;
mod stalls;
