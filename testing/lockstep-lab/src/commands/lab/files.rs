//! Files that are complete at any moment: replaced atomically, or extended by whole lines.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

/// Writes a new file, syncs it and renames it over the old one: after a kill or on a full disk the old file remains.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), String> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    let write = || {
        let mut file = File::create(fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(fresh, path)
    };
    write().map_err(|e: io::Error| {
        let _ = std::fs::remove_file(fresh);
        format!("cannot write {}: {e}", path.display())
    })
}

/// Opens a file of lines to add to it; a last line that was not written to its end goes, and nothing else does.
pub(super) fn append(path: &Path) -> Result<File, String> {
    let failed = |e: io::Error| format!("cannot write {}: {e}", path.display());
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
    let text = std::fs::read(path).map_err(failed)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole < text.len() {
        file.set_len(whole as u64).map_err(failed)?;
    }
    Ok(file)
}

/// Whether any line was written to its end.
pub(super) fn has_lines(path: &Path) -> Result<bool, String> {
    match std::fs::read(path) {
        Ok(text) => Ok(text.contains(&b'\n')),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(format!("cannot read {}: {e}", path.display())),
    }
}

pub(super) fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// A value from each line that was written to its end.
pub(super) fn read_lines(path: &Path) -> Result<Vec<Value>, String> {
    let text = read(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let values = whole.lines().enumerate().map(|(at, line)| {
        serde_json::from_str(line).map_err(|e| format!("{}: line {}: {e}", path.display(), at + 1))
    });
    values.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_replace_keeps_file_and_torn_line_is_dropped() {
        let dir = std::env::temp_dir().join(format!("lockstep-files-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("run.json");
        replace(&path, "old").unwrap();
        // As on a full disk: there is no room for the new one.
        std::fs::create_dir(dir.join("run.json.new")).unwrap();
        assert!(replace(&path, "new").unwrap_err().contains("run.json"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        std::fs::remove_dir(dir.join("run.json.new")).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);

        let path = dir.join("runs.jsonl");
        assert_eq!(has_lines(&path), Ok(false));
        for (before, after, any) in
            [("{\"a", "", false), ("1\n2\n{\"a", "1\n2\n", true), ("1\n", "1\n", true)]
        {
            std::fs::write(&path, before).unwrap();
            append(&path).unwrap();
            assert_eq!(
                (std::fs::read_to_string(&path).unwrap().as_str(), has_lines(&path)),
                (after, Ok(any))
            );
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
