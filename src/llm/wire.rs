//! The OpenAI chat format: plain requests, lenient reading of answers. Strict servers refuse fields that they do
//! not know, so nothing is sent that was not asked for.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::{
    ChatRequest, Finish, LlmErrorClass, Message, ToolCall, ToolMode,
    error_body::{ErrorBody, page_text},
    message::arguments,
};
use crate::{config::LlmConfig, task::Usage};

/// An answer as read from the wire.
#[derive(Debug, PartialEq)]
pub(super) struct Decoded {
    pub content: String,
    pub reasoning: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    pub finish: Finish,
    pub usage: Usage,
    pub model: Option<String>,
}

/// Why a body with a good status is no answer.
#[derive(Debug)]
pub(super) struct NoAnswer {
    pub class: LlmErrorClass,
    pub body: ErrorBody,
}

/// The body of a request.
pub(super) fn encode(request: &ChatRequest, config: &LlmConfig) -> Value {
    let mut body = Map::new();
    body.insert("model".into(), config.model.as_str().into());
    body.insert("messages".into(), request.messages.iter().map(Message::to_json).collect());
    if !request.tools.is_empty() {
        let tools = request.tools.iter().map(|tool| {
            let mut function = Map::new();
            function.insert("name".into(), tool.name.as_str().into());
            function.insert("description".into(), tool.description.as_str().into());
            function.insert("parameters".into(), Value::Object((*tool.parameters).clone()));
            if tool.strict {
                function.insert("strict".into(), true.into());
            }
            json!({"type": "function", "function": function})
        });
        body.insert("tools".into(), tools.collect());
        let choice = match request.tool_mode {
            ToolMode::Auto => "auto",
            ToolMode::Required => "required",
            ToolMode::None => "none",
        };
        body.insert("tool_choice".into(), choice.into());
    }
    if let Some(temperature) = config.temperature {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(max_tokens) = request.max_tokens.or(config.max_tokens) {
        body.insert("max_tokens".into(), max_tokens.into());
    }
    if let Some(seed) = config.seed {
        body.insert("seed".into(), seed.into());
    }
    for (key, value) in &config.extra_body {
        body.insert(key.clone(), value.clone());
    }
    Value::Object(body)
}

/// Reads an answer. Calls without an id get one that counts on from `calls_so_far`.
pub(super) fn decode(body: &[u8], calls_so_far: usize) -> Result<Decoded, NoAnswer> {
    let json: Value = serde_json::from_slice(body).map_err(|error| {
        let text = String::from_utf8_lossy(body);
        if text.trim_start().starts_with('<') {
            bad(format!("answered with {} in place of JSON", page_text(&text)))
        } else {
            bad(format!("answered with broken JSON: {error}"))
        }
    })?;
    // Gateways report failures of the server behind them inside a good status.
    if json.get("error").is_some_and(|error| !error.is_null()) {
        let body = ErrorBody::of_json(&json);
        let class = body.status.map_or(LlmErrorClass::BadAnswer, |status| body.class(status));
        return Err(NoAnswer { class, body });
    }
    let Some(choices) = json.get("choices").and_then(Value::as_array) else {
        return Err(bad("answered with JSON that has no `choices`".into()));
    };
    let Some(choice) = choices.first() else {
        return Err(bad("answered with empty `choices`".into()));
    };
    let Some(message) = choice.get("message").filter(|message| message.is_object()) else {
        return Err(bad("answered with a choice that has no `message`".into()));
    };
    let mut content = text(message.get("content"));
    let tool_calls = tool_calls(message, calls_so_far);
    let reason = choice.get("finish_reason").and_then(Value::as_str);
    let mut finish = match reason {
        Some("stop" | "eos" | "end_turn" | "stop_sequence") => Finish::Stop,
        Some("tool_calls" | "function_call" | "tool_use") => Finish::ToolCalls,
        Some("length" | "max_tokens") => Finish::Length,
        Some("content_filter") => Finish::ContentFilter,
        _ => Finish::Other,
    };
    if !tool_calls.is_empty() && matches!(finish, Finish::Stop | Finish::Other) {
        finish = Finish::ToolCalls;
    }
    if let Some(refusal) = message.get("refusal").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        finish = Finish::ContentFilter;
        if content.is_empty() {
            refusal.clone_into(&mut content);
        }
    }
    let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|key| message.get(*key)?.as_str());
    Ok(Decoded {
        content,
        reasoning: reasoning.filter(|text| !text.is_empty()).map(str::to_owned),
        tool_calls,
        finish,
        usage: usage(&json),
        model: json.get("model").and_then(Value::as_str).map(str::to_owned),
    })
}

fn bad(message: String) -> NoAnswer {
    NoAnswer { class: LlmErrorClass::BadAnswer, body: ErrorBody { message, ..ErrorBody::default() } }
}

