//! Filters all output of this process: no secret of a configuration that it has read, and in foreign text no character
//! that steers a terminal or is not seen.
//!
//! Secrets are kept for the whole process, since its stdout and stderr are those of the whole process.

use std::{
    borrow::Cow,
    sync::{PoisonError, RwLock},
};

use toolcrib::{cli_support::is_unseen, config::Secrets};

static SECRETS: RwLock<Option<Secrets>> = RwLock::new(None);

/// Hides `secrets` in all that is printed from now on.
pub(crate) fn learn(secrets: &Secrets) {
    let mut known = SECRETS.write().unwrap_or_else(PoisonError::into_inner);
    *known = Some(known.as_ref().map_or_else(|| secrets.clone(), |known| known.and(secrets)));
}

/// `text` with its secrets hidden.
pub(crate) fn hidden(text: &str) -> Cow<'_, str> {
    match &*SECRETS.read().unwrap_or_else(PoisonError::into_inner) {
        Some(secrets) => secrets.hide(text).into(),
        None => text.into(),
    }
}

/// `text` as a terminal may be given it: no secrets, and control characters as escapes.
pub(crate) fn printable(text: &str) -> String {
    visible(&hidden(text))
}

/// `text` with control characters as escapes.
fn visible(text: &str) -> String {
    escaped(text, |letter, shown| shown.extend(letter.escape_default()))
}

/// `text` as [`printable`] has it, in one line.
pub(crate) fn one_line(text: &str) -> String {
    whole_line(&hidden(text))
}

/// Text of a file as a terminal may be given it, in one line. All of it is shown: who writes the file does not decide what is hidden,
/// and no secret of the reader may be in it.
pub(crate) fn whole_line(text: &str) -> String {
    visible(text).replace('\r', "\\r").replace('\n', "\\n")
}

/// A JSON document as a terminal may be given it. It stays the same document but for its secrets.
pub(crate) fn json(document: String) -> String {
    let document = match &*SECRETS.read().unwrap_or_else(PoisonError::into_inner) {
        Some(secrets) => secrets.hide_json(document),
        None => document,
    };
    whole_json(&document)
}

/// A JSON document without secrets as a terminal may be given it: all of it is shown.
pub(crate) fn whole_json(document: &str) -> String {
    escaped(document, |letter, shown| {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    })
}

/// `text` with `escape` in place of each character that does something to a terminal or is not seen. Line feeds and
/// tabs stay, and so do joiners and variation selectors where scripts and emoji have them: among letters beyond ASCII.
fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> String {
    let plain = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    if text.bytes().all(plain) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    let mut before = '\0';
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied().unwrap_or('\0');
        let visible = |other: char| !other.is_ascii() && !is_unseen(other) && !is_joint(other);
        let stays = match letter {
            '\r' => next == '\n',
            // `1` and `#` become keys by U+20E3.
            '\u{fe0f}' if next == '\u{20e3}' => true,
            '\u{fe00}'..='\u{fe0f}' => visible(before),
            '\u{200c}' | '\u{200d}' => (visible(before) || before == '\u{fe0f}') && visible(next),
            letter => !is_unseen(letter),
        };
        match stays {
            true => shown.push(letter),
            false => escape(letter, &mut shown),
        }
        before = letter;
    }
    shown
}

/// Joiners and variation selectors: nothing by themselves.
fn is_joint(letter: char) -> bool {
    matches!(letter, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        for (text, shown) in [
            ("plain\n\ttext", "plain\n\ttext"),
            ("\u{1b}[2J\u{7}\u{9b}1m\u{7f}", "\\u{1b}[2J\\u{7}\\u{9b}1m\\u{7f}"),
            ("forged\rline\r\n", "forged\\rline\r\n"),
            (
                "a\u{202e}b\u{2066}c\u{200f}d\u{61c}e\u{200b}f\u{feff}",
                "a\\u{202e}b\\u{2066}c\\u{200f}d\\u{61c}e\\u{200b}f\\u{feff}",
            ),
            ("tag\u{e0041}", "tag\\u{e0041}"),
            ("re\u{200d}ad a\u{fe01}", "re\\u{200d}ad a\\u{fe01}"),
            ("\u{e9}\u{4e2d}", "\u{e9}\u{4e2d}"),
            // A family, a heart, a key, and a word of Persian.
            (
                "\u{1f468}\u{200d}\u{1f469} \u{2764}\u{fe0f}\u{200d}\u{1f525} 1\u{fe0f}\u{20e3}",
                "\u{1f468}\u{200d}\u{1f469} \u{2764}\u{fe0f}\u{200d}\u{1f525} 1\u{fe0f}\u{20e3}",
            ),
            ("\u{645}\u{6cc}\u{200c}\u{62e}", "\u{645}\u{6cc}\u{200c}\u{62e}"),
            // Selectors in a row carry data.
            ("\u{1f600}\u{fe00}\u{fe01}", "\u{1f600}\u{fe00}\\u{fe01}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(one_line("a\nb\r\nc\r"), "a\\nb\\r\\nc\\r");
    }

    #[test]
    fn escaped_json_stays_the_same_json() {
        let document = serde_json::json!({"a\u{1b}": "\u{9b}\u{202e}\u{e0041}\u{7f}\n", "b": 1});
        let shown = json(document.to_string());
        assert!(shown.is_ascii() && !shown.contains('\u{7f}'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), document);
    }
}
