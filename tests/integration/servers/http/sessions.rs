//! Sessions that a server has forgotten: each form in which it says so, one new session for all, and none without end.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolcrib::{Error, Manager};

use super::{
    super::remote::remote,
    scripted::{Asked, call, event, events, held_back, scripted},
};
use crate::support::within;

/// Every way to say that the session is gone.
fn gone(asked: &Asked, form: usize) -> Option<Response> {
    let id = &asked.body["id"];
    let error = |id: &Value, code: i32, message: &str| {
        Json(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
    };
    Some(match form {
        0 => StatusCode::NOT_FOUND.into_response(),
        1 => (StatusCode::NOT_FOUND, Json(json!({"jsonrpc": "2.0", "id": id}))).into_response(),
        2 => (StatusCode::NOT_FOUND, error(&Value::Null, -32001, "Session not found")).into_response(),
        3 => {
            let error = error(&Value::Null, -32000, "Bad Request: No valid session ID provided");
            (StatusCode::BAD_REQUEST, error).into_response()
        }
        4 => (StatusCode::BAD_REQUEST, "Missing session ID").into_response(),
        5 => error(id, -32002, "Server not initialized").into_response(),
        6 => error(id, -32600, "Session not found").into_response(),
        7 => events("event: message\ndata: {\"error\":\"Session not found\"}\n\n".to_owned()),
        8 => Json(json!({"error": {"message": "session expired"}})).into_response(),
        9 => (StatusCode::UNAUTHORIZED, "Unauthorized: Session not found").into_response(),
        10 => error(id, -32603, "Invalid or expired session").into_response(),
        11 => (StatusCode::BAD_REQUEST, error(id, -32602, "Invalid session ID")).into_response(),
        12 => {
            let words = "Unexpected message, expect initialize request";
            (StatusCode::UNPROCESSABLE_ENTITY, words).into_response()
        }
        13 => {
            let error = json!({"code": -32600, "message": "Session not found"});
            events(event(&json!({"jsonrpc": "2.0", "id": "server-error", "error": error})))
        }
        _ => return None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_form_of_a_forgotten_session_renews_it_once() {
    const CALLS: usize = 100;
    for form in 0..14 {
        let (url, script, _serving) = scripted(move |asked| {
            let is_old = asked.method() == "tools/call" && asked.header("mcp-session-id") == Some("1");
            is_old.then(|| gone(asked, form)).flatten()
        })
        .await;
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        for answer in futures_util::future::join_all((0..CALLS).map(|_| call(&manager))).await {
            assert_eq!(answer.unwrap(), "done", "form {form}");
        }
        assert_eq!(script.find("initialize").len(), 2, "form {form}: one handshake for all");
        assert_eq!(script.find("server/discover").len(), 1, "form {form}: its era is known");
        let sent = |session| {
            script.count(|asked: &Asked| {
                asked.method() == "tools/call" && asked.header("mcp-session-id") == Some(session)
            })
        };
        assert_eq!(sent("2"), CALLS, "form {form}");
        assert!(sent("1") <= CALLS, "form {form}");
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_under_way_outlive_the_end_of_their_session() {
    let (number, until) = (AtomicUsize::new(0), Arc::new(Notify::new()));
    let hold = until.clone();
    let (url, script, _serving) = scripted(move |asked| {
        if asked.method() != "tools/call" || asked.header("mcp-session-id") != Some("1") {
            return None;
        }
        match number.fetch_add(1, SeqCst) {
            0 => Some(held_back(Json(asked.says("taken before")).into_response(), hold.clone())),
            _ => gone(asked, 0),
        }
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    let others = async {
        within("the first call", || script.find("tools/call").len() == 1).await;
        assert_eq!(call(&manager).await.unwrap(), "done");
        until.notify_one();
    };
    let (first, ()) = tokio::join!(call(&manager), others);
    assert_eq!(first.unwrap(), "taken before");
    assert_eq!(script.find("initialize").len(), 2);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_not_renewed_without_end() {
    let (url, script, _serving) =
        scripted(|asked| (asked.method() == "tools/call").then(|| gone(asked, 0)).flatten()).await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    for _ in 0..8 {
        let error = call(&manager).await.unwrap_err();
        assert!(matches!(error, Error::CallRefused { .. }), "{error:?}");
        assert!(
            error.to_string().contains("HTTP 404") && error.to_string().contains("was not run"),
            "{error}"
        );
    }
    assert_eq!(script.find("initialize").len(), 2, "the server knows the new session: `ping` is answered");
    assert_eq!(script.find("tools/call").len(), 9);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_404_for_a_method_or_tool_ends_no_session() {
    for (code, message) in [(-32601, "Method not found"), (-32602, "Unknown tool: t")] {
        let (url, script, _serving) = scripted(move |asked| {
            let error = json!({"code": code, "message": message});
            let answer = json!({"jsonrpc": "2.0", "id": asked.body["id"], "error": error});
            (asked.method() == "tools/call").then(|| (StatusCode::NOT_FOUND, Json(answer)).into_response())
        })
        .await;
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        let error = call(&manager).await.unwrap_err();
        assert!(matches!(error, Error::CallRefused { rpc_code, .. } if rpc_code == code), "{error:?}");
        assert_eq!((script.find("initialize").len(), script.find("tools/call").len()), (1, 1));
        manager.shutdown().await;
    }
}
