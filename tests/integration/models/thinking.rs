//! A task whose model thinks, in Anthropic's format, whole and streamed: its thoughts are sent back to it with the
//! results of its tools, as it was signed.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    support::program::{Bench, code, err, out},
    support::served,
};

type Seen = Arc<Mutex<Vec<Value>>>;

/// The blocks of the answer to request number `turn`: two with a call, then the result of the last one.
fn blocks(turn: usize, body: &Value) -> Value {
    let call = |expression: &str| {
        json!({"type": "tool_use", "id": format!("toolu_{turn}"), "name": "calc__evaluate",
        "input": {"expression": expression}})
    };
    match turn {
        1 => json!([{"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk/1=="},
            {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"},
            {"type": "text", "text": "I calculate."}, call("2^10")]),
        2 => json!([{"type": "thinking", "thinking": "", "signature": "c2lnbmVk/2=="}, call("2^11")]),
        _ => {
            let last = body["messages"].as_array().unwrap().last().unwrap();
            json!([{"type": "thinking", "thinking": "Done.", "signature": "c2lnbmVk/3=="},
                {"type": "text", "text": last["content"][0]["content"]}])
        }
    }
}

/// Answers as the API does, and refuses what it refuses: a turn with thinking whose first answer came back without.
async fn answer(State(seen): State<Seen>, Json(body): Json<Value>) -> Response {
    seen.lock().unwrap().push(body.clone());
    let turn = seen.lock().unwrap().len();
    let answers =
        body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "assistant");
    let thought = answers.map(|message| message["content"][0]["type"].clone()).next();
    if !body["thinking"].is_null() && thought.is_some_and(|kind| kind != "thinking") {
        let error =
            json!({"type": "invalid_request_error", "message": "Expected `thinking`, but found `tool_use`"});
        return (StatusCode::BAD_REQUEST, Json(json!({"type": "error", "error": error}))).into_response();
    }
    let blocks = blocks(turn, &body);
    let reason = if turn < 3 { "tool_use" } else { "end_turn" };
    if body["stream"] != true {
        return Json(json!({"content": blocks, "stop_reason": reason})).into_response();
    }
    let mut events = vec![json!({"type": "message_start", "message": {"model": "m"}})];
    for (index, block) in blocks.as_array().unwrap().iter().enumerate() {
        let (start, deltas) = pieces(block);
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        let delta = |delta| json!({"type": "content_block_delta", "index": index, "delta": delta});
        events.extend(deltas.into_iter().map(delta));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}}));
    events.push(json!({"type": "message_stop"}));
    let lines = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    let text = events.iter().map(lines).collect::<Vec<_>>().concat();
    ([("content-type", "text/event-stream")], text).into_response()
}

/// A block as it begins, and what comes after.
fn pieces(block: &Value) -> (Value, Vec<Value>) {
    let halves = |key: &str| {
        let text = block[key].as_str().unwrap();
        let (one, two) = text.split_at(text.len() / 2);
        [one, two].map(str::to_owned)
    };
    let mut start = block.clone();
    let deltas = match block["type"].as_str().unwrap() {
        "thinking" => {
            (start["thinking"], start["signature"]) = ("".into(), "".into());
            let thought = halves("thinking").map(|text| json!({"type": "thinking_delta", "thinking": text}));
            let signed =
                halves("signature").map(|text| json!({"type": "signature_delta", "signature": text}));
            thought.into_iter().chain(signed).collect()
        }
        "text" => {
            start["text"] = "".into();
            halves("text").map(|text| json!({"type": "text_delta", "text": text})).to_vec()
        }
        "tool_use" => {
            start["input"] = json!({});
            vec![json!({"type": "input_json_delta", "partial_json": block["input"].to_string()})]
        }
        _ => vec![],
    };
    (start, deltas)
}

async fn model() -> (String, Seen, JoinSet<()>) {
    let seen = Seen::default();
    let (url, tasks) = served(Router::new().fallback(answer).with_state(Arc::clone(&seen))).await;
    (url, seen, tasks)
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_are_sent_back_with_their_signature() {
    for stream in [false, true] {
        let (url, seen, _tasks) = model().await;
        let bench = Bench::new(&format!(
            "servers.calc.builtin = 'calc'
            [llm]
            base_url = '{url}'
            model = 'm'
            api = 'messages'
            stream = {stream}
            extra_body = {{ thinking = {{ type = 'enabled', budget_tokens = 5000 }} }}"
        ));
        let output = tokio::task::spawn_blocking(move || bench.run(&["run", "how much?"])).await.unwrap();
        assert_eq!((code(&output), out(&output).trim()), (0, "2048"), "{stream}: {}", err(&output));
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 3, "{stream}");
        for body in seen.iter() {
            assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 5000}));
            // The limit that holds where none is set leaves as much for the answer as without thinking.
            assert_eq!(body["max_tokens"], 9096);
        }
        let sent = &seen[2]["messages"];
        for (turn, place) in [(1, 1), (2, 3)] {
            assert_eq!(
                sent[place],
                json!({"role": "assistant", "content": blocks(turn, &Value::Null)}),
                "{stream}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thinking_model_is_not_forced_to_call_a_tool() {
    let (url, seen, _tasks) = model().await;
    let bench = Bench::new(&format!(
        "servers.calc.builtin = 'calc'
        agent.tool_choice = 'required'
        [llm]
        base_url = '{url}'
        model = 'm'
        api = 'messages'
        extra_body = {{ thinking = {{ type = 'adaptive' }} }}"
    ));
    let output = tokio::task::spawn_blocking(move || bench.run(&["run", "how much?"])).await.unwrap();
    let text = err(&output);
    assert!(text.contains("a thinking model cannot be forced to call a tool"), "{text}");
    assert!(seen.lock().unwrap().is_empty(), "nothing is sent that would be refused");
}
