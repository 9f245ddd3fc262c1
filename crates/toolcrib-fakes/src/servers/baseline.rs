//! `toolcrib-fakes baseline`: a tool server that is as fast as possible, so that a measurement shows the cost of its
//! client.
//!
//! No runtime, no protocol library: a batch of lines is read, answered, and written in one go.

use std::{
    borrow::Cow,
    ffi::OsString,
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use serde::Deserialize;
use serde_json::value::RawValue;

/// Bytes that are read at once.
const BATCH: usize = 64 << 10;

/// Longest text of the tool `text`, in bytes: its message stays below the longest one that a client reads.
pub const MAX_TEXT: usize = 8 << 20;
/// The line that this text repeats, as it stands in JSON: of a source file, with its line feed.
const LINE: &str = "    let answers = requests.iter().map(|request| client.send(request)).collect();\\n";
/// Its length once it is decoded.
const LINE_BYTES: usize = LINE.len() - 1;

const TOOLS: &str = r#"{"tools":[{"name":"echo","description":"Gives the text back","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}},"annotations":{"readOnlyHint":true}},{"name":"text","description":"Gives so many bytes of text","inputSchema":{"type":"object","properties":{"bytes":{"type":"integer","minimum":0}},"required":["bytes"]},"annotations":{"readOnlyHint":true}},{"name":"sleep","description":"Answers after so many milliseconds","inputSchema":{"type":"object","properties":{"ms":{"type":"integer","minimum":0}},"required":["ms"]},"annotations":{"readOnlyHint":true}}]}"#;

/// Serves until its input ends. `words` may be `wait=MS`: a slow start that takes no CPU.
pub fn run(words: impl Iterator<Item = OsString>) -> ExitCode {
    if serve(words).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<Params<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    arguments: Option<Call<'a>>,
    #[serde(borrow)]
    protocol_version: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    bytes: Option<usize>,
    ms: Option<u64>,
}

fn serve(mut words: impl Iterator<Item = OsString>) -> io::Result<()> {
    let wait = words.next().and_then(|word| word.to_str()?.strip_prefix("wait=")?.parse().ok());
    thread::sleep(Duration::from_millis(wait.unwrap_or(0)));
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let output = Arc::new(Mutex::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)));
    // What of `lines` is filled, and what is left of it from one batch to the next.
    let (mut lines, mut filled) = (vec![0; BATCH], 0);
    let mut answers = Vec::with_capacity(BATCH);
    loop {
        if filled == lines.len() {
            lines.resize(2 * filled, 0);
        }
        let count = input.read(&mut lines[filled..])?;
        if count == 0 {
            return Ok(());
        }
        let feed = lines[filled..filled + count].iter().rposition(|byte| *byte == b'\n');
        let end = feed.map(|at| filled + at + 1);
        filled += count;
        let Some(end) = end else { continue };
        for line in lines[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if let Ok(message) = serde_json::from_slice(line) {
                answer(&message, &mut answers, &output);
            }
        }
        lines.copy_within(end..filled, 0);
        filled -= end;
        write(&output, &answers)?;
        answers.clear();
    }
}

fn write(output: &Mutex<File>, bytes: &[u8]) -> io::Result<()> {
    output.lock().unwrap_or_else(PoisonError::into_inner).write_all(bytes)
}

fn answer(message: &Message<'_>, answers: &mut Vec<u8>, output: &Arc<Mutex<File>>) {
    let (Some(id), Some(method)) = (message.id, &message.method) else { return };
    let params = message.params.as_ref();
    let call = params.and_then(|params| params.arguments.as_ref());
    match (&**method, params.and_then(|params| params.name.as_deref())) {
        ("tools/call", Some("echo")) => {
            let text = call.and_then(|call| call.text).map_or("\"\"", RawValue::get);
            let parts = [
                r#"{"jsonrpc":"2.0","id":"#,
                id.get(),
                r#","result":{"content":[{"type":"text","text":"#,
                text,
                "}],\"isError\":false}}\n",
            ];
            for part in parts {
                answers.extend_from_slice(part.as_bytes());
            }
        }
        ("tools/call", Some("text")) => {
            let bytes = call.and_then(|call| call.bytes).unwrap_or(0).min(MAX_TEXT);
            let head = r#","result":{"content":[{"type":"text","text":""#;
            for part in [r#"{"jsonrpc":"2.0","id":"#, id.get(), head] {
                answers.extend_from_slice(part.as_bytes());
            }
            for _ in 0..bytes / LINE_BYTES {
                answers.extend_from_slice(LINE.as_bytes());
            }
            answers.resize(answers.len() + bytes % LINE_BYTES, b'x');
            answers.extend_from_slice(b"\"}],\"isError\":false}}\n");
        }
        ("tools/call", Some("sleep")) => {
            let time = Duration::from_millis(call.and_then(|call| call.ms).unwrap_or(0));
            let (line, output) = (result(id, r#"{"content":[],"isError":false}"#), output.clone());
            thread::spawn(move || {
                thread::sleep(time);
                // A client that reads no more does not need it.
                let _ = write(&output, line.as_bytes());
            });
        }
        ("tools/list", _) => answers.extend_from_slice(result(id, TOOLS).as_bytes()),
        ("ping", _) => answers.extend_from_slice(result(id, "{}").as_bytes()),
        ("initialize", _) => {
            let asked = params.and_then(|params| params.protocol_version.as_deref());
            let version = asked.filter(|version| *version < "2025-11-25").unwrap_or("2025-11-25");
            let about = format!(
                r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"baseline","version":"{}"}}}}"#,
                env!("CARGO_PKG_VERSION")
            );
            answers.extend_from_slice(result(id, &about).as_bytes());
        }
        _ => {
            let refusal = r#"{"code":-32601,"message":"no such method or tool"}"#;
            let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{refusal}}}\n");
            answers.extend_from_slice(line.as_bytes());
        }
    }
}

fn result(id: &RawValue, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}
