//! The position at which a connection begins.

use crate::context::Context;
use crate::lifecycle::innodb_position::{self, NoPosition};
use lockstep_node::Node;
use lockstep_node::core::Gtid;

/// The database's position, as far as it is known before InnoDB is opened.
pub(crate) fn known(cx: &Context) -> Gtid {
    // The position found at the start of the process is outdated once this process has applied anything.
    let recovered = match cx.identity.been_connected() {
        true => Gtid::UNDEFINED,
        false => cx.host.start_position,
    };
    choose(cx.ddl.saved_position(), recovered)
}

/// After a crash: finds InnoDB's position with a run of the server's recovery, so that the log supplies the rest and no
/// state transfer is needed. Without a log, a database that comes from Galera's library keeps its history this way.
/// `UNDEFINED` if the log is of another history than the database, or the database cannot be recovered.
///
/// # Errors
/// The run did not take place, so nothing is known of the database. This start must not replace it.
pub(crate) fn recover(cx: &Context, node: &Node) -> Result<Gtid, String> {
    let log = &cx.host.log;
    let saved = cx.ddl.saved_position();
    // The founder of a branch may start with a database, or a state file, of the history before the branch.
    let (history, own) = (node.history(), node.histories());
    if saved.uuid.is_nil() || (!history.is_nil() && !own.contains(&saved.uuid)) {
        return Ok(Gtid::UNDEFINED);
    }
    log.info("this server was not shut down properly: a recovery run determines InnoDB's position");
    Ok(match innodb_position::position(&cx.host.data_dir, |line| log.info(line)) {
        Ok(gtid) if gtid.uuid == saved.uuid || own.contains(&gtid.uuid) => {
            log.info(format!("InnoDB's position is {gtid}"));
            gtid
        }
        Ok(gtid) => {
            log.warn(format!("InnoDB's position is {gtid}, and grastate.dat has another history"));
            Gtid::UNDEFINED
        }
        Err(NoPosition::Unknown(why)) => {
            log.warn(format!("InnoDB's position is unknown: {why}"));
            Gtid::UNDEFINED
        }
        Err(NoPosition::NotRun(why)) => {
            return Err(format!(
                "InnoDB's position is unknown, because {why}. The data are not in doubt, so this start requests no state \
                 transfer: start this server again, or remove grastate.dat to have one"
            ));
        }
    })
}

/// Chooses between the position in `grastate.dat`, written by a clean stop, and that of the server's own recovery. Unless
/// the file says that the data are corrupt, recovery has precedence. The file is synced. It may be ahead of the database if
/// InnoDB has not flushed its last commits.
fn choose(saved: Gtid, recovered: Gtid) -> Gtid {
    if !saved.uuid.is_nil() && saved.uuid == recovered.uuid && recovered.is_defined() {
        return recovered;
    }
    if saved.is_defined() { saved } else { Gtid::UNDEFINED }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::{SEQNO_UNDEFINED, Uuid};

    #[test]
    fn recovered_position_has_precedence_in_same_history() {
        let at = |n: u8, seqno| Gtid { uuid: Uuid([n; 16]), seqno };
        let whole = at(1, SEQNO_UNDEFINED);
        assert_eq!(choose(at(1, 7), Gtid::UNDEFINED), at(1, 7), "a clean stop");
        assert_eq!(choose(at(1, 7), at(1, 5)), at(1, 5), "the last commits were not flushed");
        assert_eq!(choose(at(1, 7), at(1, 9)), at(1, 9), "committed after the file was written");
        assert_eq!(choose(whole, at(1, 5)), at(1, 5), "a crash");
        assert_eq!(choose(at(1, 7), at(2, 5)), at(1, 7), "another history");
        assert_eq!(choose(Gtid::UNDEFINED, at(1, 5)), Gtid::UNDEFINED, "corrupt");
        assert_eq!(choose(whole, Gtid::UNDEFINED), Gtid::UNDEFINED, "no recovery run");
    }
}
