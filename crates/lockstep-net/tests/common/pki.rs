//! Authorities and certificates for tests, made anew each time, in a folder of their own.

#![allow(unreachable_pub)] // a module of a test binary

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockstep_net::{TlsConfig, TlsFiles, TlsIdentity};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

static FOLDERS: AtomicUsize = AtomicUsize::new(0);

/// A folder that goes with its owner.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ls-net-tls-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An authority.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes `ca.pem`.
    pub fn write(&self, path: &Path) {
        fs::write(path, &self.pem).unwrap();
    }

    /// Writes a member's certificate and key, as `change` wants the certificate.
    pub fn issue(&self, files: &TlsFiles, change: impl FnOnce(&mut CertificateParams)) {
        let mut params = CertificateParams::new(vec!["member.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "member");
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        fs::write(&files.cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
    }
}

/// The files of one member, all under one name.
pub fn files(folder: &Folder, name: &str) -> TlsFiles {
    TlsFiles {
        cert: folder.path(&format!("{name}-cert.pem")),
        key: folder.path(&format!("{name}-key.pem")),
        ca: Some(folder.path(&format!("{name}-ca.pem"))),
    }
}

/// A member's files, issued by `own` and trusting `trusted`.
pub fn member(folder: &Folder, name: &str, own: &Authority, trusted: &Authority) -> TlsFiles {
    let files = files(folder, name);
    trusted.write(files.ca.as_ref().unwrap());
    own.issue(&files, |_| ());
    files
}

pub fn load(files: &TlsFiles) -> Arc<TlsIdentity> {
    Arc::new(TlsIdentity::load(files).unwrap())
}

pub fn strict(files: &TlsFiles) -> Option<TlsConfig> {
    Some(TlsConfig { identity: load(files), dynamic: false })
}

pub fn dynamic(files: &TlsFiles) -> Option<TlsConfig> {
    Some(TlsConfig { identity: load(files), dynamic: true })
}
