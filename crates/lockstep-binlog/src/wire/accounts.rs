//! Accounts that may sign in: a file with one account a line.
//!
//! ```text
//! # user and password, or the hash that SELECT PASSWORD('…') shows
//! repl     *14E65567ABDB5135D0CFD9A70B3032C179A49EE7
//! debezium secret
//! ```

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::handshake::{HASH_LEN, Scramble, is_proof, password_hash};
use super::statement::like;

/// A file of accounts that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccountsError(String);

impl fmt::Display for AccountsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for AccountsError {}

/// An account.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Its name. Empty: any name.
    pub user: String,
    /// Where it may come from.
    pub host: HostPattern,
    /// The hash of its password. `None`: it cannot sign in, nor can a more general account in its place.
    pub hash: Option<[u8; HASH_LEN]>,
    /// Whether it may sign in with TLS only.
    pub needs_tls: bool,
}

impl fmt::Debug for Account {
    /// Without the hash: it suffices to sign in.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'@{:?}", self.user, self.host)
    }
}

/// The addresses that an account may come from, as in `CREATE USER`: an address, a pattern with `%` and `_`, or a network
/// with its mask. Names of hosts are not looked up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostPattern {
    text: String,
    pattern: Pattern,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Pattern {
    Address(IpAddr),
    Network(Ipv4Addr, Ipv4Addr),
    Like,
}

impl HostPattern {
    /// Every address.
    pub fn any() -> HostPattern {
        HostPattern { text: "%".into(), pattern: Pattern::Like }
    }

    /// Parses a host of `CREATE USER`; `None` for the name of a host.
    pub fn parse(text: &str) -> Option<HostPattern> {
        // A pattern of names, such as `%.example.org`, matches no address.
        let of_addresses = text.chars().all(|c| c.is_ascii_hexdigit() || "%_.:".contains(c));
        let has_wildcard = text.contains(['%', '_']);
        let pattern = if text.is_empty() {
            return Some(HostPattern::any());
        } else if let Ok(address) = text.parse::<IpAddr>() {
            Pattern::Address(address.to_canonical())
        } else if let Some((network, mask)) = text.split_once('/') {
            Pattern::Network(network.parse().ok()?, mask.parse().ok()?)
        } else if of_addresses && has_wildcard {
            Pattern::Like
        } else {
            return None;
        };
        Some(HostPattern { text: text.to_owned(), pattern })
    }

    fn matches(&self, address: IpAddr) -> bool {
        match (&self.pattern, address.to_canonical()) {
            (Pattern::Address(own), address) => *own == address,
            (Pattern::Network(network, mask), IpAddr::V4(address)) => address & *mask == *network,
            (Pattern::Network(..), IpAddr::V6(_)) => false,
            (Pattern::Like, address) => like(&address.to_string(), &self.text),
        }
    }

    /// A number that is smaller for a more special pattern: MariaDB's (`get_magic_sort` in `sql_acl_getsort.inl`). A pattern
    /// without wildcards has 0. Of two others the one with more characters that are no wildcards has the smaller number; then
    /// the numbers of `%` and `_` count, and last the characters before the first wildcard.
    fn generality(&self) -> u64 {
        /// The length that a host has at most.
        const LENGTH: u64 = 255;
        const DIGIT: u64 = LENGTH + 1;
        const WILDCARDS: u64 = 31;
        let (mut plain, mut many, mut one, mut prefix) = (0, 0, 0, 0);
        let mut last = None;
        for c in self.text.chars() {
            if matches!(c, '%' | '_') && many == 0 && one == 0 {
                prefix = plain;
            }
            match c {
                '%' if last == Some('%') => {}
                '%' => many += 1,
                '_' => one += 1,
                _ => plain += 1,
            }
            last = Some(c);
        }
        let (many, one): (u64, u64) = (WILDCARDS.min(many), WILDCARDS.min(one));
        let open = if many == 0 { 0 } else { LENGTH.saturating_sub(plain + one) };
        let digits = match open > one {
            true => ((open * 2 + 1) * DIGIT + many) * (WILDCARDS + 1) + one,
            false => (one * 2 * DIGIT + open) * (WILDCARDS + 1) + many,
        };
        digits * DIGIT + prefix
    }
}

/// Accounts of a file and of another server. Clones refer to the same ones, so that they can be replaced while a server uses
/// them.
#[derive(Clone, Default)]
pub struct Accounts(Arc<RwLock<Sources>>);

#[derive(Clone, Default)]
struct Sources {
    file: Vec<Account>,
    upstream: Vec<Account>,
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.read_lock();
        f.debug_set().entries(all.file.iter().chain(&all.upstream)).finish()
    }
}

/// A proof that was right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// Whether the account may sign in with TLS only.
    pub needs_tls: bool,
}

