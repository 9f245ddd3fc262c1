//! Headers of requests: those of both eras, and those of the new one that repeat parts of the message.

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{
    HeaderMap, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, ORIGIN},
};
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Map, Value, json};

use super::answers::{Answer, INVALID_REQUEST, refusal};
use crate::{
    gateway::{
        hello::{MODERN_VERSION, all_versions, meta_key},
        message::ClientRequest,
    },
    tool::Tool,
};

pub(super) const VERSION: &str = "mcp-protocol-version";
pub(super) const SESSION: &str = "mcp-session-id";
pub(super) const LAST_EVENT: &str = "last-event-id";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
const PARAM: &str = "mcp-param-";

const HEADER_MISMATCH: ErrorCode = ErrorCode(-32020);
/// How deep a schema is searched for parameters that are repeated in headers.
const MAX_DEPTH: usize = 8;

/// The text of a header. `None`: it is missing, or no text.
pub(super) fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The revision that a request says it speaks. `None`: it says none, or an empty one.
pub(super) fn version(headers: &HeaderMap) -> Option<&str> {
    let version = headers.get(VERSION).map(|version| version.to_str().unwrap_or("?").trim());
    version.filter(|version| !version.is_empty())
}

/// The forms of an answer that a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accepted {
    /// A message, or a stream of events: whichever it becomes.
    Both,
    /// One message.
    Json,
    /// A stream of events.
    Events,
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

impl Accepted {
    /// Reads the `Accept` headers of a request. If they name nothing, both forms are accepted.
    ///
    /// # Errors
    /// Neither form is accepted.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Answer> {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let listed: Vec<&str> =
            lines.flat_map(|line| line.split(',')).filter(|it| !it.trim().is_empty()).collect();
        if listed.is_empty() {
            return Ok(Self::Both);
        }
        match (accepts(&listed, JSON), accepts(&listed, EVENTS)) {
            (true, true) => Ok(Self::Both),
            (true, false) => Ok(Self::Json),
            (false, true) => Ok(Self::Events),
            (false, false) => {
                let why = format!("`Accept` must list {JSON}, {EVENTS} or both");
                Err(refusal(StatusCode::NOT_ACCEPTABLE, INVALID_REQUEST, &why))
            }
        }
    }

    /// Whether a stream may be the answer.
    ///
    /// # Errors
    /// It may not.
    pub(super) fn check_events(self) -> Result<(), Answer> {
        match self {
            Self::Both | Self::Events => Ok(()),
            Self::Json => {
                let why = format!("this is a stream: `Accept` must list {EVENTS}");
                Err(refusal(StatusCode::NOT_ACCEPTABLE, INVALID_REQUEST, &why))
            }
        }
    }
}

/// Whether a list of ranges has a type, by the one that is nearest to it (RFC 9110, 12.5.1).
fn accepts(listed: &[&str], kind: &str) -> bool {
    let group = kind.split('/').next().unwrap_or_default();
    let quality = |wanted: &dyn Fn(&str) -> bool| {
        listed.iter().find_map(|listed| {
            let mut parts = listed.split(';').map(str::trim);
            if !wanted(parts.next().unwrap_or_default()) {
                return None;
            }
            let quality = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            Some(quality.and_then(|quality| quality.trim().parse::<f32>().ok()).unwrap_or(1.0))
        })
    };
    let is_group = |range: &str| {
        range.split_once('/').is_some_and(|(of, any)| any == "*" && of.eq_ignore_ascii_case(group))
    };
    let quality = quality(&|range| range.eq_ignore_ascii_case(kind))
        .or_else(|| quality(&is_group))
        .or_else(|| quality(&|range| range == "*/*" || range == "*"));
    quality.is_some_and(|quality| quality > 0.0)
}

