//! The command-line arguments that say which member to query.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cluster_dir;
use crate::fetch::{Target, USUAL_DATADIR, socket_in, sockets};

/// The member that answers a query. Default: the cluster of `make up`, else the server of /var/lib/mysql.
#[derive(Args, Debug, Clone)]
pub(crate) struct Source {
    /// Directory of a cluster that `up --dir` started.
    #[arg(long, conflicts_with_all = ["socket", "address"])]
    pub(crate) dir: Option<PathBuf>,
    /// Status socket of a member: `lockstep.sock` in its data directory.
    #[arg(long, conflicts_with = "address")]
    pub(crate) socket: Option<PathBuf>,
    /// Status address of a member (option `status.address`): HOST:PORT.
    #[arg(long)]
    pub(crate) address: Option<String>,
}

impl Source {
    /// The members to query, and whether to report those that do not answer.
    pub(crate) fn targets(&self) -> (Vec<Target>, bool) {
        if let Some(path) = &self.socket {
            return (vec![Target::Socket(path.clone())], true);
        }
        if let Some(address) = &self.address {
            return (vec![Target::Address(address.clone())], true);
        }
        let dir = self.dir.as_deref().unwrap_or(Path::new(cluster_dir::DEFAULT_DIR));
        (sockets(dir), true)
    }

    /// The member to query if no target answers and the user named none.
    pub(crate) fn fallback(&self) -> Option<Target> {
        let named = self.socket.is_some() || self.address.is_some() || self.dir.is_some();
        (!named).then(|| socket_in(Path::new(USUAL_DATADIR)))
    }
}

/// The member that receives a command.
#[derive(Args, Debug)]
pub(crate) struct CommandArgs {
    /// Directory of a cluster that `up --dir` started.
    #[arg(long, conflicts_with = "socket")]
    pub(crate) dir: Option<PathBuf>,
    /// Socket of a member: `lockstep.sock` in its data directory. Members accept no commands over TCP.
    #[arg(long)]
    pub(crate) socket: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl CommandArgs {
    /// The member as a query names it.
    pub(crate) fn source(&self) -> Source {
        Source { dir: self.dir.clone(), socket: self.socket.clone(), address: None }
    }
}
