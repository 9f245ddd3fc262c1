//! Public MCP servers from npm and PyPI, pinned in `tests/servers`. `bash tests/servers/install.sh`
//! installs them; without them the tests are skipped.

use std::{collections::HashSet, path::Path};

use serde_json::{Map, Value, json};
use toolcrib::{
    Config, Endpoint, Env, Manager,
    catalog::{Ecosystem, Package},
};

/// Calls of one task in the field: one process must serve them all.
const CALLS: usize = 346;

fn config() -> Config {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/servers.toml");
    let mut config = Config::load(Some(&file), &Env::process()).unwrap();
    for entry in config.servers.values_mut() {
        // Many tests share this machine's cores.
        let server = entry.server.as_mut().unwrap();
        server.startup_timeout = std::time::Duration::from_secs(120);
    }
    config
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("arguments are objects"),
    }
}

#[toolcrib_testing::requires(public_servers)]
#[tokio::test(flavor = "multi_thread")]
async fn eight_public_servers_start_and_end() {
    let config = config();
    let manager = Manager::start(&config).await.unwrap();
    let report = manager.report();
    assert_eq!((report.ready(), report.servers.len()), (8, 8), "{report:#?}");
    let names: Vec<&str> = report.servers.iter().map(|row| row.name.as_str()).collect();
    let configured: Vec<&str> = config.servers.keys().map(toolcrib::ServerName::as_str).collect();
    assert_eq!(names, configured);
    let pids: HashSet<u32> = report.servers.iter().filter_map(|row| row.outcome.as_ref().ok()?.pid).collect();
    assert_eq!(pids.len(), 8, "one process for each");
    let time = manager.call("time", "get_current_time", object(json!({"timezone": "UTC"}))).await.unwrap();
    assert!(time.text().contains("UTC"), "{}", time.text());
    let wrong =
        manager.call("time", "get_current_time", object(json!({"timezone": "Mars/Base"}))).await.unwrap();
    assert!(wrong.is_error, "{}", wrong.text());
    let status =
        manager.call("git", "git_status", object(json!({"repo_path": env!("CARGO_MANIFEST_DIR")}))).await;
    assert!(!status.unwrap().text().is_empty());
    let stopped = manager.shutdown().await;
    assert_eq!((stopped.servers.len(), stopped.survivors), (8, vec![]));
}

/// Python's own command and `python -m` are of the same package.
#[toolcrib_testing::requires(public_servers)]
#[tokio::test(flavor = "multi_thread")]
async fn the_installed_packages_of_public_servers_are_found() {
    let mut config = config();
    let module = config.servers.get_mut("fetch").unwrap().server.as_mut().unwrap();
    let Endpoint::Stdio(spec) = &mut module.endpoint else { unreachable!() };
    spec.command = spec.command.with_file_name("python");
    spec.args = ["-m", "mcp_server_fetch"].map(str::to_owned).to_vec();
    let pins = ["package.json", "requirements.txt", "requirements-sqlite.txt"].map(|name| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers");
        std::fs::read_to_string(folder.join(name)).unwrap()
    });
    let manager = Manager::start(&config).await.unwrap();
    for name in config.servers.keys() {
        let Package { ecosystem, name, version, .. } = manager.package(name.as_str()).await.unwrap().unwrap();
        let pin = match ecosystem {
            Ecosystem::Npm => format!("\"{name}\": \"{version}\""),
            _ => format!("{name}=={version}"),
        };
        assert!(pins.iter().any(|pins| pins.contains(&pin)), "{pin}");
        assert!(name.contains("server-"), "{name} is the server itself");
    }
    manager.shutdown().await;
}

#[toolcrib_testing::requires(public_servers)]
#[tokio::test(flavor = "multi_thread")]
async fn one_process_serves_all_calls_of_a_task() {
    let mut config = config();
    config.servers.retain(|name, _| name.as_str() == "everything");
    let manager = Manager::start(&config).await.unwrap();
    let pid = manager.report().servers[0].outcome.as_ref().unwrap().pid;
    let calls = (0..CALLS).map(|number| {
        let arguments = object(json!({"message": format!("call {number}")}));
        let toolbox = manager.toolbox();
        async move { toolbox.call("everything", "echo", arguments).await.unwrap().text() }
    });
    let answers = futures_util::future::join_all(calls).await;
    let right =
        answers.iter().enumerate().filter(|(n, answer)| answer.contains(&format!("call {n}"))).count();
    assert_eq!(right, CALLS);
    let stopped = manager.shutdown().await;
    assert_eq!(stopped.servers[0].pid, pid, "the process that was started is the one that was stopped");
}

/// From the registry of npm, through its ordinary client: the first start may download.
#[toolcrib_testing::requires(npm_registry)]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_npx_is_started_directly_the_second_time() {
    let cache = tempfile::tempdir().unwrap();
    let text = r#"
        [servers.memory]
        command = "npx"
        args = ["-y", "@modelcontextprotocol/server-memory@2026.8.31"]
        startup_timeout = "5m"
    "#;
    let mut config = Config::parse(text, None, cache.path(), &Env::process()).unwrap();
    config.cache_folder = Some(cache.path().to_owned());
    let mut launches = Vec::new();
    for _ in 0..2 {
        let manager = Manager::start(&config).await.unwrap();
        let ready = manager.report().servers[0].outcome.clone().unwrap();
        assert!(manager.call("memory", "read_graph", Map::new()).await.unwrap().text().contains("entities"));
        let package = manager.package("memory").await.unwrap().unwrap();
        assert_eq!(package.to_string(), "npm @modelcontextprotocol/server-memory 2026.8.31");
        assert!(manager.shutdown().await.survivors.is_empty());
        launches.push(ready.launch.unwrap());
    }
    assert_eq!((launches[0].direct, launches[0].doubt.as_deref()), (false, None));
    assert!(launches[1].direct, "{launches:?}");
    let program = launches[1].program.clone().unwrap();
    assert!(program[0].ends_with("/node") && program[1].ends_with("mcp-server-memory"), "{program:?}");
}
