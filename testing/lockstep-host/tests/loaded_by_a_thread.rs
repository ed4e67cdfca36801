//! The server loads the library in any thread, for example in that of a client that says `SET GLOBAL wsrep_on=ON`. This
//! thread ends before the library does, and another thread gets its stack and identity.

mod common;

use common::*;
use lockstep_host::host::{Config, Host, SstMode};
use std::path::PathBuf;
use std::thread;

fn in_a_thread<T: Send + 'static>(step: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(step).join().expect("no panic")
}

/// A failure kills the process, so this file has only this test.
#[test]
fn loading_thread_may_end() {
    let Some(library) = library() else { return };
    let dir = std::env::temp_dir().join(format!("lockstep-loaded-by-a-thread-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let config = Config {
        name: "n1".into(),
        dir: dir.clone(),
        address: "127.0.0.1".into(),
        options: String::new(),
        cluster: "c".into(),
        url: "gcomm://".into(),
        donor: String::new(),
        bootstrap: true,
        appliers: 1,
        position: None,
        journalled: false,
        sst: SstMode::None,
        lean: true,
    };
    let host = Host::new(config).expect("the only one");
    in_a_thread(move || {
        host.load(&library).unwrap();
        host.init().unwrap();
    });
    for _ in 0..50 {
        let (values, options) = in_a_thread(|| {
            let provider = host.provider().unwrap();
            (provider.stats().len(), provider.options_get())
        });
        assert!(values > 0 && options.is_some(), "{values} {options:?}");
    }
    in_a_thread(|| host.unload().unwrap());
    std::fs::remove_dir_all(dir).unwrap();
}

fn library() -> Option<PathBuf> {
    match Kind::Lockstep.library(binary()) {
        Ok(library) => Some(library),
        Err(why) => {
            assert!(std::env::var_os("LOCKSTEP_HOST_REQUIRE").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}
