//! Reads SQL as a client does, and fails on unexpected input.

/// The bytes of each `BINLOG` in a text, which must hold nothing but comments and the statements that are made here.
pub(crate) fn binlogs(text: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(comment) = rest.strip_prefix('#') {
            let (line, after) = comment.split_once('\n').expect("a comment ends its line");
            assert!(!line.chars().any(char::is_control), "{line:?}");
            rest = after;
            continue;
        }
        // A statement ends at the first semicolon outside of quotes.
        let mut quote = None;
        let mut unquoted = String::new();
        let end = rest.char_indices().find(|&(_, c)| {
            assert!(c != '\\', "a backslash in {rest}");
            match quote {
                None if c == '\'' || c == '`' => quote = Some(c),
                Some(q) if c == q => quote = None,
                None if c != ';' => unquoted.push(c),
                _ => {}
            }
            quote.is_none() && c == ';'
        });
        let (end, _) = end.unwrap_or_else(|| panic!("no end of {rest}"));
        let statement = &rest[..end];
        rest = rest[end + 1..].strip_prefix('\n').expect("a statement ends its line");
        match unquoted.as_str() {
            "BEGIN" | "COMMIT" | "USE " | "EXECUTE IMMEDIATE " | "SET NAMES utf8mb4" => {}
            "EXECUTE IMMEDIATE CONVERT(x USING utf8mb4)" => {}
            "BINLOG " => found.push(decoded(statement.split('\'').nth(1).unwrap_or_default())),
            other => {
                let mode = other.strip_prefix("SET SESSION sql_mode = ").and_then(|n| n.parse::<u64>().ok());
                assert!(mode.is_some(), "{other:?} in {statement:?}");
            }
        }
    }
    found
}

fn decoded(base64: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut held, mut bits) = (0u32, 0);
    for c in base64.bytes().filter(|c| !matches!(c, b'\n' | b'=')) {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            other => panic!("{other} is no digit"),
        };
        held = held << 6 | u32::from(digit);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    out
}
