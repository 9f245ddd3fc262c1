//! Several prompts in one request of the Completions API, and the answers apart again.

use serde_json::{Map, Value};

use super::{ChatRequest, Decoded, completions};
use crate::config::LlmConfig;

/// The prompt of a request, and everything else in its body: requests that are equal there can share one. Not where a
/// prompt has several answers: nothing tells them from those to other prompts.
pub(in crate::llm) fn parts(request: &ChatRequest, config: &LlmConfig) -> Result<(Value, Value), String> {
    if request.prefilled(config).is_some() {
        return Err("an answer that is begun goes on by itself".into());
    }
    let mut body = completions::encode(request, config)?;
    body.extend(config.extra_body.clone());
    for key in ["n", "best_of"] {
        if body.get(key).is_some_and(|count| !count.is_null() && *count != 1) {
            return Err(format!("`{key}` asks for several answers to each prompt"));
        }
    }
    let prompt = body.shift_remove("prompt").unwrap_or_default();
    Ok((prompt, Value::Object(body)))
}

/// The body of one request for all these prompts. It is answered in one piece, whatever the configuration says.
pub(in crate::llm) fn encode(prompts: Vec<Value>, rest: &Value) -> Value {
    let mut body = Map::from_iter([("prompt".to_owned(), Value::Array(prompts))]);
    body.extend(rest.as_object().cloned().unwrap_or_default());
    Value::Object(body)
}

/// The answers by the number of their prompt; nothing where there is a single one.
pub(super) fn read(json: &Value) -> Vec<Option<Decoded>> {
    let choices = json.get("choices").and_then(Value::as_array).filter(|choices| choices.len() > 1);
    let mut answers = Vec::new();
    for (place, choice) in choices.into_iter().flatten().enumerate() {
        // Who gives no numbers keeps the order.
        let number =
            choice.get("index").and_then(Value::as_u64).map_or(Some(place), |n| usize::try_from(n).ok());
        let Some(number) = number.filter(|number| *number < MOST) else { continue };
        if answers.len() <= number {
            answers.resize_with(number + 1, || None);
        }
        answers[number] = completions::answer(choice, json).ok();
    }
    answers
}

/// No request carries more prompts: a number beyond it is a mistake of the server.
const MOST: usize = 1 << 16;
