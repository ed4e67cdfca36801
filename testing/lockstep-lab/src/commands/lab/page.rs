//! The report of an experiment: a self-contained HTML page, and text for the terminal.

use std::fmt::Write;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use serde_json::Value;

use super::drive::{LINE_LATE, MACHINE_BUSY};
use super::numbers::{DOUBT, Known, number};
use super::origin::mixture;
use super::results::{NOT_CHOSEN, Results};
use super::svg::Chart;

/// The style of all reports; colours of plots by class, light and dark.
const STYLE: &str = include_str!("page.css");

/// A report.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) title: String,
    /// Paragraphs below it.
    pub(super) lead: Vec<String>,
    pub(super) sections: Vec<Section>,
}

/// A part of it: a plot, and the numbers below.
#[derive(Debug, Clone, Default)]
pub(super) struct Section {
    pub(super) heading: String,
    pub(super) text: String,
    pub(super) chart: Option<Chart>,
    pub(super) table: Table,
    /// Below the table.
    pub(super) notes: Vec<String>,
}

/// Longer cells are texts, not numbers, and may wrap.
const LONG: usize = 34;

/// Numbers, in rows; the first cell of each says of what.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// With these names of columns.
    pub(super) fn new(head: &[&str]) -> Table {
        Table { head: head.iter().map(|name| (*name).to_owned()).collect(), rows: Vec::new() }
    }

    /// One more row.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).fold(self.head.len(), usize::max);
        let all = || std::iter::once(&self.head).chain(&self.rows);
        let widths: Vec<usize> = (0..columns)
            .map(|at| all().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = String::new();
        for row in all() {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(at, (cell, width))| match at {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            let _ = writeln!(out, "{}", cells.join("  ").trim_end());
        }
        out
    }

    /// `class` is one of the page's style, or empty.
    fn html(&self, class: &str) -> Markup {
        let words = |text: &str| (text.chars().count() > LONG).then_some("words");
        html! {
            div class="wide" {
                table class=[Some(class).filter(|class| !class.is_empty())] {
                    thead { tr { @for cell in &self.head { th class=[words(cell)] { (cell) } } } }
                    tbody {
                        @for row in &self.rows {
                            tr { @for cell in row { td class=[words(cell)] { (cell) } } }
                        }
                    }
                }
            }
        }
    }
}

/// Claims beside measurements. Unmeasured claims are listed with the reason, and not judged.
#[derive(Debug, Clone)]
pub(super) struct Claims {
    table: Table,
    /// Rows that claim nothing, and need set-ups that were not to be measured.
    left_out: usize,
}

impl Claims {
    /// `what` is the head of the first column.
    pub(super) fn new(what: &str) -> Claims {
        Claims { table: Table::new(&[what, "wanted", "measured", ""]), left_out: 0 }
    }

    fn add(
        &mut self,
        claim: String,
        wanted: String,
        measured: Result<Known, String>,
        met: impl Fn(f64) -> &'static str,
    ) {
        match measured {
            Ok(Known { value, doubtful, partial }) => {
                let doubt = if doubtful { DOUBT } else { "" };
                let partial = partial.map(|partial| format!("({})", partial.text()));
                let verdict: Vec<&str> = [met(value)].into_iter().chain(partial.as_deref()).collect();
                let verdict = verdict.join(" ").trim_start().to_owned();
                self.table.row([claim, wanted, format!("{}{doubt}", number(value)), verdict]);
            }
            Err(why) => self.table.row([claim, wanted, "not measured".into(), why]),
        }
    }

    /// It is to be so much, or more.
    pub(super) fn at_least(
        &mut self,
        claim: impl Into<String>,
        wanted: f64,
        measured: Result<Known, String>,
    ) {
        let met = |measured| if measured >= wanted { "met" } else { "MISSED" };
        self.add(claim.into(), format!("at least {wanted}"), measured, met);
    }

    /// It is to be so much, or less.
    pub(super) fn at_most(&mut self, claim: impl Into<String>, wanted: f64, measured: Result<Known, String>) {
        let met = |measured| if measured <= wanted { "met" } else { "MISSED" };
        self.add(claim.into(), format!("at most {wanted}"), measured, met);
    }

    /// A measurement without a claim.
    pub(super) fn told(&mut self, what: impl Into<String>, measured: Result<Known, String>) {
        match &measured {
            Err(why) if why.split("; ").all(|part| part.ends_with(NOT_CHOSEN)) => self.left_out += 1,
            _ => self.add(what.into(), "–".into(), measured, |_| ""),
        }
    }

