//! The scripted model: answers from a file, decided by the conversation alone.
//!
//! For tests, load runs and demonstrations. It keeps no state, so any number of agents can share one, and the same
//! conversation always gets the same answer. The first step whose condition holds answers:
//!
//! ```toml
//! [[steps]]
//! when = { role = "user", matches = "time in (\\w+)" }
//! [[steps.calls]]
//! tool = "time__now"
//! args = { zone = "{{match.1}}" }
//!
//! [[steps]]
//! when = { role = "tool" }
//! say = "It is {{result.last.time}}."
//! ```

use std::time::Duration;

use regex::Regex;

use super::{ChatRequest, Finish, LlmErrorClass, Message, ToolCall, errors::fault::Fault, wire::Decoded};
use crate::{error::Result, text::beginning};

mod parse;
mod template;
#[cfg(test)]
mod tests;

use template::{Args, Scene, Template};

/// A script, checked.
#[derive(Debug, Default)]
pub(super) struct Script {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    /// Line in the file, from 1.
    line: usize,
    when: When,
    say: Option<Template>,
    calls: Vec<Call>,
    latency: Duration,
}

/// Conditions on the last message; those given must all hold.
#[derive(Debug, Default)]
struct When {
    role: Option<String>,
    contains: Option<String>,
    matches: Option<Regex>,
    /// Answers given so far in this conversation.
    turn: Option<usize>,
}

#[derive(Debug)]
struct Call {
    tool: String,
    args: Args,
}

impl Script {
    /// Reads a script; `name` stands for the file in errors.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self> {
        parse::script(name, text)
    }

    /// The answer to a conversation.
    pub(super) async fn answer(&self, request: &ChatRequest) -> Result<Decoded, Fault> {
        let messages = &request.messages;
        let last = messages.last().map_or("", Message::text);
        let Some(step) = self.steps.iter().find(|step| step.when.holds(messages, last)) else {
            let role = messages.last().map_or("missing", Message::role);
            let text = format!("no step matches the last message ({role}): `{}`", beginning(last, 200));
            return Err(Fault::new(LlmErrorClass::Script, text)
                .with_help("add a step for it, or one without `when` at the end"));
        };
        tokio::time::sleep(step.latency).await;
        let scene =
            Scene { messages, captures: step.when.matches.as_ref().and_then(|regex| regex.captures(last)) };
        step.play(&scene, request.calls_so_far()).map_err(|problem| {
            Fault::new(
                LlmErrorClass::Script,
                format!("the step at line {} cannot answer: {problem}", step.line),
            )
        })
    }
}

impl When {
    fn holds(&self, messages: &[Message], last: &str) -> bool {
        let role = messages.last().map_or("", Message::role);
        let turns = || messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        self.role.as_deref().is_none_or(|wanted| wanted == role)
            && self.contains.as_deref().is_none_or(|part| last.contains(part))
            && self.matches.as_ref().is_none_or(|regex| regex.is_match(last))
            && self.turn.is_none_or(|turn| turn == turns())
    }
}

impl Step {
    fn play(&self, scene: &Scene<'_>, calls_so_far: usize) -> Result<Decoded, String> {
        let content = self.say.as_ref().map(|say| say.text(scene)).transpose()?.unwrap_or_default();
        let mut tool_calls = Vec::with_capacity(self.calls.len());
        for (index, call) in self.calls.iter().enumerate() {
            let arguments = call.args.value(scene)?.to_string();
            tool_calls.push(ToolCall::new(format!("call_{}", calls_so_far + index), &call.tool, arguments));
        }
        Ok(Decoded {
            content,
            finish: if tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls },
            tool_calls,
            ..Decoded::default()
        })
    }
}
