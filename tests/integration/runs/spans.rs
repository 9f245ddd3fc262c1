//! Trace spans as a subscriber of an embedder sees them, compared with docs/tracing.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::Path,
    time::Duration,
};

use serde_json::json;
use toolcrib::{
    Agent, HttpClients, LlmClient, LlmConfig, Manager, Task,
    config::{AgentConfig, HttpConfig},
};
use tracing_subscriber::layer::SubscriberExt;

use crate::support::{
    Lab, call, manager,
    remote_server::{remote, serve},
    spans::{Capture, PRIVATE, Seen, model, table},
    within,
};

/// Fields that these actions do not set: of servers behind a URL, and of refusals. How long a retry waits is known
/// beforehand only where the request waits by itself, and not for its endpoint.
const UNSET: [(&str, &str); 4] = [
    ("tools/call", "server.address"),
    ("tools/call", "server.port"),
    ("tools/call", "rpc.response.status_code"),
    ("wait", "toolcrib.wait_ms"),
];

/// On one thread, that of the subscriber, so that all spans are seen.
#[tokio::test]
async fn spans_match_the_documentation_and_nest() {
    let capture = Capture::default();
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(capture.clone()));

    let lab = Lab::new();
    let mut one = lab.server("one", &["ignore-eof"]);
    one.max_concurrent_calls = NonZeroUsize::new(1);
    (one.stop.eof, one.stop.term) = (Duration::from_millis(50), Duration::from_secs(60));
    let mut frail = lab.server("frail", &[]);
    frail.restart.max = 0;
    let manager = manager([one, frail]).await;
    let tools = manager.toolbox();

    let (url, _model) = model().await;
    let mut config = LlmConfig::new(Some(url), "m");
    config.name = Some("local".to_owned());
    config.api_keys = vec!["private-key".to_owned()];
    let llm =
        LlmClient::new(&config, &HttpClients::new(&HttpConfig::default()).unwrap(), Path::new(".")).unwrap();
    let agent = Agent::new(llm, tools.clone(), AgentConfig::default());
    let report = agent.run(&Task::question("t1", "private-prompt")).await;
    assert_eq!(report.answer.as_deref(), Some("private-answer"), "{:?}", report.error);

    // A request that no caller waits for any more, and one that waits for a permit.
    let sleeping = call(&tools, "one", "sleep", json!({"ms": 3_600_000}));
    let waiting = call(&tools, "one", "echo", json!({"text": "private-argument"}));
    let mut both = Box::pin(futures_util::future::join(sleeping, waiting));
    let waits = || {
        let seen = capture.0.lock().unwrap();
        seen.0
            .iter()
            .any(|span| span.values.get("toolcrib.reason").is_some_and(|reason| reason == "call_limit"))
    };
    tokio::select! {
        _ = &mut both => panic!("a call that sleeps for an hour has ended"),
        () = within("a call that waits for its place", waits) => {}
    }
    drop(both);
    // A server that comes back, and one that does not.
    call(&tools, "one", "die", json!({})).await.unwrap_err();
    call(&tools, "one", "echo", json!({"text": "private-argument"})).await.unwrap();
    call(&tools, "frail", "die", json!({})).await.unwrap_err();
    manager.shutdown().await;

    let seen = capture.0.lock().unwrap();
    let (spans, loose) = &*seen;

    // Names and fields.
    let own = |span: &Seen| {
        let mut fields = span.declared.clone();
        for common in ["error.type", "otel.kind", "otel.status_code"] {
            assert!(fields.remove(common), "{} has no {common}", span.name);
        }
        assert_eq!(fields.remove("otel.name"), !["attempt", "wait"].contains(&span.name), "{}", span.name);
        fields
    };
    let found: BTreeMap<_, _> = spans.iter().map(|span| (span.name, own(span))).collect();
    assert_eq!(found, table("Spans"));
    for (name, fields) in &found {
        for field in fields.iter().filter(|field| !UNSET.contains(&(name, field))) {
            let set = spans.iter().any(|span| span.name == *name && span.values.contains_key(field));
            assert!(set, "`{field}` of {name} was never set");
        }
    }
    let events = spans.iter().flat_map(|span| &span.events).chain(loose);
    let mut told: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for event in events.clone() {
        let fields = event.keys().copied().filter(|field| *field != "message");
        told.entry(&event["message"]).or_default().extend(fields);
    }
    assert_eq!(told.keys().collect::<Vec<_>>(), table("Events").keys().collect::<Vec<_>>());
    for (event, documented) in table("Events") {
        // A server that is never started again has no time for it.
        let missing: Vec<_> = documented.symmetric_difference(&told[event]).collect();
        assert!(
            missing.is_empty() || (event, &missing[..]) == ("stays down", &[&"toolcrib.wait_ms"]),
            "{event}: {missing:?}"
        );
    }

    // Each ends once.
    for span in spans {
        let ends = span.events.iter().filter(|event| ["ended", "failed"].contains(&&*event["message"]));
        assert_eq!(ends.count(), 1, "{} {:?}", span.name, span.values);
    }

    // What stands in what.
    let parent = |span: &Seen| span.parent.map_or("", |parent| spans[parent].name);
    let of = |name: &'static str| spans.iter().filter(move |span| span.name == name);
    let value = |span: &Seen, field: &str| span.values.get(field).cloned().unwrap_or_default();
    assert_eq!(of("chat").map(parent).collect::<Vec<_>>(), ["invoke_agent"; 2]);
    assert_eq!(of("attempt").map(parent).collect::<Vec<_>>(), ["chat"; 3]);
    let attempts: Vec<_> =
        of("attempt").map(|span| (value(span, "toolcrib.attempt"), value(span, "error.type"))).collect();
    let attempts: Vec<_> = attempts.iter().map(|(number, error)| (&**number, &**error)).collect();
    assert_eq!(attempts, [("1", "overloaded"), ("2", ""), ("1", "")]);
    let failed = of("attempt").next().unwrap();
    assert_eq!(
        (&*value(failed, "http.response.status_code"), &*value(failed, "toolcrib.retry")),
        ("503", "true")
    );
    let waits: Vec<_> = of("wait").map(|span| (parent(span), value(span, "toolcrib.reason"))).collect();
    let between = |(parent, reason): &(&str, String)| {
        (*parent == "chat" && reason == "backoff") || (*parent == "attempt" && reason == "endpoint")
    };
    assert!(waits.iter().any(between), "{waits:?}");
    assert!(waits.contains(&("tools/call", "call_limit".to_owned())), "{waits:?}");
    let task = of("invoke_agent").next().unwrap();
    assert_eq!((&*value(task, "toolcrib.task"), &*value(task, "toolcrib.tool_calls")), ("t1", "1"));
    let first = of("tools/call").next().unwrap();
    assert_eq!((parent(first), &*value(first, "otel.name")), ("invoke_agent", "tools/call echo"));
    assert_eq!((&*value(first, "toolcrib.server"), &*value(first, "network.transport")), ("one", "pipe"));
    let ends: Vec<_> = of("tools/call").map(|span| value(span, "error.type")).collect();
    assert_eq!(ends.iter().filter(|end| *end == "cancelled").count(), 2, "{ends:?}");
    assert!(ends.iter().any(|end| end == "session_lost" || end == "server_exited"), "{ends:?}");
    let starts =
        of("server.start").map(|span| (value(span, "toolcrib.server"), value(span, "toolcrib.reason")));
    let starts: Vec<_> = starts.map(|(server, reason)| format!("{server}: {reason}")).collect();
    assert_eq!(starts, ["one: start", "frail: start", "one: restart"]);
    let stop = of("server.stop").rfind(|span| value(span, "toolcrib.server") == "one").unwrap();
    assert_eq!(value(stop, "toolcrib.outcome"), "terminated");
    let steps: Vec<_> = stop.events.iter().filter_map(|event| event.get("toolcrib.step")).collect();
    assert_eq!(steps, ["stdin_closed", "sigterm", "exited"]);

    // Nothing of what was said.
    for text in spans.iter().flat_map(|span| span.values.values()).chain(events.flat_map(BTreeMap::values)) {
        assert!(!PRIVATE.iter().any(|private| text.contains(private)), "{text}");
    }
}

#[tokio::test]
async fn spans_of_http_calls_name_the_address_and_no_header() {
    let capture = Capture::default();
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(capture.clone()));
    let url = serve(false).await;
    let manager =
        Manager::start(&remote(format!("{url}?token=private-key"), Some("open sesame"))).await.unwrap();
    manager.call("remote", "era", serde_json::Map::new()).await.unwrap();
    manager.shutdown().await;
    let seen = capture.0.lock().unwrap();
    let call = seen.0.iter().find(|span| span.name == "tools/call").unwrap();
    let port = url.rsplit(':').next().unwrap().trim_end_matches("/mcp");
    let fields = ["server.address", "server.port", "network.transport", "mcp.protocol.version"];
    assert_eq!(fields.map(|field| &*call.values[field]), ["127.0.0.1", port, "tcp", "2026-07-28"]);
    let names: Vec<_> = seen.0.iter().map(|span| span.name).collect();
    assert_eq!(names, ["server.start", "tools/call", "server.stop"]);
    for text in seen.0.iter().flat_map(|span| span.values.values()) {
        assert!(!text.contains("open sesame") && !text.contains("private-key"), "{text}");
    }
}
