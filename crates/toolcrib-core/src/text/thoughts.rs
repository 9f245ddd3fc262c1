//! Separates what a model thought from what it answers, where its server left both in one text.
//!
//! Each family of models marks its thoughts in its own way, and most servers take the marks out only if they are told
//! to. A mark in code (between backticks) is text. A thought without an end reaches to the end of the text; one without
//! a beginning, which some prompts end with, begins with the text.

use std::sync::LazyLock;

use regex::{Captures, Regex};

mod opening;

pub use opening::{Opening, Part};

/// A text without its thoughts, and these.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// The text without its thoughts.
    pub answer: String,
    /// The thoughts alone.
    pub thoughts: String,
}

/// Marks of thoughts. Words of other languages are those of the models' own templates.
static MARKS: LazyLock<Regex> = LazyLock::new(|| {
    // <think>, <thinking>, <seed:think>, <longcat_think>, <think_fast>; Reflection, EXAONE, Gemini, DeepSeek, Qwen, GLM
    let tag = r"<(?P<end>(?:/\s?)?)(?:[a-z]{1,12}[:_])?(?P<tag>(?:ant)?think(?:ing)?|thoughts?|thought_process|chain_of_thought|reasoning|reflection|scratchpad|inner_?monologue)(?:_(?:fast|faster|never_used_[0-9a-f]+))?(?:\s[^<>]{0,200})?(?P<void>/?)>";
    // Magistral; Kimi-VL; OpenThinker and Sky-T1; Command A; Apertus; MedGemma; Pangu
    let opens = r"(?P<open>\[THINK\]|◁think▷|<\|begin_of_thought\|>|<\|START_THINKING\|>|<\|inner_prefix\|>|<unused94>(?:thought\b)?|\[unused16\]|<\|(?:think|thinking)\|>)";
    let closes = r"(?P<close>\[/THINK\]|◁/think▷|<\|end_of_thought\|>|<\|END_THINKING\|>|<\|inner_suffix\|>|<unused95>|\[unused17\]|<\|/(?:think|thinking)\|>)";
    // Open WebUI
    let details = r#"(?P<details><details\s+type=["']reasoning["'][^<>]{0,200}>)|(?P<detailed></details>)"#;
    // Harmony (gpt-oss): the channel `final` is the answer. Gemma 4 has channels too
    let channel = r"<\|channel\|?>\s*(?P<channel>[a-z]+)[^<\n]{0,200}(?:<\|constrain\|>[^<\n]{0,200})?(?:<\|message\|>)?";
    let ends = r"(?P<ended><\|end\|>|<channel\|>)";
    // What stands around answers
    let noise = r"(?P<noise><\|start\|>(?:assistant)?|<\|(?:return|call)\|>|<\|(?:begin|end)_of_(?:solution|box)\|>|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|\A\s*<\|im_start\|>assistant(?:<\|im_sep\|>)?|(?:<\|(?:im_end|eot_id|endoftext)\|>|<end_of_turn>|<｜end▁of▁sentence｜>)\s*\z)";
    Regex::new(&format!("(?i:{tag})|{opens}|{closes}|{details}|{channel}|{ends}|{noise}"))
        .expect("a constant pattern")
});

/// Granite says it in words.
static IN_WORDS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"^\s*Here(?:'s| is) my thought process:(?s:(?P<thoughts>.*?))(?:Here(?:'s| is) my response:|\z)",
    )
    .expect("a constant pattern")
});

/// The kind of a thought that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tag,
    Details,
    Channel,
    /// Begun and ended by sentences.
    Words,
}

/// The effect of a mark.
enum Mark {
    Open(Kind),
    Close(Kind),
    /// The answer begins, and all before it was thought.
    Answer,
    /// A mark without meaning for this.
    Noise,
    Text,
}

impl Mark {
    fn of(found: &Captures<'_>) -> Self {
        let has = |name| found.name(name).is_some_and(|part| !part.is_empty());
        if let Some(channel) = found.name("channel") {
            return if channel.as_str() == "final" { Self::Answer } else { Self::Open(Kind::Channel) };
        }
        match () {
            () if has("noise") || has("void") => Self::Noise,
            () if has("tag") && has("end") => Self::Close(Kind::Tag),
            () if has("tag") || has("open") => Self::Open(Kind::Tag),
            () if has("close") => Self::Close(Kind::Tag),
            () if has("details") => Self::Open(Kind::Details),
            () if has("detailed") => Self::Close(Kind::Details),
            () if has("ended") => Self::Close(Kind::Channel),
            () => Self::Text,
        }
    }
}

