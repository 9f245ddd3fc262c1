//! The messages in a line that is no message as it stands: several on one line, a batch, an answer behind other text, and
//! JSON with what some servers write into it (`NaN`, bytes that are no UTF-8, bare control characters, a last comma).

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::json_rpc::{Envelope, is_usable_id};

/// Messages of one batch that are looked at.
const MAX_BATCH: usize = 1000;
/// Places at which a message is looked for: each may cost a look at all that follows.
const MAX_PLACES: usize = 16;

/// Faults that were mended in a line, in words that continue "it wrote ...".
const NO_UTF8: &str = "bytes that are no UTF-8: U+FFFD stands for them";
const NOT_A_NUMBER: &str = "NaN or Infinity, which JSON does not have: null stands for them";
const CONTROL: &str = "control characters inside of texts";
const COMMA: &str = "a comma behind the last entry";
const SEVERAL: &str = "several messages on one line";
const BEHIND: &str = "an answer behind other text on its line";

/// Messages that were found in one line, each of them JSON.
pub(in crate::session) struct Mended {
    pub(in crate::session) messages: Vec<Vec<u8>>,
    /// Faults of the line. Empty for a batch.
    pub(in crate::session) faults: Vec<&'static str>,
}

/// The messages in `line`. `None`: there is none that can be told for sure.
pub(in crate::session) fn messages(line: &[u8]) -> Option<Mended> {
    let text = String::from_utf8_lossy(line);
    let mut mended = Mended { messages: Vec::new(), faults: Vec::new() };
    if matches!(text, Cow::Owned(_)) {
        mended.add(NO_UTF8);
    }
    let (mut rest, mut places, mut is_behind) = (text.trim_ascii(), 0, false);
    while !rest.is_empty() && places < MAX_PLACES {
        places += 1;
        let mut json = Json::default();
        let end = if rest.starts_with(['{', '[']) { json.copy(rest) } else { None };
        if let Some(end) = end.filter(|_| serde_json::from_str::<&RawValue>(&json.text).is_ok()) {
            mended.take(json, is_behind);
            rest = rest[end..].trim_ascii_start();
        } else {
            is_behind = true;
            let next = rest.char_indices().skip(1).find(|(_, letter)| *letter == '{').map(|(at, _)| at);
            rest = next.map_or("", |at| &rest[at..]);
        }
    }
    (!mended.messages.is_empty()).then_some(mended)
}

