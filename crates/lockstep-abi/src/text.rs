//! Text forms of UUID and GTID.

use crate::types::{Gtid, Seqno, Uuid};
use std::fmt;
use std::str::FromStr;

/// A text is not a UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UuidParseError;

impl fmt::Display for UuidParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a UUID: expected 32 hexadecimal digits, grouped 8-4-4-4-12")
    }
}

impl std::error::Error for UuidParseError {}

/// A text is not a GTID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GtidParseError;

impl fmt::Display for GtidParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a GTID: expected <uuid>:<seqno>")
    }
}

impl std::error::Error for GtidParseError {}

impl Uuid {
    /// Reads a UUID at the start of `text`; returns it and the rest. The dashes may be missing, nothing else.
    pub fn parse_prefix(text: &str) -> Option<(Uuid, &str)> {
        let bytes = text.as_bytes();
        let mut data = [0u8; 16];
        let mut at = 0;
        for (n, byte) in data.iter_mut().enumerate() {
            if matches!(n, 4 | 6 | 8 | 10) && bytes.get(at) == Some(&b'-') {
                at += 1;
            }
            let high = (*bytes.get(at)? as char).to_digit(16)?;
            let low = (*bytes.get(at + 1)? as char).to_digit(16)?;
            *byte = (high << 4 | low) as u8;
            at += 2;
        }
        Some((Uuid { data }, &text[at..]))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, byte) in self.data.iter().enumerate() {
            if matches!(n, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = UuidParseError;

    fn from_str(text: &str) -> Result<Uuid, UuidParseError> {
        match Uuid::parse_prefix(text) {
            Some((uuid, "")) => Ok(uuid),
            _ => Err(UuidParseError),
        }
    }
}

impl fmt::Display for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uuid, self.seqno)
    }
}

impl fmt::Debug for Gtid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gtid {
    type Err = GtidParseError;

    fn from_str(text: &str) -> Result<Gtid, GtidParseError> {
        let (uuid, rest) = Uuid::parse_prefix(text).ok_or(GtidParseError)?;
        let seqno: Seqno =
            rest.strip_prefix(':').ok_or(GtidParseError)?.parse().map_err(|_| GtidParseError)?;
        Ok(Gtid { uuid, seqno })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_round_trip() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let uuid: Uuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!(uuid.data[..3], [0x01, 0x23, 0x45]);
        assert_eq!(text.replace('-', "").parse(), Ok(uuid));
        assert_eq!(text.to_uppercase().parse(), Ok(uuid));
        assert_eq!(uuid.to_string().len(), crate::UUID_STR_LEN);
    }

    #[test]
    fn bad_uuids_are_refused() {
        let good = "01234567-89ab-cdef-0123-456789abcdef";
        for bad in [
            "",
            "-",
            &good[1..],
            &good[..35],
            &format!("{good}0"),
            "0123-4567-89ab-cdef-0123-456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "é1234567-89ab-cdef-0123-456789abcde",
            "0é234567-89ab-cdef-0123-456789abcde",
        ] {
            assert_eq!(bad.parse::<Uuid>(), Err(UuidParseError), "{bad}");
        }
    }

    #[test]
    fn gtid_round_trip() {
        for seqno in [-1, 0, 42, i64::MAX] {
            let text = format!("01234567-89ab-cdef-0123-456789abcdef:{seqno}");
            let gtid: Gtid = text.parse().unwrap();
            assert_eq!(gtid.seqno, seqno);
            assert_eq!(gtid.to_string(), text);
            assert!(text.len() <= crate::GTID_STR_LEN);
        }
        assert!(Gtid::UNDEFINED.is_undefined());
        assert_eq!(Gtid::UNDEFINED.to_string(), "00000000-0000-0000-0000-000000000000:-1");
    }

    #[test]
    fn bad_gtids_are_refused() {
        let uuid = "01234567-89ab-cdef-0123-456789abcdef";
        for bad in [
            "".into(),
            uuid.into(),
            format!("{uuid}:"),
            format!("{uuid}:1x"),
            format!("{uuid}-5"),
            "x:1".into(),
        ] {
            assert_eq!(bad.parse::<Gtid>(), Err(GtidParseError), "{bad}");
        }
    }
}
