//! Servers that are started by their first call: their tools come from the cache of an earlier start.

use std::{
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::json;
use toolcrib::{
    Agent, CallOptions, Config, Error, ErrorCode, LlmClient, Manager, ServerConfig, ServerEvent,
    StartOptions, Task, Toolbox,
    config::{AgentConfig, Lifecycle},
    session::ServerState,
    start::ReadyServer,
};

use crate::{
    support::program::{self, SECRET, err, out, up},
    support::{Lab, call, say, signal, wait_for, within},
};

/// State that is remembered between the starts of one test.
struct Bench {
    lab: Lab,
    events: Arc<Mutex<Vec<ServerEvent>>>,
}

impl Bench {
    fn new() -> Self {
        Self { lab: Lab::new(), events: Arc::default() }
    }

    /// A fixture that counts its starts in `spawns` and takes further tools from `extra`.
    fn server(&self, name: &str, lifecycle: Lifecycle, flags: &[&str]) -> ServerConfig {
        let (spawns, extra) = (self.lab.flag("spawns"), self.lab.flag("extra"));
        let mut server = self.lab.server(name, &[&[spawns.as_str(), &extra], flags].concat());
        server.lifecycle = lifecycle;
        server
    }

    fn config(&self, servers: impl IntoIterator<Item = ServerConfig>) -> Config {
        let mut config = Config::new(servers);
        config.cache_folder = Some(self.lab.file("cache"));
        config
    }

    async fn start(&self, servers: impl IntoIterator<Item = ServerConfig>) -> Manager {
        let events = self.events.clone();
        let observe = move |event| events.lock().unwrap().push(event);
        Manager::start_with(&self.config(servers), StartOptions::new().observe(observe)).await.unwrap()
    }

    /// Starts once, so that there is something to remember.
    async fn teach(&self, servers: impl IntoIterator<Item = ServerConfig>) {
        self.start(servers).await.shutdown().await;
        self.events.lock().unwrap().clear();
    }

    fn extra(&self, lines: &str) {
        std::fs::write(self.lab.file("extra"), lines).unwrap();
    }

    fn spawns(&self) -> usize {
        self.lab.lines("spawns").len()
    }

    /// Servers that became ready after `teach`.
    fn ready(&self) -> Vec<ReadyServer> {
        let events = self.events.lock().unwrap();
        let ready = events.iter().filter_map(|event| match event {
            ServerEvent::Ready { row } => row.outcome.clone().ok(),
            _ => None,
        });
        ready.collect()
    }
}

fn state(tools: &Toolbox) -> ServerState {
    tools.status()[0].state
}

/// Everything of the catalog that a model sees.
fn shown(tools: &Toolbox) -> String {
    let entries =
        tools.catalog().entries().iter().map(|entry| json!([entry.visible_name, entry.tool])).collect();
    serde_json::Value::Array(entries).to_string()
}

/// Checks that what is done to start a server faster does not make it another one than the one that is remembered.
#[tokio::test(flavor = "multi_thread")]
async fn node_servers_and_runner_servers_are_cached_too() {
    let fixture = crate::support::FIXTURE;
    let bench = Bench::new();
    std::os::unix::fs::symlink(fixture, bench.lab.file("node")).unwrap();
    let runner = bench.lab.file("npx");
    std::fs::write(&runner, format!("#!/bin/sh\nshift 2\n'{fixture}' \"$@\"\nexit $?\n")).unwrap();
    std::fs::set_permissions(&runner, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (program, first) in [("node", &[][..]), ("npx", &["-y", "package"])] {
        let servers = || {
            let mut server = bench.lab.command("one", bench.lab.file(program).to_str().unwrap(), first);
            server.lifecycle = Lifecycle::Lazy;
            [server]
        };
        // The second time its start is another one: with a cache of Node's, or without the runner.
        for parked in [0, 1, 1] {
            let manager = bench.start(servers()).await;
            assert_eq!(manager.report().parked(), parked, "{program}");
            say(&manager.toolbox(), "one", "pid").await.unwrap();
            assert!(manager.shutdown().await.survivors.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_first_calls_start_a_lazy_server_once() {
    let bench = Bench::new();
    let servers = || [bench.server("one", Lifecycle::Lazy, &[])];
    let first = bench.start(servers()).await;
    assert_eq!(
        (bench.spawns(), state(&first.toolbox())),
        (1, ServerState::Ready),
        "nothing is known of it yet"
    );
    let before = shown(&first.toolbox());
    first.shutdown().await;

    let manager = bench.start(servers()).await;
    let tools = manager.toolbox();
    assert_eq!((bench.spawns(), state(&tools)), (1, ServerState::Parked));
    assert_eq!((manager.report().ready(), manager.report().parked()), (1, 1));
    let status = &tools.status()[0];
    assert!(status.tools > 5 && status.listed.is_some() && status.pid.is_none(), "{status:?}");
    assert_eq!(shown(&tools), before, "to the byte");
    let calls = (0..50).map(|n| {
        let tools = &tools;
        async move { call(tools, "one", "echo", json!({"text": n.to_string()})).await.unwrap() }
    });
    let answers = futures_util::future::join_all(calls).await;
    assert_eq!(answers, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!((bench.spawns(), state(&tools)), (2, ServerState::Ready));
    assert_eq!(shown(&tools), before, "to the byte, now that it was asked");
    assert_eq!((tools.status()[0].restarts, bench.ready().last().unwrap().changes.clone()), (0, None));
    let report = manager.shutdown().await;
    assert!(report.survivors.is_empty());
    bench.lab.await_nobody();
}

#[tokio::test(flavor = "multi_thread")]
async fn list_changes_are_reported_and_removed_tools_not_called() {
    let bench = Bench::new();
    let servers = || [bench.server("one", Lifecycle::Lazy, &[])];
    bench.extra("gone\nsame\nother in old words");
    bench.teach(servers()).await;
    bench.extra("same\nother in new words\nextra");
    let manager = bench.start(servers()).await;
    let tools = manager.toolbox();
    let old = tools.catalog();
    let gone = old.find("one", "gone").unwrap();
    assert!(old.find("one", "extra").is_err());
    let nothing = serde_json::Map::new();
    let error = tools.call_entry(gone, &nothing, &CallOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ToolNotFound);
    let error = tools.call_entry(gone, &nothing, &CallOptions::new().unchecked()).await.unwrap_err();
    assert!(matches!(error, Error::ToolNotFound { .. }), "{error}");
    assert_eq!(say(&tools, "one", "calls").await.unwrap(), "1", "this one");
    assert_eq!(say(&tools, "one", "extra").await.unwrap(), "extra");
    let changes = bench.ready()[0].changes.clone().unwrap();
    assert_eq!((&*changes.added, &*changes.removed), (&["extra".to_owned()][..], &["gone".to_owned()][..]));
    assert_eq!(changes.changed, ["other"]);
    assert!(changes.since.is_some());
    manager.shutdown().await;
    // The new list is what is remembered now.
    let manager = bench.start(servers()).await;
    assert!(manager.catalog().find("one", "extra").is_ok() && manager.catalog().find("one", "gone").is_err());
    assert_eq!(state(&manager.toolbox()), ServerState::Parked);
    assert!(manager.shutdown().await.servers.is_empty(), "it was not started, and so not stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_finds_a_tool_that_the_cache_lacks() {
    let bench = Bench::new();
    bench.teach([bench.server("one", Lifecycle::Lazy, &[])]).await;
    bench.extra("extra");
    let manager = bench.start([bench.server("one", Lifecycle::Lazy, &[])]).await;
    assert_eq!(say(&manager.toolbox(), "one", "extra").await.unwrap(), "extra");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_change_of_a_live_server_is_cached() {
    let bench = Bench::new();
    bench.extra("announce");
    let manager = bench.start([bench.server("one", Lifecycle::Lazy, &[])]).await;
    bench.extra("announce\nextra");
    say(&manager.toolbox(), "one", "announce").await.unwrap();
    within("the new tool", || manager.catalog().find("one", "extra").is_ok()).await;
    manager.shutdown().await;
    let manager = bench.start([bench.server("one", Lifecycle::Lazy, &[])]).await;
    assert_eq!(state(&manager.toolbox()), ServerState::Parked);
    assert!(manager.catalog().find("one", "extra").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_lazy_start_says_why_and_is_retried() {
    let bench = Bench::new();
    let broken = bench.lab.file("broken");
    // The fixture, unless there is a file: nothing that its fingerprint knows of.
    let script = format!("[ -e '{}' ] && set -- \"$1\" die-now; exec \"$@\"", broken.display());
    let fixture = crate::support::FIXTURE;
    let flag = bench.lab.flag("spawns");
    let server = |lifecycle| {
        let mut server = bench.lab.command("one", "/bin/sh", &["-c", &script, "sh", fixture, &flag]);
        server.lifecycle = lifecycle;
        server
    };
    bench.teach([server(Lifecycle::Lazy)]).await;
    std::fs::write(&broken, "").unwrap();
    let told = |error: &Error| (error.code(), error.to_string(), error.stderr_tail().to_vec(), error.help());
    let eager = bench.start([server(Lifecycle::Eager)]).await;
    let expected = told(&say(&eager.toolbox(), "one", "pid").await.unwrap_err());
    drop(eager);

    let manager = bench.start([server(Lifecycle::Lazy)]).await;
    let tools = manager.toolbox();
    assert_eq!(state(&tools), ServerState::Parked);
    let callers = (0..10).map(|_| say(&tools, "one", "pid"));
    for outcome in futures_util::future::join_all(callers).await {
        assert_eq!(told(&outcome.unwrap_err()), expected);
    }
    let status = &tools.status()[0];
    assert!(status.error.is_some() && status.state == ServerState::Failed, "{status:?}");
    std::fs::remove_file(&broken).unwrap();
    let mut answer = say(&tools, "one", "pid").await;
    for _ in 0..100 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        answer = say(&tools, "one", "pid").await;
    }
    assert_eq!(bench.lab.lines("spawns").last(), Some(&answer.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_goes_on_when_its_caller_gives_up() {
    let bench = Bench::new();
    let server = || bench.server("one", Lifecycle::Lazy, &["init-delay=300"]);
    bench.teach([server()]).await;
    let manager = bench.start([server()]).await;
    let tools = manager.toolbox();
    let entry = tools.catalog().find("one", "pid").unwrap().clone();
    let options = CallOptions::new().timeout(Duration::from_millis(20));
    let error = tools.call_entry(&entry, &serde_json::Map::new(), &options).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::CallTimeout);
    assert!(error.causes()[0].contains("still being started"), "{:?}", error.causes());
    within("the server", || state(&tools) == ServerState::Ready).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn background_servers_start_one_at_a_time() {
    let bench = Bench::new();
    let servers = || ["a", "b", "c"].map(|name| bench.server(name, Lifecycle::Background, &[]));
    bench.teach(servers()).await;
    let manager = bench.start(servers()).await;
    assert_eq!(manager.report().parked(), 3);
    within("all three", || manager.status().iter().all(|server| server.state == ServerState::Ready)).await;
    assert_eq!(bench.spawns(), 6);
    manager.shutdown().await;
    bench.lab.await_nobody();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_server_is_stopped_but_never_under_a_call() {
    let bench = Bench::new();
    let manager = bench.start([bench.server("one", Lifecycle::Idle(Duration::from_millis(100)), &[])]).await;
    let tools = manager.toolbox();
    assert_eq!(call(&tools, "one", "sleep", json!({"ms": 1000})).await.unwrap(), "awake");
    assert_eq!(bench.spawns(), 1);
    within("the stop", || state(&tools) == ServerState::Parked && bench.lab.servers().is_empty()).await;
    assert!(!tools.catalog().entries().is_empty());
    assert_eq!(call(&tools, "one", "echo", json!({"text": "again"})).await.unwrap(), "again");
    assert_eq!((bench.spawns(), tools.status()[0].restarts), (2, 0));
    manager.shutdown().await;
    bench.lab.await_nobody();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_expiry_of_a_tool_list_is_respected() {
    let bench = Bench::new();
    for (ttl, parked) in [("ttl=0", 0), ("ttl=3600000", 1)] {
        let server = || [bench.server("one", Lifecycle::Lazy, &["modern", ttl])];
        bench.teach(server()).await;
        assert_eq!(bench.start(server()).await.report().parked(), parked, "{ttl}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn required_and_changed_servers_start_at_once() {
    let bench = Bench::new();
    let server = || bench.server("one", Lifecycle::Lazy, &[]);
    bench.teach([server()]).await;
    let mut config = bench.config([server()]);
    config.servers[0].required = true;
    assert_eq!(Manager::start(&config).await.unwrap().report().parked(), 0);
    let other = bench.server("one", Lifecycle::Lazy, &["pages=2"]);
    assert_eq!(bench.start([other]).await.report().parked(), 0);
    assert_eq!(bench.start([server()]).await.report().parked(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_readers_never_see_a_partial_cache_file() {
    let bench = Bench::new();
    let server = || [bench.server("one", Lifecycle::Lazy, &[])];
    bench.teach(server()).await;
    let file = std::fs::read_dir(bench.lab.file("cache/catalog")).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::metadata(&file).unwrap().len();
    let writers = (0..8).map(|_| async {
        let mut config = bench.config(server());
        config.start_all();
        Manager::start(&config).await.unwrap().shutdown().await;
    });
    let reading = tokio::task::spawn_blocking(move || {
        for _ in 0..2000 {
            assert_eq!(std::fs::metadata(&file).unwrap().len(), whole);
        }
    });
    futures_util::future::join_all(writers).await;
    reading.await.unwrap();
    wait_for("no draft", || std::fs::read_dir(bench.lab.file("cache/catalog")).unwrap().count() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_the_actual_tool_list_in_its_next_turn() {
    let bench = Bench::new();
    bench.extra("gone");
    bench.teach([bench.server("one", Lifecycle::Lazy, &[])]).await;
    bench.extra("extra");
    let manager = bench.start([bench.server("one", Lifecycle::Lazy, &[])]).await;
    let script = r#"
        [[steps]]
        when = { role = "user" }
        calls = [{ tool = "one__gone" }]
        [[steps]]
        when = { matches = "has no tool" }
        calls = [{ tool = "one__extra" }]
        [[steps]]
        say = "{{last}}"
    "#;
    let llm = LlmClient::script_text("test", script).unwrap();
    let agent = Agent::new(llm, manager.toolbox(), AgentConfig::default());
    let report = agent.run(&Task::question("a", "go")).await;
    assert_eq!(report.answer.as_deref(), Some("extra"), "{:?}", report.transcript);
}

#[test]
fn the_program_shows_parked_servers_and_list_changes() {
    let bench = program::Bench::new(
        "[defaults]\nlifecycle = \"lazy\"\n[servers.one]\ncommand = FIXTURE\nargs = [\"extra=extra\"]\nenv = { KEY = \"${PLANTED_TOKEN}\" }\n",
    );
    bench.file("extra", "more");
    let tools = || {
        let output = bench.run(&["--json", "tools"]);
        let document: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
        document["servers"][0].clone()
    };
    let first = tools();
    let second = tools();
    assert_eq!((&first["state"], &second["state"]), (&json!("ready"), &json!("parked")));
    assert_eq!((&first["tools"], second["listed"].is_string()), (&second["tools"], true));
    assert!(out(&bench.run(&["tools"])).contains("parked, listed "));
    assert!(!out(&bench.run(&["tools", "--refresh"])).contains("parked"));
    bench.file("extra", "other");
    let check = bench.run(&["check"]);
    assert!(
        err(&check).contains("one: +1 -1 tools since ") && err(&check).contains("+other -more"),
        "{}",
        err(&check)
    );
    let (mut child, _, text) = up(&bench);
    assert!(text.contains("Parked one") && text.contains("1 of 1 ready, 1 of them parked"), "{text}");
    signal("INT", child.id());
    child.wait().unwrap();
    let files = std::fs::read_dir(bench.0.path().join("cache/toolcrib/catalog")).unwrap();
    let texts: Vec<String> =
        files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect();
    assert!(texts.len() == 1 && !texts[0].contains(SECRET), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_leaves_a_parked_server_parked() {
    let bench = Bench::new();
    let servers = || [bench.server("one", Lifecycle::Lazy, &[]), bench.server("two", Lifecycle::Lazy, &[])];
    bench.teach(servers()).await;
    let manager = bench.start(servers()).await;
    let mut config = bench.config(servers());
    config.servers[1].server.as_mut().unwrap().call_timeout = Duration::from_secs(7);
    let report = manager.apply(&config).await.unwrap();
    assert_eq!((report.unchanged.len(), report.restarted.len(), report.failures.len()), (1, 1, 0));
    let states: Vec<_> = manager.status().iter().map(|server| server.state).collect();
    assert_eq!(states, [ServerState::Parked, ServerState::Ready]);
    manager.restart("one").await.unwrap();
    assert_eq!((manager.status()[0].state, manager.status()[0].restarts), (ServerState::Ready, 0));
    manager.shutdown().await;
    bench.lab.await_nobody();
}
