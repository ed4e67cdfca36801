//! The types of options, and how their values are written.

use crate::api::Until;
use lockstep_core::{Gtid, Micros, Seqno, Uuid};
use std::fmt;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The type of an option's value, with its range (both ends included).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// `yes`, `on`, `true`, `1` or `no`, `off`, `false`, `0`.
    Bool,
    /// A number; K, M, G, T multiply by powers of 1024, as in Galera.
    Int(i64, i64),
    /// Bytes, written as [`Kind::Int`].
    Size(u64, u64),
    /// A number with a fraction.
    Real(f64, f64),
    /// ISO 8601 (`PT1.5S`, `P1D`), or `100ms`, `1s`, `10min`, `1h`, `1d`; a number alone is seconds, as in Galera.
    Time(Duration, Duration),
    /// One of these words, in any case.
    Enum(&'static [&'static str]),
    /// `none`, a seqno, a GTID (`UUID:seqno`), or a time in UTC (`2030-01-31 23:59:59`).
    Until,
    /// Anything.
    Text,
}

/// A value that has been checked.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "as the kinds")]
pub enum Value {
    Bool(bool),
    Int(i64),
    Size(u64),
    Real(f64),
    Time(Duration),
    Text(String),
    Until(Option<Until>),
}

impl Kind {
    /// Reads a value.
    ///
    /// # Errors
    /// The expected form, if the text is invalid.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let wrong = || self.to_string();
        match *self {
            Kind::Bool => parse_bool(text).map(Value::Bool).ok_or_else(wrong),
            Kind::Int(least, most) => match parse_int(text) {
                Some(n) if (least.into()..=most.into()).contains(&n) => Ok(Value::Int(n as i64)),
                _ => Err(wrong()),
            },
            Kind::Size(least, most) => match parse_int(text) {
                Some(n) if (least.into()..=most.into()).contains(&n) => Ok(Value::Size(n as u64)),
                _ => Err(wrong()),
            },
            Kind::Real(least, most) => match text.parse::<f64>() {
                Ok(x) if (least..=most).contains(&x) => Ok(Value::Real(x)),
                _ => Err(wrong()),
            },
            Kind::Time(least, most) => match parse_time(text) {
                Some(t) if (least..=most).contains(&t) => Ok(Value::Time(t)),
                _ => Err(wrong()),
            },
            Kind::Enum(words) => match words.iter().find(|word| word.eq_ignore_ascii_case(text)) {
                Some(word) => Ok(Value::Text((*word).to_owned())),
                None => Err(wrong()),
            },
            Kind::Until => parse_until(text).map(Value::Until).ok_or_else(wrong),
            Kind::Text => Ok(Value::Text(text.to_owned())),
        }
    }
}

/// The expected form of a duration, for messages and documents: an example of each unit.
const DURATION: &str = "a duration such as 500ms, 10s, 2min, 1h, 1d or PT10S";

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::Bool => f.write_str("yes or no"),
            Kind::Int(least, i64::MAX) => write!(f, "a number, {least} or more"),
            Kind::Int(least, most) => write!(f, "a number, {least} to {most}"),
            Kind::Size(least, u64::MAX) => write!(f, "a size such as 64M, {} or more", show_size(least)),
            Kind::Size(least, most) => {
                write!(f, "a size such as 64M, {} to {}", show_size(least), show_size(most))
            }
            Kind::Real(least, most) => write!(f, "a number, {least} to {most}"),
            Kind::Time(least, Duration::MAX) => {
                write!(f, "{DURATION}, {} or more", show_time(least))
            }
            Kind::Time(least, most) => {
                write!(f, "{DURATION}, {} to {}", show_time(least), show_time(most))
            }
            Kind::Enum(words) => write!(f, "one of {}", words.join(", ")),
            Kind::Until => f.write_str(
                "none, a seqno, a GTID (UUID:seqno), or a time in UTC such as 2030-01-31 23:59:59",
            ),
            Kind::Text => f.write_str("text"),
        }
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    let is = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(text));
    match () {
        () if is(&["yes", "on", "true", "1", "y"]) => Some(true),
        () if is(&["no", "off", "false", "0", "n"]) => Some(false),
        () => None,
    }
}

fn parse_until(text: &str) -> Option<Option<Until>> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("none") {
        return Some(None);
    }
    if let Ok(seqno) = text.parse::<Seqno>() {
        return (seqno >= 0).then_some(Some(Until::Seqno(seqno)));
    }
    if let Some((uuid, seqno)) = text.rsplit_once(':')
        && let (Some(uuid), Ok(seqno)) = (Uuid::parse(uuid), seqno.parse::<Seqno>())
    {
        return (seqno >= 0).then_some(Some(Until::Gtid(Gtid { uuid, seqno })));
    }
    // As people write it: a blank for the T, and no zone.
    let mut stamp = text.replacen(' ', "T", 1);
    if !stamp.ends_with(['z', 'Z']) && !stamp.get(10..).is_some_and(|time| time.contains(['+', '-'])) {
        stamp.push('Z');
    }
    let time = OffsetDateTime::parse(&stamp, &Rfc3339).ok()?;
    let micros = Micros::try_from(time.unix_timestamp_nanos() / 1000).ok()?;
    Some(Some(Until::Time(micros)))
}

fn parse_int(text: &str) -> Option<i128> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    // A number above 64 bits is out of every range, and 128 bits hold it multiplied by a tera.
    let n: i128 = digits
        .trim_end()
        .parse::<i64>()
        .map(i128::from)
        .or_else(|_| digits.parse::<u64>().map(i128::from))
        .ok()?;
    Some(n << shift)
}

/// Longer ones are forever.
const LONGEST: f64 = 1e12;

