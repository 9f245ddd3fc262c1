//! The forms of a good answer: its type as it may be written, or missing, and streams of events as servers write them.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use axum::{
    Json,
    body::Body,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use toolcrib::Manager;

use super::{
    super::remote::remote,
    scripted::{call, scripted},
};

type Form = (Option<&'static str>, fn(&Value) -> String);

const FORMS: [Form; 16] = [
    (Some("Application/JSON; Charset=UTF-8"), Value::to_string),
    (None, Value::to_string),
    (Some(""), Value::to_string),
    (Some("text/plain"), Value::to_string),
    (Some("application/json"), |answer| format!("\u{feff}{answer}\n")),
    (Some("text/event-stream"), Value::to_string),
    (Some("application/json"), |answer| json!([answer]).to_string()),
    (None, |answer| format!("event: message\ndata: {answer}\n\n")),
    (Some("application/json"), |answer| format!("data: {answer}\n\n")),
    (Some("TEXT/Event-Stream;charset=utf-8"), |answer| format!("data: {answer}\n\n")),
    (Some("text/event-stream"), |answer| format!("event: message\rdata: {answer}\r\r")),
    (Some("text/event-stream"), |answer| format!(": hello\n\nevent: response\ndata: {answer}\n\n")),
    (Some("text/event-stream"), |answer| format!("\u{feff}data: {answer}\n\n")),
    (Some("text/event-stream"), |answer| format!("data:\n\nevent: ping\ndata: {{}}\n\ndata: {answer}\n\n")),
    (Some("text/event-stream"), |answer| format!("id: 1\ndata: {answer}")),
    (Some("text/event-stream"), |answer| format!("data: {}\n\n", json!([answer]))),
];

#[tokio::test(flavor = "multi_thread")]
async fn any_form_of_a_good_answer_is_read() {
    let number = AtomicUsize::new(0);
    let (url, script, _serving) = scripted(move |asked| {
        if asked.method() != "tools/call" {
            return None;
        }
        let (kind, write) = FORMS[number.fetch_add(1, SeqCst)];
        let mut answer = Response::new(Body::from(write(&asked.says("read"))));
        if let Some(kind) = kind {
            answer.headers_mut().insert("content-type", HeaderValue::from_static(kind));
        }
        Some(answer)
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    for form in 0..FORMS.len() {
        let answer = call(&manager).await;
        assert_eq!(answer.unwrap_or_else(|error| panic!("{form}: {error} {:?}", error.causes())), "read");
    }
    assert_eq!(script.find("initialize").len(), 1);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_request_may_have_its_answer() {
    let (url, script, _serving) = scripted(|asked| {
        let answer = (StatusCode::ACCEPTED, Json(asked.says("read"))).into_response();
        (asked.method() == "tools/call").then_some(answer)
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "read");
    assert_eq!(script.find("tools/call").len(), 1);
    manager.shutdown().await;
}