/// Text, or the text parts of a list.
fn text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let part = |part: &Value| part.as_str().or_else(|| part.get("text")?.as_str()).map(str::to_owned);
            parts.iter().filter_map(part).collect()
        }
        _ => String::new(),
    }
}

fn tool_calls(message: &Value, calls_so_far: usize) -> Vec<ToolCall> {
    let mut calls = Vec::new();
    let mut taken = HashSet::new();
    let mut next = calls_so_far;
    for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        // Some servers put name and arguments beside the id and not into `function`.
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        let mut id = call.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        while id.is_empty() || taken.contains(&id) {
            id = format!("call_{next}");
            next += 1;
        }
        taken.insert(id.clone());
        calls.push(ToolCall::new(id, name, arguments(function.get("arguments"))));
    }
    calls
}

fn usage(json: &Value) -> Usage {
    let count = |pointer: &str| json.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    Usage {
        input: count("/usage/prompt_tokens"),
        output: count("/usage/completion_tokens"),
        cached: count("/usage/prompt_tokens_details/cached_tokens"),
        reasoning: count("/usage/completion_tokens_details/reasoning_tokens"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::llm::ToolSpec;

    fn answer(message: &Value, finish: &Value) -> Decoded {
        let body = json!({"choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "completion_tokens_details": null}});
        decode(body.to_string().as_bytes(), 4).unwrap()
    }

    #[test]
    fn loose_answers_are_read() {
        let null = answer(&json!({"role": "assistant", "content": null}), &Value::Null);
        assert_eq!((null.content.as_str(), null.finish, null.usage.input), ("", Finish::Other, 7));
        let parts = answer(
            &json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            &"stop".into(),
        );
        assert_eq!((parts.content.as_str(), parts.finish), ("ab", Finish::Stop));
        let refusal = answer(&json!({"content": null, "refusal": "no"}), &"stop".into());
        assert_eq!((refusal.content.as_str(), refusal.finish), ("no", Finish::ContentFilter));
        let thought = answer(&json!({"content": "42", "reasoning_content": "hm"}), &"length".into());
        assert_eq!((thought.reasoning.as_deref(), thought.finish), (Some("hm"), Finish::Length));
    }

    #[test]
    fn loose_tool_calls_are_read() {
        let calls = json!([
            {"type": "function", "function": {"name": "a", "arguments": {"x": 1}}},
            {"id": "mine", "function": {"name": "b", "arguments": "{\"y\": 2}"}},
            {"id": "mine", "function": {"name": "c", "arguments": ""}},
            {"id": "", "name": "d"},
        ]);
        let read = answer(&json!({"tool_calls": calls}), &"stop".into());
        let expected = [
            ToolCall::new("call_4", "a", r#"{"x":1}"#),
            ToolCall::new("mine", "b", "{\"y\": 2}"),
            ToolCall::new("call_5", "c", "{}"),
            ToolCall::new("call_6", "d", "{}"),
        ];
        assert_eq!((read.tool_calls.as_slice(), read.finish), (&expected[..], Finish::ToolCalls));
    }

    #[test]
    fn what_is_no_answer_is_said() {
        for (body, class, message) in [
            (
                "<html><title>hi</title>",
                LlmErrorClass::BadAnswer,
                "answered with an HTML page titled `hi` in place of JSON",
            ),
            (
                "{\"choices\": [",
                LlmErrorClass::BadAnswer,
                "answered with broken JSON: EOF while parsing a list at line 1 column 13",
            ),
            ("{}", LlmErrorClass::BadAnswer, "answered with JSON that has no `choices`"),
            ("{\"choices\": []}", LlmErrorClass::BadAnswer, "answered with empty `choices`"),
            ("{\"error\": {\"code\": 429, \"message\": \"slow\"}}", LlmErrorClass::Throttled, "slow"),
        ] {
            let error = decode(body.as_bytes(), 0).unwrap_err();
            assert_eq!((error.class, error.body.message.as_str()), (class, message));
        }
    }

    #[test]
    fn requests_are_plain() {
        let config = LlmConfig::new(Some("http://x/v1".into()), "m");
        let request = ChatRequest::new(vec![Message::User("hi".into())]);
        assert_eq!(
            encode(&request, &config),
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        );

        let mut config = config;
        config.temperature = Some(0.5);
        config.max_tokens = Some(9);
        config.seed = Some(1);
        config.extra_body.insert("top_k".into(), 20.into());
        let mut tool = ToolSpec::new("t", "does", Arc::new(Map::new()));
        tool.strict = true;
        let request = request.with_tools(Arc::from([tool]), ToolMode::Required);
        assert_eq!(
            encode(&request, &config),
            json!({"model": "m", "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"type": "function",
                    "function": {"name": "t", "description": "does", "parameters": {}, "strict": true}}],
                "tool_choice": "required", "temperature": 0.5, "max_tokens": 9, "seed": 1, "top_k": 20})
        );
    }
}
