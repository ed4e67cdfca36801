//! The shootout: servers on file systems and processors of their own run the requested loads.

use std::time::Duration;

use lockstep_lab::shootout::{
    FLOOR_TICK, READ_ONLY, READ_WRITE, Reading, Run, Setup, Spec, UPDATE_INDEX, run,
};
use lockstep_local::LocalError;

use crate::fixture::{GALERA, Test, alone, built, has_networks, same};

/// A flush takes so much longer on the slow disk, in milliseconds.
const SLOW: u64 = 10;

fn measure(name: &str) -> Result<Run, LocalError> {
    let spec = Spec {
        provider: built("liblockstep.so"),
        floor: built("liblockstep_floor.so"),
        galera: GALERA.into(),
        lockstep: Some(built("lockstep")),
        tables: 1,
        rows: 1000,
        threads: vec![2, 8],
        read_window: Duration::from_secs(1),
        write_window: Duration::from_secs(1),
        update_window: Duration::from_secs(1),
        pools: [64, 128],
        disk: 1,
        slow: Duration::from_millis(SLOW),
        reading: Reading::All,
    };
    let setup = Setup::of_name(name).ok_or_else(|| LocalError::Value(format!("no set-up {name}")))?;
    let run = run(setup, &spec)?;
    let seen: Vec<(&str, u32)> = run.measured.iter().map(|m| (m.script, m.threads)).collect();
    let due = [READ_ONLY, READ_WRITE, UPDATE_INDEX].into_iter().flat_map(|script| [(script, 2), (script, 8)]);
    same("loads", seen, due.collect());
    for m in &run.measured {
        eprintln!("{name}: {} by {}: {:?}", m.script, m.threads, m.load);
        // 14, 18 or 1, plus retries; the rates are rounded.
        let least = if m.script == UPDATE_INDEX { 0.9 } else { 12.0 };
        assert!(m.load.requests_per_second > least * m.load.per_second, "{m:?}");
        // No commit returns before somebody's disk has it.
        assert!(
            m.script != UPDATE_INDEX || !name.ends_with("-slow-disk") || m.load.min_ms >= SLOW as f64,
            "{m:?}"
        );
        // One commit of each thread in a tick.
        let most = f64::from(m.threads) / FLOOR_TICK.as_secs_f64();
        assert!(
            m.script != UPDATE_INDEX || !name.starts_with("floor") || m.load.per_second <= most,
            "no more than {most} commits/s: {m:?}"
        );
        let copied = m.script != READ_ONLY && setup.kind.is_copied();
        assert_eq!(m.caught_up.is_some(), copied, "{m:?}");
        // The backlog of the previous load is purged, up to the tolerance.
        let plausible = m.debt.map(|debt| debt.transactions <= m.load.transactions + m.load.errors + 1_000);
        assert_eq!(plausible, (m.script != READ_ONLY).then_some(true), "{m:?}");
        assert!(m.load.min_ms > 0.0 && m.load.min_ms <= m.load.avg_ms && m.load.avg_ms <= m.load.max_ms);
    }
    Ok(run)
}

#[test]
fn each_setup_keeps_replicas_equal_and_cleans_up() -> Test {
    let _alone = alone();
    if !has_networks() {
        return Ok(());
    }
    for (name, servers, says) in [
        ("ext4-small-pool", 1, "innodb_buffer_pool_size=64M"),
        ("no-binlog-innodb-0", 1, "innodb_flush_log_at_trx_commit=0"),
        ("floor-innodb-0", 1, "wsrep_provider="),
        ("mariadb-semi-sync", 2, "sync_binlog=1"),
        ("mariadb-ingest", 1, "sync_binlog=1"),
        ("device-c", 1, "sync_binlog=1"),
        ("device-a-ext4", 1, "sync_binlog=1"),
        ("galera", 2, "innodb_flush_log_at_trx_commit=1"),
        ("lockstep-semisync-innodb-0", 2, "commit.policy=semisync"),
        ("mariadb-semi-sync-slow-disk", 2, "sync_binlog=1"),
        ("lockstep-semisync-innodb-0-slow-disk", 2, "commit.policy=semisync"),
    ] {
        let run = measure(name)?;
        // And the command lines of a device's members.
        let members = if name.starts_with("device-") { 2 } else { 0 };
        same("option files, and variables", run.configurations.len(), 2 * servers + members);
        for (at, (server, text)) in run.configurations[..servers].iter().enumerate() {
            assert!(text.contains(says), "{name}: {server} has no {says}:\n{text}");
            // A copy that writes a binlog of its own has more to do than ours.
            let binlog = at == 0
                && (servers == 1 || name.starts_with("mariadb-"))
                && !name.starts_with("no-binlog")
                && !name.starts_with("floor");
            assert_eq!(text.contains("log_bin="), binlog, "{name}: {server}:\n{text}");
        }
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let ours = format!("/lockstep-{}-", std::process::id());
    assert!(!mounts.contains(&ours), "{mounts}");
    Ok(())
}
