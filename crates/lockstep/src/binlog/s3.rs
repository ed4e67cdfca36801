//! An archive in a bucket of S3, or of a server that speaks its protocol.

use lockstep_binlog::archive::{Store, StoreError, Version, When};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, RetryConfig,
    UpdateVersion,
};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long the client itself repeats a request. The archiver repeats it after that, and says so.
const RETRY: Duration = Duration::from_secs(20);
/// The limit of one request: a part has at most 4 MiB, or one event of up to 1 GiB.
const REQUEST: Duration = Duration::from_secs(300);

/// A bucket, or the objects of a bucket below a prefix.
pub(super) struct S3Store {
    name: String,
    prefix: Path,
    s3: AmazonS3,
    runtime: Runtime,
    /// The operations that the server has allowed once. See [`Operation`].
    allowed: AtomicU8,
}

/// A kind of request, each with a right of its own.
#[derive(Clone, Copy)]
enum Operation {
    Read,
    Write,
    Remove,
    List,
}

impl Operation {
    fn bit(self) -> u8 {
        1 << self as u8
    }

    fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Remove => "remove",
            Operation::List => "list",
        }
    }
}

impl S3Store {
    /// The bucket and prefix of `s3://BUCKET/PREFIX`, with credentials and server of the environment (`AWS_…`).
    ///
    /// # Errors
    /// [`StoreError::Refused`] if there are none, or the bucket cannot be listed.
    pub(super) fn open(url: &str) -> Result<S3Store, StoreError> {
        let refused = |text: String| StoreError::Refused(text);
        let rest = url.strip_prefix("s3://").unwrap_or(url);
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(refused(format!("{url} names no bucket: give s3://BUCKET/PREFIX")));
        }
        let prefix = Path::parse(prefix).map_err(|e| refused(format!("{url} has an invalid prefix: {e}")))?;
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        // Without credentials the client asks the service of a virtual machine in Amazon's cloud, and waits for it.
        let sources = [
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            "AWS_METADATA_ENDPOINT",
            "AWS_SKIP_SIGNATURE",
        ];
        if !sources.into_iter().any(is_set) {
            return Err(refused(format!(
                "there are no credentials for {url}: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION in the \
                 environment; for a server of your own also AWS_ENDPOINT (http://… needs AWS_ALLOW_HTTP=true). On a virtual \
                 machine with a role set AWS_METADATA_ENDPOINT=http://169.254.169.254"
            )));
        }
        // The only rustls of this process; without a provider of its own the client has none.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig { max_retries: 4, retry_timeout: RETRY, ..RetryConfig::default() };
        let mut client =
            ClientOptions::new().with_timeout(REQUEST).with_connect_timeout(Duration::from_secs(10));
        if std::env::var("AWS_ALLOW_HTTP")
            .is_ok_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
        {
            client = client.with_allow_http(true);
        }
        let s3 = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_retry(retry)
            .with_client_options(client)
            .build()
            .map_err(|e| refused(format!("{url} cannot be used: {e}")))?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| refused(format!("cannot start a runtime for {url}: {e}")))?;
        let name = url.trim_end_matches('/').to_owned();
        let store = S3Store { name, prefix, s3, runtime, allowed: AtomicU8::new(0) };
        // A wrong bucket or key is an error now, not in the log later.
        store.list("")?;
        Ok(store)
    }

    fn path(&self, key: &str) -> Path {
        key.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn note_allowed(&self, operation: Operation) {
        self.allowed.fetch_or(operation.bit(), Ordering::Relaxed);
    }

    fn failed(&self, operation: Operation, key: &str, error: &Error) -> StoreError {
        let text = format!("cannot {} {}/{key}: {}", operation.name(), self.name, with_causes(error));
        let was_allowed = self.allowed.load(Ordering::Relaxed) & operation.bit() != 0;
        let is_missing =
            |error: &Error| matches!(error, Error::NotFound { .. }) || text.contains("NoSuchBucket");
        match error {
            // Rights and keys change, and temporary keys end. The archive goes on once they are mended.
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } if was_allowed => {
                StoreError::Unavailable(text)
            }
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } | Error::NotImplemented { .. } => {
                StoreError::Refused(format!(
                    "{text}. The credentials (AWS_ACCESS_KEY_ID, …) must allow GetObject, PutObject, DeleteObject and ListBucket"
                ))
            }
            error if is_missing(error) => {
                StoreError::Refused(format!("{text}. Is the bucket there, in the region AWS_REGION?"))
            }
            _ => StoreError::Unavailable(text),
        }
    }
}

