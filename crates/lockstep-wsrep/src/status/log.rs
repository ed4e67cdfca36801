//! Lines for the server's error log.

use lockstep_abi::{LogCb, LogLevel};
use lockstep_node::Level;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};

/// Hands lines to the server. Callable from any thread.
pub(crate) struct Log {
    callback: Option<LogCb>,
    debug: AtomicBool,
}

impl Log {
    pub(crate) fn new(callback: Option<LogCb>) -> Log {
        Log { callback, debug: AtomicBool::new(false) }
    }

    /// The same log for a thread that may outlive the provider.
    pub(crate) fn detached(&self) -> Log {
        Log::new(self.callback)
    }

    /// `debug = yes`.
    pub(crate) fn set_debug(&self, on: bool) {
        self.debug.store(on, Ordering::Relaxed);
    }

    pub(crate) fn is_debug(&self) -> bool {
        self.debug.load(Ordering::Relaxed)
    }

    pub(crate) fn line(&self, level: Level, text: &str) {
        let level = match level {
            Level::Error => LogLevel::ERROR,
            Level::Warn => LogLevel::WARN,
            Level::Info => LogLevel::INFO,
            Level::Debug if !self.is_debug() => return,
            Level::Debug => LogLevel::DEBUG,
        };
        let Some(callback) = self.callback else { return };
        // A NUL inside would cut the line short.
        let text = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: the server's logger takes any level and a NUL-terminated string, and does not throw.
        unsafe { callback(level, text.as_ptr()) };
    }

    pub(crate) fn error(&self, text: impl AsRef<str>) {
        self.line(Level::Error, text.as_ref());
    }

    pub(crate) fn warn(&self, text: impl AsRef<str>) {
        self.line(Level::Warn, text.as_ref());
    }

    pub(crate) fn info(&self, text: impl AsRef<str>) {
        self.line(Level::Info, text.as_ref());
    }

    /// The text is made only if debug lines are on.
    pub(crate) fn debug(&self, text: impl FnOnce() -> String) {
        if self.is_debug() {
            self.line(Level::Debug, &text());
        }
    }
}
