//! Races several members: the first usable answer counts, and the other requests are cancelled.

use std::time::Duration;

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::Instant;

use super::{Relaxed, Router};
use crate::llm::{
    Attempt, ChatAnswer, ChatRequest, Finish, LlmError, LlmErrorClass as Class, client::RequestContext,
};

impl Router {
    /// Asks the first member, and another one after every `delay` without an answer; at once after a failure or an
    /// answer of no use, which counts only if there is no better one. Listeners get the winner's answer
    /// when it is whole. Cancel safe: dropping it cancels all that it asked for.
    pub(super) async fn race(
        &self,
        delay: Duration,
        request: &ChatRequest,
        context: RequestContext<'_>,
    ) -> Result<ChatAnswer, LlmError> {
        let began = Instant::now();
        let logs: Vec<_> = self.members.iter().map(|_| context.observer.log()).collect();
        let observers: Vec<_> = logs.iter().map(|log| context.observer.racer(log)).collect();
        let mut running = FuturesUnordered::new();
        let mut started: Vec<Instant> = Vec::new();
        let (mut failed, mut useless) = (Vec::new(), Vec::new());
        let mut next = Some(began);
        let won = loop {
            let now = Instant::now();
            let number = started.len();
            if number < self.members.len() && (running.is_empty() || next.is_some_and(|next| next <= now)) {
                let context = RequestContext { observer: &observers[number], ..context };
                // A strategy may be a member of a strategy.
                let member = &self.members[number];
                running.push(Box::pin(async move { (number, member.with_shutdown(request, context).await) }));
                started.push(now);
                // If the time overflows, no further member is started by time.
                next = now.checked_add(delay).filter(|_| started.len() < self.members.len());
                continue;
            }
            tokio::select! {
                ended = running.next() => match ended {
                    Some((number, Ok(answer))) if is_usable(&answer) => break Some((number, answer)),
                    Some((number, Ok(answer))) => useless.push((number, answer)),
                    Some((number, Err(error))) => {
                        tracing::debug!(
                            client = self.members[number].name(), class = error.class.name(), "out of the race"
                        );
                        failed.push((number, error));
                    }
                    None => break None,
                },
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => continue,
            }
            next = next.map(|_| Instant::now());
        };
        drop(running);
        let won = won.or_else(|| (!useless.is_empty()).then(|| useless.remove(0)));
        // In the order of the members.
        failed.sort_by_key(|(number, _)| *number);
        let (mut attempts, mut cancelled) = (Vec::new(), 0);
        for (number, log) in logs.iter().enumerate().take(started.len()) {
            if won.as_ref().is_some_and(|(winner, _)| *winner == number) {
                continue;
            }
            let error = failed.iter_mut().find(|(loser, _)| *loser == number);
            let answer = useless.iter_mut().find(|(loser, _)| *loser == number);
            match (error, answer) {
                (Some((_, error)), _) => attempts.append(&mut error.attempts),
                (None, Some((_, answer))) => attempts.append(&mut answer.attempts),
                (None, None) => {
                    let logged = log.take();
                    // Cancelled attempts of a nested race were counted by that race.
                    let lost = |attempt: &&Attempt| attempt.class == Some(Class::Cancelled);
                    cancelled += logged.iter().filter(lost).count() as u64;
                    attempts.extend(logged);
                }
            }
        }
        self.cancelled.fetch_add(cancelled, Relaxed);
        let Some((number, mut answer)) = won else { return Err(self.race_error(failed, attempts)) };
        context.observer.known(&answer);
        // The members ran in parallel, so only the time before the winner's start is added.
        answer.timings.model += started[number].duration_since(began);
        // Tokens of unusable answers were spent for this answer too.
        for (_, other) in &useless {
            // At another price, what both cost together is not known.
            answer.price =
                answer.price.filter(|price| other.usage.total() == 0 || other.price == Some(*price));
            answer.usage += other.usage;
        }
        attempts.append(&mut answer.attempts);
        answer.attempts = attempts;
        Ok(answer)
    }

    /// The error of a race without an answer: that of a member, with the `attempts` of all and the other errors.
    fn race_error(&self, mut failed: Vec<(usize, LlmError)>, attempts: Vec<Attempt>) -> LlmError {
        if failed.is_empty() {
            return self.without_members();
        }
        let waited = failed.iter().map(|(_, error)| error.waited).max().unwrap_or_default();
        let late = failed.iter().position(|(_, error)| error.class == Class::Deadline);
        let (_, mut error) = failed.remove(late.unwrap_or(failed.len() - 1));
        let mut others = Vec::new();
        for (number, mut other) in failed {
            others.append(&mut other.others);
            others.push(format!("{}: {}", self.members[number].name(), other.message));
        }
        error.others.splice(..0, others);
        (error.attempts, error.waited) = (attempts, waited);
        error
    }
}

/// Whether an answer ends the race: not one that is empty, held back, or cut and kept for want of a better one.
fn is_usable(answer: &ChatAnswer) -> bool {
    let doubted = answer.attempts.last().is_some_and(|attempt| attempt.class.is_some());
    let empty = answer.content.trim().is_empty() && answer.tool_calls.is_empty();
    !doubted && !empty && answer.finish != Finish::ContentFilter
}
