//! The XML tool protocol: the tool list in the system prompt, and the parser of call blocks in an answer.

use std::{ops::Range, sync::Arc};

use serde_json::Value;

use super::correction;
use crate::catalog::CatalogEntry;

const OPEN: &str = "<use_mcp_tool>";
const CLOSE: &str = "</use_mcp_tool>";
const END_OF_ARGUMENTS: &str = "</arguments>";
const THOUGHT: &str = "<think>";
const END_OF_THOUGHT: &str = "</think>";

/// Marks that only a call block has. If an answer has one and no readable block, a call went wrong.
const MARKS: [&str; 8] = [
    OPEN,
    CLOSE,
    "<server_name>",
    "</server_name>",
    "<tool_name>",
    "</tool_name>",
    "<arguments>",
    END_OF_ARGUMENTS,
];

/// A call as the model wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Where it is in the text.
    pub span: Range<usize>,
    pub server: String,
    pub tool: String,
    pub arguments: String,
    /// Whether its end is there. A server that stops at it leaves it out.
    pub closed: bool,
}

/// The calls of an answer: the blocks outside of its thoughts, or where there is none those within them. A model that
/// calls only while it thinks means it; one that calls afterwards has tried the call out before.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let Parts { blocks, thoughts, .. } = Parts::of(text);
    let thought = |block: &Block| {
        let next = thoughts.partition_point(|thought| thought.end <= block.span.start);
        thoughts.get(next).is_some_and(|thought| thought.contains(&block.span.start))
    };
    let (within, outside): (Vec<Block>, Vec<Block>) = blocks.into_iter().partition(thought);
    if outside.is_empty() { within } else { outside }
}

/// The mark that is left of an unreadable block, in an answer without calls. Marks within thoughts count only if there is
/// nothing else.
pub(super) fn leftover(text: &str) -> Option<&'static str> {
    let said = without_thoughts(text);
    mark(if said.is_empty() { text } else { &said })
}

/// The first of [`MARKS`] that `text` contains.
pub(super) fn mark(text: &str) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| text.contains(mark))
}

/// The text of the model without its thoughts.
pub(super) fn without_thoughts(text: &str) -> String {
    let (mut said, mut from) = (String::new(), 0);
    for thought in Parts::of(text).thoughts {
        said += &text[from..thought.start];
        from = thought.end;
    }
    said += &text[from..];
    said.trim().to_owned()
}

/// After so many beginnings of a block that is none, no more are read: each may be looked for to the end of the text.
const MOST_FAILED: usize = 16;
/// So many times the length of the text is looked through for ends of arguments that stand outside of strings. After
/// that the first end counts: a model that loops would have each of its blocks looked for to the end of the text.
const MOST_LOOKED: usize = 16;

/// Where the blocks and the thoughts of an answer are, in order.
struct Parts {
    blocks: Vec<Block>,
    /// Ranges from `<think>` to `</think>`. The first one may lack its beginning, which some prompts end with.
    thoughts: Vec<Range<usize>>,
    /// Bytes that were looked through for ends of arguments.
    looked: usize,
}

impl Parts {
    fn of(text: &str) -> Self {
        let mut parts = Self { blocks: Vec::new(), thoughts: Vec::new(), looked: 0 };
        let (mut at, mut thought, mut any, mut failed) = (0, None, false, 0);
        while let Some(tag) = text[at..].find('<').map(|tag| at + tag) {
            let rest = &text[tag..];
            at = tag + 1;
            if rest.starts_with(OPEN) && failed < MOST_FAILED {
                // All text inside a block belongs to it.
                match block(text, tag, &mut parts.looked) {
                    Some(block) => {
                        at = block.span.end;
                        parts.blocks.push(block);
                    }
                    None => failed += 1,
                }
            } else if rest.starts_with(THOUGHT) {
                any = true;
                thought.get_or_insert(tag);
            } else if rest.starts_with(END_OF_THOUGHT) {
                let begun = thought.take().or((!any).then_some(0));
                any = true;
                parts.thoughts.extend(begun.map(|begun| begun..tag + END_OF_THOUGHT.len()));
            }
        }
        parts
    }
}

fn block(text: &str, start: usize, looked: &mut usize) -> Option<Block> {
    let rest = &text[start + OPEN.len()..];
    let (server, rest) = field(rest, "<server_name>", "</server_name>")?;
    let (tool, rest) = field(rest, "<tool_name>", "</tool_name>")?;
    let rest = rest.trim_start().strip_prefix("<arguments>")?;
    let length = arguments(rest, looked, text.len() * MOST_LOOKED)?;
    let (arguments, rest) = rest.split_at(length);
    let rest = &rest[END_OF_ARGUMENTS.len()..];
    let (rest, closed) = match rest.trim_start().strip_prefix(CLOSE) {
        Some(rest) => (rest, true),
        None if rest.trim().is_empty() => (rest, false),
        None => return None,
    };
    Some(Block {
        span: start..text.len() - rest.len(),
        server: server.trim().to_owned(),
        tool: tool.trim().to_owned(),
        arguments: arguments.trim().to_owned(),
        closed,
    })
}

