//! Reads the answer from the last `\boxed{...}` in a text.

/// What a model writes into a box when it has no answer.
const PLACEHOLDERS: [&str; 10] =
    ["", "?", "??", "???", "\u{ff1f}", "\u{2026}\u{2026}", "\u{2026}", "...", "unknown", "none"];

/// The content of the last box. Braces inside may be nested or escaped, white space may stand before the first; a box
/// without an end reaches to the end of the text. A placeholder is no answer.
pub(super) fn last(text: &str) -> Option<String> {
    let mut found = None;
    let mut at = 0;
    while let Some(mark) = text[at..].find(MARK).map(|mark| at + mark + MARK.len()) {
        let Some(inner) = text[mark..].trim_start().strip_prefix('{') else {
            at = mark;
            continue;
        };
        let from = text.len() - inner.len();
        let length = content(inner);
        found = Some(inner[..length].trim());
        at = from + length;
    }
    found.filter(|answer| !PLACEHOLDERS.contains(&answer.to_lowercase().as_str())).map(str::to_owned)
}

const MARK: &str = "\\boxed";

/// Up to the brace that closes it.
fn content(text: &str) -> usize {
    let (mut depth, mut escaped) = (1, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 1 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_last_boxed_answer_counts() {
        for (text, answer) in [
            ("\\boxed{1} and \\boxed{2}.", Some("2")),
            ("\\boxed {\\frac{1}{2}}", Some("\\frac{1}{2}")),
            ("\\boxed\n{ a \\} b }", Some("a \\} b")),
            ("\\boxed{never closed {x}", Some("never closed {x}")),
            ("\\boxed{\\boxed{7}}", Some("\\boxed{7}")),
            ("\\boxed{7} \\boxed 8", Some("7")),
            ("\\boxed{7} \\boxed{Unknown}", None),
            ("\\boxed{}", None),
            ("\\boxed{???}", None),
            ("boxed{7}", None),
            ("", None),
        ] {
            assert_eq!(last(text).as_deref(), answer, "{text}");
        }
    }

    /// Text with its braces in pairs, and no backslash.
    fn balanced() -> impl Strategy<Value = String> {
        let leaf = "[a-z0-9 .,é]{0,6}".prop_map(String::from);
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(|parts| {
                parts.iter().map(|part| format!("{part}{{{part}}}")).collect::<Vec<_>>().concat()
            })
        })
    }

    proptest! {
        #[test]
        fn boxed_text_is_read_back(before in "[a-z {}\n]{0,20}", space in "[ \n]{0,3}", answer in balanced(), after in "[a-z {}\n]{0,20}") {
            let text = format!("{before}\\boxed{space}{{{answer}}}{after}");
            let wanted = answer.trim();
            let expected = (!PLACEHOLDERS.contains(&wanted)).then(|| wanted.to_owned());
            prop_assert_eq!(last(&text), expected);
        }

        #[test]
        fn any_text_can_be_searched_for_boxes(parts in prop::collection::vec(prop_oneof![Just("\\boxed"), Just("{"), Just("}"), Just("\\"), Just(" "), Just("é")], 0..30)) {
            let text = parts.concat();
            if let Some(answer) = last(&text) {
                prop_assert!(text.contains(&answer));
            }
        }
    }
}
