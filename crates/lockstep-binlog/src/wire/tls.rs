//! TLS for consumers: certificate and key out of files, and one connection's encryption.
//!
//! TLS 1.3 only, as between members. A client asks for it after the greeting: it sends the first 32 bytes of its reply, then
//! the TLS handshake, and then the whole reply.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::packet::Decoder;

/// Larger than any file of certificates.
const FILE_MAX: u64 = 4 << 20;

/// The files of a certificate. PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificate, and behind it those between it and the authority.
    pub cert: PathBuf,
    /// Its private key, without a password.
    pub key: PathBuf,
    /// The authorities of clients' certificates. A client need not present one, but an invalid one is refused.
    pub ca: Option<PathBuf>,
}

/// Files that cannot be used: one line that names the file.
#[derive(Debug)]
pub struct TlsError(String);

impl TlsError {
    pub(super) fn new(text: String) -> TlsError {
        TlsError(text)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

/// The certificate for new connections.
pub struct TlsAcceptor {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl fmt::Debug for TlsAcceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsAcceptor").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsAcceptor {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] if one cannot be used.
    pub fn load(files: TlsFiles) -> Result<TlsAcceptor, TlsError> {
        let config = RwLock::new(Arc::new(config(&files)?));
        Ok(TlsAcceptor { files, config })
    }

    /// Reads the files again. New connections get the new certificate.
    ///
    /// # Errors
    /// [`TlsError`] if one cannot be used. The old certificate stays then.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = Arc::new(config(&self.files)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The encryption of a new connection.
    pub(super) fn session(&self) -> io::Result<Session> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Session { tls: ServerConnection::new(config).map_err(io::Error::other)?, closed: false })
    }
}

fn config(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|_| {
        TlsError(format!("{} has no private key in PEM without a password", files.key.display()))
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| TlsError(format!("TLS 1.3 cannot be used: {e}")))?;
    let builder = match &files.ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let unusable = |e: &dyn fmt::Display| TlsError(format!("{} cannot be used: {e}", ca.display()));
            let mut roots = RootCertStore::empty();
            for cert in certificates(ca)? {
                roots.add(cert).map_err(|e| unusable(&e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.allow_unauthenticated().build().map_err(|e| unusable(&e))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| {
        let (cert, key) = (files.cert.display(), files.key.display());
        TlsError(format!("the certificate {cert} and the key {key} cannot be used: {e}"))
    })?;
    // A replica connects once in a while, so that nothing is gained by resumed sessions.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(config)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |e: io::Error| TlsError(format!("cannot read {}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > FILE_MAX {
        return Err(TlsError(format!("{} is no file of some kilobytes", path.display())));
    }
    std::fs::read(path).map_err(failed)
}

pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError(format!("{} has no certificate in PEM", path.display()))),
    }
}

/// The encryption of one connection. The caller reads from the socket.
pub(super) struct Session {
    tls: ServerConnection,
    /// The client has ended its side.
    closed: bool,
}

impl Session {
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the client has ended its side in good order.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Decrypts received bytes into the decoder, and writes answers of TLS itself, such as those of the handshake.
    pub(super) fn decrypt(
        &mut self,
        mut raw: &[u8],
        socket: &mut TcpStream,
        to: &mut Decoder,
    ) -> io::Result<()> {
        while !raw.is_empty() && !self.closed {
            self.tls.read_tls(&mut raw)?;
            match self.tls.process_new_packets() {
                Ok(state) => {
                    let mut plain = vec![0; state.plaintext_bytes_to_read()];
                    self.tls.reader().read_exact(&mut plain)?;
                    to.push(&plain);
                    self.closed = state.peer_has_closed();
                }
                Err(error) => {
                    // The alert says why. A peer that is gone does not need it.
                    let _ = self.flush(socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        self.flush(socket)
    }

    /// Encrypts and writes all of these bytes.
    pub(super) fn write_all(&mut self, mut plain: &[u8], socket: &mut TcpStream) -> io::Result<()> {
        while !plain.is_empty() {
            // The session's buffer is bounded.
            let taken = self.tls.writer().write(plain)?;
            plain = &plain[taken..];
            self.flush(socket)?;
        }
        Ok(())
    }

    /// Tells the client that nothing more comes: without that, a client cannot tell the end from a cut connection.
    pub(super) fn close(&mut self, socket: &mut TcpStream) {
        self.tls.send_close_notify();
        // The client may be gone.
        let _ = self.flush(socket);
    }

    fn flush(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(socket)?;
        }
        Ok(())
    }
}