/// A page of the web can send other types without asking first, or none.
///
/// # Errors
/// The body is said to be something else than JSON; or is not said to be JSON, by a page.
pub(super) fn check_content_type(headers: &HeaderMap) -> Result<(), Answer> {
    let kind = headers.get(CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    match kind {
        None | Some("") if !headers.contains_key(ORIGIN) => Ok(()),
        Some(kind) if kind.eq_ignore_ascii_case(JSON) => Ok(()),
        _ => {
            let why = "`Content-Type` must be application/json";
            Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, why))
        }
    }
}

fn mismatch(why: &str) -> ErrorData {
    ErrorData::new(HEADER_MISMATCH, format!("Header mismatch: {why}"), None)
}

/// A version that is not spoken.
pub(super) fn unsupported_version(version: &str) -> ErrorData {
    let data = json!({"supported": all_versions(), "requested": version});
    ErrorData::new(ErrorCode(-32022), format!("Unsupported protocol version: {version}"), Some(data))
}

/// Whether the headers of a request of the new era, and its `_meta`, say the same as its body. `tool` is the tool that it
/// calls.
///
/// # Errors
/// They do not, or something is missing: the request is to be refused with status 400.
pub(super) fn check_modern(
    headers: &HeaderMap,
    request: &ClientRequest,
    tool: Option<&Tool>,
) -> Result<(), ErrorData> {
    let (header, body) = (text(headers, VERSION), request.meta.read::<String>(meta_key::VERSION));
    match (header, &body) {
        (Some(header), Some(body)) if header != body => {
            return Err(mismatch(&format!("MCP-Protocol-Version is `{header}`, the message says `{body}`")));
        }
        (None, _) => return Err(mismatch("MCP-Protocol-Version is missing")),
        (Some(MODERN_VERSION), None) => {
            return Err(ErrorData::invalid_params(
                format!("`_meta` must have `{}`", meta_key::VERSION),
                None,
            ));
        }
        (Some(MODERN_VERSION), Some(_)) => {}
        (Some(other), _) => return Err(unsupported_version(other)),
    }
    if !request.meta.get(meta_key::CAPABILITIES).is_some_and(|it| it.get().starts_with('{')) {
        let why = format!("`_meta` must have `{}`, an object", meta_key::CAPABILITIES);
        return Err(ErrorData::invalid_params(why, None));
    }
    match text(headers, METHOD) {
        Some(method) if method == request.method => {}
        Some(method) => {
            return Err(mismatch(&format!(
                "Mcp-Method is `{method}`, the message says `{}`",
                request.method
            )));
        }
        None => return Err(mismatch("Mcp-Method is missing")),
    }
    let named = match &*request.method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        method if method.starts_with("tasks/") && headers.contains_key(NAME) => Some("taskId"),
        _ => None,
    };
    if let Some(member) = named {
        let body = request.params.read::<String>(member);
        compare(headers, NAME, "Mcp-Name", body.map(Value::String).as_ref())?;
    }
    match tool {
        Some(tool) => check_parameters(headers, request, tool),
        None => Ok(()),
    }
}

fn check_parameters(headers: &HeaderMap, request: &ClientRequest, tool: &Tool) -> Result<(), ErrorData> {
    let mut repeated = Vec::new();
    find_repeated(&tool.input_schema, &mut Vec::new(), &mut repeated);
    if repeated.is_empty() {
        return Ok(());
    }
    let arguments: Value = request.params.read("arguments").unwrap_or_default();
    for (path, name) in repeated {
        let value =
            path.iter().try_fold(&arguments, |value, key| value.get(key)).filter(|value| !value.is_null());
        compare(
            headers,
            &format!("{PARAM}{}", name.to_ascii_lowercase()),
            &format!("Mcp-Param-{name}"),
            value,
        )?;
    }
    Ok(())
}

