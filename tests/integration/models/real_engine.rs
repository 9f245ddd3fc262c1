//! A task against a real inference engine: llama.cpp's server with a tiny model of random weights, which
//! `bash tests/engine/up.sh DIR PORT` starts. Its words are noise; HTTP, tool calls and schemas are real.
//!
//! Skipped unless `TOOLCRIB_ENGINE_URL` has the address of the engine.

use std::path::Path;

use toolcrib::{
    Agent, Config, Endpoint, HttpClients, LlmClient, LlmConfig, Manager, Outcome, ServerConfig, ServerName,
    Task,
    config::{AgentConfig, ToolChoice},
};

fn builtin(name: &str) -> ServerConfig {
    let endpoint = Endpoint::Builtin { name: name.to_owned(), args: vec![], base: ".".into() };
    ServerConfig::new(ServerName::new(name).unwrap(), endpoint)
}

#[toolcrib_testing::requires(engine)]
#[tokio::test(flavor = "multi_thread")]
async fn a_real_engine_calls_real_tools() {
    let url = std::env::var("TOOLCRIB_ENGINE_URL").expect("the address of an engine");
    let config = Config::new([builtin("time"), builtin("calc")]);
    let manager = Manager::start(&config).await.unwrap();
    let mut llm = LlmConfig::new(Some(url), "tiny");
    llm.max_tokens = Some(512);
    llm.seed = Some(7);
    let http = HttpClients::new(&config.http).unwrap();
    let llm = LlmClient::new(&llm, &http, Path::new(".")).unwrap();
    let agent = AgentConfig { tool_choice: ToolChoice::RequiredFirst, ..AgentConfig::default() };
    let agent = Agent::new(llm.clone(), manager.toolbox(), agent);
    let report = agent.run(&Task::question("noise", "What time is it?")).await;

    assert_eq!(report.status, Outcome::Unscored, "{:?}", report.error);
    assert!(!report.model_scripted && report.model.as_deref() == Some("tiny"), "{:?}", report.model);
    assert!(report.tool_calls >= 1 && report.turns == 2, "{report:?}");
    assert!(report.tokens.input > 0 && report.tokens.output > 0, "{:?}", report.tokens);
    // The report says what was on the wire.
    let stats = llm.stats();
    assert_eq!((u64::from(report.llm_calls), u64::from(report.llm_retries)), (stats.attempts, stats.retries));
    // Each call of the model has its result in the conversation, and the counts agree.
    let role = |wanted: &str| report.transcript.iter().filter(|message| message["role"] == wanted).count();
    let asked: usize =
        report.transcript.iter().filter_map(|message| Some(message["tool_calls"].as_array()?.len())).sum();
    assert_eq!(role("tool"), asked);
    let counted: u32 = report.tools.values().map(|tool| tool.n).sum();
    assert_eq!(counted, report.tool_calls);
    assert!(
        report
            .transcript
            .last()
            .is_some_and(|message| message["content"].as_str() == report.answer.as_deref())
    );
    assert!(manager.shutdown().await.survivors.is_empty());
}
