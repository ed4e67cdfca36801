//! The client's side of one machine: nbdfuse, a loop device with ext4, and a MariaDB server on it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Server, ServerConfig, Session, free_ports, last_lines, run_to_end};

use crate::bench::Bench;
use crate::block_group::PATIENCE;
use crate::mount::Mount;

const POLL: Duration = Duration::from_millis(20);
/// ext4 on a loop device, which the kernel removes with the mount.
const LOOP: [&str; 4] = ["-t", "ext4", "-o", "loop"];

/// How long the client's own recovery took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    /// Until nbdfuse had attached.
    pub(super) attach: Duration,
    /// Until ext4 had replayed its journal and was mounted.
    pub(super) mount: Duration,
    /// Until MariaDB had recovered from the crash and answered.
    pub(super) start: Duration,
}

/// One machine.
#[derive(Debug)]
pub(super) struct Host {
    /// Dropped first: the server and the mounts above the fuse.
    server: Server,
    mount: Option<Mount>,
    fuse_mount: PathBuf,
    fuse: Option<Session>,
    output: PathBuf,
    bench: PathBuf,
}

impl Host {
    /// One without a device.
    pub(super) fn new(bench: &Bench, name: &str, number: u32) -> Result<Host> {
        let mut config = ServerConfig::new(name, bench.dir(), free_ports(1)?, number);
        config.extra = [
            "innodb_flush_log_at_trx_commit=1",
            "sync_binlog=1",
            "innodb_buffer_pool_size=64M",
            "performance_schema=OFF",
        ]
        .map(str::to_owned)
        .to_vec();
        let fuse_mount = bench.dir().join(format!("{name}-fuse"));
        std::fs::create_dir_all(&fuse_mount).map_err(LocalError::path("make", &fuse_mount))?;
        bench.installation().make_dir(&config.datadir(), 0o755)?;
        Ok(Host {
            server: Server::new(config, bench.installation()),
            mount: None,
            output: fuse_mount.with_extension("out"),
            fuse_mount,
            fuse: None,
            bench: bench.dir().to_owned(),
        })
    }

    /// The server.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    fn device(&self) -> PathBuf {
        self.fuse_mount.join("nbd")
    }

    /// Makes a file of the device.
    pub(super) fn attach(&mut self, socket: &Path, export: &str, size: u64) -> Result<()> {
        let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let mut command = Command::new("nbdfuse");
            command.arg(&self.fuse_mount).arg(&uri).current_dir("/");
            let mut fuse = Session::spawn(&mut command, &self.output)?;
            // By this file it is found and killed should this process die.
            let path = self.bench.join(format!("{}-fuse.pid", self.server.name()));
            std::fs::write(&path, fuse.pid().to_string()).map_err(LocalError::path("write", &path))?;
            while fuse.ended().is_none() && Instant::now() < end {
                if std::fs::metadata(self.device()).is_ok_and(|file| file.len() == size) {
                    self.fuse = Some(fuse);
                    return Ok(());
                }
                std::thread::sleep(POLL);
            }
            fuse.kill();
            self.unmount_fuse();
        }
        let text = std::fs::read_to_string(&self.output).unwrap_or_default();
        Err(LocalError::Value(format!("nbdfuse cannot attach to {uri}: {}", last_lines(&text, 10))))
    }

    /// Makes a file system with a fresh database, mounts it, and starts the server.
    pub(super) fn found(&mut self, bench: &Bench) -> Result<()> {
        run_to_end(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(self.device()))?;
        bench.fresh_data(&self.server.config)?;
        let datadir = self.server.datadir();
        self.mount = Some(Mount::under(&datadir, bench.installation(), &LOOP, &self.device())?);
        // `cp` does not flush, and Aria's files of the system tables are not written again.
        run_to_end(Command::new("sync").arg("-f").arg(&datadir))?;
        self.server.start(&[])
    }

    /// Attaches, mounts and starts after another machine has failed.
    pub(super) fn recover(&mut self, socket: &Path, export: &str, size: u64) -> Result<Recovery> {
        let began = Instant::now();
        self.attach(socket, export, size)?;
        let attached = Instant::now();
        self.mount = Some(Mount::at(&self.server.datadir(), &LOOP, &self.device())?);
        let mounted = Instant::now();
        self.server.start(&[])?;
        Ok(Recovery { attach: attached - began, mount: mounted - attached, start: mounted.elapsed() })
    }

    /// `kill -9` of the server, which is not waited for.
    pub(super) fn kill_server(&self) -> Result<()> {
        self.server.signal(libc::SIGKILL)
    }

    /// Removes what is left of a machine that failed.
    pub(super) fn abandon(&mut self) {
        self.server.kill();
        // First, so that the file system's last writes fail rather than wait.
        if let Some(mut fuse) = self.fuse.take() {
            fuse.kill();
        }
        self.mount = None;
        self.unmount_fuse();
    }

    fn unmount_fuse(&self) {
        let _ = Command::new("umount").arg("-l").arg(&self.fuse_mount).output();
    }

    /// Stops the server and detaches from the device, in order.
    pub(super) fn leave(&mut self) -> Result<()> {
        self.server.stop()?;
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        let Some(mut fuse) = self.fuse.take() else { return Ok(()) };
        // The loop device is removed a moment after its mount.
        let end = Instant::now() + PATIENCE;
        while let Err(error) = run_to_end(Command::new("umount").arg(&self.fuse_mount)) {
            if Instant::now() > end {
                fuse.kill();
                self.unmount_fuse();
                return Err(error);
            }
            std::thread::sleep(POLL);
        }
        match fuse.wait(PATIENCE) {
            true => Ok(()),
            false => {
                fuse.kill();
                Err(LocalError::Value("nbdfuse does not end".into()))
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.abandon();
    }
}