/// Finds the properties of a schema that are repeated in headers: their paths, and the names of the headers.
fn find_repeated<'s>(
    schema: &'s Map<String, Value>,
    path: &mut Vec<&'s str>,
    found: &mut Vec<(Vec<&'s str>, &'s str)>,
) {
    let Some(Value::Object(properties)) = schema.get("properties") else { return };
    for (name, property) in properties {
        let Value::Object(property) = property else { continue };
        path.push(name);
        if let Some(Value::String(header)) = property.get("x-mcp-header") {
            found.push((path.clone(), header));
        }
        if path.len() < MAX_DEPTH {
            find_repeated(property, path, found);
        }
        path.pop();
    }
}

/// Whether a header has this value of the message.
fn compare(headers: &HeaderMap, name: &str, shown: &str, body: Option<&Value>) -> Result<(), ErrorData> {
    let mut lines = headers.get_all(name).iter();
    let header = match (lines.next(), lines.next()) {
        (None, _) => None,
        (Some(one), None) => {
            let value = one.to_str().ok().and_then(|text| decoded(text.trim()));
            Some(value.ok_or_else(|| mismatch(&format!("{shown} cannot be decoded")))?)
        }
        _ => return Err(mismatch(&format!("{shown} is there several times"))),
    };
    let same = match (&header, body) {
        (None, None) => true,
        (Some(header), Some(Value::String(body))) => header == body,
        (Some(header), Some(Value::Bool(body))) => *header == body.to_string(),
        (Some(header), Some(Value::Number(body))) => {
            *header == body.to_string() || header.parse::<f64>().ok() == body.as_f64()
        }
        _ => false,
    };
    match (same, header, body) {
        (true, ..) => Ok(()),
        (false, None, _) => Err(mismatch(&format!("{shown} is missing"))),
        (false, Some(_), None) => {
            Err(mismatch(&format!("{shown} is there, and its value is not in the message")))
        }
        (false, Some(_), Some(_)) => Err(mismatch(&format!("{shown} has another value than the message"))),
    }
}

