//! Conversations as text with the markers of ChatML. Tools and calls are written as the templates of Qwen and Hermes
//! models write them.

use std::{fmt::Write as _, io::Write};

use serde_json::{Value, json};

use super::{
    ExportSummary,
    conversation::{Conversation, calls, role, text},
    output,
    run_reader::RunReader,
};
use crate::error::Result;

const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    let mut summary = ExportSummary::default();
    run.each_task(|task| {
        let conversation = run.conversation(&task).filter(|_| task.report.model.is_some());
        match conversation.map(|conversation| chatml(&conversation)) {
            None => summary.without_conversation += 1,
            Some(None) => summary.reserved_text += 1,
            Some(Some(text)) => {
                summary.tasks += 1;
                output::line(
                    out,
                    &json!({"text": text, "task": task.report.task, "sample": task.report.sample}),
                )?;
            }
        }
        Ok(())
    })?;
    Ok(summary)
}

/// The text of a conversation. Nothing: a message has a marker in its text, and would be read as several.
fn chatml(conversation: &Conversation) -> Option<String> {
    let mut turns: Vec<(&str, String)> = Vec::new();
    for message in &conversation.messages {
        let mut content = text(message);
        let role = match role(message) {
            "tool" => {
                content = format!("<tool_response>\n{content}\n</tool_response>");
                // Results of one answer stand in one turn.
                if let Some(("tool", results)) = turns.last_mut() {
                    results.push('\n');
                    results.push_str(&content);
                    continue;
                }
                "tool"
            }
            "assistant" => {
                for call in calls(message) {
                    let call = json!({"name": call.name, "arguments": call.arguments_or_text()});
                    let space = if content.is_empty() { "" } else { "\n" };
                    write!(content, "{space}<tool_call>\n{call}\n</tool_call>").ok()?;
                }
                "assistant"
            }
            "system" => "system",
            _ => "user",
        };
        turns.push((role, content));
    }
    if !conversation.tools.is_empty() {
        let described = tools(&conversation.openai_tools());
        match turns.first_mut() {
            Some(("system", content)) => *content = format!("{content}\n\n{described}"),
            _ => turns.insert(0, ("system", described)),
        }
    }
    let mut written = String::new();
    for (role, content) in turns {
        if content.contains(START) || content.contains(END) {
            return None;
        }
        let role = if role == "tool" { "user" } else { role };
        writeln!(written, "{START}{role}\n{content}{END}").ok()?;
    }
    Some(written)
}

/// The part of the system prompt about tools.
fn tools(tools: &[Value]) -> String {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    format!(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function \
         signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, return a json object \
         with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": \
         <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>",
        lines.join("\n")
    )
}
