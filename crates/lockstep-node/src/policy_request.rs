//! A requested change of the commit policy: only the named settings. The leader takes the other settings from the policy
//! in force when it appends the change, so that two concurrent changes both take effect.

use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::policy::{Policy, PolicyKind};

/// The named settings, and their new values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PolicyRequest {
    /// A bit for each setting, in the order of [`Policy`]'s fields.
    named: u8,
    /// The new values. Settings that are not named have their defaults.
    to: Policy,
}

/// A bit for each setting.
const ALL: u8 = 0b11_1111;

/// The named settings of `from`, the others as in `base`.
fn mixed(named: u8, from: &Policy, base: &Policy) -> Policy {
    let of = |bit: u8| if named & 1 << bit != 0 { from } else { base };
    Policy {
        kind: of(0).kind,
        acks: of(1).acks,
        zone_acks: of(2).zone_acks,
        on_receive: of(3).on_receive,
        timeout: of(4).timeout,
        max_at_risk: of(5).max_at_risk,
    }
}

/// The settings that are equal in both policies.
fn in_common(a: &Policy, b: &Policy) -> u8 {
    (0..6).filter(|bit| mixed(1 << bit, a, b) == *b).fold(0, |named, bit| named | 1 << bit)
}

impl PolicyRequest {
    /// The request for this change. It names the settings whose new value does not depend on the old one.
    pub(crate) fn of(change: impl Fn(&mut Policy)) -> PolicyRequest {
        let mut one = Policy::default();
        let mut other = Policy {
            kind: PolicyKind::All,
            acks: one.acks + 1,
            zone_acks: one.zone_acks + 1,
            on_receive: !one.on_receive,
            timeout: one.timeout + 1,
            max_at_risk: one.max_at_risk + 1,
        };
        change(&mut one);
        change(&mut other);
        let named = in_common(&one, &other);
        PolicyRequest { named, to: mixed(named, &one, &Policy::default()) }
    }

    /// The policy after this change.
    pub(crate) fn on(&self, policy: &Policy) -> Policy {
        mixed(self.named, &self.to, policy)
    }

    /// This change, then a later one.
    pub(crate) fn and(&self, later: &PolicyRequest) -> PolicyRequest {
        PolicyRequest { named: self.named | later.named, to: later.on(&self.to) }
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u8(self.named);
        self.to.encode(w);
    }

    /// # Errors
    /// [`DecodeError::Invalid`] for settings that this version does not know.
    pub(crate) fn decode(r: &mut Reader) -> Result<PolicyRequest, DecodeError> {
        let request = PolicyRequest { named: r.u8()?, to: Policy::decode(r)? };
        if request.named & !ALL != 0 || request.to != request.on(&Policy::default()) {
            return Err(DecodeError::Invalid("settings of a policy"));
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_request_changes_only_named_settings() {
        let base = Policy { acks: 3, timeout: 7, ..Policy::of(PolicyKind::Semisync) };
        assert_eq!(PolicyRequest::of(|policy| policy.acks = 2).on(&base), Policy { acks: 2, ..base });
        // Also if the new value is the default.
        let back = PolicyRequest::of(|policy| (policy.kind, policy.acks) = (PolicyKind::Quorum, 1));
        assert_eq!(back.on(&base), Policy { kind: PolicyKind::Quorum, acks: 1, ..base });
        let all = PolicyRequest::of(|policy| *policy = base);
        assert_eq!((all.named, all.on(&Policy::default())), (ALL, base));
        let both = PolicyRequest::of(|policy| policy.acks = 9).and(&back);
        assert_eq!(both.on(&base), back.on(&base));
        let nothing = PolicyRequest::of(|_| {});
        assert_eq!((nothing.named, nothing.on(&base)), (0, base));
    }

    #[test]
    fn settings_that_are_not_known_are_refused() {
        let read = |bytes: Vec<u8>| PolicyRequest::decode(&mut Reader::new(bytes.into()));
        assert_eq!(read(vec![1, 3]), Ok(PolicyRequest::of(|policy| policy.kind = PolicyKind::All)));
        assert!(read(vec![0x41, 3]).is_err(), "a setting of later");
        assert!(read(vec![2, 3]).is_err(), "one that is not named");
    }
}