impl Accounts {
    /// Reads a file. Only its owner and group may have access.
    ///
    /// # Errors
    /// [`AccountsError`] with the file, and the line if one is wrong.
    pub fn read(path: &Path) -> Result<Accounts, AccountsError> {
        let text = read_private(path)?;
        Accounts::parse(&text)
            .map_err(|AccountsError(why)| AccountsError(format!("{}: {why}", path.display())))
    }

    /// Parses a file's text.
    ///
    /// # Errors
    /// [`AccountsError`] with the line that is wrong.
    pub fn parse(text: &str) -> Result<Accounts, AccountsError> {
        let mut accounts = Vec::<Account>::new();
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
            if accounts.iter().any(|account| account.user == user) {
                return Err(wrong(&format!("user {user} appears twice")));
            }
            accounts.push(Account {
                user: user.to_owned(),
                host: HostPattern::any(),
                hash: Some(hash),
                needs_tls: false,
            });
        }
        Ok(Accounts(Arc::new(RwLock::new(Sources { file: accounts, upstream: Vec::new() }))))
    }

    fn read_lock(&self) -> RwLockReadGuard<'_, Sources> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the file's accounts of `other` in place of these. Connections that have signed in stay.
    pub fn replace_with(&self, other: &Accounts) {
        let new = other.read_lock().file.clone();
        self.0.write().unwrap_or_else(PoisonError::into_inner).file = new;
    }

    /// Takes these accounts of another server in place of those before.
    pub fn set_upstream(&self, accounts: Vec<Account>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).upstream = accounts;
    }

    /// Whether this proof shows the user's password. Of several accounts of that name, the one with the most special host
    /// counts, as in MariaDB; one of the file before others.
    pub fn check(&self, user: &str, from: IpAddr, proof: &[u8], scramble: &Scramble) -> Option<Accepted> {
        let all = self.read_lock();
        let of_user = |account: &&Account| {
            (account.user == user || account.user.is_empty()) && account.host.matches(from)
        };
        let account = all.file.iter().find(of_user);
        // The order of `find_by_username_or_anon` and `acl_user_compare` in MariaDB's `sql_acl.cc`.
        let precedence =
            |a: &&Account| (Reverse(a.host.generality()), !a.user.is_empty(), a.host.text.clone());
        let account = account.or_else(|| all.upstream.iter().filter(of_user).max_by_key(precedence));
        // An unknown user takes as long as a wrong password.
        let nobody = [0; HASH_LEN];
        let hash = account.and_then(|account| account.hash);
        let right = is_proof(proof, scramble, hash.as_ref().unwrap_or(&nobody)) && hash.is_some();
        account.filter(|_| right).map(|account| Accepted { needs_tls: account.needs_tls })
    }
}

/// Reads the file of one account: its name, a blank, and its password. Only its owner and group may have access.
///
/// # Errors
/// [`AccountsError`] with the file.
pub fn read_login(path: &Path) -> Result<(String, String), AccountsError> {
    let text = read_private(path)?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let login = lines.next().and_then(|line| line.split_once(char::is_whitespace));
    match (login, lines.next()) {
        (Some((user, password)), None) => Ok((user.to_owned(), password.trim_start().to_owned())),
        _ => Err(AccountsError(format!(
            "{} must have one line: a name, a blank, and a password",
            path.display()
        ))),
    }
}

