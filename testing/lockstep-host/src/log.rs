//! Lines on standard output: replies to commands and events, one JSON object each.

use serde_json::{Value, json};
use std::io::Write;

/// Writes one object. Nobody may be listening any more: errors are of no use.
pub(crate) fn line(value: &Value) {
    let mut text = value.to_string();
    text.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// Writes an event.
pub(crate) fn event(kind: &str, text: &str) {
    line(&json!({ "event": kind, "text": text }));
}
