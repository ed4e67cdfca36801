//! Where an archive's objects are.

use std::fmt;

/// The condition of a put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum When {
    /// None.
    Always,
    /// There is no such object.
    Absent,
    /// The object has this version.
    Is(Version),
}

impl When {
    /// Whether an object that has this version, or is missing, meets the condition.
    pub fn is_met(&self, there: Option<&Version>) -> bool {
        match self {
            When::Always => true,
            When::Absent => there.is_none(),
            When::Is(version) => there == Some(version),
        }
    }
}

/// Identifies the content of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version(pub String);

/// Why a store did not do what it was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// The condition of a put is not met: another archiver was faster.
    Conflict,
    /// It may succeed later.
    Unavailable(String),
    /// It will not succeed without a change of the configuration.
    Refused(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Conflict => f.write_str("another archiver has changed the archive meanwhile"),
            StoreError::Unavailable(text) | StoreError::Refused(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for StoreError {}

/// A store of objects. Keys are relative paths with `/`.
pub trait Store: Send {
    /// The store's name in messages.
    fn name(&self) -> String;

    /// An object with its version; `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails, or the object has more than `max` bytes.
    fn get(&self, key: &str, max: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError>;

    /// Stores an object durably, whole or not at all.
    ///
    /// # Errors
    /// [`StoreError`]; the object may be stored all the same, unless it is a conflict.
    fn put(&self, key: &str, bytes: &[u8], when: &When) -> Result<Version, StoreError>;

    /// Removes an object. None of this name is no error.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn delete(&self, key: &str) -> Result<(), StoreError>;

    /// The names in a folder (`""`: the archive's own), without the folder.
    ///
    /// # Errors
    /// [`StoreError`] if the store fails.
    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError>;
}

impl<S: Store + ?Sized> Store for Box<S> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn get(&self, key: &str, max: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        (**self).get(key, max)
    }

    fn put(&self, key: &str, bytes: &[u8], when: &When) -> Result<Version, StoreError> {
        (**self).put(key, bytes, when)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        (**self).delete(key)
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        (**self).list(folder)
    }
}
