//! Calls on a persistent session.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Map, json};
use toolcrib::{
    CallOptions, CancellationToken, Config, Error, ErrorCode, Manager, ServerEvent, StartOptions,
    config::NamePattern,
};

use crate::support::{Lab, call, manager, object, say, wait_until_says};

/// Longer than any test.
const FOREVER: u64 = 3_600_000;

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_calls_at_once_share_one_process() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[&lab.flag("spawns")])]).await;
    let tools = manager.toolbox();
    let pid = say(&tools, "one", "pid").await.unwrap();
    let calls = (0..200).map(|n| {
        let tools = &tools;
        async move {
            let text = format!("call {n}");
            assert_eq!(call(tools, "one", "sleep", json!({"ms": 20})).await.unwrap(), "awake");
            assert_eq!(call(tools, "one", "echo", json!({"text": text})).await.unwrap(), text);
            say(tools, "one", "pid").await.unwrap()
        }
    });
    let pids = futures_util::future::join_all(calls).await;
    assert!(pids.iter().all(|other| *other == pid), "{pids:?}");
    assert_eq!(lab.lines("spawns"), [pid]);
    manager.shutdown().await;
}

#[tokio::test]
async fn arguments_that_break_the_schema_are_not_sent() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[&lab.flag("count")])]).await;
    let tools = manager.toolbox();
    for wrong in [json!({}), json!({"n": "1"}), json!({"n": -1}), json!({"n": 1, "m": 2})] {
        let error = call(&tools, "one", "effect", wrong).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ArgumentsInvalid);
        assert_eq!(error.causes().len(), 1, "{:?}", error.causes());
    }
    let error = call(&tools, "one", "efect", json!({"n": 1})).await.unwrap_err();
    assert_eq!(error.help().as_deref(), Some("did you mean `effect`?"));
    assert_eq!(say(&tools, "one", "calls").await.unwrap(), "1", "this call is the only one that arrived");
    assert_eq!(lab.lines("count"), [""; 0]);
    manager.shutdown().await;
}

