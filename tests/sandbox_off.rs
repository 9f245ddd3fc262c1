//! A build without the feature `sandbox` refuses a server that has one, as one without `builtin` refuses built-in servers:
//! `cargo nextest run --test sandbox_off --no-default-features --features guard`.
#![cfg(not(feature = "sandbox"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use toolcrib::{Config, Env, Manager};
use toolcrib_guard::HAS_GUARDS;

#[tokio::test]
async fn a_server_with_a_sandbox_is_refused() {
    // The second one accepts less where the kernel cannot do all of it, but not without any sandbox.
    let text = "[servers.closed]\ncommand = \"/bin/cat\"\nsandbox = {}\n\
        [servers.best]\ncommand = \"/bin/cat\"\nsandbox = { best_effort = true }\n";
    let config = Config::parse(text, None, Path::new("/"), &Env::new("/", [("PATH", "/bin")])).unwrap();
    let manager = Manager::start(&config).await.unwrap();
    let feature = if HAS_GUARDS { "cargo feature `sandbox`" } else { "a sandbox and budgets need a guard" };
    for row in &manager.report().servers {
        let error = row.outcome.as_ref().unwrap_err();
        let told = format!("{error}: {}", error.causes().join("; "));
        assert!(told.contains(row.name.as_str()) && told.contains(feature), "{told}");
        assert!(error.help().is_some_and(|help| help.contains("`sandbox`")), "{:?}", error.help());
    }
    assert_eq!(manager.shutdown().await.survivors.len(), 0);
}

#[cfg(not(feature = "builtin"))]
#[tokio::test]
async fn a_built_in_server_is_refused() {
    let config = Config::parse(
        "[servers.now]\nbuiltin = \"time\"\n",
        None,
        Path::new("/"),
        &Env::new("/", [("PATH", "/bin")]),
    )
    .unwrap();
    let manager = Manager::start(&config).await.unwrap();
    let error = manager.report().servers[0].outcome.as_ref().unwrap_err();
    let told = format!("{error}: {}", error.causes().join("; "));
    assert!(told.contains("`time` is not part of this build"), "{told}");
    assert!(error.help().is_some_and(|help| help.contains("cargo feature `builtin`")), "{:?}", error.help());
    manager.shutdown().await;
}
