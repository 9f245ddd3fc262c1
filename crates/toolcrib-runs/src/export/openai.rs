//! Conversations for fine-tuning with OpenAI's API: `{"messages": [..], "tools": [..]}` in each line.

use std::io::Write;

use serde_json::json;

use super::{ExportSummary, output, run_reader::RunReader};
use crate::error::Result;

pub(super) fn write(run: &RunReader, out: &mut dyn Write) -> Result<ExportSummary> {
    let mut summary = ExportSummary::default();
    run.each_task(|task| {
        let conversation = run.conversation(&task).filter(|_| task.report.model.is_some());
        let Some(conversation) = conversation else {
            summary.without_conversation += 1;
            return Ok(());
        };
        let mut line = json!({"messages": conversation.messages});
        if !conversation.tools.is_empty() {
            line["tools"] = conversation.openai_tools().into();
        }
        summary.tasks += 1;
        output::line(out, &line)
    })?;
    Ok(summary)
}
