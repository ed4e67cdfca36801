//! The values of a row, in the notation that people use.
//!
//! An event knows neither a column's name nor its character set, nor whether a number has a sign. So text is shown where
//! it is UTF-8, and a negative number is shown with its unsigned value beside it.

use std::fmt::Write;

use crate::text::{hex, put_text};

/// More bytes of a value are not shown.
const SHOWN: usize = 256;
/// Of a text that has more, so many of them are its last ones: what grows, grows there.
const LAST: usize = 64;

/// How a value of a column is read, as far as the table map tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Int,
    Float,
    Year,
    Decimal {
        precision: u8,
        scale: u8,
    },
    Bit(u16),
    Date,
    /// As before MariaDB 10.1: decimal digits.
    OldTime,
    OldDatetime,
    OldTimestamp,
    /// With so many decimals of a second.
    Time(u8),
    Datetime(u8),
    Timestamp(u8),
    /// The number of the value, or one bit for each.
    Enum,
    Set,
    Text,
    /// Not shown but as bytes.
    Raw,
}

/// A value in nearly SQL notation, for comments. Bytes that are invalid for its kind are shown in hex.
pub(crate) fn show(kind: Kind, value: &[u8]) -> String {
    read(kind, value).unwrap_or_else(|| raw(value))
}

fn raw(value: &[u8]) -> String {
    let shown = &value[..value.len().min(SHOWN)];
    let mut out = format!("x'{}'", hex(shown));
    if shown.len() < value.len() {
        let _ = write!(out, " and more: {} bytes", value.len());
    }
    out
}

fn little(value: &[u8]) -> u64 {
    value.iter().rev().fold(0, |acc, &b| acc << 8 | u64::from(b))
}

fn big(value: &[u8]) -> u64 {
    value.iter().fold(0, |acc, &b| acc << 8 | u64::from(b))
}

fn read(kind: Kind, value: &[u8]) -> Option<String> {
    let short = || (1..=8).contains(&value.len()).then_some(());
    Some(match kind {
        Kind::Raw => return None,
        Kind::Text => text(value)?,
        Kind::Int => {
            short()?;
            let number = little(value);
            let unused = 64 - 8 * value.len() as u32;
            match ((number << unused) as i64) >> unused {
                below @ ..0 => format!("{below} ({number})"),
                signed => signed.to_string(),
            }
        }
        Kind::Float => match value.len() {
            4 => format!("{:?}", f32::from_le_bytes(value.try_into().ok()?)),
            8 => format!("{:?}", f64::from_le_bytes(value.try_into().ok()?)),
            _ => return None,
        },
        Kind::Year => match value {
            [0] => "0000".into(),
            [year] => (1900 + u32::from(*year)).to_string(),
            _ => return None,
        },
        Kind::Decimal { precision, scale } => decimal(precision, scale, value)?,
        Kind::Bit(bits) => {
            short()?;
            format!("b'{:0width$b}'", big(value), width = usize::from(bits))
        }
        Kind::Enum | Kind::Set => {
            short()?;
            little(value).to_string()
        }
        Kind::Date => {
            let date = little(value);
            format!("'{:04}-{:02}-{:02}'", date >> 9, date >> 5 & 15, date & 31)
        }
        Kind::OldTime => {
            let unused = 64 - 24;
            let time = ((little(value) << unused) as i64) >> unused;
            let (sign, time) = (if time < 0 { "-" } else { "" }, time.unsigned_abs());
            format!("'{sign}{:02}:{:02}:{:02}'", time / 10_000, time / 100 % 100, time % 100)
        }
        Kind::OldDatetime => {
            let both = little(value);
            let (date, time) = (both / 1_000_000, both % 1_000_000);
            let (year, month, day) = (date / 10_000, date / 100 % 100, date % 100);
            format!(
                "'{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}'",
                time / 10_000,
                time / 100 % 100,
                time % 100
            )
        }
        Kind::OldTimestamp => timestamp(little(value), ""),
        Kind::Time(decimals) => {
            // Three bytes and the fraction are one number, in which zero lies in the middle.
            short()?;
            let bits = 8 * value.len() as u32;
            let packed = big(value) as i64 - (1i64 << (bits - 1));
            let (whole, fraction) = split(packed.unsigned_abs(), bits - 24, decimals)?;
            let sign = if packed < 0 { "-" } else { "" };
            format!("'{sign}{:02}:{:02}:{:02}{fraction}'", whole >> 12 & 0x3ff, whole >> 6 & 63, whole & 63)
        }
        Kind::Datetime(decimals) => {
            short()?;
            let bits = (8 * value.len() as u32).checked_sub(40)?;
            let (whole, fraction) = split(big(value), bits, decimals)?;
            let whole = whole.checked_sub(1 << 39)?;
            let (months, time) = (whole >> 22, whole & 0x1_ffff);
            format!(
                "'{:04}-{:02}-{:02} {:02}:{:02}:{:02}{fraction}'",
                months / 13,
                months % 13,
                whole >> 17 & 31,
                time >> 12,
                time >> 6 & 63,
                time & 63
            )
        }
        Kind::Timestamp(decimals) => {
            short()?;
            let bits = (8 * value.len() as u32).checked_sub(32)?;
            let (seconds, fraction) = split(big(value), bits, decimals)?;
            timestamp(seconds, &fraction)
        }
    })
}

