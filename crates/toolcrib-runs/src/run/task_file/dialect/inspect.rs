//! Samples of inspect, as `json_dataset` and `csv_dataset` read them (`inspect_ai/dataset/_util.py`, inspect_ai 0.3.285).
//! Those with `choices` are judged by the choice of the answer, as inspect's `multiple_choice` does it.

use serde_json::{Map, Value, json};

use super::{DialectRules, TaskDraft};

pub(super) const RULES: DialectRules = DialectRules {
    name: "inspect",
    fields: &[
        ("id", "id"),
        ("input", "input"),
        ("target", "target"),
        ("choices", "choices"),
        ("files", "files"),
        ("metadata", "metadata"),
    ],
    finish,
};

fn finish(draft: &mut TaskDraft<'_>) -> Result<(), String> {
    for field in ["sandbox", "setup"] {
        draft.no_effect(field, "servers run where the configuration says, and not in a sandbox of inspect");
    }
    draft.no_effect("checkpoint", "a run has a journal of its own");
    // Its default, which is compared with nothing.
    if draft.task.get("target").is_some_and(|target| target == "") {
        draft.task.shift_remove("target");
    }
    if let Some(metadata) = draft.metadata.get("metadata").and_then(Value::as_str) {
        let fields: Map<String, Value> = serde_json::from_str(metadata)
            .map_err(|error| format!("`metadata` must be an object: {error}"))?;
        draft.metadata.shift_remove("metadata");
        draft.metadata.extend(fields);
    }
    if let Some(choices) = draft.task.get_mut("choices") {
        *choices = read_choices(choices);
        match draft.task.get("target") {
            Some(Value::Array(letters)) if letters.len() > 1 => {
                let target = draft.task.shift_remove("target").unwrap_or_default();
                draft.metadata.insert("target".to_owned(), target);
                draft.note("a `target` of several choices is not judged, since inspect wants all of them: it is kept in the metadata");
            }
            Some(_) => drop(draft.task.insert("score".to_owned(), json!({"type": "choice"}))),
            None => {}
        }
    }
    if let Some(files) = draft.task.shift_remove("files") {
        let files = read_files(draft, files)?;
        draft.task.insert("files".to_owned(), files);
    }
    Ok(())
}

/// A list, or a text with commas or blanks between the choices.
fn read_choices(choices: &Value) -> Value {
    let parts: Vec<String> = match choices {
        Value::Array(all) => {
            all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect()
        }
        Value::String(text) if text.contains(',') => {
            text.split(',').map(|part| part.trim().to_owned()).collect()
        }
        Value::String(text) => text.split_whitespace().map(str::to_owned).collect(),
        other => vec![other.to_string()],
    };
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// An object of names in the sandbox and, for each, the path of a file, a data URL, or the text itself.
fn read_files(draft: &mut TaskDraft<'_>, files: Value) -> Result<Value, String> {
    let files = match files {
        Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        files => files,
    };
    let Value::Object(files) = files else {
        return Err("`files` must be an object of names and contents".to_owned());
    };
    let mut all = Vec::new();
    for (name, content) in files {
        let Value::String(content) = content else {
            return Err(format!("`files`: the content of `{name}` must be a string"));
        };
        let relative = name.trim_start_matches('/');
        if relative != name {
            draft.note("a file with an absolute name is put into the folder of the task");
        }
        let data = content.strip_prefix("data:").and_then(|data| data.split_once(";base64,"));
        // A path that is too long for the system is none.
        let is_path = || !content.is_empty() && draft.folder.join(&content).is_file();
        all.push(match data {
            Some((_, code)) => json!({"name": relative, "base64": code}),
            None if is_path() => json!({"name": relative, "path": content}),
            None => {
                if !content.contains('\n') {
                    draft.note(
                        "a content of `files` that is no path of a file is the text of the file itself",
                    );
                }
                json!({"name": relative, "text": content})
            }
        });
    }
    Ok(all.into())
}
