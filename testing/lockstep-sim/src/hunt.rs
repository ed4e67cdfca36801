//! The search for an injected fault.

use crate::{Plant, Settings, simulate};

/// Looks for an injected fault: the first seed that finds it, with its violation; `Err`: how many seeds did not.
pub fn hunt(plant: &Plant, promises: bool) -> Result<(u64, String), u64> {
    let seeds = if promises { plant.seeds } else { plant.by_outcomes };
    let world = plant.world(promises);
    for seed in 1..=seeds {
        let settings = Settings { mutation: Some(plant.fault), world, promises, ..Settings::seed(seed) };
        if let Some(violation) = simulate(settings).violation {
            return Ok((seed, violation));
        }
    }
    Err(seeds)
}
