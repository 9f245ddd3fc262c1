//! Tests prompts that share a request, with a server that records the requests.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use serde_json::{Value, json};
use tokio::{sync::Barrier, time::timeout};
use toolcrib_fakes::models::{Arrival, Reply, Server};

use super::{
    super::{ChatOptions, ChatRequest, LlmClient, LlmError, LlmErrorClass, Message},
    client, config,
    server::until,
    within,
};
use crate::cancel::CancellationToken;
use crate::config::{BatchConfig, CacheConfig, LlmApi, LlmConfig};

/// Ends when dropped.
struct Completions {
    server: Server,
    /// The prompts of each request.
    requests: Arc<Mutex<Vec<Vec<String>>>>,
}

/// The number that a choice has in place of its own.
type Numbers = fn(u64) -> Option<u64>;

impl Completions {
    /// So many requests are answered together.
    fn start(together: Option<usize>) -> Self {
        Self::serve(together, None)
    }

    /// `numbers`: what numbers the choices of a shared request have; their own by default.
    fn serve(together: Option<usize>, numbers: Option<Numbers>) -> Self {
        let requests = Arc::<Mutex<Vec<Vec<String>>>>::default();
        let (gate, noted) =
            (together.map(|together| Arc::new(Barrier::new(together))), Arc::clone(&requests));
        let scene = move |arrival: &Arrival| {
            let prompts = prompts_of(&arrival.body);
            let reply = complete(&prompts, numbers).after(Duration::from_millis(2));
            let is_slow = prompts.iter().any(|prompt| prompt.contains("slow"));
            noted.lock().unwrap().push(prompts);
            let gate = gate.clone();
            reply.once(async move {
                if let Some(gate) = gate {
                    gate.wait().await;
                }
                if is_slow {
                    std::future::pending::<()>().await;
                }
            })
        };
        Self { server: Server::start(scene).unwrap(), requests }
    }

    fn sizes(&self) -> Vec<usize> {
        self.requests.lock().unwrap().iter().map(Vec::len).collect()
    }

    fn peak(&self) -> usize {
        self.server.seen().peak
    }

    fn client(&self, batch: BatchConfig) -> LlmClient {
        client(&self.config(batch))
    }

    fn config(&self, batch: BatchConfig) -> LlmConfig {
        let mut config = config(self.server.url());
        (config.api, config.batch) = (LlmApi::Completions, batch);
        config
    }
}

fn prompts_of(body: &Value) -> Vec<String> {
    let text = |prompt: &Value| prompt.as_str().unwrap().to_owned();
    let prompts = match &body["prompt"] {
        Value::Array(prompts) => prompts.iter().map(text).collect(),
        prompt => vec![text(prompt)],
    };
    assert!(body.get("stream").is_none() || prompts.len() == 1, "{body}");
    prompts
}

/// Answers each prompt with itself in capitals, the last one first; refuses all for a bad one, and leaves out a lost one.
fn complete(prompts: &[String], numbers: Option<Numbers>) -> Reply {
    if prompts.iter().any(|prompt| prompt.contains("bad")) {
        return Reply::json(400, &json!({"error": {"message": "there is a bad one"}}));
    }
    let all = prompts.len();
    let choice = |(index, prompt): (usize, &String)| json!({"index": index, "text": prompt.to_uppercase(), "finish_reason": "stop"});
    let kept = prompts.iter().enumerate().filter(|(_, prompt)| all == 1 || !prompt.contains("lost"));
    let mut choices: Vec<Value> = kept.map(choice).rev().collect();
    if let (true, Some(numbers)) = (all > 1, numbers) {
        for choice in &mut choices {
            let own = choice["index"].as_u64().unwrap();
            choice["index"] = numbers(own).map_or(Value::Null, Value::from);
        }
    }
    let usage = json!({"prompt_tokens": 2 * all, "completion_tokens": all});
    Reply::json(200, &json!({"model": "served", "choices": choices, "usage": usage}))
}

fn ask(prompt: &str) -> ChatRequest {
    ChatRequest::new(vec![Message::User(prompt.into())])
}

fn prompts(count: usize) -> Vec<ChatRequest> {
    (0..count).map(|number| ask(&format!("prompt {number}"))).collect()
}

