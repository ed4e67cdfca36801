//! The server's first packet, as a client reads it.

use super::SourceError;
use crate::codec::{DecodeError, Reader};
use crate::wire::handshake::{HASH_LEN, METHOD, Scramble, capability as cap, proof};

/// What this client needs and knows.
const WANTED: u32 =
    cap::LONG_PASSWORD | cap::PROTOCOL_41 | cap::TRANSACTIONS | cap::SECURE_CONNECTION | cap::PLUGIN_AUTH;
/// utf8mb4_general_ci.
const CHARSET: u8 = 45;
/// The longest packet that this client sends.
const PACKET_MAX: u32 = 1 << 24;

/// The challenge in a greeting.
///
/// # Errors
/// [`DecodeError`] if it is no greeting of a server from this century.
pub(super) fn scramble_of(greeting: &[u8]) -> Result<Scramble, DecodeError> {
    let mut r = Reader::new(greeting);
    if r.u8()? != 10 {
        return Err(DecodeError::Invalid("protocol version"));
    }
    let (_version, _connection) = (r.until_nul()?, r.u32()?);
    let mut scramble = [0; HASH_LEN];
    scramble[..8].copy_from_slice(r.take(8)?);
    r.u8()?;
    let low = r.u16()?;
    let (_charset, _status, high) = (r.u8()?, r.u16()?, r.u16()?);
    let capabilities = u32::from(low) | u32::from(high) << 16;
    if capabilities & WANTED & !cap::PLUGIN_AUTH & !cap::LONG_PASSWORD
        != WANTED & !cap::PLUGIN_AUTH & !cap::LONG_PASSWORD
    {
        return Err(DecodeError::Invalid("set of capabilities: a server of version 5.5 or later is needed"));
    }
    let (_length, _reserved) = (r.u8()?, r.take(10)?);
    scramble[8..].copy_from_slice(r.take(HASH_LEN - 8)?);
    Ok(Scramble(scramble))
}

/// The client's reply to the greeting.
pub(super) fn reply(user: &str, password: &str, scramble: &Scramble) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    out.extend_from_slice(&WANTED.to_le_bytes());
    out.extend_from_slice(&PACKET_MAX.to_le_bytes());
    out.push(CHARSET);
    out.extend_from_slice(&[0; 23]);
    out.extend(user.bytes().filter(|byte| *byte != 0));
    out.push(0);
    let proof = proof_of(password, scramble);
    out.push(proof.len() as u8);
    out.extend_from_slice(&proof);
    out.extend_from_slice(METHOD);
    out.push(0);
    out
}

/// The proof of a password; none for the empty one.
fn proof_of(password: &str, scramble: &Scramble) -> Vec<u8> {
    if password.is_empty() { Vec::new() } else { proof(password.as_bytes(), scramble).to_vec() }
}

/// The answer to the server's request for another method or a second proof.
///
/// # Errors
/// [`SourceError`] if the method is another one than `mysql_native_password`.
pub(super) fn answer_to_switch(request: &[u8], password: &str) -> Result<Vec<u8>, SourceError> {
    let parse = || -> Result<(Vec<u8>, Scramble), DecodeError> {
        let mut r = Reader::new(request);
        r.u8()?;
        let method = r.until_nul()?.to_vec();
        let mut scramble = [0; HASH_LEN];
        if method == METHOD {
            scramble.copy_from_slice(r.take(HASH_LEN)?);
        }
        Ok((method, Scramble(scramble)))
    };
    let (method, scramble) = parse().map_err(|why| SourceError::Protocol("request for a method", why))?;
    if method != METHOD {
        let shown = String::from_utf8_lossy(&method).chars().filter(|c| !c.is_control()).take(64).collect();
        return Err(SourceError::Method(shown));
    }
    Ok(proof_of(password, &scramble))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::handshake::{HandshakeReply, greeting, is_proof, password_hash, switch_request};

    #[test]
    fn reply_to_own_servers_greeting_proves_the_password() {
        let scramble = Scramble::random().unwrap();
        let bytes = greeting("10.11.0-MariaDB", 7, &scramble, false);
        assert_eq!(scramble_of(&bytes), Ok(scramble));
        for cut in 0..bytes.len() - METHOD.len() - 2 {
            assert!(scramble_of(&bytes[..cut]).is_err(), "{cut}");
        }
        let reply = HandshakeReply::parse(&reply("repl", "secret", &scramble)).unwrap();
        assert_eq!((reply.user.as_str(), reply.needs_switch()), ("repl", false));
        assert!(is_proof(&reply.proof, &scramble, &password_hash(b"secret")));
        assert!(proof_of("", &scramble).is_empty());
    }

    #[test]
    fn switch_to_native_password_is_answered_and_another_one_is_named() {
        let scramble = Scramble::random().unwrap();
        let answer = answer_to_switch(&switch_request(&scramble), "secret").unwrap();
        assert!(is_proof(&answer, &scramble, &password_hash(b"secret")));
        let error = answer_to_switch(b"\xfeclient_ed25519\0abc", "secret").unwrap_err();
        assert!(error.to_string().contains("client_ed25519"), "{error}");
        assert!(answer_to_switch(b"\xfe", "secret").is_err());
    }
}
