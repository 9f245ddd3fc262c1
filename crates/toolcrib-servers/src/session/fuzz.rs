//! For the fuzz target `leaves`: valid answers of a server with single leaves that are missing, `null`, of another type,
//! doubled, huge or beside others that nobody knows. The reading of them never panics, never loses a neighbour, and each
//! warning names its path.

use serde_json::{Value, json, value::RawValue};

use super::{
    connect::{
        facts::ServerFacts,
        handshake::{NEWEST, RequestState, discovered, initialized},
        tool_page::ToolPage,
    },
    result::read::tool_result,
    rpc::{
        decode::{self, Decoded},
        requests::RpcAnswer,
    },
};
use crate::json_rpc::RawObject;

/// Texts that replace a leaf.
const LEAVES: [&str; 16] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e999",
    "0.5",
    "123456789012345678901234567890",
    "\"\"",
    "\"text\"",
    "\"\\ud83e\"",
    "[]",
    "[1]",
    "[[]]",
    "{}",
    "{\"a\":null}",
];

/// Where a text of JSON is changed, and how.
struct Change {
    /// Index of the changed value, in the order of the text; values before `from` stay.
    at: usize,
    how: u8,
    leaf: u8,
}

/// Writes a value with a change in it.
struct Writer<'a> {
    change: &'a Change,
    seen: usize,
    text: String,
}

impl Writer<'_> {
    fn written(value: &Value, change: &Change) -> String {
        let mut writer = Writer { change, seen: 0, text: String::new() };
        writer.write(value);
        writer.text
    }

    fn leaf(&self) -> String {
        match usize::from(self.change.leaf) % (LEAVES.len() + 2) {
            0 => format!("{}1{}", "[".repeat(200), "]".repeat(200)),
            1 => format!("\"{}\"", "x".repeat(10_000)),
            index => LEAVES[index - 2].to_owned(),
        }
    }

    fn write(&mut self, value: &Value) {
        match value {
            Value::Object(members) => {
                self.text.push('{');
                for (name, member) in members {
                    self.member(&format!("{}:", Value::from(name.as_str())), member);
                }
                self.close('}');
            }
            Value::Array(items) => {
                self.text.push('[');
                for item in items {
                    self.member("", item);
                }
                self.close(']');
            }
            leaf => self.text.push_str(&leaf.to_string()),
        }
    }

    fn member(&mut self, name: &str, value: &Value) {
        let is_here = self.seen == self.change.at;
        self.seen += 1;
        let other = self.leaf();
        match self.change.how % 4 {
            0 if is_here => {}
            1 if is_here => self.text.push_str(&format!("{name}{other},")),
            // The last one counts.
            2 if is_here && !name.is_empty() => self.text.push_str(&format!("{name}{other},{name}{value},")),
            3 if is_here && !name.is_empty() => {
                self.text.push_str(&format!("\"unknown\":{other},{name}{value},"));
            }
            _ => {
                self.text.push_str(name);
                self.write(value);
                self.text.push(',');
            }
        }
    }

    fn close(&mut self, end: char) {
        if self.text.ends_with(',') {
            self.text.pop();
        }
        self.text.push(end);
    }
}

/// Reads one answer of each kind with one change.
pub fn leaves(bytes: &[u8]) {
    let &[kind, at, how, leaf, ..] = bytes else { return };
    let change = Change { at: usize::from(at) % 24, how, leaf };
    match kind % 5 {
        0 => hello(&change),
        1 => list(&change),
        2 => result(&change),
        3 => refused(&change),
        _ => message(&change),
    }
}

fn answered(result: &str) -> Box<RawValue> {
    let line = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#);
    match decode::undecoded(line.as_bytes()) {
        Decoded::Answer(7, RpcAnswer::Result(result)) => result,
        _ => panic!("no answer to the request: {line}"),
    }
}

fn hello(change: &Change) {
    let said = json!({
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true}, "logging": {}},
        "serverInfo": {"name": "x", "version": "1", "title": "X"},
        "supportedVersions": ["2026-07-28"],
        "instructions": "say hello",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "x", "version": "1"}},
    });
    let raw = answered(&Writer::written(&said, change));
    let _ = discovered(RpcAnswer::Result(raw.clone()));
    match initialized(RpcAnswer::Result(raw.clone())) {
        RequestState::Opened(facts, _) => {
            assert!(facts.oddities.iter().all(|oddity| oddity.contains('`')), "{:?}", facts.oddities);
        }
        RequestState::Refused(Some(why)) => assert!(why.contains("revision"), "{raw}: {why}"),
        _ => panic!("neither opened nor refused: {raw}"),
    }
    let members = RawObject::parse(Some(&raw)).unwrap_or_default();
    let _ = ServerFacts::of(&members, NEWEST, "server/discover");
}

