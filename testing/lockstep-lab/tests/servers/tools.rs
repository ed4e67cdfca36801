//! The queries of programs around a Galera cluster, verbatim, and their decisions.
//!
//! Each tool's decision is written down here as that tool makes it, so that a test can say "ProxySQL would send no
//! queries there" of a live member. The states are made on member 3; the others are looked at where they can answer.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_lab::Cluster;
use lockstep_local::{Answer, Client, LocalError, Server, SstMethod, free_ports};

use crate::fixture::{Test, eventually, same, session, shared};

/// What `SHOW STATUS` and the like return, by name.
fn pairs(answer: &Answer) -> BTreeMap<String, String> {
    let text = |v: Option<&Option<String>>| v.cloned().flatten().unwrap_or_default();
    answer.rows.iter().map(|row| (text(row.first()), text(row.get(1)))).collect()
}

/// clustercheck (behind HAProxy and xinetd): 200 if the member may be sent to, else 503. With AVAILABLE_WHEN_DONOR also
/// while it donates, and with AVAILABLE_WHEN_READONLY=0 not while it is read-only.
fn clustercheck(client: &mut Client, when_donor: bool) -> Result<u16, LocalError> {
    let state = client.query("SHOW STATUS LIKE 'wsrep_local_state';")?.column("Value")?.to_owned();
    let read_only = client.query("SHOW GLOBAL VARIABLES LIKE 'read_only';")?.column("Value")?.to_owned();
    let good = state == "4" || (when_donor && state == "2");
    Ok(if good && read_only == "OFF" { 200 } else { 503 })
}

/// ProxySQL's Galera host groups: whether the server stays in its group.
fn proxysql(client: &mut Client) -> Result<bool, LocalError> {
    let seen = client.query(
        "SELECT (SELECT VARIABLE_VALUE FROM INFORMATION_SCHEMA.GLOBAL_STATUS WHERE \
         VARIABLE_NAME='WSREP_LOCAL_STATE') wsrep_local_state, @@read_only read_only, (SELECT VARIABLE_VALUE FROM \
         INFORMATION_SCHEMA.GLOBAL_STATUS WHERE VARIABLE_NAME='WSREP_LOCAL_RECV_QUEUE') wsrep_local_recv_queue , \
         @@wsrep_desync wsrep_desync, @@wsrep_reject_queries wsrep_reject_queries, \
         @@wsrep_sst_donor_rejects_queries wsrep_sst_donor_rejects_queries, (SELECT VARIABLE_VALUE FROM \
         INFORMATION_SCHEMA.GLOBAL_STATUS WHERE VARIABLE_NAME='WSREP_CLUSTER_STATUS') wsrep_cluster_status , \
         (SELECT 'DISABLED') pxc_maint_mode",
    )?;
    let get = |name: &str| seen.column(name).map(str::to_owned);
    let queue: u64 = number(&get("wsrep_local_recv_queue")?)? as u64;
    assert!(queue < 1000, "a queue of {queue}, with nobody writing");
    let state = get("wsrep_local_state")?;
    let usable = state == "4" || (state == "2" && get("wsrep_sst_donor_rejects_queries")? == "0");
    Ok(get("wsrep_cluster_status")? == "Primary"
        && get("wsrep_desync")? == "0"
        && get("wsrep_reject_queries")? == "NONE"
        && usable)
}

/// What MaxScale's galeramon makes of one server.
#[derive(Debug, PartialEq, Eq)]
struct GaleraNode {
    joined: bool,
    /// The lowest of those that joined is the master.
    local_index: i64,
    cluster: String,
    size: i64,
    comment: String,
}

