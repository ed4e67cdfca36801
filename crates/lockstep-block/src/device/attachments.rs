//! The device's writer: a state that every copy computes from the log alone.
//!
//! An attachment has an *epoch*. A client's coming and leaving are log entries, and each entry of writes names its epoch and
//! its number there. A copy takes writes of the present epoch, of the member that owns it, in the order of their numbers
//! without gaps; it ignores all others. So a deposed primary cannot write, and the primary may send again what may have been
//! lost.
//!
//! An attachment whose member has forgotten it stays [`Holder::Attached`]: it is *dirty*. Only a promotion ends it, because a
//! client that came back by itself might go on over writes that were lost.

use super::entry::Entry;
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::{MemberId, Uuid};

/// The owner of the present epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// Nobody: the last client left in order, or there was none. The plain name may attach.
    Nobody,
    /// This member, by an operator's command. No client has come yet.
    Promoted(MemberId),
    /// A client of this member.
    Attached {
        /// The member.
        member: MemberId,
        /// The client's address, for people.
        peer: String,
        /// The number of the next entry of writes.
        next: u64,
    },
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attachments {
    size: u64,
    epoch: u64,
    holder: Holder,
}

/// What an entry of the log does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Its writes belong to the device.
    Writes,
    /// A control entry with this token was accepted. The present epoch is in the state.
    Accepted(u64),
    /// A control entry with this token came too late, or from the wrong member.
    Refused(u64),
    /// Writes of an earlier epoch, of another member, or that are known already.
    Ignored,
    /// Writes whose predecessors are missing: their origin sends all of them again.
    Gap,
}

impl Default for Attachments {
    fn default() -> Attachments {
        Attachments { size: 0, epoch: 0, holder: Holder::Nobody }
    }
}

impl Attachments {
    /// The device's size; 0: it has none yet.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The present epoch; 0: there was none.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its owner.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes an entry of the log. `origin` is the member that made it.
    pub fn take(&mut self, origin: &MemberId, entry: &Entry) -> Effect {
        match entry {
            Entry::Writes { epoch, number, runs, .. } => {
                let Holder::Attached { member, next, .. } = &mut self.holder else { return Effect::Ignored };
                if *epoch != self.epoch || member != origin || number < next {
                    return Effect::Ignored;
                }
                if number > next {
                    return Effect::Gap;
                }
                if runs.iter().any(|run| run.end() > self.size) {
                    // No primary makes such an entry. Do not count it, so the attachment's later entries form a gap.
                    return Effect::Ignored;
                }
                *next += 1;
                Effect::Writes
            }
            Entry::Attach { before, peer, promoted, token } => {
                let accepted = match &self.holder {
                    Holder::Nobody => !promoted,
                    Holder::Promoted(member) => *promoted && member == origin,
                    Holder::Attached { .. } => false,
                };
                if !accepted || *before != self.epoch || self.size == 0 {
                    return Effect::Refused(*token);
                }
                if !promoted {
                    self.epoch += 1;
                }
                self.holder = Holder::Attached { member: *origin, peer: peer.clone(), next: 1 };
                Effect::Accepted(*token)
            }
            Entry::Promote { before, token } => {
                if *before != self.epoch || self.size == 0 {
                    return Effect::Refused(*token);
                }
                self.epoch += 1;
                self.holder = Holder::Promoted(*origin);
                Effect::Accepted(*token)
            }
            Entry::Detach { epoch, number, token } => {
                let accepted = match &self.holder {
                    Holder::Attached { member, next, .. } => {
                        *epoch == self.epoch && member == origin && number == next
                    }
                    _ => false,
                };
                if !accepted {
                    return Effect::Refused(*token);
                }
                self.holder = Holder::Nobody;
                Effect::Accepted(*token)
            }
            Entry::Resize { before, size, token } => {
                if *before != self.size || *size < self.size {
                    return Effect::Refused(*token);
                }
                self.size = *size;
                Effect::Accepted(*token)
            }
            // Nothing to the writer.
            Entry::Verify { .. } | Entry::Hashes { .. } | Entry::Compared(_) => Effect::Ignored,
        }
    }

