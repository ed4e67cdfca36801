//! The accounts of this machine.

use std::process::Command;

/// Looks up an account by name or number. Returns the numbers of the account and its group, and its name.
pub(super) fn getent(account: &str) -> Option<(u32, u32, String)> {
    let output = Command::new("getent").args(["passwd", account]).output().ok()?;
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut fields = line.trim().split(':');
    let name = fields.next()?.to_owned();
    Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?, name))
}
