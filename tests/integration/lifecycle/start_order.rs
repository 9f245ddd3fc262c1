//! The order of starts: slots, history, package runners that install.

use std::{
    io::{BufRead, BufReader},
    num::NonZeroUsize,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use toolcrib::{
    Config, Endpoint, ErrorCode, Manager, ServerConfig, ServerEvent, StartOptions, config::StartJobs,
};

use crate::{
    support::program::{Bench, err, out, up},
    support::{Lab, signal, within},
};

/// A package runner like `npx`: what it does not have it installs, which fails beside another install of the
/// same, and then it becomes the server. `slow` is a command that it runs first.
fn fake_npx(lab: &Lab, slow: &str) {
    let script = r#"#!/bin/sh
cd "LAB"
package=$2
shift 2
SLOW
if [ ! -e "$package.installed" ]; then
    mkdir "$package.lock" 2>/dev/null || { echo "ENOTEMPTY: $package" >&2; exit 1; }
    echo "$package" >> installs
    sleep 0.1
    touch "$package.installed"
    rmdir "$package.lock"
fi
exec "FIXTURE" "$@"
"#;
    let script = script.replace("LAB", &lab.file("").display().to_string()).replace("SLOW", slow);
    let script = script.replace("FIXTURE", crate::support::FIXTURE);
    std::fs::create_dir(lab.file("bin")).unwrap();
    let file = lab.file("bin/npx");
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
}

fn from_package(lab: &Lab, name: &str, package: &str) -> ServerConfig {
    let mut server = lab.command(name, "npx", &["-y", package]);
    let Endpoint::Stdio(spec) = &mut server.endpoint else { unreachable!() };
    let path = format!("{}:{}", lab.file("bin").display(), spec.env["PATH"]);
    spec.set_env("PATH", path);
    server
}

/// Names of servers in the order in which something happened to them, `chosen` from the events of a start.
async fn told(config: &Config, chosen: fn(&ServerEvent) -> Option<String>) -> (Manager, Vec<String>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = told.clone();
    let observe = move |event: ServerEvent| list.lock().unwrap().extend(chosen(&event));
    let manager = Manager::start_with(config, StartOptions::new().observe(observe)).await.unwrap();
    let told = told.lock().unwrap().clone();
    (manager, told)
}

fn starting(event: &ServerEvent) -> Option<String> {
    match event {
        ServerEvent::Starting { server, .. } => Some(server.to_string()),
        _ => None,
    }
}

#[tokio::test]
async fn a_hundred_servers_install_each_package_once() {
    for jobs in [StartJobs::Unlimited, StartJobs::Cores] {
        let lab = Lab::new();
        fake_npx(&lab, "");
        let servers =
            (0..100).map(|number| from_package(&lab, &format!("s{number}"), &format!("p{}", number % 10)));
        let mut config = Config::new(servers);
        config.start_jobs = jobs;
        let manager = Manager::start(&config).await.unwrap();
        let report = manager.report();
        for row in &report.servers {
            assert!(row.outcome.is_ok(), "{}: {:?}", row.name, row.outcome);
        }
        let mut installs = lab.lines("installs");
        installs.sort();
        assert_eq!(installs, (0..10).map(|number| format!("p{number}")).collect::<Vec<_>>());
        let first = report.servers.iter().filter(|row| row.installing).count();
        assert_eq!(first, 10);
        let waited = |row: &&toolcrib::start::ServerStart| {
            let wait = row.waits.first().map(|wait| wait.reason.to_string()).unwrap_or_default();
            let package = row.name.as_str().as_bytes().last().map(|digit| *digit as char).unwrap();
            wait == format!("install of npx p{package} by s{package}")
        };
        assert_eq!(report.servers.iter().filter(waited).count(), 90, "{:?}", report.servers);
        manager.shutdown().await;
        lab.await_nobody();
    }
}

#[tokio::test]
async fn after_a_failed_install_the_next_server_tries() {
    let lab = Lab::new();
    fake_npx(&lab, "[ -e tried ] || { touch tried; echo 'no network' >&2; exit 1; }");
    let servers = ["a", "b", "c"].map(|name| from_package(&lab, name, "p"));
    let manager = Manager::start(&Config::new(servers)).await.unwrap();
    let rows = &manager.report().servers;
    assert_eq!(rows[0].outcome.clone().unwrap_err().code(), ErrorCode::ServerExited);
    assert!(rows[1].outcome.is_ok() && rows[2].outcome.is_ok());
    assert_eq!((rows[0].installing, rows[1].installing, rows[2].installing), (true, true, false));
    manager.shutdown().await;
}

#[tokio::test]
async fn installing_has_its_own_timeout() {
    let lab = Lab::new();
    fake_npx(&lab, "sleep 1");
    let mut server = from_package(&lab, "one", "p");
    server.startup_timeout = Duration::from_millis(200);
    let mut config = Config::new([server]);
    config.cache_folder = Some(lab.file("cache"));
    let start = async || {
        let (manager, told) = told(&config, |event| match event {
            ServerEvent::Starting { installs, .. } => Some(format!("{installs:?}")),
            _ => None,
        })
        .await;
        let code = manager.report().servers[0].outcome.as_ref().err().map(|error| error.code());
        manager.shutdown().await;
        (code, told)
    };
    let installing = vec!["Some(\"npx p\")".to_owned()];
    assert_eq!(start().await, (None, installing.clone()));
    // It is installed, as far as anybody knows. Its failure makes that doubtful.
    assert_eq!(start().await, (Some(ErrorCode::StartupTimeout), vec!["None".to_owned()]));
    assert_eq!(start().await, (None, installing));
    lab.await_nobody();
}

#[tokio::test]
async fn silent_servers_do_not_delay_others() {
    let lab = Lab::new();
    let cores = std::thread::available_parallelism().unwrap().get();
    let silent = (0..=cores).map(|number| lab.server(&format!("silent-{number}"), &["never-init"]));
    let config = Config::new(silent.chain([lab.server("good", &[])]));
    let ready = Arc::new(Mutex::new(false));
    let flag = ready.clone();
    let observe = move |event: ServerEvent| {
        if matches!(event, ServerEvent::Ready { .. }) {
            *flag.lock().unwrap() = true;
        }
    };
    tokio::select! {
        _ = Manager::start_with(&config, StartOptions::new().observe(observe)) => panic!("the silent ones have 30 s"),
        () = within("the good one", || *ready.lock().unwrap()) => {}
    }
    lab.await_nobody();
}

#[tokio::test]
async fn a_configured_number_of_slots_is_never_exceeded() {
    let lab = Lab::new();
    let mut silent = lab.server("silent", &["never-init"]);
    silent.startup_timeout = Duration::from_millis(300);
    let mut config = Config::new([silent, lab.server("good", &[])]);
    config.start_jobs = StartJobs::AtMost(NonZeroUsize::MIN);
    let (manager, told) = told(&config, |event| match event {
        ServerEvent::Queued { server, reason } => Some(format!("{server} waits for {reason}")),
        ServerEvent::Starting { server, .. } => Some(format!("{server} starts")),
        ServerEvent::Failed { row } => Some(format!("{} failed", row.name)),
        ServerEvent::Ready { row } => Some(format!("{} ready", row.name)),
        _ => None,
    })
    .await;
    assert_eq!(
        told,
        ["silent starts", "good waits for slot: jobs=1", "silent failed", "good starts", "good ready"]
    );
    let waits = &manager.report().servers[1].waits;
    assert!(waits.len() == 1 && waits[0].took >= Duration::from_millis(300), "{waits:?}");
    manager.shutdown().await;
}

#[tokio::test]
async fn the_second_start_knows_fast_servers() {
    let lab = Lab::new();
    let servers = [("slow", "1000"), ("quick", "0"), ("middling", "400")]
        .map(|(name, delay)| lab.server(name, &[&format!("init-delay={delay}")]));
    let mut config = Config::new(servers);
    config.start_jobs = StartJobs::AtMost(NonZeroUsize::MIN);
    config.cache_folder = Some(lab.file("cache"));
    let mut orders = Vec::new();
    for _ in 0..2 {
        let (manager, order) = told(&config, starting).await;
        manager.shutdown().await;
        orders.push(order);
    }
    assert_eq!(orders, [["slow", "quick", "middling"], ["quick", "middling", "slow"]]);
}

#[tokio::test]
#[cfg_attr(not(all(target_os = "linux", feature = "guard")), ignore = "needs /proc")]
async fn servers_that_only_wait_need_no_slot_the_second_time() {
    let lab = Lab::new();
    let cores = std::thread::available_parallelism().unwrap().get();
    let servers = (0..cores + 2).map(|number| lab.server(&format!("s{number}"), &["init-delay=100"]));
    let mut config = Config::new(servers);
    config.cache_folder = Some(lab.file("cache"));
    let mut queued = Vec::new();
    for _ in 0..2 {
        let (manager, told) = told(&config, |event| match event {
            ServerEvent::Queued { reason, .. } => Some(reason.to_string()),
            _ => None,
        })
        .await;
        manager.shutdown().await;
        queued.push(told);
    }
    assert_eq!(queued, [vec![format!("slot: cores={cores}"); 2], vec![]]);
}

#[tokio::test]
async fn an_unanswered_version_question_is_asked_once() {
    let lab = Lab::new();
    // The program stays the same while what it does changes, as with an update.
    let script = format!("exec \"$0\" {} $(cat flags)", lab.flag("spawns"));
    let fixture = crate::support::FIXTURE;
    let mut config = Config::new([lab.command("one", "/bin/sh", &["-c", &script, fixture])]);
    config.cache_folder = Some(lab.file("cache"));
    // Spawned twice the first time, since it leaves at the question; and no longer old in the end.
    for (flags, era, spawns) in [
        ("die-on-discover", "2025-11-25", 2),
        ("die-on-discover", "2025-11-25", 3),
        ("modern", "2026-07-28", 5),
        ("modern", "2026-07-28", 6),
    ] {
        std::fs::write(lab.file("flags"), flags).unwrap();
        let manager = Manager::start(&config).await.unwrap();
        assert_eq!(manager.report().servers[0].outcome.as_ref().unwrap().era, era);
        assert_eq!(lab.lines("spawns").len(), spawns, "{flags}");
        manager.shutdown().await;
    }
}

#[test]
fn the_program_names_waiting_servers_and_reasons() {
    let bench = Bench::new(
        "[defaults]\nstart_jobs = 1\n\n[servers.a]\ncommand = FIXTURE\nargs = [\"init-delay=300\"]\n\n\
         [servers.b]\ncommand = FIXTURE\n",
    );
    let (mut child, _reader, text) = up(&bench);
    signal("INT", child.id());
    child.wait().unwrap();
    let line = text.lines().find(|line| line.contains("Ready b ")).unwrap();
    assert!(line.contains("waited 0.") && line.ends_with("for slot: jobs=1"), "{line}");

    let mut child = bench.command(&["up", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let events = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let events: Vec<Value> = events.take_while(|event| event["event"] != "summary").collect();
    signal("INT", child.id());
    child.wait().unwrap();
    // By now it is known that `b` is the quick one.
    let queued = json!({"event": "queued", "server": "a", "reason": "slot: jobs=1"});
    assert!(events.contains(&queued), "{events:?}");
    let ready = events.iter().find(|event| event["event"] == "ready" && event["server"] == "a").unwrap();
    assert_eq!((&ready["waits"][0]["reason"], &ready["installing"]), (&json!("slot: jobs=1"), &json!(false)));
    assert!(ready["waits"][0]["ms"].as_f64().unwrap() > 0.0, "{ready}");
}

#[test]
fn bench_init_compares_with_a_bare_start() {
    let bench = Bench::new(
        "[servers.a]\ncommand = FIXTURE\n\n[servers.b]\ncommand = FIXTURE\n\n[servers.c]\nbuiltin = \"calc\"\n",
    );
    let output = bench.run(&["bench", "init", "--bare", "--runs", "1", "--json"]);
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    let modes: Vec<_> = document["modes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mode| (mode["mode"].as_str().unwrap(), mode["ready"].as_u64(), mode["total"].as_u64()))
        .collect();
    let wanted = ["sequential", "bare", "bare-cores", "at-once", "parallel"];
    assert_eq!(modes, wanted.map(|mode| (mode, Some(2), Some(2))), "{}", err(&output));
}
