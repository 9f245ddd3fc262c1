//! Budgets and sandboxes, with real processes.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use serde_json::json;
use toolcrib::{
    Config, Endpoint, Manager, ServerConfig, StdioConfig,
    config::{Guard, Sandbox},
};
use toolcrib_guard::HAS_GUARDS;

use crate::support::{Lab, call, manager};

/// A shell that runs `script` and then makes way for the fixture.
fn server(lab: &Lab, script: &str, confine: impl FnOnce(&mut StdioConfig)) -> ServerConfig {
    let script = format!("{script}; exec \"$0\"");
    let fixture = crate::support::FIXTURE;
    let mut server = lab.command("one", "/bin/sh", &["-c", &script, fixture]);
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
    confine(child);
    server
}

fn sandbox(lab: &Lab, child: &mut StdioConfig) {
    std::fs::write(lab.file("open"), "text").unwrap();
    let sandbox = child.sandbox.insert(Sandbox::default());
    let fixture = crate::support::FIXTURE;
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

/// The help of the error of `server`, which does not start. The check before the start must give the same.
async fn refused_help(server: ServerConfig, looking: bool) -> String {
    let Endpoint::Stdio(child) = &server.endpoint else { unreachable!("made as a command") };
    let seen = toolcrib::process::check_bounds(child, &toolcrib::process::TeardownScope::new(&Guard::Auto));
    let manager = Manager::start(&Config::new([server.clone()])).await.unwrap();
    let error = manager.report().servers[0].outcome.clone().unwrap_err();
    manager.shutdown().await;
    let help = error.help().unwrap();
    assert_eq!(
        seen.err().map(|error| (error.help(), vec![error.to_string()])),
        looking.then(|| (Some(help.clone()), error.causes()))
    );
    help
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn a_sandboxed_server_works_and_reaches_listed_files() {
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

#[toolcrib_testing::requires(guard, linux_6_12)]
#[tokio::test]
async fn a_sandboxed_server_cannot_end_its_guard() {
    let lab = Lab::new();
    // Its parent is the guard; what a shell cannot signal, it says so.
    let attack = "kill -KILL $PPID && exit 7";
    let manager = manager([server(&lab, attack, |child| sandbox(&lab, child))]).await;
    manager.shutdown().await;
    lab.await_nobody();
}

/// The Python that a virtual environment was made with, and its libraries. Nothing: it is the system's.
fn python_of(environment: &Path) -> Vec<PathBuf> {
    let python = environment.join("bin/python").canonicalize().unwrap();
    if python.starts_with("/usr") {
        return Vec::new();
    }
    let library = python.ancestors().nth(2).unwrap().join("lib");
    vec![python, library]
}

#[toolcrib_testing::requires(guard, public_servers, git)]
#[tokio::test(flavor = "multi_thread")]
async fn public_servers_work_in_a_sandbox_of_their_folder() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers");
    let [node, python, sqlite] =
        ["node_modules", "venv", "venv-sqlite"].map(|part| std::fs::canonicalize(folder.join(part)).unwrap());
    let repository = tempfile::tempdir().unwrap();
    let init = std::process::Command::new("git").args(["init", "-q"]).arg(repository.path()).status();
    assert!(init.unwrap().success());
    let mut config = Config::load(Some(&folder.join("servers.toml")), &toolcrib::Env::process()).unwrap();
    for (name, entry) in &mut config.servers {
        let server = entry.server.as_mut().unwrap();
        // Many tests share this machine's cores.
        server.startup_timeout = std::time::Duration::from_secs(120);
        let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("all of them are commands") };
        let walls = child.sandbox.insert(Sandbox::default());
        match name.as_str() {
            "time" | "fetch" => walls.read = vec![python.clone()],
            "git" => {
                // This repository may be a worktree, whose history is elsewhere.
                child.args = vec!["--repository".to_owned(), repository.path().display().to_string()];
                walls.read = vec![python.clone(), repository.path().to_owned()];
            }
            "sqlite" => {
                // An environment in a `write` folder: its Python is named where it is not the system's.
                walls.write = vec![sqlite.clone()];
                walls.read = python_of(&sqlite);
            }
            "filesystem" => walls.read = vec![node.clone(), folder.clone()],
            _ => walls.read = vec![node.clone()],
        }
    }
    let manager = Manager::start(&config).await.unwrap();
    for row in &manager.report().servers {
        let error = row.outcome.as_ref().err();
        assert!(error.is_none(), "{error:?}");
    }
    let stopped = manager.shutdown().await;
    assert!(stopped.survivors.is_empty(), "{:?}", stopped.survivors);
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn a_server_over_its_memory_limit_is_reported() {
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
async fn without_a_guard_a_confined_server_does_not_start() {
    let lab = Lab::new();
    let guards: &[_] = if HAS_GUARDS { &[Guard::Off] } else { &[Guard::Off, Guard::Auto] };
    for guard in guards {
        for is_sandboxed in [true, false] {
            let confined = server(&lab, "true", |child| match is_sandboxed {
                true => sandbox(&lab, child),
                false => child.limits.memory_max = Some(500 << 20),
            });
            let (message, causes) = refusal(confined, guard.clone()).await;
            assert_eq!(message, "server `one` could not be started");
            assert!(causes[0].contains("need a guard, and there is none: "), "{causes:?}");
        }
    }
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn limits_that_cannot_be_enforced_are_errors() {
    let lab = Lab::new();
    let missing = server(&lab, "true", |child| {
        sandbox(&lab, child);
        child.sandbox.as_mut().unwrap().read.push("/no/such/folder".into());
    });
    let (_, causes) = refusal(missing.clone(), Guard::Auto).await;
    assert!(causes[0].contains("the sandbox names /no/such/folder"), "{causes:?}");
    assert_eq!(refused_help(missing, true).await, "create it: mkdir -p '/no/such/folder'");
    if toolcrib::process::Support::detect().no_cgroup.is_some() {
        let slow = server(&lab, "true", |child| child.limits.cpu_max = Some(0.5));
        assert!(refused_help(slow, true).await.contains("`cpu_max`"));
    }
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn sandbox_errors_name_the_missing_permission() {
    let lab = Lab::new();
    std::fs::write(lab.file("closed"), "text").unwrap();
    let mut closed = server(&lab, "cat \"$1\" || exit 7", |child| sandbox(&lab, child));
    let Endpoint::Stdio(child) = &mut closed.endpoint else { unreachable!("made as a command") };
    child.args.push(lab.file("closed").to_str().unwrap().to_owned());
    let path = lab.file("closed").canonicalize().unwrap();
    let help = refused_help(closed, false).await;
    assert!(
        help.contains("its sandbox does not open its argument `")
            && help.ends_with(&format!("add \"{}\" to `read`", path.display())),
        "{help}"
    );
    let hungry = "head -c 300000000 /dev/zero | tail -n 1 >/dev/null || exit 9";
    let hungry = server(&lab, hungry, |child| {
        sandbox(&lab, child);
        child.limits.memory_max = Some(50 << 20);
    });
    assert_eq!(refused_help(hungry, false).await, "raise `memory_max`");
    lab.await_nobody();
}

/// A server whose program is a link in the folder that it may write. It first runs `script`.
fn in_its_folder(lab: &Lab, script: &str) -> ServerConfig {
    let mut server = server(lab, script, |child| sandbox(lab, child));
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
    std::fs::create_dir_all(lab.file("proj/bin")).unwrap();
    if !lab.file("proj/bin/sh").exists() {
        symlink("/bin/sh", lab.file("proj/bin/sh")).unwrap();
    }
    child.command = lab.file("proj/bin/sh");
    child.sandbox.as_mut().unwrap().write = vec![lab.file("proj")];
    server
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn planted_links_open_nothing_at_the_next_start() {
    let lab = Lab::new();
    std::fs::write(lab.file("secret"), "text").unwrap();
    let (secret, proj) = (lab.file("secret"), lab.file("proj"));
    // Whatever it can read fails the start.
    let script = format!(
        "cat '{}' && exit 7; cat /etc/shadow && exit 8; cd '{}'; ln -sfn / lib; ln -sfn / lib64; ln -sfn / pyvenv.cfg; \
         rmdir data; ln -sfn / data",
        secret.display(),
        proj.display()
    );
    for _ in 0..3 {
        manager([in_its_folder(&lab, &script)]).await.shutdown().await;
    }
    assert!(std::fs::read_link(lab.file("proj/lib64")).is_ok(), "the links were not made");
    // A folder that was named, and is a link now.
    let mut named = in_its_folder(&lab, &script);
    let Endpoint::Stdio(child) = &mut named.endpoint else { unreachable!("made as a command") };
    child.sandbox.as_mut().unwrap().read.push(lab.file("proj/data"));
    let (_, causes) = refusal(named, Guard::Auto).await;
    assert!(causes[0].contains("proj/data is a symbolic link below"), "{causes:?}");
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn a_program_linked_from_a_write_folder_is_named_and_works() {
    let lab = Lab::new();
    std::fs::create_dir_all(lab.file("home/bin")).unwrap();
    std::fs::copy("/bin/sh", lab.file("home/bin/sh")).unwrap();
    let mut server = in_its_folder(&lab, "true");
    std::fs::remove_file(lab.file("proj/bin/sh")).unwrap();
    symlink(lab.file("home/bin/sh"), lab.file("proj/bin/sh")).unwrap();
    let help = refused_help(server.clone(), true).await;
    let shell = lab.file("home/bin/sh").canonicalize().unwrap();
    assert_eq!(help, format!("if it is what you mean, add \"{}\" to `read`", shell.display()));
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
    child.sandbox.as_mut().unwrap().read.push(shell);
    manager([server]).await.shutdown().await;
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test]
async fn a_virtual_environment_in_a_write_folder_works() {
    let lab = Lab::new();
    std::fs::create_dir_all(lab.file("proj")).unwrap();
    let made = std::process::Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(lab.file("proj/.venv"))
        .status();
    assert!(made.unwrap().success());
    let fixture = crate::support::FIXTURE;
    let script = format!(
        "import os, sys\nassert sys.prefix != sys.base_prefix, sys.prefix\n\
         os.execv({fixture:?}, [{fixture:?}])"
    );
    let mut server =
        lab.command("one", lab.file("proj/.venv/bin/python").to_str().unwrap(), &["-c", &script]);
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
    sandbox(&lab, child);
    child.sandbox.as_mut().unwrap().write = vec![lab.file("proj")];
    manager([server]).await.shutdown().await;
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn a_runner_in_a_sandbox_is_not_recorded() {
    let lab = Lab::new();
    std::fs::write(lab.file("npx"), format!("#!/bin/sh\nsh -c {}\nexit $?\n", crate::support::FIXTURE))
        .unwrap();
    std::fs::set_permissions(lab.file("npx"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let start = async |walls: bool| {
        let mut server = lab.command("one", lab.file("npx").to_str().unwrap(), &["-y", "server@1.0.0"]);
        let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
        if walls {
            sandbox(&lab, child);
        }
        let mut config = Config::new([server]);
        config.cache_folder = Some(lab.file("cache"));
        let manager = Manager::start(&config).await.unwrap();
        let ready = manager.report().servers[0].outcome.clone().unwrap();
        manager.shutdown().await;
        ready.launch.is_some_and(|launch| launch.direct)
    };
    let kept = || std::fs::read_dir(lab.file("cache/launch")).map_or(0, Iterator::count);
    assert!(!start(true).await && !start(true).await);
    assert_eq!(kept(), 0);
    let mut server = lab.command("one", lab.file("npx").to_str().unwrap(), &["-y", "server@1.0.0"]);
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!("made as a command") };
    sandbox(&lab, child);
    let name = server.name.clone();
    let mut config = Config::new([server]);
    config.cache_folder = Some(lab.file("cache"));
    let doubt = Manager::warm(&config, &name).await.unwrap().doubt.unwrap();
    assert_eq!(doubt, "in a sandbox it starts through its runner each time");
    // Nor does it use that of a server outside, which has the same command line.
    assert!(!start(false).await && start(false).await && !start(true).await);
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[tokio::test]
async fn the_memory_limit_holds_for_root() {
    let lab = Lab::new();
    let raise = "ulimit -d unlimited && exit 7; ulimit -Hd unlimited && exit 7; true";
    let modest = server(&lab, raise, |child| child.limits.memory_max = Some(500 << 20));
    manager([modest]).await.shutdown().await;
    lab.await_nobody();
}