/// One thread serves all calls, as in the command line.
#[tokio::test]
async fn a_schema_that_never_finishes_checking_blocks_no_call() {
    let lab = Lab::new();
    let next = |level: usize| json!({"$ref": format!("#/$defs/d{}", level + 1)});
    let mut definitions: Map<String, serde_json::Value> =
        (0..60).map(|level| (format!("d{level}"), json!({"allOf": [next(level), next(level)]}))).collect();
    definitions.insert("d60".to_owned(), json!({"type": "object"}));
    let again = json!({"properties": {"x": {"$ref": "#"}}});
    let schemas = [
        // By its references alone, and at each level of the arguments.
        json!({"type": "object", "$defs": definitions, "allOf": [{"$ref": "#/$defs/d0"}]}),
        json!({"type": "object", "allOf": [again, again]}),
    ];
    let deep = (0..60).fold(json!({}), |below, _| json!({"x": below}));
    for schema in schemas {
        std::fs::write(lab.file("odd"), schema.to_string()).unwrap();
        let manager = manager([lab.server("bad", &[&lab.flag("odd")]), lab.server("good", &[])]).await;
        let tools = manager.toolbox();
        assert_eq!(call(&tools, "bad", "odd", deep.clone()).await.unwrap(), "fine");
        assert_eq!(call(&tools, "good", "echo", json!({"text": "here"})).await.unwrap(), "here");
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn denied_tools_are_refused_at_call_time() {
    let lab = Lab::new();
    let open = manager([lab.server("one", &[])]).await;
    let entry = open.catalog().find("one", "effect").unwrap().clone();
    let mut config = lab.server("one", &[&lab.flag("count")]);
    config.tools.deny.push(NamePattern::new("eff*").unwrap());
    let manager = manager([config]).await;
    let tools = manager.toolbox();
    assert!(manager.catalog().find("one", "effect").is_err());
    assert!(manager.catalog().find("one", "die_after_effect").is_ok());
    let by_name = call(&tools, "one", "effect", json!({"n": 1})).await.unwrap_err();
    assert_eq!(by_name.code(), ErrorCode::ToolDenied);
    assert_eq!(by_name.to_string(), "`one.effect` is denied by the configuration");
    assert_eq!(by_name.help().as_deref(), Some("the rule is in `servers.one.tools`"));
    let near = call(&tools, "one", "efect", json!({"n": 1})).await.unwrap_err();
    assert_eq!(near.code(), ErrorCode::ToolNotFound);
    assert_eq!(near.help().as_deref(), Some("did you mean `effect`? The configuration denies it"));
    // An entry of elsewhere is no way around.
    let by_entry =
        tools.call_entry(&entry, &object(json!({"n": 1})), &CallOptions::default()).await.unwrap_err();
    assert_eq!(by_entry.code(), ErrorCode::ToolDenied);
    let unchecked = tools
        .call_entry(&entry, &object(json!({"n": 1})), &CallOptions::new().unchecked())
        .await
        .unwrap_err();
    assert_eq!(unchecked.code(), ErrorCode::ToolDenied);
    assert_eq!(lab.lines("count"), [""; 0]);
    manager.shutdown().await;
    open.shutdown().await;
}

#[tokio::test]
async fn a_timeout_cancels_the_call_and_keeps_the_session() {
    for flags in [&[][..], &["modern"]] {
        let lab = Lab::new();
        let mut config = lab.server("one", flags);
        config.tool_timeouts.insert("sleep".to_owned(), Duration::from_millis(300));
        let manager = manager([config]).await;
        let tools = manager.toolbox();
        let pid = say(&tools, "one", "pid").await.unwrap();
        let error = call(&tools, "one", "sleep", json!({"ms": FOREVER})).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::CallTimeout);
        assert_eq!(error.to_string(), "`one.sleep` gave no answer within 300ms");
        wait_until_says(&tools, "one", "cancelled", "1").await;
        assert_eq!(say(&tools, "one", "pid").await.unwrap(), pid);
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn progress_extends_a_call_up_to_the_maximum() {
    let lab = Lab::new();
    let mut config = lab.server("one", &[]);
    config.call_timeout = Duration::from_millis(1500);
    let patient = config.clone();
    config.max_call_time = Duration::from_millis(2500);
    let (patient, strict) = tokio::join!(manager([patient]), manager([config]));
    let (patiently, strictly) = (patient.toolbox(), strict.toolbox());
    let (done, ended) = tokio::join!(
        call(&patiently, "one", "progress", json!({"ms": 4000, "every": 50})),
        call(&strictly, "one", "progress", json!({"ms": FOREVER, "every": 50})),
    );
    assert_eq!(done.unwrap(), "awake");
    match ended.unwrap_err() {
        Error::CallTimeout { after, .. } => assert_eq!(after, Duration::from_millis(2500)),
        other => panic!("{other}"),
    }
    wait_until_says(&strictly, "one", "cancelled", "1").await;
    tokio::join!(patient.shutdown(), strict.shutdown());
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[])]).await;
    let tools = manager.toolbox();
    tokio::select! {
        answer = call(&tools, "one", "sleep", json!({"ms": FOREVER})) => panic!("{answer:?}"),
        () = wait_until_says(&tools, "one", "in_flight", "1") => {}
    }
    wait_until_says(&tools, "one", "cancelled", "1").await;
    manager.shutdown().await;
}

#[tokio::test]
async fn all_pages_are_listed() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &["pages=5"])]).await;
    let catalog = manager.catalog();
    let names: Vec<&str> = catalog.entries().iter().map(|entry| entry.tool.name.as_str()).collect();
    assert_eq!(names[..2], ["echo", "effect"]);
    assert!(names.ends_with(&["page_0", "page_1", "page_2", "page_3", "page_4"]), "{names:?}");
    assert_eq!(manager.report().servers[0].outcome.as_ref().unwrap().tools, names.len());
    manager.shutdown().await;
}

