//! Settings beside the policy: acks from memory and from other zones, their persistence over a full stop, and the lag
//! limit.

use std::time::{Duration, Instant};

use lockstep_lab::{Cluster, SlowDisk};
use lockstep_local::Client;

use crate::failover::{done, lockstep};
use crate::fixture::{Kind, Test, alone, eventually, kind, same, session, shared, spec};
use crate::policy::{is_under, load_during, set};

/// What an insert at the first takes.
fn insert(client: &mut Client, id: i64) -> Result<Duration, lockstep_local::LocalError> {
    let began = Instant::now();
    client.query(&format!("INSERT INTO test.p VALUES ({id})"))?;
    Ok(began.elapsed())
}

/// The third is a zone of its own. The disks of the second and the third are such as they are made.
fn zones() -> Result<(Cluster, SlowDisk), lockstep_local::LocalError> {
    let mut cluster = Cluster::prepare(&spec())?;
    let disk = SlowDisk::new();
    for (n, zone) in [(1, "0"), (2, "1")] {
        cluster.servers[n].config.disk = Some(std::sync::Arc::new(disk.clone()));
        cluster.servers[n].wsrep_mut()?.provider_options.push(("member.zone".into(), zone.into()));
    }
    cluster.bootstrap()?;
    cluster.servers[0]
        .client()?
        .run(&["CREATE DATABASE IF NOT EXISTS test", "CREATE TABLE test.p (id BIGINT PRIMARY KEY)"])?;
    done(&lockstep(&cluster.servers[1], &["switchover", "--to", "n1"])?)?;
    cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?;
    Ok((cluster, disk))
}

#[test]
fn ack_settings_apply_and_survive_restart() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let _alone = alone();
    let (mut cluster, disk) = zones()?;
    let mut first = cluster.servers[0].client()?;

    // Both replicas' disks are slow: an ack for a persisted entry is slow, too; one for a received entry is not.
    set(&cluster, 0, "commit.policy=semisync; commit.acks=1")?;
    let slow = Duration::from_millis(1500);
    // The load below counts from 1.
    let mut id = 1_000_000_000;
    for (ack_on, waits) in [("persist", true), ("receive", false), ("persist", true)] {
        set(&cluster, 0, &format!("commit.ack_on={ack_on}"))?;
        disk.set(slow);
        let mut took = Vec::new();
        for _ in 0..2 {
            id += 1;
            took.push(insert(&mut first, id)?);
        }
        disk.set(Duration::ZERO);
        eprintln!("acks on {ack_on}, flushes of replicas take {slow:?}: commits took {took:.1?}");
        // The first may come to a flush that is under way; none comes before its own.
        same(ack_on, took.iter().all(|took| *took >= slow), waits);
        assert!(waits || took.iter().all(|took| *took < slow / 2), "{took:?}");
        cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?;
    }

    // With two zones, the other zone must acknowledge; without the setting, any member will do.
    set(&cluster, 0, "commit.policy=quorum")?;
    for (zone_acks, stopped, waits) in [(1, 2, true), (1, 1, false), (0, 2, false)] {
        set(&cluster, 0, &format!("commit.zone_acks={zone_acks}"))?;
        id += 1;
        insert(&mut first, id)?;
        cluster.servers[stopped].pause()?;
        id += 1;
        let socket = cluster.servers[0].config.socket();
        let stands = Duration::from_millis(700);
        let took = std::thread::scope(|scope| {
            let insert = scope
                .spawn(move || insert(&mut Client::connect(&socket, "root", Duration::from_secs(30))?, id));
            std::thread::sleep(stands);
            cluster.servers[stopped].resume()?;
            insert.join().expect("a client")
        })?;
        eprintln!("commit.zone_acks={zone_acks}, n{} stopped for {stands:?}: {took:?}", stopped + 1);
        same(&format!("zone_acks={zone_acks} without n{}", stopped + 1), took >= stands - stands / 10, waits);
        cluster.wait_size(3)?;
    }
    // While clients write, too.
    let load = load_during(&cluster, 0, 4, || {
        for zone_acks in [1, 0, 1] {
            set(&cluster, 0, &format!("commit.zone_acks={zone_acks}"))?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    })?;
    same("failed transactions", load.errors, Vec::new());
    eprintln!("changes of commit.zone_acks: longest gap {:?}", load.gap);

    // The settings are in the log, so they survive a stop of all members.
    set(&cluster, 0, "commit.policy=semisync; commit.acks=2; commit.timeout=PT7S; commit.ack_on=receive")?;
    eventually("the last knows", || is_under(&cluster, 2, "semisync"))?;
    drop(first);
    cluster.stop()?;
    for server in &mut cluster.servers {
        server.spawn(&[])?;
    }
    cluster.wait_size(3)?;
    for n in 0..3 {
        eventually("it is under what was set", || is_under(&cluster, n, "semisync"))?;
        let options = cluster.servers[n].query("SELECT @@wsrep_provider_options")?.value()?.to_owned();
        for due in [
            "commit.acks = 2;",
            "commit.timeout = PT7S;",
            "commit.ack_on = receive;",
            "commit.zone_acks = 1;",
        ] {
            assert!(options.contains(due), "{due} {options}");
        }
    }
    Ok(())
}

#[test]
fn lagging_member_is_desynced_and_synced_again() -> Test {
    if kind() == Kind::Galera {
        return Ok(());
    }
    let cluster = shared()?;
    session(&cluster, 0)?.query("CREATE TABLE p (id BIGINT PRIMARY KEY)")?;
    let mut third = session(&cluster, 2)?;
    // Its appliers sleep at each row.
    third.run(&[
        "SET GLOBAL slave_run_triggers_for_rbr = YES",
        "SET SESSION wsrep_on = OFF",
        "CREATE TRIGGER slow BEFORE INSERT ON p FOR EACH ROW DO SLEEP(0.1)",
        "SET SESSION wsrep_on = ON",
    ])?;
    set(&cluster, 2, "apply.lag_limit=10; apply.order=serial")?;
    let mut first = cluster.servers[0].client()?;
    for id in 1..=40 {
        insert(&mut first, id)?;
    }
    let state = || cluster.servers[2].client()?.status("wsrep_local_state_comment");
    eventually("it says that it is behind", || Ok(state()? == "Donor/Desynced"))?;
    assert!(cluster.servers[2].log().contains("Desynced until it has caught up"));
    eventually("it is Synced again", || Ok(state()? == "Synced"))?;
    let there = cluster.servers[2].query("SELECT COUNT(*) FROM test.p")?.number()?;
    assert!(there >= 30, "{there} of 40 are there");
    // An applier that waits for the table ends the statement that changes it.
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, 40);
    set(&cluster, 2, "apply.lag_limit=10000; apply.order=writeset")?;
    third.run(&[
        "SET GLOBAL slave_run_triggers_for_rbr = NO",
        "SET SESSION wsrep_on = OFF",
        "DROP TRIGGER slow",
    ])?;
    same("rows", cluster.same_everywhere("SELECT COUNT(*) FROM test.p")?.number()?, 40);
    Ok(())
}
