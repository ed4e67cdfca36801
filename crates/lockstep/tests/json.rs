//! The JSON output of a command that no member answers.

use std::process::Command;

#[test]
fn error_is_printed_as_json() {
    let nowhere = std::env::temp_dir().join(format!("ls-json-{}", std::process::id()));
    let socket = nowhere.join("lockstep.sock");
    let socket = socket.to_str().unwrap();
    for command in [
        &["status", "--socket", socket][..],
        &["wait", "--socket", socket, "--timeout", "1"],
        &["promote", "--name", "n2", "--socket", socket],
        &["bootstrap", "--socket", socket],
        &["verify", "--socket", socket],
    ] {
        let run = |json: bool| {
            let mut lockstep = Command::new(env!("CARGO_BIN_EXE_lockstep"));
            lockstep.args(command).args(json.then_some("--json")).output().unwrap()
        };
        let (plain, json) = (run(false), run(true));
        assert_eq!(plain.status.code(), json.status.code(), "{command:?}");
        assert!(!json.status.success() && plain.stdout.is_empty(), "{command:?}");
        assert_eq!(plain.stderr, json.stderr, "{command:?}");
        let said: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(said["ok"], false, "{command:?}");
        let text = said["text"].as_str().unwrap();
        assert!(String::from_utf8(json.stderr).unwrap().contains(text), "{command:?}: {text}");
    }
}
