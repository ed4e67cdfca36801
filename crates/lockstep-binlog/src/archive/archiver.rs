//! Copies a library's files to an archive, and goes on where the archive ends.

use super::clocks::Clocks;
use super::index::{Indexed, encode_index};
use super::manifest::{Head, Manifest, Mark, Part};
use super::store::{Store, StoreError, Version, When};
use super::{
    ArchiveError, HEAD, digest, file_name, folders, manifest_key, read_head, read_index, read_manifest,
    read_part,
};
use crate::event::{Checksum, Group, GtidEvent, GtidList, Header, MAGIC, kind};
use crate::gtid::StreamState;
use crate::library::{Library, Position, Reader, Step};
use lockstep_core::Uuid;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// A part of this size is not replaced by a larger one.
const PART_BYTES: u64 = 4 << 20;
/// The manifest is put again after so many parts at most.
const PARTS_AT_ONCE: usize = 16;

/// How far a library's files are complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The end of a group.
    pub end: Position,
    /// The stream is complete up to this seqno.
    pub complete: Mark,
    /// A new instance can go on from this position of the log.
    pub resume: Mark,
}

/// The result of [`Archiver::advance`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advance {
    /// The archive has everything.
    Done,
    /// The archive is ahead of the local files.
    Behind,
}

/// Where an instance without files goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartPoint {
    /// The history.
    pub history: Uuid,
    /// The position in the log.
    pub resume: Mark,
    file: String,
    files: String,
    parts: Vec<Part>,
}

/// The result of [`Archiver::expire`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Expired {
    /// The files that were removed.
    pub removed: Vec<String>,
}

/// See the module's documentation.
pub struct Archiver<S> {
    store: S,
    head: Head,
    library: Library,
    clocks: Clocks,
    part_bytes: u64,
    /// `None` until the archive's end is found in the local files.
    current: Option<Current>,
    /// A manifest was there.
    is_begun: bool,
}

/// The file at the archive's end.
struct Current {
    manifest: Manifest,
    /// `None`: it is not stored yet.
    version: Option<Version>,
    reader: Reader,
    group: Group,
    /// The bytes of the file from `begin` to the reader's position: the last part, if it is small.
    begin: u64,
    bytes: Vec<u8>,
    groups: Vec<Indexed>,
    /// Stored, but not listed yet.
    stored: Vec<Part>,
    /// The last group's clock.
    clock: u64,
}

impl Current {
    fn file(&self) -> u64 {
        self.manifest.file
    }

    /// The part in the buffer, with its index.
    fn part(&self) -> (Part, Vec<u8>) {
        let index = encode_index(&self.groups);
        let last = |group: &Indexed| Mark { seqno: group.seqno, clock: group.clock };
        let groups = self.groups.first().map(|first| first.seqno).zip(self.groups.last().map(last));
        let end = self.begin + self.bytes.len() as u64;
        let part =
            Part { begin: self.begin, end, digest: digest(&self.bytes), groups, index: digest(&index) };
        (part, index)
    }
}

impl<S: Store> Archiver<S> {
    /// Continues the archive in `store`, or begins one. The clocks of its groups are in `clocks`.
    ///
    /// # Errors
    /// [`ArchiveError::Refused`] if the archive is of another history or domain.
    pub fn open(store: S, head: Head, library: Library, clocks: Clocks) -> Result<Archiver<S>, ArchiveError> {
        let there = match read_head(&store)? {
            Some(there) => there,
            None => match store.put(HEAD, &head.encode(), &When::Absent) {
                Ok(_) => head.clone(),
                // Another archiver began it.
                Err(StoreError::Conflict) => read_head(&store)?.ok_or(StoreError::Conflict)?,
                Err(error) => return Err(error.into()),
            },
        };
        if there != head {
            let of =
                |head: &Head| format!("history {}, GTIDs {}-{}-…", head.history, head.domain, head.server);
            return Err(ArchiveError::Refused(format!(
                "the archive in {} is of another stream ({}) than this instance's ({}): name another target with --to",
                store.name(),
                of(&there),
                of(&head)
            )));
        }
        Ok(Archiver { store, head, library, clocks, part_bytes: PART_BYTES, current: None, is_begun: false })
    }

