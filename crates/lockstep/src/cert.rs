//! `lockstep cert`: creates a cluster's certificate authority, and certificates and keys for its members.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use lockstep_local::say;
use lockstep_node::net::{TlsFiles, TlsIdentity};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

const AUTHORITY: &str = "ca.pem";
const AUTHORITY_KEY: &str = "ca-key.pem";
/// The name in the authority's certificate. All authorities have this name and differ by their keys.
const AUTHORITY_NAME: &str = "Lockstep cluster authority";
/// The validity of an authority. It exceeds that of any certificate that the authority signs.
const AUTHORITY_YEARS: u32 = 20;
const DAY: Duration = Duration::from_secs(86_400);

/// Options of `lockstep cert`.
#[derive(Args, Debug)]
pub(crate) struct CertArgs {
    /// Output directory. An authority in it signs the new certificates.
    #[arg(long, default_value = "lockstep-tls")]
    dir: PathBuf,
    /// Create a certificate and a key for this member (its wsrep_node_name). May be repeated.
    #[arg(long = "name", value_name = "NAME", value_parser = name)]
    names: Vec<String>,
    /// A host name or address for the certificates. State transfers by mariabackup or stunnel check it; members do
    /// not. May be repeated.
    #[arg(long = "san", value_name = "HOST", value_parser = host)]
    hosts: Vec<String>,
    /// Validity of the certificates.
    #[arg(long, value_name = "DAYS", default_value_t = 1825, value_parser = clap::value_parser!(u32).range(1..=7300))]
    days: u32,
    /// Replace existing certificates and keys, for example before they expire.
    #[arg(long)]
    renew: bool,
}

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !text.is_empty()
        && text.len() <= 64
        && text.chars().all(plain)
        && !text.starts_with('.')
        && text != "ca"
    {
        true => Ok(text.to_owned()),
        false => Err("expected up to 64 letters, digits, `-`, `_` and `.`, but not `ca`".into()),
    }
}

/// Parses a host name (also `*.` and a domain) or an IP address for a certificate.
fn host(text: &str) -> Result<String, String> {
    let label = |l: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !l.is_empty() && l.len() <= 63 && l.chars().all(inner) && !l.starts_with('-') && !l.ends_with('-')
    };
    let domain = text.strip_prefix("*.").unwrap_or(text);
    let is_name = text.len() <= 253 && domain.split('.').all(label);
    match is_name || text.parse::<std::net::IpAddr>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("expected a host name such as db1.example.org or an IP address, without a port".into()),
    }
}

/// Runs the command.
pub(crate) fn run(args: &CertArgs) -> Result<(), String> {
    let dir = &args.dir;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| format!("cannot create the directory {}: {e}", dir.display()))?;
    let dir =
        &fs::canonicalize(dir).map_err(|e| format!("cannot resolve the path {}: {e}", dir.display()))?;
    let issuer = authority(dir)?;
    for name in &args.names {
        let files = TlsFiles {
            cert: dir.join(format!("{name}-cert.pem")),
            key: dir.join(format!("{name}-key.pem")),
            ca: Some(dir.join(AUTHORITY)),
        };
        if files.cert.exists() && !args.renew {
            return Err(format!("{} exists already: replace it with --renew", files.cert.display()));
        }
        let (cert, key) = member(&issuer, name, &args.hosts, args.days)?;
        write(&files.key, &key, 0o600)?;
        write(&files.cert, &cert, 0o644)?;
        // Run the same checks as the provider.
        let identity = TlsIdentity::load(&files).map_err(|e| e.to_string())?;
        if let Some(warning) = identity.warning(Duration::ZERO) {
            return Err(format!("{}: {warning}", files.cert.display()));
        }
        say(&format!("{name}: {}", identity.describe()));
        say(&format!(
            "  wsrep_provider_options = \"socket.ssl_key={}; socket.ssl_cert={}; socket.ssl_ca={}\"",
            files.key.display(),
            files.cert.display(),
            dir.join(AUTHORITY).display()
        ));
    }
    if args.names.is_empty() {
        say(&format!(
            "{} is the authority. Create a member's certificate with `lockstep cert --dir {} --name NAME`",
            dir.join(AUTHORITY).display(),
            dir.display()
        ));
        return Ok(());
    }
    say(&format!(
        "Copy to each member its two files and {AUTHORITY}, owned by the server's account, the key with mode 0600. Keep {} \
         on another machine: anyone with this file can create certificates of members.",
        dir.join(AUTHORITY_KEY).display()
    ));
    Ok(())
}

/// Loads the authority in the directory, or creates one.
fn authority(dir: &Path) -> Result<Issuer<'static, KeyPair>, String> {
    let (cert, key) = (dir.join(AUTHORITY), dir.join(AUTHORITY_KEY));
    let params = || -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid_for(&mut params, AUTHORITY_YEARS * 365);
        Ok(params)
    };
    let failed = |e: rcgen::Error| format!("cannot create an authority: {e}");
    match (cert.exists(), key.exists()) {
        (true, true) => {
            let pem = fs::read_to_string(&key).map_err(|e| format!("cannot read {}: {e}", key.display()))?;
            let pair = KeyPair::from_pem(&pem).map_err(|e| {
                format!("{} is not the key of an authority of this command: {e}", key.display())
            })?;
            Ok(Issuer::new(params().map_err(failed)?, pair))
        }
        (false, false) => {
            let pair = KeyPair::generate().map_err(failed)?;
            let params = params().map_err(failed)?;
            let made = params.self_signed(&pair).map_err(failed)?;
            write(&key, &pair.serialize_pem(), 0o600)?;
            write(&cert, &made.pem(), 0o644)?;
            Ok(Issuer::new(params, pair))
        }
        (has_cert, _) => {
            let (existing, missing) = if has_cert { (cert, key) } else { (key, cert) };
            Err(format!(
                "{} exists, but {} is missing: restore it, or use another directory",
                existing.display(),
                missing.display()
            ))
        }
    }
}

/// Creates certificate and key of a member, as PEM.
fn member(
    issuer: &Issuer<'static, KeyPair>,
    name: &str,
    hosts: &[String],
    days: u32,
) -> Result<(String, String), String> {
    let make = || -> Result<(String, String), rcgen::Error> {
        // rcgen stores IP addresses as addresses, and other texts as names.
        let mut params = CertificateParams::new(hosts.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Each member is both a TLS client and a TLS server.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        valid_for(&mut params, days);
        let pair = KeyPair::generate()?;
        Ok((params.signed_by(&pair, issuer)?.pem(), pair.serialize_pem()))
    };
    make().map_err(|e| format!("cannot create a certificate for {name}: {e}"))
}

/// Sets the validity, from yesterday on, because the machines' clocks may differ.
fn valid_for(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * days).into();
}

/// Writes a file atomically. The file has its mode before it has its contents.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let new = path.with_extension("pem.new");
    let written = || -> std::io::Result<()> {
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|e| format!("cannot write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::host;

    #[test]
    fn invalid_host_is_not_certified() {
        for good in ["db1", "db1.example.org", "*.example.org", "10.0.0.1", "fd00::1", "my_host"] {
            assert_eq!(host(good).as_deref(), Ok(good));
        }
        for bad in ["", "bad host", "db1:4567", "-db1", "db1..org", "*", "a.*.org", "[fd00::1]", "d\u{fc}ne"]
        {
            assert!(host(bad).is_err(), "{bad}");
        }
    }
}
