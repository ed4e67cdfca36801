//! Automatic promotion: `--auto-promote` and `--on-promotion`.

use super::node_log::NodeLog;
use crate::log_member::MessageLog;
use crate::signals;
use lockstep_block::device::Replica;
use lockstep_node::Level;
use std::process::Stdio;
use std::time::Duration;

/// The variable with the export's name.
const EXPORT: &str = "LOCKSTEP_EXPORT";

/// The settings of automatic promotion.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Takeover {
    /// How long the owner of the device must be gone.
    after: Duration,
    /// Runs after a promotion.
    command: Option<String>,
}

impl Takeover {
    pub(super) fn new(after: Duration, command: Option<String>) -> Takeover {
        Takeover { after, command }
    }

    /// Promotes this member whenever it is time, until the replica ends.
    pub(super) async fn run(self, replica: &Replica<NodeLog>, lines: &MessageLog) {
        while let Some(epoch) = replica.promote_when_owner_is_gone(self.after).await {
            let export = format!("{}@{epoch}", replica.config().name);
            let text = format!(
                "the device's owner has been gone for {} s: this member has promoted itself; clients attach by {export}",
                self.after.as_secs()
            );
            lines.write(Level::Warn, &text);
            let Some(command) = self.command.clone() else { continue };
            lines.write(Level::Info, &format!("runs the command of --on-promotion for {export}"));
            let ended = tokio::task::spawn_blocking(move || run_command(&command, &export)).await;
            match ended.map_err(|error| error.to_string()).and_then(|ended| ended) {
                Ok(()) => lines.write(Level::Info, "the command of --on-promotion has succeeded"),
                Err(text) => lines.write(
                    Level::Error,
                    &format!("the command of --on-promotion has failed: {text}. The device waits for a client: attach it by hand"),
                ),
            }
        }
    }
}

/// Runs the command to its end. Its output goes to this program's standard error.
fn run_command(command: &str, export: &str) -> Result<(), String> {
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(command).env(EXPORT, export).stdin(Stdio::null());
    shell.stdout(std::io::stderr());
    signals::unblock_in(&mut shell);
    let status = shell.status().map_err(|error| format!("cannot start /bin/sh: {error}"))?;
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_gets_the_export_and_its_failure_is_told() {
        let path = std::env::temp_dir().join(format!("lockstep-takeover-{}", std::process::id()));
        let command = format!("echo \"$LOCKSTEP_EXPORT\" > {}", path.display());
        assert_eq!(run_command(&command, "disk@7"), Ok(()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "disk@7\n");
        assert!(run_command("exit 3", "disk@7").unwrap_err().contains('3'));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn command_of_a_thread_that_blocks_signals_receives_them() {
        let path = std::env::temp_dir().join(format!("lockstep-takeover-mask-{}", std::process::id()));
        let command = format!("grep SigBlk /proc/self/status > {}", path.display());
        std::thread::spawn(move || {
            let _signals = signals::Signals::block();
            assert_eq!(run_command(&command, "disk@7"), Ok(()));
        })
        .join()
        .unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "SigBlk:\t0000000000000000\n");
        std::fs::remove_file(&path).unwrap();
    }
}
