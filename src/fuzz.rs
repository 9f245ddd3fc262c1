//! Parsers of external input, public for the fuzz targets in `fuzz/`.

use std::{io::Cursor, path::Path, sync::Arc, time::Duration};

use serde_json::{Map, Value, json};
use tokio::{io::AsyncReadExt, runtime::Runtime};

use toolcrib_servers::{builtin, template};

use crate::{
    catalog, config, daemon, gateway, launch, llm,
    process::{Line, LineReader, StderrTail},
    run, session,
};

/// A server's stdout: bytes to lines to messages.
pub fn message(bytes: &[u8]) {
    let Some(runtime) = runtime() else { return };
    let mut reader = LineReader::new(Cursor::new(bytes.to_vec()));
    runtime.block_on(async {
        while let Some(line) = reader.next().await {
            if let Line::Whole(line) = line {
                session::fuzz_line(line);
            }
        }
    });
}

/// Valid answers of a server with one leaf changed: the first bytes say which answer, which leaf, and how.
pub fn leaves(bytes: &[u8]) {
    session::fuzz_leaves(bytes);
}

/// Request of a client of the gateway: a body, or a line.
pub fn request(bytes: &[u8]) {
    gateway::fuzz_request(bytes);
}

/// A server's stderr: the tail that is kept, of two pieces with a secret from the middle.
pub fn stderr(bytes: &[u8]) {
    let Some(runtime) = runtime() else { return };
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let secret = String::from_utf8_lossy(&second[..second.len().min(12)]).into_owned();
    let secrets = config::Secrets::new([secret]);
    let stream = Cursor::new(first.to_vec()).chain(Cursor::new(second.to_vec()));
    runtime.block_on(async {
        let tail = StderrTail::drain(stream, Arc::new(secrets));
        tail.settled(Duration::from_secs(60)).await;
        assert!(tail.lines().len() <= 20);
    });
}

/// Streams of bytes in memory are always ready.
fn runtime() -> Option<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_time().build().ok()
}

/// `servers.toml`.
pub fn config(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = config::Config::parse(text, None, Path::new("/"), &config::Env::process());
    }
}

/// A task file.
pub fn tasks(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = run::parse_tasks("tasks.jsonl", text);
    }
}

/// The body of a model's answer.
pub fn answer(bytes: &[u8]) {
    llm::fuzz_answer(bytes);
}

/// A tool's schema and arguments for it, both made of the bytes.
pub fn schema(bytes: &[u8]) {
    let (schema, arguments) = made(bytes);
    catalog::check::fuzz(schema, arguments);
}

/// Arguments that a person gives, for such a schema.
pub fn arguments(bytes: &[u8]) {
    let (schema, arguments) = made(bytes);
    catalog::fuzz_arguments(schema, &arguments);
}

/// An expression for `calc`, each byte a word of it.
pub fn calc(bytes: &[u8]) {
    const WORDS: &str = "1 2 10 999 1e9 1e-9 0.5 x pi i sin sqrt log2 of per to in mod and nCr light words roman hex base \
                         dp meters feet kg % ! ^ ** + - * / ( ) ( ) ; = == << >> & | . ' \" # @2020-01-01 days 0x1f \u{b2} \
                         \u{bd} _ ans fib d d6 a= a b= b : => \\ 1( sin( 1+( ^-( /( 5'3\"";
    builtin::fuzz_calc(&spelled(bytes, WORDS, " "));
}

/// An answer with calls in its text.
pub fn blocks(bytes: &[u8]) {
    const WORDS: &str = "<use_mcp_tool> </use_mcp_tool> <server_name> </server_name> <tool_name> </tool_name> \
                         <arguments> </arguments> <think> </think> { } [ ] \" \\ , : {\"a\":1} a 1 \\boxed{ < True \n";
    toolcrib_runs::agent::fuzz_blocks(&spelled(bytes, WORDS, ""));
}

