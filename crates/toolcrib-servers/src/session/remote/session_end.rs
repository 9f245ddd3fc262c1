//! Tells whether a server refused a request because it does not know the session: it was restarted, or has forgotten the
//! session. Servers say so in many ways: a status, a code, or words alone.

use hyper::StatusCode;
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::Value;

/// Longer texts are about something else.
const MAX_WORDS: usize = 300;
/// Words of servers that do not know a session. They are narrow, since a tool may have sessions of its own.
const WORDS: [&str; 38] = [
    "session not found",
    "session id not found",
    "session was not found",
    "session could not be found",
    "session does not exist",
    "session doesn't exist",
    "session no longer exists",
    "session not initialized",
    "session expired",
    "session has expired",
    "session is expired",
    "session terminated",
    "session has been terminated",
    "session has ended",
    "session is not valid",
    "session id is invalid",
    "session id is required",
    "session id required",
    "session id is missing",
    "no valid session",
    "no active session",
    "no such session",
    "no session id",
    "invalid session",
    "unknown session",
    "missing session",
    "expired session",
    "mcp-session-id",
    "server not initialized",
    "server is not initialized",
    "server has not been initialized",
    "client not initialized",
    "client is not initialized",
    "session is not initialized",
    "session has not been initialized",
    "before initialization",
    "expect initialize request",
    "expected initialize request",
];
/// Words that must be the whole message if they come with a code or a status of another meaning.
const WHOLE: [&str; 18] = [
    "session not found",
    "session id not found",
    "session expired",
    "session has expired",
    "session terminated",
    "session closed",
    "session does not exist",
    "invalid session",
    "invalid session id",
    "unknown session",
    "unknown session id",
    "no such session",
    "invalid or expired session",
    "expired or invalid session",
    "session expired or invalid",
    "session not found or expired",
    "server not initialized",
    "received request before initialization was complete",
];

/// Whether an answer with this status and body says so. `has_session`: the server has named the session.
pub(super) fn is_end(
    status: StatusCode,
    error: Option<&ErrorData>,
    body: &[u8],
    said: &str,
    has_session: bool,
) -> bool {
    if has_session && error.is_some_and(|error| is_whole(&error.message)) && !is_about_access(status) {
        return true;
    }
    match status.as_u16() {
        // About access, load and proxies, whatever their words.
        401 | 403 | 407 | 429 => false,
        status @ (404 | 410) => match error {
            Some(error) if is_end_error(error) => true,
            // What the server says of the request itself.
            Some(error) => has_session && status == 404 && has_code(error) && !is_about_request(error),
            None => has_session || speaks_of_end(said),
        },
        _ => error.map_or_else(|| body.len() <= MAX_WORDS && speaks_of_end(said), is_end_error),
    }
}

/// Whether an error of the protocol says so.
fn is_end_error(error: &ErrorData) -> bool {
    has_code(error) && speaks_of_end(&error.message)
}

/// Whether an error of the protocol in an answer of status 200 says so. `has_session`: the server has named the session.
pub(super) fn is_end_answer(error: &ErrorData, has_session: bool) -> bool {
    is_end_error(error) || (has_session && is_whole(&error.message))
}

/// Whether a refusal for want of access says so, in a session that the server has named: some servers take its id for
/// a pass.
pub(super) fn is_end_challenge(said: &str, has_session: bool) -> bool {
    has_session && is_whole(said)
}

fn is_about_access(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403 | 407 | 429)
}

/// Whether a message says that the session is unknown, and nothing else: a tool that has sessions of its own names one.
fn is_whole(words: &str) -> bool {
    const BEGINNINGS: [&str; 5] =
        ["bad request:", "unauthorized:", "not found:", "error:", "internal error:"];
    let words = words.to_ascii_lowercase().replace(['_', '"', '\'', '`'], " ");
    let words = words.trim().trim_end_matches(['.', '!']);
    let bare = BEGINNINGS.iter().find_map(|begin| words.strip_prefix(begin)).unwrap_or(words).trim();
    WHOLE.contains(&bare)
}

/// Whether a text that is no message of the protocol, in an answer of status 200, says so: an object with an error.
pub(super) fn is_end_text(text: &str) -> bool {
    let Ok(Value::Object(object)) = serde_json::from_str(text) else { return false };
    if object.contains_key("jsonrpc") {
        return false;
    }
    let words = match object.get("error") {
        Some(Value::String(words)) => words,
        Some(Value::Object(error)) => match error.get("message") {
            Some(Value::String(words)) => words,
            _ => return false,
        },
        _ => return false,
    };
    text.len() <= MAX_WORDS && speaks_of_end(words)
}

