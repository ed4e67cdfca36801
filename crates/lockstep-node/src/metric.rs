//! A number that a front end adds to the metrics.

/// The kind of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only grows, from the start of the process or from `FLUSH STATUS`; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// A number of the front end. Samples of one name must follow each other.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// The name without the prefix `lockstep_`, with its unit.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// A line of help.
    pub help: &'static str,
    /// Names and values of labels, for a metric with several samples.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: f64,
}