/// Records that are stored from one start to the next, and frames of the daemon.
pub fn records(bytes: &[u8]) {
    catalog::fuzz_list(bytes);
    launch::fuzz_record(bytes);
    template::fuzz_proof(bytes);
    daemon::fuzz_frame(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        catalog::fuzz_lock(text);
    }
}

/// Each byte a word, the last ones letters.
fn spelled(bytes: &[u8], words: &str, between: &str) -> String {
    let words: Vec<&str> = words.split(' ').filter(|word| !word.is_empty()).collect();
    let word = |byte: &u8| match words.get(usize::from(*byte) % (words.len() + 20)) {
        Some(word) if byte.is_multiple_of(2) => format!("{word}{between}"),
        Some(word) => (*word).to_owned(),
        None => char::from(byte % 128).to_string(),
    };
    bytes.iter().map(word).collect()
}

fn made(bytes: &[u8]) -> (Map<String, Value>, Map<String, Value>) {
    let mut bytes = bytes.iter().copied();
    let mut schema = part(&mut bytes, 3);
    let definitions = (0..3).map(|number| (format!("d{number}"), part(&mut bytes, 2).into())).collect();
    schema.insert("$defs".to_owned(), Value::Object(definitions));
    let names = ["a", "b", "ab"];
    let arguments = names.map(|name| (name.to_owned(), value(&mut bytes, 5)));
    (schema, arguments.into_iter().collect())
}

/// A schema: each byte a keyword.
fn part(bytes: &mut impl Iterator<Item = u8>, depth: u8) -> Map<String, Value> {
    let mut part_of = Map::new();
    let Some(count) = bytes.next() else { return part_of };
    for _ in 0..count % 4 {
        let Some(byte) = bytes.next() else { break };
        let mut below = || -> Value {
            match bytes.next().unwrap_or(0) {
                to if depth == 0 || to.is_multiple_of(3) => {
                    json!({"$ref": (["#", "#/$defs/d0", "#/$defs/d1", "#/$defs/d2"][usize::from(to / 3 % 4)])})
                }
                _ => part(bytes, depth - 1).into(),
            }
        };
        let keywords = [
            "allOf",
            "anyOf",
            "oneOf",
            "not",
            "if",
            "then",
            "items",
            "contains",
            "additionalProperties",
            "propertyNames",
            "unevaluatedProperties",
            "properties",
            "patternProperties",
            "dependentSchemas",
            "prefixItems",
            "uniqueItems",
            "pattern",
            "enum",
            "type",
            "format",
            "required",
            "$ref",
        ];
        let keyword = keywords[usize::from(byte) % keywords.len()];
        let value = match keyword {
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => json!([below(), below()]),
            "properties" | "dependentSchemas" => json!({"a": below(), "b": below()}),
            "patternProperties" => json!({"^a": below(), "b$": below()}),
            "uniqueItems" => json!(true),
            "pattern" => {
                json!(["^a+$", "^(a+)+$", "(?=(a*)*b)a", "[a-z]{1,64}", "("][usize::from(byte / 22 % 5)])
            }
            "enum" => json!([1, "a", [1, 2], {"a": 1}]),
            "type" => json!(["object", "array", "string", "integer"][usize::from(byte / 22 % 4)]),
            "format" => json!(["uri", "regex", "date"][usize::from(byte / 22 % 3)]),
            "required" => json!(["a"]),
            "$ref" => below().get("$ref").cloned().unwrap_or_else(|| "#/$defs/d0".into()),
            _ => below(),
        };
        part_of.insert(keyword.to_owned(), value);
    }
    part_of
}

