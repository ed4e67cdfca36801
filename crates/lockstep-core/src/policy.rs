//! Whom a commit waits for.

use crate::codec::{DecodeError, Reader, Writer};

/// `commit.policy`. Only [`Policy::Quorum`] can be chosen so far; the entry format has room for the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Policy {
    /// A majority of the voters of that time has persisted it.
    #[default]
    Quorum = 2,
}

impl Policy {
    /// Its name in options and status.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Quorum => "quorum",
        }
    }

    /// Writes it.
    pub fn encode(self, w: &mut Writer) {
        w.u8(self as u8);
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] for a policy that this version does not know.
    pub fn decode(r: &mut Reader) -> Result<Policy, DecodeError> {
        match r.u8()? {
            2 => Ok(Policy::Quorum),
            _ => Err(DecodeError::Invalid("policy")),
        }
    }
}
