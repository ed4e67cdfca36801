//! The node: started by the first `connect`, and kept until the provider is freed.

use crate::sync::lock;
use lockstep_node::{Node, NodeConfig, NodeError};
use std::sync::{Mutex, OnceLock};

/// See the module.
#[derive(Default)]
pub(crate) struct NodeSlot {
    node: OnceLock<Node>,
    starting: Mutex<()>,
}

impl NodeSlot {
    /// The node, if it has been started.
    pub(crate) fn get(&self) -> Option<&Node> {
        self.node.get()
    }

    /// The node; starts it with `config` if need be.
    ///
    /// # Errors
    /// The configuration is wrong, or the node does not start.
    pub(crate) fn get_or_start(
        &self,
        config: impl FnOnce() -> Result<NodeConfig, NodeError>,
    ) -> Result<&Node, NodeError> {
        let _starting = lock(&self.starting);
        if self.node.get().is_none() {
            let _ = self.node.set(Node::start(config()?)?);
        }
        self.node.get().ok_or(NodeError::State("connect: the node has ended"))
    }
}
