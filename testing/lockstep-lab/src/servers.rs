//! The servers of an experiment: by themselves, or a cluster.

use lockstep_local::{Installation, Server};

use crate::cluster::Cluster;
use crate::replica::Plain;

/// See the module's documentation. The first one is written to.
pub(crate) enum Servers {
    Plain(Plain),
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn all(&self) -> &[Server] {
        match self {
            Servers::Plain(plain) => &plain.servers,
            Servers::Cluster(cluster) => &cluster.servers,
        }
    }

    pub(crate) fn all_mut(&mut self) -> &mut [Server] {
        match self {
            Servers::Plain(plain) => &mut plain.servers,
            Servers::Cluster(cluster) => &mut cluster.servers,
        }
    }

    pub(crate) fn installation(&self) -> &Installation {
        match self {
            Servers::Plain(plain) => plain.bench.installation(),
            Servers::Cluster(cluster) => cluster.bench().installation(),
        }
    }
}
