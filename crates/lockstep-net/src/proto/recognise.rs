//! Says what is speaking when it is not Lockstep, from its first bytes, for the one line that a person will read.

/// The protocol of a program that is no member, by its first bytes.
pub(crate) fn recognise(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "a program that sends nothing".into();
    }
    if bytes.starts_with(b"HTTP/") {
        return "an HTTP server".into();
    }
    if [&b"GET "[..], b"POST ", b"HEAD ", b"PUT ", b"OPTIONS ", b"DELETE ", b"CONNECT "]
        .iter()
        .any(|m| bytes.starts_with(m))
    {
        return "an HTTP client".into();
    }
    if bytes.starts_with(b"SSH-") {
        return "an SSH program".into();
    }
    if let Some(text) = mysql(bytes) {
        return text;
    }
    if let Some(what) = tls(bytes) {
        return what.into();
    }
    if gcomm(bytes) {
        return "a Galera member (its provider is libgalera_smm.so; all members of a cluster need the same \
             provider)"
            .into();
    }
    let shown = bytes.len().min(16);
    format!("a program whose first bytes are {}", printable(&bytes[..shown]))
}

/// A TLS peer begins with a handshake record, or answers plain bytes with an alert.
pub(crate) fn tls(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x16, 3, ..] => Some("a TLS client"),
        [0x15, 3, ..] => Some("a TLS server"),
        _ => None,
    }
}

/// A MySQL or MariaDB server greets first: 3 bytes of length, sequence number 0, then protocol 10 and the version, or an error.
fn mysql(bytes: &[u8]) -> Option<String> {
    let (head, body) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
    if head[3] != 0 || !(8..=1024).contains(&len) {
        return None;
    }
    match body {
        [10, rest @ ..] => {
            let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len()).min(64);
            let version = &rest[..end];
            let plausible =
                version.first().is_some_and(u8::is_ascii_digit) && version.iter().all(u8::is_ascii_graphic);
            plausible.then(|| {
                format!(
                    "the SQL port of a MySQL or MariaDB server (version {})",
                    String::from_utf8_lossy(version)
                )
            })
        }
        [0xff, code0, code1, text @ ..] => {
            let end = text.len().min(len.saturating_sub(3)).min(120);
            Some(format!(
                "the SQL port of a MySQL or MariaDB server (error {}: {})",
                u16::from_le_bytes([*code0, *code1]),
                printable(&text[..end])
            ))
        }
        _ => None,
    }
}

/// Galera's group communication: 8 bytes of header (24 bits of length, flags, CRC), then version, message type, flags.
/// The side that was dialed speaks first, with message type 1 and two UUIDs.
fn gcomm(bytes: &[u8]) -> bool {
    if bytes.len() < 12 {
        return false;
    }
    let len = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
    (20..4096).contains(&len) && bytes[3] & 0xcc == 0 && bytes[8] <= 1 && (1..=7).contains(&bytes[9])
}

/// Bytes as text that is safe in a log line.
pub(crate) fn printable(bytes: &[u8]) -> String {
    format!("'{}'", bytes.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_speakers() {
        assert_eq!(recognise(b"HTTP/1.1 400 Bad Request\r\n"), "an HTTP server");
        assert_eq!(recognise(b"GET / HTTP/1.1\r\n"), "an HTTP client");
        assert!(recognise(b"SSH-2.0-OpenSSH_9.2").contains("SSH"));
        let mut greeting = vec![0x5a, 0, 0, 0, 10];
        greeting.extend_from_slice(b"5.5.5-10.11.18-MariaDB-log\0");
        greeting.extend_from_slice(&[1, 0, 0, 0, b'x']);
        assert!(recognise(&greeting).contains("version 5.5.5-10.11.18-MariaDB-log"));
        let mut refused = vec![0x20, 0, 0, 0, 0xff, 0x6a, 0x04];
        refused.extend_from_slice(b"Host '10.0.0.9' is not allowed to");
        assert!(recognise(&refused).contains("error 1130"), "{}", recognise(&refused));
        let mut gcomm = vec![0x24, 0, 0, 0x02, 1, 2, 3, 4, 0, 1, 0x04, 0];
        gcomm.extend_from_slice(&[7; 32]);
        assert!(recognise(&gcomm).contains("Galera"));
        assert!(recognise(&[0x16, 3, 1, 2]).contains("TLS"));
        assert!(recognise(b"\x00\x01\nhi").contains(r"'\x00\x01\nhi'"));
        assert!(recognise(&[]).contains("nothing"));
    }
}
