//! `toolcrib-fakes odd SEED`: a tool server that answers as it should, but for one node of one answer ([`crate::oddities`]).
//! A check of its client asks [`Plan::of`] which node that is for the same seed. Without a seed nothing is odd.

use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
};

use serde_json::{Value, json};

use crate::oddities::Change;

/// The tools that answer with their name.
pub const TOOLS: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
/// The texts in the answer of each tool, in their order.
pub const TEXTS: [&str; 3] = ["first text", "text of a file", "last text"];
/// The error message of the tool `fails`.
pub const REASON: &str = "the quota is used up";

/// The answer of a server that is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// That to `initialize`.
    Initialize,
    /// The list of tools.
    List,
    /// The result of each tool but `fails`.
    Result,
    /// The error of `fails`.
    Error,
}

/// The odd answer of a seed.
pub struct Plan {
    /// The answer that is odd.
    pub answer: Answer,
    /// The node of it that is odd.
    pub change: Change,
}

impl Plan {
    /// The plan of `seed`.
    pub fn of(seed: u64) -> Option<Self> {
        let answers = [Answer::Initialize, Answer::List, Answer::Result, Answer::Error];
        let answer = answers[usize::try_from(seed % 4).unwrap_or(0)];
        Some(Self { answer, change: Change::of(&message(answer, &json!(1)), seed / 4)? })
    }
}

/// Serves until its input ends.
pub fn run(seed: Option<u64>) -> ExitCode {
    if serve(seed).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn serve(seed: Option<u64>) -> io::Result<()> {
    let plan = seed.and_then(Plan::of);
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Ok(request) = serde_json::from_str::<Value>(&line?) else { continue };
        let Some(id) = request.get("id") else { continue };
        let answer = match request["method"].as_str() {
            Some("initialize") => Answer::Initialize,
            Some("tools/list") => Answer::List,
            Some("tools/call") if request["params"]["name"] == "fails" => Answer::Error,
            Some("tools/call") => Answer::Result,
            _ => {
                let refusal = json!({"code": -32601, "message": "Method not found"});
                writeln!(output, "{}", json!({"jsonrpc": "2.0", "id": id, "error": refusal}))?;
                output.flush()?;
                continue;
            }
        };
        let message = message(answer, id);
        let odd = plan.as_ref().filter(|plan| plan.answer == answer);
        writeln!(output, "{}", odd.map_or_else(|| message.to_string(), |plan| plan.change.apply(&message)))?;
        output.flush()?;
    }
    Ok(())
}

fn message(answer: Answer, id: &Value) -> Value {
    match answer {
        Answer::Error => {
            let error =
                json!({"code": -32000, "message": REASON, "data": {"retryAfter": 5, "limits": [1, 2]}});
            json!({"jsonrpc": "2.0", "id": id, "error": error})
        }
        Answer::Initialize => json!({"jsonrpc": "2.0", "id": id, "result": initialized()}),
        Answer::List => {
            let tools: Vec<Value> = TOOLS.iter().chain(&["fails"]).map(|name| tool(name)).collect();
            json!({"jsonrpc": "2.0", "id": id, "result": {"tools": tools, "_meta": {"page": 1}}})
        }
        Answer::Result => json!({"jsonrpc": "2.0", "id": id, "result": result()}),
    }
}

fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {
            "tools": {"listChanged": true}, "logging": {}, "experimental": {"x": {}},
            "extensions": {"io.example/x": {}},
        },
        "serverInfo": {
            "name": "odd", "title": "An odd server", "version": "1.0", "websiteUrl": "https://example.test",
            "icons": [{"src": "https://example.test/icon.png", "sizes": ["48x48"]}],
        },
        "instructions": "Ask for anything.",
        "_meta": {"x": 1},
    })
}

fn tool(name: &str) -> Value {
    json!({
        "name": name, "title": "A tool", "description": "Says something.",
        "inputSchema": {
            "type": "object", "properties": {"text": {"type": "string", "default": "x"}, "count": {"type": ["integer", "null"]}},
            "required": [], "$defs": {"x": {"enum": [1, "two", null]}},
        },
        "outputSchema": {"type": "object", "properties": {"items": {"type": "array"}}},
        "annotations": {"readOnlyHint": true, "title": "The same"},
        "icons": [{"src": "data:image/png;base64,AA==", "mimeType": "image/png"}],
        "execution": {"taskSupport": "forbidden"},
        "_meta": {"x": {"y": [1]}},
    })
}

fn result() -> Value {
    json!({
        "content": [
            {"type": "text", "text": TEXTS[0], "annotations": {"audience": ["user"], "priority": 0.5}},
            {"type": "image", "data": "AA==", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": TEXTS[1]}},
            {"type": "resource_link", "uri": "file:///b", "name": "b", "size": 3},
            {"type": "text", "text": TEXTS[2], "_meta": {"x": null}},
        ],
        "structuredContent": {"items": [1, {"two": 2.5}, null]},
        "isError": false,
        "_meta": {"progress": 1},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_changes_the_answer_that_it_names() {
        for seed in 0..400 {
            let plan = Plan::of(seed).expect("each answer has members");
            let whole = message(plan.answer, &json!(7));
            assert_ne!(plan.change.apply(&whole), whole.to_string(), "{}", plan.change);
        }
    }
}
