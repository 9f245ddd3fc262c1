//! toolcrib.lock: servers whose tools differ from the reviewed ones are refused, at their start and later.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use serde_json::{Value, json};
use toolcrib::{
    Config, ErrorCode, Manager, ServerConfig, catalog::LockFile, config::Lifecycle, session::ServerState,
};

use crate::{
    support::program::{Bench, code, err, out},
    support::{Lab, say, within},
};

/// A configuration of two fixtures; `one` takes further tools from `extra`.
fn bench(required: &str) -> Bench {
    let bench = Bench::new("");
    let extra = bench.0.path().join("extra");
    fs::write(&extra, "more in old words\n").unwrap();
    let fixture = crate::support::FIXTURE;
    let config = format!(
        "[servers.one]\ncommand = {fixture:?}\nargs = [\"extra={}\"]\n{required}\n[servers.two]\ncommand = {fixture:?}\n",
        extra.display()
    );
    bench.file("servers.toml", &config);
    bench
}

#[test]
fn a_changed_tool_is_refused_by_name_until_reviewed() {
    let bench = bench("");
    let unlocked = bench.run(&["tools", "--locked"]);
    assert_eq!(code(&unlocked), 3, "{}", err(&unlocked));
    assert!(err(&unlocked).contains("write it with `toolcrib lock`"), "{}", err(&unlocked));

    let locked = bench.run(&["lock"]);
    assert_eq!(code(&locked), 0, "{}", err(&locked));
    let file = bench.0.path().join("toolcrib.lock");
    let first = fs::read_to_string(&file).unwrap();
    assert!(first.contains("[servers.one]") || first.contains("[servers.\"one\"]"), "{first}");
    assert!(first.contains("fixture"), "what the server calls itself: {first}");
    assert_eq!(code(&bench.run(&["lock"])), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), first, "the same again");
    assert_eq!(code(&bench.run(&["lock", "--diff"])), 0);
    assert_eq!(code(&bench.run(&["call", "--locked", "one.pid"])), 0);

    bench.file("extra", "more in new words\nanother\n");
    let call = bench.run(&["--json", "call", "--locked", "one.pid"]);
    let error: Value = serde_json::from_str(&err(&call)).unwrap();
    assert_eq!((code(&call), &error["error"]["code"]), (10, &json!("tools_changed")), "{error}");
    let text = bench.run(&["call", "--locked", "one.pid"]);
    for words in
        ["`one` offers other tools", "`more` has another description", "`another` is new", "lock --diff"]
    {
        assert!(err(&text).contains(words), "{words}: {}", err(&text));
    }
    assert_eq!(code(&bench.run(&["call", "one.pid"])), 0, "nobody asked for the lockfile");
    assert_eq!(code(&bench.run(&["call", "--locked", "two.pid"])), 0, "the other one has not changed");
    let all = bench.run(&["--json", "tools", "--locked"]);
    assert_eq!(code(&all), 10, "the others are shown, and it is no success: {}", err(&all));
    let all: Value = serde_json::from_str(&out(&all)).unwrap();
    let states: Vec<&Value> =
        all["servers"].as_array().unwrap().iter().map(|server| &server["state"]).collect();
    assert_eq!(states, ["failed", "ready"]);

    bench.file("tasks.jsonl", r#"{"id": "a", "calls": [{"tool": "two.pid"}]}"#);
    let run = bench.run(&["run", "tasks.jsonl", "--locked"]);
    assert_eq!(code(&run), 10, "{}", err(&run));
    assert!(
        err(&run).contains("`one` offers other tools") && !err(&run).contains("Results"),
        "{}",
        err(&run)
    );
    let up = bench.run(&["up", "-d", "--locked"]);
    assert_eq!(code(&up), 10, "{}", err(&up));
    assert_eq!(code(&bench.run(&["connect", "two", "--locked"])), 0, "it uses the daemon that is locked");
    assert_eq!(code(&bench.run(&["down"])), 0);
    assert_eq!(code(&bench.run(&["up", "-d"])), 0);
    let connect = bench.run(&["connect", "two", "--locked"]);
    assert_eq!(code(&connect), 3, "{}", err(&connect));
    assert!(err(&connect).contains("was started without --locked"), "{}", err(&connect));
    assert_eq!(code(&bench.run(&["down"])), 0);

    let diff = bench.run(&["lock", "--diff"]);
    assert_eq!(code(&diff), 10);
    assert!(out(&diff).contains("+ another") && out(&diff).contains("~ more"), "{}", out(&diff));
    assert!(out(&diff).contains("in new words") && !out(&diff).contains("two"), "{}", out(&diff));
    let diff: Value = serde_json::from_str(&out(&bench.run(&["--json", "lock", "--diff"]))).unwrap();
    assert_eq!((&diff["equal"], &diff["servers"][0]["kind"]), (&json!(false), &json!("changed")), "{diff}");
    assert_eq!(fs::read_to_string(&file).unwrap(), first, "a look changes nothing");
    assert_eq!(code(&bench.run(&["lock", "two"])), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), first, "`one` was not asked about");
    assert_eq!(code(&bench.run(&["lock"])), 0);
    assert_eq!(code(&bench.run(&["call", "--locked", "one.pid"])), 0);
    let equal = bench.run(&["lock", "--diff"]);
    assert_eq!((code(&equal), out(&equal).as_str()), (0, ""));
    assert!(err(&equal).contains("Equal"), "{}", err(&equal));
}

