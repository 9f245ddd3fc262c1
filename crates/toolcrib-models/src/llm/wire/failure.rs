//! Finds the failures that come with a good status: of the endpoint, of the server behind it, of one choice, in a stream.
//! They are classified as they would be with the status that they should have had.

use serde_json::{Map, Value, json};

use super::NoAnswer;
use crate::{
    config::LlmApi,
    llm::{LlmErrorClass, errors::body::ErrorBody},
    text::beginning,
};

/// The most characters that are shown of what nobody knows.
const MOST_SHOWN: usize = 200;
/// Members of answers that say nothing where the answer itself is missing.
const KNOWN: [&str; 16] = [
    "id",
    "object",
    "created",
    "created_at",
    "model",
    "choices",
    "usage",
    "system_fingerprint",
    "service_tier",
    "output",
    "content",
    "role",
    "type",
    "stop_reason",
    "stop_sequence",
    "status",
];

/// The failure that a body or a piece of a stream tells, if it does.
pub(in crate::llm) fn failure(json: &Value) -> Option<NoAnswer> {
    let json = json.as_array().and_then(|list| list.first()).unwrap_or(json);
    let is = |key: &str| json.get(key).and_then(Value::as_str) == Some("error");
    if says_error(json) || is("type") || is("object") {
        return Some(error_inside(json));
    }
    let choice = json.pointer("/choices/0");
    let of_choice = choice.and_then(failed_choice);
    let number = |code: &Value| code.as_i64().or_else(|| code.as_str()?.trim().parse().ok());
    let resp = json.get("base_resp").and_then(|resp| Some((resp, number(resp.get("status_code")?)?)));
    let of_resp = || resp.filter(|(_, code)| *code != 0).map(|(resp, code)| of_minimax(resp, code));
    of_choice.or_else(of_resp)
}

/// A choice that is an error, and no answer of the model.
fn failed_choice(choice: &Value) -> Option<NoAnswer> {
    if says_error(choice) {
        return Some(error_inside(choice));
    }
    let message = choice.get("message").or_else(|| choice.get("delta"));
    if let Some(message) = message.filter(|message| says_error(message)) {
        return Some(error_inside(message));
    }
    match choice.get("finish_reason") {
        // SGLang: why it was given up, as an object.
        Some(reason @ Value::Object(fields)) if fields.get("message").is_some_and(Value::is_string) => {
            Some(error_inside(reason))
        }
        Some(Value::String(reason)) => broken_off(reason),
        _ => None,
    }
}

/// The failure that a finish reason stands for, if the server gave up the answer: no part of it counts then.
fn broken_off(reason: &str) -> Option<NoAnswer> {
    let status = match &*super::plain_reason(reason) {
        // vLLM and SGLang, Gemini; Zhipu; DeepSeek.
        "error"
        | "abort"
        | "aborted"
        | "failed"
        | "malformed_function_call"
        | "unexpected_tool_call"
        | "malformed_response" => 500,
        "network_error" => 502,
        "insufficient_system_resource" => 503,
        _ => return None,
    };
    let message = format!("the choice ended with finish_reason `{}`", beginning(reason, MOST_SHOWN));
    let body = ErrorBody { message, status: Some(status), ..ErrorBody::default() };
    Some(NoAnswer { class: LlmErrorClass::of_status(status), body, theirs: true })
}

fn says_error(json: &Value) -> bool {
    json.get("error").is_some_and(|error| match error {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0),
        Value::Bool(true) => true,
    })
}

/// MiniMax has codes of its own.
fn of_minimax(resp: &Value, code: i64) -> NoAnswer {
    let status = match code {
        1002 | 1041 | 2045 => 429,
        1004 | 2049 => 401,
        1008 | 2056 => 402,
        1001 => 504,
        1000 | 1013 | 1024 | 1033 => 500,
        1026 | 1027 | 1039 | 1042 | 2013 => 400,
        _ => 0,
    };
    let words = resp.get("status_msg").and_then(Value::as_str).unwrap_or_default();
    let words = format!("{words} (base_resp.status_code {code})");
    let mut error = json!({"message": words.trim()});
    if status != 0 {
        error["code"] = status.into();
    }
    error_inside(&json!({"error": error}))
}

