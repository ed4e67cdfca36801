//! rustls' errors, as one line that says what to do.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

/// Why this member's certificate or key, or an authority's, cannot be used at all.
pub(super) fn unusable(e: &Error) -> String {
    match e {
        Error::InvalidCertificate(CertificateError::BadEncoding) => {
            "it cannot be decoded: expected an X.509 certificate of version 3 (openssl x509 -noout -text shows \
             it)".into()
        }
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            format!("{other}: expected an X.509 certificate of version 3 (openssl x509 -noout -text shows it)")
        }
        Error::General(text) => {
            format!("{text}; supported are RSA of 2048 to 8192 bits, ECDSA (P-256, P-384) and Ed25519")
        }
        other => other.to_string(),
    }
}

/// Why this member's certificate is not one that members with the same authority would take.
pub(super) fn own(e: &Error) -> String {
    match e {
        Error::InvalidCertificate(bad) => format!("this member's certificate {}", certificate(bad)),
        other => format!("this member's certificate cannot be checked: {other}"),
    }
}

/// The error in a certificate, as a clause after `... certificate`.
fn certificate(e: &CertificateError) -> String {
    match e {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is not signed by an authority of the file socket.ssl_ca".into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired (or the clock of this machine is wrong): create a new one".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet: compare the clocks of the machines".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for the use as TLS server and client: a member needs both".into()
        }
        other => format!("is refused: {other}"),
    }
}

/// Why a handshake failed, or an encrypted connection broke, seen from this side.
pub(super) fn handshake(e: &Error) -> String {
    match e {
        Error::InvalidCertificate(bad) => format!("the peer's certificate {}", certificate(bad)),
        Error::NoCertificatesPresented => {
            "the peer presents no certificate: every member needs socket.ssl_cert and socket.ssl_key".into()
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                "the peer refuses this member's certificate: it is not signed by an authority of the file \
                 socket.ssl_ca there".into()
            }
            AlertDescription::CertificateExpired => {
                "the peer reports that this member's certificate has expired: create a new one (or compare the \
                 clocks)".into()
            }
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => {
                format!("the peer refuses this member's certificate ({alert:?}): see the peer's log")
            }
            AlertDescription::CertificateRequired => {
                "the peer requires a certificate of this member: set socket.ssl_cert and socket.ssl_key".into()
            }
            AlertDescription::ProtocolVersion => {
                "the peer does not speak TLS 1.3, or is not encrypted".into()
            }
            other => format!("the peer ends the TLS handshake ({other:?}): see the peer's log"),
        },
        Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered | PeerIncompatible::Tls13RequiredForQuic)
        | Error::PeerIncompatible(PeerIncompatible::SupportedVersionsExtensionRequired)
        | Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            "the peer does not speak TLS 1.3: members do".into()
        }
        Error::InvalidMessage(_) | Error::DecryptError => {
            format!("the received data are not TLS, or were damaged in transit ({e})")
        }
        other => format!("TLS failed: {other}"),
    }
}
