//! TLS of a server for clients: certificate and key out of files. TLS 1.3 only, as between members, unless the server names
//! other versions. A client may have a certificate, and must have a valid one if it presents one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};

/// Larger than any file of certificates.
const FILE_MAX: u64 = 4 << 20;

/// The files of a certificate. PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcceptorFiles {
    /// The certificate, and behind it those between it and the authority.
    pub cert: PathBuf,
    /// Its private key, without a password.
    pub key: PathBuf,
    /// The authorities of clients' certificates. An invalid certificate of a client is refused.
    pub ca: Option<PathBuf>,
    /// Whether a client must have a certificate. Needs `ca`.
    pub require_client_certificate: bool,
}

/// Files that cannot be used: one line that names the file.
#[derive(Debug)]
pub struct AcceptorError(String);

impl AcceptorError {
    /// An error of another use of such files.
    pub fn new(text: String) -> AcceptorError {
        AcceptorError(text)
    }
}

impl fmt::Display for AcceptorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AcceptorError {}

/// The certificate for new connections.
pub struct TlsAcceptor {
    files: AcceptorFiles,
    versions: Versions,
    config: RwLock<Arc<ServerConfig>>,
}

/// The versions of TLS that are accepted.
type Versions = &'static [&'static SupportedProtocolVersion];

static TLS13_ONLY: Versions = &[&rustls::version::TLS13];

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsAcceptor {
    /// Reads the files. TLS 1.3 is accepted.
    ///
    /// # Errors
    /// [`AcceptorError`] if one cannot be used.
    pub fn load(files: AcceptorFiles) -> Result<TlsAcceptor, AcceptorError> {
        TlsAcceptor::load_for(files, TLS13_ONLY)
    }

    /// Reads the files. These versions of TLS are accepted.
    ///
    /// # Errors
    /// [`AcceptorError`] if a file cannot be used.
    pub fn load_for(files: AcceptorFiles, versions: Versions) -> Result<TlsAcceptor, AcceptorError> {
        let config = RwLock::new(Arc::new(config(&files, versions)?));
        Ok(TlsAcceptor { files, versions, config })
    }

    /// Reads the files again. New connections get the new certificate.
    ///
    /// # Errors
    /// [`AcceptorError`] if one cannot be used. The old certificate stays then.
    pub fn reload(&self) -> Result<(), AcceptorError> {
        let new = Arc::new(config(&self.files, self.versions)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The configuration for a new connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn config(files: &AcceptorFiles, versions: Versions) -> Result<ServerConfig, AcceptorError> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|_| {
        AcceptorError(format!("{} has no private key in PEM without a password", files.key.display()))
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|e| AcceptorError(format!("TLS cannot be used: {e}")))?;
    let builder = match &files.ca {
        None if files.require_client_certificate => {
            return Err(AcceptorError(
                "client certificates are required, and no authority is named that signs them".into(),
            ));
        }
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let unusable =
                |e: &dyn fmt::Display| AcceptorError(format!("{} cannot be used: {e}", ca.display()));
            let mut roots = RootCertStore::empty();
            for cert in certificates(ca)? {
                roots.add(cert).map_err(|e| unusable(&e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier =
                if files.require_client_certificate { verifier } else { verifier.allow_unauthenticated() };
            builder.with_client_cert_verifier(verifier.build().map_err(|e| unusable(&e))?)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| {
        let (cert, key) = (files.cert.display(), files.key.display());
        AcceptorError(format!("the certificate {cert} and the key {key} cannot be used: {e}"))
    })?;
    // A client connects once in a while, so that nothing is gained by resumed sessions.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, AcceptorError> {
    let failed = |e: io::Error| AcceptorError(format!("cannot read {}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > FILE_MAX {
        return Err(AcceptorError(format!("{} is no file of some kilobytes", path.display())));
    }
    std::fs::read(path).map_err(failed)
}

/// The certificates in a file.
///
/// # Errors
/// [`AcceptorError`] if there are none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AcceptorError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(AcceptorError(format!("{} has no certificate in PEM", path.display()))),
    }
}