fn list(change: &Change) {
    let tool = json!({
        "name": "middle", "title": "Middle", "description": "does it",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": true, "title": "T"},
        "_meta": {"a": 1},
    });
    // A list in the place of the tool, too.
    let changed = Writer::written(&json!([tool]), change);
    let middle = changed[1..changed.len() - 1].to_owned();
    let middle = if middle.is_empty() { String::new() } else { format!("{middle},") };
    let raw =
        answered(&format!(r#"{{"tools":[{{"name":"first"}},{middle}{{"name":"last"}}],"nextCursor":"2"}}"#));
    let page = ToolPage::read(&raw, 0).expect("it is an object");
    let names: Vec<&str> = page.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert!(names.first() == Some(&"first") && names.last() == Some(&"last"), "{raw}: {names:?}");
    assert_eq!(page.next_cursor.as_deref(), Some("2"));
    assert!(page.oddities.iter().all(|oddity| oddity.starts_with("`tools[1]")), "{raw}: {:?}", page.oddities);
    assert!(page.tools.len() == page.entries || !page.oddities.is_empty(), "{raw}: left out without a word");

    let whole = json!({"tools": [{"name": "first"}, {"name": "last"}], "nextCursor": "2", "ttlMs": 5});
    let page = ToolPage::read(&answered(&Writer::written(&whole, change)), 0).expect("it is an object");
    assert!(page.oddities.iter().all(|oddity| oddity.starts_with('`')), "{:?}", page.oddities);
}

fn result(change: &Change) {
    let block = json!([{
        "type": "resource", "text": "words", "data": "QQ==", "mimeType": "a/b",
        "resource": {"uri": "a:b", "text": "inside"},
        "annotations": {"audience": ["user"], "priority": 1}, "_meta": {},
    }]);
    let changed = Writer::written(&block, change);
    let middle = changed[1..changed.len() - 1].to_owned();
    let middle = if middle.is_empty() { String::new() } else { format!("{middle},") };
    let text = |text: &str| format!(r#"{{"type":"text","text":"{text}"}}"#);
    let raw =
        answered(&format!(r#"{{"content":[{},{middle}{}],"isError":false}}"#, text("first"), text("last")));
    let Ok(read) = tool_result(&raw) else { panic!("no result: {raw}") };
    let shown = read.text();
    assert!(shown.starts_with("first\n") && shown.ends_with("last"), "{raw}: {shown}");

    let whole = json!({
        "content": [{"type": "text", "text": "words"}], "structuredContent": {"a": [1, {"b": "c"}]},
        "isError": false, "resultType": "complete", "_meta": {"a": 1},
    });
    let raw = answered(&Writer::written(&whole, change));
    let Ok(read) = tool_result(&raw) else { panic!("no result: {raw}") };
    let is_of_content = change.at < 4;
    assert!(is_of_content || read.text().starts_with("words"), "{raw}: {}", read.text());
}

fn refused(change: &Change) {
    let error = json!({"code": -32000, "message": "quota used up", "data": {"why": ["a", {"b": 1}]}});
    let line = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{}}}"#, Writer::written(&error, change));
    let Decoded::Answer(7, RpcAnswer::Refused(error)) = decode::undecoded(line.as_bytes()) else {
        panic!("no refusal of the request: {line}");
    };
    assert!(!error.message.is_empty(), "{line}");
    let is_of_message = change.at == 1;
    assert!(is_of_message || error.message.contains("quota used up"), "{line}: {}", error.message);
}

/// The envelope itself. Whatever it becomes, it is one of the things that a line can be.
fn message(change: &Change) {
    let answer = json!({"jsonrpc": "2.0", "id": 7, "result": {"content": []}});
    let line = Writer::written(&answer, change);
    let is_known = matches!(
        decode::undecoded(line.as_bytes()),
        Decoded::Answer(..) | Decoded::Stray | Decoded::Junk(_) | Decoded::Unnamed(_) | Decoded::Several(_)
    );
    assert!(is_known, "{line}");
    let _ = decode::short(line.as_bytes());
}