#[test]
fn a_required_mismatch_fails_and_a_broken_server_stays_locked() {
    let bench = bench("required = true");
    assert_eq!(code(&bench.run(&["lock"])), 0);
    bench.file("extra", "another\n");
    let up = bench.run(&["up", "--locked"]);
    assert_eq!(code(&up), 10, "{}", err(&up));
    assert!(err(&up).contains("`another` is new"), "{}", err(&up));
    let check = bench.run(&["check", "--locked"]);
    assert_eq!(code(&check), 10, "{}", err(&check));
    assert_eq!(code(&bench.run(&["check"])), 0);
    let text = fs::read_to_string(bench.0.path().join("servers.toml")).unwrap();
    let before = fs::read_to_string(bench.0.path().join("toolcrib.lock")).unwrap();
    bench.file("servers.toml", &format!("{text}\n[servers.three]\ncommand = \"no-such-program\"\n"));
    assert_eq!(code(&bench.run(&["lock"])), 4);
    assert_eq!(fs::read_to_string(bench.0.path().join("toolcrib.lock")).unwrap(), before);
    bench.file("toolcrib.lock", "servers = 3");
    let broken = bench.run(&["up", "--locked"]);
    assert_eq!(code(&broken), 3, "{}", err(&broken));
}

/// A server whose tool `odd` has the schema of the file `odd`, and `lifecycle`.
fn odd(lifecycle: &str) -> Bench {
    let bench = Bench::new("");
    let fixture = crate::support::FIXTURE;
    let flag = format!("odd={}", bench.0.path().join("odd").display());
    let config =
        format!("[servers.one]\ncommand = {fixture:?}\nargs = [{flag:?}]\nlifecycle = {lifecycle:?}\n");
    bench.file("servers.toml", &config);
    bench.file("odd", REVIEWED);
    assert_eq!(code(&bench.run(&["lock"])), 0);
    bench
}

/// The schema of `one.odd` as a model is shown it.
fn shown(bench: &Bench, more: &[&str]) -> String {
    let tools = bench.run(&[&["--json", "tools", "one", "--schema"], more].concat());
    assert_eq!(code(&tools), 0, "{}", err(&tools));
    let document: Value = serde_json::from_str(&out(&tools)).unwrap();
    let tools = document["servers"][0]["tools"].as_array().unwrap();
    let odd = tools.iter().find(|tool| tool["name"] == "odd").unwrap();
    odd["input_schema"].to_string()
}

