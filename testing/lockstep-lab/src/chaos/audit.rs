//! Compares the data at the end with the answers that the clients received.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use lockstep_local::{Client, LocalError, Result};

use super::ChaosSpec;
use super::fault::Fault;
use super::lists;
use super::load::Heards;
use super::policy::{Losses, Promise};
use super::report::Report;
use super::rescued::{self, Rescued};
use super::transactions::{self, Objects};
use crate::cluster::Cluster;
use crate::isolation::edn::{self, Workload};
use crate::isolation::registers::{self, Write};
use crate::isolation::{self, Anomaly, Claim, Completion, Finding, Lists, Op, Transaction};

pub(super) fn audit(
    cluster: &Cluster,
    heards: &Heards,
    spec: &ChaosSpec,
    files: &[PathBuf],
    report: &mut Report,
) -> Result<()> {
    report.violations.extend(heards.complaints.iter().cloned());
    let mut kept: Vec<Vec<Rescued>> = Vec::new();
    for file in files {
        let command = spec.command.as_ref().ok_or_else(|| LocalError::Value("no command lockstep".into()))?;
        kept.push(rescued::read(command, file)?);
    }
    let all = || kept.iter().flatten();
    let kept_rows: BTreeSet<(u64, u64)> = all().filter_map(|t| t.row).collect();
    let kept_transfers: BTreeSet<(u64, u64)> = all().filter_map(|t| t.transfer).collect();
    let kept_elements: BTreeSet<u64> = all().flat_map(|t| t.elements.iter().copied()).collect();
    let mut losses = Losses::default();
    let mut acknowledged_rows: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut lost_rows: BTreeSet<(u64, u64)> = BTreeSet::new();
    same(cluster, report)?;
    let mut client = cluster.servers[0].client()?;
    client.query("SET SESSION wsrep_sync_wait = 15")?;
    for inserts in &heards.inserts {
        let sql = format!("SELECT n FROM chaos.inserts WHERE client = {}", inserts.client);
        let there = client.query(&sql)?;
        let there: BTreeSet<u64> =
            there.rows.iter().filter_map(|row| row.first()?.as_deref()?.parse().ok()).collect();
        let mut gone: Vec<u64> = Vec::new();
        for (n, time) in inserts.acknowledged.iter().zip(&inserts.times) {
            let row = (inserts.client, *n);
            acknowledged_rows.insert(row);
            if there.contains(n) {
                continue;
            }
            lost_rows.insert(row);
            if kept_rows.contains(&row) {
                losses.rescued += 1;
                losses.during.push(report.fault_at(*time));
            } else {
                gone.push(*n);
            }
        }
        if !gone.is_empty() && !spec.policy.is_weak() {
            let some: Vec<String> = gone.iter().take(10).map(|n| n.to_string()).collect();
            let text = format!(
                "{} acknowledged rows of client {} are gone: {} ...",
                gone.len(),
                inserts.client,
                some.join(", ")
            );
            report.violations.push(text);
        }
        losses.gone += gone.len() as u64;
        let known: BTreeSet<u64> = inserts.acknowledged.iter().chain(&inserts.unknown).copied().collect();
        let ghosts = there.difference(&known).count();
        if ghosts > 0 {
            report.violations.push(format!(
                "{ghosts} rows of client {} are there, though they were refused",
                inserts.client
            ));
        }
        report.acknowledged += inserts.acknowledged.len() as u64;
        report.unknown += inserts.unknown.len() as u64;
    }
    // The journal explains each balance, and holds what was acknowledged.
    let entries = client.query("SELECT client, n FROM chaos.journal")?;
    let number = |value: &Option<String>| value.as_deref()?.parse::<u64>().ok();
    let entries: BTreeSet<(u64, u64)> =
        entries.rows.iter().filter_map(|row| Some((number(row.first()?)?, number(row.get(1)?)?))).collect();
    let lost_transfers: BTreeSet<(u64, u64)> = heards.transfers.difference(&entries).copied().collect();
    let gone = lost_transfers.difference(&kept_transfers).count() as u64;
    losses.gone += gone;
    losses.rescued += lost_transfers.len() as u64 - gone;
    if gone > 0 && !spec.policy.is_weak() {
        report.violations.push(format!("{gone} acknowledged transfers are gone"));
    }
    let ghosts = entries
        .iter()
        .filter(|entry| !heards.transfers.contains(entry) && !heards.unknown_transfers.contains(entry));
    let ghosts = ghosts.count();
    if ghosts > 0 {
        report.violations.push(format!("{ghosts} transfers are there, though they were refused"));
    }
    let unexplained = client.number(
        "SELECT COUNT(*) FROM chaos.bank AS b WHERE balance <> (SELECT balance FROM (SELECT id, 1000 \
         - COALESCE((SELECT SUM(amount) FROM chaos.journal WHERE a = x.id), 0) \
         + COALESCE((SELECT SUM(amount) FROM chaos.journal WHERE b = x.id), 0) AS balance FROM chaos.bank AS x) AS due \
         WHERE due.id = b.id)",
    )?;
    if unexplained > 0 {
        report.violations.push(format!("{unexplained} balances are not what the journal says"));
    }
    report.acknowledged += heards.transfers.len() as u64;
    report.unknown += heards.unknown_transfers.len() as u64;

    let lost_elements = histories(&mut client, heards, spec, &kept_elements, &mut losses, report)?;
    // How much each leader that was lost had answered ahead, as far as that is not in the others' logs.
    for file in &kept {
        let lost = file.iter().filter(|t| {
            t.row.is_some_and(|row| lost_rows.contains(&row))
                || t.transfer.is_some_and(|transfer| lost_transfers.contains(&transfer))
                || t.elements.iter().any(|element| lost_elements.contains(element))
        });
        losses.largest = losses.largest.max(lost.count() as u64);
    }
    blind(heards, &acknowledged_rows, &lost_rows, report);
    counted(cluster, report);
    let promise = Promise {
        policy: spec.policy,
        max_at_risk: spec.max_at_risk,
        alone: spec.voters == 1 && !spec.arbitrator,
        leaders_lost: report.times(Fault::LoseFirst),
        overlapping: spec.every.is_some(),
    };
    report.violations.extend(promise.broken(&losses));
    report.lost = losses.gone;
    report.rescued = losses.rescued;
    report.rescue_files = files.len() as u64;
    let count = |of: &[Transaction], what| of.iter().filter(|t| t.completion == what).count() as u64;
    report.list_transactions = count(&heards.lists, Completion::Committed);
    report.register_transactions = count(&heards.registers, Completion::Committed);
    report.acknowledged += report.list_transactions + report.register_transactions;
    report.unknown +=
        count(&heards.lists, Completion::Unknown) + count(&heards.registers, Completion::Unknown);
    report.audits = heards.audits;
    report.causal_reads = heards.causal_reads;
    report.measure(heards);
    Ok(())
}

