//! `commit.*` and `async.*`: the options that are the cluster's. They are read from the configuration where a cluster is
//! founded; afterwards the log says what holds, and these rows show it.

use super::Options;
use super::edit::Change;
use lockstep_core::Micros;
use lockstep_core::policy::{Policy, PolicyKind};

/// A change of policy: it names settings, and does not mind what the others are.
pub type PolicyChange = Box<dyn Fn(&mut Policy) + Send>;

impl Options {
    /// The commit policy that they describe.
    pub fn policy(&self) -> Policy {
        Policy {
            kind: PolicyKind::of_name(&self.text("commit.policy").to_ascii_lowercase()).unwrap_or_default(),
            acks: u8::try_from(self.int("commit.acks")).unwrap_or(u8::MAX),
            zone_acks: u8::try_from(self.int("commit.zone_acks")).unwrap_or(u8::MAX),
            on_receive: self.text("commit.ack_on").eq_ignore_ascii_case("receive"),
            timeout: Micros::try_from(self.time("commit.timeout").as_micros()).unwrap_or(Micros::MAX),
            max_at_risk: self.int("async.max_at_risk").unsigned_abs(),
        }
    }

    /// Shows the cluster's policy from now on.
    pub fn adopt_policy(&mut self, policy: &Policy) {
        if self.policy() == *policy {
            return;
        }
        let Policy { kind, acks, zone_acks, on_receive: _, timeout, max_at_risk } = *policy;
        let time = format!("PT{}.{:06}S", timeout / 1_000_000, timeout % 1_000_000);
        let time = if timeout % 1_000_000 == 0 { format!("PT{}S", timeout / 1_000_000) } else { time };
        self.hold("commit.policy", kind.name());
        self.hold("commit.acks", &acks.to_string());
        self.hold("commit.zone_acks", &zone_acks.to_string());
        self.hold("commit.ack_on", policy.ack_on());
        self.hold("commit.timeout", &time);
        self.hold("async.max_at_risk", &max_at_risk.to_string());
    }

    /// What these changes, which have been made, mean for the policy; `None` where they mean nothing.
    pub fn policy_change(&self, changes: &[Change]) -> Option<PolicyChange> {
        let wanted = self.policy();
        let names: Vec<&'static str> = changes.iter().map(|change| change.name).collect();
        if !names.iter().any(|name| super::edit::find(name).is_ok_and(|row| row.is_of_policy())) {
            return None;
        }
        Some(Box::new(move |policy: &mut Policy| {
            for name in &names {
                match *name {
                    "commit.policy" => policy.kind = wanted.kind,
                    "commit.acks" => policy.acks = wanted.acks,
                    "commit.zone_acks" => policy.zone_acks = wanted.zone_acks,
                    "commit.ack_on" => policy.on_receive = wanted.on_receive,
                    "commit.timeout" => policy.timeout = wanted.timeout,
                    "async.max_at_risk" => policy.max_at_risk = wanted.max_at_risk,
                    _ => {}
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_show_cluster_policy() {
        let mut options = Options::parse("commit.policy=All; commit.acks=2; commit.timeout=1500ms").unwrap();
        let policy = options.policy();
        assert_eq!((policy.kind, policy.acks, policy.timeout), (PolicyKind::All, 2, 1_500_000));
        assert_eq!(Options::default().policy(), Policy::default(), "the defaults are the core's");

        let other = Policy {
            kind: PolicyKind::Semisync,
            acks: 3,
            zone_acks: 1,
            on_receive: true,
            timeout: 250_000,
            max_at_risk: 77,
        };
        options.adopt_policy(&other);
        assert_eq!(options.policy(), other);
        assert!(options.get_all().contains("commit.policy = semisync; commit.timeout = PT0.250000S; "));

        // One option is changed, the others stay the cluster's.
        let changes = options.set("commit.policy=all", true).unwrap();
        let mut now = Policy { acks: 9, ..other };
        options.policy_change(&changes).unwrap()(&mut now);
        assert_eq!(now, Policy { kind: PolicyKind::All, acks: 9, ..other });
        let changes = options.set("debug=yes", true).unwrap();
        assert!(options.policy_change(&changes).is_none());
    }
}
