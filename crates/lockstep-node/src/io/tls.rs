//! Loading of certificate and key, and the log lines about them.

use crate::api::{Level, Logger, NodeConfig, NodeError};
use lockstep_net::{TlsConfig, TlsFiles, TlsIdentity};
use std::sync::Arc;
use std::time::Duration;

/// A certificate that expires sooner is worth a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

/// Reads certificate, key and authority.
pub(crate) fn load_identity(files: &TlsFiles) -> Result<TlsIdentity, NodeError> {
    TlsIdentity::load(files).map_err(|e| NodeError::Setup(e.to_string()))
}

/// The identity in force from now on; logs its warning, if there is one.
pub(crate) fn announce_identity(
    identity: TlsIdentity,
    files: &TlsFiles,
    logger: &Logger,
) -> Arc<TlsIdentity> {
    logger(
        Level::Info,
        &format!("connections between members are encrypted: TLS 1.3, {}", identity.describe()),
    );
    if let Some(warning) = identity.warning(EXPIRES_SOON) {
        logger(Level::Warn, &format!("socket.ssl_cert {}: {warning}", files.cert.display()));
    }
    Arc::new(identity)
}

/// What connections between members are encrypted with; `None`: nothing.
pub(crate) fn tls_config(config: &NodeConfig) -> Result<Option<TlsConfig>, NodeError> {
    match &config.tls {
        None => {
            (config.logger)(
                Level::Info,
                "connections between members are not encrypted (socket.ssl is off): whoever can read or reach their \
                 network can read what is replicated, or join",
            );
            Ok(None)
        }
        Some(tls) => {
            let identity = announce_identity(load_identity(&tls.files)?, &tls.files, &config.logger);
            if tls.dynamic {
                let text = "socket.dynamic is on: connections without encryption are taken, too; turn it off when all \
                            members have socket.ssl";
                (config.logger)(Level::Info, text);
            }
            Ok(Some(TlsConfig { identity, dynamic: tls.dynamic }))
        }
    }
}
