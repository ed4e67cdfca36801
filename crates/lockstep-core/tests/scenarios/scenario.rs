//! The text of a scenario file: its blocks, and the comparison with a trace.

/// A part of a scenario file.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    /// Comment lines and empty lines.
    Text(Vec<String>),
    /// Commands and their expected output.
    Block(Block),
}

/// Commands, and the lines that they print together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// Line number of the first command, from 1.
    line: usize,
    commands: Vec<String>,
    expected: Vec<String>,
}

impl Block {
    /// The commands, each with its line number.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (usize, &str)> {
        self.commands.iter().enumerate().map(|(at, text)| (self.line + at, text.as_str()))
    }
}

/// A parsed scenario file.
///
/// **Invariant:** rendering it with its own expected output gives back a well-formed file byte by byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scenario {
    parts: Vec<Part>,
}

const SEPARATOR: &str = "----";

impl Scenario {
    /// Reads a file.
    ///
    /// # Errors
    /// The line number and the error.
    pub(crate) fn parse(text: &str) -> Result<Scenario, (usize, String)> {
        let lines: Vec<&str> = text.lines().collect();
        let heading = lines.iter().take_while(|line| line.starts_with('#'));
        let prose = heading.filter(|line| line.len() > 1).count();
        if !(3..=8).contains(&prose) {
            return Err((1, format!("begins with {prose} lines of prose, expected 3 to 8")));
        }
        let mut parts = Vec::new();
        let mut at = 0;
        while at < lines.len() {
            let is_text = |line: &&&str| line.is_empty() || line.starts_with('#');
            let text: Vec<String> =
                lines[at..].iter().take_while(is_text).map(|line| (*line).to_string()).collect();
            if !text.is_empty() {
                at += text.len();
                parts.push(Part::Text(text));
                continue;
            }
            let (block, next) = Scenario::block(&lines, at)?;
            parts.push(Part::Block(block));
            at = next;
        }
        Ok(Scenario { parts })
    }

    /// The block that begins at this line, and the line after it.
    fn block(lines: &[&str], at: usize) -> Result<(Block, usize), (usize, String)> {
        let until = |stop: &dyn Fn(&str) -> bool, from: usize| {
            lines[from..].iter().position(|line| stop(line)).map_or(lines.len(), |n| from + n)
        };
        let separator = until(&|line| line == SEPARATOR || line.is_empty(), at);
        if lines.get(separator) != Some(&SEPARATOR) {
            return Err((separator, format!("expected a line {SEPARATOR} after the commands")));
        }
        let end = until(&str::is_empty, separator);
        let owned = |from: usize, to: usize| lines[from..to].iter().map(|line| (*line).to_string()).collect();
        let (commands, expected) = (owned(at, separator), owned(separator + 1, end));
        Ok((Block { line: at + 1, commands, expected }, end))
    }

    /// The blocks in their order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.parts.iter().filter_map(|part| match part {
            Part::Block(block) => Some(block),
            Part::Text(_) => None,
        })
    }

    /// The file with these outputs in place of the expected ones, one for each block.
    pub(crate) fn render(&self, outputs: &[Vec<String>]) -> String {
        let mut outputs = outputs.iter();
        let mut lines = Vec::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => lines.extend(text.iter().cloned()),
                Part::Block(block) => {
                    lines.extend(block.commands.iter().cloned());
                    lines.push(SEPARATOR.to_string());
                    lines.extend(outputs.next().expect("one output for each block").iter().cloned());
                }
            }
        }
        lines.join("\n") + "\n"
    }

    /// The differences between expected and actual outputs, with file and line; `None` if there are none.
    pub(crate) fn difference(&self, file: &str, outputs: &[Vec<String>]) -> Option<String> {
        let mut text = String::new();
        for (block, actual) in self.blocks().zip(outputs) {
            let diff = diff(&block.expected, actual);
            if let Some(first) = diff.iter().position(|(sign, _)| *sign != ' ') {
                // Added lines have no number of their own: count the expected ones before the first difference.
                let line = block.line + block.commands.len() + 1 + first;
                text += &format!("{file}:{line}: the trace differs\n");
                block.commands.iter().for_each(|command| text += &format!("  {command}\n"));
                diff.iter().for_each(|(sign, line)| text += &format!("{sign} {line}\n"));
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

/// A shortest edit from `old` to `new`: `' '` kept, `'-'` removed, `'+'` added.
fn diff<'a>(old: &'a [String], new: &'a [String]) -> Vec<(char, &'a str)> {
    // The longest common subsequence of the lines from (i, j) on.
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = match old[i] == new[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut lines = Vec::new();
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i].as_str()));
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            lines.push(('-', old[i].as_str()));
            i += 1;
        } else {
            lines.push(('+', new[j].as_str()));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# One.\n# Two.\n# Three.\n\nmembers 1 voters\nstatus\n----\na\nb\n\n# And then.\nrun 1s\n----\nc\n";

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_string()).collect()
    }

    #[test]
    fn parsed_file_renders_to_itself() {
        let scenario = Scenario::parse(FILE).unwrap();
        assert_eq!(scenario.render(&[owned(&["a", "b"]), owned(&["c"])]), FILE);
        let commands: Vec<_> = scenario.blocks().flat_map(Block::commands).collect();
        assert_eq!(commands, [(5, "members 1 voters"), (6, "status"), (12, "run 1s")]);
    }

    #[test]
    fn difference_names_file_line_and_command() {
        let scenario = Scenario::parse(FILE).unwrap();
        assert_eq!(scenario.difference("f", &[owned(&["a", "b"]), owned(&["c"])]), None);
        let text = scenario.difference("f", &[owned(&["a", "x", "b"]), owned(&["c"])]).unwrap();
        assert_eq!(text, "f:9: the trace differs\n  members 1 voters\n  status\n  a\n+ x\n  b\n");
    }

    #[test]
    fn malformed_file_is_refused_with_line() {
        assert_eq!(Scenario::parse("status\n----\n").unwrap_err().0, 1);
        let unseparated = "# One.\n# Two.\n# Three.\n\nstatus\n\n";
        assert_eq!(Scenario::parse(unseparated).unwrap_err().0, 5);
    }
}