fn sharing(size: usize, interval: Duration) -> BatchConfig {
    BatchConfig { size: NonZeroUsize::new(size).unwrap(), interval, ..BatchConfig::default() }
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn twenty_prompts_by_ten_are_two_parallel_requests() {
    // It answers neither before both are there.
    let server = Completions::start(Some(2));
    let client = server.client(sharing(10, LONG));
    let answers = client.generate_batch(&prompts(20), &ChatOptions::new()).await;
    assert_eq!((server.sizes(), server.peak()), (vec![10, 10], 2));
    for (number, answer) in answers.iter().enumerate() {
        let answer = answer.as_ref().unwrap();
        assert_eq!((answer.content.clone(), answer.model.as_str()), (format!("PROMPT {number}"), "served"));
    }
    let attempts: usize = answers.iter().map(|answer| answer.as_ref().unwrap().attempts.len()).sum();
    let tokens: u64 = answers.iter().map(|answer| answer.as_ref().unwrap().usage.total()).sum();
    let stats = client.stats();
    assert_eq!((attempts, tokens), (2, 60), "sums are those of the wire");
    assert_eq!((stats.request_count, stats.attempts, stats.batch_count), (20, 2, 2));
    assert_eq!(stats.answered, 20);
}

#[tokio::test]
async fn concurrent_callers_share_requests() {
    let server = Completions::start(Some(2));
    let client = server.client(sharing(10, LONG));
    let asked = prompts(20);
    let answers = join_all(asked.iter().map(|request| client.chat(request))).await;
    assert_eq!((server.sizes(), client.stats().batch_count), (vec![10, 10], 2));
    assert!(
        answers
            .iter()
            .enumerate()
            .all(|(n, answer)| { answer.as_ref().unwrap().content == format!("PROMPT {n}") })
    );
    // A request without others is sent after the interval.
    let server = Completions::start(None);
    let client = server.client(sharing(10, Duration::from_millis(5)));
    assert_eq!(client.chat(&ask("alone")).await.unwrap().content, "ALONE");
    assert_eq!((server.sizes(), client.stats().batch_count), (vec![1], 0));
}

#[tokio::test]
async fn requests_for_several_answers_are_not_batched() {
    for (key, count, sizes) in [("n", 2, vec![1, 1]), ("best_of", 2, vec![1, 1]), ("n", 1, vec![2])] {
        let server = Completions::start(None);
        let mut config = server.config(sharing(2, LONG));
        config.extra_body.insert(key.into(), count.into());
        let client = client(&config);
        let answers = client.generate_batch(&[ask("a"), ask("b")], &ChatOptions::new()).await;
        let texts: Vec<_> = answers.iter().map(|a| a.as_ref().unwrap().content.as_str()).collect();
        assert_eq!((texts, server.sizes()), (vec!["A", "B"], sizes), "{key} = {count}");
        assert_eq!(client.stats().answered, 2);
    }
}

#[tokio::test]
async fn one_bad_prompt_fails_alone() {
    let server = Completions::start(None);
    let client = server.client(sharing(4, LONG));
    let asked = [ask("a"), ask("bad"), ask("c"), ask("d")];
    let answers = client.generate_batch(&asked, &ChatOptions::new()).await;
    let texts: Vec<_> = answers.iter().map(|a| a.as_ref().map_or("failed", |a| &a.content)).collect();
    assert_eq!(texts, ["A", "failed", "C", "D"]);
    assert_eq!(server.sizes(), [4, 1, 1, 1, 1]);
    let attempts: usize = answers
        .iter()
        .map(|a| a.as_ref().map_or_else(|error| error.attempts.len(), |a| a.attempts.len()))
        .sum();
    assert_eq!(attempts, 5, "attempts told are those on the wire");

    let left_out = client.generate_batch(&[ask("a"), ask("lost"), ask("c")], &ChatOptions::new()).await;
    let texts: Vec<_> = left_out.iter().map(|a| a.as_ref().unwrap().content.as_str()).collect();
    assert_eq!((texts, server.sizes()[5..].to_vec()), (vec!["A", "LOST", "C"], vec![3, 1]));
}

#[tokio::test]
async fn ambiguous_batch_answers_are_requested_singly() {
    let numbers: [(Numbers, usize); 4] = [
        // Twice the same number, from 1 on, all the same, and none at all in the wrong order with one left out.
        (|own| Some(if own == 2 { 1 } else { own }), 2),
        (|own| Some(own + 1), 3),
        (|_| Some(0), 3),
        (|_| None, 3),
    ];
    for (case, (numbers, alone)) in numbers.into_iter().enumerate() {
        let server = Completions::serve(None, Some(numbers));
        let client = server.client(sharing(4, LONG));
        let asked = if case == 3 { ["a", "lost", "c"] } else { ["a", "b", "c"] };
        let answers = client.generate_batch(&asked.map(ask), &ChatOptions::new()).await;
        let texts: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap().content.clone()).collect();
        assert_eq!(texts, asked.map(str::to_uppercase), "{case}");
        assert_eq!(server.sizes().len(), 1 + alone, "{case}");
        let attempts: usize = answers.iter().map(|answer| answer.as_ref().unwrap().attempts.len()).sum();
        let tokens: u64 = answers.iter().map(|answer| answer.as_ref().unwrap().usage.total()).sum();
        assert_eq!(
            (attempts, tokens),
            (1 + alone, 3 * (3 + alone as u64)),
            "sums are those of the wire: {case}"
        );
        assert_eq!(client.stats().answered, 3, "{case}");
    }
}

