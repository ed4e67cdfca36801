//! One command line: words, options, and their values.

use lockstep_core::Micros;
use std::collections::BTreeMap;
use std::str::FromStr;

/// A command line, such as `policy semisync acks=1` or `propose 2 "x=1"`.
///
/// Words and options are taken one by one; [`Command::finish`] refuses what was not taken.
#[derive(Debug)]
pub(crate) struct Command {
    name: String,
    quiet: bool,
    /// The next words, the next one last.
    words: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Command {
    /// Splits a line.
    ///
    /// # Errors
    /// An unclosed quote, or no command.
    pub(crate) fn parse(line: &str) -> Result<Command, String> {
        let mut words = Vec::new();
        let mut options = BTreeMap::new();
        for word in split(line)? {
            match word {
                Word::Quoted(text) => words.push(text),
                Word::Plain(word) => match word.split_once('=') {
                    Some((key, value)) => {
                        options.insert(key.to_string(), value.to_string());
                    }
                    None => words.push(word),
                },
            }
        }
        words.reverse();
        let quiet = words.last().is_some_and(|word| word == "quietly");
        if quiet {
            words.pop();
        }
        let name = words.pop().ok_or("there is no command")?;
        Ok(Command { name, quiet, words, options })
    }

    /// Its first word.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether messages and writes are left out of the output.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The next word.
    pub(crate) fn word(&mut self) -> Result<String, String> {
        self.words.pop().ok_or_else(|| format!("{}: a word is missing", self.name))
    }

    /// The next word, if there is one.
    pub(crate) fn optional_word(&mut self) -> Option<String> {
        self.words.pop()
    }

    /// The next word as a number.
    pub(crate) fn number(&mut self) -> Result<usize, String> {
        let word = self.word()?;
        parse(&self.name, &word)
    }

    /// The next word as a duration: `150ms` or `2s`.
    pub(crate) fn duration(&mut self) -> Result<Micros, String> {
        let word = self.word()?;
        duration(&word)
    }

    /// The value of `key=value`.
    pub(crate) fn option<T: FromStr>(&mut self, key: &str) -> Result<Option<T>, String> {
        self.options.remove(key).map(|value| parse(key, &value)).transpose()
    }

    /// The value of `key=value` as a duration.
    pub(crate) fn duration_option(&mut self, key: &str) -> Result<Option<Micros>, String> {
        self.options.remove(key).map(|value| duration(&value)).transpose()
    }

    /// The value of `key=1,2,3`.
    pub(crate) fn list_option<T: FromStr>(&mut self, key: &str) -> Result<Option<Vec<T>>, String> {
        let parts = |value: String| value.split(',').map(|part| parse(key, part)).collect();
        self.options.remove(key).map(parts).transpose()
    }

    /// Refuses words and options that the command does not know.
    pub(crate) fn finish(self) -> Result<(), String> {
        match self.words.last().or(self.options.keys().next()) {
            Some(rest) => Err(format!("{}: unknown argument {rest:?}", self.name)),
            None => Ok(()),
        }
    }
}

/// Two member numbers of a link, such as `1->2`.
pub(crate) fn link(word: &str) -> Result<(usize, usize), String> {
    let (from, to) =
        word.split_once("->").ok_or_else(|| format!("expected a link such as 1->2, found {word:?}"))?;
    Ok((parse("link", from)?, parse("link", to)?))
}

fn parse<T: FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what}: cannot read {text:?}"))
}

fn duration(text: &str) -> Result<Micros, String> {
    for (unit, micros) in [("us", 1), ("ms", 1_000), ("s", 1_000_000)] {
        if let Some(number) = text.strip_suffix(unit).and_then(|digits| digits.parse::<Micros>().ok()) {
            return Ok(number * micros);
        }
    }
    Err(format!("expected a duration such as 150ms, found {text:?}"))
}

enum Word {
    Plain(String),
    Quoted(String),
}

fn split(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let end = match rest.strip_prefix('"') {
            Some(quoted) => {
                let end = quoted.find('"').ok_or("a quote is not closed")?;
                words.push(Word::Quoted(quoted[..end].to_string()));
                end + 2
            }
            None => {
                let end = rest.find(' ').unwrap_or(rest.len());
                words.push(Word::Plain(rest[..end].to_string()));
                end
            }
        };
        rest = rest[end..].trim_start();
    }
    Ok(words)
}
