//! Budgets and the sandbox, on real processes.

use serde_json::json;
use toolcrib::{Config, Endpoint, Guard, Manager, ServerConfig, StdioConfig};

use crate::support::{Lab, call, manager};

/// A shell that runs `script` and then makes way for the fixture.
fn server(lab: &Lab, script: &str, confine: impl FnOnce(&mut StdioConfig)) -> ServerConfig {
    let script = format!("{script}; exec \"$0\"");
    let fixture = env!("CARGO_BIN_EXE_toolcrib-fixture");
    let mut server = lab.command("one", "/bin/sh", &["-c", &script, fixture]);
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
    confine(child);
    server
}

fn sandbox(lab: &Lab, child: &mut StdioConfig) {
    std::fs::write(lab.file("open"), "text").unwrap();
    let sandbox = child.sandbox.insert(toolcrib::Sandbox::default());
    let fixture = env!("CARGO_BIN_EXE_toolcrib-fixture");
    sandbox.read = vec![fixture.into(), lab.file("open")];
}

/// Why `server` does not start: its message, and the causes.
async fn refusal(server: ServerConfig, guard: Guard) -> (String, Vec<String>) {
    let mut config = Config::new([server]);
    config.guard = guard;
    let manager = Manager::start(&config).await.unwrap();
    let error = manager.report().servers[0].outcome.clone().unwrap_err();
    manager.shutdown().await;
    (error.to_string(), error.causes())
}

#[tokio::test]
async fn a_sandboxed_server_works_and_reaches_what_is_open_to_it() {
    let lab = Lab::new();
    std::fs::write(lab.file("closed"), "text").unwrap();
    let read = |name: &str| format!("cat {} >&2 || exit 7", lab.file(name).display());
    let manager = manager([server(&lab, &read("open"), |child| sandbox(&lab, child))]).await;
    let said = call(&manager.toolbox(), "one", "echo", json!({"text": "hi"})).await.unwrap();
    assert_eq!(said, "hi");
    manager.shutdown().await;
    let closed = server(&lab, &read("closed"), |child| sandbox(&lab, child));
    let (message, causes) = refusal(closed, Guard::Auto).await;
    assert!(message.contains("exited with code 7"), "{message}");
    assert_eq!(causes, ["its sandbox may keep it from something that it needs"]);
    lab.await_nobody();
}

#[tokio::test]
async fn a_server_that_needs_more_memory_than_it_may_have_says_so() {
    let lab = Lab::new();
    // It keeps the last line, which never ends.
    let hungry = "head -c 300000000 /dev/zero | tail -n 1 >/dev/null || exit 9";
    let config = server(&lab, hungry, |child| child.limits.memory_max = Some(50 << 20));
    let (message, causes) = refusal(config, Guard::Auto).await;
    assert!(message.contains("exited with code 9"), "{message} {causes:?}");
    assert!(causes[0].ends_with("memory_max = 50MiB"), "{causes:?}");
    let modest = server(&lab, "true", |child| child.limits.memory_max = Some(500 << 20));
    manager([modest]).await.shutdown().await;
    lab.await_nobody();
}

#[tokio::test]
async fn what_cannot_be_held_is_an_error_and_never_silence() {
    let lab = Lab::new();
    let (message, causes) = refusal(server(&lab, "true", |child| sandbox(&lab, child)), Guard::Off).await;
    assert_eq!(message, "server `one` could not be started");
    assert!(causes[0].contains("put on by a guard, and there is none: `guard = \"off\"`"), "{causes:?}");
    let missing = server(&lab, "true", |child| {
        sandbox(&lab, child);
        child.sandbox.as_mut().unwrap().read.push("/no/such/folder".into());
    });
    let (_, causes) = refusal(missing, Guard::Auto).await;
    assert!(causes[0].contains("the sandbox names /no/such/folder"), "{causes:?}");
    lab.await_nobody();
}