/// The part before the last `bits`, and the fraction of a second that they are, with its point.
fn split(packed: u64, bits: u32, decimals: u8) -> Option<(u64, String)> {
    let digits = bits as usize / 4;
    let (whole, fraction) = (packed.checked_shr(bits)?, packed & ((1u64 << bits) - 1));
    if decimals == 0 {
        return Some((whole, String::new()));
    }
    // Two digits to a byte; of an odd number the last one is zero.
    let mut fraction = format!(".{fraction:0digits$}");
    fraction.truncate(1 + usize::from(decimals));
    Some((whole, fraction))
}

fn timestamp(seconds: u64, fraction: &str) -> String {
    match seconds {
        0 => format!("'0000-00-00 00:00:00{fraction}'"),
        _ => format!("'{}{fraction}' UTC", utc(seconds)),
    }
}

/// Seconds since 1970 as `2024-02-03 01:02:03`.
pub fn utc(seconds: u64) -> String {
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March end with the day that some of them lack; 146097 days are 400 years.
    let day = day + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + era * 400 + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

fn text(value: &[u8]) -> Option<String> {
    let quoted = |out: &mut String, bytes: &[u8]| -> Option<()> {
        out.push('\'');
        put_text(out, std::str::from_utf8(bytes).ok()?);
        out.push('\'');
        Some(())
    };
    let mut out = String::new();
    if value.len() <= SHOWN {
        quoted(&mut out, value)?;
        return Some(out);
    }
    // Between two characters, if it is text.
    let inside = |at: usize| value[at] & 0xc0 == 0x80;
    let end = (SHOWN - LAST - 3..=SHOWN - LAST).rev().find(|at| !inside(*at))?;
    let begin = (value.len() - LAST..value.len() - LAST + 4).find(|at| !inside(*at))?;
    quoted(&mut out, &value[..end])?;
    out.push_str(" ... ");
    quoted(&mut out, &value[begin..])?;
    let _ = write!(out, " ({} bytes)", value.len());
    Some(out)
}

/// Groups of nine digits take four bytes, shorter groups fewer; whole groups stand next to the point. The first bit is
/// the sign, and all bits of a negative number are inverted.
fn decimal(precision: u8, scale: u8, value: &[u8]) -> Option<String> {
    const BYTES: [usize; 10] = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4];
    let (precision, scale) = (usize::from(precision), usize::from(scale));
    let whole = precision.checked_sub(scale)?;
    let below = *value.first()? & 0x80 == 0;
    let mut bytes: Vec<u8> = value.iter().map(|b| if below { !b } else { *b }).collect();
    bytes[0] ^= 0x80;
    let mut rest = &bytes[..];
    let mut group = |digits: usize, out: &mut String| -> Option<()> {
        let (head, tail) = rest.split_at_checked(BYTES[digits])?;
        rest = tail;
        if digits > 0 {
            let _ = write!(out, "{:0digits$}", big(head));
        }
        Some(())
    };
    let mut before = String::new();
    group(whole % 9, &mut before)?;
    for _ in 0..whole / 9 {
        group(9, &mut before)?;
    }
    let mut after = String::new();
    for _ in 0..scale / 9 {
        group(9, &mut after)?;
    }
    group(scale % 9, &mut after)?;
    let before = before.trim_start_matches('0');
    let before = if before.is_empty() { "0" } else { before };
    let sign = if below { "-" } else { "" };
    Some(if scale == 0 { format!("{sign}{before}") } else { format!("{sign}{before}.{after}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_is_shown_as_date() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(utc(951_868_799), "2000-02-29 23:59:59");
        assert_eq!(utc(1_706_922_123), "2024-02-03 01:02:03");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00");
    }

    #[test]
    fn values_below_zero_and_of_old_columns() {
        assert_eq!(show(Kind::Int, &[0xff]), "-1 (255)");
        assert_eq!(show(Kind::Int, &[0xfe, 0xff, 0xff]), "-2 (16777214)");
        assert_eq!(show(Kind::OldTime, &little3(0x0100_0000 - 12_345)), "'-01:23:45'");
        assert_eq!(show(Kind::OldDatetime, &20_240_203_010_203_u64.to_le_bytes()), "'2024-02-03 01:02:03'");
        // -00:00:01.50: two's complement around the middle.
        assert_eq!(show(Kind::Time(2), &[0x7f, 0xff, 0xfe, 0xce]), "'-00:00:01.50'");
        assert_eq!(show(Kind::Decimal { precision: 4, scale: 2 }, &[0x7e, 0xfe]), "-1.01");
        assert_eq!(show(Kind::Text, &[b'x'; 256]).len(), "''".len() + 256);
        let (head, tail) = ("x".repeat(256 - 64), "y".repeat(64));
        assert_eq!(
            show(Kind::Text, format!("{head}between{tail}").as_bytes()),
            format!("'{head}' ... '{tail}' (263 bytes)")
        );
        assert_eq!(show(Kind::Text, "ü".repeat(200).as_bytes()).matches('ü').count(), 128);
        // Of three bytes each: some fit at neither end.
        assert_eq!(
            show(Kind::Text, format!("-{}", "語".repeat(200)).as_bytes()).matches('語').count(),
            63 + 21
        );
        assert!(show(Kind::Text, &[0x80; 300]).starts_with("x'8080"));
        assert_eq!(show(Kind::Text, b"a'\n\\\0"), r"'a\'\n\\\u{0}'");
        assert_eq!(show(Kind::Text, &[0xff]), "x'ff'");
    }

    fn little3(n: u32) -> [u8; 3] {
        n.to_le_bytes()[..3].try_into().unwrap()
    }
}
