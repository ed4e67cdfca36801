//! Rounds of `fio --verify` on a part of the device that our own client does not use.

use std::path::Path;
use std::process::Command;

use lockstep_local::{LocalError, Result, run_to_end};

/// The part of the device that fio writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// Its first byte.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) size: u64,
}

fn job(socket: &Path, name: &str, part: Part, seed: u64) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "180", "fio", "--name=check", "--ioengine=nbd", "--rw=randwrite"]);
    command.args(["--bs=16k", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
    command.arg(format!("--uri=nbd+unix:///{name}?socket={}", socket.display()));
    command.args([
        format!("--offset={}", part.offset),
        format!("--size={}", part.size),
        format!("--randseed={seed}"),
    ]);
    command
}

/// Writes the part and flushes. The seed decides the bytes.
pub(super) fn write(socket: &Path, name: &str, part: Part, seed: u64) -> Result<()> {
    run_to_end(job(socket, name, part, seed).args(["--do_verify=0", "--end_fsync=1"])).map(drop)
}

/// Whether the part has what [`write`] wrote.
///
/// # Errors
/// fio cannot run, or the connection broke.
pub(super) fn verify(socket: &Path, name: &str, part: Part, seed: u64) -> Result<Option<String>> {
    match run_to_end(job(socket, name, part, seed).arg("--verify_only")) {
        Ok(_) => Ok(None),
        Err(LocalError::Command { output, .. }) if output.contains("verify:") => {
            Ok(Some(format!("fio finds a wrong byte: {output}")))
        }
        Err(error) => Err(error),
    }
}
