//! Answers over HTTP that cannot be used, that nobody asked for, and many at once.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{
    Json,
    body::{Body, Bytes},
    http::StatusCode,
    response::IntoResponse as _,
};
use serde_json::{Value, json};
use toolcrib::Manager;

use super::{
    super::remote::remote,
    scripted::{call, event, events, open_events, scripted},
};

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_cannot_be_used_end_their_calls_alone() {
    let number = AtomicUsize::new(0);
    let (url, script, _serving) = scripted(move |asked| {
        if asked.method() != "tools/call" {
            return None;
        }
        Some(match number.fetch_add(1, SeqCst) {
            // An event that is too large, as a stream that would go on.
            0 => {
                let chunk = Bytes::from(vec![b'x'; 1 << 20]);
                let flood =
                    futures_util::stream::iter((0..64).map(move |_| Ok::<_, std::io::Error>(chunk.clone())));
                let begin = futures_util::stream::iter([Ok(Bytes::from_static(b"data: "))]);
                let body = Body::from_stream(futures_util::StreamExt::chain(begin, flood));
                ([("content-type", "text/event-stream")], body).into_response()
            }
            1 => ([("content-type", "application/json")], vec![b' '; 17 << 20]).into_response(),
            2 => {
                let answer = json!({"jsonrpc": "2.0", "id": asked.body["id"], "outcome": 7});
                Json(answer).into_response()
            }
            _ => return None,
        })
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    for words in ["more than 16777216 bytes", "more than 16777216 bytes", "malformed"] {
        let error = call(&manager).await.unwrap_err();
        assert!(error.to_string().contains("cannot be used"), "{error}");
        assert!(error.causes().join(" ").contains(words), "{:?}", error.causes());
    }
    assert_eq!(call(&manager).await.unwrap(), "done");
    assert_eq!(script.find("initialize").len(), 1, "the session goes on");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_kind_is_named() {
    let number = AtomicUsize::new(0);
    let (url, _script, _serving) = scripted(move |asked| {
        if asked.method() != "tools/call" {
            return None;
        }
        Some(match number.fetch_add(1, SeqCst) {
            0 => ([("content-type", "text/html")], "<html>Log in</html>").into_response(),
            1 => ([("content-type", "application/json")], "").into_response(),
            2 => StatusCode::ACCEPTED.into_response(),
            3 => (StatusCode::BAD_GATEWAY, "the server is away").into_response(),
            _ => (StatusCode::BAD_REQUEST, Json(asked.error(-32602, Value::Null))).into_response(),
        })
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    for words in [
        "`text/html` in place of",
        "<empty>",
        "HTTP 202 Accepted",
        "HTTP 502 Bad Gateway: the server is away",
    ] {
        let error = call(&manager).await.unwrap_err();
        assert!(error.causes().join(" ").contains(words), "{words}: {:?}", error.causes());
    }
    let error = call(&manager).await.unwrap_err();
    assert!(matches!(error, toolcrib::Error::CallRefused { rpc_code: -32602, .. }), "{error}");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_without_a_request_end_the_connection() {
    let (url, _script, _serving) = scripted(|asked| {
        let stray = |id: usize| event(&json!({"jsonrpc": "2.0", "id": 1_000_000 + id, "result": {}}));
        let strays = || (0..200).map(stray).collect::<String>();
        (asked.method() == "tools/call").then(|| events(strays() + &event(&asked.says("at last"))))
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    let error = call(&manager).await.unwrap_err();
    assert!(error.to_string().contains("was lost during `t`"), "{error}");
    assert!(error.causes().join(" ").contains("answers without a request"), "{:?}", error.causes());
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_http_run_all_at_once() {
    const CALLS: usize = 100;
    let held = Arc::new(Mutex::new(Vec::new()));
    let (url, _script, _serving) = scripted(move |asked| {
        if asked.method() != "tools/call" {
            return None;
        }
        let (write, response) = open_events();
        let mut held = held.lock().unwrap();
        held.push((write, asked.says("together")));
        if held.len() == CALLS {
            for (write, answer) in held.drain(..) {
                let _ = write.send(event(&answer));
            }
        }
        Some(response)
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    for answer in futures_util::future::join_all((0..CALLS).map(|_| call(&manager))).await {
        assert_eq!(answer.unwrap(), "together");
    }
    manager.shutdown().await;
}