/// The final lists, which are the versions of all lists.
fn final_lists(client: &mut Client) -> Result<Lists> {
    let mut last = Lists::new();
    for row in client.query("SELECT id, list FROM chaos.lists WHERE list <> ''")?.rows {
        let mut row = row.into_iter().flatten();
        let (Some(id), Some(list)) = (row.next().and_then(|id| id.parse().ok()), row.next()) else {
            continue;
        };
        last.insert(id, transactions::elements(&list)?);
    }
    Ok(last)
}

/// The versions of all registers.
fn final_registers(client: &mut Client, findings: &mut Vec<Finding>) -> Result<Lists> {
    let mut writes = |sql: &str| -> Result<Vec<Write>> {
        let number = |value: Option<&Option<String>>| value?.as_deref()?.parse::<u64>().ok();
        let rows = client.query(sql)?.rows;
        rows.iter()
            .map(|row| {
                let (key, version, element) = (number(row.first()), number(row.get(1)), number(row.get(2)));
                let write = key.zip(version).zip(element);
                write.map(|((key, version), element)| Write { key, version, element })
            })
            .collect::<Option<_>>()
            .ok_or_else(|| LocalError::Value(format!("[{sql}] returns other values than numbers")))
    };
    let journal = writes("SELECT register, version, element FROM chaos.written")?;
    let last = writes("SELECT id, version, value FROM chaos.registers")?;
    let last: BTreeMap<u64, Write> = last.into_iter().map(|write| (write.key, write)).collect();
    Ok(registers::versions(&journal, &last, findings))
}

