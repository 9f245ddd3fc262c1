//! Answers that are given again without asking: by the whole request, for a time, so many and no more.
//!
//! A cache belongs to one client, so what the configuration adds to every request (model, temperature, limits) is the
//! same for all its entries and no part of the key. Kept are whole answers only: no errors, none that was empty, cut
//! or in doubt, and nothing sampled unless that was asked for, since all agents would say the same.
//!
//! The store is `moka`: it knows time and size, and its waiters of one key share an error, where those of
//! `quick_cache` would ask again one after the other, which in an outage takes each of them its whole patience.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use moka::future::Cache as Store;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::{
    ChatAnswer, ChatRequest, ChatTimings, Finish, LlmError, LlmErrorClass, Message, fault::Fault,
    message::Thinking,
};
use crate::{
    config::{CacheConfig, LlmConfig},
    task::Usage,
    tool::canonical,
};

/// What a request asks for.
pub(super) type Key = [u8; 32];

/// The answers of one client.
pub(super) struct Cache {
    answers: Store<Key, Arc<ChatAnswer>>,
    single_flight: bool,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What those who wait for one request share when there is nothing to keep.
enum Unkept {
    Answer(ChatAnswer),
    Error(LlmError),
}

impl Cache {
    /// Nothing unless it is configured, and its answers would be the same again or may be.
    pub(super) fn of(config: &LlmConfig) -> Option<Self> {
        let CacheConfig { size, ttl, sampled, single_flight } = config.cache?;
        (sampled || config.is_repeatable()).then(|| Self {
            answers: Store::builder().max_capacity(size.get() as u64).time_to_live(ttl).build(),
            single_flight,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        })
    }

    /// Requests that were answered from here, and those that were not.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Relaxed), self.misses.load(Relaxed))
    }

    /// The answer that is known, or what `ask` brings. `late` tells that the deadline passed in waiting for another
    /// caller's request.
    pub(super) async fn answer<F: Future<Output = Result<ChatAnswer, LlmError>>>(
        &self,
        request: &ChatRequest,
        deadline: Option<Instant>,
        ask: impl Fn() -> F,
        late: impl Fn(Fault) -> LlmError,
    ) -> Result<ChatAnswer, LlmError> {
        if !self.single_flight {
            if let Some(known) = self.known(request).await {
                return Ok(known);
            }
            let answer = ask().await?;
            self.keep(request, &answer).await;
            return Ok(answer);
        }
        let key = key(request);
        loop {
            let asked = AtomicBool::new(false);
            let once = async {
                asked.store(true, Relaxed);
                self.misses.fetch_add(1, Relaxed);
                match ask().await {
                    Ok(answer) if is_whole(&answer) => Ok(Arc::new(answer)),
                    Ok(answer) => Err(Unkept::Answer(answer)),
                    Err(error) => Err(Unkept::Error(error)),
                }
            };
            let shared = self.answers.try_get_with(key, once);
            let shared = match deadline {
                Some(deadline) => tokio::time::timeout_at(deadline, shared).await,
                None => Ok(shared.await),
            };
            let Ok(shared) = shared else {
                let told = "no answer to the same request of another caller before the caller's deadline";
                return Err(late(Fault::new(LlmErrorClass::Deadline, told)));
            };
            let mine = asked.load(Relaxed);
            return match shared.as_ref().map_err(Arc::as_ref) {
                Ok(answer) if mine => Ok(ChatAnswer::clone(answer)),
                Ok(answer) => Ok(self.hit(answer)),
                // Another caller had no more time: that says nothing of this one.
                Err(Unkept::Error(error)) if !mine && error.class == LlmErrorClass::Deadline => continue,
                Err(Unkept::Answer(answer)) if mine => Ok(answer.clone()),
                Err(Unkept::Answer(answer)) => Ok(self.hit(answer)),
                Err(Unkept::Error(error)) => Err(error.clone()),
            };
        }
    }

    /// The answer to `request`, if it is kept.
    pub(super) async fn known(&self, request: &ChatRequest) -> Option<ChatAnswer> {
        match self.answers.get(&key(request)).await {
            Some(known) => Some(self.hit(&known)),
            None => {
                self.misses.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// What `request` asks for, where those who ask the same at the same time share an answer.
    pub(super) fn shared(&self, request: &ChatRequest) -> Option<Key> {
        self.single_flight.then(|| key(request))
    }

    /// Keeps an answer, if it is a whole one.
    pub(super) async fn keep(&self, request: &ChatRequest, answer: &ChatAnswer) {
        if is_whole(answer) {
            self.answers.insert(key(request), Arc::new(answer.clone())).await;
        }
    }

    /// Keeps the answer to `request` no longer.
    pub(super) async fn forget(&self, request: &ChatRequest) {
        self.answers.invalidate(&key(request)).await;
    }

    /// The same answer; this time it took no request and no tokens.
    pub(super) fn hit(&self, known: &ChatAnswer) -> ChatAnswer {
        self.hits.fetch_add(1, Relaxed);
        ChatAnswer {
            cached: true,
            usage: Usage::default(),
            attempts: Vec::new(),
            timings: ChatTimings::default(),
            ..known.clone()
        }
    }
}

impl LlmConfig {
    /// Whether the same request gets the same answer.
    pub(super) fn is_repeatable(&self) -> bool {
        self.temperature == Some(0.0) || self.seed.is_some()
    }
}

fn is_whole(answer: &ChatAnswer) -> bool {
    let doubted = answer.attempts.last().is_some_and(|attempt| attempt.class.is_some());
    let empty = answer.content.trim().is_empty() && answer.tool_calls.is_empty();
    matches!(answer.finish, Finish::Stop | Finish::ToolCalls) && !doubted && !empty
}

fn thought(message: &Message) -> Option<&Thinking> {
    match message {
        Message::Assistant { thinking, .. } => Some(thinking),
        _ => None,
    }
}

/// The whole request in one form, whatever the order of the keys in its schemas.
fn key(request: &ChatRequest) -> Key {
    // Taken apart in full: a field that is added later cannot be forgotten here.
    let ChatRequest { messages, tools, tool_mode, max_tokens, prefill, session: _ } = request;
    let tools = tools.iter().map(|tool| {
        json!([tool.name, tool.description, Value::Object((*tool.parameters).clone()), tool.strict])
    });
    let whole = json!([
        messages.iter().map(Message::to_json).collect::<Vec<_>>(),
        tools.collect::<Vec<_>>(),
        tool_mode.name(),
        max_tokens,
        prefill,
        messages.iter().filter_map(thought).collect::<Vec<_>>(),
    ]);
    Sha256::digest(canonical(whole)).into()
}
