//! Operator commands to a running member, as JSON in the body of `POST /command` on its Unix socket, and their answers
//! (docs/status.md). TCP allows reading only.

use serde::{Deserialize, Serialize};

/// A command. Any member of a primary component accepts it; the leader executes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Command {
    /// Transfers leadership to this member, after a view that lists it first.
    Switchover {
        /// The member's name, or its id if several have the name.
        to: String,
    },
    /// Removes a member that will not return.
    Remove {
        /// The member's name, or its id if several have the name.
        name: String,
        /// Remove the member also if it is connected. It leaves then.
        #[serde(default)]
        force: bool,
    },
    /// Makes a member without a vote (`member.vote=no`) a voter.
    Promote {
        /// The member's name, or its id if several have the name.
        name: String,
    },
    /// The member that receives this continues alone, without the majority: a new branch (`pc.bootstrap`).
    Bootstrap,
    /// Stops all members with a database at one seqno, for 2.5 s at most. Nothing commits meanwhile.
    Hold,
    /// Ends a [`Command::Hold`].
    Release {
        /// The `id` in the answer to [`Command::Hold`].
        hold: u64,
    },
}

/// The result of a [`Command`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the command succeeded.
    pub ok: bool,
    /// The action taken, or the reason and the remedy: one line.
    pub text: String,
    /// The time that the command took, in seconds.
    pub seconds: f64,
    /// The answer to [`Command::Hold`]: where the members stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// The position at which all members stopped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// The number for [`Command::Release`].
    pub id: u64,
    /// The history.
    pub history: String,
    /// The seqno: everything up to it is committed in each database, and nothing above it.
    pub seqno: i64,
    /// The stopped members.
    pub members: Vec<HeldMember>,
}

/// A member that has stopped.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HeldMember {
    /// `wsrep_node_name`.
    pub name: String,
    /// Its id in the log.
    pub id: String,
    /// Its address for clients.
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
