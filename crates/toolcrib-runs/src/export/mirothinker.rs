//! Task logs of MiroThinker (its class `TaskLog`): one file for each task. Calls are written into the text as its models
//! write them, which its own tools read.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::{
    ExportSummary,
    conversation::{Conversation, calls, role, text},
    output::{self, Place},
    run_reader::{EndedTask, RunReader},
};
use crate::{
    error::Result,
    run_files::safe_name,
    task::{Outcome, Target},
};

pub(super) fn write(run: &RunReader, place: Place<'_>) -> Result<ExportSummary> {
    let folder = output::new_folder(place)?;
    let mut summary = ExportSummary::default();
    run.each_task(|task| {
        let conversation = run.conversation(&task).filter(|_| task.report.model.is_some());
        let Some(conversation) = conversation else {
            summary.without_conversation += 1;
            return Ok(());
        };
        summary.tasks += 1;
        // Its programs take all that begins so for task logs.
        let name = format!("task_{}.json", safe_name(&task.name()));
        output::document(&folder, &name, &task_log(&task, &conversation))
    })?;
    Ok(summary)
}

fn task_log(task: &EndedTask, conversation: &Conversation) -> Value {
    let report = &task.report;
    let (judged, judge) = match report.status {
        Outcome::Passed => ("CORRECT", "toolcrib"),
        Outcome::Failed => ("INCORRECT", "toolcrib"),
        _ => ("", ""),
    };
    let answered = matches!(report.status, Outcome::Passed | Outcome::Failed | Outcome::Unscored);
    let question = conversation.opening().iter().rev().find(|message| role(message) == "user").map(text);
    let target = match &report.target {
        None => String::new(),
        Some(Target::One(one)) => one.clone(),
        Some(Target::AnyOf(many)) => many.join(" | "),
    };
    let system: String =
        conversation.messages.iter().filter(|message| role(message) == "system").map(text).collect();
    json!({
        "status": if answered { "success" } else { "failed" },
        "start_time": report.started, "end_time": report.ended, "task_id": task.name(),
        "input": {"task_description": question.unwrap_or_default(), "task_file_name": ""},
        "ground_truth": target, "final_boxed_answer": report.answer.clone().unwrap_or_default(),
        "final_judge_result": judged, "judge_type": judge,
        "error": report.error.as_ref().map(|error| error.message.clone()).unwrap_or_default(),
        "current_main_turn_id": report.turns, "current_sub_agent_turn_id": 0, "sub_agent_counter": 0,
        "env_info": {
            "toolcrib_run": report.run, "llm_model_name": report.model, "sample": task.report.sample,
            "attempt": report.attempt, "metadata": report.metadata,
        },
        "log_dir": "", "sub_agent_message_history_sessions": Map::new(), "step_logs": [],
        "main_agent_message_history": {"system_prompt": system, "message_history": messages(conversation)},
        "trace_data": {"performance_summary": {
            "total_wall_time": report.wall_ms / 1e3,
            "primary_breakdown": {
                "llm_time": report.time_ms.model / 1e3, "tool_time": report.time_ms.tools / 1e3,
                "waiting_time": (report.time_ms.queue + report.time_ms.retry_wait) / 1e3,
            },
        }},
    })
}

/// The conversation: results of tools are what the user says next.
fn messages(conversation: &Conversation) -> Vec<Value> {
    let mut messages: Vec<(&str, String)> = Vec::new();
    let mut last = "";
    for message in &conversation.messages {
        let mut content = text(message);
        let role = match role(message) {
            "system" => continue,
            "assistant" => {
                for call in calls(message) {
                    let (server, tool) = conversation.server_and_tool(call.name);
                    let space = if content.is_empty() { "" } else { "\n\n" };
                    // Writing to a text cannot fail.
                    let _ = write!(
                        content,
                        "{space}<use_mcp_tool>\n<server_name>{server}</server_name>\n<tool_name>{tool}</tool_name>\n\
                         <arguments>\n{}\n</arguments>\n</use_mcp_tool>",
                        call.arguments_or_text()
                    );
                }
                "assistant"
            }
            other => other,
        };
        match messages.last_mut() {
            Some((_, results)) if role == "tool" && last == "tool" => {
                results.push_str("\n\n");
                results.push_str(&content);
            }
            _ => messages.push((if role == "assistant" { role } else { "user" }, content)),
        }
        last = role;
    }
    let parts = |(role, text)| json!({"role": role, "content": [{"type": "text", "text": text}]});
    messages.into_iter().map(parts).collect()
}
