//! Detects complete answers that are still unusable: truncated at the token limit, or repeating themselves. Such a
//! request is sent again at once; the last unusable answer is kept in case no better one comes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::llm::{ChatRequest, Finish, LlmErrorClass, wire::Decoded};
use crate::task::Usage;

/// Length of the passage that is looked for, and how often it may occur: the measure of the MiroThinker client.
const PASSAGE: usize = 50;
const OFTEN: usize = 5;

/// The doubtful answers of one request.
#[derive(Default)]
pub(in crate::llm) struct DoubtfulAnswers(Mutex<BestAnswer>);

#[derive(Default)]
struct BestAnswer {
    count: u32,
    max_tokens: Option<u32>,
    answer: Option<Decoded>,
    usage: Usage,
}

impl DoubtfulAnswers {
    /// The problem of `answer`, if asking again could mend it. `max_tokens` is the limit of the first request.
    pub(in crate::llm) fn problem_of(
        answer: &Decoded,
        max_tokens: Option<u32>,
        repeatable: bool,
    ) -> Option<LlmErrorClass> {
        if answer.tool_calls.is_empty() && !repeatable && repeats_itself(&answer.content) {
            return Some(LlmErrorClass::Looping);
        }
        // Without a limit of our own it was the server's, or the context is full: more cannot be asked for.
        let cut = answer.finish == Finish::Length && max_tokens.is_some();
        cut.then_some(LlmErrorClass::Truncated)
    }

    /// Keeps a doubtful answer. Gives it back when there were `most` of them before: then it has to do.
    pub(in crate::llm) fn keep(
        &self,
        answer: Decoded,
        class: LlmErrorClass,
        asked: Option<u32>,
        most: u32,
    ) -> Option<Decoded> {
        let mut inner = self.lock();
        if inner.count >= most {
            return Some(answer);
        }
        inner.count += 1;
        inner.usage += answer.usage;
        if class == LlmErrorClass::Truncated {
            inner.max_tokens = inner.max_tokens.or(asked).map(|tokens| tokens.saturating_mul(2));
        }
        inner.answer = Some(answer);
        None
    }

    /// The limit of tokens for the next attempt, where it is another one than that of the request.
    pub(in crate::llm) fn raised(&self, request: &ChatRequest) -> Option<ChatRequest> {
        let max_tokens = self.lock().max_tokens?;
        Some(ChatRequest { max_tokens: Some(max_tokens), ..request.clone() })
    }

    /// `answer` with what the kept ones took added to its tokens.
    pub(in crate::llm) fn total(&self, mut answer: Decoded) -> Decoded {
        answer.usage += self.lock().usage;
        answer
    }

    /// The last doubtful answer, when no better one came.
    pub(in crate::llm) fn last(&self) -> Option<Decoded> {
        let mut inner = self.lock();
        let usage = inner.usage;
        inner.answer.take().map(|answer| Decoded { usage, ..answer })
    }

    fn lock(&self) -> MutexGuard<'_, BestAnswer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the end of `text` occurred again and again before.
fn repeats_itself(text: &str) -> bool {
    let text = text.trim_end();
    let Some((start, _)) = text.char_indices().rev().nth(PASSAGE - 1) else { return false };
    let passage = &text[start..];
    // Rules and blanks of a table are no words.
    passage.chars().any(char::is_alphanumeric) && text.matches(passage).count() > OFTEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_is_found_and_tables_are_not() {
        let passage = "and then the engine said the same thing once again; ";
        assert!(repeats_itself(&format!("It began well. {}", passage.repeat(9))));
        assert!(repeats_itself(&"ä".repeat(400)));
        assert!(!repeats_itself(&passage.repeat(4)));
        assert!(!repeats_itself(&"-".repeat(900)));
        assert!(!repeats_itself("short"));
    }
}
