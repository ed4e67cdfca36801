//! A disk that is filled up: a small one in memory.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Cluster;
use crate::error::{LabError, Result};
use crate::install::run_to_end;
use crate::server::Server;

/// Its size.
const SIZE: &str = "700m";

/// A small disk under one server's data.
pub(super) struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Puts the data directory onto it.
    pub(super) fn under(server: &Server, cluster: &Cluster) -> Result<Disk> {
        let path = server.datadir();
        let aside = path.with_extension("aside");
        std::fs::rename(&path, &aside).map_err(LabError::path("move aside", &path))?;
        cluster.bench().installation().make_dir(&path, 0o755)?;
        run_to_end(
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={SIZE}"), "tmpfs"]).arg(&path),
        )?;
        let disk = Disk { path };
        cluster.bench().installation().give(&disk.path)?;
        run_to_end(Command::new("cp").arg("-a").arg(aside.join(".")).arg(&disk.path))?;
        std::fs::remove_dir_all(&aside).map_err(LabError::path("remove", &aside))?;
        Ok(disk)
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }

    /// Fills it to the last byte.
    pub(super) fn fill(&self) -> Result<()> {
        let filler = self.filler();
        let mut file = std::fs::File::create(&filler).map_err(LabError::path("create", &filler))?;
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

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run_to_end(Command::new("umount").arg("-l").arg(&self.path));
    }
}