/// Separates the thoughts in `text` from the rest. A text without any is its own answer, unchanged.
pub fn split(text: &str) -> Split {
    let mut split = Split::default();
    let (mut open, mut any, mut from): (Option<Kind>, bool, usize) = (None, false, 0);
    let mut code = Code::default();
    let (text, plain) = without_words(text, &mut split, &mut any);
    for found in MARKS.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        let mark = Mark::of(&found);
        if open.is_none() {
            code.read(&text[from.max(code.at)..whole.start()], whole.start());
            if code.is_open() {
                continue;
            }
        }
        let before = &text[from..whole.start()];
        match (open, mark) {
            (None, Mark::Open(kind)) => {
                split.answer.push_str(before);
                open = Some(kind);
            }
            // A thought within a thought, or a mark that it speaks of.
            (Some(_), Mark::Open(kind)) if open != Some(Kind::Channel) || kind != Kind::Channel => continue,
            (Some(_), Mark::Open(_) | Mark::Answer) => {
                add(&mut split.thoughts, before);
                open = Some(Kind::Channel).filter(|_| !matches!(Mark::of(&found), Mark::Answer));
            }
            (Some(kind), Mark::Close(other)) if kind == other => {
                add(&mut split.thoughts, before);
                open = None;
            }
            (None, Mark::Answer) => {
                let said = std::mem::take(&mut split.answer) + before;
                add(&mut split.thoughts, &said);
            }
            (None, Mark::Close(Kind::Tag)) => {
                let rest = &text[whole.end()..];
                // One mark too many at the end is no thought.
                if any && rest.trim().is_empty() {
                    split.answer.push_str(before);
                } else {
                    let said = std::mem::take(&mut split.answer) + before;
                    add(&mut split.thoughts, &said);
                }
            }
            (None, Mark::Close(Kind::Channel) | Mark::Noise) => split.answer.push_str(before),
            // The end of some other element, or of an answer.
            (None, Mark::Close(Kind::Details | Kind::Words))
            | (Some(_), Mark::Close(_) | Mark::Noise)
            | (_, Mark::Text) => {
                continue;
            }
        }
        any = true;
        from = whole.end();
        code = Code { at: from, ..Code::default() };
    }
    if !any {
        return Split { answer: plain.to_owned(), thoughts: String::new() };
    }
    match open {
        Some(_) => add(&mut split.thoughts, &text[from..]),
        None => split.answer.push_str(&text[from..]),
    }
    split.answer.truncate(split.answer.trim_end().len());
    split.answer.drain(..split.answer.len() - split.answer.trim_start().len());
    split
}

/// Takes thoughts off that are marked by words alone. Gives what is left, and the text as it was.
fn without_words<'a>(text: &'a str, split: &mut Split, any: &mut bool) -> (&'a str, &'a str) {
    if let Some(found) = IN_WORDS.captures(text) {
        add(&mut split.thoughts, &found["thoughts"]);
        *any = true;
        return (&text[found[0].len()..], text);
    }
    // Harmony without its marks: a server left them out, and the names of the channels in.
    if let Some((thought, answer)) =
        text.trim_start().strip_prefix("analysis").and_then(|rest| rest.rsplit_once("assistantfinal"))
    {
        add(&mut split.thoughts, thought);
        *any = true;
        return (answer, text);
    }
    (text, text)
}

fn add(thoughts: &mut String, more: &str) {
    let more = more.trim();
    if !thoughts.is_empty() && !more.is_empty() {
        thoughts.push('\n');
    }
    thoughts.push_str(more);
}

/// Whether a place is in code: between fences, or between backticks on one line.
#[derive(Default)]
struct Code {
    /// How far the text was read.
    at: usize,
    fenced: bool,
    inline: bool,
    /// The beginning of the current line.
    line: String,
}

impl Code {
    /// Reads on, up to `to`.
    fn read(&mut self, more: &str, to: usize) {
        for c in more.chars() {
            match c {
                '\n' => {
                    self.inline = false;
                    self.line.clear();
                }
                _ => {
                    // Only the beginning of a line matters.
                    if self.line.len() < 3 && !(self.line.is_empty() && c.is_whitespace()) {
                        self.line.push(c);
                        if self.line == "```" || self.line == "~~~" {
                            (self.fenced, self.inline) = (!self.fenced, false);
                            continue;
                        }
                    }
                    self.inline ^= c == '`' && !self.line.starts_with("``");
                }
            }
        }
        self.at = to;
    }

