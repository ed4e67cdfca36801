//! The clients whose histories are checked for isolation: transactions of one to four reads and writes of lists or
//! registers, on any member, with and without `wsrep_sync_wait`.

use std::time::Duration;

use lockstep_local::{Client, LocalError, Result};

use super::load::{Dice, Load, Seat, is_conflict, is_definite};
use super::workload::Workload;
use crate::isolation::{Completion, Op, Transaction};

/// Objects that are used at a time.
const IN_USE: u64 = 6;
/// After so long the next object takes the place of one, so that lists stay short: each read keeps a whole list in memory.
const LIFE: Duration = Duration::from_millis(500);
/// How many objects there are: enough for eleven hours.
pub(super) const OBJECTS: u64 = 80_000;
/// A client changes its member once in so many transactions.
const MOVE: u64 = 50;
/// One client in so many only reads.
const READER: u64 = 4;

/// The objects of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Objects {
    /// Rows of `chaos.lists`. Those with even numbers exist from the beginning.
    Lists,
    /// Rows of `chaos.registers`; `chaos.written` is their journal.
    Registers,
}

/// The statements that make the tables.
pub(super) fn tables() -> Vec<String> {
    let last = OBJECTS - 1;
    vec![
        "CREATE TABLE chaos.lists (id INT PRIMARY KEY, list MEDIUMTEXT NOT NULL)".into(),
        "CREATE TABLE chaos.registers (id INT PRIMARY KEY, value BIGINT NOT NULL, version BIGINT NOT NULL)"
            .into(),
        "CREATE TABLE chaos.written (element BIGINT PRIMARY KEY, register INT, version BIGINT)".into(),
        format!("INSERT INTO chaos.lists SELECT seq, '' FROM seq_0_to_{last}_step_2"),
        format!("INSERT INTO chaos.registers SELECT seq, 0, 0 FROM seq_0_to_{last}"),
    ]
}

impl Load {
    /// One client's history. It moves from member to member, and chooses each time whether it waits for all that is
    /// acknowledged (`wsrep_sync_wait`).
    pub(super) fn transactions(&self, objects: Objects, client: u64, mut dice: Dice) -> Vec<Transaction> {
        let mut history = Vec::new();
        let is_reader = client % READER == READER - 1;
        let mut seat = match is_reader {
            true => Seat::reader(self, client as usize),
            false => Seat::new(self, client as usize),
        };
        let mut element = client * 1_000_000_000;
        while self.goes_on() {
            if dice.roll(MOVE) == 0 {
                seat.take(dice.roll(u64::from(u32::MAX)) as usize, dice.roll(2) == 0);
            }
            let first = self.now() / LIFE.as_micros() as u64;
            let (member, sync_wait) = (seat.member(), seat.sync_wait());
            let Some(session) = seat.session() else { continue };
            let mut ops = Vec::new();
            let invoked = self.now();
            let (completion, error) = transaction(session, |session| {
                for _ in 0..1 + dice.roll(4) {
                    let key = (first + dice.roll(IN_USE)) % OBJECTS;
                    if !is_reader && dice.roll(2) == 0 {
                        element += 1;
                        // Noted before it is sent: an error leaves nothing of the transaction either way.
                        ops.push(Op::Append { key, element });
                        objects.write(session, key, element, dice.roll(2) == 0)?;
                    } else {
                        ops.push(objects.read(session, key)?);
                    }
                }
                Ok(())
            });
            let completed = self.now();
            history.push(Transaction {
                ops,
                completion,
                error: error.as_ref().map(LocalError::to_string),
                client,
                member,
                sync_wait,
                invoked,
                completed,
            });
            if let Some(error) = error {
                seat.after(&error);
            }
            self.pause(5);
        }
        history
    }
}

impl Objects {
    /// The name of the workload.
    pub(super) fn name(self) -> &'static str {
        match self {
            Objects::Lists => Workload::ListAppend.name(),
            Objects::Registers => Workload::Register.name(),
        }
    }

    /// `plain`: with an UPDATE, where the row exists for sure.
    fn write(self, session: &mut Client, key: u64, element: u64, plain: bool) -> Result<()> {
        match self {
            Objects::Lists if plain && key.is_multiple_of(2) => session.run(&[&format!(
                "UPDATE chaos.lists SET list = CONCAT(list, ',{element}') WHERE id = {key}"
            )]),
            Objects::Lists => session.run(&[&format!(
                "INSERT INTO chaos.lists VALUES ({key}, ',{element}') \
                 ON DUPLICATE KEY UPDATE list = CONCAT(list, ',{element}')"
            )]),
            Objects::Registers => session.run(&[
                &format!(
                    "UPDATE chaos.registers SET value = {element}, version = version + 1 WHERE id = {key}"
                ),
                &format!(
                    "INSERT INTO chaos.written SELECT value, id, version FROM chaos.registers WHERE id = {key}"
                ),
            ]),
        }
    }

    fn read(self, session: &mut Client, key: u64) -> Result<Op> {
        match self {
            Objects::Lists => {
                let answer = session.query(&format!("SELECT list FROM chaos.lists WHERE id = {key}"))?;
                let list = match answer.rows.is_empty() {
                    true => Vec::new(),
                    false => elements(answer.value()?)?,
                };
                Ok(Op::Read { key, list })
            }
            Objects::Registers => {
                let sql = format!("SELECT value, version FROM chaos.registers WHERE id = {key}");
                let answer = session.query(&sql)?;
                let number = |column| -> Result<u64> {
                    let text = answer.column(column)?;
                    text.parse().map_err(|_| LocalError::Value(format!("a register holds `{text}`")))
                };
                let (value, version) = (number("value")?, number("version")?);
                Ok(Op::Value { key, version, element: (version > 0).then_some(value) })
            }
        }
    }
}

/// Runs a transaction; returns its completion as the client knows it, and the error if there was one.
pub(super) fn transaction(
    client: &mut Client,
    body: impl FnOnce(&mut Client) -> Result<()>,
) -> (Completion, Option<LocalError>) {
    let begun = client.query("BEGIN").map(drop).and_then(|()| body(client));
    let (completion, error) = match begun {
        // COMMIT was not sent yet, so nothing is committed, even if the server died.
        Err(error) => (Completion::Aborted, error),
        Ok(()) => match client.query("COMMIT") {
            Ok(_) => return (Completion::Committed, None),
            Err(error) if is_definite(&error) => (Completion::Aborted, error),
            Err(error) => (Completion::Unknown, error),
        },
    };
    if is_conflict(&error) {
        let _ = client.query("ROLLBACK");
    }
    (completion, Some(error))
}

/// `,1,2` as numbers.
pub(super) fn elements(list: &str) -> Result<Vec<u64>> {
    let number = |text: &str| text.parse().map_err(|_| LocalError::Value(format!("a list holds `{text}`")));
    list.split(',').skip(1).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert!(elements("").unwrap().is_empty());
        assert_eq!(elements(",1,23").unwrap(), [1, 23]);
        assert!(elements(",1,x").is_err());
    }
}
