//! Decodes a JSON string in pieces, so that a long one is never in memory as a whole.

/// Gives the pieces of the text that `raw`, a whole JSON string with its quotes, stands for.
///
/// `raw` must have been accepted by a JSON parser. Half a surrogate pair becomes U+FFFD.
pub(in crate::session) fn pieces<E>(raw: &str, mut give: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let mut rest = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw);
    while let Some(at) = rest.find('\\') {
        if at > 0 {
            give(&rest[..at])?;
        }
        let (character, used) = escape(&rest[at..]);
        give(character.encode_utf8(&mut [0; 4]))?;
        rest = &rest[at + used..];
    }
    if rest.is_empty() { Ok(()) } else { give(rest) }
}

/// The whole text of a short JSON string.
pub(in crate::session) fn decoded(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let done: Result<(), std::convert::Infallible> = pieces(raw, |piece| {
        text.push_str(piece);
        Ok(())
    });
    match done {
        Ok(()) => text,
    }
}

/// Length of that text in bytes.
pub(in crate::session) fn length(raw: &str) -> usize {
    let mut bytes = 0;
    let counted: Result<(), std::convert::Infallible> = pieces(raw, |piece| {
        bytes += piece.len();
        Ok(())
    });
    match counted {
        Ok(()) => bytes,
    }
}

/// The character of the escape that `text` begins with, and the bytes it takes.
fn escape(text: &str) -> (char, usize) {
    let plain = match text.as_bytes().get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return unicode(text),
        Some(other) if other.is_ascii() => char::from(*other),
        _ => return (char::REPLACEMENT_CHARACTER, 1),
    };
    (plain, 2)
}

fn unicode(text: &str) -> (char, usize) {
    let unit = |from: usize| {
        let marked = text.get(from..from + 2) == Some("\\u");
        let digits = text.get(from + 2..from + 6).filter(|_| marked)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let Some(first) = unit(0) else { return (char::REPLACEMENT_CHARACTER, 2) };
    if let Some(character) = char::from_u32(u32::from(first)) {
        return (character, 6);
    }
    let pair = unit(6).and_then(|second| char::decode_utf16([first, second]).next()?.ok());
    pair.map_or((char::REPLACEMENT_CHARACTER, 6), |character| (character, 12))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(raw: &str) -> String {
        let text = decoded(raw);
        assert_eq!(text.len(), length(raw), "{raw}");
        text
    }

    #[test]
    fn every_json_escape_is_decoded() {
        for raw in [
            r#""""#,
            r#""plain ä 🦀""#,
            r#""\"\\\/\b\f\n\r\t""#,
            r#""\u00e4\ud83e\uDD80x\u0000""#,
            r#""a\nb\\n""#,
        ] {
            assert_eq!(whole(raw), serde_json::from_str::<String>(raw).unwrap(), "{raw}");
        }
        assert_eq!(whole(r#""x\ud83ey\udd80\ud83e\u0041""#), "x\u{fffd}y\u{fffd}\u{fffd}A");
    }
}
