//! The certification index: the last use of each key.
//!
//! For each key and type the index keeps the last write-set that passed, and the last one of any *other* source. No
//! verdict on a later write-set depends on more. One source uses most keys, in one way: these take a narrow slot, the
//! others a wide one.
//!
//! A use at or below the trim mark counts as absent: rule 1 fails every write-set that would conflict with it, and every
//! write-set depends on the mark anyway. So the time of its removal does not matter, and [`Index::forget`] works in small
//! steps. A mark after a bulk load frees millions of keys, and the certifying thread also sends the leader's heartbeats.

use super::slots::Slots;
use super::table::Table;
use crate::types::{Seqno, ViewUuid};
use crate::writeset::{Key, KeyType, WriteSet};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// How an earlier and a later use of a key meet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Meeting {
    /// They do not.
    Nothing,
    /// The earlier one must have been applied first.
    Parent,
    /// The later one fails, if its origin had not seen the earlier one, and they are of different sources; else as
    /// [`Meeting::Parent`].
    Conflict,
}

/// The table of `certify`.
pub const fn meeting(earlier: KeyType, later: KeyType) -> Meeting {
    use Meeting::*;
    // Invariant: each row is at least the one above it, cell by cell; `Index::insert` relies on it.
    const TABLE: [[Meeting; 4]; 4] = [
        [Nothing, Nothing, Parent, Parent],
        [Nothing, Nothing, Parent, Conflict],
        [Parent, Parent, Conflict, Conflict],
        [Conflict, Conflict, Conflict, Conflict],
    ];
    TABLE[earlier as usize][later as usize]
}

/// A source by a small number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source(u32);

impl Source {
    /// The source of statements in total order: another one than that of any member.
    pub(super) const NOBODY: Source = Source(u32::MAX);
}

/// Below every seqno.
const NONE: Seqno = Seqno::MIN;

/// The earlier uses that a key conflicts with or depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    /// The highest parent, or [`NONE`].
    pub(super) parent: Seqno,
    /// The highest conflict.
    pub(super) conflict: Option<Seqno>,
}

impl Met {
    const NOTHING: Met = Met { parent: NONE, conflict: None };

    fn add(&mut self, meeting: Meeting, last: &Use, source: Source, last_seen: Seqno) {
        if meeting == Meeting::Nothing {
            return;
        }
        self.parent = self.parent.max(last.seqno);
        if meeting == Meeting::Conflict {
            let foreign = if last.source == source { last.other } else { last.seqno };
            if foreign > last_seen {
                self.conflict = self.conflict.max(Some(foreign));
            }
        }
    }
}

/// The last use of a key in one way.
#[derive(Clone, Copy, Debug)]
struct Use {
    seqno: Seqno,
    source: Source,
    /// The last one by any source but `source`. Invariant: below `seqno`.
    other: Seqno,
}

impl Use {
    const NONE: Use = Use { seqno: NONE, source: Source::NOBODY, other: NONE };

    fn note(&mut self, source: Source, seqno: Seqno) {
        if self.source != source {
            // The last use so far is the highest of all, and it is foreign to the new one.
            self.other = self.seqno;
            self.source = source;
        }
        self.seqno = seqno;
    }
}

/// A key's uses, by [`KeyType`].
#[derive(Clone, Copy, Debug)]
struct Wide([Use; 4]);

/// The entry of a key in the table.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The highest seqno of all its uses.
    seqno: Seqno,
    /// Narrow: the only use's source. Wide: where in `Index::wide`.
    source_or_place: u32,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// One use, or one that says all that the others would.
    Narrow(KeyType),
    Wide,
}

#[derive(Default)]
pub(super) struct Index {
    slots: Table<Slot>,
    wide: Slots<Wide>,
    /// The root's uses, but that every write-set shares it.
    root: Option<Wide>,
    /// The hashes of each write-set that has any, in order: what to look at when the window has moved.
    window: VecDeque<(Seqno, Vec<u64>)>,
    /// The trim mark: up to there `window` is to be forgotten.
    trim: Seqno,
    #[cfg(test)]
    pub(super) never_forgets: bool,
    /// By origin and epoch.
    sources: FxHashMap<(ViewUuid, u16), Source>,
    /// The last seqno of each, by its number; [`NONE`] where the number is free.
    source_last: Vec<Seqno>,
    source_free: Vec<u32>,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index")
            .field("keys", &self.slots.len())
            .field("wide", &self.wide.len())
            .field("window", &self.window.len())
            .finish_non_exhaustive()
    }
}

