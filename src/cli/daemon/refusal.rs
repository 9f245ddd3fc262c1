//! Tells an MCP client why it gets no servers: its requests are answered with the error, since few clients show what a program
//! writes to stderr.

use std::{
    io::{BufRead, BufReader, IsTerminal, Read},
    process::ExitCode,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{json, value::RawValue};
use toolcrib::{Error, error::RemoteError};

use crate::cli::terminal::ui::Ui;

/// How long a client may take to its first request, and from one to the next.
const FIRST: Duration = Duration::from_secs(10);
const NEXT: Duration = Duration::from_secs(1);
/// How long it is answered in all.
const LONGEST: Duration = Duration::from_secs(30);
/// Bytes that are read of the client, and the length of the longest id that is repeated.
const MOST_READ: u64 = 4 << 20;
const LONGEST_ID: usize = 4 << 10;
/// A request that cannot be served.
const INTERNAL: i32 = -32603;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<serde::de::IgnoredAny>,
}

/// Tells the error to who reads stderr, and then to the client at stdin and stdout. Gives its exit code.
pub(crate) fn refuse_client(ui: &Ui, error: &Error) -> ExitCode {
    let code = ui.fail(error);
    if std::io::stdin().is_terminal() {
        return code;
    }
    let (heard, lines) = mpsc::sync_channel(1);
    // Reading cannot be given up: the thread ends with the process.
    thread::spawn(move || {
        let client = BufReader::new(std::io::stdin().take(MOST_READ));
        for line in client.split(b'\n').map_while(Result::ok) {
            if heard.send(line).is_err() {
                return;
            }
        }
    });
    let (began, mut wait) = (Instant::now(), FIRST);
    while let Ok(line) = lines.recv_timeout(wait.min(LONGEST.saturating_sub(began.elapsed()))) {
        for id in requests(&line) {
            Ui::json(answer(id, error));
            wait = NEXT;
        }
    }
    code
}

/// The ids of the requests in a line, as they are written.
fn requests(line: &[u8]) -> Vec<&str> {
    let Ok(text) = std::str::from_utf8(line) else { return Vec::new() };
    let requests: Vec<Request<'_>> = match text.trim_start().starts_with('[') {
        true => serde_json::from_str(text).unwrap_or_default(),
        false => serde_json::from_str(text).into_iter().collect(),
    };
    let ids = requests.iter().filter(|request| request.method.is_some()).filter_map(|request| request.id);
    ids.map(RawValue::get).filter(|id| id.len() <= LONGEST_ID).collect()
}

fn answer(id: &str, error: &Error) -> String {
    let help = error.help().map_or_else(String::new, |help| format!(" ({help})"));
    let told = json!({
        "code": INTERNAL, "message": format!("toolcrib: {error}{help}"), "data": RemoteError::from(error),
    });
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{told}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_are_answered_with_their_own_ids() {
        for (line, ids) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"id":2}}"#, &["1"][..]),
            (r#"{"id":"a\u0041","method":"x"}"#, &[r#""a\u0041""#]),
            (
                r#"[{"id":1,"method":"x"},{"method":"n"},{"id":12345678901234567890123,"method":"y"}]"#,
                &["1", "12345678901234567890123"],
            ),
            (r#"{"method":"notifications/initialized"}"#, &[]),
            (r#"{"id":1,"result":{}}"#, &[]),
            ("nonsense", &[]),
        ] {
            assert_eq!(requests(line.as_bytes()), ids, "{line}");
        }
        let error = Error::input("no", Some("type: x".to_owned()));
        let answer: serde_json::Value = serde_json::from_str(&answer("7", &error)).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!(-32603)), "{answer}");
        assert_eq!(answer["error"]["message"], "toolcrib: no (type: x)");
        assert_eq!(answer["error"]["data"]["help"], "type: x");
    }
}
