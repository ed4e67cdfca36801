//! Consumers with TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lockstep_binlog::wire::{ServerConfig, TlsAcceptor, TlsFiles, tls};
use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::Lab;
use crate::client::Client;

/// An authority with the files of a server; they go away with the test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    folder: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let folder = std::env::temp_dir().join(format!("lockstep-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let made = params.self_signed(&key).unwrap();
        std::fs::write(folder.join("ca.pem"), made.pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), certificate: made.der().clone(), folder }
    }

    /// A certificate and its key, as PEM.
    fn sign(&self) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// Writes the server's files.
    pub(crate) fn write(&self) -> TlsFiles {
        let (certificate, key) = self.sign();
        let files = TlsFiles {
            cert: self.path("cert.pem"),
            key: self.path("key.pem"),
            ca: None,
            require_client_certificate: false,
        };
        std::fs::write(&files.cert, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        Path::new(&self.folder).join(name)
    }

    /// A client that trusts this authority, with or without a certificate of its own.
    fn client(&self, signed_by: Option<&Authority>) -> Arc<ClientConfig> {
        self.client_of(&rustls::version::TLS13, signed_by)
    }

    /// As [`Authority::client`], with this version of TLS.
    fn client_of(
        &self,
        version: &'static SupportedProtocolVersion,
        signed_by: Option<&Authority>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match signed_by {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let (certificate, key) = authority.sign();
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
            }
        })
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn with(acceptor: &Arc<TlsAcceptor>) -> impl FnOnce(&mut ServerConfig) {
    let tls = Some(acceptor.clone());
    |config| config.tls = tls
}

#[test]
fn stream_over_tls_has_the_same_events() {
    let authority = Authority::new("same");
    let acceptor = Arc::new(tls::acceptor(authority.write()).unwrap());
    let lab = Lab::new(2, 100, 40_000, with(&acceptor));
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = authority.client_of(version, None);
        let mut encrypted = Client::connect_tls(lab.server.address(), config).unwrap();
        assert!(lab.server.consumers().last().unwrap().encrypted);
        assert_eq!(encrypted.rows("SELECT @@have_ssl").unwrap(), [["YES"]]);
        encrypted.dump("", 7, false).unwrap();
        assert!(encrypted.read_to_end().unwrap() == lab.events(), "{version:?}");
    }
    // Without TLS it works, too, unless that is forbidden.
    let mut plain = Client::connect(lab.server.address()).unwrap();
    plain.dump("", 7, false).unwrap();
    assert!(plain.read_to_end().unwrap() == lab.events());
}

#[test]
fn connection_without_tls_is_refused_if_tls_is_required() {
    let authority = Authority::new("required");
    let acceptor = Arc::new(tls::acceptor(authority.write()).unwrap());
    let lab = Lab::new(1, 1, 10, |config| (config.tls, config.require_tls) = (Some(acceptor), true));
    let (code, text) = Client::connect(lab.server.address()).err().unwrap();
    assert!(code == 1045 && text.contains("TLS only"), "{code} {text}");
    Client::connect_tls(lab.server.address(), authority.client(None)).map(drop).unwrap();
}

#[test]
fn client_certificate_of_another_authority_is_refused() {
    let (authority, other) = (Authority::new("own"), Authority::new("other"));
    let files = TlsFiles { ca: Some(authority.path("ca.pem")), ..authority.write() };
    let acceptor = Arc::new(tls::acceptor(files).unwrap());
    let lab = Lab::new(1, 1, 10, with(&acceptor));
    let address = lab.server.address();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let with = |signed_by| Client::connect_tls(address, authority.client_of(version, signed_by));
        with(None).map(drop).unwrap();
        with(Some(&authority)).map(drop).unwrap();
        let (code, text) = with(Some(&other)).err().unwrap();
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn reloaded_certificate_counts_for_new_connections() {
    let (authority, next) = (Authority::new("old"), Authority::new("new"));
    let files = authority.write();
    let acceptor = Arc::new(tls::acceptor(files.clone()).unwrap());
    let lab = Lab::new(1, 1, 10, with(&acceptor));
    let address = lab.server.address();
    let mut before = Client::connect_tls(address, authority.client(None)).unwrap();
    // A file that cannot be used changes nothing.
    std::fs::write(&files.cert, "nothing").unwrap();
    let error = acceptor.reload().unwrap_err().to_string();
    assert!(error.contains("cert.pem has no certificate"), "{error}");
    Client::connect_tls(address, authority.client(None)).map(drop).unwrap();
    let new = next.write();
    std::fs::copy(&new.cert, &files.cert).unwrap();
    std::fs::copy(&new.key, &files.key).unwrap();
    acceptor.reload().unwrap();
    assert!(Client::connect_tls(address, authority.client(None)).is_err());
    Client::connect_tls(address, next.client(None)).map(drop).unwrap();
    assert_eq!(before.rows("SELECT @@have_ssl").unwrap(), [["YES"]]);
}

#[test]
fn request_for_tls_without_a_certificate_is_refused() {
    let authority = Authority::new("none");
    let lab = Lab::new(1, 1, 10, |_| {});
    let (_, text) = Client::connect_tls(lab.server.address(), authority.client(None)).err().unwrap();
    assert_eq!(text, "TLS is not offered");
}
