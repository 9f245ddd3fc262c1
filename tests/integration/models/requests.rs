//! Model requests, counted at the server: real sockets, and scripted answers.
//!
//! Outages of minutes are scaled down by the waits of the retry policy; nothing depends on how fast the machine is.

use std::{
    collections::HashMap,
    num::{NonZeroU64, NonZeroUsize},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Response, StatusCode},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Barrier,
    task::JoinSet,
};
use toolcrib::{
    ChatRequest, GiveUp, HttpClients, HttpConfig, LlmClient, LlmConfig, LlmError, LlmErrorClass, Message,
    RetryPolicy,
};

use crate::support::{served, within};

/// How the server answers the n-th request, from 1.
type Answer = dyn Fn(usize) -> Reply + Send + Sync;

#[derive(Clone)]
struct Reply {
    status: u16,
    header: Option<(&'static str, &'static str)>,
    body: String,
    after: Duration,
}

impl Reply {
    fn good() -> Self {
        let choice = json!({"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"});
        let usage = json!({"prompt_tokens": 5, "completion_tokens": 2});
        Self::new(200, &json!({"model": "served", "choices": [choice], "usage": usage}))
    }

    fn error(status: u16) -> Self {
        Self::new(status, &json!({"error": {"message": "as the script says", "type": "script"}}))
    }

    fn new(status: u16, body: &Value) -> Self {
        Self { status, header: None, body: body.to_string(), after: Duration::ZERO }
    }

    fn header(self, name: &'static str, value: &'static str) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }
}

/// What the server saw.
struct Seen {
    answer: Box<Answer>,
    together: Option<Barrier>,
    now: AtomicUsize,
    peak: AtomicUsize,
    /// Who asked, and when.
    requests: Mutex<Vec<(String, Instant)>>,
}

/// Ends when dropped.
struct Server {
    url: String,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn new(answer: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(Box::new(answer), None).await
    }

    /// Answers nobody before so many requests are there at once: a hidden cap would hang here.
    async fn together(count: usize) -> Self {
        Self::start(Box::new(|_| Reply::good()), Some(Barrier::new(count))).await
    }

    async fn start(answer: Box<Answer>, together: Option<Barrier>) -> Self {
        let seen = Arc::new(Seen {
            answer,
            together,
            now: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            requests: Mutex::default(),
        });
        let router = Router::new().route("/v1/chat/completions", post(serve)).with_state(Arc::clone(&seen));
        let (url, tasks) = served(router).await;
        Self { url, seen, _tasks: tasks }
    }

    fn count(&self) -> usize {
        self.seen.requests.lock().unwrap().len()
    }

    fn peak(&self) -> usize {
        self.seen.peak.load(SeqCst)
    }
}

async fn serve(State(seen): State<Arc<Seen>>, body: String) -> Response<Body> {
    let body: Value = serde_json::from_str(&body).unwrap();
    let who = body["messages"][0]["content"].as_str().unwrap().to_owned();
    let number = {
        let mut requests = seen.requests.lock().unwrap();
        requests.push((who, Instant::now()));
        requests.len()
    };
    seen.peak.fetch_max(seen.now.fetch_add(1, SeqCst) + 1, SeqCst);
    let reply = (seen.answer)(number);
    if let Some(together) = &seen.together {
        together.wait().await;
    }
    tokio::time::sleep(reply.after).await;
    seen.now.fetch_sub(1, SeqCst);
    let mut response = Response::builder().status(StatusCode::from_u16(reply.status).unwrap());
    if let Some((name, value)) = reply.header {
        response = response.header(name, value);
    }
    response.body(Body::from(reply.body)).unwrap()
}

/// The agent's policy with every wait a hundredth.
fn hundredth() -> RetryPolicy {
    let mut policy = RetryPolicy::agent();
    policy.base /= 100;
    policy.cap /= 100;
    policy
}

fn client(url: &str, http: &HttpClients, change: impl FnOnce(&mut LlmConfig)) -> LlmClient {
    let mut config = LlmConfig::new(Some(url.to_owned()), "m");
    config.retry = hundredth();
    change(&mut config);
    LlmClient::new(&config, http, Path::new(".")).unwrap()
}

fn http() -> HttpClients {
    HttpClients::new(&HttpConfig::default()).unwrap()
}

fn from(who: &str) -> ChatRequest {
    ChatRequest::new(vec![Message::User(who.to_owned())])
}

