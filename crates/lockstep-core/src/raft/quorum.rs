//! Counting: the index that a majority has reached.

use crate::types::Index;

/// The highest value that at least `majority` of these reach.
pub(super) fn reached_by(values: &mut [Index], majority: usize) -> Index {
    if majority == 0 || majority > values.len() {
        return 0;
    }
    values.sort_unstable_by(|a, b| b.cmp(a));
    values[majority - 1]
}

#[cfg(test)]
mod tests {
    use super::reached_by;
    use proptest::prelude::*;

    proptest! {
        /// Against the definition: the highest of all indices that a majority has reached.
        #[test]
        fn commit_index_is_highest_reached_by_majority(
            mut held in prop::collection::vec(prop_oneof![0..6u64, any::<u64>()], 1..10)
        ) {
            let majority = held.len() / 2 + 1;
            let candidates = held.iter().copied().chain([0]);
            let slow = candidates.filter(|at| held.iter().filter(|h| *h >= at).count() >= majority).max();
            prop_assert_eq!(Some(reached_by(&mut held, majority)), slow);
        }
    }

    #[test]
    fn impossible_majority_reaches_nothing() {
        assert_eq!(reached_by(&mut [], 1), 0);
        assert_eq!(reached_by(&mut [7], 2), 0);
        assert_eq!(reached_by(&mut [7], 0), 0);
    }
}
