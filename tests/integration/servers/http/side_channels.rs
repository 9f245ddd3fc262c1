//! Side channels that fail: the stream of notices, the notification that a session stands, the end of a session.

use std::sync::{Arc, Mutex};

use axum::{
    http::{Method, StatusCode},
    response::{IntoResponse as _, Redirect, Response},
};
use toolcrib::{Manager, ServerEvent, StartOptions};

use super::{
    super::remote::remote,
    scripted::{Asked, call, events, scripted},
};
use crate::support::within;

/// A manager of the server, and what it warns of.
async fn started(url: String) -> (Manager, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = warnings.clone();
    let observe = move |event| {
        if let ServerEvent::Warning { server, text } = event {
            told.lock().unwrap().push(format!("{server} {text}"));
        }
    };
    let manager =
        Manager::start_with(&remote(url, None), StartOptions::new().observe(observe)).await.unwrap();
    (manager, warnings)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_notices_that_fails_costs_nothing_else() {
    type Form = fn() -> Response;
    let forms: [(Form, Option<&str>); 10] = [
        (|| StatusCode::METHOD_NOT_ALLOWED.into_response(), None),
        (|| (StatusCode::NOT_FOUND, "<html>no</html>").into_response(), None),
        (|| StatusCode::NOT_IMPLEMENTED.into_response(), None),
        (
            || (StatusCode::BAD_REQUEST, "no session").into_response(),
            Some("HTTP 400 Bad Request: no session"),
        ),
        (|| StatusCode::UNAUTHORIZED.into_response(), None),
        (|| StatusCode::FORBIDDEN.into_response(), Some("HTTP 403 Forbidden")),
        (|| StatusCode::NOT_ACCEPTABLE.into_response(), Some("HTTP 406")),
        (|| StatusCode::INTERNAL_SERVER_ERROR.into_response(), None),
        (|| ([("content-type", "text/html")], "<html>hi</html>").into_response(), Some("`text/html`")),
        (|| Redirect::temporary("http://elsewhere.example/mcp").into_response(), Some("elsewhere.example")),
    ];
    for (number, (form, words)) in forms.into_iter().enumerate() {
        let (url, script, _serving) = scripted(move |asked: &Asked| match asked.http {
            Method::GET | Method::DELETE => Some(form()),
            _ => (asked.method() == "notifications/initialized").then(form),
        })
        .await;
        let (manager, warnings) = started(url).await;
        if let Some(words) = words {
            within("the warning", || !warnings.lock().unwrap().is_empty()).await;
            let warned = warnings.lock().unwrap()[0].clone();
            assert!(warned.starts_with("remote ") && warned.contains(words), "{number}: {warned}");
        }
        for _ in 0..3 {
            assert_eq!(call(&manager).await.unwrap(), "done", "{number}");
        }
        assert_eq!(script.find("initialize").len(), 1, "{number}: the session goes on");
        let asked = script.count(|asked| asked.http == Method::GET);
        assert!(asked < 5, "{number}: it is asked for {asked} times");
        assert!(warnings.lock().unwrap().len() <= 1, "{number}");
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_streams_of_notices_are_asked_for_more_rarely() {
    // Each has an event, so that none is fruitless.
    let (url, script, _serving) = scripted(|asked| {
        (asked.http == Method::GET).then(|| events("retry: 0\nid: 1\ndata: {}\n\n".to_owned()))
    })
    .await;
    let (manager, _) = started(url).await;
    let began = std::time::Instant::now();
    within("some streams", || script.count(|asked| asked.http == Method::GET) == 3).await;
    assert!(began.elapsed() > std::time::Duration::from_millis(2500), "the pauses grow");
    assert_eq!(call(&manager).await.unwrap(), "done");
    manager.shutdown().await;
}
