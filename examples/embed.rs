//! The library in another program: start servers, call a tool, run a task, end.
//!
//! `cargo run --example embed`

#![expect(clippy::print_stdout, reason = "an example talks")]

use toolcrib::{
    Agent, Config, Endpoint, LlmClient, Manager, ServerConfig, ServerName, Task, config::AgentConfig,
};

const SCRIPT: &str = r#"
[[steps]]
when = { role = "user" }
calls = [{ tool = "calc__evaluate", args = { expression = "{{user}}" } }]
[[steps]]
say = "The answer is {{last}}."
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builtin = |name: &str| Endpoint::Builtin { name: name.into(), args: vec![], base: ".".into() };
    let calc = ServerConfig::new(ServerName::new("calc")?, builtin("calc"));
    let manager = Manager::start(&Config::new([calc])).await?;

    let arguments = serde_json::json!({"expression": "6 * 7"}).as_object().cloned().unwrap_or_default();
    println!("6 * 7 = {}", manager.call("calc", "evaluate", arguments).await?.text());

    // With a real model: LlmClient::at(url, "name").
    let model = LlmClient::script_text("embed", SCRIPT)?;
    let agent = Agent::new(model, manager.toolbox(), AgentConfig::default());
    let report = agent.run(&Task::question("sum", "1/3 + 1/6")).await;
    println!("{:?}: {}", report.status, report.answer.unwrap_or_default());
    if let Some(error) = &report.error {
        println!("{}", error.message);
    }

    drop(manager); // every server is gone now; `manager.shutdown().await` would say how each one ended
    Ok(())
}
