//! Agents whose model writes calls in the text, or writes wrong calls: a loopback model server and
//! real tool servers.

use serde_json::json;
use toolcrib::Outcome;

use crate::{
    support::model_server::{Model, agent, block, calls, question, run, say},
    support::{Lab, manager},
};

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_text_are_run_and_answered_in_text() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[]), lab.server("other", &[])]).await;
    let two = format!(
        "<think>{}</think>Both.\n{}\n{}",
        block("lab", "die", "{}"),
        block("lab", "echo", r#"{"text": "</arguments> one"}"#),
        block("other", "echo", r#"{"text": "two"}"#)
    );
    let model = Model::new([say(&two), say("It is two.")]);
    let report =
        run(&manager, &model, agent("tool_protocol = 'xml'\nsystem = 'Be brief.'"), &question()).await;
    assert_eq!((report.status, report.answer.as_deref()), (Outcome::Unscored, Some("It is two.")));
    assert_eq!((report.turns, report.tool_calls, report.tool_errors), (2, 2, 0));
    let first = model.messages(0);
    assert!(model.requests()[0].get("tools").is_none(), "the tools are in the text");
    assert!(first[0].starts_with("system: ") && first[0].ends_with("Be brief."), "{}", first[0]);
    for part in ["## Server name: lab\n### Tool name: echo\n", "Input JSON schema: {", "</use_mcp_tool>"] {
        assert!(first[0].contains(part), "{part}");
    }
    let second = model.messages(1);
    assert_eq!(second[2], format!("assistant: {two}"));
    assert_eq!(second[3..], ["user: </arguments> one\ntwo"]);
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_names_are_corrected_counted_and_logged() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let config = "aliases = { tools = { say = 'echo' }, arguments = { words = 'text' } }";
    let model = Model::new([
        calls(&[
            ("other__echo", r#"{"text": "server"}"#),
            ("lab-Echo", r#"{"TEXT": "case"}"#),
            ("say", r#"{"words": "alias"}"#),
            ("lab__echo", r#"{"query": "schema", }"#),
            ("lab__ehco", r#"{"text": "near"}"#),
            ("lab__echo", r#"{"text": "cut"#),
        ]),
        say("done"),
    ]);
    let report = run(&manager, &model, agent(config), &question()).await;
    assert_eq!((report.tool_calls, report.tool_errors), (4, 0));
    let sent = model.messages(1);
    assert_eq!(sent[2..6], ["tool: server", "tool: case", "tool: alias", "tool: schema"]);
    assert!(sent[6].contains("Did you mean `lab__echo`?"), "{}", sent[6]);
    assert!(sent[7].contains("not JSON") && sent[7].contains("nothing was run"), "{}", sent[7]);
    // The model sees what was run; the log has what it wrote.
    let kept = &model.requests()[1]["messages"][1]["tool_calls"];
    let shown = |index: usize| (&kept[index]["function"]["name"], &kept[index]["function"]["arguments"]);
    assert_eq!(shown(3), (&json!("lab__echo"), &json!(r#"{"text":"schema"}"#)));
    // Strict servers refuse a conversation with broken arguments: the result has what was written.
    assert_eq!(shown(5).1, "{}");
    assert!(sent[7].contains(r#"{"text": "cut"#), "{}", sent[7]);
    let counts: Vec<(&str, u32)> = report.corrections.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
    assert_eq!(counts, [("argument", 3), ("json", 1), ("server", 1), ("tool", 2)]);
    assert_eq!(report.log[3]["event"], "corrected");
    assert_eq!(report.log[3]["raw"], r#"lab__echo({"query": "schema", })"#);
    assert_eq!(report.log[3]["corrections"][1], json!({"kind": "argument", "from": "query", "to": "text"}));

    // Nothing of it where it is switched off.
    let model = Model::new([calls(&[("other__echo", r#"{"text": "x"}"#)]), say("done")]);
    let report = run(&manager, &model, agent("correct_calls = false"), &question()).await;
    assert_eq!((report.tool_calls, report.corrections.len()), (0, 0));
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_servers_in_text_calls_are_corrected() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let asked = format!("Now.\n{}", block("tool-lab", "Echo", r#"{"query": "found"}"#));
    let model = Model::new([say(&asked), say("done")]);
    let report = run(&manager, &model, agent("tool_protocol = 'xml'"), &question()).await;
    let sent = model.messages(1);
    assert_eq!(sent[2], format!("assistant: Now.\n{}", block("lab", "echo", r#"{"text":"found"}"#)));
    assert_eq!(sent[3], "user: found");
    assert_eq!(report.log[0]["raw"], block("tool-lab", "Echo", r#"{"query": "found"}"#));
    assert_eq!(report.log[0]["tool"], "lab.echo");
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_can_replace_a_tool_by_another() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[]), lab.server("spare", &[])]).await;
    let config = agent(
        "fallback = [
            { tool = 'lab.progress', arg = 'every', match = '^0?$', to = 'spare.sleep' },
            { tool = 'lab.die', error = 'was lost', to = 'spare.pid' },
        ]",
    );
    let model = Model::new([
        calls(&[
            ("lab__progress", r#"{"ms": 1, "every": 0}"#),
            ("lab__progress", r#"{"ms": 1}"#),
            ("lab__progress", r#"{"ms": 1, "every": 1}"#),
        ]),
        calls(&[("lab__die", "{}")]),
        say("done"),
    ]);
    let report = run(&manager, &model, config, &question()).await;
    assert_eq!((report.tools["spare.sleep"].n, report.tools["lab.progress"].n), (2, 1));
    assert_eq!((report.tools["lab.die"].errors, report.tools["spare.pid"].n), (1, 1));
    assert_eq!(report.corrections["fallback"], 3);
    let seen = model.messages(2);
    assert_eq!(seen[2..5], ["tool: awake"; 3]);
    assert!(seen[6]["tool: ".len()..].parse::<u32>().is_ok(), "{}", seen[6]);
    // The model sees the calls that it made.
    let kept = &model.requests()[1]["messages"][1]["tool_calls"];
    assert_eq!(
        kept[0]["function"],
        json!({"name": "lab__progress", "arguments": r#"{"ms": 1, "every": 0}"#})
    );
    assert_eq!(
        report.log[0]["corrections"],
        json!([{"kind": "fallback", "from": "lab.progress", "to": "spare.sleep"}])
    );
    assert_eq!(
        report.log[2],
        json!({"event": "taken_over", "turn": 2, "from": "lab.die", "to": "spare.pid"})
    );
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_is_never_sent() {
    let lab = Lab::new();
    let mut server = lab.server("lab", &[]);
    let text = "[servers.x]\nbuiltin = 'time'\n[servers.x.result_filter]\n\
        deny_args = [{ tool = 'ec*', arg = 'text', match = 'huggingface.co/(datasets|spaces)' }]";
    let env = toolcrib::Env::new("/", [("PATH", "/bin")]);
    let config = toolcrib::Config::parse(text, None, std::path::Path::new("/"), &env).unwrap();
    server.deny_args = config.servers["x"].server.as_ref().unwrap().deny_args.clone();
    let manager = manager([server]).await;
    let model = Model::new([
        calls(&[
            ("lab__echo", r#"{"text": "https://HuggingFace.co/datasets/gaia"}"#),
            ("lab__echo", r#"{"text": "https://huggingface.co/models"}"#),
            ("lab__calls", "{}"),
        ]),
        say("done"),
    ]);
    let report = run(&manager, &model, agent(""), &question()).await;
    let seen = model.messages(1);
    assert!(seen[2].contains("`lab.echo` may not be called with this `text`"), "{}", seen[2]);
    // The server itself counts the calls that reached it.
    let counted: u32 = seen[4]["tool: ".len()..].parse().unwrap();
    assert!(counted <= 2, "{seen:?}");
    assert_eq!(report.tool_errors, 1);
    let tools = manager.toolbox();
    let denied = crate::support::call(&tools, "lab", "echo", json!({"text": "huggingface.co/spaces"}));
    let error = denied.await.unwrap_err();
    assert_eq!(error.code(), toolcrib::ErrorCode::ArgumentsInvalid);
    assert!(error.help().unwrap().contains("servers.lab.result_filter.deny_args"));
    let calls = crate::support::say(&tools, "lab", "calls").await.unwrap();
    assert_eq!(calls, "3", "echo once, and this tool twice");
    assert!(manager.shutdown().await.survivors.is_empty());
}