/// The value of a header that may be encoded. `None`: it is encoded, and cannot be decoded.
fn decoded(text: &str) -> Option<String> {
    let Some(encoded) = text.strip_prefix("=?base64?").and_then(|text| text.strip_suffix("?=")) else {
        return Some(text.to_owned());
    };
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;
    use crate::gateway::message::ClientMessage;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    fn request(method: &str, version: Option<&str>, params: Value) -> ClientRequest {
        let mut params = params;
        if let Some(version) = version {
            params["_meta"] = json!({meta_key::VERSION: version, meta_key::CAPABILITIES: {}});
        }
        let text = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        match ClientMessage::parse(text.as_bytes()).unwrap().remove(0) {
            Ok(ClientMessage::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn headers_must_say_what_the_message_says() {
        let modern = Some(MODERN_VERSION);
        let list = || request("tools/list", modern, json!({}));
        let get = |name: &str| request("prompts/get", modern, json!({"name": name}));
        let task = || request("tasks/get", modern, json!({"taskId": "t"}));
        let version = (VERSION, MODERN_VERSION);
        let (lists, gets) = ((METHOD, "tools/list"), (METHOD, "prompts/get"));
        let encoded = BASE64_STANDARD.encode("grüße");
        let encoded = format!("=?base64?{encoded}?=");
        for (lines, request, code) in [
            (vec![version, lists], list(), None),
            (vec![lists], list(), Some(-32020)),
            (vec![version], list(), Some(-32020)),
            (vec![version, (METHOD, "TOOLS/LIST")], list(), Some(-32020)),
            (vec![version, lists], request("tools/list", None, json!({})), Some(-32602)),
            (
                vec![(VERSION, "2099-01-01"), lists],
                request("tools/list", Some("2099-01-01"), json!({})),
                Some(-32022),
            ),
            (vec![version, lists], request("tools/list", Some("2099-01-01"), json!({})), Some(-32020)),
            (vec![(VERSION, "2025-11-25"), lists], list(), Some(-32020)),
            (vec![version, gets, (NAME, " a ")], get("a"), None),
            (vec![version, gets, (NAME, "b")], get("a"), Some(-32020)),
            (vec![version, gets], get("a"), Some(-32020)),
            (vec![version, gets, (NAME, &encoded)], get("grüße"), None),
            (vec![version, gets, (NAME, "=?base64?!!?=")], get("a"), Some(-32020)),
            (vec![version, (METHOD, "tasks/get"), (NAME, "t")], task(), None),
            (vec![version, (METHOD, "tasks/get"), (NAME, "u")], task(), Some(-32020)),
            (vec![version, (METHOD, "tasks/get")], task(), None),
        ] {
            let checked = check_modern(&headers(&lines), &request, None);
            assert_eq!(checked.err().map(|error| error.code.0), code, "{lines:?} {request:?}");
        }
    }

    #[test]
    fn parameters_are_compared_with_their_headers() {
        let schema = json!({"type": "object", "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "at": {"type": "object", "properties": {"row": {"type": "integer", "x-mcp-header": "Row"}}},
            "free": {"type": "string"},
        }});
        let Value::Object(schema) = schema else { unreachable!() };
        let tool = Tool::new("query", "", schema);
        let call = |arguments| {
            request("tools/call", Some(MODERN_VERSION), json!({"name": "query", "arguments": arguments}))
        };
        let standard = [(VERSION, MODERN_VERSION), (METHOD, "tools/call"), (NAME, "query")];
        for (lines, arguments, right) in [
            (vec![("mcp-param-region", "eu")], json!({"region": "eu", "free": "x"}), true),
            (vec![("mcp-param-region", "us")], json!({"region": "eu"}), false),
            (vec![], json!({"region": "eu"}), false),
            (vec![], json!({"region": null}), true),
            (vec![("mcp-param-region", "eu")], json!({}), false),
            (vec![("mcp-param-row", "42.0")], json!({"at": {"row": 42}}), true),
            (vec![("mcp-param-row", "43")], json!({"at": {"row": 42}}), false),
            (vec![("mcp-param-other", "1")], json!({}), true),
        ] {
            let all = headers(&[&standard[..], &lines].concat());
            let checked = check_modern(&all, &call(arguments.clone()), Some(&tool));
            assert_eq!(checked.is_ok(), right, "{lines:?} {arguments}");
        }
    }

    #[test]
    fn types_that_pages_may_send_are_refused() {
        let typed = |kind| check_content_type(&headers(&[("content-type", kind)])).is_ok();
        assert!(typed("application/json") && typed("Application/JSON; charset=utf-8"));
        assert!(!typed("text/plain") && !typed("application/jsonx"));
        // A program need not say what it sends; a page may have been made to say nothing.
        assert!(check_content_type(&HeaderMap::new()).is_ok());
        assert!(check_content_type(&headers(&[("origin", "http://localhost")])).is_err());
    }

    #[test]
    fn an_answer_has_a_form_that_the_client_takes() {
        let accepted = |lines: &[(&str, &str)]| Accepted::of(&headers(lines)).ok();
        let (both, json, events) = (Some(Accepted::Both), Some(Accepted::Json), Some(Accepted::Events));
        assert_eq!(accepted(&[]), both);
        assert_eq!(accepted(&[("accept", "application/json"), ("accept", "text/event-stream")]), both);
        for (line, form) in [
            ("", both),
            ("*/*", both),
            ("*", both),
            ("text/event-stream;q=0.5, application/*", both),
            ("application/json, text/event-stream", both),
            ("APPLICATION/JSON,Text/Event-Stream", both),
            ("application/json", json),
            ("application/json; charset=utf-8, text/html", json),
            ("application/json, text/event-stream;q=0", json),
            ("*/*, text/event-stream; q=0.0", json),
            ("text/event-stream", events),
            ("Text/*", events),
            ("text/event-stream, application/json;Q=0", events),
            ("text/html", None),
            ("*/*;q=0", None),
        ] {
            assert_eq!(accepted(&[("accept", line)]), form, "{line}");
        }
        assert!(Accepted::Json.check_events().is_err() && Accepted::Events.check_events().is_ok());
    }
}