#[tokio::test]
async fn without_batching_only_width_limits_requests() {
    let server = Completions::start(Some(30));
    let client = server.client(BatchConfig::default());
    assert!(client.generate_batch(&prompts(30), &ChatOptions::new()).await.iter().all(Result::is_ok));
    assert_eq!((server.peak(), client.stats().batch_count), (30, 1));

    let server = Completions::start(None);
    let client = server.client(BatchConfig { width: NonZeroUsize::new(1), ..BatchConfig::default() });
    assert!(client.generate_batch(&prompts(5), &ChatOptions::new()).await.iter().all(Result::is_ok));
    assert_eq!((server.sizes().len(), server.peak()), (5, 1));
}

#[tokio::test]
async fn outcomes_arrive_as_ready_and_late_ones_fail_alone() {
    let server = Completions::start(None);
    let client = server.client(BatchConfig::default());
    let asked = [ask("slow"), ask("quick")];
    let options = within(Duration::from_secs(1));
    let mut outcomes = std::pin::pin!(client.stream_batch(&asked, &options));
    let (first, answer) = outcomes.next().await.unwrap();
    assert_eq!((first, answer.unwrap().content.as_str()), (1, "QUICK"));
    let (second, answer) = outcomes.next().await.unwrap();
    assert_eq!((second, answer.unwrap_err().class), (0, LlmErrorClass::Deadline));
    assert!(outcomes.next().await.is_none());
}

#[tokio::test]
async fn a_token_ends_what_is_left_of_a_batch() {
    let server = Completions::start(None);
    let client = server.client(BatchConfig::default());
    let (asked, token) = ([ask("slow"), ask("quick")], CancellationToken::new());
    let mut outcomes = std::pin::pin!(client.stream_batch(&asked, &ChatOptions::new().cancel(token.clone())));
    assert_eq!(outcomes.next().await.unwrap().1.unwrap().content, "QUICK");
    token.cancel();
    let (number, answer) = outcomes.next().await.unwrap();
    assert_eq!((number, answer.unwrap_err().class), (0, LlmErrorClass::Cancelled));
    assert!(outcomes.next().await.is_none());
}

#[tokio::test]
async fn each_caller_has_its_deadline_and_may_leave_a_batch() {
    let server = Completions::start(None);
    let client = server.client(sharing(3, LONG));
    let (gone, a, b) = (ask("gone"), ask("a"), ask("b"));
    let hasty = client.chat_with(&gone, &within(Duration::from_millis(20))).await;
    assert_eq!(hasty.unwrap_err().class, LlmErrorClass::Deadline);
    let left = timeout(Duration::from_millis(20), client.chat(&gone)).await;
    assert!(left.is_err());
    let both = async { tokio::join!(client.chat(&a), client.chat(&b)) };
    let flush = async {
        // Both have joined by the time this is polled.
        tokio::task::yield_now().await;
        client.flush();
    };
    let ((a, b), ()) = tokio::join!(both, flush);
    assert_eq!((a.unwrap().content.as_str(), b.unwrap().content.as_str()), ("A", "B"));
    assert_eq!(*server.requests.lock().unwrap(), [["a", "b"]]);
}

