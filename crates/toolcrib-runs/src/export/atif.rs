//! Trajectories of Harbor, in its Agent Trajectory Interchange Format (ATIF): one file for each task.

use serde_json::{Map, Value, json};

use super::{
    ExportSummary,
    conversation::{Call, Conversation, calls, role, text},
    output::{self, Place},
    run_reader::{EndedTask, RunReader},
};
use crate::{error::Result, run_files::safe_name};

const VERSION: &str = "ATIF-v1.7";

pub(super) fn write(run: &RunReader, place: Place<'_>) -> Result<ExportSummary> {
    let folder = output::new_folder(place)?;
    let mut summary = ExportSummary::default();
    run.each_task(|task| {
        let conversation = run.conversation(&task).filter(|conversation| !conversation.messages.is_empty());
        let Some(conversation) = conversation else {
            summary.without_conversation += 1;
            return Ok(());
        };
        summary.tasks += 1;
        let name = safe_name(&task.name()) + ".json";
        output::document(&folder, &name, &trajectory(run, &task, &conversation))
    })?;
    Ok(summary)
}

fn trajectory(run: &RunReader, task: &EndedTask, conversation: &Conversation) -> Value {
    let report = &task.report;
    let mut agent = json!({"name": "toolcrib", "version": run.version()});
    if let Some(model) = &report.model {
        agent["model_name"] = model.clone().into();
    }
    if !conversation.tools.is_empty() {
        agent["tool_definitions"] = conversation.openai_tools().into();
    }
    let steps = steps(conversation, report.model.is_some());
    let mut metrics = json!({
        "total_prompt_tokens": report.tokens.input, "total_completion_tokens": report.tokens.output,
        "total_cached_tokens": report.tokens.cached, "total_steps": steps.len(),
    });
    if let Some(cost) = task.report.cost_usd {
        metrics["total_cost_usd"] = cost.into();
    }
    json!({
        "schema_version": VERSION, "session_id": report.run, "trajectory_id": task.name(), "agent": agent,
        "steps": steps, "final_metrics": metrics,
        "extra": {
            "task": report.task, "sample": task.report.sample, "attempt": report.attempt, "status": report.status,
            "reason": report.reason, "score": report.score, "answer": report.answer, "target": report.target,
            "error": report.error, "started": report.started, "ended": report.ended, "wall_ms": report.wall_ms,
            "metadata": report.metadata,
        },
    })
}

/// A step for each message, but for results of tools: these are part of the step that made the calls.
fn steps(conversation: &Conversation, has_model: bool) -> Vec<Value> {
    let mut steps: Vec<Value> = Vec::new();
    for message in &conversation.messages {
        let (role, text) = (role(message), text(message));
        let source = match role {
            "assistant" => "agent",
            "system" => "system",
            "tool" => {
                observe(steps.last_mut(), message, text);
                continue;
            }
            _ => "user",
        };
        let mut step = json!({"step_id": steps.len() + 1, "source": source, "message": text});
        if source == "agent" {
            step["llm_call_count"] = u8::from(has_model).into();
            let calls: Vec<Value> = calls(message).map(|call| tool_call(&call)).collect();
            if !calls.is_empty() {
                step["tool_calls"] = calls.into();
            }
        }
        steps.push(step);
    }
    steps
}

fn tool_call(call: &Call<'_>) -> Value {
    let arguments = call.arguments();
    let mut written = json!({"tool_call_id": call.id, "function_name": call.name, "arguments": arguments.clone().unwrap_or_default()});
    if arguments.is_none() {
        written["extra"] = json!({"unreadable_arguments": call.text});
    }
    written
}

/// Adds the result of a tool to the step before it.
fn observe(step: Option<&mut Value>, message: &Value, text: String) {
    let Some(step) = step else { return };
    let id = message["tool_call_id"].as_str();
    let calls = step["tool_calls"].as_array();
    let known = id.filter(|id| calls.into_iter().flatten().any(|call| call["tool_call_id"] == *id));
    let mut result = Map::from_iter([("content".to_owned(), text.into())]);
    if let Some(id) = known {
        result.insert("source_call_id".to_owned(), id.into());
    }
    match step["observation"]["results"].as_array_mut() {
        Some(results) => results.push(result.into()),
        None => step["observation"] = json!({"results": [result]}),
    }
}
