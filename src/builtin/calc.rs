//! `calc`: exact arithmetic and units through fend. Fractions stay fractions, integers have no limit.

use std::time::{Duration, Instant};

use rmcp::model::Tool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Outcome, Output, arguments, tool};

/// How long one expression may take.
const LIMIT: Duration = Duration::from_secs(2);
/// Longest result that is given, in characters.
const LONGEST: usize = 20_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Evaluate {
    /// The expression, for instance `1/3 + 1/6`, `2^200`, `sqrt(2)`, `5 feet 3 inches to cm`.
    expression: String,
}

pub(super) fn tools() -> Vec<Tool> {
    vec![tool::<Evaluate>(
        "evaluate",
        "Evaluate an arithmetic expression exactly: integers of any size, fractions, powers, roots, \
         percentages, units and their conversion. Results that cannot be exact begin with `approx.`.",
    )]
}

pub(super) fn run(name: &str, given: Map<String, Value>) -> Option<Outcome> {
    (name == "evaluate").then(|| evaluate(&arguments::<Evaluate>(given)?.expression))
}

struct Deadline(Instant);

impl fend_core::Interrupt for Deadline {
    fn should_interrupt(&self) -> bool {
        Instant::now() >= self.0
    }
}

fn evaluate(expression: &str) -> Outcome {
    let mut context = fend_core::Context::new();
    let deadline = Deadline(Instant::now() + LIMIT);
    let result = fend_core::evaluate_with_interrupt(expression, &mut context, &deadline);
    let result = result.map_err(|why| match why.as_str() {
        "interrupted" => format!("the expression takes longer than {} s", LIMIT.as_secs()),
        _ => format!("cannot evaluate `{expression}`: {why}"),
    })?;
    let text = result.get_main_result();
    if text.is_empty() {
        return Err(format!("`{expression}` has no value"));
    }
    if text.len() > LONGEST {
        return Err(format!("the result has {} characters, the limit is {LONGEST}", text.len()));
    }
    Ok(Output::Text(text.to_owned()))
}
