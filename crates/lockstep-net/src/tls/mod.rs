//! TLS between members: certificates and keys out of files, and one connection's encryption without a socket.
//!
//! TLS 1.3 only. Both sides present a certificate and both check the other's: it must be signed by an authority of the
//! file `socket.ssl_ca`, or be one of the certificates in that file. Host names in certificates are not looked at, for
//! members are addressed by number: a certificate signed by the cluster's authority proves membership. Sessions are never
//! resumed, so each connection proves the peer's identity anew.

pub mod acceptor;
mod explain;
mod session;
mod stream;
mod verify;
mod x509;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

pub(crate) use self::session::Session;
pub use self::stream::TlsStream;
use self::verify::MemberVerifier;
pub use self::x509::Validity;
#[cfg(test)]
pub(crate) use self::x509::validity as validity_of;

/// Where a member's certificate and key are, and the authority that it trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// `socket.ssl_cert`: the member's certificate, with those between it and the authority, if any, behind it. PEM.
    pub cert: PathBuf,
    /// `socket.ssl_key`: its private key, not encrypted. PEM.
    pub key: PathBuf,
    /// `socket.ssl_ca`: the authorities that members' certificates are signed by, or those certificates themselves.
    /// PEM. `None`: as Galera, the file of [`TlsFiles::cert`].
    pub ca: Option<PathBuf>,
}

/// How a reactor encrypts.
#[derive(Debug, Clone)]
pub struct TlsConfig {
    /// This member's certificate and key, and the authorities that it trusts.
    pub identity: Arc<TlsIdentity>,
    /// `socket.dynamic`: also take connections that are not encrypted, and dial so where TLS is not understood.
    pub dynamic: bool,
}

/// A member's certificate and key and the authority it trusts, checked and ready for use.
pub struct TlsIdentity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    validity: Option<Validity>,
    distrusted: Option<String>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsIdentity({:?})", self.validity)
    }
}

/// Why certificate, key or authority cannot be used: one line that names the file and says what to do.
#[derive(Debug)]
pub enum TlsError {
    /// A file cannot be read.
    Read(&'static str, PathBuf, io::Error),
    /// A file has nothing in it that could be used.
    Nothing(&'static str, PathBuf, &'static str),
    /// The key needs a password.
    Encrypted(PathBuf),
    /// The key does not belong to the certificate.
    Mismatch(TlsFiles),
    /// Certificate or key are of a kind that is not taken.
    Unusable(&'static str, PathBuf, String),
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(option, path, e) => write!(f, "{option}: cannot read {}: {e}", path.display()),
            Self::Nothing(option, path, what) => {
                write!(f, "{option}: there is no {what} in {}: expected a PEM file", path.display())
            }
            Self::Encrypted(path) => write!(
                f,
                "socket.ssl_key: {0} is encrypted, and passwords are not supported: store it without one (openssl \
                 pkey -in \
                 {0} -out NEW), mode 0600",
                path.display()
            ),
            Self::Mismatch(files) => write!(
                f,
                "socket.ssl_key: {} is not the key of the certificate {}",
                files.key.display(),
                files.cert.display()
            ),
            Self::Unusable(option, path, why) => {
                write!(f, "{option}: {} cannot be used: {why}", path.display())
            }
        }
    }
}

impl std::error::Error for TlsError {}

