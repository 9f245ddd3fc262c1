//! Halves of surrogate pairs in JSON: programs in JavaScript cut texts within a character, and write the halves as escapes
//! that no JSON parser takes.

/// `json` with U+FFFD in place of each half of a surrogate pair. `None`: there is none.
pub fn without_halves(json: &str) -> Option<String> {
    let mut out = String::with_capacity(json.len());
    let (mut rest, mut any) = (json, false);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        // Both characters of an escape are one byte, or the parser will say so.
        let length = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xd800..0xdc00), Some(0xdc00..0xe000)) => 12,
            (Some(0xd800..0xe000), _) => {
                out.push_str("\\ufffd");
                any = true;
                rest = &escape[6..];
                continue;
            }
            (Some(_), _) => 6,
            (None, _) => escape.chars().take(2).map(char::len_utf8).sum(),
        };
        out.push_str(&escape[..length]);
        rest = &escape[length..];
    }
    out.push_str(rest);
    any.then_some(out)
}

/// The number of an escape `\uXXXX` that `text` begins with.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn halves_of_pairs_are_replaced_and_nothing_else() {
        for (json, expected) in [
            (r#""a\ud83d""#, Some(r#""a\ufffd""#)),
            (r#""\ude00a""#, Some(r#""\ufffda""#)),
            (r#""\ud83d\ud83d\ude00""#, Some(r#""\ufffd\ud83d\ude00""#)),
            (r#""\ud83d\ude00""#, None),
            (r#""\\ud83d""#, None),
            (r#""\u00e9\n""#, None),
            (r#""\u12""#, None),
            ("\\", None),
            ("\\é", None),
            ("", None),
        ] {
            assert_eq!(without_halves(json).as_deref(), expected, "{json}");
        }
    }

    proptest! {
        #[test]
        fn what_is_left_can_be_parsed(parts in prop::collection::vec(prop::sample::select(vec![
            "\\ud83d", "\\ude00", "\\\\", "\\n", "u", "é", "\\u00e9",
        ]), 0..12)) {
            let json = format!("\"{}\"", parts.concat());
            let mended = without_halves(&json).unwrap_or(json);
            prop_assert!(serde_json::from_str::<String>(&mended).is_ok(), "{}", mended);
        }
    }
}