fn value(bytes: &mut impl Iterator<Item = u8>, depth: u8) -> Value {
    let Some(byte) = bytes.next() else { return Value::Null };
    let count = usize::from(byte / 8 % 8);
    match byte % 8 {
        0 => json!("a".repeat(count * 20)),
        1 => json!(byte),
        2 | 3 if depth > 0 => (0..count).map(|_| value(bytes, depth - 1)).collect(),
        4..=6 if depth > 0 => {
            let names = ["a", "b", "ab", "\u{e4}", ""];
            names.iter().take(count).map(|name| ((*name).to_owned(), value(bytes, depth - 1))).collect()
        }
        _ => json!(["", "aaa", "2020-01-01", "(", "http://x"][count % 5]),
    }
}

/// The targets as ordinary tests. `PROPTEST_CASES=20000` looks for longer; what is found is tried first from then on,
/// if its line of `proptest-regressions` is kept.
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any bytes, most of them what the formats are made of.
    fn texts(words: &'static str) -> impl Strategy<Value = Vec<u8>> {
        let words: Vec<&str> = words.split(' ').collect();
        let piece = prop_oneof![
            6 => prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec()),
            2 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
            1 => prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..120)
    }

    const JSON: &str = "{ } [ ] , : \" \\ null true 1e999 -0 \"\" \n {\"jsonrpc\":\"2.0\", \"id\": \"result\": \"method\": \"params\": \
                        \"content\": \"_meta\": {\"resultType\":\"input_required\", \"inputRequests\": \
                        {\"progressToken\":1} \"error\": \"choices\": \"delta\": \"tool_calls\": \"index\": data: [DONE] \"usage\": \u{fffd}";
    const TOML: &str = "[ ] [[ ]] = \" ' { } , . \n [servers.a] command builtin args env url [agent] [llm] import tools retry \
                        = \"a\" = [] = true schema = 1 # ${A} \"\"\"";

    /// A record of each kind as it is written, some of its numbers and words others.
    fn stored() -> impl Strategy<Value = Vec<u8>> {
        let shapes = [
            r#"{"schema":1,"fingerprint":"F","listed":N,"expires":N,"software":{"name":"F","version":"F"},"version":"F","tools":[]}"#,
            r#"{"schema":1,"made":N,"program":"F","words":["F"],"rest":N,"cwd":null,"set":{"F":"F"},"unset":["F"],"proofs":[],"runner_time":{"secs":N,"nanos":N}}"#,
            r#"{"protocol":N,"toolcrib":"F","pid":N,"mark":"F","config":"F","edition":"F"}"#,
            "schema = 1\n[servers.\"F\"]\n",
        ];
        let number = prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()];
        (prop::sample::select(shapes.to_vec()), number, "[ -~]{0,12}").prop_map(|(shape, number, word)| {
            shape.replace('N', &number.to_string()).replace('F', &word.replace(['"', '\\'], "")).into_bytes()
        })
    }

    proptest! {
        #[test]
        fn target_message(bytes in texts(JSON)) { message(&bytes); }
        #[test]
        fn target_leaves(bytes in prop::collection::vec(any::<u8>(), 4)) { leaves(&bytes); }
        #[test]
        fn target_request(bytes in texts(JSON)) { request(&bytes); }
        #[test]
        fn target_stderr(bytes in texts(JSON)) { stderr(&bytes); }
        #[test]
        fn target_config(bytes in texts(TOML)) { config(&bytes); }
        #[test]
        fn target_tasks(bytes in texts(JSON)) { tasks(&bytes); }
        #[test]
        fn target_answer(bytes in texts(JSON)) { answer(&bytes); }
        #[test]
        fn target_schema(bytes in bytes()) { schema(&bytes); }
        #[test]
        fn target_arguments(bytes in bytes()) { arguments(&bytes); }
        #[test]
        fn target_calc(bytes in bytes()) { calc(&bytes); }
        #[test]
        fn target_blocks(bytes in bytes()) { blocks(&bytes); }
        #[test]
        fn target_records(bytes in prop_oneof![stored(), texts(JSON), texts(TOML)]) { records(&bytes); }
    }
}
