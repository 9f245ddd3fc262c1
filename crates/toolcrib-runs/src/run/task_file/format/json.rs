//! JSON: a list of tasks, an object with one list of tasks, or one task.

use indexmap::IndexMap;
use serde_json::value::RawValue;

use super::{FormatError, Record};

pub(super) fn read(text: &str) -> Result<Vec<Record>, FormatError> {
    let items: Vec<&RawValue> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| wrong(&error))?
    } else {
        let fields: IndexMap<&str, &RawValue> = serde_json::from_str(text).map_err(|error| wrong(&error))?;
        let mut lists = fields.values().filter(|value| is_list_of_objects(value.get()));
        match (lists.next(), lists.next()) {
            (Some(list), None) if !is_task(&fields) => {
                serde_json::from_str(list.get()).map_err(|error| wrong(&error))?
            }
            _ => vec![serde_json::from_str(text).map_err(|error| wrong(&error))?],
        }
    };
    // The items are parts of the text, in its order.
    let (mut counted, mut line) = (0, 1);
    let record = |item: &RawValue| {
        let at = item.get().as_ptr().addr().saturating_sub(text.as_ptr().addr()).min(text.len());
        line += memchr::memchr_iter(b'\n', text.as_bytes().get(counted..at).unwrap_or_default()).count();
        counted = counted.max(at);
        let value = serde_json::from_str(item.get());
        let value = value.map_err(|error| FormatError { line, reason: error.to_string() })?;
        Ok(Record { line, number: None, id: None, value: Ok(value) })
    };
    items.into_iter().map(record).collect()
}

/// Whether an object is a task itself and has no list of tasks: an own list of calls, say, is none.
fn is_task(fields: &IndexMap<&str, &RawValue>) -> bool {
    ["input", "calls", "question", "task_question", "PROMPT"].iter().any(|key| fields.contains_key(key))
}

fn is_list_of_objects(text: &str) -> bool {
    text.strip_prefix('[').is_some_and(|items| items.trim_start().starts_with('{'))
}

fn wrong(error: &serde_json::Error) -> FormatError {
    let words = error.to_string();
    let reason = match words.split(" at line ").next().unwrap_or(&words) {
        "trailing comma" => "a comma with nothing after it",
        "trailing characters" => "there is more behind the end of the list or object",
        reason if error.is_eof() => {
            return FormatError {
                line: error.line(),
                reason: format!("the file ends in the middle of its JSON: {reason}"),
            };
        }
        reason => reason,
    };
    FormatError { line: error.line(), reason: format!("not JSON at column {}: {reason}", error.column()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_objects_with_one_list_are_read() {
        let lines = |text: &str| read(text).unwrap().iter().map(|record| record.line).collect::<Vec<_>>();
        assert_eq!(lines("[{\"input\": \"a\"},\n\n {\"input\": \"b\"}]"), [1, 3]);
        assert_eq!(lines("{\"version\": 1,\n\"tasks\": [\n{\"input\": \"a\"}]}"), [3]);
        assert_eq!(lines("\n{\"id\": \"x\", \"calls\": [{\"tool\": \"time.now\"}]}").len(), 1);
        let error = read("[{\"input\": \"a\"},\n{\"input\": }]").unwrap_err();
        assert_eq!((error.line, error.reason.as_str()), (2, "not JSON at column 11: expected value"));
    }
}
