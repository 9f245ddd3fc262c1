//! Questions with their answers, as most data sets have them.

use super::{DialectRules, TaskDraft};

pub(super) const RULES: DialectRules = DialectRules {
    name: "question-and-answer",
    fields: &[("id", "id"), ("question", "input"), ("answer", "target"), ("metadata", "metadata")],
    finish,
};

fn finish(_: &mut TaskDraft<'_>) -> Result<(), String> {
    Ok(())
}
