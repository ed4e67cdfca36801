//! Bad input: whoever starts a member wrongly, or talks nonsense to one, is told so, and the cluster does not notice.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, Server, host_port};

use crate::fixture::{Kind, Test, kind, session, shared};

/// Starts one more member that must not become one: it ends by itself, and, if it is ours, has said each of `words`
/// in one line of its log. The cluster goes on meanwhile.
fn is_refused(cluster: &mut Cluster, mut server: Server, words: &[&str]) -> Test {
    let outcome = refuse(cluster, &mut server, words);
    server.kill();
    outcome
}

fn refuse(cluster: &mut Cluster, server: &mut Server, words: &[&str]) -> Test {
    server.spawn(&[])?;
    let mut client = session(cluster, 0)?;
    client.query("CREATE TABLE IF NOT EXISTS t (id INT AUTO_INCREMENT PRIMARY KEY)")?;
    for _ in 0..20 {
        client.query("INSERT INTO t VALUES ()")?;
    }
    server.wait_ended(Duration::from_secs(100))?;
    let log = server.log();
    let said = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    // Galera has words of its own.
    if kind() == Kind::Lockstep && !said {
        return Err(LocalError::Value(format!(
            "no line with all of {words:?} in the log:\n{}",
            server.log_tail(30)
        )));
    }
    if !cluster.is_whole() {
        return Err(LocalError::Value(format!("the cluster suffered\n{}", cluster.log_tails(20))));
    }
    Ok(())
}

fn with_option(cluster: &Cluster, name: &str, option: &str, value: &str) -> Result<Server, LocalError> {
    let mut server = cluster.another(name)?;
    server.wsrep_mut()?.provider_options.push((option.into(), value.into()));
    Ok(server)
}

#[test]
fn unknown_option_is_refused() -> Test {
    let mut cluster = shared()?;
    let server = with_option(&cluster, "unknown", "gcache.sise", "128M")?;
    is_refused(&mut cluster, server, &["gcache.sise", "gcache.size"])
}

#[test]
fn malformed_option_is_refused() -> Test {
    let mut cluster = shared()?;
    let server = with_option(&cluster, "malformed", "gcache.size", "much")?;
    is_refused(&mut cluster, server, &["gcache.size", "much"])
}

#[test]
fn option_out_of_range_is_refused() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // it has no option of this name
    }
    let server = with_option(&cluster, "range", "net.heartbeat", "P365D")?;
    is_refused(&mut cluster, server, &["net.heartbeat"])
}

#[test]
fn another_clusters_name() -> Test {
    let mut cluster = shared()?;
    let mut server = cluster.another("stranger")?;
    let wsrep = server.wsrep_mut()?;
    wsrep.cluster_name = "elsewhere".into();
    wsrep.provider_options.push(("pc.wait_prim_timeout".into(), "PT5S".into()));
    is_refused(&mut cluster, server, &["elsewhere", "lab"])
}

#[test]
fn port_in_use_is_reported() -> Test {
    let mut cluster = shared()?;
    let mut server = cluster.another("crowded")?;
    let taken = cluster.servers[0].config.wsrep.as_ref().map_or(0, |w| w.peer_port);
    server.wsrep_mut()?.peer_port = taken;
    is_refused(&mut cluster, server, &[&taken.to_string()])
}

#[test]
fn second_member_with_same_name_is_reported() -> Test {
    // Let in, as by Galera: the default is the host's name, and two servers of a host may be members. But it is said.
    let mut cluster = shared()?;
    let mut server = cluster.another("twin")?;
    server.config.extra.push("wsrep_node_name=n2".into());
    server.start(&[])?;
    cluster.wait_size(4)?;
    let log = server.log();
    let said = log.lines().any(|line| line.contains("named n2, too") && line.contains("wsrep_node_name"));
    server.stop()?;
    cluster.wait_size(3)?;
    if kind() == Kind::Lockstep && !said {
        return Err(LocalError::Value(format!("nothing is said of the name:\n{}", server.log_tail(40))));
    }
    if !cluster.is_whole() {
        return Err(LocalError::Value(format!("the cluster suffered\n{}", cluster.log_tails(20))));
    }
    Ok(())
}

#[test]
fn missing_log_folder_is_refused() -> Test {
    let mut cluster = shared()?;
    if kind() == Kind::Galera {
        return Ok(()); // it has no such option
    }
    let server = with_option(&cluster, "homeless", "log.dir", "/nonexistent/folder")?;
    is_refused(&mut cluster, server, &["/nonexistent/folder"])
}

#[test]
fn foreign_server_at_address_is_named() -> Test {
    let mut cluster = shared()?;
    let sql_port = cluster.servers[0].config.sql_port;
    let mut server = cluster.another("astray")?;
    let wsrep = server.wsrep_mut()?;
    // The server itself greets first there: it is MariaDB's client port.
    wsrep.peers = vec![host_port("127.0.0.1", sql_port)];
    wsrep.provider_options.push(("pc.wait_prim_timeout".into(), "PT5S".into()));
    is_refused(&mut cluster, server, &[&sql_port.to_string()])
}

#[test]
fn noise_on_the_members_port() -> Test {
    let mut cluster = shared()?;
    let mut client = session(&cluster, 0)?;
    client.query("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)")?;
    let mut kept = Vec::new();
    let mut noise = 0x2545_f491_4f6c_dd1du64;
    for round in 0..60 {
        for server in &cluster.servers {
            let Some(wsrep) = &server.config.wsrep else { continue };
            let Ok(mut stream) = TcpStream::connect(wsrep.peer_address()) else { continue };
            let bytes: Vec<u8> = (0..round * 40)
                .map(|_| {
                    noise ^= noise << 13;
                    noise ^= noise >> 7;
                    noise ^= noise << 17;
                    noise as u8
                })
                .collect();
            // The other side may have hung up already.
            let _ = stream.write_all(&bytes);
            // Every third stays, half open.
            if round % 3 == 0 {
                kept.push(stream);
            }
        }
        client.query("INSERT INTO t VALUES ()")?;
    }
    assert!(kept.len() > 30, "only {} connections were accepted", kept.len());
    assert!(cluster.is_whole(), "{}", cluster.log_tails(20));
    let rows = cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?;
    assert_eq!(rows, 60);
    // A member that has to come back gets through the crowd.
    cluster.servers[2].stop()?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    drop(kept);
    Ok(())
}
