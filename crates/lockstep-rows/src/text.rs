//! Writing what others chose the bytes of, so that none of it is taken for anything but text.

use std::fmt::Write;

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

/// Base64 in lines, as `BINLOG` takes it.
pub(crate) fn base64(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for line in bytes.chunks(57) {
        for three in line.chunks(3) {
            let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
            let group = at(0) << 16 | at(1) << 8 | at(2);
            for i in 0..4 {
                let digit = char::from(DIGITS[(group >> (18 - 6 * i) & 63) as usize]);
                out.push(if i > three.len() { '=' } else { digit });
            }
        }
        out.push('\n');
    }
}

/// Whether a character is safe to print: it does not control a terminal, break the line or change the direction of
/// text.
fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Text in a comment, always one line.
pub(crate) fn put_text(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\'' => out.push_str("\\'"),
            '\\' => out.push_str("\\\\"),
            c if is_plain(c) => out.push(c),
            c => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
}

/// A comment of one line.
pub fn comment(text: &str) -> String {
    let mut out = String::from("# ");
    for c in text.chars() {
        match c {
            '\n' | '\t' | '\r' => out.push(' '),
            c if is_plain(c) => out.push(c),
            c => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    out.push('\n');
    out
}

/// A name between backticks, for a comment.
pub(crate) fn put_name(out: &mut String, name: &str) {
    out.push('`');
    let mut plain = String::new();
    put_text(&mut plain, &name.replace('`', "``"));
    out.push_str(&plain);
    out.push('`');
}

/// Text as an SQL value that is correct under any `sql_mode` and any client's treatment of backslashes.
pub(crate) fn literal(text: &str) -> String {
    match text.chars().all(|c| c != '\\' && (c == '\n' || c == '\t' || is_plain(c))) {
        true => format!("'{}'", text.replace('\'', "''")),
        false => format!("CONVERT(x'{}' USING utf8mb4)", hex(text.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_all_lengths() {
        for (text, coded) in
            [("", ""), ("f", "Zg==\n"), ("fo", "Zm8=\n"), ("foo", "Zm9v\n"), ("foob", "Zm9vYg==\n")]
        {
            let mut out = String::new();
            base64(text.as_bytes(), &mut out);
            assert_eq!(out, coded);
        }
        let mut out = String::new();
        base64(&[0xff; 58], &mut out);
        assert_eq!(out, format!("{}\n/w==\n", "/".repeat(76)));
    }

    #[test]
    fn nothing_leaves_its_line_or_its_quotes() {
        assert_eq!(comment("a\nDROP\u{1b}[2J\u{202e}"), "# a DROP\\u{1b}[2J\\u{202e}\n");
        assert_eq!(literal("it's\n"), "'it''s\n'");
        assert_eq!(literal("\\! rm"), "CONVERT(x'5c2120726d' USING utf8mb4)");
        let mut out = String::new();
        put_name(&mut out, "a`b\nc");
        assert_eq!(out, "`a``b\\nc`");
    }
}
