//! Requests of operators: commands, barriers, policies, and reports.

pub(in crate::member) mod barrier;
pub(in crate::member) mod commits;
pub(in crate::member) mod committed_position;
pub(in crate::member) mod operator;
pub(in crate::member) mod policy;
pub(in crate::member) mod wait_report;

use barrier::Barrier;
use commits::Commits;
use committed_position::PositionQueries;
use operator::Operator;
use policy::PolicyRequests;
use wait_report::PolicyReports;

/// The components of this folder. Each keeps its fields to itself. They are open because the router lends several to one
/// call.
#[derive(Default)]
pub(in crate::member) struct Admin {
    /// Commands under way.
    pub(in crate::member) operator: Operator,
    /// Barriers in which this member takes part.
    pub(in crate::member) barrier: Barrier,
    /// Queries of the committed position.
    pub(in crate::member) position_queries: PositionQueries,
    /// Policy changes requested on this member, or carried out by it.
    pub(in crate::member) policy_requests: PolicyRequests,
    /// Commit statistics.
    pub(in crate::member) commits: Commits,
    /// Policies and waits as last reported.
    pub(in crate::member) reports: PolicyReports,
}
