//! For tests: the text of markup.

/// The texts between tags, as a reader sees them.
pub(super) fn texts(markup: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for part in markup.split('<').skip(1) {
        let text = part.split_once('>').map_or("", |(_, text)| text).trim();
        if !text.is_empty() {
            let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
            texts.push(plain.replace("&amp;", "&"));
        }
    }
    texts
}
