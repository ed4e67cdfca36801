//! The same events with a statement that does nothing.

use crate::wire::crc32;
use crate::{EventKind, events};

const HEADER: usize = 19;
/// The statement that the server executes instead; blanks fill the rest of the text.
const NOTHING: &[u8] = b"DO 0";

/// The data of a statement in total order with all its statements replaced by one that does nothing: everything else
/// that the server does with such data it still does. `None` where that cannot be done: there is no statement, or one
/// that is compressed or too short.
pub fn silenced(data: &[u8]) -> Option<Vec<u8>> {
    let mut silent = data.to_vec();
    let mut some = false;
    let mut reader = events(data);
    for event in reader.by_ref() {
        match event.kind {
            EventKind::Query => {}
            EventKind::FormatDescription | EventKind::Gtid => continue,
            _ => return None,
        }
        let schema_len = usize::from(*event.body.get(8)?);
        let vars_len = usize::from(u16::from_le_bytes([*event.body.get(11)?, *event.body.get(12)?]));
        let text = event.offset + HEADER + 13 + vars_len + schema_len + 1;
        let end = event.offset + HEADER + event.body.len();
        let sql = silent.get_mut(text..end).filter(|sql| sql.len() >= NOTHING.len())?;
        sql.fill(b' ');
        sql[..NOTHING.len()].copy_from_slice(NOTHING);
        let len = u32::from_le_bytes(data[event.offset + 9..event.offset + 13].try_into().ok()?) as usize;
        if len > HEADER + event.body.len() {
            let sum = crc32(&silent[event.offset..end]).to_le_bytes();
            silent[end..end + 4].copy_from_slice(&sum);
        }
        some = true;
    }
    (some && reader.damage().is_none()).then_some(silent)
}
