//! Medians, deviations, and numbers as people read them.

/// What repeats of one measurement found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stat {
    pub(super) median: f64,
    /// Of one value nothing can be said.
    pub(super) deviation: Option<f64>,
    /// Whether one of the repeats is in doubt.
    pub(super) doubtful: bool,
}

/// A number to judge by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Known {
    pub(super) value: f64,
    /// Whether anything that it is made of is in doubt.
    pub(super) doubtful: bool,
    /// Some measurements were repeated less often than planned.
    pub(super) partial: Option<Partial>,
}

/// Fewer repeats than were wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Partial {
    pub(super) had: u64,
    pub(super) wanted: u64,
    /// Others were made, and failed.
    pub(super) failed: bool,
}

impl Partial {
    /// "1 of 3 repeats".
    pub(super) fn text(self) -> String {
        let others = if self.failed { ", others failed" } else { "" };
        format!("{} of {} repeats{others}", self.had, self.wanted)
    }
}

impl Known {
    pub(super) fn of(stat: Stat) -> Known {
        Known { value: stat.median, doubtful: stat.doubtful, partial: None }
    }

    /// A factor.
    pub(super) fn times(self, factor: f64) -> Known {
        Known { value: self.value * factor, ..self }
    }

    /// This of that.
    pub(super) fn by(self, other: Known) -> Known {
        let doubtful = self.doubtful || other.doubtful;
        Known { value: self.value / other.value, doubtful, partial: None }.rests_on(self).rests_on(other)
    }

    /// The same number, which is no better known than that.
    pub(super) fn rests_on(self, other: Known) -> Known {
        let partial = self.partial.into_iter().chain(other.partial).min();
        Known { partial, ..self }
    }
}

/// The mark after a number that is in doubt.
pub(super) const DOUBT: &str = " †";

impl Stat {
    /// Of these values, if there are any.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Stat> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let half = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            len if len % 2 == 1 => values[half],
            _ => f64::midpoint(values[half - 1], values[half]),
        };
        Some(Stat { median, deviation: deviation(&values), doubtful: false })
    }

    /// "943 ± 12".
    pub(super) fn text(&self) -> String {
        match self.deviation {
            None => self.median_text(),
            Some(deviation) => format!("{} ± {}{}", number(self.median), number(deviation), self.doubt()),
        }
    }

    /// "943".
    pub(super) fn median_text(&self) -> String {
        format!("{}{}", number(self.median), self.doubt())
    }

    /// The mark after it.
    pub(super) fn doubt(&self) -> &'static str {
        if self.doubtful { DOUBT } else { "" }
    }
}

/// The same, and a dash where nothing was measured.
pub(super) fn text(stat: Option<Stat>) -> String {
    stat.map_or_else(|| "–".into(), |stat| stat.text())
}

/// The standard deviation of a sample.
fn deviation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (count - 1.0)).sqrt())
}

/// The value that this part (0 to 1) of the sorted values does not exceed.
pub(super) fn percentile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1).min(sorted.len()).wrapping_sub(1)).copied().unwrap_or(f64::NAN)
}

/// With three digits that count, and thousands apart: 0.0123, 11.5, 943, 14 821.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let digits = match value.abs() {
        0.0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v => (2.0 - v.log10().floor()).min(6.0) as usize,
    };
    let text = format!("{value:.digits$}");
    let (whole, part) = text.split_once('.').map_or((text.as_str(), None), |(w, p)| (w, Some(p)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |rest| ("-", rest));
    let mut grouped = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at) % 3 == 0 && whole.len() > 4 {
            // A narrow space that does not break the line.
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    match part {
        Some(part) => format!("{grouped}.{part}"),
        None => grouped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_deviations() {
        let of = |values: &[f64]| Stat::of(values.iter().copied());
        assert_eq!(of(&[3.0, 1.0, 2.0]), Some(Stat { median: 2.0, deviation: Some(1.0), doubtful: false }));
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).map(|s| s.median), Some(2.5));
        assert_eq!(of(&[2.0, 4.0, 6.0]).and_then(|s| s.deviation), Some(2.0));
        assert_eq!(of(&[2.0, f64::NAN]), Some(Stat { median: 2.0, deviation: None, doubtful: false }));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2.0]).unwrap().text(), "2.00");
        let doubtful = Stat { median: 2.0, deviation: Some(1.0), doubtful: true };
        assert_eq!((doubtful.text(), doubtful.median_text()), ("2.00 ± 1.00 †".into(), "2.00 †".into()));
    }

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (50.0, 99.0));
        assert_eq!((percentile(&values, 0.0), percentile(&values, 1.0)), (1.0, 100.0));
        assert!(percentile(&[], 0.5).is_nan());
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        for (value, text) in [
            (0.0, "0"),
            (0.012_34, "0.0123"),
            (0.5, "0.500"),
            (1.0, "1.00"),
            (11.509, "11.5"),
            (99.96, "100"),
            (943.2, "943"),
            (1066.8, "1067"),
            (14821.4, "14\u{202f}821"),
            (-1_234_567.0, "-1\u{202f}234\u{202f}567"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
