//! The tiny database: rows by key, the position that commits with them, and the fragments of open streaming transactions.
//! Kept in memory and in a journal of one JSON line per commit. So a killed process comes back with a prefix of its
//! commits, as InnoDB does.

use crate::state::View;
use lockstep_abi::{Gtid, MemberInfo, Uuid, ViewHead, ViewStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// A change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Writes a row.
    Put(String, String),
    /// Deletes a row.
    Del(String),
    /// Fails on the member of this name when it is applied there: how the tests make members disagree.
    FailOn(String),
}

impl Op {
    /// The row it changes.
    pub fn row(&self) -> Option<&str> {
        match self {
            Op::Put(row, _) | Op::Del(row) => Some(row),
            Op::FailOn(_) => None,
        }
    }
}

/// The lock's name for an extra lock: unlike a row's, it may be wanted by two write-sets that certification
/// lets both pass.
pub fn gap(name: &str) -> String {
    format!("gap:{name}")
}

/// The content of a write-set: changes, and locks that appliers take without a certification key behind them
/// (InnoDB has such: gap locks). It is these that make brute-force aborts of certified transactions happen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The changes.
    pub ops: Vec<Op>,
    /// The locks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<String>,
}

impl Changes {
    /// Bytes for the provider.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising strings and enums into memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The changes in what the provider delivered.
    pub fn decode(data: &[u8]) -> Result<Changes, String> {
        serde_json::from_slice(data).map_err(|error| format!("the write-set does not decode: {error}"))
    }

    /// Everything to lock, sorted so that two who lock the same never wait for each other crosswise.
    pub fn lock_names(&self) -> Vec<String> {
        let rows = self.ops.iter().filter_map(Op::row).map(str::to_owned);
        let mut names: Vec<String> = rows.chain(self.locks.iter().map(|name| gap(name))).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// An open streaming transaction as stored: origin, transaction id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId {
    /// Origin's id in the view.
    pub node: Uuid,
    /// Transaction id there.
    pub trx: u64,
}

impl StreamId {
    fn text(&self) -> String {
        format!("{}/{}", self.node, self.trx)
    }

    fn parse(text: &str) -> Option<StreamId> {
        let (node, trx) = text.split_once('/')?;
        Some(StreamId { node: node.parse().ok()?, trx: trx.parse().ok()? })
    }
}

/// Everything that a state transfer carries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Position, as text.
    pub gtid: String,
    /// Rows.
    pub rows: BTreeMap<String, String>,
    /// Fragments by stream, each with its seqno.
    pub fragments: BTreeMap<String, Vec<(i64, Changes)>>,
    /// The last view that was stored.
    #[serde(default)]
    pub view: Option<StoredView>,
}

/// A primary view as the server keeps it in a table of its own, so that it travels with a state transfer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredView {
    /// Its place, as text.
    pub gtid: String,
    /// Its number.
    pub number: i64,
    /// Capabilities common to all members.
    pub capabilities: u32,
    /// The server's protocol.
    pub protocol: i32,
    /// Members: id, name, address for clients.
    pub members: Vec<(String, String, String)>,
}

impl StoredView {
    /// The form to store.
    pub fn of(view: &View) -> StoredView {
        let members = view.members.iter().map(|m| (m.id.to_string(), m.name(), m.incoming())).collect();
        StoredView {
            gtid: view.head.state_id.to_string(),
            number: view.head.view,
            capabilities: view.head.capabilities,
            protocol: view.head.proto_ver,
            members,
        }
    }

    /// The view, as the member `own` sees it.
    pub fn restore(&self, own: Uuid) -> Option<View> {
        let members: Option<Vec<MemberInfo>> = self
            .members
            .iter()
            .map(|(id, name, incoming)| Some(MemberInfo::new(id.parse().ok()?, name, incoming)))
            .collect();
        let members = members?;
        let my_idx = members.iter().position(|member| member.id == own).map_or(-1, |at| at as i32);
        let head = ViewHead {
            state_id: self.gtid.parse().ok()?,
            view: self.number,
            status: ViewStatus::PRIMARY,
            capabilities: self.capabilities,
            my_idx,
            proto_ver: self.protocol,
        };
        Some(View { head, members })
    }
}

#[derive(Serialize, Deserialize)]
enum Line {
    View(StoredView),
    Snapshot(Snapshot),
    Commit { gtid: String, ops: Vec<Op>, end: Option<String> },
    Fragment { gtid: String, stream: String, seqno: i64, changes: Changes },
    Position(String),
}

/// The database could not be read or written.
#[derive(Debug)]
pub struct StoreError(pub String);

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreError {}

