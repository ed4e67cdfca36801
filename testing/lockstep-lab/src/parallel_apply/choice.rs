//! Cases that are asked for by their name, or by parts of it: there are hundreds of them.

use std::str::FromStr;

use super::{Case, Family, Side};

/// Cases by name. A part missing from the name matches any value: `lockstep-writeset` selects that side with all numbers
/// of workers, and `10s-flush` selects all sides on ten schemas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    text: String,
    /// Empty: all.
    sides: Vec<Side>,
    workers: Option<u32>,
    schemas: Option<u32>,
    /// Whether InnoDB's log is flushed, and whether the disk is slow.
    disk: Option<(bool, bool)>,
}

/// Endings of names and their [`Choice::disk`]. The flush alone does not select the slow disk: a full name is one case.
const DISKS: [(&str, (bool, bool)); 4] = [
    ("flush", (true, false)),
    ("relaxed", (false, false)),
    ("flush-slow-disk", (true, true)),
    ("slow-disk", (true, true)),
];

impl Choice {
    /// Whether it is one of these.
    pub fn is(&self, case: &Case) -> bool {
        let Case { side, workers, schemas, flush, slow } = case;
        (self.sides.is_empty() || self.sides.contains(side))
            && self.workers.is_none_or(|asked| asked == *workers)
            && self.schemas.is_none_or(|asked| asked == *schemas)
            && self.disk.is_none_or(|asked| asked == (*flush, *slow))
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Behind a word and the dash after it, if the text begins with that.
fn behind<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(word)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('-') }
}

/// The number before this unit, and the rest of the text, if the text begins with one.
fn counted(text: &str, unit: char) -> (Option<u32>, &str) {
    let (word, rest) = text.split_once('-').unwrap_or((text, ""));
    match word.strip_suffix(unit).and_then(|digits| digits.parse().ok()) {
        Some(count) => (Some(count), rest),
        None => (None, text),
    }
}

/// The sides at the start of a name (one, or all of a family), and the rest of the name.
fn whose(text: &str) -> (Vec<Side>, &str) {
    let one = |side: Side| Some((side, behind(text, &side.name())?));
    // One name may begin as another does: the longer one is meant.
    let longest = Side::EACH.into_iter().filter_map(one).min_by_key(|(_, rest)| rest.len());
    if let Some((side, rest)) = longest {
        return (vec![side], rest);
    }
    for family in Family::EACH {
        if let Some(rest) = behind(text, family.name()) {
            return (Side::EACH.into_iter().filter(|side| side.family() == family).collect(), rest);
        }
    }
    (Vec::new(), text)
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        let (sides, rest) = whose(text);
        let (workers, rest) = counted(rest, 'w');
        let (schemas, rest) = counted(rest, 's');
        let disk = DISKS.iter().find(|(name, _)| *name == rest).map(|(_, disk)| *disk);
        if text.is_empty() || (disk.is_none() && !rest.is_empty()) || text.ends_with('-') {
            let sides: Vec<String> = Side::EACH.into_iter().map(Side::name).collect();
            return Err(format!(
                "there is no such set-up; names are as lockstep-writeset-10w-10s-flush, and parts may be left out: who \
                 (lockstep, mariadb, served, {}), with how many workers (10w), on how many schemas (10s, 1s), on what (flush, relaxed, \
                 slow-disk)",
                sides.join(", ")
            ));
        }
        Ok(Choice { text: text.to_owned(), sides, workers, schemas, disk })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Case> {
        let mut all = Vec::new();
        for side in Side::EACH {
            for workers in [0, 1, 10] {
                for (schemas, flush, slow) in
                    [(1, true, false), (10, true, false), (10, false, false), (10, true, true)]
                {
                    all.push(Case { side, workers, schemas, flush, slow });
                }
            }
        }
        all
    }

    fn chosen(text: &str) -> Vec<Case> {
        let choice: Choice = text.parse().unwrap();
        assert_eq!(choice.text(), text);
        all().into_iter().filter(|case| choice.is(case)).collect()
    }

    #[test]
    fn full_name_selects_one_case() {
        for case in all() {
            assert_eq!(chosen(&case.name()), [case]);
        }
    }

    #[test]
    fn partial_name_matches_any_value() {
        let sides = |text: &str| {
            let mut sides: Vec<Side> = chosen(text).iter().map(|case| case.side).collect();
            sides.sort_unstable();
            sides.dedup();
            sides
        };
        let count = |text: &str| chosen(text).len();
        assert_eq!(sides("lockstep-writeset"), [Side::Writeset]);
        assert_eq!(count("lockstep-writeset"), 12);
        assert_eq!(sides("lockstep"), [Side::Serial, Side::Schema, Side::Writeset]);
        assert_eq!(sides("mariadb").len(), 6);
        assert_eq!(sides("served"), [Side::ServedConservative, Side::ServedOptimistic]);
        assert_eq!(sides("served-optimistic-10w"), [Side::ServedOptimistic]);
        // Not the one whose position is in a file: that has a name of its own.
        assert_eq!(sides("mariadb-conservative"), [Side::Conservative]);
        assert_eq!(sides("mariadb-none-file-0w"), [Side::MariaDbFile]);
        assert_eq!(sides("10w").len(), Side::EACH.len());
        assert_eq!((count("10w"), count("1s"), count("10w-10s-relaxed")), (44, 33, 11));
        assert_eq!((count("lockstep-10w-flush"), count("lockstep-10w")), (6, 12));
        assert_eq!(chosen("slow-disk"), chosen("flush-slow-disk"));
        assert!(chosen("slow-disk").iter().all(|case| case.slow) && count("slow-disk") == 33);
    }

    #[test]
    fn unknown_name_is_refused_with_valid_ones() {
        for text in [
            "",
            "-",
            "writeset",
            "lockstep-",
            "lockstep-fast",
            "mariadb-none-flush-x",
            "10s-10w",
            "w",
            "lockstepper",
        ] {
            let refused = text.parse::<Choice>().unwrap_err();
            assert!(
                refused.contains("lockstep-writeset,") && refused.contains("slow-disk"),
                "{text}: {refused}"
            );
        }
    }
}