/// An answer that its server did not bring to its end, in our words.
pub(super) fn unfinished(told: &str) -> NoAnswer {
    let body = ErrorBody { message: told.to_owned(), status: Some(500), ..ErrorBody::default() };
    NoAnswer { class: LlmErrorClass::Server, body, theirs: true }
}

/// The failure in an error that came with a good status.
pub(in crate::llm) fn error_inside(json: &Value) -> NoAnswer {
    of_body(ErrorBody::of_json(json))
}

fn of_body(mut body: ErrorBody) -> NoAnswer {
    body.status = body.status.or_else(|| body.status_in_words());
    let class = match body.status {
        Some(status) => body.class(status),
        None if body.overflow.is_some() => LlmErrorClass::Context,
        None => LlmErrorClass::BadAnswer,
    };
    NoAnswer { class, body, theirs: true }
}

/// A body that holds no answer. `told`: what is missing; the words that are there in its place are the endpoint's.
pub(super) fn without(json: &Value, told: &str) -> NoAnswer {
    let mut no = error_inside(json);
    if no.body.message.is_empty() {
        // Words in a form that nobody knows.
        let unknown = |(key, value): &(&String, &Value)| !KNOWN.contains(&key.as_str()) && !value.is_null();
        let strange: Map<String, Value> = json
            .as_object()
            .into_iter()
            .flatten()
            .filter(unknown)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if strange.is_empty() {
            return bad(told);
        }
        return bad(format!("{told}: {}", beginning(&Value::Object(strange).to_string(), MOST_SHOWN)));
    }
    no.body.message = format!("{told}: {}", no.body.message);
    no
}

/// A body that is text, and no JSON.
pub(super) fn plain_text(text: &str) -> NoAnswer {
    let mut no = of_body(ErrorBody::read(text.as_bytes()));
    no.body.message = format!("answered with text in place of JSON: {}", no.body.message);
    no
}

/// Whether a piece of a stream is none of this format, but words of the endpoint: `{"detail": ..}`, `{"message": ..}`.
pub(in crate::llm) fn is_stranger(api: LlmApi, json: &Value) -> bool {
    let known: &[&str] = match api {
        LlmApi::Chat | LlmApi::Completions => &["choices", "usage", "object"],
        LlmApi::Responses | LlmApi::Messages => &["type"],
    };
    json.is_object()
        && !known.iter().any(|key| json.get(key).is_some())
        && !ErrorBody::of_json(json).message.is_empty()
}

pub(in crate::llm) fn bad(message: impl Into<String>) -> NoAnswer {
    let body = ErrorBody { message: message.into(), ..ErrorBody::default() };
    NoAnswer { class: LlmErrorClass::BadAnswer, body, theirs: false }
}

#[cfg(test)]
mod tests {
    use LlmErrorClass as Class;

    use super::*;
    use crate::llm::wire;