    fn is_open(&self) -> bool {
        self.fenced || self.inline
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn thoughts_of_every_family_are_taken_out() {
        for (text, answer, thoughts) in [
            ("<think>\ntwo and two is maybe 5\n</think>\n\n4", "4", "two and two is maybe 5"),
            ("<thinking>a</thinking>4", "4", "a"),
            ("<THINK>a</Think>4", "4", "a"),
            ("<thought>a</thought>\n4", "4", "a"),
            ("<reasoning effort=\"high\">a</reasoning>\n4", "4", "a"),
            ("<seed:think>a</seed:think>4", "4", "a"),
            ("<longcat_think>a</longcat_think>4", "4", "a"),
            ("<think_fast>a</think_fast>4", "4", "a"),
            ("[THINK]a[/THINK]4", "4", "a"),
            ("◁think▷a◁/think▷4", "4", "a"),
            ("<|begin_of_thought|>a<|end_of_thought|>\n<|begin_of_solution|>4<|end_of_solution|>", "4", "a"),
            ("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>", "4", "a"),
            ("<|inner_prefix|>a<|inner_suffix|>4", "4", "a"),
            ("<unused94>thought\na<unused95>4", "4", "a"),
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
                "4",
                "a",
            ),
            (
                "<|channel|>analysis<|message|>a<|channel|>commentary to=x <|constrain|>json<|message|>b",
                "",
                "a\nb",
            ),
            ("<|channel>thought\na<channel|>4", "4", "a"),
            ("analysisWe add.assistantfinal4", "4", "We add."),
            ("Here is my thought process:\na\nHere is my response:\n4", "4", "a"),
            ("<think>a</ think>4", "4", "a"),
            ("<antThinking>a</antThinking>4", "4", "a"),
            ("<thought_process>a</thought_process>4", "4", "a"),
            ("<think>a</think><|begin_of_box|>4<|end_of_box|>", "4", "a"),
            ("<|im_start|>assistant\n<think>a</think>4<|im_end|>\n", "4", "a"),
            ("4<|endoftext|>", "4", ""),
            ("<details type=\"reasoning\" done=\"true\">\na\n</details>\n4", "4", "a"),
            // Several, and one in the middle.
            ("<think>a</think>x<think>b</think> y", "x y", "a\nb"),
            ("The <thinking>5?</thinking>answer is 4", "The answer is 4", "5?"),
            // Without an end, and without a beginning.
            ("<think>\nwell, 4", "", "well, 4"),
            ("It is\n<think>4", "It is", "4"),
            ("well, 5?\n</think>\n4", "4", "well, 5?"),
            ("a <think> b </think> c </think> 4", "4", "b\na  c"),
            ("<think>a <think> b</think>4", "4", "a <think> b"),
            ("well, 4</think>", "", "well, 4"),
            // A mark too many, and an empty thought.
            ("<think>a</think>4</think>", "4", "a"),
            ("<think></think>\n\n4", "4", ""),
            ("<think/>4", "4", ""),
        ] {
            let found = split(text);
            assert_eq!((found.answer.as_str(), found.thoughts.as_str()), (answer, thoughts), "{text}");
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in [
            "",
            " 4 \n",
            "Write `<think>` before a thought and `</think>` after it.",
            "```xml\n<think>a</think>\n```\n4",
            "I think 4 <b>is</b> right. <thinker>x</thinker>",
            "a < think > b",
            "analysis of 4",
            "The mark <|im_end|> ends a turn.",
            "<details><summary>s</summary>4</details>",
            "[1] and [THE] rest",
        ] {
            assert_eq!(split(text), Split { answer: text.to_owned(), thoughts: String::new() });
        }
    }

    proptest! {
        #[test]
        fn no_text_is_lost_or_made_up(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>final<|message|>", "<|end|>", "`", "```\n",
                    "<|channel|>analysis<|message|>", "a", "é", "\n", " ", "</details>", "<details type='reasoning'>",
                ]),
                0..24,
            ),
        ) {
            let text = parts.concat();
            let found = split(&text);
            let letters = |text: &str| text.matches(['a', 'é']).count();
            // Each letter is on one side. Those of marks are in both or none.
            prop_assert!(letters(&found.answer) + letters(&found.thoughts) <= letters(&text));
            prop_assert!(split(&found.answer).answer.len() <= found.answer.len());
        }
    }
}
