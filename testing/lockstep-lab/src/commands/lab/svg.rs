//! Plots as SVG that stands in a page of HTML: the page's style gives them their colours, light and dark, by class.

use maud::{Markup, html};

use super::numbers::{Stat, number};

/// The page's style has so many shades of each side's colour: the classes `c0` to `c2` are MariaDB's, and so on.
const SHADES: usize = 3;
const WIDTH: f64 = 900.0;
/// The height of a bar with the room around it.
const ROW: f64 = 32.0;

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

/// The number of this set-up among all of its side that the experiment knows. So it looks the same in each plot, also in
/// plots without the others.
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
    pub(super) fn svg(&self, corner: &str) -> Markup {
        match self {
            Chart::Bars(bars) => bars.svg(corner),
            Chart::Lines(lines) => lines.svg(corner),
        }
    }
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

type Place = (f64, f64);

/// A coordinate, to a tenth of a pixel.
fn px(place: f64) -> String {
    format!("{place:.1}")
}

fn picture(height: f64, title: &str, content: &Markup) -> Markup {
    html! {
        svg viewBox=(format!("0 0 {WIDTH:.0} {height:.0}")) role="img" aria-label=(title) {
            text class="title" x="0" y="20" { (title) }
            (content)
        }
    }
}

fn line(class: &str, (x1, y1): Place, (x2, y2): Place) -> Markup {
    html! { line class=(class) x1=(px(x1)) y1=(px(y1)) x2=(px(x2)) y2=(px(y2)) {} }
}

/// `anchor` is start, middle or end.
fn text(class: &str, anchor: &str, (x, y): Place, text: &str) -> Markup {
    html! { text class=(class) text-anchor=(anchor) x=(px(x)) y=(px(y)) { (text) } }
}

/// A rectangle with round corners, from its upper left corner on.
fn bar(class: &str, (x, y): Place, (width, height): Place) -> Markup {
    html! { rect class=(class) x=(px(x)) y=(px(y)) width=(px(width)) height=(px(height)) rx="2" {} }
}

