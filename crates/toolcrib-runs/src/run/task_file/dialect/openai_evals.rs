//! Samples of OpenAI evals: `input` is a conversation or a text, `ideal` the right answer or a list of right answers
//! (`evals/elsuite/basic` of the package evals 3.0.1, and the samples in its registry).

use super::{DialectRules, TaskDraft};

pub(super) const RULES: DialectRules = DialectRules {
    name: "OpenAI evals",
    fields: &[
        ("id", "id"),
        ("sample_id", "id"),
        ("input", "input"),
        ("ideal", "target"),
        ("metadata", "metadata"),
    ],
    finish,
};

fn finish(draft: &mut TaskDraft<'_>) -> Result<(), String> {
    draft.no_effect("args", "it is for a solver of evals");
    Ok(())
}