    /// As a part of the page.
    pub(super) fn section(self, mut notes: Vec<String>) -> Section {
        if self.left_out > 0 {
            notes.push(format!(
                "Left out: {} further comparisons, with set-ups that were not chosen to be measured.",
                self.left_out
            ));
        }
        Section { heading: "What was claimed".into(), table: self.table, notes, ..Section::default() }
    }
}

/// The one divided by the other, where both were measured; else why not.
pub(super) fn ratio(a: Result<Known, String>, b: Result<Known, String>) -> Result<Known, String> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok(a.by(b)),
        (Err(a), Err(b)) if a != b => Err(format!("{a}; {b}")),
        (Err(why), _) | (_, Err(why)) => Err(why),
    }
}

/// Reasons to doubt the numbers: missing runs, and runs that do not belong together.
fn doubts(results: &Results) -> Vec<Section> {
    let mut sections = Vec::new();
    let missing = results.missing();
    if !missing.is_empty() {
        let mut table = Table::new(&["not measured", "repeats", "because"]);
        for (what, repeats, why) in missing {
            table.row([what, repeats, why.lines().next().unwrap_or_default().to_owned()]);
        }
        sections.push(Section { heading: "What is missing".into(), table, ..Section::default() });
    }
    for (field, head, heading) in [
        (
            LINE_LATE,
            "the delay line was late",
            "What is in doubt (†), because the machine was too busy for the line",
        ),
        (
            MACHINE_BUSY,
            "others had the machine, too",
            "What is in doubt (†), because the machine was busy with something else",
        ),
    ] {
        let mut table = Table::new(&[head, "repeat", "how much"]);
        for (setup, repeat, how) in results.doubtful(field) {
            table.row([setup.to_owned(), repeat.to_string(), how.to_owned()]);
        }
        if !table.rows.is_empty() {
            sections.push(Section { heading: heading.into(), table, ..Section::default() });
        }
    }
    let mixture = mixture(&results.about);
    if !mixture.is_empty() {
        let notes = mixture.into_iter().map(String::from).collect();
        let heading = "These results are mixed: part of them was measured with something else".into();
        sections.push(Section { heading, notes, ..Section::default() });
    }
    sections
}

impl Page {
    /// The tables, for the terminal.
    pub(super) fn text(&self, results: &Results) -> String {
        let mut out = String::new();
        let doubts = doubts(results);
        let shown = |section: &&Section| !section.table.rows.is_empty() || !section.notes.is_empty();
        for section in self.sections.iter().chain(&doubts).filter(shown) {
            let _ = writeln!(out, "\n{}\n", section.heading);
            if !section.table.rows.is_empty() {
                let _ = writeln!(out, "{}", section.table.text());
            }
            for note in &section.notes {
                let _ = writeln!(out, "{note}");
            }
        }
        let _ = writeln!(out, "\n{}", results.repeats_text());
        out
    }

    /// The whole page: the sections, and the machine and versions.
    pub(super) fn html(&self, results: &Results) -> String {
        let repeats = results.repeats_text();
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    main {
                        h1 { (self.title) }
                        @for text in &self.lead { p class="lead" { (text) } }
                        p class="note" { (repeats) }
                        @for section in doubts(results).iter().chain(&self.sections) { (section.html(&repeats)) }
                        (origin(results))
                    }
                }
            }
        };
        page.into_string() + "\n"
    }
}

impl Section {
    /// With this text in the corner of its plot.
    fn html(&self, corner: &str) -> Markup {
        html! {
            section {
                h2 { (self.heading) }
                @if !self.text.is_empty() { p { (self.text) } }
                @if let Some(chart) = &self.chart { figure { (chart.svg(corner)) } }
                @if !self.table.rows.is_empty() { (self.table.html("")) }
                @for note in &self.notes { p class="note" { (note) } }
            }
        }
    }
}

/// The source of the numbers.
fn origin(results: &Results) -> Markup {
    let about = &results.about;
    let mut table = Table::new(&["", ""]);
    table.row(["begun".into(), plain(&about["begun"])]);
    table.row(["load of the machine before".into(), plain(&about["load_before"])]);
    for time in about["resumed"].as_array().into_iter().flatten() {
        table.row(["resumed".into(), plain(&time["at"])]);
    }
    for title in ["machine", "versions", "parameters"] {
        let part = &about[title];
        for (name, value) in part.as_object().into_iter().flatten() {
            table.row([format!("{title}: {}", name.replace('_', " ")), plain(value)]);
        }
    }
    let mut versions: Vec<(String, String)> = Vec::new();
    for run in &results.runs {
        let version = plain(&run["version"]);
        let setup = plain(&run["setup"]);
        match versions.iter_mut().find(|(known, _)| *known == version) {
            Some((_, setups)) if setups.split(", ").any(|known| known == setup) => {}
            Some((_, setups)) => *setups = format!("{setups}, {setup}"),
            None => versions.push((version, setup)),
        }
    }
    for (version, setups) in versions {
        table.row([format!("version: {version}"), setups]);
    }
    html! {
        section {
            h2 { "How this was measured" }
            pre { code { (plain(&about["command"])) } }
            (table.html("facts"))
            @for (name, text) in &results.config {
                details { summary { (name) } pre { code { (text) } } }
            }
        }
    }
}

