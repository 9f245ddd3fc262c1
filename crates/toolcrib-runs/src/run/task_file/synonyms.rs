//! Other names of the keys of a task, which are taken where the file leaves one reading: `question`, `Prompt`, `expected answer`.

use serde_json::{Map, Value};

use super::mistake::TASK;

/// Names that can only mean one key.
const SYNONYMS: [(&str, &[&str]); 3] = [
    (
        "input",
        &[
            "question",
            "prompt",
            "query",
            "instruction",
            "problem",
            "user_input",
            "user_prompt",
            "user_query",
            "user_question",
            "task_question",
        ],
    ),
    (
        "target",
        &[
            "answer",
            "expected",
            "expected_answer",
            "expected_output",
            "correct_answer",
            "ground_truth",
            "final_answer",
            "gold",
            "gold_answer",
            "reference_answer",
            "ideal",
        ],
    ),
    ("id", &["task_id", "question_id"]),
];

/// Whether a column is one of a task by its name.
pub(super) fn is_known(column: &str) -> bool {
    let plain = plain(column);
    TASK.contains(&&*plain) || SYNONYMS.iter().any(|(_, names)| names.contains(&&*plain))
}

/// The fields of a task that stand for keys by another name, as `(key, field)`. `has_key` says which keys it has by their own
/// name. A key for which there are several is left alone.
pub(super) fn of(task: &Map<String, Value>, is_table: bool) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    // A table has no grammar of its own: capitals and spaces are those of a person.
    let by_case = TASK.iter().filter(|_| is_table).map(|key| (*key, std::slice::from_ref(key)));
    for (key, names) in by_case.chain(SYNONYMS) {
        let has = |key: &str| task.contains_key(key) || found.iter().any(|(known, _)| known == key);
        let is_meant = match key {
            "input" => !has("calls"),
            // Beside choices it is often the number of one. Where the question has its own name, the task is ours.
            "target" => !has("choices") && (is_table || found.iter().any(|(known, _)| known == "input")),
            "id" => is_table || found.iter().any(|(known, _)| known == "input"),
            _ => true,
        };
        if has(key) || !is_meant {
            continue;
        }
        let mut fields =
            task.keys().filter(|field| !TASK.contains(&field.as_str()) && names.contains(&&*plain(field)));
        if let (Some(field), None) = (fields.next(), fields.next()) {
            found.push((key.to_owned(), field.clone()));
        }
    }
    found
}

/// `Expected Answer ` as `expected_answer`.
fn plain(name: &str) -> String {
    let letter = |letter: char| match letter {
        ' ' | '-' | '.' => '_',
        letter => letter.to_ascii_lowercase(),
    };
    name.trim().chars().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_one_reading_are_taken() {
        let of = |task: Value, is_table| {
            let found = of(task.as_object().unwrap(), is_table);
            found.iter().map(|(key, field)| format!("{key}={field}")).collect::<Vec<_>>().join(",")
        };
        assert_eq!(
            of(serde_json::json!({"Question": 1, "Final answer": 1}), false),
            "input=Question,target=Final answer"
        );
        assert_eq!(of(serde_json::json!({"query": 1, "task_id": 1}), false), "input=query,id=task_id");
        assert_eq!(
            of(serde_json::json!({"Input": 1, "Target": 1, "ID": 1}), true),
            "id=ID,input=Input,target=Target"
        );
        assert_eq!(
            of(serde_json::json!({"question": 1, "choices": [], "answer": 1}), false),
            "input=question"
        );
        for left in [
            serde_json::json!({"question": 1, "prompt": 1}),
            serde_json::json!({"input": 1, "answer": 1}),
            serde_json::json!({"calls": [], "question": 1}),
            serde_json::json!({"no": 1, "wording": 1}),
        ] {
            assert_eq!(of(left.clone(), false), "", "{left}");
        }
    }
}
