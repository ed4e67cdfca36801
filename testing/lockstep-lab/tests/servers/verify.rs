//! `lockstep verify`: compares members under load, and finds a row injected into one of them.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::LocalError;

use crate::failover::{insert_during, lockstep, sockets};
use crate::fixture::{Kind, Test, built, kind, session, shared};

/// Runs `lockstep verify` by way of one member, which tells it of the others; logs in by their sockets.
fn verify(cluster: &Cluster, json: bool) -> Result<Output, LocalError> {
    let program = built("lockstep");
    let mut command = Command::new(&program);
    command.args(["verify", "--user", "root", "--databases", "test,odd db"]).arg("--socket");
    command.arg(cluster.servers[1].datadir().join("lockstep.sock"));
    for server in &cluster.servers {
        let socket = server.config.socket();
        command.arg("--server").arg(format!("{}={}", server.name(), Path::new(&socket).display()));
    }
    if json {
        command.arg("--json");
    }
    command.output().map_err(|source| LocalError::Io { what: format!("run {}", program.display()), source })
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn verify_names_injected_difference_under_load() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let mut cluster = shared()?;
    let mut a = session(&cluster, 0)?;
    a.run(&[
        "CREATE TABLE gap (id BIGINT PRIMARY KEY)",
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20) CHARACTER SET latin1, b BLOB, d DOUBLE, ts TIMESTAMP)",
        "CREATE TABLE keyless (a INT, b TEXT)",
        "CREATE TABLE pair (k VARCHAR(9), n INT, v DECIMAL(9,2), PRIMARY KEY (k, n))",
        "DROP DATABASE IF EXISTS `odd db`",
        "CREATE DATABASE `odd db`",
        "CREATE TABLE `odd db`.`a``b-c` (`x y` INT PRIMARY KEY)",
        "INSERT INTO `odd db`.`a``b-c` VALUES (1), (2)",
        "INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (2, NULL)",
        "INSERT INTO pair VALUES ('a', 1, 1.5), ('b', 2, 2.5)",
        "INSERT INTO t SELECT seq, CONCAT('v', seq, CHAR(9), 0xe9), REPEAT(CHAR(seq % 256), 50), seq / 7, NOW() FROM seq_1_to_5000",
    ])?;
    // Written to all the while: equal snapshots only show what is equal.
    let mut runs = Vec::new();
    let (gaps, acknowledged, outcome) =
        insert_during(&sockets(&cluster), 0, Duration::from_millis(500), || {
            (0..3).try_for_each(|_| verify(&cluster, false).map(|output| runs.push(output)))
        });
    outcome?;
    eprintln!("longest gaps of writes while three times verified: {gaps:?}");
    for output in &runs {
        eprintln!("{}", text(output).trim());
        assert!(output.status.success(), "{}", text(output));
        assert!(text(output).contains("equal: 5 tables, "), "{}", text(output));
    }
    assert!(acknowledged > 100);

    // What nobody replicates: a changed row, one too many, one too few, and one in a table without a key.
    cluster.servers[2].client()?.run(&[
        "SET SESSION wsrep_on = OFF",
        "UPDATE test.t SET v = 'other' WHERE id = 1234",
        "DELETE FROM test.t WHERE id = 4000",
        "INSERT INTO test.pair VALUES ('c', 3, 0)",
        "UPDATE test.keyless SET b = 'y' LIMIT 1",
    ])?;
    let marks: Vec<usize> = cluster.servers.iter().map(|s| s.log().len()).collect();
    let output = verify(&cluster, false)?;
    let said = text(&output);
    eprintln!("{}", said.trim());
    assert_eq!(output.status.code(), Some(1), "{said}");
    for line in [
        "DIFFERENT: 5 tables, ",
        "test.t differs in 2 rows, id 1234 to 4000: n3",
        "1234: differs on n3",
        "4000: missing on n3",
        "test.pair differs in 1 row, k,n c,3 to c,3: n3",
        "c,3: only on n3\n",
        "test.keyless differs in ",
    ] {
        assert!(said.contains(line), "no `{line}` in\n{said}");
    }
    assert!(!said.contains("test.gap") && !said.contains("odd db"), "{said}");
    let output = verify(&cluster, true)?;
    let json = text(&output);
    assert_eq!(output.status.code(), Some(1), "{json}");
    assert!(json.contains("\"equal\":false") && json.contains("\"table\":\"test.t\""), "{json}");

    // Its clients took their leave.
    for (server, mark) in cluster.servers.iter().zip(marks) {
        let log = server.log_since(mark);
        assert!(!log.contains("Aborted connection"), "{}: {log}", server.name());
    }

    // A table that only one has, and two that are defined otherwise.
    cluster.servers[2].client()?.run(&[
        "SET SESSION wsrep_on = OFF",
        "CREATE TABLE test.extra (id INT PRIMARY KEY)",
        "ALTER TABLE test.pair ADD COLUMN more INT",
        "ALTER TABLE `odd db`.`a``b-c` ADD UNIQUE KEY twice (`x y`)",
    ])?;
    let said = text(&verify(&cluster, false)?);
    assert!(said.contains("test.extra does not exist on all members: n3"), "{said}");
    assert!(said.contains("test.pair has different definitions: n3"), "{said}");
    let key = "odd db.a`b-c has different definitions (n3 has UNIQUE KEY `twice` (`x y`)): n3";
    assert!(said.contains(key), "no `{key}` in\n{said}");

    // Mended by a copy, as the documents say. While it is away the others are equal, and that is not all there is to say.
    cluster.servers[2].stop()?;
    cluster.wait_size(2)?;
    for json in [false, true] {
        let output = verify(&cluster, json)?;
        let said = text(&output);
        assert_eq!(output.status.code(), Some(4), "{said}");
        let line = if json {
            "\"not_compared\":[{\"name\":\"n3\","
        } else {
            "\n  not compared: n3 (Disconnected)\n"
        };
        assert!(said.contains(line), "no `{line}` in\n{said}");
    }
    let state = cluster.servers[2].datadir().join("grastate.dat");
    std::fs::remove_file(&state)
        .map_err(|source| LocalError::Io { what: format!("remove {}", state.display()), source })?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    let output = verify(&cluster, false)?;
    assert!(output.status.success(), "{}", text(&output));

    // A held-back member is skipped, and named.
    let mut behind = cluster.servers[2].client()?;
    behind.query("SET GLOBAL wsrep_provider_options = 'apply.paused=on'")?;
    a.query("INSERT INTO pair VALUES ('d', 4, 0)")?;
    let mut output = verify(&cluster, false)?;
    // The other members learn of the hold by n3's next report, up to 0.2 s later.
    if text(&output).contains("try again, and it is left out") {
        output = verify(&cluster, false)?;
    }
    let said = text(&output);
    behind.query("SET GLOBAL wsrep_provider_options = 'apply.paused=off'")?;
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("\n  not compared: n3 (") && said.contains(", held back)\n"), "{said}");
    a.query("DROP DATABASE `odd db`")?;
    Ok(())
}

#[test]
fn verify_without_comparison_has_own_exit_code() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let cluster = shared()?;
    let socket = |n: usize| cluster.servers[n].config.socket().display().to_string();
    let verify_by = |[n1, n2, n3]: [String; 3]| {
        let servers = [format!("n1={n1}"), format!("n2={n2}"), format!("n3={n3}")];
        let mut args = vec!["verify", "--user", "root"];
        args.extend(servers.iter().flat_map(|server| ["--server", server]));
        lockstep(&cluster.servers[0], &args)
    };
    // The others are found, so the missing one is the first complaint.
    let output = verify_by(["/nowhere.sock".into(), socket(1), socket(2)])?;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("/nowhere.sock"), "{}", text(&output));
    // Two in one place would be compared with each other.
    let output = verify_by([socket(1), socket(1), socket(2)])?;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("is n2, not n1"), "{}", text(&output));
    Ok(())
}
