//! The two threads of a node, and what each of them does when it ends.

use crate::api::{Level, LocalState, Logger};
use crate::io::node::Shared;
use crate::io::role_swap::RoleSwap;
use crate::io::runtime::{Input, Runtime};
use crate::io::writer::{self, Jobs, LogDone, Writer};
use lockstep_log::Disk;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The message of a panic.
fn said(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

/// What one of the two threads does.
pub(crate) enum Part {
    Node(Box<Runtime>),
    Log(Jobs),
}

/// The life of one of the two threads. They may change parts: see [`crate::io::role_swap`].
pub(crate) fn work<D: Disk>(
    mut part: Part,
    desk: &RoleSwap<Writer<D>, Box<Runtime>, Jobs>,
    shared: &Arc<Shared>,
    logger: &Logger,
) {
    loop {
        part = match part {
            Part::Node(runtime) => match catch_unwind(AssertUnwindSafe(|| runtime.run())) {
                Ok(Some(jobs)) => Part::Log(jobs),
                ended => {
                    shared.stopped.store(true, Ordering::Release);
                    shared.primary.store(false, Ordering::Release);
                    shared.state.store(LocalState::Error as u8, Ordering::Release);
                    match ended {
                        Ok(_) => shared.deliveries.close(),
                        Err(payload) => {
                            let text = format!("an error in the program, in ls-node: {}", said(&*payload));
                            logger(Level::Error, &text);
                            shared.deliveries.fail(text, shared.delivered_at());
                        }
                    }
                    // Inputs pushed meanwhile are dropped: dropping a submission's filler wakes its thread.
                    shared.take_inputs(&mut Vec::new());
                    return;
                }
            },
            Part::Log(jobs) => {
                let answer = |done: Vec<LogDone>| shared.push(Input::Log(done));
                match catch_unwind(AssertUnwindSafe(|| writer::run(desk, jobs, answer))) {
                    Ok(Some(mut runtime)) => {
                        runtime.relieve();
                        Part::Node(runtime)
                    }
                    Ok(None) => return,
                    Err(_) => {
                        logger(Level::Error, "the log's thread has failed: this member stops acknowledging");
                        shared.push(Input::Log(vec![LogDone::Failed("its thread has failed".into())]));
                        return;
                    }
                }
            }
        };
    }
}
