//! Assembles a streamed chat completion.

use serde_json::{Value, json};

use crate::llm::{
    stream::Delta,
    wire::{
        Parts, RECENT,
        content::{self, Content},
        keep, keep_reason, nonempty,
    },
};

/// What came so far of the first choice.
#[derive(Default)]
pub(in crate::llm::wire) struct Pieces {
    model: Value,
    usage: Value,
    finish: Value,
    begun: bool,
    content: String,
    reasoning: String,
    refusal: String,
    calls: Vec<Call>,
}

#[derive(Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl Parts for Pieces {
    fn take(&mut self, piece: &Value, tell: &mut dyn FnMut(Delta<'_>)) {
        keep(&mut self.model, piece, "model");
        keep(&mut self.usage, piece, "usage");
        let first = |choice: &&Value| {
            choice.is_object() && choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0
        };
        let choices = piece.get("choices").and_then(Value::as_array);
        let Some(choice) = choices.into_iter().flatten().find(first) else { return };
        self.begun = true;
        keep_reason(&mut self.finish, choice);
        let Some(delta) = choice.get("delta") else { return };
        let mut more = |place: &mut String, text: &str, delta: Delta<'_>| {
            if !text.is_empty() {
                place.push_str(text);
                tell(delta);
            }
        };
        let said = Content::of(delta.get("content"));
        let reasoning = content::reasoning(delta) + &said.reasoning;
        more(&mut self.reasoning, &reasoning, Delta::Reasoning(&reasoning));
        more(&mut self.content, &said.text, Delta::Text(&said.text));
        let refusal = said.refusal + nonempty(delta, "refusal").unwrap_or_default();
        more(&mut self.refusal, &refusal, Delta::Text(&refusal));
        let calls = delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        // What is no object asks for nothing.
        for call in calls.filter(|call| call.is_object()) {
            self.call(call, tell);
        }
        if let Some(call) = delta.get("function_call").filter(|call| call.is_object()) {
            self.old_call(call, tell);
        }
    }

    fn ended(&self) -> bool {
        !self.finish.is_null()
    }

    fn whole(&mut self) -> Value {
        let calls = self.calls.iter().map(|call| {
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        });
        let message = json!({"content": self.content, "reasoning_content": self.reasoning,
            "refusal": self.refusal, "tool_calls": calls.collect::<Vec<_>>()});
        let choice = json!({"message": message, "finish_reason": self.finish});
        let choices = if self.begun { vec![choice] } else { vec![] };
        json!({"model": self.model, "usage": self.usage, "choices": choices})
    }
}

impl Pieces {
    /// The form before `tool_calls`: one call, whose name comes once.
    fn old_call(&mut self, piece: &Value, tell: &mut dyn FnMut(Delta<'_>)) {
        let mut piece = piece.clone();
        piece["index"] = 0.into();
        if self.calls.iter().any(|call| !call.name.is_empty()) {
            piece["name"] = Value::Null;
        }
        self.call(&piece, tell);
    }

    fn call(&mut self, piece: &Value, tell: &mut dyn FnMut(Delta<'_>)) {
        let number = piece.get("index").and_then(Value::as_u64);
        let id = nonempty(piece, "id").unwrap_or_default();
        // Some servers number every call 0, others none: a new id is a new call too.
        let same = |call: &Call| {
            (number.is_none() || call.index == number)
                && (id.is_empty() || call.id.is_empty() || call.id == id)
        };
        let old = self.calls.len().saturating_sub(RECENT);
        let known = self.calls[old..].iter().rposition(same).map(|known| old + known);
        // Without number and id a piece goes on with the last call, or begins one by its name.
        let function = piece.get("function").unwrap_or(piece);
        let name = nonempty(function, "name").unwrap_or_default();
        let nameless = number.is_none() && id.is_empty() && !name.is_empty();
        let index = match known {
            Some(index) if !nameless || self.calls[index].name.is_empty() => index,
            _ => {
                self.calls.push(Call { index: number, ..Call::default() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[index];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        if call.name.is_empty() && !name.is_empty() {
            name.clone_into(&mut call.name);
            tell(Delta::Call { index, name });
        }
        let more = match function.get("arguments") {
            None | Some(Value::Null) => return,
            Some(Value::String(text)) => text.clone(),
            Some(whole) => whole.to_string(),
        };
        if !more.is_empty() {
            call.arguments.push_str(&more);
            tell(Delta::Arguments { index, text: &more });
        }
    }
}
