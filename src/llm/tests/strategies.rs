//! Several models in place of one, counted at each server.

use std::sync::Arc;

use super::*;
use crate::config::{Order, Strategy};

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
async fn the_next_answers_when_one_fails() {
    let refusing = Server::with(&[Reply::error(401, "x", "who are you")]).await;
    let good = Server::with(&[Reply::say("hi")]).await;
    let members = vec![named("a", &refusing), named("b", &good)];
    let client = client(&strategy("main", Order::Fallback, members));
    let answer = client.chat(&hello(), None).await.unwrap();
    assert_eq!((answer.content.as_str(), answer.client.as_deref()), ("hi", Some("b")));
    let who: Vec<_> = answer.attempts.iter().map(|attempt| attempt.client.as_deref().unwrap()).collect();
    assert_eq!((who, classes(&answer.attempts)), (vec!["a", "b"], vec!["permanent", "answered"]));
    // The first one's key is refused: it is not asked again.
    client.chat(&hello(), None).await.unwrap();
    assert_eq!((refusing.count(), good.count()), (1, 2));
    let stats = client.stats();
    assert_eq!((stats.request_count, stats.answered, stats.attempts, stats.retries), (2, 2, 3, 1));
    assert_eq!(stats.usage.input, 10);
    let each: Vec<_> = client.clients().into_iter().map(|(name, stats)| (name, stats.answered)).collect();
    assert_eq!(each, [("a".to_owned(), 0), ("b".to_owned(), 2)]);
}

#[tokio::test]
async fn nobody_waits_for_one_that_is_down_while_there_is_another() {
    // It asks for a minute: alone it would be waited for.
    let pausing = Server::with(&[down().header("retry-after", "60")]).await;
    let good = Server::with(&[Reply::say("hi")]).await;
    let client = client(&strategy("main", Order::Fallback, vec![named("a", &pausing), named("b", &good)]));
    let soon = Some(Instant::now() + Duration::from_secs(30));
    for _ in 0..5 {
        assert_eq!(client.chat(&hello(), soon).await.unwrap().client.as_deref(), Some("b"));
    }
    assert_eq!((pausing.count(), good.count()), (1, 5), "one request found out for all");
}

#[tokio::test]
async fn turns_are_taken_and_strategies_nest() {
    let (a, b, c) = (
        Server::with(&[Reply::say("a")]).await,
        Server::with(&[Reply::say("b")]).await,
        Server::with(&[Reply::say("c")]).await,
    );
    let turns = strategy("turns", TURNS, vec![named("a", &a), named("b", &b)]);
    let client = client(&strategy("main", Order::Fallback, vec![turns, named("c", &c), named("a", &a)]));
    let mut said = String::new();
    for _ in 0..4 {
        said += &client.chat(&hello(), None).await.unwrap().content;
    }
    assert_eq!((said.as_str(), c.count()), ("abab", 0));
    let names: Vec<_> = client.clients().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c"], "one that occurs twice is one");
    assert_eq!(client.clients()[0].1.request_count, 2);
}

#[tokio::test]
async fn equals_are_not_asked_what_one_of_them_finds_wrong() {
    for (order, asked) in [(TURNS, 0), (Order::Fallback, 1)] {
        let wrong = Server::with(&[Reply::error(400, "context_length_exceeded", "too long")]).await;
        let other = Server::with(&[Reply::say("hi")]).await;
        let client = client(&strategy("main", order, vec![named("a", &wrong), named("b", &other)]));
        let result = client.chat(&hello(), None).await;
        assert_eq!((result.is_ok(), other.count()), (asked == 1, asked));
    }
}

#[tokio::test]
async fn when_all_fail_each_is_told() {
    let (a, b) = (
        Server::with(&[Reply::error(404, "x", "no such model")]).await,
        Server::with(&[Reply::error(400, "x", "no such thing")]).await,
    );
    let client = client(&strategy("main", Order::Fallback, vec![named("a", &a), named("b", &b)]));
    let error = client.chat(&hello(), None).await.unwrap_err();
    assert!(error.message.starts_with("400 Bad Request: no such thing"), "{error}");
    assert_eq!(
        (error.attempts.len(), error.causes()),
        (2, vec!["a: 404 Not Found: no such model".to_owned()])
    );
}

#[tokio::test]
async fn a_strategys_retries_ask_all_of_them_again() {
    let (a, b) = (
        Server::with(&[down(), down(), Reply::say("a")]).await,
        Server::with(&[down(), down(), Reply::say("b")]).await,
    );
    let mut members = vec![named("a", &a), named("b", &b)];
    for member in &mut members {
        member.retry.max_attempts = 1;
    }
    let mut strategy = Strategy::new(Order::Fallback, members);
    strategy.retry = Some(RetryPolicy { base: Duration::ZERO, cap: Duration::ZERO, ..RetryPolicy::agent() });
    let mut main = LlmConfig::new(None, "main");
    (main.name, main.strategy) = (Some("main".into()), Some(Arc::new(strategy)));
    let answer = client(&main).chat(&hello(), None).await.unwrap();
    assert_eq!(answer.content, "a");
    assert_eq!(answer.attempts.len(), a.count() + b.count(), "attempts told are those on the wire");
    assert!(answer.attempts.len() >= 5, "{:?}", classes(&answer.attempts));
}

#[tokio::test]
async fn the_limit_of_all_names_itself() {
    let silent = Server::together(100).await;
    let mut strategy = Strategy::new(Order::Fallback, vec![named("a", &silent), named("b", &silent)]);
    strategy.total = Some(Duration::from_millis(40));
    let mut main = LlmConfig::new(None, "main");
    (main.name, main.strategy) = (Some("main".into()), Some(Arc::new(strategy)));
    let error = client(&main).chat(&hello(), None).await.unwrap_err();
    assert_eq!(
        (error.class, error.message.as_str()),
        (LlmErrorClass::Timeout, "no answer within 40ms (total in [llm.strategies.main])")
    );
    let soon = Some(Instant::now() + Duration::from_millis(1));
    let error = client(&main).chat(&hello(), soon).await.unwrap_err();
    assert_eq!(error.class, LlmErrorClass::Deadline, "the caller's own");
}
