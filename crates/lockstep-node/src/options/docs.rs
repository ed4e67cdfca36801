//! docs/options.md is the table, written out. `LOCKSTEP_WRITE_DOCS=1 cargo test -p lockstep-node options` writes it.

use super::*;
use std::fmt::Write;
use std::path::Path;

fn render() -> String {
    let mut out = String::from(
        "# Options\n\n\
        For operators: all options of `wsrep_provider_options = 'name = value; name = value'`. This page is made from\n\
        the table in `crates/lockstep-node/src/options/table.rs`; a test keeps them equal.\n\n\
        Sizes and numbers take K, M, G, T (powers of 1024). Durations are `100ms`, `1s`, `10min`, `1h`, `1d`, or\n\
        ISO 8601 (`PT1.5S`, `P1D`); a number alone is seconds. Switches take yes, on, true, 1 or no, off, false, 0.\n\
        A backslash takes the character after it as it is (`\\;`). An unknown name, a value out of range or a refused\n\
        one is an error: the node does not start, or the `SET GLOBAL` fails and changes nothing. `commit.*`,\n\
        `socket.ssl_reload` and `pc.bootstrap` may fail later than that, so each wants a `SET GLOBAL` of its own.\n\
        The client gets only `Incorrect arguments to SET`: the server's error log has the reason.\n\
        *Live* options can change while the server runs.\n",
    );
    let section = |out: &mut String, title: &str, text: &str, class: fn(&Class) -> bool| {
        let _ = write!(out, "\n## {title}\n\n{text}\n\n");
        out.push_str("| option | default | live | what it takes | what it does |\n|---|---|---|---|---|\n");
        for row in rows().iter().filter(|row| class(&row.class)) {
            let default = match row.default {
                None => "–".to_owned(),
                Some("") => "(empty)".to_owned(),
                Some(text) => format!("`{text}`"),
            };
            let live = if row.running { "yes" } else { "" };
            let mut help = row.help.to_owned();
            match row.class {
                Class::Sets(own) => help = format!("{help}: sets `{own}`"),
                Class::NoEffect(why) => help = format!("{help}. Here: {why}"),
                Class::Own | Class::Galera => {}
            }
            if let Some(refusal) = row.refused {
                let when = match refusal.when {
                    When::On => "yes".to_owned(),
                    When::Above(n) => format!("more than {n}"),
                    When::Not("") => "anything".to_owned(),
                    When::Not(word) => format!("anything but {word}"),
                };
                let _ = write!(help, ". Refused: {when} ({})", refusal.reason);
            }
            let _ = writeln!(out, "| `{}` | {default} | {live} | {} | {help} |", row.name, row.kind);
        }
    };
    section(&mut out, "Lockstep's own", "Names that Galera does not know.", |c| *c == Class::Own);
    section(&mut out, "Galera's, with the same meaning", "As in Galera.", |c| *c == Class::Galera);
    section(
        &mut out,
        "Galera's, for an option of ours",
        "They set ours, unless that is set as well, and always show its value.",
        |c| matches!(c, Class::Sets(_)),
    );
    section(
        &mut out,
        "Galera's, without effect",
        "Checked, kept, shown, and one line in the log says that they do nothing and why.",
        |c| matches!(c, Class::NoEffect(_)),
    );
    out
}

#[test]
fn page_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let expected = render();
    if std::env::var_os("LOCKSTEP_WRITE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/options.md is not what the table says: run LOCKSTEP_WRITE_DOCS=1 cargo test -p lockstep-node options"
    );
}
