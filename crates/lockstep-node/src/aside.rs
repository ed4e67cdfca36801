//! The wish that a member's log be set aside when it is started again, because its branch goes no further. A file says so,
//! for the log is open as long as the process runs.

use crate::api::{Level, NodeConfig, NodeError};
use lockstep_log::RealDisk;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// The file; state transfers leave it where it is, as they do all of this name.
const FILE: &str = "lockstep.branch.log";

/// Leaves the wish, with its reason, durably.
///
/// # Errors
/// A line for people.
pub(crate) fn wish(dir: &Path, why: &str) -> Result<(), String> {
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(dir.join(FILE))?;
        file.write_all(why.as_bytes())?;
        file.sync_all()?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|error| format!("{} cannot be written: {error}", dir.join(FILE).display()))
}

/// The reason, if there is a wish.
///
/// # Errors
/// A line for people.
pub(crate) fn wished(dir: &Path) -> Result<Option<String>, String> {
    match std::fs::read(dir.join(FILE)) {
        Ok(why) => Ok(Some(String::from_utf8_lossy(&why).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{} cannot be read: {error}", dir.join(FILE).display())),
    }
}

/// It has been done. A crash before this does it again, to an empty log.
///
/// # Errors
/// A line for people.
pub(crate) fn done(dir: &Path) -> Result<(), String> {
    std::fs::remove_file(dir.join(FILE))
        .and_then(|()| std::fs::File::open(dir)?.sync_all())
        .map_err(|error| format!("{} cannot be removed: {error}", dir.join(FILE).display()))
}

/// Before the log is opened: does what was wished for.
///
/// # Errors
/// [`NodeError::Log`]; tried again it goes on. [`NodeError::Refused`] on a member that is to found a cluster.
pub(crate) fn obey(disk: &RealDisk, dir: &Path, config: &NodeConfig) -> Result<(), NodeError> {
    let Some(why) = wished(dir).map_err(NodeError::Log)? else { return Ok(()) };
    if !config.may_begin_anew {
        return Err(NodeError::Refused(format!("{why}. Start this member without --wsrep-new-cluster")));
    }
    let aside = lockstep_log::set_aside(disk).map_err(|e| NodeError::Log(e.to_string()))?;
    done(dir).map_err(NodeError::Log)?;
    let text = format!("{why}. It is set aside now, as {aside}.*, and this member joins as a new one");
    (config.logger)(Level::Warn, &text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_there_until_it_is_done() {
        let dir = std::env::temp_dir().join(format!("lockstep-aside-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(wished(&dir), Ok(None));
        wish(&dir, "n2 goes on alone").unwrap();
        assert_eq!(wished(&dir), Ok(Some("n2 goes on alone".into())));
        done(&dir).unwrap();
        assert_eq!(wished(&dir), Ok(None));
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(wish(&dir, "").is_err());
    }
}
