//! The front end's functions that `ls-node` calls. They must not block.

use crate::Metric;
use crate::api::{
    EndServer, EventCall, FrontEndStats, FrontEndStatus, NodeConfig, PolicyCall, ProgressCall, ServerEnd,
};
use lockstep_core::Seqno;
use lockstep_core::policy::Policy;

pub(crate) struct FrontEndCalls {
    stats: Option<FrontEndStats>,
    status: Option<FrontEndStatus>,
    progress: Option<ProgressCall>,
    event: Option<EventCall>,
    policy_changed: Option<PolicyCall>,
    end_server: Option<EndServer>,
}

impl FrontEndCalls {
    pub(crate) fn new(config: &NodeConfig) -> FrontEndCalls {
        FrontEndCalls {
            stats: config.front_end_stats.clone(),
            status: config.front_end_status.clone(),
            progress: config.progress.clone(),
            event: config.event.clone(),
            policy_changed: config.policy_changed.clone(),
            end_server: config.end_server.clone(),
        }
    }

    /// The front end's own numbers.
    pub(crate) fn stats(&self) -> Vec<Metric> {
        self.stats.as_ref().map_or_else(Vec::new, |call| call())
    }

    /// The front end's part of the status page.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        self.status.as_ref().map(|call| call())
    }

    pub(crate) fn progress(&self, total: Seqno, done: Seqno) {
        if let Some(call) = &self.progress {
            call(total, done);
        }
    }

    pub(crate) fn event(&self, text: &str) {
        if let Some(call) = &self.event {
            call(text);
        }
    }

    pub(crate) fn policy_changed(&self, policy: &Policy) {
        if let Some(call) = &self.policy_changed {
            call(policy);
        }
    }

    pub(crate) fn end_server(&self, why: ServerEnd, text: &str) {
        if let Some(call) = &self.end_server {
            call(why, text);
        }
    }

    /// The function that ends the server, unless another thread has taken it over.
    pub(crate) fn end(&self) -> Option<&EndServer> {
        self.end_server.as_ref()
    }

    /// Leaves the end of the server to another thread: `ls-node` does not ask for it any more.
    pub(crate) fn hand_over_end(&mut self) -> Option<EndServer> {
        self.end_server.take()
    }
}
