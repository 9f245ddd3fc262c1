//! Clients of `toolcrib serve` that send odd requests, over HTTP and over stdio, and one beside them that does not.

use std::{ops::Range, path::Path, process::Stdio, time::Duration};

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};
use toolcrib::cli_support::bench::Scratch;
use toolcrib_fakes::{oddities::Change, servers::odd::TEXTS};

use super::Fault;
use crate::{
    bench::gateway::gateways::{self, Running},
    fakes,
    mcp::{Era, HttpClient, Identity, nobody},
};

/// How many requests a round sends over each transport.
pub(super) const AT_ONCE: u64 = 16;
const SERVER: &str = "odd";
const TOOL: &str = "odd__alpha";
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(20);

/// A gateway over HTTP and one over stdio.
pub(super) struct Clients {
    http: Running,
    url: String,
    /// Over HTTP, and never odd.
    steady: HttpClient,
    lines: LineGateway,
    // Removed last.
    _scratch: Scratch,
}

/// `toolcrib serve` with a client over its standard streams.
struct LineGateway {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    pings: u64,
}

impl Clients {
    pub(super) async fn start(toolcrib: Option<&Path>) -> anyhow::Result<Self> {
        let scratch = Scratch::new()?;
        let (program, words) = fakes::command(&["odd"])?;
        let program = program.display().to_string();
        let toml = format!("[servers.{SERVER}]\ncommand = {program:?}\nargs = {words:?}\n");
        std::fs::write(gateways::toml_file(&scratch), toml)?;
        let gateway = gateways::own(toolcrib)?.swap_remove(0);
        let http = gateway.start(&scratch).await?;
        let url = http.url().context("it serves HTTP")?;
        // The endpoint of all servers.
        let url = url.rsplit_once('/').map_or(url.clone(), |(all, _)| all.to_owned());
        let steady = HttpClient::open(&url, Identity::new(Era::Legacy, json!({}))).await?;
        let lines = LineGateway::start(gateway.program(), &gateways::toml_file(&scratch), &scratch)?;
        Ok(Self { http, url, steady, lines, _scratch: scratch })
    }

    pub(super) async fn round(&mut self, seeds: Range<u64>) -> anyhow::Result<Vec<Fault>> {
        let mut faults = Vec::new();
        for seed in seeds {
            let Some((change, line)) = odd_request(seed) else { continue };
            let mut broken = |what| faults.push(Fault { seed, change: change.clone(), what });
            match tokio::time::timeout(LIMIT, self.steady.post_text(line.clone())).await {
                Ok(Ok(status)) if status < 500 => {}
                Ok(Ok(status)) => broken(format!("over HTTP: status {status}")),
                Ok(Err(error)) => broken(format!("over HTTP: {error:#}")),
                Err(_) => broken("over HTTP: no answer".to_owned()),
            }
            if let Err(error) = self.lines.send(&line).await {
                broken(format!("over stdio: {error:#}"));
                return Ok(faults);
            }
            // An odd `initialize` may have begun another session: the steady client has its own.
            let call = self.steady.identity.call(TOOL, &json!({"text": "hello"}));
            let called = tokio::time::timeout(LIMIT, self.steady.request(&call, &nobody)).await;
            match called {
                Ok(Ok(Ok(result))) if result["content"][0]["text"] == TEXTS[0] => {}
                Ok(other) => broken(format!("the next call failed: {other:?}")),
                Err(_) => broken("the next call has no answer".to_owned()),
            }
            if !faults.is_empty() {
                self.steady = HttpClient::open(&self.url, Identity::new(Era::Legacy, json!({}))).await?;
            }
        }
        Ok(faults)
    }

    pub(super) async fn end(self) {
        drop(self.steady);
        self.http.stop().await;
        self.lines.end().await;
    }
}

impl LineGateway {
    fn start(program: &str, config: &Path, scratch: &Scratch) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.arg("--config").arg(config).args(["serve", "--stdio"]).current_dir(scratch.file("."));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| program.to_owned())?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        Ok(Self { child, input, output, pings: 0 })
    }

    /// Sends a line, and then a ping, which has to be answered.
    async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        self.pings += 1;
        let id = format!("ping-{}", self.pings);
        let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"});
        self.input.write_all(format!("{line}\n{ping}\n").as_bytes()).await.context("it reads no more")?;
        let answered = tokio::time::timeout(LIMIT, async {
            while let Some(line) = self.output.next_line().await? {
                let message: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
                if message["id"] == json!(id) {
                    return Ok(());
                }
            }
            anyhow::bail!("it has ended")
        });
        answered.await.context("a ping has no answer")?
    }

    async fn end(mut self) {
        drop(self.input);
        if tokio::time::timeout(LIMIT, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// The request of `seed`: what is odd about it, and its text.
fn odd_request(seed: u64) -> Option<(String, String)> {
    let all = requests();
    let request = &all[usize::try_from(seed).unwrap_or(0) % all.len()];
    let change = Change::of(request, seed)?;
    Some((format!("{} {change}", request["method"].as_str().unwrap_or_default()), change.apply(request)))
}

fn requests() -> Vec<Value> {
    let info = json!({"name": "odd", "title": "Odd", "version": "1", "icons": [{"src": "x:y"}]});
    let capabilities = json!({"roots": {"listChanged": true}, "sampling": {}, "elicitation": {"form": {}}});
    let meta = json!({
        "progressToken": "p", "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": info, "io.modelcontextprotocol/clientCapabilities": capabilities,
    });
    let request =
        |method: &str, params: Value| json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let tell = |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    vec![
        request(
            "initialize",
            json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}),
        ),
        request("tools/list", json!({"cursor": "c", "_meta": {"progressToken": 1}})),
        request(
            "tools/call",
            json!({"name": TOOL, "arguments": {"text": "x"}, "_meta": {"progressToken": "p"}}),
        ),
        request("tools/call", json!({"name": TOOL, "arguments": {"text": "x"}, "_meta": meta})),
        request("prompts/get", json!({"name": "p", "arguments": {"a": "b"}})),
        request("resources/read", json!({"uri": "file:///x"})),
        request("resources/subscribe", json!({"uri": "file:///x"})),
        request(
            "completion/complete",
            json!({
                "ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": "b"}, "context": {"arguments": {}},
            }),
        ),
        request("logging/setLevel", json!({"level": "info"})),
        request("server/discover", json!({"_meta": meta})),
        request("tasks/get", json!({"taskId": "t"})),
        tell("notifications/initialized", Value::Object(Map::new())),
        tell("notifications/cancelled", json!({"requestId": 3, "reason": "no longer"})),
        tell(
            "notifications/progress",
            json!({"progressToken": 1, "progress": 0.5, "total": 1, "message": "m"}),
        ),
        json!({"jsonrpc": "2.0", "id": 1, "result": {"roots": [{"uri": "file:///", "name": "r"}]}}),
        json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no", "data": {}}}),
    ]
}
