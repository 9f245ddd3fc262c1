//! One line of a server to one message, whatever the line holds: every answer to a call must end that call.

use rmcp::model::{ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    cut::{Cutter, MAX_VALUES, weigh},
    plain,
};
use crate::{process::MAX_LINE, tool::ToolResult};

/// Lines up to this are decoded as they are: too short to cost much, whatever they hold.
const SHORT: usize = 256 << 10;
/// Longest message that is not a tool result: a page of a tool list, say.
const MAX_MESSAGE: usize = 4 << 20;

/// What a line is.
pub(super) enum Decoded {
    /// A plain answer to a call of the lane.
    Result(i64, ToolResult),
    Message(Box<ServerJsonRpcMessage>),
    /// Not a message; the beginning of it.
    Junk(String),
    Blank,
}

/// Longest line that [`short`] takes, of a server with these limits.
pub(super) fn short_limit(cutter: &Cutter) -> usize {
    SHORT.min(cutter.limit)
}

/// A line that is short enough to be decoded at once.
pub(super) fn short(line: &[u8]) -> Decoded {
    if line.trim_ascii().is_empty() {
        return Decoded::Blank;
    }
    if let Some((id, result)) = plain::decode(line) {
        return Decoded::Result(id, result);
    }
    match serde_json::from_slice(line) {
        Ok(message) => Decoded::Message(Box::new(message)),
        Err(error) => malformed(line, &error),
    }
}

/// The parts of a message that tell what it is.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

/// A line that is not short: a tool result is cut to its limit, anything else must be of a bearable size.
/// Blocks.
pub(super) fn long(line: &[u8], cutter: &Cutter) -> Decoded {
    let envelope = match serde_json::from_slice::<Envelope<'_>>(line) {
        Ok(envelope) => envelope,
        Err(error) => return malformed(line, &error),
    };
    if let Envelope { id: Some(id), method: None, result: Some(result) } = envelope {
        match cutter.cut(result.get()) {
            Ok(Some(result)) => {
                let line = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, id.get());
                return short(line.as_bytes());
            }
            Ok(None) => {}
            Err(error) => return malformed(line, &error),
        }
    }
    if line.len() > MAX_MESSAGE {
        return refused(line, &format!("it has {} bytes, the limit is {MAX_MESSAGE}", line.len()));
    }
    match weigh(line) {
        values if values > MAX_VALUES => {
            refused(line, &format!("it holds {values} values, the limit is {MAX_VALUES}"))
        }
        _ => short(line),
    }
}

/// A line that was read past, of which only the ends are there.
pub(super) fn skipped(head: &[u8], tail: &[u8], total: u64) -> Decoded {
    match answered(head, tail) {
        Some(id) => unusable(id, &format!("it has {total} bytes, the limit is {MAX_LINE}")),
        None => Decoded::Junk(beginning(head)),
    }
}

/// An answer that does not fit the protocol must end its call, or the call would wait for ever.
fn malformed(line: &[u8], error: &serde_json::Error) -> Decoded {
    let why = match std::str::from_utf8(line) {
        Err(error) => format!("it is not UTF-8, from byte {} on", error.valid_up_to()),
        Ok(_) => format!("it is malformed: {error}"),
    };
    refused(line, &why)
}

fn refused(line: &[u8], why: &str) -> Decoded {
    match answered(line, line) {
        Some(id) => unusable(id, why),
        None => Decoded::Junk(beginning(line)),
    }
}

/// An answer of our own in place of one that cannot be used.
fn unusable(id: RequestId, why: &str) -> Decoded {
    let error = ErrorData::internal_error(why.to_owned(), Some(json!({"toolcrib": "unusable"})));
    Decoded::Message(Box::new(JsonRpcMessage::error(error, Some(id))))
}

/// Why an answer could not be used, if `error` is one of ours in its place.
pub(super) fn why_unusable(error: &ErrorData) -> Option<&str> {
    let ours = error.data.as_ref()?.get("toolcrib").and_then(Value::as_str) == Some("unusable");
    ours.then_some(&*error.message)
}

fn beginning(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(1000)]);
    text.chars().take(200).collect()
}

/// The id of the call that a line with this head and tail answers. Nothing if it has a `method`: then it is a
/// request of the server's, whose ids are its own.
fn answered(head: &[u8], tail: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(&head[..head.len().min(MAX_HEAD)]);
    let mut found = Found::default();
    let _ = found.look(&text);
    if found.method { None } else { found.id.or_else(|| id_in_tail(tail)) }
}

/// Members of the outermost object, as far as a line was looked through.
#[derive(Default)]
struct Found {
    /// A number, as all ids of calls are.
    id: Option<RequestId>,
    method: bool,
}

