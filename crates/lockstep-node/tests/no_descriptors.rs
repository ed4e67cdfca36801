//! The process of a running member has no file descriptor left. Alone in its program: the limit is the process's.

mod common;

use common::*;
use lockstep_node::ServerEnd;
use lockstep_node::core::Gtid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[test]
fn member_without_descriptors_waits_and_ends_once_it_has_them() {
    let [port] = free_ports();
    let folder = Folder::new("no-descriptors");
    let (sender, ends) = mpsc::channel();
    let sender = Mutex::new(sender);
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let said = lines.clone();
    let mut config = config(&folder, "n1", port);
    config.tuning.segment_bytes = 1 << 20;
    config.logger = Arc::new(move |_, text: &str| said.lock().unwrap().push(text.to_owned()));
    config.end_server = Some(Arc::new(move |why, text: &str| {
        let _ = sender.lock().unwrap().send((why, text.to_owned()));
    }));
    let server = Server::start_with(config, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || server.synced.load(Ordering::SeqCst));
    // This member fails now, which the server of this test must expect.
    *server.unlike.lock().unwrap() = Some("no descriptors".into());
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    let key = |n: u32| n.to_be_bytes();
    let written = (0..100).take_while(|n| server.write(&key(*n), &[2; 64 << 10]).is_some()).count();
    assert!(written < 100, "the log goes on without a new file");
    // A new process might lack descriptors, too, and supervisors do not repeat a refused start.
    assert!(ends.recv_timeout(Duration::from_secs(9)).is_err(), "it waits");
    setrlimit(Resource::Nofile, limit).unwrap();
    let (why, text) = ends.recv_timeout(Duration::from_secs(20)).expect("the process ends");
    assert_eq!(why, ServerEnd::LogFailed);
    assert!(text.contains("takes writes now"), "{text}");
    let lines = lines.lock().unwrap();
    let tells =
        |before: &str| lines.iter().any(|line| line.contains(before) && line.contains("raise LimitNOFILE"));
    assert!(tells("the log cannot be written") && tells("this member refuses everything until"), "{lines:?}");
}
