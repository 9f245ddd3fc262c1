//! Trace spans of model requests: one for each request, with all its attempts in it.

use tracing::Instrument as _;

use crate::llm::{
    Attempt, LlmClient, LlmError,
    client::ClientState,
    pipeline::attempt::{FailedAttempt, RetriedRequest},
    transport::Endpoint,
    wire::Decoded,
};
use crate::{
    config::LlmApi,
    retry::{AttemptContext, Failure, Retry},
    trace::{self, Action},
};

impl LlmClient {
    /// A request to this model.
    pub(in crate::llm) fn request_action(&self) -> Action {
        let endpoint = self.inner.backend.endpoint();
        let (operation, provider) = match endpoint.map(Endpoint::api) {
            Some(LlmApi::Messages) => ("chat", "anthropic"),
            Some(LlmApi::Completions) => ("text_completion", "openai"),
            Some(LlmApi::Chat | LlmApi::Responses) => ("chat", "openai"),
            None => ("chat", "toolcrib.script"),
        };
        let url = endpoint.map(Endpoint::shown_url);
        trace::model_request(operation, provider, self.model_label(), self.inner.name.as_deref(), url)
    }
}

impl ClientState {
    /// One attempt, in its span.
    pub(in crate::llm) async fn traced_attempt(
        &self,
        call: &RetriedRequest<'_>,
        attempt: AttemptContext,
    ) -> Result<(Decoded, Attempt), Failure<Box<FailedAttempt>>> {
        let action = trace::attempt(attempt.number);
        let outcome = self.attempt(call, attempt).instrument(action.span()).await;
        match &outcome {
            Ok((_, record)) => {
                action.record("http.response.status_code", record.status);
                action.end(None);
            }
            Err(failure) => {
                let FailedAttempt(_, fault) = &*failure.error;
                action.record("http.response.status_code", fault.status);
                action.record("toolcrib.retry", !matches!(failure.retry, Retry::Never | Retry::Stop(_)));
                action.end(Some(&fault.class.name()));
            }
        }
        outcome
    }
}

pub(in crate::llm) fn request_ended(action: Action, outcome: &Result<(Decoded, Vec<Attempt>), LlmError>) {
    if !action.is_on() {
        return;
    }
    match outcome {
        Ok((answer, attempts)) => {
            action.record("gen_ai.response.model", answer.model.as_deref());
            action.record("gen_ai.usage.input_tokens", answer.usage.input);
            action.record("gen_ai.usage.output_tokens", answer.usage.output);
            action.record("toolcrib.attempts", attempts.len());
            action.end(None);
        }
        Err(error) => {
            action.record("toolcrib.attempts", error.attempts.len());
            action.end(Some(&error.class.name()));
        }
    }
}
