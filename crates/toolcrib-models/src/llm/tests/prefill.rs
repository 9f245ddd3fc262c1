//! Tests prefilled answers: what each format sends over a real socket, and the result.

use serde_json::Value;

use super::*;

fn begun() -> ChatRequest {
    let messages = vec![Message::User("hello".into()), assistant("hi"), Message::User("Why?".into())];
    ChatRequest { prefill: Some("Since it: ".into()), ..ChatRequest::new(messages) }
}

fn assistant(content: &str) -> Message {
    Message::said(content, vec![])
}

fn goes_on(api: LlmApi) -> Reply {
    let body = match api {
        LlmApi::Messages => {
            json!({"content": [{"type": "text", "text": " rained."}], "stop_reason": "end_turn"})
        }
        LlmApi::Completions => json!({"choices": [{"text": " rained.", "finish_reason": "stop"}]}),
        _ => return Reply::say(" rained."),
    };
    Reply::json(200, &body)
}

/// The body that was sent and the answer.
async fn asked(api: LlmApi, prefill: bool, request: &ChatRequest) -> (Value, String) {
    let server = Server::with(&[goes_on(api)]);
    let mut config = config(&server.url);
    (config.api, config.prefill) = (api, prefill);
    let answer = client(&config).chat(request).await.unwrap();
    let body = server.seen.requests.lock().unwrap()[0].1.clone();
    (body, answer.content)
}

#[tokio::test]
async fn each_format_prefills_and_returns_the_whole_answer() {
    let (body, answer) = asked(LlmApi::Chat, true, &begun()).await;
    let last = json!({"role": "assistant", "content": "Since it:"});
    assert_eq!((&body["messages"][3], answer.as_str()), (&last, "Since it: rained."));
    assert_eq!(
        (&body["continue_final_message"], &body["add_generation_prompt"]),
        (&true.into(), &false.into())
    );

    let (body, answer) = asked(LlmApi::Messages, true, &begun()).await;
    let last = json!({"role": "assistant", "content": [{"type": "text", "text": "Since it:"}]});
    assert_eq!((&body["messages"][3], answer.as_str()), (&last, "Since it: rained."));
    assert_eq!(body.get("continue_final_message"), None);

    let (body, answer) = asked(LlmApi::Completions, true, &begun()).await;
    assert!(body["prompt"].as_str().unwrap().ends_with("User: Why?\n\nAssistant: Since it:"), "{body}");
    assert_eq!(answer, "Since it: rained.");
    let one = ChatRequest { messages: vec![Message::User("It is wet. ".into())], ..begun() };
    let (body, _) = asked(LlmApi::Completions, true, &one).await;
    assert_eq!(body["prompt"], "It is wet. Since it:");
}

#[tokio::test]
async fn no_prefill_is_sent_unless_the_server_supports_it() {
    for api in [LlmApi::Chat, LlmApi::Messages, LlmApi::Completions] {
        let plain = ChatRequest { prefill: None, ..begun() };
        let (with, answer) = asked(api, false, &begun()).await;
        assert_eq!((&with, answer.as_str()), (&asked(api, false, &plain).await.0, " rained."));
        assert!(!with.to_string().contains("Since") && with.get("continue_final_message").is_none());
    }
}

#[tokio::test]
async fn streamed_answers_begin_with_the_prefill() {
    let piece = |delta: &Value, finish: &Value| {
        format!("data: {}\n\n", json!({"choices": [{"delta": delta, "finish_reason": finish}]}))
    };
    let stream = piece(&json!({"content": " rained."}), &Value::Null) + &piece(&json!({}), &"stop".into());
    let reply = Reply::text(200, stream).header("content-type", "text/event-stream");
    let server = Server::with(&[reply, Reply::say("")]);
    let mut config = config(&server.url);
    (config.stream, config.prefill) = (true, true);
    let told = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&told);
    let options = ChatOptions::new().observe(move |delta| {
        if let Delta::Text(text) = delta {
            heard.lock().unwrap().push_str(text);
        }
    });
    let client = client(&config);
    let answer = client.chat_with(&begun(), &options).await.unwrap();
    assert_eq!(
        (answer.content.as_str(), told.lock().unwrap().as_str()),
        ("Since it: rained.", "Since it: rained.")
    );
    assert_eq!(client.chat(&begun()).await.unwrap().content, "");
}
