//! The greeting, the client's reply, and `mysql_native_password`.
//!
//! A client proves that it knows the password without sending it: it sends
//! `SHA1(password) XOR SHA1(scramble + SHA1(SHA1(password)))`. The server keeps `SHA1(SHA1(password))`.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use ring::rand::{SecureRandom, SystemRandom};

use crate::codec::{DecodeError, Reader};

/// Capabilities of client and server.
pub mod capability {
    /// The server is MySQL as far as capabilities go: it has none of MariaDB's own.
    pub const LONG_PASSWORD: u32 = 1;
    /// The reply names a database.
    pub const CONNECT_WITH_DB: u32 = 8;
    /// Protocol 4.1.
    pub const PROTOCOL_41: u32 = 0x200;
    /// TLS.
    pub const SSL: u32 = 0x800;
    /// The status in replies knows transactions.
    pub const TRANSACTIONS: u32 = 0x2000;
    /// Passwords as above.
    pub const SECURE_CONNECTION: u32 = 0x8000;
    /// The method of authentication has a name.
    pub const PLUGIN_AUTH: u32 = 0x8_0000;
    /// The reply has attributes.
    pub const CONNECT_ATTRS: u32 = 0x10_0000;
    /// The length of the proof is length-encoded.
    pub const PLUGIN_AUTH_LENENC: u32 = 0x20_0000;
}

use capability as cap;

/// Bytes of a scramble, a hash, and a proof.
pub const HASH_LEN: usize = 20;
/// The name of the only method.
pub const METHOD: &[u8] = b"mysql_native_password";
/// What the server offers, beside TLS.
const OFFERED: u32 = cap::LONG_PASSWORD
    | cap::CONNECT_WITH_DB
    | cap::PROTOCOL_41
    | cap::TRANSACTIONS
    | cap::SECURE_CONNECTION
    | cap::PLUGIN_AUTH
    | cap::CONNECT_ATTRS
    | cap::PLUGIN_AUTH_LENENC;
/// Bytes of a request for TLS.
const TLS_REQUEST_LEN: usize = 32;
/// utf8mb4_general_ci.
const CHARSET: u8 = 45;
/// Status in replies: autocommit.
pub(super) const STATUS: u16 = 2;

/// A random challenge. No byte is NUL or `$`, which end it for some clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scramble(pub [u8; HASH_LEN]);

impl Scramble {
    /// A new one; `None` if the system gives no random bytes.
    pub fn random() -> Option<Scramble> {
        let mut bytes = [0; HASH_LEN];
        SystemRandom::new().fill(&mut bytes).ok()?;
        bytes.iter_mut().for_each(|byte| *byte = b'0' + (*byte & 0x3f));
        Some(Scramble(bytes))
    }
}

/// The server's first packet. MariaDB's servers put "5.5.5-" before a version of 10 or later, and clients remove it.
pub fn greeting(version: &str, connection_id: u32, scramble: &Scramble, with_tls: bool) -> Vec<u8> {
    let offered = if with_tls { OFFERED | cap::SSL } else { OFFERED };
    let mut out = Vec::with_capacity(128);
    out.push(10);
    out.extend_from_slice(b"5.5.5-");
    out.extend(version.bytes().filter(|byte| *byte != 0));
    out.push(0);
    out.extend_from_slice(&connection_id.to_le_bytes());
    out.extend_from_slice(&scramble.0[..8]);
    out.push(0);
    let [a, b, c, d] = offered.to_le_bytes();
    out.extend_from_slice(&[a, b, CHARSET]);
    out.extend_from_slice(&STATUS.to_le_bytes());
    out.extend_from_slice(&[c, d, HASH_LEN as u8 + 1]);
    out.extend_from_slice(&[0; 10]);
    out.extend_from_slice(&scramble.0[8..]);
    out.push(0);
    out.extend_from_slice(METHOD);
    out.push(0);
    out
}

/// Another server's first packet, as far as a client needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The server's capabilities.
    pub capabilities: u32,
    /// Its challenge.
    pub scramble: Scramble,
}

impl Greeting {
    /// Parses the payload.
    ///
    /// # Errors
    /// [`DecodeError`] if it is no greeting, or one of protocols before 4.1.
    pub fn parse(payload: &[u8]) -> Result<Greeting, DecodeError> {
        let mut r = Reader::new(payload);
        if r.u8()? != 10 {
            return Err(DecodeError::Invalid("version of the protocol"));
        }
        r.until_nul()?;
        r.u32()?;
        let mut scramble = [0; HASH_LEN];
        scramble[..8].copy_from_slice(r.take(8)?);
        r.u8()?;
        let low = r.u16()?;
        let (_charset, _status) = (r.u8()?, r.u16()?);
        let capabilities = u32::from(low) | u32::from(r.u16()?) << 16;
        r.take(11)?;
        scramble[8..].copy_from_slice(r.take(12)?);
        Ok(Greeting { capabilities, scramble: Scramble(scramble) })
    }
}