/// So many requests at once, all of which must be answered.
async fn all(llm: &LlmClient, count: usize) -> Vec<toolcrib::ChatAnswer> {
    let mut set = JoinSet::new();
    for number in 0..count {
        let llm = llm.clone();
        set.spawn(async move { llm.chat(&from(&format!("agent {number}")), None).await.unwrap() });
    }
    set.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_concurrent_requests_are_in_flight_together() {
    let server = Server::together(20).await;
    let llm = client(&server.url, &http(), |_| ());
    let answers = all(&llm, 20).await;
    let stats = llm.stats();
    assert_eq!((server.peak(), stats.peak, stats.limit), (20, 20, None));
    assert!(answers.iter().all(|answer| answer.timings.queue.is_zero()), "nobody waited in a queue");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_six_is_kept_and_its_queue_reported() {
    let service = Duration::from_millis(100);
    let server = Server::new(move |_| Reply::good().after(service)).await;
    let clients = http();
    // Two clients of one endpoint share its limit.
    let llm = client(&server.url, &clients, |config| config.max_in_flight = NonZeroUsize::new(6));
    let other = client(&server.url, &clients, |_| ());
    let (some, more) = tokio::join!(all(&llm, 10), all(&other, 10));
    assert_eq!((server.peak(), llm.stats().peak, other.stats().limit), (6, 6, Some(6)));
    let queued: Duration = some.iter().chain(&more).map(|answer| answer.timings.queue).sum();
    assert_eq!(queued, llm.stats().queued);
    assert!(queued >= service, "{queued:?}");
    assert!(some.iter().all(|answer| answer.timings.model >= service && answer.timings.retry_wait.is_zero()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_concurrent_requests_succeed() {
    let server = Server::together(1000).await;
    let llm = client(&server.url, &http(), |_| ());
    let answers = all(&llm, 1000).await;
    assert_eq!((answers.len(), server.peak(), server.count()), (1000, 1000, 1000));
    assert_eq!((llm.stats().attempts, llm.stats().retries), (1000, 0));
}

/// Asks once. What the client tells must be what the server counted.
async fn script(
    retry: &RetryPolicy,
    answer: impl Fn(usize) -> Reply + Send + Sync + 'static,
) -> (Result<usize, LlmError>, Vec<Instant>) {
    let server = Server::new(answer).await;
    let llm = client(&server.url, &http(), |config| config.retry = retry.clone());
    let answer = llm.chat(&from("one"), None).await;
    let told = answer.as_ref().map_or_else(|error| error.attempts.len(), |answer| answer.attempts.len());
    assert_eq!((told, llm.stats().attempts), (server.count(), server.count() as u64));
    let times = server.seen.requests.lock().unwrap().iter().map(|(_, at)| *at).collect();
    (answer.map(|answer| answer.attempts.len()), times)
}

#[tokio::test(flavor = "multi_thread")]
async fn reported_attempts_match_those_at_the_server() {
    let policy = hundredth();
    let (failed, _) = script(&policy, |_| Reply::error(500)).await;
    assert_eq!(failed.unwrap_err().attempts.len(), 12, "500 is repeated as any other");

    let limited = |seconds| move |_| Reply::error(429).header("retry-after", seconds);
    let few = RetryPolicy::fast();
    let (failed, times) = script(&few, limited("1")).await;
    let error = failed.unwrap_err();
    assert_eq!((error.class, error.attempts.len()), (LlmErrorClass::Throttled, 3));
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(1)), "the wait was kept");
    assert!(error.waited >= Duration::from_secs(2) && error.attempts[1].waited >= Duration::from_secs(1));

    let (failed, _) = script(&policy, limited("3600")).await;
    let error = failed.unwrap_err();
    assert_eq!((error.attempts.len(), error.waited), (1, Duration::ZERO));
    assert!(matches!(error.gave_up, Some(GiveUp::HintTooLong { .. })), "{:?}", error.gave_up);

    let (failed, _) = script(&policy, |_| Reply::error(401)).await;
    assert_eq!(failed.unwrap_err().attempts.len(), 1);

    let context = json!({"error": {"message": "maximum context length is 512 tokens", "type": "x"}});
    let (failed, _) = script(&policy, move |_| Reply::new(400, &context)).await;
    let error = failed.unwrap_err();
    assert_eq!((error.class, error.attempts.len()), (LlmErrorClass::Context, 1));

    let (answered, _) =
        script(&policy, |number| if number < 3 { Reply::error(503) } else { Reply::good() }).await;
    assert_eq!(answered.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_reset_half_way_is_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let number = count.fetch_add(1, SeqCst);
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0, "the client went away");
            }
            let body = Reply::good().body;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let sent = if number == 0 { &body[..20] } else { &body };
            socket.write_all((head + sent).as_bytes()).await.unwrap();
            if number == 0 {
                socket.set_zero_linger().unwrap();
            }
        }
    });
    let answer = client(&url, &http(), |_| ()).chat(&from("one"), None).await.unwrap();
    assert_eq!((answer.attempts.len(), accepted.load(SeqCst)), (2, 2));
    assert_eq!(answer.attempts[0].class, Some(LlmErrorClass::Cut));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_costs_at_most_three_requests_per_agent() {
    // 45 s, and 100 agents, with every wait a hundredth.
    let until = Instant::now() + Duration::from_millis(450);
    let service = Duration::from_millis(10);
    let answer = move |_| match Instant::now() < until {
        true => Reply::error(503),
        false => Reply::good().after(service),
    };
    let server = Server::new(answer).await;
    let clients = http();
    // Each agent has a client of its own: what they share is the endpoint.
    let agents: Vec<_> = (0..100).map(|_| client(&server.url, &clients, |_| ())).collect();
    let mut set = JoinSet::new();
    for (number, llm) in agents.into_iter().enumerate() {
        set.spawn(async move { llm.chat(&from(&format!("agent {number}")), None).await });
    }
    let answers: Vec<_> = set.join_all().await.into_iter().map(Result::unwrap).collect();
    let told: usize = answers.iter().map(|answer| answer.attempts.len()).sum();
    assert_eq!(told, server.count(), "attempts told are those on the wire");
    let mut each: HashMap<String, usize> = HashMap::new();
    let requests = server.seen.requests.lock().unwrap().clone();
    for (who, _) in &requests {
        *each.entry(who.clone()).or_default() += 1;
    }
    assert_eq!(each.len(), 100);
    assert!(each.values().all(|count| *count <= 3), "{each:?}");
    // While it was down only probes came, and then the ramp: never all at once.
    let stats = client(&server.url, &clients, |_| ()).stats();
    assert!(stats.pauses >= 1 && stats.in_flight == 0 && stats.waiting == 0, "{stats:?}");
    let after: Vec<Instant> = requests.iter().map(|(_, at)| *at).filter(|at| *at >= until).collect();
    let together = after
        .iter()
        .map(|at| after.iter().filter(|other| *other >= at && **other - *at < service / 2).count());
    assert!(together.max() <= Some(72), "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_without_credit_is_tried_once() {
    let broke = json!({"error": {"message": "no credit", "code": "insufficient_quota"}});
    let server = Server::new(move |_| Reply::new(429, &broke)).await;
    let clients = http();
    let llm = client(&server.url, &clients, |_| ());
    for attempts in [1, 0, 0] {
        let error = llm.chat(&from("one"), None).await.unwrap_err();
        assert_eq!((error.class, error.attempts.len()), (LlmErrorClass::Billing, attempts));
        assert!(error.message.contains("no credit"), "{error}");
    }
    assert_eq!(server.count(), 1);
}

#[tokio::test]
async fn counters_match_the_requests_on_the_wire() {
    let server = Server::new(|number| if number == 1 { Reply::error(409) } else { Reply::good() }).await;
    let llm = client(&server.url, &http(), |_| ());
    for _ in 0..20 {
        llm.chat(&from("one"), None).await.unwrap();
    }
    let stats = llm.stats();
    assert_eq!((stats.request_count, stats.answered, stats.attempts, stats.retries), (20, 20, 21, 1));
    assert_eq!((stats.cache_hits, stats.batch_count), (0, 0));
    assert_eq!(
        (stats.connections_opened, stats.connections_reused),
        (1, 20),
        "one after the other: one connection"
    );
    assert_eq!((stats.usage.input, stats.usage.output, stats.pauses), (100, 40, 0));
    assert!(stats.retry_wait > Duration::ZERO && stats.p50 > Duration::ZERO && stats.p50 <= stats.p95);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_is_kept_under_load() {
    let server = Server::new(|_| Reply::good()).await;
    // Six thousand a minute: six hundred at once, then ninety a second.
    let llm = client(&server.url, &http(), |config| config.requests_per_minute = NonZeroU64::new(6000));
    let start = Instant::now();
    let answers = all(&llm, 690).await;
    assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
    let queued: Duration = answers.iter().map(|answer| answer.timings.queue).sum();
    assert!(queued > Duration::ZERO && answers.iter().all(|answer| answer.timings.retry_wait.is_zero()));
    assert_eq!(llm.stats().attempts, 690, "nothing was refused, so nothing was repeated");
}

/// Accepts, and never says a word: what vLLM leaves of its running requests when it is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_probed_over_a_new_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let llm = client(&format!("http://{address}/v1"), &http(), |config| {
        config.silence_check = Duration::from_millis(50);
    });
    let mut asking = JoinSet::new();
    for _ in 0..3 {
        let llm = llm.clone();
        asking.spawn(async move { llm.chat(&from("one"), None).await.unwrap() });
    }
    // While the server takes connections it may think as long as it likes.
    let mut held = Vec::new();
    while held.len() < 12 {
        held.push(listener.accept().await.unwrap());
    }
    assert_eq!((llm.stats().in_flight, llm.stats().retries), (3, 0));
    drop(listener);
    within("the silent attempts to be given up", || llm.stats().retries >= 1).await;
    let router = Router::new().route("/v1/chat/completions", post(async || Reply::good().body));
    let listener = TcpListener::bind(address).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    for answer in asking.join_all().await {
        assert_eq!(answer.attempts[0].class, Some(LlmErrorClass::Down), "{:?}", answer.attempts);
        let said = answer.attempts[0].message.as_deref();
        assert_eq!(said, Some("silent for 50ms or more, and new connections are refused"));
    }
}