fn points(places: &[Place]) -> String {
    places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// The axis's quantity.
fn unit(name: &str, log: bool) -> String {
    if log { format!("{name} (logarithmic)") } else { name.to_owned() }
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
    fn svg(&self, corner: &str) -> Markup {
        let mut sides = Side::EACH.to_vec();
        sides.retain(|side| self.bars.iter().any(|bar| bar.side == *side));
        let has_legend = sides.len() > 1;
        let top = if has_legend { 62.0 } else { 36.0 };
        let bottom = top + ROW * self.bars.len() as f64;
        let left = self.bars.iter().map(|bar| width(&bar.label)).fold(80.0, f64::max).min(420.0) + 12.0;
        let most = self.bars.iter().flat_map(|bar| [bar.value, bar.value + bar.spread.unwrap_or(0.0)]);
        // Room for the longest bar's value.
        let right = WIDTH - 110.0;
        let axis = Axis::over(most, self.log, left, right);
        let legend = sides.iter().scan(left, |next, side| {
            let x = *next;
            *next += width(side.name()) + 44.0;
            Some((x, side))
        });
        let content = html! {
            @if has_legend {
                @for (x, side) in legend {
                    (bar(&side.class(0), (x, 34.0), (12.0, 12.0)))
                    (text("label", "start", (x + 18.0, 44.5), side.name()))
                }
            }
            @for (tick, x) in axis.ticks.iter().map(|tick| (*tick, axis.at(*tick))) {
                (line("grid", (x, top - 4.0), (x, bottom + 2.0)))
                (text("tick", "middle", (x, bottom + 18.0), &round(tick)))
            }
            @for (row, bar) in self.bars.iter().enumerate() { (bar.svg(&axis, top + ROW * row as f64)) }
            (line("axis", (left, top - 4.0), (left, bottom + 2.0)))
            (text("unit", "middle", (f64::midpoint(left, right), bottom + 40.0), &unit(&self.unit, self.log)))
            (text("tick", "end", (WIDTH, bottom + 62.0), corner))
        };
        picture(bottom + 68.0, &self.title, &content)
    }
}

impl Bar {
    /// With its label, whiskers and value, in the row that begins at `top`.
    fn svg(&self, axis: &Axis, top: f64) -> Markup {
        let (left, middle) = (axis.from, top + ROW / 2.0);
        let end = axis.at(self.value);
        let whiskers = self.spread.map(|spread| (axis.at(self.value - spread), axis.at(self.value + spread)));
        let after = whiskers.map_or(end, |(_, to)| to);
        html! {
            (text("label", "end", (left - 8.0, middle + 4.5), &self.label))
            @if self.value.is_finite() {
                (bar(&self.side.class(0), (left, top + 5.0), ((end - left).max(1.0), ROW - 10.0)))
                @if let Some((from, to)) = whiskers {
                    (line("whisker", (from, middle), (to, middle)))
                    @for x in [from, to] { (line("whisker", (x, middle - 4.0), (x, middle + 4.0))) }
                }
                (text("value", "start", (after + 6.0, middle + 4.5), &number(self.value)))
            } @else {
                (text("value", "start", (left + 6.0, middle + 4.5), "not measured"))
            }
        }
    }
}

impl Lines {
    fn svg(&self, corner: &str) -> Markup {
        let names = self.series.iter().map(|series| width(&series.name)).fold(60.0, f64::max).min(330.0);
        let (left, right) = (74.0, WIDTH - names - 50.0);
        let (top, bottom) = (58.0, 58.0 + (22.0 * self.series.len() as f64).max(340.0));
        let (across, up) = self.axes((left, right), (bottom, top));
        // Names stand where the lines end, moved apart where those are close.
        let ends = self
            .series
            .iter()
            .map(|series| series.way(&across, &up).last().copied().unwrap_or((right, bottom)));
        let mut ends: Vec<(&Series, Place)> = self.series.iter().zip(ends).collect();
        ends.sort_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let mut labels: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
        spread_out(&mut labels, 19.0, top, bottom);
        let content = html! {
            (text("unit", "start", (0.0, 44.0), &unit(&self.y, self.y_log)))
            @for (tick, y) in up.ticks.iter().map(|tick| (*tick, up.at(*tick))) {
                (line("grid", (left, y), (right, y)))
                (text("tick", "end", (left - 8.0, y + 4.0), &round(tick)))
            }
            @for (tick, x) in across.ticks.iter().map(|tick| (*tick, across.at(*tick))) {
                (line("grid", (x, top), (x, bottom + 5.0)))
                (text("tick", "middle", (x, bottom + 20.0), &round(tick)))
            }
            (line("axis", (left, bottom), (right, bottom)))
            (text("unit", "middle", (f64::midpoint(left, right), bottom + 42.0), &self.x))
            (text("tick", "end", (WIDTH, bottom + 62.0), corner))
            @for series in &self.series { (series.svg(&across, &up)) }
            @for ((series, (x, y)), label) in ends.into_iter().zip(labels) {
                @if series.places(&across, &up).is_empty() {
                    (text("tick", "start", (right + 34.0, label + 4.5), &format!("{} (not measured)", series.name)))
                } @else {
                    (line("leader", (x + 7.0, y), (right + 16.0, label)))
                    (series.marker((right + 24.0, label)))
                    (text("label", "start", (right + 34.0, label + 4.5), &series.name))
                }
            }
        };
        picture(bottom + 68.0, &self.title, &content)
    }

    /// Along x and along y, between these places.
    fn axes(&self, (left, right): Place, (bottom, top): Place) -> (Axis, Axis) {
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
        (across, Axis::over(most, self.y_log, bottom, top))
    }
}

impl Series {
    /// The points.
    fn places(&self, across: &Axis, up: &Axis) -> Vec<Place> {
        let known = self.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite());
        known.map(|p| (across.at(p.0), up.at(p.1))).collect()
    }

    /// The line, extended to the right if it is level.
    fn way(&self, across: &Axis, up: &Axis) -> Vec<Place> {
        let mut way = self.places(across, up);
        if let (true, [(_, y)]) = (self.level, &way[..]) {
            way.push((across.to, *y));
        }
        way
    }

    fn svg(&self, across: &Axis, up: &Axis) -> Markup {
        let (places, way) = (self.places(across, up), self.way(across, up));
        let level = if way.len() > places.len() { "level" } else { "" };
        let class = format!("line {} {} {level}", self.side.class(self.variant), self.side.dashes());
        let class = class.split_whitespace().collect::<Vec<_>>().join(" ");
        let whiskers = self.points.iter().filter_map(|(x, y, spread)| {
            let spread = spread.filter(|spread| spread.is_finite())?;
            Some((across.at(*x), up.at(y - spread), up.at(y + spread)))
        });
        html! {
            polyline class=(class) points=(points(&way)) {}
            @for (x, low, high) in whiskers { (line("whisker", (x, low), (x, high))) }
            @for place in places { (self.marker(place)) }
        }
    }

    /// With the shade it tells one of a side from fourteen others.
    fn marker(&self, (x, y): Place) -> Markup {
        let class = self.side.class(self.variant);
        let corners: &[Place] = match self.variant % 5 {
            0 => return html! { circle class=(class) cx=(px(x)) cy=(px(y)) r="4.5" {} },
            1 => &[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)],
            2 => &[(0.0, -5.5), (5.5, 4.0), (-5.5, 4.0)],
            3 => &[(0.0, -6.0), (6.0, 0.0), (0.0, 6.0), (-6.0, 0.0)],
            _ => &[(0.0, 5.5), (5.5, -4.0), (-5.5, -4.0)],
        };
        let corners: Vec<Place> = corners.iter().map(|(dx, dy)| (x + dx, y + dy)).collect();
        html! { polygon class=(class) points=(points(&corners)) {} }
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
    use crate::commands::lab::markup::texts;

    /// Its elements, a line each.
    fn drawn(picture: Markup) -> String {
        picture.into_string().replace("><", ">\n<")
    }

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
    fn bars_have_each_label_and_value() {
        let svg = drawn(Chart::Bars(bars()).svg("3 repeats"));
        let texts = texts(&svg);
        for text in
            ["no replica", "semi-sync <far>", "11.5", "1067", "900", "not measured", "Lockstep", "3 repeats"]
        {
            assert!(texts.iter().any(|t| t == text), "{text} is not in {texts:?}");
        }
        assert!(texts[0].contains("<per>") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn longer_bars_are_larger_values() {
        let svg = drawn(bars().svg(""));
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
    fn lines_have_each_name_and_whisker() {
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
        let svg = drawn(Chart::Lines(chart).svg("3 repeats"));
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
        let (svg, right) = (drawn(lines.svg("")), WIDTH - 60.0 - 50.0);
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
            let bars = Bars { title: "t".into(), unit: "u".into(), log: false, bars: vec![bar] };
            let bars = drawn(bars.svg(""));
            assert!(bars.contains(&format!("<rect class=\"{}\"", side.class(0))), "{bars}");
            for variant in 0..15 {
                let points = vec![(1.0, 1.0, None), (2.0, 3.0, None)];
                let series = vec![Series { name: "s".into(), side, variant, points, level: false }];
                let (title, x, y) = ("t".into(), "x".into(), "y".into());
                let lines = drawn(Lines { title, x, y, x_log: false, y_log: false, series }.svg(""));
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