/// A client's reply to a greeting: with account and proof, or only its begin, which asks for TLS.
pub fn client_reply(capabilities: u32, account: Option<(&str, &[u8; HASH_LEN])>) -> Vec<u8> {
    let mut out = capabilities.to_le_bytes().to_vec();
    out.extend_from_slice(&(1_u32 << 24).to_le_bytes());
    out.push(CHARSET);
    out.extend_from_slice(&[0; 23]);
    if let Some((user, proof)) = account {
        out.extend(user.bytes().filter(|byte| *byte != 0));
        out.push(0);
        out.push(HASH_LEN as u8);
        out.extend_from_slice(proof);
        out.extend_from_slice(METHOD);
        out.push(0);
    }
    out
}

/// Whether this payload asks for TLS: the begin of a reply, without the account.
pub fn is_tls_request(payload: &[u8]) -> bool {
    payload.len() == TLS_REQUEST_LEN
        && payload.first_chunk().is_some_and(|first| u32::from_le_bytes(*first) & cap::SSL != 0)
}

/// The client's reply to the greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandshakeReply {
    /// The client's capabilities.
    pub capabilities: u32,
    /// The account.
    pub user: String,
    /// Its proof of the password; empty for no password, or if another method is proposed.
    pub proof: Vec<u8>,
    /// The method of the proof.
    pub method: Option<Vec<u8>>,
}

impl HandshakeReply {
    /// Parses the payload.
    ///
    /// # Errors
    /// [`DecodeError`] if it is no reply, or one of protocols before 4.1, or a request for TLS.
    pub fn parse(payload: &[u8]) -> Result<HandshakeReply, DecodeError> {
        let mut r = Reader::new(payload);
        let capabilities = r.u32()?;
        if capabilities & cap::PROTOCOL_41 == 0 {
            return Err(DecodeError::Invalid("protocol version: 4.1 or later is needed"));
        }
        let (_packet_max, _charset) = (r.u32()?, r.u8()?);
        r.take(23)?;
        if r.remaining() == 0 {
            return Err(DecodeError::Invalid("request for TLS, which this server does not offer"));
        }
        let user = r.until_nul()?;
        let user = std::str::from_utf8(user).map_err(|_| DecodeError::Invalid("user name"))?;
        if user.len() > 128 || user.contains(char::is_control) {
            return Err(DecodeError::Invalid("user name"));
        }
        let proof = if capabilities & cap::PLUGIN_AUTH_LENENC != 0 {
            r.length_bytes()?
        } else if capabilities & cap::SECURE_CONNECTION != 0 {
            let len = usize::from(r.u8()?);
            r.take(len)?
        } else {
            r.until_nul()?
        };
        if proof.len() > 4096 {
            return Err(DecodeError::Invalid("proof of the password"));
        }
        if capabilities & cap::CONNECT_WITH_DB != 0 && r.remaining() > 0 {
            r.until_nul()?;
        }
        let named = capabilities & cap::PLUGIN_AUTH != 0 && r.remaining() > 0;
        // Some clients leave out the last NUL.
        let method = named.then(|| r.until_nul().unwrap_or_else(|_| r.rest()).to_vec());
        Ok(HandshakeReply { capabilities, user: user.to_owned(), proof: proof.to_vec(), method })
    }

    /// Whether the client must be asked for a proof by [`METHOD`].
    pub fn needs_switch(&self) -> bool {
        self.method.as_ref().is_some_and(|method| method != METHOD)
            || !(self.proof.is_empty() || self.proof.len() == HASH_LEN)
    }
}

/// Asks the client for a proof by [`METHOD`]. The client answers with the proof alone.
pub fn switch_request(scramble: &Scramble) -> Vec<u8> {
    [&[0xfe], METHOD, &[0], &scramble.0, &[0]].concat()
}

fn sha1(parts: &[&[u8]]) -> [u8; HASH_LEN] {
    let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    parts.iter().for_each(|part| context.update(part));
    let mut out = [0; HASH_LEN];
    out.copy_from_slice(context.finish().as_ref());
    out
}

