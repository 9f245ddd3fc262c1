//! The fake model server of `toolcrib-fakes`, with fixed answers, that records its requests.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use toolcrib_fakes::models::{self, Arrival};

/// One answer.
#[derive(Clone)]
pub(super) struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    pub body: String,
}

impl Reply {
    pub(super) fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, headers: vec![], body: body.into() }
    }

    pub(super) fn json(status: u16, body: &Value) -> Self {
        Self::text(status, body.to_string())
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// A good answer.
    pub(super) fn say(text: &str) -> Self {
        let choice = json!({"message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
        Self::json(
            200,
            &json!({"model": "served", "choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}),
        )
    }

    /// An error as OpenAI writes it.
    pub(super) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::json(status, &json!({"error": {"message": message, "type": code, "code": code}}))
    }

    /// The same for the server; long enough on its way for others to arrive meanwhile.
    fn sent(&self) -> models::Reply {
        let reply = models::Reply::text(self.status, &*self.body).after(Duration::from_millis(2));
        self.headers.iter().fold(reply, |reply, (name, value)| reply.header(name, value))
    }
}

/// Ends when dropped.
pub(super) struct Server {
    pub url: String,
    pub seen: Arc<Seen>,
    server: models::Server,
}

#[derive(Default)]
pub(super) struct Seen {
    pub requests: Mutex<Vec<(HeaderMap, Value)>>,
    pub paths: Mutex<Vec<String>>,
    /// When each request arrived.
    pub arrived: Mutex<Vec<Instant>>,
}

impl Server {
    fn start(reply: impl Fn(usize) -> models::Reply + Send + Sync + 'static) -> Self {
        let seen = Arc::<Seen>::default();
        let noted = Arc::clone(&seen);
        let scene = move |arrival: &Arrival| {
            noted.note(arrival);
            reply(arrival.number)
        };
        let server = models::Server::start(scene).unwrap();
        Self { url: server.url().to_owned(), seen, server }
    }

    /// The n-th request gets the n-th reply; the last one is repeated.
    pub(super) fn with(replies: &[Reply]) -> Self {
        let replies = replies.to_vec();
        Self::start(move |number| replies[number.min(replies.len() - 1)].sent())
    }

    /// Answers no request before `together` requests have arrived.
    pub(super) fn together(together: usize) -> Self {
        let gate = Arc::new(Barrier::new(together));
        Self::start(move |_| {
            let gate = Arc::clone(&gate);
            Reply::say("ok").sent().once(async move { _ = gate.wait().await })
        })
    }

    /// Writes these bytes, one entry for each connection, and closes it.
    pub(super) fn raw(answers: &[&str]) -> Self {
        let answers: Vec<String> = answers.iter().map(ToString::to_string).collect();
        Self::start(move |number| models::Reply::raw(&*answers[number]))
    }

    pub(super) fn count(&self) -> usize {
        self.seen.requests.lock().unwrap().len()
    }

    /// Most requests in flight at once.
    pub(super) fn peak(&self) -> usize {
        self.server.seen().peak
    }
}

impl Seen {
    fn note(&self, arrival: &Arrival) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        let header = |(name, value): (&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
        };
        let headers = arrival.head.headers().map(header).collect();
        self.paths.lock().unwrap_or_else(PoisonError::into_inner).push(arrival.head.path().to_owned());
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push((headers, arrival.body.clone()));
    }
}

/// Waits for `condition`, for as long as a slow machine may need.
pub(super) async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
}
