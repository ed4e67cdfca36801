//! Under a policy that lets the leader's server alone write, the lead comes back to where the clients are.

use std::time::{Duration, Instant};

use crate::distance::leads;
use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, eventually, kind, same, session, shared};
use crate::policy::{first_leads, set};

#[test]
fn stalled_primary_regains_leadership() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let cluster = shared()?;
    first_leads(&cluster)?;
    set(&cluster, 0, "commit.policy=semisync")?;
    session(&cluster, 0)?.run(&["CREATE TABLE p (id BIGINT PRIMARY KEY)", "INSERT INTO p VALUES (0)"])?;
    cluster.servers[0].pause()?;
    let elected = eventually("another one is elected", || {
        let status = done(&lockstep(&cluster.servers[1], &["status", "--json"])?)?;
        Ok(["n2", "n3"].iter().any(|name| status.contains(&format!("\"leader\":\"{name}\""))))
    });
    cluster.servers[0].resume()?;
    elected?;
    let insert = |id: i64| cluster.servers[0].query(&format!("INSERT INTO test.p VALUES ({id})"));
    let began = Instant::now();
    let mut ids = 1..;
    let (mut refused, mut rows) = (0, 1);
    // Nobody has moved the clients: they try there, again and again.
    eventually("it takes writes again", || {
        let done = ids.next().is_some_and(|id| insert(id).is_ok());
        refused += i64::from(!done);
        rows += i64::from(done);
        Ok(done && leads(&cluster, "n1")?)
    })?;
    eprintln!("{refused} writes were refused; the lead was back after {:?}", began.elapsed());
    assert!(refused > 0 && began.elapsed() < Duration::from_secs(20));
    let said = "Returning leadership to n1: it is rejecting writes and none arrive here";
    assert!(cluster.servers[1..].iter().any(|server| server.log().contains(said)));
    set(&cluster, 0, "commit.policy=quorum")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, rows);
    Ok(())
}
