//! A file system of one's own under a server's data.

use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep_local::{Installation, LocalError, Result, run_to_end};

/// A mount; unmounted when dropped, also if it is in use. Drop it before deleting the folder that contains it.
#[derive(Debug)]
pub(crate) struct Mount {
    path: PathBuf,
}

impl Mount {
    /// Mounts `source` with these arguments of `mount` at an empty directory. Needs root.
    pub(crate) fn at(path: &Path, arguments: &[&str], source: &Path) -> Result<Mount> {
        run_to_end(Command::new("mount").args(arguments).arg(source).arg(path))?;
        Ok(Mount { path: path.to_owned() })
    }

    /// Unmounts in order: everything is on the disk then.
    ///
    /// # Errors
    /// It is in use, and stays mounted until the value is dropped.
    pub(crate) fn unmount(self) -> Result<()> {
        run_to_end(Command::new("umount").arg(&self.path))?;
        std::mem::forget(self);
        Ok(())
    }

    /// Mounts `source` with these arguments of `mount` at the data directory, and copies the directory's files into it.
    /// Needs root.
    pub(crate) fn under(
        datadir: &Path,
        install: &Installation,
        arguments: &[&str],
        source: &Path,
    ) -> Result<Mount> {
        let aside = datadir.with_extension("aside");
        std::fs::rename(datadir, &aside).map_err(LocalError::path("move aside", datadir))?;
        install.make_dir(datadir, 0o755)?;
        let mount = Mount::at(datadir, arguments, source)?;
        install.give(datadir)?;
        run_to_end(Command::new("cp").arg("-a").arg(aside.join(".")).arg(datadir))?;
        std::fs::remove_dir_all(&aside).map_err(LocalError::path("remove", &aside))?;
        Ok(mount)
    }

    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run_to_end(Command::new("umount").arg("-l").arg(&self.path));
    }
}
