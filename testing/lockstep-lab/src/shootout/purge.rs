//! The work that a server still has after a load has ended.
//!
//! Each update leaves the row's old version behind, and a background thread of InnoDB's, *purge*, takes it away once
//! nobody needs it. Where more client threads want the processor than it has, purge gets less of it than it needs. The
//! less clients wait, the less it gets: their rate is partly borrowed. How much is looked at here.

use std::time::{Duration, Instant};

use lockstep_local::{LocalError, Result, Server};

/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(10);
/// Timeout for purging the backlog of a load.
const TIMEOUT: Duration = Duration::from_secs(300);
/// So few are no debt: some are always left.
const FEW: u64 = 1_000;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Debt {
    /// The transactions whose old versions were there when the load ended.
    pub transactions: u64,
    /// How long after that they were gone.
    pub paid: Duration,
}

/// Of a load that has just ended; waits until it is paid.
pub(super) fn debt(server: &Server) -> Result<Debt> {
    let began = Instant::now();
    let mut client = server.client()?;
    let mut left = || -> Result<u64> {
        let text = client.status("Innodb_history_list_length")?;
        text.parse().map_err(|_| LocalError::Value(format!("Innodb_history_list_length is {text:?}")))
    };
    let transactions = left()?;
    if transactions > FEW {
        server.wait_until(TIMEOUT, PAUSE, "does not purge what the load has left", || Ok(left()? <= FEW))?;
    }
    Ok(Debt { transactions, paid: began.elapsed() })
}
