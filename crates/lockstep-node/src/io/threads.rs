//! The two threads of a node, and what each of them does when it ends.

use crate::api::{Level, Logger};
use crate::io::inbox::Input;
use crate::io::runtime::Runtime;
use crate::io::shared::Shared;
use crate::io::writer::{self, LogDone, LogJob, Writer};
use lockstep_log::Disk;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;

/// The message of a panic.
fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

/// The life of `ls-node`.
pub(crate) fn node(runtime: Runtime, shared: &Shared, logger: &Logger) {
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.run()));
    shared.inbox.stop();
    shared.published.set_failed();
    match ended {
        Ok(()) => shared.deliveries.close(),
        Err(payload) => {
            let text = format!("an error in the program, in ls-node: {}", said(&*payload));
            logger(Level::Error, &text);
            shared.deliveries.fail(text, shared.published.delivered_at());
        }
    }
    shared.inbox.clear();
}

/// The life of `ls-log`.
pub(crate) fn log<D: Disk>(writer: Writer<D>, jobs: &Receiver<LogJob>, shared: &Shared, logger: &Logger) {
    let answer = |done: Vec<LogDone>| shared.inbox.push(Input::Log(done));
    if catch_unwind(AssertUnwindSafe(|| writer::run(writer, jobs, answer))).is_err() {
        logger(Level::Error, "the log's thread has failed: this member stops acknowledging");
        shared.inbox.push(Input::Log(vec![LogDone::Failed("its thread has failed".into())]));
    }
}