impl TlsIdentity {
    /// Reads and checks the files. Blocks in the file system: not for the reactor's thread.
    ///
    /// # Errors
    /// [`TlsError`]. A certificate that has expired, or that the own authority has not signed, is no error here, for
    /// peers may still take it: see [`TlsIdentity::warning`].
    pub fn load(files: &TlsFiles) -> Result<TlsIdentity, TlsError> {
        let chain = certificates("socket.ssl_cert", &files.cert)?;
        let key_pem = read("socket.ssl_key", &files.key)?;
        let key = match PrivateKeyDer::from_pem_slice(&key_pem) {
            Ok(key) => key,
            Err(_) if find(&key_pem, b"ENCRYPTED") => return Err(TlsError::Encrypted(files.key.clone())),
            Err(_) => return Err(TlsError::Nothing("socket.ssl_key", files.key.clone(), "private key")),
        };
        let (ca_option, ca) = match &files.ca {
            Some(ca) => ("socket.ssl_ca", ca),
            None => ("socket.ssl_cert", &files.cert),
        };
        let trusted = certificates(ca_option, ca)?;
        let mut roots = RootCertStore::empty();
        for cert in &trusted {
            roots.add(cert.clone()).map_err(|e| {
                TlsError::Unusable(
                    ca_option,
                    ca.clone(),
                    format!("one of its certificates: {}", explain::unusable(&e)),
                )
            })?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable = |e: &rustls::Error| match e {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch(files.clone()),
            rustls::Error::InvalidCertificate(_) => {
                TlsError::Unusable("socket.ssl_cert", files.cert.clone(), explain::unusable(e))
            }
            _ => TlsError::Unusable("socket.ssl_key", files.key.clone(), explain::unusable(e)),
        };
        let verifier = MemberVerifier::new(trusted, roots, provider.clone())
            .map_err(|text| TlsError::Unusable(ca_option, ca.clone(), text))?;
        let (server, client) = configs(&provider, &verifier, &chain, key).map_err(|e| unusable(&e))?;
        let own = chain.first();
        let distrusted = own.and_then(|own| {
            let check = |at| verifier.check(own, &chain[1..], at);
            check(UnixTime::now()).err().map(|e| explain::own(&e))
        });
        let validity = own.and_then(|cert| x509::validity(cert));
        Ok(TlsIdentity { server: Arc::new(server), client: Arc::new(client), validity, distrusted })
    }

    /// From when to when the member's certificate is valid; `None` if that cannot be read out of it.
    pub fn validity(&self) -> Option<Validity> {
        self.validity
    }

    /// Why members that trust the same authority would refuse this member's certificate, if they would.
    pub fn distrusted(&self) -> Option<&str> {
        self.distrusted.as_deref()
    }

    /// The error that members trusting the same authority would see in this member's certificate; also if it expires
    /// within `soon`.
    pub fn warning(&self, soon: Duration) -> Option<String> {
        if let Some(text) = &self.distrusted {
            return Some(text.clone());
        }
        let until = self.validity?.not_after;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
        let left = until.saturating_sub(now);
        (left < soon.as_secs() as i64).then(|| {
            format!(
                "the certificate expires on {}, in {} days: create a new one and load it with SET GLOBAL \
                 wsrep_provider_options = 'socket.ssl_reload=1'",
                x509::date(until),
                left / 86_400
            )
        })
    }

    /// One line for the log.
    pub fn describe(&self) -> String {
        match self.validity {
            Some(validity) => format!("certificate valid until {}", x509::date(validity.not_after)),
            None => "certificate with an unreadable expiry date".into(),
        }
    }
}

fn configs(
    provider: &Arc<CryptoProvider>,
    verifier: &Arc<MemberVerifier>,
    chain: &[CertificateDer<'static>],
    key: PrivateKeyDer<'static>,
) -> Result<(ServerConfig, ClientConfig), rustls::Error> {
    let versions = &[&rustls::version::TLS13];
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain.to_vec(), key.clone_key())?;
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    let mut client = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(verifier.clone())
        .with_client_auth_cert(chain.to_vec(), key)?;
    client.resumption = rustls::client::Resumption::disabled();
    client.enable_sni = false;
    Ok((server, client))
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    /// Larger than any certificate file, and small enough to refuse a device or a dump named by mistake.
    const MOST: u64 = 4 << 20;
    let failed = |e| TlsError::Read(option, path.to_owned(), e);
    let size = fs::metadata(path).map_err(failed)?;
    if !size.is_file() || size.len() > MOST {
        return Err(failed(io::Error::other("not a file of some kilobytes")));
    }
    fs::read(path).map_err(failed)
}

fn certificates(option: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(option, path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    if found.is_empty() {
        return Err(TlsError::Nothing(option, path.to_owned(), "certificate"));
    }
    Ok(found)
}

fn find(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}
