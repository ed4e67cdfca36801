//! Saved options: an apply hold set at run time (`apply.paused`, `apply.delay`, `apply.until`) stays in force until it is set
//! again, also after a crash or restart. It may be the only protection of the database from a wrong `DELETE`.
//!
//! A small file beside the log stores it (docs/format-disk.md), together with the configured value of that time. If the
//! configuration differs at a later start, it was changed since, and wins. If the file is unreadable, all entries are held
//! back, because the intended hold is unknown.

use lockstep_node::options::{Change, Note, Options};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file's name. State-transfer scripts keep files with this ending.
const FILE: &str = "lockstep.apply.log";
/// The file's name while it is written.
const NEW: &str = "lockstep.apply.new.log";
const TITLE: &str = "lockstep apply 1";
/// The saved options, in the order of the file.
const NAMES: [&str; 3] = ["apply.delay", "apply.paused", "apply.until"];

/// An option that was set while the server ran.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Set {
    live: String,
    /// The configured value at that time.
    configured: String,
}

type Sets = BTreeMap<&'static str, Set>;

/// See the module.
#[derive(Debug)]
pub(crate) struct SavedOptions {
    dir: PathBuf,
    /// The configuration of this start.
    configured: Options,
    sets: Sets,
}

impl SavedOptions {
    /// Reads the file into the options of this start. Returns lines for the log, too.
    ///
    /// # Errors
    /// The file exists and cannot be read.
    pub(crate) fn open(dir: &Path, options: &mut Options) -> Result<(SavedOptions, Vec<Note>), String> {
        let path = dir.join(FILE);
        let mut saved = SavedOptions { dir: dir.to_owned(), configured: options.clone(), sets: Sets::new() };
        let mut notes = Vec::new();
        let note = |text| Note { warn: true, text };
        let text = match std::fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((saved, notes)),
            Err(error) => {
                let remedy = crate::lifecycle::state_files::remedy(&error, &path);
                let what = "the file of the saved apply hold";
                return Err(format!("cannot read {}, {what}: {error}{remedy}", path.display()));
            }
        };
        let Some(sets) = parse(&text).filter(|sets| sets.iter().all(|(name, set)| is_known(name, set)))
        else {
            let (live, configured) = ("yes".to_owned(), options.text("apply.paused"));
            let _ = options.set("apply.paused=yes", false);
            saved.sets.insert("apply.paused", Set { live, configured });
            notes.push(note(format!(
                "{} cannot be read, so the saved apply hold is unknown: this server applies nothing \
                 (apply.paused=yes) until you set apply.paused=no",
                path.display()
            )));
            return Ok((saved, notes));
        };
        for (name, set) in sets {
            let Set { live, configured } = &set;
            let now = options.text(name);
            if !alike(name, configured, &now) {
                notes.push(note(format!(
                    "{name} is {now}, from the configuration, which has changed (from {configured}) since SET GLOBAL \
                     set {live}"
                )));
            } else if options.set(&format!("{name}={live}"), false).is_ok() {
                notes.push(note(format!(
                    "{name} is {live}, as SET GLOBAL set it before this start, and not {now}, the value in the \
                     configuration, until it is set again"
                )));
                saved.sets.insert(name, set);
            }
        }
        Ok((saved, notes))
    }

    /// Options have changed while the server runs; `options`: the present ones. Returns when the file is durable.
    ///
    /// # Errors
    /// A line for people: the change is in force, and would be lost at a new start.
    pub(crate) fn changed(&mut self, options: &Options, changes: &[Change]) -> Result<(), String> {
        let touched: Vec<&'static str> =
            NAMES.into_iter().filter(|name| changes.iter().any(|c| c.name == *name)).collect();
        if touched.is_empty() {
            return Ok(());
        }
        for name in touched {
            let (live, configured) = (options.text(name), self.configured.text(name));
            match alike(name, &live, &configured) {
                true => drop(self.sets.remove(name)),
                false => drop(self.sets.insert(name, Set { live, configured })),
            }
        }
        self.write().map_err(|error| {
            format!(
                "{} cannot be written: {error}. The apply hold is in force, but a restart would end it: set it in the \
                 configuration, too",
                self.dir.join(FILE).display()
            )
        })
    }

    /// The settings in force because of it, for people.
    pub(crate) fn list(&self) -> Vec<String> {
        self.sets.iter().map(|(name, set)| format!("{name}={}", set.live)).collect()
    }

    fn write(&self) -> io::Result<()> {
        let path = self.dir.join(FILE);
        if self.sets.is_empty() {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        } else {
            let new = self.dir.join(NEW);
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(to_text(&self.sets).as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
        }
        File::open(&self.dir)?.sync_all()
    }
}

/// Whether two ways to write an option's value mean the same.
fn alike(name: &str, one: &str, other: &str) -> bool {
    let value = |text: &str| {
        let mut options = Options::default();
        options.set(&format!("{name}={text}"), false).ok().map(|_| options.tuning().apply_hold)
    };
    one == other || value(one).is_some_and(|one| Some(one) == value(other))
}

