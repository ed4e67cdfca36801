//! Encryption between members: switched on member by member, certificates changed while the cluster works, copies of
//! the database encrypted with the same files, and nobody let in without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_lab::Cluster;
use lockstep_local::{LocalError, SstMethod};

use crate::fixture::{Kind, Test, alone, built, eventually, kind, same, session, spec, status};

/// Runs `lockstep cert` and gives the files to the servers' account.
fn cert(cluster: &Cluster, dir: &Path, args: &[&str]) -> Test {
    let mut command = Command::new(built("lockstep"));
    let output = command.arg("cert").arg("--dir").arg(dir).args(args).output();
    let io = |source| LocalError::Io { what: "run lockstep cert".into(), source };
    let output = output.map_err(io)?;
    if !output.status.success() {
        return Err(LocalError::Value(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    cluster.bench().installation().give(dir)?;
    for entry in fs::read_dir(dir).map_err(io)?.flatten() {
        cluster.bench().installation().give(&entry.path())?;
    }
    Ok(())
}

/// The options of a member with its files in `dir`.
fn options(dir: &Path, name: &str) -> Vec<(String, String)> {
    let path = |end: &str| dir.join(format!("{name}-{end}.pem")).display().to_string();
    vec![
        ("socket.ssl_key".into(), path("key")),
        ("socket.ssl_cert".into(), path("cert")),
        ("socket.ssl_ca".into(), dir.join("ca.pem").display().to_string()),
    ]
}

/// Restarts the members one by one with these options, and writes meanwhile.
fn in_turn(cluster: &mut Cluster, change: impl Fn(&str) -> Vec<(String, String)>) -> Test {
    for n in 0..3 {
        let name = cluster.servers[n].name().to_owned();
        cluster.servers[n].stop()?;
        cluster.servers[n].wsrep_mut()?.provider_options = change(&name);
        session(cluster, (n + 1) % 3)?.query("INSERT INTO t (v) VALUES ('one is away')")?;
        cluster.servers[n].start(&[])?;
        cluster.wait_size(3)?;
        session(cluster, n)?.query("INSERT INTO t (v) VALUES ('all are here')")?;
    }
    Ok(())
}

/// A member that comes back without its certificate waits, and says why.
fn back_without_encryption(cluster: &mut Cluster, base: &[(String, String)]) -> Test {
    let server = &mut cluster.servers[2];
    let encrypted = std::mem::replace(&mut server.wsrep_mut()?.provider_options, base.to_vec());
    server.stop()?;
    server.spawn(&[])?;
    let told = eventually("its status says why it waits", || {
        let status = status(&server.datadir()).unwrap_or_default();
        Ok(status.contains("n1 (") && status.contains("a TLS server, and this member has no socket.ssl"))
    });
    server.kill();
    server.wsrep_mut()?.provider_options = encrypted;
    told?;
    server.start(&[])?;
    cluster.wait_size(3)
}

const RELOAD: &str = "SET GLOBAL wsrep_provider_options = 'socket.ssl_reload=1'";

fn reload_all(cluster: &Cluster, statement: &str) -> Test {
    for server in &cluster.servers {
        server.query(statement)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Test {
    let text = fs::read(from).map_err(|source| LocalError::Io { what: "read a file".into(), source })?;
    // In place: owner and mode stay.
    fs::write(to, text).map_err(|source| LocalError::Io { what: "write a file".into(), source })
}

#[test]
fn tls_is_enabled_in_turn_and_reloaded_live() -> Test {
    let _alone = alone();
    let mut spec = spec();
    spec.sst_method = SstMethod::Mariabackup;
    let mut cluster = Cluster::start(&spec)?;
    let base = cluster.servers[0].wsrep_mut()?.provider_options.clone();
    let dir: PathBuf = cluster.bench().dir().join("tls");
    cert(&cluster, &dir, &["--name", "n1", "--name", "n2", "--name", "n3"])?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE test", "CREATE TABLE test.t (id INT PRIMARY KEY AUTO_INCREMENT, v TEXT)"])?;
    let words =
        |server: &lockstep_local::Server, text: &str| kind() == Kind::Galera || server.log().contains(text);
    assert!(words(&cluster.servers[0], "connections between members are not encrypted"));

    // On, in turn: first both ways, then only one.
    let with = |name: &str, more: &[(&str, &str)]| {
        let mut all = base.clone();
        all.extend(options(&dir, name));
        all.extend(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        all
    };
    in_turn(&mut cluster, |name| with(name, &[("socket.dynamic", "yes")]))?;
    assert!(words(&cluster.servers[0], "is not encrypted (socket.dynamic)"));
    in_turn(&mut cluster, |name| with(name, &[]))?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 12);
    for server in &cluster.servers {
        assert!(words(server, "connections between members are encrypted: TLS 1.3"), "{}", server.name());
    }

    // A member without certificates stays outside, and is told so.
    let mut outside = cluster.another("outside")?;
    let mut plain = base.clone();
    plain.push(("pc.wait_prim_timeout".into(), "PT4S".into()));
    outside.wsrep_mut()?.provider_options = plain;
    outside.spawn(&[])?;
    if kind() == Kind::Lockstep {
        let told = eventually("both sides name the trouble", || {
            Ok(outside.log().contains("[Warning] WSREP")
                && outside.log().contains("a TLS server, and this member has no socket.ssl")
                && cluster.servers.iter().any(|s| s.log().contains("a member that does not encrypt")))
        });
        let ended = outside.wait_ended(Duration::from_secs(40));
        outside.kill();
        told?;
        ended?;
    } else {
        outside.wait_ended(Duration::from_secs(60))?;
    }
    cluster.wait_size(3)?;

    if kind() == Kind::Lockstep {
        back_without_encryption(&mut cluster, &base)?;
    }

    // A new authority, step by step, while the servers run.
    let new = cluster.bench().dir().join("tls-new");
    cert(&cluster, &new, &["--name", "n1", "--name", "n2", "--name", "n3"])?;
    let both = [fs::read(dir.join("ca.pem")), fs::read(new.join("ca.pem"))];
    let io = |source| LocalError::Io { what: "read an authority".into(), source };
    let [old_ca, new_ca] = both;
    fs::write(dir.join("ca.pem"), [old_ca.map_err(io)?, new_ca.map_err(io)?].concat()).map_err(io)?;
    reload_all(&cluster, RELOAD)?;
    for name in ["n1", "n2", "n3"] {
        for end in ["key", "cert"] {
            let file = format!("{name}-{end}.pem");
            copy(&new.join(&file), &dir.join(&file))?;
        }
    }
    reload_all(&cluster, "FLUSH SSL")?;
    copy(&new.join("ca.pem"), &dir.join("ca.pem"))?;
    reload_all(&cluster, "FLUSH SSL")?;
    same("size", cluster.servers[0].wsrep_status()?["wsrep_cluster_size"].clone(), "3".to_owned());
    // Existing connections stay; new ones use the new certificates. A member that had not reloaded would present the old
    // authority's certificate to a starting member, or reject that member's.
    cluster.servers[2].kill();
    session(&cluster, 0)?.query("INSERT INTO t (v) VALUES ('n3 is gone')")?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;

    // Unusable files are refused, and the loaded ones stay.
    let key = fs::read(dir.join("n2-key.pem")).map_err(io)?;
    fs::write(dir.join("n2-key.pem"), "nothing").map_err(io)?;
    let refused = [RELOAD, "FLUSH SSL"].map(|statement| cluster.servers[1].query(statement).is_err());
    fs::write(dir.join("n2-key.pem"), key).map_err(io)?;
    assert_eq!(refused, [true; 2], "a key that is none was taken");
    assert!(words(&cluster.servers[1], "the certificates that were loaded before stay in force"));
    if kind() == Kind::Lockstep {
        // So is a certificate that the own authority has not signed, and nobody would take.
        let foreign = cluster.bench().dir().join("tls-foreign");
        cert(&cluster, &foreign, &["--name", "n2"])?;
        let files = ["n2-key.pem", "n2-cert.pem"];
        let own: Vec<_> =
            files.iter().map(|file| fs::read(dir.join(file))).collect::<Result<_, _>>().map_err(io)?;
        for file in files {
            copy(&foreign.join(file), &dir.join(file))?;
        }
        let refused = [RELOAD, "FLUSH SSL"].map(|statement| cluster.servers[1].query(statement).is_err());
        for (file, text) in files.iter().zip(own) {
            fs::write(dir.join(file), text).map_err(io)?;
        }
        assert_eq!(refused, [true; 2], "a certificate of another authority was taken");
    }

    // A copy of the database, encrypted with the same files.
    for server in &mut cluster.servers {
        let path = |end: &str| dir.join(end).display().to_string();
        let name = server.name().to_owned();
        server.config.extra.extend([
            "[sst]".to_owned(),
            "encrypt=4".to_owned(),
            format!("tkey={}", path(&format!("{name}-key.pem"))),
            format!("tcert={}", path(&format!("{name}-cert.pem"))),
            format!("tca={}", path("ca.pem")),
        ]);
        server.write_config()?;
    }
    cluster.servers[2].stop()?;
    let datadir = cluster.servers[2].datadir();
    fs::remove_dir_all(&datadir).map_err(io)?;
    cluster.bench().installation().make_dir(&datadir, 0o755)?;
    cluster.servers[2].start(&[])?;
    cluster.wait_size(3)?;
    assert!(cluster.servers[2].log().contains("encrypt='4'"), "the copy went in clear");
    session(&cluster, 2)?.query("INSERT INTO t (v) VALUES ('n3 is back')")?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.t")?.number()?, 14);
    cluster.same_everywhere("CHECKSUM TABLE test.t")?;
    cluster.stop()
}
