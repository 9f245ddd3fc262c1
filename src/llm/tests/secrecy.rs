//! Keys and prompts never get into an error, whatever a server writes into its answers.

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
        Reply(500, vec![], echo.clone()),
        Reply(200, vec![], format!("<title>{echo}</title>")),
        Reply::json(200, &json!({"error": {"message": echo}})),
        Reply::error(400, "x", &format!("{}{KEY}", "x".repeat(490))),
        Reply::json(308, &json!({})).header("location", format!("http://x/?key={KEY}")),
    ] {
        let server = Server::with(&[reply]).await;
        let mut config = config(&server.url.replace("http://", &format!("http://me:{KEY}@")));
        config.api_keys = vec![KEY.into()];
        let client = client(&config);
        let error = client.chat(&hello(), None).await.unwrap_err();
        let sent = server.seen.requests.lock().unwrap()[0].0["authorization"].clone();
        assert_eq!(sent, format!("Bearer {KEY}"));
        let text = format!("{} {client:?}", shown(error));
        assert!(!text.contains("sk-planted"), "{text}");
    }
}

#[tokio::test]
async fn a_prompt_is_never_shown() {
    for body in [format!("cannot parse {PROMPT}"), format!("near `{}`", &PROMPT[8..60])] {
        let server = Server::with(&[Reply::error(400, "x", &body)]).await;
        let request = ChatRequest::new(vec![Message::System("be nice".into()), Message::User(PROMPT.into())]);
        let error = client(&config(&server.url)).chat(&request, None).await.unwrap_err();
        let text = shown(error);
        assert!(!text.contains("northern") && text.contains("400 Bad Request"), "{text}");
    }
}

#[tokio::test]
async fn keys_take_turns() {
    let server = Server::with(&[Reply::say("hi")]).await;
    let mut config = config(&server.url);
    config.api_keys = vec!["key-one".into(), "key-two".into()];
    let client = client(&config);
    for _ in 0..4 {
        client.chat(&hello(), None).await.unwrap();
    }
    let requests = server.seen.requests.lock().unwrap();
    let keys: Vec<&str> =
        requests.iter().map(|(headers, _)| headers["authorization"].to_str().unwrap()).collect();
    assert_eq!(keys, ["Bearer key-one", "Bearer key-two", "Bearer key-one", "Bearer key-two"]);
    assert_eq!(requests[0].1, json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]}));
}
