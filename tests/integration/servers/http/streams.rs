//! Streams of the era before 2026-07-28 that break off and go on, sessions that end, requests of the server's, and the
//! cancellation of calls in both eras.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use axum::{
    Json,
    body::{Body, Bytes},
    http::{Method, StatusCode},
    response::IntoResponse as _,
};
use serde_json::json;
use tokio::sync::Notify;
use toolcrib::Manager;

use super::{
    super::remote::remote,
    scripted::{call, event, events, held_back, modern, open_events, scripted},
};
use crate::support::within;

#[tokio::test(flavor = "multi_thread")]
async fn a_call_goes_on_where_its_stream_broke_off() {
    let pending = Arc::new(Mutex::new(None));
    let (url, script, _serving) = scripted(move |asked| match (&asked.http, asked.method()) {
        (&Method::POST, "tools/call") => {
            *pending.lock().unwrap() = Some((asked.says("after all"), Instant::now()));
            Some(events("id: a1\nretry: 300\ndata: \n\n".to_owned()))
        }
        (&Method::GET, _) if asked.header("last-event-id") == Some("a1") => {
            // The first time nothing is there yet.
            Some(events("id: a2\nretry: 300\ndata: \n\n".to_owned()))
        }
        (&Method::GET, _) if asked.header("last-event-id") == Some("a2") => {
            let (answer, since) = pending.lock().unwrap().take()?;
            assert!(since.elapsed() >= Duration::from_millis(600), "`retry` counts each time");
            Some(events(event(&answer)))
        }
        _ => None,
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "after all");
    assert_eq!(script.find("tools/call").len(), 1, "a call is sent once");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_is_asked_for_a_few_times() {
    for (first, asks) in [("id: a1\nretry: 20\ndata: \n\n", 11), ("data: \n\n", 1)] {
        let (url, script, _serving) = scripted(move |asked| match (&asked.http, asked.method()) {
            (&Method::POST, "tools/call") => Some(events(first.to_owned())),
            (&Method::GET, _) if asked.header("last-event-id").is_some() => Some(events(String::new())),
            _ => None,
        })
        .await;
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        let error = call(&manager).await.unwrap_err();
        assert!(error.to_string().contains("outcome unknown, it was sent once"), "{error}");
        assert!(error.causes().join(" ").contains("ended too early"), "{:?}", error.causes());
        let gets = script.count(|asked| asked.header("last-event-id").is_some());
        assert!(gets < asks, "{gets} times");
        assert_eq!(script.find("tools/call").len(), 1);
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_is_replaced_and_the_last_one_deleted() {
    let (url, script, _serving) = scripted(|asked| {
        let expired = asked.method() == "tools/call" && asked.header("mcp-session-id") == Some("1");
        expired.then(|| StatusCode::NOT_FOUND.into_response())
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "done", "what was refused is sent again");
    let calls = script.find("tools/call");
    let sessions: Vec<_> = calls.iter().filter_map(|asked| asked.header("mcp-session-id")).collect();
    assert_eq!(sessions, ["1", "2"]);
    assert!(calls.iter().all(|asked| asked.header("mcp-protocol-version") == Some("2025-11-25")));
    let first = &script.find("initialize")[0];
    assert_eq!(first.body["params"]["protocolVersion"], "2025-11-25");
    assert_eq!((first.header("mcp-session-id"), first.header("mcp-protocol-version")), (None, None));
    manager.shutdown().await;
    let deleted =
        script.count(|asked| asked.http == Method::DELETE && asked.header("mcp-session-id") == Some("2"));
    assert_eq!(deleted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_messages_is_taken_in() {
    let (url, _script, _serving) = scripted(|asked| {
        let token = asked.body.pointer("/params/_meta/progressToken")?;
        let progress = json!({"jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1}});
        (asked.method() == "tools/call")
            .then(|| Json(json!([progress, asked.says("in a batch")])).into_response())
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "in a batch");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_remote_server_are_answered() {
    let open = Arc::new(Mutex::new(HashMap::new()));
    let (url, script, _serving) = scripted(move |asked| {
        if asked.method() == "tools/call" {
            let (write, response) = open_events();
            let ask = json!({"jsonrpc": "2.0", "id": "r1", "method": "roots/list"});
            let _ = write.send(event(&ask));
            open.lock().unwrap().insert("r1", (write, asked.says("with roots")));
            return Some(response);
        }
        if asked.body["id"] == "r1" {
            assert_eq!(asked.body["result"], json!({"roots": []}));
            let (write, answer) = open.lock().unwrap().remove("r1").unwrap();
            let _ = write.send(event(&answer));
        }
        None
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    assert_eq!(call(&manager).await.unwrap(), "with roots");
    let replies =
        script.count(|asked| asked.body["id"] == "r1" && asked.header("mcp-session-id") == Some("1"));
    assert_eq!(replies, 1);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_tools_are_noticed_in_both_eras() {
    for is_modern in [false, true] {
        let (changed, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let (now, tell) = (changed.clone(), told.clone());
        let (url, script, _serving) = scripted(move |asked| {
            let name = format!("t{}", now.load(SeqCst));
            let tools = json!([{"name": name, "inputSchema": {"type": "object"}}]);
            let notices = match is_modern {
                true => asked.method() == "subscriptions/listen",
                false => asked.http == Method::GET,
            };
            if notices {
                let (write, response) = open_events();
                if is_modern {
                    assert_eq!(asked.body["params"]["notifications"], json!({"toolsListChanged": true}));
                    let method = "notifications/subscriptions/acknowledged";
                    let _ = write.send(event(&json!({"jsonrpc": "2.0", "method": method, "params": {}})));
                }
                *tell.lock().unwrap() = Some(write);
                return Some(response);
            }
            match is_modern {
                true => modern(asked, &json!({"tools": {"listChanged": true}}), &tools),
                false if asked.method() == "tools/list" => {
                    Some(Json(asked.result(json!({"tools": tools}))).into_response())
                }
                false => None,
            }
        })
        .await;
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        assert!(manager.catalog().find("remote", "t0").is_ok());
        within("the stream of notices", || told.lock().unwrap().is_some()).await;
        changed.store(1, SeqCst);
        let notice = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
        told.lock().unwrap().as_ref().unwrap().send(event(&notice)).unwrap();
        within("the changed tool", || manager.catalog().find("remote", "t1").is_ok()).await;
        let streams = script.count(|asked| asked.http == Method::GET);
        assert_eq!(streams, usize::from(!is_modern), "the new era has no such stream");
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_notices_goes_on_where_it_broke_off() {
    let changed = Arc::new(AtomicUsize::new(0));
    let now = changed.clone();
    let (url, script, _serving) = scripted(move |asked| match (&asked.http, asked.method()) {
        (&Method::GET, _) if asked.header("last-event-id").is_none() => {
            Some(events("id: n1\nretry: 600\ndata: \n\n".to_owned()))
        }
        (&Method::GET, _) if now.load(SeqCst) == 0 => {
            now.store(1, SeqCst);
            let notice = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
            Some(events(format!("id: n2\n{}", event(&notice))))
        }
        // No more of it.
        (&Method::GET, _) => None,
        (_, "tools/list") => {
            let name = format!("t{}", now.load(SeqCst));
            let tools = json!({"tools": [{"name": name, "inputSchema": {"type": "object"}}]});
            Some(Json(asked.result(tools)).into_response())
        }
        _ => None,
    })
    .await;
    let manager = Manager::start(&remote(url, None)).await.unwrap();
    within("the changed tool", || manager.catalog().find("remote", "t1").is_ok()).await;
    within("the last request", || script.count(|asked| asked.header("last-event-id") == Some("n2")) == 1)
        .await;
    assert_eq!(script.count(|asked| asked.header("last-event-id") == Some("n1")), 1);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_until_its_server_can_ask() {
    // The stream of what belongs to no request is answered late, or refused late, or never.
    for (late, refused) in [(true, false), (true, true), (false, false)] {
        let (answered, in_time) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (says, heard) = (answered.clone(), in_time.clone());
        let (url, script, _serving) = scripted(move |asked| {
            if asked.method() == "tools/call" {
                heard.store(says.load(SeqCst), SeqCst);
            }
            (asked.http == Method::GET).then(|| {
                let until = Arc::new(Notify::new());
                if late {
                    let (answered, until) = (says.clone(), until.clone());
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(200));
                        answered.store(true, SeqCst);
                        until.notify_one();
                    });
                }
                let answer = match refused {
                    true => StatusCode::METHOD_NOT_ALLOWED.into_response(),
                    false => events(": nothing yet\n\n".to_owned()),
                };
                held_back(answer, until)
            })
        })
        .await;
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        assert_eq!(call(&manager).await.unwrap(), "done");
        assert_eq!(in_time.load(SeqCst), late, "a call waits for the answer, and not for ever");
        assert_eq!(script.find("tools/call").len(), 1);
        manager.shutdown().await;
    }
}

/// Notified when a stream is closed by its reader.
struct ClosedNotice(Arc<Notify>);

impl Drop for ClosedNotice {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_is_cancelled_in_both_eras() {
    for is_modern in [false, true] {
        let closed = Arc::new(Notify::new());
        let notify = closed.clone();
        let (url, script, _serving) = scripted(move |asked| match asked.method() {
            "tools/call" => {
                let notice = ClosedNotice(notify.clone());
                let silent = futures_util::stream::unfold(notice, |notice| async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Some((Ok::<_, std::io::Error>(Bytes::from_static(b": still here\n\n")), notice))
                });
                Some(([("content-type", "text/event-stream")], Body::from_stream(silent)).into_response())
            }
            _ if is_modern => modern(
                asked,
                &json!({"tools": {}}),
                &json!([{"name": "t", "inputSchema": {"type": "object"}}]),
            ),
            _ => None,
        })
        .await;
        let mut config = remote(url, None);
        config.servers[0].server.as_mut().unwrap().call_timeout = Duration::from_millis(300);
        let manager = Manager::start(&config).await.unwrap();
        let error = call(&manager).await.unwrap_err();
        assert!(matches!(error, toolcrib::Error::CallTimeout { .. }), "{error}");
        // It is told though the session ends at once.
        manager.shutdown().await;
        tokio::time::timeout(Duration::from_secs(30), closed.notified()).await.expect("its stream is closed");
        let id = script.find("tools/call")[0].body["id"].clone();
        let cancelled = script.find("notifications/cancelled");
        assert_eq!(cancelled.len(), usize::from(!is_modern));
        assert!(cancelled.iter().all(|asked| asked.body["params"]["requestId"] == id));
    }
}