fn seconds(x: f64) -> Option<Duration> {
    (x.is_finite() && (0.0..=LONGEST).contains(&x)).then(|| Duration::from_nanos((x * 1e9).round() as u64))
}

fn number(text: &str) -> Option<f64> {
    // No exponents, signs, "inf" or "nan": only what people write.
    let plain = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    plain.then(|| text.parse().ok()).flatten()
}

fn parse_time(text: &str) -> Option<Duration> {
    let lower = text.trim().to_ascii_lowercase();
    if let Some(iso) = lower.strip_prefix('p') {
        return parse_iso(iso);
    }
    let split = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
    let factor = match lower[split..].trim_start() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" | "sec" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    seconds(number(&lower[..split])? * factor)
}

/// The part after the P: years, months and days, then, after a T, hours, minutes and seconds. As Galera reads them, a
/// year has 365 days and a month 30.
fn parse_iso(text: &str) -> Option<Duration> {
    let (date, time) = match text.split_once('t') {
        Some((date, time)) if !time.is_empty() => (date, time),
        Some(_) => return None,
        None => (text, ""),
    };
    if date.is_empty() && time.is_empty() {
        return None;
    }
    let sum = |mut text: &str, units: &[(char, f64)]| -> Option<f64> {
        let mut total = 0.0;
        let mut left = units.iter();
        while !text.is_empty() {
            let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let unit = text[at..].chars().next()?;
            // In this order, each at most once.
            let (_, factor) = left.find(|(name, _)| *name == unit)?;
            total += number(&text[..at])? * factor;
            text = &text[at + unit.len_utf8()..];
        }
        Some(total)
    };
    let days = sum(date, &[('y', 365.0), ('m', 30.0), ('d', 1.0)])?;
    let rest = sum(time, &[('h', 3600.0), ('m', 60.0), ('s', 1.0)])?;
    seconds(days * 86400.0 + rest)
}

/// A size as short as it can be said exactly.
pub(super) fn show_size(bytes: u64) -> String {
    match [(40, "T"), (30, "G"), (20, "M"), (10, "K")]
        .iter()
        .find(|(n, _)| bytes != 0 && bytes.is_multiple_of(1 << n))
    {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A duration as short as it can be said exactly.
pub(super) fn show_time(time: Duration) -> String {
    let us = time.as_micros();
    let units =
        [("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1000)];
    match units.iter().find(|(_, n)| us != 0 && us.is_multiple_of(*n)) {
        Some((unit, n)) => format!("{}{unit}", us / n),
        None if us == 0 => "0s".to_owned(),
        None => format!("{us}us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(text: &str) -> Option<u128> {
        parse_time(text).map(|t| t.as_micros())
    }

    #[test]
    fn times() {
        for (text, us) in [
            ("PT1S", 1_000_000),
            ("PT0.5S", 500_000),
            ("pt7.5s", 7_500_000),
            ("PT1M", 60_000_000),
            ("PT1M30S", 90_000_000),
            ("P1D", 86_400_000_000),
            ("P1DT1H", 90_000_000_000),
            ("PT24H", 86_400_000_000),
            ("P1M", 30 * 86_400_000_000),
            ("10", 10_000_000),
            ("100ms", 100_000),
            ("1s", 1_000_000),
            ("10min", 600_000_000),
            ("1.5 h", 5_400_000_000),
            ("2d", 172_800_000_000),
            ("7us", 7),
            ("0", 0),
        ] {
            assert_eq!(time(text), Some(us), "{text}");
        }
        for text in [
            "", "P", "PT", "PT10", "PT1S1M", "PT1S1S", "P1H", "1m", "-1s", "1e3", "s", "inf", "1..2s",
            "1 2s", "PT-1S",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn numbers() {
        let any = Kind::Int(i64::MIN, i64::MAX);
        assert_eq!(any.parse("1K"), Ok(Value::Int(1024)));
        assert_eq!(any.parse("-3"), Ok(Value::Int(-3)));
        assert_eq!(any.parse("9223372036854775807"), Ok(Value::Int(i64::MAX)));
        assert!(any.parse("9223372036854775807K").is_err());
        assert!(any.parse("18446744073709551615T").is_err());
        assert!(any.parse("K").is_err());
        assert!(any.parse("0x1").is_err());
        assert!(any.parse("1KM").is_err());
        assert_eq!(Kind::Size(0, u64::MAX).parse("2G"), Ok(Value::Size(2 << 30)));
        assert_eq!(Kind::Size(10, 20).parse("9"), Err("a size such as 64M, 10 to 20".to_owned()));
        assert!(Kind::Size(0, u64::MAX).parse("-1").is_err());
        assert!(Kind::Real(0.0, 1.0).parse("7").is_err());
        assert!(Kind::Real(0.0, 1.0).parse("nan").is_err());
        assert_eq!(Kind::Enum(&["FLAT8"]).parse("flat8"), Ok(Value::Text("FLAT8".to_owned())));
        assert!(Kind::Bool.parse("maybe").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            for kind in [
                Kind::Bool,
                Kind::Int(0, 9),
                Kind::Size(0, 9),
                Kind::Real(0.0, 1.0),
                Kind::Time(Duration::ZERO, Duration::MAX),
                Kind::Enum(&["a"]),
                Kind::Text,
            ] {
                let _ = kind.parse(&text);
            }
        }

        #[test]
        fn what_is_shown_is_read(us in 0u64..1 << 50, bytes in any::<u64>()) {
            let time = Duration::from_micros(us);
            let error = parse_time(&show_time(time)).unwrap().abs_diff(time);
            prop_assert!(error <= Duration::from_micros(1), "{:?}", error);
            prop_assert_eq!(parse_int(&show_size(bytes)), Some(bytes.into()));
        }
    }
}
