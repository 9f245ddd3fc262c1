//! Tests strategies of several models, by counts at each server.

use super::*;
use crate::config::{Config, Env, Order, Strategy};

fn named(name: &str, server: &Server) -> LlmConfig {
    let mut config = config(&server.url);
    config.name = Some(name.into());
    config
}

fn strategy(name: &str, order: Order, members: Vec<LlmConfig>) -> LlmConfig {
    let mut config = LlmConfig::new(None, name);
    config.name = Some(name.into());
    config.strategy = Some(Arc::new(Strategy::new(order, members)));
    config
}

const TURNS: Order = Order::RoundRobin { from_first: true };

fn down() -> Reply {
    Reply::error(503, "x", "starting")
}

#[tokio::test]
async fn a_fallback_answers_when_a_member_fails() {
    let refusing = Server::with(&[Reply::error(401, "x", "who are you")]);
    let good = Server::with(&[Reply::say("hi")]);
    let members = vec![named("a", &refusing), named("b", &good)];
    let client = client(&strategy("main", Order::Fallback, members));
    let answer = client.chat(&hello()).await.unwrap();
    assert_eq!((answer.content.as_str(), answer.client.as_deref()), ("hi", Some("b")));
    let who: Vec<_> = answer.attempts.iter().map(|attempt| attempt.client.as_deref().unwrap()).collect();
    assert_eq!((who, classes(&answer.attempts)), (vec!["a", "b"], vec!["permanent", "answered"]));
    // The first one's key is refused: it is not asked again.
    client.chat(&hello()).await.unwrap();
    assert_eq!((refusing.count(), good.count()), (1, 2));
    let stats = client.stats();
    assert_eq!((stats.request_count, stats.answered, stats.attempts, stats.retries), (2, 2, 3, 1));
    assert_eq!(stats.usage.input, 10);
    let each: Vec<_> = client.clients().into_iter().map(|(name, stats)| (name, stats.answered)).collect();
    assert_eq!(each, [("a".to_owned(), 0), ("b".to_owned(), 2)]);
}

#[tokio::test]
async fn a_member_that_is_down_is_passed_over() {
    // It asks for a minute: alone it would be waited for.
    let pausing = Server::with(&[down().header("retry-after", "60")]);
    let good = Server::with(&[Reply::say("hi")]);
    let client = client(&strategy("main", Order::Fallback, vec![named("a", &pausing), named("b", &good)]));
    let soon = within(Duration::from_secs(30));
    for _ in 0..5 {
        assert_eq!(client.chat_with(&hello(), &soon).await.unwrap().client.as_deref(), Some("b"));
    }
    assert_eq!((pausing.count(), good.count()), (1, 5), "one request found out for all");
}

#[tokio::test]
async fn round_robin_alternates_and_strategies_nest() {
    let (a, b, c) = (
        Server::with(&[Reply::say("a")]),
        Server::with(&[Reply::say("b")]),
        Server::with(&[Reply::say("c")]),
    );
    let turns = strategy("turns", TURNS, vec![named("a", &a), named("b", &b)]);
    let client = client(&strategy("main", Order::Fallback, vec![turns, named("c", &c), named("a", &a)]));
    let mut said = String::new();
    for _ in 0..4 {
        said += &client.chat(&hello()).await.unwrap().content;
    }
    assert_eq!((said.as_str(), c.count()), ("abab", 0));
    let names: Vec<_> = client.clients().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c"], "one that occurs twice is one");
    assert_eq!(client.clients()[0].1.request_count, 2);
}

#[tokio::test]
async fn an_invalid_request_is_not_sent_to_equal_members() {
    for (order, asked) in [(TURNS, 0), (Order::Fallback, 1)] {
        let wrong = Server::with(&[Reply::error(400, "context_length_exceeded", "too long")]);
        let other = Server::with(&[Reply::say("hi")]);
        let client = client(&strategy("main", order, vec![named("a", &wrong), named("b", &other)]));
        let result = client.chat(&hello()).await;
        assert_eq!((result.is_ok(), other.count()), (asked == 1, asked));
    }
}

#[tokio::test]
async fn when_all_members_fail_each_error_is_shown() {
    let (a, b) = (
        Server::with(&[Reply::error(404, "x", "no such model")]),
        Server::with(&[Reply::error(400, "x", "no such thing")]),
    );
    let client = client(&strategy("main", Order::Fallback, vec![named("a", &a), named("b", &b)]));
    let error = client.chat(&hello()).await.unwrap_err();
    assert!(error.message.starts_with("400 Bad Request: no such thing"), "{error}");
    assert_eq!(
        (error.attempts.len(), error.causes()),
        (2, vec!["a: 404 Not Found: no such model".to_owned()])
    );
}

