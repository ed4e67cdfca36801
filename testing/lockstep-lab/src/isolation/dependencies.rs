//! The dependencies between transactions: ww, wr and rw.

use super::Id;
use super::versions::{Read, Versions};

/// The kind of a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The second transaction wrote the next version.
    Ww,
    /// The second transaction read the version that the first one wrote.
    Wr,
    /// The second transaction wrote the first version that the first one did not see.
    Rw,
}

/// One dependency: `to` depends on `from`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dependency {
    pub(super) from: Id,
    pub(super) to: Id,
    pub(super) kind: Kind,
    pub(super) key: u64,
    /// The element that `to` wrote, or, for wr, that it read.
    pub(super) element: u64,
}

/// All dependencies of a history.
pub(super) struct Dependencies {
    all: Vec<Dependency>,
}

impl Dependencies {
    pub(super) fn new(versions: &Versions<'_>, reads: &[Read]) -> Dependencies {
        let mut all = Vec::new();
        let mut add = |from: Option<Id>, to: Option<Id>, kind, key, element| {
            if let (Some(from), Some(to)) = (from, to)
                && from != to
            {
                all.push(Dependency { from, to, kind, key, element });
            }
        };
        for (key, list) in versions.lists() {
            for pair in list.windows(2) {
                add(versions.writer(pair[0]), versions.writer(pair[1]), Kind::Ww, *key, pair[1]);
            }
        }
        for read in reads {
            let list = versions.list(read.key);
            if let Some(latest) = read.seen.checked_sub(1).map(|at| list[at]) {
                add(versions.writer(latest), Some(read.by), Kind::Wr, read.key, latest);
            }
            if let Some(next) = list.get(read.seen) {
                add(Some(read.by), versions.writer(*next), Kind::Rw, read.key, *next);
            }
        }
        Dependencies { all }
    }

    pub(super) fn all(&self) -> &[Dependency] {
        &self.all
    }
}
