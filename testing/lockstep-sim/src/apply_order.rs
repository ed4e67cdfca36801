//! Whether a server may rely on `depends_on`: a write-set waits for everything that it meets, of all that this process has
//! been given.

use crate::history::{Check, hold};
use crate::reference::is_alone;
use lockstep_core::certify::{Meeting, meeting};
use lockstep_core::writeset::KeyType;
use lockstep_core::{Seqno, ViewUuid};
use lockstep_node::Ordered;
use rustc_hash::FxHashMap;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ApplyOrder {
    /// The last use of each key, by kind.
    keys: FxHashMap<u64, [Seqno; KeyType::ALL.len()]>,
    /// The last fragment of each streaming transaction.
    streams: FxHashMap<(ViewUuid, u64), Seqno>,
    /// The last entry that nothing may be applied beside.
    alone: Seqno,
    /// The last entry that changes anything.
    last: Seqno,
}

impl ApplyOrder {
    pub(crate) fn view(&mut self, seqno: Seqno) {
        (self.alone, self.last) = (seqno, seqno);
    }

    /// A write-set is delivered.
    pub(crate) fn check(&mut self, name: &dyn std::fmt::Display, ordered: &Ordered) -> Check {
        let Ordered { seqno, depends_on, pass, kind, ref writeset, .. } = *ordered;
        hold!(
            depends_on < seqno,
            "what meets is applied in order",
            "{name}: {seqno} depends on {depends_on}"
        );
        if !pass {
            return Ok(());
        }
        let stream = (writeset.meta.source, writeset.meta.trx);
        let mut needs = self.alone.max(self.streams.get(&stream).copied().unwrap_or(0));
        if is_alone(kind, writeset) {
            (needs, self.alone) = (self.last, seqno);
        }
        self.last = seqno;
        self.streams.insert(stream, seqno);
        for key in writeset.keys() {
            let uses = self.keys.entry(key.hash).or_default();
            for (earlier, used) in KeyType::ALL.iter().zip(&*uses) {
                if *used < seqno && meeting(*earlier, key.kind) != Meeting::Nothing {
                    needs = needs.max(*used);
                }
            }
            uses[key.kind as usize] = seqno;
        }
        hold!(
            needs <= depends_on,
            "what meets is applied in order",
            "{name} may apply seqno {seqno} once {depends_on} has finished, and it meets {needs}"
        );
        Ok(())
    }
}
