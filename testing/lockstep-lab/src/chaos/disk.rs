//! A disk that is filled up: a small one in memory.

use std::io::Write;
use std::path::{Path, PathBuf};

use lockstep_local::{LocalError, Result, Server};

use crate::cluster::Cluster;
use crate::mount::Mount;

/// Its size.
const SIZE: &str = "700m";

/// A small disk under one server's data.
pub(super) struct Disk(Mount);

impl Disk {
    /// Puts the data directory onto it.
    pub(super) fn under(server: &Server, cluster: &Cluster) -> Result<Disk> {
        let arguments = ["-t", "tmpfs", "-o", &format!("size={SIZE}")];
        let install = cluster.bench().installation();
        Ok(Disk(Mount::under(&server.datadir(), install, &arguments, Path::new("tmpfs"))?))
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join("filler")
    }

    /// Fills it to the last byte.
    pub(super) fn fill(&self) -> Result<()> {
        let filler = self.filler();
        let mut file = std::fs::File::create(&filler).map_err(LocalError::path("create", &filler))?;
        let block = vec![0u8; 1 << 20];
        // Until the disk is full, which is the aim.
        while file.write_all(&block).is_ok() {}
        while file.write_all(&block[..4096]).is_ok() {}
        Ok(())
    }

    pub(super) fn empty(&self) {
        let _ = std::fs::remove_file(self.filler());
    }
}
