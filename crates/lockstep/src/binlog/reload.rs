//! Reads files again at SIGHUP.

use lockstep_binlog::wire::{Accounts, TlsAcceptor};
use std::path::Path;

/// Reads the accounts and the certificate again, as far as there are any. A file that cannot be used keeps nothing else from
/// being read.
///
/// # Errors
/// The files that cannot be used, for people. Their earlier contents stay in force.
pub(super) fn reload(accounts: Option<(&Path, &Accounts)>, tls: Option<&TlsAcceptor>) -> Result<(), String> {
    let accounts = accounts.map(|(file, accounts)| match Accounts::read(file) {
        Ok(new) => {
            accounts.replace_with(&new);
            Ok(())
        }
        Err(error) => Err(error.to_string()),
    });
    let tls = tls.map(|tls| tls.reload().map_err(|e| e.to_string()));
    let failed: Vec<String> = [accounts, tls].into_iter().flatten().filter_map(Result::err).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{}; this instance goes on with what it has", failed.join("; "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_binlog::wire::{TlsFiles, tls};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn accounts_and_certificate_are_reloaded_independently() {
        let dir = std::env::temp_dir().join(format!("lockstep-binlog-reload-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("accounts");
        let write = |text: &str| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        };
        write("old secret");
        let accounts = Accounts::read(&file).unwrap();
        let files = TlsFiles {
            cert: dir.join("cert.pem"),
            key: dir.join("key.pem"),
            ca: None,
            require_client_certificate: false,
        };
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key);
        std::fs::write(&files.cert, certificate.unwrap().pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        let tls = tls::acceptor(files.clone()).unwrap();
        let names = || format!("{accounts:?}");
        let again = || reload(Some((file.as_path(), &accounts)), Some(&tls));
        write("new secret");
        assert_eq!(again(), Ok(()));
        assert!(names().contains("new") && !names().contains("old"), "{}", names());
        // A broken certificate does not keep the accounts from being read.
        std::fs::remove_file(&files.key).unwrap();
        write("newer secret");
        let error = again().unwrap_err();
        assert!(error.contains("key.pem") && error.contains("goes on"), "{error}");
        assert!(names().contains("newer"), "{}", names());
        // Both are named, and nothing changes.
        write("broken");
        let error = again().unwrap_err();
        assert!(error.contains("accounts: line 1") && error.contains("key.pem"), "{error}");
        assert!(names().contains("newer"), "{}", names());
        assert_eq!(reload(None, None), Ok(()));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
