//! Where an archive is, by the text of `--to` or `--from`.

use super::s3::S3Store;
use lockstep_binlog::archive::{DirStore, Store};
use std::path::Path;

/// Opens an archive's store. `make`: a directory that is missing is made.
///
/// # Errors
/// A text for people.
pub(super) fn open_target(target: &str, make: bool) -> Result<Box<dyn Store>, String> {
    if target.starts_with("s3://") {
        return S3Store::open(target)
            .map(|store| Box::new(store) as Box<dyn Store>)
            .map_err(|e| e.to_string());
    }
    if let Some((scheme, _)) = target.split_once("://") {
        return Err(format!(
            "{scheme}:// is no target of an archive: name a directory or s3://BUCKET/PREFIX"
        ));
    }
    let store = DirStore::open(Path::new(target), make).map_err(|e| e.to_string())?;
    Ok(Box::new(store))
}
