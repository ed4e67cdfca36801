//! Plots as SVG that stands in a page of HTML: the page's style gives them their colours, light and dark, by class.

use std::fmt::Write;

use super::numbers::{Stat, number};

/// The page's style has so many shades of each side's colour: the classes `c0` to `c2` are MariaDB's, and so on.
const SHADES: usize = 3;
const WIDTH: f64 = 900.0;

/// A plot.
#[derive(Debug, Clone)]
pub(super) enum Chart {
    Bars(Bars),
    Lines(Lines),
}

/// Horizontal bars, one below the other, each with its value.
#[derive(Debug, Clone)]
pub(super) struct Bars {
    pub(super) title: String,
    /// The quantity, with its unit.
    pub(super) unit: String,
    /// Equal distances are equal ratios.
    pub(super) log: bool,
    pub(super) bars: Vec<Bar>,
}

/// One of them.
#[derive(Debug, Clone)]
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: f64,
    /// Standard deviation.
    pub(super) spread: Option<f64>,
    pub(super) side: Side,
}

/// The system measured: each has one colour in all plots of all reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    MariaDb,
    Galera,
    Lockstep,
}

impl Side {
    const EACH: [Side; 3] = [Side::MariaDb, Side::Galera, Side::Lockstep];

    fn name(self) -> &'static str {
        ["MariaDB", "Galera", "Lockstep"][self as usize]
    }

    /// The class of a shade of its colour.
    fn class(self, shade: usize) -> String {
        format!("c{}", self as usize * SHADES + shade % SHADES)
    }

    /// For those who do not tell the colours apart.
    fn dashes(self) -> &'static str {
        ["dashed", "dotted", ""][self as usize]
    }
}

/// Which one of its side this is in the list of all that an experiment knows, so that it looks the same in each plot, also
/// in those without the others.
pub(super) fn variant<T: Copy + PartialEq>(each: &[T], side: impl Fn(T) -> Side, this: T) -> usize {
    each.iter().take_while(|other| **other != this).filter(|other| side(**other) == side(this)).count()
}

impl Bar {
    /// With the median of the measurements.
    pub(super) fn of(label: impl Into<String>, stat: Option<Stat>, side: Side) -> Bar {
        let value = stat.map_or(f64::NAN, |stat| stat.median);
        let label = format!("{}{}", label.into(), stat.map_or("", |stat| stat.doubt()));
        Bar { label, value, spread: stat.and_then(|stat| stat.deviation), side }
    }
}

/// Lines through points.
#[derive(Debug, Clone)]
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) x: String,
    pub(super) y: String,
    /// Equal distances along x are equal ratios; every x must be above 0.
    pub(super) x_log: bool,
    /// The same along y.
    pub(super) y_log: bool,
    pub(super) series: Vec<Series>,
}

/// One line.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) side: Side,
    /// Its shade and markers, see [`variant`].
    pub(super) variant: usize,
    /// x, y, and y's standard deviation; in the order of x.
    pub(super) points: Vec<(f64, f64, Option<f64>)>,
    /// It has one point, and nothing that x counts: a thin line goes on from there to compare the others with.
    pub(super) level: bool,
}

impl Chart {
    /// A complete `<svg>` element. The text in its corner describes the numbers, so that it goes wherever the plot goes.
    pub(super) fn svg(&self, corner: &str) -> String {
        match self {
            Chart::Bars(bars) => bars.svg(corner),
            Chart::Lines(lines) => lines.svg(corner),
        }
    }
}

/// As text of XML or HTML, in elements and in attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that XML cannot represent.
            c if c < ' ' && !matches!(c, '\n' | '\t' | '\r') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// From values to places.
