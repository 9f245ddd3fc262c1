//! One task's conversation with its model, turn after turn.

use tokio::time::Instant;

use super::{
    Agent, AgentEvent, Bounds, End, Ledger,
    history::History,
    offer::{Offer, Ready},
    protocol::{self, Said},
};
use crate::{
    config::{ToolChoice, ToolProtocol},
    error::ErrorCode,
    llm::{ChatRequest, Finish, LlmClient, ToolMode},
    task::Task,
};

/// Turns in a row without any call that can be run, after which a model is given up.
const MAX_INVALID_TURNS: u32 = 3;

/// What a conversation needs.
pub(super) struct Talk<'a> {
    pub agent: &'a Agent,
    pub llm: &'a LlmClient,
    pub task: &'a Task,
    pub bounds: &'a Bounds<'a>,
    pub ledger: &'a mut Ledger,
    pub offer: Offer,
    pub history: History,
    /// The system prompt without what the protocol adds to it.
    pub system: Option<String>,
    /// Turns in a row without a call that could be run.
    pub invalid_turns: u32,
}

impl Talk<'_> {
    /// Turn after turn. Either way out is an end; `Err` is the short way.
    pub(super) async fn run(&mut self) -> Result<End, End> {
        self.tell_tools();
        loop {
            self.bounds.turn(self.ledger.turns())?;
            let patterns = self.task.tools.as_deref();
            if self.offer.renew(self.agent.toolbox.catalog(), patterns) {
                self.tell_tools();
            }
            let said = self.ask().await?;
            if said.calls.is_empty() {
                self.history.push(said.message(self.protocol(), &[]));
                return final_answer(said);
            }
            self.act(&said).await?;
        }
    }

    fn protocol(&self) -> ToolProtocol {
        self.agent.config.tool_protocol
    }

    /// Puts the tools into the system prompt, where they belong there.
    fn tell_tools(&mut self) {
        self.history.set_system(protocol::system(self.protocol(), &self.offer, self.system.clone()));
    }

    async fn ask(&mut self) -> Result<Said, End> {
        let mut request = ChatRequest::new(self.history.messages().to_vec());
        if self.protocol() == ToolProtocol::Native {
            let mode =
                mode(self.agent.config.tool_choice, self.ledger.turns() + 1, self.bounds.turns, &self.offer);
            request = request.with_tools(self.offer.specs(), mode);
        }
        let began = Instant::now();
        let asked = self.bounds.guard(self.llm.chat(&request, self.bounds.deadline)).await;
        let answer = self.ledger.asked(asked, began.elapsed(), self.bounds)?;
        let calls = self.ledger.calls_asked();
        Ok(protocol::read(self.protocol(), answer, !self.offer.is_empty(), calls))
    }

    /// Runs the calls of an answer and keeps both.
    async fn act(&mut self, said: &Said) -> Result<(), End> {
        let config = &self.agent.config;
        let checked: Vec<_> = said.calls.iter().map(|call| self.offer.check(call, config)).collect();
        self.ledger.calls_read(checked.len());
        self.history.push(said.message(self.protocol(), &checked));
        // What these calls would bring nobody could read any more.
        self.bounds.turn(self.ledger.turns())?;
        self.bounds.tokens(self.ledger.tokens())?;
        let valid = checked.iter().filter(|call| call.is_ok()).count();
        self.bounds.tool_calls(self.ledger.tool_calls(), valid)?;
        self.log_corrections(said, &checked);
        let last_problem = checked.iter().rev().find_map(|call| call.as_ref().err().cloned());
        let (texts, stopped) = self.agent.run_calls(checked, self.bounds, self.ledger).await;
        self.history.push_results(said.results(self.protocol(), texts));
        if let Some(end) = stopped {
            return Err(end);
        }
        self.invalid_turns = if valid == 0 { self.invalid_turns + 1 } else { 0 };
        if self.invalid_turns == MAX_INVALID_TURNS {
            let last = last_problem.unwrap_or_default();
            let message = format!(
                "the model made no usable tool call in {MAX_INVALID_TURNS} turns in a row; last: {last}"
            );
            return Err(End::errored(ErrorCode::LlmFailed, message));
        }
        Ok(())
    }

    fn log_corrections(&mut self, said: &Said, checked: &[Result<Ready, String>]) {
        for (call, ready) in said.calls.iter().zip(checked) {
            let Ok(ready) = ready else { continue };
            if !ready.corrections.is_empty() {
                let event = AgentEvent::Corrected {
                    turn: self.ledger.turns(),
                    call: call.id.clone(),
                    tool: ready.entry.path(),
                    raw: call.raw(),
                    corrections: ready.corrections.clone(),
                };
                self.ledger.happened(&event);
            }
        }
    }
}

/// Whether tools may be called in a turn.
pub(super) fn mode(choice: ToolChoice, turn: u32, turns: u32, offer: &Offer) -> ToolMode {
    match choice {
        _ if offer.is_empty() => ToolMode::Auto,
        ToolChoice::Required if turn >= turns => ToolMode::None,
        ToolChoice::Required => ToolMode::Required,
        ToolChoice::RequiredFirst if turn == 1 => ToolMode::Required,
        ToolChoice::RequiredFirst | ToolChoice::Auto => ToolMode::Auto,
    }
}

/// An answer without calls: is it one?
fn final_answer(said: Said) -> Result<End, End> {
    if let Some(mark) = said.unread {
        let message = format!(
            "the model called a tool, but its server passed the call on as text (`{mark}`): it needs the tool-call \
             parser of this model"
        );
        return Err(End::errored(ErrorCode::LlmFailed, message));
    }
    if said.content.trim().is_empty() {
        let why = match said.finish {
            Finish::Length => "the model ran into its limit of tokens before it answered",
            Finish::ContentFilter => "the model's server held the answer back",
            _ => "the model's answer is empty",
        };
        return Err(End::errored(ErrorCode::LlmFailed, why));
    }
    Ok(End::Answered(said.content))
}
