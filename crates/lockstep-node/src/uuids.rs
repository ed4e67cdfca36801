//! New identities.

use crate::api::NodeError;
use lockstep_core::Uuid;
use std::time::{SystemTime, UNIX_EPOCH};

/// A UUID of random bits (version 4).
///
/// # Errors
/// [`NodeError::Setup`]: the kernel gives no random numbers.
pub fn random_uuid() -> Result<Uuid, NodeError> {
    let mut raw = [0u8; 16];
    let mut have = 0;
    while have < raw.len() {
        have += rustix::rand::getrandom(&mut raw[have..], rustix::rand::GetRandomFlags::empty())
            .map_err(|e| NodeError::Setup(format!("the kernel gives no random numbers: {e}")))?;
    }
    // Version 4, as a UUID's reader expects.
    raw[6] = raw[6] & 0x0f | 0x40;
    raw[8] = raw[8] & 0x3f | 0x80;
    Ok(Uuid(raw))
}

/// A UUID that sorts by the time of its making (version 7).
///
/// # Errors
/// As [`random_uuid`].
pub(crate) fn timed_uuid() -> Result<Uuid, NodeError> {
    let mut uuid = random_uuid()?;
    let ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    uuid.0[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    uuid.0[6] = uuid.0[6] & 0x0f | 0x70;
    Ok(uuid)
}
