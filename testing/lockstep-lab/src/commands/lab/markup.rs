//! For tests: checks that markup is well formed, and extracts its text.

/// Checks that each element ends where it must, that attributes are quoted, and that nothing is unescaped. The elements of
/// HTML that have no end may stand alone.
pub(super) fn check(markup: &str) -> Result<(), String> {
    const ALONE: [&str; 2] = ["meta", "br"];
    let mut open: Vec<String> = Vec::new();
    let mut rest = markup;
    while let Some(at) = rest.find('<') {
        sound_text(&rest[..at])?;
        rest = &rest[at + 1..];
        let end = rest.find('>').ok_or("a tag without its end")?;
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        if tag.starts_with("!doctype") {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            match open.pop() {
                Some(last) if last == name => continue,
                last => return Err(format!("</{name}> where {last:?} is open")),
            }
        }
        let name: String = tag.chars().take_while(char::is_ascii_alphanumeric).collect();
        if name.is_empty() {
            return Err(format!("a tag without a name: <{tag}>"));
        }
        if tag.matches('"').count() % 2 == 1 || tag.contains('<') {
            return Err(format!("an attribute without its end: <{tag}>"));
        }
        for (at, part) in tag.split('"').enumerate() {
            sound_text(part)?;
            if at % 2 == 0 && part.contains('=') && !part.ends_with('=') {
                return Err(format!("an attribute without quotes: <{tag}>"));
            }
        }
        // What a style sheet says is no markup.
        if name == "style" {
            let end = rest.find("</style>").ok_or("a style without its end")?;
            rest = &rest[end + "</style>".len()..];
        } else if !tag.ends_with('/') && !ALONE.contains(&name.as_str()) {
            open.push(name);
        }
    }
    sound_text(rest)?;
    if open.is_empty() { Ok(()) } else { Err(format!("never ended: {open:?}")) }
}

fn sound_text(text: &str) -> Result<(), String> {
    for part in text.split('&').skip(1) {
        let name = part.split(';').next().unwrap_or_default();
        if !["amp", "lt", "gt", "quot", "#39"].contains(&name) {
            return Err(format!("& that begins nothing: {part:.20}"));
        }
    }
    if text.contains('>') { Err(format!("> in {text:.40}")) } else { Ok(()) }
}

/// The texts between tags, as a reader sees them.
pub(super) fn texts(markup: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for part in markup.split('<').skip(1) {
        let text = part.split_once('>').map_or("", |(_, text)| text).trim();
        if !text.is_empty() {
            let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
            texts.push(plain.replace("&#39;", "'").replace("&amp;", "&"));
        }
    }
    texts
}

#[test]
fn unsound_markup_is_found() {
    assert_eq!(check("<!doctype html><p class=\"a\">1 &lt; 2<br><b/></p>"), Ok(()));
    for wrong in
        ["<p>", "<p></b>", "<p class=a></p>", "<p>a & b</p>", "<p>a > b</p>", "<p class=\"></p>", "</p>"]
    {
        assert!(check(wrong).is_err(), "{wrong}");
    }
    assert_eq!(texts("<p>a &amp;lt; <b>c</b></p>"), ["a &lt;", "c"]);
}