fn field<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.trim_start().strip_prefix(open)?.split_once(close)
}

/// Where the arguments end. They may hold the mark of their own end, in a string, and raw line breaks in it too. That
/// is `looked` for until it comes to `most`.
fn arguments(text: &str, looked: &mut usize, most: usize) -> Option<usize> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    if let Some(Ok(_)) = values.next() {
        let end = values.byte_offset();
        let space = text[end..].len() - text[end..].trim_start().len();
        if text[end + space..].starts_with(END_OF_ARGUMENTS) {
            return Some(end + space);
        }
    }
    let first = text.find(END_OF_ARGUMENTS)?;
    if *looked >= most {
        return Some(first);
    }
    let outside = end_outside_of_strings(text);
    *looked += outside.unwrap_or(text.len());
    let outside = outside.filter(|end| *end > first);
    Some(outside.filter(|end| correction::parse(text[..*end].trim(), true).is_ok()).unwrap_or(first))
}

fn end_outside_of_strings(text: &str) -> Option<usize> {
    let (mut in_string, mut escaped) = (false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '<' if !in_string && text[at..].starts_with(END_OF_ARGUMENTS) => return Some(at),
            _ => {}
        }
    }
    None
}

/// A block as it should have been written.
pub(super) fn write(server: &str, tool: &str, arguments: &str) -> String {
    format!(
        "{OPEN}\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n<arguments>\n{arguments}\n\
         {END_OF_ARGUMENTS}\n{CLOSE}"
    )
}

/// The description of the tools for a model. The headings are those that such models know.
pub(super) fn prompt(entries: &[Arc<CatalogEntry>]) -> String {
    let mut text = format!(
        "You have access to the tools that are listed below, and to no others. Use them step by step: the result of a \
         call comes with the next message, and decides what you do next.\n\n\
         # Tool-Use Formatting Instructions\n\n\
         A call is one block at the end of your message, at the top level and not within other tags:\n\n{}\n\n\
         - server_name: the server that has the tool\n\
         - tool_name: the tool\n\
         - arguments: one JSON object that fits the tool's schema, with quotes in strings escaped\n\n\
         Here are the tools, with the JSON Schema of their arguments:\n",
        write("server name here", "tool name here", "{\"parameter\": \"value\"}")
    );
    let mut server = None;
    for entry in entries {
        if server != Some(&entry.server) {
            text += &format!("\n## Server name: {}\n", entry.server);
            server = Some(&entry.server);
        }
        let schema = Value::Object((*entry.tool.input_schema).clone());
        text += &format!(
            "### Tool name: {}\nDescription: {}\nInput JSON schema: {schema}\n",
            entry.tool.name, entry.tool.description
        );
    }
    text
}