impl Mended {
    fn add(&mut self, fault: &'static str) {
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Takes what is a message. Behind other text only an answer counts: what was sent to a server may be in its log.
    fn take(&mut self, json: Json, is_behind: bool) {
        let envelope = serde_json::from_str::<Envelope<'_>>(&json.text);
        let parts = match envelope {
            Ok(envelope) if !is_message(&envelope) || (is_behind && envelope.method.is_some()) => return,
            Ok(_) => vec![json.text.into_bytes()],
            Err(_) if is_behind => return,
            Err(_) => match batch(&json.text) {
                Some(parts) => parts,
                None => return,
            },
        };
        for fault in json.faults {
            self.add(fault);
        }
        if is_behind {
            self.add(BEHIND);
        }
        if !self.messages.is_empty() {
            self.add(SEVERAL);
        }
        self.messages.extend(parts);
    }
}

/// Whether an object is a message of the protocol.
fn is_message(envelope: &Envelope<'_>) -> bool {
    let Envelope { jsonrpc, id, method, result, error, .. } = envelope;
    match (method, id) {
        (Some(_), id) => jsonrpc == "2.0" && id.is_none_or(is_usable_id),
        (None, Some(_)) => result.is_some() || error.is_some(),
        (None, None) => error.is_some() && jsonrpc == "2.0",
    }
}

/// The messages of a batch, as the revision 2025-03-26 has it. `None`: it is another list.
fn batch(json: &str) -> Option<Vec<Vec<u8>>> {
    let parts: Vec<&RawValue> = serde_json::from_str(json).ok()?;
    let is_one = |part: &&RawValue| serde_json::from_str(part.get()).is_ok_and(|part| is_message(&part));
    let is_batch = parts.len() <= MAX_BATCH && parts.iter().all(is_one);
    is_batch.then(|| parts.iter().map(|part| part.get().as_bytes().to_owned()).collect())
}

/// One value, copied as JSON has it.
#[derive(Default)]
struct Json {
    text: String,
    faults: Vec<&'static str>,
}

impl Json {
    /// Copies the object or list that `text` begins with; says where it ends. `None`: it has no end.
    fn copy(&mut self, text: &str) -> Option<usize> {
        let bytes = text.as_bytes();
        let (mut at, mut copied, mut depth, mut is_text) = (0, 0, 0_usize, false);
        while let Some(&byte) = bytes.get(at) {
            // Bytes in the place of which something else is written.
            let (length, other, fault) = match byte {
                b'\\' if is_text => {
                    at += 2;
                    continue;
                }
                b'"' => {
                    is_text = !is_text;
                    at += 1;
                    continue;
                }
                0..0x20 if is_text => (1, format!("\\u{byte:04x}"), CONTROL),
                _ if is_text => {
                    at += 1;
                    continue;
                }
                b'{' | b'[' => {
                    depth += 1;
                    at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth -= 1;
                    at += 1;
                    if depth == 0 {
                        self.text.push_str(text.get(copied..at)?);
                        return Some(at);
                    }
                    continue;
                }
                b',' if text.get(at + 1..)?.trim_ascii_start().starts_with(['}', ']']) => {
                    (1, String::new(), COMMA)
                }
                _ => {
                    let words = ["NaN", "Infinity", "-Infinity", "-NaN"];
                    let Some(word) = words.iter().find(|word| bytes[at..].starts_with(word.as_bytes()))
                    else {
                        at += 1;
                        continue;
                    };
                    (word.len(), "null".to_owned(), NOT_A_NUMBER)
                }
            };
            self.text.push_str(text.get(copied..at)?);
            self.text.push_str(&other);
            if !self.faults.contains(&fault) {
                self.faults.push(fault);
            }
            at += length;
            copied = at;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages as texts, and what was wrong.
    fn found(line: &[u8]) -> (Vec<String>, Vec<&'static str>) {
        let Some(Mended { messages, faults }) = messages(line) else { return Default::default() };
        (messages.into_iter().map(|message| String::from_utf8(message).unwrap()).collect(), faults)
    }

    #[test]
    fn each_message_of_a_line_that_is_none_is_found() {
        const ANSWER: &str = r#"{"jsonrpc":"2.0","id":4,"result":{"a":"}\"{"}}"#;
        const NOTICE: &str = r#"{"jsonrpc":"2.0","method":"x"}"#;
        for (line, all, fault) in [
            (format!("{NOTICE}{ANSWER}"), vec![NOTICE, ANSWER], SEVERAL),
            (format!("[{NOTICE}, {ANSWER}]"), vec![NOTICE, ANSWER], ""),
            (format!("12:00 [INFO] {ANSWER}"), vec![ANSWER], BEHIND),
            (format!("data: {ANSWER}\r"), vec![ANSWER], BEHIND),
            (format!("\0\u{feff}{ANSWER} done"), vec![ANSWER], BEHIND),
            (format!("{{\"level\":\"info\"}}{ANSWER}"), vec![ANSWER], ""),
            (
                r#"{"id":4,"result":{"a":NaN,"b":[-Infinity,"NaN",],}}"#.to_owned(),
                vec![r#"{"id":4,"result":{"a":null,"b":[null,"NaN"]}}"#],
                NOT_A_NUMBER,
            ),
            (
                "{\"id\":4,\"result\":\"a\tb\u{1}\"}".to_owned(),
                vec![r#"{"id":4,"result":"a\u0009b\u0001"}"#],
                CONTROL,
            ),
        ] {
            let (messages, faults) = found(line.as_bytes());
            assert_eq!(messages, all, "{line}");
            assert_eq!(faults.first().copied().unwrap_or_default(), fault, "{line}: {faults:?}");
        }
        let (messages, faults) = found(b"{\"id\":4,\"result\":\"caf\xe9\"}");
        assert_eq!(
            (messages, faults),
            (vec!["{\"id\":4,\"result\":\"caf\u{fffd}\"}".to_owned()], vec![NO_UTF8])
        );
    }

    #[test]
    fn what_a_server_logs_is_no_message() {
        for line in [
            "Welcome {user}",
            r#"{"level":"debug","sent":{"jsonrpc":"2.0","id":4,"result":{}}}"#,
            r#"received {"jsonrpc":"2.0","id":4,"method":"tools/call","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":4,"result":{"cut"#,
            "[1,2]",
            r#"[{"jsonrpc":"2.0","id":4,"result":{}},5]"#,
            "{{{{{{{{{{{{{{{{{{{{{{{{",
            "}",
            "",
        ] {
            assert!(messages(line.as_bytes()).is_none(), "{line}");
        }
    }
}