/// Codes that servers use for it. Others are errors of a tool, or of its arguments.
fn has_code(error: &ErrorData) -> bool {
    let code = error.code;
    code == ErrorCode::INVALID_REQUEST || (-32099..=-32000).contains(&code.0)
}

fn is_about_request(error: &ErrorData) -> bool {
    let words = error.message.to_ascii_lowercase();
    ["method", "tool", "resource", "prompt"].iter().any(|word| words.contains(word))
}

fn speaks_of_end(words: &str) -> bool {
    let words = words.to_ascii_lowercase().replace(['_', '"', '\'', '`'], " ");
    let bare = words.trim_start_matches("bad request:").trim().trim_end_matches('.');
    words.len() <= MAX_WORDS && (bare == "not initialized" || WORDS.iter().any(|known| words.contains(known)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::rpc::decode;

    fn ends(status: u16, body: &str, has_session: bool) -> bool {
        let status = StatusCode::from_u16(status).unwrap();
        let error = decode::error_in(body.as_bytes());
        let said = super::super::words::of_text(body);
        is_end(status, error.as_ref(), body.as_bytes(), &said, has_session)
    }

    fn error(code: i32, message: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":null,"error":{{"code":{code},"message":"{message}"}}}}"#)
    }

    #[test]
    fn every_form_of_a_forgotten_session_is_known() {
        for (status, body) in [
            (404, String::new()),
            (404, "<html>no</html>".to_owned()),
            (404, r#"{"jsonrpc":"2.0","id":7}"#.to_owned()),
            (404, error(-32001, "Session not found")),
            (404, error(-32600, "Session has been terminated")),
            (404, error(-32000, "gone")),
            (410, "gone".to_owned()),
            (400, error(-32000, "Bad Request: No valid session ID provided")),
            (400, error(-32000, "Bad Request: Server not initialized")),
            (400, error(-32000, "Bad Request: Mcp-Session-Id header is required")),
            (400, error(-32600, "Bad Request: Missing session ID")),
            (400, "Invalid session ID".to_owned()),
            (400, r#"{"error":"session_expired"}"#.to_owned()),
            (422, "Unexpected message, expect initialize request: no session id".to_owned()),
            (500, error(-32002, "Server not initialized")),
            (400, error(-32000, "Not initialized.")),
            (404, error(-32603, "Session not found")),
            (400, error(-32602, "Invalid session ID")),
            (400, error(-32603, "Invalid or expired session")),
            (500, error(-32603, "Session not found.")),
            (422, "Unexpected message, expect initialize request".to_owned()),
        ] {
            assert!(ends(status, &body, true), "{status} {body}");
        }
    }

    #[test]
    fn other_refusals_leave_the_session() {
        for (status, body) in [
            (404, error(-32601, "Method not found")),
            (404, error(-32602, "Unknown tool: t")),
            (404, error(-32002, "Resource not found")),
            (400, String::new()),
            (400, error(-32602, "session not found: the argument `session` names none")),
            (400, error(-32600, "the request is malformed")),
            (500, error(-32603, "Session not found: 7")),
            (400, error(-32000, "the database is not initialized")),
            (401, error(-32001, "Session expired, log in")),
            (403, "session not found".to_owned()),
            (429, "session not found".to_owned()),
            (500, "internal error".to_owned()),
            (502, format!("<title>session not found</title>{}", "x".repeat(MAX_WORDS))),
        ] {
            assert!(!ends(status, &body, true), "{status} {body}");
        }
        assert!(!ends(404, "no such page", false), "a path that is wrong");
        assert!(ends(404, "Session not found", false));
    }

    #[test]
    fn an_error_that_says_nothing_else_is_the_end() {
        let error = |code, message: &'static str| ErrorData::new(ErrorCode(code), message, None);
        for code in [-32603, -32602, 0] {
            assert!(is_end_answer(&error(code, "Session not found"), true));
            assert!(is_end_answer(&error(code, "Invalid or expired session."), true));
            assert!(!is_end_answer(&error(code, "Session not found"), false), "there is none");
            assert!(!is_end_answer(&error(code, "the session `a` was not found"), true));
        }
        assert!(is_end_answer(&error(-32002, "Expected initialize request"), false));
        assert!(is_end_challenge("Unauthorized: Session not found", true));
        assert!(!is_end_challenge("Session expired, log in", true));
    }

    #[test]
    fn objects_in_good_answers_are_read() {
        assert!(is_end_text(r#"{"error":"Session not found"}"#));
        assert!(is_end_text(r#"{"id":1,"error":{"message":"Server not initialized"}}"#));
        let message = error(-32603, "Session not found");
        for other in
            ["", "[]", &message, r#"{"error":7}"#, r#"{"message":"Session not found"}"#, r#"{"error":"no"}"#]
        {
            assert!(!is_end_text(other), "{other}");
        }
    }
}
