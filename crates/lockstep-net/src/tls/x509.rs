//! As much of a certificate as is needed to say until when it is valid.

/// From when to when a certificate is valid, in seconds since 1970 (UTC), both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: i64,
    /// The last second.
    pub not_after: i64,
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// Takes one DER element off the front: its tag and its content.
fn element<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let len = match first {
        0..=0x7f => usize::from(first),
        0x81..=0x84 => {
            let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            rest = after;
            digits.iter().fold(0usize, |n, &d| n << 8 | usize::from(d))
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    *bytes = rest;
    Some((tag, content))
}

fn expect<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    element(bytes).filter(|(found, _)| *found == tag).map(|(_, content)| content)
}

/// The validity of a certificate in DER (RFC 5280, 4.1); `None` if it is no certificate.
pub(crate) fn validity(mut der: &[u8]) -> Option<Validity> {
    let mut certificate = expect(&mut der, SEQUENCE)?;
    let mut tbs = expect(&mut certificate, SEQUENCE)?;
    if tbs.first() == Some(&VERSION) {
        element(&mut tbs)?;
    }
    expect(&mut tbs, INTEGER)?; // serial number
    expect(&mut tbs, SEQUENCE)?; // signature algorithm
    expect(&mut tbs, SEQUENCE)?; // issuer
    let mut validity = expect(&mut tbs, SEQUENCE)?;
    Some(Validity { not_before: time(&mut validity)?, not_after: time(&mut validity)? })
}

fn time(bytes: &mut &[u8]) -> Option<i64> {
    let (tag, text) = element(bytes)?;
    let text = text.strip_suffix(b"Z")?;
    let number = |digits: &[u8]| -> Option<i64> {
        digits.iter().try_fold(0i64, |n, d| d.is_ascii_digit().then(|| n * 10 + i64::from(d - b'0')))
    };
    let (year, rest) = match (tag, text.len()) {
        (UTC_TIME, 12) => {
            let two = number(&text[..2])?;
            (if two < 50 { 2000 + two } else { 1900 + two }, &text[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&text[..4])?, &text[4..]),
        _ => return None,
    };
    let mut parts = rest.chunks(2).map(number);
    let mut next = |most: i64| parts.next()?.filter(|n| *n <= most);
    let (month, day, hour, minute, second) = (next(12)?, next(31)?, next(23)?, next(59)?, next(60)?);
    if month == 0 || day == 0 {
        return None;
    }
    Some(days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days since 1970 of a date in the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that the leap day is a year's last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    y * 365 + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (m * 153 + 2) / 5 + day - 1 - 719_468
}

/// A date for people: `2031-11-21`.
pub(crate) fn date(seconds: i64) -> String {
    let wanted = seconds.div_euclid(86_400);
    // The year is found by trying: an average year has 365.2425 days.
    let mut year = 1970 + wanted * 400 / 146_097;
    while days(year, 1, 1) > wanted {
        year -= 1;
    }
    while days(year + 1, 1, 1) <= wanted {
        year += 1;
    }
    let month = (1..=12).rev().find(|&m| days(year, m, 1) <= wanted).unwrap_or(1);
    format!("{year:04}-{month:02}-{:02}", wanted - days(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_675_199, "2026-12-30"),
            (4_102_444_800, "2100-01-01"),
            (253_402_300_799, "9999-12-31"),
            (-1, "1969-12-31"),
        ] {
            assert_eq!(date(seconds), text);
        }
        assert_eq!(days(2000, 2, 29) * 86_400, 951_782_400);
    }

    #[test]
    fn validity_of_a_made_certificate() {
        let mut params = rcgen::CertificateParams::new(vec!["n1".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2024, 2, 29);
        params.not_after = rcgen::date_time_ymd(2051, 7, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        let found = validity(cert.der()).unwrap();
        assert_eq!(
            (date(found.not_before), date(found.not_after)),
            ("2024-02-29".into(), "2051-07-01".into())
        );
        for cut in 0..cert.der().len().min(150) {
            let _ = validity(&cert.der()[..cut]);
        }
    }

    #[test]
    fn times() {
        let utc = |text: &str| {
            let mut der = vec![UTC_TIME, text.len() as u8];
            der.extend_from_slice(text.as_bytes());
            time(&mut der.as_slice())
        };
        assert_eq!(utc("700101000000Z"), Some(0));
        assert_eq!(utc("491231235959Z"), Some(2_524_607_999));
        for bad in ["7001010000Z", "700101000000", "701301000000Z", "70010100000xZ", "700001000000Z", ""] {
            assert_eq!(utc(bad), None, "{bad}");
        }
    }
}
