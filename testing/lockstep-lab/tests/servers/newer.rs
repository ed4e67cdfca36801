//! Services that newer servers (MariaDB 11.8) use beyond 10.11: a variable per option, and a status file. On servers
//! without them these tests say so and do nothing.

use lockstep_lab::{Cluster, ClusterSpec};
use lockstep_local::{Client, LocalError};

use crate::fixture::{Kind, Test, alone, eventually, fails, kind, same, session, spec};
use crate::policy::is_under;

/// The file, in each server's data directory.
const FILE: &str = "status.json";

/// The default configuration, in which options are separate variables: of a duplicate option the last one counts.
fn with_variables() -> ClusterSpec {
    let mut spec = spec();
    spec.extra.push("loose_plugin_wsrep_provider=ON".into());
    spec.provider_options.push(("gcs.fc_factor".into(), "0.75".into()));
    spec.extra.push(format!("loose_wsrep_status_file={FILE}"));
    spec
}

fn options(c: &mut Client) -> Result<String, LocalError> {
    c.value("SELECT @@wsrep_provider_options")
}

/// What the file of a server says.
fn file(cluster: &Cluster, n: usize) -> String {
    std::fs::read_to_string(cluster.servers[n].datadir().join(FILE)).unwrap_or_default()
}

#[test]
fn options_are_variables_and_a_file_says_how_the_server_is() -> Test {
    if kind() == Kind::Galera {
        return Ok(()); // it has other options
    }
    let _one = alone();
    let mut cluster = Cluster::start(&with_variables())?;
    let mut c = cluster.servers[0].client()?;
    let count = "SELECT COUNT(*) FROM information_schema.global_variables WHERE variable_name LIKE 'WSREP\\_PROVIDER\\_%'";
    if c.number(count)? < 20 {
        eprintln!("NOT TESTED: this server makes no variables of a provider's options");
        return Ok(());
    }
    for n in 0..3 {
        eventually("it is Synced", || Ok(file(&cluster, n).contains("\"state\": \"SYNCED\"")))?;
    }

    // What the configuration file says in wsrep_provider_options is in them. (A variable that it names has that value, of which
    // MariaDB 11.8.6 does not tell the provider, Galera's neither.)
    same("the variable", c.value("SELECT @@wsrep_provider_gcs_fc_factor")?.as_str(), "0.750000");
    c.run(&[
        "SET GLOBAL wsrep_provider_gcs_fc_limit = 77",
        "SET GLOBAL wsrep_provider_cert_log_conflicts = ON",
        "SET GLOBAL wsrep_provider_repl_causal_read_timeout = 7.5",
        "SET GLOBAL wsrep_provider_commit_policy = 'all'",
    ])?;
    let seen = options(&mut c)?;
    for option in [
        "gcs.fc_factor = 0.75;",
        "gcs.fc_limit = 77;",
        "cert.log_conflicts = yes;",
        "repl.causal_read_timeout = 7.500000;",
        "commit.policy = all;",
    ] {
        assert!(seen.contains(option), "{option}: {seen}");
    }
    for n in 0..3 {
        eventually("all are under it", || is_under(&cluster, n, "all"))?;
    }
    // An invalid value is refused, the old one stays, and the file has the reason.
    // (11.8.6 says that the variable cannot be written, 11.8.9 that it cannot while the variables are there.)
    let all_at_once = c.query("SET GLOBAL wsrep_provider_options = 'commit.policy=async'");
    let code = all_at_once.err().and_then(|e| e.sql_code());
    assert!(matches!(code, Some(1238 | 1210)), "{code:?}");
    fails(&mut c, "SET GLOBAL wsrep_provider_base_port = 1", 1238)?;
    fails(&mut c, "SET GLOBAL wsrep_provider_socket_ssl_reload = 1", 1193)?;
    fails(&mut c, "SET GLOBAL wsrep_provider_commit_policy = 'nonsense'", 1231)?;
    same("the variable", c.value("SELECT @@wsrep_provider_commit_policy")?.as_str(), "all");
    eventually("the reason", || {
        Ok(file(&cluster, 0).contains("must be one of quorum, async, semisync, all"))
    })?;

    // A fallback of semisync is an event.
    c.run(&[
        "SET GLOBAL wsrep_provider_commit_acks = 2",
        "SET GLOBAL wsrep_provider_commit_timeout = 0.5",
        "SET GLOBAL wsrep_provider_commit_policy = 'semisync'",
    ])?;
    for n in 0..3 {
        eventually("all are under it", || is_under(&cluster, n, "semisync"))?;
    }
    cluster.servers[1].stop()?;
    c.run(&["CREATE DATABASE of_two"])?;
    eventually("the event", || Ok(file(&cluster, 0).contains("\"fallen_back\":true")))?;
    cluster.servers[1].start(&[])?;
    eventually("its end", || Ok(file(&cluster, 0).contains("\"fallen_back\":false")))?;
    cluster.wait_size(3)?;
    c.run(&["SET GLOBAL wsrep_provider_commit_policy = 'all'"])?;
    for n in 0..3 {
        eventually("all are under it again", || is_under(&cluster, n, "all"))?;
    }
    drop(c);

    // A member that was away says so until it has caught up.
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY)"])?;
    cluster.servers[2].stop()?;
    assert!(!file(&cluster, 2).contains("\"state\": \"SYNCED\""), "{}", file(&cluster, 2));
    session(&cluster, 0)?.run(&["INSERT INTO test.t SELECT seq FROM seq_1_to_1000"])?;
    cluster.servers[2].start(&[])?;
    eventually("it is back", || Ok(file(&cluster, 2).contains("\"state\": \"SYNCED\"")))?;
    cluster.wait_size(3)?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 1000);
    eventually("it is under it, too", || is_under(&cluster, 2, "all"))
}