#[derive(Debug, Clone)]
struct Axis {
    log: bool,
    low: f64,
    high: f64,
    /// The places of `low` and `high`.
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// An axis on which all of the values have their place; 0 is on it unless it is logarithmic.
    fn over(values: impl IntoIterator<Item = f64>, log: bool, from: f64, to: f64) -> Axis {
        let values: Vec<f64> = values.into_iter().filter(|v| v.is_finite() && (!log || *v > 0.0)).collect();
        let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let low = values.iter().copied().fold(high, f64::min);
        if log { Axis::log(low, high, from, to) } else { Axis::linear(low, high, from, to) }
    }

    fn log(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let mut steps: Vec<f64> = Vec::new();
        let decades = low.log10().floor() as i32 - 1..=high.log10().ceil() as i32 + 1;
        for decade in decades {
            steps.extend([1.0, 2.0, 5.0].map(|step| step * 10f64.powi(decade)));
        }
        // With some room, so that the smallest value is seen, too.
        let below = steps.iter().rposition(|step| *step <= low * 0.8).unwrap_or(0);
        let above = steps.iter().position(|step| *step >= high).unwrap_or(steps.len() - 1);
        let mut ticks: Vec<f64> = steps[below..=above.max(below + 1)].to_vec();
        let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
        if high / low > 200.0 {
            ticks.retain(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9);
        }
        Axis { log: true, low, high, from, to, ticks }
    }

    fn linear(low: f64, high: f64, from: f64, to: f64) -> Axis {
        let (low, high) = (low.min(0.0), high.max(0.0));
        let rough = (high - low) / 5.0;
        let size = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|s| s * size).into_iter().find(|s| *s >= rough);
        let step = step.unwrap_or(rough);
        let (first, last) = ((low / step).floor() as i64, (high / step - 1e-9).ceil() as i64);
        let ticks: Vec<f64> = (first..=last.max(first + 1)).map(|n| n as f64 * step).collect();
        Axis { log: false, low: ticks[0], high: ticks[ticks.len() - 1], from, to, ticks }
    }

    fn at(&self, value: f64) -> f64 {
        let part = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }
}

/// An SVG that is being written. Writing to a String cannot fail.
struct Canvas {
    out: String,
}

impl Canvas {
    fn new(height: f64, title: &str) -> Canvas {
        let title = escape(title);
        let mut canvas = Canvas { out: String::new() };
        canvas.add(format_args!(
            "<svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\">\n\
             <text class=\"title\" x=\"0\" y=\"20\">{title}</text>\n"
        ));
        canvas
    }

    fn add(&mut self, what: std::fmt::Arguments<'_>) {
        let _ = self.out.write_fmt(what);
    }

    fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        ));
    }

    /// `anchor` is start, middle or end.
    fn text(&mut self, class: &str, anchor: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.add(format_args!(
            "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n"
        ));
    }

    fn end(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

/// The number at a tick: of a whole one no decimals.
fn round(tick: f64) -> String {
    let text = number(tick);
    if tick.fract() == 0.0 { text.split('.').next().unwrap_or_default().to_owned() } else { text }
}

/// About how wide a text is in the plots' letters.
fn width(text: &str) -> f64 {
    text.chars().count() as f64 * 7.2
}

impl Bars {
    fn svg(&self, corner: &str) -> String {
        const ROW: f64 = 32.0;
        let mut sides = Side::EACH.to_vec();
        sides.retain(|side| self.bars.iter().any(|bar| bar.side == *side));
        let legend = if sides.len() > 1 { 26.0 } else { 0.0 };
        let top = 36.0 + legend;
        let bottom = top + ROW * self.bars.len() as f64;
        let left = self.bars.iter().map(|bar| width(&bar.label)).fold(80.0, f64::max).min(420.0) + 12.0;
        let most = self.bars.iter().flat_map(|bar| [bar.value, bar.value + bar.spread.unwrap_or(0.0)]);
        // Room for the longest bar's value.
        let axis = Axis::over(most, self.log, left, WIDTH - 110.0);
        let mut canvas = Canvas::new(bottom + 68.0, &self.title);
        if sides.len() > 1 {
            let mut x = left;
            for side in sides {
                canvas.add(format_args!(
                    "<rect class=\"{}\" x=\"{x:.1}\" y=\"34\" width=\"12\" height=\"12\" rx=\"2\"/>\n",
                    side.class(0)
                ));
                canvas.text("label", "start", (x + 18.0, 44.5), side.name());
                x += width(side.name()) + 44.0;
            }
        }
        for tick in &axis.ticks {
            let x = axis.at(*tick);
            canvas.line("grid", (x, top - 4.0), (x, bottom + 2.0));
            canvas.text("tick", "middle", (x, bottom + 18.0), &round(*tick));
        }
        for (row, bar) in self.bars.iter().enumerate() {
            let y = top + ROW * row as f64;
            let middle = y + ROW / 2.0;
            canvas.text("label", "end", (left - 8.0, middle + 4.5), &bar.label);
            if !bar.value.is_finite() {
                canvas.text("value", "start", (left + 6.0, middle + 4.5), "not measured");
                continue;
            }
            let end = axis.at(bar.value);
            let (long, y) = ((end - left).max(1.0), y + 5.0);
            canvas.add(format_args!(
                "<rect class=\"{}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{long:.1}\" height=\"{:.1}\" rx=\"2\"/>\n",
                bar.side.class(0),
                ROW - 10.0
            ));
            let mut after = end;
            if let Some(spread) = bar.spread {
                let (from, to) = (axis.at(bar.value - spread), axis.at(bar.value + spread));
                canvas.line("whisker", (from, middle), (to, middle));
                canvas.line("whisker", (from, middle - 4.0), (from, middle + 4.0));
                canvas.line("whisker", (to, middle - 4.0), (to, middle + 4.0));
                after = to;
            }
            canvas.text("value", "start", (after + 6.0, middle + 4.5), &number(bar.value));
        }
        canvas.line("axis", (left, top - 4.0), (left, bottom + 2.0));
        let unit = if self.log { format!("{} (logarithmic)", self.unit) } else { self.unit.clone() };
        canvas.text("unit", "middle", (f64::midpoint(left, WIDTH - 110.0), bottom + 40.0), &unit);
        canvas.text("tick", "end", (WIDTH, bottom + 62.0), corner);
        canvas.end()
    }
}

impl Lines {
    fn svg(&self, corner: &str) -> String {
        let names = self.series.iter().map(|series| width(&series.name)).fold(60.0, f64::max).min(330.0);
        let (left, right) = (74.0, WIDTH - names - 50.0);
        let (top, bottom) = (58.0, 58.0 + (22.0 * self.series.len() as f64).max(340.0));
        let points = || self.series.iter().flat_map(|series| &series.points);
        let mut across = Axis::over(points().map(|p| p.0), self.x_log, left, right);
        if self.x_log {
            // From the first to the last measured, each with a tick.
            let mut xs: Vec<f64> = points().map(|p| p.0).filter(|x| *x > 0.0).collect();
            xs.sort_by(f64::total_cmp);
            xs.dedup();
            if let [first, .., last] = xs[..] {
                (across.low, across.high) = (first, last);
                across.ticks = xs;
            }
        }
        let most = points().flat_map(|p| [p.1, p.1 + p.2.unwrap_or(0.0)]);
        let up = Axis::over(most, self.y_log, bottom, top);
        let mut canvas = Canvas::new(bottom + 68.0, &self.title);
        canvas.text(
            "unit",
            "start",
            (0.0, 44.0),
            &if self.y_log { format!("{} (logarithmic)", self.y) } else { self.y.clone() },
        );
        for tick in &up.ticks {
            let y = up.at(*tick);
            canvas.line("grid", (left, y), (right, y));
            canvas.text("tick", "end", (left - 8.0, y + 4.0), &round(*tick));
        }
        for tick in &across.ticks {
            let x = across.at(*tick);
            canvas.line("grid", (x, top), (x, bottom + 5.0));
            canvas.text("tick", "middle", (x, bottom + 20.0), &round(*tick));
        }
        canvas.line("axis", (left, bottom), (right, bottom));
        canvas.text("unit", "middle", (f64::midpoint(left, right), bottom + 42.0), &self.x);
        canvas.text("tick", "end", (WIDTH, bottom + 62.0), corner);
        let mut ends = Vec::new();
        for (at, series) in self.series.iter().enumerate() {
            let places: Vec<(f64, f64)> = series
                .points
                .iter()
                .filter(|p| p.0.is_finite() && p.1.is_finite())
                .map(|p| (across.at(p.0), up.at(p.1)))
                .collect();
            let mut class = format!("line {} {}", series.side.class(series.variant), series.side.dashes());
            let mut way = places.clone();
            if let (true, [(_, y)]) = (series.level, &places[..]) {
                class = format!("{} level", class.trim_end());
                way.push((right, *y));
            }
            let path: Vec<String> = way.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            canvas.add(format_args!(
                "<polyline class=\"{}\" points=\"{}\"/>\n",
                class.trim_end(),
                path.join(" ")
            ));
            for (x, y, spread) in &series.points {
                if let Some(spread) = spread.filter(|spread| spread.is_finite()) {
                    let x = across.at(*x);
                    canvas.line("whisker", (x, up.at(y - spread)), (x, up.at(y + spread)));
                }
            }
            for place in &places {
                canvas.marker(series, *place);
            }
            ends.push((at, way.last().copied().unwrap_or((right, bottom))));
        }
        // Names stand where the lines end, moved apart where those are close.
        ends.sort_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let mut ys: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
        spread_out(&mut ys, 19.0, top, bottom);
        for ((at, (x, y)), label) in ends.into_iter().zip(ys) {
            let name = &self.series[at].name;
            if !self.series[at].points.iter().any(|p| p.0.is_finite() && p.1.is_finite()) {
                let text = format!("{name} (not measured)");
                canvas.text("tick", "start", (right + 34.0, label + 4.5), &text);
                continue;
            }
            canvas.line("leader", (x + 7.0, y), (right + 16.0, label));
            canvas.marker(&self.series[at], (right + 24.0, label));
            canvas.text("label", "start", (right + 34.0, label + 4.5), name);
        }
        canvas.end()
    }
}

impl Canvas {
    /// With the shade it tells one of a side from fourteen others.
    fn marker(&mut self, series: &Series, (x, y): (f64, f64)) {
        let class = series.side.class(series.variant);
        match series.variant % 5 {
            0 => {
                self.add(format_args!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>\n"))
            }
            1 => self.add(format_args!(
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\"/>\n",
                x - 4.0,
                y - 4.0
            )),
            2 => self.polygon(&class, &[(x, y - 5.5), (x + 5.5, y + 4.0), (x - 5.5, y + 4.0)]),
            3 => self.polygon(&class, &[(x, y - 6.0), (x + 6.0, y), (x, y + 6.0), (x - 6.0, y)]),
            _ => self.polygon(&class, &[(x, y + 5.5), (x + 5.5, y - 4.0), (x - 5.5, y - 4.0)]),
        }
    }

    fn polygon(&mut self, class: &str, corners: &[(f64, f64)]) {
        let corners: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.add(format_args!("<polygon class=\"{class}\" points=\"{}\"/>\n", corners.join(" ")));
    }
}

/// Moves sorted places down, and up again where they leave the room, until each is `gap` from the next.
fn spread_out(ys: &mut [f64], gap: f64, top: f64, bottom: f64) {
    let mut free = top;
    for y in ys.iter_mut() {
        *y = y.max(free);
        free = *y + gap;
    }
    let mut free = bottom;
    for y in ys.iter_mut().rev() {
        *y = y.min(free);
        free = *y - gap;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::markup::{check, texts};

    fn bars() -> Bars {
        let bar = |label: &str, value, spread, side| Bar { label: label.into(), value, spread, side };
        Bars {
            title: "Inserts <per> second & \"more\"".into(),
            unit: "inserts/s".into(),
            log: true,
            bars: vec![
                bar("no replica", 1066.8, Some(20.0), Side::MariaDb),
                bar("semi-sync <far>", 11.5, None, Side::MariaDb),
                bar("quorum", 900.0, Some(1000.0), Side::Lockstep),
                bar("not run", f64::NAN, None, Side::Lockstep),
            ],
        }
    }

    #[test]
    fn bars_are_sound_markup_with_each_label_and_value() {
        let svg = Chart::Bars(bars()).svg("3 repeats");
        check(&svg).unwrap();
        let texts = texts(&svg);
        for text in
            ["no replica", "semi-sync <far>", "11.5", "1067", "900", "not measured", "Lockstep", "3 repeats"]
        {
            assert!(texts.iter().any(|t| t == text), "{text} is not in {texts:?}");
        }
        assert!(texts[0].contains("<per>") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn longer_bars_are_larger_values_and_none_leaves_the_picture() {
        let svg = bars().svg("");
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("height=\"22.0\""))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert_eq!(widths.len(), 3);
        assert!(widths[0] > widths[2] && widths[2] > widths[1] && widths[1] > 5.0, "{widths:?}");
        assert!(widths[0] < WIDTH);
    }

    #[test]
    fn lines_are_sound_markup_with_each_name_and_whisker() {
        let series = |name: &str, factor: f64| Series {
            name: name.into(),
            side: Side::MariaDb,
            variant: 0,
            points: [1.0, 4.0, 64.0].map(|x| (x, x * factor, Some(0.1 * x))).to_vec(),
            level: false,
        };
        let chart = Lines {
            title: "Rates".into(),
            x: "connections".into(),
            y: "inserts/s".into(),
            x_log: true,
            y_log: true,
            series: vec![series("a & b", 11.6), series("c", 11.7), series("empty", f64::NAN)],
        };
        let svg = Chart::Lines(chart).svg("3 repeats");
        check(&svg).unwrap();
        let texts = texts(&svg);
        for text in ["a & b", "c", "empty (not measured)", "connections", "64", "3 repeats"] {
            assert!(texts.iter().any(|t| t == text), "{text} is not in {texts:?}");
        }
        assert_eq!(svg.matches("class=\"whisker\"").count(), 9);
        assert!(svg.contains("dashed") && !svg.contains("NaN"));
    }

    #[test]
    fn series_without_x_value_is_drawn_across() {
        let series = |points: &[(f64, f64, Option<f64>)], level| Series {
            name: "s".into(),
            side: Side::MariaDb,
            variant: 0,
            points: points.to_vec(),
            level,
        };
        let all =
            vec![series(&[(0.0, 5.0, None)], true), series(&[(1.0, 6.0, None), (10.0, 9.0, None)], false)];
        let lines = Lines {
            title: "t".into(),
            x: "x".into(),
            y: "y".into(),
            x_log: false,
            y_log: false,
            series: all,
        };
        let (svg, right) = (lines.svg(""), WIDTH - 60.0 - 50.0);
        // The axis begins at 0, where its marker is.
        assert!(svg.contains("<text class=\"tick\" text-anchor=\"middle\" x=\"74.0\""), "{svg}");
        let way = svg.lines().find(|line| line.contains(" level\"")).expect("a line of its own kind");
        let points = way.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let places: Vec<&str> = points.split([' ', ',']).collect();
        assert_eq!(places, ["74.0", places[1], &format!("{right:.1}"), places[1]]);
        assert!(svg.contains(&format!("<circle class=\"c0\" cx=\"74.0\" cy=\"{}\"", places[1])), "{svg}");
        assert_eq!(svg.matches(" level\"").count(), 1);
    }

    #[test]
    fn each_side_has_one_colour_and_distinct_variants() {
        let style = include_str!("page.css");
        let all = [Side::Lockstep, Side::MariaDb, Side::Lockstep, Side::Galera, Side::Lockstep];
        let each: Vec<usize> = (0..all.len()).collect();
        let numbers: Vec<usize> = each.iter().map(|at| variant(&each, |at: usize| all[at], *at)).collect();
        assert_eq!(numbers, [0, 0, 1, 0, 2], "whoever else is there");
        let mut seen = std::collections::BTreeSet::new();
        for side in Side::EACH {
            let bar = Bar { label: "b".into(), value: 1.0, spread: None, side };
            let bars = Bars { title: "t".into(), unit: "u".into(), log: false, bars: vec![bar] }.svg("");
            assert!(bars.contains(&format!("<rect class=\"{}\"", side.class(0))), "{bars}");
            for variant in 0..15 {
                let points = vec![(1.0, 1.0, None), (2.0, 3.0, None)];
                let series = vec![Series { name: "s".into(), side, variant, points, level: false }];
                let (title, x, y) = ("t".into(), "x".into(), "y".into());
                let lines = Lines { title, x, y, x_log: false, y_log: false, series }.svg("");
                let class = side.class(variant);
                assert!(lines.contains(&format!("<polyline class=\"line {class}")), "{lines}");
                // In both themes, as a line and as a fill.
                assert_eq!(style.matches(&format!("--{class}: #")).count(), 2, "{class}");
                assert_eq!(style.matches(&format!("svg .{class} {{ fill: var(--{class})")).count(), 1);
                assert_eq!(style.matches(&format!("svg .line.{class} {{ stroke: var(--{class})")).count(), 1);
                // The one beside its name, always in the same place.
                let marker = lines.lines().rev().find(|line| line.contains(&format!("class=\"{class}\"")));
                seen.insert(marker.expect("a marker").to_owned());
            }
        }
        assert_eq!(seen.len(), 45, "no two of fifteen look the same");
    }

    #[test]
    fn axes_hold_their_values() {
        let axis = Axis::over([11.5, 1066.8], true, 0.0, 100.0);
        assert_eq!((axis.low, axis.high), (5.0, 2000.0));
        assert_eq!(axis.ticks, [10.0, 100.0, 1000.0]);
        assert!((axis.at(100.0) - 50.0).abs() < 0.1 && axis.at(0.0) == 0.0 && axis.at(1e9) == 100.0);
        let axis = Axis::over([11.5, 30.0], true, 0.0, 100.0);
        assert_eq!(axis.ticks, [5.0, 10.0, 20.0, 50.0]);
        let axis = Axis::over([3.0, 870.0], false, 0.0, 100.0);
        assert_eq!(axis.ticks, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(axis.at(500.0), 50.0);
        // Nothing measured: still an axis.
        for log in [false, true] {
            assert!(Axis::over([f64::NAN], log, 0.0, 100.0).ticks.iter().all(|tick| tick.is_finite()));
        }
    }

    #[test]
    fn whole_ticks_have_no_decimals() {
        assert_eq!([0.0, 1.0, 10.0, 0.5, 20_000.0].map(round), ["0", "1", "10", "0.500", "20\u{202f}000"]);
    }

    #[test]
    fn places_move_apart_and_stay_inside() {
        let mut ys = [10.0, 11.0, 12.0, 99.0];
        spread_out(&mut ys, 20.0, 0.0, 100.0);
        assert_eq!(ys, [10.0, 30.0, 50.0, 99.0]);
        let mut ys = [95.0, 96.0];
        spread_out(&mut ys, 20.0, 0.0, 100.0);
        assert_eq!(ys, [80.0, 100.0]);
    }
}
