//! Running the calls of one turn, all at once, and telling their results to the model.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Agent, Bounds, End, Ledger, offer::Ready};
use crate::{
    error::{Error, Phase, Result},
    tool::ToolResult,
};

/// What came of the calls of one turn, in order.
pub(super) struct Outcomes {
    /// What the model reads.
    pub texts: Vec<String>,
    /// Which of them failed, or could not be made.
    pub failed: Vec<bool>,
    /// Calls that were made.
    pub ran: usize,
    /// The end, if it came meanwhile.
    pub stopped: Option<End>,
}

impl Agent {
    /// Runs what can be run, all at once.
    pub(super) async fn run_calls(
        &self,
        calls: Vec<Result<Ready, String>>,
        bounds: &Bounds<'_>,
        ledger: &mut Ledger,
    ) -> Outcomes {
        let began = Instant::now();
        let running = calls.iter().map(|call| async {
            match call {
                Ok(ready) => Some(self.run_call(ready, bounds).await),
                Err(_) => None,
            }
        });
        let done = join_all(running).await;
        ledger.tool_phase(began.elapsed());
        let mut outcomes = Outcomes { texts: Vec::new(), failed: Vec::new(), ran: 0, stopped: None };
        for (index, (call, done)) in calls.into_iter().zip(done).enumerate() {
            let (text, failed) = match (call, done) {
                (Err(problem), _) => (problem, true),
                (Ok(ready), Some((outcome, took))) => {
                    let failed = !matches!(&outcome, Ok(Ok(result)) if !result.is_error);
                    ledger.called(&ready.entry.path(), took, failed);
                    outcomes.ran += 1;
                    let text = match outcome {
                        Ok(result) => text_of(&result),
                        Err(end) => {
                            outcomes.stopped = Some(end);
                            "error: the task ended before the tool did; outcome unknown".to_owned()
                        }
                    };
                    (self.fit(text, index, &ready, ledger), failed)
                }
                (Ok(_), None) => (String::new(), true),
            };
            outcomes.texts.push(text);
            outcomes.failed.push(failed);
        }
        outcomes
    }

    /// As much of a result as a model is shown. All of it is kept for the task's folder.
    fn fit(&self, text: String, index: usize, ready: &Ready, ledger: &mut Ledger) -> String {
        let max = self.config.max_result_chars;
        let Some((cut, _)) = text.char_indices().nth(max) else { return text };
        let all = text.chars().count();
        let file = format!("results/{}-{}.txt", ledger.turns(), index + 1);
        let shown =
            format!("{}\n[cut: the first {max} of {all} characters; all of it: {file}]", &text[..cut]);
        ledger.keep_whole(ready.entry.path(), file, text);
        shown
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
