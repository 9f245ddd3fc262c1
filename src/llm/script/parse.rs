//! Reads a script file. Every mistake is an error with file and line; a script that loads can only fail on a
//! conversation that it was not written for.

use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use toml::Spanned;

use super::{Call, Script, Step, Template, When, template::Args};
use crate::error::{Error, Result, nearest};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScript {
    #[serde(default)]
    steps: Vec<Spanned<RawStep>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    #[serde(default)]
    when: RawWhen,
    say: Option<Spanned<String>>,
    #[serde(default)]
    calls: Vec<RawCall>,
    latency: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawWhen {
    role: Option<Spanned<String>>,
    contains: Option<String>,
    matches: Option<Spanned<String>>,
    turn: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCall {
    tool: Spanned<String>,
    #[serde(default)]
    args: toml::Table,
}

/// The file that errors name.
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, offset: usize) -> usize {
        self.text.get(..offset).map_or(1, |before| before.matches('\n').count() + 1)
    }

    fn error(&self, offset: usize, what: &str, help: Option<&str>) -> Error {
        Error::input(format!("{}:{}: {what}", self.name, self.line(offset)), help.map(str::to_owned))
    }
}

pub(super) fn script(name: &str, text: &str) -> Result<Script> {
    let source = Source { name, text };
    let raw: RawScript = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        // The library's first line is the message; the rest draws the place, which file and line tell.
        source.error(offset, error.message().lines().next().unwrap_or("cannot be read"), None)
    })?;
    if raw.steps.is_empty() {
        let help = "write [[steps]] with say = \"..\" or [[steps.calls]]";
        return Err(source.error(0, "a script needs at least one step", Some(help)));
    }
    let steps = raw.steps.into_iter().map(|raw| step(&source, raw)).collect::<Result<_>>()?;
    Ok(Script { steps })
}

fn step(source: &Source<'_>, raw: Spanned<RawStep>) -> Result<Step> {
    let start = raw.span().start;
    let raw = raw.into_inner();
    if raw.say.is_none() && raw.calls.is_empty() {
        let help = "add say = \"..\" or [[steps.calls]]";
        return Err(source.error(start, "this step has no answer", Some(help)));
    }
    let when = when(source, raw.when)?;
    let matches = when.matches.as_ref();
    let say = raw.say.map(|say| {
        let offset = say.span().start;
        Template::parse(say.get_ref(), matches).map_err(|problem| source.error(offset, &problem, None))
    });
    let calls = raw.calls.into_iter().map(|call| {
        let offset = call.tool.span().start;
        let args =
            Args::table(&call.args, matches).map_err(|problem| source.error(offset, &problem, None))?;
        Ok(Call { tool: call.tool.into_inner(), args })
    });
    Ok(Step {
        line: source.line(start),
        say: say.transpose()?,
        calls: calls.collect::<Result<_>>()?,
        latency: raw.latency.map_or(Ok(Duration::ZERO), |latency| {
            humantime::parse_duration(latency.get_ref()).map_err(|error| {
                let what = format!("latency `{}`: {error}", latency.get_ref());
                source.error(latency.span().start, &what, Some("write it as in latency = \"50ms\""))
            })
        })?,
        when,
    })
}

fn when(source: &Source<'_>, raw: RawWhen) -> Result<When> {
    const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
    if let Some(role) = raw.role.as_ref().filter(|role| !ROLES.contains(&role.get_ref().as_str())) {
        let help = nearest(role.get_ref(), ROLES).map(|near| format!("did you mean `{near}`?"));
        let help = help.unwrap_or_else(|| format!("use one of {}", ROLES.join(", ")));
        return Err(source.error(
            role.span().start,
            &format!("unknown role `{}`", role.get_ref()),
            Some(&help),
        ));
    }
    let matches = raw.matches.map(|pattern| {
        Regex::new(pattern.get_ref()).map_err(|error| {
            // The last line of the library's drawing says what is wrong.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            let what = format!("`{}` is not a regular expression: {reason}", pattern.get_ref());
            source.error(pattern.span().start, &what, None)
        })
    });
    Ok(When {
        role: raw.role.map(Spanned::into_inner),
        contains: raw.contains,
        matches: matches.transpose()?,
        turn: raw.turn,
    })
}
