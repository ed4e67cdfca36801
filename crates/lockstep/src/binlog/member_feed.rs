//! A member without a database whose deliveries become binlog files: the parts that all instances have in common.

use super::feed::{FILES, Feed, SavedPosition};
use crate::log_member::{End, MemberArgs, MessageLog, Plan, end_by};
use lockstep_binlog::Writer;
use lockstep_binlog::library::{LibraryError, Visibility};
use lockstep_node::core::Seqno;
use lockstep_node::{Delivery, Level, LocalState, Node};
use std::path::Path;
use std::time::{Duration, Instant};

/// After this long the error log says that the stream waits.
const SAY_AFTER: Duration = Duration::from_secs(10);
/// How long the loop waits for a delivery before it looks after the files.
const IDLE: Duration = Duration::from_millis(200);

/// Validates the arguments of a member that reads the log.
///
/// # Errors
/// A text for people.
pub(super) fn plan_of_reader(mut args: MemberArgs) -> Result<Plan, String> {
    // A reader of the log must not count for majorities unless that is asked for.
    args.options = Some(format!("member.vote=no; {}", args.options.unwrap_or_default()));
    args.plan()
}

/// Opens the binlog files of an instance in the directory `files` of its own, which is made if it is missing.
///
/// # Errors
/// A text for people.
pub(super) fn open_files(dir: &Path, log: &MessageLog) -> Result<(Writer, SavedPosition), String> {
    let files = dir.join("files");
    std::fs::create_dir_all(&files).map_err(|e| {
        format!("cannot create the directory {}: {e}; name another with --dir", files.display())
    })?;
    let saved = SavedPosition::in_dir(&files);
    // Groups that were lost are not in the log from the position on: without this check their seqnos would count as ones
    // without a group, and replicas would never get them.
    let writer = Writer::open_synced(&files, FILES, Visibility::Appended, saved.end()?);
    let writer = writer.map_err(|error| match error {
        LibraryError::Lost { .. } => format!(
            "{error}. The end of the files was lost or damaged. Move the directory {} away, and start this instance again: it \
             begins as with an empty one",
            files.display()
        ),
        error => error.to_string(),
    })?;
    if let Some(torn) = writer.torn() {
        let text =
            format!("{} ended in a torn write, and is cut at byte {}: {}", torn.file, torn.end, torn.why);
        log.write(Level::Info, &text);
    }
    Ok((writer, saved))
}

/// The statement whose result the stream waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wait {
    pub(super) seqno: Seqno,
    pub(super) since: Instant,
}

/// An instance's use of its files.
pub(super) trait Output {
    /// Called in each round, before the files are written. The files end where the last round has left them.
    ///
    /// # Errors
    /// Why the instance must end, for people.
    fn on_round(&mut self, feed: &Feed) -> Result<(), String>;

    /// The stream begins to wait for the result of a statement, or goes on.
    fn on_wait(&mut self, _wait: Option<Wait>) {}
}

/// Says once when the stream waits for the result of a statement for long.
#[derive(Default)]
struct WaitNotice {
    statement: Option<(Wait, bool)>,
}

impl WaitNotice {
    fn look(&mut self, waits_for: Option<Seqno>, log: &MessageLog, output: &mut impl Output) {
        match (&mut self.statement, waits_for) {
            (None, None) => {}
            (Some((wait, said)), Some(now)) if wait.seqno == now => {
                if !*said && wait.since.elapsed() >= SAY_AFTER {
                    *said = true;
                    let text = format!(
                        "the stream waits for the result of the statement at seqno {now}: no server has reported it \
                         yet. It is still being executed, or every server that executed it was lost before its report"
                    );
                    log.write(Level::Warn, &text);
                }
            }
            (_, now) => {
                let wait = now.map(|seqno| Wait { seqno, since: Instant::now() });
                output.on_wait(wait);
                self.statement = wait.map(|wait| (wait, false));
            }
        }
    }
}

/// Writes the deliveries to the files. Returns the end of the deliveries.
pub(super) fn take_deliveries(
    node: &Node,
    mut feed: Feed,
    log: &MessageLog,
    output: &mut impl Output,
) -> End {
    let mut left = false;
    let mut notice = WaitNotice::default();
    loop {
        let delivery = node.next(Some(IDLE), None);
        let had_none = delivery.is_none();
        let end = match delivery {
            Some(Delivery::Donate { id, .. }) => {
                node.donation_done(id, Err(-95));
                None
            }
            Some(Delivery::Ordered(ordered)) => {
                let seqno = ordered.seqno;
                let taken = feed.on_delivery(Delivery::Ordered(ordered));
                node.gone(seqno);
                taken.err().map(End::from)
            }
            Some(delivery) => {
                let taken = feed.on_delivery(delivery.clone());
                taken.err().map(End::from).or_else(|| end_by(delivery, &mut left))
            }
            None => None,
        };
        let is_idle = had_none || node.queued() == 0;
        feed.library().set_behind(node.state() != LocalState::Synced);
        let written = output.on_round(&feed).and_then(|()| match end {
            Some(_) => feed.sync(),
            None if is_idle => feed.on_idle(),
            None if feed.is_sync_due() => feed.sync(),
            None => Ok(None),
        });
        notice.look(feed.waits_for(), log, output);
        match written {
            Ok(finished) => finished.into_iter().for_each(|seqno| node.finished(seqno)),
            Err(text) => return End::Failed(text),
        }
        if let Some(end) = end {
            return end;
        }
        node.handled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_binlog::StreamState;
    use lockstep_binlog::event::{Checksum, FormatDescription};

    #[test]
    fn instance_whose_files_were_lost_does_not_start() {
        let dir = std::env::temp_dir().join(format!("lockstep-binlog-lost-{}", std::process::id()));
        let log = MessageLog::open(Some(dir.with_extension("log"))).unwrap();
        let (mut writer, _) = open_files(&dir, &log).unwrap();
        let format = FormatDescription {
            timestamp: 5,
            server_id: 10,
            version: "10.11.0-MariaDB-lockstep".into(),
            created: 0,
            checksum: Checksum::Crc32,
        };
        writer.begin(1, &format, &StreamState::default()).unwrap();
        let end = writer.end().unwrap().offset;
        drop(writer);
        let position = |offset: u64| {
            let text = format!("{}:7 {FILES}.000001 {offset}\n", lockstep_node::core::Uuid([7; 16]));
            std::fs::write(dir.join("files/position"), text).unwrap();
        };
        position(end);
        drop(open_files(&dir, &log).unwrap());
        position(end + 1);
        let error = open_files(&dir, &log).unwrap_err();
        assert!(error.contains("lost or damaged") && error.contains("Move the directory"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_file(dir.with_extension("log")).unwrap();
    }
}
