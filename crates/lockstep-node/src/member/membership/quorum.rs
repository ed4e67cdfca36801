//! The majority, as this member has seen it: since when it is missing, and when it was last seen.

use lockstep_core::{MemberId, Micros};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Quorum {
    /// When this member last became Primary.
    primary_since: Option<Micros>,
    /// Since when there is no majority.
    lost_since: Option<Micros>,
    /// The disks for which this member stopped leading, and how long they had completed no write; until a leader is known.
    hung_disks: Vec<(MemberId, Micros)>,
    /// When a leader of the own log was last known, or a majority of its voters was connected.
    seen: Micros,
}

impl Quorum {
    /// This member has become Primary.
    pub(in crate::member) fn became_primary(&mut self, now: Micros) {
        self.primary_since = Some(now);
    }

    pub(in crate::member) fn primary_since(&self) -> Option<Micros> {
        self.primary_since
    }

    /// There is a majority.
    pub(in crate::member) fn present(&mut self) {
        self.lost_since = None;
        self.hung_disks.clear();
    }

    /// This member has stopped leading because these disks hang.
    pub(in crate::member) fn disks_hang(&mut self, disks: Vec<(MemberId, Micros)>) {
        self.hung_disks = disks;
    }

    /// The disks for which this member stopped leading, and how long they had completed no write.
    pub(in crate::member) fn hung_disks(&self) -> &[(MemberId, Micros)] {
        &self.hung_disks
    }

    /// There is no majority. Returns since when.
    pub(in crate::member) fn missing(&mut self, now: Micros) -> Micros {
        *self.lost_since.get_or_insert(now)
    }

    pub(in crate::member) fn lost_since(&self) -> Option<Micros> {
        self.lost_since
    }

    /// A leader of the own log is known, or a majority of its voters is connected; or a connect begins.
    pub(in crate::member) fn note_seen(&mut self, now: Micros) {
        self.seen = now;
    }

    /// How long ago the own log's members were last seen to be alive.
    pub(in crate::member) fn unseen_for(&self, now: Micros) -> Micros {
        now.saturating_sub(self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_of_majority_counts_from_first_notice() {
        let mut quorum = Quorum::default();
        quorum.note_seen(5);
        assert_eq!((quorum.missing(10), quorum.missing(20), quorum.lost_since()), (10, 10, Some(10)));
        quorum.present();
        assert_eq!((quorum.lost_since(), quorum.missing(30)), (None, 30));
        assert_eq!(quorum.unseen_for(30), 25);
        quorum.note_seen(28);
        assert_eq!(quorum.unseen_for(30), 2);
    }
}
