//! Errors in options: one line each, with the remedy.

use std::fmt;

/// Why options were rejected. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OptionError {
    /// Not `name = value; name = value`.
    Syntax {
        /// The invalid part.
        part: String,
        /// The problem.
        problem: &'static str,
    },
    /// No such option.
    Unknown {
        /// As it was written.
        name: String,
        /// The most similar name.
        nearest: Option<&'static str>,
    },
    /// Not a value of this option, or out of its range.
    Value {
        /// The option.
        name: &'static str,
        /// As it was written.
        value: String,
        /// The expected form.
        expected: String,
    },
    /// A value that Galera accepts, and this version does not.
    Refused {
        /// The option.
        name: &'static str,
        /// As it was written.
        value: String,
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// The option can be set only at the start.
    Fixed {
        /// The option.
        name: &'static str,
    },
    /// Two options that contradict each other.
    Combination {
        /// The problem and the remedy.
        text: String,
    },
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::Syntax { part, problem } => {
                write!(f, "provider options: '{part}' {problem}; write 'name = value; name = value'")
            }
            OptionError::Unknown { name, nearest: Some(nearest) } => {
                write!(f, "Unknown parameter '{name}': did you mean '{nearest}'?")
            }
            OptionError::Unknown { name, nearest: None } => {
                write!(f, "Unknown parameter '{name}': docs/options.md lists them all")
            }
            OptionError::Value { name, value, expected } => {
                write!(f, "provider option {name} = '{value}': must be {expected}")
            }
            OptionError::Refused { name, value, reason } => {
                write!(f, "provider option {name} = '{value}' is refused: {reason}")
            }
            OptionError::Fixed { name } => {
                // A restart may be avoidable.
                let at_once = match *name {
                    "member.vote" | "pc.weight" => " (lockstep promote lets a replica vote at once)",
                    _ => "",
                };
                write!(
                    f,
                    "provider option {name} cannot change while running: set it in the configuration file and \
                     restart{at_once}"
                )
            }
            OptionError::Combination { text } => write!(f, "provider options: {text}"),
        }
    }
}

impl std::error::Error for OptionError {}
