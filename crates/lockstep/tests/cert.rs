//! `lockstep cert`, run as people run it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lockstep_node::net::{TlsFiles, TlsIdentity};

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cert(dir: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    let output = command.arg("cert").arg("--dir").arg(dir).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn files(dir: &Path, name: &str) -> TlsFiles {
    let path = |end: &str| dir.join(format!("{name}-{end}.pem"));
    TlsFiles { cert: path("cert"), key: path("key"), ca: Some(dir.join("ca.pem")) }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn members_are_made_added_and_renewed() {
    let folder = Folder(std::env::temp_dir().join(format!("ls-cert-{}", std::process::id())));
    let dir = &folder.0;
    let (ok, said) =
        cert(dir, &["--name", "n1", "--name", "n2", "--san", "db1.example", "--san", "10.0.0.1"]);
    assert!(ok, "{said}");
    let (n1, n2) = (files(dir, "n1"), files(dir, "n2"));
    // The line that is printed is one that the provider takes.
    let line = said.lines().find(|l| l.contains("n1-key.pem")).unwrap();
    let options = line.split('"').nth(1).unwrap();
    let taken = lockstep_node::options::Options::parse(options).unwrap().tls().unwrap();
    assert_eq!(std::fs::canonicalize(&taken.files.key).unwrap(), std::fs::canonicalize(&n1.key).unwrap());
    for files in [&n1, &n2] {
        let identity = TlsIdentity::load(files).unwrap();
        assert_eq!(identity.warning(Duration::from_secs(1824 * 86_400)), None);
        assert!(identity.warning(Duration::from_secs(1826 * 86_400)).is_some());
        assert_eq!((mode(&files.key), mode(&files.cert)), (0o600, 0o644));
    }
    assert_eq!((mode(&dir.join("ca-key.pem")), mode(dir)), (0o600, 0o700));
    // One more, of the same authority.
    let ca = std::fs::read(dir.join("ca.pem")).unwrap();
    assert!(cert(dir, &["--name", "n3", "--days", "10"]).0);
    assert_eq!(std::fs::read(dir.join("ca.pem")).unwrap(), ca);
    assert_eq!(TlsIdentity::load(&files(dir, "n3")).unwrap().warning(Duration::ZERO), None);
    // Existing files stay, unless renewal is asked for.
    let old = std::fs::read(&n1.cert).unwrap();
    let (ok, said) = cert(dir, &["--name", "n1"]);
    assert!(!ok && said.contains("--renew"), "{said}");
    assert_eq!(std::fs::read(&n1.cert).unwrap(), old);
    assert!(cert(dir, &["--name", "n1", "--renew"]).0);
    assert_ne!(std::fs::read(&n1.cert).unwrap(), old);
    assert_eq!(TlsIdentity::load(&n1).unwrap().warning(Duration::ZERO), None);
    // Half an authority is none.
    std::fs::remove_file(dir.join("ca-key.pem")).unwrap();
    let (ok, said) = cert(dir, &["--name", "n4"]);
    assert!(!ok && said.contains("ca-key.pem is missing"), "{said}");
    assert!(!cert(dir, &["--name", "../n5"]).0);
}

/// Where OpenSSL's command is installed, it agrees: state-transfer scripts use that.
#[test]
fn openssl_takes_what_is_made() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("no openssl here: nothing to compare with");
        return;
    }
    let folder = Folder(std::env::temp_dir().join(format!("ls-cert-o-{}", std::process::id())));
    let dir = &folder.0;
    assert!(cert(dir, &["--name", "n1", "--san", "10.0.0.1"]).0);
    for purpose in ["sslserver", "sslclient"] {
        let output = Command::new("openssl")
            .args(["verify", "-x509_strict", "-verify_ip", "10.0.0.1", "-purpose", purpose, "-CAfile"])
            .args([dir.join("ca.pem"), dir.join("n1-cert.pem")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