#[tokio::test]
async fn retries_of_a_strategy_ask_all_members_again() {
    let (a, b) =
        (Server::with(&[down(), down(), Reply::say("a")]), Server::with(&[down(), down(), Reply::say("b")]));
    let mut members = vec![named("a", &a), named("b", &b)];
    for member in &mut members {
        member.retry.max_attempts = 1;
    }
    let mut strategy = Strategy::new(Order::Fallback, members);
    strategy.retry = Some(RetryPolicy { base: Duration::ZERO, cap: Duration::ZERO, ..RetryPolicy::agent() });
    let mut main = LlmConfig::new(None, "main");
    (main.name, main.strategy) = (Some("main".into()), Some(Arc::new(strategy)));
    let answer = client(&main).chat(&hello()).await.unwrap();
    assert_eq!(answer.content, "a");
    assert_eq!(answer.attempts.len(), a.count() + b.count(), "attempts told are those on the wire");
    assert!(answer.attempts.len() >= 5, "{:?}", classes(&answer.attempts));
}

#[tokio::test]
async fn the_total_timeout_is_named() {
    let silent = Server::together(100);
    let mut strategy = Strategy::new(Order::Fallback, vec![named("a", &silent), named("b", &silent)]);
    strategy.total = Some(Duration::from_millis(40));
    let mut main = LlmConfig::new(None, "main");
    (main.name, main.strategy) = (Some("main".into()), Some(Arc::new(strategy)));
    let error = client(&main).chat(&hello()).await.unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str()),
        (LlmErrorClass::Timeout, "no answer within 40ms (total in [llm.strategies.main])")
    );
    let soon = within(Duration::from_millis(1));
    let error = client(&main).chat_with(&hello(), &soon).await.unwrap_err();
    assert_eq!(error.class, LlmErrorClass::Deadline, "the caller's own");
}

const AT_ONCE: Order = Order::Race { delay: Duration::ZERO };
const ONE_BY_ONE: Order = Order::Race { delay: Duration::from_secs(3600) };

/// It answers no request.
fn silent() -> Server {
    Server::together(100)
}

#[tokio::test]
async fn a_race_returns_the_first_answer_and_cancels_the_rest() {
    let (silent, good) = (silent(), Server::with(&[Reply::say("hi")]));
    let client = client(&strategy("main", AT_ONCE, vec![named("a", &silent), named("b", &good)]));
    let answer = client.chat(&hello()).await.unwrap();
    assert_eq!((answer.content.as_str(), answer.client.as_deref()), ("hi", Some("b")));
    assert_eq!(classes(&answer.attempts), ["cancelled", "answered"]);
    assert_eq!(answer.attempts[0].client.as_deref(), Some("a"));
    let stats = client.stats();
    assert_eq!((stats.request_count, stats.answered, stats.attempts), (1, 1, 2));
    assert_eq!((stats.cancelled, stats.retries, stats.in_flight), (1, 0, 0));
    assert_eq!(answer.usage.total(), 7);
}

#[tokio::test]
async fn a_race_adds_members_after_a_delay_or_failure() {
    // Nobody joins one that answers.
    let (quick, other) = (Server::with(&[Reply::say("a")]), Server::with(&[Reply::say("b")]));
    let members = vec![named("a", &quick), named("b", &other)];
    let answer = client(&strategy("main", ONE_BY_ONE, members)).chat(&hello()).await.unwrap();
    assert_eq!((answer.content.as_str(), answer.attempts.len(), other.count()), ("a", 1, 0));

    let silent = silent();
    let after = Order::Race { delay: Duration::from_millis(20) };
    let members = vec![named("a", &silent), named("b", &other)];
    let answer = client(&strategy("main", after, members)).chat(&hello()).await.unwrap();
    assert_eq!((answer.content.as_str(), classes(&answer.attempts)), ("b", vec!["cancelled", "answered"]));
    assert!(answer.timings.model >= Duration::from_millis(20), "{:?}", answer.timings);

    // A failure is not waited after, and neither is an answer of no use.
    for first in [Reply::error(401, "x", "who are you"), Reply::say(" ")] {
        let first = Server::with(&[first]);
        let members = vec![named("a", &first), named("b", &other)];
        let client = client(&strategy("main", ONE_BY_ONE, members));
        let soon = within(Duration::from_secs(60));
        let answer = client.chat_with(&hello(), &soon).await.unwrap();
        assert_eq!((answer.content.as_str(), answer.attempts.len()), ("b", 2));
        assert_eq!(client.stats().cancelled, 0);
    }
}