impl Index {
    /// How many keys it holds.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of a source, which has made the entry `seqno`.
    ///
    /// Numbers of sources with nothing above the trim mark are given to others. What the index still has of them is
    /// below the mark, where it does not matter whose it was.
    pub(super) fn source(&mut self, uuid: ViewUuid, epoch: u16, seqno: Seqno) -> Source {
        let source = match self.sources.get(&(uuid, epoch)) {
            Some(source) => *source,
            None => {
                let number = self.source_free.pop().unwrap_or_else(|| {
                    self.source_last.push(NONE);
                    (self.source_last.len() - 1) as u32
                });
                self.sources.insert((uuid, epoch), Source(number));
                Source(number)
            }
        };
        self.source_last[source.0 as usize] = seqno;
        source
    }

    /// What this key of a write-set that had seen `last_seen` meets.
    pub(super) fn check(&self, key: &Key, source: Source, last_seen: Seqno) -> Met {
        let Some(slot) = self.slots.get(key.hash) else { return Met::NOTHING };
        match slot.form {
            Form::Narrow(kind) => {
                let mut met = Met::NOTHING;
                let one = Use { seqno: slot.seqno, source: Source(slot.source_or_place), other: NONE };
                met.add(meeting(kind, key.kind), &one, source, last_seen);
                met
            }
            Form::Wide => self.wide[slot.source_or_place].check(key.kind, source, last_seen),
        }
    }

    /// What the root that every write-set shares meets.
    pub(super) fn root_meets(&self, source: Source, last_seen: Seqno) -> Met {
        self.root.as_ref().map_or(Met::NOTHING, |root| root.check(KeyType::Shared, source, last_seen))
    }

    /// Conflicts and dependencies of an explicit root key. `shared` is the last write-set that passed.
    pub(super) fn root_checked(&self, kind: KeyType, source: Source, last_seen: Seqno, shared: Seqno) -> Met {
        let mut met = self.root.as_ref().map_or(Met::NOTHING, |root| root.check(kind, source, last_seen));
        let implied = Use { seqno: shared, source, other: NONE };
        met.add(meeting(KeyType::Shared, kind), &implied, source, last_seen);
        met
    }

    /// A write-set has passed: its keys are the last now.
    pub(super) fn insert(&mut self, set: &WriteSet, source: Source, seqno: Seqno) {
        let mut hashes = Vec::with_capacity(set.keys().len());
        for key in set.keys() {
            if key.hash == crate::writeset::ROOT {
                self.root.get_or_insert(Wide([Use::NONE; 4])).0[key.kind as usize].note(source, seqno);
                continue;
            }
            self.note(&key, source, seqno);
            hashes.push(key.hash);
        }
        // Remove as many as are added, or the backlog would grow without a bound under load.
        self.forget(hashes.len());
        if !hashes.is_empty() {
            self.window.push_back((seqno, hashes));
        }
    }

    fn note(&mut self, key: &Key, source: Source, seqno: Seqno) {
        let fresh = Slot { seqno, source_or_place: source.0, form: Form::Narrow(key.kind) };
        let Some(slot) = self.slots.held_or_put(key.hash, fresh) else { return };
        match slot.form {
            Form::Narrow(kind) => {
                // The new use may replace the old one in two cases. In the first, the old one lies below the trim mark. In
                // the second, the new one's row of the table is no weaker, and its own source did not conflict with the
                // old one either. A shared use conflicts with no source.
                let same =
                    slot.source_or_place == source.0 || source == Source::NOBODY || kind == KeyType::Shared;
                if slot.seqno <= self.trim || (key.kind >= kind && same) {
                    *slot = fresh;
                    return;
                }
                let mut uses = [Use::NONE; 4];
                uses[kind as usize] =
                    Use { seqno: slot.seqno, source: Source(slot.source_or_place), other: NONE };
                uses[key.kind as usize].note(source, seqno);
                let place = self.wide.put(Wide(uses));
                *slot = Slot { seqno, source_or_place: place, form: Form::Wide };
            }
            Form::Wide => {
                self.wide[slot.source_or_place].0[key.kind as usize].note(source, seqno);
                slot.seqno = seqno;
            }
        }
    }

