//! Trace spans of an agent's work on a task.

use crate::{task::TaskReport, trace::Action};

pub(super) fn ended(action: Action, report: &TaskReport) {
    if !action.is_on() {
        return;
    }
    if let Ok(serde_json::Value::String(outcome)) = serde_json::to_value(report.status) {
        action.record("toolcrib.outcome", &*outcome);
    }
    action.record("toolcrib.turns", report.turns);
    action.record("toolcrib.tool_calls", report.tool_calls);
    action.record("gen_ai.usage.input_tokens", report.tokens.input);
    action.record("gen_ai.usage.output_tokens", report.tokens.output);
    match &report.error {
        Some(error) => action.end(Some(&error.code)),
        None => action.end(None),
    }
}
