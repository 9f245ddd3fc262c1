//! The public request methods of [`LlmClient`]: they report to the journal and record to, or replay from, a cassette.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Attempt, ChatAnswer, ChatRequest, ChatTimings, LlmClient, LlmError, LlmErrorClass, Message,
    client::RequestContext,
    fault::Fault,
    stream::{Aside, Delta, Observer},
};
use crate::{
    cassette::Kind,
    error::Result,
    tap::{Answerer, Tap},
};

/// How a request ended, in the form of the recording.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Recorded {
    Answer(ChatAnswer),
    Failed(LlmError),
}

impl LlmClient {
    /// A model that is never asked: every answer comes from the cassette of a [`Tap`].
    ///
    /// # Errors
    /// None that can be met.
    pub fn replayed(label: &str, scripted: bool) -> Result<Self> {
        let client = Self::script_text("replay", "[[steps]]\nsay = \"\"\n")?;
        Ok(Self { replayed: Some((label.into(), scripted)), ..client })
    }

    /// The same model with a listener.
    #[must_use]
    pub fn tapped(&self, tap: &Tap) -> Self {
        Self { tap: Some(tap.clone()), ..self.clone() }
    }

    /// Asks the model, repeating what may be repeated, unless the answer is kept
    /// ([`LlmConfig::cache`](crate::LlmConfig::cache)). Dropping the future ends the request on the wire too.
    ///
    /// `deadline` is the caller's own: nothing is waited for beyond it, and the error then says so.
    pub async fn chat(
        &self,
        request: &ChatRequest,
        deadline: Option<Instant>,
    ) -> Result<ChatAnswer, LlmError> {
        self.chat_told(request, deadline, None).await
    }

    /// As [`LlmClient::chat`], and tells of every piece of the answer as soon as it is there: of few large ones
    /// where the configuration does not say `stream`, or where a recorded answer is given again.
    pub async fn chat_observed(
        &self,
        request: &ChatRequest,
        deadline: Option<Instant>,
        tell: &(dyn Fn(Delta<'_>) + Send + Sync),
    ) -> Result<ChatAnswer, LlmError> {
        self.chat_told(request, deadline, Some(tell)).await
    }

    async fn chat_told(
        &self,
        request: &ChatRequest,
        deadline: Option<Instant>,
        tell: Option<&(dyn Fn(Delta<'_>) + Send + Sync)>,
    ) -> Result<ChatAnswer, LlmError> {
        let Some(tap) = &self.tap else {
            let observer = &Observer::new(tell, None);
            return self.chat_unrecorded(request, RequestContext { deadline, patient: true, observer }).await;
        };
        let bytes = request.messages.iter().map(|message| message.text().len()).sum();
        let span = tap.model_started(request.messages.len(), bytes);
        let aside = |seen: Aside<'_>| match seen {
            Aside::Piece(delta) => span.piece(delta),
            Aside::Failed(attempt) => span.failed(attempt),
            Aside::Held(trouble) => span.held(trouble),
        };
        let observer = &Observer::new(tell, Some(&aside));
        let context = RequestContext { deadline, patient: true, observer };
        let answerer = tap.ask(Kind::Model, || self.question(tap, request)).await;
        let outcome = match answerer {
            Ok(Answerer::World(pending)) => {
                let outcome = self.chat_unrecorded(request, context).await;
                if let Some(pending) = pending {
                    pending.answered(recorded(&outcome));
                }
                outcome
            }
            Ok(Answerer::Tape(answer)) => match serde_json::from_value(answer) {
                Ok(Recorded::Answer(answer)) => {
                    observer.known(&answer);
                    Ok(with_zero_times(answer))
                }
                Ok(Recorded::Failed(mut error)) => {
                    zero_times(&mut error.attempts);
                    Err(error)
                }
                Err(error) => Err(self.unreadable(format!("the recorded answer cannot be read: {error}"))),
            },
            Err(error) => Err(self.unreadable(error.to_string())),
        };
        span.ended(&outcome);
        outcome
    }

    /// What the model is asked, as it is recorded. Messages that were there in the last request of this agent are
    /// counted and not repeated: a conversation is written once, not once a turn.
    fn question(&self, tap: &Tap, request: &ChatRequest) -> Value {
        let messages: Vec<Value> = request.messages.iter().map(Message::to_json).collect();
        let (same, new) = tap.new_messages(&messages);
        let tools = || {
            let tools = request.tools.iter().map(|tool| {
                json!({"name": tool.name, "description": tool.description, "parameters": *tool.parameters,
                    "strict": tool.strict})
            });
            tools.collect()
        };
        let mut question = json!({
            "model": self.model_label(),
            "messages_before": same,
            "messages": new,
            "tools": request.tools.len(),
            "tools_digest": tap.digest_of(&request.tools, tools),
            "tool_mode": request.tool_mode.name(),
            "max_tokens": request.max_tokens,
        });
        if let Some(prefill) = &request.prefill {
            question["prefill"] = (**prefill).into();
        }
        question
    }

    fn unreadable(&self, message: String) -> LlmError {
        LlmError::of(Fault::new(LlmErrorClass::Script, message), self.model_label(), None, &self.inner.table)
    }
}

fn recorded(outcome: &Result<ChatAnswer, LlmError>) -> Value {
    let recorded = match outcome {
        Ok(answer) => Recorded::Answer(answer.clone()),
        Err(error) => Recorded::Failed(error.clone()),
    };
    serde_json::to_value(recorded).unwrap_or_default()
}

/// A replay takes no time: recorded durations are reported as zero.
fn with_zero_times(mut answer: ChatAnswer) -> ChatAnswer {
    zero_times(&mut answer.attempts);
    answer.timings = ChatTimings::default();
    answer
}

fn zero_times(attempts: &mut [Attempt]) {
    for attempt in attempts {
        (attempt.waited, attempt.queued, attempt.took) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    }
}
