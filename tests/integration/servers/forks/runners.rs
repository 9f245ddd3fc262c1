//! A server behind a package runner: started by it, then directly, then as a fork.

use std::{path::Path, time::Instant};

use serde_json::json;
use toolcrib::{Config, Endpoint, Manager, ServerConfig, config::Scope, manager::Borrower};

use crate::support::{Lab, call};

/// The server as tests/servers/install.sh starts it, without a network.
fn server(lab: &Lab) -> ServerConfig {
    let servers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers");
    let path = |name: &str| servers.join(name).display().to_string();
    let mut server =
        lab.command("time", &path("venv-uv/bin/uvx"), &["mcp-server-time", "--local-timezone=UTC"]);
    server.scope = Scope::Task;
    let Endpoint::Stdio(child) = &mut server.endpoint else { unreachable!() };
    for (name, value) in [
        ("HOME", lab.file("").display().to_string()),
        ("UV_CACHE_DIR", path("uv-cache")),
        ("UV_CONSTRAINT", path("requirements.txt")),
        ("UV_PYTHON", "python3".to_owned()),
        ("UV_PYTHON_DOWNLOADS", "never".to_owned()),
        ("UV_OFFLINE", "1".to_owned()),
    ] {
        child.set_env(name, value);
    }
    server
}

#[toolcrib_testing::requires(guard, uv)]
#[tokio::test(flavor = "multi_thread")]
async fn servers_of_uvx_are_forked() {
    let lab = Lab::new();
    let mut config = Config::new([server(&lab)]);
    config.cache_folder = Some(lab.file("cache"));
    let manager = Manager::start(&config).await.unwrap();
    let (mut ordinary, began) = (0, Instant::now());
    loop {
        assert!(began.elapsed().as_secs() < 120, "{ordinary}: {:?}", manager.templates());
        let loan = manager.lend(Borrower::Task);
        let told =
            call(&loan.toolbox(), "time", "get_current_time", json!({"timezone": "UTC"})).await.unwrap();
        assert!(told.contains("UTC"), "{told}");
        if loan.toolbox().status()[0].is_forked {
            break;
        }
        ordinary += 1;
    }
    assert!(ordinary >= 2, "the first one is started by uvx, the next one is what forks are compared with");
    assert!(manager.shutdown().await.survivors.is_empty());
    lab.await_nobody();
}
