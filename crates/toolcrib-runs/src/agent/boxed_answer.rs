//! Reads the answer from the last `\boxed{...}` in a text.

/// Placeholders that models write into a box when they have no answer.
const PLACEHOLDERS: [&str; 10] =
    ["", "?", "??", "???", "\u{ff1f}", "\u{2026}\u{2026}", "\u{2026}", "...", "unknown", "none"];

/// Asks for the box, behind the question.
pub(super) const DEMAND: &str = "Put the final answer itself into \\boxed{}: a number, a few words, or a list with commas, in the \
                                 form that the task asks for.";

/// Asks a model for the box whose answer has none.
pub(super) const AGAIN: &str = "Your last text has no answer in \\boxed{}. Give your final answer again, in \\boxed{}, and call no \
                                tools.";

const MARK: &str = "\\boxed";

/// The content of the box that is closed last. Braces inside may be nested or escaped, white space may stand before the first.
/// Where no box is closed, one reaches to the end of the text. A placeholder is no answer.
pub(super) fn last(text: &str) -> Option<String> {
    // Where each brace is open: behind that of a box, or nothing for others in it.
    let (mut open, mut boxes) = (Vec::new(), 0_usize);
    let (mut closed, mut at) = (None, 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let next = at + c.len_utf8();
        at = match c {
            '\\' => match rest.strip_prefix(MARK).and_then(|rest| rest.trim_start().strip_prefix('{')) {
                Some(inner) => {
                    let from = text.len() - inner.len();
                    open.push(Some(from));
                    boxes += 1;
                    from
                }
                // What it stands before is no brace.
                None if boxes > 0 => next + text[next..].chars().next().map_or(0, char::len_utf8),
                None => next,
            },
            '{' if boxes > 0 => {
                open.push(None);
                next
            }
            '}' => {
                if let Some(Some(from)) = open.pop() {
                    boxes -= 1;
                    closed = Some(&text[from..at]);
                }
                next
            }
            _ => next,
        };
    }
    let unclosed = || open.iter().flatten().next().map(|from| &text[*from..]);
    let answer = closed.or_else(unclosed)?.trim();
    (!PLACEHOLDERS.contains(&answer.to_lowercase().as_str())).then(|| answer.to_owned())
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
            ("\\boxed{7} and then \\boxed{8", Some("7")),
            ("The box is \\boxed{a \\boxed{7}.", Some("7")),
            ("{ \\{ \\\\boxed{7}", Some("7")),
            ("\\boxed{7}} and }{", Some("7")),
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
