//! Extracts one short line of words from the body of an answer that is no message: JSON, a page, or plain text.

use encoding_rs::{Encoding, UTF_8};
use hyper::{HeaderMap, header::CONTENT_TYPE};
use serde_json::Value;

use crate::text::{beginning, one_line};

/// The most characters of a text that an error shows.
const MAX_TOLD: usize = 256;
/// Members that hold words, the most telling first.
const MEMBERS: [&str; 8] =
    ["error", "message", "detail", "error_description", "title", "description", "reason", "errors"];
/// How deep words are looked for, and how many are shown.
const MAX_DEPTH: usize = 4;
const MAX_WORDS: usize = 4;
/// The parts of a page that say what it is.
const PARTS: [&str; 3] = ["title", "message", "h1"];

/// The words in a body, decoded by the charset of its content type.
pub(super) fn said(body: &[u8], headers: &HeaderMap) -> String {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let named = kind.split(';').find_map(|part| part.trim().strip_prefix("charset="));
    let encoding = named.and_then(|name| Encoding::for_label(name.trim_matches('"').as_bytes()));
    of_text(&encoding.unwrap_or(UTF_8).decode(body).0)
}

/// The words in a text.
pub(super) fn of_text(text: &str) -> String {
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.starts_with('<') {
        return page(text);
    }
    match serde_json::from_str::<Value>(text) {
        Ok(json @ (Value::Object(_) | Value::Array(_) | Value::String(_))) => {
            let mut words = Vec::new();
            look(&json, MAX_DEPTH, &mut words);
            if words.is_empty() { line(text) } else { line(&words.join(": ")) }
        }
        _ => line(text),
    }
}

/// Collects the words of a JSON value, each once.
fn look(json: &Value, depth: usize, words: &mut Vec<String>) {
    if depth == 0 || words.len() >= MAX_WORDS {
        return;
    }
    match json {
        Value::String(word) if !word.trim().is_empty() && !words.contains(word) => words.push(word.clone()),
        Value::Array(list) => list.iter().take(MAX_WORDS).for_each(|item| look(item, depth - 1, words)),
        Value::Object(object) => {
            MEMBERS.iter().filter_map(|name| object.get(*name)).for_each(|part| look(part, depth - 1, words));
        }
        _ => {}
    }
}

/// The words of a web page or of XML; its markup is for browsers.
fn page(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let kind = if lower.starts_with("<?xml") || lower.starts_with("<error") { "XML" } else { "a web page" };
    let part = |name: &&str| {
        let at = lower.find(&format!("<{name}"))?;
        let begin = at + lower[at..].find('>')? + 1;
        let end = begin + lower[begin..].find('<')?;
        Some(line(&text[begin..end])).filter(|found| !found.is_empty())
    };
    match PARTS.iter().find_map(part) {
        Some(found) => format!("{kind}: `{found}`"),
        None => kind.to_owned(),
    }
}

/// Puts a text on one line, and cuts it.
fn line(text: &str) -> String {
    beginning(&one_line(text), MAX_TOLD)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_decoded_by_its_charset() {
        let headers = |kind| HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
        assert_eq!(said(b"gr\xfc\xdfe", &headers("text/plain; charset=\"iso-8859-1\"")), "grüße");
        assert_eq!(said("\u{feff}grüße".as_bytes(), &headers("application/json")), "grüße");
    }

    #[test]
    fn the_words_of_any_refusal_are_found() {
        for (body, words) in [
            ("", ""),
            ("  Unauthorized\n", "Unauthorized"),
            (r#"{"error":"rate limited"}"#, "rate limited"),
            (r#"{"detail":"Invalid API key"}"#, "Invalid API key"),
            (r#"{"error":{"code":-32001,"message":"Session not found"}}"#, "Session not found"),
            (r#"{"error":"invalid_token","error_description":"expired"}"#, "invalid_token: expired"),
            (r#"{"errors":[{"message":"a"},{"message":"b"}]}"#, "a: b"),
            (r#"{"detail":[{"loc":["body"],"msg":"x"}]}"#, r#"{"detail":[{"loc":["body"],"msg":"x"}]}"#),
            (r#"{"error":"same","message":"same"}"#, "same"),
            (r#""just text""#, "just text"),
            ("[1, 2]", "[1, 2]"),
            ("<!DOCTYPE html><html><head><TITLE lang=en> Sign\n in</TITLE>", "a web page: `Sign in`"),
            ("<html><title></title><body><h1>Forbidden</h1></body>", "a web page: `Forbidden`"),
            ("<html><body><div>x</div>", "a web page"),
            (
                "<?xml version='1.0'?><Error><Code>A</Code><Message>Access Denied</Message></Error>",
                "XML: `Access Denied`",
            ),
        ] {
            assert_eq!(of_text(body), words, "{body}");
        }
        assert_eq!(of_text(&"ä".repeat(1000)).chars().count(), MAX_TOLD + 3);
    }

    proptest! {
        #[test]
        fn any_text_gives_a_short_line(text in "\\PC{0,300}", page in "<(title|h1|İ|>|<|/| |ä){0,40}") {
            for text in [text, page] {
                let line = of_text(&text);
                prop_assert!(line.chars().count() <= MAX_TOLD + 20 && !line.contains('\n'), "{}", line);
            }
        }
    }
}