/// The database.
#[derive(Debug, Default)]
pub struct Store {
    state: Snapshot,
    position: Option<Gtid>,
    journal: Option<File>,
    journalled: bool,
}

/// Name of the journal in the data directory.
pub const JOURNAL: &str = "host.journal";

impl Store {
    /// Opens the database in `dir`, recovering what the journal has. With `journalled` off nothing is kept on
    /// disk (for load tests).
    pub fn open(dir: &Path, journalled: bool) -> Result<Store, StoreError> {
        let mut store = Store { journalled, ..Store::default() };
        if !journalled {
            return Ok(store);
        }
        let path = dir.join(JOURNAL);
        let fail = |error: std::io::Error| StoreError(format!("{}: {error}", path.display()));
        if let Ok(file) = File::open(&path) {
            for line in BufReader::new(file).lines() {
                let line = line.map_err(fail)?;
                // A process that was killed may leave half a line at the end.
                let Ok(line) = serde_json::from_str::<Line>(&line) else { break };
                store.replay(line);
            }
        }
        store.rewrite(&path).map_err(fail)?;
        Ok(store)
    }

    /// The position in `dir`'s journal, without opening the database: what a recovery run of a server says.
    pub fn recover_position(dir: &Path) -> Gtid {
        let mut store = Store::default();
        if let Ok(file) = File::open(dir.join(JOURNAL)) {
            for line in BufReader::new(file).lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str::<Line>(&line) else { break };
                store.replay(line);
            }
        }
        store.position()
    }

    /// Puts a transferred snapshot in place of the database in `dir`, which is not open.
    pub fn install(dir: &Path, snapshot: &Snapshot) -> Result<(), StoreError> {
        let mut store = Store { journalled: true, ..Store::default() };
        store.replay(Line::Snapshot(snapshot.clone()));
        let path = dir.join(JOURNAL);
        store.rewrite(&path).map_err(|error| StoreError(format!("{}: {error}", path.display())))
    }

    /// Puts a transferred snapshot in place of this open database.
    pub fn replace(&mut self, dir: &Path, snapshot: Snapshot) -> Result<(), StoreError> {
        self.replay(Line::Snapshot(snapshot));
        if !self.journalled {
            return Ok(());
        }
        let path: PathBuf = dir.join(JOURNAL);
        self.rewrite(&path).map_err(|error| StoreError(format!("{}: {error}", path.display())))
    }

    fn rewrite(&mut self, path: &Path) -> std::io::Result<()> {
        let new = path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&new)?;
        let mut line = serde_json::to_vec(&Line::Snapshot(self.state.clone()))?;
        line.push(b'\n');
        file.write_all(&line)?;
        std::fs::rename(&new, path)?;
        self.journal = Some(file);
        Ok(())
    }

    fn replay(&mut self, line: Line) {
        let gtid = match line {
            Line::View(view) => {
                self.state.view = Some(view);
                return;
            }
            Line::Snapshot(snapshot) => {
                let gtid = snapshot.gtid.clone();
                self.state = snapshot;
                gtid
            }
            Line::Commit { gtid, ops, end } => {
                self.apply(&ops);
                if let Some(stream) = end {
                    self.state.fragments.remove(&stream);
                }
                gtid
            }
            Line::Fragment { gtid, stream, seqno, changes } => {
                self.state.fragments.entry(stream).or_default().push((seqno, changes));
                gtid
            }
            Line::Position(gtid) => gtid,
        };
        self.position = gtid.parse().ok();
        self.state.gtid = gtid;
    }

    fn apply(&mut self, ops: &[Op]) {
        for op in ops {
            match op {
                Op::Put(row, value) => {
                    self.state.rows.insert(row.clone(), value.clone());
                }
                Op::Del(row) => {
                    self.state.rows.remove(row);
                }
                Op::FailOn(_) => {}
            }
        }
    }

    fn log(&mut self, line: Line) -> Result<(), StoreError> {
        if let Some(journal) = &mut self.journal {
            let mut bytes =
                serde_json::to_vec(&line).map_err(|error| StoreError(format!("journal: {error}")))?;
            bytes.push(b'\n');
            journal.write_all(&bytes).map_err(|error| StoreError(format!("journal: {error}")))?;
        }
        self.replay(line);
        Ok(())
    }

    /// Commits changes at a position; `end` names the streaming transaction whose fragments go with it.
    pub fn commit(&mut self, gtid: Gtid, ops: &[Op], end: Option<StreamId>) -> Result<(), StoreError> {
        let end = end.map(|stream| stream.text());
        self.log(Line::Commit { gtid: gtid.to_string(), ops: ops.to_vec(), end })
    }

    /// Removes a stream's fragments; the position stays.
    pub fn forget(&mut self, stream: StreamId) -> Result<(), StoreError> {
        let gtid = self.position();
        self.commit(gtid, &[], Some(stream))
    }

    /// Stores a fragment, its position with it.
    pub fn fragment(&mut self, gtid: Gtid, stream: StreamId, changes: Changes) -> Result<(), StoreError> {
        self.log(Line::Fragment { gtid: gtid.to_string(), stream: stream.text(), seqno: gtid.seqno, changes })
    }

    /// Moves the position alone.
    pub fn checkpoint(&mut self, gtid: Gtid) -> Result<(), StoreError> {
        self.log(Line::Position(gtid.to_string()))
    }

    /// Stores a view; the position stays.
    pub fn store_view(&mut self, view: &View) -> Result<(), StoreError> {
        self.log(Line::View(StoredView::of(view)))
    }

    /// The stored view.
    pub fn view(&self) -> Option<&StoredView> {
        self.state.view.as_ref()
    }

    /// The position.
    pub fn position(&self) -> Gtid {
        self.position.unwrap_or(Gtid::UNDEFINED)
    }

    /// A row.
    pub fn get(&self, row: &str) -> Option<&String> {
        self.state.rows.get(row)
    }

    /// All rows.
    pub fn rows(&self) -> &BTreeMap<String, String> {
        &self.state.rows
    }

    /// The open streaming transactions.
    pub fn streams(&self) -> Vec<(StreamId, Vec<(i64, Changes)>)> {
        let known = self.state.fragments.iter();
        known.filter_map(|(id, parts)| Some((StreamId::parse(id)?, parts.clone()))).collect()
    }

    /// A copy for a state transfer.
    pub fn snapshot(&self) -> Snapshot {
        self.state.clone()
    }

    /// Number of rows and a hash over them and the fragments: equal on members that agree.
    pub fn digest(&self) -> (usize, String) {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut feed = |bytes: &[u8]| {
            for byte in bytes.iter().chain(&[0xff]) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        };
        for (row, value) in &self.state.rows {
            feed(row.as_bytes());
            feed(value.as_bytes());
        }
        for (stream, parts) in &self.state.fragments {
            feed(stream.as_bytes());
            for (seqno, changes) in parts {
                feed(&seqno.to_le_bytes());
                feed(&changes.encode());
            }
        }
        (self.state.rows.len(), format!("{hash:016x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gtid(seqno: i64) -> Gtid {
        Gtid { uuid: Uuid { data: [7; 16] }, seqno }
    }

    #[test]
    fn killed_database_recovers_a_prefix() {
        let dir = std::env::temp_dir().join(format!("lockstep-host-store-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let stream = StreamId { node: Uuid { data: [1; 16] }, trx: 5 };
        let mut store = Store::open(&dir, true).unwrap();
        store.commit(gtid(1), &[Op::Put("t/1".into(), "a".into())], None).unwrap();
        let part = Changes { ops: vec![Op::Put("t/2".into(), "b".into())], locks: vec!["gap".into()] };
        store.fragment(gtid(2), stream, part.clone()).unwrap();
        store.commit(gtid(3), &[Op::Del("t/1".into())], None).unwrap();
        store.checkpoint(gtid(4)).unwrap();
        let digest = store.digest();
        drop(store);

        let mut journal = OpenOptions::new().append(true).open(dir.join(JOURNAL)).unwrap();
        journal.write_all(b"{\"Commit\":{\"gt").unwrap();
        drop(journal);
        assert_eq!(Store::recover_position(&dir), gtid(4));
        let mut store = Store::open(&dir, true).unwrap();
        assert_eq!(store.position(), gtid(4));
        assert_eq!(store.digest(), digest);
        assert_eq!(store.streams(), vec![(stream, vec![(2, part)])]);
        store.forget(stream).unwrap();
        assert_eq!(store.streams(), vec![]);
        assert_ne!(store.digest(), digest);
        assert_eq!(store.position(), gtid(4));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lock_names_are_sorted_and_unique() {
        let changes = Changes {
            ops: vec![Op::Put("t/2".into(), "x".into()), Op::Del("t/1".into()), Op::Del("t/2".into())],
            locks: vec!["gap".into()],
        };
        assert_eq!(changes.lock_names(), ["gap:gap", "t/1", "t/2"]);
        assert_eq!(Changes::decode(&changes.encode()), Ok(changes));
        assert!(Changes::decode(b"nonsense").is_err());
    }
}