/// A value without the quotes of JSON.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::lab::markup::texts;
    use crate::commands::lab::svg::{Bar, Bars, Side};
    use serde_json::json;

    fn page() -> (Page, Results) {
        let mut table = Table::new(&["set-up", "inserts/s"]);
        table.row(["no <replica> & more".into(), "1067".into()]);
        table.row(["semi-sync".into(), "11.5".into()]);
        let bar = Bar { label: "semi-sync".into(), value: 11.5, spread: None, side: Side::MariaDb };
        let chart = Chart::Bars(Bars {
            title: "One connection".into(),
            unit: "inserts/s".into(),
            log: false,
            bars: vec![bar],
        });
        let section = Section {
            heading: "Rates <1>".into(),
            text: "what \"it\" is".into(),
            chart: Some(chart),
            table,
            notes: vec!["a & b".into()],
        };
        let page = Page { title: "A & B".into(), lead: vec!["1 < 2".into()], sections: vec![section] };
        let results = Results {
            about: json!({ "experiment": "x", "command": "lockstep lab x --out '<dir>'", "begun": "2030",
                "repeats": 2, "plan": [{ "setup": "alone", "what": "one" }, { "setup": "far", "what": "another" }],
                "resumed": [{ "at": "2031", "differences": ["kernel was 6, and is 7 now"] }],
                "parameters": { "clients": [1, 64] }, "machine": { "processors": 2 } }),
            runs: vec![
                json!({ "setup": "alone", "repeat": 1, "version": "10.11 <x>" }),
                json!({ "setup": "far", "repeat": 1, "version": "10.11 <x>" }),
                json!({ "setup": "alone", "repeat": 2, "version": "10.11 <x>" }),
            ],
            failed: Vec::new(),
            config: vec![("alone-n1.cnf".into(), "[mysqld]\na=<b>&c\n".into())],
        };
        (page, results)
    }

    #[test]
    fn page_is_sound_complete_and_self_contained() {
        let (page, results) = page();
        let html = page.html(&results);
        let texts = texts(&html);
        for text in [
            "A & B",
            "1 < 2",
            "Rates <1>",
            "no <replica> & more",
            "1067",
            "semi-sync",
            "a & b",
            "lockstep lab x --out '<dir>'",
            "1, 64",
            "version: 10.11 <x>",
            "alone, far",
            "alone-n1.cnf",
            "[mysqld]\na=<b>&c",
            "Medians of 1 to 2 repeats, ± standard deviation where there is more than one.",
            "not run yet: go on with --resume",
            "kernel was 6, and is 7 now",
        ] {
            assert!(texts.iter().any(|t| t == text), "{text} is not in {texts:?}");
        }
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!html.contains(outside), "{outside} leads out of the page");
        }
        assert!(html.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn tables_stand_in_the_terminal() {
        let (page, mut results) = page();
        let text = page.text(&results);
        assert!(text.contains("\nset-up               inserts/s\n"), "{text}");
        assert!(text.contains("\nsemi-sync                 11.5\n"), "{text}");
        assert!(text.contains("a & b\n"), "{text}");
        assert!(text.contains("\nanother             2  not run yet"), "{text}");
        results.runs.pop();
        results.about["repeats"] = json!(1);
        assert!(page.text(&results).ends_with("\n1 repeat, no deviation.\n"), "{text}");
    }

    #[test]
    fn unmeasured_claim_names_the_reason() {
        let mut claims = Claims::new("claim");
        let known = |value, doubtful| Ok(Known { value, doubtful, partial: None });
        claims.at_least("a", 2.0, ratio(known(3.0, false), known(1.0, true)));
        claims.at_most("b", 2.0, ratio(known(3.0, false), Err("galera: it broke".into())));
        claims.told("c", ratio(Err("x".into()), Err("y".into())));
        let rows = claims.section(Vec::new()).table.rows;
        assert_eq!(rows[0], ["a", "at least 2", "3.00 †", "met"]);
        assert_eq!(rows[1], ["b", "at most 2", "not measured", "galera: it broke"]);
        assert_eq!(rows[2], ["c", "–", "not measured", "x; y"]);
    }
}
