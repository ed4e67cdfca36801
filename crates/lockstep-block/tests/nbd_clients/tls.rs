//! Clients with TLS: libnbd's and qemu's, which use GnuTLS.

use std::path::PathBuf;
use std::sync::Arc;

use lockstep_block::Description;
use lockstep_block::nbd::{ServerConfig, TlsAcceptor, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::{Lab, MIB, assert_has, run, try_run};

/// An authority, and folders with its certificates for server and client; they go away with the test.
struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let folder = std::env::temp_dir().join(format!("lockstep-nbd-tls-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).unwrap().pem();
        Authority { folder, issuer: Issuer::new(params, key), certificate }
    }

    /// A folder with the names that libnbd and qemu expect; with a certificate of `signer` if there is one.
    fn client(&self, name: &str, signer: Option<&Authority>) -> String {
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ca-cert.pem"), &self.certificate).unwrap();
        if let Some(signer) = signer {
            signer.sign(&folder.join("client-cert.pem"), &folder.join("client-key.pem"));
        }
        folder.display().to_string()
    }

    fn sign(&self, certificate: &PathBuf, key: &PathBuf) {
        let pair = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let made = CertificateParams::new(names).unwrap().signed_by(&pair, &self.issuer).unwrap();
        std::fs::write(certificate, made.pem()).unwrap();
        std::fs::write(key, pair.serialize_pem()).unwrap();
    }

    fn server(&self, require_client_certificate: bool) -> TlsFiles {
        let (cert, key, ca) =
            (self.folder.join("cert.pem"), self.folder.join("key.pem"), self.folder.join("ca.pem"));
        self.sign(&cert, &key);
        std::fs::write(&ca, &self.certificate).unwrap();
        TlsFiles { cert, key, ca: Some(ca), require_client_certificate }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn lab(name: &str, authority: &Authority, require_tls: bool, require_client_certificate: bool) -> Lab {
    let files = authority.server(require_client_certificate);
    Lab::with(name, Description::new(16 * MIB), |config: &mut ServerConfig| {
        config.tls = Some(Arc::new(TlsAcceptor::load(files).unwrap()));
        config.require_tls = require_tls;
    })
}

impl Lab {
    fn tls_uri(&self, certificates: &str) -> String {
        format!("nbds://localhost:{}/disk?tls-certificates={certificates}", self.port)
    }
}

#[test]
fn libnbd_connects_with_tls() {
    let authority = Authority::new("libnbd");
    let lab = lab("tls-libnbd", &authority, true, false);
    let certificates = authority.client("client", Some(&authority));
    let text = run("nbdinfo", &[&lab.tls_uri(&certificates)]);
    assert_has(&text, &["with TLS", "base:allocation"]);
    let (success, text) = try_run("nbdinfo", &[&format!("nbd://localhost:{}/disk", lab.port)]);
    assert!(!success);
    assert_has(&text, &["TLS"]);
    let bytes = lab.sparse_file("source", 16 * MIB);
    run("nbdcopy", &["--flush", &lab.path("source"), &lab.tls_uri(&certificates)]);
    assert!(lab.device.content() == bytes);
    run("nbdcopy", &[&lab.tls_uri(&certificates), &lab.path("target")]);
    assert!(std::fs::read(lab.path("target")).unwrap() == bytes);
}

#[test]
fn optional_tls_also_serves_plain_clients() {
    let authority = Authority::new("optional");
    let lab = lab("tls-optional", &authority, false, false);
    run("nbdinfo", &[&format!("nbd://localhost:{}/disk", lab.port)]);
    let certificates = authority.client("client", Some(&authority));
    assert_has(&run("nbdinfo", &[&lab.tls_uri(&certificates)]), &["with TLS"]);
}

#[test]
fn client_without_a_valid_certificate_is_refused() {
    let authority = Authority::new("own");
    let other = Authority::new("other");
    let lab = lab("tls-certificates", &authority, true, true);
    run("nbdinfo", &[&lab.tls_uri(&authority.client("right", Some(&authority)))]);
    for folder in [authority.client("none", None), authority.client("wrong", Some(&other))] {
        let (success, text) = try_run("nbdinfo", &[&lab.tls_uri(&folder)]);
        assert!(!success, "{text}");
    }
    let (success, text) = try_run("nbdinfo", &[&lab.tls_uri(&other.client("theirs", Some(&authority)))]);
    assert!(!success, "the client does not trust this server: {text}");
}

#[test]
fn qemu_connects_with_tls() {
    let authority = Authority::new("qemu");
    let lab = lab("tls-qemu", &authority, true, true);
    let object = format!(
        "tls-creds-x509,id=tls0,endpoint=client,dir={}",
        authority.client("client", Some(&authority))
    );
    let image = format!("driver=nbd,host=127.0.0.1,port={},export=disk,tls-creds=tls0", lab.port);
    assert_has(&run("qemu-img", &["info", "--object", &object, "--image-opts", &image]), &["16 MiB"]);
    let commands = ["-c", "write -P 5 1000 3M", "-c", "read -P 5 1000 3M", "-c", "flush"];
    let arguments = [&["--object", &object, "--image-opts"][..], &commands, &[&image]].concat();
    run("qemu-io", &arguments);
    assert!(lab.device.content()[1000..1000 + 3 * MIB as usize].iter().all(|byte| *byte == 5));
}