/// Entry of the fuzz target `blocks`: reads an answer with calls in its text.
pub fn fuzz(text: &str) {
    let read = blocks(text);
    assert!(read.windows(2).all(|pair| pair[0].span.end <= pair[1].span.start));
    assert!(read.iter().all(|block| text.get(block.span.clone()).is_some()));
    assert!(without_thoughts(text).len() <= text.len());
    let _ = (leftover(text), super::boxed_answer::last(text), correction::parse(text, true));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_are_read_with_the_text_around_them() {
        let call = write("a-b__c", "t", r#"{"text": "</arguments>\n</use_mcp_tool>"}"#);
        let text = format!("<think>{}</think>I look.\n{call}\n{call}", write("x", "y", "{}"));
        let found = blocks(&text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].server.as_str(), found[0].tool.as_str()), ("a-b__c", "t"));
        assert_eq!(found[0].arguments, r#"{"text": "</arguments>\n</use_mcp_tool>"}"#);
        assert_eq!(&text[found[1].span.clone()], call);
        assert!(found.iter().all(|block| block.closed));
    }

    #[test]
    fn a_truncated_block_is_no_block() {
        let whole = write("s", "t", r#"{"text": "rm -r build/all"}"#);
        let end = whole.find(END_OF_ARGUMENTS).unwrap() + END_OF_ARGUMENTS.len();
        for length in OPEN.len()..whole.len() {
            let cut = &whole[..length];
            assert_eq!(leftover(cut), Some(OPEN));
            let read = blocks(cut);
            assert_eq!(read.len(), usize::from(cut[..length].trim_end().len() == end), "{cut}");
            assert!(read.iter().all(|block| !block.closed), "{cut}");
        }
        assert_eq!(blocks(&whole).len(), 1);
        assert_eq!(leftover("no call, </think> and none after"), None);
    }

    #[test]
    fn calls_before_the_end_of_a_thought_are_read() {
        let (a, b) = (write("s", "a", "{}"), write("s", "b", "{}"));
        let closing = write("s", "c", r#"{"text": "</think>"}"#);
        for (text, tools, said) in [
            // Outside of the thoughts, and before another one.
            (format!("{a}</think>"), "a", ""),
            (format!("{a} I wait.</think> Done."), "a", "Done."),
            (format!("<think>x</think>{a}<think>y</think> Done."), "a", "Done."),
            (format!("<think>x</think>{a}</think> Done."), "a", "Done."),
            (format!("{a}<think>y</think>{b}"), "ab", ""),
            // Within them: only if there is no other.
            (format!("<think>{a}</think> Done."), "a", "Done."),
            (format!("<think>{a}{b}</think>"), "ab", ""),
            (format!("<think>{a}</think>{b}"), "b", ""),
            (format!("{a}</think>{b}"), "b", ""),
            // A mark in an argument is none.
            (closing.clone(), "c", ""),
            (format!("{a}{closing}"), "ac", ""),
            (format!("<think>{a}{b}"), "ab", "<think>"),
        ] {
            let read: String = blocks(&text).iter().map(|block| block.tool.as_str()).collect();
            assert_eq!(read, tools, "{text}");
            let mut rest = without_thoughts(&text);
            for block in [&a, &b, &closing] {
                rest = rest.replace(block.as_str(), "");
            }
            assert_eq!(rest.replace("</think>", "").trim(), said, "{text}");
        }
    }

    #[test]
    fn a_partial_block_is_reported_anywhere() {
        let whole = write("s", "t", "{}");
        let half = &whole[..whole.len() / 2];
        for text in [
            half.to_owned(),
            format!("{half} and text"),
            format!("<think>{half}</think>"),
            format!("{half}</think>"),
            format!("{half}<think>x</think> text"),
            "<tool_name>x</tool_name>".to_owned(),
        ] {
            assert!(blocks(&text).is_empty() && leftover(&text).is_some(), "{text}");
        }
        // What was thought is no part of the answer.
        let text = format!("<think>{half}</think> 42");
        assert_eq!((leftover(&text), without_thoughts(&text).as_str()), (None, "42"));
    }

    #[test]
    fn raw_line_breaks_do_not_end_the_arguments() {
        let arguments = "{\"code\": \"a\n</arguments>\n</use_mcp_tool>\n\"}";
        let text = write("s", "t", arguments) + &write("s", "u", "{}");
        let found = blocks(&text);
        assert_eq!(found.iter().map(|block| block.tool.as_str()).collect::<Vec<_>>(), ["t", "u"]);
        assert_eq!(found[0].arguments, arguments);
        // A quote too many does not swallow the next block.
        let text = write("s", "t", "{\"a\": \"it\"s\"}") + &write("s", "u", "{\"b\": \"\"}");
        assert_eq!(blocks(&text).len(), 2);
    }

    #[test]
    fn parsing_blocks_takes_linear_time() {
        // At the end of each block's arguments a string is open, and it stays so to the end of the text.
        let text = write("s", "t", "{\"\\\"").repeat(2_000);
        let parts = Parts::of(&text);
        assert_eq!(parts.blocks.len(), 2_000);
        assert!(parts.looked <= (MOST_LOOKED + 1) * text.len(), "{} of {}", parts.looked, text.len());
        // Begun blocks without an end, and thoughts around each of many.
        let begun = "<use_mcp_tool><server_name>".repeat(50_000);
        assert!(blocks(&begun).is_empty());
        let thoughts = format!("<think>{}</think>", write("s", "t", "{}")).repeat(50_000);
        assert_eq!(blocks(&thoughts).len(), 50_000);
    }

    #[test]
    fn broken_json_ends_at_the_first_mark() {
        let found = blocks(&write("s", "t", "{'text': 1,}"));
        assert_eq!(found[0].arguments, "{'text': 1,}");
    }

    proptest! {
        #[test]
        fn written_blocks_are_read_back(before in "[a-z \n]{0,20}", server in "[a-z_.-]{1,9}", tool in "[a-z_.-]{1,9}", value in any::<String>()) {
            let arguments = serde_json::json!({"v": value}).to_string();
            let text = before.clone() + &write(&server, &tool, &arguments);
            let span = before.len()..text.len();
            prop_assert_eq!(blocks(&text), vec![Block { span, server, tool, arguments, closed: true }]);
        }

        #[test]
        fn any_text_can_be_parsed_for_blocks(text in any::<String>(), parts in prop::collection::vec(0_usize..10, 0..12)) {
            let text: String = text.chars().map(String::from).zip(parts.iter().map(|part| MARKS.get(*part).copied().unwrap_or(if *part == 8 { THOUGHT } else { END_OF_THOUGHT })).chain(std::iter::repeat("")))
                .map(|(a, b)| a + b).collect();
            for block in blocks(&text) {
                prop_assert!(text.get(block.span).is_some());
            }
            prop_assert!(text.len() >= without_thoughts(&text).len());
        }
    }
}
