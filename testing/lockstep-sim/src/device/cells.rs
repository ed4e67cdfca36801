//! The content of the simulated device: cells, each with the number of its write and its own place.

/// Bytes of a cell. A sector of the disk has several.
pub(super) const CELL: usize = 128;
/// The most cells of a device.
pub(super) const CELLS_MAX: usize = 96;

/// The number of the write that a cell holds; 0: zeroes.
pub(super) type Value = u64;

/// The byte that fills the rest of a cell.
fn filler(value: Value, cell: usize) -> u8 {
    (value.wrapping_mul(31).wrapping_add(cell as u64 * 7) % 255) as u8 + 1
}

/// The bytes of these cells after a write.
pub(super) fn content(value: Value, first: usize, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count * CELL];
    for (n, bytes) in bytes.chunks_mut(CELL).enumerate() {
        bytes.fill(filler(value, first + n));
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        bytes[8..16].copy_from_slice(&((first + n) as u64).to_le_bytes());
    }
    bytes
}

/// The write that a cell's bytes are of.
///
/// # Errors
/// They are of no write of this cell.
pub(super) fn value_of(bytes: &[u8], cell: usize) -> Result<Value, String> {
    let value = bytes.first_chunk().map_or(0, |bytes| Value::from_le_bytes(*bytes));
    let is_whole = match value {
        0 => bytes.iter().all(|byte| *byte == 0),
        _ => bytes == content(value, cell, 1),
    };
    if is_whole {
        Ok(value)
    } else {
        Err(format!("cell {cell} holds a mixture: {:?}", &bytes[..24.min(bytes.len())]))
    }
}
