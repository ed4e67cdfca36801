//! Accounts that may sign in: a file with one account a line.
//!
//! ```text
//! # user and password, or the hash that SELECT PASSWORD('…') shows
//! repl     *14E65567ABDB5135D0CFD9A70B3032C179A49EE7
//! debezium secret
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::handshake::{HASH_LEN, Scramble, is_proof, password_hash};

/// A file of accounts that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountsError(String);

impl fmt::Display for AccountsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccountsError {}

/// Accounts and the hashes of their passwords. Clones refer to the same ones, so that they can be replaced while a server
/// uses them.
#[derive(Clone, Default)]
pub struct Accounts(Arc<RwLock<BTreeMap<String, [u8; HASH_LEN]>>>);

impl fmt::Debug for Accounts {
    /// Without the hashes: they suffice to sign in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.read_lock().keys()).finish()
    }
}

impl Accounts {
    /// Reads a file. Only its owner and group may have access.
    ///
    /// # Errors
    /// [`AccountsError`] with the file, and the line if one is wrong.
    pub fn read(path: &Path) -> Result<Accounts, AccountsError> {
        let failed =
            |what: &str, e: std::io::Error| AccountsError(format!("cannot {what} {}: {e}", path.display()));
        let metadata = std::fs::metadata(path).map_err(|e| failed("read", e))?;
        if metadata.permissions().mode() & 0o007 != 0 {
            return Err(AccountsError(format!(
                "{} has passwords, and other users of this machine have access to it: chmod o= {0}",
                path.display()
            )));
        }
        let text = std::fs::read_to_string(path).map_err(|e| failed("read", e))?;
        Accounts::parse(&text)
            .map_err(|AccountsError(why)| AccountsError(format!("{}: {why}", path.display())))
    }

    /// Parses a file's text.
    ///
    /// # Errors
    /// [`AccountsError`] with the line that is wrong.
    pub fn parse(text: &str) -> Result<Accounts, AccountsError> {
        let mut accounts = BTreeMap::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| AccountsError(format!("line {}: {why}", at + 1));
            let (user, password) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| wrong("expected a user and a password"))?;
            let password = password.trim_start();
            let hash = match password.strip_prefix('*') {
                Some(hex) if hex.len() == 2 * HASH_LEN => parse_hash(hex)
                    .ok_or_else(|| wrong("the password's hash has other characters than 0-9 and A-F"))?,
                _ => password_hash(password.as_bytes()),
            };
            if accounts.insert(user.to_owned(), hash).is_some() {
                return Err(wrong(&format!("user {user} appears twice")));
            }
        }
        Ok(Accounts(Arc::new(RwLock::new(accounts))))
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, BTreeMap<String, [u8; HASH_LEN]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the accounts of `other` in place of these. Connections that have signed in stay.
    pub fn replace_with(&self, other: &Accounts) {
        let new = other.read_lock().clone();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Whether this proof shows the user's password.
    pub fn accepts(&self, user: &str, proof: &[u8], scramble: &Scramble) -> bool {
        // An unknown user takes as long as a wrong password.
        let nobody = [0; HASH_LEN];
        let hash = self.read_lock().get(user).copied();
        is_proof(proof, scramble, &hash.unwrap_or(nobody)) && hash.is_some()
    }
}

fn parse_hash(hex: &str) -> Option<[u8; HASH_LEN]> {
    let mut out = [0; HASH_LEN];
    for (at, byte) in out.iter_mut().enumerate() {
        let digits =
            hex.get(2 * at..2 * at + 2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::handshake::proof;
    use super::*;

    #[test]
    fn hash_and_plain_password_accept_the_same_proof() {
        let text = "# accounts\nrepl *14E65567ABDB5135D0CFD9A70B3032C179A49EE7\n\nother  secret\n";
        let accounts = Accounts::parse(text).unwrap();
        let scramble = Scramble::random().unwrap();
        let right = proof(b"secret", &scramble);
        assert!(accounts.accepts("repl", &right, &scramble));
        assert!(accounts.accepts("other", &right, &scramble));
        assert!(!accounts.accepts("nobody", &right, &scramble));
        assert!(!accounts.accepts("repl", &proof(b"wrong", &scramble), &scramble));
        assert!(!accounts.accepts("repl", b"", &scramble));
    }

    #[test]
    fn replaced_accounts_count_for_all_clones() {
        let accounts = Accounts::parse("old secret").unwrap();
        let clone = accounts.clone();
        accounts.replace_with(&Accounts::parse("new secret").unwrap());
        let scramble = Scramble::random().unwrap();
        let proof = proof(b"secret", &scramble);
        assert!(clone.accepts("new", &proof, &scramble) && !clone.accepts("old", &proof, &scramble));
    }

    #[test]
    fn wrong_line_is_named() {
        for (text, line) in [
            ("repl", "line 1"),
            ("a b\na c", "line 2"),
            ("x *ZZE65567ABDB5135D0CFD9A70B3032C179A49EE7", "line 1"),
        ] {
            assert!(Accounts::parse(text).unwrap_err().to_string().contains(line), "{text}");
        }
    }

    #[test]
    fn file_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("lockstep-accounts-{}", std::process::id()));
        std::fs::write(&path, "repl secret\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Accounts::read(&path).is_err());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Accounts::read(&path).is_ok());
        std::fs::remove_file(&path).unwrap();
    }
}
