//! Configuration files of members without a database, in the format of garbd's: lines `option = value`.

use std::path::Path;
use std::str::FromStr;

/// Hands each option of the file to `take`, with its value. Comments begin with `#`; lines with `[` and empty ones have no
/// meaning.
///
/// # Errors
/// The file cannot be read, or `take` refuses an option: the text names file and line.
pub(crate) fn read(
    path: &Path,
    mut take: impl FnMut(&str, &str) -> Result<(), String>,
) -> Result<(), String> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| format!("cannot read the configuration file {}: {e}", path.display()))?;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('[') {
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let value = value.trim();
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
        take(key.trim(), value).map_err(|why| format!("{}: line {}: {why}", path.display(), number + 1))?;
    }
    Ok(())
}

/// Whether the value of an option without a value on the command line turns it on.
pub(crate) fn is_on(value: &str) -> bool {
    !matches!(value, "0" | "no" | "false" | "off")
}

/// A value of another type, for an option that the command line does not have.
pub(crate) fn fill<T: FromStr<Err: std::fmt::Display>>(
    option: &mut Option<T>,
    key: &str,
    value: &str,
) -> Result<(), String> {
    if option.is_none() {
        *option = Some(value.parse().map_err(|e| format!("{key} cannot be '{value}': {e}"))?);
    }
    Ok(())
}

/// A number of bytes: `20G`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let (digits, shift) = match text.char_indices().next_back() {
            Some((at, 'K' | 'k')) => (&text[..at], 10),
            Some((at, 'M' | 'm')) => (&text[..at], 20),
            Some((at, 'G' | 'g')) => (&text[..at], 30),
            Some((at, 'T' | 't')) => (&text[..at], 40),
            _ => (text, 0),
        };
        let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        number.map(Size).ok_or_else(|| "expected a size such as 500M or 20G".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (text, expected) in [("0", 0), ("512", 512), ("3k", 3 << 10), ("20G", 20 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(text.parse(), Ok(Size(expected)));
        }
        for wrong in ["", "G", "1.5G", "-1", "20GB", "99999999T"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }
}
