//! The two threads of a node, and what each of them does when it ends.

use crate::api::{Level, Logger};
use crate::io::inbox::Input;
use crate::io::role_swap::RoleSwap;
use crate::io::runtime::Runtime;
use crate::io::shared::Shared;
use crate::io::writer::{self, LogDone, LogFailure, LogJobs, Writer, panic_text};
use lockstep_log::Disk;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A thread's present work. The two threads may swap: see [`crate::io::role_swap`].
pub(crate) enum Role {
    Node(Box<Runtime>),
    Log(LogJobs),
}

/// The life of one of the two threads.
pub(crate) fn work<D: Disk>(
    mut role: Role,
    swap: &RoleSwap<Writer<D>, Box<Runtime>, LogJobs>,
    shared: &Shared,
    logger: &Logger,
) {
    loop {
        let next = match role {
            Role::Node(runtime) => node(runtime, shared, logger).map(Role::Log),
            Role::Log(jobs) => log(jobs, swap, shared).map(Role::Node),
        };
        match next {
            Some(next) => role = next,
            None => return,
        }
    }
}

/// The role `ls-node`. Returns the jobs of `ls-log` if this thread is to continue with them.
fn node(runtime: Box<Runtime>, shared: &Shared, logger: &Logger) -> Option<LogJobs> {
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.run()));
    if let Ok(Some(jobs)) = ended {
        return Some(jobs);
    }
    shared.inbox.stop();
    shared.published.set_failed();
    match ended {
        Ok(_) => shared.deliveries.close(),
        Err(payload) => {
            let text = format!("an error in the program, in ls-node: {}", panic_text(&*payload));
            logger(Level::Error, &text);
            shared.deliveries.fail(text, shared.published.delivered_at());
        }
    }
    shared.inbox.clear();
    None
}

/// The role `ls-log`. Returns the node if this thread is to continue with it.
fn log<D: Disk>(
    jobs: LogJobs,
    swap: &RoleSwap<Writer<D>, Box<Runtime>, LogJobs>,
    shared: &Shared,
) -> Option<Box<Runtime>> {
    let answer = |done: Vec<LogDone>| shared.inbox.push(Input::Log(done));
    match catch_unwind(AssertUnwindSafe(|| writer::run(swap, jobs, answer))) {
        Ok(None) => None,
        Ok(Some(mut runtime)) => {
            runtime.took_over();
            Some(runtime)
        }
        Err(payload) => {
            let failure = LogFailure::panicked("ls-log", &*payload);
            shared.inbox.push(Input::Log(vec![LogDone::Failed(failure)]));
            None
        }
    }
}
