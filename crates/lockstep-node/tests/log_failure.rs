//! The log of a running member can no longer be written.

mod common;

use common::*;
use lockstep_node::ServerEnd;
use lockstep_node::core::Gtid;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// The files that are open keep working, so the failure appears when the log begins its next segment.
#[test]
fn member_without_log_directory_ends_its_process() {
    let [port] = free_ports();
    let folder = Folder::new("log-removed");
    let log_dir = folder.0.join("log");
    std::fs::create_dir(&log_dir).unwrap();
    let (sender, ends) = mpsc::channel();
    let sender = Mutex::new(sender);
    let mut config = config(&folder, "n1", port);
    config.log_dir = Some(log_dir.clone());
    config.tuning.segment_bytes = 1 << 20;
    config.end_server = Some(Arc::new(move |why, text: &str| {
        let _ = sender.lock().unwrap().send((why, text.to_owned()));
    }));
    let server = Server::start_with(config, &[], Gtid::UNDEFINED, None);
    until("n1 is synced", || server.synced.load(Ordering::SeqCst));
    assert_eq!(server.write(b"before", &[1; 1000]), Some(true));
    // This member fails now, which the server of this test must expect.
    *server.unlike.lock().unwrap() = Some("no log directory".into());
    std::fs::remove_dir_all(&log_dir).unwrap();
    let key = |n: u32| n.to_be_bytes();
    let written = (0..100).take_while(|n| server.write(&key(*n), &[2; 64 << 10]).is_some()).count();
    assert!(written < 100, "the log goes on without its directory");
    assert_eq!(server.write(b"after", b"x"), None, "it acknowledges nothing");
    let (why, text) = ends.recv_timeout(Duration::from_secs(10)).expect("the process ends");
    assert_eq!(why, ServerEnd::LogFailed);
    assert!(text.contains("cannot create log segment"), "{text}");
    assert!(ends.recv_timeout(Duration::from_secs(4)).is_err(), "it ends once");
}
