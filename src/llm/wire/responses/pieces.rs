//! Assembles a streamed response. The last event has all of it; the pieces before are for observers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::llm::{
    stream::Delta,
    wire::{Parts, RECENT, nonempty},
};

/// What came so far.
#[derive(Default)]
pub(in crate::llm::wire) struct Pieces {
    /// Items that are complete, by their place.
    items: BTreeMap<u64, Value>,
    /// Positions of the calls that were reported.
    calls: Vec<u64>,
    response: Option<Value>,
}

impl Parts for Pieces {
    fn take(&mut self, piece: &Value, tell: &mut dyn FnMut(Delta<'_>)) {
        let place = piece.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        let delta = nonempty(piece, "delta");
        match piece.get("type").and_then(Value::as_str).unwrap_or_default() {
            "response.output_text.delta" | "response.refusal.delta" => {
                delta.map(Delta::Text).into_iter().for_each(tell);
            }
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                delta.map(Delta::Reasoning).into_iter().for_each(tell);
            }
            "response.output_item.added" => {
                let item = piece.get("item").unwrap_or(&Value::Null);
                if item.get("type").and_then(Value::as_str) == Some("function_call") {
                    let name = nonempty(item, "name").unwrap_or_default();
                    tell(Delta::Call { index: self.calls.len(), name });
                    self.calls.push(place);
                }
            }
            "response.function_call_arguments.delta" => {
                let old = self.calls.len().saturating_sub(RECENT);
                let index = self.calls[old..].iter().position(|known| *known == place).map(|at| old + at);
                if let Some((index, text)) = index.zip(delta) {
                    tell(Delta::Arguments { index, text });
                }
            }
            "response.output_item.done" => {
                // What is no object says nothing.
                self.items.extend(
                    piece.get("item").filter(|item| item.is_object()).map(|item| (place, item.clone())),
                );
            }
            kind @ ("response.completed" | "response.incomplete" | "response.failed") => {
                let whole = piece.get("response").filter(|whole| whole.is_object()).cloned();
                // The name of the event has the status too. What failed has no answer.
                let status = kind.trim_start_matches("response.");
                let named = || if status == "failed" { Value::Null } else { json!({"status": status}) };
                self.response = Some(whole.unwrap_or_else(named));
            }
            _ => {}
        }
    }

    fn ended(&self) -> bool {
        self.response.is_some()
    }

    fn closed(&self) -> bool {
        self.ended()
    }

    fn whole(&mut self) -> Value {
        let mut response = self.response.take().unwrap_or_default();
        let output = response.get("output").and_then(Value::as_array);
        let listed = output.is_some_and(|items| items.iter().any(|item| !item.is_null()));
        if let Some(fields) = response.as_object_mut().filter(|_| !listed && !self.items.is_empty()) {
            // Some gateways end with the outer fields alone.
            fields.insert("output".into(), std::mem::take(&mut self.items).into_values().collect());
        }
        response
    }
}
