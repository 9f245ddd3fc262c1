//! The three ends of a call that has no result: it was refused, its outcome is unknown, or its session was lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::Body,
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse as _, Response},
};
use serde_json::json;
use tokio::sync::Notify;
use toolcrib::{Error, ErrorCode, Manager, config::RetryCalls};

use super::{
    super::remote::remote,
    scripted::{Asked, call, event, events, held_back, scripted},
};
use crate::support::{
    crib::Crib,
    program::{code, err},
    within,
};

/// A refusal with the wait that it asks for.
fn later(status: StatusCode, wait: &str) -> Response {
    (status, [(RETRY_AFTER, wait)], Json(json!({"error": "too many, slow down"}))).into_response()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limited_call_is_sent_again_in_its_session() {
    let number = AtomicUsize::new(0);
    let (url, script, _serving) = scripted(move |asked| {
        let is_early = asked.method() == "tools/call" && number.fetch_add(1, SeqCst) < 2;
        is_early.then(|| later(StatusCode::TOO_MANY_REQUESTS, "0.05"))
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "done");
    assert_eq!((script.find("tools/call").len(), script.find("initialize").len()), (3, 1));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_a_server_that_has_no_time() {
    for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let number = AtomicUsize::new(0);
        let (url, script, _serving) = scripted(move |asked| {
            let is_early = asked.method() == "initialize" && number.fetch_add(1, SeqCst) == 0;
            is_early.then(|| later(status, "0"))
        })
        .await;
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        assert_eq!(call(&manager).await.unwrap(), "done");
        assert_eq!(script.find("initialize").len(), 2);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_has_not_run_and_its_session_stays() {
    let refusals = || -> [(Response, &str, i64); 8] {
        let bare = |status: StatusCode| (status, "no: too many").into_response();
        [
            (later(StatusCode::TOO_MANY_REQUESTS, "Fri, 31 Dec 2099 23:59:59 GMT"), "31 Dec 2099", 429),
            (later(StatusCode::TOO_MANY_REQUESTS, "1e300"), "`Retry-After: 1e300`", 429),
            (later(StatusCode::TOO_MANY_REQUESTS, "86400"), "`Retry-After: 86400`", 429),
            (bare(StatusCode::TOO_MANY_REQUESTS), "HTTP 429 Too Many Requests", 429),
            (bare(StatusCode::CONFLICT), "HTTP 409 Conflict", 409),
            (bare(StatusCode::PAYLOAD_TOO_LARGE), "HTTP 413", 413),
            (bare(StatusCode::FORBIDDEN), "HTTP 403 Forbidden", 403),
            (bare(StatusCode::BAD_REQUEST), "HTTP 400 Bad Request", 400),
        ]
    };
    let number = AtomicUsize::new(0);
    let (url, script, _serving) = scripted(move |asked| {
        (asked.method() == "tools/call")
            .then(|| number.fetch_add(1, SeqCst))
            .and_then(|number| refusals().into_iter().nth(number).map(|(answer, ..)| answer))
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    for (_, words, status) in refusals() {
        let began = Instant::now();
        let error = call(&manager).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(10), "{words}: it is not waited for");
        let text = error.to_string();
        assert!(matches!(error, Error::CallRefused { rpc_code, .. } if rpc_code == status), "{error:?}");
        for part in [words, "too many", "it was not run"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("may have run"), "{text}");
    }
    assert_eq!(call(&manager).await.unwrap(), "done");
    assert_eq!((script.find("tools/call").len(), script.find("initialize").len()), (9, 1));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_limit_of_its_call() {
    let (url, script, _serving) = scripted(|asked| {
        (asked.method() == "tools/call").then(|| later(StatusCode::TOO_MANY_REQUESTS, "0.1"))
    })
    .await;
    let mut config = remote(url, None);
    config.servers[0].server.as_mut().unwrap().call_timeout = Duration::from_secs(1);
    let manager = Manager::start(&config).await.unwrap();
    for _ in 0..4 {
        let error = call(&manager).await.unwrap_err().to_string();
        assert!(error.contains("HTTP 429") && error.contains("`Retry-After: 0.1`; it was sent"), "{error}");
    }
    let calls = script.find("tools/call").len();
    assert!((8..60).contains(&calls), "{calls} requests");
    assert_eq!(script.find("initialize").len(), 1, "no refusal takes a server out of service");
    manager.shutdown().await;
}

/// Answers that leave open whether a call has run, and what an error says of each.
fn unknown(asked: &Asked) -> [(Response, &'static str); 7] {
    let torn =
        futures_util::stream::iter([Ok("data: {\"jsonrpc\"".to_owned()), Err(std::io::Error::other("cut"))]);
    let other =
        json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}});
    [
        (
            (StatusCode::BAD_GATEWAY, "<html><title>502 upstream</title></html>").into_response(),
            "`502 upstream`",
        ),
        (later(StatusCode::SERVICE_UNAVAILABLE, "0"), "`Retry-After: 0`"),
        (StatusCode::GATEWAY_TIMEOUT.into_response(), "HTTP 504"),
        (StatusCode::INTERNAL_SERVER_ERROR.into_response(), "HTTP 500"),
        (([("content-type", "text/event-stream")], Body::from_stream(torn)).into_response(), "broke off"),
        (
            events(event(&other) + "event: error\ndata: {\"error\":\"worker died\"}\n\n"),
            "it held: worker died",
        ),
        (([("content-type", "text/html")], format!("<p>{}", asked.path)).into_response(), "`text/html`"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_answer_is_unknown_alone() {
    let (number, until) = (AtomicUsize::new(0), Arc::new(Notify::new()));
    let hold = until.clone();
    let (url, script, _serving) = scripted(move |asked| {
        if asked.method() != "tools/call" {
            return None;
        }
        match number.fetch_add(1, SeqCst) {
            0 => Some(held_back(Json(asked.says("held")).into_response(), hold.clone())),
            number => unknown(asked).into_iter().nth(number - 1).map(|(answer, _)| answer),
        }
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    let others = async {
        within("the first call", || script.find("tools/call").len() == 1).await;
        for (_, words) in unknown(&script.find("initialize")[0]) {
            let error = call(&manager).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::OutcomeUnknown, "{words}: {error}");
            let text = format!("{error} {}", error.causes().join(" "));
            assert!(text.contains("outcome unknown, it was sent once and may have run"), "{text}");
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(call(&manager).await.unwrap(), "done");
        until.notify_one();
    };
    let (first, ()) = tokio::join!(call(&manager), others);
    assert_eq!(first.unwrap(), "held", "a neighbour is not concerned");
    assert_eq!(script.find("initialize").len(), 1, "the session goes on");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_call_that_may_repeat_is_sent_again() {
    let number = AtomicUsize::new(0);
    let (url, script, _serving) = scripted(move |asked| match asked.method() {
        "tools/list" => {
            let tool = json!({"name": "t", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}});
            Some(Json(asked.result(json!({"tools": [tool]}))).into_response())
        }
        "tools/call" if number.fetch_add(1, SeqCst) == 0 => Some(StatusCode::BAD_GATEWAY.into_response()),
        _ => None,
    })
    .await;
    let mut config = remote(url, None);
    config.servers[0].server.as_mut().unwrap().retry_calls = RetryCalls::ReadOnly;
    let manager = Manager::start(&config).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "done");
    assert_eq!((script.find("tools/call").len(), script.find("initialize").len()), (2, 1));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ends_of_a_call_are_told_by_a_daemon_as_they_are() {
    let number = AtomicUsize::new(0);
    let (url, script, _serving) = scripted(move |asked| {
        (asked.method() == "tools/call").then(|| match number.fetch_add(1, SeqCst) {
            0 => later(StatusCode::TOO_MANY_REQUESTS, "9999"),
            1 => (StatusCode::BAD_GATEWAY, "upstream is away").into_response(),
            _ => Json(asked.says("done")).into_response(),
        })
    })
    .await;
    let crib = Crib::new(&format!("[servers.one]\nurl = {url:?}\n"));
    crib.ok(&["up", "-d"]);
    for (exit, words) in [
        (5, ["server `one` refused the call of `t`: HTTP 429", "`Retry-After: 9999`", "it was not run"]),
        (
            4,
            [
                "outcome unknown, it was sent once",
                "HTTP 502 Bad Gateway: upstream is away",
                "the session goes on",
            ],
        ),
    ] {
        let call = crib.run(&["call", "one.t"]);
        for part in words {
            assert!(err(&call).contains(part), "{part}: {}", err(&call));
        }
        assert_eq!((code(&call), err(&call).contains("may have run")), (exit, exit == 4), "{}", err(&call));
    }
    assert_eq!(crib.ok(&["call", "one.t"]), "done");
    assert_eq!(script.find("initialize").len(), 1);
}
