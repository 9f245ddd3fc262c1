//! Tests the same request in every format: its address, its key, and the parsed answer.

use super::*;
use crate::config::LlmApi;

/// An answer of `half a word` that ran into a limit of two tokens.
fn cut(api: LlmApi) -> Reply {
    let (reason, text) = ("length", "half a word");
    let body = match api {
        LlmApi::Chat => json!({"choices": [{"message": {"content": text}, "finish_reason": reason}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2}}),
        LlmApi::Completions => json!({"choices": [{"text": text, "finish_reason": reason}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2}}),
        LlmApi::Responses => {
            json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
            "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
            "usage": {"input_tokens": 5, "output_tokens": 2}})
        }
        LlmApi::Messages => json!({"content": [{"type": "text", "text": text}], "stop_reason": "max_tokens",
            "usage": {"input_tokens": 5, "output_tokens": 2}}),
    };
    Reply::json(200, &body)
}

#[tokio::test]
async fn every_format_has_its_path_and_key_header() {
    for (name, api) in LlmApi::NAMES {
        let server = Server::with(&[cut(api)]);
        let mut config = config(&server.url);
        (config.api, config.max_tokens) = (api, Some(2));
        config.api_keys = vec!["the-key".into()];
        let answer = client(&config).chat(&hello()).await.unwrap();
        assert_eq!((answer.content.as_str(), answer.finish), ("half a word", Finish::Length), "{name}");
        assert_eq!(classes(&answer.attempts), ["truncated", "truncated"], "{name}");
        assert_eq!((answer.usage.input, answer.usage.output), (10, 4), "{name}");
        let path = if api == LlmApi::Chat { "/v1/chat/completions".into() } else { format!("/v1/{name}") };
        assert_eq!(*server.seen.paths.lock().unwrap(), [path.clone(), path]);
        let requests = server.seen.requests.lock().unwrap();
        let limit = if api == LlmApi::Responses { "max_output_tokens" } else { "max_tokens" };
        assert_eq!((&requests[0].1[limit], &requests[1].1[limit]), (&json!(2), &json!(4)), "{name}");
        let headers = &requests[0].0;
        if api == LlmApi::Messages {
            assert_eq!(
                (&headers["x-api-key"], &headers["anthropic-version"]),
                (&"the-key".parse().unwrap(), &"2023-06-01".parse().unwrap())
            );
            assert!(!headers.contains_key("authorization"));
        } else {
            assert_eq!(headers["authorization"], "Bearer the-key", "{name}");
        }
    }
}

#[tokio::test]
async fn an_address_may_include_the_path() {
    let server = Server::with(&[cut(LlmApi::Messages)]);
    let mut config = config(&format!("{}/messages/", server.url));
    config.api = LlmApi::Messages;
    client(&config).chat(&hello()).await.unwrap();
    assert_eq!(server.seen.paths.lock().unwrap()[0], "/v1/messages");
}

#[tokio::test]
async fn an_answer_at_its_token_limit_counts_as_cut() {
    let body = json!({"status": "completed", "usage": {"input_tokens": 5, "output_tokens": 2},
        "output": [{"type": "message", "content": [{"type": "output_text", "text": "half a"}]}]});
    let server = Server::with(&[Reply::json(200, &body)]);
    let mut config = config(&server.url);
    (config.api, config.max_tokens) = (LlmApi::Responses, Some(2));
    let answer = client(&config).chat(&hello()).await.unwrap();
    assert_eq!(classes(&answer.attempts), ["truncated", "answered"]);
}

#[tokio::test]
async fn a_wrong_format_is_reported() {
    let server = Server::with(&[Reply::say("hi")]);
    let mut config = config(&server.url);
    config.api = LlmApi::Responses;
    let error = client(&config).chat(&hello()).await.unwrap_err();
    assert_eq!(error.message, "answered with JSON that has no `output`");
    assert!(error.help().unwrap().contains("speaks api = \"responses\""), "{:?}", error.help());
}
