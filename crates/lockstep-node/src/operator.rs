//! Operator commands to a running member, as JSON in the body of `POST /command` on its Unix socket, and their answers
//! (docs/status.md). TCP allows reading only.

use serde::{Deserialize, Serialize};

/// A command. Any member of a primary component accepts it; the leader executes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Leadership goes to this member, after a view that lists it first.
    Switchover {
        /// Its name, or its id where several have the name.
        to: String,
    },
    /// A member that will not return is none any more.
    Remove {
        /// Its name, or its id where several have the name.
        name: String,
        /// Also if it is connected: it is told to leave.
        #[serde(default)]
        force: bool,
    },
    /// A member that does not vote (`member.vote=no`) becomes a voter.
    Promote {
        /// Its name, or its id where several have the name.
        name: String,
    },
    /// The member that takes this goes on alone, without the majority: a new branch (`pc.bootstrap`).
    Bootstrap,
    /// All members with a database stand at one seqno, for 2.5 s at most: nothing commits meanwhile.
    Hold,
    /// They go on.
    Release {
        /// What the answer to [`Command::Hold`] said.
        hold: u64,
    },
}

/// The result of a [`Command`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it has been done.
    pub ok: bool,
    /// The action taken, or the reason and the remedy: one line.
    pub text: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// To [`Command::Hold`]: where they stand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// Where all members stand.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// For [`Command::Release`].
    pub id: u64,
    /// The history.
    pub history: String,
    /// The seqno: everything up to it is committed in each database, and nothing above it.
    pub seqno: i64,
    /// Who stands.
    pub members: Vec<HeldMember>,
}

/// One of them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HeldMember {
    /// `wsrep_node_name`.
    pub name: String,
    /// Its id in the log.
    pub id: String,
    /// Where clients reach it.
    pub incoming: String,
}

impl Command {
    /// Reads the body of a request.
    ///
    /// # Errors
    /// The error, in one line.
    pub fn parse(body: &[u8]) -> Result<Command, String> {
        serde_json::from_slice(body).map_err(|e| {
            format!("this is no command that this version knows ({e}); there are switchover, remove, promote, bootstrap, hold and release")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_and_nonsense_is_named() {
        let read = |text: &str| Command::parse(text.as_bytes());
        assert_eq!(
            read(r#"{"command":"switchover","to":"n2"}"#),
            Ok(Command::Switchover { to: "n2".into() })
        );
        assert_eq!(
            read(r#"{"command":"remove","name":"n3"}"#),
            Ok(Command::Remove { name: "n3".into(), force: false })
        );
        assert_eq!(read(r#"{"command":"promote","name":"n3"}"#), Ok(Command::Promote { name: "n3".into() }));
        for bad in ["", "{}", r#"{"command":"promote"}"#, r#"{"command":"switchover"}"#, "[1]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