fn is_known(name: &str, set: &Set) -> bool {
    Options::default().set(&format!("{name}={}", set.live), false).is_ok()
}

fn to_text(sets: &Sets) -> String {
    let mut text = format!("{TITLE}\n");
    for (name, Set { live, configured }) in sets {
        text += &format!("{name}\nlive {live}\nconfigured {configured}\n");
    }
    format!("{text}sum {:08x}\n", crc32c::crc32c(text.as_bytes()))
}

fn parse(text: &str) -> Option<Sets> {
    let (said, sum) = text.strip_suffix('\n')?.rsplit_once("sum ")?;
    (sum == format!("{:08x}", crc32c::crc32c(said.as_bytes()))).then_some(())?;
    let mut lines = said.lines();
    (lines.next()? == TITLE).then_some(())?;
    let mut sets = Sets::new();
    while let Some(line) = lines.next() {
        let name = NAMES.into_iter().find(|name| *name == line)?;
        let mut next = |key: &str| lines.next()?.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned);
        sets.insert(name, Set { live: next("live")?, configured: next("configured")? });
    }
    Some(sets)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let dir =
                std::env::temp_dir().join(format!("lockstep-saved-options-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).unwrap();
            Folder(dir)
        }

        /// A start with this configuration.
        fn start(&self, text: &str) -> (SavedOptions, Options, Vec<String>) {
            let mut options = Options::parse(text).unwrap();
            let (saved, notes) = SavedOptions::open(&self.0, &mut options).unwrap();
            (saved, options, notes.into_iter().map(|note| note.text).collect())
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn set(saved: &mut SavedOptions, options: &mut Options, text: &str) {
        let changes = options.set(text, true).unwrap();
        saved.changed(options, &changes).unwrap();
    }

    #[test]
    fn saved_option_survives_restart_until_changed() {
        let folder = Folder::new("holds");
        let (mut saved, mut options, notes) = folder.start("");
        assert!(notes.is_empty() && saved.list().is_empty());
        set(&mut saved, &mut options, "apply.paused=yes; apply.until=2026-11-22 10:00:00; debug=yes");
        let hold = options.tuning().apply_hold;
        assert!(hold.paused && hold.until.is_some());
        // Without being closed, and as often as it may be.
        for _ in 0..2 {
            let (saved, options, notes) = folder.start("");
            assert_eq!(options.tuning().apply_hold, hold);
            assert_eq!(saved.list(), ["apply.paused=yes", "apply.until=2026-11-22 10:00:00"]);
            assert!(notes.len() == 2 && notes[0].contains("apply.paused is yes, as SET GLOBAL set it"));
        }
        let (mut saved, mut options, _) = folder.start("");
        set(&mut saved, &mut options, "apply.paused=no");
        assert_eq!(folder.start("").0.list(), ["apply.until=2026-11-22 10:00:00"]);
        set(&mut saved, &mut options, "apply.until=none");
        assert!(!folder.0.join(FILE).exists());
        assert!(!folder.start("").1.tuning().apply_hold.is_set());
    }

    #[test]
    fn changed_configuration_overrides_saved_option() {
        let folder = Folder::new("since");
        let (mut saved, mut options, _) = folder.start("apply.delay=1h");
        set(&mut saved, &mut options, "apply.delay=0; apply.paused=yes");
        // The same, written otherwise.
        let (_, options, _) = folder.start("apply.delay=3600s");
        assert!(options.tuning().apply_hold.delay.is_zero() && options.bool("apply.paused"));
        let (saved, options, notes) = folder.start("apply.delay=2h");
        assert_eq!(options.time("apply.delay").as_secs(), 7200);
        assert_eq!(saved.list(), ["apply.paused=yes"]);
        assert!(notes.iter().any(|note| note.contains("since SET GLOBAL set 0")), "{notes:?}");
    }

    #[test]
    fn unreadable_saved_options_hold_all_entries_back() {
        let folder = Folder::new("damaged");
        let (mut saved, mut options, _) = folder.start("");
        set(&mut saved, &mut options, "apply.delay=1h");
        let whole = std::fs::read(folder.0.join(FILE)).unwrap();
        let sum = |text: &str| format!("{text}sum {:08x}\n", crc32c::crc32c(text.as_bytes())).into_bytes();
        let mut bad: Vec<Vec<u8>> = (0..whole.len()).map(|at| whole[..at].to_vec()).collect();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            bad.push(changed);
        }
        bad.push(sum(&format!("{TITLE}\napply.later\nlive 1\nconfigured 2\n")));
        bad.push(sum(&format!("{TITLE}\napply.delay\nlive soon\nconfigured 0s\n")));
        for bad in bad {
            std::fs::write(folder.0.join(FILE), &bad).unwrap();
            let (_, options, notes) = folder.start("");
            assert!(options.bool("apply.paused") && notes[0].contains("cannot be read"), "{bad:?}");
        }
        // An explicit setting wins.
        let (mut saved, mut options, _) = folder.start("");
        set(&mut saved, &mut options, "apply.paused=no");
        assert!(!folder.start("").1.tuning().apply_hold.is_set());
    }
}
