//! What is there in the end, against what the clients were told.

use std::collections::{BTreeMap, BTreeSet};

use super::ChaosSpec;
use super::history::{self, Anomaly};
use super::load::{self, Heards};
use super::report::Report;
use crate::cluster::Cluster;
use crate::error::{LabError, Result};

/// What is promised to nobody: see docs/chaos.md.
pub(super) fn is_allowed(anomaly: Anomaly, snapshot_isolation: bool) -> bool {
    match anomaly {
        Anomaly::G2 => true,
        Anomaly::GSingle => !snapshot_isolation,
        _ => false,
    }
}

pub(super) fn audit(cluster: &Cluster, heards: &Heards, spec: &ChaosSpec, report: &mut Report) -> Result<()> {
    report.violations.extend(heards.complaints.iter().cloned());
    same(cluster, report)?;
    let mut client = cluster.servers[0].client()?;
    client.query("SET SESSION wsrep_sync_wait = 15")?;
    for inserts in &heards.inserts {
        let sql = format!("SELECT n FROM chaos.inserts WHERE client = {}", inserts.client);
        let there = client.query(&sql)?;
        let there: BTreeSet<u64> =
            there.rows.iter().filter_map(|row| row.first()?.as_deref()?.parse().ok()).collect();
        let lost: Vec<&u64> = inserts.acknowledged.iter().filter(|n| !there.contains(n)).collect();
        if !lost.is_empty() {
            let some: Vec<String> = lost.iter().take(10).map(|n| n.to_string()).collect();
            let text = format!(
                "{} acknowledged rows of client {} are gone: {} ...",
                lost.len(),
                inserts.client,
                some.join(", ")
            );
            report.violations.push(text);
        }
        let known: BTreeSet<u64> = inserts.acknowledged.iter().chain(&inserts.unknown).copied().collect();
        let ghosts = there.difference(&known).count();
        if ghosts > 0 {
            report.violations.push(format!(
                "{ghosts} rows of client {} are there, though they were refused",
                inserts.client
            ));
        }
        report.lost += lost.len() as u64;
        report.acknowledged += inserts.acknowledged.len() as u64;
        report.unknown += inserts.unknown.len() as u64;
    }
    // The journal explains each balance, and holds what was acknowledged.
    let entries = client.number("SELECT COUNT(*) FROM chaos.journal")? as u64;
    let (done, open) = (heards.transfers, heards.unknown_transfers);
    if !(done..=done + open).contains(&entries) {
        report
            .violations
            .push(format!("{entries} transfers in the journal; {done} were acknowledged, {open} are open"));
        report.lost += done.saturating_sub(entries);
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
    report.acknowledged += done;
    report.unknown += open;

    let mut last: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for row in client.query("SELECT id, list FROM chaos.lists WHERE list <> ''")?.rows {
        let mut row = row.into_iter().flatten();
        let (Some(id), Some(list)) = (row.next().and_then(|id| id.parse().ok()), row.next()) else {
            continue;
        };
        last.insert(id, load::elements(&list)?);
    }
    for finding in history::check(&heards.history, &last) {
        *report.anomalies.entry(finding.anomaly).or_default() += 1;
        if !is_allowed(finding.anomaly, spec.snapshot_isolation) {
            if finding.anomaly == Anomaly::Lost {
                report.lost += 1;
            }
            report.violations.push(format!("{}: {}", finding.anomaly, finding.text));
        }
    }
    let heard = |what| heards.history.iter().filter(|t| t.heard == what).count() as u64;
    report.acknowledged += heard(history::Heard::Committed);
    report.unknown += heard(history::Heard::Unknown);
    report.list_transactions = heard(history::Heard::Committed);
    report.audits = heards.audits;
    report.causal_reads = heards.causal_reads;
    report.measure(heards);
    Ok(())
}

/// All members have the same.
fn same(cluster: &Cluster, report: &mut Report) -> Result<()> {
    let tables = ["inserts", "bank", "journal", "lists"].map(|table| format!("chaos.{table}")).join(", ");
    match cluster.same_everywhere(&format!("CHECKSUM TABLE {tables}")) {
        Ok(_) => Ok(()),
        Err(LabError::Value(text)) => {
            report.violations.push(text);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_promised_counts() {
        assert!(is_allowed(Anomaly::G2, true) && is_allowed(Anomaly::GSingle, false));
        assert!(!is_allowed(Anomaly::GSingle, true) && !is_allowed(Anomaly::G1c, false));
    }
}
