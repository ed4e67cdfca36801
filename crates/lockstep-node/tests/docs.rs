//! The documents match the programs: links have targets, and quoted log lines exist in the sources.

use lockstep_node::{MemberStatus, Status};
use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// README.md, ARCHITECTURE.md and all pages in `docs/`.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![workspace().join("README.md"), workspace().join("ARCHITECTURE.md")];
    for entry in fs::read_dir(workspace().join("docs")).unwrap() {
        pages.push(entry.unwrap().path());
    }
    pages.retain(|page| page.extension().is_some_and(|e| e == "md"));
    pages
}

/// As a heading's anchor: lower case, blanks to dashes, without punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    let mut links = 0;
    for page in pages() {
        for piece in read(&page).split("](").skip(1) {
            let Some((target, _)) = piece.split_once(')') else { continue };
            if target.starts_with("http") {
                continue;
            }
            links += 1;
            let (file, place) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let found = file.exists()
                && (place.is_empty()
                    || read(&file)
                        .lines()
                        .filter(|l| l.starts_with('#'))
                        .any(|l| anchor(l.trim_start_matches('#')) == place));
            if !found {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(links > 30, "only {links} links were found");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// All sources of the programs, with format arguments replaced by U+0001 and continued string lines joined.
fn sources() -> String {
    fn gather(dir: &Path, out: &mut String) {
        for entry in fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                gather(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push_str(&read(&path));
            }
        }
    }
    let mut text = String::new();
    for krate in ["lockstep-core", "lockstep-log", "lockstep-net", "lockstep-node", "lockstep-wsrep"] {
        gather(&workspace().join("crates").join(krate).join("src"), &mut text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(['\\', '{']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(next) = rest.strip_prefix("\\\n") {
            rest = next.trim_start();
        } else if let (Some(end), true) = (rest.find('}'), rest.starts_with('{')) {
            let inner = &rest[1..end];
            // A block of code is no place in a message.
            if end < 60 && !inner.contains(['\n', '{', ';']) {
                out.push('\u{1}');
                rest = &rest[end + 1..];
            } else {
                out.push('{');
                rest = &rest[1..];
            }
        } else {
            out.push('\\');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// The quoted texts (backticks) in the first column of the tables of a section.
fn quoted_lines(page: &str, heading: &str) -> Vec<String> {
    let text = read(&workspace().join("docs").join(page));
    let part =
        text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("{page}: no {heading}")).1;
    let part = part.split_once("\n## ").map_or(part, |(part, _)| part);
    let rows = part.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned)).collect()
}

#[test]
fn documented_log_lines_exist_in_sources() {
    // The server's own; the system's; and where one message ends in another.
    let known = [
        "Failed to load provider",
        "Connection refused",
        "seqno 0",
        "the program at this address is a Galera member",
        // Parts are words of the front end (src/terms.rs).
        "set wsrep_node_name",
        "nobody answers at the addresses of wsrep_cluster_address",
        "start the first member with --wsrep-new-cluster",
    ];
    let sources = sources();
    let mut lines = quoted_lines("operating.md", "A member will not join");
    lines.extend(quoted_lines("from-galera.md", "If it goes wrong"));
    assert!(lines.len() > 40, "only {} lines were found", lines.len());
    let mut unknown = Vec::new();
    for line in &lines {
        for piece in line.split("...") {
            // Marks around what is put in are not worth a look, nor are single words. A message may be put into
            // another after a colon or in brackets.
            let trim = |text: &'_ str| {
                text.trim_matches(|c: char| c.is_whitespace() || "`'\"():;,.?={}".contains(c)).to_owned()
            };
            let is_known = |text: &str| {
                let text = trim(text);
                !text.contains(' ') || known.contains(&text.as_str()) || sources.contains(&text)
            };
            if !is_known(piece) && !piece.split([':', '(', ')', ';']).all(is_known) {
                unknown.push(format!("{piece}   (of: {line})"));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// Every field that `lockstep status --json` prints, and every status variable that Galera has not.
#[test]
fn status_fields_are_documented() {
    let page = read(&workspace().join("docs/status.md"));
    // `part.field`, or `.field` in a row that begins with another of the same part.
    let documented = |part: &str, field: &str| {
        let rows = page.lines().filter(|line| line.starts_with(&format!("| `{part}.")));
        rows.map(|row| row.split(" | ").next().unwrap_or_default())
            .any(|cell| cell.contains(&format!(".{field}`")))
    };
    let status = Status { members: vec![MemberStatus::default()], ..Status::default() };
    let json = serde_json::to_value(&status).unwrap();
    let mut missing = Vec::new();
    let mut fields = 0;
    for (part, value) in json.as_object().unwrap() {
        let (part, value) = match value.as_array() {
            Some(list) => (format!("{part}[]"), list[0].clone()),
            None => (part.clone(), value.clone()),
        };
        match value.as_object() {
            Some(object) => {
                fields += object.len();
                missing.extend(
                    object.keys().filter(|field| !documented(&part, field)).map(|f| format!("{part}.{f}")),
                );
            }
            None if !page.contains(&format!("| `{part}` |")) => missing.push(part),
            None => {}
        }
    }
    let stats = read(&workspace().join("crates/lockstep-wsrep/src/status/stats.rs"));
    let own: Vec<&str> =
        stats.split("(\"semi_sync_").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(fields > 40 && own.len() == 8, "{fields} fields, {own:?}");
    missing.extend(own.into_iter().map(|v| format!("wsrep_semi_sync_{v}")).filter(|v| !page.contains(v)));
    assert!(missing.is_empty(), "docs/status.md lacks {missing:?}");
}

/// The policy's metrics are listed one by one, and no page names one that there is not.
#[test]
fn policy_metrics_are_documented() {
    let text = Status::example().prometheus(&[]);
    let samples: Vec<&str> =
        text.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split([' ', '{']).next()).collect();
    let page = read(&workspace().join("docs/status.md"));
    let of_policy =
        |name: &&str| name.contains("semi_sync") || name.contains("policy") || name.contains("rescue");
    let own: Vec<&str> = samples.iter().copied().filter(of_policy).collect();
    assert!(own.len() == 11, "{own:?}");
    let missing: Vec<&str> = own.into_iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/status.md lacks {missing:?}");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `lockstep_"));
    let named = rows.flat_map(|row| row.split(" | ").next().unwrap_or_default().split('`').step_by(2));
    let named: Vec<String> = named.filter(|n| !n.is_empty() && *n != ", ").map(str::to_owned).collect();
    let named =
        named.iter().map(|n| if n.starts_with("lockstep_") { n.clone() } else { format!("lockstep_{n}") });
    // A binlog server's own test compares its metrics with the page.
    let named = named.filter(|name| !name.starts_with("lockstep_binlog_"));
    let of_device = read(&workspace().join("crates/lockstep/src/block/report.rs"));
    let is_of_device = |name: &String| {
        let name = name.trim_start_matches("lockstep_");
        name.starts_with("block_") && of_device.contains(&format!("\"{name}\""))
    };
    let named = named.filter(|name| !is_of_device(name));
    let strange: Vec<String> = named.filter(|name| !samples.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "/metrics has no {strange:?}");
}

/// Of the versions spoken, where people look before an upgrade.
#[test]
fn documented_protocol_versions_match() {
    let (lowest, highest) = lockstep_net::VERSIONS;
    // What the feature adds is for rehearsals.
    let highest = highest - u16::from(cfg!(feature = "next-protocol"));
    let range = format!("ersions {lowest} to {highest}");
    for page in ["docs/format-wire.md", "docs/operating.md"] {
        let text = read(&workspace().join(page));
        let said: Vec<&str> = text
            .split("ersions ")
            .skip(1)
            .filter(|rest| rest.contains(" to ") && rest.starts_with(char::is_numeric))
            .collect();
        assert!(text.contains(&range), "{page} does not say v{range}");
        assert!(
            said.iter().all(|rest| format!("ersions {rest}").starts_with(&range)),
            "{page} says another range"
        );
    }
    let page = read(&workspace().join("docs/format-wire.md"));
    let missing: Vec<u16> = (lowest..=highest).filter(|v| !page.contains(&format!("\n| {v} | "))).collect();
    assert!(missing.is_empty(), "docs/format-wire.md does not say what is in {missing:?}");
}

/// Of a table of variables below `SHOW STATUS LIKE '...%'`, that shows them all.
#[test]
fn documented_show_status_lists_its_table() {
    let (mut tables, mut missed) = (0, Vec::new());
    for page in pages() {
        let mut like: Option<String> = None;
        let mut in_table = false;
        for line in read(&page).lines() {
            let row = line.starts_with("| ");
            if in_table && !row && !line.starts_with("|-") {
                (like, in_table) = (None, false);
            }
            if let Some((_, rest)) = line.split_once("SHOW STATUS LIKE '") {
                like = rest.split_once("%'").map(|(like, _)| like.to_owned());
            }
            let Some(like) = like.as_ref().filter(|_| row) else { continue };
            tables += usize::from(!std::mem::replace(&mut in_table, true));
            let names = line.split(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2);
            missed.extend(
                names
                    .filter(|name| name.starts_with("wsrep_") && !name.starts_with(like.as_str()))
                    .map(|name| format!("{}: LIKE '{like}%' does not show {name}", page.display())),
            );
        }
    }
    assert!(tables >= 3, "only {tables} tables were found");
    assert!(missed.is_empty(), "{missed:#?}");
}