const REVIEWED: &str = r#"{"type":"object","properties":{"why":{"type":"string","anyOf":[{"minLength":1},{"maxLength":9}]},"at":{"enum":["b","a"]}},"required":["why","at"]}"#;

#[test]
fn a_model_sees_schema_keys_in_the_reviewed_order() {
    const TURNED: &str = r#"{"required":["why","at"],"properties":{"at":{"enum":["b","a"]},"why":{"anyOf":[{"minLength":1},{"maxLength":9}],"type":"string"}},"type":"object"}"#;
    for lifecycle in ["eager", "lazy"] {
        let bench = odd(lifecycle);
        let path = bench.0.path().join("toolcrib.lock");
        let first = fs::read_to_string(&path).unwrap();
        assert_eq!(shown(&bench, &["--locked"]), REVIEWED);
        bench.file("odd", TURNED);
        let diff = bench.run(&["lock", "--diff"]);
        assert_eq!((code(&diff), out(&diff).as_str()), (0, ""), "a model is told the same");
        assert_eq!(shown(&bench, &["--locked"]), REVIEWED, "{lifecycle}");
        assert_eq!(code(&bench.run(&["lock"])), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), first, "the order that was reviewed");
    }
}

#[test]
fn an_old_lockfile_without_key_order_sorts_keys() {
    let bench = odd("eager");
    let path = bench.0.path().join("toolcrib.lock");
    let mut lock: toml::Table = fs::read_to_string(&path).unwrap().parse().unwrap();
    lock.insert("schema".to_owned(), 2.into());
    let text = &mut lock["servers"]["one"]["texts"]["odd"]["schemas"];
    let mut schemas: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    schemas.sort_all_objects();
    *text = format!("{schemas:#}").into();
    fs::write(&path, lock.to_string()).unwrap();
    assert_eq!(code(&bench.run(&["lock", "--diff"])), 0);
    assert_eq!(shown(&bench, &["--locked"]), schemas["input_schema"].to_string());
    assert_eq!(code(&bench.run(&["lock"])), 0);
    assert_eq!(shown(&bench, &["--locked"]), REVIEWED, "written anew, it has the order of the server");
}