/// An error with its causes: the client's own text leaves these out.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    // Servers answer with a document of several lines.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn version(e_tag: Option<String>) -> Result<Version, StoreError> {
    e_tag.map(Version).ok_or_else(|| {
        StoreError::Refused("the server sends no ETag, by which two archivers notice one another".into())
    })
}

impl Store for S3Store {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn get(&self, key: &str, max: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        let read = async {
            let found: GetResult = self.s3.get(&self.path(key)).await?;
            let (size, e_tag) = (found.meta.size, found.meta.e_tag.clone());
            if size > max {
                return Ok(Err(size));
            }
            Ok(Ok((found.bytes().await?.to_vec(), e_tag)))
        };
        match self.runtime.block_on(read) {
            Ok(Ok((bytes, e_tag))) => {
                self.note_allowed(Operation::Read);
                Ok(Some((bytes, version(e_tag)?)))
            }
            Ok(Err(size)) => Err(StoreError::Refused(format!(
                "{}/{key} has {size} bytes, and at most {max} are expected",
                self.name
            ))),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed(Operation::Read, key, &error)),
        }
    }

    fn put(&self, key: &str, bytes: &[u8], when: &When) -> Result<Version, StoreError> {
        let mode = match when {
            When::Always => PutMode::Overwrite,
            When::Absent => PutMode::Create,
            When::Is(Version(e_tag)) => {
                PutMode::Update(UpdateVersion { e_tag: Some(e_tag.clone()), version: None })
            }
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let path = self.path(key);
        let put = self.s3.put_opts(&path, bytes.to_vec().into(), options);
        match self.runtime.block_on(put) {
            Ok(done) => {
                self.note_allowed(Operation::Write);
                version(done.e_tag)
            }
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Err(StoreError::Conflict),
            // The object was removed meanwhile.
            Err(Error::NotFound { .. }) if matches!(when, When::Is(_)) => Err(StoreError::Conflict),
            Err(error) => Err(self.failed(Operation::Write, key, &error)),
        }
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        match self.runtime.block_on(self.s3.delete(&self.path(key))) {
            Ok(()) | Err(Error::NotFound { .. }) => {
                self.note_allowed(Operation::Remove);
                Ok(())
            }
            Err(error) => Err(self.failed(Operation::Remove, key, &error)),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(folder);
        let listed = self.runtime.block_on(self.s3.list_with_delimiter(Some(&path)));
        let listed = listed.map_err(|error| self.failed(Operation::List, folder, &error))?;
        self.note_allowed(Operation::List);
        let objects = listed.objects.into_iter().map(|object| object.location);
        let names = listed.common_prefixes.into_iter().chain(objects);
        Ok(names.filter_map(|path| path.filename().map(str::to_owned)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_right_is_an_outage_and_missing_right_an_error() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let s3 = AmazonS3Builder::new()
            .with_bucket_name("b")
            .with_region("r")
            .with_access_key_id("k")
            .with_secret_access_key("s")
            .build()
            .unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        let store = S3Store {
            name: "s3://b".into(),
            prefix: Path::default(),
            s3,
            runtime,
            allowed: AtomicU8::new(0),
        };
        let denied = || Error::PermissionDenied { path: "x".into(), source: "403".into() };
        let refused = store.failed(Operation::Write, "x", &denied());
        assert!(matches!(&refused, StoreError::Refused(text) if text.contains("PutObject")), "{refused}");
        store.note_allowed(Operation::Write);
        let outage = store.failed(Operation::Write, "x", &denied());
        assert!(
            matches!(&outage, StoreError::Unavailable(text) if text.contains("write s3://b/x")),
            "{outage}"
        );
        assert!(matches!(store.failed(Operation::List, "x", &denied()), StoreError::Refused(_)));
    }
}
