//! Tasks of MiroThinker: a line each of `standardized_data.jsonl`, with at most one file (`benchmarks/common_benchmark.py` and
//! `conf/benchmark/default.yaml` of MiroMindAI/MiroThinker). The path is relative to the folder of the data.

use serde_json::{Value, json};

use super::{DialectRules, TaskDraft};

/// The names that the field of the file has: in the data as configured, in data sets that are handed on, and in logs.
const FILE: [&str; 3] = ["file_name", "file_path", "task_file_name"];

pub(super) const RULES: DialectRules = DialectRules {
    name: "MiroThinker",
    fields: &[
        ("task_id", "id"),
        ("task_question", "input"),
        ("ground_truth", "target"),
        ("metadata", "metadata"),
    ],
    finish,
};

fn finish(draft: &mut TaskDraft<'_>) -> Result<(), String> {
    let mut files = Vec::new();
    for field in FILE {
        match draft.metadata.get(field) {
            None => {}
            Some(Value::String(path)) if path.is_empty() || files.contains(path) => {}
            Some(Value::String(path)) => files.push(path.clone()),
            Some(_) => return Err(format!("`{field}` must be the path of a file")),
        }
        draft.metadata.shift_remove(field);
    }
    // `file_name` may be the last part of `file_path`.
    let all = files.clone();
    files.retain(|path| !all.iter().any(|other| other.ends_with(&format!("/{path}"))));
    if !files.is_empty() {
        draft.task.insert("files".to_owned(), json!(files));
    }
    Ok(())
}
