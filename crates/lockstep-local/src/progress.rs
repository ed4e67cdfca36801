//! One line per step, with dots while it takes long.

use std::io::{Write, stdout};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A step under way. Its line ends with [`Step::done`], or, if it is dropped before that, with "failed".
#[derive(Debug)]
pub struct Step {
    started: Instant,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Step {
    /// Prints the name of the step.
    pub fn start(what: &str) -> Step {
        print(what);
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
                print(" .");
            }
        });
        Step { started: Instant::now(), ticker: Some((stop, thread)) }
    }

    /// Prints the current step.
    pub fn note(&self, what: &str) {
        print(&format!(" [{what}]"));
    }

    /// Ends the line with this word and the time taken.
    pub fn done(mut self, how: &str) {
        self.end(how);
    }

    fn end(&mut self, how: &str) {
        let Some((stop, thread)) = self.ticker.take() else { return };
        drop(stop);
        let _ = thread.join();
        print(&format!(" {how} ({:.1} s)\n", self.started.elapsed().as_secs_f64()));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.end("failed");
    }
}

/// Prints a line. Unlike `println!` it does not panic if the reader has ended (`lockstep up | head`).
pub fn say(line: &str) {
    print(&format!("{line}\n"));
}

/// Prints at once. The program continues if the reader has ended.
pub fn print(text: &str) {
    let mut out = stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