/// The text of a file with passwords.
fn read_private(path: &Path) -> Result<String, AccountsError> {
    let failed =
        |what: &str, e: std::io::Error| AccountsError(format!("cannot {what} {}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|e| failed("read", e))?;
    if metadata.permissions().mode() & 0o007 != 0 {
        return Err(AccountsError(format!(
            "{} has passwords, and other users of this machine have access to it: chmod o= {0}",
            path.display()
        )));
    }
    std::fs::read_to_string(path).map_err(|e| failed("read", e))
}

/// The hash of a password, in hexadecimal without the asterisk.
pub fn parse_hash(hex: &str) -> Option<[u8; HASH_LEN]> {
    if hex.len() != 2 * HASH_LEN {
        return None;
    }
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

    const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn accepts(accounts: &Accounts, user: &str, proof: &[u8], scramble: &Scramble) -> bool {
        accounts.check(user, HOME, proof, scramble).is_some()
    }

    #[test]
    fn hash_and_plain_password_accept_the_same_proof() {
        let text = "# accounts\nrepl *14E65567ABDB5135D0CFD9A70B3032C179A49EE7\n\nother  secret\n";
        let accounts = Accounts::parse(text).unwrap();
        let scramble = Scramble::random().unwrap();
        let right = proof(b"secret", &scramble);
        assert!(accepts(&accounts, "repl", &right, &scramble));
        assert!(accepts(&accounts, "other", &right, &scramble));
        assert!(!accepts(&accounts, "nobody", &right, &scramble));
        assert!(!accepts(&accounts, "repl", &proof(b"wrong", &scramble), &scramble));
        assert!(!accepts(&accounts, "repl", b"", &scramble));
    }

    #[test]
    fn replaced_accounts_count_for_all_clones() {
        let accounts = Accounts::parse("old secret").unwrap();
        let clone = accounts.clone();
        accounts.replace_with(&Accounts::parse("new secret").unwrap());
        let scramble = Scramble::random().unwrap();
        let proof = proof(b"secret", &scramble);
        assert!(accepts(&clone, "new", &proof, &scramble) && !accepts(&clone, "old", &proof, &scramble));
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
        assert_eq!(read_login(&path), Ok(("repl".into(), "secret".into())));
        std::fs::write(&path, "repl secret\nother secret\n").unwrap();
        assert!(read_login(&path).is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn most_special_host_counts() {
        let account = |host: &str, password: &str, needs_tls| Account {
            user: "copy".into(),
            host: HostPattern::parse(host).unwrap(),
            hash: Some(password_hash(password.as_bytes())),
            needs_tls,
        };
        let accounts = Accounts::default();
        accounts.set_upstream(vec![
            account("%", "any", false),
            account("10.0.0.%", "near", true),
            account("10.1.0.0/255.255.0.0", "network", false),
            account("10.0.0.7", "one", false),
            account("2001:db8::%", "six", false),
        ]);
        let scramble = Scramble::random().unwrap();
        for (from, password, needs_tls) in [
            ("192.168.1.1", "any", false),
            ("10.0.0.9", "near", true),
            ("10.1.7.7", "network", false),
            ("10.0.0.7", "one", false),
            ("::ffff:10.0.0.7", "one", false),
            ("2001:db8::5", "six", false),
        ] {
            for other in ["any", "near", "network", "one", "six"] {
                let proof = proof(other.as_bytes(), &scramble);
                let expected = (other == password).then_some(Accepted { needs_tls });
                assert_eq!(
                    accounts.check("copy", from.parse().unwrap(), &proof, &scramble),
                    expected,
                    "{from} {other}"
                );
            }
        }
        assert_eq!(HostPattern::parse("db7.example.org"), None);
        assert_eq!(HostPattern::parse("%.example.org"), None);
        assert_eq!(HostPattern::parse("localhost"), None);
    }

    fn account(user: &str, host: &str, password: Option<&str>) -> Account {
        Account {
            user: user.into(),
            host: HostPattern::parse(host).unwrap(),
            hash: password.map(|password| password_hash(password.as_bytes())),
            needs_tls: false,
        }
    }

    #[test]
    fn account_that_refuses_hides_more_general_ones() {
        let accounts = Accounts::default();
        accounts.set_upstream(vec![
            account("copy", "%", Some("any")),
            account("copy", "10.0.0.%", None),
            account("copy", "10.0.0.7", Some("one")),
            account("", "10.0.7.%", None),
            account("", "10.%", None),
            account("copy", "10.%", Some("ten")),
        ]);
        let scramble = Scramble::random().unwrap();
        for (from, password) in [
            ("192.168.1.1", Some("any")),
            ("10.0.0.1", None),
            ("10.0.0.7", Some("one")),
            // An account without a name stands before one with the name and a more general host.
            ("10.0.7.1", None),
            ("10.9.9.9", Some("ten")),
        ] {
            for other in ["any", "one", "ten", ""] {
                let proof = proof(other.as_bytes(), &scramble);
                let accepted = accounts.check("copy", from.parse().unwrap(), &proof, &scramble);
                assert_eq!(accepted.is_some(), password == Some(other), "{from} {other}");
            }
            assert!(accounts.check("copy", from.parse().unwrap(), b"", &scramble).is_none());
        }
    }

    #[test]
    fn hosts_are_in_the_order_of_mariadb() {
        // From the most special to the most general one, with the numbers of `get_magic_sort`.
        let order = [
            ("10.0.0.7", 0),
            ("1_.0.0.1", 4_194_305),
            ("10.0.0._", 4_194_311),
            ("_0.0.0._", 8_388_608),
            ("%.0.0.17", 1_042_292_736),
            ("10.0.0.%", 1_042_292_743),
            ("10._.0.%", 1_042_292_995),
            ("%.0.17", 1_050_681_344),
            ("1%.0.0", 1_050_681_345),
            ("10.0.%", 1_050_681_349),
            ("%", 1_071_652_864),
        ];
        let number = |text: &str| HostPattern::parse(text).unwrap().generality();
        for (text, expected) in order {
            assert_eq!(number(text), expected, "{text}");
        }
        assert!(order.is_sorted_by_key(|(_, number)| *number));
        assert_eq!(number("10.0.0.0/255.255.255.0"), 0);
        assert_eq!(number("%%"), number("%"));
    }
}
