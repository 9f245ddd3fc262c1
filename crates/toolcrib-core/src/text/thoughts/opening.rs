//! Thoughts that an answer opens with, found while it comes in pieces.
//!
//! The end of a thought may show that text before it was thought too: then what was said is void, and told anew.

use super::{Kind, MARKS, Mark, split};

/// The most letters of a mark that are waited for.
const LONGEST: usize = 256;
/// The same of marks in brackets: a list begins with one too.
const LONGEST_IN_BRACKETS: usize = 16;
/// The end of the mark of a channel.
const MESSAGE: &str = "<|message|>";
/// Sentences with which Granite begins its thoughts, and its answer.
const THOUGHTS: [&str; 2] = ["Here is my thought process:", "Here's my thought process:"];
const RESPONSE: [&str; 2] = ["Here is my response:", "Here's my response:"];
/// Harmony without its marks.
const ANALYSIS: &str = "analysis";
const FINAL: &str = "assistantfinal";
/// The most letters of an answer that are remembered, and the most ends of thoughts that are looked at in it.
const MOST_SAID: usize = 1 << 20;
const MOST_ENDS: u32 = 16;

/// A part of an answer, as soon as it is known what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// It is said.
    Said(&'a str),
    /// It is thought.
    Thought(&'a str),
    /// All that was said so far is void: it was thought, and is told as such now.
    Void,
}

/// An answer that comes in pieces.
#[derive(Debug, Default)]
pub struct Opening {
    state: State,
    /// Text that may be a part of a mark.
    held: String,
    /// Whether there was a mark.
    any: bool,
    /// Text that was said since the last mark.
    said: String,
    /// Number of ends of thoughts in `said`.
    ends: u32,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is said yet.
    #[default]
    Begins,
    Thinks(Kind),
    /// Perhaps thoughts of Harmony without their marks: only their end tells.
    Analyses,
    /// The answer itself. A thought may end in it that had no beginning.
    Says,
    /// The answer itself: all that follows is passed on.
    SaysOn,
}

/// The beginning of a text.
enum Beginning {
    /// A mark of so many bytes.
    Mark(Mark, usize),
    /// The beginning of one, perhaps.
    Maybe,
    Text,
}

impl Opening {
    /// Takes the next piece.
    pub fn feed(&mut self, more: &str, tell: &mut dyn FnMut(Part<'_>)) {
        if self.state == State::SaysOn {
            return tell(Part::Said(more));
        }
        self.held.push_str(more);
        self.read(false, tell);
    }

    /// Passes on what is held back: nothing more belongs to it.
    pub fn end(&mut self, tell: &mut dyn FnMut(Part<'_>)) {
        self.read(true, tell);
    }

    fn read(&mut self, is_whole: bool, tell: &mut dyn FnMut(Part<'_>)) {
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        while !rest.is_empty() {
            let left = match self.state {
                State::Begins => self.begin(rest, is_whole, tell),
                State::Thinks(kind) => Some(self.think(kind, rest, is_whole, tell)),
                State::Analyses => self.analyse(rest, is_whole, tell),
                State::Says => Some(self.say(rest, is_whole, tell)),
                State::SaysOn => {
                    tell(Part::Said(rest));
                    Some("")
                }
            };
            match left {
                Some(left) => rest = left,
                None => {
                    // The next piece says more.
                    rest.clone_into(&mut self.held);
                    break;
                }
            }
        }
    }

    /// Reads on where nothing is said yet. Gives what is left, or `None` where it has to wait.
    fn begin<'a>(
        &mut self,
        rest: &'a str,
        is_whole: bool,
        tell: &mut dyn FnMut(Part<'_>),
    ) -> Option<&'a str> {
        let text = rest.trim_start();
        if !self.any {
            match after_analysis(text) {
                Some(true) => {
                    self.state = State::Analyses;
                    return Some(text);
                }
                None if !is_whole => return None,
                _ => {}
            }
        }
        match beginning(text, is_whole) {
            Beginning::Maybe => return None,
            Beginning::Mark(Mark::Open(kind), length) => {
                self.state = State::Thinks(kind);
                self.any = true;
                return Some(&text[length..]);
            }
            Beginning::Mark(Mark::Answer | Mark::Noise | Mark::Close(Kind::Tag | Kind::Channel), length) => {
                self.any = true;
                return Some(&text[length..]);
            }
            Beginning::Mark(Mark::Close(Kind::Details | Kind::Words) | Mark::Text, _) | Beginning::Text => {}
        }
        // Blanks around a thought belong to nothing.
        let said = if self.any { text } else { rest };
        if text.is_empty() {
            self.say_plainly(said, tell);
            return Some("");
        }
        // Where thoughts were marked, one end more is a mark too many.
        self.state = if self.any { State::SaysOn } else { State::Says };
        Some(said)
    }

    /// Reads on in what may be an analysis, up to the end of it.
    fn analyse<'a>(
        &mut self,
        rest: &'a str,
        is_whole: bool,
        tell: &mut dyn FnMut(Part<'_>),
    ) -> Option<&'a str> {
        if let Some((thought, answer)) = rest.split_once(FINAL) {
            tell(Part::Thought(&thought[ANALYSIS.len()..]));
            (self.state, self.any) = (State::Begins, true);
            return Some(answer);
        }
        if !is_whole && rest.len() < MOST_SAID {
            return None;
        }
        self.state = State::SaysOn;
        Some(rest)
    }

    /// Reads on in the answer. If it is one that begins with a thought after all, that is told.
    fn say<'a>(&mut self, rest: &'a str, is_whole: bool, tell: &mut dyn FnMut(Part<'_>)) -> &'a str {
        for (at, first) in rest.match_indices(['<', '[', '\u{25c1}']) {
            // No end begins otherwise.
            let next = rest[at + first.len()..].chars().next();
            if next.is_some_and(|next| !matches!(next, '/' | '|' | 'u')) {
                continue;
            }
            let length = match beginning(&rest[at..], is_whole) {
                Beginning::Maybe => {
                    self.say_plainly(&rest[..at], tell);
                    rest[at..].clone_into(&mut self.held);
                    return "";
                }
                Beginning::Mark(Mark::Close(Kind::Tag) | Mark::Answer, length) => length,
                Beginning::Mark(..) | Beginning::Text => continue,
            };
            self.ends += 1;
            let thought = format!("{}{}", self.said, &rest[..at]);
            // In code it is text, and behind other marks it may be one too many: the whole says what it is.
            let ended = format!("{thought}{}.", &rest[at..at + length]);
            if split(&thought).answer == thought && split(&ended).answer == "." {
                self.said.clear();
                tell(Part::Void);
                tell(Part::Thought(&thought));
                (self.state, self.any) = (State::Begins, true);
                return &rest[at + length..];
            }
            if self.ends >= MOST_ENDS {
                break;
            }
        }
        self.say_plainly(rest, tell);
        if self.ends >= MOST_ENDS || self.said.len() > MOST_SAID {
            (self.state, self.said) = (State::SaysOn, String::new());
        }
        ""
    }

    fn say_plainly(&mut self, text: &str, tell: &mut dyn FnMut(Part<'_>)) {
        if !text.is_empty() {
            self.said.push_str(text);
            tell(Part::Said(text));
        }
    }

    /// Reads on in a thought, up to its end.
    fn think<'a>(
        &mut self,
        kind: Kind,
        rest: &'a str,
        is_whole: bool,
        tell: &mut dyn FnMut(Part<'_>),
    ) -> &'a str {
        let mut thought = |text: &str| {
            if !text.is_empty() {
                tell(Part::Thought(text));
            }
        };
        for (at, _) in rest.match_indices(['<', '[', '\u{25c1}', 'H']) {
            let (next, length) = match beginning(&rest[at..], is_whole) {
                Beginning::Maybe => {
                    thought(&rest[..at]);
                    rest[at..].clone_into(&mut self.held);
                    return "";
                }
                Beginning::Mark(Mark::Close(other), length) if other == kind => (State::Begins, length),
                Beginning::Mark(Mark::Answer, length) => (State::Begins, length),
                Beginning::Mark(Mark::Open(Kind::Channel), length) if kind == Kind::Channel => {
                    (State::Thinks(kind), length)
                }
                Beginning::Mark(..) | Beginning::Text => continue,
            };
            thought(&rest[..at]);
            self.state = next;
            return &rest[at + length..];
        }
        thought(rest);
        ""
    }
}

/// Classifies the beginning of `text`; `is_whole`: nothing follows it.
fn beginning(text: &str, is_whole: bool) -> Beginning {
    let Some(first) = text.chars().next() else {
        return if is_whole { Beginning::Text } else { Beginning::Maybe };
    };
    let longest = if first == '<' { LONGEST } else { LONGEST_IN_BRACKETS };
    let window = text.char_indices().nth(longest).map_or(text, |(end, _)| &text[..end]);
    let past = |end: char| window.find(end).map(|at| at + end.len_utf8());
    let end = match first {
        // The words behind it belong to the mark.
        '<' if window.starts_with("<|channel") => {
            window.find(MESSAGE).map(|at| at + MESSAGE.len()).or_else(|| window.find('\n'))
        }
        '<' if window.starts_with("<|start|>") => window[1..].find('<').map(|at| at + 1),
        '<' => past('>'),
        '[' => past(']'),
        '\u{25c1}' => past('\u{25b7}'),
        'H' => return sentence(text, is_whole),
        _ => return Beginning::Text,
    };
    if end.is_none() && !is_whole && window.len() == text.len() && text.chars().count() < longest {
        return Beginning::Maybe;
    }
    let found = MARKS.captures(&window[..end.unwrap_or(window.len())]);
    let found = found.and_then(|found| {
        let whole = found.get(0).filter(|whole| whole.start() == 0)?;
        Some(Beginning::Mark(Mark::of(&found), whole.end()))
    });
    found.unwrap_or(Beginning::Text)
}

/// The sentences that Granite writes in place of marks.
fn sentence(text: &str, is_whole: bool) -> Beginning {
    let open = THOUGHTS.map(|words| (words, Mark::Open(Kind::Words)));
    let close = RESPONSE.map(|words| (words, Mark::Close(Kind::Words)));
    let mut maybe = false;
    for (words, mark) in open.into_iter().chain(close) {
        if text.starts_with(words) {
            return Beginning::Mark(mark, words.len());
        }
        maybe |= words.starts_with(text);
    }
    if maybe && !is_whole { Beginning::Maybe } else { Beginning::Text }
}

/// Whether `text` begins as an analysis of Harmony does without its marks: the thought follows the word at once. `None`:
/// it is too short to tell.
fn after_analysis(text: &str) -> Option<bool> {
    match text.strip_prefix(ANALYSIS) {
        Some(after) => after.chars().next().map(|next| next.is_uppercase() || next == '\n'),
        None if ANALYSIS.starts_with(text) => None,
        None => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::text::thoughts::{Split, split};

    /// The texts that are said and thought in pieces, and how many pieces were said.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a str>) -> (String, String, usize) {
        let (mut said, mut thought, mut parts) = (String::new(), String::new(), 0);
        let mut opening = Opening::default();
        let mut tell = |part: Part<'_>| match part {
            Part::Said(text) => {
                said.push_str(text);
                parts += 1;
            }
            Part::Thought(text) => thought.push_str(text),
            Part::Void => said.clear(),
        };
        for piece in pieces {
            opening.feed(piece, &mut tell);
        }
        opening.end(&mut tell);
        (said, thought, parts)
    }

    fn letters(text: &str) -> Vec<&str> {
        text.split("").filter(|letter| !letter.is_empty()).collect()
    }

    #[test]
    fn thoughts_at_the_beginning_are_told_as_such() {
        for (text, said, thought) in [
            ("<think>\nmaybe 5\n</think>\n\n4", "4", "\nmaybe 5\n"),
            ("\n<thinking>a</thinking> 4 and 5", "4 and 5", "a"),
            ("[THINK]a [1] b[/THINK]4", "4", "a [1] b"),
            ("\u{25c1}think\u{25b7}a\u{25c1}/think\u{25b7}4", "4", "a"),
            ("<think>a < b, <b>c</b></think>4 < 5", "4 < 5", "a < b, <b>c</b>"),
            ("<think>a</think><think>b</think>4", "4", "ab"),
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>4",
                "4",
                "a",
            ),
            ("<|channel>thought\na<channel|>4", "4", "\na"),
            ("<details type=\"reasoning\" done=\"true\">a</details>\n4", "4", "a"),
            ("analysisWe add.assistantfinal4", "4", "We add."),
            ("Here is my thought process:\nHa!\nHere is my response:\n4 Here", "4 Here", "\nHa!\n"),
            ("Here's my thought process:a", "", "a"),
            ("well, 5?\n</think>\n4", "4", "well, 5?\n"),
            ("well `</think>` 5?</think>4 < 5", "4 < 5", "well `</think>` 5?"),
            ("hm[/THINK]4", "4", "hm"),
            ("<think>a", "", "a"),
            ("<think></think>\n\n4", "4", ""),
            ("<think/>4", "4", ""),
        ] {
            for pieces in [vec![text], letters(text)] {
                let (told, told_thought, _) = read(pieces);
                assert_eq!((told.as_str(), told_thought.as_str()), (said, thought), "{text}");
            }
            assert_eq!(split(text).answer, said, "{text}");
        }
    }

    #[test]
    fn other_texts_pass_at_once() {
        for text in [
            "4",
            " \n4 ",
            "`<think>` is a mark",
            "I said <think>",
            "Write `</think>` behind it: </b>",
            "analysis of 4",
            "analysisX",
            "Here is 4",
            "Her",
            "ana",
            "[1, 2]",
            "<b>4</b>",
            "",
            " ",
            "<",
            "<thi",
        ] {
            for pieces in [vec![text], letters(text)] {
                let (said, thought, _) = read(pieces);
                assert_eq!((said.as_str(), thought.as_str()), (text, ""));
            }
        }
        let words = ["It", " is", " <", "4", ">"];
        assert_eq!(read(words).2, words.len());
        // A list is not waited for.
        let list = letters("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]");
        assert!(read(list).2 > 10);
    }

    proptest! {
        #[test]
        fn pieces_are_read_like_the_whole(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>final<|message|>", "<|end|>",
                    "<|channel|>analysis<|message|>", "a", "é", "\n", " ", "<", "[",
                ]),
                0..16,
            ),
        ) {
            let text = parts.concat();
            let (said, thought, _) = read([text.as_str()]);
            let (bytewise, same, _) = read(letters(&text));
            prop_assert_eq!((&said, &thought), (&bytewise, &same));
            let letters = |text: &str| text.matches(['a', 'é']).count();
            prop_assert!(letters(&said) + letters(&thought) <= letters(&text));
            // What is told as thought is never part of the answer.
            let Split { answer, .. } = split(&text);
            prop_assert!(letters(&answer) <= letters(&said));
        }
    }
}