#[tokio::test]
async fn a_repeated_list_cursor_ends_the_list() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &["pages=2", "loop-cursor"])]).await;
    let ready = manager.report().servers[0].outcome.clone().unwrap();
    assert_eq!(ready.oddities, ["`nextCursor` is \"1\" for the second time; the list ends there"]);
    assert!(manager.catalog().find("one", "page_1").is_ok(), "what was listed before counts");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_result_of_a_megabyte_arrives_whole() {
    let lab = Lab::new();
    let manager = manager([lab.server("one", &[])]).await;
    let big = call(&manager.toolbox(), "one", "big", json!({"bytes": 1_000_000})).await.unwrap();
    assert_eq!(big.len(), 1_000_000);
    assert!(big.bytes().all(|byte| byte == b'x'));
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_answer_is_reported_while_it_waits() {
    let lab = Lab::new();
    let mut server = lab.server("one", &[]);
    server.slow_call_notice = Duration::from_millis(50);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let observe = move |event| {
        if let ServerEvent::SlowCall { server, tool, waited } = event {
            let _ = tell.send((server.to_string(), tool, waited));
        }
    };
    let manager =
        Manager::start_with(&Config::new([server]), StartOptions::new().observe(observe)).await.unwrap();
    let tools = manager.toolbox();
    let (first, second) = tokio::select! {
        answer = call(&tools, "one", "sleep", json!({"ms": FOREVER})) => panic!("{answer:?}"),
        told = async { (told.recv().await.unwrap(), told.recv().await.unwrap()) } => told,
    };
    assert_eq!((first.0.as_str(), first.1.as_str()), ("one", "sleep"));
    assert!(
        first.2 >= Duration::from_millis(50) && second.2 >= Duration::from_millis(100),
        "{first:?} {second:?}"
    );
    assert_eq!(call(&tools, "one", "sleep", json!({"ms": 120})).await.unwrap(), "awake", "it goes on");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_token_ends_a_call_and_the_session_goes_on() {
    let lab = Lab::new();
    let manager = Manager::start(&Config::new([lab.server("one", &[])])).await.unwrap();
    let tools = manager.toolbox();
    let entry = tools.catalog().find("one", "sleep").unwrap().clone();
    let token = CancellationToken::new();
    let options = CallOptions::new().cancel(token.clone());
    let arguments = object(json!({"ms": 60_000}));
    let (outcome, ()) = tokio::join!(tools.call_entry(&entry, &arguments, &options), async {
        while manager.status()[0].in_flight == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        token.cancel();
    });
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::CallCancelled { .. }), "{error}");
    assert_eq!(error.code(), ErrorCode::Cancelled);
    let after = manager.call("one", "pid", Map::new()).await.unwrap();
    assert!(!after.is_error);
    assert_eq!(manager.status()[0].restarts, 0);
}

#[tokio::test]
async fn a_token_ends_a_start_and_nothing_is_left() {
    let lab = Lab::new();
    let token = CancellationToken::new();
    let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), token.clone());
    let reports = seen.clone();
    let observe = move |event| match event {
        ServerEvent::Ready { .. } => stop.cancel(),
        ServerEvent::StartCancelled { report } => reports.lock().unwrap().push(report),
        _ => {}
    };
    let servers = [lab.server("one", &[]), lab.server("silent", &["init-delay=50000"])];
    let options = StartOptions::new().observe(observe).cancel(token);
    let outcome = Manager::start_with(&Config::new(servers), options).await;
    assert!(matches!(outcome, Err(Error::Cancelled)));
    let reports = seen.lock().unwrap();
    assert_eq!(reports.len(), 1);
    assert!(reports[0].survivors.is_empty());
    lab.await_nobody();
}