    /// Sets the size from which on a part is not replaced.
    #[cfg(test)]
    pub(super) fn set_part_bytes(&mut self, bytes: u64) {
        self.part_bytes = bytes;
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The end of the archive, if it is known: file, bytes, and the last seqno.
    pub fn end(&self) -> Option<(String, u64, Mark)> {
        let current = self.current.as_ref().filter(|current| current.version.is_some())?;
        let manifest = &current.manifest;
        Some((self.name(manifest.file), manifest.end(), manifest.complete))
    }

    fn name(&self, number: u64) -> String {
        file_name(&self.head.files, number)
    }

    /// Copies all up to `to`.
    ///
    /// # Errors
    /// [`ArchiveError`]. If [`ArchiveError::is_transient`], a later call goes on.
    pub fn advance(&mut self, to: &Progress) -> Result<Advance, ArchiveError> {
        let result = self.advance_to(to);
        // The buffers may have more than the manifest lists.
        if result.is_err()
            && let Some(current) = self.current.take()
            && matches!(result, Err(ArchiveError::Store(StoreError::Conflict)))
        {
            // The parts stored just now are not listed, and the other archiver may have gone on to the next file.
            let _ = self.remove_leftovers(current.file());
        }
        result
    }

    fn advance_to(&mut self, to: &Progress) -> Result<Advance, ArchiveError> {
        if self.current.is_none() {
            match self.find_end(to)? {
                Some(current) => self.current = Some(current),
                None => return Ok(Advance::Behind),
            }
        }
        loop {
            let Some(current) = self.current.as_mut() else { return Ok(Advance::Behind) };
            let at = current.reader.position();
            if at >= to.end {
                if at == to.end {
                    self.list(Some(to), None)?;
                }
                return Ok(Advance::Done);
            }
            match current.reader.advance()? {
                Step::Event => self.take_event()?,
                Step::FileEnd => {
                    let file = current.file();
                    let names = self.library.files();
                    let numbers = names.iter().filter_map(|(name, _)| self.library.number_of(name));
                    let next = numbers.into_iter().find(|number| *number > file);
                    self.list(None, next)?;
                    self.remove_leftovers(file)?;
                    let Some(current) = self.current.take() else { return Ok(Advance::Behind) };
                    self.current = self.begin_after(&current.manifest)?;
                }
                Step::End => {
                    return Err(ArchiveError::Refused(format!(
                        "the local files end at {at:?}, before {:?}",
                        to.end
                    )));
                }
            }
        }
    }

    /// Adds the reader's event to the buffer. Stores the buffer if it is large enough.
    fn take_event(&mut self) -> Result<(), ArchiveError> {
        let Some(current) = self.current.as_mut() else { return Ok(()) };
        let event = current.reader.event();
        let begin = current.begin + current.bytes.len() as u64;
        let file = file_name(&self.head.files, current.manifest.file);
        let wrong = |why: &dyn std::fmt::Display| {
            ArchiveError::Refused(format!("the event at byte {begin} of the local file {file} {why}"))
        };
        let header = Header::parse(event).map_err(|why| wrong(&why))?;
        if header.kind == kind::GTID {
            let gtid = GtidEvent::parse(event, Checksum::Crc32).map_err(|why| wrong(&why))?.gtid;
            let clock = self.clocks.get(gtid.seqno).map_err(|e| {
                ArchiveError::Local(format!("cannot read clocks of {}: {e}", self.library.dir().display()))
            })?;
            let clock = clock.ok_or_else(|| {
                ArchiveError::Refused(format!(
                    "the clock of GTID {gtid} is missing in {}: this directory's files were not written by `lockstep \
                     binlog archive`. Start with an empty directory (--dir)",
                    self.library.dir().display()
                ))
            })?;
            current.clock = current.clock.max(clock);
            current.groups.push(Indexed { seqno: gtid.seqno, begin, clock: current.clock });
        }
        if header.kind == kind::GTID_LIST && current.manifest.parts.is_empty() && current.stored.is_empty() {
            let list = GtidList::parse(event, Checksum::Crc32).map_err(|why| wrong(&why))?;
            current.manifest.before = StreamState::from_list(&list.gtids);
            // The archive's first file: the instance that began it has begun there as well.
            let border = current.manifest.before.last(self.head.domain).map_or(0, |gtid| gtid.seqno);
            let is_first = current.manifest.complete == Mark::default();
            if is_first && border > 0 {
                let clock = self.clocks.get(border).map_err(|e| {
                    ArchiveError::Local(format!(
                        "cannot read clocks of {}: {e}",
                        self.library.dir().display()
                    ))
                })?;
                current.manifest.resume = Mark { seqno: border, clock: clock.unwrap_or(0) };
            }
        }
        current.group.pass(header.kind, event, Checksum::Crc32).map_err(|why| wrong(&why))?;
        current.bytes.extend_from_slice(event);
        if current.bytes.len() as u64 >= self.part_bytes {
            self.store_part()?;
        }
        let at_border =
            |current: &Current| current.group == Group::Outside && current.stored.len() >= PARTS_AT_ONCE;
        if self.current.as_ref().is_some_and(at_border) {
            self.list(None, None)?;
        }
        Ok(())
    }

    /// Stores the buffer as a part that is not replaced any more.
    fn store_part(&mut self) -> Result<(), ArchiveError> {
        let file = self.current.as_ref().map_or(0, Current::file);
        let name = self.name(file);
        let Some(current) = self.current.as_mut() else { return Ok(()) };
        let (part, index) = current.part();
        put_part(&self.store, &name, &part, &current.bytes, &index)?;
        current.begin = part.end;
        current.bytes.clear();
        current.groups.clear();
        current.stored.push(part);
        Ok(())
    }

    /// Stores the rest of the buffer, and puts a manifest with all parts. `to`: the reader's position. `next`: the file has
    /// ended, and this one follows.
    fn list(&mut self, to: Option<&Progress>, next: Option<u64>) -> Result<(), ArchiveError> {
        let Some(current) = self.current.as_mut() else { return Ok(()) };
        let name = file_name(&self.head.files, current.manifest.file);
        let mut manifest = current.manifest.clone();
        let first = current.stored.first().map_or(current.begin, |part| part.begin);
        let kept = manifest.parts.partition_point(|part| part.begin < first);
        let mut replaced = manifest.parts.split_off(kept);
        manifest.parts.append(&mut current.stored.clone());
        if !current.bytes.is_empty() {
            let (part, index) = current.part();
            if !replaced.contains(&part) {
                put_part(&self.store, &name, &part, &current.bytes, &index)?;
            }
            manifest.parts.push(part);
        }
        // Another archiver may know more.
        if let Some(to) = to.filter(|to| to.resume.seqno > manifest.resume.seqno) {
            manifest.resume = to.resume;
        }
        // Seqnos and clocks ascend together, although one of these clocks may be unknown, and 0.
        let known = [Some(manifest.resume), manifest.last_group(), to.map(|to| to.complete)];
        for mark in known.into_iter().flatten() {
            manifest.complete.seqno = manifest.complete.seqno.max(mark.seqno);
            manifest.complete.clock = manifest.complete.clock.max(mark.clock);
        }
        manifest.next = next;
        if manifest == current.manifest && current.version.is_some() {
            return Ok(());
        }
        let when = current.version.clone().map_or(When::Absent, When::Is);
        let (key, bytes) = (manifest_key(&name), manifest.encode());
        // A manifest that nobody can read would end the archive for good.
        match Manifest::decode(&bytes) {
            Ok(same) if same == manifest => {}
            Ok(_) => {
                return Err(ArchiveError::Refused(format!("{key} was not written: it reads as another one")));
            }
            Err(why) => return Err(ArchiveError::Refused(format!("{key} was not written: it {why}"))),
        }
        let version = self.store.put(&key, &bytes, &when)?;
        self.is_begun = true;
        current.version = Some(version);
        current.manifest = manifest;
        current.stored.clear();
        replaced.retain(|part| !current.manifest.parts.contains(part));
        for part in replaced {
            let _ = self.store.delete(&part.key(&name));
            let _ = self.store.delete(&part.index_key(&name));
        }
        Ok(())
    }

    /// Finds the end of the archive in the local files. `None` if these do not reach it yet.
    fn find_end(&mut self, to: &Progress) -> Result<Option<Current>, ArchiveError> {
        let Some((manifest, version)) = last_manifest(&self.store, &self.head.files)? else {
            if self.is_begun {
                return Err(ArchiveError::Refused(format!("the archive in {} is gone", self.store.name())));
            }
            let first = self.library.files().first().and_then(|(name, _)| self.library.number_of(name));
            return match first {
                Some(first) => self.begin_file(first, Mark::default(), Mark::default()).map(Some),
                None => Ok(None),
            };
        };
        self.is_begun = true;
        if manifest.next.is_some() {
            self.remove_leftovers(manifest.file)?;
            return self.begin_after(&manifest);
        }
        let (number, end) = (manifest.file, manifest.end());
        if !self.has_file(number)? || (Position { file: number, offset: end }) > to.end {
            return Ok(None);
        }
        let Some(last) = manifest.parts.last().cloned() else {
            return Err(ArchiveError::damaged(&manifest_key(&self.name(number)), "lists no part"));
        };
        let groups = match read_index(&self.store, &self.name(number), &last) {
            // Another archiver has replaced the part meanwhile.
            Err(ArchiveError::Missing { .. })
                if read_manifest(&self.store, &self.head.files, number)?
                    .is_none_or(|(_, now)| now != version) =>
            {
                return Err(StoreError::Conflict.into());
            }
            groups => groups?,
        };
        let mut current = Current {
            reader: self.reader(number, last.begin)?,
            version: Some(version),
            group: Group::Outside,
            begin: last.begin,
            bytes: Vec::new(),
            groups,
            stored: Vec::new(),
            clock: manifest.complete.clock,
            manifest,
        };
        // The last complete mark may lie behind the last group.
        current.clock = current.manifest.last_group().map_or(0, |last| last.clock);
        if last.begin == 0 {
            current.bytes.extend_from_slice(&MAGIC);
        }
        while current.begin + (current.bytes.len() as u64) < last.end {
            match current.reader.advance()? {
                Step::Event => current.bytes.extend_from_slice(current.reader.event()),
                Step::FileEnd | Step::End => break,
            }
        }
        let sum = digest(&current.bytes);
        if sum != last.digest {
            let (name, store) = (self.name(number), self.store.name());
            return Err(ArchiveError::Refused(format!(
                "bytes {} to {} of {name} differ: in the archive in {store} their SHA-256 is {}, in {} it is {sum}. One \
                 of the two is damaged or of another stream",
                last.begin,
                last.end,
                last.digest,
                self.library.dir().join(&name).display()
            )));
        }
        if last.end - last.begin >= self.part_bytes {
            current.begin = last.end;
            current.bytes.clear();
            current.groups.clear();
        }
        self.remove_leftovers(number)?;
        Ok(Some(current))
    }

    /// Whether this file is there. An error if there are only later ones.
    fn has_file(&self, number: u64) -> Result<bool, ArchiveError> {
        let files = self.library.files();
        let numbers: Vec<u64> = files.iter().filter_map(|(name, _)| self.library.number_of(name)).collect();
        match numbers.first() {
            Some(first) if *first > number => Err(ArchiveError::Refused(format!(
                "the archive in {} ends in {}, and the files in {} begin with {}: the transactions in between would be missing. Stop \
                 this instance, and start it with an empty directory (--dir), so that it goes on from the archive's end; or \
                 name another target with --to",
                self.store.name(),
                self.name(number),
                self.library.dir().display(),
                self.name(*first)
            ))),
            _ => Ok(numbers.contains(&number)),
        }
    }

    /// Begins the file after a complete one.
    fn begin_after(&self, manifest: &Manifest) -> Result<Option<Current>, ArchiveError> {
        let Some(next) = manifest.next else { return Ok(None) };
        if !self.has_file(next)? {
            let end = self.library.end();
            return match end.is_some_and(|end| end.file > next) {
                true => Err(ArchiveError::Refused(format!(
                    "in the archive in {} {} follows {}, and in {} it does not",
                    self.store.name(),
                    self.name(next),
                    self.name(manifest.file),
                    self.library.dir().display()
                ))),
                false => Ok(None),
            };
        }
        self.begin_file(next, manifest.resume, manifest.complete).map(Some)
    }

    fn begin_file(&self, number: u64, resume: Mark, complete: Mark) -> Result<Current, ArchiveError> {
        let manifest = Manifest {
            file: number,
            before: StreamState::default(),
            resume,
            complete,
            next: None,
            parts: Vec::new(),
        };
        Ok(Current {
            reader: self.reader(number, 0)?,
            manifest,
            version: None,
            group: Group::Outside,
            begin: 0,
            bytes: MAGIC.to_vec(),
            groups: Vec::new(),
            stored: Vec::new(),
            clock: complete.clock,
        })
    }

    fn reader(&self, number: u64, offset: u64) -> Result<Reader, ArchiveError> {
        let at = Position { file: number, offset: offset.max(MAGIC.len() as u64) };
        Ok(self.library.reader("archive", at)?)
    }

    /// Removes the objects of a file that are not listed, and cannot be any more: listed ends only grow.
    fn remove_leftovers(&self, number: u64) -> Result<(), ArchiveError> {
        let name = self.name(number);
        let Some((manifest, _)) = read_manifest(&self.store, &self.head.files, number)? else {
            return Ok(());
        };
        let listed: Vec<String> =
            manifest.parts.iter().flat_map(|part| [part.key(&name), part.index_key(&name)]).collect();
        for object in self.store.list(&name)? {
            let key = format!("{name}/{object}");
            let is_covered = Part::end_in_name(&object).is_some_and(|end| end <= manifest.end());
            if is_covered && !listed.contains(&key) {
                self.store.delete(&key)?;
            }
        }
        Ok(())
    }

    /// Removes the files whose last group is older than this clock, the oldest first, and each one's manifest before its
    /// parts. The last file with a manifest stays: without it the archive would have no end to go on from.
    ///
    /// # Errors
    /// [`ArchiveError`]; a later call goes on.
    pub fn expire(&self, before: u64) -> Result<Expired, ArchiveError> {
        let mut expired = Expired::default();
        let Some((last, _)) = last_manifest(&self.store, &self.head.files)? else { return Ok(expired) };
        let numbers = folders(&self.store, &self.head.files)?;
        for number in numbers.iter().take_while(|number| **number < last.file) {
            let name = self.name(*number);
            match read_manifest(&self.store, &self.head.files, *number)? {
                Some((manifest, _)) if manifest.next.is_none() || manifest.complete.clock >= before => break,
                Some(_) => {
                    self.store.delete(&manifest_key(&name))?;
                    self.remove_objects(&name)?;
                    expired.removed.push(name);
                }
                // A removal that was interrupted.
                None => self.remove_objects(&name)?,
            }
        }
        Ok(expired)
    }

    fn remove_objects(&self, name: &str) -> Result<(), ArchiveError> {
        for object in self.store.list(name)? {
            self.store.delete(&format!("{name}/{object}"))?;
        }
        Ok(())
    }

    /// The number of the file at the archive's end, once it is known: older local files are archived.
    pub fn file(&self) -> Option<u64> {
        self.current.as_ref().map(Current::file)
    }

    /// The last mark of [`Manifest::resume`] that the archive has.
    pub fn resume(&self) -> Option<Mark> {
        self.current.as_ref().map(|current| current.manifest.resume)
    }
}

fn put_part<S: Store>(
    store: &S,
    file: &str,
    part: &Part,
    bytes: &[u8],
    index: &[u8],
) -> Result<(), ArchiveError> {
    store.put(&part.key(file), bytes, &When::Always)?;
    store.put(&part.index_key(file), index, &When::Always)?;
    Ok(())
}

/// The manifest of the last file that has one.
fn last_manifest(store: &dyn Store, files: &str) -> Result<Option<(Manifest, Version)>, ArchiveError> {
    for number in folders(store, files)?.into_iter().rev() {
        if let Some(found) = read_manifest(store, files, number)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

impl StartPoint {
    /// The end of an archive; `None` if it is empty.
    ///
    /// # Errors
    /// [`ArchiveError`] if the archive is damaged.
    pub fn find(store: &dyn Store) -> Result<Option<StartPoint>, ArchiveError> {
        let Some(head) = read_head(store)? else { return Ok(None) };
        let Some((manifest, _)) = last_manifest(store, &head.files)? else { return Ok(None) };
        let file = file_name(&head.files, manifest.file);
        let Head { files, history, .. } = head;
        Ok(Some(StartPoint { history, resume: manifest.resume, file, files, parts: manifest.parts }))
    }

    /// Gets the archive's last file. `dir` is the library's directory. The caller has saved the position before: without
    /// the file it calls this again, but without the position it could not go on from the file.
    ///
    /// # Errors
    /// [`ArchiveError`] if the archive is damaged, or the file cannot be written.
    pub fn fetch(&self, store: &dyn Store, dir: &Path) -> Result<(), ArchiveError> {
        let (path, temporary) = (dir.join(&self.file), dir.join(format!("{}.new", self.files)));
        let failed = |e: std::io::Error| ArchiveError::Local(format!("cannot write {}: {e}", path.display()));
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o640).open(&temporary);
        let mut file = file.map_err(failed)?;
        for part in &self.parts {
            file.write_all(&read_part(store, &self.file, part)?).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        std::fs::rename(&temporary, &path).map_err(failed)?;
        std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}
