//! What is wrong with a line that is no task: the key, and what is wanted there.

use serde_json::Value;

use crate::config::{Node, NodeValue, Origin, Section};

const TASK: &[&str] = &["id", "input", "target", "score", "tools", "system", "limits", "calls", "metadata"];
const SCORE: &[&str] = &["type", "tol"];
const SCORES: &[(&str, &str)] = &[
    ("exact", "exact"),
    ("contains", "contains"),
    ("regex", "regex"),
    ("numeric", "numeric"),
    ("boxed", "boxed"),
];
const LIMITS: &[&str] = &["turns", "tool_calls", "seconds", "tokens"];
const CALL: &[&str] = &["tool", "args", "expect"];
const EXPECT: &[&str] = &["contains", "equals", "is_error"];

/// Whether `line` says what a task can say; if not, why.
pub(super) fn check(line: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(line).map_err(|error| match error.is_eof() {
        true => "the line ends in the middle of its JSON".to_owned(),
        false => format!("not JSON: {}", plain(&error)),
    })?;
    let origin = Origin { json: true, ..Origin::default() };
    look(&origin, &Node::of_json(&value, 1)).map_err(|mistake| match mistake.help() {
        Some(help) => format!("{mistake}; {help}"),
        None => mistake.to_string(),
    })
}

/// What the parser says. The line of the text that it was given is always 1.
pub(super) fn plain(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

fn look(origin: &Origin, node: &Node) -> crate::Result<()> {
    let task = Section::open(origin, "", 1, node, TASK, None)?;
    task.no_null(&["id", "limits", "calls", "metadata"])?;
    task.text("id")?;
    task.text("system")?;
    task.texts("tools")?;
    task.free_table("metadata", "{\"level\": 1}")?;
    let list = |key: &str| task.get(key).filter(|entry| matches!(entry.node.value, NodeValue::List(_)));
    if let Some(entry) = task.get("input")
        && !matches!(entry.node.value, NodeValue::Text(_) | NodeValue::List(_))
    {
        let example = "\"...\", or a list of {\"role\": .., \"content\": ..}";
        return Err(task.wrong(entry, "a string or a list of messages", example));
    }
    match (task.get("target"), list("target")) {
        (Some(_), Some(_)) => drop(task.texts("target")?),
        (Some(entry), None) if entry.node.as_text().is_none() => {
            return Err(task.wrong(entry, "a string or a list of strings", "\"...\""));
        }
        _ => {}
    }
    if let Some(score) = task.table("score", SCORE)? {
        score.no_null(SCORE)?;
        match score.choice("type", SCORES)? {
            None => return Err(score.error("`type` is missing", Some("write \"type\": \"contains\""))),
            Some("numeric") => drop(score.float("tol")?),
            Some(_) if score.has("tol") => {
                return Err(score.key_error("tol", "belongs to \"type\": \"numeric\"", Some("remove it")));
            }
            Some(_) => {}
        }
    }
    if let Some(limits) = task.table("limits", LIMITS)? {
        limits.number::<u32>("turns", 1)?;
        limits.number::<u32>("tool_calls", 0)?;
        limits.number::<u64>("tokens", 0)?;
        limits.float("seconds")?;
    }
    for call in task.tables("calls", CALL)? {
        call.no_null(CALL)?;
        if call.text("tool")?.is_none() {
            return Err(call.error("`tool` is missing", Some("write \"tool\": \"server.tool\"")));
        }
        call.free_table("args", "{\"NAME\": \"value\"}")?;
        if let Some(expect) = call.table("expect", EXPECT)? {
            expect.no_null(&["is_error"])?;
            expect.text("contains")?;
            expect.text("equals")?;
            expect.flag("is_error")?;
        }
    }
    Ok(())
}
