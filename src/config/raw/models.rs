//! The tables of `[llm]` with names: `clients` and `strategies`.

use std::time::Duration;

use super::{LLM, RawLlm, llm, retry};
use crate::{
    config::{LlmConfig, Order, origin::Text, section::Section},
    error::Result,
    retry::RetryPolicy,
};

pub(in crate::config) const STRATEGY: &[&str] = &["fallback", "round_robin", "start", "total", "retry"];

/// A table of `[llm.strategies]`.
#[derive(Debug)]
pub(in crate::config) struct RawStrategy {
    pub(in crate::config) line: usize,
    pub(in crate::config) name: String,
    pub(in crate::config) order: Order,
    pub(in crate::config) members: Vec<Text>,
    pub(in crate::config) total: Option<Duration>,
    pub(in crate::config) retry: Option<RetryPolicy>,
}

/// Where `[llm]` has no model of its own, what clients do not take over from it would be said to nobody.
pub(super) fn check_own(llm: &Section<'_>) -> Result<()> {
    const NOT_SHARED: [&str; 10] = [
        "api",
        "api_key",
        "max_in_flight",
        "requests_per_minute",
        "tokens_per_minute",
        "prompt_cache",
        "prefill",
        "extra_body",
        "cache",
        "batch",
    ];
    if !llm.has("client") || llm.has("model") || llm.has("base_url") {
        return Ok(());
    }
    match NOT_SHARED.into_iter().find(|key| llm.has(key)) {
        None => Ok(()),
        Some(key) => Err(llm.key_error(key, "belongs to a client", Some("move it to [llm.clients.NAME]"))),
    }
}

/// The clients; what they leave out of times, retries and sampling is as in `[llm]`.
pub(super) fn clients(table: &Section<'_>, base: &LlmConfig) -> Result<Vec<RawLlm>> {
    let read = |(name, section): (&str, Section<'_>)| {
        for key in ["client", "clients", "strategies"] {
            if section.has(key) {
                return Err(section.key_error(key, "belongs to [llm] itself", Some("move it there")));
            }
        }
        let mut shared = LlmConfig::new(None, "");
        shared.name = Some(name.to_owned());
        shared.stream = base.stream;
        shared.connect_timeout = base.connect_timeout;
        shared.first_token_timeout = base.first_token_timeout;
        shared.idle_timeout = base.idle_timeout;
        shared.request_timeout = base.request_timeout;
        shared.silence_check = base.silence_check;
        shared.retry = base.retry.clone();
        shared.temperature = base.temperature;
        shared.max_tokens = base.max_tokens;
        shared.seed = base.seed;
        llm(&section, shared)
    };
    let example = "{ NAME = { base_url = \"...\", model = \"...\" } }";
    table.named("clients", LLM, example)?.into_iter().map(read).collect()
}

pub(super) fn strategies(table: &Section<'_>) -> Result<Vec<RawStrategy>> {
    let sections = table.named("strategies", STRATEGY, "{ NAME = { fallback = [\"...\"] } }")?;
    sections.into_iter().map(|(name, section)| strategy(&section, name)).collect()
}

fn strategy(table: &Section<'_>, name: &str) -> Result<RawStrategy> {
    const HELP: &str = "write fallback = [\"...\"] or round_robin = [\"...\"]";
    let from_first = table.choice("start", &[("random", false), ("first", true)])?;
    let (key, order) = match (table.has("fallback"), table.has("round_robin")) {
        (true, true) => return Err(table.error("has both `fallback` and `round_robin`", Some(HELP))),
        (false, false) => return Err(table.error("says nobody to ask", Some(HELP))),
        (true, false) => ("fallback", Order::Fallback),
        (false, true) => ("round_robin", Order::RoundRobin { from_first: from_first.unwrap_or_default() }),
    };
    if order == Order::Fallback && from_first.is_some() {
        return Err(table.key_error("start", "belongs to `round_robin`", Some("remove it")));
    }
    let members = table.texts(key)?;
    if members.is_empty() {
        return Err(table.key_error(key, "is empty", Some("name the clients to ask")));
    }
    Ok(RawStrategy {
        line: table.line,
        name: name.to_owned(),
        order,
        members,
        total: table.duration("total")?,
        retry: retry(table)?,
    })
}
