//! The answers of the status service.

use crate::Metric;
use crate::operator::Answer;
use crate::status::Status;
use lockstep_core::Gtid;

/// An answer in HTTP.
pub(crate) struct Page {
    pub(crate) code: u16,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Page {
    fn json(code: u16, body: String) -> Page {
        Page { code, kind: "application/json", body }
    }

    pub(crate) fn text(code: u16, body: impl Into<String>) -> Page {
        Page { code, kind: "text/plain", body: body.into() }
    }

    pub(crate) fn status(status: &Status) -> Page {
        match serde_json::to_string(status) {
            Ok(json) => Page::json(200, json),
            Err(error) => Page::text(500, error.to_string()),
        }
    }

    pub(crate) fn metrics(status: &Status, front_end: &[Metric]) -> Page {
        Page { code: 200, kind: "text/plain; version=0.0.4", body: status.prometheus(front_end) }
    }

    /// The answer to a command that could not be read.
    pub(crate) fn malformed_command(text: String) -> Page {
        Page::command(400, &Answer { ok: false, text, seconds: 0.0, held: None })
    }

    pub(crate) fn command_answer(answer: &Answer) -> Page {
        Page::command(if answer.ok { 200 } else { 409 }, answer)
    }

    fn command(code: u16, answer: &Answer) -> Page {
        Page::json(code, serde_json::to_string(answer).unwrap_or_default())
    }

    pub(crate) fn committed_position(result: Result<Gtid, String>) -> Page {
        match result {
            Ok(gtid) => {
                let body = serde_json::json!({ "uuid": gtid.uuid.to_string(), "seqno": gtid.seqno });
                Page::json(200, body.to_string())
            }
            Err(text) => Page::text(503, text),
        }
    }
}
