//! Arguments as text: what is JSON but for its form is read, and nothing is ever completed.

use serde_json::Value;

use super::{Correction, CorrectionKind};

/// Reads arguments. With `correct`, a code fence around them, a comma before a closing brace, and the literals of
/// Python are read too: nothing is lost or added by that.
pub(in crate::agent) fn parse(
    text: &str,
    correct: bool,
) -> Result<(Value, Option<Correction>), serde_json::Error> {
    let error = match serde_json::from_str(text) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    if !correct {
        return Err(error);
    }
    let plain = plain(unfenced(text.trim()));
    match serde_json::from_str(&plain) {
        Ok(value) => Ok((value, Some(Correction::new(CorrectionKind::Json, text, plain)))),
        Err(_) => Err(error),
    }
}

/// What stands between ``` and ```, if all of it does.
fn unfenced(text: &str) -> &str {
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inner.map_or(text, |inner| inner.strip_prefix("json").unwrap_or(inner).trim())
}

/// Outside of strings: no comma before a closing brace, and `true`, `false`, `null` for Python's words.
fn plain(text: &str) -> String {
    const WORDS: [(&str, &str); 3] = [("True", "true"), ("False", "false"), ("None", "null")];
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            out.push(c);
        } else if let Some((python, json)) = WORDS.iter().find(|(python, _)| is_word(&out, rest, python)) {
            out.push_str(json);
            length = python.len();
        } else {
            in_string = c == '"';
            let last = c == ',' && rest[length..].trim_start().starts_with(['}', ']']);
            if !last {
                out.push(c);
            }
        }
        rest = &rest[length..];
    }
    out
}

fn is_word(before: &str, rest: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    rest.strip_prefix(word).is_some_and(|after| !after.starts_with(part)) && !before.ends_with(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_form_is_put_right() {
        for (text, value) in [
            ("```json\n{\"a\": 1}\n```", json!({"a": 1})),
            ("{\"a\": [1, 2,], }", json!({"a": [1, 2]})),
            (
                "{\"a\": True, \"None\": None, \"t\": \"True, }\"}",
                json!({"a": true, "None": null, "t": "True, }"}),
            ),
        ] {
            let (read, done) = parse(text, true).unwrap();
            assert_eq!(read, value);
            assert_eq!(done.unwrap().from, text);
            assert!(parse(text, false).is_err());
        }
        assert_eq!(parse("{\"a\": \"\\\", }\"}", true).unwrap().1, None);
        for broken in [
            "{\"cmd\": \"rm -r build/",
            "{\"a\": 1",
            "{'a': 1}",
            "I cannot do that",
            "{\"a\": Truest}",
            ",",
            "",
        ] {
            assert!(parse(broken, true).is_err(), "{broken}");
        }
    }

    proptest! {
        #[test]
        fn a_beginning_is_never_completed(text in any::<String>(), number in any::<i32>(), cut in 0_usize..40) {
            let whole = json!({"text": text, "n": number}).to_string();
            let cuts: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
            let length = cuts[cuts.len() - 1 - cut % cuts.len()];
            prop_assert!(parse(&whole[..length], true).is_err());
        }
    }
}