/// Checks the histories of lists and registers; returns the elements that were lost with a leader.
fn histories(
    client: &mut Client,
    heards: &Heards,
    spec: &ChaosSpec,
    rescued: &BTreeSet<u64>,
    losses: &mut Losses,
    report: &mut Report,
) -> Result<BTreeSet<u64>> {
    let claim = match spec.snapshot_isolation {
        true => Claim::snapshot_isolation(),
        false => Claim::repeatable_read(),
    };
    let mut lost = BTreeSet::new();
    for (objects, heard) in [(Objects::Lists, &heards.lists), (Objects::Registers, &heards.registers)] {
        if heard.is_empty() {
            continue;
        }
        let mut findings = Vec::new();
        let last = match objects {
            Objects::Lists => final_lists(client)?,
            Objects::Registers => final_registers(client, &mut findings)?,
        };
        save(spec, objects, heard, &last)?;
        // A history of an hour takes gigabytes: it is copied only if it changes.
        let mut history = Cow::Borrowed(heard.as_slice());
        if spec.policy.is_weak() {
            let mut taken = lists::without_lost(history.into_owned(), &last, rescued);
            losses.gone += taken.gone;
            losses.rescued += taken.rescued;
            lost.append(&mut taken.lost);
            history = taken.history.into();
        }
        if objects == Objects::Registers {
            history = registers::as_lists(&history, &last).into();
        }
        findings.extend(isolation::check(&history, &last, claim));
        for Finding { anomaly, allowed, text } in findings {
            *report.anomalies.entry((anomaly, allowed)).or_default() += 1;
            if !allowed {
                if anomaly == Anomaly::Lost {
                    losses.gone += 1;
                }
                report.violations.push(format!("{}: {anomaly}: {text}", objects.name()));
            }
        }
    }
    Ok(lost)
}

/// Writes a history file, with a read of each object in the end.
fn save(spec: &ChaosSpec, objects: Objects, heard: &[Transaction], last: &Lists) -> Result<()> {
    let Some(folder) = &spec.history else { return Ok(()) };
    let mut reads = Vec::new();
    let client = heard.iter().map(|t| t.client + 1).max().unwrap_or(0);
    let mut now = heard.iter().map(|t| t.completed + 1).max().unwrap_or(0);
    for (key, list) in last {
        let op = match objects {
            Objects::Lists => Op::Read { key: *key, list: list.clone() },
            Objects::Registers => {
                Op::Value { key: *key, version: list.len() as u64, element: list.last().copied() }
            }
        };
        reads.push(Transaction {
            ops: vec![op],
            completion: Completion::Committed,
            error: None,
            client,
            member: 0,
            sync_wait: true,
            invoked: now,
            completed: now + 1,
        });
        now += 2;
    }
    let workload = match objects {
        Objects::Lists => Workload::ListAppend,
        Objects::Registers => Workload::Register,
    };
    std::fs::create_dir_all(folder).map_err(LocalError::path("create", folder))?;
    let file = folder.join(format!("{}.edn", objects.name()));
    let history: Vec<&Transaction> = heard.iter().chain(&reads).collect();
    let written = File::create(&file).and_then(|created| {
        let mut out = BufWriter::new(created);
        edn::write(&history, workload, &mut out)?;
        out.flush()
    });
    written.map_err(LocalError::path("write", &file))
}

/// A causal read sees all transactions acknowledged before it began, except those lost with a leader.
fn blind(
    heards: &Heards,
    acknowledged: &BTreeSet<(u64, u64)>,
    lost: &BTreeSet<(u64, u64)>,
    report: &mut Report,
) {
    for read in &heards.blind {
        let owed = acknowledged.range((read.client, read.seen + 1)..=(read.client, read.due));
        let owed: Vec<_> = owed.filter(|row| !lost.contains(row)).collect();
        if let Some((_, last)) = owed.last() {
            report.violations.push(format!(
                "a causal read by {} saw rows up to {} of client {}, after {last} was acknowledged",
                read.member, read.seen, read.client
            ));
        }
    }
}

/// The members' status counts their rescue files correctly.
fn counted(cluster: &Cluster, report: &mut Report) {
    for server in &cluster.servers {
        let there = rescued::files(&server.datadir()).len().to_string();
        // Other providers have no such thing.
        let Ok(said) = server.client().and_then(|mut client| client.status("wsrep_rescued_files")) else {
            continue;
        };
        if said != there {
            report.violations.push(format!("{} says {said} rescue files, and has {there}", server.name()));
        }
    }
}

/// All members have the same.
fn same(cluster: &Cluster, report: &mut Report) -> Result<()> {
    let tables = ["inserts", "bank", "journal", "lists", "registers", "written"]
        .map(|table| format!("chaos.{table}"))
        .join(", ");
    match cluster.same_everywhere(&format!("CHECKSUM TABLE {tables}")) {
        Ok(_) => Ok(()),
        Err(LocalError::Value(text)) => {
            report.violations.push(text);
            Ok(())
        }
        Err(error) => Err(error),
    }
}
