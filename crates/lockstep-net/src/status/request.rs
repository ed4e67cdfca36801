//! Parses one request from bytes that arrive in pieces of any size.

use bytes::{Bytes, BytesMut};

use super::Method;

/// Longest request line and headers together, in bytes.
pub const HEAD_MAX: usize = 8 * 1024;
/// Longest body, in bytes.
pub const BODY_MAX: usize = 1024 * 1024;

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) method: Method,
    /// `HEAD`: the answer's body is left out.
    pub(crate) head_only: bool,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Bytes,
}

/// State of the request being parsed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Incomplete.
    More,
    /// Complete.
    Done(Parsed),
    /// Refused: status and one line.
    Bad(u16, String),
}

/// Collects a request.
#[derive(Debug)]
pub(crate) struct Parser {
    buf: BytesMut,
    local: bool,
    /// Set once the head is parsed: the request without its body, the body's place and length.
    head: Option<(Parsed, usize, usize)>,
    /// How far the end of the head has been looked for.
    searched: usize,
}

impl Parser {
    /// `local`: by the Unix socket, so commands are allowed.
    pub(crate) fn new(local: bool) -> Parser {
        Parser { buf: BytesMut::new(), local, head: None, searched: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Takes in what arrived. After anything but [`Progress::More`] the parser is used up.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Progress {
        self.buf.extend_from_slice(bytes);
        if self.head.is_none() {
            match self.find_head() {
                None if self.buf.len() > HEAD_MAX => {
                    return bad(431, "request headers are longer than 8 KiB");
                }
                None => return Progress::More,
                Some(end) if end > HEAD_MAX => return bad(431, "request headers are longer than 8 KiB"),
                Some(end) => match parse_head(&self.buf[..end], self.local) {
                    Err((status, text)) => return Progress::Bad(status, text),
                    Ok((parsed, body_len)) => self.head = Some((parsed, end, body_len)),
                },
            }
        }
        match self.head.take_if(|(_, start, len)| self.buf.len() >= *start + *len) {
            None => Progress::More,
            Some((parsed, start, len)) => {
                let body = self.buf.split().freeze().slice(start..start + len);
                Progress::Done(Parsed { body, ..parsed })
            }
        }
    }

    /// Where the head ends: behind the first empty line.
    fn find_head(&mut self) -> Option<usize> {
        let from = self.searched.saturating_sub(3);
        self.searched = self.buf.len();
        let rest = &self.buf[from..];
        // People type requests into `nc`, with bare line feeds.
        let crlf = rest.windows(4).position(|w| w == b"\r\n\r\n").map(|i| from + i + 4);
        let lf = rest.windows(2).position(|w| w == b"\n\n").map(|i| from + i + 2);
        match (crlf, lf) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

fn bad(status: u16, text: &str) -> Progress {
    Progress::Bad(status, text.to_owned())
}

fn parse_head(head: &[u8], local: bool) -> Result<(Parsed, usize), (u16, String)> {
    let err = |status: u16, text: &str| (status, text.to_owned());
    let text = std::str::from_utf8(head).map_err(|_| err(400, "request is not text"))?;
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or("").split_ascii_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(err(400, "not an HTTP request"));
    };
    if let Some(version) = words.next()
        && (!version.starts_with("HTTP/1.") || words.next().is_some())
    {
        return Err(err(400, "not an HTTP/1 request"));
    }
    let (method, head_only) = match method {
        "GET" => (Method::Get, false),
        "HEAD" => (Method::Get, true),
        "POST" if local => (Method::Post, false),
        "POST" => return Err(err(403, "commands are accepted on the Unix socket only")),
        _ => return Err(err(405, "only GET, HEAD and, on the Unix socket, POST")),
    };
    if !target.starts_with('/') {
        return Err(err(400, "the request's path does not begin with '/'"));
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut body_len = 0;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.eq_ignore_ascii_case("content-length") {
            body_len = value.trim().parse::<usize>().map_err(|_| err(400, "bad Content-Length"))?;
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(err(400, "Transfer-Encoding is not supported: send Content-Length"));
        }
    }
    if body_len > BODY_MAX {
        return Err(err(413, "request body is longer than 1 MiB"));
    }
    Ok((
        Parsed { method, head_only, path: path.to_owned(), query: query.to_owned(), body: Bytes::new() },
        body_len,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_at_once(text: &str, local: bool) -> Progress {
        Parser::new(local).push(text.as_bytes())
    }

    #[test]
    fn get_in_any_pieces() {
        let text = "GET /status?pretty=1 HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n\r\n";
        for cut in 1..text.len() {
            let mut p = Parser::new(false);
            assert_eq!(p.push(&text.as_bytes()[..cut]), Progress::More, "cut {cut}");
            let Progress::Done(r) = p.push(&text.as_bytes()[cut..]) else { panic!("cut {cut}") };
            assert_eq!((r.method, r.path.as_str(), r.query.as_str()), (Method::Get, "/status", "pretty=1"));
        }
    }

    #[test]
    fn post_with_body_is_local_only() {
        let text = "POST /command HTTP/1.0\ncontent-length: 7\n\n{\"a\":1}trailing";
        let Progress::Done(r) = all_at_once(text, true) else { panic!() };
        assert_eq!((r.method, &r.body[..]), (Method::Post, &b"{\"a\":1}"[..]));
        assert!(matches!(all_at_once(text, false), Progress::Bad(403, _)));
    }

    #[test]
    fn limits_and_nonsense() {
        for (text, status) in [
            ("\r\n\r\n", 400),
            ("GET\r\n\r\n", 400),
            ("GET status HTTP/1.0\r\n\r\n", 400),
            ("GET / SMTP\r\n\r\n", 400),
            ("DELETE / HTTP/1.0\r\n\r\n", 405),
            ("POST / HTTP/1.0\r\nContent-Length: 1048577\r\n\r\n", 413),
            ("POST / HTTP/1.0\r\nContent-Length: -1\r\n\r\n", 400),
            ("POST / HTTP/1.0\r\nContent-Length: 99999999999999999999999\r\n\r\n", 400),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ] {
            match all_at_once(text, true) {
                Progress::Bad(s, _) => assert_eq!(s, status, "{text:?}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
        let mut p = Parser::new(true);
        let mut pushed = 0;
        loop {
            match p.push(&[b'x'; 100]) {
                Progress::More => pushed += 100,
                Progress::Bad(431, _) => break,
                other => panic!("{other:?}"),
            }
            assert!(pushed <= HEAD_MAX);
        }
        assert!(matches!(Parser::new(true).push(&[0xff, b'\n', b'\n']), Progress::Bad(400, _)));
    }
}
