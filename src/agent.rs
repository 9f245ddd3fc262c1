//! An agent: asks a model, runs the tools that it calls, until it answers or a limit ends it.
//!
//! Nothing here fails by type: whatever happens is in the [`RunReport`]. Tools are borrowed through a
//! [`Toolbox`]; starting and stopping servers is nobody's business here.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{AgentConfig, ToolChoice},
    error::{Error, ErrorCode},
    llm::{ChatAnswer, ChatRequest, Finish, LlmClient, Message, ToolMode},
    manager::Toolbox,
    tap::Tap,
    task::{Input, RunReport, Task},
};

mod bounds;
mod calls;
mod ledger;
mod offer;
mod planned;
#[cfg(test)]
mod tests;

use bounds::{Bounds, End};
use ledger::Ledger;
use offer::Offer;

/// Turns in a row without any call that can be run, after which a model is given up.
const MAX_INVALID_TURNS: u32 = 3;

/// How model servers write a tool call that they failed to read.
const UNREAD_CALLS: [&str; 3] = ["<tool_call>", "<use_mcp_tool>", "[TOOL_CALLS]"];

/// Carries out tasks, any number at once. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    llm: Option<LlmClient>,
    toolbox: Toolbox,
    config: Arc<AgentConfig>,
}

impl Agent {
    /// An agent that asks `llm` and calls tools through `toolbox`.
    pub fn new(llm: LlmClient, toolbox: Toolbox, config: AgentConfig) -> Self {
        Self { llm: Some(llm), toolbox, config: Arc::new(config) }
    }

    /// An agent for tasks of planned calls only; a question ends as `errored`.
    pub fn without_model(toolbox: Toolbox, config: AgentConfig) -> Self {
        Self { llm: None, toolbox, config: Arc::new(config) }
    }

    /// The same agent on other tools: those of a [`Loan`](crate::Loan), say.
    #[must_use]
    pub fn with_toolbox(&self, toolbox: Toolbox) -> Self {
        Self { toolbox, ..self.clone() }
    }

    /// The same agent with somebody who listens to what it asks the model and what its tools answer.
    #[must_use]
    pub fn tapped(&self, tap: &Tap) -> Self {
        let llm = self.llm.as_ref().map(|llm| llm.tapped(tap));
        Self { llm, toolbox: self.toolbox.tapped(tap), ..self.clone() }
    }

    /// Carries out `task`. After `cancel` it ends at once, with what is known by then.
    ///
    /// The run's id, the number of the attempt and the time that servers took to start are the caller's to fill
    /// in.
    pub async fn run(&self, task: &Task, cancel: &CancellationToken) -> RunReport {
        let bounds = Bounds::new(&task.limits, &self.config, cancel);
        let mut ledger = Ledger::begin(task);
        let end = if task.calls.is_empty() {
            self.converse(task, &bounds, &mut ledger).await
        } else {
            self.run_planned(&task.calls, &bounds, &mut ledger).await
        };
        ledger.finish(task, end)
    }

    async fn converse(&self, task: &Task, bounds: &Bounds<'_>, ledger: &mut Ledger) -> End {
        let Some(llm) = &self.llm else {
            let error = Error::NoModel { found: Vec::new(), asked: Vec::new() };
            return End::of(&error);
        };
        ledger.model(llm);
        let mut offer = match Offer::new(self.toolbox.catalog(), task.tools.as_deref()) {
            Ok(offer) => offer,
            Err(error) => return End::of(&error),
        };
        ledger.servers(offer.servers());
        let messages = match self.opening(task) {
            Ok(messages) => messages,
            Err(problem) => return End::errored(ErrorCode::ConfigInvalid, problem),
        };
        let mut request = ChatRequest::new(messages).with_tools(offer.specs(), ToolMode::Auto);
        let end = self.turns(llm, task, &mut offer, &mut request, bounds, ledger).await;
        ledger.transcript(&request.messages);
        end.unwrap_or_else(|end| end)
    }