#[test]
fn the_order_of_lists_in_schemas_is_locked() {
    let bench = odd("eager");
    for (one, other) in [
        (r#"["why","at"]"#, r#"["at","why"]"#),
        (r#"["b","a"]"#, r#"["a","b"]"#),
        (r#"[{"minLength":1},{"maxLength":9}]"#, r#"[{"maxLength":9},{"minLength":1}]"#),
    ] {
        let turned = REVIEWED.replace(one, other);
        assert_ne!(turned, REVIEWED);
        bench.file("odd", &turned);
        let codes =
            [&["lock", "--diff"][..], &["call", "--locked", "one.pid"]].map(|it| code(&bench.run(it)));
        assert_eq!(codes, [10, 10], "{other}");
    }
}

#[test]
fn a_model_sees_tools_in_the_reviewed_order() {
    let bench = bench("");
    bench.file("extra", "more\nother\n");
    assert_eq!(code(&bench.run(&["lock"])), 0);
    let names = |more: &[&str]| {
        let tools = bench.run(&[&["--json", "tools", "one"], more].concat());
        let document: Value = serde_json::from_str(&out(&tools)).unwrap();
        let tools = document["servers"][0]["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let reviewed = names(&[]);
    bench.file("extra", "other\nmore\n");
    assert_ne!(names(&[]), reviewed, "nobody asked for the lockfile");
    assert_eq!(names(&["--locked"]), reviewed);
    let diff = bench.run(&["lock", "--diff"]);
    assert_eq!(code(&diff), 10);
    assert!(out(&diff).contains("the same tools in another order"), "{}", out(&diff));
}

#[test]
fn the_first_of_two_tools_with_one_name_counts() {
    let bench = bench("");
    assert_eq!(code(&bench.run(&["lock"])), 0);
    let verdicts = || {
        let diff = bench.run(&["lock", "--diff"]);
        let warned = err(&diff).contains("one: it lists the tool `more` more than once");
        (code(&diff), code(&bench.run(&["call", "--locked", "one.pid"])), warned)
    };
    assert_eq!(verdicts(), (0, 0, false));
    bench.file("extra", "more in old words\nmore in new words\n");
    assert_eq!(verdicts(), (0, 0, true), "no model reads of the second one");
    let tools = bench.run(&["--json", "tools", "one", "--locked"]);
    assert!(out(&tools).contains("in old words") && !out(&tools).contains("in new words"), "{}", out(&tools));
    bench.file("extra", "more in new words\nmore in old words\n");
    assert_eq!(verdicts(), (10, 10, true));
    let diff = out(&bench.run(&["lock", "--diff"]));
    assert!(diff.contains("~ more") && diff.contains("+ in new words"), "{diff}");
    assert_eq!(code(&bench.run(&["lock"])), 0);
    assert_eq!(verdicts(), (0, 0, true), "a server with such a list can be locked");
    let doctor = bench.run(&["doctor", "one"]);
    let told = out(&doctor) + &err(&doctor);
    assert!(told.contains("lists the tool `more` more than once"), "{told}");
}

/// A manager of `server` under a lockfile of what it offers now.
async fn locked(lab: &Lab, server: &ServerConfig) -> Manager {
    let mut config = Config::new([server.clone()]);
    config.cache_folder = Some(lab.file("cache"));
    let first = Manager::start(&config).await.unwrap();
    let mut lock = LockFile::default();
    lock.put(&server.name, None, None, first.catalog().entries().iter().map(|entry| &entry.tool));
    first.shutdown().await;
    let path = lab.file("toolcrib.lock");
    lock.write(&path).unwrap();
    config.lock_file = Some(path);
    Manager::start(&config).await.unwrap()
}

fn extra(lab: &Lab, lines: &str) {
    fs::write(lab.file("extra"), lines).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreviewed_list_change_ends_the_server() {
    let lab = Lab::new();
    extra(&lab, "announce");
    let server = lab.server("one", &[&lab.flag("extra"), &lab.flag("spawns")]);
    let manager = locked(&lab, &server).await;
    let tools = manager.toolbox();
    extra(&lab, "announce\nextra");
    // The server may be ended before it has answered.
    let _ = say(&tools, "one", "announce").await;
    within("the end", || manager.status()[0].state == ServerState::Failed).await;
    let error = say(&tools, "one", "pid").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ToolsChanged, "{error}: {:?}", error.causes());
    assert!(error.causes().iter().any(|cause| cause == "the tool `extra` is new"), "{:?}", error.causes());
    assert!(manager.catalog().find("one", "extra").is_err(), "no model has read of it");
    assert!(lab.servers().is_empty());
    // Somebody mends it and asks for it.
    extra(&lab, "announce");
    manager.restart("one").await.unwrap();
    assert_eq!(say(&tools, "one", "pid").await.unwrap(), *lab.lines("spawns").last().unwrap());
    manager.shutdown().await;
    lab.await_nobody();
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_and_late_starts_are_checked_against_the_lock() {
    for lifecycle in [Lifecycle::Eager, Lifecycle::Lazy] {
        let lab = Lab::new();
        let mut server = lab.server("one", &[&lab.flag("extra"), &lab.flag("spawns")]);
        server.lifecycle = lifecycle;
        let manager = locked(&lab, &server).await;
        assert_eq!(manager.report().parked(), usize::from(lifecycle == Lifecycle::Lazy));
        extra(&lab, "extra");
        if lifecycle == Lifecycle::Eager {
            say(&manager.toolbox(), "one", "die").await.unwrap_err();
        }
        for _ in 0..3 {
            let error = say(&manager.toolbox(), "one", "pid").await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::ToolsChanged, "{error}: {:?}", error.causes());
        }
        assert_eq!(
            lab.lines("spawns").len(),
            if lifecycle == Lifecycle::Eager { 3 } else { 2 },
            "no further try"
        );
        manager.shutdown().await;
        lab.await_nobody();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_tools_that_are_not_locked_are_not_offered() {
    let lab = Lab::new();
    extra(&lab, "extra");
    let mut server = lab.server("one", &[&lab.flag("extra")]);
    server.lifecycle = Lifecycle::Lazy;
    drop(locked(&lab, &server).await);
    let mut config = Config::new([server]);
    config.cache_folder = Some(lab.file("cache"));
    let path = lab.file("empty.lock");
    LockFile::default().write(&path).unwrap();
    config.lock_file = Some(path);
    let manager = Manager::start(&config).await.unwrap();
    assert!(manager.catalog().entries().is_empty());
    let error = manager.report().servers[0].outcome.clone().unwrap_err();
    assert_eq!(
        (error.code(), error.causes()),
        (ErrorCode::ToolsChanged, vec!["the server is not in toolcrib.lock".into()])
    );
}

/// Some servers list more to a client that they can ask, as `serve` is one and `check` is none.
#[test]
fn serve_check_lock_and_call_agree_on_the_lockfile() {
    let bench = Bench::new("");
    let fixture = crate::support::FIXTURE;
    let config = format!(
        "[servers.old]\ncommand = {fixture:?}\nargs = [\"asked=ask_old\"]\n[servers.new]\ncommand = {fixture:?}\nargs = [\"modern\", \"asked=ask_new\"]\n"
    );
    bench.file("servers.toml", &config);
    assert_eq!(code(&bench.run(&["trust"])), 0);
    // The answer to `tools/list`, and what it wrote to stderr.
    let serve = |options: &[&str]| {
        let mut command = bench.command(&[&["serve", "--stdio"], options].concat());
        let mut serving =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let mut stdin = serving.stdin.take().unwrap();
        writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}))
            .unwrap();
        writeln!(stdin, "{}", json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})).unwrap();
        let mut lines = BufReader::new(serving.stdout.take().unwrap()).lines().map(Result::unwrap);
        let listed = lines.find(|line| line.contains("\"tools\":[")).unwrap_or_default();
        drop(stdin);
        (listed, err(&serving.wait_with_output().unwrap()))
    };
    let (shown, told) = serve(&[]);
    assert!(shown.contains("old__ask_old") && shown.contains("new__ask_new"), "{shown} {told}");
    for _ in 0..2 {
        for told in [err(&bench.run(&["check"])), serve(&[]).1] {
            assert!(!told.contains("since"), "nothing has changed: {told}");
        }
    }
    let locked = bench.run(&["lock"]);
    assert_eq!(code(&locked), 0, "{}", err(&locked));
    let equal = bench.run(&["lock", "--diff"]);
    assert_eq!((code(&equal), out(&equal).as_str()), (0, ""), "{}", err(&equal));
    for command in [&["check", "--locked"][..], &["call", "--locked", "old.pid"]] {
        let told = bench.run(command);
        assert_eq!(code(&told), 0, "{}", err(&told));
    }
    let (shown, told) = serve(&["--locked"]);
    assert!(shown.contains("old__ask_old") && shown.contains("new__ask_new"), "{shown} {told}");
    bench.file("servers.toml", &config.replace("asked=ask_old", "asked=other"));
    let diff = bench.run(&["lock", "--diff"]);
    assert_eq!(code(&diff), 10, "{}", err(&diff));
    assert!(out(&diff).contains("+ other  (only for a client that the server can ask"), "{}", out(&diff));
    assert_eq!(code(&bench.run(&["check", "--locked"])), 0);
    let (_, refused) = serve(&["--locked"]);
    assert!(refused.contains("the tool `other` is new"), "{refused}");
}