#[tokio::test]
async fn a_shutdown_answers_or_fails_all_waiting_callers() {
    let server = Completions::start(None);
    let client = server.client(sharing(10, LONG));
    let (slow, waiting) = (ask("slow"), prompts(3));
    let asking = async {
        // With an observer it goes alone.
        let options = ChatOptions::new().observe(|_| ());
        tokio::join!(
            client.chat_with(&slow, &options),
            join_all(waiting.iter().map(|request| client.chat(request)))
        )
    };
    let closing = async {
        until(|| server.sizes() == [1]).await;
        assert_eq!(client.shutdown(Duration::from_secs(1)).await, 1);
    };
    let ((slow, waiting), ()) = tokio::join!(asking, closing);
    assert!(waiting.iter().all(Result::is_ok), "they went out at once");
    assert_eq!(server.sizes(), [1, 3]);
    assert_eq!(slow.unwrap_err().class, LlmErrorClass::Closed);
    let late = client.chat(&ask("late")).await.unwrap_err();
    assert_eq!((late.class, late.message.as_str()), (LlmErrorClass::Closed, "the client was shut down"));
    assert!(client.generate_batch(&prompts(2), &ChatOptions::new()).await.iter().all(Result::is_err));
    assert_eq!((client.shutdown(Duration::ZERO).await, server.sizes().len()), (0, 2));
}

#[tokio::test]
async fn cached_prompts_are_not_sent_in_a_batch() {
    let server = Completions::start(None);
    let mut config = server.config(sharing(10, LONG));
    config.temperature = Some(0.0);
    config.cache = Some(CacheConfig::default());
    let client = client(&config);
    client.generate_batch(&prompts(4), &ChatOptions::new()).await;
    let answers = client.generate_batch(&prompts(6), &ChatOptions::new()).await;
    assert_eq!(server.sizes(), [4, 2]);
    let kept: Vec<bool> = answers.iter().map(|answer| answer.as_ref().unwrap().cached).collect();
    assert_eq!(kept, [true, true, true, true, false, false]);
}

#[tokio::test]
async fn single_flight_sends_equal_prompts_of_a_batch_once() {
    for (single_flight, temperature, sizes) in
        [(true, 0.0, vec![3]), (false, 0.0, vec![6]), (true, 0.7, vec![6])]
    {
        let server = Completions::start(None);
        let mut config = server.config(sharing(10, LONG));
        config.temperature = Some(temperature);
        config.cache = Some(CacheConfig { single_flight, ..CacheConfig::default() });
        let client = client(&config);
        let asked = ["a", "b", "a", "a", "c", "b"].map(ask);
        let answers = client.generate_batch(&asked, &ChatOptions::new()).await;
        let texts: Vec<_> = answers.iter().map(|answer| answer.as_ref().unwrap().content.as_str()).collect();
        assert_eq!((texts, server.sizes()), (vec!["A", "B", "A", "A", "C", "B"], sizes.clone()));
        let tokens: u64 = answers.iter().map(|answer| answer.as_ref().unwrap().usage.total()).sum();
        let attempts: usize = answers.iter().map(|answer| answer.as_ref().unwrap().attempts.len()).sum();
        assert_eq!((tokens, attempts), (3 * sizes[0] as u64, 1), "sums are those of the wire");
        let kept: Vec<bool> = answers.iter().map(|answer| answer.as_ref().unwrap().cached).collect();
        let expected = sizes[0] == 3;
        assert_eq!(kept, [false, false, expected, expected, false, expected]);
        assert_eq!(client.stats().cache_hits, if expected { 3 } else { 0 });
    }
}

#[tokio::test]
async fn equal_requests_fail_together_with_attempts_counted_once() {
    let server = Completions::start(None);
    let mut config = server.config(BatchConfig::default());
    config.temperature = Some(0.0);
    config.cache = Some(CacheConfig { single_flight: true, ..CacheConfig::default() });
    let client = client(&config);
    let outcomes = client.generate_batch(&["bad", "a", "bad"].map(ask), &ChatOptions::new()).await;
    let attempts = |outcome: &Result<_, LlmError>| outcome.as_ref().err().map(|error| error.attempts.len());
    assert_eq!(outcomes.iter().map(attempts).collect::<Vec<_>>(), [Some(1), None, Some(0)]);
    assert_eq!(server.sizes().len(), 2);
}
