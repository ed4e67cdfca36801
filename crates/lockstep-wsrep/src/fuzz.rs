//! Files that scripts, people and crashes leave behind, mutated.

use lockstep_fuzz::{Target, outcome};

const DIR: &str = env!("CARGO_MANIFEST_DIR");

fn text(name: &'static str, seeds: &[&str], test: &dyn Fn(&str) -> u64) {
    let test = |input: &[u8]| test(&String::from_utf8_lossy(input));
    let mut target = Target::new(name, DIR, seeds.iter().map(|s| s.as_bytes().to_vec()).collect(), &test);
    target.text = true;
    target.run();
}

#[test]
fn saved_states() {
    let seeds = [
        "# GALERA saved state\nversion: 2.1\nuuid:    67979488-65c4-4b96-8f0c-8a95dde9d56c\nseqno:   42\nsafe_to_bootstrap: 1\n",
        "uuid: 00000000-0000-0000-0000-000000000000\nseqno: -1\nsafe_to_bootstrap: 0\ncert_index:\n",
        "uuid: 00000000-0000-0000-0000-000000000000\nseqno: -1\n# within a statement in total order: see lockstep.ddl.log\n",
    ];
    text("grastate", &seeds, &|text| {
        let (saved, written) = crate::lifecycle::state_files::read_back(text);
        // Written text reads back equal.
        assert_eq!(crate::lifecycle::state_files::read_back(&written).0, saved);
        outcome(&saved)
    });
}

#[test]
fn recovery_logs() {
    let seeds = [
        "2026-11-21  4:37:21 0 [Note] WSREP: Recovered position: 67979488-65c4-4b96-8f0c-8a95dde9d56c:42\n",
        "WSREP: Recovered position: 67979488-65c4-4b96-8f0c-8a95dde9d56c:42,0-1-7\nRecovered position:\n",
    ];
    text("recovery", &seeds, &|text| {
        let found = crate::lifecycle::innodb_position::recovered(text);
        assert!(found.is_none_or(|gtid| gtid.is_defined() && text.contains("Recovered position:")));
        outcome(&found)
    });
}

#[test]
fn marks() {
    let at = "67979488-65c4-4b96-8f0c-8a95dde9d56c:42";
    let lines = [
        format!("begun {at} again"),
        format!("begun {at} compare 00000000000000ff"),
        format!("begun {at} doubt"),
        format!("done {at}"),
        format!("words {at} 00000001 00000002,00000003"),
        format!("words {at} - any"),
        format!("upto {at}"),
        format!("anew {at} 74657374 c3a9"),
    ];
    let seeds: Vec<&str> = lines.iter().map(String::as_str).collect();
    text("marks", &seeds, &|text| {
        let parsed = crate::ddl::journal::parse(text);
        if let Some((at, said)) = &parsed {
            let written = crate::ddl::journal::record(*at, said);
            assert_eq!(crate::ddl::journal::parse(&written), parsed);
        }
        let _ = crate::ddl::journal::unline(text);
        outcome(&parsed)
    });
}