    /// Turn after turn. Either way out is an end; `Err` is the short way.
    async fn turns(
        &self,
        llm: &LlmClient,
        task: &Task,
        offer: &mut Offer,
        request: &mut ChatRequest,
        bounds: &Bounds<'_>,
        ledger: &mut Ledger,
    ) -> Result<End, End> {
        let mut invalid_turns = 0;
        loop {
            bounds.turn(ledger.turns())?;
            if offer.renew(self.toolbox.catalog(), task.tools.as_deref()) {
                request.tools = offer.specs();
            }
            request.tool_mode = self.mode(ledger.turns() + 1, bounds.turns, offer);
            let began = Instant::now();
            let asked = bounds.guard(llm.chat(request, bounds.deadline)).await;
            let answer = ledger.asked(asked, began.elapsed(), bounds)?;
            request.messages.push(answer.message());
            if answer.tool_calls.is_empty() {
                return final_answer(answer, offer);
            }
            // What these calls would bring nobody could read any more.
            bounds.turn(ledger.turns())?;
            bounds.tokens(ledger.tokens())?;
            let checked: Vec<_> =
                answer.tool_calls.iter().map(|call| offer.check(call, answer.finish)).collect();
            let valid = checked.iter().filter(|call| call.is_ok()).count();
            bounds.tool_calls(ledger.tool_calls(), valid)?;
            let last_problem = checked.iter().rev().find_map(|call| call.as_ref().err().cloned());
            let (texts, stopped) = self.run_calls(checked, bounds, ledger).await;
            for (call, content) in answer.tool_calls.iter().zip(texts) {
                request.messages.push(Message::Tool { call_id: call.id.clone(), content });
            }
            if let Some(end) = stopped {
                return Err(end);
            }
            invalid_turns = if valid == 0 { invalid_turns + 1 } else { 0 };
            if invalid_turns == MAX_INVALID_TURNS {
                let last = last_problem.unwrap_or_default();
                let message = format!(
                    "the model made no usable tool call in {invalid_turns} turns in a row; last: {last}"
                );
                return Err(End::errored(ErrorCode::LlmFailed, message));
            }
        }
    }

    fn mode(&self, turn: u32, turns: u32, offer: &Offer) -> ToolMode {
        match self.config.tool_choice {
            _ if offer.is_empty() => ToolMode::Auto,
            ToolChoice::Required if turn >= turns => ToolMode::None,
            ToolChoice::Required => ToolMode::Required,
            ToolChoice::RequiredFirst if turn == 1 => ToolMode::Required,
            ToolChoice::RequiredFirst | ToolChoice::Auto => ToolMode::Auto,
        }
    }

    /// System prompt and input. A conversation that brings its own system prompt keeps it, unless the task has
    /// one beside it.
    fn opening(&self, task: &Task) -> Result<Vec<Message>, String> {
        let mut messages = match &task.input {
            None => return Err("the task has neither `input` nor `calls`".into()),
            Some(Input::Text(text)) => vec![Message::User(text.clone())],
            Some(Input::Messages(values)) => Message::conversation(values)?,
        };
        let own = matches!(messages.first(), Some(Message::System(_)));
        let system = match &task.system {
            Some(system) => {
                if own {
                    messages.remove(0);
                }
                Some(system)
            }
            None => self.config.system.as_ref().filter(|_| !own),
        };
        if let Some(system) = system {
            messages.insert(0, Message::System(system.clone()));
        }
        Ok(messages)
    }
}

/// An answer without calls: is it one?
fn final_answer(answer: ChatAnswer, offer: &Offer) -> Result<End, End> {
    let unread = UNREAD_CALLS.iter().find(|mark| answer.content.contains(**mark));
    if let Some(mark) = unread.filter(|_| !offer.is_empty()) {
        let message = format!(
            "the model called a tool, but its server passed the call on as text (`{mark}`): it needs the tool-call \
             parser of this model"
        );
        return Err(End::errored(ErrorCode::LlmFailed, message));
    }
    if answer.content.trim().is_empty() {
        let why = match answer.finish {
            Finish::Length => "the model ran into its limit of tokens before it answered",
            Finish::ContentFilter => "the model's server held the answer back",
            _ => "the model's answer is empty",
        };
        return Err(End::errored(ErrorCode::LlmFailed, why));
    }
    Ok(End::Answered(answer.content))
}