fn xor(a: &[u8; HASH_LEN], b: &[u8; HASH_LEN]) -> [u8; HASH_LEN] {
    std::array::from_fn(|at| a[at] ^ b[at])
}

/// What the server keeps of a password: `SHA1(SHA1(password))`.
pub fn password_hash(password: &[u8]) -> [u8; HASH_LEN] {
    sha1(&[&sha1(&[password])])
}

/// A client's proof of a password.
pub fn proof(password: &[u8], scramble: &Scramble) -> [u8; HASH_LEN] {
    let once = sha1(&[password]);
    xor(&once, &sha1(&[&scramble.0, &sha1(&[&once])]))
}

/// Whether the proof is one of the password with this hash.
pub fn is_proof(given: &[u8], scramble: &Scramble, hash: &[u8; HASH_LEN]) -> bool {
    let Ok(given) = <&[u8; HASH_LEN]>::try_from(given) else { return false };
    let once = xor(given, &sha1(&[&scramble.0, hash]));
    // All bytes are compared, so that the time says nothing.
    sha1(&[&once]).iter().zip(hash).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A reply as libmariadb sends it.
    pub(crate) fn reply(user: &str, proof: &[u8]) -> Vec<u8> {
        let capabilities = cap::PROTOCOL_41 | cap::SECURE_CONNECTION | cap::PLUGIN_AUTH;
        let mut out = capabilities.to_le_bytes().to_vec();
        out.extend_from_slice(&(1u32 << 24).to_le_bytes());
        out.push(45);
        out.extend_from_slice(&[0; 23]);
        out.extend_from_slice(user.as_bytes());
        out.push(0);
        out.push(proof.len() as u8);
        out.extend_from_slice(proof);
        out.extend_from_slice(METHOD);
        out.push(0);
        out
    }

    #[test]
    fn proof_of_right_password_only_is_accepted() {
        let scramble = Scramble::random().unwrap();
        assert!(scramble.0.iter().all(|byte| (b'0'..b'0' + 64).contains(byte)));
        let hash = password_hash(b"secret");
        assert!(is_proof(&proof(b"secret", &scramble), &scramble, &hash));
        assert!(!is_proof(&proof(b"Secret", &scramble), &scramble, &hash));
        assert!(!is_proof(&[], &scramble, &hash));
        // As SELECT PASSWORD('secret') shows it.
        let shown: String = hash.iter().map(|byte| format!("{byte:02X}")).collect();
        assert_eq!(shown, "14E65567ABDB5135D0CFD9A70B3032C179A49EE7");
    }

    #[test]
    fn reply_parses_and_truncated_reply_is_refused() {
        let bytes = reply("repl", &[7; 20]);
        let parsed = HandshakeReply::parse(&bytes).unwrap();
        assert_eq!((parsed.user.as_str(), parsed.proof.as_slice()), ("repl", [7; 20].as_slice()));
        assert!(!parsed.needs_switch());
        // Up to the end of the proof each byte is needed.
        for cut in 0..bytes.len() - METHOD.len() - 1 {
            assert!(HandshakeReply::parse(&bytes[..cut]).is_err(), "{cut}");
        }
        let other = HandshakeReply { method: Some(b"caching_sha2_password".to_vec()), ..parsed };
        assert!(other.needs_switch());
    }

    #[test]
    fn greeting_and_clients_reply_round_trip() {
        let scramble = Scramble::random().unwrap();
        let bytes = greeting("10.11.0-MariaDB", 7, &scramble, true);
        let parsed = Greeting::parse(&bytes).unwrap();
        assert_eq!((parsed.scramble, parsed.capabilities), (scramble, OFFERED | cap::SSL));
        for cut in 0..bytes.len() - METHOD.len() - 2 {
            assert!(Greeting::parse(&bytes[..cut]).is_err(), "{cut}");
        }
        let capabilities = cap::PROTOCOL_41 | cap::SECURE_CONNECTION | cap::PLUGIN_AUTH;
        let shown = proof(b"secret", &scramble);
        let reply = HandshakeReply::parse(&client_reply(capabilities, Some(("copy", &shown)))).unwrap();
        assert_eq!((reply.user.as_str(), reply.proof.as_slice()), ("copy", shown.as_slice()));
        assert!(is_tls_request(&client_reply(capabilities | cap::SSL, None)));
    }

    #[test]
    fn request_for_tls_is_refused_with_its_reason() {
        let bytes = &reply("repl", &[])[..32];
        assert_eq!(
            HandshakeReply::parse(bytes).unwrap_err().to_string(),
            "has an invalid request for TLS, which this server does not offer"
        );
    }
}
