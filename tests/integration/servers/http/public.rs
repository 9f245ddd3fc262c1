//! Public servers of npm and PyPI behind a URL, over both of their transports.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};
use toolcrib::Manager;

use super::super::remote::remote;
use crate::support::object;

/// A server of the Python SDK with one tool, at the port of its second argument.
const PYTHON: &str = r#"
import sys
from mcp.server.mcpserver import Context, MCPServer
server = MCPServer("python")
@server.tool()
async def add(a: int, b: int, ctx: Context) -> int:
    await ctx.report_progress(1, 2)
    return a + b
server.run(transport=sys.argv[1], host="127.0.0.1", port=int(sys.argv[2]))
"#;

fn installed(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers").join(path)
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// Starts a server; it ends with what is returned.
async fn started(mut command: Command, port: u16) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let child = command.spawn().unwrap();
    for _ in 0..600 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return child;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nothing listens on port {port}");
}

#[toolcrib_testing::requires(public_servers)]
#[tokio::test(flavor = "multi_thread")]
async fn public_servers_over_http_answer_on_both_transports() {
    for (transport, path) in [("streamableHttp", "mcp"), ("sse", "sse")] {
        let port = free_port().await;
        let mut node = Command::new("node");
        node.arg(installed("node_modules/@modelcontextprotocol/server-everything/dist/index.js"));
        node.arg(transport).env("PORT", port.to_string());
        let _server = started(node, port).await;
        let url = format!("http://127.0.0.1:{port}/{path}");
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        let ready = manager.report().servers[0].outcome.as_ref().unwrap();
        assert!(ready.tools > 5 && ready.era == "2025-11-25", "{transport}: {ready:?}");
        let echo = manager.call("remote", "echo", object(json!({"message": "hi"}))).await.unwrap();
        assert_eq!(echo.text(), "Echo: hi");
        let long = object(json!({"duration": 1, "steps": 2}));
        let done = manager.call("remote", "trigger-long-running-operation", long).await.unwrap();
        assert!(done.text().contains("completed"), "{}", done.text());
        manager.shutdown().await;
    }
    for (transport, path, era) in [("streamable-http", "mcp", "2026-07-28"), ("sse", "sse", "2025-11-25")] {
        let port = free_port().await;
        let mut python = Command::new(installed("venv/bin/python"));
        python.args(["-c", PYTHON, transport, &port.to_string()]);
        let _server = started(python, port).await;
        let url = format!("http://127.0.0.1:{port}/{path}");
        let manager = Manager::start(&remote(url, None)).await.unwrap();
        assert_eq!(manager.report().servers[0].outcome.as_ref().unwrap().era, era);
        let sum = manager.call("remote", "add", object(json!({"a": 2, "b": 3}))).await.unwrap();
        assert_eq!(sum.text(), "5", "{transport}");
        manager.shutdown().await;
    }
}
