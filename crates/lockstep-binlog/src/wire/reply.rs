//! Replies of the server: OK, ERR, EOF, and text result sets.

use super::handshake::STATUS;
use crate::codec::put_length;

/// An error for the client: number, SQL state and text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlError {
    /// MariaDB's number of the error.
    pub code: u16,
    /// Its SQL state.
    pub state: &'static [u8; 5],
    /// Its text.
    pub text: String,
}

impl SqlError {
    /// An error without a state of its own.
    pub fn new(code: u16, text: impl Into<String>) -> SqlError {
        SqlError { code, state: b"HY000", text: text.into() }
    }

    /// 1236: a replica must not retry.
    pub fn fatal(text: impl Into<String>) -> SqlError {
        SqlError::new(1236, text)
    }

    /// The payload.
    pub fn to_payload(&self) -> Vec<u8> {
        let mut out = vec![0xff];
        out.extend_from_slice(&self.code.to_le_bytes());
        out.push(b'#');
        out.extend_from_slice(self.state);
        // Clients keep 511 bytes.
        let mut end = self.text.len().min(500);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        out.extend_from_slice(&self.text.as_bytes()[..end]);
        out
    }
}

/// The payload of OK.
pub fn ok() -> Vec<u8> {
    let mut out = vec![0, 0, 0];
    out.extend_from_slice(&STATUS.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out
}

/// The payload of EOF.
pub fn eof() -> Vec<u8> {
    let mut out = vec![0xfe, 0, 0];
    out.extend_from_slice(&STATUS.to_le_bytes());
    out
}

/// Rows of text.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Rows {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// A value for each column, or NULL.
    pub rows: Vec<Vec<Option<String>>>,
}

impl Rows {
    /// One row.
    pub fn one(values: Vec<(String, Option<String>)>) -> Rows {
        let (columns, row) = values.into_iter().unzip();
        Rows { columns, rows: vec![row] }
    }

    /// The payloads: number of columns, columns, EOF, rows, EOF.
    pub fn to_payloads(&self) -> Vec<Vec<u8>> {
        let mut out = Vec::with_capacity(3 + self.columns.len() + self.rows.len());
        let mut count = Vec::new();
        put_length(&mut count, self.columns.len() as u64);
        out.push(count);
        out.extend(self.columns.iter().map(|name| column(name)));
        out.push(eof());
        for row in &self.rows {
            let mut payload = Vec::new();
            for value in row {
                match value {
                    None => payload.push(0xfb),
                    Some(text) => put_text(&mut payload, text.as_bytes()),
                }
            }
            out.push(payload);
        }
        out.push(eof());
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_length(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// The definition of a text column.
fn column(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_text(&mut out, b"def");
    // Database, table and original table.
    (0..3).for_each(|_| put_text(&mut out, b""));
    put_text(&mut out, name.as_bytes());
    put_text(&mut out, b"");
    out.push(12);
    // utf8mb4_general_ci.
    out.extend_from_slice(&45u16.to_le_bytes());
    out.extend_from_slice(&1024u32.to_le_bytes());
    // VARCHAR, no flags, no decimals.
    out.push(253);
    out.extend_from_slice(&[0; 5]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_set_has_columns_rows_and_both_ends() {
        let rows = Rows::one(vec![("a".into(), Some("1".into())), ("b".into(), None)]);
        let payloads = rows.to_payloads();
        assert_eq!(payloads.len(), 6);
        assert_eq!(payloads[0], [2]);
        assert_eq!(payloads[4], [1, b'1', 0xfb]);
        assert_eq!((&payloads[3], &payloads[5]), (&eof(), &eof()));
    }

    #[test]
    fn long_error_text_is_cut_between_characters() {
        let error = SqlError::fatal("ä".repeat(600));
        let payload = error.to_payload();
        assert_eq!(payload.len(), 9 + 500);
        assert!(std::str::from_utf8(&payload[9..]).is_ok());
    }
}
