//! Reads a script file. Every mistake is an error with file, line and key; a script that loads can only fail on a
//! conversation that it was not written for.

use super::{Call, Script, Step, Template, When, template::Args};
use crate::{
    config::{Section, SourceLocation, Text, read_toml},
    error::{Error, Result},
};

const SCRIPT: &[&str] = &["steps"];
const STEP: &[&str] = &["when", "say", "calls", "latency"];
const WHEN: &[&str] = &["role", "contains", "matches", "turn"];
const CALL: &[&str] = &["tool", "args"];

/// Every table of a script with its keys.
#[cfg(test)]
pub(super) const TABLES: [&[&str]; 4] = [SCRIPT, STEP, WHEN, CALL];

const ROLES: &[(&str, &str)] =
    &[("system", "system"), ("user", "user"), ("assistant", "assistant"), ("tool", "tool")];

pub(super) fn script(name: &str, text: &str) -> Result<Script> {
    read(&SourceLocation::named(name), text).map_err(|error| match error {
        // A script is input of a run, and no part of the configuration.
        Error::Config(error) => Error::input(error.to_string(), error.help.clone()),
        error => error,
    })
}

fn read(origin: &SourceLocation, text: &str) -> Result<Script> {
    let root = read_toml(text, origin)?;
    let root = Section::open(origin, "", 1, &root, SCRIPT, None)?;
    let steps = root.tables("steps", STEP)?.iter().map(step).collect::<Result<Vec<_>>>()?;
    if steps.is_empty() {
        let help = "write [[steps]] with say = \"..\" or [[steps.calls]]";
        return Err(root.error("a script needs at least one step", Some(help)));
    }
    Ok(Script { steps })
}

fn step(table: &Section<'_>) -> Result<Step> {
    let (say, calls) = (table.text("say")?, table.tables("calls", CALL)?);
    if say.is_none() && calls.is_empty() {
        return Err(table.error("this step has no answer", Some("add say = \"..\" or [[steps.calls]]")));
    }
    let when = table.table("when", WHEN)?.map_or_else(|| Ok(When::default()), |table| when(&table))?;
    let say = say.map(|say| {
        Template::parse(&say.value, when.matches.as_ref())
            .map_err(|problem| table.text_error(&say, problem, None))
    });
    Ok(Step {
        line: table.line,
        say: say.transpose()?,
        calls: calls.iter().map(|table| call(table, &when)).collect::<Result<_>>()?,
        latency: table.grace("latency")?.unwrap_or_default(),
        when,
    })
}

fn when(table: &Section<'_>) -> Result<When> {
    Ok(When {
        role: table.choice("role", ROLES)?.map(str::to_owned),
        contains: table.text("contains")?.map(|text| text.value),
        matches: table.regex("matches")?,
        turn: table.number("turn", 0)?,
    })
}

fn call(table: &Section<'_>, when: &When) -> Result<Call> {
    const HELP: &str = "write tool = \"server__tool\", as the model would";
    let Some(Text { value: tool, .. }) = table.text("tool")? else {
        return Err(table.error("`tool` is missing", Some(HELP)));
    };
    table.free_table("args", "{ NAME = \"value\" }")?;
    let args = match table.get("args") {
        None => serde_json::Map::new().into(),
        Some(entry) => entry
            .node
            .to_json()
            .ok_or_else(|| table.key_error("args", "contains a number that JSON cannot represent", None))?,
    };
    let args = Args::parse(&args, when.matches.as_ref())
        .map_err(|problem| table.key_error("args", problem, None))?;
    Ok(Call { tool, args })
}
