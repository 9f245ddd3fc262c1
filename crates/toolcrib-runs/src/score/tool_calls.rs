//! Whether a task made the tool calls that its line expects.

use serde_json::{Map, Value};

use crate::{
    config::NamePattern,
    task::{MadeCall, ToolExpectation},
};

/// Bytes of a pattern.
const LONGEST_PATTERN: usize = 1000;

/// Why the calls of a task are not those that are expected; nothing where they are.
pub(super) fn unmet(expected: &ToolExpectation, calls: &[MadeCall]) -> Option<String> {
    let Ok(pattern) = NamePattern::parse(&expected.tool_called) else {
        return Some("`tool_called` is not a pattern".to_owned());
    };
    let fits = |call: &&MadeCall| pattern.is_match(&call.tool) && has(&call.arguments, &expected.args_match);
    let found = calls.iter().filter(fits).count();
    let (min, max) = bounds(expected);
    if found >= min && max.is_none_or(|max| found <= max) {
        return None;
    }
    let with = if expected.args_match.is_empty() { "" } else { " with these arguments" };
    let wanted = match (min, max) {
        (min, None) => format!("at least {min}"),
        (min, Some(max)) if min == max => min.to_string(),
        (min, Some(max)) => format!("{min} to {max}"),
    };
    Some(format!("expected {wanted} calls of `{}`{with}, found {found}", expected.tool_called))
}

fn bounds(expected: &ToolExpectation) -> (usize, Option<usize>) {
    let max = expected.max_calls.map(|max| max as usize);
    (expected.min_calls.map_or(usize::from(max != Some(0)), |min| min as usize), max)
}

/// Whether an expectation can be met. `key` is that of the task that it is in.
pub(super) fn check_expectation(key: &str, expected: &ToolExpectation) -> Result<(), String> {
    if expected.tool_called.len() > LONGEST_PATTERN {
        return Err(format!("`{key}.tool_called` is longer than {LONGEST_PATTERN} bytes"));
    }
    NamePattern::parse(&expected.tool_called)
        .map_err(|error| format!("`{key}.tool_called` is not a pattern: {error}"))?;
    match bounds(expected) {
        (min, Some(max)) if min > max => Err(format!("`{key}.min_calls` is {min}, but `max_calls` is {max}")),
        _ => Ok(()),
    }
}

/// Whether all of `wanted` is in `found`.
fn has(found: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    wanted.iter().all(|(key, wanted)| match (found.get(key), wanted) {
        (Some(Value::Object(found)), Value::Object(wanted)) => has(found, wanted),
        // 2 and 2.0 are one number.
        (Some(Value::Number(found)), Value::Number(wanted)) => {
            found == wanted || found.as_f64() == wanted.as_f64()
        }
        (Some(found), wanted) => found == wanted,
        (None, _) => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn expected(value: Value) -> ToolExpectation {
        from_value(value).unwrap()
    }

    fn call(tool: &str, arguments: &Value) -> MadeCall {
        MadeCall::new(tool.to_owned(), arguments.as_object().cloned().unwrap_or_default(), false)
    }

    #[test]
    fn calls_are_counted_by_tool_and_arguments() {
        let calls = [
            call("time.now", &json!({"zone": "UTC", "at": {"hour": 2, "minute": 30}})),
            call("time.now", &json!({"zone": "CET"})),
            call("calc.evaluate", &json!({})),
        ];
        for (met, value) in [
            (true, json!({"tool_called": "time.now"})),
            (true, json!({"tool_called": "time.*", "min_calls": 2, "max_calls": 2})),
            (false, json!({"tool_called": "time.now", "max_calls": 1})),
            (true, json!({"tool_called": "time.now", "args_match": {"at": {"hour": 2.0}}, "max_calls": 1})),
            (false, json!({"tool_called": "time.now", "args_match": {"zone": "EST"}})),
            (false, json!({"tool_called": "time.now", "min_calls": 3})),
            (true, json!({"tool_called": "files.*", "max_calls": 0})),
            (false, json!({"tool_called": "calc.*", "max_calls": 0})),
        ] {
            let reason = unmet(&expected(value.clone()), &calls);
            assert_eq!(reason.is_none(), met, "{value}: {reason:?}");
        }
        let reason =
            unmet(&expected(json!({"tool_called": "time.now", "args_match": {"zone": "EST"}})), &calls);
        assert_eq!(reason.unwrap(), "expected at least 1 calls of `time.now` with these arguments, found 0");
    }

    #[test]
    fn expectations_that_nothing_can_meet_are_refused() {
        let check = |value| check_expectation("expect", &expected(value));
        assert!(check(json!({"tool_called": "["})).unwrap_err().contains("expect.tool_called"));
        assert!(check(json!({"tool_called": "a.b", "min_calls": 2, "max_calls": 1})).is_err());
        assert!(check(json!({"tool_called": "a.b", "max_calls": 0})).is_ok());
        assert!(check(json!({"tool_called": "a".repeat(2000)})).unwrap_err().contains("longer than 1000"));
    }
}
