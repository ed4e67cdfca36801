//! History files in Jepsen's form, for Elle and other checkers: EDN, one operation a line, an invocation and a completion
//! for each transaction. docs/chaos.md describes the fields.

use std::collections::HashMap;
use std::io::{self, Write};

use super::{Completion, Op, Transaction};

/// The workload of a history file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Elle's `list-append`.
    ListAppend,
    /// Elle's `rw-register`.
    Register,
}

/// Writes a history file.
///
/// # Errors
/// As `out`.
pub fn write(history: &[&Transaction], workload: Workload, out: &mut impl Write) -> io::Result<()> {
    let clients = history.iter().map(|t| t.client + 1).max().unwrap_or(0);
    // Jepsen's processes end with an operation of unknown outcome; the client goes on as another process.
    let mut crashes: HashMap<u64, u64> = HashMap::new();
    let mut by_start: Vec<usize> = (0..history.len()).collect();
    by_start.sort_by_key(|id| (history[*id].client, history[*id].invoked));
    // Time, whether it is a completion, transaction, process. A completion comes before an invocation of the same time.
    let mut events: Vec<(u64, bool, usize, u64)> = Vec::new();
    for id in by_start {
        let transaction = history[id];
        let crashed = crashes.entry(transaction.client).or_default();
        let process = transaction.client + *crashed * clients;
        *crashed += u64::from(transaction.completion == Completion::Unknown);
        events.push((transaction.invoked, true, id, process));
        events.push((transaction.completed.max(transaction.invoked + 1), false, id, process));
    }
    events.sort_unstable();
    for (index, (time, is_invocation, id, process)) in events.into_iter().enumerate() {
        let transaction = history[id];
        let kind = match (is_invocation, transaction.completion) {
            (true, _) => "invoke",
            (false, Completion::Committed) => "ok",
            (false, Completion::Aborted) => "fail",
            (false, Completion::Unknown) => "info",
        };
        let is_known = kind == "ok";
        let ops: Vec<String> = transaction.ops.iter().map(|op| operation(op, workload, is_known)).collect();
        write!(
            out,
            "{{:index {index}, :time {}, :type :{kind}, :process {process}, :f :txn, :value [{}], \
             :transaction {id}, :member {}, :sync-wait {}",
            time * 1000,
            ops.join(" "),
            transaction.member + 1,
            transaction.sync_wait
        )?;
        if let Some(error) = transaction.error.as_ref().filter(|_| !is_invocation) {
            write!(out, ", :error {}", quoted(error))?;
        }
        out.write_all(b"}\n")?;
    }
    Ok(())
}

/// One operation; the result of a read is `nil` until the transaction is known to have committed.
fn operation(op: &Op, workload: Workload, is_known: bool) -> String {
    match op {
        Op::Append { key, element } => match workload {
            Workload::ListAppend => format!("[:append {key} {element}]"),
            Workload::Register => format!("[:w {key} {element}]"),
        },
        Op::Read { key, list } if is_known => {
            let list: Vec<String> = list.iter().map(u64::to_string).collect();
            format!("[:r {key} [{}]]", list.join(" "))
        }
        Op::Value { key, element: Some(element), .. } if is_known => format!("[:r {key} {element}]"),
        Op::Read { key, .. } | Op::Value { key, .. } => format!("[:r {key} nil]"),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}