    /// Writes it, for a file.
    pub fn encode(&self, w: &mut Writer) {
        let Attachments { size, epoch, holder } = self;
        w.u64(*size);
        w.u64(*epoch);
        match holder {
            Holder::Nobody => w.u8(0),
            Holder::Promoted(member) => {
                w.u8(1);
                w.raw(&member.0);
            }
            Holder::Attached { member, peer, next } => {
                w.u8(2);
                w.raw(&member.0);
                w.u64(*next);
                w.str(peer);
            }
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(r: &mut Reader) -> Result<Attachments, DecodeError> {
        let (size, epoch) = (r.u64()?, r.u64()?);
        let holder = match r.u8()? {
            0 => Holder::Nobody,
            1 => Holder::Promoted(Uuid(r.array()?)),
            2 => {
                let (member, next) = (Uuid(r.array()?), r.u64()?);
                let length = r.u32()? as usize;
                let peer = String::from_utf8(r.take(length)?.to_vec());
                Holder::Attached { member, peer: peer.map_err(|_| DecodeError::Invalid("peer"))?, next }
            }
            _ => return Err(DecodeError::Invalid("holder")),
        };
        Ok(Attachments { size, epoch, holder })
    }
}

#[cfg(test)]
mod tests {
    use super::super::extent_map::Run;
    use super::*;

    const N1: MemberId = Uuid([1; 16]);
    const N2: MemberId = Uuid([2; 16]);

    fn writes(epoch: u64, number: u64) -> Entry {
        Entry::Writes { epoch, number, clock: 0, runs: vec![Run::zeroes(0, 512, true)] }
    }

    fn attach(before: u64, promoted: bool) -> Entry {
        Entry::Attach { before, peer: "uid 0".into(), promoted, token: 5 }
    }

    fn device() -> Attachments {
        let mut state = Attachments::default();
        assert_eq!(state.take(&N1, &attach(0, false)), Effect::Refused(5), "it has no size");
        assert_eq!(state.take(&N1, &Entry::Resize { before: 0, size: 4096, token: 1 }), Effect::Accepted(1));
        state
    }

    #[test]
    fn writes_count_once_in_order_and_from_owner_only() {
        let mut state = device();
        assert_eq!(state.take(&N1, &writes(0, 1)), Effect::Ignored, "no attachment");
        assert_eq!(state.take(&N1, &attach(0, false)), Effect::Accepted(5));
        assert_eq!(state.take(&N1, &writes(1, 2)), Effect::Gap);
        assert_eq!(state.take(&N1, &writes(1, 1)), Effect::Writes);
        assert_eq!(state.take(&N1, &writes(1, 1)), Effect::Ignored, "sent again");
        assert_eq!(state.take(&N2, &writes(1, 2)), Effect::Ignored, "another member");
        assert_eq!(state.take(&N1, &writes(1, 2)), Effect::Writes);
        let beyond = Entry::Writes { epoch: 1, number: 3, clock: 0, runs: vec![Run::zeroes(4096, 1, true)] };
        assert_eq!(state.take(&N1, &beyond), Effect::Ignored);
    }

    #[test]
    fn only_one_of_two_clients_attaches() {
        let mut state = device();
        assert_eq!(state.take(&N1, &attach(0, false)), Effect::Accepted(5));
        assert_eq!(state.take(&N2, &attach(0, false)), Effect::Refused(5));
        assert_eq!(state.take(&N2, &attach(1, false)), Effect::Refused(5), "the first one is there");
    }

    #[test]
    fn clean_detach_frees_the_plain_name() {
        let mut state = device();
        state.take(&N1, &attach(0, false));
        state.take(&N1, &writes(1, 1));
        let detach = |number| Entry::Detach { epoch: 1, number, token: 6 };
        assert_eq!(state.take(&N1, &detach(1)), Effect::Refused(6), "it does not know all writes");
        assert_eq!(state.take(&N2, &detach(2)), Effect::Refused(6));
        assert_eq!(state.take(&N1, &detach(2)), Effect::Accepted(6));
        assert_eq!(state.take(&N1, &writes(1, 2)), Effect::Ignored);
        assert_eq!(state.take(&N2, &attach(1, false)), Effect::Accepted(5));
        assert_eq!(state.epoch(), 2);
    }

    #[test]
    fn promotion_deposes_owner_and_admits_its_epoch_only() {
        let mut state = device();
        state.take(&N1, &attach(0, false));
        state.take(&N1, &writes(1, 1));
        assert_eq!(state.take(&N2, &Entry::Promote { before: 0, token: 7 }), Effect::Refused(7));
        assert_eq!(state.take(&N2, &Entry::Promote { before: 1, token: 7 }), Effect::Accepted(7));
        assert_eq!(state.epoch(), 2);
        assert_eq!(state.take(&N1, &writes(1, 2)), Effect::Ignored, "deposed");
        assert_eq!(state.take(&N2, &attach(2, false)), Effect::Refused(5), "the plain name");
        assert_eq!(state.take(&N1, &attach(2, true)), Effect::Refused(5), "another member");
        assert_eq!(state.take(&N2, &attach(2, true)), Effect::Accepted(5));
        assert_eq!(state.epoch(), 2, "the epoch that was announced");
        assert_eq!(state.take(&N2, &writes(2, 1)), Effect::Writes);
    }

    #[test]
    fn device_grows_and_never_shrinks() {
        let mut state = device();
        assert_eq!(state.take(&N1, &Entry::Resize { before: 4096, size: 512, token: 1 }), Effect::Refused(1));
        assert_eq!(state.take(&N1, &Entry::Resize { before: 1, size: 8192, token: 1 }), Effect::Refused(1));
        assert_eq!(
            state.take(&N1, &Entry::Resize { before: 4096, size: 8192, token: 1 }),
            Effect::Accepted(1)
        );
        assert_eq!(state.size(), 8192);
    }

    #[test]
    fn state_round_trips() {
        let mut state = device();
        for entry in [attach(0, false), writes(1, 1), Entry::Promote { before: 1, token: 3 }] {
            state.take(&N1, &entry);
            let mut w = Writer::new();
            state.encode(&mut w);
            assert_eq!(Attachments::decode(&mut Reader::new(w.into_bytes())), Ok(state.clone()));
        }
    }
}