#[tokio::test]
async fn a_race_without_a_winner_shows_all_errors() {
    let (a, b) = (
        Server::with(&[Reply::error(404, "x", "no such model")]),
        Server::with(&[Reply::error(400, "x", "no such thing")]),
    );
    let client = client(&strategy("main", AT_ONCE, vec![named("a", &a), named("b", &b)]));
    let error = client.chat(&hello()).await.unwrap_err();
    assert!(error.message.starts_with("400 Bad Request: no such thing"), "{error}");
    assert_eq!(
        (error.attempts.len(), error.causes()),
        (2, vec!["a: 404 Not Found: no such model".to_owned()])
    );

    // Better an answer of no use than none.
    let empty = Server::with(&[Reply::say(" ")]);
    let members = vec![named("a", &a), named("b", &empty)];
    let answer = super::client(&strategy("main", AT_ONCE, members)).chat(&hello()).await.unwrap();
    assert_eq!((answer.content.as_str(), answer.attempts.len()), (" ", 2));

    let silent = silent();
    let client = super::client(&strategy("main", AT_ONCE, vec![named("a", &silent), named("b", &a)]));
    let soon = within(Duration::from_millis(300));
    let error = client.chat_with(&hello(), &soon).await.unwrap_err();
    assert_eq!((error.class, client.stats().in_flight), (LlmErrorClass::Deadline, 0));
}

#[tokio::test]
async fn a_nested_race_is_cancelled_and_counted() {
    let (silent, good) = (silent(), Server::with(&[down(), down(), Reply::say("hi")]));
    let inner = strategy("inner", AT_ONCE, vec![named("a", &silent), named("b", &silent)]);
    let client = client(&strategy("main", AT_ONCE, vec![inner, named("c", &good)]));
    let answer = client.chat(&hello()).await.unwrap();
    assert_eq!((answer.content.as_str(), silent.count()), ("hi", 2));
    assert_eq!(classes(&answer.attempts), ["cancelled", "cancelled", "overloaded", "overloaded", "answered"]);
    let stats = client.stats();
    assert_eq!((stats.attempts, stats.cancelled, stats.retries), (5, 2, 2));
}

#[tokio::test]
async fn a_race_streams_only_the_winner() {
    let pieces = "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"lo\"}}]}\n\n";
    let endless = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{pieces}");
    // It writes a piece, and that was all.
    let (broken, good) = (Server::raw(&[&endless]), Server::with(&[Reply::say("hi")]));
    let mut members = vec![named("a", &broken), named("b", &good)];
    members[0].stream = true;
    members[0].retry.max_attempts = 1;
    let client = client(&strategy("main", AT_ONCE, members));
    let (options, heard) = observing();
    assert_eq!(client.chat_with(&hello(), &options).await.unwrap().content, "hi");
    assert_eq!(*heard.lock().unwrap(), ["Text(\"hi\")"]);
}

#[tokio::test]
async fn a_strategy_overrides_options_of_its_members() {
    let (server, silent) = (Server::with(&[Reply::say("hi")]), silent());
    let text = format!(
        "[llm]
        client = 'main'
        [llm.clients.a]
        base_url = '{}'
        model = 'm'
        max_tokens = 5
        [llm.clients.b]
        base_url = '{}'
        model = 'm'
        [llm.strategies.main]
        round_robin = ['hot', 'a']
        start = 'first'
        [llm.strategies.hot]
        race = ['a']
        override = {{ temperature = 0.9, max_tokens = 7 }}
        [llm.strategies.hasty]
        fallback = ['b']
        override = {{ request_timeout = '40ms', retry = {{ max = 1 }} }}",
        server.url, silent.url
    );
    let env = Env::new("/", [("PATH", "/bin")]);
    let config = Config::parse(&text, None, Path::new("/"), &env).unwrap();
    let main = client(&config.llm.clone().unwrap().unwrap());
    for _ in 0..2 {
        assert_eq!(main.chat(&hello()).await.unwrap().client.as_deref(), Some("a"));
    }
    let sent: Vec<_> = server.seen.requests.lock().unwrap().iter().map(|(_, body)| body.clone()).collect();
    let options = |body: &serde_json::Value| (body["temperature"].as_f64(), body["max_tokens"].as_u64());
    assert_eq!((options(&sent[0]), options(&sent[1])), ((Some(0.9), Some(7)), (None, Some(5))));
    let counted: Vec<_> = main.clients().into_iter().map(|(name, stats)| (name, stats.answered)).collect();
    assert_eq!(counted, [("a (hot)".to_owned(), 1), ("a".to_owned(), 1)]);

    let hasty = client(&config.models["hasty"].clone().unwrap());
    let error = hasty.chat(&hello()).await.unwrap_err();
    assert_eq!(error.attempts.len(), 1);
    let told = "request_timeout in [llm.clients.b], overridden in [llm.strategies.hasty]";
    assert!(error.message.contains(told), "{error}");
}