    #[test]
    fn failures_inside_a_good_status_have_class_and_words() {
        for (body, class, words) in [
            (json!({"error": "No endpoints found"}), Class::Permanent, "No endpoints found"),
            (
                json!({"error": {"message": "x", "code": 502, "metadata": {"raw": "y"}}}),
                Class::Overloaded,
                "x: y",
            ),
            (json!([{"error": {"code": 429, "message": "quota"}}]), Class::Throttled, "quota"),
            (json!({"detail": "Rate limit exceeded"}), Class::Throttled, "Rate limit exceeded"),
            (json!({"detail": {"message": "busy", "code": 503}}), Class::Overloaded, "busy"),
            (json!({"message": "nope", "code": 401}), Class::Permanent, "nope"),
            (
                json!({"code": "InvalidApiKey", "message": "Invalid API-key", "request_id": "r"}),
                Class::Permanent,
                "Invalid API-key",
            ),
            (json!({"code": "Arrearage", "message": "Access denied"}), Class::Billing, "Access denied"),
            (
                json!({"error_code": 18, "error_msg": "Open api qps request limit reached"}),
                Class::Throttled,
                "qps request limit",
            ),
            (
                json!({"success": false, "errors": [{"code": 7003, "message": "Could not route"}]}),
                Class::BadAnswer,
                "Could not route",
            ),
            (
                json!({"object": "error", "message": "maximum context length is 4096 tokens", "code": 400}),
                Class::Context,
                "4096",
            ),
            (json!({"message": "prompt is too long: 9 tokens > 8 maximum"}), Class::Context, "too long"),
            (
                json!({"choices": null, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
                Class::Billing,
                "insufficient balance (base_resp.status_code 1008)",
            ),
            (
                json!({"base_resp": {"status_code": 1002, "status_msg": "rate limit"}}),
                Class::Throttled,
                "rate limit",
            ),
            (
                json!({"base_resp": {"status_code": 7, "status_msg": ""}, "choices": []}),
                Class::BadAnswer,
                "status_code 7",
            ),
            (
                json!({"choices": [{"error": {"code": 502, "message": "upstream"}, "message": {"content": ""}}]}),
                Class::Overloaded,
                "upstream",
            ),
            (
                json!({"choices": [{"message": {"content": "", "error": "The engine is overloaded"}}]}),
                Class::Overloaded,
                "engine",
            ),
            (
                json!({"choices": [{"finish_reason": "error", "message": {"content": ""}}]}),
                Class::Server,
                "finish_reason `error`",
            ),
            (
                json!({"base_resp": {"status_code": "1004", "status_msg": "login fail"}}),
                Class::Permanent,
                "login fail (base_resp.status_code 1004)",
            ),
            (
                json!({"choices": [{"finish_reason": "abort", "message": {"content": "a part"}}]}),
                Class::Server,
                "finish_reason `abort`",
            ),
            (
                json!({"choices": [{"finish_reason": "insufficient_system_resource", "message": {"content": ""}}]}),
                Class::Overloaded,
                "insufficient_system_resource",
            ),
            (
                json!({"choices": [{"finish_reason": "function_call_filter: MALFORMED_FUNCTION_CALL", "message": {}}]}),
                Class::Server,
                "MALFORMED_FUNCTION_CALL",
            ),
            (
                json!({"__type": "com.amazon#ThrottlingException", "Message": "Too many tokens"}),
                Class::Throttled,
                "Too many tokens",
            ),
            (
                json!({"ok": false, "description": "blocked", "usage": {}}),
                Class::BadAnswer,
                r#"no `choices`: {"ok":false,"description":"blocked"}"#,
            ),
            (
                json!({"choices": [{"finish_reason": {"type": "abort", "message": "out of memory", "status_code": 503}}]}),
                Class::Overloaded,
                "out of memory",
            ),
            (json!("internal server error"), Class::Server, "internal server error"),
            (json!({"choices": null, "usage": {}}), Class::BadAnswer, "no `choices`"),
            (json!({"choices": []}), Class::BadAnswer, "empty `choices`"),
        ] {
            let no = wire::read(LlmApi::Chat, &body, 0).unwrap_err();
            assert_eq!(no.class, class, "{body}: {}", no.body.message);
            assert!(no.body.message.contains(words), "{body}: {}", no.body.message);
        }
        for api in [LlmApi::Responses, LlmApi::Messages, LlmApi::Completions] {
            let no = wire::read(api, &json!({"detail": "Rate limit exceeded"}), 0).unwrap_err();
            assert_eq!(no.class, Class::Throttled, "{api:?}");
        }
        let text = wire::decode(LlmApi::Chat, b"upstream connect error: overloaded", 0).unwrap_err();
        assert_eq!(text.class, Class::Overloaded, "{}", text.body.message);
        let empty = wire::decode(LlmApi::Chat, b" \n", 0).unwrap_err();
        assert_eq!(empty.body.message, "answered with an empty body");
    }

    #[test]
    fn good_answers_are_no_failures() {
        for extra in [
            json!({"error": null}),
            json!({"error": ""}),
            json!({"error": {}}),
            json!({"error": false}),
            json!({"base_resp": {"status_code": 0, "status_msg": "success"}}),
            json!({"message": "ok", "code": 0}),
        ] {
            let mut body =
                json!({"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "error": null}]});
            for (key, value) in extra.as_object().unwrap() {
                body[key] = value.clone();
            }
            assert_eq!(wire::read(LlmApi::Chat, &body, 0).unwrap().content, "x", "{body}");
            assert!(!is_stranger(LlmApi::Chat, &body));
        }
    }
}