fn galeramon(client: &mut Client) -> Result<GaleraNode, LocalError> {
    let seen = pairs(&client.query(
        "SHOW STATUS WHERE Variable_name IN ('wsrep_cluster_state_uuid', 'wsrep_cluster_size', 'wsrep_local_index', \
         'wsrep_local_state', 'wsrep_local_state_comment', 'wsrep_desync', 'wsrep_ready', \
         'wsrep_sst_donor_rejects_queries', 'wsrep_reject_queries')",
    )?);
    // Of each server that it monitors, of whatever kind.
    client.query("SELECT @@gtid_current_pos, @@gtid_binlog_pos, @@read_only, @@server_id")?;
    same("replication from elsewhere", client.query("SHOW ALL SLAVES STATUS")?.rows.len(), 0);
    let get = |name: &str| seen.get(name).cloned().unwrap_or_default();
    Ok(GaleraNode {
        joined: get("wsrep_local_state") == "4" && get("wsrep_ready") == "ON",
        local_index: number(&get("wsrep_local_index"))? as i64,
        cluster: get("wsrep_cluster_state_uuid"),
        size: number(&get("wsrep_cluster_size"))? as i64,
        comment: get("wsrep_local_state_comment").split(':').next().unwrap_or_default().to_owned(),
    })
}

/// Percona's operator: alive, and ready to be sent to.
fn operator_probes(client: &mut Client) -> Result<(bool, bool), LocalError> {
    client.query("SET SESSION wsrep_sync_wait=0")?;
    let status = |client: &mut Client, name: &str| {
        client.query(&format!("SHOW GLOBAL STATUS LIKE '{name}'"))?.column("Value").map(str::to_owned)
    };
    let primary = status(client, "wsrep_cluster_status")? == "Primary";
    Ok((primary, primary && status(client, "wsrep_local_state")? == "4"))
}

/// MariaDB's operator waits for these words.
fn operator_words(client: &mut Client) -> Result<(String, String), LocalError> {
    let seen = pairs(&client.query(
        "SELECT variable_name, variable_value FROM information_schema.global_status WHERE variable_name IN \
         ('wsrep_local_state_comment', 'wsrep_cluster_status')",
    )?);
    let get = |name: &str| seen.get(name).cloned().unwrap_or_default();
    Ok((get("WSREP_LOCAL_STATE_COMMENT"), get("WSREP_CLUSTER_STATUS")))
}

fn number(text: &str) -> Result<f64, LocalError> {
    text.parse().map_err(|_| LocalError::Value(format!("`{text}` is not a number")))
}

/// What all of them make of one member.
#[derive(Debug, PartialEq, Eq)]
struct Verdict {
    clustercheck: u16,
    clustercheck_when_donor: u16,
    proxysql: bool,
    galeramon: bool,
    operator_alive: bool,
    operator_ready: bool,
    words: (String, String),
    /// galeramon and the operator read the same comment. In a change of state they may not: they ask one after the other.
    same_comment: bool,
}

fn ask(server: &Server) -> Result<Verdict, LocalError> {
    let mut client = server.client()?;
    let (operator_alive, operator_ready) = operator_probes(&mut client)?;
    let node = galeramon(&mut client)?;
    let words = operator_words(&mut client)?;
    Ok(Verdict {
        clustercheck: clustercheck(&mut client, false)?,
        clustercheck_when_donor: clustercheck(&mut client, true)?,
        proxysql: proxysql(&mut client)?,
        galeramon: node.joined,
        operator_alive,
        operator_ready,
        same_comment: node.comment == words.0,
        words,
    })
}

fn words(state: &str, status: &str) -> (String, String) {
    (state.into(), status.into())
}

fn synced() -> Verdict {
    Verdict {
        clustercheck: 200,
        clustercheck_when_donor: 200,
        proxysql: true,
        galeramon: true,
        operator_alive: true,
        operator_ready: true,
        words: words("Synced", "Primary"),
        same_comment: true,
    }
}

/// `held`: not because somebody said so, but because a backup or a joiner is being served.
fn donor(held: bool) -> Verdict {
    Verdict {
        clustercheck: 503,
        clustercheck_when_donor: 200,
        proxysql: held,
        galeramon: false,
        operator_alive: true,
        operator_ready: false,
        words: words("Donor/Desynced", "Primary"),
        same_comment: true,
    }
}

fn all_verdicts(cluster: &Cluster) -> Result<Vec<Verdict>, LocalError> {
    cluster.servers.iter().map(ask).collect()
}

