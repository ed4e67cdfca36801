//! For tests: the metrics that `docs/alerts.yml` uses.

use lockstep_node::Metric;

/// The file's text.
const ALERTS: &str = include_str!("../../../docs/alerts.yml");

/// Asserts that `metrics` has each metric in the alerts' expressions whose name begins with this prefix, after `lockstep_`.
/// Returns how often there is one.
pub(crate) fn assert_there_are(prefix: &str, metrics: &[Metric]) -> usize {
    let exprs = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let words = exprs.flat_map(|expr| expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let names = words.filter_map(|word| word.strip_prefix("lockstep_"));
    let used: Vec<&str> = names.filter(|name| name.starts_with(prefix)).collect();
    for name in &used {
        assert!(metrics.iter().any(|metric| metric.name == *name), "docs/alerts.yml uses {name}");
    }
    used.len()
}

#[test]
#[should_panic(expected = "docs/alerts.yml uses block_")]
fn missing_metric_is_found() {
    assert_there_are("block_", &[]);
}
