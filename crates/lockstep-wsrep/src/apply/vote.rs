//! An error at a seqno: the member asks the others whether they had it too. The results of statements in total order go
//! into the log.

use crate::context::Context;
use crate::ddl::server_error;
use lockstep_abi::Status;
use lockstep_node::Vote;
use lockstep_node::core::Seqno;
use std::time::Duration;

/// How long an applier waits for the result of the vote on a statement's error.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);

/// The kind of work that the server has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Executed {
    /// A transaction's rows.
    Rows,
    /// A statement in total order, of a client of this member.
    OwnStatement,
    /// A statement in total order of another member.
    OthersStatement,
}

impl Executed {
    fn is_statement(self) -> bool {
        self != Executed::Rows
    }

    /// Reports the statement's result to the log, if it is known and holds for every member. The server may have hidden an
    /// error: then only the origin can ask for it.
    pub(crate) fn report(self, cx: &Context, seqno: Seqno, error: &[u8]) {
        let Some(node) = cx.node().filter(|_| self.is_statement()) else { return };
        let own = self == Executed::OwnStatement;
        let number = if own { server_error::of_own_statement() } else { None };
        let shows_errors = server_error::are_hidden() == Some(false);
        match number {
            Some(number) if server_error::is_local(number) => {}
            Some(0) => node.statement_executed(seqno, b"", own),
            Some(number) => node.statement_executed(seqno, format!("Error_code: {number};").as_bytes(), own),
            None if shows_errors || !text_of(error).is_empty() => node.statement_executed(seqno, error, own),
            None => {}
        }
    }
}

/// Judges the server's error at `seqno`: `OK` if there is none, or if the other members have it too. Otherwise this
/// member stops.
///
/// A wrong statement fails on every member, which is common. If the vote on it takes long, this member therefore
/// continues, and acts on the result when it comes. A write-set of rows has been applied on its origin.
pub(crate) fn judge(cx: &Context, seqno: Seqno, error: &[u8], executed: Executed) -> Status {
    if text_of(error).is_empty() {
        executed.report(cx, seqno, b"");
        return Status::OK;
    }
    let Some(node) = cx.node() else { return Status::NODE_FAIL };
    let at = cx.identity.at(seqno);
    match node.vote(seqno, error, executed.is_statement().then_some(STATEMENT_TIMEOUT)) {
        Vote::Agreed => {
            executed.report(cx, seqno, error);
            Status::OK
        }
        Vote::Open => {
            cx.host.log.warn(format!(
                "the other members have not reported yet whether {at} fails there, too: \
                 continuing"
            ));
            Status::OK
        }
        Vote::Inconsistent => {
            cx.fail(&format!(
                "Inconsistency detected: Inconsistent by consensus on {at}: other members applied what this server \
                 could not apply: {}",
                text_of(error)
            ));
            Status::NODE_FAIL
        }
        Vote::NoOutcome => {
            cx.fail(&format!(
                "this server could not apply {at}, and cannot query the results of the other members: {}",
                text_of(error)
            ));
            Status::NODE_FAIL
        }
    }
}

/// The server's error, up to its NUL.
fn text_of(error: &[u8]) -> String {
    let end = error.iter().position(|byte| *byte == 0).unwrap_or(error.len());
    String::from_utf8_lossy(&error[..end.min(512)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_ends_at_nul_or_512_bytes() {
        assert_eq!(text_of(b"\0rest"), "");
        assert_eq!(text_of(b"no table\0rest"), "no table");
        assert_eq!(text_of(&[b'x'; 600]).len(), 512);
    }
}