/// mysqld_exporter, watching one server.
struct Exporter {
    process: Child,
    port: u16,
    out: std::path::PathBuf,
}

impl Exporter {
    fn start(cluster: &Cluster, server: &Server) -> Result<Exporter, LocalError> {
        server.client()?.run(&[
            "CREATE OR REPLACE USER exporter@localhost IDENTIFIED BY 'secret' WITH MAX_USER_CONNECTIONS 3",
            "GRANT PROCESS, REPLICATION CLIENT, SELECT ON *.* TO exporter@localhost",
        ])?;
        let io = |what: &str| {
            let what = what.to_owned();
            move |source| LocalError::Io { what, source }
        };
        let dir = cluster.bench().dir();
        let (file, out) = (dir.join("exporter.cnf"), dir.join("exporter.out"));
        let socket = server.config.socket();
        let text = format!("[client]\nuser=exporter\npassword=secret\nsocket={}\n", socket.display());
        std::fs::write(&file, text).map_err(io("write the exporter's settings"))?;
        let log = std::fs::File::create(&out).map_err(io("make the exporter's log"))?;
        let second = log.try_clone().map_err(io("make the exporter's log"))?;
        let port = free_ports(1)?;
        let process = Command::new("prometheus-mysqld-exporter")
            .arg(format!("--config.my-cnf={}", file.display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(second)
            .spawn()
            .map_err(io("run prometheus-mysqld-exporter (scripts/setup.sh test installs it)"))?;
        let exporter = Exporter { process, port, out };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                return Err(exporter.complaint("it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(exporter)
    }

    fn complaint(&self, what: &str) -> LocalError {
        let output = std::fs::read_to_string(&self.out).unwrap_or_default();
        LocalError::Command {
            command: "prometheus-mysqld-exporter".into(),
            output: format!("{what}\n{output}"),
        }
    }

    /// All metrics of one scrape: the name, with its labels if it has any, and the value.
    fn scrape(&self) -> Result<BTreeMap<String, String>, LocalError> {
        let io = |source| LocalError::Io { what: "ask mysqld_exporter for its metrics".into(), source };
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(io)?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).map_err(io)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").map_err(io)?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(io)?;
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let lines = body.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.rsplit_once(' '));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Checks metrics of one scrape.
    fn shows(&self, due: &[(&str, f64)]) -> Test {
        let seen = self.scrape()?;
        for (name, value) in due {
            let Some(text) = seen.get(*name) else {
                let near: Vec<_> =
                    seen.keys().filter(|k| k.contains("wsrep") || k.contains("galera")).collect();
                return Err(self.complaint(&format!("no metric {name}; there are {near:?}")));
            };
            same(name, number(text)?, *value);
        }
        Ok(())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The exporter's names of the four that alerts are about, with these values.
fn alerts(ready: f64, primary: f64, state: f64, desync: f64) -> [(&'static str, f64); 4] {
    [
        ("mysql_global_status_wsrep_ready", ready),
        ("mysql_global_status_wsrep_cluster_status", primary),
        ("mysql_global_status_wsrep_local_state", state),
        ("mysql_global_variables_wsrep_desync", desync),
    ]
}

#[test]
fn tools_decide_rightly_in_every_state() -> Test {
    let mut cluster = shared()?;
    let exporter = Exporter::start(&cluster, &cluster.servers[2])?;
    let mut a = session(&cluster, 0)?;
    a.run(&["CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)"])?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?;

    // Synced.
    same("all synced", all_verdicts(&cluster)?, vec![synced(), synced(), synced()]);
    let mut nodes = Vec::new();
    for server in &cluster.servers {
        nodes.push(galeramon(&mut server.client()?)?);
    }
    let mut indices: Vec<i64> = nodes.iter().map(|n| n.local_index).collect();
    indices.sort_unstable();
    same("each member's own place: the first is MaxScale's master", indices, vec![0, 1, 2]);
    for node in &nodes {
        same("MaxScale's cluster", (&node.cluster, node.size), (&nodes[0].cluster, 3));
    }
    exporter.shows(&alerts(1.0, 1.0, 4.0, 0.0))?;
    check_metrics(&exporter, &nodes[0].cluster)?;

    // Desynced because somebody said so.
    let mut c = session(&cluster, 2)?;
    c.query("SET GLOBAL wsrep_desync = ON")?;
    eventually("member 3 is desynced", || Ok(ask(&cluster.servers[2])? == donor(false)))?;
    same("with one desynced", all_verdicts(&cluster)?, vec![synced(), synced(), donor(false)]);
    exporter.shows(&alerts(1.0, 1.0, 2.0, 1.0))?;
    c.query("SET GLOBAL wsrep_desync = OFF")?;
    eventually("member 3 is synced again", || Ok(ask(&cluster.servers[2])? == synced()))?;

    // A donor: the steps of a backup, and the script of a donor that continues.
    c.query("FLUSH TABLES WITH READ LOCK")?;
    eventually("member 3 is a donor", || Ok(ask(&cluster.servers[2])? == donor(true)))?;
    same("with one donor", all_verdicts(&cluster)?, vec![synced(), synced(), donor(true)]);
    exporter.shows(&alerts(1.0, 1.0, 2.0, 0.0))?;
    c.query("SET GLOBAL wsrep_sst_donor_rejects_queries = ON")?;
    same("ProxySQL's use of a donor that rejects", proxysql(&mut cluster.servers[2].client()?)?, false);
    c.run(&["SET GLOBAL wsrep_sst_donor_rejects_queries = OFF", "UNLOCK TABLES"])?;
    eventually("member 3 is synced again", || Ok(ask(&cluster.servers[2])? == synced()))?;

    // Without the majority: everybody must be told to go elsewhere, by a server that answers.
    cluster.servers[0].pause()?;
    cluster.servers[1].pause()?;
    let outcome = alone(&cluster.servers[2], &exporter);
    cluster.servers[0].resume()?;
    cluster.servers[1].resume()?;
    outcome?;
    cluster.wait_size(3)?;
    eventually("all are synced again", || Ok(all_verdicts(&cluster)? == [synced(), synced(), synced()]))?;
    exporter.shows(&alerts(1.0, 1.0, 4.0, 0.0))?;
    drop(exporter);
    session(&cluster, 0)?.query("DROP USER exporter@localhost")?;
    Ok(())
}

/// The shell that runs a donor's state-transfer script, stopped as long as this lives: the transfer takes that long.
struct HeldScript(i32);

impl HeldScript {
    /// The script of the donor with this data directory, if it runs.
    fn of(donor: &Server) -> Option<HeldScript> {
        let datadir = donor.datadir().display().to_string();
        let is_script = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = words.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
            let has = |word: &str| words.iter().any(|w| w.contains(word));
            has("wsrep_sst_rsync") && words.iter().any(|w| w == "donor") && has(&datadir)
        };
        let processes = std::fs::read_dir("/proc").ok()?;
        let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // The lowest: it may have children of the same name.
        let pid = pids.filter(is_script).min()?;
        let held = HeldScript(pid);
        held.signal("-STOP").then_some(held)
    }

    fn signal(&self, signal: &str) -> bool {
        Command::new("kill").args([signal, &self.0.to_string()]).status().is_ok_and(|s| s.success())
    }
}

impl Drop for HeldScript {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

#[test]
fn tools_decide_rightly_about_a_donor_while_it_sends_its_state() -> Test {
    let mut cluster = shared()?;
    let exporter = Exporter::start(&cluster, &cluster.servers[2])?;
    let mut joiner = cluster.another("n4")?;
    joiner.wsrep_mut()?.sst_method = SstMethod::Rsync;
    joiner.config.extra.push("wsrep_sst_donor=n3".into());
    joiner.spawn(&[])?;
    let outcome = (|| {
        let mut held = None;
        eventually("member 3 runs its script", || {
            held = HeldScript::of(&cluster.servers[2]);
            Ok(held.is_some())
        })?;
        eventually("member 3 is a donor", || Ok(ask(&cluster.servers[2])? == donor(true)))?;
        same("with one donor", all_verdicts(&cluster)?, vec![synced(), synced(), donor(true)]);
        same("MaxScale counts the joiner", galeramon(&mut cluster.servers[2].client()?)?.size, 4);
        exporter.shows(&alerts(1.0, 1.0, 2.0, 0.0))?;
        session(&cluster, 0)?.query("CREATE TABLE meanwhile (id INT PRIMARY KEY)")?;
        drop(held);
        joiner.wait_ready(Duration::from_secs(60))?;
        eventually("the joiner is synced", || Ok(ask(&joiner)? == synced()))?;
        eventually("member 3 is synced again", || Ok(ask(&cluster.servers[2])? == synced()))?;
        same(
            "what was written meanwhile",
            joiner.query("SHOW TABLES IN test LIKE 'meanwhile'")?.rows.len(),
            1,
        );
        joiner.stop()
    })();
    joiner.kill();
    outcome?;
    cluster.wait_size(3)?;
    drop(exporter);
    session(&cluster, 0)?.query("DROP USER exporter@localhost").map(drop)
}

/// Member 3 has lost the others.
fn alone(server: &Server, exporter: &Exporter) -> Test {
    eventually("member 3 notices that it is alone", || {
        Ok(server.client()?.status("wsrep_cluster_status")? != "Primary")
    })?;
    let seen = ask(server)?;
    same("where clients are sent", (seen.clustercheck, seen.clustercheck_when_donor), (503, 503));
    same("what ProxySQL does", seen.proxysql, false);
    same("what MaxScale does", seen.galeramon, false);
    same("what the operator does", (seen.operator_alive, seen.operator_ready), (false, false));
    same("the words", seen.words, words("Initialized", "non-Primary"));
    exporter.shows(&alerts(0.0, 0.0, 0.0, 0.0))?;
    exporter.shows(&[("mysql_up", 1.0), ("mysql_global_status_wsrep_connected", 1.0)])
}

/// What dashboards draw: there, and true.
fn check_metrics(exporter: &Exporter, history: &str) -> Test {
    exporter.shows(&[
        ("mysql_up", 1.0),
        ("mysql_global_status_wsrep_cluster_size", 3.0),
        ("mysql_global_status_wsrep_connected", 1.0),
        ("mysql_global_status_wsrep_local_recv_queue", 0.0),
        ("mysql_global_status_wsrep_local_send_queue", 0.0),
        ("mysql_galera_gcache_size_bytes", 134_217_728.0),
        ("mysql_galera_variables_info{wsrep_cluster_name=\"lab\"}", 1.0),
    ])?;
    let seen = exporter.scrape()?;
    for name in [
        "replicated",
        "replicated_bytes",
        "received",
        "received_bytes",
        "last_committed",
        "local_commits",
        "local_bf_aborts",
        "local_cert_failures",
        "flow_control_paused_ns",
        "flow_control_sent",
        "flow_control_recv",
        "cert_deps_distance",
        "apply_window",
        "commit_window",
        "local_index",
        "cluster_conf_id",
    ] {
        let name = format!("mysql_global_status_wsrep_{name}");
        let value = seen.get(&name).ok_or_else(|| exporter.complaint(&format!("no metric {name}")))?;
        number(value)?;
    }
    for part in ["min", "avg", "max", "stdev", "sample_size"] {
        let there = seen.keys().any(|k| k.starts_with("mysql_galera_evs_repl_latency_") && k.contains(part));
        assert!(there, "no {part} of wsrep_evs_repl_latency");
    }
    let info = seen.keys().find(|k| k.starts_with("mysql_galera_status_info{")).cloned().unwrap_or_default();
    for label in ["wsrep_local_state_uuid", "wsrep_cluster_state_uuid"] {
        assert!(info.contains(&format!("{label}=\"{history}\"")), "{label} of {info} is not {history}");
    }
    assert!(info.contains("wsrep_provider_version=\""), "{info}");
    // Injected faults are for tests of the core, never for a library that servers load.
    assert!(!info.contains("failpoints"), "{info}");
    Ok(())
}
