//! In which order runs come, so that a machine that becomes faster or slower meanwhile favours nobody.

/// Each case `repeats` times, in alternating order: an early case of one repeat is late in the next one. Repeats are
/// counted from 1.
pub(super) fn there_and_back<T>(cases: &[T], repeats: usize) -> Vec<(usize, &T)> {
    let repeat = |repeat: usize| {
        let mut turn: Vec<(usize, &T)> = cases.iter().map(|case| (repeat, case)).collect();
        if repeat.is_multiple_of(2) {
            turn.reverse();
        }
        turn
    };
    (1..=repeats).flat_map(repeat).collect()
}

#[test]
fn even_repeats_go_back() {
    assert_eq!(
        there_and_back(&['a', 'b'], 3),
        [(1, &'a'), (1, &'b'), (2, &'b'), (2, &'a'), (3, &'a'), (3, &'b')]
    );
}
