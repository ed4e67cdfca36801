//! How far an instance's files can be archived when it starts, before it has read the log again.

use super::ArchiveError;
use super::clocks::Clocks;
use crate::event::{Checksum, Group, Header, kind};
use crate::gtid::{Gtid, ReplicaState};
use crate::library::{Library, Position, Step};

/// The end of the last group whose clock is known, as all groups' up to the saved position are. Groups behind it were written
/// just before a crash. `None` if there is no such end.
///
/// # Errors
/// [`ArchiveError`] if the local files cannot be read.
pub fn recovered_end(
    library: &Library,
    clocks: &mut Clocks,
    position: Gtid,
) -> Result<Option<Position>, ArchiveError> {
    let Some(end) = library.end() else { return Ok(None) };
    let last = library.state_at_end().last(position.domain).map_or(0, |gtid| gtid.seqno);
    if last <= position.seqno {
        return Ok(Some(end));
    }
    let mut wanted = ReplicaState::default();
    wanted.set(position);
    let oldest = library.files().first().and_then(|(name, _)| library.number_of(name));
    let at = match library.position_of(&wanted) {
        Ok(start) => start.at,
        // The position may lie before the files: an open streaming transaction holds it back.
        Err(_) => match oldest {
            Some(file) => Position { file, offset: FIRST_EVENT },
            None => return Ok(None),
        },
    };
    let mut reader = library.reader("archive", at)?;
    let mut covered = Some(at).filter(|at| at.offset > FIRST_EVENT);
    let mut group = Group::Outside;
    loop {
        match reader.advance()? {
            Step::Event => {}
            Step::FileEnd => {
                reader.next_file()?;
                continue;
            }
            Step::End => return Ok(covered),
        }
        let wrong = |why: &dyn std::fmt::Display| {
            ArchiveError::Local(format!("an event of {}: {why}", library.dir().display()))
        };
        let kind = Header::parse(reader.event()).map_err(|why| wrong(&why))?.kind;
        let begun = group.pass(kind, reader.event(), Checksum::Crc32).map_err(|why| wrong(&why))?;
        if let Some(begun) = begun {
            let clock = clocks.get(begun.gtid.seqno);
            let clock = clock.map_err(|e| wrong(&format!("its clock cannot be read: {e}")))?;
            if clock.is_none() {
                return Ok(covered);
            }
        }
        // A file that ends after its first event has no list of GTIDs yet.
        if group == Group::Outside && !matches!(kind, kind::FORMAT_DESCRIPTION | kind::ROTATE) {
            covered = Some(reader.position());
        }
    }
}

/// The offset of a file's first event.
const FIRST_EVENT: u64 = crate::event::MAGIC.len() as u64;
