//! What a Galera user does every day, on real servers.
//!
//! The same tests run against either provider, so that Galera's can show that a test is right:
//! `LOCKSTEP_TEST_PROVIDER=lockstep` (the default: `target/release/liblockstep.so`), `=galera`, or a path.
//! One cluster exists at a time. Tests of `daily` and `rejoin` share theirs; a test that leaves it broken makes the
//! next one start afresh. Names sort so that sharing is by neighbours: run with `--test-threads=1`.
//! `make servers` (`scripts/servers.sh`) runs two such processes side by side, but for the tests that measure time.

mod allow;
mod applying;
mod arbitrator;
mod archive;
mod awaited;
mod binlog;
mod block;
mod branch;
mod cdc;
mod chaos;
mod consumers;
mod daily;
mod damage;
mod ddl;
mod disk;
mod distance;
mod failback;
mod failover;
mod fixture;
mod flush;
mod galera;
mod ingest;
mod joining;
mod lab;
mod newer;
mod panics;
mod parallel_apply;
mod policy;
mod refusals;
mod rejoin;
mod restart;
mod reverted;
mod settings;
mod shared_id;
mod shootout;
mod special;
mod streams;
mod stress;
mod synchronous;
mod tls;
mod tools;
mod up;
mod verify;
mod versions;
mod votes;
mod wan;
