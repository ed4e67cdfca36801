//! Verifies the certificate of a peer, by the same rules on both sides of a connection.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use super::x509;

/// Accepts a certificate that an authority has signed, or that is itself in the authority's file.
///
/// The second case is one self-signed certificate for all members, as in Galera's documentation. The peer still has to
/// prove that it has the key.
#[derive(Debug)]
pub(crate) struct MemberVerifier {
    trusted: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    signed: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
}

impl MemberVerifier {
    pub(crate) fn new(
        trusted: Vec<CertificateDer<'static>>,
        roots: RootCertStore,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<MemberVerifier>, String> {
        let roots = Arc::new(roots);
        let signed = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Arc::new(MemberVerifier { trusted, roots, signed, provider }))
    }

    /// As a client's: both uses are asked of every member's certificate, for each member dials and is dialed.
    pub(crate) fn check(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if self.is_listed(cert, now)? {
            return Ok(());
        }
        self.signed.verify_client_cert(cert, between, now).map(|_| ())
    }

    /// Whether the certificate stands in the file of the authority, and is valid now.
    fn is_listed(&self, cert: &CertificateDer<'_>, now: UnixTime) -> Result<bool, Error> {
        if !self.trusted.iter().any(|listed| listed == cert) {
            return Ok(false);
        }
        let validity =
            x509::validity(cert).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        match () {
            () if now > validity.not_after => Err(Error::InvalidCertificate(CertificateError::Expired)),
            () if now < validity.not_before => Err(Error::InvalidCertificate(CertificateError::NotValidYet)),
            () => Ok(true),
        }
    }
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.is_listed(cert, now)? {
            let parsed = rustls::server::ParsedCertificate::try_from(cert)?;
            rustls::client::verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &self.roots,
                between,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Never asked: only TLS 1.3 is offered.
        Err(Error::General("TLS 1.2 is not supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for MemberVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A member has one certificate: it needs no hint, and strangers need not know the authority's name.
        &[]
    }

    fn verify_client_cert(
        &self,
        cert: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(cert, between, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