impl Found {
    /// Looks until it is known what the line is, or until `text` ends or makes no sense.
    fn look(&mut self, text: &str) -> Option<()> {
        let mut depth = 0_usize;
        let mut rest = text;
        loop {
            let at = rest.find(['"', '{', '[', '}', ']'])?;
            let (sign, after) = (rest.as_bytes()[at], &rest[at + 1..]);
            rest = after;
            match sign {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.checked_sub(1)?,
                _ => {
                    let end = end_of_string(after)?;
                    rest = &after[end + 1..];
                    let value = rest.trim_start().strip_prefix(':').filter(|_| depth == 1);
                    match (value, &after[..end]) {
                        (Some(value), "id") => self.id = number(value),
                        (Some(_), "method") => {
                            self.method = true;
                            return None;
                        }
                        // An answer: what follows is long, and may be anything.
                        (Some(_), "result" | "error") if self.id.is_some() => return None,
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Bytes in which an id is looked for.
const MAX_HEAD: usize = 4096;

/// The id of an answer that ends with `tail`: the last member, as some servers write it.
fn id_in_tail(tail: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(&tail[tail.len().saturating_sub(MAX_HEAD)..]);
    let after = &text[text.rfind("\"id\"")? + 4..];
    let last = !after.contains(['{', '[', ']']) && after.trim_end().find('}')? + 1 == after.trim_end().len();
    number(after.trim_start().strip_prefix(':').filter(|_| last)?)
}

/// Where the string ends that `text` begins in.
fn end_of_string(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find(['"', '\\'])?;
        if text.as_bytes()[at] == b'"' {
            return Some(at);
        }
        // What is escaped is one byte or begins with one that is no quote.
        from = at + 2;
        text.get(from..)?;
    }
}

fn number(text: &str) -> Option<RequestId> {
    let digits: String = text.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(RequestId::Number)
}

/// For the fuzz target `message`: a line whole, and as one that was skipped.
#[cfg(fuzzing)]
pub(crate) fn fuzz(line: &[u8]) {
    let _ = short(line);
    let (head, tail) = line.split_at(line.len() / 2);
    let _ = skipped(head, tail, line.len() as u64 + (1 << 30));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Messages that are almost right, cut and changed somewhere, and bytes of any kind.
    fn lines() -> impl Strategy<Value = Vec<u8>> {
        const SEEDS: [&str; 4] = [
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"a\\u00e9"}],"isError":false}}"#,
            r#"{"jsonrpc":"2.0","id":"x","error":{"code":-32601,"message":"no"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.5}}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#,
        ];
        let changed =
            (prop::sample::select(&SEEDS[..]), any::<prop::sample::Index>(), any::<u8>(), any::<bool>())
                .prop_map(|(seed, at, byte, cut)| {
                    let mut line = seed.as_bytes().to_vec();
                    let at = at.index(line.len());
                    line[at] = byte;
                    if cut {
                        line.truncate(at);
                    }
                    line
                });
        prop_oneof![changed, prop::collection::vec(any::<u8>(), 0..200)]
    }

    proptest! {
        #[test]
        fn any_line_is_a_message_or_junk_or_blank(line in lines()) {
            match short(&line) {
                Decoded::Blank => prop_assert!(line.trim_ascii().is_empty()),
                // An answer with a number must end a call, whatever else is wrong with it.
                Decoded::Junk(text) => prop_assert!(text.len() <= line.len().max(1) * 3, "{text}"),
                Decoded::Message(_) | Decoded::Result(..) => {}
            }
            let total = line.len() as u64 + (1 << 30);
            let half = line.len() / 2;
            let _ = skipped(&line[..half], &line[half..], total);
        }
    }

    fn text(decoded: &Decoded) -> String {
        match decoded {
            Decoded::Message(message) => serde_json::to_string(message).unwrap(),
            Decoded::Result(id, result) => format!("result {id} {result:?}"),
            Decoded::Junk(text) => format!("junk {text}"),
            Decoded::Blank => "blank".to_owned(),
        }
    }

    #[test]
    fn every_line_ends_as_something() {
        let whole = |line: &str| text(&short(line.as_bytes()));
        assert_eq!(whole("  "), "blank");
        assert_eq!(whole("Welcome!"), "junk Welcome!");
        assert!(whole(r#"{"jsonrpc":"2.0","id":4,"result":{}}"#).contains(r#""id":4"#));
        assert!(whole(r#"{"id":4,"nothing":true}"#).contains("it is malformed"));
        assert!(whole(r#"{"result":{"id":3},"id":4"#).contains(r#""id":4"#), "not that of something inside");
        assert!(whole(r#"{"result":{"x":[},"id":4}"#).contains(r#""id":4"#), "an id at the end counts");
        let wrong = text(&short(b"{\"id\":4,\"result\":{\"x\":\"\xff\"}}"));
        assert!(wrong.contains("it is not UTF-8, from byte 23 on"), "{wrong}");
    }

    #[test]
    fn a_skipped_line_ends_its_call() {
        let long = |head: &str, tail: &str| text(&skipped(head.as_bytes(), tail.as_bytes(), 99));
        let head = long(r#"{"jsonrpc":"2.0","id": 12,"result""#, "}}");
        assert!(
            head.contains("it has 99 bytes, the limit is 16777216") && head.contains(r#""id":12"#),
            "{head}"
        );
        let tail = long(r#"{"result":{"a":{"id":1},"#, r#"x"},"jsonrpc":"2.0","id":7}"#);
        assert!(tail.contains(r#""id":7"#), "{tail}");
        for request in [r#"{"method":"x","id":1,"params":{"#, r#"{"id":1,"method":"x","params":{"#] {
            assert!(long(request, "}}").starts_with("junk"), "{request}");
            assert!(long(request, r#"}},"id":1}"#).starts_with("junk"), "{request}");
        }
        let broken = text(&short(br#"{"id":1,"method":"x","params":[}"#));
        assert!(broken.starts_with("junk"), "{broken}");
        assert!(long(r#"{"result":{"a\"id\":1"#, r#"{"id":1}]}}"#).starts_with("junk"));
    }
}