    /// Sets the mark at or below which [`Index::forget`] removes keys.
    pub(super) fn trim(&mut self, trim: Seqno) {
        self.trim = trim;
        if self.root.as_ref().is_some_and(|root| root.0.iter().all(|last| last.seqno <= trim)) {
            self.root = None;
        }
        let Index { sources, source_last, source_free, .. } = self;
        sources.retain(|_, source| {
            let last = &mut source_last[source.0 as usize];
            let keep = *last > trim;
            if !keep {
                *last = NONE;
                source_free.push(source.0);
            }
            keep
        });
    }

    /// Whether there is something that [`Index::forget`] would look at.
    pub(super) fn is_to_forget(&self) -> bool {
        self.window.front().is_some_and(|(seqno, _)| *seqno <= self.trim)
    }

    /// Removes keys at or below the mark; looks at no more than `most`.
    pub(super) fn forget(&mut self, most: usize) {
        #[cfg(test)]
        if self.never_forgets {
            return;
        }
        let mut looked = 0;
        while looked < most
            && let Some((seqno, hashes)) = self.window.front_mut()
            && *seqno <= self.trim
        {
            // From its end, for that is cheap; within one write-set the order does not matter.
            let some = match hashes.len().checked_sub(most - looked) {
                None | Some(0) => std::mem::take(hashes),
                Some(rest) => hashes.split_off(rest),
            };
            if hashes.is_empty() {
                self.window.pop_front();
            }
            looked += some.len();
            for hash in some {
                self.forget_key(hash);
            }
        }
        if looked > 0 {
            self.wide.clear_if_unused();
        }
    }

    /// Unless it has been used above the mark, too.
    fn forget_key(&mut self, hash: u64) {
        // Gone already where a key occurs in several of the write-sets.
        let Some(slot) = self.slots.get_mut(hash) else { return };
        if slot.seqno <= self.trim {
            if slot.form == Form::Wide {
                self.wide.give_back(slot.source_or_place);
            }
            self.slots.remove(hash);
        } else if slot.form == Form::Wide
            && let Some((kind, source)) = self.wide[slot.source_or_place].only(self.trim)
        {
            self.wide.give_back(slot.source_or_place);
            *slot = Slot { seqno: slot.seqno, source_or_place: source.0, form: Form::Narrow(kind) };
        }
    }
}

impl Wide {
    fn check(&self, kind: KeyType, source: Source, last_seen: Seqno) -> Met {
        let mut met = Met::NOTHING;
        for earlier in KeyType::ALL {
            met.add(meeting(earlier, kind), &self.0[earlier as usize], source, last_seen);
        }
        met
    }

    /// The one use above the mark, if there is but one and no other source's besides.
    fn only(&self, trim: Seqno) -> Option<(KeyType, Source)> {
        let mut live = KeyType::ALL.into_iter().filter(|kind| self.0[*kind as usize].seqno > trim);
        let kind = live.next()?;
        let last = &self.0[kind as usize];
        (live.next().is_none() && last.other <= trim).then_some((kind, last.source))
    }
}

#[cfg(test)]
impl Index {
    /// Nothing is left of anything.
    pub(super) fn is_spotless(&self) -> bool {
        self.slots.is_empty()
            && self.wide.len() == 0
            && self.root.is_none()
            && self.window.is_empty()
            && self.sources.is_empty()
            && self.source_free.len() == self.source_last.len()
    }

    /// How many numbers of sources were ever in use at the same time.
    pub(super) fn source_numbers(&self) -> usize {
        self.source_last.len()
    }
}
