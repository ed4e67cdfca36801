//! The search for an injected fault.

use crate::{Plant, Settings, simulate};

/// Looks for an injected fault: the first seed that finds it, with its violation; `Err`: how many seeds did not. A seed
/// that violates a rule without the fault as well does not count.
pub fn hunt(plant: &Plant, promises: bool) -> Result<(u64, String), u64> {
    let seeds = if promises { plant.seeds } else { plant.by_outcomes };
    for seed in 1..=seeds {
        let clean = Settings { world: plant.world(promises), promises, ..Settings::seed(seed) };
        let Some(violation) = simulate(Settings { mutation: Some(plant.fault), ..clean }).violation else {
            continue;
        };
        if simulate(clean).violation.is_none() {
            return Ok((seed, violation));
        }
    }
    Err(seeds)
}
