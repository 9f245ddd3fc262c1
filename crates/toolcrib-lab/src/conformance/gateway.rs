//! Scenarios in which a server asks its client, or that are about resources and prompts: a client of `toolcrib serve` answers,
//! and what reaches the suite is the gateway's side of the session.

use std::{net::TcpListener, path::PathBuf, process::Stdio, time::Duration};

use anyhow::Context as _;
use serde_json::{Map, Value, json};
use tokio::process::Command;
use toolcrib::cli_support::bench::Scratch;

use super::{
    SERVER,
    plan::{Plan, WantedCall},
};
use crate::mcp::{Answer, Era, HttpClient, Identity};

/// How long the gateway may take to listen.
const START: Duration = Duration::from_secs(20);
/// How often a server may ask before it has its answer.
const ROUNDS: usize = 10;

pub(super) async fn run(plan: &Plan, toolcrib: Option<PathBuf>, url: &str, era: Era) -> anyhow::Result<()> {
    let program = match toolcrib {
        Some(path) => path,
        None => std::env::current_exe()?.with_file_name("toolcrib"),
    };
    let scratch = Scratch::new()?;
    let config = scratch.file("servers.toml");
    std::fs::write(&config, format!("[servers.{SERVER}]\nurl = {url:?}\nscope = \"client\"\n"))?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = Command::new(&program);
    command.arg("--config").arg(&config).args(["serve", "--http", &format!("127.0.0.1:{port}")]);
    command.current_dir(scratch.file(".")).stdin(Stdio::null()).kill_on_drop(true);
    let mut serving = command.spawn().with_context(|| program.display().to_string())?;
    let listening = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = listening => {}
        ended = serving.wait() => anyhow::bail!("`toolcrib serve` has ended: {}", ended?),
        () = tokio::time::sleep(START) => anyhow::bail!("`toolcrib serve` does not listen"),
    }
    let address = format!("http://127.0.0.1:{port}/mcp/{SERVER}");
    let capabilities = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    let client = HttpClient::open(&address, Identity::new(era, capabilities)).await?;
    let outcome = ask_for_all(plan, &client).await;
    client.close().await?;
    outcome
}

async fn ask_for_all(plan: &Plan, client: &HttpClient) -> anyhow::Result<()> {
    let list = answered(client, "tools/list", Map::new(), &Value::Null).await??;
    let tools: Vec<_> = list["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| Some((tool["name"].as_str()?.to_owned(), tool["inputSchema"].clone())))
        .collect();
    for WantedCall { tool, arguments } in plan.calls(&tools) {
        let params =
            Map::from_iter([("name".to_owned(), json!(tool)), ("arguments".to_owned(), json!(arguments))]);
        let schema = tools.iter().find(|(name, _)| *name == tool).map_or(&Value::Null, |(_, schema)| schema);
        answered(client, "tools/call", params, schema).await?.map_err(|why| why.context(tool))?;
    }
    // A server without them refuses to list them.
    if let Ok(list) = answered(client, "resources/list", Map::new(), &Value::Null).await? {
        for resource in list["resources"].as_array().into_iter().flatten() {
            let params = Map::from_iter([("uri".to_owned(), resource["uri"].clone())]);
            answered(client, "resources/read", params, &Value::Null).await??;
        }
    }
    if let Ok(list) = answered(client, "prompts/list", Map::new(), &Value::Null).await? {
        for prompt in list["prompts"].as_array().into_iter().flatten() {
            let params = Map::from_iter([("name".to_owned(), prompt["name"].clone())]);
            answered(client, "prompts/get", params, &Value::Null).await??;
        }
    }
    Ok(())
}

/// Asks, with the arguments as headers that `schema` marks, and again with the answers that a server wants, until it has enough.
async fn answered(
    client: &HttpClient,
    method: &'static str,
    mut params: Map<String, Value>,
    schema: &Value,
) -> anyhow::Result<anyhow::Result<Value>> {
    for _ in 0..ROUNDS {
        let arguments = params.get("arguments").cloned().unwrap_or_default();
        let request = client.identity.request(method, params.clone()).with_headers(schema, &arguments);
        let answer: Answer = client.request(&request, &user).await?;
        let result = match answer {
            Ok(result) => result,
            Err(error) => return Ok(Err(anyhow::anyhow!("{method}: {error}"))),
        };
        if result["resultType"] != json!("input_required") {
            return Ok(Ok(result));
        }
        let asked = result["inputRequests"].as_object().cloned().unwrap_or_default();
        let answers = asked.into_iter().filter_map(|(name, request)| {
            let answer = user(request["method"].as_str()?, &request["params"])?;
            Some((name, answer))
        });
        params.insert("inputResponses".to_owned(), Value::Object(answers.collect()));
        match result.get("requestState") {
            Some(state) => params.insert("requestState".to_owned(), state.clone()),
            None => params.remove("requestState"),
        };
    }
    anyhow::bail!("{method}: the server asked {ROUNDS} times")
}

/// Accepts every form, with the defaults of its fields.
fn user(method: &str, params: &Value) -> Option<Value> {
    match method {
        "elicitation/create" => {
            let fields = params["requestedSchema"]["properties"].as_object().cloned().unwrap_or_default();
            let filled = fields.into_iter().map(|(name, field)| {
                let value = match (field.get("default"), field["type"].as_str()) {
                    (Some(default), _) => default.clone(),
                    (None, Some("boolean")) => json!(true),
                    (None, Some("integer" | "number")) => json!(1),
                    (None, _) => json!("text"),
                };
                (name, value)
            });
            Some(json!({"action": "accept", "content": filled.collect::<Map<_, _>>()}))
        }
        "sampling/createMessage" => {
            let content = json!({"type": "text", "text": "sampled"});
            Some(json!({"role": "assistant", "model": "none", "content": content}))
        }
        "roots/list" => Some(json!({"roots": [{"uri": "file:///work", "name": "work"}]})),
        _ => None,
    }
}
