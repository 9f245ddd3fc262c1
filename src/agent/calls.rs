//! Running the calls of one turn, all at once, and telling their results to the model.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Agent, Bounds, End, Ledger, offer::Ready};
use crate::{
    error::{Error, Phase, Result},
    tool::ToolResult,
};

impl Agent {
    /// Runs what can be run; gives a text for each call, in order, and the end if one came meanwhile.
    pub(super) async fn run_calls(
        &self,
        calls: Vec<Result<Ready, String>>,
        bounds: &Bounds<'_>,
        ledger: &mut Ledger,
    ) -> (Vec<String>, Option<End>) {
        let began = Instant::now();
        let running = calls.iter().map(|call| async {
            match call {
                Ok(ready) => Some(self.run_call(ready, bounds).await),
                Err(_) => None,
            }
        });
        let done = join_all(running).await;
        ledger.tool_phase(began.elapsed());
        let mut stopped = None;
        let mut texts = Vec::with_capacity(calls.len());
        for (call, done) in calls.into_iter().zip(done) {
            let text = match (call, done) {
                (Err(problem), _) => problem,
                (Ok(ready), Some((outcome, took))) => {
                    let error = !matches!(&outcome, Ok(Ok(result)) if !result.is_error);
                    ledger.called(&ready.entry.path(), took, error);
                    match outcome {
                        Ok(result) => text_of(&result),
                        Err(end) => {
                            stopped = Some(end);
                            "error: the task ended before the tool did; outcome unknown".to_owned()
                        }
                    }
                }
                (Ok(_), None) => String::new(),
            };
            texts.push(clip(text, self.config.max_result_chars));
        }
        (texts, stopped)
    }

    async fn run_call(
        &self,
        ready: &Ready,
        bounds: &Bounds<'_>,
    ) -> (Result<Result<ToolResult>, End>, Duration) {
        let began = Instant::now();
        // Boxed: sessions make large futures, and a turn may hold many.
        let call = Box::pin(self.toolbox.call_unchecked(&ready.entry, &ready.arguments, None));
        let outcome = bounds.guard(call).await;
        (outcome, began.elapsed())
    }
}

/// What the model reads. A failure of the machinery is told too: it may know another way.
fn text_of(result: &Result<ToolResult>) -> String {
    match result {
        Ok(result) => match result.text() {
            text if !text.is_empty() => text,
            _ if result.is_error => "error: the tool failed and did not say why".to_owned(),
            _ => "(no output)".to_owned(),
        },
        Err(error) => {
            let mut text = match error {
                Error::CallTimeout { .. } => format!("error: the tool was lost, outcome unknown: {error}"),
                // Whether it may have run is in its own words.
                Error::Server(lost) if lost.phase == Phase::Call => {
                    format!("error: the tool was lost: {error}")
                }
                Error::Server(_) | Error::ServerNotFound { .. } | Error::Cancelled => {
                    format!("error: the tool is not available: {error}")
                }
                _ => format!("error: {error}"),
            };
            for cause in error.causes() {
                text += ": ";
                text += &cause;
            }
            text
        }
    }
}

/// At most `max` characters of `text`, with a note where it was cut.
fn clip(text: String, max: usize) -> String {
    let Some((cut, _)) = text.char_indices().nth(max) else { return text };
    let all = text.chars().count();
    format!("{}\n[cut: the first {max} of {all} characters]", &text[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_cut_between_characters() {
        assert_eq!(clip("äöü".into(), 3), "äöü");
        assert_eq!(clip("äöü".into(), 2), "äö\n[cut: the first 2 of 3 characters]");
    }
}
