//! Runs each scenario against Galera's library, to see that the scenario is right, and against ours.

#![allow(dead_code, unused_imports, unused_macros, unreachable_pub)]

pub use lockstep_host::harness::{CallError, CallResult, Cluster, Kind, Member};
pub use serde_json::{Value, json};
use std::path::Path;
pub use std::time::{Duration, Instant};

/// The host's binary.
pub fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_lockstep-host"))
}

/// Runs `scenario` on a cluster of `count` members, none of them started, and checks at the end that those that
/// run agree and saw nothing forbidden. Without the provider's library it says so and does nothing, or fails where
/// `LOCKSTEP_HOST_REQUIRE` is set.
pub fn run(kind: Kind, name: &str, count: usize, scenario: fn(&mut Cluster)) {
    let library = match kind.library(binary()) {
        Ok(library) => library,
        Err(why) => {
            let must = std::env::var_os("LOCKSTEP_HOST_REQUIRE").is_some();
            assert!(!must, "{name} with {kind:?}: {why}, and LOCKSTEP_HOST_REQUIRE is set");
            eprintln!("skipped {name} with {kind:?}: {why}");
            return;
        }
    };
    let attempt = || {
        let mut cluster = Cluster::prepare(kind, &library, binary(), name, count).unwrap();
        scenario(&mut cluster);
        if let Err(why) = cluster.agree() {
            panic!("at the end of {name}: {why}");
        }
    };
    // Galera's library is here to show that a scenario can be passed. It has races of its own: two members that leave in
    // one moment may cost the third its majority. So once in three is enough. Ours has one attempt.
    if kind == Kind::Galera {
        for n in 1..3 {
            if std::panic::catch_unwind(attempt).is_ok() {
                return;
            }
            eprintln!("{name} with Galera's library: attempt {n} failed, once more");
        }
    }
    attempt();
}

/// One test a scenario and provider: `galera::<name>`, `lockstep::<name>`.
macro_rules! scenarios {
    ($($name:ident: $count:expr,)+) => {
        mod galera {
            $(#[test] fn $name() {
                crate::common::run(crate::common::Kind::Galera, stringify!($name), $count, super::$name);
            })+
        }
        mod lockstep {
            $(#[test] fn $name() {
                crate::common::run(crate::common::Kind::Lockstep, stringify!($name), $count, super::$name);
            })+
        }
    };
}
pub(crate) use scenarios;

/// The refusal's code, or the unexpected success.
pub fn code(result: CallResult) -> String {
    match result {
        Ok(value) => format!("ok: {value}"),
        Err(error) => error.code().to_owned(),
    }
}
