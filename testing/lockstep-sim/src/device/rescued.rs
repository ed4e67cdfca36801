//! Entries that were acknowledged under a weak policy: each is in the log, or in a rescue file of a member that had it. Only with
//! such an entry may an epoch lose a flush.

use crate::history::{Check, Violation, hold};
use crate::trace::hash_bytes;
use bytes::Bytes;
use lockstep_block::device::NoticeCall;
use lockstep_core::Entry;
use lockstep_core::writeset::WriteSet;
use lockstep_log::{MemDisk, Replay, read_rescue, rescue_number};
use lockstep_node::Notice;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The hash of an entry of the device.
type Hash = u64;

fn hash(payload: &[u8]) -> Hash {
    hash_bytes(7, payload)
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    /// With their epochs.
    entries: Arc<Mutex<BTreeMap<Hash, u64>>>,
    committed: BTreeSet<Hash>,
}

impl Acknowledged {
    /// Passes a notice on, and remembers an acknowledgement.
    pub(super) fn watch(&self, payload: &Bytes, notice: NoticeCall) -> lockstep_node::NoticeCall {
        let (entries, hash) = (self.entries.clone(), hash(payload));
        let epoch = match lockstep_block::device::entry::Entry::decode(payload) {
            Ok(lockstep_block::device::entry::Entry::Writes { epoch, .. }) => epoch,
            _ => 0,
        };
        Box::new(move |said| {
            notice(match said {
                Notice::Acknowledged { after } => {
                    entries.lock().unwrap_or_else(PoisonError::into_inner).insert(hash, epoch);
                    lockstep_block::device::Notice::Acknowledged { after }
                }
                Notice::Lost => lockstep_block::device::Notice::Lost,
            });
        })
    }

    /// The log has an entry.
    pub(super) fn commits(&mut self, payload: &[u8]) {
        self.committed.insert(hash(payload));
    }

    /// All members are well: nothing that was acknowledged is gone. `lost`: epochs that have lost a flush. Returns how many
    /// entries only rescue files have.
    pub(super) fn check<'a>(
        &mut self,
        disks: impl Iterator<Item = &'a MemDisk>,
        lost: &BTreeSet<u64>,
    ) -> Result<u64, Violation> {
        let mut rescued = BTreeSet::new();
        for disk in disks {
            read(disk, &mut rescued)?;
        }
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let is_cut = |(hash, _): &(&Hash, &u64)| !self.committed.contains(hash);
        let cut: BTreeMap<Hash, u64> =
            entries.iter().filter(is_cut).map(|(hash, epoch)| (*hash, *epoch)).collect();
        let gone = cut.keys().filter(|hash| !rescued.contains(hash)).count();
        hold!(
            gone == 0,
            "what is cut from the log is kept in a rescue file",
            "{gone} of {} acknowledged entries are nowhere; {} are in rescue files",
            cut.len(),
            rescued.len()
        );
        let without = lost.iter().find(|epoch| !cut.values().any(|one| one == *epoch));
        hold!(
            without.is_none(),
            "a flush is lost only with a tail of the log",
            "epoch {without:?} has lost a flush, and no entry of it was cut"
        );
        Ok(cut.len() as u64)
    }
}

/// Adds the entries in the rescue files on a disk.
fn read(disk: &MemDisk, rescued: &mut BTreeSet<Hash>) -> Check {
    for name in disk.names().into_iter().filter(|name| rescue_number(name).is_some()) {
        let mut visitor = |replay: Replay| {
            if let Replay::Record(record) = replay {
                let entry = Entry::decode_body(record.index, record.term, record.body);
                let payload = entry.map_err(|error| error.to_string())?.payload();
                if let Ok(writeset) = WriteSet::parse(&payload) {
                    rescued.insert(hash(&writeset.data));
                }
            }
            Ok(())
        };
        read_rescue(disk, &name, &mut visitor).map_err(|error| Violation {
            rule: "a rescue file can be read",
            what: format!("{name}: {error}"),
        })?;
    }
    Ok(())
}
