//! Parses the text of options, and finds the most similar name of an unknown one.

use super::error::OptionError;
use super::table::{Row, rows};

/// An option that has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The option.
    pub name: &'static str,
    /// The new value, as it was written.
    pub value: String,
}

/// The pairs of `name = value; name = value`. A backslash takes the character after it as it is.
pub(super) fn pairs(text: &str) -> Result<Vec<(String, String)>, OptionError> {
    let mut out = Vec::new();
    for part in split(text, ';') {
        let sides = split(&part, '=');
        let syntax = |problem| Err(OptionError::Syntax { part: part.trim().to_owned(), problem });
        match &sides[..] {
            [blank] if blank.trim().is_empty() => {}
            [_] => return syntax("has no value"),
            [name, _] if name.trim().is_empty() => return syntax("has no name"),
            [name, value] => out.push((unescape(name), unescape(value))),
            _ => return syntax("has more than one '='"),
        }
    }
    Ok(out)
}

/// Splits where the separator is not escaped; keeps the escapes. At least one part.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == separator && !escaped {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    parts
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.extend(chars.next()),
            c => out.push(c),
        }
    }
    out.trim().to_owned()
}

/// The opposite: what [`pairs`] reads as this text.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, ';' | '=' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// The row of a name.
pub(super) fn find(name: &str) -> Result<&'static Row, OptionError> {
    let rows = rows();
    match rows.binary_search_by(|row| row.name.cmp(name)) {
        Ok(at) => Ok(&rows[at]),
        Err(_) => Err(OptionError::Unknown { name: name.to_owned(), nearest: nearest(name) }),
    }
}

/// The known name nearest to this one, if it is near.
fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let last = |full: &str| full.rsplit('.').next().unwrap_or(full).to_owned();
    let (distance, row) = rows()
        .iter()
        .map(|row| {
            // Forgetting or mistaking the prefix is one mistake.
            let same_end = last(row.name) == last(&name);
            (distance(&name, row.name).min(if same_end { 1 } else { usize::MAX }), row)
        })
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.chars().count() / 4).then_some(row.name)
}

/// The known name nearest to the written one, if it is near; for options outside of the table.
pub fn nearest_of<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = written.to_ascii_lowercase();
    let named = known.iter().map(|name| (distance(&lower, &name.to_ascii_lowercase()), *name));
    let (distance, name) = named.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + written.chars().count() / 8).then_some(name)
}

/// How many characters must be put in, left out or replaced to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + (ca != *cb) as usize;
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(String, String)> {
        pairs(text).unwrap()
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    #[test]
    fn texts() {
        assert_eq!(read(""), []);
        assert_eq!(read(" ; ;"), []);
        assert_eq!(read("a=b"), [pair("a", "b")]);
        assert_eq!(read(" a = b ; c=d;"), [pair("a", "b"), pair("c", "d")]);
        assert_eq!(read("a="), [pair("a", "")]);
        assert_eq!(read(r"a=x\;y\=z\\"), [pair("a", r"x;y=z\")]);
        assert!(pairs("a").is_err());
        assert!(pairs("=b").is_err());
        assert!(pairs("a=b=c").is_err());
        assert_eq!(
            pairs("x=1; gcache").unwrap_err().to_string(),
            "provider options: 'gcache' has no value; write 'name = value; name = value'"
        );
    }

    #[test]
    fn meant() {
        assert_eq!(nearest("gcache.sise"), Some("gcache.size"));
        assert_eq!(nearest("fc_limit"), Some("gcs.fc_limit"));
        assert_eq!(nearest("pc.weigth"), Some("pc.weight"));
        assert_eq!(nearest("LOG.SIZE"), Some("log.size"));
        assert_eq!(nearest("election_timeout"), Some("cluster.election_timeout"));
        assert_eq!(nearest("nonsense"), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = pairs(&text);
            let _ = find(&text);
        }

        #[test]
        fn escaped_is_read(value in "[a=;\\\\b]{0,8}") {
            prop_assert_eq!(read(&format!("k = {}", escape(&value))), [pair("k", value.trim())]);
        }
    }
}
