//! Lines that are no messages as they stand: what there is in them is read, and what is wrong with them is said.

use serde_json::json;
use toolcrib::{Config, Manager};

use crate::support::{
    Lab, call, manager,
    program::{Bench, err, out},
};

/// A bench with a server that writes these lines.
fn bench(script: &serde_json::Value) -> Bench {
    let script = script.to_string();
    Bench::new(&format!(
        "[servers.odd]\ncommand = FIXTURE\nargs = [\"scripted\", {script:?}]\ncall_timeout = \"2s\"\n"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_has_its_answer_from_a_line_that_is_no_json() {
    let answer = r#"{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"said"}]}}"#;
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    for (line, said) in [
        (format!("{notice}{answer}\n"), "said"),
        (format!("[{notice},{answer}]\n"), "said"),
        (format!("2026-01-01 INFO {answer}\n"), "said"),
        (format!("data: {answer}\n\n"), "said"),
        (format!("\0\u{feff}{answer}\r\n"), "said"),
        (answer.replace("2.0", "1.0") + "\n", "said"),
        (answer.replace("said", "caf\u{f7e9}") + "\n", "caf\u{fffd}"),
        (answer.replace("said", "a\tb\u{1}") + "\n", "a\tb\u{1}"),
        (answer.replace("}]}", r#"}],"_meta":{"score":NaN}}"#) + "\n", "said"),
        (
            answer.replace(
                r#""content":[{"type":"text","text":"said"}]"#,
                r#""structuredContent":{"v":[NaN,-Infinity]}"#,
            ) + "\n",
            r#"{"v":[null,null]}"#,
        ),
        (answer.replace("}]", "},]") + "\n", "said"),
        (answer.replace(r#""id":ID,"#, r#""id":ID,"error":{"code":0,"message":""},"#) + "\n", "said"),
    ] {
        let lab = Lab::new();
        let manager = manager([lab.scripted("odd", &json!({"tools/call echo": line}).to_string())]).await;
        assert_eq!(call(&manager.toolbox(), "odd", "echo", json!({})).await.unwrap(), said, "{line}");
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn what_a_server_logs_is_not_taken_for_an_answer() {
    let lab = Lab::new();
    let line = "{\"level\":\"debug\",\"sent\":{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}}\n\
                got {\"jsonrpc\":\"2.0\",\"id\":ID,\"method\":\"ping\"}\n\
                {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":\"said\"}}\n";
    let manager = manager([lab.scripted("odd", &json!({"tools/call echo": line}).to_string())]).await;
    assert_eq!(call(&manager.toolbox(), "odd", "echo", json!({})).await.unwrap(), "said");
    manager.shutdown().await;
}

#[test]
fn the_words_of_an_error_without_an_id_are_shown() {
    let line =
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32603,\"message\":\"went wrong inside\"}}\n";
    let called = bench(&json!({"tools/call echo": line})).run(&["call", "odd.echo"]);
    assert!(err(&called).contains("an error that names no request: went wrong inside"), "{}", err(&called));
}

#[test]
fn the_data_of_an_error_is_shown() {
    for data in ["\"quota used up\"", r#"{"why":"quota used up"}"#] {
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        let answer = json!({"error": {"code": -32000, "message": "no", "data": data}});
        let called = bench(&json!({"tools/call echo": answer})).run(&["call", "odd.echo"]);
        assert!(err(&called).contains("quota used up"), "{}", err(&called));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_on_framing_says_so() {
    for (line, help) in [
        ("Content-Length: 40\r\n\r\n{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}", "Content-Length"),
        ("{\n  \"jsonrpc\": \"2.0\",\n  \"id\": ID,\n  \"result\": {}\n}\n", "over several lines"),
        ("{\"jsonrpc\":\"2.0\",\"result\":{}}\n", "name no request"),
        ("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{}}\r", "ends with a line feed"),
    ] {
        let lab = Lab::new();
        let script = json!({"initialize": line, "server/discover": "\n"}).to_string();
        let mut server = lab.scripted("odd", &script);
        server.startup_timeout = std::time::Duration::from_secs(3);
        let manager = Manager::start(&Config::new([server])).await.unwrap();
        let error = manager.report().servers[0].outcome.clone().unwrap_err();
        let told = error.help().unwrap_or_default();
        assert!(told.contains(help), "{line}: {told}: {:?}", error.causes());
        manager.shutdown().await;
    }
}

#[tokio::test]
async fn tools_by_name_and_bare_lists_are_listed() {
    for (answer, tools) in [
        (
            json!({"tools": {"echo": {"description": "x"}, "two": {"name": "second"}}}),
            &["echo", "second"][..],
        ),
        (json!([{"name": "echo"}]), &["echo"]),
    ] {
        let lab = Lab::new();
        let script = json!({"tools/list": {"result": answer}}).to_string();
        let manager = manager([lab.scripted("odd", &script)]).await;
        let catalog = manager.catalog();
        let names: Vec<&str> = catalog.entries().iter().map(|entry| entry.tool.name.as_str()).collect();
        assert_eq!(names, tools);
        assert_eq!(call(&manager.toolbox(), "odd", "echo", json!({})).await.unwrap(), "{}");
        manager.shutdown().await;
    }
}

#[test]
fn what_is_left_out_of_a_list_is_told() {
    let tools = json!({"tools": [{"name": "echo"}, {"title": "nameless"}, 5, {"name": "x", "inputSchema": 7}, {"name": "y", "description": 1}]});
    let bench = bench(&json!({"tools/list": {"result": tools}}));
    for command in [&["check"][..], &["tools"], &["call", "odd.nameless"]] {
        let told = err(&bench.run(command));
        for path in ["tools[1]", "tools[2]"] {
            assert!(
                told.contains(&format!("odd: `{path}`")) && told.contains("left out"),
                "{command:?}: {told}"
            );
        }
        assert!(told.contains("`toolcrib doctor odd` lists them"), "{told}");
    }
    assert!(!err(&bench.run(&["call", "odd.echo"])).contains("tools[1]"), "nobody asked");
    let without = self::bench(
        &json!({"initialize": {"result": {"protocolVersion": "2026-07-28", "capabilities": {"prompts": {}}}}}),
    );
    let told = err(&without.run(&["call", "odd.echo"]));
    assert!(told.contains("odd has no tools") && told.contains("capability `tools`"), "{told}");
    assert!(told.contains("which has no `initialize`"), "{told}");
    assert!(out(&without.run(&["tools"])).contains("0 tools"));
}
