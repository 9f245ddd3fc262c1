//! Tests that keys and prompts never get into an error, for any answer of a server.

use super::*;

const KEY: &str = "sk-planted-0123456789";
const PROMPT: &str = "the board meets on Thursday to sell the northern office, tell nobody";

/// Everything that is ever printed of an error.
fn shown(error: LlmError) -> String {
    let text = format!("{error} {error:?} {:?} {:?}", error.causes(), error.help());
    let error = Error::from(error);
    format!("{text} {error} {error:?} {:?} {:?}", error.causes(), error.help())
}

#[tokio::test]
async fn a_planted_key_is_never_shown() {
    let echo = format!("bad key {KEY} in Bearer {KEY}");
    for reply in [
        Reply::error(401, "invalid_api_key", &echo),
        Reply::text(500, echo.clone()),
        Reply::text(200, format!("<title>{echo}</title>")),
        Reply::json(200, &json!({"error": {"message": echo}})),
        Reply::error(400, "x", &format!("{}{KEY}", "x".repeat(490))),
        Reply::json(308, &json!({})).header("location", format!("http://x/?key={KEY}")),
    ] {
        let server = Server::with(&[reply]);
        let mut config = config(&server.url.replace("http://", &format!("http://me:{KEY}@")));
        config.api_keys = vec![KEY.into()];
        let client = client(&config);
        let error = client.chat(&hello()).await.unwrap_err();
        let sent = server.seen.requests.lock().unwrap()[0].0["authorization"].clone();
        assert_eq!(sent, format!("Bearer {KEY}"));
        let text = format!("{} {client:?}", shown(error));
        assert!(!text.contains("sk-planted"), "{text}");
    }
}

#[tokio::test]
async fn a_prompt_is_never_shown() {
    for body in [format!("cannot parse {PROMPT}"), format!("near `{}`", &PROMPT[8..60])] {
        let server = Server::with(&[Reply::error(400, "x", &body)]);
        let request = ChatRequest::new(vec![Message::System("be nice".into()), Message::User(PROMPT.into())]);
        let error = client(&config(&server.url)).chat(&request).await.unwrap_err();
        let text = shown(error);
        assert!(!text.contains("northern") && text.contains("400 Bad Request"), "{text}");
    }
}

#[tokio::test]
async fn keys_are_used_in_turn() {
    let server = Server::with(&[Reply::say("hi")]);
    let mut config = config(&server.url);
    config.api_keys = vec!["key-one".into(), "key-two".into()];
    let client = client(&config);
    for _ in 0..4 {
        client.chat(&hello()).await.unwrap();
    }
    let requests = server.seen.requests.lock().unwrap();
    let keys: Vec<&str> =
        requests.iter().map(|(headers, _)| headers["authorization"].to_str().unwrap()).collect();
    assert_eq!(keys, ["Bearer key-one", "Bearer key-two", "Bearer key-one", "Bearer key-two"]);
    assert_eq!(requests[0].1, json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]}));
}

#[tokio::test]
async fn a_refused_key_is_replaced_by_the_next() {
    for (reply, class) in [
        (Reply::error(401, "invalid_api_key", "bad key key-one"), "permanent"),
        (Reply::error(429, "insufficient_quota", "no money"), "billing"),
        (Reply::error(429, "rate_limit_exceeded", "slow").header("retry-after", "100"), "throttled"),
    ] {
        let server = Server::with(&[reply, Reply::say("hi")]);
        let mut config = config(&server.url);
        config.api_keys = vec!["key-one".into(), "key-two".into()];
        let client = client(&config);
        let answer = client.chat(&hello()).await.unwrap();
        assert_eq!(
            (classes(&answer.attempts), answer.attempts[1].waited),
            (vec![class, "answered"], Duration::ZERO)
        );
        let message = answer.attempts[0].message.as_deref().unwrap();
        assert!(message.starts_with("key 1 of 2: 4") && !message.contains("key-one"), "{message}");
        client.chat(&hello()).await.unwrap();
        let requests = server.seen.requests.lock().unwrap();
        let keys: Vec<_> = requests.iter().map(|(headers, _)| headers["authorization"].clone()).collect();
        assert_eq!(keys, ["Bearer key-one", "Bearer key-two", "Bearer key-two"], "{class}");
    }
}

#[tokio::test]
async fn no_request_is_sent_when_all_keys_are_refused() {
    let server = Server::with(&[Reply::error(401, "x", "who are you")]);
    let mut config = config(&server.url);
    config.api_keys = vec!["key-one".into(), "key-two".into()];
    let client = client(&config);
    let error = client.chat(&hello()).await.unwrap_err();
    assert_eq!((classes(&error.attempts), server.count()), (vec!["permanent"; 2], 2));
    let error = client.chat(&hello()).await.unwrap_err();
    assert!(error.message.contains("said a moment ago"), "{error}");
    assert_eq!(server.count(), 2);
}

#[tokio::test]
async fn rate_limited_keys_are_waited_for() {
    let limited = || Reply::error(429, "rate", "slow").header("retry-after-ms", "60");
    let server = Server::with(&[limited(), limited(), Reply::say("hi")]);
    let mut config = config(&server.url);
    config.api_keys = vec!["key-one".into(), "key-two".into()];
    let answer = client(&config).chat(&hello()).await.unwrap();
    assert_eq!((classes(&answer.attempts), server.count()), (vec!["throttled", "throttled", "answered"], 3));
    assert_eq!(answer.attempts[1].waited, Duration::ZERO);
    assert!(answer.attempts[2].waited > Duration::ZERO);
}
